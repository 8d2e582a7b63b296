/* Keeping and forgetting: what a client says about a conversation as a whole.
 *
 * Forgetting stops at the last position that something else needs, and removes everything behind it:
 *
 *   1. another path goes on from there: a child page, or the end of a page that this path leaves early
 *   2. a sequence needs it: one that is busy, or one that is idle and went another way or farther
 *   3. the caller wants the tokens before it
 *
 * Example: A = system + a1 + a2 is forgotten, B = system + b1 is stored. The stop is the end of the system prompt: a1
 * and a2 go, from the end backwards, first in live sequences, then pages with their snapshots and copies, then what the
 * backing tier holds besides (orphans and duplicates: cache/backing.c).
 *
 * A page in the middle of which it stops stays whole, because its beginning is needed. page->dead says where the
 * forgotten part begins, so that this part does not stop the next forgetting.
 *
 * Invariant: a page that begins at or behind the stop has no child but the next one of the path. */
#include "cache/backing.h"
#include "cache/children.h"
#include "cache/heads.h"

#include "base/assert.h"

/* ---- where to stop ---- */

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Where a page ends for other paths: what it holds behind that was forgotten, and no prompt has had it since. */
static int32_t page_end(const struct hearth_page *page) {
    return page->dead > 0 ? page->dead : page->p0 + page->len;
}

/* The last position of the path where another path branches off. */
static int32_t last_branch(const struct hearth_path *path) {
    int32_t stop = 0;
    for (size_t i = 0; i < path->n; i++) {
        const struct hearth_page *page = path->pages[i];
        const struct hearth_page *next = i + 1 < path->n ? path->pages[i + 1] : NULL;
        int32_t end = hearth_path_end(path, i);
        if (end < page_end(page)) {
            stop = larger(stop, end);
        }
        for (const struct hearth_page *child = NULL;
             stop < end && (child = hearth_children_next(page, child)) != NULL;) {
            if (child != next) {
                stop = larger(stop, smaller(child->p0, end));
            }
        }
    }
    return stop;
}

/* The last position that a sequence needs: a busy one, or an idle one with other tokens, or with more. */
static int32_t last_live(const struct hearth_cache_prompt *prompt, struct hearth_live *const *lives,
                         size_t live_count) {
    int32_t stop = 0;
    for (size_t i = 0; i < live_count; i++) {
        int32_t common = hearth_live_common(lives[i], prompt->tokens, prompt->n, prompt->salt);
        if (lives[i]->busy || common < (int32_t)lives[i]->tokens.n) {
            stop = larger(stop, common);
        }
    }
    return stop;
}

/* ---- forgetting ---- */

/* Cuts an idle sequence back to `stop`, or empties it if the engine cannot do that. */
static void cut_live(struct hearth_cache *cache, struct hearth_live *live, int32_t stop) {
    const struct hearth_engine_ops *ops = cache->engine->ops;
    bool dirty = live->dirty;
    if (stop == 0 || !cache->engine->caps.cache_ok ||
        stop < ops->seq_rewind_floor(cache->engine, live->seq, (int32_t)live->tokens.n) ||
        ops->seq_rewind(cache->engine, live->seq, stop) != HEARTH_OK) {
        hearth_live_clear(cache, live);
        return;
    }
    hearth_live_truncate(cache, live, stop);
    live->dirty = dirty;
    live->came_at = smaller(live->came_at, stop);
}

static void forget_path(struct hearth_cache *cache, struct hearth_path *path, int32_t stop) {
    uint64_t evicted[] = {cache->pages.evicted, cache->snapshots.evicted};
    int32_t end = path->matched;
    while (path->n > 0 && path->pages[path->n - 1]->p0 >= stop) {
        struct hearth_page *page = path->pages[--path->n];
        HEARTH_ASSERT(page->child_count == 0 && page->item.pins == 0);
        end = page->p0;
        hearth_cache_store_forget_page(cache, page);
    }
    struct hearth_page *last = path->n > 0 ? path->pages[path->n - 1] : NULL;
    path->matched = smaller(path->matched, end);
    bool whole = last && end >= page_end(last); /* all behind page_end() was forgotten before */
    for (uint32_t k = whole ? last->snapshot_count : 0; k-- > 0;) {
        if (last->snapshots[k]->pos > stop) {
            hearth_cache_store_forget_snapshot(cache, last->snapshots[k]);
        }
    }
    if (last && whole && stop > last->p0 && stop < end) {
        last->dead = stop;
    }
    if (last) {
        hearth_cache_store_prune(cache, last);
    }
    cache->pages.evicted = evicted[0]; /* restored, because these pages were not evicted for lack of room */
    cache->snapshots.evicted = evicted[1];
}

/* Has the backing tier remove what else it holds of the path, block by block. */
static void forget_besides(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t stop) {
    int32_t page = cache->tree.page_tokens, n = (int32_t)prompt->n;
    struct hearth_digest base = hearth_cache_root_digest(cache, prompt->salt);
    for (int32_t pos = 0; pos < n && cache->orphans.count + cache->duplicates.count > 0; pos += page) {
        if (pos + page > stop) {
            hearth_arrive_forget(cache, base, pos, prompt->tokens, stop, n);
            hearth_duplicates_forget(cache, base, pos, prompt->tokens, stop, n);
        }
        if (n - pos <= page) {
            break;
        }
        base = hearth_record_next(base, prompt->tokens + pos, (size_t)page);
    }
}

int hearth_cache_forget(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t from,
                        struct hearth_live *const *lives, size_t live_count, int32_t *stop) {
    struct hearth_path *path = &cache->scratch;
    struct hearth_page *root = hearth_cache_root(cache, prompt->salt, false);
    *stop = (int32_t)prompt->n;
    if (!hearth_tree_match(root, prompt->tokens, prompt->n, path)) {
        return HEARTH_ERR_NOMEM;
    }
    *stop = larger(larger(from, last_branch(path)), last_live(prompt, lives, live_count));
    if (*stop >= (int32_t)prompt->n) {
        return HEARTH_OK;
    }
    for (size_t i = 0; i < live_count; i++) {
        if (!lives[i]->busy && hearth_live_common(lives[i], prompt->tokens, prompt->n, prompt->salt) > *stop) {
            cut_live(cache, lives[i], *stop);
        }
    }
    forget_path(cache, path, *stop);
    if (cache->backing) {
        forget_besides(cache, prompt, *stop);
        hearth_heads_forget(cache, prompt, *stop);
    }
    hearth_cache_store_shrink(cache);
    return HEARTH_OK;
}

/* ---- keeping ---- */

static bool match(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, size_t n) {
    struct hearth_page *root = hearth_cache_root(cache, prompt->salt, false);
    return hearth_tree_match(root, prompt->tokens, n, &cache->scratch);
}

void hearth_cache_pin(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                      const struct hearth_pin *pins, size_t count) {
    int64_t now_us = cache->engine->ops->now_us(cache->engine);
    if (count == 0 || !match(cache, prompt, prompt->n)) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        hearth_cache_store_lease(cache, &cache->scratch, pins[i].position, now_us + pins[i].ttl_us, 1, true);
    }
}

void hearth_cache_expect(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int64_t until_us) {
    /* The next turn may resume behind the reply or in front of it: two snapshots. */
    if (match(cache, prompt, prompt->n)) {
        hearth_cache_store_lease(cache, &cache->scratch, (int32_t)prompt->n, until_us, 2, false);
    }
}
