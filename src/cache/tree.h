/* The prefix tree: a radix tree over tokens with pages as nodes.
 *
 * A page holds the tokens of [p0, p0 + len) of every sequence that begins like its path, and a reference to their
 * addressable state (models without such state have none). A child attaches at an *offset* inside its parent, so a
 * branch never splits or copies what is stored:
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
    struct hearth_link link; /* first, so that it converts; the key is the item's name; in the table unless NONE */
    int32_t p0;              /* of a page: the copy holds [p0, end of the page), and may begin before the page does */
    uint8_t state;           /* enum hearth_copy_state */
    bool reading;            /* the copy is being read */
    bool remote;             /* the copy is in a shared store */
    bool waits;              /* WRITING, but only put once the tier has removed a copy of the same name */
};

/* How long an item stays in RAM while anything else can go (cache/store.c). */
struct hearth_lease {
    struct hearth_heap_node heap; /* first, so that it converts; in the pool's heap of leases while there is a lease,
                                     else in the heap of victims while the item may go */
    bool durable;                 /* the lease wants a copy, too */
    int64_t until_us;             /* 0: no lease */
};

/* What a page and a snapshot have in common; the store's rules (cache/store.h) are written for items. */
struct hearth_cache_item {
    struct hearth_blob *blob; /* the state; NULL: only the copy has it, or the model has none */
    uint32_t hits;            /* prompts that have used it */
    int64_t used_us;          /* when it was last used, or stored */
    uint32_t talk;            /* the talk that used it last (cache/returns.h) */
    uint32_t pins;            /* uses that need it now: a restore, a capture */
    uint16_t owner;           /* the owner of its root (tier/share.h) */
    bool is_snapshot;         /* it is part of a snapshot, else of a page */
    bool fetched;             /* the blob was read from the copy and not used since */
    bool fetched_remote;      /* it was read from a shared store */
    struct hearth_copy copy;
    struct hearth_lease lease;
    uint64_t used; /* `now` of the tree when a prompt or a capture last used it */
};

/* Non-addressable state at exactly one position; of a sliding window a piece, the state of [p0, pos). */
struct hearth_snapshot {
    struct hearth_page *page;
    struct hearth_cache_item item;
    int32_t pos;
    int32_t p0;           /* equal to `pos` if the model has no window */
    int32_t saved_tokens; /* tokens since the snapshot before it on the path (ignoring one inside a head): the cost of
                             losing it */
    enum hearth_snapshot_kind kind;
    bool superseded; /* a later reply of the same conversation has its own */
    uint32_t turn;   /* its talk's last turn with the snapshot on its path … */
    int32_t next;    /* … and the position of the next snapshot on that path; 0: it was the last */
};

/* About how many bytes of state a snapshot holds. */
static inline size_t hearth_snapshot_state_bytes(const struct hearth_caps *caps,
                                                 const struct hearth_snapshot *snapshot) {
    return caps->window_tokens > 0 ? (size_t)(snapshot->pos - snapshot->p0) * caps->window_bytes_per_token
                                   : caps->snapshot_bytes;
}

/* The copy of a page from before it grew. */
struct hearth_old {
    struct hearth_digest name;
    int32_t p0, p1; /* what it holds */
};

/* The members that matching and planning read stand first, within one cache line: a prompt runs through hundreds of
 * pages, of which the CPU's caches hold few. */
struct hearth_page {
    hearth_token *tokens;
    union {
        struct hearth_page *one;   /* the only one */
        struct hearth_child *many; /* a table (cache/children.h) */
    } children;
    int32_t p0, len;
    uint32_t child_count;
    hearth_token first;                 /* tokens[0] */
    struct hearth_snapshot **snapshots; /* ascending by pos; the array has room for the next power of two */
    uint32_t snapshot_count;
    uint8_t child_bits;            /* room of the table: a power of two */
    struct hearth_page *parent;    /* NULL: a root */
    struct hearth_cache_item item; /* its blob is the state of [blob_p0, p0 + len) and is in the first line, too */

    struct hearth_link end; /* of roots and of pages that end where a block does; the key is its digest */
    bool observed;          /* the observer knows it (cache/store.c) */
    uint32_t tail_count;    /* children at the page's end */
    int32_t blob_p0;
    int32_t dead;           /* tokens from this position on were forgotten, and stay only because the page does; 0: none
                               (cache/forget.c) */
    struct hearth_old *old; /* NULL: none */
    struct hearth_ghosts *ghosts; /* NULL: none */
};

/* The page or the snapshot that an item is a member of. */
static inline struct hearth_page *hearth_cache_item_page(const struct hearth_cache_item *item) {
    return (struct hearth_page *)((uintptr_t)item - offsetof(struct hearth_page, item));
}
static inline struct hearth_snapshot *hearth_cache_item_snapshot(const struct hearth_cache_item *item) {
    return (struct hearth_snapshot *)((uintptr_t)item - offsetof(struct hearth_snapshot, item));
}

/* The bytes for which a page (of `len` tokens) and a snapshot count beside their state: the node, and what the
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
    uint64_t now; /* counts prompts that were planned: the time of the tree */
};

/* False: out of memory. */
bool hearth_tree_init(struct hearth_tree *tree, int32_t page_tokens);
/* Frees pages and snapshots; `drop` (may be NULL) is called for every blob. */
void hearth_tree_finish(struct hearth_tree *tree, void (*drop)(void *user, struct hearth_blob *blob), void *user);

/* The page with this digest at its end, which is the end of a block, or the root with this digest; NULL: none. */
struct hearth_page *hearth_tree_end(const struct hearth_tree *tree, struct hearth_digest digest, int32_t pos);
/* Makes the root with this digest. NULL: out of memory. */
struct hearth_page *hearth_tree_add_root(struct hearth_tree *tree, struct hearth_digest digest);
/* The start of the block that contains position `pos` - 1. */
int32_t hearth_tree_block_start(const struct hearth_tree *tree, int32_t pos);
/* The digest of all tokens before the block that contains the page (no root). */
struct hearth_digest hearth_tree_base(const struct hearth_tree *tree, const struct hearth_page *page);
/* The tokens of the page's sequence from the start of that block to `pos` (p0 <= pos <= p0 + len). They are in
 * tree->block, and valid until the next call. */
const hearth_token *hearth_tree_block(struct hearth_tree *tree, const struct hearth_page *page, int32_t pos);

/* End of the used part of pages[i]. */
int32_t hearth_path_end(const struct hearth_path *path, size_t i);
/* The path's tokens have come in a prompt again: forgotten ends of its pages count again (page->dead). */
void hearth_path_revive(const struct hearth_path *path);
/* The latest snapshot on the path at or before `limit`, or NULL. */
struct hearth_snapshot *hearth_path_snapshot(const struct hearth_path *path, int32_t limit);
/* What completes a sequence at n > 0 on a class that needs snapshots: the snapshot at n; or, with a window of `window`
 * > 0 tokens, the pieces that together hold [n - window, n), ascending and without gaps; the last may reach beyond n.
 * Returns how many; 0: the path has no such state. */
size_t hearth_path_cover(const struct hearth_path *path, int32_t n, int32_t window, int32_t page_tokens,
                         struct hearth_snapshot *pieces[HEARTH_PIECES_MAX]);

/* Matches as many tokens as the tree has below a root (NULL: none). Time is linear in the match, whatever is stored: a
 * child is found by its hash. False: out of memory. */
bool hearth_tree_match(struct hearth_page *root, const hearth_token *tokens, size_t n, struct hearth_path *path);
/* Likewise of tokens from the end of a page on: a path that begins with that page. */
bool hearth_tree_match_behind(struct hearth_page *page, const hearth_token *tokens, size_t n, struct hearth_path *path);

/* What the tree has behind the end of a match. */
enum hearth_tree_edge {
    HEARTH_EDGE_END,     /* nothing: the known path ends here */
    HEARTH_EDGE_BRANCH,  /* other continuations are known */
    HEARTH_EDGE_EVICTED, /* this continuation was known and was evicted */
};
/* `tokens`: the prompt's, behind the match; n > 0. */
enum hearth_tree_edge hearth_tree_edge(const struct hearth_path *path, const hearth_token *tokens, size_t n);

/* The last position at which a page that starts (or grows) at `pos` may end, for a sequence of n tokens. */
int32_t hearth_tree_page_end(const struct hearth_tree *tree, int32_t pos, int32_t n);

/* Adds a page behind the matched path, which must have a root. The page holds tokens[path->matched, end) and joins the
 * path; `tokens` are the sequence's from position `first` on. `blob` may be NULL; the page takes it. NULL: out of
 * memory (the tree is unchanged, and the blob the caller's). */
struct hearth_page *hearth_tree_add(struct hearth_tree *tree, struct hearth_path *path, const hearth_token *tokens,
                                    int32_t first, int32_t end, struct hearth_blob *blob);
/* True when the path ends at the end of a page that may grow. */
bool hearth_tree_can_extend(const struct hearth_tree *tree, const struct hearth_path *path);
/* Lets the last page of the path grow to `end` with a new blob; `old` returns the old blob, which the caller drops.
 * False: out of memory (nothing changed). */
bool hearth_tree_extend(struct hearth_tree *tree, struct hearth_path *path, const hearth_token *tokens, int32_t first,
                        int32_t end, struct hearth_blob *blob, struct hearth_blob **old);

/* Divides a page without state at `pos`: what it held behind becomes a page of its own below it, with all that hung
 * there. Returns that page; NULL: out of memory (nothing changed). */
struct hearth_page *hearth_tree_divide(struct hearth_tree *tree, struct hearth_page *page, int32_t pos);

/* Removes a leaf that has no snapshots and no blob, and leaves a ghost in its parent that says that `bytes` were
 * evicted. */
void hearth_tree_remove(struct hearth_tree *tree, struct hearth_page *page, size_t bytes);

/* Attaches a snapshot to the path at `pos` (0 < pos <= path->matched). NULL: out of memory, or there is one already;
 * the blob stays the caller's then. */
struct hearth_snapshot *hearth_tree_add_snapshot(struct hearth_tree *tree, const struct hearth_path *path, int32_t pos,
                                                 struct hearth_blob *blob, enum hearth_snapshot_kind kind);
bool hearth_tree_has_snapshot(const struct hearth_path *path, int32_t pos);
/* Detaches and frees a snapshot that has no blob. */
void hearth_tree_remove_snapshot(struct hearth_tree *tree, struct hearth_snapshot *snapshot);

/* The next page in a walk from a root over everything below it, parents first; NULL: none. */
const struct hearth_page *hearth_tree_next(const struct hearth_page *page);

/* Asserts every invariant. Linear in the tree. */
void hearth_tree_check(const struct hearth_tree *tree);

#endif
