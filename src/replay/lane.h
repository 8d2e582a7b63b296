/* What a request does on a lane of the hollow engine: shared by the replays of one cache and of several boxes. */
#ifndef HEARTH_REPLAY_LANE_H
#define HEARTH_REPLAY_LANE_H

#include "replay/engine.h"
#include "replay/replay.h"

#define HEARTH_REPLAY_PAGE_BLOCKS (256 / HEARTH_TRACE_BLOCK_TOKENS) /* of a page: --page-tokens */

struct hearth_replay_lane {
    struct hearth_hollow *hollow;
    struct hearth_cache *cache;
    struct hearth_live *live;
    const struct hearth_tokens *prompt; /* the request's blocks, and one token behind them */
};

/* Computes the prompt's blocks behind those that the lane holds, with snapshots where the server takes them
 * (sched/admit.c). `divergence`: of the plan. False: out of memory. */
bool hearth_replay_compute(const struct hearth_replay_lane *lane, const struct hearth_trace_request *request,
                           int32_t divergence);
/* The cache learns how fast the machine computes. */
void hearth_replay_teach(struct hearth_cache *cache, const struct hearth_replay_params *params);

#endif
