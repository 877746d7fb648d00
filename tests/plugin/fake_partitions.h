/* SPDX-License-Identifier: GPL-2.0-or-later */
/* slurmctld's partitions, its slurm.conf and its associations, packed as each release packs them. */
#ifndef ENERGY_FAKE_PARTITIONS_H
#define ENERGY_FAKE_PARTITIONS_H

#include <slurm/slurm.h>
#include <slurm/slurmdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
	const char *name;
	uint32_t max_time, default_time, max_nodes, min_nodes, total_nodes, total_cpus;
	uint32_t max_cpus_per_node, max_cpus_per_socket, flags;
	uint64_t default_memory, max_memory;
	uint16_t max_share, preempt_mode, priority_job_factor, priority_tier, state;
	const char *allow_accounts, *allow_groups, *allow_alloc_nodes, *allow_qos, *qos;
	const char *deny_accounts, *deny_qos, *nodes, *billing_weights;
	uint64_t cpus_per_gpu;	/* JobDefaults; 0: no list */
	bool has_association;	/* the user has one for this partition alone */
} fake_partition_t;

extern slurm_conf_t slurm_conf;

/* Forget all partitions and rules, and know these names, of which the first is the default, with Slurm's defaults. */
extern void fake_partitions(const char *const *names, size_t count);

/* One of them, to be changed. */
extern fake_partition_t *fake_partition(const char *name);

extern void fake_default_partition(const char *name);

/* What the user's account and QOS limit; every QOS that is asked about has these limits. */
extern slurmdb_assoc_rec_t fake_account;
extern slurmdb_qos_rec_t fake_qos;

/* Bytes that the next partition packs before the end mark more (or, below 0, fewer) than it should. */
extern void fake_packing_error(int bytes);

/* Pack a partition with the end mark behind it, as a release of this protocol does. Returns the length. */
extern size_t fake_pack(const fake_partition_t *partition, uint16_t protocol, char *bytes, size_t size);

#endif
