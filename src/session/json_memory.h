/* jansson's memory: refusals are noted (base/memory.h), and none of them happens in the middle of a text. */
#ifndef HEARTH_SESSION_JSON_MEMORY_H
#define HEARTH_SESSION_JSON_MEMORY_H

#include <jansson.h>
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

#ifdef __cplusplus
}
#endif

#endif
