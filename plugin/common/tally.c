/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "tally.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const names[ENERGY_NUM_EVENTS] = {
	[ENERGY_EVENT_ABSENT] = "daemon absent",
	[ENERGY_EVENT_LATE] = "answer late",
	[ENERGY_EVENT_BROKEN] = "answer cut off",
	[ENERGY_EVENT_GARBAGE] = "answer malformed",
	[ENERGY_EVENT_REFUSED] = "refused",
	[ENERGY_EVENT_NOT_ASKED] = "not asked after failures",
	[ENERGY_EVENT_TOO_LONG] = "request too long",
	[ENERGY_EVENT_NO_MEMORY] = "out of memory",
	[ENERGY_EVENT_FOREIGN_PARTITION] = "partition against the user's choice not applied",
	[ENERGY_EVENT_PARTITION_KEPT] = "order of partitions kept",
	[ENERGY_EVENT_FOREIGN_COUNT] = "number of GPUs that was not offered not applied",
	[ENERGY_EVENT_STRIPPED] = "incoming decision entry removed",
};

extern void energy_tally_add(energy_tally_t *tally, energy_event_t event, const char *detail)
{
	pthread_mutex_lock(&tally->lock);
	tally->counts[event]++;
	if (detail[0])
		snprintf(tally->detail, sizeof(tally->detail), "%s", detail);
	pthread_mutex_unlock(&tally->lock);
}

static bool _is_due(const energy_tally_t *tally, int64_t now_milliseconds, bool always)
{
	bool counted = false;

	for (size_t i = 0; i < ENERGY_NUM_EVENTS; i++)
		counted |= (tally->counts[i] > 0);
	return counted && (always || !tally->said_before ||
			   (now_milliseconds - tally->said_at >= ENERGY_TALLY_MILLISECONDS));
}

static void _describe(const energy_tally_t *tally, char *text, size_t size)
{
	size_t used = 0;

	text[0] = '\0';
	for (size_t i = 0; i < ENERGY_NUM_EVENTS; i++) {
		int wrote;

		if (!tally->counts[i])
			continue;
		wrote = snprintf(text + used, size - used, "%s%s %" PRIu64, used ? ", " : "",
				 names[i], tally->counts[i]);
		if ((wrote < 0) || ((size_t) wrote >= size - used))
			return;
		used += (size_t) wrote;
	}
	if (tally->detail[0])
		snprintf(text + used, size - used, "; last: %s", tally->detail);
}

extern bool energy_tally_report(energy_tally_t *tally, int64_t now_milliseconds, bool always,
				char *text, size_t size)
{
	bool due;

	pthread_mutex_lock(&tally->lock);
	due = _is_due(tally, now_milliseconds, always);
	if (due) {
		_describe(tally, text, size);
		memset(tally->counts, 0, sizeof(tally->counts));
		tally->detail[0] = '\0';
		tally->said_before = true;
		tally->said_at = now_milliseconds;
	}
	pthread_mutex_unlock(&tally->lock);
	return due;
}
