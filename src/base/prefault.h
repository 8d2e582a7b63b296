/* Prefaulted memory: large blocks that have been touched before.
 *
 * A block that comes fresh from the system is cleared page by page when it is first written, which takes longer than
 * reading a page of state from the file cache into it; on a virtual machine by far. So blocks that are done with are
 * kept for the next taker, up to a limit, and a thread with nothing better to do can make some ahead of time.
 *
 * Every block is memory of malloc(): its owner may free() it like any other. Threads: any. */
#ifndef HEARTH_BASE_PREFAULT_H
#define HEARTH_BASE_PREFAULT_H

#include <stdbool.h>
#include <stddef.h>

/* How much may be kept; 0 (the default): nothing, everything goes through to malloc() and free(). */
void hearth_prefault_limit(size_t bytes);

/* A block of at least `len` bytes, contents undefined; NULL: out of memory. Large ones are aligned to large pages. */
void *hearth_prefault_take(size_t len);
/* Frees a block, or keeps it. NULL is allowed. */
void hearth_prefault_give(void *block);

/* Makes one block of `len` bytes and touches it, unless blocks of that size fill the limit already. False: nothing was
 * done. */
bool hearth_prefault_make(size_t len);

#endif
