/* Conversations for measurements. Design in world.h.
 *
 * A few system prompts; on each, conversations of 2k to 128k tokens, longer ones rarer by count but not by tokens; a
 * quarter of them branch off an earlier one somewhere. Where the model needs snapshots, one is taken every thousand or
 * two thousand tokens, as turns would. A token is a function of its conversation's seed and its position. */
#include "world.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define SYSTEM_TOKENS 8000
#define SYSTEMS 16
#define LONGEST_TOKENS 132000
#define SHORTEST_TOKENS 2000
#define VOCABULARY 100000
#define TURN_TOKENS 1500
#define ACTIVE 16
#define ROOM_BYTES ((size_t)1 << 50)

const char *const world_backing_names[WORLD_BACKINGS] = {"ram", "copied", "backing"};

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

uint64_t world_random(struct world *world) {
    return mix(world->random += 0x9E3779B97F4A7C15u);
}

static void fill(hearth_token *out, uint64_t seed, int32_t from, int32_t to) {
    for (int32_t i = from; i < to; i++) {
        out[i] = (hearth_token)(mix(seed + (uint64_t)i * 0x9E3779B97F4A7C15u) % VOCABULARY);
    }
}

void world_tokens(struct world *world, const struct conversation *conversation, int32_t n, int32_t fresh,
                  struct hearth_tokens *out) {
    out->n = 0;
    HEARTH_ASSERT(n <= conversation->n && hearth_tokens_reserve(out, (size_t)(n + fresh)));
    int32_t end = n;
    for (const struct conversation *at = conversation; end > 0;) {
        int32_t from = at->fork < end ? at->fork : end;
        fill(out->v, at->seed, from, end);
        end = from;
        at = at->parent >= 0 ? &world->conversations[at->parent] : NULL;
    }
    fill(out->v, world_random(world), n, n + fresh);
    out->n = (size_t)(n + fresh);
}

struct conversation *world_pick(struct world *world, int32_t n) {
    for (int tries = 0; tries < 100000; tries++) {
        struct conversation *c = &world->conversations[world_random(world) % world->count];
        if (c->n >= n) {
            return c;
        }
    }
    return NULL;
}

void world_settle(struct world *world) {
    while (hearth_cache_poll(world->cache, 1024) > 0) {
    }
}

static void add_snapshot(struct world *world, int32_t pos) {
    struct hearth_live *live = &world->live;
    struct hearth_buf bytes = {0};
    HEARTH_ASSERT(hearth_buf_append(&bytes, "", 1));
    struct hearth_blob *blob = hearth_ram_put(world->ram, &bytes, NULL);
    world->cache->snapshots.used_bytes += hearth_blob_bytes(blob); /* as hearth_cache_snapshot() counts it */
    live->snapshots[live->snapshot_count++] =
        (struct hearth_live_snapshot){.pos = pos, .blob = blob, .kind = HEARTH_SNAPSHOT_REPLY_END};
}

void world_hold(struct world *world, const struct hearth_tokens *tokens) {
    struct hearth_live *live = &world->live;
    HEARTH_ASSERT(hearth_live_append(live, tokens->v, tokens->n));
    int32_t n = (int32_t)tokens->n, step = n / (HEARTH_LIVE_SNAPSHOTS_MAX - 1);
    step = step > TURN_TOKENS ? step : TURN_TOKENS;
    for (int32_t at = step; hearth_caps_needs_snapshot(&world->engine->caps) && at < n; at += step) {
        add_snapshot(world, at);
    }
}

void world_capture(struct world *world) {
    while (hearth_cache_capture(world->cache, &world->live, 1 << 20) != HEARTH_CAPTURE_DONE) {
        world_settle(world);
    }
    world_settle(world);
}

/* Up to two minutes for all of them together, shorter times as often as longer ones; a reply takes up to a minute. */
void world_turn(struct world *world, struct conversation *conversation, const struct hearth_tokens *tokens) {
    struct hearth_live *live = &world->live;
    nothing_pass(world->engine, INT64_C(1000000) << world_random(world) % 8);
    live->began_us = world->engine->ops->now_us(world->engine);
    nothing_pass(world->engine, INT64_C(1000000) << world_random(world) % 7);
    live->lasted_us = world->engine->ops->now_us(world->engine) - live->began_us;
    live->prompt_tokens = tokens->n;
    live->awaits = world_random(world) % 4 == 0 ? HEARTH_AWAITS_USER : HEARTH_AWAITS_TOOL;
    live->talk = conversation->talk;
    live->talk_end = conversation->talk_end;
    world_hold(world, tokens);
    world_capture(world);
    conversation->talk = live->talk;
    conversation->talk_end = live->talk_end;
    hearth_live_clear(world->cache, live);
}

/* ---- building ---- */

static size_t pages_of(const struct world *world) {
    return world->cache->tree.page_count;
}

static struct conversation *add(struct world *world) {
    if (world->count == world->cap) {
        world->cap = world->cap > 0 ? 2 * world->cap : 256;
        world->conversations = realloc(world->conversations, world->cap * sizeof *world->conversations);
        HEARTH_ASSERT(world->conversations != NULL);
    }
    struct conversation *c = &world->conversations[world->count++];
    *c = (struct conversation){.seed = world_random(world), .parent = -1};
    return c;
}

/* Doubles from 2k to 128k, each as likely as the one before has tokens fewer: every length holds as many pages. */
static int32_t draw_length(struct world *world) {
    int32_t n = LONGEST_TOKENS / 64;
    uint64_t r = world_random(world) % 127;
    for (uint64_t share = 64; share > 1 && r >= share; r -= share, share /= 2) {
        n *= 2;
    }
    return n + (int32_t)(world_random(world) % (uint64_t)(n / 8));
}

static void next_conversation(struct world *world) {
    struct conversation c = *add(world);
    world->count--;
    size_t others = world->count;
    c.n = others == SYSTEMS ? LONGEST_TOKENS : draw_length(world);
    c.parent = (int32_t)(world_random(world) % SYSTEMS);
    c.fork = SYSTEM_TOKENS;
    if (others > SYSTEMS && world_random(world) % 4 == 0) {
        c.parent = SYSTEMS + (int32_t)(world_random(world) % (others - SYSTEMS));
        int32_t room = world->conversations[c.parent].n - SYSTEM_TOKENS;
        c.fork = SYSTEM_TOKENS + (int32_t)(world_random(world) % (uint64_t)room);
    }
    c.n = c.n > c.fork + SHORTEST_TOKENS ? c.n : c.fork + SHORTEST_TOKENS;
    *add(world) = c;
}

/* A conversation that is being stored. */
struct growing {
    int32_t conversation;
    struct hearth_tokens tokens; /* so far */
};

/* Its next turn, which is its last when there are enough pages. */
static void next_turn(struct world *world, struct growing *growing, bool last) {
    struct conversation *c = &world->conversations[growing->conversation];
    int32_t before = (int32_t)growing->tokens.n;
    int32_t n = before + 500 + (int32_t)(world_random(world) % (2 * TURN_TOKENS));
    n = n < c->fork ? c->fork : n;
    c->n = last && n < c->n ? n : c->n;
    n = n < c->n ? n : c->n;
    if (before < c->fork) {
        world_tokens(world, c, n, 0, &growing->tokens);
    } else {
        HEARTH_ASSERT(hearth_tokens_reserve(&growing->tokens, (size_t)(n - before)));
        fill(growing->tokens.v, c->seed, before, n);
        growing->tokens.n = (size_t)n;
    }
    world_turn(world, c, &growing->tokens);
}

/* Conversations grow a turn at a time, several at once, as on a server: so their pages lie apart in memory. */
static void grow_all(struct world *world) {
    struct growing active[ACTIVE];
    size_t count = 0;
    do {
        bool full = pages_of(world) >= world->params.pages;
        if (count < ACTIVE && count <= pages_of(world) / 500 && !full) {
            next_conversation(world);
            active[count++] = (struct growing){.conversation = (int32_t)world->count - 1};
        }
        size_t i = world_random(world) % count;
        next_turn(world, &active[i], full);
        if ((int32_t)active[i].tokens.n == world->conversations[active[i].conversation].n) {
            hearth_tokens_finish(&active[i].tokens);
            active[i] = active[--count];
        }
    } while (count > 0);
}

void world_open(struct world *world, const struct world_params *params) {
    *world = (struct world){.params = *params, .random = params->pages};
    world->engine = nothing_engine(params->memory_class);
    world->ram = hearth_ram_create();
    HEARTH_ASSERT(world->ram != NULL);
    world->backing = params->backing == WORLD_RAM ? NULL : nothing_backing();
    struct hearth_cache_params cache = {
        .page_tokens = params->page_tokens, .budget_bytes = ROOM_BYTES, .backing = world->backing};
    HEARTH_ASSERT(hearth_cache_create(world->engine, world->ram, &cache, &world->cache, NULL) == HEARTH_OK);
    hearth_live_init(&world->live, 0);
    for (int i = 0; i < SYSTEMS; i++) {
        add(world)->n = SYSTEM_TOKENS;
    }
    grow_all(world);
    /* The systems are known as parts of the others, so nobody asks for them by themselves. */
    for (int i = 0; i < SYSTEMS; i++) {
        world->conversations[i].n = 0;
    }
    if (params->backing == WORLD_BACKING) {
        hearth_cache_set_budget(world->cache, 0, 0);
        hearth_cache_set_budget(world->cache, ROOM_BYTES, 0);
    }
}

void world_close(struct world *world) {
    hearth_live_finish(world->cache, &world->live);
    hearth_cache_destroy(world->cache);
    if (world->backing) {
        world->backing->ops->destroy(world->backing);
    }
    hearth_ram_destroy(world->ram);
    world->engine->ops->destroy(world->engine);
    free(world->conversations);
}
