/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One request and one reply over the daemon's unix socket, under one deadline for all of it. */
#ifndef ENERGY_EXCHANGE_H
#define ENERGY_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
	ENERGY_EXCHANGE_DONE,	/* bytes that end with the closing line; not yet read */
	ENERGY_EXCHANGE_ABSENT,	/* nothing listens there, or it may not be reached */
	ENERGY_EXCHANGE_LATE,	/* the deadline passed */
	ENERGY_EXCHANGE_BROKEN,	/* closed early, or more bytes than any reply has */
} energy_exchange_t;

/* Milliseconds of CLOCK_MONOTONIC. */
extern int64_t energy_now_milliseconds(void);

/*
 * Send request, receive into reply.
 * reply_length - how many bytes came, whatever the result
 * detail - what went wrong, for the log
 */
extern energy_exchange_t energy_exchange(const char *socket_path, unsigned int deadline_milliseconds,
					 const char *request, size_t request_length,
					 char *reply, size_t reply_size, size_t *reply_length,
					 char *detail, size_t detail_size);

/*
 * Send a message whose reply is not waited for, in one piece and without any wait.
 * Returns false if it is not on its way now: there is no listener, or no room.
 */
extern bool energy_exchange_notify(const char *socket_path, const char *message, size_t length);

#endif
