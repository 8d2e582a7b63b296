/* Turns of talks. A talk is named by the digest of all whole blocks of its last turn; the next turn begins with them,
 * whether they are still stored or not. So the digests of a prompt's blocks are looked up, from its end backwards:
 * those of stored pages are known, those behind them are chained. A talk has no second name where others begin alike: a
 * new conversation behind a shared head is no next turn of an earlier one. It leaves that one, which is learnt, too:
 * where histories are summed up or rewritten, what was left is not needed again.
 *
 * Two turns may begin from one: the first to end is the talk's next turn, the other one begins a talk of its own. */
#include "cache/talk.h"

#include "cache/backing.h"
#include "cache/children.h"

#include <math.h>

#define CHILDREN_LOOKED 8
#define NAME_BLOCKS 2 /* blocks from the end of the prompt back to the second name of its talk */

/* Chains the digests of the tokens' whole blocks, of which the path holds some, and returns the digest of all of them.
 * `*mid`: the digest of the first `mid_at` tokens, or zero; `*found`: the last talk that is named by the digest of a
 * block that is not stored. */
static struct hearth_digest chain(const struct hearth_cache *cache, const struct hearth_path *path,
                                  struct hearth_digest salt, const struct hearth_tokens *tokens, size_t mid_at,
                                  struct hearth_digest *mid, uint32_t *found) {
    const size_t block = (size_t)cache->tree.page_tokens;
    struct hearth_digest end = hearth_cache_root_digest(cache, salt);
    size_t at = 0;
    *mid = (struct hearth_digest){0};
    *found = HEARTH_TALK_NONE;
    for (size_t i = 0; i < path->n; i++) {
        const struct hearth_page *page = path->pages[i];
        size_t p1 = (size_t)(page->p0 + page->len);
        if (p1 % block == 0 && p1 <= (size_t)path->matched) {
            end = page->end.key;
            at = p1;
            *mid = at == mid_at ? end : *mid;
        }
    }
    while (at + block <= tokens->n) {
        end = hearth_record_next(end, tokens->v + at, block);
        at += block;
        *mid = at == mid_at ? end : *mid;
        uint32_t talk = hearth_returns_find(cache->returns, end);
        *found = talk != HEARTH_TALK_NONE ? talk : *found;
    }
    return end;
}

/* The talk with a last turn that the prompt begins with; of several, the longest. */
static uint32_t find(const struct hearth_cache *cache, const struct hearth_path *path,
                     const struct hearth_cache_prompt *prompt) {
    uint32_t found;
    struct hearth_digest mid;
    const struct hearth_tokens tokens = {.v = (hearth_token *)(uintptr_t)prompt->tokens,
                                         .n = prompt->n}; /* not changed */
    (void)chain(cache, path, prompt->salt, &tokens, 0, &mid, &found);
    for (size_t i = path->n; i-- > 0 && found == HEARTH_TALK_NONE;) {
        const struct hearth_page *page = path->pages[i];
        int32_t p1 = page->p0 + page->len;
        if (p1 % cache->tree.page_tokens == 0 && p1 == hearth_path_end(path, i)) {
            found = hearth_returns_find(cache->returns, page->end.key);
        }
    }
    return found;
}

/* A turn of no known talk leaves the talk from which its beginning comes. */
static void leave(struct hearth_cache *cache, const struct hearth_live *live, const struct hearth_path *path) {
    const uint32_t left = path->n > 0 ? path->pages[path->n - 1]->item.talk : HEARTH_TALK_NONE;
    if (live->talk == HEARTH_TALK_NONE && left != HEARTH_TALK_NONE) {
        hearth_returns_left(cache->returns, left, live->began_us);
    }
}

/* Learns where the turn leaves the path of the last turn, if that is known: a path that ends because pages are missing
 * tells nothing. */
static void learn_cut(struct hearth_cache *cache, const struct hearth_live *live, const struct hearth_path *path) {
    if (live->talk == HEARTH_TALK_NONE || path->n == 0) {
        return;
    }
    const struct hearth_page *last = path->pages[path->n - 1], *child = NULL;
    bool known =
        path->matched >= hearth_returns_talk(cache->returns, live->talk)->end || path->matched < last->p0 + last->len;
    for (int i = 0; !known && i < CHILDREN_LOOKED && (child = hearth_children_next(last, child)) != NULL; i++) {
        known = child->item.talk == live->talk && child->p0 == path->matched;
    }
    if (known) {
        hearth_returns_cut(cache->returns, live->talk, path->matched);
    }
}

void hearth_talk_begin(struct hearth_cache *cache, struct hearth_live *live, const struct hearth_cache_prompt *prompt,
                       const struct hearth_path *path) {
    live->awaits = HEARTH_AWAITS_UNKNOWN;
    live->began_us = cache->engine->ops->now_us(cache->engine);
    live->lasted_us = 0;
    live->prompt_tokens = prompt->n;
    live->talk = HEARTH_TALK_NONE;
    if (cache->policy->worth) {
        live->talk = find(cache, path, prompt);
        live->talk_shared =
            live->talk != HEARTH_TALK_NONE ? hearth_returns_talk(cache->returns, live->talk)->shared : path->matched;
        leave(cache, live, path);
        learn_cut(cache, live, path);
        live->talk_end = hearth_returns_begin(cache->returns, live->talk, live->began_us);
    }
}

/* The talk of the turn, unless another turn has continued that talk meanwhile. */
static uint32_t talk_of(const struct hearth_cache *cache, const struct hearth_live *live) {
    return hearth_returns_find(cache->returns, live->talk_end) == live->talk ? live->talk : HEARTH_TALK_NONE;
}

static struct hearth_talk_turn turn_of(const struct hearth_cache *cache, const struct hearth_live *live) {
    return (struct hearth_talk_turn){.began_us = live->began_us,
                                     .lasted_us = live->lasted_us,
                                     .awaits = live->awaits,
                                     .pages = live->prompt_tokens / (size_t)cache->tree.page_tokens};
}

double hearth_talk_worth(const struct hearth_cache *cache, const struct hearth_live *live) {
    if (!cache->policy->worth || cache->backing) {
        return INFINITY;
    }
    const struct hearth_caps *caps = &cache->engine->caps;
    const struct hearth_talk_turn turn = turn_of(cache, live);
    const struct hearth_policy_item page = {.saved_tokens = cache->tree.page_tokens,
                                            .bytes = hearth_page_node_bytes(cache->tree.page_tokens) +
                                                     (size_t)cache->tree.page_tokens * caps->page_bytes_per_token +
                                                     HEARTH_BLOB_OVERHEAD_BYTES};
    int64_t age_us = cache->engine->ops->now_us(cache->engine) - live->began_us;
    const double rate = hearth_returns_rate_behind(cache->returns, talk_of(cache, live), &turn, age_us);
    return cache->policy->worth(&page, &cache->costs, rate);
}

/* Plays the ended turn against the orders of eviction (cache/rival.h). */
static void try(struct hearth_cache *cache, const struct hearth_live *live) {
    const struct hearth_caps *caps = &cache->engine->caps;
    struct hearth_talk *talk = hearth_returns_talk(cache->returns, live->talk);
    const int32_t n = (int32_t)live->tokens.n, both = talk->end < n ? talk->end : n;
    const size_t besides = caps->window_tokens > 0 ? (size_t)caps->window_tokens * caps->window_bytes_per_token
                           : hearth_caps_needs_snapshot(caps) ? caps->snapshot_bytes
                                                              : 0;
    hearth_returns_try(cache->returns, live->talk, both > live->talk_shared ? both - live->talk_shared : 0,
                       (double)(n - live->talk_shared) * (double)(caps->page_bytes_per_token + sizeof(hearth_token)) +
                           (double)besides,
                       (double)cache->pages.budget_bytes + (double)cache->snapshots.budget_bytes,
                       cache->engine->ops->now_us(cache->engine));
    /* where LRU decides, talks stand in its order, and not by what they were worth */
    cache->pages.valued = cache->pages.valued && hearth_returns_learns_well(cache->returns);
    talk->shared = live->talk_shared;
    talk->end = n;
}

void hearth_talk_end(struct hearth_cache *cache, struct hearth_live *live, const struct hearth_path *path) {
    if (!cache->policy->worth || live->tokens.n < (size_t)cache->tree.page_tokens) {
        return;
    }
    uint32_t other;
    const struct hearth_talk_turn turn = turn_of(cache, live);
    const size_t block = (size_t)cache->tree.page_tokens, blocks = live->prompt_tokens / block;
    struct hearth_digest names[HEARTH_TALK_NAMES];
    const size_t second = blocks > NAME_BLOCKS ? (blocks - NAME_BLOCKS) * block : 0;
    names[0] = chain(cache, path, live->salt, &live->tokens, second > (size_t)live->talk_shared ? second : 0, &names[1],
                     &other);
    live->talk = hearth_returns_turn(cache->returns, talk_of(cache, live), names, &turn,
                                     cache->engine->ops->now_us(cache->engine));
    live->talk_end = names[0];
    if (live->talk != HEARTH_TALK_NONE) {
        try(cache, live);
    }
    hearth_cache_store_turn(cache, path, live->talk);
    hearth_learnt_turn(cache);
}
