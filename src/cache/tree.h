/* The prefix tree: a radix tree over tokens with pages as nodes.
 *
 * A page holds the tokens of [p0, p0 + len) of every sequence that begins like its path, and a reference to their
 * addressable state (none for models without any). A child attaches at an *offset* inside its parent, so a branch
 * never splits or copies what is stored:
 *
 *     root --+-- [0,256) system prompt --+-- [256,512) --- [512,700)        conversation A
 *                                  |     |
 *                                  |     +-- at 256: [256,400)              conversation B
 *                                  +-- at 90: [90,256) --- [256,300)        another system prompt
 *
 * There is a root per cache salt, named by a digest; from it the digests of whole blocks of page_tokens are chained
 * (tier/record.h), and a page that ends where a block does is found by the digest of everything up to its end.
 *
 * Invariants (hearth_tree_check):
 *   - child.p0 = parent.p0 + offset, 0 <= offset <= parent.len; only roots have len 0 and p0 0.
 *   - Children of a page differ in (offset, first token); a child at offset < len does not begin with the parent's own
 *     token there. So a token list has exactly one path.
 *   - A page ends at a multiple of page_tokens or at the frontier it was captured at; then it may grow, once what
 *     follows is known, to that multiple.
 *   - A page never crosses a multiple of page_tokens. `ends` holds the roots and the pages that end at one.
 *   - A snapshot at position p belongs to the page with p0 < p <= p0 + len.
 *
 * The tree owns pages and their token arrays. Blobs belong to the caller, which frees them before a page is removed. */
#ifndef HEARTH_CACHE_TREE_H
#define HEARTH_CACHE_TREE_H

#include "base/buf.h"
#include "base/table.h"
#include "cache/ghost.h"
#include "cache/heap.h"
#include "cache/path.h"
#include "cache/policy.h"
#include "engine/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hearth_blob;

struct hearth_page;

/* The copy of an item in the backing tier (cache/backing.h). */
enum hearth_copy_state { HEARTH_COPY_NONE, HEARTH_COPY_WRITING, HEARTH_COPY_THERE };

struct hearth_copy {
    struct hearth_link link; /* first, so that it converts; the key is the item's name; in a table unless NONE */
    int32_t p0;              /* of a page: the copy holds [p0, end of the page), which may begin before the page does */
    uint8_t state;           /* enum hearth_copy_state */
    bool reading;            /* was asked for and has not come */
    bool remote;             /* a read would come from a store that boxes share */
    bool waits;              /* WRITING, but not put before the tier has removed what has the same name */
};

/* For how long an item stays in RAM while anything else can go (cache/store.c). */
struct hearth_lease {
    struct hearth_heap_node heap; /* first, so that it converts; in the pool's heap of leases while there is one, else
                                     in that of victims while the item may go */
    bool durable;                 /* its copy is wanted, too */
    int64_t until_us;             /* 0: no lease */
};

/* What the store knows of a page and of a snapshot alike; its rules (cache/store.h) are written for items. */
struct hearth_cache_item {
    struct hearth_blob *blob; /* the state; NULL: only the copy is there, or the model has none */
    uint32_t hits;            /* prompts that have used it */
    int64_t used_us;          /* when it was used last, or stored */
    uint32_t talk;            /* that used it last (cache/returns.h) */
    uint32_t pins;            /* users that need it now: a restore, a capture */
    uint16_t owner;           /* that of its root (tier/share.h) */
    bool is_snapshot;         /* what it is a member of */
    bool fetched;             /* the blob was read from the copy and has not been used since */
    bool fetched_remote;      /* and that from a store that boxes share */
    struct hearth_copy copy;
    struct hearth_lease lease;
    uint64_t used; /* when a prompt or a capture last had to do with it: the tree's `now` */
};

/* Non-addressable state at exactly one position; of a sliding window a piece, the state of [p0, pos). */
struct hearth_snapshot {
    struct hearth_page *page;
    struct hearth_cache_item item;
    int32_t pos;
    int32_t p0;           /* `pos` where the model has no window */
    int32_t saved_tokens; /* from the snapshot before it on the same path (one in a head has gone by then): what losing
                             it would cost */
    enum hearth_snapshot_kind kind;
    bool superseded; /* a later reply of the same conversation has its own */
    uint32_t turn;   /* of its talk: the last one that had it on its path … */
    int32_t next;    /* … and where the next one stood on that; 0: it was the last */
};

/* Bytes of the state that a snapshot holds, about. */
static inline size_t hearth_snapshot_state_bytes(const struct hearth_caps *caps,
                                                 const struct hearth_snapshot *snapshot) {
    return caps->window_tokens > 0 ? (size_t)(snapshot->pos - snapshot->p0) * caps->window_bytes_per_token
                                   : caps->snapshot_bytes;
}

/* The copy of what a page was before it grew. */
struct hearth_old {
    struct hearth_digest name;
    int32_t p0, p1; /* what it holds */
};

/* What matching and planning read stands first, within one line of the CPU's caches: a prompt runs through hundreds of
 * pages, and none of them is likely to be there. */
struct hearth_page {
    hearth_token *tokens;
    union {
        struct hearth_page *one;   /* the only one */
        struct hearth_child *many; /* a table (cache/children.h) */
    } children;
    int32_t p0, len;
    uint32_t child_count;
    hearth_token first;                 /* tokens[0] */
    struct hearth_snapshot **snapshots; /* ascending by pos; room for a power of two of them */
    uint32_t snapshot_count;
    uint8_t child_bits;            /* room of the table: a power of two */
    struct hearth_page *parent;    /* NULL: a root */
    struct hearth_cache_item item; /* its blob is the state of [blob_p0, p0 + len), and stands in the first line, too */

    struct hearth_link end; /* of roots and of pages that end where a block does; the key is its digest */
    bool observed;          /* the observer was told of it (cache/store.c) */
    uint32_t tail_count;    /* of the children, those at the page's end */
    int32_t blob_p0;
    int32_t dead; /* what it holds from this position on was forgotten, and is in it for the sake of what stands before;
                     0: nothing was (cache/forget.c) */
    struct hearth_old *old;       /* NULL: none */
    struct hearth_ghosts *ghosts; /* NULL: none */
};

/* The page or the snapshot that an item is a member of. */
static inline struct hearth_page *hearth_cache_item_page(const struct hearth_cache_item *item) {
    return (struct hearth_page *)((uintptr_t)item - offsetof(struct hearth_page, item));
}
static inline struct hearth_snapshot *hearth_cache_item_snapshot(const struct hearth_cache_item *item) {
    return (struct hearth_snapshot *)((uintptr_t)item - offsetof(struct hearth_snapshot, item));
}

/* Bytes that a page (of `len` tokens) and a snapshot count with in a budget beside their state: the node, and what the
 * allocator and the tables take for it. */
#ifndef HEARTH_PAGE_NODE_BYTES
#define HEARTH_PAGE_NODE_BYTES (sizeof(struct hearth_page) + 64)
#define HEARTH_SNAPSHOT_NODE_BYTES (sizeof(struct hearth_snapshot) + 48)
#endif
static inline size_t hearth_page_node_bytes(int32_t len) {
    return HEARTH_PAGE_NODE_BYTES + (size_t)len * sizeof(hearth_token);
}

struct hearth_tree {
    struct hearth_page **roots;
    uint32_t root_count;
    struct hearth_table ends;
    hearth_token *block; /* room for page_tokens */
    int32_t page_tokens;
    size_t page_count, snapshot_count;
    uint64_t now; /* prompts that were planned */
};

/* False: out of memory. */
bool hearth_tree_init(struct hearth_tree *tree, int32_t page_tokens);
/* Frees pages and snapshots; `drop` (may be NULL) is called for every blob. */
void hearth_tree_finish(struct hearth_tree *tree, void (*drop)(void *user, struct hearth_blob *blob), void *user);

/* The page with this digest at its end (at a block's end; a root is where nothing was), or NULL. */
struct hearth_page *hearth_tree_end(const struct hearth_tree *tree, struct hearth_digest digest, int32_t pos);
/* Makes the root with this digest. NULL: out of memory. */
struct hearth_page *hearth_tree_add_root(struct hearth_tree *tree, struct hearth_digest digest);
/* Where the block that position `pos` - 1 is in begins. */
int32_t hearth_tree_block_start(const struct hearth_tree *tree, int32_t pos);
/* The digest of all tokens before the block that the page (no root) is in. */
struct hearth_digest hearth_tree_base(const struct hearth_tree *tree, const struct hearth_page *page);
/* The tokens of the page's sequence from the start of that block to `pos` (p0 <= pos <= p0 + len): in tree->block,
 * until the next call. */
const hearth_token *hearth_tree_block(struct hearth_tree *tree, const struct hearth_page *page, int32_t pos);

/* End of the used part of pages[i]. */
int32_t hearth_path_end(const struct hearth_path *path, size_t i);
/* The path's tokens have been said again: what was forgotten of them is not any more (page->dead). */
void hearth_path_revive(const struct hearth_path *path);
/* The latest snapshot on the path at or before `limit`, or NULL. */
struct hearth_snapshot *hearth_path_snapshot(const struct hearth_path *path, int32_t limit);
/* What completes a sequence at n > 0, on a class that needs snapshots: the snapshot at n; with a window of `window` > 0
 * tokens the pieces that together hold [n - window, n), ascending and without gaps, of which the last may reach beyond
 * n. Their number; 0: there is no such state on the path. */
size_t hearth_path_cover(const struct hearth_path *path, int32_t n, int32_t window, int32_t page_tokens,
                         struct hearth_snapshot *pieces[HEARTH_PIECES_MAX]);

/* Matches as many tokens as the tree knows below a root (NULL: none). Linear in the match, independent of what is
 * stored: a child is found by its hash, however many there are. False: out of memory. */
bool hearth_tree_match(struct hearth_page *root, const hearth_token *tokens, size_t n, struct hearth_path *path);
/* The path to the end of a page, then as far as tokens (from there on) match. False: out of memory. */
bool hearth_tree_match_behind(struct hearth_page *page, const hearth_token *tokens, size_t n, struct hearth_path *path);

/* What stands behind the end of a match. */
enum hearth_tree_edge {
    HEARTH_EDGE_END,     /* nothing: the known path ends here */
    HEARTH_EDGE_BRANCH,  /* other continuations are known */
    HEARTH_EDGE_EVICTED, /* this continuation was known and was evicted */
};
/* `tokens`: the prompt's, behind the match; n > 0. */
enum hearth_tree_edge hearth_tree_edge(const struct hearth_path *path, const hearth_token *tokens, size_t n);

/* Where the page that starts (or continues) at `pos` ends at most, for a sequence of n tokens. */
int32_t hearth_tree_page_end(const struct hearth_tree *tree, int32_t pos, int32_t n);

/* Adds a page behind the matched path (which has a root), holding tokens[path->matched, end), and makes it part of the
 * path. `tokens` are the sequence's from position `first` on. `blob` may be NULL; it becomes the page's. NULL: out of
 * memory (the tree is unchanged, the blob the caller's). */
struct hearth_page *hearth_tree_add(struct hearth_tree *tree, struct hearth_path *path, const hearth_token *tokens,
                                    int32_t first, int32_t end, struct hearth_blob *blob);
/* True when the path ends at the end of a page that may grow. */
bool hearth_tree_can_extend(const struct hearth_tree *tree, const struct hearth_path *path);
/* Lets the last page of the path grow to `end` with a new blob; the old one is returned through `old` for the caller to
 * drop. False: out of memory (nothing changed). */
bool hearth_tree_extend(struct hearth_tree *tree, struct hearth_path *path, const hearth_token *tokens, int32_t first,
                        int32_t end, struct hearth_blob *blob, struct hearth_blob **old);

/* Divides a page without state at `pos` inside of it: what it held behind that is a page of its own below it, with all
 * that hung there. Returns that page; NULL: out of memory (nothing changed). */
struct hearth_page *hearth_tree_divide(struct hearth_tree *tree, struct hearth_page *page, int32_t pos);

/* Removes a leaf without snapshots or blob, and leaves a ghost in its parent, which says that `bytes` went. */
void hearth_tree_remove(struct hearth_tree *tree, struct hearth_page *page, size_t bytes);

/* Attaches a snapshot on the path at `pos` (0 < pos <= path->matched). NULL: out of memory, or one is there already
 * (the blob stays the caller's in both cases). */
struct hearth_snapshot *hearth_tree_add_snapshot(struct hearth_tree *tree, const struct hearth_path *path, int32_t pos,
                                                 struct hearth_blob *blob, enum hearth_snapshot_kind kind);
bool hearth_tree_has_snapshot(const struct hearth_path *path, int32_t pos);
/* Detaches and frees a snapshot without blob. */
void hearth_tree_remove_snapshot(struct hearth_tree *tree, struct hearth_snapshot *snapshot);

/* The page behind this one in a walk from a root over everything below it, parents first; NULL: none. */
const struct hearth_page *hearth_tree_next(const struct hearth_page *page);

/* Asserts every invariant. Linear in the tree. */
void hearth_tree_check(const struct hearth_tree *tree);

#endif
