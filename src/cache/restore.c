/* Restore: a plan carried out.
 *
 * Order matters to the engine: addressable state first (shared from a live sequence, then imported page by page), the
 * snapshot last, because sharing replaces the target's non-addressable state.
 *
 * Invariant: when a step fails the target ends empty, in the engine and in its token list, and what failed is dropped
 * from the store, so that the next plan cannot choose it again. */
#include "cache/store.h"

#include "base/assert.h"
#include "base/log.h"

struct restore {
    struct hearth_cache *cache;
    const struct hearth_plan *plan;
    struct hearth_live *target;
    struct hearth_live *source; /* NULL when nothing live is used */
    size_t bytes, pieces;       /* imported */
    struct hearth_page *bad_page;         /* what to drop after a failure */
    struct hearth_snapshot *bad_snapshot;
};

/* Addressable state [0, live_tokens) of the source; the target is empty of everything else afterwards. */
static int take_live(struct restore *r) {
    const struct hearth_engine_ops *ops = r->cache->engine->ops;
    int32_t n = r->plan->live_tokens;
    if (r->source == r->target)
        return ops->seq_keep(r->cache->engine, r->target->seq, n);
    ops->seq_clear(r->cache->engine, r->target->seq);
    return r->source && n > 0 ? ops->seq_share(r->cache->engine, r->source->seq, r->target->seq, 0, n) : HEARTH_OK;
}

static int import_pages(struct restore *r) {
    struct hearth_cache *cache = r->cache;
    const struct hearth_path *path = &cache->path;
    int32_t at = r->plan->live_tokens;
    for (size_t i = 0; i < path->n && at < r->plan->resume; i++) {
        int32_t end = hearth_path_end(path, i);
        if (end <= at)
            continue;
        if (end > r->plan->resume)
            end = r->plan->resume;
        struct hearth_page *page = path->pages[i];
        const void *bytes;
        size_t len;
        int err = cache->tier->ops->view(cache->tier, page->blob, &bytes, &len);
        if (!err)
            err = cache->engine->ops->page_import(cache->engine, r->target->seq, at, end, bytes, len, page->p0,
                                                  page->p0 + page->len);
        if (err) {
            r->bad_page = page;
            return err;
        }
        r->bytes += len;
        r->pieces++;
        at = end;
    }
    HEARTH_ASSERT(at == r->plan->resume);
    return HEARTH_OK;
}

static int import_snapshot(struct restore *r, const struct hearth_blob *blob) {
    struct hearth_cache *cache = r->cache;
    const void *bytes;
    size_t len;
    int err = cache->tier->ops->view(cache->tier, blob, &bytes, &len);
    if (err)
        return err;
    r->bytes += len;
    r->pieces++;
    return cache->engine->ops->snapshot_import(cache->engine, r->target->seq, r->plan->resume, bytes, len);
}

/* ---- one function per way to resume ---- */

static int resume_in_place(struct restore *r) {
    if (r->plan->resume == (int32_t)r->target->tokens.n)
        return HEARTH_OK;
    return r->cache->engine->ops->seq_rewind(r->cache->engine, r->target->seq, r->plan->resume);
}

static int resume_live_end(struct restore *r) {
    struct hearth_engine *engine = r->cache->engine;
    struct hearth_buf state = {0};
    int err = engine->ops->snapshot_export(engine, r->source->seq, r->plan->resume, &state);
    if (!err)
        err = take_live(r);
    if (!err)
        err = engine->ops->snapshot_import(engine, r->target->seq, r->plan->resume, state.data, state.len);
    hearth_buf_finish(&state);
    return err;
}

static int resume_live_snapshot(struct restore *r) {
    HEARTH_ASSERT(r->source != r->target);
    int err = take_live(r);
    return err ? err : import_snapshot(r, r->plan->pending->blob);
}

static int resume_stored(struct restore *r) {
    int err = take_live(r);
    if (!err && hearth_caps_has_pages(&r->cache->engine->caps))
        err = import_pages(r);
    if (!err && r->plan->snapshot) {
        err = import_snapshot(r, r->plan->snapshot->blob);
        if (err)
            r->bad_snapshot = r->plan->snapshot;
    }
    return err;
}

static int resume(struct restore *r) {
    switch (r->plan->how) {
    case HEARTH_RESUME_IN_PLACE: return resume_in_place(r);
    case HEARTH_RESUME_SHARE: return take_live(r);
    case HEARTH_RESUME_LIVE_END: return resume_live_end(r);
    case HEARTH_RESUME_LIVE_SNAPSHOT: return resume_live_snapshot(r);
    case HEARTH_RESUME_STORED: return resume_stored(r);
    case HEARTH_RESUME_FRESH: r->cache->engine->ops->seq_clear(r->cache->engine, r->target->seq); return HEARTH_OK;
    }
    return HEARTH_ERR_INVALID;
}

/* ---- entry ---- */

static void drop_bad(struct restore *r, int err) {
    hearth_log(HEARTH_LOG_WARN, "restoring %d tokens failed (%s): dropped, computing instead", r->plan->resume,
               hearth_err_text(err));
    r->cache->restore_failures++;
    if (r->bad_snapshot)
        hearth_store_drop_snapshot(r->cache, r->bad_snapshot);
    else if (r->bad_page)
        hearth_store_drop_page(r->cache, r->bad_page);
}

void hearth_cache_restore(struct hearth_cache *cache, const struct hearth_plan *plan, const hearth_token *prompt,
                          struct hearth_live *const *lives, struct hearth_restore *result) {
    *result = (struct hearth_restore){0};
    struct restore r = {.cache = cache,
                        .plan = plan,
                        .target = lives[plan->target],
                        .source = plan->source >= 0 ? lives[plan->source] : NULL};
    HEARTH_ASSERT(!r.target->busy);
    int64_t start_us = cache->engine->ops->now_us(cache->engine);
    int err = resume(&r);
    result->us = cache->engine->ops->now_us(cache->engine) - start_us;
    bool kept = plan->how == HEARTH_RESUME_IN_PLACE;
    if (!err && !(kept && plan->resume == (int32_t)r.target->tokens.n))
        hearth_live_forget(cache, r.target, kept ? plan->resume : 0);
    if (!err && !kept && !hearth_tokens_assign(&r.target->tokens, prompt, (size_t)plan->resume))
        err = HEARTH_ERR_NOMEM;
    if (err) {
        hearth_live_clear(cache, r.target);
        result->no_cells = err == HEARTH_ERR_NO_CELLS;
        result->failed = !result->no_cells;
        if (result->failed)
            drop_bad(&r, err);
        return;
    }
    if (r.bytes > 0)
        hearth_costs_learn(&cache->costs.import_us_per_byte,
                           (double)result->us / (double)r.bytes);
    result->resumed = plan->resume;
    result->live_tokens = plan->how == HEARTH_RESUME_STORED ? plan->live_tokens : plan->resume;
    result->ram_tokens = plan->resume - result->live_tokens;
    hearth_store_touch(cache, &cache->path, plan->resume);
}
