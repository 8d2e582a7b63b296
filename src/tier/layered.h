/* Two backing tiers as one: what is near (a disk), and what lies behind it (a store that boxes share).
 *
 * Items are put into both and read from the near one while it has them. Threads: those of tier/backing.h. */
#ifndef HEARTH_TIER_LAYERED_H
#define HEARTH_TIER_LAYERED_H

#include "tier/backing.h"

/* Takes both; destroying it destroys them. Both have the same key, or neither has one: `near->key` is theirs. Errors:
 * NOMEM (both stay the caller's). */
int hearth_layered_create(struct hearth_backing *near, struct hearth_backing *far, struct hearth_backing **out);

#endif
