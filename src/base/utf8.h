/* UTF-8 at the edge of a stream. */
#ifndef HEARTH_BASE_UTF8_H
#define HEARTH_BASE_UTF8_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Number of leading bytes of `text` that end on a character boundary: at most 3 bytes of an unfinished
 * character are left out. Invalid bytes count as complete (hearth_utf8_append repairs them). */
size_t hearth_utf8_complete(const char *text, size_t len);
/* The character that a text begins with; returns its bytes. 0: it begins with none. */
size_t hearth_utf8_decode(const char *text, size_t len, uint32_t *code);
bool hearth_utf8_valid(const char *text, size_t len);
/* Appends text, with U+FFFD for each invalid byte sequence, and keeps a NUL behind it. */
bool hearth_utf8_append(struct hearth_buf *out, const char *text, size_t len);

#endif
