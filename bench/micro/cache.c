/* Match, plan, insert, evict and forget, against what is stored.
 *
 * A prompt is what a stored conversation says so far, and a turn of new tokens. It is planned again at once (warm),
 * with other conversations in between (random), and after everything was pushed out of the CPU's caches but the prompt
 * itself, which a server has just tokenised (cold). */
#include "world.h"

#include "micro.h"

#include "base/assert.h"
#include "cache/backing.h"

#include <stdlib.h>

#define NEW_TOKENS 200
#define TURN_PAGES 8
#define PARAMS "\"class\": \"%s\", \"page_tokens\": %d, \"state\": \"%s\", \"pages\": %zu"
#define PARAMS_OF(world)                                                                 \
    hearth_engine_class_text((world)->params.memory_class), (world)->params.page_tokens, \
        world_backing_names[(world)->params.backing], (world)->params.pages

enum mode { WARM, RANDOM, COLD, MODES };
static const char *const mode_names[MODES] = {"warm", "random", "cold"};

/* ---- match and plan ---- */

struct measured {
    struct micro_sample match, plan;
};

static void plan_once(struct world *world, const struct hearth_tokens *tokens, struct measured *out) {
    static const struct hearth_live idle[4];
    const struct hearth_live *const lives[] = {&idle[0], &idle[1], &idle[2], &idle[3]};
    struct hearth_cache_prompt prompt = {.tokens = tokens->v, .n = tokens->n};
    static struct hearth_plan plan;
    uint64_t start = micro_now_ns();
    HEARTH_ASSERT(hearth_cache_plan(world->cache, &prompt, lives, 4, &plan));
    uint64_t end = micro_now_ns();
    HEARTH_ASSERT(plan.matched == (int32_t)tokens->n - NEW_TOKENS);
    HEARTH_ASSERT(plan.resume > 0 || world->params.memory_class != HEARTH_ENGINE_PAGES);
    if (out) {
        micro_add(&out->plan, (double)(end - start));
    }
}

static void match_once(struct world *world, const struct hearth_tokens *tokens, struct measured *out) {
    struct hearth_page *root = hearth_cache_root(world->cache, (struct hearth_digest){0}, false);
    uint64_t start = micro_now_ns();
    HEARTH_ASSERT(hearth_tree_match(root, tokens->v, tokens->n, &world->cache->scratch));
    uint64_t end = micro_now_ns();
    HEARTH_ASSERT(world->cache->scratch.matched == (int32_t)tokens->n - NEW_TOKENS);
    micro_add(&out->match, (double)(end - start));
}

static void prompts(struct micro *micro, struct world *world, int32_t n) {
    struct hearth_tokens tokens = {0};
    struct measured *measured = calloc(1, sizeof *measured);
    HEARTH_ASSERT(measured != NULL);
    for (int mode = 0; mode < MODES && world_pick(world, n - NEW_TOKENS); mode++) {
        int repetitions = micro->quick ? 1 : mode == COLD ? 31 : 301;
        for (int i = 0; i < 2 * repetitions; i++) {
            const struct conversation *c = world_pick(world, n - NEW_TOKENS);
            if (mode == COLD) {
                micro_flush(micro);
            }
            world_tokens(world, c, n - NEW_TOKENS, NEW_TOKENS, &tokens);
            if (mode == WARM) {
                plan_once(world, &tokens, NULL);
            }
            if (i % 2 == 0) {
                plan_once(world, &tokens, measured);
            } else {
                match_once(world, &tokens, measured);
            }
        }
        micro_report(micro, "match", &measured->match, PARAMS ", \"tokens\": %d, \"cpu_caches\": \"%s\"",
                     PARAMS_OF(world), n, mode_names[mode]);
        micro_report(micro, "match+plan", &measured->plan, PARAMS ", \"tokens\": %d, \"cpu_caches\": \"%s\"",
                     PARAMS_OF(world), n, mode_names[mode]);
    }
    free(measured);
    hearth_tokens_finish(&tokens);
}

/* ---- insert, evict, forget ---- */

/* A turn behind a conversation: what is stored of it is matched, then its pages are new. With it, what is evicted and
 * what is forgotten again. */
static void turns(struct micro *micro, struct world *world, int32_t n) {
    int32_t fresh = TURN_PAGES * world->params.page_tokens;
    struct hearth_tokens tokens = {0};
    static struct micro_sample insert, forget;
    for (int i = 0; i < (micro->quick ? 3 : 101) && world_pick(world, n); i++) {
        world_tokens(world, world_pick(world, n), n, fresh, &tokens);
        world_hold(world, &tokens);
        uint64_t start = micro_now_ns();
        world_capture(world);
        micro_add(&insert, (double)(micro_now_ns() - start));
        hearth_live_clear(world->cache, &world->live);
        struct hearth_cache_prompt prompt = {.tokens = tokens.v, .n = tokens.n};
        int32_t stop;
        start = micro_now_ns();
        HEARTH_ASSERT(hearth_cache_forget(world->cache, &prompt, 0, NULL, 0, &stop) == HEARTH_OK);
        micro_add(&forget, (double)(micro_now_ns() - start));
        HEARTH_ASSERT(stop < n + fresh);
        world_settle(world);
    }
    micro_report(micro, "insert", &insert, PARAMS ", \"tokens\": %d, \"new_pages\": %d", PARAMS_OF(world), n,
                 TURN_PAGES);
    micro_report(micro, "forget", &forget, PARAMS ", \"tokens\": %d, \"pages_gone\": %d", PARAMS_OF(world), n,
                 TURN_PAGES);
    hearth_tokens_finish(&tokens);
}

/* The budget shrinks by a few pages at a time. */
static void evict(struct micro *micro, struct world *world) {
    const uint64_t at_once = 16;
    static struct micro_sample sample;
    bool pages = world->params.memory_class == HEARTH_ENGINE_PAGES;
    struct hearth_cache_pool *pool = pages ? &world->cache->pages : &world->cache->snapshots;
    for (int i = 0; i < (micro->quick ? 3 : 201) && world->cache->returns->victims[pool->victims] > at_once; i++) {
        uint64_t gone = pool->evicted, start = micro_now_ns();
        while (pool->evicted < gone + at_once) {
            pool->budget_bytes = pool->used_bytes - 1;
            hearth_cache_store_shrink(world->cache);
        }
        micro_add(&sample, (double)(micro_now_ns() - start) / (double)(pool->evicted - gone));
    }
    pool->budget_bytes = (size_t)1 << 50;
    micro_report(micro, "evict", &sample, PARAMS, PARAMS_OF(world));
}

struct evicting {
    uint64_t choosing_ns, all_ns;
};

/* Evicts a page at a time down to the budget. */
static void evict_to(struct world *world, size_t budget, struct evicting *out) {
    struct hearth_cache_pool *pool = &world->cache->pages;
    while (pool->used_bytes > budget) {
        const uint64_t start = micro_now_ns();
        HEARTH_ASSERT(hearth_cache_store_victim(world->cache, pool) != NULL);
        out->choosing_ns += micro_now_ns() - start;
        pool->budget_bytes = pool->used_bytes - 1;
        hearth_cache_store_shrink(world->cache);
        out->all_ns += micro_now_ns() - start;
    }
}

/* A store that is full: what a few turns add, evicts as much. Choosing what goes, and that with, unless there is a copy
 * of it, taking it out of the tree; nanoseconds a page, of which reading the clock is some fifty. */
static void full(struct micro *micro, const struct world_params *params) {
    enum { TURNS = 16 };
    static struct micro_sample choosing, all;
    struct world world;
    struct hearth_tokens tokens = {0};
    world_open(&world, params);
    struct hearth_cache_pool *pool = &world.cache->pages;
    const size_t budget = pool->used_bytes;
    for (int i = 0; i < (micro->quick ? 3 : 101); i++) {
        const uint64_t before = pool->evicted;
        struct evicting evicting = {0};
        for (int turn = 0; turn < TURNS; turn++) {
            struct conversation *c = world_pick(&world, 1);
            world_tokens(&world, c, c->n, NEW_TOKENS * TURN_PAGES, &tokens);
            world_turn(&world, c, &tokens);
            evict_to(&world, budget, &evicting);
            pool->budget_bytes = (size_t)1 << 50;
        }
        micro_add(&choosing, (double)evicting.choosing_ns / (double)(pool->evicted - before));
        micro_add(&all, (double)evicting.all_ns / (double)(pool->evicted - before));
    }
    micro_report(micro, "choose when full", &choosing, PARAMS ", \"talks\": %zu", PARAMS_OF(&world),
                 world.cache->returns->offering[pool->victims].n);
    micro_report(micro, "evict when full", &all, PARAMS ", \"talks\": %zu", PARAMS_OF(&world),
                 world.cache->returns->offering[pool->victims].n);
    hearth_tokens_finish(&tokens);
    world_close(&world);
}

void micro_policy(struct micro *micro) {
    for (size_t pages = micro->quick ? micro->pages_max : 10000; pages <= micro->pages_max; pages *= 10) {
        for (int backing = WORLD_RAM; backing <= WORLD_COPIED; backing++) {
            const struct world_params params = {.memory_class = HEARTH_ENGINE_PAGES,
                                                .page_tokens = 256,
                                                .pages = pages,
                                                .backing = (enum world_backing)backing};
            full(micro, &params);
        }
    }
}

static void measure(struct micro *micro, const struct world_params *params) {
    static const int32_t lengths[] = {1000, 4000, 16000, 32000, 64000, 128000};
    struct world world;
    uint64_t start = micro_now_ns();
    world_open(&world, params);
    static struct micro_sample build;
    micro_add(&build, (double)(micro_now_ns() - start) / (double)params->pages);
    micro_report(micro, "build a page", &build, PARAMS, PARAMS_OF(&world));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        if (!micro->quick || lengths[i] <= 4000) {
            prompts(micro, &world, lengths[i]);
        }
    }
    turns(micro, &world, 4000);
    turns(micro, &world, 32000);
    if (params->backing != WORLD_BACKING) {
        evict(micro, &world);
    }
    world_close(&world);
}

void micro_cache(struct micro *micro) {
    static const struct world_params kinds[] = {
        {.memory_class = HEARTH_ENGINE_PAGES, .page_tokens = 256},
        {.memory_class = HEARTH_ENGINE_PAGES, .page_tokens = 256, .backing = WORLD_COPIED},
        {.memory_class = HEARTH_ENGINE_PAGES, .page_tokens = 256, .backing = WORLD_BACKING},
        {.memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT, .page_tokens = 256},
        {.memory_class = HEARTH_ENGINE_SNAPSHOT, .page_tokens = 256},
        {.memory_class = HEARTH_ENGINE_PAGES, .page_tokens = 64},
        {.memory_class = HEARTH_ENGINE_PAGES, .page_tokens = 16},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (size_t pages = 1000; pages <= micro->pages_max; pages *= 10) {
            struct world_params params = kinds[i];
            params.pages = pages;
            measure(micro, &params);
        }
    }
}
