/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Random damage to a good reply: fuzz_reply COUNT [SEED]
 *
 * Under the sanitizers no read may leave the reply; what is still taken for good must keep its bounds.
 */
#include <stdint.h>

#include "check.h"
#include "common/reply.h"
#include "common/text.h"

static const char good[] =
	"slurm-energy/1 ok\ndecision_id=abcdefgh1\nentry=v=1;id=abcdefgh1;mode=balanced;"
	"clocks=a100-sxm4-80gb:1275,a40:1410;limit=90\npartition=a100,a40\nprefer=rack:3\n"
	"admin_comment=energy:abcdefgh1\nmessage=13 %25 less \xe2\x82\xac\nreason=x\nother=%0A%41\nend\n";

static uint64_t state;

static uint32_t _random(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t) ((state >> 16) % below);
}

static size_t _splice(char *text, size_t length, size_t room)
{
	size_t from = _random((uint32_t) length), count = 1 + _random(40), at = _random((uint32_t) length);
	char piece[64];

	if (count > length - from)
		count = length - from;
	if (length + count > room)
		return length;
	memcpy(piece, text + from, count);
	memmove(text + at + count, text + at, length - at);
	memcpy(text + at, piece, count);
	return length + count;
}

static size_t _damage(char *text, size_t length, size_t room)
{
	static const char favourites[] = "%\n=\0\x7f\x80\xff,;endok 1aZ";
	size_t at = _random((uint32_t) length), count;

	switch (_random(6)) {
	case 0:
		text[at] = (char) _random(256);
		return length;
	case 1:
		text[at] = favourites[_random(sizeof(favourites) - 1)];
		return length;
	case 2:
		count = 1 + _random(20);
		if (count > length - at)
			count = length - at;
		memmove(text + at, text + at + count, length - at - count);
		return length - count;
	case 3:
	case 4:
		return _splice(text, length, room);
	default:
		return at ? at : length;	/* cut off */
	}
}

static void _check_bounds(const energy_reply_t *reply)
{
	CHECK(strlen(reply->decision_id) <= 32);
	CHECK(strlen(reply->entry) <= ENERGY_ENTRY_BYTES);
	CHECK(strlen(reply->partition) <= ENERGY_PARTITION_BYTES);
	CHECK(strlen(reply->prefer) <= ENERGY_PREFER_BYTES);
	CHECK(strlen(reply->admin_comment) <= ENERGY_COMMENT_BYTES);
	CHECK(strlen(reply->message) <= ENERGY_MESSAGE_BYTES);
	CHECK((reply->status != ENERGY_REPLY_OK) || (strlen(reply->decision_id) >= 8));
	for (const char *c = reply->entry; *c; c++)
		CHECK((*c > ' ') && (*c < 0x7f) && !strchr("'\"`$\\", *c));
	for (const char *c = reply->prefer; *c; c++)
		CHECK((*c > ' ') && (*c < 0x7f) && !strchr("&|*[](),!'\"`$\\", *c));
	for (const unsigned char *c = (const unsigned char *) reply->message; *c; c++)
		CHECK((*c >= 0x20) && (*c != 0x7f));
}

int main(int argc, char **argv)
{
	long count = (argc > 1) ? strtol(argv[1], NULL, 10) : 5000, taken = 0;

	state = UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t) ((argc > 2) ? strtol(argv[2], NULL, 10) : 1);
	for (long i = 0; i < count; i++) {
		char text[ENERGY_REPLY_BYTES];
		size_t length = sizeof(good) - 1;
		energy_reply_t reply;
		char *exact;

		memcpy(text, good, length);
		for (uint32_t times = 1 + _random(6); times && length; times--)
			length = _damage(text, length, sizeof(text));
		exact = malloc(length ? length : 1);
		memcpy(exact, text, length);
		if (!energy_reply_parse(exact, length, &reply)) {
			_check_bounds(&reply);
			taken++;
		}
		free(exact);
	}
	printf("ok fuzz_reply: %ld damaged replies, %ld still well-formed\n", count, taken);
	return 0;
}
