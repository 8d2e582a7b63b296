/* Whether this thread has been refused memory. Libraries that go on after a failed allocation (jansson drops bytes and
 * members, template code takes another way) would make a wrong answer out of it; so their allocators note each refusal,
 * and the user of what they made asks here first.
 *
 *     hearth_memory_begin();
 *     ... work that calls them ...
 *     if (hearth_memory_refused()) -> HEARTH_ERR_NOMEM, and nothing of the work is kept
 *
 * The mark is one per thread, and the outermost work begins it: what runs inside only asks. */
#ifndef HEARTH_BASE_MEMORY_H
#define HEARTH_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Forgets what this thread was refused. Threads: any. */
void hearth_memory_begin(void);

/* Notes that this thread was refused memory. Threads: any. */
void hearth_memory_note(void);

/* Whether it was, since it began. Threads: any. */
bool hearth_memory_refused(void);

/* The reserve: blocks that are held for code which cannot be refused, as destructors that allocate. One of them is
 * freed for it (false: none is left); they are allocated again before the next work begins (false: there is no
 * memory, and it should not begin). Threads: any. */
bool hearth_memory_release(void);
bool hearth_memory_refill(void);

/* malloc(), calloc(), realloc() and strdup() that note it when they are refused, for code that cannot tell its callers.
 * hearth_buf, hearth_tokens and hearth_fail(HEARTH_ERR_NOMEM) note it, too. Owns: as theirs. Threads: any. */
void *hearth_memory_malloc(size_t size);
void *hearth_memory_calloc(size_t count, size_t size);
void *hearth_memory_realloc(void *block, size_t size);
char *hearth_memory_strdup(const char *text);

/* Frees a text that may hold a password, and leaves nothing of it in memory. NULL: nothing happens. Threads: any. */
void hearth_memory_wipe(char *text);

#endif
