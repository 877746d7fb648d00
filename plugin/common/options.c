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

extern bool energy_is_switch(const char *text)
{
	return !strcmp(text, "on") || !strcmp(text, "off");
}

extern bool energy_is_script(const char *text)
{
	static const char marks[] = "abcdefghijklmnopqrstuvwxyz0123456789_.=;,+-";
	size_t length = strnlen(text, ENERGY_SCRIPT_BYTES);

	return length && (length < ENERGY_SCRIPT_BYTES) && (strspn(text, marks) == length);
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

/* Read one or two digits between lower and upper off the front of *text; exactly two if both. */
static bool _digits(const char **text, bool both, int lower, int upper, int *value)
{
	const char *at = *text;

	if (!isdigit((unsigned char) at[0]) || (both && !isdigit((unsigned char) at[1])))
		return false;
	*value = *at++ - '0';
	if (isdigit((unsigned char) *at))
		*value = *value * 10 + (*at++ - '0');
	*text = at;
	return (*value >= lower) && (*value <= upper);
}

static bool _skip(const char **text, char expected)
{
	if (**text != expected)
		return false;
	(*text)++;
	return true;
}

static void _set_clock(struct tm *when, int hour, int minute, int second)
{
	when->tm_hour = hour;
	when->tm_min = minute;
	when->tm_sec = second;
}

/* HH:MM[:SS][AM|PM], where HH may be one digit. */
static bool _clock(const char *text, struct tm *when)
{
	int hour, minute, second = 0;

	if (!_digits(&text, text[0] && (text[1] != ':'), 0, 23, &hour) || !_skip(&text, ':') ||
	    !_digits(&text, true, 0, 59, &minute))
		return false;
	if (_skip(&text, ':') && !_digits(&text, true, 0, 59, &second))
		return false;
	if (!strcasecmp(text, "AM") || !strcasecmp(text, "PM")) {
		if ((hour < 1) || (hour > 12))
			return false;
		hour = hour % 12 + (strcasecmp(text, "PM") ? 0 : 12);
	} else if (text[0]) {
		return false;
	}
	_set_clock(when, hour, minute, second);
	return true;
}

static void _set_date(struct tm *when, int year, int month, int day)
{
	*when = (struct tm) { .tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day };
}

/* YYYY-MM-DD[THH:MM[:SS]] */
static bool _iso_date(const char *text, struct tm *when)
{
	int century, year, month, day;

	if (!_digits(&text, true, 19, 99, &century) || !_digits(&text, true, 0, 99, &year) ||
	    !_skip(&text, '-') || !_digits(&text, true, 1, 12, &month) || !_skip(&text, '-') ||
	    !_digits(&text, true, 1, 31, &day))
		return false;
	_set_date(when, century * 100 + year, month, day);
	return !text[0] || (_skip(&text, 'T') && _clock(text, when));
}

/* Whether a date of this year lies before today. */
static bool _is_before(const struct tm *today, int month, int day)
{
	return (month < today->tm_mon + 1) || ((month == today->tm_mon + 1) && (day < today->tm_mday));
}

/* MMDD[YY], or MM/DD[/YY] or MM.DD[.YY], then [-HH:MM[:SS]]; without a year the next such date. */
static bool _us_date(const char *text, const struct tm *today, struct tm *when)
{
	int month, day, year = -1;
	char separator;

	if (!_digits(&text, true, 1, 12, &month))
		return false;
	separator = ((*text == '/') || (*text == '.')) ? *text : '\0';
	if (separator)
		text++;
	if (!_digits(&text, true, 1, 31, &day))
		return false;
	if ((separator ? _skip(&text, separator) : (isdigit((unsigned char) *text) != 0)) &&
	    !_digits(&text, true, 0, 99, &year))
		return false;
	if (year >= 0)
		year += 2000;
	else
		year = today->tm_year + 1900 + (_is_before(today, month, day) ? 1 : 0);
	_set_date(when, year, month, day);
	return !text[0] || (_skip(&text, '-') && _clock(text, when));
}

/* COUNT[UNIT] after now+ */
static bool _count(const char *text, time_t *seconds)
{
	static const struct {
		const char *name;
		time_t seconds;
	} units[] = {
		{ "", 1 }, { "second", 1 }, { "minute", 60 }, { "hour", 3600 }, { "day", 86400 },
		{ "week", 604800 },
	};
	size_t digits = _count_digits(text);
	time_t count = 0;

	if (!digits || (digits > 9))
		return false;
	for (size_t i = 0; i < digits; i++)
		count = count * 10 + (text[i] - '0');
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		const char *unit = text + digits;
		size_t length = strlen(units[i].name);

		if (strncasecmp(unit, units[i].name, length) ||
		    (unit[length] && (!length || strcasecmp(unit + length, "s"))))
			continue;
		*seconds = count * units[i].seconds;
		return true;
	}
	return false;
}

/* today, tomorrow, and times of day that have a name. */
static bool _word(const char *text, const struct tm *today, struct tm *when, bool *is_clock)
{
	static const struct {
		const char *name;
		int hour, days;
		bool is_clock;
	} words[] = {
		{ "today", 0, 0, false }, { "tomorrow", 0, 1, false }, { "midnight", 0, 0, true },
		{ "noon", 12, 0, true }, { "teatime", 16, 0, true }, { "fika", 15, 0, true },
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strcasecmp(text, words[i].name))
			continue;
		_set_date(when, today->tm_year + 1900, today->tm_mon + 1,
			  today->tm_mday + words[i].days);
		_set_clock(when, words[i].hour, 0, 0);
		*is_clock = words[i].is_clock;
		return true;
	}
	return false;
}

/* Seconds since 1970 of a local time; a day that the month does not have is none. */
static bool _local_seconds(struct tm *when, bool checked, time_t *seconds)
{
	int month = when->tm_mon;

	when->tm_isdst = -1;
	*seconds = mktime(when);
	return !checked || (when->tm_mon == month);
}

/* @SECONDS since 1970, in which a submit host passes on what its user wrote. */
static bool _is_unix(const char *text, time_t *seconds)
{
	size_t digits = _count_digits(text);

	if (!digits || (digits > 11) || text[digits])
		return false;
	*seconds = 0;
	for (size_t i = 0; i < digits; i++)
		*seconds = *seconds * 10 + (text[i] - '0');
	return true;
}

/* The time that text names, in the process's own time zone. */
static bool _seconds(const char *text, time_t now, time_t *seconds)
{
	struct tm today, when;
	bool is_clock = false;

	if (text[0] == '@')
		return _is_unix(text + 1, seconds);
	if (!strcasecmp(text, "now")) {
		*seconds = now;
		return true;
	}
	if (!strncasecmp(text, "now+", 4)) {
		if (!_count(text + 4, seconds))
			return false;
		*seconds += now;
		return true;
	}
	if (!localtime_r(&now, &today))
		return false;
	if (_word(text, &today, &when, &is_clock)) {
		_local_seconds(&when, false, seconds);
	} else {
		_set_date(&when, today.tm_year + 1900, today.tm_mon + 1, today.tm_mday);
		is_clock = _clock(text, &when);
		if (!is_clock && !_iso_date(text, &when) && !_us_date(text, &today, &when))
			return false;
		if (!_local_seconds(&when, !is_clock, seconds))
			return false;
	}
	/* A time of day is the next one to come. */
	if (is_clock && (*seconds <= now)) {
		when.tm_mday++;
		_local_seconds(&when, false, seconds);
	}
	return true;
}

extern energy_deadline_t energy_deadline(const char *text, time_t now, time_t *seconds)
{
	if ((strnlen(text, ENERGY_OPTION_BYTES) >= ENERGY_OPTION_BYTES) || !_seconds(text, now, seconds))
		return ENERGY_DEADLINE_NO_TIME;
	if (*seconds <= now)
		return ENERGY_DEADLINE_PASSED;
	return (*seconds - now < ENERGY_MAX_DEADLINE_SECONDS) ? ENERGY_DEADLINE_AHEAD :
								 ENERGY_DEADLINE_TOO_FAR;
}

extern bool energy_is_deadline(const char *text)
{
	time_t seconds;

	return energy_deadline(text, time(NULL), &seconds) != ENERGY_DEADLINE_NO_TIME;
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
