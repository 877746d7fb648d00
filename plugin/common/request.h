/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Writer of one request:
 *
 *	slurm-energy/1 VERB
 *	key=value
 *	end
 *
 * Control characters, '%', line separators and bytes that are not UTF-8 travel as %XX.
 */
#ifndef ENERGY_REQUEST_H
#define ENERGY_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENERGY_PROTOCOL "slurm-energy/1"
#define ENERGY_REQUEST_BYTES 65536

typedef struct {
	char *bytes;	/* owned by the caller */
	size_t size;
	size_t length;
	bool overflow;	/* something did not fit: the request must not be sent */
} energy_request_t;

extern void energy_request_begin(energy_request_t *request, char *bytes, size_t size,
				 const char *verb);

/* Add key=value, the value cut at a character so that no more than limit of its bytes are sent. */
extern void energy_request_text(energy_request_t *request, const char *key, const char *value,
				size_t limit);

extern void energy_request_number(energy_request_t *request, const char *key, uint64_t value);

/* Add the last line. Returns the length, 0 if the request did not fit. */
extern size_t energy_request_end(energy_request_t *request);

#endif
