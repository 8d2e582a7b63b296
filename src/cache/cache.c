/* The cache's frame: creation, plans, counters, checks. Capture stands in capture.c, restore in restore.c, eviction in
 * store.c. */
#include "cache/cache.h"

#include "base/assert.h"
#include "cache/store.h"

#include <stdlib.h>

const char *hearth_reason_text(enum hearth_reason reason) {
    static const char *const texts[] = {
#define X(name, text, help) [HEARTH_REASON_##name] = text,
        HEARTH_REASON_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)reason < sizeof texts / sizeof *texts);
    return texts[reason];
}

const char *hearth_reason_help(enum hearth_reason reason) {
    static const char *const texts[] = {
#define X(name, text, help) [HEARTH_REASON_##name] = help,
        HEARTH_REASON_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)reason < sizeof texts / sizeof *texts);
    return texts[reason];
}

/* ---- life ---- */

static void split_budget(struct hearth_cache *cache, size_t budget_bytes, size_t snapshot_bytes) {
    switch (cache->engine->caps.memory_class) {
    case HEARTH_MEMORY_PAGES: snapshot_bytes = 0; break;
    case HEARTH_MEMORY_PAGES_SNAPSHOT:
        if (snapshot_bytes == 0)
            snapshot_bytes = budget_bytes / 2;
        break;
    case HEARTH_MEMORY_SNAPSHOT:
    case HEARTH_MEMORY_OPAQUE:
        /* Pages hold nothing but tokens here: a sixteenth is plenty. */
        if (snapshot_bytes == 0)
            snapshot_bytes = budget_bytes - budget_bytes / 16;
        break;
    }
    if (snapshot_bytes > budget_bytes)
        snapshot_bytes = budget_bytes;
    cache->snapshots.budget_bytes = snapshot_bytes;
    cache->pages.budget_bytes = budget_bytes - snapshot_bytes;
}

int hearth_cache_create(struct hearth_engine *engine, struct hearth_tier *tier,
                        const struct hearth_cache_params *params, struct hearth_cache **out,
                        struct hearth_errmsg *msg) {
    *out = NULL;
    if (params->page_tokens <= 0)
        return hearth_fail(msg, HEARTH_ERR_INVALID, "a page holds at least one token, not %d", params->page_tokens);
    struct hearth_cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for the cache");
    cache->engine = engine;
    cache->tier = tier;
    cache->policy = params->policy ? params->policy : hearth_policy_gdsf;
    hearth_tree_init(&cache->tree, params->page_tokens);
    hearth_costs_init(&cache->costs);
    split_budget(cache, params->budget_bytes, params->snapshot_bytes);
    *out = cache;
    return HEARTH_OK;
}

static void drop_blob(void *user, struct hearth_blob *blob) {
    struct hearth_cache *cache = user;
    cache->tier->ops->drop(cache->tier, blob);
}

void hearth_cache_destroy(struct hearth_cache *cache) {
    if (!cache)
        return;
    hearth_tree_finish(&cache->tree, drop_blob, cache);
    hearth_heap_finish(&cache->pages.heap);
    hearth_heap_finish(&cache->snapshots.heap);
    hearth_path_finish(&cache->path);
    hearth_path_finish(&cache->scratch);
    free(cache->rewind_floors);
    free(cache);
}

void hearth_cache_set_budget(struct hearth_cache *cache, size_t budget_bytes, size_t snapshot_bytes) {
    split_budget(cache, budget_bytes, snapshot_bytes);
    hearth_store_shrink(cache);
}

/* ---- plans ---- */

static bool measure_lives(struct hearth_cache *cache, const struct hearth_live *const *lives, size_t count) {
    if (count > cache->rewind_cap) {
        int32_t *floors = realloc(cache->rewind_floors, count * sizeof *floors);
        if (!floors)
            return false;
        cache->rewind_floors = floors;
        cache->rewind_cap = count;
    }
    for (size_t i = 0; i < count; i++)
        cache->rewind_floors[i] =
            cache->engine->ops->seq_rewind_floor(cache->engine, lives[i]->seq, (int32_t)lives[i]->tokens.n);
    return true;
}

bool hearth_cache_plan(struct hearth_cache *cache, const hearth_token *prompt, size_t n, bool cache_off,
                       const struct hearth_live *const *lives, size_t live_count, struct hearth_plan *plan) {
    if (!measure_lives(cache, lives, live_count) || !hearth_tree_match(&cache->tree, prompt, n, &cache->path))
        return false;
    int32_t matched = cache->path.matched;
    struct hearth_plan_input input = {
        .prompt = prompt,
        .n = n,
        .path = &cache->path,
        .edge = (size_t)matched < n ? hearth_tree_edge(&cache->tree, &cache->path, prompt[matched]) : HEARTH_EDGE_END,
        .lives = lives,
        .rewind_floors = cache->rewind_floors,
        .live_count = live_count,
        .caps = &cache->engine->caps,
        .costs = &cache->costs,
        .cache_off = cache_off,
    };
    return hearth_plan_make(&input, plan);
}

bool hearth_cache_must_capture(const struct hearth_cache *cache, const struct hearth_plan *plan,
                               const struct hearth_live *target) {
    bool continues = plan->how == HEARTH_RESUME_IN_PLACE && plan->resume == (int32_t)target->tokens.n;
    return !continues && hearth_cache_capture_pending(cache, target);
}

/* ---- measuring and watching ---- */

void hearth_cache_learn_prefill(struct hearth_cache *cache, int32_t tokens, int64_t us) {
    /* Small batches say little about prefill speed. */
    if (tokens >= 32 && us > 0)
        hearth_costs_learn(&cache->costs.prefill_us_per_token, (double)us / (double)tokens);
}

const struct hearth_costs *hearth_cache_costs(const struct hearth_cache *cache) {
    return &cache->costs;
}

void hearth_cache_stats(const struct hearth_cache *cache, struct hearth_cache_stats *stats) {
    *stats = (struct hearth_cache_stats){
        .pages = cache->tree.page_count,
        .page_bytes = cache->pages.used_bytes,
        .snapshots = cache->tree.snapshot_count,
        .snapshot_bytes = cache->snapshots.used_bytes,
        .evicted_pages = cache->pages.evicted,
        .evicted_snapshots = cache->snapshots.evicted,
        .restore_failures = cache->restore_failures,
        .stored_pages = cache->stored_pages,
        .stored_snapshots = cache->stored_snapshots,
    };
}

static void check_heap(const struct hearth_heap *heap) {
    for (size_t i = 0; i < heap->n; i++) {
        HEARTH_ASSERT(heap->v[i]->index == i + 1);
        HEARTH_ASSERT(i == 0 || heap->v[(i - 1) / 2]->priority <= heap->v[i]->priority);
    }
}

/* Bytes of the pages, and of the snapshots through `snapshots`; asserts who is in a heap. */
static size_t check_items(const struct hearth_page *page, size_t *leaves) {
    /* Recursion would be as deep as a conversation is long: pages are counted through the children instead. */
    size_t bytes = 0;
    const struct hearth_page *root = page;
    for (;;) {
        if (page != root) {
            bytes += hearth_page_bytes(page);
            bool may_go = page->child_count == 0 && page->pins == 0;
            HEARTH_ASSERT((page->heap.index != 0) == may_go);
            *leaves += may_go;
        }
        if (page->child_count > 0) {
            page = page->children[0];
            continue;
        }
        for (;;) {
            if (page == root)
                return bytes;
            const struct hearth_page *parent = page->parent;
            uint32_t i = 0;
            while (parent->children[i] != page)
                i++;
            if (i + 1 < parent->child_count) {
                page = parent->children[i + 1];
                break;
            }
            page = parent;
        }
    }
}

void hearth_cache_check(const struct hearth_cache *cache) {
    hearth_tree_check(&cache->tree);
    check_heap(&cache->pages.heap);
    check_heap(&cache->snapshots.heap);
    size_t leaves = 0;
    HEARTH_ASSERT(check_items(&cache->tree.root, &leaves) == cache->pages.used_bytes);
    HEARTH_ASSERT(leaves == cache->pages.heap.n);
    HEARTH_ASSERT(cache->snapshots.heap.n == cache->tree.snapshot_count);
    HEARTH_ASSERT(cache->pages.used_bytes <= cache->pages.budget_bytes || cache->pages.heap.n == 0);
    /* What live sequences have pending cannot be evicted: a budget that was lowered is met when they are captured. */
    HEARTH_ASSERT(cache->snapshots.used_bytes <= cache->snapshots.budget_bytes || cache->snapshots.heap.n == 0);
}
