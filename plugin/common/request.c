/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "request.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "text.h"

static void _put(energy_request_t *request, const char *bytes, size_t length)
{
	if (request->overflow || (length > request->size - request->length)) {
		request->overflow = true;
		return;
	}
	memcpy(request->bytes + request->length, bytes, length);
	request->length += length;
}

static void _put_escaped(energy_request_t *request, const unsigned char *bytes, size_t length)
{
	static const char digits[] = "0123456789ABCDEF";

	for (size_t i = 0; i < length; i++) {
		char escape[3] = { '%', digits[bytes[i] >> 4], digits[bytes[i] & 0x0f] };

		_put(request, escape, sizeof(escape));
	}
}

static void _put_value(energy_request_t *request, const char *value, size_t limit)
{
	/* One character past the limit is looked at, so that it is cut whole and not in its middle. */
	size_t length = strnlen(value, limit + 4), width;
	const unsigned char *text = (const unsigned char *) value;

	for (size_t i = 0; (i < length) && !request->overflow; i += width) {
		uint32_t code_point = 0;
		bool valid;

		width = energy_utf8_width(text + i, length - i, &code_point);
		valid = (width > 0);
		if (!valid)
			width = 1;
		if (i + width > limit)
			break;
		if (!valid || (code_point == '%') || energy_is_control(code_point))
			_put_escaped(request, text + i, width);
		else
			_put(request, value + i, width);
	}
}

extern void energy_request_begin(energy_request_t *request, char *bytes, size_t size,
				 const char *verb)
{
	*request = (energy_request_t) { .bytes = bytes, .size = size };
	_put(request, ENERGY_PROTOCOL " ", strlen(ENERGY_PROTOCOL " "));
	_put(request, verb, strlen(verb));
	_put(request, "\n", 1);
}

extern void energy_request_text(energy_request_t *request, const char *key, const char *value,
				size_t limit)
{
	_put(request, key, strlen(key));
	_put(request, "=", 1);
	_put_value(request, value, limit);
	_put(request, "\n", 1);
}

extern void energy_request_number(energy_request_t *request, const char *key, uint64_t value)
{
	char digits[24];

	snprintf(digits, sizeof(digits), "%" PRIu64, value);
	energy_request_text(request, key, digits, sizeof(digits));
}

extern size_t energy_request_end(energy_request_t *request)
{
	_put(request, "end\n", 4);
	return request->overflow ? 0 : request->length;
}
