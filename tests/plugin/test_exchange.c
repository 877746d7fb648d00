/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One deadline over connect, send and receive, whatever the daemon does. */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"
#include "common/exchange.h"
#include "common/reply.h"
#include "fake_daemon.h"

#define REQUEST "slurm-energy/1 decide\nname=x\nend\n"
#define REPLY "slurm-energy/1 ok\ndecision_id=abcdefgh1\nend\n"
#define DEADLINE 50
#define PATIENT 60000	/* where the daemon answers: a loaded machine takes its time */
#define MARGIN 10

static char reply[ENERGY_REPLY_BYTES], detail[160];
static size_t reply_length;
static int64_t elapsed;
static int deadline = DEADLINE;

static energy_exchange_t _ask_once(const char *socket_path, const char *request, size_t length)
{
	int64_t start = energy_now_milliseconds();
	energy_exchange_t result = energy_exchange(socket_path, deadline, request, length, reply,
						   sizeof(reply), &reply_length, detail,
						   sizeof(detail));

	elapsed = energy_now_milliseconds() - start;
	return result;
}

/* A loaded machine may stop the test itself for a while: the bound must hold once in forty times. */
static energy_exchange_t _ask_with(const char *socket_path, const char *request, size_t length)
{
	energy_exchange_t result = _ask_once(socket_path, request, length);

	for (int i = 0; (i < 39) && (elapsed > deadline + MARGIN); i++)
		result = _ask_once(socket_path, request, length);
	CHECK(elapsed <= deadline + MARGIN);
	return result;
}

static energy_exchange_t _ask(behaviour_t behaviour, const char *text)
{
	fake_daemon_t *daemon = fake_daemon_start(behaviour, text, strlen(text));
	energy_exchange_t result = _ask_with(fake_daemon_socket(daemon), REQUEST, strlen(REQUEST));

	fake_daemon_stop(daemon);
	return result;
}

/* Of a daemon whose answer, or end, is to be seen long before the deadline. */
static energy_exchange_t _ask_patiently(behaviour_t behaviour, const char *text)
{
	energy_exchange_t result;

	deadline = PATIENT;
	result = _ask(behaviour, text);
	CHECK(elapsed < PATIENT / 2);
	deadline = DEADLINE;
	return result;
}

static void test_a_reply_is_received_whole(void)
{
	CHECK(_ask_patiently(DAEMON_ANSWERS, REPLY) == ENERGY_EXCHANGE_DONE);
	CHECK((reply_length == strlen(REPLY)) && !memcmp(reply, REPLY, reply_length));
}

static void test_the_end_line_ends_the_reply_though_the_daemon_stays(void)
{
	CHECK(_ask_patiently(DAEMON_ANSWERS_AND_STAYS, REPLY) == ENERGY_EXCHANGE_DONE);
}

static void test_a_reply_sent_before_the_request_was_read_is_received(void)
{
	CHECK(_ask_patiently(DAEMON_ANSWERS_BEFORE_READING, REPLY) == ENERGY_EXCHANGE_DONE);
}

static void test_an_absent_daemon_is_known_at_once(void)
{
	CHECK(_ask_with("/tmp/energy-test-nobody/socket", REQUEST, strlen(REQUEST)) ==
	      ENERGY_EXCHANGE_ABSENT);
	CHECK(strstr(detail, "No such file"));
}

static void test_a_socket_that_nobody_listens_on_is_absent(void)
{
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_ANSWERS, REPLY, strlen(REPLY));
	char path[108], left_over[120];

	snprintf(path, sizeof(path), "%s", fake_daemon_socket(daemon));
	snprintf(left_over, sizeof(left_over), "%s2", path);
	CHECK(!link(path, left_over));
	fake_daemon_stop(daemon);
	CHECK(_ask_with(left_over, REQUEST, strlen(REQUEST)) == ENERGY_EXCHANGE_ABSENT);
	CHECK(strstr(detail, "refused"));
	unlink(left_over);
	*strrchr(left_over, '/') = '\0';
	rmdir(left_over);
}

static void test_a_path_that_is_too_long_is_absent(void)
{
	char path[200];

	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	CHECK(_ask_with(path, REQUEST, strlen(REQUEST)) == ENERGY_EXCHANGE_ABSENT);
}

static void test_a_daemon_that_never_answers_is_late(void)
{
	CHECK(_ask(DAEMON_NEVER_ANSWERS, "") == ENERGY_EXCHANGE_LATE);
	CHECK(elapsed >= DEADLINE - 1);
}

static void test_a_full_backlog_is_late_and_not_longer(void)
{
	CHECK(_ask(DAEMON_NEVER_ACCEPTS, "") == ENERGY_EXCHANGE_LATE);
	CHECK(elapsed >= DEADLINE - 1);
}

static void test_a_request_that_nobody_reads_is_late(void)
{
	size_t length = 8 << 20;
	char *request = calloc(1, length);
	fake_daemon_t *daemon = fake_daemon_start(DAEMON_NEVER_READS, "", 0);

	CHECK(_ask_with(fake_daemon_socket(daemon), request, length) == ENERGY_EXCHANGE_LATE);
	fake_daemon_stop(daemon);
	free(request);
}

static void test_one_byte_in_ten_milliseconds_does_not_stretch_the_deadline(void)
{
	CHECK(_ask(DAEMON_TRICKLES, REPLY) == ENERGY_EXCHANGE_LATE);
	CHECK(reply_length > 0);
}

static void test_a_reply_that_is_cut_off_is_broken(void)
{
	CHECK(_ask_patiently(DAEMON_ANSWERS, "slurm-energy/1 ok\ndecision_id=abc") == ENERGY_EXCHANGE_BROKEN);
	CHECK(strstr(detail, "closed before the end"));
	CHECK(_ask_patiently(DAEMON_ANSWERS, "") == ENERGY_EXCHANGE_BROKEN);
}

static void test_a_daemon_that_closes_at_once_is_broken(void)
{
	energy_exchange_t result = _ask_patiently(DAEMON_CLOSES_AT_ONCE, "");

	CHECK(result == ENERGY_EXCHANGE_BROKEN);
}

static void test_a_reply_without_end_is_broken(void)
{
	CHECK(_ask_patiently(DAEMON_POURS, "") == ENERGY_EXCHANGE_BROKEN);
	CHECK(reply_length == sizeof(reply));
	CHECK(strstr(detail, "longer than any reply"));
}

static void test_no_file_descriptor_is_left_open(void)
{
	int before = dup(0), after;

	close(before);
	_ask_patiently(DAEMON_ANSWERS, REPLY);
	_ask(DAEMON_NEVER_ANSWERS, "");
	_ask_with("/tmp/energy-test-nobody/socket", REQUEST, strlen(REQUEST));
	after = dup(0);
	close(after);
	CHECK(after == before);
}

static void _ignore(int number)
{
	(void) number;
}

static void test_signals_do_not_shorten_or_stretch_the_wait(void)
{
	struct sigaction action = { .sa_handler = _ignore };

	sigaction(SIGALRM, &action, NULL);
	ualarm(5000, 5000);
	CHECK(_ask(DAEMON_NEVER_ANSWERS, "") == ENERGY_EXCHANGE_LATE);
	CHECK(elapsed >= DEADLINE - 1);
	ualarm(0, 0);
}

int main(void)
{
	RUN(test_a_reply_is_received_whole);
	RUN(test_the_end_line_ends_the_reply_though_the_daemon_stays);
	RUN(test_a_reply_sent_before_the_request_was_read_is_received);
	RUN(test_an_absent_daemon_is_known_at_once);
	RUN(test_a_socket_that_nobody_listens_on_is_absent);
	RUN(test_a_path_that_is_too_long_is_absent);
	RUN(test_a_daemon_that_never_answers_is_late);
	RUN(test_a_full_backlog_is_late_and_not_longer);
	RUN(test_a_request_that_nobody_reads_is_late);
	RUN(test_one_byte_in_ten_milliseconds_does_not_stretch_the_deadline);
	RUN(test_a_reply_that_is_cut_off_is_broken);
	RUN(test_a_daemon_that_closes_at_once_is_broken);
	RUN(test_a_reply_without_end_is_broken);
	RUN(test_no_file_descriptor_is_left_open);
	RUN(test_signals_do_not_shorten_or_stretch_the_wait);
	return 0;
}
