/* The cache: plan, restore, capture, evict.
 *
 * The cache stands between the caller's sequences and the engine. Each sequence has a `struct hearth_live`. For a new
 * prompt the caller makes a plan, restores it, decodes the rest, and appends the decoded tokens to the live sequence.
 * After the reply it captures the sequence, in slices if it likes. The server does the same for its lanes:
 *
 *     struct hearth_cache_prompt prompt = {.tokens = tokens, .n = n};
 *     struct hearth_plan plan = {0};
 *     hearth_cache_plan(cache, &prompt, lives, count, &plan);
 *     hearth_cache_restore(cache, &plan, &prompt, lives, &result);
 *     … decode prompt[result.resumed, n) on lives[plan.target]->seq, hearth_live_append() it …
 *     while (hearth_cache_capture(cache, lives[plan.target], 8) == HEARTH_CAPTURE_MORE) { }
 *     hearth_plan_finish(&plan);
 *
 * Restoring leaves what is stored in place. Threads: the one thread that drives the engine. */
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

/* Learns which whole blocks of prompts the cache can restore. It is called on the thread that drives the engine, and
 * must not block. A block is named by the digest of all tokens up to its end (tier/record.h). */
struct hearth_cache_observer {
    /* `parent`: the block before this one; if `first`, the root of the salt's chain. `tokens`: page_tokens of them. */
    void (*stored)(void *user, struct hearth_digest block, struct hearth_digest parent, bool first,
                   const hearth_token *tokens);
    void (*removed)(void *user, struct hearth_digest block);
    void *user;
};

struct hearth_cache_params {
    int32_t page_tokens;   /* most positions in a page */
    size_t budget_bytes;   /* RAM for pages and snapshots; 0: nothing is stored (live sequences are still reused) */
    size_t snapshot_bytes; /* the part of it for snapshots; 0: all of it for classes without pages, none for PAGES, else
                              half */
    double share; /* the part that one owner may hold while others want it; 0 or 1: no bound (hearth_cache_own()) */
    const struct hearth_policy *policy;           /* NULL: hearth_policy_returns */
    struct hearth_backing *backing;               /* where state outlasts RAM (tier/backing.h); NULL: nowhere */
    int32_t backing_min_tokens;                   /* shorter sequences are not put into the backing tier */
    const struct hearth_cache_observer *observer; /* NULL: none; must outlive the cache */
};

/* Makes a cache. Engine, RAM tier and backing tier are borrowed and must outlive it. `msg` (may be NULL) says what
 * failed. Errors: NOMEM, INVALID. */
int hearth_cache_create(struct hearth_engine *engine, struct hearth_ram *ram, const struct hearth_cache_params *params,
                        struct hearth_cache **out, struct hearth_errmsg *msg);
/* Destroys the cache. All live sequences must be finished before. */
void hearth_cache_destroy(struct hearth_cache *cache);

/* ---- live sequences ---- */

/* Makes a live sequence of an empty sequence of the engine. Free it with hearth_live_finish(). */
void hearth_live_init(struct hearth_live *live, int32_t seq);
/* Says that the sequence now also holds these tokens, which were decoded behind its end. False: out of memory; then
 * clear the sequence. */
bool hearth_live_append(struct hearth_live *live, const hearth_token *tokens, size_t n);
/* Pins what will be stored of the sequence (cache/pin.h). */
void hearth_live_pin(struct hearth_live *live, const struct hearth_pin *pin);
/* Empties the sequence, also in the engine, and drops its pending snapshots; what was captured stays. */
void hearth_live_clear(struct hearth_cache *cache, struct hearth_live *live);
/* Clears a live sequence, and frees what it holds. */
void hearth_live_finish(struct hearth_cache *cache, struct hearth_live *live);

/* ---- a prompt ---- */

struct hearth_cache_prompt {
    const hearth_token *tokens; /* borrowed for the call */
    size_t n;                   /* > 0 */
    struct hearth_digest salt;  /* state is shared only between prompts with the same salt; zero: no salt */
    bool cache_off;             /* reuse nothing for this prompt */
};

/* Plans a prompt over the stored state and the live sequences; `plan` may be one that was used before. False: every
 * live sequence is busy, or out of memory. */
bool hearth_cache_plan(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                       const struct hearth_live *const *lives, size_t live_count, struct hearth_plan *plan);

/* About how many tokens of a prompt would have to be computed if it were planned now, at least 1: an estimate for
 * ordering waiting prompts. It needs no free sequence, leaves plans valid, and does not count as a use. It costs as
 * much as a plan. The answer changes when something is computed, captured, evicted or found. */
int32_t hearth_cache_peek(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                          const struct hearth_live *const *lives, size_t live_count);

/* Where the state of a prompt is and what bringing it back would cost. Tokens are counted from the prompt's beginning,
 * by the place they would come from, and those to be computed; bytes are those to be read; microseconds as measured. */
struct hearth_cache_location {
    int32_t live_tokens, ram_tokens, disk_tokens, remote_tokens, computed_tokens;
    uint64_t read_bytes;
    int64_t restore_us, compute_us;
};

/* Fills a location. Like hearth_cache_peek() it does not count as a use. */
void hearth_cache_locate(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                         const struct hearth_live *const *lives, size_t live_count, struct hearth_cache_location *out);

/* Begins to read what the plan needs from the backing tier into RAM. True: make a new plan when events have come.
 * False: everything is in RAM, or RAM cannot hold it at once (then the restore reads it piece by piece). */
bool hearth_cache_fetch(struct hearth_cache *cache, const struct hearth_plan *plan);
/* Whether something that the plan needs is being read and has not come. */
bool hearth_cache_fetching(const struct hearth_plan *plan);
/* Whether the end of what the plan needs was read from a shared store and has not been used since. */
bool hearth_cache_fetched_remote(const struct hearth_plan *plan);
/* Whether all that the plan needs is in RAM. */
bool hearth_cache_in_ram(const struct hearth_cache *cache, const struct hearth_plan *plan);

/* Whether the target must be captured before the plan is restored, because it holds state that would be lost. If so,
 * capture it wholly and plan again. */
bool hearth_cache_must_capture(const struct hearth_cache *cache, const struct hearth_plan *plan,
                               const struct hearth_live *target);

struct hearth_restore {
    int32_t resumed;       /* the target holds the state of prompt[0, resumed) */
    int32_t live_tokens;   /* of these, tokens taken from live sequences */
    int32_t ram_tokens;    /* of these, tokens imported from RAM (or with a snapshot in RAM) */
    int32_t disk_tokens;   /* of these, tokens read from disk for this restore */
    int32_t remote_tokens; /* of these, tokens read from a shared store */
    bool failed;           /* state could not be restored and was dropped; the target is empty: plan again */
    bool gone;             /* if `failed`: the missing state was removed meanwhile, to make room */
    bool no_cells;         /* the KV cache is full and the target empty: free cells and plan again */
    bool polled;           /* it has taken events of the backing tier, for which other prompts may wait, too */
    int64_t us;            /* how long the restore took, by the engine's clock */
};

/* Carries a plan out, and waits for what has to be read: page k + 1 is read while page k is imported. Afterwards the
 * target's sequence and live->tokens agree on prompt[0, resumed), ready to be decoded from there, also after a failure.
 */
void hearth_cache_restore(struct hearth_cache *cache, const struct hearth_plan *plan,
                          const struct hearth_cache_prompt *prompt, struct hearth_live *const *lives,
                          struct hearth_restore *result);

/* How many bytes of RAM pages and snapshots may take; half each where the border between them moves. */
void hearth_cache_budget(const struct hearth_cache *cache, size_t *page_bytes, size_t *snapshot_bytes);

/* ---- capture ---- */

/* Whether anything can be stored. False: there is no budget, or the engine failed its self-test. */
bool hearth_cache_stores(const struct hearth_cache *cache);

/* Takes a snapshot of a live sequence where it stands; it is pending until the next capture. False: the memory class
 * needs none, there is one already, there is no room, or the export failed; the sequence is unchanged. */
bool hearth_cache_snapshot(struct hearth_cache *cache, struct hearth_live *live, enum hearth_snapshot_kind kind);

enum hearth_capture {
    HEARTH_CAPTURE_DONE,
    HEARTH_CAPTURE_MORE,
    HEARTH_CAPTURE_FULL, /* RAM is full of state that waits to be written: call again once some of it is */
};

/* How far apart the snapshots of a long prefill should be, in tokens: `least`, or, where snapshots are large, a
 * multiple of it, so that the pages between two of them are many times as large. */
int32_t hearth_cache_snapshot_interval(const struct hearth_caps *caps, int32_t least);

/* Stores what is new of a live sequence: at most `pages` pages in this call, then snapshots. Call until it returns
 * DONE. The live state is unchanged. A busy sequence is stored as far as it has been computed. */
enum hearth_capture hearth_cache_capture(struct hearth_cache *cache, struct hearth_live *live, int pages);
/* Stores at most `pages` pages of a sequence that goes on, so that less is left for its end. */
void hearth_cache_capture_ahead(struct hearth_cache *cache, struct hearth_live *live, int pages);
/* For models with a sliding window: whether a page was filled since the last call and must be stored now with its part
 * of the window, which the engine soon drops. Ask after each decode. A prompt cannot be resumed inside a page that was
 * not stored in time, nor within one window behind it. */
bool hearth_cache_window_due(const struct hearth_cache *cache, const struct hearth_live *live);
void hearth_cache_capture_window(struct hearth_cache *cache, struct hearth_live *live);
/* Whether hearth_cache_capture() has something to do. */
bool hearth_cache_capture_pending(const struct hearth_cache *cache, const struct hearth_live *live);

/* How much more room would have kept the state that a plan's prompt has to compute again. Call it before the restore.
 * `*missing` has the budget in any case. */
void hearth_cache_shortfall(const struct hearth_cache *cache, const struct hearth_plan *plan,
                            const struct hearth_cache_prompt *prompt, struct hearth_shortfall *missing);

/* Says that a request comes for state of this salt, and which owner the salt belongs to (for example an API key, which
 * may have several salts). Owners share RAM (tier/share.h); state without an owner belongs to owner 0. */
void hearth_cache_own(struct hearth_cache *cache, struct hearth_digest salt, uint64_t owner);

/* ---- keeping and forgetting ---- */

/* Pins the stored state of a prompt. */
void hearth_cache_pin(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt,
                      const struct hearth_pin *pins, size_t count);
/* The prompt's conversation will come back soon: its stored state stays in RAM until then. */
void hearth_cache_expect(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int64_t until_us);

/* Forgets the state of the prompt's tokens behind the first `from`, from the end backwards, up to the last place that
 * other stored or live state needs: where another path branches off, a sequence is busy, or an idle sequence has other
 * tokens. A page that both need stays. Idle sequences that hold no more than the path are cut or emptied. `*stop`:
 * everything behind it is gone. The backing tier is asked to remove it, too (hearth_cache_removing()). Call it only
 * after the backing tier's first scan, which would bring state back. Errors: NOMEM (nothing was forgotten). */
int hearth_cache_forget(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t from,
                        struct hearth_live *const *lives, size_t live_count, int32_t *stop);
/* Whether the backing tier still has to answer removals. Once it returns false, `*failed` says (once) that some of the
 * state could not be removed. */
bool hearth_cache_removing(struct hearth_cache *cache, bool *failed);

/* ---- the backing tier ---- */

/* Handles at most `limit` events of the backing tier. Returns how many there were. */
size_t hearth_cache_poll(struct hearth_cache *cache, size_t limit);
/* Waits for an event of the backing tier; false: none came in time. */
bool hearth_cache_wait(struct hearth_cache *cache, int64_t timeout_us);
/* Whether the backing tier is still finding what was there at the start. */
bool hearth_cache_scanning(const struct hearth_cache *cache);

/* Asks a backing tier that does not report its content what it has of the prompt behind the first `from` tokens.
 * Returns a ticket for hearth_cache_sought(); 0: there is nothing to wait for. */
uint64_t hearth_cache_seek(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t from);
/* Whether the backing tier has to be asked what it has. */
bool hearth_cache_must_seek(const struct hearth_cache *cache);
/* Whether the answer to a seek has come; a plan made from then on uses it. */
bool hearth_cache_sought(const struct hearth_cache *cache, uint64_t ticket);

/* ---- shared heads ---- */

/* Counts a conversation that begins with the first `n` tokens of the prompt, its tools and system text (0: unknown). */
void hearth_cache_head(struct hearth_cache *cache, const struct hearth_cache_prompt *prompt, int32_t n);

/* Reads the heads that most conversations share into RAM, a few at each call. For the time after a start in which there
 * is no request; call it again when events of the backing tier have come. */
void hearth_cache_prefetch_heads(struct hearth_cache *cache);

/* ---- measuring and watching ---- */

/* Saves what the policy has learnt in the backing tier, where the next start finds it. The cache does so now and then
 * by itself; call it before the end. */
void hearth_cache_save(struct hearth_cache *cache);

/* Tells the cache that a prefill of `tokens` took `us`. */
void hearth_cache_learn_prefill(struct hearth_cache *cache, int32_t tokens, int64_t us);

struct hearth_cache_stats {
    size_t pages, page_bytes, snapshots, snapshot_bytes;
    size_t pinned_bytes; /* of these bytes, the pinned ones */
    uint64_t evicted_pages, evicted_snapshots, restore_failures;
    uint64_t bad_reads;    /* items that could not be read although the backing tier has them */
    uint64_t store_misses; /* items that a shared store had reported and did not have */
    uint64_t stored_pages, stored_snapshots;
    uint64_t warmed_tokens; /* tokens of shared heads read at the start */
    size_t copies, orphans; /* items known to be in the backing tier; of these, items without a place in the tree */
};
void hearth_cache_stats(const struct hearth_cache *cache, struct hearth_cache_stats *stats);
const struct hearth_costs *hearth_cache_costs(const struct hearth_cache *cache);

/* Changes the budget, and evicts until it is kept. */
void hearth_cache_set_budget(struct hearth_cache *cache, size_t budget_bytes, size_t snapshot_bytes);

/* Asserts every invariant of tree, heaps and budget; for tests. Takes time linear in what is stored. */
void hearth_cache_check(const struct hearth_cache *cache);

#endif
