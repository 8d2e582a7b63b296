/* Inside the cache: stored items, their budgets and their eviction. Shared by cache.c, capture.c and restore.c. */
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
    enum hearth_talk_heap victims; /* the heap of what may be evicted and has no lease */
    uint32_t chosen;               /* the talk whose victims go next … */
    uint32_t chosen_left;          /* … and how many of them, before another talk is chosen */
    size_t choose_from;            /* where choosing continues in the list of talks */
    bool valued;                   /* all of these have been valued since they are chosen from by worth */
    struct hearth_heap leases;     /* leased items; the lease that ends first is at the top */
    size_t used_bytes;
    size_t leased_bytes; /* of used_bytes; at most half of the budget */
    size_t budget_bytes;
    double inflation;
    uint64_t evicted;
};

/* How many tokens a live sequence has in common with an earlier one in the list. It holds while both sequences have the
 * versions noted here; appending tokens changes no version. */
struct hearth_twin {
    uint64_t version, base_version; /* 0: unknown */
    size_t base;                    /* index of the earlier sequence */
    int32_t shared;                 /* at least so many tokens in common */
};

struct hearth_cache {
    struct hearth_engine *engine;
    struct hearth_ram *ram;
    struct hearth_backing *backing; /* NULL: state lives in RAM only */
    struct hearth_tree tree;
    struct hearth_table copies;     /* items that are in the backing tier, or on their way there, by name */
    struct hearth_table orphans;    /* items of the backing tier that have no place in the tree yet */
    struct hearth_table duplicates; /* what else the backing tier holds (cache/backing.c) */
    size_t writing;                 /* copies on their way to the backing tier */
    size_t removing;                /* removals that the backing tier has not answered */
    struct hearth_table removals;   /* the names of these */
    bool remove_failed;             /* a removal failed: the item may still be there */
    uint64_t bad_reads;             /* items that could not be read although the backing tier has them */
    uint64_t store_misses;          /* items that a shared store had reported and did not have */
    uint64_t read_bytes[2];         /* bytes read from disk, and from a shared store */
    int32_t backing_min_tokens;
    const struct hearth_cache_observer *observer; /* or NULL */
    bool backing_scanned;
    uint64_t sought; /* the newest answered seek */
    bool moves;      /* the border between the pools' budgets may move; false: it was given */
    bool restoring;  /* state that is read now is needed: RAM may be exceeded for a moment */
    struct hearth_cache_pool pages, snapshots;
    struct hearth_shares shares;
    struct hearth_costs costs;
    int64_t learnt_us[2]; /* when the cost of reading from disk, and from a shared store, was last learnt (engine's
                             clock) */
    const struct hearth_policy *policy;
    struct hearth_returns *returns; /* what the policy has learnt */
    struct hearth_learnt learnt;    /* and has saved */
    double newcomer;                /* worth of the page that is being stored: state that is worth more stays */
    struct hearth_heads heads;
    struct hearth_path scratch; /* for a capture, a peek or a pin */
    struct hearth_path arrival; /* for what the backing tier found */
    int32_t *measures;          /* of the last plan: rewind floors, then common tokens */
    struct hearth_twin *twins;  /* per live sequence */
    size_t measure_cap;         /* sequences that fit */
    uint64_t restore_failures, stored_pages, stored_snapshots;
};

/* The bytes that an item counts for: node, blob, and a page's tokens. An item that only the backing tier has counts for
 * nothing: its tokens are that tier's index. */
size_t hearth_cache_item_bytes(const struct hearth_cache_item *item);

/* Whether the state of a page can be had, from RAM or from its copy. A page without state is a hole in its path until
 * it is captured again. */
bool hearth_cache_store_has_state(const struct hearth_cache *cache, const struct hearth_page *page);
/* The position up to which the path can be used: its first hole, or its end. */
int32_t hearth_cache_store_usable(const struct hearth_cache *cache, const struct hearth_path *path);

/* Makes room for a page of `bytes`; false: that would evict more than the page may. Without a backing tier a page may
 * push others out only while its path holds less than three quarters of the budget, so that one huge conversation never
 * empties the cache. */
bool hearth_cache_store_reserve_page(struct hearth_cache *cache, size_t bytes, size_t path_bytes);
bool hearth_cache_store_reserve_snapshot(struct hearth_cache *cache, size_t bytes);

/* Counts a new page, and makes it a victim if it may go. */
void hearth_cache_store_page_added(struct hearth_cache *cache, struct hearth_page *page);
/* Counts a new snapshot. False: it could not be kept, and is gone. */
bool hearth_cache_store_snapshot_added(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* Pins an item, which is not evicted while pinned (its ancestors are safe because they are no leaves). */
void hearth_cache_store_pin(struct hearth_cache *cache, struct hearth_cache_item *item);
void hearth_cache_store_unpin(struct hearth_cache *cache, struct hearth_cache_item *item);

/* The item's blob or copy has changed; before, it counted for `before` bytes. Every such change ends here. */
void hearth_cache_store_changed(struct hearth_cache *cache, struct hearth_cache_item *item, size_t before);

/* Leases [0, to) of a path until a time: its pages, and its last `snapshots` snapshots at or before `to`, or as much of
 * its window as so many hold. A lease that ends later stays; a durable one wants copies, too. */
void hearth_cache_store_lease(struct hearth_cache *cache, const struct hearth_path *path, int32_t to, int64_t until_us,
                              int snapshots, bool durable);
/* Leases what the pins of a live sequence ask for, as far as it is stored. */
void hearth_cache_store_lease_live(struct hearth_cache *cache, const struct hearth_path *path,
                                   const struct hearth_live *live);

/* Whether an item may be evicted: it is neither pinned nor on its way to the backing tier, and it is a snapshot, a
 * leaf, or a blob with a copy (whatever hangs on its page). */
bool hearth_cache_store_may_go(const struct hearth_cache *cache, const struct hearth_cache_item *item);

/* Takes the state of a page away because it must not be used. A page without children and snapshots is removed. */
void hearth_cache_store_drop_state(struct hearth_cache *cache, struct hearth_page *page);
/* Removes a snapshot. */
void hearth_cache_store_drop_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* Forgets a leaf with its snapshots and all copies. */
void hearth_cache_store_forget_page(struct hearth_cache *cache, struct hearth_page *page);
void hearth_cache_store_forget_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* Removes a leaf that has no snapshot and so is useless where snapshots are needed, and then its ancestors likewise. */
void hearth_cache_store_prune(struct hearth_cache *cache, struct hearth_page *page);

/* A turn of this talk used the path with its snapshots; they belong to the talk now. */
void hearth_cache_store_turn(struct hearth_cache *cache, const struct hearth_path *path, uint32_t talk);
/* Counts a use of the item by a prompt. */
void hearth_cache_store_hit(struct hearth_cache *cache, struct hearth_cache_item *item);

/* The next victim of a pool; a leased one only if there is no other. NULL: there is none. */
struct hearth_cache_item *hearth_cache_store_victim(struct hearth_cache *cache, struct hearth_cache_pool *pool);
/* Evicts down to the budgets. */
void hearth_cache_store_shrink(struct hearth_cache *cache);

/* ---- live.c ---- */

/* Shortens the live sequence to its first `n` tokens, and drops pending snapshots behind them. */
void hearth_live_truncate(struct hearth_cache *cache, struct hearth_live *live, int32_t n);

/* Drops the pins of what is stored; they have become leases. */
void hearth_live_drop_pins(struct hearth_live *live, int32_t stored);
/* How many tokens a live sequence has in common with the beginning of these; 0 if their salts differ. Threads: pure. */
int32_t hearth_live_common(const struct hearth_live *live, const hearth_token *tokens, size_t n,
                           struct hearth_digest salt);
/* Fills cache->measures with what a plan needs to know about `count` sequences. False: out of memory. */
bool hearth_live_measure(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                         const struct hearth_live *const *lives, size_t count);

#endif
