/* Ghosts: a record of state that was evicted from the tree, or never fitted, at the place where it hung. It holds
 * enough to say so when a prompt needs that state, and how much room would have kept it.
 *
 * A ghost stands for a page and all that hung on it. It has no tokens, only hashes of the first ones, so that another
 * text that begins with the same token is not mistaken for it. It ends when its page is stored again.
 *
 * Times are those of the tree (tree.h: `now`). */
#ifndef HEARTH_CACHE_GHOST_H
#define HEARTH_CACHE_GHOST_H

#include "engine/engine.h"

struct hearth_page;

#define HEARTH_GHOSTS 64 /* per page; a further one replaces the oldest */
#define HEARTH_GHOST_HASHES 3

struct hearth_ghost {
    int32_t offset; /* where it hung, within the page; -1: its page is stored again */
    hearth_token first;
    int32_t len, end; /* tokens of its page; the last position of what hung on it */
    uint32_t hashes[HEARTH_GHOST_HASHES];
    uint64_t used, gone; /* when it was last used, and when it was evicted */
    size_t page_bytes, snapshot_bytes;
};

/* Snapshots that were evicted while their page stayed. */
struct hearth_ghost_snapshot {
    int32_t pos; /* position of the last one; 0: none */
    uint64_t used, gone;
    size_t bytes; /* of all of them */
};

struct hearth_ghosts {
    uint32_t count, cap; /* a ring once cap is HEARTH_GHOSTS */
    struct hearth_ghost_snapshot snapshot;
    struct hearth_ghost v[];
};

/* The ghost at `offset` of the page whose hashes fit the `n` tokens from there on; NULL: none. */
const struct hearth_ghost *hearth_ghost_find(const struct hearth_page *page, int32_t offset, const hearth_token *tokens,
                                             size_t n);
/* Leaves a ghost in `parent`; out of memory, none is left. `ghosts`: those of the evicted page, or NULL. */
void hearth_ghost_leave(struct hearth_page *parent, const struct hearth_ghost *ghost, const struct hearth_ghosts *hung);
/* Fills a ghost's first token, len and hashes from the tokens. */
void hearth_ghost_describe(struct hearth_ghost *ghost, const hearth_token *tokens, int32_t len);
/* A snapshot at `pos` of the page was evicted. */
void hearth_ghost_leave_snapshot(struct hearth_page *page, int32_t pos, uint64_t used, uint64_t now, size_t bytes);
/* The evicted state is stored again, or is to be forgotten. */
void hearth_ghost_forget(const struct hearth_page *parent, int32_t offset, hearth_token first);
void hearth_ghost_forget_snapshot(const struct hearth_page *page, int32_t pos);

#endif
