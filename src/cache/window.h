/* Sliding windows: what a live sequence holds of one is stored piece by piece, each within a block of pages. Inside the
 * cache; for engines with caps.window_tokens. */
#ifndef HEARTH_CACHE_WINDOW_H
#define HEARTH_CACHE_WINDOW_H

#include "cache/store.h"

/* Whether the window of a token at `pos` of the path is stored. */
bool hearth_window_covers(const struct hearth_cache *cache, const struct hearth_path *path, int32_t pos);
/* Stores what the path's blocks before position `to` lack of the window, as far as the sequence still holds it. */
void hearth_window_store(struct hearth_cache *cache, const struct hearth_live *live, const struct hearth_path *path,
                         int32_t to);
/* Stores what is missing behind the last whole piece, so that the path can be resumed at its end, where the sequence
 * stands. Pieces that the end of the conversation no longer needs are marked as cheaper. */
void hearth_window_store_end(struct hearth_cache *cache, const struct hearth_live *live, const struct hearth_path *path,
                             enum hearth_snapshot_kind kind);

#endif
