/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Whether Slurm takes a job with its partitions in a new order at least as it would have taken it before. */
#ifndef ENERGY_PARTITION_ORDER_H
#define ENERGY_PARTITION_ORDER_H

#include <slurm/slurm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "partition.h"

typedef struct {
	const job_desc_msg_t *job;
	uint32_t submit_uid;
	energy_cluster_rules_t rules;
	bool widens;			/* a partition is added that the user did not name */
	size_t moved;			/* so many go first */
	size_t home;			/* the place of the job's own first one */
	size_t count;
	energy_partition_t *partitions;	/* in the order to be; read up to count */
	/* What the job needs, where that follows from what it says: worked out by energy_order_objection. */
	bool knows_cpus;
	uint64_t cpus, nodes;
} energy_order_t;

/* The setting that stands against the order; NULL: none does. */
extern const char *energy_order_objection(energy_order_t *list);

/* Values of a job description that say something. */
static inline bool energy_is_set(const char *text)
{
	return text && text[0];
}

static inline bool energy_is_given16(uint16_t value)
{
	return value && (value != NO_VAL16) && (value != INFINITE16);
}

static inline bool energy_is_given32(uint32_t value)
{
	return value && (value != NO_VAL) && (value != INFINITE);
}

#endif
