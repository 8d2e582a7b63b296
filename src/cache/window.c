/* Sliding windows in pieces.
 *
 * Where the pages of a block end, its part of the window is stored as a snapshot of kind WINDOW, cut into equal pieces
 * where a window is shorter than a block. The end of a reply has a shorter piece, which goes when that of the whole
 * block comes. So a position is held once, and position n is resumed from the pieces over [n - window, n), the last of
 * which may be cut (hearth_path_cover()):
 *
 *     tokens    0        256        512        768   900
 *     pieces    [--------)[---------)[---------)[----)       a reply ends at 900
 *     fork at 600, a window of 300:   [300 --- 600)          two pieces, both cut at one side
 *
 * The engine drops what a window has left behind, so pieces are taken while a sequence is computed. What was refused
 * (no room, no longer there) leaves a gap: positions behind it can be resumed again when a window has passed.
 *
 * Invariant: a piece lies within a block of pages, or is a whole window that ends at its position. */
#include "cache/window.h"

/* The length of the pieces into which a block is cut. */
static int32_t piece_tokens(const struct hearth_cache *cache) {
    const int32_t block = cache->tree.page_tokens, most = cache->engine->caps.window_tokens + 1;
    const int32_t pieces = (block + most - 1) / most;
    return (block + pieces - 1) / pieces;
}

/* Where the piece with position `pos` begins, and where it ends once its block is whole. */
static int32_t piece_start(const struct hearth_cache *cache, int32_t pos) {
    const int32_t block = pos / cache->tree.page_tokens * cache->tree.page_tokens;
    const int32_t piece = piece_tokens(cache);
    return block + (pos - block) / piece * piece;
}
static int32_t piece_end(const struct hearth_cache *cache, int32_t start) {
    const int32_t block_end = (start / cache->tree.page_tokens + 1) * cache->tree.page_tokens;
    const int32_t end = start + piece_tokens(cache);
    return end < block_end ? end : block_end;
}

bool hearth_window_covers(const struct hearth_cache *cache, const struct hearth_path *path, int32_t pos) {
    struct hearth_snapshot *pieces[HEARTH_PIECES_MAX];
    return pos == 0 ||
           hearth_path_cover(path, pos, cache->engine->caps.window_tokens, cache->tree.page_tokens, pieces) > 0;
}

/* ---- one piece ---- */

static struct hearth_blob *export_piece(struct hearth_cache *cache, const struct hearth_live *live, int32_t p0,
                                        int32_t p1) {
    struct hearth_buf bytes = {0};
    struct hearth_blob *blob = NULL;
    if (cache->engine->ops->window_export(cache->engine, live->seq, p0, p1, &bytes) == HEARTH_OK) {
        blob = hearth_ram_put(cache->ram, &bytes, NULL);
    }
    hearth_buf_finish(&bytes);
    return blob;
}

/* Drops shorter pieces of the same block that a new piece contains, such as the end of an earlier reply. */
static void drop_contained(struct hearth_cache *cache, const struct hearth_snapshot *piece) {
    const struct hearth_page *page = piece->page;
    for (uint32_t k = page->snapshot_count; k-- > 0;) {
        struct hearth_snapshot *other = page->snapshots[k];
        if (other != piece && other->p0 >= piece->p0 && other->pos < piece->pos && other->item.pins == 0 &&
            other->item.lease.until_us == 0) {
            hearth_cache_store_forget_snapshot(cache, other);
        }
    }
}

/* Stores one piece. False: it could not be stored. */
static bool store_piece(struct hearth_cache *cache, const struct hearth_live *live, const struct hearth_path *path,
                        int32_t p0, int32_t p1, enum hearth_snapshot_kind kind) {
    struct hearth_blob *blob = export_piece(cache, live, p0, p1);
    if (!blob) {
        return false;
    }
    struct hearth_snapshot *piece = NULL;
    if (hearth_cache_store_reserve_snapshot(cache, HEARTH_SNAPSHOT_NODE_BYTES + hearth_blob_bytes(blob))) {
        piece = hearth_tree_add_snapshot(&cache->tree, path, p1, blob, kind);
    }
    if (!piece) {
        hearth_ram_drop(cache->ram, blob);
        return false;
    }
    piece->p0 = p0;
    if (!hearth_cache_store_snapshot_added(cache, piece)) {
        return false;
    }
    drop_contained(cache, piece);
    return true;
}

/* ---- a path ---- */

/* The first position of its window that the sequence still holds. */
static int32_t oldest(const struct hearth_cache *cache, const struct hearth_live *live) {
    const struct hearth_engine *engine = cache->engine;
    int32_t floor = engine->ops->seq_rewind_floor(cache->engine, live->seq, (int32_t)live->tokens.n);
    return floor > engine->caps.window_tokens ? floor - engine->caps.window_tokens : 0;
}

void hearth_window_store(struct hearth_cache *cache, const struct hearth_live *live, const struct hearth_path *path,
                         int32_t to) {
    const int32_t from = oldest(cache, live);
    int32_t start = piece_start(cache, from);
    start = start < from ? piece_end(cache, start) : start;
    to = to < path->matched ? to : path->matched;
    for (int32_t end = piece_end(cache, start); end <= to; start = end, end = piece_end(cache, start)) {
        if (!hearth_tree_has_snapshot(path, end)) {
            (void)store_piece(cache, live, path, start, end, HEARTH_SNAPSHOT_WINDOW);
        }
    }
}

void hearth_window_store_end(struct hearth_cache *cache, const struct hearth_live *live, const struct hearth_path *path,
                             enum hearth_snapshot_kind kind) {
    const int32_t end = path->matched, window = cache->engine->caps.window_tokens;
    const int32_t start = piece_start(cache, end - 1), from = end > window ? end - window : 0;
    if (!hearth_window_covers(cache, path, end) && !hearth_tree_has_snapshot(path, end)) {
        bool rest = start > from && hearth_window_covers(cache, path, start);
        (void)store_piece(cache, live, path, rest ? start : from, end, kind);
    }
    for (size_t i = 0; i < path->n; i++) {
        for (uint32_t k = 0; k < path->pages[i]->snapshot_count; k++) {
            struct hearth_snapshot *piece = path->pages[i]->snapshots[k];
            piece->superseded = piece->superseded || (piece->pos <= from && piece->item.hits == 0);
        }
    }
}
