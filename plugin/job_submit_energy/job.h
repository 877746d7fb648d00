/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The three things done to a job description: clean it, describe it, apply an answer to it. */
#ifndef ENERGY_JOB_H
#define ENERGY_JOB_H

#include <slurm/slurm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/options.h"
#include "../common/reply.h"
#include "gpu_count.h"

/* Remove every decision entry that came with the job. Returns how many there were. */
extern uint32_t energy_job_strip(job_desc_msg_t *job);

/*
 * Remove the variables of a chosen number of GPUs: those that came with the job are of the job around its
 * sbatch.
 */
extern void energy_job_forget_count(job_desc_msg_t *job);

/*
 * Remove the features of the job's script, once the daemon has been asked: thousands of jobs would keep
 * them.
 */
extern void energy_job_forget_script(job_desc_msg_t *job);

/* Value of an entry of the job control environment, NULL if it is absent; the last one counts. */
extern const char *energy_job_entry(const job_desc_msg_t *job, const char *name);

/* Write the request about the job. Returns its length, 0 if the job's own text does not fit. */
extern size_t energy_job_request(const job_desc_msg_t *job, uint32_t submit_uid,
				 const energy_gpu_plan_t *plan, char *bytes, size_t size);

/* Behind the admin comment of a job whose partitions stayed as they were, though the answer named one. */
#define ENERGY_COMMENT_KEPT " partition-kept"

typedef enum {
	ENERGY_APPLIED,
	ENERGY_APPLIED_BUT_FOREIGN,	/* its partition is none of the user's own: they stay as they were */
	ENERGY_APPLIED_BUT_PARTITION,	/* Slurm might take its partitions otherwise: they stay as they were */
	ENERGY_APPLIED_NOTHING,		/* it names a number of GPUs that was not offered: garbage as a whole */
	ENERGY_APPLY_NO_MEMORY,		/* the job may lack a part of the answer */
} energy_applied_t;

/*
 * Whether the user said something that ties the job to partitions, or that decides whether Slurm takes it at
 * once: the order of its partitions is then the user's alone.
 */
extern bool energy_job_is_tied(const job_desc_msg_t *job);

/*
 * Put the partitions of an answer before the job's own, of which none goes; where the user named some, others
 * are added only if the answer says that they are a preference (open) and the user did not say otherwise.
 * Leave the job as it is where Slurm might then refuse it, or let it wait, and write the reason into why.
 */
extern energy_applied_t energy_job_partition(job_desc_msg_t *job, uint32_t submit_uid, const char *answer,
					     bool open, char *why, size_t size);

/* Apply what the answer names and nothing else; why says what was left out. */
extern energy_applied_t energy_job_apply(job_desc_msg_t *job, uint32_t submit_uid,
					 const energy_reply_t *reply, const energy_gpu_plan_t *plan, char *why,
					 size_t size);

/* The parts of an answer that are texts of the job. Each returns false if there is no memory: the job lacks that part. */
extern bool energy_job_add_decision(job_desc_msg_t *job, const char *value);

/* A feature that the job prefers; nothing is done where that could do more than steer the job. */
extern bool energy_job_prefer(job_desc_msg_t *job, const char *feature);

/*
 * Let the job begin no sooner than this, in seconds since 1970; 0: as it is. Nothing is done for a job whose user named
 * no time by which it must begin (ENERGY_START_BEFORE), or an earlier one, or a begin of his own.
 */
extern void energy_job_begin(job_desc_msg_t *job, int64_t seconds);

/* What became of the answer, behind the admin comment; kept: the partitions stayed as they were. */
extern bool energy_job_comment(job_desc_msg_t *job, const char *comment, bool kept);

/* Leave the answer's line for the person who submits, after what another plugin may have left. */
extern void energy_job_tell(char **err_msg, const char *message);

#endif
