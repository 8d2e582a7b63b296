/* What is stored, its budget and its eviction.
 *
 * Pages and snapshots have a pool each: bytes, a budget, and a heap of what may go, lowest value first. Pages go
 * from the leaves: a page with children stays, because what is below it would be useless without it. On classes that
 * need snapshots a leaf page behind the last snapshot is useless too and goes with it.
 *
 * Invariants: a page is in the heap exactly when it is a leaf and not pinned; a pool's used_bytes is the sum over its
 * items; used_bytes <= budget_bytes after every public call. */
#include "cache/store.h"

#include "base/assert.h"

size_t hearth_page_bytes(const struct hearth_page *page) {
    size_t blob = page->blob ? hearth_blob_bytes(page->blob) : 0;
    return sizeof *page + (size_t)page->len * sizeof *page->tokens + blob;
}

static size_t snapshot_bytes(const struct hearth_snapshot *snapshot) {
    return sizeof *snapshot + hearth_blob_bytes(snapshot->blob);
}

static struct hearth_page *page_of(struct hearth_heap_node *node) {
    return (struct hearth_page *)node; /* the node is the first member */
}

static struct hearth_snapshot *snapshot_of(struct hearth_heap_node *node) {
    return (struct hearth_snapshot *)node;
}

/* ---- value ---- */

static void value_page(struct hearth_cache *cache, struct hearth_page *page) {
    struct hearth_item item = {
        .hits = page->hits + 1, .saved_tokens = page->len, .bytes = hearth_page_bytes(page)};
    page->heap.priority = cache->policy(&item, &cache->costs, cache->pages.inflation);
    hearth_heap_update(&cache->pages.heap, &page->heap);
}

static void value_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    struct hearth_item item = {.is_snapshot = true,
                               .kind = snapshot->kind,
                               .superseded = snapshot->superseded,
                               .hits = snapshot->hits + 1,
                               .saved_tokens = snapshot->saved_tokens,
                               .bytes = snapshot_bytes(snapshot)};
    snapshot->heap.priority = cache->policy(&item, &cache->costs, cache->snapshots.inflation);
    hearth_heap_update(&cache->snapshots.heap, &snapshot->heap);
}

/* Puts the page into the heap or takes it out, as its state demands. A page that the heap has no memory for merely
 * stays longer. */
static void settle(struct hearth_cache *cache, struct hearth_page *page) {
    bool may_go = page->parent && page->child_count == 0 && page->pins == 0;
    if (may_go && page->heap.index == 0) {
        value_page(cache, page);
        (void)hearth_heap_push(&cache->pages.heap, &page->heap);
    } else if (!may_go) {
        hearth_heap_remove(&cache->pages.heap, &page->heap);
    }
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

/* ---- removal ---- */

static void free_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    hearth_heap_remove(&cache->snapshots.heap, &snapshot->heap);
    cache->snapshots.used_bytes -= snapshot_bytes(snapshot);
    cache->tier->ops->drop(cache->tier, snapshot->blob);
    hearth_tree_remove_snapshot(&cache->tree, snapshot);
}

static void free_leaf(struct hearth_cache *cache, struct hearth_page *page) {
    while (page->snapshot_count > 0) {
        cache->snapshots.evicted++;
        free_snapshot(cache, page->snapshots[page->snapshot_count - 1]);
    }
    struct hearth_page *parent = page->parent;
    hearth_heap_remove(&cache->pages.heap, &page->heap);
    cache->pages.used_bytes -= hearth_page_bytes(page);
    cache->pages.evicted++;
    if (page->blob)
        cache->tier->ops->drop(cache->tier, page->blob);
    hearth_tree_remove(&cache->tree, page);
    settle(cache, parent);
}

void hearth_store_prune(struct hearth_cache *cache, struct hearth_page *page) {
    if (!hearth_caps_needs_snapshot(&cache->engine->caps))
        return;
    while (page->parent && page->child_count == 0 && page->pins == 0 && page->snapshot_count == 0) {
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

void hearth_store_drop_page(struct hearth_cache *cache, struct hearth_page *page) {
    struct hearth_page *at = page;
    for (;;) {
        while (at->child_count > 0)
            at = at->children[at->child_count - 1];
        struct hearth_page *parent = at->parent;
        bool last = at == page;
        free_leaf(cache, at);
        if (last) {
            hearth_store_prune(cache, parent);
            return;
        }
        at = parent;
    }
}

/* ---- room ---- */

static bool evict_page(struct hearth_cache *cache) {
    struct hearth_heap_node *node = hearth_heap_top(&cache->pages.heap);
    if (!node)
        return false;
    struct hearth_page *page = page_of(node), *parent = page->parent;
    cache->pages.inflation = node->priority;
    free_leaf(cache, page);
    hearth_store_prune(cache, parent);
    return true;
}

static bool evict_snapshot(struct hearth_cache *cache) {
    struct hearth_heap_node *node = hearth_heap_top(&cache->snapshots.heap);
    if (!node)
        return false;
    cache->snapshots.inflation = node->priority;
    cache->snapshots.evicted++;
    hearth_store_drop_snapshot(cache, snapshot_of(node));
    return true;
}

bool hearth_store_reserve_page(struct hearth_cache *cache, size_t bytes, size_t path_bytes) {
    struct hearth_pool *pool = &cache->pages;
    if (pool->used_bytes + bytes <= pool->budget_bytes)
        return true;
    if (path_bytes + bytes > pool->budget_bytes / 4 * 3)
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
    while (cache->snapshots.used_bytes > cache->snapshots.budget_bytes && evict_snapshot(cache)) {
    }
    while (cache->pages.used_bytes > cache->pages.budget_bytes && evict_page(cache)) {
    }
}

/* ---- arrival and use ---- */

void hearth_store_page_added(struct hearth_cache *cache, struct hearth_page *page) {
    cache->pages.used_bytes += hearth_page_bytes(page);
    cache->stored_pages++;
    settle(cache, page->parent);
    settle(cache, page);
}

void hearth_store_page_grown(struct hearth_cache *cache, struct hearth_page *page, size_t bytes_before) {
    cache->pages.used_bytes += hearth_page_bytes(page) - bytes_before;
    cache->stored_pages++;
    value_page(cache, page);
}

bool hearth_store_snapshot_added(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    cache->snapshots.used_bytes += snapshot_bytes(snapshot);
    cache->stored_snapshots++;
    value_snapshot(cache, snapshot);
    if (hearth_heap_push(&cache->snapshots.heap, &snapshot->heap))
        return true;
    hearth_store_drop_snapshot(cache, snapshot); /* what cannot be evicted must not be kept */
    return false;
}

void hearth_store_touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume) {
    for (size_t i = 0; i < path->n && path->pages[i]->p0 < resume; i++) {
        path->pages[i]->hits++;
        value_page(cache, path->pages[i]);
    }
    struct hearth_snapshot *snapshot = hearth_path_snapshot(path, resume);
    if (snapshot && snapshot->pos == resume) {
        snapshot->hits++;
        value_snapshot(cache, snapshot);
    }
}
