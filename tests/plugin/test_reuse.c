/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Answers given again: only to the same request, for a moment, under ids of their own of which the daemon is told. */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"
#include "common/exchange.h"
#include "common/reuse.h"
#include "fake_daemon.h"
#include "fake_partitions.h"
#include "fake_slurm.h"
#include "job_submit_energy/slurm_memory.h"

#define BASE "0123456789abcdef"
#define REQUEST "slurm-energy/1 decide\nuid=1000\nname=train\nend\n"
#define REPLY_OF(id, comment, more)                                                              \
	"slurm-energy/1 ok\ndecision_id=" id "\nentry=v=1;id=" id ";mode=balanced;clocks=a100-sxm4-80gb:1290\n" \
	"admin_comment=energy:" comment "\n" more "end\n"
#define REPLY REPLY_OF(BASE, BASE, "message=13 %25 less\nreuse_milliseconds=1000\n")

extern int job_submit(job_desc_msg_t *job_desc, uint32_t submit_uid, char **err_msg);

static char conf[] = "/tmp/energy-test-conf-XXXXXX";
static energy_reply_t reply;

static void _parse(const char *text)
{
	const char *complaint = energy_reply_parse(text, strlen(text), &reply);

	CHECK(!complaint);
}

static void _keep(const char *socket_path, const char *text, int64_t now)
{
	energy_reuse_forget();
	_parse(text);
	energy_reuse_keep(socket_path, REQUEST, strlen(REQUEST), &reply, now);
}

static bool _answers(const char *socket_path, const char *request, int64_t now)
{
	memset(&reply, 0, sizeof(reply));
	return energy_reuse_answer(socket_path, request, strlen(request), now, &reply);
}

/* What the plugin tells is read by the daemon when it comes to it. */
static void _await(fake_daemon_t *daemon, int requests)
{
	for (int i = 0; (i < 5000) && (fake_daemon_num_requests(daemon) < requests); i++)
		usleep(1000);
	CHECK(fake_daemon_num_requests(daemon) == requests);
}

static void test_the_same_request_gets_the_answer_under_an_id_of_its_own(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, "", 0);
	const char *path = fake_daemon_socket(daemon), *told = fake_daemon_last_request(daemon);
	char ids[2][33], expected[256];

	_keep(path, REPLY, 0);
	for (int i = 0; i < 2; i++) {
		CHECK(_answers(path, REQUEST, 999));
		snprintf(ids[i], sizeof(ids[i]), "%s", reply.decision_id);
		CHECK((strlen(ids[i]) == 16) && (strspn(ids[i], "0123456789abcdef") == 16));
		CHECK(strcmp(ids[i], BASE));
		snprintf(expected, sizeof(expected), "v=1;id=%s;mode=balanced;clocks=a100-sxm4-80gb:1290", ids[i]);
		CHECK_TEXT(reply.entry, expected);
		snprintf(expected, sizeof(expected), "energy:%s", ids[i]);
		CHECK_TEXT(reply.admin_comment, expected);
		CHECK_TEXT(reply.message, "13 % less");
		CHECK((reply.status == ENERGY_REPLY_OK) && !reply.partition[0] && !reply.prefer[0]);
		_await(daemon, i + 1);
		snprintf(expected, sizeof(expected),
			 "slurm-energy/1 reused\nbase_decision_id=" BASE "\ndecision_id=%s\nuid=1000\nname=train\nend\n",
			 ids[i]);
		CHECK_TEXT(told, expected);
	}
	CHECK(strcmp(ids[0], ids[1]));
	fake_daemon_stop(daemon);
}

static void test_nothing_is_given_after_its_time(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, "", 0);
	const char *path = fake_daemon_socket(daemon);

	_keep(path, REPLY, 5000);
	CHECK(_answers(path, REQUEST, 5999));
	CHECK(!_answers(path, REQUEST, 6000));
	CHECK(!_answers(path, REQUEST, 5999));	/* it is gone for good */
	_keep(path, REPLY_OF(BASE, BASE, "reuse_milliseconds=20\n"), 0);
	CHECK(_answers(path, REQUEST, 19));
	CHECK(!_answers(path, REQUEST, 20));
	fake_daemon_stop(daemon);
}

static void test_another_request_is_not_answered(void)
{
	static const char *const others[] = {
		"slurm-energy/1 decide\nuid=1001\nname=train\nend\n",
		"slurm-energy/1 decide\nuid=1000\nname=troin\nend\n",
		"slurm-energy/1 decide\nuid=1000\nname=train2\nend\n",
		"slurm-energy/1 decide\nuid=1000\nend\n",
		"",
	};
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, "", 0), *other;
	const char *path = fake_daemon_socket(daemon);

	other = fake_daemon_start(DAEMON_ANSWERS, "", 0);
	_keep(path, REPLY, 0);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		CHECK(!_answers(path, others[i], 1));
	CHECK(_answers(path, REQUEST, 1));
	/* Another socket is another daemon, and nothing of the first one's is kept then. */
	CHECK(!_answers(fake_daemon_socket(other), REQUEST, 1));
	CHECK(!_answers(path, REQUEST, 1));
	CHECK(!fake_daemon_num_requests(other));
	fake_daemon_stop(other);
	fake_daemon_stop(daemon);
}

static void test_an_answer_is_kept_only_if_its_id_can_be_replaced_and_it_names_no_place(void)
{
	static const char *const replies[] = {
		REPLY_OF(BASE, BASE, ""),
		REPLY_OF(BASE, BASE, "reuse_milliseconds=1000\npartition=a40\n"),
		REPLY_OF(BASE, BASE, "reuse_milliseconds=1000\nprefer=fast\n"),
		REPLY_OF(BASE, BASE, "reuse_milliseconds=1000\nmessage=see " BASE "\n"),
		REPLY_OF(BASE, BASE, "reuse_milliseconds=1000\nmessage_in_place=" BASE "\n"),
		REPLY_OF(BASE, BASE " more", "reuse_milliseconds=1000\n"),
		REPLY_OF(BASE, "0123456789abcdee", "reuse_milliseconds=1000\n"),
		REPLY_OF("0123456789", "0123456789", "reuse_milliseconds=1000\n"),
		REPLY_OF(BASE "0", BASE "0", "reuse_milliseconds=1000\n"),
		"slurm-energy/1 ok\ndecision_id=" BASE "\nreuse_milliseconds=1000\nend\n",
		"slurm-energy/1 ok\ndecision_id=" BASE "\nentry=v=1;id=" BASE "\nreuse_milliseconds=1000\nend\n",
		"slurm-energy/1 ok\ndecision_id=" BASE "\nadmin_comment=energy:" BASE "\nentry=id=" BASE
		"\nreuse_milliseconds=1000\nend\n",
		"slurm-energy/1 ok\ndecision_id=" BASE "\nadmin_comment=energy:" BASE "\nentry=v=1;id=" BASE "f"
		"\nreuse_milliseconds=1000\nend\n",
		"slurm-energy/1 ok\ndecision_id=" BASE "\nadmin_comment=energy:" BASE "\nentry=v=1;id=" BASE
		";x=" BASE "\nreuse_milliseconds=1000\nend\n",
	};
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, "", 0);

	for (size_t i = 0; i < sizeof(replies) / sizeof(replies[0]); i++) {
		_keep(fake_daemon_socket(daemon), replies[i], 0);
		CHECK(!_answers(fake_daemon_socket(daemon), REQUEST, 1));
	}
	CHECK(!fake_daemon_num_requests(daemon));
	fake_daemon_stop(daemon);
}

static void test_a_time_that_is_no_time_is_garbage(void)
{
	static const char *const times[] = { "", "0", "-1", "1s", "5001", "99999999999999999999", "%31 " };
	char text[256];

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		snprintf(text, sizeof(text), "slurm-energy/1 ok\ndecision_id=" BASE "\nreuse_milliseconds=%s\nend\n",
			 times[i]);
		CHECK(energy_reply_parse(text, strlen(text), &reply));
	}
	_parse("slurm-energy/1 ok\ndecision_id=" BASE "\nreuse_milliseconds=5000\nend\n");
	CHECK(reply.reuse_milliseconds == 5000);
}

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
/* Bit 294, that of "123456789" (CRC-32 0xcbf43926), is bit 6 of byte 36. */
#define NAMES ZEROS "0000000040000000000000000000000000000000000000000000000000000000" ZEROS ZEROS

static void test_a_request_of_another_name_without_runs_gets_the_answer_too(void)
{
	static const char text[] = REPLY_OF(BASE, BASE, "reuse_milliseconds=1000\nreuse_names=" NAMES "\n");
	static const char *const others[] = {
		"slurm-energy/1 decide\nuid=1000\nname=123456789\nend\n",	/* it has runs */
		"slurm-energy/1 decide\nuid=1000\nname=%31\nend\n",
		"slurm-energy/1 decide\nuid=1000\nname=\nend\n",
		"slurm-energy/1 decide\nuid=1000\nend\n",
		"slurm-energy/1 decide\nuid=1001\nname=other\nend\n",
		"slurm-energy/1 decide\nuid=1000\nname=other\nqos=high\nend\n",
		"slurm-energy/1 decide\nuid=1000\nuid=1\nname=other\nend\n",
		"slurm-energy/1 decide\nuid=1000\nxname=other\nend\n",
	};
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, "", 0);
	const char *path = fake_daemon_socket(daemon), *told = fake_daemon_last_request(daemon);

	_keep(path, text, 0);
	CHECK(reply.has_names);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		CHECK(!_answers(path, others[i], 1));
	CHECK(!fake_daemon_num_requests(daemon));
	CHECK(_answers(path, "slurm-energy/1 decide\nuid=1000\nname=a-longer-one\nend\n", 999));
	CHECK(strcmp(reply.decision_id, BASE));
	_await(daemon, 1);
	CHECK(strstr(told, "slurm-energy/1 reused\nbase_decision_id=" BASE "\n"));
	CHECK(strstr(told, "\nuid=1000\nname=a-longer-one\nend\n"));
	CHECK(!_answers(path, "slurm-energy/1 decide\nuid=1000\nname=other\nend\n", 1000));
	/* Without the field, only the very same request. */
	_keep(path, REPLY, 0);
	CHECK(!_answers(path, "slurm-energy/1 decide\nuid=1000\nname=other\nend\n", 1));
	fake_daemon_stop(daemon);
}

static void test_names_of_another_length_or_digit_are_garbage(void)
{
	static const char *const names[] = {
		"", "00", NAMES "00", ZEROS ZEROS ZEROS, ZEROS ZEROS ZEROS ZEROS "0",
		"g000000000000000000000000000000000000000000000000000000000000000" ZEROS ZEROS ZEROS,
		"A000000000000000000000000000000000000000000000000000000000000000" ZEROS ZEROS ZEROS,
	};
	char text[640];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(text, sizeof(text), "slurm-energy/1 ok\ndecision_id=" BASE "\nreuse_names=%s\nend\n", names[i]);
		CHECK(energy_reply_parse(text, strlen(text), &reply));
	}
}

static void test_a_daemon_that_cannot_be_told_is_asked_and_nothing_is_kept(void)
{
	fake_daemon_t *full = fake_daemon_start(DAEMON_NEVER_ACCEPTS, "", 0);
	fake_daemon_t *good = fake_daemon_start(DAEMON_ANSWERS, "", 0);
	char path[128], moved[160];

	_keep(fake_daemon_socket(full), REPLY, 0);
	CHECK(!_answers(fake_daemon_socket(full), REQUEST, 1));
	fake_daemon_stop(full);
	_keep("/tmp/energy-test-nobody/socket", REPLY, 0);
	CHECK(!_answers("/tmp/energy-test-nobody/socket", REQUEST, 1));
	/* Back again a moment later: what it said before is not given any more. */
	snprintf(path, sizeof(path), "%s", fake_daemon_socket(good));
	snprintf(moved, sizeof(moved), "%s.away", path);
	_keep(path, REPLY, 0);
	CHECK(!rename(path, moved));
	CHECK(!_answers(path, REQUEST, 1));
	CHECK(!rename(moved, path));
	CHECK(!_answers(path, REQUEST, 1));
	fake_daemon_stop(good);
}

static void test_the_table_is_bounded_and_the_oldest_goes_first(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, "", 0);
	const char *path = fake_daemon_socket(daemon);
	static char large[ENERGY_REUSE_REQUEST_BYTES + 64];
	char request[128];

	_keep(path, REPLY, 0);
	for (int i = 0; i < ENERGY_REUSE_ENTRIES; i++) {
		_parse(REPLY);
		snprintf(request, sizeof(request), "slurm-energy/1 decide\nuid=%d\nend\n", i);
		energy_reuse_keep(path, request, strlen(request), &reply, i + 1);
	}
	CHECK(!_answers(path, REQUEST, 100));
	CHECK(_answers(path, "slurm-energy/1 decide\nuid=0\nend\n", 100));
	CHECK(_answers(path, "slurm-energy/1 decide\nuid=31\nend\n", 100));
	snprintf(large, sizeof(large), "slurm-energy/1 decide\nname=%0*d\nend\n", ENERGY_REUSE_REQUEST_BYTES, 1);
	_parse(REPLY);
	energy_reuse_keep(path, large, strlen(large), &reply, 0);
	CHECK(!_answers(path, large, 1));
	fake_daemon_stop(daemon);
}

static void _configure(const char *socket_path)
{
	FILE *file = fopen(conf, "w");

	fprintf(file, "socket=%s\ndeadline_milliseconds=500\n", socket_path);
	fclose(file);
	usleep(1010000);	/* the plugin looks at its file once a second at most */
}

/* Submit for a user; the id that the job got, the same in its comment and its entry, goes into id. */
static void _submit(uint32_t uid, char id[17])
{
	job_desc_msg_t job;
	char *told = NULL, expected[128];

	fake_slurm_empty_job(&job);
	CHECK(job_submit(&job, uid, &told) == SLURM_SUCCESS);
	id[0] = '\0';
	if (job.admin_comment) {
		snprintf(id, 17, "%s", job.admin_comment + strlen("energy:"));
		snprintf(expected, sizeof(expected),
			 "ENERGY_DECISION=v=1;id=%s;mode=balanced;clocks=a100-sxm4-80gb:1290", id);
		CHECK_TEXT(job.spank_job_env[0], expected);
	}
	slurm_xfree((void **) &told);
	fake_slurm_free_job(&job);
}

static void test_equal_submissions_wait_for_one_decision_and_another_users_for_his_own(void)
{
	static const char text[] = REPLY_OF(BASE, BASE, "reuse_milliseconds=5000\n");
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, text, strlen(text));
	const char *last = fake_daemon_last_request(daemon);
	char id[17];

	_configure(fake_daemon_socket(daemon));
	_submit(1000, id);
	CHECK_TEXT(id, BASE);
	CHECK(strstr(last, "slurm-energy/1 decide\n"));
	_submit(1000, id);
	CHECK(id[0] && strcmp(id, BASE));
	_await(daemon, 2);
	CHECK(strstr(last, "slurm-energy/1 reused\n") && strstr(last, "\nuid=1000\n") && strstr(last, id));
	_submit(1001, id);
	CHECK_TEXT(id, BASE);
	CHECK(strstr(last, "slurm-energy/1 decide\n") && strstr(last, "\nuid=1001\n"));
	fake_daemon_stop(daemon);
	/* Nothing is given of a daemon that has gone. */
	_submit(1000, id);
	CHECK_TEXT(id, "");
}

#define THREADS 8
#define EACH 25
static char ids[THREADS * EACH][17];

static void *_submit_many(void *argument)
{
	char (*own)[17] = argument;

	for (int i = 0; i < EACH; i++)
		_submit(1000, own[i]);
	return NULL;
}

static void test_eight_threads_at_once_get_an_id_for_each_job_and_the_daemon_is_told_of_all(void)
{
	static const char text[] = REPLY_OF(BASE, BASE, "reuse_milliseconds=5000\n");
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, text, strlen(text));
	pthread_t threads[THREADS];
	char first[17];
	int same = 0;

	_configure(fake_daemon_socket(daemon));
	_submit(1000, first);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, _submit_many, ids[EACH * i]);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	_await(daemon, THREADS * EACH + 1);
	for (int i = 0; i < THREADS * EACH; i++) {
		CHECK(ids[i][0]);
		for (int j = 0; j < i; j++)
			same += !strcmp(ids[i], ids[j]) && strcmp(ids[i], BASE);
	}
	CHECK(!same);
	fake_daemon_stop(daemon);
}

int main(void)
{
	close(mkstemp(conf));
	setenv("SLURM_ENERGY_PLUGIN_CONF", conf, 1);
	RUN(test_the_same_request_gets_the_answer_under_an_id_of_its_own);
	RUN(test_nothing_is_given_after_its_time);
	RUN(test_another_request_is_not_answered);
	RUN(test_an_answer_is_kept_only_if_its_id_can_be_replaced_and_it_names_no_place);
	RUN(test_a_request_of_another_name_without_runs_gets_the_answer_too);
	RUN(test_names_of_another_length_or_digit_are_garbage);
	RUN(test_a_time_that_is_no_time_is_garbage);
	RUN(test_a_daemon_that_cannot_be_told_is_asked_and_nothing_is_kept);
	RUN(test_the_table_is_bounded_and_the_oldest_goes_first);
	RUN(test_equal_submissions_wait_for_one_decision_and_another_users_for_his_own);
	RUN(test_eight_threads_at_once_get_an_id_for_each_job_and_the_daemon_is_told_of_all);
	unlink(conf);
	return 0;
}
