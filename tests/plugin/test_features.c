/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The features that an answer prefers: when a job may carry them, and when it may not. */
#include <stdint.h>

#include "check.h"
#include "fake_partitions.h"
#include "fake_slurm.h"
#include "job_submit_energy/job.h"
#include "job_submit_energy/slurm_memory.h"

static job_desc_msg_t job;

static const char *const names[] = { "v100", "a100", "a40" };
static char why[200];
static const energy_gpu_plan_t no_plan;

static void _begin(void)
{
	static char scheduling[] = "bf_interval=30,Ignore_Prefer_Validation";

	fake_partitions(names, 3);
	slurm_conf.sched_params = scheduling;
	fake_slurm_empty_job(&job);
}

static void _finish(void)
{
	fake_slurm_memory(-1);
	fake_slurm_free_job(&job);
}

static energy_reply_t _reply(void)
{
	energy_reply_t reply = { .decision_id = "abcdefgh1" };

	return reply;
}

static const char *_preferred(energy_applied_t expected)
{
	static char result[128];
	energy_reply_t reply = _reply();

	strcpy(reply.prefer, "nvlink");
	CHECK(energy_job_apply(&job, 1000, &reply, &no_plan, why, sizeof(why)) == expected);
	CHECK(!job.prefer || fake_slurm_owns(job.prefer));
	snprintf(result, sizeof(result), "%s", job.prefer ? job.prefer : "none");
	return result;
}

static void test_a_feature_is_preferred_in_slurms_memory(void)
{
	_begin();
	CHECK_TEXT(_preferred(ENERGY_APPLIED), "nvlink");
	_finish();
	_begin();
	job.prefer = fake_slurm_string("");
	job.features = fake_slurm_string("");
	job.ntasks_per_core = INFINITE16;
	job.contiguous = 0;
	CHECK_TEXT(_preferred(ENERGY_APPLIED), "nvlink");
	_finish();
}

static void test_what_the_user_said_of_the_nodes_stands_alone(void)
{
	char text[] = "x";
	char **texts[] = {
		&job.features, &job.req_nodes, &job.exc_nodes, &job.reservation,
		&job.tres_per_socket, &job.cpus_per_tres, &job.mem_per_tres,
	};
	uint16_t *counts[] = {
		&job.pn_min_cpus, &job.boards_per_node, &job.sockets_per_board, &job.sockets_per_node,
		&job.cores_per_socket, &job.threads_per_core, &job.ntasks_per_board,
		&job.ntasks_per_socket, &job.ntasks_per_core, &job.ntasks_per_tres, &job.contiguous,
	};
	uint32_t *wide_counts[] = { &job.pn_min_tmp_disk, &job.req_switch, &job.het_job_offset };

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		_begin();
		*texts[i] = text;
		CHECK_TEXT(_preferred(ENERGY_APPLIED), "none");
		*texts[i] = NULL;
		_finish();
	}
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		_begin();
		*counts[i] = 1;
		CHECK_TEXT(_preferred(ENERGY_APPLIED), "none");
		_finish();
	}
	for (size_t i = 0; i < sizeof(wide_counts) / sizeof(wide_counts[0]); i++) {
		_begin();
		*wide_counts[i] = 1;
		CHECK_TEXT(_preferred(ENERGY_APPLIED), "none");
		_finish();
	}
	_begin();
	job.prefer = fake_slurm_string("mine");
	CHECK_TEXT(_preferred(ENERGY_APPLIED), "mine");
	_finish();
}

static void test_no_feature_is_preferred_where_slurm_may_refuse_the_job_for_it(void)
{
	char other[] = "bf_interval=30";
	char *settings[] = { NULL, other };

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		_begin();
		slurm_conf.sched_params = settings[i];
		CHECK_TEXT(_preferred(ENERGY_APPLIED), "none");
		_finish();
	}
	_begin();
	job.immediate = 1;
	CHECK_TEXT(_preferred(ENERGY_APPLIED), "none");
	_finish();
}

static void test_a_feature_of_a_partition_that_was_not_applied_is_not_preferred(void)
{
	energy_reply_t reply = _reply();

	_begin();
	job.partition = fake_slurm_string("a100");
	strcpy(reply.partition, "a40");
	strcpy(reply.prefer, "nvlink");
	CHECK(energy_job_apply(&job, 1000, &reply, &no_plan, why, sizeof(why)) == ENERGY_APPLIED_BUT_FOREIGN);
	CHECK(!job.prefer);
	_finish();
}

static void test_without_memory_no_feature_is_preferred(void)
{
	_begin();
	fake_slurm_memory(0);
	CHECK_TEXT(_preferred(ENERGY_APPLY_NO_MEMORY), "none");
	_finish();
}

int main(void)
{
	RUN(test_a_feature_is_preferred_in_slurms_memory);
	RUN(test_what_the_user_said_of_the_nodes_stands_alone);
	RUN(test_no_feature_is_preferred_where_slurm_may_refuse_the_job_for_it);
	RUN(test_a_feature_of_a_partition_that_was_not_applied_is_not_preferred);
	RUN(test_without_memory_no_feature_is_preferred);
	return 0;
}
