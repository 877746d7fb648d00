/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "breaker.h"

#include <limits.h>

extern bool energy_breaker_allows(energy_breaker_t *breaker, unsigned int max_failures,
				  unsigned int pause_milliseconds, int64_t now_milliseconds)
{
	bool allowed = true;

	pthread_mutex_lock(&breaker->lock);
	if (breaker->failures >= max_failures) {
		allowed = (now_milliseconds >= breaker->closed_until);
		/* This caller is the probe; the others keep out until its result is known. */
		if (allowed)
			breaker->closed_until = now_milliseconds + pause_milliseconds;
	}
	pthread_mutex_unlock(&breaker->lock);
	return allowed;
}

extern void energy_breaker_result(energy_breaker_t *breaker, bool answered,
				  unsigned int max_failures, unsigned int pause_milliseconds,
				  int64_t now_milliseconds)
{
	pthread_mutex_lock(&breaker->lock);
	if (answered) {
		breaker->failures = 0;
	} else {
		if (breaker->failures < UINT_MAX)
			breaker->failures++;
		if (breaker->failures >= max_failures)
			breaker->closed_until = now_milliseconds + pause_milliseconds;
	}
	pthread_mutex_unlock(&breaker->lock);
}
