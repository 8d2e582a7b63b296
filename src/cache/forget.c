/* Keeping and forgetting: what a client says about a conversation as a whole.
 *
 * Forgetting walks the path of the tokens and finds the position that it has to stop at: the last one that anything
 * else begins with. Other paths hang on this one at a page's child or go on in a page that this one leaves; sequences
 * are compared token by token. Behind it everything goes: what is live, then pages from the leaf, each with its
 * snapshots and copies, then what the backing tier has besides.
 *
 * Besides: what hangs on nothing (orphans), and what lies on a path that has another copy there (duplicates): a page
 * that was cut in another way by another process, or what a page was before it grew. Of a duplicate only its name is
 * kept, which its tokens give: it lies on a path when the path's tokens give the same.
 *
 * A page in the middle of which it stops stays whole: its beginning is needed. It remembers where what was forgotten
 * begins, so that this is not taken for another path's when the rest is forgotten, too.
 *
 * Invariant: a page that begins at or behind the stop has no child but the next one of the path. */
#include "base/assert.h"
#include "cache/children.h"
#include "cache/copies.h"

#include <stdlib.h>

#define DUPLICATES_MAX 16384

/* ---- duplicates ---- */

struct duplicate {
    struct hearth_link link; /* by base */
    struct hearth_digest name;
    enum hearth_record_kind kind;
    int32_t base_pos, p0, p1;
};

void hearth_backing_remove(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind) {
    if (cache->backing->ops->remove(cache->backing, name, kind)) {
        cache->removing++;
    } else {
        cache->remove_failed = true;
    }
}

void hearth_duplicate_add(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind,
                          struct hearth_digest base, int32_t base_pos, int32_t p0, int32_t p1) {
    for (struct hearth_link *link = hearth_table_find(&cache->duplicates, base); link; link = hearth_table_next(link)) {
        if (hearth_digest_equal(((struct duplicate *)link)->name, name)) {
            return;
        }
    }
    struct duplicate *duplicate = cache->duplicates.count < DUPLICATES_MAX ? malloc(sizeof *duplicate) : NULL;
    if (!duplicate) {
        return;
    }
    *duplicate =
        (struct duplicate){.link.key = base, .name = name, .kind = kind, .base_pos = base_pos, .p0 = p0, .p1 = p1};
    if (!hearth_table_add(&cache->duplicates, &duplicate->link)) {
        free(duplicate);
    }
}

void hearth_duplicate_add_copy(struct hearth_cache *cache, const struct hearth_cache_item *item) {
    const struct hearth_copy *copy = &item->copy;
    if (copy->state == HEARTH_COPY_NONE) {
        return;
    }
    const struct hearth_page *page = item->is_snapshot ? hearth_item_snapshot(item)->page : hearth_item_page(item);
    int32_t p1 = item->is_snapshot ? copy->p0 : page->p0 + page->len;
    hearth_duplicate_add(cache, copy->link.key, item->is_snapshot ? HEARTH_RECORD_SNAPSHOT : HEARTH_RECORD_PAGE,
                         hearth_tree_base(&cache->tree, page), hearth_tree_block_start(&cache->tree, p1), copy->p0, p1);
}

void hearth_duplicate_add_old(struct hearth_cache *cache, const struct hearth_page *page) {
    const struct hearth_old *old = page->old;
    hearth_duplicate_add(cache, old->name, HEARTH_RECORD_PAGE, hearth_tree_base(&cache->tree, page),
                         hearth_tree_block_start(&cache->tree, old->p1), old->p0, old->p1);
}

/* Has removed from the backing tier the duplicates of one block that lie on the path, wholly in [from, to). */
static void forget_duplicates(struct hearth_cache *cache, struct hearth_digest base, int32_t base_pos,
                              const hearth_token *tokens, int32_t from, int32_t to) {
    for (struct hearth_link *link = hearth_table_find(&cache->duplicates, base), *next; link; link = next) {
        struct duplicate *duplicate = (struct duplicate *)link;
        next = hearth_table_next(link);
        if (duplicate->base_pos != base_pos || duplicate->p0 < from || duplicate->p1 <= from || duplicate->p1 > to) {
            continue;
        }
        const struct hearth_record record = {.kind = duplicate->kind,
                                             .base = base,
                                             .base_pos = base_pos,
                                             .p0 = duplicate->p0,
                                             .p1 = duplicate->p1,
                                             .tokens = (hearth_token *)(uintptr_t)(tokens + base_pos)};
        if (!hearth_digest_equal(hearth_record_name(&record), duplicate->name)) {
            continue;
        }
        hearth_backing_remove(cache, duplicate->name, duplicate->kind);
        hearth_table_remove(&cache->duplicates, link);
        free(duplicate);
    }
}

void hearth_duplicates_finish(struct hearth_cache *cache) {
    struct hearth_link *link;
    for (size_t at = 0; (link = hearth_table_pop(&cache->duplicates, &at)) != NULL;) {
        free(link);
    }
    hearth_table_finish(&cache->duplicates);
}

/* ---- where to stop ---- */

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Where a page ends for others: what is behind that was forgotten, and no prompt has come by since. */
static int32_t page_end(const struct hearth_page *page) {
    return page->dead > 0 ? page->dead : page->p0 + page->len;
}

/* The last position of the path that another one goes on from. */
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

static int32_t common_tokens(const struct hearth_cache_prompt *prompt, const struct hearth_live *live) {
    if (!hearth_digest_equal(live->salt, prompt->salt)) {
        return 0;
    }
    return (int32_t)hearth_tokens_common(prompt->tokens, prompt->n, live->tokens.v, live->tokens.n);
}

/* The last position that a sequence needs: one that is busy, or has gone another way or farther. */
static int32_t last_live(const struct hearth_cache_prompt *prompt, struct hearth_live *const *lives,
                         size_t live_count) {
    int32_t stop = 0;
    for (size_t i = 0; i < live_count; i++) {
        int32_t common = common_tokens(prompt, lives[i]);
        if (lives[i]->busy || common < (int32_t)lives[i]->tokens.n) {
            stop = larger(stop, common);
        }
    }
    return stop;
}

/* ---- forgetting ---- */

/* Cuts an idle sequence back, or empties it where that cannot be. */
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
    bool whole = last && end == last->p0 + last->len;
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
    cache->pages.evicted = evicted[0]; /* that was not for lack of room */
    cache->snapshots.evicted = evicted[1];
}

/* What the backing tier has besides, block by block. */
static void forget_besides(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t stop) {
    int32_t page = cache->tree.page_tokens, n = (int32_t)prompt->n;
    struct hearth_digest base = hearth_copies_root_digest(cache, prompt->salt);
    for (int32_t pos = 0; pos < n && cache->orphans.count + cache->duplicates.count > 0; pos += page) {
        if (pos + page > stop) {
            hearth_arrive_forget(cache, base, pos, prompt->tokens, stop, n);
            forget_duplicates(cache, base, pos, prompt->tokens, stop, n);
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
    struct hearth_page *root = hearth_copies_root(cache, prompt->salt, false);
    *stop = (int32_t)prompt->n;
    if (!hearth_tree_match(root, prompt->tokens, prompt->n, path)) {
        return HEARTH_ERR_NOMEM;
    }
    *stop = larger(larger(from, last_branch(path)), last_live(prompt, lives, live_count));
    if (*stop >= (int32_t)prompt->n) {
        return HEARTH_OK;
    }
    for (size_t i = 0; i < live_count; i++) {
        if (!lives[i]->busy && common_tokens(prompt, lives[i]) > *stop) {
            cut_live(cache, lives[i], *stop);
        }
    }
    forget_path(cache, path, *stop);
    if (cache->backing) {
        forget_besides(cache, prompt, *stop);
    }
    hearth_cache_store_shrink(cache);
    return HEARTH_OK;
}

bool hearth_cache_removing(struct hearth_cache *cache, bool *failed) {
    *failed = cache->removing == 0 && cache->remove_failed;
    if (cache->removing == 0) {
        cache->remove_failed = false;
    }
    return cache->removing > 0;
}

/* ---- keeping ---- */

static bool match(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, size_t n) {
    struct hearth_page *root = hearth_copies_root(cache, prompt->salt, false);
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
    /* Behind the reply or before it: two snapshots. */
    if (match(cache, prompt, prompt->n)) {
        hearth_cache_store_lease(cache, &cache->scratch, (int32_t)prompt->n, until_us, 2, false);
    }
}
