/* A far tier for model tests: items in memory, answers in random order and after random delays, and, on demand, losses
 * and failures. It outlives caches, as a directory outlives processes. */
#ifndef HEARTH_TESTS_MEMORY_FAR_H
#define HEARTH_TESTS_MEMORY_FAR_H

#include "support/random.h"
#include "tier/far.h"

struct memory_far;

/* `rng` stays the caller's. */
struct memory_far *memory_far_create(struct rng *rng);
struct hearth_far *memory_far_tier(struct memory_far *far);
/* One in `n` operations fails or loses something; 0: none. */
void memory_far_faults(struct memory_far *far, uint32_t n);
/* A crash and a new process: what was queued is lost, what is there will be found, in random order. */
void memory_far_restart(struct memory_far *far);
size_t memory_far_items(const struct memory_far *far);
/* Items that lie on a path (whose root has this digest), wholly behind `from`. */
size_t memory_far_on_path(const struct memory_far *far, struct hearth_digest root, int32_t page_tokens,
                          const struct hearth_tokens *path, int32_t from);
void memory_far_destroy(struct memory_far *far);

#endif
