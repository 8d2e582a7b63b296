/* A store full of conversations, for measurements: an engine that computes nothing, tiers that keep no bytes, and
 * conversations whose tokens are made again whenever they are needed, so that a million pages take their nodes and
 * tokens and little else. */
#ifndef HEARTH_BENCH_WORLD_H
#define HEARTH_BENCH_WORLD_H

#include "cache/cache.h"
#include "cache/store.h"

struct conversation {
    uint64_t seed;                 /* of its own tokens */
    int32_t parent;                /* whose beginning it shares; -1: a system prompt */
    int32_t fork, n;               /* it leaves the parent at `fork`; its tokens in all */
    uint32_t talk;                 /* as the policy knows it … */
    struct hearth_digest talk_end; /* … and where its last turn ended */
};

enum world_backing { WORLD_RAM, WORLD_COPIED, WORLD_BACKING, WORLD_BACKINGS };
extern const char
    *const world_backing_names[WORLD_BACKINGS]; /* in RAM alone; there and in the backing tier; only there */

struct world_params {
    enum hearth_engine_class memory_class;
    int32_t page_tokens;
    size_t pages;
    enum world_backing backing;
};

struct world {
    struct world_params params;
    struct hearth_engine *engine;
    struct hearth_ram *ram;
    struct hearth_backing *backing;
    struct hearth_cache *cache;
    struct hearth_live live; /* what captures go through */
    struct conversation *conversations;
    size_t count, cap;
    uint64_t random;
};

/* Stores conversations until there are so many pages. */
void world_open(struct world *world, const struct world_params *params);
void world_close(struct world *world);
uint64_t world_random(struct world *world);

/* The first n tokens of a conversation and `fresh` that nobody has seen. */
void world_tokens(struct world *world, const struct conversation *conversation, int32_t n, int32_t fresh,
                  struct hearth_tokens *out);
/* A random conversation of at least n tokens; NULL: there is none. */
struct conversation *world_pick(struct world *world, int32_t n);
/* The live sequence, which is empty, now holds these tokens. */
void world_hold(struct world *world, const struct hearth_tokens *tokens);
/* A turn of the conversation, which ends with these tokens, some time after the last turn of any. */
void world_turn(struct world *world, struct conversation *conversation, const struct hearth_tokens *tokens);
/* Captures it wholly, the backing tier's answers included. */
void world_capture(struct world *world);
/* Deals with what the backing tier says. */
void world_settle(struct world *world);

/* ---- nothing.c ---- */

/* An engine without state: it exports a byte and imports anything. */
struct hearth_engine *nothing_engine(enum hearth_engine_class memory_class);
/* Its clock goes on. */
void nothing_pass(struct hearth_engine *engine, int64_t us);
/* A backing tier that has everything it was ever given, and keeps none of it. */
struct hearth_backing *nothing_backing(void);

#endif
