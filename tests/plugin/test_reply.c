/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The daemon's reply: taken when it is exactly right, garbage as a whole otherwise. */
#include "check.h"
#include "common/reply.h"

#define HEAD "slurm-energy/1 ok\n"
#define ID "decision_id=abcdefgh1\n"

static energy_reply_t reply;

/* Parse a copy that ends where the reply ends, so that no read past it goes unseen. */
static const char *_parse(const char *text, size_t length)
{
	char *copy = malloc(length ? length : 1);
	const char *complaint;

	memcpy(copy, text, length);
	complaint = energy_reply_parse(copy, length, &reply);
	free(copy);
	return complaint;
}

static void test_a_full_reply_is_read(void)
{
	const char text[] = HEAD ID "entry=v=1;id=abcdefgh1;mode=balanced;clocks=a100-sxm4-80gb:1275\n"
			    "partition=a100,a40\nprefer=rack:3_a.b-c\nbegin_time=1900000000\nadmin_comment=energy:abcdefgh1\n"
			    "message=13 %25 less \xe2\x82\xac\nfuture_key=%0A\nend\n";

	CHECK(!_parse(text, sizeof(text) - 1));
	CHECK(reply.status == ENERGY_REPLY_OK);
	CHECK_TEXT(reply.decision_id, "abcdefgh1");
	CHECK_TEXT(reply.entry, "v=1;id=abcdefgh1;mode=balanced;clocks=a100-sxm4-80gb:1275");
	CHECK_TEXT(reply.partition, "a100,a40");
	CHECK_TEXT(reply.prefer, "rack:3_a.b-c");
	CHECK(reply.begin_time == 1900000000);
	CHECK_TEXT(reply.admin_comment, "energy:abcdefgh1");
	CHECK_TEXT(reply.message, "13 % less \xe2\x82\xac");
}

static void test_a_reply_with_an_id_alone_changes_nothing(void)
{
	const char text[] = HEAD ID "end\n";

	CHECK(!_parse(text, sizeof(text) - 1));
	CHECK(!reply.entry[0] && !reply.partition[0] && !reply.prefer[0] &&
	      !reply.admin_comment[0] && !reply.message[0]);
}

static void test_a_refusal_is_read_with_its_reason(void)
{
	const char refused[] = "slurm-energy/1 refused\nreason=uid 1000 may not\nend\n";
	const char error[] = "slurm-energy/1 error\nend\n";

	CHECK(!_parse(refused, sizeof(refused) - 1));
	CHECK(reply.status == ENERGY_REPLY_REFUSED);
	CHECK_TEXT(reply.reason, "uid 1000 may not");
	CHECK(!_parse(error, sizeof(error) - 1));
	CHECK(reply.status == ENERGY_REPLY_REFUSED);
}

static void test_malformed_replies_are_garbage(void)
{
	static const struct {
		const char *text;
		size_t length;
	} cases[] = {
#define CASE(text) { text, sizeof(text) - 1 }
		CASE(""),
		CASE("end\n"),
		CASE("\nend\n"),
		CASE("\n\nend\n"),
		CASE("<html>500</html>\n\nend\n"),
		CASE("slurm-energy/2 ok\n" ID "end\n"),
		CASE("slurm-energy/1 OK\n" ID "end\n"),
		CASE("slurm-energy/1 ok \n" ID "end\n"),
		CASE("slurm-energy/1  ok\n" ID "end\n"),
		CASE("slurm-energy/1 decide\n" ID "end\n"),
		CASE(" slurm-energy/1 ok\n" ID "end\n"),
		CASE("slurm-energy/1 ok\r\ndecision_id=abcdefgh1\r\nend\r\n"),
		CASE(HEAD "end\n"),					/* no id */
		CASE(HEAD "entry=v=1\nend\n"),
		CASE(HEAD ID "end"),					/* cut off */
		CASE(HEAD ID "en"),
		CASE(HEAD ID),
		CASE(HEAD ID "end\n\n"),				/* something after it */
		CASE(HEAD ID "end\nend\n"),
		CASE(HEAD ID "end\nentry=v=1\nend\n"),
		CASE(HEAD ID "\nend\n"),				/* an empty line */
		CASE(HEAD ID "entry\nend\n"),
		CASE(HEAD ID "=v\nend\n"),
		CASE(HEAD ID "Entry=v\nend\n"),
		CASE(HEAD ID "1entry=v\nend\n"),
		CASE(HEAD ID "en try=v\nend\n"),
		CASE(HEAD ID " entry=v\nend\n"),
		CASE(HEAD ID "entry =v\nend\n"),
		CASE(HEAD ID ID "end\n"),				/* repeated */
		CASE(HEAD ID "x=1\ny=2\nx=1\nend\n"),
		CASE(HEAD "decision_id=\nend\n"),
		CASE(HEAD "decision_id=abcdefg\nend\n"),
		CASE(HEAD "decision_id=ABCDEFGH\nend\n"),
		CASE(HEAD "decision_id=abcd efgh\nend\n"),
		CASE(HEAD "decision_id=abcdefgh%00\nend\n"),
		CASE(HEAD "decision_id=abcdefghabcdefghabcdefghabcdefghx\nend\n"),
		CASE(HEAD ID "entry=\nend\n"),
		CASE(HEAD ID "entry=v 1\nend\n"),
		CASE(HEAD ID "entry=v'1\nend\n"),
		CASE(HEAD ID "entry=$(id)\nend\n"),
		CASE(HEAD ID "entry=v%3D1%00\nend\n"),
		CASE(HEAD ID "entry=v%0ASPANK_X=1\nend\n"),
		CASE(HEAD ID "partition=\nend\n"),
		CASE(HEAD ID "partition=a,\nend\n"),
		CASE(HEAD ID "partition=,a\nend\n"),
		CASE(HEAD ID "partition=a,,b\nend\n"),
		CASE(HEAD ID "partition=a b\nend\n"),
		CASE(HEAD ID "partition=a;b\nend\n"),
		CASE(HEAD ID "partition=a/b\nend\n"),
		CASE(HEAD ID "begin_time=\nend\n"),
		CASE(HEAD ID "begin_time=0\nend\n"),
		CASE(HEAD ID "begin_time=-5\nend\n"),
		CASE(HEAD ID "begin_time=4294967294\nend\n"),
		CASE(HEAD ID "begin_time=99999999999999999999999999\nend\n"),
		CASE(HEAD ID "begin_time=soon\nend\n"),
		CASE(HEAD ID "prefer=\nend\n"),
		CASE(HEAD ID "prefer=a&b\nend\n"),
		CASE(HEAD ID "prefer=a|b\nend\n"),
		CASE(HEAD ID "prefer=a*2\nend\n"),
		CASE(HEAD ID "prefer=[a]\nend\n"),
		CASE(HEAD ID "prefer=(a)\nend\n"),
		CASE(HEAD ID "prefer=a,b\nend\n"),
		CASE(HEAD ID "prefer=a b\nend\n"),
		CASE(HEAD ID "prefer=a%00\nend\n"),
		CASE(HEAD ID "prefer=a\nprefer=a\nend\n"),
		CASE(HEAD ID "admin_comment=\nend\n"),
		CASE(HEAD ID "admin_comment=a\tb\nend\n"),
		CASE(HEAD ID "admin_comment=a%09b\nend\n"),
		CASE(HEAD ID "admin_comment=\xc3\xa9\nend\n"),
		CASE(HEAD ID "message=\nend\n"),
		CASE(HEAD ID "message=a%0Ab\nend\n"),
		CASE(HEAD ID "message=a%1B[31m\nend\n"),
		CASE(HEAD ID "message=a\x1b[31m\nend\n"),
		CASE(HEAD ID "message=a%7F\nend\n"),
		CASE(HEAD ID "message=a%C2%85\nend\n"),
		CASE(HEAD ID "message=a%E2%80%A8\nend\n"),
		CASE(HEAD ID "message=a\xff\nend\n"),
		CASE(HEAD ID "message=a%FF\nend\n"),
		CASE(HEAD ID "message=a%ED%A0%80\nend\n"),
		CASE(HEAD ID "message=a%00\nend\n"),
		CASE(HEAD ID "message=a%\nend\n"),
		CASE(HEAD ID "message=a%4\nend\n"),
		CASE(HEAD ID "message=a%zz\nend\n"),
		CASE(HEAD ID "message=50 % less\nend\n"),
		CASE(HEAD ID "other=a%\nend\n"),
		CASE(HEAD ID "other=a\0b\nend\n"),
		CASE("slurm-energy/1 ok\0\n" ID "end\n"),
#undef CASE
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (!_parse(cases[i].text, cases[i].length)) {
			fprintf(stderr, "taken for good: case %zu: %s\n", i, cases[i].text);
			exit(1);
		}
	}
}

static const char *_parse_field(const char *key, char filling, size_t count)
{
	char text[4096];
	int start = snprintf(text, sizeof(text), HEAD ID "%s=", key);

	memset(text + start, filling, count);
	snprintf(text + start + count, sizeof(text) - (size_t) start - count, "\nend\n");
	return _parse(text, strlen(text));
}

static void test_lengths_are_taken_up_to_their_bound_and_no_further(void)
{
	CHECK(!_parse_field("entry", 'a', ENERGY_ENTRY_BYTES));
	CHECK(_parse_field("entry", 'a', ENERGY_ENTRY_BYTES + 1));
	CHECK(!_parse_field("partition", 'a', ENERGY_PARTITION_BYTES));
	CHECK(_parse_field("partition", 'a', ENERGY_PARTITION_BYTES + 1));
	CHECK(!_parse_field("prefer", 'a', ENERGY_PREFER_BYTES));
	CHECK(_parse_field("prefer", 'a', ENERGY_PREFER_BYTES + 1));
	CHECK(!_parse_field("admin_comment", ' ', ENERGY_COMMENT_BYTES));
	CHECK(_parse_field("admin_comment", ' ', ENERGY_COMMENT_BYTES + 1));
	CHECK(!_parse_field("message", 'a', ENERGY_MESSAGE_BYTES));
	CHECK(_parse_field("message", 'a', ENERGY_MESSAGE_BYTES + 1));
	CHECK(!_parse_field("reason", 'a', 2000));	/* cut for the log */
}

static void test_a_reply_of_too_many_lines_or_bytes_is_garbage(void)
{
	static char text[2 * ENERGY_REPLY_BYTES];
	size_t length = (size_t) sprintf(text, HEAD ID);

	for (int i = 0; i < 100; i++)
		length += (size_t) sprintf(text + length, "k%d=1\n", i);
	length += (size_t) sprintf(text + length, "end\n");
	CHECK_TEXT(_parse(text, length), "reply has too many lines");
	length = (size_t) sprintf(text, HEAD ID "x=");
	memset(text + length, 'y', ENERGY_REPLY_BYTES);
	length += ENERGY_REPLY_BYTES;
	length += (size_t) sprintf(text + length, "\nend\n");
	CHECK_TEXT(_parse(text, length), "reply is too long");
}

static void test_a_refusals_reason_is_safe_to_log(void)
{
	const char text[] = "slurm-energy/1 refused\nreason=a%0A\xff\nend\n";

	CHECK(!_parse(text, sizeof(text) - 1));
	CHECK_TEXT(reply.reason, "a%0A?");
}

int main(void)
{
	RUN(test_a_full_reply_is_read);
	RUN(test_a_reply_with_an_id_alone_changes_nothing);
	RUN(test_a_refusal_is_read_with_its_reason);
	RUN(test_malformed_replies_are_garbage);
	RUN(test_lengths_are_taken_up_to_their_bound_and_no_further);
	RUN(test_a_reply_of_too_many_lines_or_bytes_is_garbage);
	RUN(test_a_refusals_reason_is_safe_to_log);
	return 0;
}
