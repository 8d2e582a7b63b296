/* Random numbers for tests: a seed from HEARTH_SEED (printed, so that a failure can be repeated) and a small
 * generator. */
#ifndef HEARTH_TESTS_RANDOM_H
#define HEARTH_TESTS_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct rng {
    uint64_t state;
};

static inline uint64_t rng_next(struct rng *rng) {
    uint64_t x = rng->state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* A number in [0, below); 0 when below is 0. */
static inline uint32_t rng_below(struct rng *rng, uint32_t below) {
    return below == 0 ? 0 : (uint32_t)(rng_next(rng) >> 32) % below;
}

/* A number in [low, high]. */
static inline int32_t rng_range(struct rng *rng, int32_t low, int32_t high) {
    return low + (int32_t)rng_below(rng, (uint32_t)(high - low) + 1);
}

/* True once in `n` times. */
static inline int rng_once_in(struct rng *rng, uint32_t n) {
    return rng_below(rng, n) == 0;
}

static inline uint64_t env_number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

/* HEARTH_SEED, or the test's own; printed either way. */
static inline uint64_t seed_announced(uint64_t otherwise) {
    uint64_t seed = env_number("HEARTH_SEED", otherwise);
    printf("HEARTH_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

#endif
