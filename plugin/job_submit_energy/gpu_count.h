/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A job's number of GPUs, where its user declared others beside it (--energy-gpus): which of them the job could be
 * given, and the job's description for one of them.
 *
 * Slurm refuses a job whose numbers do not agree, and then the user has none. So a number is offered only where the
 * job's form is known to the last field, and where its partitions and accounts would take the job as they take the
 * original. Everything else leaves the job as it came, with a reason.
 */
#ifndef ENERGY_GPU_COUNT_H
#define ENERGY_GPU_COUNT_H

#include <slurm/slurm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/counts.h"

/* The fields of the job for one number of GPUs. */
typedef struct {
	uint32_t gpus;		/* over the whole job */
	uint32_t gpus_per_node;	/* 0: Slurm chooses */
	uint32_t nodes;		/* 0: Slurm chooses */
	uint32_t tasks;		/* 0: none named */
	uint32_t tasks_per_node;	/* 0: none named */
	uint32_t min_cpus;
	uint64_t memory;	/* as pn_min_memory */
	uint32_t time_limit;	/* minutes; NO_VAL: none named */
	/* What nodes must have for it; nothing of the job is set to them. */
	uint32_t cpus;		/* over the whole job, by its tasks and by its GPUs */
	uint64_t node_memory;	/* MiB on each node; 0: not known */
} energy_gpu_option_t;

typedef struct {
	bool is_declared;	/* the user named numbers of GPUs */
	const char *refusal;	/* why the job's own number stays; NULL: nothing stands against another one */
	uint32_t asked;		/* 0: not known */
	size_t count;		/* options, the asked one among them, ascending */
	energy_gpu_option_t options[ENERGY_MAX_COUNTS];
} energy_gpu_plan_t;

/* Find out which numbers the job could be given; changes nothing. Without --energy-gpus nothing is looked at. */
extern void energy_gpu_plan(const job_desc_msg_t *job, uint32_t submit_uid, energy_gpu_plan_t *plan);

/* The option for a number; NULL: it is not offered. */
extern const energy_gpu_option_t *energy_gpu_option(const energy_gpu_plan_t *plan, uint32_t gpus);

/*
 * Give the job one of the options, and the variables that tell its script. All of it or nothing: false if there is no
 * memory, and the job is as it was.
 */
extern bool energy_gpu_apply(job_desc_msg_t *job, const energy_gpu_plan_t *plan,
			     const energy_gpu_option_t *option);

/* The place of a text's only count of GPUs, its digits; false if there is none, or more than one. */
typedef struct {
	size_t at, length;	/* of the digits */
	uint32_t value;
} energy_gpu_digits_t;

extern bool energy_gpu_digits(const char *text, energy_gpu_digits_t *digits);

/* The number of `gres:gpu:16384`, which --cpus-per-gpu and --mem-per-gpu give; 0 for anything else. */
extern uint32_t energy_gpu_share(const char *text);

/* Whether a request names a range of GPUs, as only --energy-gpus may: Slurm refuses such a job. */
extern bool energy_gpu_is_range(const job_desc_msg_t *job);

/* Whether a line of a script starts a program with a number of tasks, nodes or GPUs that is written out. */
extern bool energy_script_has_counts(const char *script);

/* Why partitions and accounts may not take the job with an option; NULL: they take it as they take the original. */
extern const char *energy_gpu_objection(const job_desc_msg_t *job, uint32_t submit_uid,
					const energy_gpu_plan_t *plan, const energy_gpu_option_t *option);

/* Minutes that all of the job's partitions give a job without a time limit; NO_VAL: not known or not one, INFINITE: none. */
extern uint32_t energy_gpu_default_time(const job_desc_msg_t *job);

#endif
