/* What is stored, its budget and its eviction.
 *
 * Pages and snapshots have a pool each: bytes, a budget, and a heap of what may go, lowest value first. Pages go
 * from the leaves: a page with children stays, because what is below it would be useless without it. On classes that
 * need snapshots a leaf page behind the last snapshot is useless too and goes with it.
 *
 * Where there is a copy in the far tier, what is evicted is the blob alone: the page stays in the tree with its tokens,
 * whatever hangs on it, and is read when a prompt needs it.
 *
 * What was promised is in a heap of its own, ordered by when the promise ends: it is not asked to go while anything
 * else can, and promises of more than half of a pool are given up, those that end first. Of promises that end together
 * the deepest page ends first and the deepest snapshot last, so that what remains of a path can be used.
 *
 * Invariants: an item is in its heap exactly when it may go and nothing was promised; a pool's used_bytes is the sum
 * over its items; used_bytes <= budget_bytes after every public call. What is on its way to the far tier stays until it
 * is there. */
#include "cache/store.h"

#include "base/assert.h"
#include "cache/copies.h"

#include <stddef.h>
#include <stdlib.h>

size_t hearth_page_bytes(const struct hearth_page *page) {
    if (!page->blob && page->copy.state == HEARTH_COPY_THERE)
        return 0;
    size_t blob = page->blob ? hearth_blob_bytes(page->blob) : 0;
    return HEARTH_PAGE_NODE_BYTES + (size_t)page->len * sizeof *page->tokens + blob;
}

size_t hearth_snapshot_bytes(const struct hearth_snapshot *snapshot) {
    return snapshot->blob ? HEARTH_SNAPSHOT_NODE_BYTES + hearth_blob_bytes(snapshot->blob) : 0;
}

bool hearth_store_has_state(const struct hearth_cache *cache, const struct hearth_page *page) {
    return page->blob || page->copy.state == HEARTH_COPY_THERE || !hearth_caps_has_pages(&cache->engine->caps);
}

int32_t hearth_store_usable(const struct hearth_cache *cache, const struct hearth_path *path) {
    for (size_t i = 0; i < path->n; i++)
        if (!hearth_store_has_state(cache, path->pages[i]))
            return path->pages[i]->p0;
    return path->matched;
}

/* The node is the first member of the promise. */
static struct hearth_page *page_of(struct hearth_heap_node *node) {
    return (struct hearth_page *)((char *)node - offsetof(struct hearth_page, promise));
}

static struct hearth_snapshot *snapshot_of(struct hearth_heap_node *node) {
    return (struct hearth_snapshot *)((char *)node - offsetof(struct hearth_snapshot, promise));
}

/* ---- value ---- */

static double page_value(const struct hearth_cache *cache, const struct hearth_page *page) {
    struct hearth_item item = {
        .hits = page->hits + 1,
        .saved_tokens = page->len,
        .bytes = hearth_page_bytes(page),
        .copied = page->copy.state == HEARTH_COPY_THERE};
    return cache->policy(&item, &cache->costs, cache->pages.inflation);
}

static double snapshot_value(const struct hearth_cache *cache, const struct hearth_snapshot *snapshot) {
    struct hearth_item item = {.is_snapshot = true,
                               .kind = snapshot->kind,
                               .superseded = snapshot->superseded,
                               .copied = snapshot->copy.state == HEARTH_COPY_THERE,
                               .hits = snapshot->hits + 1,
                               .saved_tokens = snapshot->saved_tokens,
                               .bytes = hearth_snapshot_bytes(snapshot)};
    return cache->policy(&item, &cache->costs, cache->snapshots.inflation);
}

bool hearth_store_page_may_go(const struct hearth_cache *cache, const struct hearth_page *page) {
    if (!page->parent || page->pins > 0)
        return false;
    switch (page->copy.state) {
    case HEARTH_COPY_NONE: return page->child_count == 0;
    case HEARTH_COPY_WRITING: return false;
    case HEARTH_COPY_THERE: return page->blob && hearth_caps_has_pages(&cache->engine->caps);
    }
    return false;
}

bool hearth_store_snapshot_may_go(const struct hearth_snapshot *snapshot) {
    return snapshot->blob && snapshot->pins == 0 && snapshot->copy.state != HEARTH_COPY_WRITING;
}

/* Values an item anew in the heap of what may go, where it is put if it is not there. Without memory for that it merely
 * stays longer. */
static void place(struct hearth_pool *pool, struct hearth_promise *promise, double value) {
    if (promise->heap.index != 0)
        hearth_heap_update(&pool->heap, &promise->heap, value);
    else
        (void)hearth_heap_push(&pool->heap, &promise->heap, value);
}

/* Puts the page into the heap or takes it out, as its state demands. What was promised is in the other one. */
static void settle(struct hearth_cache *cache, struct hearth_page *page) {
    if (page->promise.until_us > 0)
        return;
    if (hearth_store_page_may_go(cache, page))
        place(&cache->pages, &page->promise, page_value(cache, page));
    else
        hearth_heap_remove(&cache->pages.heap, &page->promise.heap);
}

static void settle_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    if (snapshot->promise.until_us > 0)
        return;
    if (hearth_store_snapshot_may_go(snapshot))
        place(&cache->snapshots, &snapshot->promise, snapshot_value(cache, snapshot));
    else
        hearth_heap_remove(&cache->snapshots.heap, &snapshot->promise.heap);
}

/* ---- promises ---- */

static struct hearth_promise *first_promise(const struct hearth_pool *pool) {
    return (struct hearth_promise *)hearth_heap_top(&pool->promises); /* the node is the first member */
}

/* Makes, moves or (0) ends a promise for an item of `bytes`, which is to be settled then. */
static void set_promise(struct hearth_pool *pool, struct hearth_promise *promise, size_t bytes, int64_t until_us,
                        int32_t later_us) {
    double end_us = (double)(until_us + later_us);
    bool had = promise->until_us > 0;
    if (had)
        pool->promised_bytes -= bytes;
    if (had && until_us > 0)
        hearth_heap_update(&pool->promises, &promise->heap, end_us);
    else if (had || until_us > 0)
        hearth_heap_remove(had ? &pool->promises : &pool->heap, &promise->heap);
    if (!had && until_us > 0 && !hearth_heap_push(&pool->promises, &promise->heap, end_us))
        until_us = 0;
    promise->until_us = until_us;
    promise->durable = promise->durable && until_us > 0;
    if (until_us > 0)
        pool->promised_bytes += bytes;
}

static void promise_page(struct hearth_cache *cache, struct hearth_page *page, int64_t until_us) {
    set_promise(&cache->pages, &page->promise, hearth_page_bytes(page), until_us, -(page->p0 + page->len));
    settle(cache, page);
}

static void promise_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot, int64_t until_us) {
    set_promise(&cache->snapshots, &snapshot->promise, hearth_snapshot_bytes(snapshot), until_us, snapshot->pos);
    settle_snapshot(cache, snapshot);
}

static void end_first_promise(struct hearth_cache *cache, struct hearth_pool *pool) {
    struct hearth_promise *first = first_promise(pool);
    if (pool == &cache->pages)
        promise_page(cache, page_of(&first->heap), 0);
    else
        promise_snapshot(cache, snapshot_of(&first->heap), 0);
}

static void end_promises(struct hearth_cache *cache, struct hearth_pool *pool) {
    int64_t now_us = pool->promises.n > 0 ? cache->engine->ops->now_us(cache->engine) : 0;
    while (pool->promises.n > 0 && first_promise(pool)->until_us <= now_us)
        end_first_promise(cache, pool);
    while (pool->promised_bytes > pool->budget_bytes / 2)
        end_first_promise(cache, pool);
}

void hearth_store_promise(struct hearth_cache *cache, const struct hearth_path *path, int32_t to, int64_t until_us,
                          int snapshots, bool durable) {
    for (size_t i = 0; i < path->n && path->pages[i]->p0 < to; i++)
        if (path->pages[i]->promise.until_us < until_us)
            promise_page(cache, path->pages[i], until_us);
    for (int32_t at = to; snapshots > 0; snapshots--) {
        struct hearth_snapshot *snapshot = hearth_path_snapshot(path, at);
        if (!snapshot)
            break;
        if (snapshot->promise.until_us < until_us)
            promise_snapshot(cache, snapshot, until_us);
        snapshot->promise.durable = snapshot->promise.until_us > 0 && (durable || snapshot->promise.durable);
        at = snapshot->pos - 1;
    }
    end_promises(cache, &cache->pages);
    end_promises(cache, &cache->snapshots);
}

void hearth_store_promise_live(struct hearth_cache *cache, const struct hearth_path *path,
                               const struct hearth_live *live) {
    if (live->pin_count == 0 && live->expected_until_us == 0)
        return;
    int64_t now_us = cache->engine->ops->now_us(cache->engine);
    for (int i = 0; i < live->pin_count; i++)
        hearth_store_promise(cache, path, live->pins[i].position, now_us + live->pins[i].ttl_us, 1, true);
    if (live->expected_until_us > now_us)
        hearth_store_promise(cache, path, path->matched, live->expected_until_us, 2, false);
}

/* ---- changes ---- */

void hearth_store_page_changed(struct hearth_cache *cache, struct hearth_page *page, size_t before) {
    size_t after = hearth_page_bytes(page);
    cache->pages.used_bytes += after - before;
    if (page->promise.until_us > 0) {
        cache->pages.promised_bytes += after - before;
        end_promises(cache, &cache->pages);
    }
    settle(cache, page);
}

void hearth_store_snapshot_changed(struct hearth_cache *cache, struct hearth_snapshot *snapshot, size_t before) {
    size_t after = hearth_snapshot_bytes(snapshot);
    cache->snapshots.used_bytes += after - before;
    if (snapshot->promise.until_us > 0) {
        cache->snapshots.promised_bytes += after - before;
        end_promises(cache, &cache->snapshots);
    }
    settle_snapshot(cache, snapshot);
}

void hearth_store_pin(struct hearth_cache *cache, struct hearth_page *page) {
    page->pins++;
    settle(cache, page);
}

void hearth_store_unpin(struct hearth_cache *cache, struct hearth_page *page) {
    HEARTH_ASSERT(page->pins > 0);
    page->pins--;
    settle(cache, page);
}

void hearth_store_pin_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    snapshot->pins++;
    settle_snapshot(cache, snapshot);
}

void hearth_store_unpin_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    HEARTH_ASSERT(snapshot->pins > 0);
    snapshot->pins--;
    settle_snapshot(cache, snapshot);
}

/* ---- removal ---- */

static void free_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    promise_snapshot(cache, snapshot, 0);
    hearth_heap_remove(&cache->snapshots.heap, &snapshot->promise.heap);
    cache->snapshots.used_bytes -= hearth_snapshot_bytes(snapshot);
    hearth_spare_copy(cache, &snapshot->copy);
    hearth_copy_forget(cache, &snapshot->copy);
    if (snapshot->blob)
        hearth_ram_drop(cache->ram, snapshot->blob);
    hearth_tree_remove_snapshot(&cache->tree, snapshot);
}

static void free_leaf(struct hearth_cache *cache, struct hearth_page *page) {
    while (page->snapshot_count > 0) {
        cache->snapshots.evicted++;
        free_snapshot(cache, page->snapshots[page->snapshot_count - 1]);
    }
    struct hearth_page *parent = page->parent;
    promise_page(cache, page, 0);
    hearth_heap_remove(&cache->pages.heap, &page->promise.heap);
    cache->pages.used_bytes -= hearth_page_bytes(page);
    cache->pages.evicted++;
    if (page->old)
        hearth_spare_old(cache, page);
    hearth_copy_forget(cache, &page->copy);
    if (page->blob)
        hearth_ram_drop(cache->ram, page->blob);
    hearth_tree_remove(&cache->tree, page);
    settle(cache, parent);
}

/* Nothing hangs on the page, and nothing else keeps it. */
static bool is_bare(const struct hearth_page *page) {
    return page->parent && page->child_count == 0 && page->pins == 0 && page->snapshot_count == 0 &&
           page->copy.state == HEARTH_COPY_NONE;
}

void hearth_store_forget_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    hearth_copy_remove(cache, &snapshot->copy);
    free_snapshot(cache, snapshot);
}

void hearth_store_forget_page(struct hearth_cache *cache, struct hearth_page *page) {
    struct hearth_page *parent = page->parent;
    int32_t offset = page->p0 - parent->p0;
    hearth_token first = page->first;
    while (page->snapshot_count > 0)
        hearth_store_forget_snapshot(cache, page->snapshots[page->snapshot_count - 1]);
    size_t before = hearth_page_bytes(page);
    hearth_copy_remove(cache, &page->copy);
    hearth_store_page_changed(cache, page, before);
    if (page->old)
        hearth_far_remove(cache, page->old->name, HEARTH_RECORD_PAGE);
    free(page->old);
    page->old = NULL;
    free_leaf(cache, page);
    hearth_tree_forget_ghost(parent, offset, first);
}

void hearth_store_prune(struct hearth_cache *cache, struct hearth_page *page) {
    if (!hearth_caps_needs_snapshot(&cache->engine->caps))
        return;
    while (is_bare(page)) {
        struct hearth_page *parent = page->parent;
        free_leaf(cache, page);
        page = parent;
    }
}

void hearth_store_drop_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    struct hearth_page *page = snapshot->page;
    free_snapshot(cache, snapshot);
    hearth_store_prune(cache, page);
}

static void drop_page_blob(struct hearth_cache *cache, struct hearth_page *page) {
    size_t before = hearth_page_bytes(page);
    if (page->copy.state == HEARTH_COPY_WRITING)
        hearth_copy_forget(cache, &page->copy);
    hearth_ram_drop(cache->ram, page->blob);
    page->blob = NULL;
    page->fetched = false;
    hearth_store_page_changed(cache, page, before);
}

static void drop_snapshot_blob(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    size_t before = hearth_snapshot_bytes(snapshot);
    hearth_ram_drop(cache->ram, snapshot->blob);
    snapshot->blob = NULL;
    snapshot->fetched = false;
    hearth_store_snapshot_changed(cache, snapshot, before);
}

void hearth_store_drop_state(struct hearth_cache *cache, struct hearth_page *page) {
    if (page->blob)
        drop_page_blob(cache, page);
    if (!hearth_store_has_state(cache, page) && is_bare(page)) {
        struct hearth_page *parent = page->parent;
        free_leaf(cache, page);
        hearth_store_prune(cache, parent);
    }
}

/* ---- room ---- */

/* What goes next: of what was promised only when there is nothing else. */
static struct hearth_heap_node *next_victim(struct hearth_cache *cache, struct hearth_pool *pool) {
    end_promises(cache, pool);
    while (pool->heap.n == 0 && pool->promises.n > 0)
        end_first_promise(cache, pool);
    return hearth_heap_top(&pool->heap);
}

static bool evict_page(struct hearth_cache *cache) {
    struct hearth_heap_node *node = next_victim(cache, &cache->pages);
    if (!node)
        return false;
    struct hearth_page *page = page_of(node), *parent = page->parent;
    cache->pages.inflation = cache->pages.heap.v[0].priority;
    if (page->copy.state == HEARTH_COPY_THERE) {
        cache->pages.evicted++;
        drop_page_blob(cache, page);
        return true;
    }
    free_leaf(cache, page);
    hearth_store_prune(cache, parent);
    return true;
}

static bool evict_snapshot(struct hearth_cache *cache) {
    struct hearth_heap_node *node = next_victim(cache, &cache->snapshots);
    if (!node)
        return false;
    cache->snapshots.inflation = cache->snapshots.heap.v[0].priority;
    cache->snapshots.evicted++;
    struct hearth_snapshot *snapshot = snapshot_of(node);
    if (snapshot->copy.state == HEARTH_COPY_THERE)
        drop_snapshot_blob(cache, snapshot);
    else
        hearth_store_drop_snapshot(cache, snapshot);
    return true;
}

bool hearth_store_reserve_page(struct hearth_cache *cache, size_t bytes, size_t path_bytes) {
    struct hearth_pool *pool = &cache->pages;
    if (pool->used_bytes + bytes <= pool->budget_bytes)
        return true;
    if (bytes > pool->budget_bytes || (!cache->far && path_bytes + bytes > pool->budget_bytes / 4 * 3))
        return false;
    while (pool->used_bytes + bytes > pool->budget_bytes)
        if (!evict_page(cache))
            return false;
    return true;
}

bool hearth_store_reserve_snapshot(struct hearth_cache *cache, size_t bytes) {
    struct hearth_pool *pool = &cache->snapshots;
    if (bytes > pool->budget_bytes)
        return false;
    while (pool->used_bytes + bytes > pool->budget_bytes)
        if (!evict_snapshot(cache))
            return false;
    return true;
}

void hearth_store_shrink(struct hearth_cache *cache) {
    end_promises(cache, &cache->snapshots);
    end_promises(cache, &cache->pages);
    while (cache->snapshots.used_bytes > cache->snapshots.budget_bytes && evict_snapshot(cache)) {
    }
    while (cache->pages.used_bytes > cache->pages.budget_bytes && evict_page(cache)) {
    }
}

/* ---- arrival and use ---- */

void hearth_store_page_added(struct hearth_cache *cache, struct hearth_page *page) {
    settle(cache, page->parent);
    hearth_store_page_changed(cache, page, 0);
}

bool hearth_store_snapshot_added(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    cache->stored_snapshots++;
    hearth_store_snapshot_changed(cache, snapshot, 0);
    if (snapshot->promise.heap.index != 0)
        return true;
    hearth_store_drop_snapshot(cache, snapshot); /* what cannot be evicted must not be kept */
    return false;
}

void hearth_store_touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume) {
    for (size_t i = 0; i < path->n && path->pages[i]->p0 < resume; i++) {
        struct hearth_page *page = path->pages[i];
        page->hits++;
        if (page->dead > 0 && hearth_path_end(path, i) > page->dead)
            page->dead = 0; /* it has been said again */
        settle(cache, page);
    }
    struct hearth_snapshot *snapshot = hearth_path_snapshot(path, resume);
    if (snapshot && snapshot->pos == resume) {
        snapshot->hits++;
        settle_snapshot(cache, snapshot);
    } else {
        snapshot = NULL;
    }
    hearth_copies_touch(cache, path, resume, snapshot);
}
