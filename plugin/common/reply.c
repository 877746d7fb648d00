/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "reply.h"

#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "counts.h"
#include "request.h"
#include "text.h"

#define MAX_FIELDS 64
#define MAX_KEY_BYTES 64
#define ENERGY_MAX_BEGIN_TIME 4294967293u

static const char end_line[] = "\nend\n";

typedef struct {
	const char *text;
	size_t length;
} slice_t;

static bool _equals(slice_t slice, const char *text)
{
	return (slice.length == strlen(text)) && !memcmp(slice.text, text, slice.length);
}

static bool _is_lower(char c)
{
	return (c >= 'a') && (c <= 'z');
}

static bool _is_digit(char c)
{
	return (c >= '0') && (c <= '9');
}

static bool _is_alphanumeric(char c)
{
	return _is_lower(c) || _is_digit(c) || ((c >= 'A') && (c <= 'Z'));
}

static bool _is_key(slice_t key)
{
	if (!key.length || (key.length > MAX_KEY_BYTES) || !_is_lower(key.text[0]))
		return false;
	for (size_t i = 1; i < key.length; i++) {
		if (!_is_lower(key.text[i]) && !_is_digit(key.text[i]) && (key.text[i] != '_'))
			return false;
	}
	return true;
}

static int _hex(char c)
{
	if (_is_digit(c))
		return c - '0';
	if ((c >= 'A') && (c <= 'F'))
		return c - 'A' + 10;
	if ((c >= 'a') && (c <= 'f'))
		return c - 'a' + 10;
	return -1;
}

/*
 * Undo %XX into out (size bytes, ends with NUL). Returns the length, or -1 for a bare '%', a raw
 * control byte or a value that does not fit. With out NULL the value is only checked.
 */
static ssize_t _unescape(slice_t value, char *out, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < value.length; i++) {
		unsigned char byte = (unsigned char) value.text[i];

		if ((byte < 0x20) || (byte == 0x7f))
			return -1;
		if (byte == '%') {
			bool whole = (i + 2 < value.length);
			int high = whole ? _hex(value.text[i + 1]) : -1;
			int low = whole ? _hex(value.text[i + 2]) : -1;

			if ((high < 0) || (low < 0))
				return -1;
			byte = (unsigned char) (high * 16 + low);
			i += 2;
		}
		if (out) {
			if (used + 1 >= size)
				return -1;
			out[used] = (char) byte;
		}
		used++;
	}
	if (out)
		out[used] = '\0';
	return (ssize_t) used;
}

static bool _is_decision_id(const char *text, size_t length)
{
	if ((length < 8) || (length > 32))
		return false;
	for (size_t i = 0; i < length; i++) {
		if (!_is_lower(text[i]) && !_is_digit(text[i]))
			return false;
	}
	return true;
}

static bool _is_entry(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (!_is_alphanumeric(text[i]) && (!text[i] || !strchr("_.:=,;+-", text[i])))
			return false;
	}
	return length > 0;
}

static bool _is_partition_list(const char *text, size_t length)
{
	bool in_name = false;

	for (size_t i = 0; i < length; i++) {
		if (text[i] == ',') {
			if (!in_name)
				return false;
			in_name = false;
		} else if (_is_alphanumeric(text[i]) || (text[i] == '_') || (text[i] == '.') ||
			   (text[i] == '-')) {
			in_name = true;
		} else {
			return false;
		}
	}
	return in_name;
}

/* One feature and nothing more: `&`, `|`, `*`, `[` and `(` would say more to Slurm. */
static bool _is_feature(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (!_is_alphanumeric(text[i]) && (!text[i] || !strchr("_.:-", text[i])))
			return false;
	}
	return length > 0;
}

static bool _is_printable_ascii(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if ((text[i] < 0x20) || (text[i] > 0x7e))
			return false;
	}
	return length > 0;
}

static bool _is_one_line(const char *text, size_t length)
{
	size_t width;

	for (size_t i = 0; i < length; i += width) {
		uint32_t code_point = 0;

		width = energy_utf8_width((const unsigned char *) text + i, length - i,
					  &code_point);
		if (!width || energy_is_control(code_point))
			return false;
	}
	return length > 0;
}

typedef struct {
	const char *key;
	char *out;
	size_t size;
	bool (*is_valid)(const char *text, size_t length);
	const char *complaint;
} field_t;

static const char *_read_field(const field_t *field, slice_t value)
{
	ssize_t length = _unescape(value, field->out, field->size);

	if ((length < 0) || !field->is_valid(field->out, (size_t) length))
		return field->complaint;
	return NULL;
}

static void _read_reason(slice_t value, energy_reply_t *reply)
{
	energy_printable(value.text, value.length, reply->reason, sizeof(reply->reason));
}

/* A whole number from 1 to max, 0 if it is none. */
static unsigned int _whole(slice_t value, unsigned int max)
{
	uint64_t number = 0;

	for (size_t i = 0; i < value.length; i++) {
		if (!_is_digit(value.text[i]) || (number > max))
			return 0;
		number = 10 * number + (uint64_t) (value.text[i] - '0');
	}
	return (number > max) ? 0 : (unsigned int) number;
}

static int _hexadecimal(char digit)
{
	if (_is_digit(digit))
		return digit - '0';
	return ((digit >= 'a') && (digit <= 'f')) ? digit - 'a' + 10 : -1;
}

/* Two digits are a byte, and bit N is the Nth of a byte from its lowest on. */
static const char *_read_names(slice_t value, energy_reply_t *reply)
{
	if (value.length != 2 * sizeof(reply->names))
		return "reuse_names is not 256 hexadecimal digits";
	for (size_t i = 0; i < sizeof(reply->names); i++) {
		int high = _hexadecimal(value.text[2 * i]), low = _hexadecimal(value.text[2 * i + 1]);

		if ((high < 0) || (low < 0))
			return "reuse_names is not 256 hexadecimal digits";
		reply->names[i] = (unsigned char) (16 * high + low);
	}
	reply->has_names = true;
	return NULL;
}

static const char *_read_value(slice_t key, slice_t value, energy_reply_t *reply)
{
	const field_t fields[] = {
		{ "decision_id", reply->decision_id, sizeof(reply->decision_id), _is_decision_id,
		  "decision_id is not 8 to 32 digits or lower-case letters" },
		{ "entry", reply->entry, sizeof(reply->entry), _is_entry,
		  "entry has a bad character or a bad length" },
		{ "partition", reply->partition, sizeof(reply->partition), _is_partition_list,
		  "partition is not a comma list of names" },
		{ "prefer", reply->prefer, sizeof(reply->prefer), _is_feature,
		  "prefer is not one node feature of 1 to 64 characters" },
		{ "admin_comment", reply->admin_comment, sizeof(reply->admin_comment),
		  _is_printable_ascii, "admin_comment is not 1 to 256 printable ASCII characters" },
		{ "message", reply->message, sizeof(reply->message), _is_one_line,
		  "message is not one line of 1 to 512 bytes of UTF-8" },
		{ "message_in_place", reply->message_in_place, sizeof(reply->message_in_place),
		  _is_one_line, "message_in_place is not one line of 1 to 512 bytes of UTF-8" },
	};

	if (_unescape(value, NULL, 0) < 0)
		return "a value has a raw control character or a bad %XX";
	if (_equals(key, "reason")) {
		_read_reason(value, reply);
		return NULL;
	}
	if (_equals(key, "reuse_milliseconds")) {
		reply->reuse_milliseconds = _whole(value, ENERGY_MAX_REUSE_MILLISECONDS);
		return reply->reuse_milliseconds ? NULL : "reuse_milliseconds is not a number from 1 to 5000";
	}
	if (_equals(key, "reuse_names"))
		return _read_names(value, reply);
	if (_equals(key, "open")) {
		reply->open = _equals(value, "1");
		return reply->open ? NULL : "open is not 1";
	}
	if (_equals(key, "begin_time")) {
		reply->begin_time = _whole(value, ENERGY_MAX_BEGIN_TIME);
		return reply->begin_time ? NULL : "begin_time is not a number of seconds from 1 to 4294967293";
	}
	if (_equals(key, "gpus")) {
		reply->gpus = _whole(value, ENERGY_MAX_COUNT);
		return reply->gpus ? NULL : "gpus is not a number from 1 to 4096";
	}
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (_equals(key, fields[i].key))
			return _read_field(&fields[i], value);
	}
	return NULL;	/* a key of a newer daemon */
}

static const char *_read_header(slice_t line, energy_reply_t *reply)
{
	if (_equals(line, ENERGY_PROTOCOL " ok"))
		reply->status = ENERGY_REPLY_OK;
	else if (_equals(line, ENERGY_PROTOCOL " refused") ||
		 _equals(line, ENERGY_PROTOCOL " error"))
		reply->status = ENERGY_REPLY_REFUSED;
	else
		return "first line is not '" ENERGY_PROTOCOL " ok', 'refused' or 'error'";
	return NULL;
}

/* Take the next line, without its newline, off the front of rest. */
static slice_t _next_line(slice_t *rest)
{
	const char *newline = memchr(rest->text, '\n', rest->length);
	slice_t line = { rest->text, newline ? (size_t) (newline - rest->text) : rest->length };
	size_t taken = line.length + (newline ? 1 : 0);

	rest->text += taken;
	rest->length -= taken;
	return line;
}

static const char *_read_line(slice_t line, slice_t *keys, size_t num_keys, energy_reply_t *reply)
{
	const char *separator = memchr(line.text, '=', line.length);
	slice_t key = { line.text, separator ? (size_t) (separator - line.text) : 0 };

	if (!_is_key(key))
		return "a line is not key=value";
	for (size_t i = 0; i < num_keys; i++) {
		if ((keys[i].length == key.length) && !memcmp(keys[i].text, key.text, key.length))
			return "a key is repeated";
	}
	keys[num_keys] = key;
	return _read_value(key, (slice_t) { separator + 1, line.length - key.length - 1 }, reply);
}

extern bool energy_reply_complete(const char *bytes, size_t length)
{
	size_t end = sizeof(end_line) - 1;

	return (length >= end) && !memcmp(bytes + length - end, end_line, end);
}

extern const char *energy_reply_parse(const char *bytes, size_t length, energy_reply_t *reply)
{
	slice_t rest = { bytes, length }, keys[MAX_FIELDS];
	size_t num_keys = 0;
	const char *complaint;

	memset(reply, 0, sizeof(*reply));
	if (length > ENERGY_REPLY_BYTES)
		return "reply is too long";
	if (!energy_reply_complete(bytes, length))
		return "reply is cut off: its last line is not 'end'";
	rest.length -= strlen("end\n");
	if ((complaint = _read_header(_next_line(&rest), reply)))
		return complaint;
	while (rest.length) {
		if (num_keys == MAX_FIELDS)
			return "reply has too many lines";
		if ((complaint = _read_line(_next_line(&rest), keys, num_keys++, reply)))
			return complaint;
	}
	if ((reply->status == ENERGY_REPLY_OK) && !reply->decision_id[0])
		return "reply has no decision_id";
	return NULL;
}
