/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The numbers of GPUs that a user allows for a job: --energy-gpus=2-8, or 2,4,8. */
#ifndef ENERGY_COUNTS_H
#define ENERGY_COUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENERGY_ENTRY_GPUS "ENERGY_GPUS"
#define ENERGY_MAX_COUNTS 32
#define ENERGY_MAX_COUNT 4096

typedef struct {
	size_t count;
	uint32_t values[ENERGY_MAX_COUNTS];	/* ascending, each once */
} energy_counts_t;

/* Read numbers and ranges of 1 to 4096, up to 32 numbers in all. False if text is anything else. */
extern bool energy_counts_read(const char *text, energy_counts_t *counts);

extern bool energy_counts_has(const energy_counts_t *counts, uint32_t value);

#endif
