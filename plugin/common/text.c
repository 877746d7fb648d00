/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "text.h"

extern size_t energy_utf8_width(const unsigned char *text, size_t length, uint32_t *code_point)
{
	static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t width;
	uint32_t value;

	if (!length)
		return 0;
	if (text[0] < 0x80) {
		*code_point = text[0];
		return 1;
	}
	if ((text[0] & 0xe0) == 0xc0) {
		width = 2;
		value = text[0] & 0x1f;
	} else if ((text[0] & 0xf0) == 0xe0) {
		width = 3;
		value = text[0] & 0x0f;
	} else if ((text[0] & 0xf8) == 0xf0) {
		width = 4;
		value = text[0] & 0x07;
	} else {
		return 0;
	}
	if (width > length)
		return 0;
	for (size_t i = 1; i < width; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		value = (value << 6) | (text[i] & 0x3f);
	}
	if ((value < smallest[width]) || (value > 0x10ffff) ||
	    ((value >= 0xd800) && (value <= 0xdfff)))
		return 0;
	*code_point = value;
	return width;
}

extern bool energy_is_control(uint32_t code_point)
{
	return (code_point < 0x20) || ((code_point >= 0x7f) && (code_point <= 0x9f)) ||
	       (code_point == 0x2028) || (code_point == 0x2029);
}

extern void energy_printable(const char *text, size_t length, char *out, size_t size)
{
	size_t i;

	if (!size)
		return;
	for (i = 0; (i < length) && (i + 1 < size); i++)
		out[i] = ((text[i] >= 0x20) && (text[i] < 0x7f)) ? text[i] : '?';
	out[i] = '\0';
}
