/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The C side of the protocol on stdin and stdout, to hold against the Python side.
 *
 *	wire_tool write	one value of any bytes -> a request with it as `name`
 *	wire_tool read	a reply -> its fields as NAME<tab>value lines, or "garbage<tab>why"
 *
 * Both take many inputs, each after its length in bytes on a line; each output ends with a NUL byte.
 */
#include "check.h"
#include "common/reply.h"
#include "common/request.h"

static void _write(const char *value)
{
	static char bytes[4 * ENERGY_REQUEST_BYTES];
	energy_request_t request;

	energy_request_begin(&request, bytes, sizeof(bytes), "decide");
	energy_request_text(&request, "name", value, ENERGY_REQUEST_BYTES);
	fwrite(bytes, 1, energy_request_end(&request), stdout);
}

static void _read(const char *bytes, size_t length)
{
	energy_reply_t reply;
	const char *complaint = energy_reply_parse(bytes, length, &reply);

	if (complaint) {
		printf("garbage\t%s\n", complaint);
		return;
	}
	printf("status\t%s\n", (reply.status == ENERGY_REPLY_OK) ? "ok" : "refused");
	printf("decision_id\t%s\nentry\t%s\npartition\t%s\nprefer\t%s\n", reply.decision_id,
	       reply.entry, reply.partition, reply.prefer);
	printf("admin_comment\t%s\nmessage\t%s\n", reply.admin_comment, reply.message);
}

int main(int argc, char **argv)
{
	char line[32];

	CHECK((argc == 2) && (!strcmp(argv[1], "write") || !strcmp(argv[1], "read")));
	while (fgets(line, sizeof(line), stdin)) {
		size_t length = strtoul(line, NULL, 10);
		char *input = calloc(1, length + 1);

		CHECK(fread(input, 1, length, stdin) == length);
		if (!strcmp(argv[1], "write"))
			_write(input);
		else
			_read(input, length);
		putchar('\0');
		free(input);
	}
	return 0;
}
