/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Text of people in requests: escaped, cut at characters, bounded. */
#include <stdint.h>

#include "check.h"
#include "common/request.h"
#include "common/text.h"

static const char *_written(const char *value, size_t limit)
{
	static char bytes[8192];
	energy_request_t request;
	size_t length;

	energy_request_begin(&request, bytes, sizeof(bytes) - 1, "decide");
	energy_request_text(&request, "name", value, limit);
	length = energy_request_end(&request);
	bytes[length] = '\0';
	return bytes;
}

#define AROUND(value) "slurm-energy/1 decide\nname=" value "\nend\n"

static void test_plain_text_and_utf8_travel_as_they_are(void)
{
	CHECK_TEXT(_written("a b;c$(id)'\"<i>", 64), AROUND("a b;c$(id)'\"<i>"));
	CHECK_TEXT(_written("\xc3\xa9\xe2\x82\xac\xf0\x9f\x94\x8b", 64),
		   AROUND("\xc3\xa9\xe2\x82\xac\xf0\x9f\x94\x8b"));
}

static void test_control_characters_percent_and_line_separators_are_escaped(void)
{
	CHECK_TEXT(_written("a\nend\n%41\r\t\x1b[31m\x7f", 64),
		   AROUND("a%0Aend%0A%2541%0D%09%1B[31m%7F"));
	CHECK_TEXT(_written("\xc2\x85\xe2\x80\xa8\xe2\x80\xa9", 64),
		   AROUND("%C2%85%E2%80%A8%E2%80%A9"));
}

static void test_bytes_that_are_not_utf8_are_escaped_one_by_one(void)
{
	/* a lone byte, an overlong '/', a surrogate, one past U+10FFFF, a cut character */
	CHECK_TEXT(_written("\xff\xc0\xaf\xed\xa0\x80", 64), AROUND("%FF%C0%AF%ED%A0%80"));
	CHECK_TEXT(_written("\xf4\x90\x80\x80\xe2\x82", 64), AROUND("%F4%90%80%80%E2%82"));
}

static void test_a_value_is_cut_before_the_character_that_does_not_fit(void)
{
	CHECK_TEXT(_written("abcdef", 4), AROUND("abcd"));
	CHECK_TEXT(_written("ab\xe2\x82\xac", 4), AROUND("ab"));
	CHECK_TEXT(_written("ab\xe2\x82\xac", 5), AROUND("ab\xe2\x82\xac"));
	CHECK_TEXT(_written("", 4), AROUND(""));
}

static void test_a_megabyte_is_cut_without_reading_all_of_it(void)
{
	/* No NUL: the address sanitizer would stop a reader that goes past the limit. */
	char *text = malloc(300);

	memset(text, 'x', 300);
	CHECK(strlen(_written(text, 256)) == strlen(AROUND("")) + 256);
	free(text);
}

static void test_a_request_that_does_not_fit_is_not_sent(void)
{
	char bytes[40];
	energy_request_t request;

	energy_request_begin(&request, bytes, sizeof(bytes), "decide");
	energy_request_text(&request, "name", "0123456789", 64);
	CHECK(energy_request_end(&request) == 0);
	for (size_t size = 0; size < sizeof(bytes); size++) {
		char *exact = malloc(size + 1);

		energy_request_begin(&request, exact, size, "decide");
		energy_request_text(&request, "k", "\n%\xff", 64);
		/* "slurm-energy/1 decide\nk=%0A%25%FF\nend\n" has 38 bytes */
		CHECK(energy_request_end(&request) == (size >= 38 ? 38 : 0));
		free(exact);
	}
}

static void test_log_text_is_printable_ascii(void)
{
	char out[8];

	energy_printable("a\x1b\xff" "bcdefgh", 10, out, sizeof(out));
	CHECK_TEXT(out, "a??bcde");
	energy_printable("abc", 2, out, sizeof(out));
	CHECK_TEXT(out, "ab");
}

int main(void)
{
	RUN(test_plain_text_and_utf8_travel_as_they_are);
	RUN(test_control_characters_percent_and_line_separators_are_escaped);
	RUN(test_bytes_that_are_not_utf8_are_escaped_one_by_one);
	RUN(test_a_value_is_cut_before_the_character_that_does_not_fit);
	RUN(test_a_megabyte_is_cut_without_reading_all_of_it);
	RUN(test_a_request_that_does_not_fit_is_not_sent);
	RUN(test_log_text_is_printable_ascii);
	return 0;
}
