/* Capture: what is new of a live sequence goes to the store.
 *
 * The live tokens are matched against the tree; what matches is stored already. The rest is exported page by page: the
 * last known page grows when it was captured short, then new pages follow. Snapshots that were taken on the way are
 * attached, and one is taken at the end.
 *
 * Of a sliding window each block's part is stored behind its pages, while the sequence holds it (cache/window.c).
 *
 * Where there is a backing tier, a capture that has ended puts what the tier lacks of the path.
 *
 * Invariant: the page that capture stands on is pinned, so making room never takes the path away below it. */
#include "cache/backing.h"
#include "cache/talk.h"
#include "cache/window.h"

#include "base/prefault.h"

#include <limits.h>
#include <math.h>

/* ---- pages ---- */

static bool blob_export(struct hearth_cache *cache, struct hearth_live *live, int32_t p0, int32_t p1,
                        struct hearth_buf *out) {
    if (!hearth_caps_has_pages(&cache->engine->caps)) {
        return true;
    }
    size_t guess = (size_t)(p1 - p0) * cache->engine->caps.page_bytes_per_token;
    guess += guess / 256; /* for the blob's own header */
    if (!cache->ram->hollow) {
        *out = (struct hearth_buf){.data = hearth_prefault_take(guess), .cap = guess};
    }
    return (out->data || cache->ram->hollow) &&
           cache->engine->ops->page_export(cache->engine, live->seq, p0, p1, out) == HEARTH_OK;
}

static bool blob_put(struct hearth_cache *cache, struct hearth_buf *bytes, struct hearth_blob **out) {
    *out = NULL;
    if (!hearth_caps_has_pages(&cache->engine->caps)) {
        return true;
    }
    *out = hearth_ram_put(cache->ram, bytes, NULL);
    return *out != NULL;
}

/* About how many bytes the path takes so far. */
static size_t path_bytes(const struct hearth_cache *cache, const struct hearth_path *path) {
    size_t per_token = sizeof(hearth_token);
    if (hearth_caps_has_pages(&cache->engine->caps)) {
        per_token += cache->engine->caps.page_bytes_per_token;
    }
    return (size_t)path->matched * per_token;
}

/* The bytes for which a page of `len` tokens with this state will count (hearth_page_bytes). */
static size_t bytes_of(int32_t len, const struct hearth_buf *bytes) {
    return hearth_page_node_bytes(len) + (bytes->len > 0 ? bytes->len + HEARTH_BLOB_OVERHEAD_BYTES : 0);
}

static bool grow_page(struct hearth_cache *cache, struct hearth_live *live, struct hearth_path *path, int32_t end,
                      struct hearth_buf *bytes) {
    struct hearth_page *page = path->pages[path->n - 1];
    size_t before = hearth_cache_item_bytes(&page->item);
    size_t after = bytes_of(end - page->p0, bytes);
    struct hearth_blob *blob, *old;
    if (!hearth_cache_store_reserve_page(cache, after > before ? after - before : 0, path_bytes(cache, path))) {
        return false;
    }
    if (!blob_put(cache, bytes, &blob)) {
        return false;
    }
    before = hearth_cache_item_bytes(&page->item); /* making room may have evicted its blob */
    int32_t was = page->p0 + page->len;
    if (!hearth_tree_extend(&cache->tree, path, live->tokens.v, 0, end, blob, &old)) {
        hearth_ram_drop(cache->ram, blob);
        return false;
    }
    hearth_ram_drop(cache->ram, old);
    hearth_copy_outgrown(cache, page, was); /* a copy of the longer page will replace it */
    page->blob_p0 = page->p0;
    page->item.fetched = false;
    cache->stored_pages++;
    hearth_cache_store_changed(cache, &page->item, before);
    return true;
}

static bool add_page(struct hearth_cache *cache, struct hearth_live *live, struct hearth_path *path, int32_t end,
                     struct hearth_buf *bytes) {
    size_t need = bytes_of(end - path->matched, bytes);
    struct hearth_blob *blob;
    if (!hearth_cache_store_reserve_page(cache, need, path_bytes(cache, path)) || !blob_put(cache, bytes, &blob)) {
        return false;
    }
    struct hearth_page *page = hearth_tree_add(&cache->tree, path, live->tokens.v, 0, end, blob);
    if (!page) {
        hearth_ram_drop(cache->ram, blob);
        return false;
    }
    page->item.pins++; /* the pin moves to this page; the parent's is released below */
    cache->stored_pages++;
    hearth_cache_store_page_added(cache, page);
    hearth_cache_store_unpin(cache, &page->parent->item);
    return true;
}

/* Divides a page without state that the sequence leaves at `end`, inside of it: the first part becomes a page that can
 * be filled. Otherwise nothing that hangs on it could be used until the rest of its tokens came again. */
static bool divide(struct hearth_cache *cache, struct hearth_page *page, int32_t end) {
    if (page->old || page->dead > 0 || !hearth_cache_store_reserve_page(cache, HEARTH_PAGE_NODE_BYTES, 0)) {
        return false;
    }
    const size_t before = hearth_cache_item_bytes(&page->item);
    struct hearth_page *back = hearth_tree_divide(&cache->tree, page, end);
    if (!back) {
        return false;
    }
    hearth_cache_store_changed(cache, &page->item, before);
    hearth_cache_store_page_added(cache, back);
    hearth_cache_store_drop_state(cache, back); /* it is removed, unless it has children */
    return true;
}

/* Stores again what pages of the path have lost. */
static bool fill_holes(struct hearth_cache *cache, struct hearth_live *live, const struct hearth_path *path) {
    for (size_t i = 0; i < path->n && hearth_caps_has_pages(&cache->engine->caps); i++) {
        struct hearth_page *page = path->pages[i];
        int32_t end = hearth_path_end(path, i);
        if (hearth_cache_store_has_state(cache, page) || (end < page->p0 + page->len && !divide(cache, page, end))) {
            continue;
        }
        struct hearth_buf bytes = {0};
        struct hearth_blob *blob = NULL;
        bool ok =
            blob_export(cache, live, page->p0, end, &bytes) &&
            hearth_cache_store_reserve_page(cache, bytes.len + HEARTH_BLOB_OVERHEAD_BYTES, path_bytes(cache, path)) &&
            blob_put(cache, &bytes, &blob);
        hearth_buf_finish(&bytes);
        if (!ok) {
            return false;
        }
        size_t before = hearth_cache_item_bytes(&page->item);
        page->item.blob = blob;
        page->blob_p0 = page->p0;
        cache->stored_pages++;
        hearth_cache_store_changed(cache, &page->item, before);
    }
    return true;
}

/* Stores the page that starts at (or grows from) the end of the path. False: it could not be stored. */
static bool store_page(struct hearth_cache *cache, struct hearth_live *live, struct hearth_path *path) {
    int32_t end = hearth_tree_page_end(&cache->tree, path->matched, (int32_t)live->tokens.n);
    bool grows = hearth_tree_can_extend(&cache->tree, path);
    int32_t p0 = grows ? path->pages[path->n - 1]->p0 : path->matched;
    struct hearth_buf bytes = {0};
    bool ok = blob_export(cache, live, p0, end, &bytes) &&
              (grows ? grow_page(cache, live, path, end, &bytes) : add_page(cache, live, path, end, &bytes));
    hearth_buf_finish(&bytes);
    return ok;
}

/* ---- snapshots ---- */

static bool has_window(const struct hearth_cache *cache) {
    return cache->engine->caps.window_tokens > 0;
}

/* The pages between two snapshots take at least so many times the bytes of a snapshot. Otherwise the snapshots of one
 * long prompt would fill RAM and push out what other conversations need. */
#define INTERVAL_TIMES 32
/* Snapshots are taken inside a head only if the budget has room for so many. In a smaller budget they would keep out
 * the snapshots of replies, and conversations would compute their turns again. */
#define HEAD_ROOM 8

/* A reply's snapshot makes the ones before it on its path less likely to be asked for. */
static void supersede(struct hearth_cache *cache, const struct hearth_path *path, int32_t pos) {
    int32_t at = pos - 1;
    for (int back = 0; back < 4; back++) {
        struct hearth_snapshot *before = hearth_path_snapshot(path, at);
        if (!before) {
            return;
        }
        if (before->kind == HEARTH_SNAPSHOT_REPLY_END || before->kind == HEARTH_SNAPSHOT_PROMPT_END) {
            hearth_copies_supersede(cache, before);
        }
        at = before->pos - 1;
    }
}

static void attach(struct hearth_cache *cache, const struct hearth_path *path, int32_t pos, struct hearth_blob *blob,
                   enum hearth_snapshot_kind kind) {
    size_t bytes = HEARTH_SNAPSHOT_NODE_BYTES + hearth_blob_bytes(blob);
    struct hearth_snapshot *snapshot = NULL;
    if (hearth_cache_store_reserve_snapshot(cache, bytes)) {
        snapshot = hearth_tree_add_snapshot(&cache->tree, path, pos, blob, kind);
    }
    if (!snapshot) {
        hearth_ram_drop(cache->ram, blob);
        return;
    }
    if (has_window(cache)) {
        const int32_t window = cache->engine->caps.window_tokens;
        snapshot->p0 = pos > window ? pos - window : 0;
    }
    if (kind == HEARTH_SNAPSHOT_REPLY_END) {
        supersede(cache, path, pos);
    }
    (void)hearth_cache_store_snapshot_added(cache, snapshot);
}

static void attach_pending(struct hearth_cache *cache, struct hearth_live *live, const struct hearth_path *path) {
    for (int i = 0; i < live->snapshot_count; i++) {
        struct hearth_live_snapshot *pending = &live->snapshots[i];
        cache->snapshots.used_bytes -= hearth_blob_bytes(pending->blob);
        if (pending->pos <= path->matched && !hearth_tree_has_snapshot(path, pending->pos) &&
            !(has_window(cache) && hearth_window_covers(cache, path, pending->pos))) {
            attach(cache, path, pending->pos, pending->blob, pending->kind);
        } else {
            hearth_ram_drop(cache->ram, pending->blob);
        }
    }
    live->snapshot_count = 0;
}

/* Exports the state of the sequence where it stands into the RAM tier; NULL: that failed. */
static struct hearth_blob *export_here(struct hearth_cache *cache, struct hearth_live *live) {
    struct hearth_buf bytes = {0};
    struct hearth_blob *blob = NULL;
    if ((cache->ram->hollow || hearth_buf_reserve(&bytes, cache->engine->caps.snapshot_bytes)) &&
        cache->engine->ops->snapshot_export(cache->engine, live->seq, (int32_t)live->tokens.n, &bytes) == HEARTH_OK) {
        blob = hearth_ram_put(cache->ram, &bytes, NULL);
    }
    hearth_buf_finish(&bytes);
    return blob;
}

bool hearth_cache_stores(const struct hearth_cache *cache) {
    return cache->engine->caps.cache_ok && cache->pages.budget_bytes + cache->snapshots.budget_bytes > 0;
}

int32_t hearth_cache_snapshot_interval(const struct hearth_caps *caps, int32_t least) {
    const size_t pages = (size_t)least * caps->page_bytes_per_token;
    if (least <= 0 || !hearth_caps_has_pages(caps) || caps->window_tokens > 0) {
        return least;
    }
    const size_t times = (INTERVAL_TIMES * caps->snapshot_bytes + pages - 1) / pages;
    return times * (size_t)least < INT32_MAX / 2 ? (int32_t)(times > 1 ? times : 1) * least : INT32_MAX / 2;
}

bool hearth_cache_snapshot(struct hearth_cache *cache, struct hearth_live *live, enum hearth_snapshot_kind kind) {
    int32_t pos = (int32_t)live->tokens.n;
    if (!hearth_cache_stores(cache) || !hearth_caps_needs_snapshot(&cache->engine->caps) || pos == 0 ||
        live->snapshot_count == HEARTH_LIVE_SNAPSHOTS_MAX) {
        return false;
    }
    /* A snapshot that is not captured yet cannot be evicted: in a budget for a few, snapshots inside a head would
     * keep out those that the next turn needs. */
    if (kind == HEARTH_SNAPSHOT_HEAD &&
        cache->engine->caps.snapshot_bytes > cache->snapshots.budget_bytes / HEAD_ROOM) {
        return false;
    }
    /* With a sliding window each piece is stored as it is computed; only a request that waits for a fork needs one
     * sooner. */
    if (has_window(cache) && kind != HEARTH_SNAPSHOT_DIVERGENCE) {
        return false;
    }
    if (live->snapshot_count > 0 && live->snapshots[live->snapshot_count - 1].pos >= pos) {
        return false;
    }
    struct hearth_page *root = hearth_cache_root(cache, live->salt, false);
    if (!hearth_tree_match(root, live->tokens.v, live->tokens.n, &cache->scratch) ||
        hearth_tree_has_snapshot(&cache->scratch, pos)) {
        return false;
    }
    struct hearth_blob *blob = export_here(cache, live);
    if (!blob) {
        return false;
    }
    cache->shares.asks = root ? root->item.owner : HEARTH_SHARE_NONE;
    const bool room = hearth_cache_store_reserve_snapshot(cache, hearth_blob_bytes(blob));
    cache->shares.asks = HEARTH_SHARE_NONE;
    if (!room) {
        hearth_ram_drop(cache->ram, blob);
        return false;
    }
    cache->snapshots.used_bytes += hearth_blob_bytes(blob);
    live->snapshots[live->snapshot_count++] = (struct hearth_live_snapshot){.pos = pos, .blob = blob, .kind = kind};
    live->dirty = true;
    return true;
}

/* ---- capture ---- */

bool hearth_cache_capture_pending(const struct hearth_cache *cache, const struct hearth_live *live) {
    /* Pending snapshots must be stored or freed even if the budget was set to 0 meanwhile. */
    return live->dirty && (hearth_cache_stores(cache) || live->snapshot_count > 0);
}

/* Ends a capture once the pages are stored, as far as possible: stores the snapshots, then writes what the backing tier
 * lacks. */
static void finish_capture(struct hearth_cache *cache, struct hearth_live *live, const struct hearth_path *path,
                           bool whole) {
    int32_t n = (int32_t)live->tokens.n;
    enum hearth_snapshot_kind kind = live->prefetched ? HEARTH_SNAPSHOT_INTERVAL : HEARTH_SNAPSHOT_REPLY_END;
    attach_pending(cache, live, path);
    if (whole && n > 0 && has_window(cache)) {
        hearth_window_store_end(cache, live, path, kind);
    } else if (whole && n > 0 && hearth_caps_needs_snapshot(&cache->engine->caps) &&
               !hearth_tree_has_snapshot(path, n)) {
        struct hearth_blob *blob = export_here(cache, live);
        if (blob) {
            attach(cache, path, n, blob, kind);
        }
    }
    live->dirty = false;
    hearth_path_revive(path);
    hearth_talk_end(cache, live, path);
    hearth_cache_store_lease_live(cache, path, live);
    hearth_live_drop_pins(live, path->matched);
    hearth_copies_write(cache, path, live);
}

/* Leaves a ghost for what RAM did not take, as if it had been evicted. */
static void leave_unstored(struct hearth_cache *cache, const struct hearth_live *live, const struct hearth_path *path,
                           struct hearth_page *tail) {
    const int32_t at = path->matched, n = (int32_t)live->tokens.n;
    const size_t token_bytes =
        hearth_caps_has_pages(&cache->engine->caps) ? cache->engine->caps.page_bytes_per_token : sizeof(hearth_token);
    struct hearth_ghost ghost = {.offset = at - tail->p0,
                                 .end = n,
                                 .used = cache->tree.now,
                                 .gone = cache->tree.now,
                                 .page_bytes = (size_t)(n - at) * token_bytes};
    hearth_ghost_describe(&ghost, live->tokens.v + at, hearth_tree_page_end(&cache->tree, at, n) - at);
    hearth_ghost_leave(tail, &ghost, NULL);
}

/* Stores at most `pages` pages of [0, n). `ahead`: the sequence goes on, so that what belongs to its end is left alone.
 */
static enum hearth_capture capture(struct hearth_cache *cache, struct hearth_live *live, int32_t n, int pages,
                                   bool ahead) {
    struct hearth_path *path = &cache->scratch;
    if (!hearth_cache_capture_pending(cache, live)) {
        live->dirty = false;
        return HEARTH_CAPTURE_DONE;
    }
    struct hearth_page *root = hearth_cache_root(cache, live->salt, true);
    bool ok = root && hearth_tree_match(root, live->tokens.v, live->tokens.n, path);
    if (!ok) {
        path->n = 0, path->matched = 0, path->root = root;
    }
    struct hearth_page *base = path->n ? path->pages[path->n - 1] : root;
    size_t known = path->n;
    if (base) {
        hearth_cache_store_pin(cache, &base->item);
    }
    cache->newcomer = hearth_talk_worth(cache, live);
    cache->shares.asks = root ? root->item.owner : HEARTH_SHARE_NONE;
    ok = ok && fill_holes(cache, live, path);
    bool grew = ok && hearth_tree_can_extend(&cache->tree, path);
    while (ok && path->matched < n && pages-- > 0) {
        ok = store_page(cache, live, path);
    }
    if (has_window(cache)) {
        hearth_window_store(cache, live, path, n);
    }
    cache->newcomer = INFINITY;
    if (!ok) { /* what was stored goes to the backing tier, and makes room once it is written */
        hearth_copies_write(cache, path, live);
    }
    bool full = !ok && cache->writing > 0;
    bool more = ahead || (ok && path->matched < n) || full;
    if (!more) {
        finish_capture(cache, live, path, ok);
    } else {
        hearth_cache_store_lease_live(cache, path, live);
    }
    struct hearth_page *tail = path->n ? path->pages[path->n - 1] : root;
    if (tail && !ok && !full && !ahead && path->matched < n) {
        leave_unstored(cache, live, path, tail);
    }
    if (tail) {
        hearth_cache_store_unpin(cache, &tail->item);
    }
    for (size_t i = known - (grew && known > 0); i < path->n; i++) {
        hearth_arrive_behind(cache, path->pages[i]);
    }
    if (!more && tail) {
        hearth_cache_store_prune(cache, tail);
    }
    cache->shares.asks = HEARTH_SHARE_NONE;
    return !more ? HEARTH_CAPTURE_DONE : full ? HEARTH_CAPTURE_FULL : HEARTH_CAPTURE_MORE;
}

enum hearth_capture hearth_cache_capture(struct hearth_cache *cache, struct hearth_live *live, int pages) {
    return capture(cache, live, (int32_t)live->tokens.n, pages, false);
}

void hearth_cache_capture_ahead(struct hearth_cache *cache, struct hearth_live *live, int pages) {
    (void)capture(cache, live, (int32_t)live->tokens.n, pages, true);
}

bool hearth_cache_window_due(const struct hearth_cache *cache, const struct hearth_live *live) {
    const int32_t page = cache->tree.page_tokens;
    return has_window(cache) && hearth_cache_stores(cache) && (int32_t)live->tokens.n / page > live->windowed / page;
}

void hearth_cache_capture_window(struct hearth_cache *cache, struct hearth_live *live) {
    const int32_t n = (int32_t)live->tokens.n / cache->tree.page_tokens * cache->tree.page_tokens;
    live->windowed = n;
    (void)capture(cache, live, n, INT_MAX, true);
}
