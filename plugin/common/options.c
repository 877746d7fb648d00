/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "options.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

extern bool energy_is_mode(const char *text)
{
	return !strcmp(text, "off") || !strcmp(text, "observe") || !strcmp(text, "balanced") ||
	       !strcmp(text, "saver");
}

static size_t _count_digits(const char *text)
{
	return strspn(text, "0123456789");
}

extern bool energy_is_slowdown(const char *text, char *number)
{
	size_t whole = _count_digits(text), length = whole, fraction = 0;
	unsigned int percent = 0;

	if (!whole || (whole > 3))
		return false;
	if (text[length] == '.') {
		fraction = _count_digits(text + length + 1);
		if (!fraction || (fraction > 6))
			return false;
		length += 1 + fraction;
	}
	if (text[length] && strcmp(text + length, "%"))
		return false;
	for (size_t i = 0; i < whole; i++)
		percent = percent * 10 + (unsigned int) (text[i] - '0');
	if (percent > 200)
		return false;
	/* 200.000 is inside, 200.001 is not. */
	if ((percent == 200) && fraction &&
	    (strspn(text + whole + 1, "0") != fraction))
		return false;
	memcpy(number, text, length);
	number[length] = '\0';
	return true;
}

/* Read exactly two digits between lower and upper off the front of *text. */
static bool _two_digits(const char **text, int lower, int upper)
{
	const char *at = *text;
	int value;

	if (!isdigit((unsigned char) at[0]) || !isdigit((unsigned char) at[1]))
		return false;
	value = (at[0] - '0') * 10 + (at[1] - '0');
	*text = at + 2;
	return (value >= lower) && (value <= upper);
}

static bool _skip(const char **text, char expected)
{
	if (**text != expected)
		return false;
	(*text)++;
	return true;
}

/* HH:MM[:SS][AM|PM], where HH may be one digit. */
static bool _is_clock(const char *text)
{
	if (isdigit((unsigned char) text[0]) && (text[1] == ':'))
		text += 1;
	else if (!_two_digits(&text, 0, 23))
		return false;
	if (!_skip(&text, ':') || !_two_digits(&text, 0, 59))
		return false;
	if (_skip(&text, ':') && !_two_digits(&text, 0, 59))
		return false;
	return !text[0] || !strcasecmp(text, "AM") || !strcasecmp(text, "PM");
}

/* YYYY-MM-DD[THH:MM[:SS]] */
static bool _is_iso_date(const char *text)
{
	if (!_two_digits(&text, 19, 99) || !_two_digits(&text, 0, 99) || !_skip(&text, '-') ||
	    !_two_digits(&text, 1, 12) || !_skip(&text, '-') || !_two_digits(&text, 1, 31))
		return false;
	return !text[0] || (_skip(&text, 'T') && _is_clock(text));
}

/* MMDD[YY], or MM/DD[/YY] or MM.DD[.YY], then [-HH:MM[:SS]] */
static bool _is_us_date(const char *text)
{
	char separator;

	if (!_two_digits(&text, 1, 12))
		return false;
	separator = ((*text == '/') || (*text == '.')) ? *text : '\0';
	if (separator)
		text++;
	if (!_two_digits(&text, 1, 31))
		return false;
	if (separator && _skip(&text, separator)) {
		if (!_two_digits(&text, 0, 99))
			return false;
	} else if (!separator && isdigit((unsigned char) *text)) {
		if (!_two_digits(&text, 0, 99))
			return false;
	}
	return !text[0] || (_skip(&text, '-') && _is_clock(text));
}

/* COUNT[UNIT] after now+ */
static bool _is_count(const char *text)
{
	static const char *const units[] = {
		"", "second", "seconds", "minute", "minutes", "hour", "hours", "day", "days",
		"week", "weeks",
	};
	size_t digits = _count_digits(text);

	if (!digits || (digits > 9))
		return false;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (!strcasecmp(text + digits, units[i]))
			return true;
	}
	return false;
}

extern bool energy_is_deadline(const char *text)
{
	static const char *const words[] = {
		"now", "today", "tomorrow", "midnight", "noon", "teatime", "fika",
	};

	if (strnlen(text, ENERGY_OPTION_BYTES) >= ENERGY_OPTION_BYTES)
		return false;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (!strcasecmp(text, words[i]))
			return true;
	}
	if (!strncasecmp(text, "now+", 4))
		return _is_count(text + 4);
	return _is_clock(text) || _is_iso_date(text) || _is_us_date(text);
}

static bool _skip_prefix(const char **name, size_t *length, const char *prefix)
{
	size_t size = strlen(prefix);

	if ((*length < size) || strncasecmp(*name, prefix, size))
		return false;
	*name += size;
	*length -= size;
	return true;
}

/* One part of a name: without blanks around it and without any prefix of SPANK's. */
static bool _is_decision_name(const char *name, size_t length)
{
	while (length && (name[length - 1] == ' '))
		length--;
	while (_skip_prefix(&name, &length, " ") || _skip_prefix(&name, &length, "_") ||
	       _skip_prefix(&name, &length, "SLURM_") || _skip_prefix(&name, &length, "SPANK_"))
		;
	return (length == strlen(ENERGY_ENTRY_DECISION)) &&
	       !strncasecmp(name, ENERGY_ENTRY_DECISION, length);
}

extern bool energy_is_decision_entry(const char *entry)
{
	size_t length = strcspn(entry, "="), start = 0;

	/* Control characters part names: a script that reads `env` takes a line's begin for one. */
	for (size_t i = 0; i <= length; i++) {
		if ((i < length) && ((unsigned char) entry[i] >= ' '))
			continue;
		if (_is_decision_name(entry + start, i - start))
			return true;
		start = i + 1;
	}
	return false;
}
