/* Inside the cache: what is stored, its budget and its eviction. Shared by cache.c, capture.c and restore.c. */
#ifndef HEARTH_CACHE_STORE_H
#define HEARTH_CACHE_STORE_H

#include "cache/cache.h"

/* Bytes and victims of one kind of item. */
struct hearth_pool {
    struct hearth_heap heap; /* what may be evicted */
    size_t used_bytes;
    size_t budget_bytes;
    double inflation;
    uint64_t evicted;
};

struct hearth_cache {
    struct hearth_engine *engine;
    struct hearth_tier *tier;
    struct hearth_tree tree;
    struct hearth_pool pages, snapshots;
    struct hearth_costs costs;
    hearth_policy_fn *policy;
    struct hearth_path path;     /* of the last plan */
    struct hearth_path scratch;  /* of a capture */
    int32_t *rewind_floors;      /* of the last plan */
    size_t rewind_cap;
    uint64_t restore_failures, stored_pages, stored_snapshots;
};

/* Bytes that a page counts with: tokens, node and blob. */
size_t hearth_page_bytes(const struct hearth_page *page);

/* Makes room; false when that would take more than it may. A page's path may push others out only while it holds less
 * than three quarters of the budget itself, so that one huge conversation never empties the cache. */
bool hearth_store_reserve_page(struct hearth_cache *cache, size_t bytes, size_t path_bytes);
bool hearth_store_reserve_snapshot(struct hearth_cache *cache, size_t bytes);

/* Counts a new or grown page and lets it be evicted when it is an unpinned leaf. */
void hearth_store_page_added(struct hearth_cache *cache, struct hearth_page *page);
void hearth_store_page_grown(struct hearth_cache *cache, struct hearth_page *page, size_t bytes_before);
/* Counts a new snapshot. Returns false when it could not be kept; it is gone then. */
bool hearth_store_snapshot_added(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* A pinned page is not evicted (its ancestors are safe because they are no leaves). */
void hearth_store_pin(struct hearth_cache *cache, struct hearth_page *page);
void hearth_store_unpin(struct hearth_cache *cache, struct hearth_page *page);

/* Removes a page with everything below it, or one snapshot. */
void hearth_store_drop_page(struct hearth_cache *cache, struct hearth_page *page);
void hearth_store_drop_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* Where a snapshot is needed to resume, a leaf without one serves nobody: removes it, and its ancestors likewise. */
void hearth_store_prune(struct hearth_cache *cache, struct hearth_page *page);

/* A prompt used the path up to `resume`. */
void hearth_store_touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume);

/* The live sequence no longer holds what is behind `keep`: shortens its tokens and drops pending snapshots there. */
void hearth_live_forget(struct hearth_cache *cache, struct hearth_live *live, int32_t keep);

/* Evicts down to the budgets. */
void hearth_store_shrink(struct hearth_cache *cache);

#endif
