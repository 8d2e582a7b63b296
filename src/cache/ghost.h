/* Ghosts: what was evicted from the tree, or never fitted, is remembered where it hung: enough to say so when a prompt
 * asks for it, and how much room would have kept it.
 *
 * A ghost stands for a page and all that hung on it. It has no tokens, but hashes of the beginning of the page's, so
 * that another text that begins with the same token is not taken for it. It ends when its page is stored again.
 *
 * Times are those of the tree (tree.h: `now`). */
#ifndef HEARTH_CACHE_GHOST_H
#define HEARTH_CACHE_GHOST_H

#include "engine/engine.h"

struct hearth_page;

#define HEARTH_GHOSTS 64 /* of a page; more push out the oldest */
#define HEARTH_GHOST_HASHES 3

struct hearth_ghost {
    int32_t offset; /* in the page that it hung on; -1: it is stored again */
    hearth_token first;
    int32_t len, end; /* of its page; the last position of what hung on that */
    uint32_t hashes[HEARTH_GHOST_HASHES];
    uint64_t used, gone; /* when it was last used, and when it went */
    size_t page_bytes, snapshot_bytes;
};

/* Snapshots that went while their page stayed. */
struct hearth_ghost_snapshot {
    int32_t pos; /* of the last one; 0: none has */
    uint64_t used, gone;
    size_t bytes; /* of all */
};

struct hearth_ghosts {
    uint32_t count, cap; /* a ring once cap is HEARTH_GHOSTS */
    struct hearth_ghost_snapshot snapshot;
    struct hearth_ghost v[];
};

/* The ghost that hangs on a page and that `n` tokens from there on begin like, as far as is known; NULL: none. */
const struct hearth_ghost *hearth_ghost_find(const struct hearth_page *page, int32_t offset, const hearth_token *tokens,
                                             size_t n);
/* Leaves one in `parent`. Without memory, none. `ghosts`: of what hung on it, or NULL. */
void hearth_ghost_leave(struct hearth_page *parent, const struct hearth_ghost *ghost, const struct hearth_ghosts *hung);
/* What a ghost says of tokens: fills its first, len and hashes. */
void hearth_ghost_describe(struct hearth_ghost *ghost, const hearth_token *tokens, int32_t len);
/* A snapshot at `pos` of the page went. */
void hearth_ghost_leave_snapshot(struct hearth_page *page, int32_t pos, uint64_t used, uint64_t now, size_t bytes);
/* What hung there is stored again, or is to be forgotten. */
void hearth_ghost_forget(const struct hearth_page *parent, int32_t offset, hearth_token first);
void hearth_ghost_forget_snapshot(const struct hearth_page *page, int32_t pos);

#endif
