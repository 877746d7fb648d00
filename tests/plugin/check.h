/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The smallest thing that can run named tests and say which line failed. */
#ifndef ENERGY_CHECK_H
#define ENERGY_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                    \
	do {                                                                                \
		if (!(condition)) {                                                         \
			fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__,     \
				__func__, #condition);                                      \
			exit(1);                                                            \
		}                                                                           \
	} while (0)

#define CHECK_TEXT(actual, expected)                                                        \
	do {                                                                                \
		const char *actual_ = (actual), *expected_ = (expected);                    \
		if (!actual_ || strcmp(actual_, expected_)) {                               \
			fprintf(stderr, "%s:%d: %s: '%s' is not '%s'\n", __FILE__, __LINE__, \
				__func__, actual_ ? actual_ : "(null)", expected_);         \
			exit(1);                                                            \
		}                                                                           \
	} while (0)

#define RUN(test)                               \
	do {                                    \
		test();                         \
		printf("ok %s\n", #test);       \
		fflush(stdout);                 \
	} while (0)

#endif
