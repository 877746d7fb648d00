/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Bytes that came from people or from the network, made safe to look at. */
#ifndef ENERGY_TEXT_H
#define ENERGY_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Length in bytes of the UTF-8 character at the start of text, 0 if there is none.
 * Overlong forms, surrogates and anything over U+10FFFF are not characters.
 * code_point - where its number goes
 */
extern size_t energy_utf8_width(const unsigned char *text, size_t length, uint32_t *code_point);

/* True for control characters, DEL, the C1 range and the two line separators. */
extern bool energy_is_control(uint32_t code_point);

/* Copy text into out as printable ASCII for a log line; everything else becomes '?'. */
extern void energy_printable(const char *text, size_t length, char *out, size_t size);

#endif
