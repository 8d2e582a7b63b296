/* What the files of the cache's model test share; see cache_model_test.c. */
#ifndef HEARTH_TESTS_MODEL_CACHE_GAME_H
#define HEARTH_TESTS_MODEL_CACHE_GAME_H

#include "cache/cache.h"

#include "base/assert.h"
#include "engine/sim.h"
#include "support/memory_backing.h"
#include "support/random.h"
#include "support/shaky_ram.h"

enum { LANES_MAX = 4, CONVERSATIONS = 5, STEPS_PER_GAME = 500, CHUNK_MAX = 96, KNOWN_MAX = 4096, ATTEMPTS_MAX = 64 };

/* A request on a lane. `all` is the prompt and, behind it, the reply so far; the lane's sequence holds a prefix. */
struct flight {
    bool active;
    int conversation;
    struct hearth_tokens all;
    uint32_t reply_left;
};

struct game {
    struct rng rng;
    uint64_t number, step;
    struct hearth_sim_params sim;
    struct hearth_engine *engine;
    struct hearth_sampler *greedy;
    struct hearth_ram *ram;
    struct hearth_cache_params params;
    struct hearth_cache *cache;
    struct hearth_live lives[LANES_MAX];
    struct hearth_live *live_list[LANES_MAX];
    struct flight flights[LANES_MAX];
    struct hearth_tokens system, histories[CONVERSATIONS];
    bool roomy, faults, salted;
    bool windows_stay;              /* for long enough to be stored whole */
    struct memory_backing *backing; /* NULL: RAM only */
    struct memory_backing *far;     /* behind it, where two tiers are layered; NULL: there is one */
    uint32_t alphabet;
    struct hearth_digest known_salt[KNOWN_MAX];
    struct hearth_tokens known[KNOWN_MAX]; /* roomy: every token list ever captured */
    size_t known_count;
    struct hearth_digest seen_salt[KNOWN_MAX];
    struct hearth_tokens seen[KNOWN_MAX]; /* roomy: and every one that was captured in part */
    size_t seen_count;
};

/* What all games did, so that a test that does nothing is noticed. */
struct totals {
    uint64_t requests, tokens_sampled, prompt_tokens, resumed_tokens, backing_tokens, full, restarts, copies, how[16],
        failures, no_cells, evicted, windowed, windowed_exactly, captures, pinned, forgets, forgotten_tokens;
    struct hearth_digest plans; /* all plans, chained: two builds that plan alike print the same */
};
extern struct totals totals;

/* Conversations take turns with salts in salted games. */
static inline struct hearth_digest game_salt(const struct game *g, int conversation) {
    return g->salted ? (struct hearth_digest){.lo = (uint64_t)conversation % 2, .hi = 7} : (struct hearth_digest){0};
}

/* Waits until all that was in the backing tiers at the last restart has been found. */
void game_find_all(struct game *g);
/* A sequence is about to be captured, perhaps in part. */
void game_note_seen(struct game *g, const struct hearth_live *live);
/* Pins something, or expects it back. */
void game_pin(struct game *g);
/* Forgets something, and checks what is left. */
void game_forget(struct game *g);

#endif
