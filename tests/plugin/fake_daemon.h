/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A server on a unix socket of its own that behaves well or badly. */
#ifndef ENERGY_FAKE_DAEMON_H
#define ENERGY_FAKE_DAEMON_H

#include <stddef.h>

typedef enum {
	DAEMON_ANSWERS,
	DAEMON_ANSWERS_BEFORE_READING,
	DAEMON_ANSWERS_AND_STAYS,	/* leaves the connection open after the reply */
	DAEMON_NEVER_ANSWERS,
	DAEMON_NEVER_READS,		/* and so the request does not fit the socket */
	DAEMON_NEVER_ACCEPTS,		/* its backlog is full */
	DAEMON_TRICKLES,		/* one byte in 10 ms */
	DAEMON_CLOSES_AT_ONCE,
	DAEMON_POURS,			/* sends without end */
} behaviour_t;

typedef struct fake_daemon fake_daemon_t;

/* reply is sent as it is. */
extern fake_daemon_t *fake_daemon_start(behaviour_t behaviour, const char *reply, size_t length);
extern const char *fake_daemon_socket(const fake_daemon_t *daemon);
extern int fake_daemon_num_requests(fake_daemon_t *daemon);
extern const char *fake_daemon_last_request(const fake_daemon_t *daemon);
extern void fake_daemon_stop(fake_daemon_t *daemon);

#endif
