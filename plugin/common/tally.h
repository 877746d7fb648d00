/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Counts what went wrong and says so at most once a minute, with the counts of what it did not say. */
#ifndef ENERGY_TALLY_H
#define ENERGY_TALLY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENERGY_TALLY_MILLISECONDS 60000

typedef enum {
	ENERGY_EVENT_ABSENT,
	ENERGY_EVENT_LATE,
	ENERGY_EVENT_BROKEN,
	ENERGY_EVENT_GARBAGE,
	ENERGY_EVENT_REFUSED,
	ENERGY_EVENT_NOT_ASKED,		/* the breaker is open */
	ENERGY_EVENT_TOO_LONG,		/* the job's own text does not fit a request */
	ENERGY_EVENT_NO_MEMORY,
	ENERGY_EVENT_FOREIGN_PARTITION,	/* the answer went against the user's own choice */
	ENERGY_EVENT_PARTITION_KEPT,	/* Slurm might have refused the job or let it wait with the answer's */
	ENERGY_EVENT_FOREIGN_COUNT,	/* the answer named a number of GPUs that was not offered */
	ENERGY_EVENT_STRIPPED,		/* a decision entry that came with the job */
	ENERGY_NUM_EVENTS
} energy_event_t;

typedef struct {
	pthread_mutex_t lock;
	bool said_before;
	int64_t said_at;	/* milliseconds */
	uint64_t counts[ENERGY_NUM_EVENTS];
	char detail[160];	/* of the last event */
} energy_tally_t;

#define ENERGY_TALLY_INITIALIZER { PTHREAD_MUTEX_INITIALIZER, false, 0, { 0 }, "" }

/* Count one event; detail may be empty. */
extern void energy_tally_add(energy_tally_t *tally, energy_event_t event, const char *detail);

/*
 * Write one line into text if something was counted and the last line is a minute old.
 * always - do not wait for the minute
 * Returns whether there is a line to log.
 */
extern bool energy_tally_report(energy_tally_t *tally, int64_t now_milliseconds, bool always,
				char *text, size_t size);

#endif
