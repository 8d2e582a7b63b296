/* The input of a plan (cache/plan.h). Inside the cache. */
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
    int32_t usable;                 /* where the path's first page without state begins; else the path's end */
    enum hearth_tree_edge edge;     /* what the tree has behind the match */
    const struct hearth_live *const *lives;
    const int32_t *rewind_floors; /* per live sequence: engine op seq_rewind_floor */
    const int32_t *commons;       /* per live sequence: hearth_live_common() */
    size_t live_count;
    const struct hearth_caps *caps;
    const struct hearth_costs *costs;
    int32_t page_tokens; /* of the tree; used if there is a window */
    int64_t now_us;      /* for whether live sequences are expected back */
    bool cache_off;      /* reuse nothing for this request */
};

/* Makes a plan; everything in it is new except its path. False: every live sequence is busy. Threads: pure. */
bool hearth_plan_make(const struct hearth_plan_input *input, struct hearth_plan *plan);
/* The position at which the prompt would be resumed, whether or not a sequence is free. Threads: pure. */
int32_t hearth_plan_resume(const struct hearth_plan_input *input);

/* Fills `how`, `source`, `resume`, `live_tokens` and the pieces: from what the prompt would be resumed, whether or not
 * a sequence is free for it. Threads: pure. */
void hearth_plan_locate(const struct hearth_plan_input *input, struct hearth_plan *plan);

#endif
