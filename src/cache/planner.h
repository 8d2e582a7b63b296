/* What a plan is made of (cache/plan.h). Inside the cache. */
#ifndef HEARTH_CACHE_PLANNER_H
#define HEARTH_CACHE_PLANNER_H

#include "cache/plan.h"
#include "cache/policy.h"
#include "cache/tree.h"
#include "engine/engine.h"

struct hearth_plan_input {
    const hearth_token *prompt;
    size_t n;                       /* > 0 */
    const struct hearth_path *path; /* the tree's match of the prompt; may be the plan's own */
    int32_t usable;                 /* where the path's first page without state begins, or its end */
    enum hearth_tree_edge edge;     /* what stands behind the match */
    const struct hearth_live *const *lives;
    const int32_t *rewind_floors; /* per live sequence: engine op seq_rewind_floor */
    const int32_t *commons;       /* per live sequence: hearth_live_common() */
    size_t live_count;
    const struct hearth_caps *caps;
    const struct hearth_costs *costs;
    int32_t page_tokens; /* of the tree; where there is a window */
    int64_t now_us;      /* decides which live sequences are expected back */
    bool cache_off;      /* reuse nothing for this request */
};

/* Returns false when no sequence is free (every live one is busy). All of the plan is new but its path. Threads: pure.
 */
bool hearth_plan_make(const struct hearth_plan_input *input, struct hearth_plan *plan);
/* The position that the prompt would be resumed at, whether or not a sequence is free for it. Threads: pure. */
int32_t hearth_plan_resume(const struct hearth_plan_input *input);

/* Fills `how`, `source`, `resume`, `live_tokens` and the pieces: what the prompt would be resumed from, whether or not
 * a sequence is free for it. Threads: pure. */
void hearth_plan_locate(const struct hearth_plan_input *input, struct hearth_plan *plan);

#endif
