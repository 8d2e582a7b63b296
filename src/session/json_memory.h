/* jansson's memory: refusals are noted (base/memory.h), and what is parsed or printed is whole, or is not. */
#ifndef HEARTH_SESSION_JSON_MEMORY_H
#define HEARTH_SESSION_JSON_MEMORY_H

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Gives jansson the allocator. It may be called again, and at any time: blocks are those of malloc() and free().
 * Threads: before others use jansson. */
void hearth_json_watch_memory(void);

/* json_loadb(), except that the first refusal ends it: jansson itself would go on without the bytes that it could not
 * store, and stops the process at what it then reads.
 * Errors: NULL, with json_error_out_of_memory in `error` (which may be NULL) for a refusal.
 * Threads: any. */
json_t *hearth_json_load(const char *text, size_t len, size_t flags, json_error_t *error);

/* Fills `error` (which may be NULL) as a parser's that was refused memory. Threads: any. */
void hearth_json_fill_nomem(json_error_t *error);

/* Appends a value's text. jansson ignores that the name of a member found no room: this does not.
 * Errors: false, and `out` as before: out of memory, or something that is no value. Threads: any. */
bool hearth_json_print(const json_t *value, size_t flags, struct hearth_buf *out);

/* json_dumps(), likewise. Owns: the text is the caller's. NULL: out of memory. Threads: any. */
char *hearth_json_dumps(const json_t *value, size_t flags);

/* A string; bytes that are not UTF-8 become U+FFFD. NULL: out of memory. */
json_t *hearth_json_text(const char *text, size_t len);

#ifdef __cplusplus
}
#endif

#endif
