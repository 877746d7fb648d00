/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A job description: what is taken out of it, what is said about it, what is put into it. */
#include <stdint.h>
#include <time.h>

#include "check.h"
#include "common/request.h"
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

static void test_every_forged_entry_is_removed_and_the_others_stay_in_order(void)
{
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_DECISION=forged");
	fake_slurm_add_entry(&job, "A=1");
	fake_slurm_add_entry(&job, "ENERGY_DECISION=forged again");
	fake_slurm_add_entry(&job, "SPANK_ENERGY_DECISION=forged");
	fake_slurm_add_entry(&job, "B=2");
	CHECK(energy_job_strip(&job) == 3);
	CHECK(job.spank_job_env_size == 2);
	CHECK_TEXT(job.spank_job_env[0], "A=1");
	CHECK_TEXT(job.spank_job_env[1], "B=2");
	CHECK(energy_job_strip(&job) == 0);
	_finish();
}

static void test_an_array_of_forged_entries_alone_becomes_none(void)
{
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_DECISION=forged");
	CHECK(energy_job_strip(&job) == 1);
	CHECK(!job.spank_job_env && !job.spank_job_env_size);
	_finish();
}

static void test_stripping_bears_missing_arrays_and_entries(void)
{
	_begin();
	job.spank_job_env_size = 3;	/* of an array that is not there */
	CHECK(energy_job_strip(&job) == 0);
	job.spank_job_env_size = 0;
	fake_slurm_add_entry(&job, "A=1");
	fake_slurm_add_entry(&job, "ENERGY_DECISION=forged");
	slurm_xfree((void **) &job.spank_job_env[0]);
	CHECK(energy_job_strip(&job) == 1);
	CHECK((job.spank_job_env_size == 1) && !job.spank_job_env[0]);
	CHECK(!energy_job_entry(&job, "A"));
	_finish();
}

static const char *_request(void)
{
	static char bytes[ENERGY_REQUEST_BYTES + 1];
	size_t length = energy_job_request(&job, 1000, &no_plan, bytes, ENERGY_REQUEST_BYTES);

	CHECK(length > 0);
	bytes[length] = '\0';
	return bytes;
}

static void test_an_empty_job_makes_a_request_without_what_slurm_does_not_know(void)
{
	char expected[256];

	_begin();
	snprintf(expected, sizeof(expected),
		 "slurm-energy/1 decide\nclient=job_submit/%d.%02d.%d\nuid=1000\nsubmit_uid=1000\n"
		 "interactive=1\nend\n", SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER),
		 SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER), SLURM_VERSION_MICRO(SLURM_VERSION_NUMBER));
	CHECK_TEXT(_request(), expected);
	_finish();
}

static void test_every_key_is_sent_when_slurm_has_it(void)
{
	char script[] = "#!/bin/sh\n";
	char reservation[] = "maint", licenses[] = "lic:2", per_socket[] = "gres:gpu:1";
	char per_task[] = "gres:gpu:a100:1", per_tres[] = "gres:gpu:4", freq[] = "gpu:low";
	const char *text;

	_begin();
	job.script = fake_slurm_string(script);
	job.user_id = 5;
	job.group_id = 60;
	job.name = fake_slurm_string("train");
	job.account = fake_slurm_string("acc");
	job.qos = fake_slurm_string("normal");
	job.partition = fake_slurm_string("a100,a40");
	job.tres_per_job = fake_slurm_string("gres:gpu:4");
	job.tres_per_node = fake_slurm_string("gres/gpu:a100:2,gres/gpu:2");
	job.tres_per_socket = per_socket;
	job.tres_per_task = per_task;
	job.cpus_per_tres = per_tres;
	job.tres_freq = freq;
	job.features = fake_slurm_string("nvlink&ib");
	job.prefer = fake_slurm_string("rack:3");
	job.array_inx = fake_slurm_string("0-999%50");
	job.dependency = fake_slurm_string("afterok:12");
	job.reservation = reservation;
	job.licenses = licenses;
	job.time_limit = 90;
	job.time_min = INFINITE;
	job.min_nodes = 1;
	job.max_nodes = 2;
	job.num_tasks = 8;
	job.ntasks_per_node = 4;
	job.cpus_per_task = 2;
	job.min_cpus = 16;
	job.max_cpus = 32;
	job.pn_min_memory = 4000;
	job.ntasks_per_tres = 2;
	job.het_job_offset = 0;
	job.shared = JOB_SHARED_NONE;
	job.begin_time = 1800000000;
	job.deadline = 1800003600;
	job.requeue = 0;
	job.contiguous = 1;
	job.priority = 0;
	fake_slurm_add_entry(&job, "ENERGY_MODE=observe");
	fake_slurm_add_entry(&job, "ENERGY_MODE=saver");
	fake_slurm_add_entry(&job, "ENERGY_MAX_SLOWDOWN=7.5");
	fake_slurm_add_entry(&job, "ENERGY_DEADLINE=now+2hours");
	fake_slurm_add_entry(&job, "ENERGY_QUIET=1");
	text = strchr(strchr(_request(), '\n') + 1, '\n') + 1;	/* after the client line */
	CHECK_TEXT(text,
		   "uid=5\ngid=60\nsubmit_uid=1000\nname=train\naccount=acc\nqos=normal\n"
		   "partition=a100,a40\nreservation=maint\ntime_limit=90\ntime_min=infinite\n"
		   "min_nodes=1\nmax_nodes=2\nnum_tasks=8\nntasks_per_node=4\ncpus_per_task=2\n"
		   "min_cpus=16\nmax_cpus=32\nmem_per_node_mib=4000\ntres_per_job=gres:gpu:4\n"
		   "tres_per_node=gres/gpu:a100:2,gres/gpu:2\ntres_per_socket=gres:gpu:1\n"
		   "tres_per_task=gres:gpu:a100:1\nntasks_per_tres=2\ncpus_per_tres=gres:gpu:4\n"
		   "tres_freq=gpu:low\nfeatures=nvlink&ib\nprefer=rack:3\narray=0-999%2550\nhet_offset=0\n"
		   "dependency=afterok:12\nlicenses=lic:2\nexclusive=1\nbegin_time=1800000000\n"
		   "slurm_deadline=1800003600\nrequeue=0\ncontiguous=1\ntied=1\nheld=1\nenergy_mode=saver\n"
		   "energy_max_slowdown=7.5\nenergy_deadline=now+2hours\nenergy_quiet=1\nend\n");
	job.pn_min_memory = 100 | MEM_PER_CPU;
	CHECK(strstr(_request(), "\nmem_per_cpu_mib=100\n"));
	CHECK(!strstr(_request(), "mem_per_node"));
	_finish();
}

static void test_a_job_that_is_tied_to_its_partitions_says_so(void)
{
	char nodes[] = "n1";

	_begin();
	CHECK(!strstr(_request(), "tied") && !strstr(_request(), "held"));
	job.exc_nodes = nodes;
	CHECK(strstr(_request(), "\ntied=1\n"));
	_finish();
}

static void test_only_a_job_that_admits_no_other_job_is_exclusive(void)
{
	_begin();
	CHECK(!strstr(_request(), "exclusive"));
	job.shared = JOB_SHARED_USER;
	CHECK(!strstr(_request(), "exclusive"));
	job.shared = JOB_SHARED_MCS;
	CHECK(!strstr(_request(), "exclusive"));
	job.shared = 4; /* JOB_SHARED_TOPO */
	CHECK(strstr(_request(), "\nexclusive=1\n"));
	_finish();
}

static void test_wishes_that_no_option_could_have_set_are_not_sent(void)
{
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_MODE=$(id)");
	fake_slurm_add_entry(&job, "ENERGY_MAX_SLOWDOWN=9999");
	fake_slurm_add_entry(&job, "ENERGY_DEADLINE=never\nend");
	fake_slurm_add_entry(&job, "ENERGY_QUIET=loud");
	CHECK(!strstr(_request(), "energy_"));
	_finish();
}

static void test_a_later_component_of_a_heterogeneous_job_is_not_called_interactive(void)
{
	_begin();
	job.het_job_offset = 1;
	CHECK(!strstr(_request(), "interactive"));
	CHECK(strstr(_request(), "\nhet_offset=1\n"));
	_finish();
}

static char *_long_text(size_t length, char filling)
{
	char *plain = malloc(length + 1), *text;

	memset(plain, filling, length);
	plain[length] = '\0';
	text = fake_slurm_string(plain);
	free(plain);
	return text;
}

static void test_a_name_of_a_megabyte_is_cut(void)
{
	const char *name;

	_begin();
	job.name = _long_text(1 << 20, '\n');
	name = strstr(_request(), "\nname=") + strlen("\nname=");
	CHECK(strcspn(name, "\n") == 256 * 3);
	_finish();
}

static void test_texts_at_their_bounds_fit_one_request(void)
{
	char *filled = _long_text(1024, '\n');

	_begin();
	job.name = _long_text(5000, '\n');
	job.array_inx = _long_text(5000, '\n');
	job.dependency = _long_text(5000, '\n');
	job.account = job.qos = job.partition = job.reservation = filled;
	job.tres_per_job = job.tres_per_node = job.tres_per_socket = job.tres_per_task = filled;
	job.cpus_per_tres = job.tres_freq = job.features = job.prefer = job.licenses = filled;
	CHECK(strlen(_request()) < ENERGY_REQUEST_BYTES);
	job.account = job.qos = job.partition = job.features = job.prefer = NULL;
	job.tres_per_job = job.tres_per_node = NULL;
	slurm_xfree((void **) &filled);
	_finish();
}

static void test_a_request_is_not_made_of_half_a_partition_list(void)
{
	char bytes[ENERGY_REQUEST_BYTES];

	_begin();
	job.partition = _long_text(1025, 'p');
	CHECK(energy_job_request(&job, 0, &no_plan, bytes, sizeof(bytes)) == 0);
	_finish();
}

static void test_an_answer_is_applied_in_slurms_memory(void)
{
	energy_reply_t reply = _reply();

	_begin();
	fake_slurm_add_entry(&job, "A=1");
	strcpy(reply.entry, "v=1;id=abcdefgh1;mode=saver");
	strcpy(reply.partition, "a40");
	strcpy(reply.admin_comment, "energy:abcdefgh1");
	CHECK(energy_job_apply(&job, 1000, &reply, &no_plan, why, sizeof(why)) == ENERGY_APPLIED);
	CHECK(job.spank_job_env_size == 2);
	CHECK_TEXT(job.spank_job_env[1], "ENERGY_DECISION=v=1;id=abcdefgh1;mode=saver");
	CHECK(!job.spank_job_env[2]);
	CHECK(fake_slurm_owns(job.spank_job_env) && fake_slurm_owns(job.spank_job_env[1]));
	CHECK_TEXT(job.partition, "a40,v100");
	CHECK_TEXT(job.admin_comment, "energy:abcdefgh1");
	CHECK(fake_slurm_owns(job.partition) && fake_slurm_owns(job.admin_comment));
	_finish();
}

static void test_an_answer_that_names_nothing_changes_nothing(void)
{
	energy_reply_t reply = _reply();
	job_desc_msg_t before;

	_begin();
	before = job;
	CHECK(energy_job_apply(&job, 1000, &reply, &no_plan, why, sizeof(why)) == ENERGY_APPLIED);
	CHECK(!memcmp(&before, &job, sizeof(job)));
	_finish();
}

static const char *_moved(const char *users, const char *answer, energy_applied_t expected)
{
	static char result[256];
	energy_reply_t reply = _reply();

	_begin();
	job.partition = users ? fake_slurm_string(users) : NULL;
	strcpy(reply.partition, answer);
	strcpy(reply.entry, "v=1");
	CHECK(energy_job_apply(&job, 1000, &reply, &no_plan, why, sizeof(why)) == expected);
	CHECK(job.spank_job_env_size == 1);	/* the clock is applied all the same */
	snprintf(result, sizeof(result), "%s", job.partition);
	_finish();
	return result;
}

static void test_the_users_own_partition_wins(void)
{
	CHECK_TEXT(_moved("a100", "a40", ENERGY_APPLIED_BUT_FOREIGN), "a100");
	CHECK_TEXT(_moved("a100,a40", "a4", ENERGY_APPLIED_BUT_FOREIGN), "a100,a40");
}

static void test_the_answers_partitions_go_before_the_jobs_own(void)
{
	CHECK_TEXT(_moved("v100,a100,a40", "a40", ENERGY_APPLIED), "a40,v100,a100");
	CHECK_TEXT(_moved(NULL, "a40", ENERGY_APPLIED), "a40,v100");
}

static void test_the_comment_says_when_the_partition_was_not_applied(void)
{
	energy_reply_t reply = _reply();

	strcpy(reply.partition, "a40");
	strcpy(reply.admin_comment, "energy:abcdefgh1");
	_begin();
	job.partition = fake_slurm_string("a100,a40");
	fake_partition("a40")->state = PARTITION_DRAIN;
	CHECK(energy_job_apply(&job, 1000, &reply, &no_plan, why, sizeof(why)) == ENERGY_APPLIED_BUT_PARTITION);
	CHECK_TEXT(why, "a40: State");
	CHECK_TEXT(job.partition, "a100,a40");
	CHECK_TEXT(job.admin_comment, "energy:abcdefgh1 partition-kept");
	_finish();
}

static void test_a_job_that_names_its_nodes_is_not_moved(void)
{
	energy_reply_t reply = _reply();
	char nodes[] = "n[1-2]";

	_begin();
	job.req_nodes = nodes;
	strcpy(reply.partition, "a40");
	CHECK(energy_job_apply(&job, 1000, &reply, &no_plan, why, sizeof(why)) == ENERGY_APPLIED_BUT_PARTITION);
	CHECK(!job.partition);
	_finish();
}

static void test_an_admin_comment_is_appended_to_the_one_before(void)
{
	energy_reply_t reply = _reply();

	_begin();
	job.admin_comment = fake_slurm_string("seen by ops");
	strcpy(reply.admin_comment, "energy:abcdefgh1");
	energy_job_apply(&job, 1000, &reply, &no_plan, why, sizeof(why));
	CHECK_TEXT(job.admin_comment, "seen by ops; energy:abcdefgh1");
	_finish();
}

static void test_without_memory_nothing_breaks_and_an_undecided_job_is_not_moved(void)
{
	energy_reply_t reply = _reply();

	strcpy(reply.entry, "v=1");
	strcpy(reply.partition, "a40");
	strcpy(reply.admin_comment, "energy:abcdefgh1");
	for (int count = 0; count < 4; count++) {
		_begin();
		job.partition = fake_slurm_string("a100,a40");
		fake_slurm_memory(count);
		CHECK(energy_job_apply(&job, 1000, &reply, &no_plan, why, sizeof(why)) == ENERGY_APPLY_NO_MEMORY ||
		      job.spank_job_env_size == 1);
		if (count < 2) {
			CHECK(!job.spank_job_env_size);
			CHECK_TEXT(job.partition, "a100,a40");
		}
		_finish();
	}
}

static void test_the_message_goes_after_what_another_plugin_left(void)
{
	char *message = NULL;

	energy_job_tell(&message, "13 % less");
	CHECK_TEXT(message, "energy: 13 % less");
	energy_job_tell(&message, "energy: twice");
	CHECK_TEXT(message, "energy: 13 % less\nenergy: twice");
	CHECK(fake_slurm_owns(message));
	fake_slurm_memory(0);
	energy_job_tell(&message, "lost");
	CHECK_TEXT(message, "energy: 13 % less\nenergy: twice");
	fake_slurm_memory(1);
	energy_job_tell(&message, "lost");
	CHECK_TEXT(message, "energy: 13 % less\nenergy: twice");
	fake_slurm_memory(-1);
	slurm_xfree((void **) &message);
}

/* The begin of a job whose user wrote entry, after an answer that names one in so many seconds. */
static time_t _begun(const char *entry, int64_t ahead, time_t own, time_t deadline, bool immediate, bool part)
{
	time_t found;

	_begin();
	if (entry)
		fake_slurm_add_entry(&job, entry);
	job.begin_time = own;
	job.deadline = deadline;
	job.immediate = immediate;
	if (part)
		job.het_job_offset = 1;
	energy_job_begin(&job, ahead ? time(NULL) + ahead : 0);
	found = job.begin_time;
	_finish();
	return found;
}

static void test_a_later_begin_is_taken_only_where_its_user_allows_one(void)
{
	char hours[64], past[64];
	time_t now = time(NULL);

	snprintf(hours, sizeof(hours), "ENERGY_START_BEFORE=@%lld", (long long) now + 7200);
	snprintf(past, sizeof(past), "ENERGY_START_BEFORE=@%lld", (long long) now - 60);
	CHECK(_begun(hours, 3600, 0, 0, false, false) >= now + 3600);
	CHECK(_begun(hours, 3600, 0, 0, false, false) <= now + 3660);
	CHECK(!_begun(hours, 0, 0, 0, false, false));		/* none is named */
	CHECK(!_begun(hours, -60, 0, 0, false, false));		/* has passed */
	CHECK(!_begun(hours, 9000, 0, 0, false, false));	/* after what the user named */
	CHECK(!_begun(past, 3600, 0, 0, false, false));
	CHECK(!_begun(NULL, 3600, 0, 0, false, false));
	CHECK(!_begun("ENERGY_START_BEFORE=soon", 3600, 0, 0, false, false));
	CHECK(_begun(hours, 3600, now + 60, 0, false, false) == now + 60);
	CHECK(!_begun(hours, 3600, 0, now + 9000, false, false));
	CHECK(!_begun(hours, 3600, 0, 0, true, false));
	CHECK(!_begun(hours, 3600, 0, 0, false, true));
}

int main(void)
{
	RUN(test_a_later_begin_is_taken_only_where_its_user_allows_one);
	RUN(test_every_forged_entry_is_removed_and_the_others_stay_in_order);
	RUN(test_an_array_of_forged_entries_alone_becomes_none);
	RUN(test_stripping_bears_missing_arrays_and_entries);
	RUN(test_an_empty_job_makes_a_request_without_what_slurm_does_not_know);
	RUN(test_every_key_is_sent_when_slurm_has_it);
	RUN(test_a_job_that_is_tied_to_its_partitions_says_so);
	RUN(test_only_a_job_that_admits_no_other_job_is_exclusive);
	RUN(test_wishes_that_no_option_could_have_set_are_not_sent);
	RUN(test_a_later_component_of_a_heterogeneous_job_is_not_called_interactive);
	RUN(test_a_name_of_a_megabyte_is_cut);
	RUN(test_texts_at_their_bounds_fit_one_request);
	RUN(test_a_request_is_not_made_of_half_a_partition_list);
	RUN(test_an_answer_is_applied_in_slurms_memory);
	RUN(test_an_answer_that_names_nothing_changes_nothing);
	RUN(test_the_users_own_partition_wins);
	RUN(test_the_answers_partitions_go_before_the_jobs_own);
	RUN(test_the_comment_says_when_the_partition_was_not_applied);
	RUN(test_a_job_that_names_its_nodes_is_not_moved);
	RUN(test_an_admin_comment_is_appended_to_the_one_before);
	RUN(test_without_memory_nothing_breaks_and_an_undecided_job_is_not_moved);
	RUN(test_the_message_goes_after_what_another_plugin_left);
	return 0;
}
