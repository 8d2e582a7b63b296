/* The RAM tier, failing on demand. */
#ifndef HEARTH_TESTS_SHAKY_TIER_H
#define HEARTH_TESTS_SHAKY_TIER_H

#include "support/random.h"
#include "tier/tier.h"

struct shaky_tier {
    struct hearth_tier base;
    struct hearth_tier *ram; /* what holds the blobs; the caller's to destroy */
    struct rng *rng;
    uint32_t once_in; /* 0: never fails */
};

void shaky_tier_init(struct shaky_tier *shaky, struct rng *rng);

#endif
