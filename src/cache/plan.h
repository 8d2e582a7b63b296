/* The plan: for one prompt, what to reuse, from where, and why no more.
 *
 * Pure: (prompt, what the tree knows, what is live, capabilities, measured costs) → one value. Every way to resume is
 * a candidate with a position and a cost; the cheapest total (restoring + computing the rest) wins, and equal costs
 * fall to the order of the candidate table, live state first. */
#ifndef HEARTH_CACHE_PLAN_H
#define HEARTH_CACHE_PLAN_H

#include "cache/live.h"
#include "cache/policy.h"
#include "cache/receipt.h"
#include "cache/tree.h"
#include "engine/engine.h"

/* The ways to complete a sequence at the resume position, in order of preference. */
#define HEARTH_RESUME_TABLE(X)                                                                        \
    X(IN_PLACE, "in_place")           /* the target's own sequence, continued or rewound */           \
    X(SHARE, "share")                 /* another live sequence's addressable state, shared (PAGES) */ \
    X(LIVE_END, "live_end")           /* another live sequence's end, copied by a snapshot */         \
    X(LIVE_SNAPSHOT, "live_snapshot") /* a snapshot that a live sequence has pending */               \
    X(STORED, "stored")               /* pages and snapshot from the tree */                          \
    X(FRESH, "fresh")                 /* nothing: start empty */

enum hearth_resume {
#define X(name, text) HEARTH_RESUME_##name,
    HEARTH_RESUME_TABLE(X)
#undef X
};

struct hearth_plan_input {
    const hearth_token *prompt;
    size_t n;                       /* > 0 */
    const struct hearth_path *path; /* the tree's match of the prompt */
    int32_t usable;                 /* where the path's first page without state begins, or its end */
    enum hearth_tree_edge edge;     /* what stands behind the match */
    const struct hearth_live *const *lives;
    const int32_t *rewind_floors; /* per live sequence: engine op seq_rewind_floor */
    const int32_t *commons;       /* per live sequence: hearth_plan_common() */
    size_t live_count;
    const struct hearth_caps *caps;
    const struct hearth_costs *costs;
    int64_t now_us; /* decides which live sequences are expected back */
    bool cache_off; /* reuse nothing for this request */
};

struct hearth_plan {
    enum hearth_resume how;
    int target;          /* index into lives: the sequence to run on */
    int source;          /* index into lives for addressable state, or -1; may be the target */
    int32_t resume;      /* [0, resume) is reused; < n, because the last token's logits are needed */
    int32_t live_tokens; /* of these, [0, live_tokens) comes from `source`, the rest from the path's pages */
    struct hearth_snapshot *snapshot;           /* STORED on a class that needs one */
    const struct hearth_live_snapshot *pending; /* LIVE_SNAPSHOT: of the live sequence `source` */
    int32_t matched;                            /* longest known prefix, in the tree or live */
    int32_t divergence; /* where the prompt leaves what is known, when that is worth a snapshot; else 0 */
    enum hearth_reason reason;
};

/* How many tokens a live sequence and a prompt begin with alike: none when their salts differ. Threads: pure. */
int32_t hearth_plan_common(const struct hearth_live *live, const hearth_token *prompt, size_t n,
                           struct hearth_digest salt);
/* Returns false when no sequence is free (every live one is busy). Threads: pure. */
bool hearth_plan_make(const struct hearth_plan_input *input, struct hearth_plan *plan);
/* The position that the prompt would be resumed at, whether or not a sequence is free for it. Threads: pure. */
int32_t hearth_plan_resume(const struct hearth_plan_input *input);

#endif
