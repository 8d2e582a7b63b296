/* A plan: for one prompt, what is reused, from where, and why no more.
 *
 * A plan is a pure function of the prompt, the tree, the live sequences, the capabilities and the measured costs:
 *
 *   1. Each way to resume (HEARTH_RESUME_TABLE) at each position that it reaches is an option; its cost is restoring up
 *      to there and computing the rest. The cheapest option wins, at equal cost the one that stands first in the table.
 *   2. At least the last token is computed, because its logits are needed: resume < n.
 *   3. A busy sequence may be shared from; it is never the target.
 *   4. The target is the sequence that is continued, else the best victim (cache/live.h), an empty one first.
 *   5. A rewind that drops the end of another conversation moves to the target of rule 4 where state can be shared.
 *
 * Example: 8000 of 9000 tokens are on disk. Reading them takes 0.3 s, computing them 40 s: STORED at 8000, 1000 are
 * computed. With a disk so slow that reading takes 41 s: FRESH, and the reason is COMPUTE_CHEAPER. */
#ifndef HEARTH_CACHE_PLAN_H
#define HEARTH_CACHE_PLAN_H

#include "cache/live.h"
#include "cache/path.h"
#include "cache/receipt.h"

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

struct hearth_snapshot;

/* A value: it owns its path, may be planned again any number of times, starts as zeros and is finished once. Its
 * pointers are valid until the cache is changed, by anything but plan, peek and the functions that only read. */
struct hearth_plan {
    struct hearth_path path; /* the tree's match of the prompt */
    enum hearth_resume how;
    int target;          /* index into lives: the sequence to run on */
    int source;          /* index into lives for addressable state, or -1; may be the target */
    int32_t resume;      /* [0, resume) is reused; < n, because the last token's logits are needed */
    int32_t live_tokens; /* of these, [0, live_tokens) comes from `source`, the rest from the path's pages */
    struct hearth_snapshot *pieces[HEARTH_PIECES_MAX]; /* STORED on a class that needs a snapshot: it, or the pieces */
    size_t piece_count;                                /* of the window, ascending */
    const struct hearth_live_snapshot *pending;        /* LIVE_SNAPSHOT: of the live sequence `source` */
    int32_t matched;                                   /* longest known prefix, stored or live */
    int32_t divergence; /* where the prompt leaves the known path, if a snapshot there is worth it; else 0 */
    enum hearth_reason reason;
};

/* Frees the path. A plan of zeros may be finished, too. */
void hearth_plan_finish(struct hearth_plan *plan);

#endif
