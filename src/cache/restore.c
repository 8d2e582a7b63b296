/* Carries a plan out, and notes the use of its path.
 *
 * The engine needs this order: first the addressable state (shared from a live sequence, then imported page by page),
 * last the snapshot or the pieces of the window, because sharing replaces the target's non-addressable state.
 *
 * State that only the backing tier has is asked for ahead of its turn, a limited number of bytes at a time, and becomes
 * a blob in RAM when it comes: page k + 1 is read while page k is imported.
 *
 * Invariant: when a step fails the target ends empty, in the engine and in its token list, and what failed is dropped
 * from the store, so that the next plan cannot choose it again. */
#include "cache/backing.h"
#include "cache/talk.h"

#include "base/assert.h"
#include "base/log.h"

#define WINDOW_BYTES ((size_t)128 << 20) /* on their way from the backing tier; at most a quarter of RAM */

/* A moment: a time, and how many bytes had come from the backing tier by then. */
struct reading {
    bool known;
    int64_t at_us;
    uint64_t bytes[2]; /* from disk, from a store that boxes share */
};

struct restore {
    struct hearth_cache *cache;
    const struct hearth_plan *plan;
    struct hearth_live *target;
    struct hearth_live *source; /* NULL when nothing live is used */
    size_t bytes;               /* imported */
    int32_t disk_tokens, remote_tokens;
    struct reading asked;                 /* when the tier was first asked for something */
    struct reading since, until;          /* between these two the tier was busy: its speed is measured there */
    bool all_here;                        /* nothing is left to read */
    size_t here;                          /* how many of the path's first pages are in RAM, or are not needed */
    bool waits_remote;                    /* the item that was last waited for is in a shared store */
    struct hearth_page *bad_page;         /* the page to drop after a failure */
    struct hearth_snapshot *bad_snapshot; /* the snapshot to drop after a failure */
    bool gone;                            /* the restore failed because state was removed meanwhile */
    bool polled;                          /* events of the backing tier have been taken */
    uint64_t bad_reads;                   /* the cache's counter before the restore */
};

/* ---- reading ---- */

static struct reading read_so_far(const struct hearth_cache *cache) {
    return (struct reading){.known = true,
                            .at_us = cache->engine->ops->now_us(cache->engine),
                            .bytes = {cache->read_bytes[false], cache->read_bytes[true]}};
}

static uint64_t read_between(const struct reading *from, const struct reading *to) {
    return to->bytes[false] - from->bytes[false] + to->bytes[true] - from->bytes[true];
}

static void note_asked(struct restore *r) {
    if (!r->asked.known) {
        r->asked = read_so_far(r->cache);
    }
}

/* The restore begins to wait for an item. If nothing has come yet, the tier has been busy since it was first asked. */
static void note_wait(struct restore *r) {
    const struct reading now = read_so_far(r->cache);
    if (!r->since.known && read_between(&r->asked, &now) == 0) {
        r->since = r->asked;
    }
}

/* The item has come. The time before the first wait is not measured: the tier may have been idle while state in RAM was
 * imported. */
static void note_came(struct restore *r) {
    *(r->since.known ? &r->until : &r->since) = read_so_far(r->cache);
}

/* Asks for what comes behind `from`, as far as the window allows. State that is read too early would push out of RAM
 * what was read before and is not imported yet. */
static void read_ahead(struct restore *r, int32_t from) {
    struct hearth_cache *cache = r->cache;
    const struct hearth_path *path = &r->plan->path;
    size_t quarter = cache->pages.budget_bytes / 4;
    if (cache->backing && !r->all_here) {
        while (r->here < path->n && (hearth_path_end(path, r->here) <= from ||
                                     !hearth_copy_lacks_blob(cache, &path->pages[r->here]->item))) {
            r->here++;
        }
        const int32_t here = r->here > 0 ? hearth_path_end(path, r->here - 1) : 0;
        from = here > from ? here : from;
        r->all_here = hearth_copies_fetch(cache, path, from, r->plan->resume, r->plan->pieces, r->plan->piece_count,
                                          quarter < WINDOW_BYTES ? quarter : WINDOW_BYTES) == 0;
    }
    if (cache->backing && !r->all_here) {
        note_asked(r);
    }
}

/* Waits until an item's blob is in RAM. */
static int await(struct restore *r, struct hearth_cache_item *item) {
    struct hearth_cache *cache = r->cache;
    bool waited = false;
    for (bool asked = false; !item->blob; asked = true) {
        note_asked(r);
        if ((asked && !item->copy.reading) || !hearth_copy_fetch(cache, item)) {
            r->gone = r->bad_reads == cache->bad_reads;
            return HEARTH_ERR_STATE; /* it came and was unusable, or cannot come */
        }
        r->waits_remote = item->copy.remote;
        if (hearth_copies_poll(cache)) {
            r->polled = true;
            continue;
        }
        note_wait(r);
        waited = true;
        if (!hearth_cache_wait(cache, HEARTH_BACKING_WAIT_US)) {
            return HEARTH_ERR_IO;
        }
    }
    if (waited) {
        note_came(r);
    }
    return HEARTH_OK;
}

/* Gives the target the addressable state [0, live_tokens) of the source, and nothing else. */
static int take_live(struct restore *r) {
    const struct hearth_engine_ops *ops = r->cache->engine->ops;
    int32_t n = r->plan->live_tokens;
    if (r->source == r->target) {
        return ops->seq_keep(r->cache->engine, r->target->seq, n);
    }
    ops->seq_clear(r->cache->engine, r->target->seq);
    return r->source && n > 0 ? ops->seq_share(r->cache->engine, r->source->seq, r->target->seq, 0, n) : HEARTH_OK;
}

/* Fills `*bytes` with a blob's bytes. A `fresh` blob was verified a moment ago, when it was read. */
static int view(struct restore *r, const struct hearth_blob *blob, bool fresh, const void **bytes, size_t *len) {
    int err = HEARTH_OK;
    if (fresh) {
        *bytes = hearth_blob_data(blob, len);
    } else {
        err = hearth_ram_view(r->cache->ram, blob, bytes, len);
    }
    r->bytes += *len;
    return err;
}

/* Counts the tokens of an item that is used for the first time since it was read. */
static void count_fetched(struct restore *r, struct hearth_cache_item *item, int32_t tokens) {
    *(item->fetched_remote ? &r->remote_tokens : &r->disk_tokens) += tokens;
    item->fetched = false;
}

static int import_pages(struct restore *r) {
    struct hearth_cache *cache = r->cache;
    const struct hearth_path *path = &r->plan->path;
    int32_t at = r->plan->live_tokens;
    read_ahead(r, at);
    for (size_t i = 0; i < path->n && at < r->plan->resume; i++) {
        int32_t end = hearth_path_end(path, i);
        if (end <= at) {
            continue;
        }
        if (end > r->plan->resume) {
            end = r->plan->resume;
        }
        struct hearth_page *page = path->pages[i];
        const void *bytes;
        size_t len = 0;
        int err = await(r, &page->item);
        read_ahead(r, end);
        if (!err) {
            err = view(r, page->item.blob, page->item.fetched, &bytes, &len);
        }
        if (!err) {
            err = cache->engine->ops->page_import(cache->engine, r->target->seq, at, end, bytes, len, page->blob_p0,
                                                  page->p0 + page->len);
        }
        if (err) {
            r->bad_page = page;
            return err;
        }
        if (page->item.fetched) {
            count_fetched(r, &page->item, end - at);
        }
        at = end;
    }
    HEARTH_ASSERT(at == r->plan->resume);
    return HEARTH_OK;
}

static int import_snapshot(struct restore *r, const struct hearth_blob *blob, bool fresh) {
    struct hearth_cache *cache = r->cache;
    const void *bytes;
    size_t len = 0;
    int err = view(r, blob, fresh, &bytes, &len);
    return err ? err : cache->engine->ops->snapshot_import(cache->engine, r->target->seq, r->plan->resume, bytes, len);
}

/* ---- one function per way to resume ---- */

static int resume_in_place(struct restore *r) {
    if (r->plan->resume == (int32_t)r->target->tokens.n) {
        return HEARTH_OK;
    }
    return r->cache->engine->ops->seq_rewind(r->cache->engine, r->target->seq, r->plan->resume);
}

static int resume_live_end(struct restore *r) {
    struct hearth_engine *engine = r->cache->engine;
    struct hearth_buf state = {0};
    int err = engine->ops->snapshot_export(engine, r->source->seq, r->plan->resume, &state);
    if (!err) {
        err = take_live(r);
    }
    if (!err) {
        err = engine->ops->snapshot_import(engine, r->target->seq, r->plan->resume, state.data, state.len);
    }
    hearth_buf_finish(&state);
    return err;
}

static int resume_live_snapshot(struct restore *r) {
    int err = take_live(r);
    return err ? err : import_snapshot(r, r->plan->pending->blob, false);
}

/* Imports one piece of the window, up to where the next piece begins or the sequence ends. */
static int import_piece(struct restore *r, size_t i) {
    struct hearth_cache *cache = r->cache;
    const struct hearth_snapshot *piece = r->plan->pieces[i];
    int32_t end = i + 1 < r->plan->piece_count ? r->plan->pieces[i + 1]->p0 : r->plan->resume;
    const void *bytes;
    size_t len = 0;
    int err = view(r, piece->item.blob, piece->item.fetched, &bytes, &len);
    return err ? err
               : cache->engine->ops->window_import(cache->engine, r->target->seq, piece->p0, end, bytes, len, i == 0);
}

static int import_stored_snapshots(struct restore *r) {
    const struct hearth_caps *caps = &r->cache->engine->caps;
    for (size_t i = 0; i < r->plan->piece_count; i++) {
        struct hearth_snapshot *snapshot = r->plan->pieces[i];
        int err = await(r, &snapshot->item);
        if (!err) {
            err = caps->window_tokens > 0 ? import_piece(r, i)
                                          : import_snapshot(r, snapshot->item.blob, snapshot->item.fetched);
        }
        if (err) {
            r->bad_snapshot = snapshot;
            return err;
        }
        if (snapshot->item.fetched) {
            count_fetched(r, &snapshot->item, hearth_caps_has_pages(caps) ? 0 : r->plan->resume);
        }
    }
    return HEARTH_OK;
}

static int resume_stored(struct restore *r) {
    int err = take_live(r);
    if (!err && hearth_caps_has_pages(&r->cache->engine->caps)) {
        err = import_pages(r);
    }
    if (!err) {
        err = import_stored_snapshots(r);
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

/* Pins what the restore needs, because reading may evict state from RAM. */
static void hold(struct restore *r) {
    struct hearth_cache *cache = r->cache;
    if (r->plan->how != HEARTH_RESUME_STORED) {
        return;
    }
    cache->restoring = true;
    hearth_cache_store_pin(cache, &r->plan->path.pages[r->plan->path.n - 1]->item);
    for (size_t i = 0; i < r->plan->piece_count; i++) {
        hearth_cache_store_pin(cache, &r->plan->pieces[i]->item);
    }
}

/* Where the learnt cost per byte of the disk, or of the store, is kept. */
static double *learnt(struct hearth_cache *cache, bool remote) {
    cache->learnt_us[remote] = cache->engine->ops->now_us(cache->engine);
    return remote ? &cache->costs.remote_us_per_byte : &cache->costs.backing_us_per_byte;
}

/* Unpins what hold() has pinned. After a failure it drops the state that the engine refused or that did not verify, and
 * the copy that it came from. Pages come first: dropping a snapshot may remove a page that nothing else keeps. */
static void let_go(struct restore *r, int err) {
    struct hearth_cache *cache = r->cache;
    bool bad = err && err != HEARTH_ERR_NO_CELLS && err != HEARTH_ERR_IO;
    if (r->plan->how != HEARTH_RESUME_STORED) {
        return;
    }
    cache->restoring = false;
    hearth_cache_store_unpin(cache, &r->plan->path.pages[r->plan->path.n - 1]->item);
    for (size_t i = 0; i < r->plan->piece_count; i++) {
        hearth_cache_store_unpin(cache, &r->plan->pieces[i]->item);
    }
    if (bad && r->bad_page) {
        size_t before = hearth_cache_item_bytes(&r->bad_page->item);
        if (r->bad_page->item.fetched) {
            hearth_copy_reject(cache, &r->bad_page->item, "the engine refused it");
        }
        hearth_cache_store_changed(cache, &r->bad_page->item, before);
        hearth_cache_store_drop_state(cache, r->bad_page);
    }
    for (size_t i = r->plan->piece_count; i-- > 0;) {
        struct hearth_snapshot *snapshot = r->plan->pieces[i];
        bool refused = bad && snapshot == r->bad_snapshot;
        if (refused && snapshot->item.fetched) {
            hearth_copy_reject(cache, &snapshot->item, "the engine refused it");
        }
        if (refused || (!snapshot->item.blob && snapshot->item.copy.state == HEARTH_COPY_NONE)) {
            hearth_cache_store_drop_snapshot(cache, snapshot);
        }
    }
    if (err == HEARTH_ERR_IO) {
        /* The state did not come in time: computing is probably faster. */
        *learnt(cache, r->waits_remote) *= 8;
    }
    if (err) {
        hearth_cache_store_shrink(cache);
    }
}

/* Whether the prompt goes on from the end of a reply, or from the snapshot just before one; NOTHING if that is not
 * certain. */
static enum hearth_came_from came_from(const struct hearth_plan *plan, const struct restore *r) {
    if (plan->how == HEARTH_RESUME_LIVE_END ||
        (plan->how == HEARTH_RESUME_IN_PLACE && plan->resume == (int32_t)r->target->tokens.n)) {
        return r->source->prefetched ? HEARTH_FROM_NOTHING : HEARTH_FROM_REPLY;
    }
    const struct hearth_snapshot *last = plan->piece_count > 0 ? plan->pieces[plan->piece_count - 1] : NULL;
    if ((!last && !plan->pending) || (last && last->pos != plan->resume)) {
        return HEARTH_FROM_NOTHING;
    }
    switch (last ? last->kind : plan->pending->kind) {
    case HEARTH_SNAPSHOT_REPLY_END: return HEARTH_FROM_REPLY;
    case HEARTH_SNAPSHOT_PROMPT_END: return HEARTH_FROM_PROMPT;
    default: return HEARTH_FROM_NOTHING;
    }
}

/* Learns how fast the tier reads or, if nothing was read, how fast state in RAM is imported. */
static void learn(struct hearth_cache *cache, const struct restore *r, int64_t us) {
    const uint64_t read = r->until.known ? read_between(&r->since, &r->until) : 0;
    if (read > 0) {
        const bool remote = (r->until.bytes[true] - r->since.bytes[true]) * 2 > read;
        hearth_costs_learn_bytes(learnt(cache, remote), r->until.at_us - r->since.at_us, read);
    } else if (!r->asked.known && r->bytes > 0) {
        hearth_costs_learn_bytes(&cache->costs.import_us_per_byte, us, r->bytes);
    }
}

/* Counts a use of the path up to `resume`. */
static void touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume) {
    hearth_path_revive(path);
    for (size_t i = 0; i < path->n && path->pages[i]->p0 < resume; i++) {
        struct hearth_page *page = path->pages[i];
        hearth_cache_store_hit(cache, &page->item);
    }
    struct hearth_snapshot *snapshots[HEARTH_PIECES_MAX];
    size_t count =
        hearth_path_cover(path, resume, cache->engine->caps.window_tokens, cache->tree.page_tokens, snapshots);
    for (size_t i = 0; i < count; i++) {
        hearth_cache_store_hit(cache, &snapshots[i]->item);
    }
    hearth_copies_touch(cache, path, resume, snapshots, count);
}

void hearth_cache_restore(struct hearth_cache *cache, const struct hearth_plan *plan,
                          const struct hearth_cache_prompt *prompt, struct hearth_live *const *lives,
                          struct hearth_restore *result) {
    *result = (struct hearth_restore){0};
    struct restore r = {.cache = cache,
                        .plan = plan,
                        .target = lives[plan->target],
                        .source = plan->source >= 0 ? lives[plan->source] : NULL,
                        .bad_reads = cache->bad_reads};
    HEARTH_ASSERT(!r.target->busy);
    enum hearth_came_from from = came_from(plan, &r); /* before the plan's snapshots may be dropped */
    int64_t start_us = cache->engine->ops->now_us(cache->engine);
    hold(&r);
    int err = resume(&r);
    result->polled = r.polled;
    result->us = cache->engine->ops->now_us(cache->engine) - start_us;
    bool in_place = plan->how == HEARTH_RESUME_IN_PLACE;
    if (!err && !(in_place && plan->resume == (int32_t)r.target->tokens.n)) {
        hearth_live_truncate(cache, r.target, in_place ? plan->resume : 0);
    }
    if (!err && !in_place && !hearth_tokens_assign(&r.target->tokens, prompt->tokens, (size_t)plan->resume)) {
        err = HEARTH_ERR_NOMEM;
    }
    if (err) {
        hearth_live_clear(cache, r.target);
        result->no_cells = err == HEARTH_ERR_NO_CELLS;
        result->failed = !result->no_cells;
        result->gone = r.gone;
        cache->restore_failures += result->failed;
        if (result->failed) {
            hearth_log(HEARTH_LOG_WARN, "restoring %d tokens failed (%s): computing instead", plan->resume,
                       hearth_err_text(err));
        }
        let_go(&r, err);
        return;
    }
    let_go(&r, HEARTH_OK);
    r.target->salt = prompt->salt;
    r.target->came_from = from;
    r.target->prefetched = false;
    r.target->came_at = plan->resume;
    hearth_talk_begin(cache, r.target, prompt, &plan->path);
    learn(cache, &r, result->us);
    result->resumed = plan->resume;
    result->live_tokens = plan->how == HEARTH_RESUME_STORED ? plan->live_tokens : plan->resume;
    result->disk_tokens = r.disk_tokens;
    result->remote_tokens = r.remote_tokens;
    result->ram_tokens = plan->resume - result->live_tokens - r.disk_tokens - r.remote_tokens;
    touch(cache, &plan->path, plan->resume);
    hearth_cache_store_shrink(cache);
}
