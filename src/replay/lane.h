/* What a request does on a lane of the hollow engine: shared by the replays of one cache and of several boxes. */
#ifndef HEARTH_REPLAY_LANE_H
#define HEARTH_REPLAY_LANE_H

#include "replay/engine.h"
#include "replay/replay.h"

/* Blocks of a page. */
int32_t hearth_replay_page_blocks(const struct hearth_replay_params *params, const struct hearth_trace *trace);
/* Between two snapshots on the way. */
int32_t hearth_replay_interval_blocks(const struct hearth_trace *trace);
/* State of a block, with what its tokens take in a server, where a block is not one of them. */
size_t hearth_replay_block_bytes(const struct hearth_replay_params *params, const struct hearth_trace *trace);

struct hearth_replay_lane {
    struct hearth_hollow *hollow;
    struct hearth_cache *cache;
    struct hearth_live *live;
    const struct hearth_tokens *prompt; /* the request's blocks, and one token behind them */
    int32_t interval_blocks;            /* between snapshots on the way */
};

/* Computes the prompt's blocks behind those that the lane holds, with snapshots where the server takes them
 * (sched/admit.c). `divergence`: of the plan. False: out of memory. */
bool hearth_replay_compute(const struct hearth_replay_lane *lane, const struct hearth_trace_request *request,
                           int32_t divergence);
/* The cache learns how fast the machine computes. */
void hearth_replay_teach(struct hearth_cache *cache, const struct hearth_replay_params *params,
                         const struct hearth_trace *trace);

#endif
