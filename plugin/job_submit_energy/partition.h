/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A partition as slurmctld knows it at this moment.
 *
 * No public header describes slurmctld's own records, and they change with every release. What is read here is
 * what slurmctld itself packs for `scontrol show partition`: a format that each release documents for older
 * clients. Whatever is not exactly as expected makes the partition unknown, never wrong.
 */
#ifndef ENERGY_PARTITION_H
#define ENERGY_PARTITION_H

#include <slurm/slurm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A piece of the packed record; a text is without its final NUL, and has no bytes where there is none. */
typedef struct {
	const char *bytes;
	uint32_t length;
} energy_piece_t;

typedef struct {
	char *packed;	/* Slurm's memory, which the pieces point into */
	energy_piece_t name;
	uint32_t max_time, default_time;	/* minutes */
	uint32_t max_nodes, min_nodes, total_nodes, total_cpus;
	uint32_t max_cpus_per_node, max_cpus_per_socket;
	uint64_t default_memory, max_memory;	/* MiB, with MEM_PER_CPU where it is for each CPU */
	uint32_t flags;
	uint16_t max_share, preempt_mode, priority_job_factor, priority_tier, state;
	energy_piece_t allow_accounts, allow_groups, allow_alloc_nodes, allow_qos, qos;
	energy_piece_t deny_accounts, deny_qos, billing_weights, job_defaults;
} energy_partition_t;

/* What of slurm.conf changes the meaning of an answer; the strictest where it cannot be read. */
typedef struct {
	bool all_must_fit;		/* EnforcePartLimits=ALL */
	bool has_associations;		/* the accounts come from a database */
	bool limits_memory;		/* MaxMemPerNode or MaxMemPerCPU for the whole cluster */
	bool has_job_defaults;		/* JobDefaults for the whole cluster, such as DefCpuPerGPU */
	uint64_t default_memory;	/* as of a partition, which goes before it */
	bool ignores_preferences;	/* a --prefer that no node can meet refuses no job */
} energy_cluster_rules_t;

extern energy_cluster_rules_t energy_cluster_rules(void);

/*
 * Read a partition under the locks that slurmctld holds in job_submit. name NULL: the default partition.
 * Returns false if there is none or if it cannot be read; partition then needs no energy_partition_free.
 */
extern bool energy_partition_read(const char *name, energy_partition_t *partition);

extern void energy_partition_free(energy_partition_t *partition);

/*
 * Whether the user has an association for this partition alone; true if that is not known. Slurm refuses a list of
 * partitions with one of these.
 */
extern bool energy_has_partition_association(const job_desc_msg_t *job, uint32_t submit_uid,
					     const energy_partition_t *partition);

/*
 * Read a packed record of one protocol version (0: of none that is known) that must end with the end mark.
 * Returns false for anything else; partition->packed is left alone.
 */
extern bool energy_partition_unpack(const char *bytes, size_t size, uint16_t protocol,
				    energy_partition_t *partition);

/* The version of Slurm's protocol in which this release packs partitions, 0 if it is not known. */
extern uint16_t energy_partition_protocol(uint32_t slurm_version);

/* Two words behind the record: nothing may follow it, and nothing of it may be missing. */
#define ENERGY_END_MARK_1 UINT32_C(0x656e6572)
#define ENERGY_END_MARK_2 UINT32_C(0x67790d0a)

#endif
