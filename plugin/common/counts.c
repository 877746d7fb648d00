/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "counts.h"

#include <string.h>

#define MAX_DIGITS 4

static bool _number(const char **text, uint32_t *value)
{
	size_t digits = strspn(*text, "0123456789");

	if (!digits || (digits > MAX_DIGITS))
		return false;
	*value = 0;
	for (size_t i = 0; i < digits; i++)
		*value = *value * 10 + (uint32_t) ((*text)[i] - '0');
	*text += digits;
	return *value && (*value <= ENERGY_MAX_COUNT);
}

extern bool energy_counts_has(const energy_counts_t *counts, uint32_t value)
{
	for (size_t i = 0; i < counts->count; i++) {
		if (counts->values[i] == value)
			return true;
	}
	return false;
}

static bool _add(energy_counts_t *counts, uint32_t value)
{
	size_t at = counts->count;

	if (energy_counts_has(counts, value))
		return true;
	if (at == ENERGY_MAX_COUNTS)
		return false;
	while (at && (counts->values[at - 1] > value)) {
		counts->values[at] = counts->values[at - 1];
		at--;
	}
	counts->values[at] = value;
	counts->count++;
	return true;
}

extern bool energy_counts_read(const char *text, energy_counts_t *counts)
{
	*counts = (energy_counts_t) { 0 };
	while (true) {
		uint32_t first, last;

		if (!_number(&text, &first))
			return false;
		last = first;
		if (*text == '-') {
			text++;
			if (!_number(&text, &last) || (last < first))
				return false;
		}
		for (uint32_t value = first; value <= last; value++) {
			if (!_add(counts, value))
				return false;
		}
		if (!*text)
			return true;
		if (*text++ != ',')
			return false;
	}
}
