/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Slurm's allocator, as slurmctld exports it. slurmctld frees what a job description holds with it, so
 * every string and array put there must come from it. No public header declares these.
 */
#ifndef ENERGY_SLURM_MEMORY_H
#define ENERGY_SLURM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* With try set they return NULL where there is no memory, else slurmctld would stop. */
extern void *slurm_xcalloc(size_t count, size_t size, bool clear, bool try, const char *file,
			   int line, const char *function);

/* item is the ADDRESS of the pointer, which is set to the new place. */
extern void *slurm_xrecalloc(void **item, size_t count, size_t size, bool clear, bool try,
			     const char *file, int line, const char *function);

/* item is the address of the pointer, which is set to NULL. */
extern void slurm_xfree(void **item);

#endif
