/* Inside the cache: what is stored, its budget and its eviction. Shared by cache.c, capture.c and restore.c. */
#ifndef HEARTH_CACHE_STORE_H
#define HEARTH_CACHE_STORE_H

#include "cache/cache.h"
#include "cache/heads.h"
#include "cache/learnt.h"
#include "cache/returns.h"
#include "cache/tree.h"
#include "tier/share.h"

/* Bytes and victims of one kind of item. */
struct hearth_cache_pool {
    enum hearth_talk_heap victims; /* what may be evicted and has no lease stands there */
    uint32_t chosen;               /* the talk whose victims go next … */
    uint32_t chosen_left;          /* … so many of them, before another one is chosen */
    size_t choose_from;            /* where choosing goes on in the list of talks */
    struct hearth_heap leases;     /* what is leased; the lease that ends first is at the top */
    size_t used_bytes;
    size_t leased_bytes; /* of these; at most half of the budget */
    size_t budget_bytes;
    double inflation;
    uint64_t evicted;
};

/* How long a live sequence begins like an earlier one in the list. It holds while both sequences have the versions
 * noted here; appending tokens changes no version. */
struct hearth_twin {
    uint64_t version, base_version; /* 0: nothing is known */
    size_t base;                    /* index of the other one */
    int32_t shared;                 /* at least so many tokens */
};

struct hearth_cache {
    struct hearth_engine *engine;
    struct hearth_ram *ram;
    struct hearth_backing *backing; /* NULL: state lives in RAM only */
    struct hearth_tree tree;
    struct hearth_table copies;     /* what is in the backing tier, or on its way there, by name */
    struct hearth_table orphans;    /* what the backing tier has and the tree has no place for yet */
    struct hearth_table duplicates; /* what the backing tier has besides (cache/backing.c) */
    size_t writing;                 /* copies on their way */
    size_t removing;                /* items that the backing tier was asked to remove and has not answered for */
    struct hearth_table removals;   /* their names */
    bool remove_failed;             /* one of them may still be there */
    uint64_t bad_reads;             /* items that could not be read, though the backing tier has them */
    uint64_t store_misses;          /* items that a store that boxes share had told of, and did not have */
    uint64_t read_bytes[2];         /* that came from disk, and from a store that boxes share */
    int32_t backing_min_tokens;
    const struct hearth_cache_observer *observer; /* or NULL */
    bool backing_scanned;
    uint64_t sought; /* the newest seek that is answered */
    bool moves;      /* the border between the pools' budgets goes to where it is worth most; else it stands */
    bool restoring;  /* what is read is needed now: RAM may be exceeded for a moment */
    struct hearth_cache_pool pages, snapshots;
    struct hearth_shares shares;
    struct hearth_costs costs;
    int64_t learnt_us[2]; /* when the cost of reading from disk, and from a shared store, was learnt (engine's clock) */
    const struct hearth_policy *policy;
    struct hearth_returns *returns; /* what it has learnt */
    struct hearth_learnt learnt;    /* and has saved */
    double newcomer;                /* what a page is worth that is being stored: what is worth more stays */
    struct hearth_heads heads;
    struct hearth_path scratch; /* of a capture, a peek, a pin */
    struct hearth_path arrival; /* of what the backing tier found */
    int32_t *measures;          /* of the last plan: rewind floors, then common tokens */
    struct hearth_twin *twins;  /* per live sequence */
    size_t measure_cap;         /* room for so many sequences */
    uint64_t restore_failures, stored_pages, stored_snapshots;
};

/* Bytes that an item counts with: node, blob, and the tokens of a page. What is only in the backing tier counts
 * nothing: the tokens of such a page are that tier's index. */
size_t hearth_cache_item_bytes(const struct hearth_cache_item *item);

/* Whether the state of a page can be had: from RAM, or from its copy. A page without is a hole in its path until it is
 * captured again. */
bool hearth_cache_store_has_state(const struct hearth_cache *cache, const struct hearth_page *page);
/* The position up to which the path can be used: its first hole, or its end. */
int32_t hearth_cache_store_usable(const struct hearth_cache *cache, const struct hearth_path *path);

/* Makes room; false when that would take more than it may. Without a backing tier a page's path may push others out
 * only while it holds less than three quarters of the budget itself, so that one huge conversation never empties the
 * cache. */
bool hearth_cache_store_reserve_page(struct hearth_cache *cache, size_t bytes, size_t path_bytes);
bool hearth_cache_store_reserve_snapshot(struct hearth_cache *cache, size_t bytes);

/* Counts a new page and lets it be evicted when it may be. */
void hearth_cache_store_page_added(struct hearth_cache *cache, struct hearth_page *page);
/* Counts a new snapshot. Returns false when it could not be kept; it is gone then. */
bool hearth_cache_store_snapshot_added(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* A pinned item is not evicted (the ancestors of a page are safe because they are no leaves). */
void hearth_cache_store_pin(struct hearth_cache *cache, struct hearth_cache_item *item);
void hearth_cache_store_unpin(struct hearth_cache *cache, struct hearth_cache_item *item);

/* The blob or the copy of an item has changed, which counted `before` bytes: every such change ends here. */
void hearth_cache_store_changed(struct hearth_cache *cache, struct hearth_cache_item *item, size_t before);

/* Leases [0, to) of a path until a time: its pages, and of its snapshots the last `snapshots` at or before `to`, or of
 * its window as much as so many hold. A lease that ends later stays; a durable one wants copies, too. */
void hearth_cache_store_lease(struct hearth_cache *cache, const struct hearth_path *path, int32_t to, int64_t until_us,
                              int snapshots, bool durable);
/* Leases what the pins of a live sequence ask for, as far as it is stored. */
void hearth_cache_store_lease_live(struct hearth_cache *cache, const struct hearth_path *path,
                                   const struct hearth_live *live);

/* Whether an item may be evicted: it is neither pinned nor on its way to the backing tier, and it is a snapshot, a
 * leaf, or a blob of which there is a copy (whatever hangs on its page). */
bool hearth_cache_store_may_go(const struct hearth_cache *cache, const struct hearth_cache_item *item);

/* Takes the state away from a page, because it must not be used. A page without children and snapshots is removed. */
void hearth_cache_store_drop_state(struct hearth_cache *cache, struct hearth_page *page);
/* Removes a snapshot. */
void hearth_cache_store_drop_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* Forgets a leaf with its snapshots and all copies. */
void hearth_cache_store_forget_page(struct hearth_cache *cache, struct hearth_page *page);
void hearth_cache_store_forget_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* Where a snapshot is needed to resume, a leaf without one is useless: removes it, and its ancestors likewise. */
void hearth_cache_store_prune(struct hearth_cache *cache, struct hearth_page *page);

/* A path with its snapshots was used by a turn of this talk, and belongs to it now. */
void hearth_cache_store_turn(struct hearth_cache *cache, const struct hearth_path *path, uint32_t talk);
/* A prompt used the item. */
void hearth_cache_store_hit(struct hearth_cache *cache, struct hearth_cache_item *item);

/* Evicts down to the budgets. */
void hearth_cache_store_shrink(struct hearth_cache *cache);

/* ---- live.c ---- */

/* The live sequence no longer holds what is behind its first `n` tokens: shortens its tokens and drops pending
 * snapshots there. */
void hearth_live_truncate(struct hearth_cache *cache, struct hearth_live *live, int32_t n);

/* Drops pins of what is stored: they have become leases. */
void hearth_live_drop_pins(struct hearth_live *live, int32_t stored);
/* How many tokens a live sequence begins with like these: none when their salts differ. Threads: pure. */
int32_t hearth_live_common(const struct hearth_live *live, const hearth_token *tokens, size_t n,
                           struct hearth_digest salt);
/* Fills cache->measures with what a plan has to know about `count` sequences. False: out of memory. */
bool hearth_live_measure(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                         const struct hearth_live *const *lives, size_t count);

#endif
