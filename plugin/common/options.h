/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the user may say about energy: names in the job control environment, and their values. */
#ifndef ENERGY_OPTIONS_H
#define ENERGY_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#define ENERGY_ENTRY_DECISION "ENERGY_DECISION"
#define ENERGY_ENTRY_MODE "ENERGY_MODE"
#define ENERGY_ENTRY_MAX_SLOWDOWN "ENERGY_MAX_SLOWDOWN"
#define ENERGY_ENTRY_DEADLINE "ENERGY_DEADLINE"
#define ENERGY_ENTRY_QUIET "ENERGY_QUIET"

#define ENERGY_OPTION_BYTES 64

/* off, observe, balanced or saver. */
extern bool energy_is_mode(const char *text);

/*
 * 0 to 200, with decimals and a '%' if wanted.
 * number - ENERGY_OPTION_BYTES that get it without the '%'
 */
extern bool energy_is_slowdown(const char *text, char *number);

/*
 * A time as sbatch writes one: HH:MM[:SS][AM|PM], YYYY-MM-DD[THH:MM[:SS]], MMDD[YY],
 * MM/DD[/YY][-HH:MM[:SS]] (or with dots), now+COUNT[UNIT], today, tomorrow, midnight, noon, teatime.
 */
extern bool energy_is_deadline(const char *text);

/*
 * Whether an entry NAME=VALUE would reach the nodes' hooks as the decision, or looks so much like it
 * that nobody but a forger sends it: any case, blanks around the name, prefixes of SPANK.
 */
extern bool energy_is_decision_entry(const char *entry);

#endif
