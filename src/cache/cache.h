/* The cache: plan, restore, capture, evict.
 *
 * It stands between a server's lanes and the engine. A lane owns a `struct hearth_live`; for a new prompt the caller
 * asks for a plan, restores it, computes the rest, and appends to `live->tokens` whatever the sequence now holds. After
 * the reply it captures the sequence, in slices if it likes. The same calls serve a program without a server:
 *
 *     struct hearth_cache_prompt prompt = {.tokens = tokens, .n = n};
 *     struct hearth_plan plan = {0};
 *     hearth_cache_plan(cache, &prompt, lives, count, &plan);
 *     hearth_cache_restore(cache, &plan, &prompt, lives, &result);
 *     … decode prompt[result.resumed, n) on lives[plan.target]->seq, hearth_live_append() it …
 *     while (hearth_cache_capture(cache, lives[plan.target], 8) == HEARTH_CAPTURE_MORE) { }
 *     hearth_plan_finish(&plan);
 *
 * Loading never consumes. Threads: the one thread that drives the engine. */
#ifndef HEARTH_CACHE_CACHE_H
#define HEARTH_CACHE_CACHE_H

#include "cache/live.h"
#include "cache/shortfall.h"
#include "cache/plan.h"
#include "cache/policy.h"
#include "engine/engine.h"
#include "tier/backing.h"
#include "tier/ram.h"

struct hearth_cache;

/* Told which whole blocks of prompts the cache can restore, on the thread that drives the engine, which it must not
 * hold up. A block is named by the digest of all tokens up to its end (tier/record.h). */
struct hearth_cache_observer {
    /* `parent`: the block before it, or the root of the salt's chain where `first`. `tokens`: page_tokens of them. */
    void (*stored)(void *user, struct hearth_digest block, struct hearth_digest parent, bool first,
                   const hearth_token *tokens);
    void (*removed)(void *user, struct hearth_digest block);
    void *user;
};

struct hearth_cache_params {
    int32_t page_tokens;   /* most positions in a page */
    size_t budget_bytes;   /* pages and snapshots together; 0: nothing is stored (live sequences are still reused) */
    size_t snapshot_bytes; /* the snapshots' part of it; 0: all for classes without pages, none for PAGES, half else */
    double share;          /* of it one owner may hold while others want it; 0 or 1: no bound (hearth_cache_own()) */
    const struct hearth_policy *policy;           /* NULL: hearth_policy_returns */
    struct hearth_backing *backing;               /* where state outlasts RAM (tier/backing.h); NULL: nowhere */
    int32_t backing_min_tokens;                   /* shorter sequences are not put there */
    const struct hearth_cache_observer *observer; /* NULL: none; it must outlive the cache */
};

/* The engine and the tiers stay the caller's and must outlive the cache. Errors: NOMEM, INVALID. */
int hearth_cache_create(struct hearth_engine *engine, struct hearth_ram *ram, const struct hearth_cache_params *params,
                        struct hearth_cache **out, struct hearth_errmsg *msg);
/* Live sequences must be finished before. */
void hearth_cache_destroy(struct hearth_cache *cache);

/* ---- live sequences ---- */

void hearth_live_init(struct hearth_live *live, int32_t seq);
/* The sequence now holds these tokens too (they were decoded behind its end). False: out of memory; the sequence must
 * then be cleared. */
bool hearth_live_append(struct hearth_live *live, const hearth_token *tokens, size_t n);
/* What will be stored of the sequence is pinned (cache/pin.h). */
void hearth_live_pin(struct hearth_live *live, const struct hearth_pin *pin);
/* Drops what is pending and empties the sequence. */
void hearth_live_clear(struct hearth_cache *cache, struct hearth_live *live);
void hearth_live_finish(struct hearth_cache *cache, struct hearth_live *live);

/* ---- a prompt ---- */

struct hearth_cache_prompt {
    const hearth_token *tokens;
    size_t n;                  /* > 0 */
    struct hearth_digest salt; /* state is shared within a salt only; zero: no salt */
    bool cache_off;            /* reuse nothing */
};

/* Plans a prompt over the stored and the live; the plan's own path is used again. False: every live sequence is busy,
 * or out of memory. */
bool hearth_cache_plan(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                       const struct hearth_live *const *lives, size_t live_count, struct hearth_plan *plan);

/* How many tokens of a prompt would have to be computed if it were planned now: at least 1. A guess for ordering
 * prompts that wait: it needs no free sequence, leaves plans valid, and counts as no use of anything. It costs
 * what a plan does; what it depends on changes when something is computed, captured, evicted or found. */
int32_t hearth_cache_peek(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                          const struct hearth_live *const *lives, size_t live_count);

/* Where the state of a prompt is, and what it would cost to have it. Units: tokens of its beginning, by where they
 * would be taken from, and those that would be computed; bytes to be read; microseconds, as measured. */
struct hearth_cache_location {
    int32_t live_tokens, ram_tokens, disk_tokens, remote_tokens, computed_tokens;
    uint64_t read_bytes;
    int64_t restore_us, compute_us;
};

/* Like hearth_cache_peek(), this counts as no use of anything. */
void hearth_cache_locate(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                         const struct hearth_live *const *lives, size_t live_count, struct hearth_cache_location *out);

/* Begins to read into RAM what the plan needs from the backing tier. False: everything is here, or RAM does not
 * hold it at once (restoring then reads as it goes). True: come back with a new plan when events have come. */
bool hearth_cache_fetch(struct hearth_cache *cache, const struct hearth_plan *plan);
/* True while something that the plan needs has been asked for and has not come. */
bool hearth_cache_fetching(const struct hearth_plan *plan);
/* True when the end of what the plan needs was read from a store that boxes share, and not used since. */
bool hearth_cache_fetched_remote(const struct hearth_plan *plan);
/* True when nothing of what the plan needs has to be read from the backing tier. */
bool hearth_cache_in_ram(const struct hearth_cache *cache, const struct hearth_plan *plan);

/* What must be captured before the plan may be restored: the target holds state that would be lost. Capture it wholly
 * and plan again. */
bool hearth_cache_must_capture(const struct hearth_cache *cache, const struct hearth_plan *plan,
                               const struct hearth_live *target);

struct hearth_restore {
    int32_t resumed;       /* the target holds prompt[0, resumed) */
    int32_t live_tokens;   /* of these, taken from live sequences */
    int32_t ram_tokens;    /* of these, imported from stored pages (or with a stored snapshot) */
    int32_t disk_tokens;   /* likewise, read from disk for it */
    int32_t remote_tokens; /* likewise, read from a store that boxes share */
    bool failed;           /* state could not be restored: it was dropped, the target is empty; plan again */
    bool gone;             /* of a failure: what was missing was removed meanwhile, to make room */
    bool no_cells;         /* the KV cache is full: the target is empty; free cells and plan again */
    int64_t us;            /* how long it took, by the engine's clock */
};

/* Carries a plan out, waiting for what has to be read: page k + 1 is read while page k is imported. The target's
 * sequence and live->tokens then agree on prompt[0, resumed), complete and ready to be decoded from there, whatever
 * failed on the way. */
void hearth_cache_restore(struct hearth_cache *cache, const struct hearth_plan *plan,
                          const struct hearth_cache_prompt *prompt, struct hearth_live *const *lives,
                          struct hearth_restore *result);

/* What pages and snapshots may take of RAM, each, in bytes; where the border between them moves, half each. */
void hearth_cache_budget(const struct hearth_cache *cache, size_t *page_bytes, size_t *snapshot_bytes);

/* ---- capture ---- */

/* False: nothing is ever stored (no budget, or the engine failed its self-test). */
bool hearth_cache_stores(const struct hearth_cache *cache);

/* Takes a snapshot of a live sequence where it stands and keeps it pending until capture. False: the class needs none,
 * it has one there, there is no room, or the export failed; nothing is lost but a chance. */
bool hearth_cache_snapshot(struct hearth_cache *cache, struct hearth_live *live, enum hearth_snapshot_kind kind);

enum hearth_capture {
    HEARTH_CAPTURE_DONE,
    HEARTH_CAPTURE_MORE,
    HEARTH_CAPTURE_FULL, /* RAM is full of state that waits to be written: go on when some of it is */
};

/* How far apart the snapshots of a long prefill should be: `least` tokens, or where snapshots are large a multiple of
 * it, so that the pages between two of them are many times as large. */
int32_t hearth_cache_snapshot_interval(const struct hearth_caps *caps, int32_t least);

/* Stores what is new of a live sequence: at most `pages` pages in this call, then snapshots. Call until DONE. The live
 * state is untouched. A sequence that is busy is stored as far as it has got. */
enum hearth_capture hearth_cache_capture(struct hearth_cache *cache, struct hearth_live *live, int pages);
/* Stores at most `pages` pages of a sequence that goes on, so that less is left to do when it ends. */
void hearth_cache_capture_ahead(struct hearth_cache *cache, struct hearth_live *live, int pages);
/* For models with a sliding window: whether a page has been filled since the last call and is to be stored now, with
 * its window, which the engine soon drops. Ask after each decode. A prompt cannot be resumed inside a page that was
 * not stored in time, nor within a window behind it. */
bool hearth_cache_window_due(const struct hearth_cache *cache, const struct hearth_live *live);
void hearth_cache_capture_window(struct hearth_cache *cache, struct hearth_live *live);
/* True when hearth_cache_capture has something to do. */
bool hearth_cache_capture_pending(const struct hearth_cache *cache, const struct hearth_live *live);

/* Why a plan's prompt has to compute again what was there: how much room would have kept it. Before it is restored.
 * `*missing` has the budget in any case. */
void hearth_cache_shortfall(const struct hearth_cache *cache, const struct hearth_plan *plan,
                            const struct hearth_cache_prompt *prompt, struct hearth_shortfall *missing);

/* A request comes for state of this salt, which is of this owner: an API key, say, with one or several salts. Owners
 * share RAM (tier/share.h); what was never owned has the owner 0. */
void hearth_cache_own(struct hearth_cache *cache, struct hearth_digest salt, uint64_t owner);

/* ---- keeping and forgetting ---- */

/* Pins what is stored of a prompt. */
void hearth_cache_pin(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                      const struct hearth_pin *pins, size_t count);
/* The prompt's conversation will soon come back: what is stored of it is kept in RAM until then. */
void hearth_cache_expect(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int64_t until_us);

/* Forgets the state of the prompt's tokens behind the first `from`, as far as it serves nothing else that is stored or
 * live: from the end backwards, up to where another path goes on, a sequence is busy, or one that is idle went another
 * way; a page that holds both stays. Idle sequences that hold no more than the path are cut, or emptied. `*stop`: what
 * is behind it is gone. The backing tier is asked to remove it: hearth_cache_removing(). To be called when the backing
 * tier has told what it has, or what it tells later will be there again. Errors: NOMEM (nothing was forgotten). */
int hearth_cache_forget(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t from,
                        struct hearth_live *const *lives, size_t live_count, int32_t *stop);
/* True while the backing tier has not answered for all that it was asked to remove. `*failed`, once it is false: some
 * of it could not be removed (told once). */
bool hearth_cache_removing(struct hearth_cache *cache, bool *failed);

/* ---- the backing tier ---- */

/* Deals with what the backing tier has to tell, at most `limit` events. Returns how many there were. */
size_t hearth_cache_poll(struct hearth_cache *cache, size_t limit);
/* Waits for an event; false: none came. */
bool hearth_cache_wait(struct hearth_cache *cache, int64_t timeout_us);
/* True while the backing tier still finds what was there at the start. */
bool hearth_cache_scanning(const struct hearth_cache *cache);

/* Asks a backing tier that does not tell by itself what it has of the prompt behind the first `from` tokens. Returns a
 * ticket for hearth_cache_sought(); 0: there is nothing to wait for. */
uint64_t hearth_cache_seek(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t from);
/* Whether there is such a tier: what it has is known by asking alone. */
bool hearth_cache_must_seek(const struct hearth_cache *cache);
/* True when the answer to a seek has come: a new plan knows it. */
bool hearth_cache_sought(const struct hearth_cache *cache, uint64_t ticket);

/* ---- shared heads ---- */

/* A conversation begins with the first `n` tokens of the prompt, its tools and system prompt (0: not known): they are
 * counted. */
void hearth_cache_head(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t n);

/* While there is no request after a start: has the heads that most conversations share read into RAM, a little in each
 * call. To be called again when events of the backing tier have come. */
void hearth_cache_prefetch_heads(struct hearth_cache *cache);

/* ---- measuring and watching ---- */

/* Saves what the policy has learnt in the backing tier, where the next start finds it. It is saved now and then anyway:
 * to be called at an end. */
void hearth_cache_save(struct hearth_cache *cache);

/* Tells the cache how long a prefill of `tokens` took. */
void hearth_cache_learn_prefill(struct hearth_cache *cache, int32_t tokens, int64_t us);

struct hearth_cache_stats {
    size_t pages, page_bytes, snapshots, snapshot_bytes;
    size_t pinned_bytes; /* of these */
    uint64_t evicted_pages, evicted_snapshots, restore_failures;
    uint64_t bad_reads;    /* items that could not be read, though the backing tier has them */
    uint64_t store_misses; /* items that a store that boxes share had told of, and did not have */
    uint64_t stored_pages, stored_snapshots;
    uint64_t warmed_tokens; /* of shared heads, read at the start */
    size_t copies, orphans; /* items known to the backing tier; of these, without a place in the tree */
};
void hearth_cache_stats(const struct hearth_cache *cache, struct hearth_cache_stats *stats);
const struct hearth_costs *hearth_cache_costs(const struct hearth_cache *cache);

/* Changes the budget; evicts down to it. */
void hearth_cache_set_budget(struct hearth_cache *cache, size_t budget_bytes, size_t snapshot_bytes);

/* Asserts every invariant of tree, heaps and budget. Linear in what is stored. */
void hearth_cache_check(const struct hearth_cache *cache);

#endif
