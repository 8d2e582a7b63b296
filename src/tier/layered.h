/* Two backing tiers as one: a disk, and behind it a store that boxes share.
 *
 * Items are put into both and read from the disk while it has them. Threads: those of tier/backing.h. */
#ifndef HEARTH_TIER_LAYERED_H
#define HEARTH_TIER_LAYERED_H

#include "tier/backing.h"

/* Takes both tiers and destroys them with itself. Both must have the same key, or none: `disk->key`. Errors: NOMEM
 * (both stay the caller's). */
int hearth_layered_create(struct hearth_backing *disk, struct hearth_backing *remote, struct hearth_backing **out);

#endif
