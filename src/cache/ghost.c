/* Ghosts. What they are in ghost.h.
 *
 * Invariant: of two ghosts in one place the newer one stands later in the ring. */
#include "cache/ghost.h"

#include "base/digest.h"
#include "cache/tree.h"

#include <stdlib.h>

#define FIRST_CAP 4

/* The number of tokens that each hash covers; all of them if the page is shorter. */
static const int32_t hashed[HEARTH_GHOST_HASHES] = {4, 32, INT32_MAX};

static int32_t hashed_len(size_t i, int32_t len) {
    return hashed[i] < len ? hashed[i] : len;
}

static uint32_t hash_of(const hearth_token *tokens, int32_t n) {
    return (uint32_t)hearth_checksum(tokens, (size_t)n * sizeof *tokens);
}

void hearth_ghost_describe(struct hearth_ghost *ghost, const hearth_token *tokens, int32_t len) {
    ghost->first = tokens[0];
    ghost->len = len;
    for (size_t i = 0; i < HEARTH_GHOST_HASHES; i++) {
        ghost->hashes[i] = hash_of(tokens, hashed_len(i, len));
    }
}

/* Compares the first hash only: behind those tokens the prompt may leave the evicted page. */
static bool begins_alike(const struct hearth_ghost *ghost, const hearth_token *tokens, size_t n) {
    const int32_t len = hashed_len(0, ghost->len);
    return n > 0 && ghost->first == tokens[0] && ((size_t)len > n || ghost->hashes[0] == hash_of(tokens, len));
}

const struct hearth_ghost *hearth_ghost_find(const struct hearth_page *page, int32_t offset, const hearth_token *tokens,
                                             size_t n) {
    const struct hearth_ghosts *ghosts = page->ghosts;
    for (uint32_t i = 0; ghosts && i < ghosts->count && i < ghosts->cap; i++) {
        if (ghosts->v[i].offset == offset && begins_alike(&ghosts->v[i], tokens, n)) {
            return &ghosts->v[i];
        }
    }
    return NULL;
}

/* Makes room for `cap` ghosts. False: out of memory. */
static bool make_room(struct hearth_page *page, uint32_t cap) {
    const bool is_new = page->ghosts == NULL;
    struct hearth_ghosts *grown = realloc(page->ghosts, sizeof *grown + cap * sizeof grown->v[0]);
    if (!grown) {
        return false;
    }
    if (is_new) {
        *grown = (struct hearth_ghosts){.cap = 0};
    }
    grown->cap = cap;
    page->ghosts = grown;
    return true;
}

void hearth_ghost_leave(struct hearth_page *parent, const struct hearth_ghost *ghost,
                        const struct hearth_ghosts *hung) {
    const uint32_t cap = parent->ghosts ? parent->ghosts->cap : 0;
    hearth_ghost_forget(parent, ghost->offset, ghost->first);
    if ((!parent->ghosts || (parent->ghosts->count == cap && cap < HEARTH_GHOSTS)) &&
        !make_room(parent, cap > 0 ? cap * 2 : FIRST_CAP)) {
        return;
    }
    struct hearth_ghosts *ghosts = parent->ghosts;
    struct hearth_ghost *to = &ghosts->v[ghosts->count++ % ghosts->cap];
    if (ghosts->count == 2 * HEARTH_GHOSTS) {
        ghosts->count = HEARTH_GHOSTS; /* the ring begins again */
    }
    *to = *ghost;
    for (uint32_t i = 0; hung && i < hung->count && i < hung->cap; i++) {
        const struct hearth_ghost *one = &hung->v[i];
        if (one->offset >= 0) {
            to->end = one->end > to->end ? one->end : to->end;
            to->used = one->used > to->used ? one->used : to->used;
            to->page_bytes += one->page_bytes;
            to->snapshot_bytes += one->snapshot_bytes;
        }
    }
    if (hung) {
        to->snapshot_bytes += hung->snapshot.bytes;
    }
}

void hearth_ghost_leave_snapshot(struct hearth_page *page, int32_t pos, uint64_t used, uint64_t now, size_t bytes) {
    if (page->ghosts || make_room(page, FIRST_CAP)) {
        struct hearth_ghost_snapshot *snapshot = &page->ghosts->snapshot;
        snapshot->bytes += bytes;
        snapshot->pos = pos > snapshot->pos ? pos : snapshot->pos;
        snapshot->used = used;
        snapshot->gone = now;
    }
}

void hearth_ghost_forget(const struct hearth_page *parent, int32_t offset, hearth_token first) {
    struct hearth_ghosts *ghosts = parent->ghosts;
    for (uint32_t i = 0; ghosts && i < ghosts->count && i < ghosts->cap; i++) {
        if (ghosts->v[i].offset == offset && ghosts->v[i].first == first) {
            ghosts->v[i].offset = -1;
        }
    }
}

void hearth_ghost_forget_snapshot(const struct hearth_page *page, int32_t pos) {
    if (page->ghosts && page->ghosts->snapshot.pos == pos) {
        page->ghosts->snapshot = (struct hearth_ghost_snapshot){.pos = 0};
    }
}
