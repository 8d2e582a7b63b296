/* The cache as a whole: creation, plans, counters, checks. Capture is in capture.c, restore in restore.c, eviction
 * in store.c. */
#include "cache/backing.h"
#include "cache/planner.h"

#include "base/assert.h"

#include <math.h>
#include <stdlib.h>

static const struct {
    const char *text, *help;
} reasons[] = {
#define X(name, text, help) [HEARTH_REASON_##name] = {text, help},
    HEARTH_REASON_TABLE(X)
#undef X
};

const char *hearth_reason_text(enum hearth_reason reason) {
    HEARTH_ASSERT((size_t)reason < sizeof reasons / sizeof *reasons);
    return reasons[reason].text;
}

const char *hearth_reason_help(enum hearth_reason reason) {
    HEARTH_ASSERT((size_t)reason < sizeof reasons / sizeof *reasons);
    return reasons[reason].help;
}

static const struct {
    const char *text, *help;
} waits[] = {
#define X(name, text, help) [HEARTH_WAIT_##name] = {text, help},
    HEARTH_WAIT_TABLE(X)
#undef X
};

const char *hearth_wait_text(enum hearth_wait wait) {
    HEARTH_ASSERT((size_t)wait < HEARTH_WAIT_COUNT);
    return waits[wait].text;
}

const char *hearth_wait_help(enum hearth_wait wait) {
    HEARTH_ASSERT((size_t)wait < HEARTH_WAIT_COUNT);
    return waits[wait].help;
}

#define BACKING_DOUBT_US 60000000 /* how long a slow backing tier is taken to be as slow as it was */
#define TALK_BYTES 256            /* with its share of the heap and the tables */
#define RETURNS_SHARE 100         /* one part in so many of the budget is for what the policy learns of */

static uint32_t talks_for(size_t budget_bytes) {
    size_t talks = budget_bytes / RETURNS_SHARE / TALK_BYTES;
    return talks < UINT32_MAX ? (uint32_t)talks : UINT32_MAX;
}

/* ---- life ---- */

static void split_budget(struct hearth_cache *cache, size_t budget_bytes, size_t snapshot_bytes) {
    cache->moves = cache->engine->caps.memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT && snapshot_bytes == 0;
    switch (cache->engine->caps.memory_class) {
    case HEARTH_ENGINE_PAGES: snapshot_bytes = 0; break;
    case HEARTH_ENGINE_PAGES_SNAPSHOT:
        if (snapshot_bytes == 0) {
            snapshot_bytes = budget_bytes / 2;
        }
        break;
    case HEARTH_ENGINE_SNAPSHOT:
    case HEARTH_ENGINE_OPAQUE:
        /* Such pages hold nothing but tokens, so a sixteenth is plenty. */
        if (snapshot_bytes == 0) {
            snapshot_bytes = budget_bytes - budget_bytes / 16;
        }
        break;
    }
    if (snapshot_bytes > budget_bytes) {
        snapshot_bytes = budget_bytes;
    }
    if (cache->moves) { /* what is there stays as far as it can */
        const size_t pages = cache->pages.used_bytes, snapshots = cache->snapshots.used_bytes;
        const size_t most = pages < budget_bytes ? budget_bytes - pages : 0;
        snapshot_bytes = snapshots > snapshot_bytes ? snapshots : snapshot_bytes;
        snapshot_bytes = snapshot_bytes < most ? snapshot_bytes : most;
    }
    cache->snapshots.budget_bytes = snapshot_bytes;
    cache->pages.budget_bytes = budget_bytes - snapshot_bytes;
}

int hearth_cache_create(struct hearth_engine *engine, struct hearth_ram *ram, const struct hearth_cache_params *params,
                        struct hearth_cache **out, struct hearth_errmsg *msg) {
    *out = NULL;
    if (params->page_tokens <= 0) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "a page holds at least one token, not %d", params->page_tokens);
    }
    struct hearth_cache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for the cache");
    }
    cache->engine = engine;
    cache->ram = ram;
    cache->newcomer = INFINITY;
    cache->snapshots.victims = HEARTH_TALK_SNAPSHOTS;
    cache->policy = params->policy ? params->policy : &hearth_policy_returns;
    cache->backing = params->backing;
    cache->backing_min_tokens = params->backing_min_tokens;
    cache->observer = params->observer;
    cache->returns = hearth_returns_create(talks_for(params->budget_bytes));
    if (!cache->returns || !hearth_tree_init(&cache->tree, params->page_tokens)) {
        hearth_returns_destroy(cache->returns);
        free(cache);
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for the cache");
    }
    if (!hearth_shares_init(&cache->shares, params->share, HEARTH_SHARE_RAM_US)) {
        hearth_cache_destroy(cache);
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for the cache");
    }
    hearth_costs_init(&cache->costs);
    split_budget(cache, params->budget_bytes, params->snapshot_bytes);
    *out = cache;
    return HEARTH_OK;
}

static void drop_blob(void *user, struct hearth_blob *blob) {
    struct hearth_cache *cache = user;
    hearth_ram_drop(cache->ram, blob);
}

void hearth_cache_destroy(struct hearth_cache *cache) {
    if (!cache) {
        return;
    }
    hearth_tree_finish(&cache->tree, drop_blob, cache);
    hearth_arrive_finish(cache);
    hearth_duplicates_finish(cache);
    hearth_table_finish_names(&cache->removals);
    hearth_table_finish(&cache->copies);
    hearth_heads_finish(&cache->heads);
    hearth_learnt_finish(&cache->learnt);
    hearth_returns_destroy(cache->returns);
    hearth_shares_finish(&cache->shares);
    hearth_heap_finish(&cache->pages.leases);
    hearth_heap_finish(&cache->snapshots.leases);
    hearth_path_finish(&cache->scratch);
    free(cache->measures);
    free(cache->twins);
    free(cache);
}

void hearth_cache_budget(const struct hearth_cache *cache, size_t *page_bytes, size_t *snapshot_bytes) {
    const size_t all = cache->pages.budget_bytes + cache->snapshots.budget_bytes;
    *page_bytes = cache->moves ? all / 2 : cache->pages.budget_bytes;
    *snapshot_bytes = cache->moves ? all / 2 : cache->snapshots.budget_bytes;
}

void hearth_cache_set_budget(struct hearth_cache *cache, size_t budget_bytes, size_t snapshot_bytes) {
    split_budget(cache, budget_bytes, snapshot_bytes);
    hearth_cache_store_shrink(cache);
}

/* ---- plans ---- */

/* Measures what a plan needs to know about a prompt. False: out of memory. */
static bool measure(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, struct hearth_path *path,
                    const struct hearth_live *const *lives, size_t live_count, struct hearth_plan_input *input) {
    struct hearth_page *root = hearth_cache_root(cache, prompt->salt, false);
    if (!hearth_live_measure(cache, prompt, lives, live_count) ||
        !hearth_tree_match(root, prompt->tokens, prompt->n, path)) {
        return false;
    }
    int32_t matched = path->matched;
    *input = (struct hearth_plan_input){
        .prompt = prompt->tokens,
        .n = prompt->n,
        .path = path,
        .usable = hearth_cache_store_usable(cache, path),
        .edge = (size_t)matched < prompt->n
                    ? hearth_tree_edge(path, prompt->tokens + matched, prompt->n - (size_t)matched)
                    : HEARTH_EDGE_END,
        .lives = lives,
        .rewind_floors = cache->measures,
        .commons = cache->measures + live_count,
        .live_count = live_count,
        .caps = &cache->engine->caps,
        .costs = &cache->costs,
        .page_tokens = cache->tree.page_tokens,
        .now_us = cache->engine->ops->now_us(cache->engine),
        .cache_off = prompt->cache_off,
    };
    return true;
}

/* Reduces the cost that a slow backing tier is believed to have while prompts do without it. A tier that is not read
 * could otherwise never be found to have become faster. */
static void doubt_backing(struct hearth_cache *cache, const struct hearth_plan *plan, int64_t now_us) {
    double *costs[] = {&cache->costs.backing_us_per_byte, &cache->costs.remote_us_per_byte};
    for (int i = 0; i < 2 && cache->backing && plan->reason == HEARTH_REASON_COMPUTE_CHEAPER; i++) {
        if (now_us - cache->learnt_us[i] >= BACKING_DOUBT_US) {
            cache->learnt_us[i] = now_us;
            *costs[i] /= 2;
        }
    }
}

bool hearth_cache_plan(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                       const struct hearth_live *const *lives, size_t live_count, struct hearth_plan *plan) {
    struct hearth_plan_input input;
    cache->tree.now++;
    if (!measure(cache, prompt, &plan->path, lives, live_count, &input) || !hearth_plan_make(&input, plan)) {
        return false;
    }
    doubt_backing(cache, plan, input.now_us);
    return true;
}

int32_t hearth_cache_peek(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                          const struct hearth_live *const *lives, size_t live_count) {
    struct hearth_plan_input input;
    bool known = measure(cache, prompt, &cache->scratch, lives, live_count, &input);
    return (int32_t)prompt->n - (known ? hearth_plan_resume(&input) : 0);
}

/* Adds the cost of a page or snapshot that stands for so many tokens. */
static void locate_item(const struct hearth_cache *cache, const struct hearth_cache_item *item, int32_t tokens,
                        size_t bytes, struct hearth_cache_location *out) {
    const bool there = item->blob != NULL;
    *(there ? &out->ram_tokens : item->copy.remote ? &out->remote_tokens : &out->disk_tokens) += tokens;
    out->read_bytes += there ? 0 : bytes;
    out->restore_us += (int64_t)(there ? hearth_costs_restore_us(&cache->costs, bytes, 1)
                                       : hearth_costs_backing_us(&cache->costs, item->copy.remote, bytes, 1));
}

void hearth_cache_locate(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                         const struct hearth_live *const *lives, size_t live_count, struct hearth_cache_location *out) {
    struct hearth_plan_input input;
    const struct hearth_caps *caps = &cache->engine->caps;
    struct hearth_plan plan = {.how = HEARTH_RESUME_FRESH};
    *out = (struct hearth_cache_location){.live_tokens = 0};
    if (measure(cache, prompt, &cache->scratch, lives, live_count, &input)) {
        hearth_plan_locate(&input, &plan);
    }
    const bool stored = plan.how == HEARTH_RESUME_STORED;
    const struct hearth_path *path = &cache->scratch;
    out->live_tokens = stored ? plan.live_tokens : plan.resume;
    for (size_t i = 0; stored && hearth_caps_has_pages(caps) && i < path->n; i++) {
        const struct hearth_page *page = path->pages[i];
        const int32_t from = page->p0 > plan.live_tokens ? page->p0 : plan.live_tokens;
        const int32_t end = hearth_path_end(path, i) < plan.resume ? hearth_path_end(path, i) : plan.resume;
        if (from < end) {
            locate_item(cache, &page->item, end - from, (size_t)page->len * caps->page_bytes_per_token, out);
        }
    }
    for (size_t i = 0; i < plan.piece_count; i++) {
        const int32_t tokens = !hearth_caps_has_pages(caps) && i == 0 ? plan.resume : 0;
        locate_item(cache, &plan.pieces[i]->item, tokens, hearth_snapshot_state_bytes(caps, plan.pieces[i]), out);
    }
    out->computed_tokens = (int32_t)prompt->n - plan.resume;
    out->compute_us = (int64_t)hearth_costs_compute_us(&cache->costs, out->computed_tokens);
}

bool hearth_cache_fetch(struct hearth_cache *cache, const struct hearth_plan *plan) {
    if (!cache->backing || plan->how != HEARTH_RESUME_STORED) {
        return false;
    }
    const struct hearth_caps *caps = &cache->engine->caps;
    size_t page_bytes = (size_t)(plan->resume - plan->live_tokens) * caps->page_bytes_per_token;
    size_t snapshot_bytes = 0, pages_budget, snapshots_budget;
    for (size_t i = 0; i < plan->piece_count; i++) {
        snapshot_bytes += plan->pieces[i]->item.blob ? 0 : hearth_snapshot_state_bytes(caps, plan->pieces[i]);
    }
    hearth_cache_budget(cache, &pages_budget, &snapshots_budget);
    bool fits = (snapshot_bytes == 0 || snapshot_bytes < snapshots_budget) &&
                (!hearth_caps_has_pages(caps) || page_bytes < pages_budget / 4 * 3);
    return fits && hearth_copies_fetch(cache, &plan->path, plan->live_tokens, plan->resume, plan->pieces,
                                       plan->piece_count, SIZE_MAX) > 0;
}

bool hearth_cache_fetching(const struct hearth_plan *plan) {
    bool stored = plan->how == HEARTH_RESUME_STORED;
    for (size_t i = 0; stored && i < plan->path.n && plan->path.pages[i]->p0 < plan->resume; i++) {
        if (plan->path.pages[i]->item.copy.reading) {
            return true;
        }
    }
    for (size_t i = 0; i < plan->piece_count; i++) {
        if (plan->pieces[i]->item.copy.reading) {
            return true;
        }
    }
    return false;
}

bool hearth_cache_fetched_remote(const struct hearth_plan *plan) {
    const struct hearth_cache_item *item = plan->piece_count > 0 ? &plan->pieces[plan->piece_count - 1]->item : NULL;
    for (size_t i = 0; !item && i < plan->path.n; i++) {
        const struct hearth_page *page = plan->path.pages[i];
        item = hearth_path_end(&plan->path, i) >= plan->resume ? &page->item : NULL;
    }
    return plan->how == HEARTH_RESUME_STORED && item && item->fetched && item->fetched_remote;
}

bool hearth_cache_in_ram(const struct hearth_cache *cache, const struct hearth_plan *plan) {
    bool pages = hearth_caps_has_pages(&cache->engine->caps);
    if (plan->how != HEARTH_RESUME_STORED) {
        return true;
    }
    for (size_t i = 0; pages && i < plan->path.n && plan->path.pages[i]->p0 < plan->resume; i++) {
        if (!plan->path.pages[i]->item.blob && hearth_path_end(&plan->path, i) > plan->live_tokens) {
            return false;
        }
    }
    for (size_t i = 0; i < plan->piece_count; i++) {
        if (!plan->pieces[i]->item.blob) {
            return false;
        }
    }
    return true;
}

bool hearth_cache_must_capture(const struct hearth_cache *cache, const struct hearth_plan *plan,
                               const struct hearth_live *target) {
    bool continues = plan->how == HEARTH_RESUME_IN_PLACE && plan->resume == (int32_t)target->tokens.n;
    return !continues && hearth_cache_capture_pending(cache, target);
}

/* ---- measuring and watching ---- */

void hearth_cache_learn_prefill(struct hearth_cache *cache, int32_t tokens, int64_t us) {
    /* Small batches tell little about the prefill speed. */
    if (tokens >= 32 && us > 0) {
        hearth_costs_learn(&cache->costs.prefill_us_per_token, (double)us / (double)tokens);
    }
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
        .pinned_bytes = cache->pages.leased_bytes + cache->snapshots.leased_bytes,
        .evicted_pages = cache->pages.evicted,
        .evicted_snapshots = cache->snapshots.evicted,
        .restore_failures = cache->restore_failures,
        .bad_reads = cache->bad_reads,
        .store_misses = cache->store_misses,
        .stored_pages = cache->stored_pages,
        .stored_snapshots = cache->stored_snapshots,
        .warmed_tokens = cache->heads.prefetched_tokens,
        .copies = cache->copies.count,
        .orphans = cache->orphans.count,
    };
}

static void check_heap(const struct hearth_heap *heap) {
    for (size_t i = 0; i < heap->n; i++) {
        HEARTH_ASSERT(heap->v[i].node->index == i + 1);
        HEARTH_ASSERT(i == 0 || heap->v[(i - 1) / 2].priority <= heap->v[i].priority);
    }
}

/* Counts of a walk over all items. */
struct pool_count {
    size_t bytes, in_heap, leased, leased_bytes;
};
struct census {
    struct pool_count pages, snapshots;
    size_t copies, writing;
};

static void check_copy(const struct hearth_cache *cache, const struct hearth_cache_item *item, struct census *count) {
    const struct hearth_copy *copy = &item->copy;
    if (copy->state == HEARTH_COPY_NONE) {
        return;
    }
    bool stateful = item->is_snapshot || hearth_caps_has_pages(&cache->engine->caps);
    HEARTH_ASSERT(hearth_table_find(&cache->copies, copy->link.key) == &copy->link);
    HEARTH_ASSERT(copy->state != HEARTH_COPY_WRITING || item->blob || !stateful);
    count->copies++;
    count->writing += copy->state == HEARTH_COPY_WRITING;
}

static void check_item(const struct hearth_cache *cache, const struct hearth_cache_item *item, struct census *count) {
    const struct hearth_cache_pool *pool = item->is_snapshot ? &cache->snapshots : &cache->pages;
    struct pool_count *counted = item->is_snapshot ? &count->snapshots : &count->pages;
    const struct hearth_lease *lease = &item->lease;
    bool leased = lease->until_us > 0;
    bool may_go = hearth_cache_store_may_go(cache, item) && !leased;
    HEARTH_ASSERT(hearth_heap_has(&pool->leases, &lease->heap) == leased);
    const struct hearth_talk *talk = hearth_returns_talk(cache->returns, item->talk);
    HEARTH_ASSERT(hearth_heap_has(&talk->victims[pool->victims], &lease->heap) == may_go);
    HEARTH_ASSERT(lease->heap.index == 0 || leased || may_go);
    HEARTH_ASSERT(leased || !lease->durable);
    counted->bytes += hearth_cache_item_bytes(item);
    counted->in_heap += may_go;
    counted->leased += leased;
    counted->leased_bytes += leased ? hearth_cache_item_bytes(item) : 0;
    check_copy(cache, item, count);
}

static void check_page(const struct hearth_cache *cache, const struct hearth_page *page, struct census *count) {
    if (page->parent) {
        check_item(cache, &page->item, count);
    } else {
        HEARTH_ASSERT(page->item.lease.heap.index == 0);
    }
    for (uint32_t i = 0; i < page->snapshot_count; i++) {
        const struct hearth_cache_item *item = &page->snapshots[i]->item;
        HEARTH_ASSERT(item->blob || item->copy.state == HEARTH_COPY_THERE);
        check_item(cache, item, count);
    }
}

/* Where LRU decides, a talk with pages that may go stands where the first of them belongs. */
static void check_order(const struct hearth_returns *returns) {
    const struct hearth_talk_list *list = &returns->offering[HEARTH_TALK_PAGES];
    for (size_t i = 0; i < list->n && !hearth_returns_learns_well(returns); i++) {
        const struct hearth_talk *talk = hearth_returns_talk(returns, list->talks[i]);
        const double rank = talk->victims[HEARTH_TALK_PAGES].v[0].priority;
        const double place = list->least.v[talk->least[HEARTH_TALK_PAGES].index - 1].priority;
        HEARTH_ASSERT(place >= rank && place <= rank);
    }
}

static void check_pool(const struct hearth_cache *cache, const struct hearth_cache_pool *pool,
                       const struct pool_count *count) {
    size_t victims = 0;
    for (uint32_t talk = 0; talk < cache->returns->talk_count; talk++) {
        const struct hearth_heap *heap = &hearth_returns_talk(cache->returns, talk)->victims[pool->victims];
        check_heap(heap);
        victims += heap->n;
    }
    check_heap(&pool->leases);
    check_heap(&cache->returns->offering[pool->victims].least);
    HEARTH_ASSERT(cache->returns->offering[pool->victims].least.n == cache->returns->offering[pool->victims].n);
    HEARTH_ASSERT(count->in_heap == victims && victims == cache->returns->victims[pool->victims]);
    HEARTH_ASSERT(count->leased == pool->leases.n);
    HEARTH_ASSERT(count->leased_bytes == pool->leased_bytes && pool->leased_bytes <= pool->budget_bytes / 2);
    /* Pending snapshots of live sequences cannot be evicted, so after the budget was lowered it is kept only once they
     * are captured. */
    HEARTH_ASSERT(pool->used_bytes <= pool->budget_bytes || victims == 0);
}

void hearth_cache_check(const struct hearth_cache *cache) {
    struct census count = {.copies = 0};
    hearth_tree_check(&cache->tree);
    for (uint32_t i = 0; i < cache->tree.root_count; i++) {
        for (const struct hearth_page *page = cache->tree.roots[i]; page; page = hearth_tree_next(page)) {
            check_page(cache, page, &count);
        }
    }
    check_pool(cache, &cache->pages, &count.pages);
    check_pool(cache, &cache->snapshots, &count.snapshots);
    check_order(cache->returns);
    HEARTH_ASSERT(count.pages.bytes == cache->pages.used_bytes);
    size_t owned_bytes = 0;
    for (size_t i = 0; i < cache->shares.n; i++) {
        owned_bytes += cache->shares.owners[i].bytes;
    }
    HEARTH_ASSERT(owned_bytes == count.pages.bytes + count.snapshots.bytes);
    HEARTH_ASSERT(count.copies == cache->copies.count && count.writing == cache->writing);
}
