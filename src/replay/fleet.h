/* Fleets: a trace goes over several boxes that share a store, on a virtual clock. Each box has the cache of the server,
 * with its plans, budgets and policy; network and store are cost models (replay/sim_store.h).
 *
 * A box computes one prompt at a time, in the order in which they can begin; replies take what they took in the trace.
 * A conversation sends its next request no sooner than the reply before it has ended. */
#ifndef HEARTH_REPLAY_FLEET_H
#define HEARTH_REPLAY_FLEET_H

#include "replay/sim_store.h"
#include "replay/replay.h"
#include "replay/router.h"

#define HEARTH_FLEET_LOSSES_MAX 8
#define HEARTH_FLEET_AFTER_US INT64_C(600000000) /* what a loss costs is looked at for so long */
#define HEARTH_FLEET_STORE UINT32_MAX

/* A box, or the store, is gone with what it holds. */
struct hearth_fleet_loss {
    uint32_t box; /* or HEARTH_FLEET_STORE */
    int64_t at_us;
    int64_t lasts_us; /* 0: for ever */
};

struct hearth_fleet_params {
    struct hearth_replay_params machine; /* each box */
    uint32_t boxes;                      /* 1 to HEARTH_SIM_STORE_BOXES_MAX */
    enum hearth_router_kind router;
    bool has_store;
    struct hearth_sim_store_params store;
    struct hearth_fleet_loss losses[HEARTH_FLEET_LOSSES_MAX];
    size_t loss_count;
    int64_t after_us; /* where `after` begins; below 0: there is none */
};

/* Times to the first token. */
struct hearth_fleet_times {
    uint64_t requests;
    double p50_s, p99_s, mean_s;
};

struct hearth_fleet_result {
    uint64_t computed_tokens, prompt_tokens; /* of all attempts */
    uint64_t retried;                        /* requests, because their box was lost */
    struct hearth_fleet_times all, after;    /* after: that came in the ten minutes behind after_us */
    struct hearth_sim_store_figures store;
    double store_load, store_peak_load; /* of its busier line: on average, in its busiest minute */
    double prefill_load;                /* of the boxes, on average */
    double seconds;                     /* until the last prompt is computed, on the clock of the trace */
    double replay_seconds;              /* that the replay itself took */
};

/* Errors: NOMEM, INVALID (no box is left). */
int hearth_fleet_run(const struct hearth_trace *trace, const struct hearth_fleet_params *params,
                     struct hearth_fleet_result *result, struct hearth_errmsg *msg);

#endif
