/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The plugin as slurmctld calls it: always SLURM_SUCCESS, never later than the deadline. */
#include <pthread.h>
#include <slurm/slurm_errno.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"
#include "common/exchange.h"
#include "common/settings.h"
#include "fake_daemon.h"
#include "fake_partitions.h"
#include "fake_slurm.h"
#include "job_submit_energy/slurm_memory.h"

extern const char plugin_type[];
extern const uint32_t plugin_version;
extern int init(void);
extern int fini(void);
extern int job_submit(job_desc_msg_t *job_desc, uint32_t submit_uid, char **err_msg);
extern int job_modify(job_desc_msg_t *job_desc, void *job_ptr, uint32_t submit_uid, char **err_msg);

#define REPLY                                                                            \
	"slurm-energy/1 ok\ndecision_id=abcdefgh1\nentry=v=1;id=abcdefgh1;mode=balanced\n" \
	"partition=a40\nadmin_comment=energy:abcdefgh1\nmessage=13 %25 less\nend\n"
#define DEADLINE 500	/* for a daemon that answers: long enough on a loaded machine too */
#define SHORT "deadline_milliseconds=50\n"
#define MARGIN 2000	/* of a loaded machine: what hangs comes never; test_exchange.c holds the tight bound */

static char conf[] = "/tmp/energy-test-conf-XXXXXX";
static job_desc_msg_t job;
static char *message;
static int64_t elapsed;

/* The plugin looks at its file once a second at most. */
static void _no_complaint(const char *text)
{
	(void) text;
}

static void _configure(const char *socket_path, const char *more)
{
	FILE *file = fopen(conf, "w");
	energy_settings_t settings;

	fprintf(file, "socket=%s\ndeadline_milliseconds=%d\n%s", socket_path, DEADLINE, more);
	fclose(file);
	usleep(1010000);
	/* Until they are in force: a look may go on behind a submission on a machine that does much else. */
	do {
		usleep(1000);
		energy_settings_current(&settings, _no_complaint);
	} while (strcmp(settings.socket, socket_path));
}

static void _begin(void)
{
	static const char *const names[] = { "a100", "a40" };

	fake_partitions(names, 2);
	fake_slurm_empty_job(&job);
	message = NULL;
}

static void _submit(void)
{
	int64_t start = energy_now_milliseconds();

	CHECK(job_submit(&job, 1000, &message) == SLURM_SUCCESS);
	elapsed = energy_now_milliseconds() - start;
	CHECK(elapsed <= DEADLINE + MARGIN);
}

static void _finish(void)
{
	slurm_xfree((void **) &message);
	fake_slurm_free_job(&job);
}

static void _check_unchanged_but_stripped(void)
{
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_MODE=saver");
	fake_slurm_add_entry(&job, "ENERGY_DECISION=forged");
	_submit();
	CHECK(job.spank_job_env_size == 1);
	CHECK_TEXT(job.spank_job_env[0], "ENERGY_MODE=saver");
	CHECK(!job.partition && !job.admin_comment && !message);
	_finish();
}

static void test_it_is_the_plugin_that_slurm_looks_for(void)
{
	CHECK_TEXT(plugin_type, "job_submit/energy");
	CHECK(plugin_version == SLURM_VERSION_NUMBER);
	CHECK(init() == SLURM_SUCCESS);
}

static void test_an_answer_is_applied_and_told(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));

	_configure(fake_daemon_socket(daemon), "");
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_DECISION=forged");
	fake_slurm_add_entry(&job, "ENERGY_TERMINAL=1");
	_submit();
	CHECK(job.spank_job_env_size == 2);
	CHECK_TEXT(job.spank_job_env[1], "ENERGY_DECISION=v=1;id=abcdefgh1;mode=balanced");
	CHECK_TEXT(job.partition, "a40,a100");
	CHECK_TEXT(job.admin_comment, "energy:abcdefgh1");
	CHECK_TEXT(message, "energy: 13 % less");
	CHECK(strstr(fake_daemon_last_request(daemon), "slurm-energy/1 decide\n"));
	_finish();
	fake_daemon_stop(daemon);
}

static void test_features_of_a_script_reach_the_daemon_and_do_not_stay_with_the_job(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));
	char long_one[600] = "ENERGY_SCRIPT=";

	_configure(fake_daemon_socket(daemon), "");
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_MODE=saver");
	fake_slurm_add_entry(&job, "ENERGY_SCRIPT=v=1;model=bert;batch_size=32");
	_submit();
	CHECK(strstr(fake_daemon_last_request(daemon), "\nscript=v=1;model=bert;batch_size=32\n"));
	CHECK(job.spank_job_env_size == 2);
	CHECK_TEXT(job.spank_job_env[0], "ENERGY_MODE=saver");
	_finish();
	memset(long_one + strlen(long_one), 'a', 513);
	for (int i = 0; i < 2; i++) {
		_begin();
		fake_slurm_add_entry(&job, i ? long_one : "ENERGY_SCRIPT=v=1;model=b e");
		_submit();
		CHECK(!strstr(fake_daemon_last_request(daemon), "\nscript="));
		CHECK(job.spank_job_env_size == 1);
		_finish();
	}
	fake_daemon_stop(daemon);
}

static void test_a_number_of_gpus_that_came_with_the_environment_does_not_stay(void)
{
	static const char *const variables[] = {
		"SLURM_ENERGY_GPUS=4", "SLURM_NTASKS=8", "SLURM_ENERGY_GPUS_ASKED=8", "SLURM_ENERGY_GPUSX=1",
	};

	_begin();
	job.environment = slurm_xcalloc(5, sizeof(char *), true, false, NULL, 0, NULL);
	for (size_t i = 0; i < 4; i++)
		job.environment[job.env_size++] = fake_slurm_string(variables[i]);
	_submit();
	CHECK(job.env_size == 2);
	CHECK_TEXT(job.environment[0], "SLURM_NTASKS=8");
	CHECK_TEXT(job.environment[1], "SLURM_ENERGY_GPUSX=1");
	CHECK(!job.environment[2] && !job.environment[3]);
	_finish();
}

static void test_the_user_and_the_site_can_silence_the_message(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));

	_configure(fake_daemon_socket(daemon), "");
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_TERMINAL=1");
	fake_slurm_add_entry(&job, "ENERGY_QUIET=1");
	_submit();
	CHECK(!message && (job.spank_job_env_size == 3));
	_finish();
	_configure(fake_daemon_socket(daemon), "message=no\n");
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_TERMINAL=1");
	_submit();
	CHECK(!message && job.partition);
	_finish();
	fake_daemon_stop(daemon);
}

static void test_without_a_terminal_nothing_is_said(void)
{
	static const char *const entries[] = { "ENERGY_MODE=saver", "ENERGY_TERMINAL=0", "ENERGY_TERMINAL=yes" };
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));

	_configure(fake_daemon_socket(daemon), "");
	for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
		_begin();
		fake_slurm_add_entry(&job, entries[i]);
		_submit();
		CHECK(!message && job.partition);
		_finish();
	}
	fake_daemon_stop(daemon);
}

static void test_a_line_about_a_partition_that_was_not_applied_is_not_told(void)
{
	static const char reply[] = "slurm-energy/1 ok\ndecision_id=abcdefgh1\npartition=a40\n"
				    "message=partition a40 first\nmessage_in_place=13 %25 less\nend\n";
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, reply, strlen(reply));

	_configure(fake_daemon_socket(daemon), "");
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_TERMINAL=1");
	_submit();
	CHECK_TEXT(message, "energy: partition a40 first");
	_finish();
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_TERMINAL=1");
	fake_partition("a40")->state = PARTITION_INACTIVE;
	_submit();
	CHECK(!job.partition);
	CHECK_TEXT(message, "energy: 13 % less");
	_finish();
	fake_daemon_stop(daemon);
}

static void test_energy_sbatch_gets_figures(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));

	_configure(fake_daemon_socket(daemon), "");
	for (int explained = 0; explained < 2; explained++) {
		_begin();
		fake_slurm_add_entry(&job, explained ? "ENERGY_TERMINAL=explain" : "ENERGY_TERMINAL=1");
		_submit();
		CHECK_TEXT(message, "energy: 13 % less");
		CHECK(!strstr(fake_daemon_last_request(daemon), "\nenergy_explain=1\n") == !explained);
		_finish();
	}
	fake_daemon_stop(daemon);
}

static void test_a_caller_without_room_for_a_message_is_served(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));

	_configure(fake_daemon_socket(daemon), "");
	_begin();
	CHECK(job_submit(&job, 1000, NULL) == SLURM_SUCCESS);
	CHECK_TEXT(job.partition, "a40,a100");
	_finish();
	CHECK(job_submit(NULL, 1000, NULL) == SLURM_SUCCESS);
	fake_daemon_stop(daemon);
}

static void test_a_bad_daemon_leaves_the_job_unchanged(void)
{
	static const struct {
		behaviour_t behaviour;
		const char *reply;
	} cases[] = {
		{ DAEMON_NEVER_ANSWERS, "" },
		{ DAEMON_NEVER_ACCEPTS, "" },
		{ DAEMON_TRICKLES, REPLY },
		{ DAEMON_CLOSES_AT_ONCE, "" },
		{ DAEMON_POURS, "" },
		{ DAEMON_ANSWERS, "<html>500</html>\n\nend\n" },
		{ DAEMON_ANSWERS, "slurm-energy/1 ok\ndecision_id=abcdefgh1\npartition=a40\n" },
		{ DAEMON_ANSWERS, "slurm-energy/1 ok\npartition=a40\nend\n" },
		{ DAEMON_ANSWERS, "slurm-energy/1 refused\nreason=no\nend\n" },
		{ DAEMON_ANSWERS, "slurm-energy/1 error\nreason=no\npartition=a40\nend\n" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fake_daemon_t *daemon = fake_daemon_start(cases[i].behaviour, cases[i].reply,
							  strlen(cases[i].reply));

		_configure(fake_daemon_socket(daemon), SHORT "breaker_failures=1000\n");
		_check_unchanged_but_stripped();
		fake_daemon_stop(daemon);
	}
	_configure("/tmp/energy-test-nobody/socket", "breaker_failures=1000\n");
	_check_unchanged_but_stripped();
}

static void test_after_three_failures_the_daemon_is_asked_again_once_the_pause_is_over(void)
{
	fake_daemon_t *bad = fake_daemon_start(DAEMON_NEVER_ANSWERS, "", 0), *good;

	/* One answer first, so that the count starts at none. */
	good = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));
	_configure(fake_daemon_socket(good), "breaker_seconds=0.1\n");
	_begin();
	_submit();
	CHECK_TEXT(job.partition, "a40,a100");
	_finish();
	_configure(fake_daemon_socket(bad), SHORT "breaker_seconds=0.1\n");
	for (int i = 0; i < 3; i++) {
		_check_unchanged_but_stripped();
		CHECK(elapsed >= 50 - 1);
	}
	_configure(fake_daemon_socket(good), "breaker_seconds=0.1\n");
	_begin();
	_submit();
	CHECK_TEXT(job.partition, "a40,a100");
	_finish();
	fake_daemon_stop(bad);
	fake_daemon_stop(good);
}

static void test_a_change_of_a_job_is_stripped_and_never_asked_about(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));

	_configure(fake_daemon_socket(daemon), "");
	_begin();
	fake_slurm_add_entry(&job, "ENERGY_DECISION=forged");
	fake_slurm_add_entry(&job, "A=1");
	CHECK(job_modify(&job, NULL, 1000, &message) == SLURM_SUCCESS);
	CHECK(job.spank_job_env_size == 1);
	CHECK_TEXT(job.spank_job_env[0], "A=1");
	CHECK(!message && !job.partition && !fake_daemon_num_requests(daemon));
	_finish();
	CHECK(job_modify(NULL, NULL, 1000, NULL) == SLURM_SUCCESS);
	fake_daemon_stop(daemon);
}

static void *_submit_twenty(void *unused)
{
	for (int i = 0; i < 20; i++) {
		job_desc_msg_t own;
		char *told = NULL;

		fake_slurm_empty_job(&own);
		fake_slurm_add_entry(&own, "ENERGY_DECISION=forged");
		fake_slurm_add_entry(&own, "ENERGY_TERMINAL=1");
		CHECK(job_submit(&own, 1000, &told) == SLURM_SUCCESS);
		CHECK(own.spank_job_env_size == 2);
		CHECK_TEXT(own.partition, "a40,a100");
		CHECK_TEXT(told, "energy: 13 % less");
		slurm_xfree((void **) &told);
		fake_slurm_free_job(&own);
	}
	return unused;
}

static void test_eight_threads_at_once_each_get_their_answer(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));
	pthread_t threads[8];

	_configure(fake_daemon_socket(daemon), "");
	for (int i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, _submit_twenty, NULL);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	CHECK(fake_daemon_num_requests(daemon) == 160);
	fake_daemon_stop(daemon);
}

static void test_a_daemon_that_fails_three_times_is_left_alone_and_that_makes_few_log_lines(void)
{
	fake_daemon_t *bad = fake_daemon_start(DAEMON_NEVER_ANSWERS, "", 0);
	int before;

	/* What was before is said, and the last submission before this was answered: these failures are all there are. */
	(void) fini();
	before = fake_slurm_num_errors();
	CHECK(before >= 1);
	_configure(fake_daemon_socket(bad), SHORT "breaker_seconds=3600\n");
	for (int i = 0; i < 10; i++)
		_check_unchanged_but_stripped();
	for (int i = 0; (i < 5000) && (fake_daemon_num_requests(bad) < 3); i++)
		usleep(1000);
	CHECK(fake_daemon_num_requests(bad) == 3);
	CHECK(fake_slurm_num_errors() == before);
	CHECK(fini() == SLURM_SUCCESS);
	CHECK(fake_slurm_num_errors() == before + 1);
	CHECK(strstr(fake_slurm_last_error(), "answer late 3, not asked after failures 7, "));
	CHECK(fini() == SLURM_SUCCESS);
	CHECK(fake_slurm_num_errors() == before + 1);
	fake_daemon_stop(bad);
}

int main(void)
{
	close(mkstemp(conf));
	setenv("SLURM_ENERGY_PLUGIN_CONF", conf, 1);
	RUN(test_it_is_the_plugin_that_slurm_looks_for);
	RUN(test_an_answer_is_applied_and_told);
	RUN(test_a_number_of_gpus_that_came_with_the_environment_does_not_stay);
	RUN(test_the_user_and_the_site_can_silence_the_message);
	RUN(test_without_a_terminal_nothing_is_said);
	RUN(test_features_of_a_script_reach_the_daemon_and_do_not_stay_with_the_job);
	RUN(test_a_line_about_a_partition_that_was_not_applied_is_not_told);
	RUN(test_energy_sbatch_gets_figures);
	RUN(test_a_caller_without_room_for_a_message_is_served);
	RUN(test_a_bad_daemon_leaves_the_job_unchanged);
	RUN(test_after_three_failures_the_daemon_is_asked_again_once_the_pause_is_over);
	RUN(test_a_change_of_a_job_is_stripped_and_never_asked_about);
	RUN(test_eight_threads_at_once_each_get_their_answer);
	RUN(test_a_daemon_that_fails_three_times_is_left_alone_and_that_makes_few_log_lines);
	unlink(conf);
	return 0;
}
