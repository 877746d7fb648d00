/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What lasts between jobs: the breaker, the tally for the log, the settings. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "common/breaker.h"
#include "common/settings.h"
#include "common/tally.h"

#define FAILURES 3
#define PAUSE 5000

static bool _allows(energy_breaker_t *breaker, int64_t now)
{
	return energy_breaker_allows(breaker, FAILURES, PAUSE, now);
}

static void _result(energy_breaker_t *breaker, bool answered, int64_t now)
{
	energy_breaker_result(breaker, answered, FAILURES, PAUSE, now);
}

static void test_the_breaker_stops_asking_after_three_failures_in_a_row(void)
{
	energy_breaker_t breaker = ENERGY_BREAKER_INITIALIZER;

	for (int i = 0; i < FAILURES; i++) {
		CHECK(_allows(&breaker, 1000));
		_result(&breaker, false, 1000);
	}
	CHECK(!_allows(&breaker, 1000));
	CHECK(!_allows(&breaker, 1000 + PAUSE - 1));
	CHECK(_allows(&breaker, 1000 + PAUSE));
}

static void test_an_answer_between_failures_starts_the_count_again(void)
{
	energy_breaker_t breaker = ENERGY_BREAKER_INITIALIZER;

	_result(&breaker, false, 0);
	_result(&breaker, false, 0);
	_result(&breaker, true, 0);
	_result(&breaker, false, 0);
	_result(&breaker, false, 0);
	CHECK(_allows(&breaker, 0));
}

static void test_after_the_pause_one_caller_tries_and_the_others_wait(void)
{
	energy_breaker_t breaker = ENERGY_BREAKER_INITIALIZER;

	for (int i = 0; i < FAILURES; i++)
		_result(&breaker, false, 0);
	CHECK(_allows(&breaker, PAUSE));
	CHECK(!_allows(&breaker, PAUSE));
	_result(&breaker, true, PAUSE);
	CHECK(_allows(&breaker, PAUSE));
	CHECK(_allows(&breaker, PAUSE));
}

static void test_one_failure_after_the_pause_is_enough_to_pause_again(void)
{
	energy_breaker_t breaker = ENERGY_BREAKER_INITIALIZER;

	for (int i = 0; i < FAILURES; i++)
		_result(&breaker, false, 0);
	CHECK(_allows(&breaker, PAUSE));
	_result(&breaker, false, PAUSE + 50);
	CHECK(!_allows(&breaker, 2 * PAUSE));
	CHECK(_allows(&breaker, 2 * PAUSE + 50));
}

static void test_the_tally_speaks_at_once_then_once_a_minute_with_counts(void)
{
	energy_tally_t tally = ENERGY_TALLY_INITIALIZER;
	char text[512];

	CHECK(!energy_tally_report(&tally, 0, false, text, sizeof(text)));
	energy_tally_add(&tally, ENERGY_EVENT_LATE, "no answer");
	CHECK(energy_tally_report(&tally, 0, false, text, sizeof(text)));
	CHECK_TEXT(text, "answer late 1; last: no answer");
	for (int i = 0; i < 40; i++) {
		energy_tally_add(&tally, ENERGY_EVENT_NOT_ASKED, "");
		CHECK(!energy_tally_report(&tally, 59999, false, text, sizeof(text)));
	}
	energy_tally_add(&tally, ENERGY_EVENT_ABSENT, "/run/x: No such file");
	CHECK(energy_tally_report(&tally, 60000, false, text, sizeof(text)));
	CHECK_TEXT(text, "daemon absent 1, not asked after failures 40; last: /run/x: No such file");
	CHECK(!energy_tally_report(&tally, 999999, false, text, sizeof(text)));
	energy_tally_add(&tally, ENERGY_EVENT_STRIPPED, "");
	CHECK(energy_tally_report(&tally, 60001, true, text, sizeof(text)));
	CHECK_TEXT(text, "incoming decision entry removed 1");
}

static void test_a_report_of_everything_fits_any_buffer(void)
{
	energy_tally_t tally = ENERGY_TALLY_INITIALIZER;

	for (size_t size = 1; size < 600; size++) {
		char *text = malloc(size);

		for (int event = 0; event < ENERGY_NUM_EVENTS; event++)
			energy_tally_add(&tally, (energy_event_t) event, "a detail of some length");
		CHECK(energy_tally_report(&tally, 0, true, text, size));
		CHECK(strlen(text) < size);
		free(text);
	}
}

static char complaints[4096];

static void _complain(const char *text)
{
	size_t used = strlen(complaints);

	snprintf(complaints + used, sizeof(complaints) - used, "%s\n", text);
}

static bool _read(const char *content, energy_settings_t *settings)
{
	char path[] = "/tmp/energy-test-XXXXXX";
	int fd = mkstemp(path);
	bool found;

	complaints[0] = '\0';
	CHECK(write(fd, content, strlen(content)) == (ssize_t) strlen(content));
	close(fd);
	found = energy_settings_read(path, settings, _complain);
	unlink(path);
	return found;
}

static void test_settings_are_read_from_the_file(void)
{
	energy_settings_t settings;

	CHECK(_read("# comment\n\n socket = /run/x.sock \ndeadline_milliseconds=20\nmessage=no\r\n"
		    "breaker_failures=7\nbreaker_seconds=0.25", &settings));
	CHECK_TEXT(complaints, "");
	CHECK_TEXT(settings.socket, "/run/x.sock");
	CHECK(settings.deadline_milliseconds == 20);
	CHECK(!settings.message);
	CHECK(settings.breaker_failures == 7);
	CHECK(settings.breaker_milliseconds == 250);
}

static void test_bad_settings_are_named_and_the_default_stays(void)
{
	static const char *const lines[] = {
		"socket=relative/path", "socket=", "deadline_milliseconds=0",
		"deadline_milliseconds=-5", "deadline_milliseconds=fast",
		"deadline_milliseconds=99999999999999999999", "deadline_milliseconds=5.5",
		"message=maybe", "message=", "breaker_failures=0", "breaker_failures=1001",
		"breaker_seconds=0", "breaker_seconds=0.05", "breaker_seconds=3601",
		"breaker_seconds=-1", "breaker_seconds=1e3", "breaker_seconds=1.", "colour=green",
		"no separator", "=5",
	};
	energy_settings_t settings, defaults;

	energy_settings_defaults(&defaults);
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		CHECK(_read(lines[i], &settings));
		CHECK(strstr(complaints, lines[i]) && strstr(complaints, "ignored"));
		CHECK(!memcmp(settings.socket, defaults.socket, strlen(defaults.socket) + 1));
		CHECK(settings.deadline_milliseconds == defaults.deadline_milliseconds);
		CHECK(settings.message == defaults.message);
		CHECK(settings.breaker_failures == defaults.breaker_failures);
		CHECK(settings.breaker_milliseconds == defaults.breaker_milliseconds);
	}
}

static void test_the_deadline_is_never_above_half_a_second(void)
{
	energy_settings_t settings;

	CHECK(_read("deadline_milliseconds=500", &settings));
	CHECK((settings.deadline_milliseconds == 500) && !complaints[0]);
	CHECK(_read("deadline_milliseconds=501", &settings));
	CHECK((settings.deadline_milliseconds == 500) && strstr(complaints, "500 is used"));
}

static void test_a_socket_path_that_no_socket_can_have_is_ignored(void)
{
	char line[256] = "socket=/";
	energy_settings_t settings;

	memset(line + 8, 'x', 120);
	CHECK(_read(line, &settings));
	CHECK_TEXT(settings.socket, "/run/slurm-energy/energyd.sock");
}

static void test_a_file_that_is_none_leaves_the_defaults(void)
{
	energy_settings_t settings;
	char fifo[] = "/tmp/energy-test-fifo-XXXXXX";

	complaints[0] = '\0';
	CHECK(!energy_settings_read("/nonexistent/energy-plugin.conf", &settings, _complain));
	CHECK(settings.deadline_milliseconds == 50);
	CHECK(energy_settings_read("/tmp", &settings, _complain));
	CHECK(strstr(complaints, "defaults are used"));
	close(mkstemp(fifo));
	unlink(fifo);
	CHECK(!mkfifo(fifo, 0600));
	CHECK(energy_settings_read(fifo, &settings, _complain));	/* and does not wait for a writer */
	unlink(fifo);
}

static void test_many_bad_lines_make_few_complaints(void)
{
	char content[2048] = "";
	energy_settings_t settings;
	int lines = 0;

	for (int i = 0; i < 100; i++)
		strcat(content, "x=1\n");
	CHECK(_read(content, &settings));
	for (const char *c = complaints; *c; c++)
		lines += (*c == '\n');
	CHECK(lines == 8);
}

static void test_the_file_is_found_by_the_environment(void)
{
	char folder[] = "/tmp/energy-settings-XXXXXX", slurm_conf[64], beside[64], path[256];
	FILE *file;

	unsetenv("SLURM_CONF");
	unsetenv("SLURM_ENERGY_PLUGIN_CONF");
	energy_settings_path(path, sizeof(path));
	CHECK_TEXT(path, "/etc/slurm-energy/energy-plugin.conf");
	CHECK(mkdtemp(folder) != NULL);
	snprintf(slurm_conf, sizeof(slurm_conf), "%s/slurm.conf", folder);
	snprintf(beside, sizeof(beside), "%s/energy-plugin.conf", folder);
	setenv("SLURM_CONF", slurm_conf, 1);
	energy_settings_path(path, sizeof(path));
	CHECK_TEXT(path, "/etc/slurm-energy/energy-plugin.conf");
	file = fopen(beside, "w");
	CHECK(file != NULL);
	fclose(file);
	energy_settings_path(path, sizeof(path));
	CHECK_TEXT(path, beside);
	unlink(beside);
	rmdir(folder);
	setenv("SLURM_ENERGY_PLUGIN_CONF", "/x/y.conf", 1);
	energy_settings_path(path, sizeof(path));
	CHECK_TEXT(path, "/x/y.conf");
}

/* In the place of the C library's: a file system that hangs while hung is set. */
static atomic_bool hung;
static atomic_int looks;

int stat(const char *restrict path, struct stat *restrict status)
{
	atomic_fetch_add(&looks, 1);
	while (atomic_load(&hung))
		usleep(1000);
	return fstatat(AT_FDCWD, path, status, 0);
}

static void _write(const char *path, const char *content)
{
	FILE *file = fopen(path, "w");

	CHECK(file != NULL);
	fputs(content, file);
	fclose(file);
}

static unsigned int _deadline_now(void)
{
	energy_settings_t settings;

	energy_settings_current(&settings, _complain);
	return settings.deadline_milliseconds;
}

static void test_a_folder_that_hangs_leaves_the_settings_as_they_were(void)
{
	char path[] = "/tmp/energy-settings-XXXXXX";
	int before;

	close(mkstemp(path));
	setenv("SLURM_ENERGY_PLUGIN_CONF", path, 1);
	_write(path, "deadline_milliseconds=70\n");
	CHECK(_deadline_now() == 70);
	_write(path, "deadline_milliseconds=7\n");
	CHECK(_deadline_now() == 70);	/* looked at a moment ago */
	atomic_store(&hung, true);
	before = atomic_load(&looks);
	for (int i = 0; (i < 10000) && (atomic_load(&looks) == before); i++) {
		CHECK(_deadline_now() == 70);	/* does not return while the folder hangs if it looks itself */
		usleep(1000);
	}
	CHECK(atomic_load(&looks) == before + 1);
	usleep(1100 * 1000);
	CHECK(_deadline_now() == 70);
	CHECK(atomic_load(&looks) == before + 1);	/* one that hangs is enough */
	atomic_store(&hung, false);
	for (int i = 0; (i < 10000) && (_deadline_now() != 7); i++)
		usleep(1000);
	CHECK(_deadline_now() == 7);
	unlink(path);
}

int main(void)
{
	RUN(test_the_breaker_stops_asking_after_three_failures_in_a_row);
	RUN(test_an_answer_between_failures_starts_the_count_again);
	RUN(test_after_the_pause_one_caller_tries_and_the_others_wait);
	RUN(test_one_failure_after_the_pause_is_enough_to_pause_again);
	RUN(test_the_tally_speaks_at_once_then_once_a_minute_with_counts);
	RUN(test_a_report_of_everything_fits_any_buffer);
	RUN(test_settings_are_read_from_the_file);
	RUN(test_bad_settings_are_named_and_the_default_stays);
	RUN(test_the_deadline_is_never_above_half_a_second);
	RUN(test_a_socket_path_that_no_socket_can_have_is_ignored);
	RUN(test_a_file_that_is_none_leaves_the_defaults);
	RUN(test_many_bad_lines_make_few_complaints);
	RUN(test_the_file_is_found_by_the_environment);
	RUN(test_a_folder_that_hangs_leaves_the_settings_as_they_were);
	return 0;
}
