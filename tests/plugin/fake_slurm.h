/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What slurmctld and sbatch export, with checks of the rules that they do not check themselves. */
#ifndef ENERGY_FAKE_SLURM_H
#define ENERGY_FAKE_SLURM_H

#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>

/* From now on every allocation after the next count ones finds no memory; -1: there is always some. */
extern void fake_slurm_memory(int count);

extern char *fake_slurm_string(const char *text);

/* Whether a pointer came from Slurm's allocator; ends the program if it looks like no pointer of it. */
extern bool fake_slurm_owns(const void *pointer);

/* Text of the last slurm_error(), and how many there were. */
extern const char *fake_slurm_last_error(void);
extern int fake_slurm_num_errors(void);

/* A job description as Slurm makes one when the user says nothing: NULL and NO_VAL everywhere. */
extern void fake_slurm_empty_job(job_desc_msg_t *job);
extern void fake_slurm_add_entry(job_desc_msg_t *job, const char *entry);
extern void fake_slurm_free_job(job_desc_msg_t *job);

/* SPANK's side: the context, the registered options and what was set, as "NAME=value" lines. */
extern void fake_spank_context(spank_context_t context);
extern struct spank_option *fake_spank_option(const char *name);
extern const char *fake_spank_entries(void);
extern void fake_spank_forget(void);

/* A step on a node, without variables; spank_setenv() gives it some. */
extern void fake_spank_step(uint32_t step);
extern const char *fake_spank_variable(const char *name);

#endif
