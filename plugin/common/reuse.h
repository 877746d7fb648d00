/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Answers that the daemon allows to be given again, for a moment, to the very same request.
 *
 * A script that submits equal jobs in a loop would wait for the same decision each time. A reply with
 * reuse_milliseconds is kept for so long, with the request that it answers: byte for byte, user and all.
 * With reuse_names, it answers requests that differ in the job's name alone too: all that a name decides is
 * whose earlier runs are looked at, and reuse_names has a bit for each of the user's names that have some.
 * Bit CRC-32 modulo 1024 of a name is its own; another name with the same bit is asked about for nothing.
 * Each job still gets a decision id of its own, and the daemon is notified of it without a wait.
 */
#ifndef ENERGY_REUSE_H
#define ENERGY_REUSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reply.h"

#define ENERGY_REUSE_ENTRIES 32
#define ENERGY_REUSE_REQUEST_BYTES 2048		/* a longer request is asked about each time */

/* Keep a reply for as long as it says, counted from asked_at. One that cannot be given again is left out. */
extern void energy_reuse_keep(const char *socket_path, const char *request, size_t length,
			      const energy_reply_t *reply, int64_t asked_at_milliseconds);

/*
 * Answer a request from what is kept, under a new decision id of which the daemon has been notified.
 * Returns false where the daemon must be asked: nothing is kept, or it could not be notified at once.
 */
extern bool energy_reuse_answer(const char *socket_path, const char *request, size_t length,
				int64_t now_milliseconds, energy_reply_t *reply);

/* Keep nothing: the daemon has failed. */
extern void energy_reuse_forget(void);

#endif
