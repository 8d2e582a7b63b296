/* What is stored, its budget and its eviction.
 *
 * Pages and snapshots have a pool each: bytes, a budget, and a heap of what may go, lowest value first. Pages go
 * from the leaves: a page with children stays, because what is below it would be useless without it. On classes that
 * need snapshots a leaf page behind the last snapshot is useless too and goes with it.
 *
 * Where there is a copy in the far tier, what is evicted is the blob alone: the page stays in the tree with its tokens,
 * whatever hangs on it, and is read when a prompt needs it.
 *
 * Invariants: an item is in its heap exactly when it may go; a pool's used_bytes is the sum over its items;
 * used_bytes <= budget_bytes after every public call. What is on its way to the far tier stays until it is there. */
#include "cache/store.h"

#include "base/assert.h"
#include "cache/copies.h"

size_t hearth_page_bytes(const struct hearth_page *page) {
    if (!page->blob && page->copy.state == HEARTH_COPY_THERE)
        return 0;
    size_t blob = page->blob ? hearth_blob_bytes(page->blob) : 0;
    return sizeof *page + (size_t)page->len * sizeof *page->tokens + blob;
}

size_t hearth_snapshot_bytes(const struct hearth_snapshot *snapshot) {
    return snapshot->blob ? sizeof *snapshot + hearth_blob_bytes(snapshot->blob) : 0;
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

static struct hearth_page *page_of(struct hearth_heap_node *node) {
    return (struct hearth_page *)node; /* the node is the first member */
}

static struct hearth_snapshot *snapshot_of(struct hearth_heap_node *node) {
    return (struct hearth_snapshot *)node;
}

/* ---- value ---- */

static void value_page(struct hearth_cache *cache, struct hearth_page *page) {
    struct hearth_item item = {
        .hits = page->hits + 1,
        .saved_tokens = page->len,
        .bytes = hearth_page_bytes(page),
        .copied = page->copy.state == HEARTH_COPY_THERE};
    page->heap.priority = cache->policy(&item, &cache->costs, cache->pages.inflation);
    hearth_heap_update(&cache->pages.heap, &page->heap);
}

static void value_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    struct hearth_item item = {.is_snapshot = true,
                               .kind = snapshot->kind,
                               .superseded = snapshot->superseded,
                               .copied = snapshot->copy.state == HEARTH_COPY_THERE,
                               .hits = snapshot->hits + 1,
                               .saved_tokens = snapshot->saved_tokens,
                               .bytes = hearth_snapshot_bytes(snapshot)};
    snapshot->heap.priority = cache->policy(&item, &cache->costs, cache->snapshots.inflation);
    hearth_heap_update(&cache->snapshots.heap, &snapshot->heap);
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

/* Puts the page into the heap or takes it out, as its state demands. A page that the heap has no memory for merely
 * stays longer. */
static void settle(struct hearth_cache *cache, struct hearth_page *page) {
    if (!hearth_store_page_may_go(cache, page)) {
        hearth_heap_remove(&cache->pages.heap, &page->heap);
        return;
    }
    value_page(cache, page);
    if (page->heap.index == 0)
        (void)hearth_heap_push(&cache->pages.heap, &page->heap);
}

static void settle_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    if (!hearth_store_snapshot_may_go(snapshot)) {
        hearth_heap_remove(&cache->snapshots.heap, &snapshot->heap);
        return;
    }
    value_snapshot(cache, snapshot);
    if (snapshot->heap.index == 0)
        (void)hearth_heap_push(&cache->snapshots.heap, &snapshot->heap);
}

void hearth_store_page_changed(struct hearth_cache *cache, struct hearth_page *page, size_t before) {
    cache->pages.used_bytes += hearth_page_bytes(page) - before;
    settle(cache, page);
}

void hearth_store_snapshot_changed(struct hearth_cache *cache, struct hearth_snapshot *snapshot, size_t before) {
    cache->snapshots.used_bytes += hearth_snapshot_bytes(snapshot) - before;
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
    hearth_heap_remove(&cache->snapshots.heap, &snapshot->heap);
    cache->snapshots.used_bytes -= hearth_snapshot_bytes(snapshot);
    hearth_copy_forget(cache, &snapshot->copy);
    if (snapshot->blob)
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
    hearth_copy_forget(cache, &page->copy);
    if (page->blob)
        cache->tier->ops->drop(cache->tier, page->blob);
    hearth_tree_remove(&cache->tree, page);
    settle(cache, parent);
}

/* Nothing hangs on the page, and nothing else keeps it. */
static bool is_bare(const struct hearth_page *page) {
    return page->parent && page->child_count == 0 && page->pins == 0 && page->snapshot_count == 0 &&
           page->copy.state == HEARTH_COPY_NONE;
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
    cache->tier->ops->drop(cache->tier, page->blob);
    page->blob = NULL;
    page->fetched = false;
    hearth_store_page_changed(cache, page, before);
}

static void drop_snapshot_blob(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    size_t before = hearth_snapshot_bytes(snapshot);
    cache->tier->ops->drop(cache->tier, snapshot->blob);
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

static bool evict_page(struct hearth_cache *cache) {
    struct hearth_heap_node *node = hearth_heap_top(&cache->pages.heap);
    if (!node)
        return false;
    struct hearth_page *page = page_of(node), *parent = page->parent;
    cache->pages.inflation = node->priority;
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
    struct hearth_heap_node *node = hearth_heap_top(&cache->snapshots.heap);
    if (!node)
        return false;
    cache->snapshots.inflation = node->priority;
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
    if (snapshot->heap.index != 0)
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
    } else {
        snapshot = NULL;
    }
    hearth_copies_touch(cache, path, resume, snapshot);
}
