/* Choosing a box.
 *
 * A conversation's box is the first of an order that the conversation's name gives (rendezvous hashing), of those that
 * are up and not hot: a box that is gone, or hot, moves its own conversations only. Where the trace does not say which
 * conversation a request belongs to, its first 1,024 tokens stand for it.
 *
 * Invariant: a block is in the table while a box that is told of can restore it. */
#include "replay/router.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_BLOCKS 16

struct router_block {
    struct hearth_link link; /* first */
    uint64_t boxes[HEARTH_ROUTER_WORDS];
};

const char *hearth_router_text(enum hearth_router_kind kind) {
    static const char *const texts[] = {
#define X(name, text) [HEARTH_ROUTER_##name] = text,
        HEARTH_ROUTER_TABLE(X)
#undef X
    };
    return texts[kind];
}

/* ---- what boxes hold ---- */

static uint32_t box_of(const struct hearth_router_ear *ear) {
    return (uint32_t)(ear - ear->router->ears);
}

static void stored(void *user, struct hearth_digest block, struct hearth_digest parent, bool first,
                   const hearth_token *tokens) {
    (void)parent, (void)first, (void)tokens;
    struct hearth_router_ear *ear = user;
    struct hearth_table *blocks = &ear->router->blocks;
    struct router_block *known = (struct router_block *)(void *)hearth_table_find(blocks, block);
    if (!known) {
        known = calloc(1, sizeof *known);
        if (!known) {
            return; /* the box gets no request for it */
        }
        known->link.key = block;
        if (!hearth_table_add(blocks, &known->link)) {
            free(known);
            return;
        }
    }
    known->boxes[box_of(ear) / 64] |= UINT64_C(1) << box_of(ear) % 64;
}

static bool is_empty(const uint64_t boxes[HEARTH_ROUTER_WORDS]) {
    uint64_t all = 0;
    for (int i = 0; i < HEARTH_ROUTER_WORDS; i++) {
        all |= boxes[i];
    }
    return all == 0;
}

static void removed(void *user, struct hearth_digest block) {
    struct hearth_router_ear *ear = user;
    struct hearth_table *blocks = &ear->router->blocks;
    struct router_block *known = (struct router_block *)(void *)hearth_table_find(blocks, block);
    if (!known) {
        return;
    }
    known->boxes[box_of(ear) / 64] &= ~(UINT64_C(1) << box_of(ear) % 64);
    if (is_empty(known->boxes)) {
        hearth_table_remove(blocks, &known->link);
        free(known);
    }
}

void hearth_router_forget(struct hearth_router *router, uint32_t box) {
    struct hearth_table kept = {0};
    struct hearth_link *link;
    for (size_t at = 0; (link = hearth_table_pop(&router->blocks, &at)) != NULL;) {
        struct router_block *block = (struct router_block *)(void *)link;
        block->boxes[box / 64] &= ~(UINT64_C(1) << box % 64);
        if (is_empty(block->boxes) || !hearth_table_add(&kept, link)) {
            free(block);
        }
    }
    hearth_table_finish(&router->blocks);
    router->blocks = kept;
}

const struct hearth_cache_observer *hearth_router_observer(struct hearth_router *router, uint32_t box) {
    return router->kind == HEARTH_ROUTER_PREFIX ? &router->ears[box].observer : NULL;
}

/* ---- life ---- */

void hearth_router_init(struct hearth_router *router, enum hearth_router_kind kind, uint32_t boxes,
                        int32_t page_tokens) {
    *router = (struct hearth_router){.kind = kind, .boxes = boxes, .page_tokens = page_tokens, .random = 1};
    for (uint32_t i = 0; i < boxes; i++) {
        router->ears[i] = (struct hearth_router_ear){
            .router = router, .observer = {.stored = stored, .removed = removed, .user = &router->ears[i]}};
    }
}

void hearth_router_finish(struct hearth_router *router) {
    struct hearth_link *link;
    for (size_t at = 0; (link = hearth_table_pop(&router->blocks, &at)) != NULL;) {
        free(link);
    }
    hearth_table_finish(&router->blocks);
}

/* ---- choosing ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    return x ^ x >> 32;
}

/* The boxes that are up and not hot. False: all are down. */
static bool open_boxes(const struct hearth_router *router, uint64_t open[HEARTH_ROUTER_WORDS]) {
    uint64_t running = 0, up = 0;
    for (uint32_t i = 0; i < router->boxes; i++) {
        running += router->box[i].down ? 0 : router->box[i].running;
        up += !router->box[i].down;
    }
    memset(open, 0, HEARTH_ROUTER_WORDS * sizeof *open);
    for (uint32_t i = 0; i < router->boxes; i++) {
        /* with this request, it stays within its share; the one with the fewest always does */
        const bool cool = router->box[i].running * up * 100 < (running + 1) * HEARTH_ROUTER_HOT_PERCENT;
        open[i / 64] |= (uint64_t)(!router->box[i].down && cool) << i % 64;
    }
    return up > 0;
}

static bool has(const uint64_t boxes[HEARTH_ROUTER_WORDS], uint32_t box) {
    return boxes[box / 64] >> box % 64 & 1;
}

static uint32_t least_loaded(const struct hearth_router *router, const uint64_t among[HEARTH_ROUTER_WORDS]) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < router->boxes; i++) {
        const struct hearth_router_box *box = &router->box[i], *other = &router->box[best == UINT32_MAX ? i : best];
        if (has(among, i) && (best == UINT32_MAX || box->running < other->running ||
                              (box->running == other->running && box->routed < other->routed))) {
            best = i;
        }
    }
    return best;
}

static uint64_t name_of(const struct hearth_trace_request *request, const struct hearth_tokens *tokens) {
    const size_t head = tokens->n < HEAD_BLOCKS ? tokens->n : HEAD_BLOCKS;
    return request->talk > 0 ? request->talk : hearth_checksum(tokens->v, head * sizeof *tokens->v);
}

static uint32_t own_box(const struct hearth_router *router, uint64_t name, const uint64_t among[HEARTH_ROUTER_WORDS]) {
    uint32_t best = UINT32_MAX;
    uint64_t most = 0;
    for (uint32_t i = 0; i < router->boxes; i++) {
        const uint64_t weight = mix(mix(name) + i) | 1;
        if (has(among, i) && weight > most) {
            most = weight;
            best = i;
        }
    }
    return best;
}

/* Leaves in `boxes` those that hold the most of the prompt. */
static void keep_longest(const struct hearth_router *router, const struct hearth_tokens *tokens,
                         uint64_t boxes[HEARTH_ROUTER_WORDS]) {
    const size_t page = (size_t)router->page_tokens;
    struct hearth_digest base =
        hearth_record_root((struct hearth_digest){0}, (struct hearth_digest){0}, (struct hearth_digest){0});
    for (size_t at = 0; at + page <= tokens->n; at += page) {
        base = hearth_record_next(base, tokens->v + at, page);
        const struct router_block *known = (struct router_block *)(void *)hearth_table_find(&router->blocks, base);
        uint64_t left[HEARTH_ROUTER_WORDS] = {0};
        for (int i = 0; known && i < HEARTH_ROUTER_WORDS; i++) {
            left[i] = boxes[i] & known->boxes[i];
        }
        if (is_empty(left)) {
            return;
        }
        memcpy(boxes, left, sizeof left);
    }
}

uint32_t hearth_router_choose(struct hearth_router *router, const struct hearth_trace_request *request,
                              const struct hearth_tokens *tokens) {
    uint64_t among[HEARTH_ROUTER_WORDS];
    if (!open_boxes(router, among)) {
        return UINT32_MAX;
    }
    HEARTH_ASSERT(!is_empty(among));
    switch (router->kind) {
    case HEARTH_ROUTER_AFFINITY: return own_box(router, name_of(request, tokens), among);
    case HEARTH_ROUTER_LEAST_LOADED: return least_loaded(router, among);
    case HEARTH_ROUTER_PREFIX: keep_longest(router, tokens, among); return least_loaded(router, among);
    case HEARTH_ROUTER_RANDOM: break;
    }
    uint32_t box;
    do {
        router->random = router->random * UINT64_C(6364136223846793005) + 1442695040888963407;
        box = (uint32_t)((router->random >> 33) % router->boxes);
    } while (router->box[box].down);
    return box;
}
