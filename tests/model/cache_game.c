/* The part of the cache's model test that keeps and forgets; see cache_model_test.c.
 *
 * Design. A forget may stop only where something else goes on that was ever captured or is live: roomy games remember
 * all of it. Afterwards no sequence holds more of the path, no plan finds more (but the rest of a page that is shared),
 * and no item of the backing tier lies behind. */
#include "model/cache_game.h"

#include <string.h>

void game_find_all(struct game *g) {
    while (g->backing != NULL &&
           (hearth_cache_scanning(g->cache) || (g->far != NULL && memory_backing_scanning(g->far)))) {
        HEARTH_ASSERT(hearth_cache_wait(g->cache, 1));
        (void)hearth_cache_poll(g->cache, 8);
    }
    while (g->far != NULL && hearth_cache_poll(g->cache, 8) > 0) { /* what it found last */
    }
}

void game_note_seen(struct game *g, const struct hearth_live *live) {
    if (g->roomy && g->seen_count < KNOWN_MAX) {
        g->seen_salt[g->seen_count] = live->salt;
        HEARTH_ASSERT(hearth_tokens_assign(&g->seen[g->seen_count++], live->tokens.v, live->tokens.n));
    }
}

/* ---- pins ---- */

void game_pin(struct game *g) {
    int conversation = (int)rng_below(&g->rng, CONVERSATIONS);
    const struct hearth_tokens *history = &g->histories[conversation];
    struct hearth_live *live = &g->lives[rng_below(&g->rng, g->sim.lanes)];
    struct hearth_pin pins[2];
    size_t count = 0;
    if (history->n == 0) {
        return;
    }
    for (int32_t at = 0; count < 2;) {
        at += rng_range(&g->rng, 1, (int32_t)history->n);
        if (at > (int32_t)history->n) {
            break;
        }
        pins[count++] = (struct hearth_pin){.position = at, .ttl_us = rng_range(&g->rng, 1, 20000000)};
    }
    const struct hearth_cache_prompt prompt = {
        .tokens = history->v, .n = history->n, .salt = game_salt(g, conversation)};
    if (rng_once_in(&g->rng, 3)) {
        hearth_cache_expect(g->cache, &prompt, g->engine->ops->now_us(g->engine) + rng_range(&g->rng, 0, 5000000));
        live->expected_until_us = g->engine->ops->now_us(g->engine) + 1000000;
    } else {
        hearth_cache_pin(g->cache, &prompt, pins, count);
        for (size_t i = 0; i < count && rng_once_in(&g->rng, 2); i++) {
            hearth_live_pin(live, &pins[i]);
        }
    }
    totals.pinned += count;
}

/* ---- forgetting ---- */

/* Where a forget may stop at the most: what anything else has in common with the path. Only roomy games know all. */
static int32_t needed(const struct game *g, const struct hearth_tokens *path, struct hearth_digest salt, int32_t keep) {
    int32_t most = keep;
    for (size_t i = 0; i < g->seen_count; i++) {
        int32_t common = (int32_t)hearth_tokens_common(path->v, path->n, g->seen[i].v, g->seen[i].n);
        if (hearth_digest_equal(g->seen_salt[i], salt) && (size_t)common < g->seen[i].n && common > most) {
            most = common;
        }
    }
    for (uint32_t i = 0; i < g->sim.lanes; i++) {
        const struct hearth_live *live = &g->lives[i];
        int32_t common = (int32_t)hearth_tokens_common(path->v, path->n, live->tokens.v, live->tokens.n);
        bool needs = live->busy || (size_t)common < live->tokens.n;
        if (hearth_digest_equal(live->salt, salt) && needs && common > most) {
            most = common;
        }
    }
    return most;
}

/* Cuts the lists of tokens that lie on a path. */
static void cut(struct hearth_tokens *lists, const struct hearth_digest *salts, size_t count,
                const struct hearth_tokens *path, struct hearth_digest salt, size_t at) {
    for (size_t i = 0; i < count; i++) {
        size_t common = hearth_tokens_common(path->v, path->n, lists[i].v, lists[i].n);
        if (hearth_digest_equal(salts[i], salt) && common == lists[i].n && common > at) {
            lists[i].n = at;
        }
    }
}

static void check_forgotten(struct game *g, const struct hearth_tokens *path, struct hearth_digest salt, int32_t stop) {
    const struct hearth_cache_prompt prompt = {.tokens = path->v, .n = path->n, .salt = salt};
    const struct hearth_live *const *lives = (const struct hearth_live *const *)g->live_list;
    int32_t page = g->params.page_tokens;
    struct hearth_plan plan = {0};
    if (hearth_cache_plan(g->cache, &prompt, lives, g->sim.lanes, &plan) && stop < (int32_t)path->n) {
        HEARTH_ASSERT(plan.resume <= (stop + page - 1) / page * page); /* a page that holds both stays */
    }
    hearth_plan_finish(&plan);
    for (uint32_t i = 0; i < g->sim.lanes && stop < (int32_t)path->n; i++) {
        const struct hearth_live *live = &g->lives[i];
        size_t common = hearth_tokens_common(path->v, path->n, live->tokens.v, live->tokens.n);
        HEARTH_ASSERT(!hearth_digest_equal(live->salt, salt) || common <= (size_t)stop);
    }
}

void game_forget(struct game *g) {
    int conversation = (int)rng_below(&g->rng, CONVERSATIONS);
    struct hearth_tokens path = {0};
    struct hearth_digest salt = game_salt(g, conversation);
    const struct hearth_tokens *from = &g->histories[conversation];
    if (rng_once_in(&g->rng, 3)) {
        const struct hearth_live *live = &g->lives[rng_below(&g->rng, g->sim.lanes)];
        from = &live->tokens;
        salt = live->salt;
    }
    if (from->n == 0) {
        return;
    }
    HEARTH_ASSERT(hearth_tokens_assign(&path, from->v, from->n));
    int32_t keep = rng_once_in(&g->rng, 2) ? 0 : rng_range(&g->rng, 0, (int32_t)path.n), stop;
    game_find_all(g);
    const struct hearth_cache_prompt prompt = {.tokens = path.v, .n = path.n, .salt = salt};
    HEARTH_ASSERT(hearth_cache_forget(g->cache, &prompt, keep, g->live_list, g->sim.lanes, &stop) == HEARTH_OK);
    HEARTH_ASSERT(stop >= keep);
    HEARTH_ASSERT(!g->roomy || stop <= needed(g, &path, salt, keep) || g->seen_count == KNOWN_MAX);
    hearth_cache_check(g->cache);
    check_forgotten(g, &path, salt, stop);
    size_t page = (size_t)g->params.page_tokens;
    /* Where a snapshot is needed, what is behind the last one that is left goes, too. */
    bool whole = !hearth_caps_needs_snapshot(&g->engine->caps);
    cut(g->known, g->known_salt, g->known_count, &path, salt, whole ? (size_t)stop : 0);
    bool wait = g->backing != NULL && rng_once_in(&g->rng, 2);
    if (wait) {
        bool failed;
        while (hearth_cache_removing(g->cache, &failed)) {
            HEARTH_ASSERT(hearth_cache_wait(g->cache, 1));
            (void)hearth_cache_poll(g->cache, 1);
        }
        HEARTH_ASSERT(!failed || g->faults);
        const struct hearth_caps *caps = &g->engine->caps;
        struct hearth_digest root = hearth_record_root(caps->fingerprint, memory_backing_tier(g->backing)->key, salt);
        size_t left = memory_backing_on_path(g->backing, root, g->params.page_tokens, &path, stop);
        left += g->far != NULL ? memory_backing_on_path(g->far, root, g->params.page_tokens, &path, stop) : 0;
        HEARTH_ASSERT(left == 0 || g->faults);
    }
    if (wait || g->backing == NULL) { /* else a restart may come first */
        cut(g->seen, g->seen_salt, g->seen_count, &path, salt, ((size_t)stop + page - 1) / page * page);
    }
    totals.forgets++;
    totals.forgotten_tokens += path.n - (size_t)stop;
    hearth_tokens_finish(&path);
}
