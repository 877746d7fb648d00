/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the user may say about energy: names in the job control environment, and their values. */
#ifndef ENERGY_OPTIONS_H
#define ENERGY_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define ENERGY_ENTRY_DECISION "ENERGY_DECISION"
#define ENERGY_ENTRY_MODE "ENERGY_MODE"
#define ENERGY_ENTRY_MAX_SLOWDOWN "ENERGY_MAX_SLOWDOWN"
#define ENERGY_ENTRY_DEADLINE "ENERGY_DEADLINE"
#define ENERGY_ENTRY_QUIET "ENERGY_QUIET"
#define ENERGY_ENTRY_TRIALS "ENERGY_TRIALS"
#define ENERGY_ENTRY_REDECIDE "ENERGY_REDECIDE"
#define ENERGY_ENTRY_OPEN "ENERGY_OPEN"
#define ENERGY_ENTRY_START_BEFORE "ENERGY_START_BEFORE"
/*
 * 1 where the submitting command's stderr is a terminal: only there a line about the job is shown.
 * explain under energy-sbatch, which shows a line with figures once the job is accepted.
 */
#define ENERGY_ENTRY_TERMINAL "ENERGY_TERMINAL"
#define ENERGY_TERMINAL_IS "1"
#define ENERGY_TERMINAL_EXPLAIN "explain"

/* What energy-sbatch read of the job's script. It is for the daemon: slurmctld does not keep it. */
#define ENERGY_ENTRY_SCRIPT "ENERGY_SCRIPT"
#define ENERGY_SCRIPT_BYTES 513

#define ENERGY_OPTION_BYTES 64
#define ENERGY_MAX_DEADLINE_SECONDS (10 * 366 * 86400)

/* off, observe, balanced or saver. */
extern bool energy_is_mode(const char *text);

/* on or off. */
extern bool energy_is_switch(const char *text);

/* Up to 512 letters, digits and marks, as the features of a script are written. */
extern bool energy_is_script(const char *text);

/*
 * 0 to 200, with decimals and a '%' if wanted.
 * number - ENERGY_OPTION_BYTES that get it without the '%'
 */
extern bool energy_is_slowdown(const char *text, char *number);

typedef enum {
	ENERGY_DEADLINE_AHEAD,
	ENERGY_DEADLINE_NO_TIME,
	ENERGY_DEADLINE_PASSED,
	ENERGY_DEADLINE_TOO_FAR,
} energy_deadline_t;

/*
 * Read a time as sbatch writes one: HH:MM[:SS][AM|PM], YYYY-MM-DD[THH:MM[:SS]], MMDD[YY],
 * MM/DD[/YY][-HH:MM[:SS]] (or with dots), now+COUNT[UNIT], today, tomorrow, midnight, noon, teatime,
 * fika; or @SECONDS since 1970. A time of day, and a date without a year, are the next to come.
 * seconds - gets the time, by the process's time zone, unless it is none
 */
extern energy_deadline_t energy_deadline(const char *text, time_t now, time_t *seconds);

/* Whether text is a time at all, be it past. */
extern bool energy_is_deadline(const char *text);

/*
 * Whether an entry NAME=VALUE would reach the nodes' hooks as the decision, or looks so much like it
 * that only a forger sends it: any case, blanks around the name, prefixes of SPANK.
 */
extern bool energy_is_decision_entry(const char *entry);

#endif
