/* SPDX-License-Identifier: GPL-2.0-or-later */
/* After several failures in a row the daemon is not asked for a while; then one caller tries, the others wait. */
#ifndef ENERGY_BREAKER_H
#define ENERGY_BREAKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
	pthread_mutex_t lock;
	unsigned int failures;		/* in a row */
	int64_t closed_until;		/* milliseconds; it is not asked before */
} energy_breaker_t;

#define ENERGY_BREAKER_INITIALIZER { PTHREAD_MUTEX_INITIALIZER, 0, 0 }

/* Whether to ask now. Every true must be followed by energy_breaker_result(). */
extern bool energy_breaker_allows(energy_breaker_t *breaker, unsigned int max_failures,
				  unsigned int pause_milliseconds, int64_t now_milliseconds);

extern void energy_breaker_result(energy_breaker_t *breaker, bool answered,
				  unsigned int max_failures, unsigned int pause_milliseconds,
				  int64_t now_milliseconds);

#endif
