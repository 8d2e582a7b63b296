/* A backing tier for model tests: items in memory, answers in random order and after random delays, and, on demand,
 * losses and failures. It outlives caches, as a directory outlives processes. */
#ifndef HEARTH_TESTS_MEMORY_BACKING_H
#define HEARTH_TESTS_MEMORY_BACKING_H

#include "support/random.h"
#include "tier/backing.h"

struct memory_backing;

/* `rng` stays the caller's. */
struct memory_backing *memory_backing_create(struct rng *rng);
struct hearth_backing *memory_backing_tier(struct memory_backing *backing);
/* One in `n` operations fails or loses something; 0: none. */
void memory_backing_faults(struct memory_backing *backing, uint32_t n);
/* A crash and a new process: what was queued is lost, what is there will be found, in random order. */
void memory_backing_restart(struct memory_backing *backing);
/* Whether something that was there at the restart is still to be found. */
bool memory_backing_scanning(const struct memory_backing *backing);
/* Items that lie on a path (whose root has this digest), wholly behind `from`. */
size_t memory_backing_on_path(const struct memory_backing *backing, struct hearth_digest root, int32_t page_tokens,
                              const struct hearth_tokens *path, int32_t from);
void memory_backing_destroy(struct memory_backing *backing);

#endif
