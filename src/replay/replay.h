/* Replays: a trace goes through the cache of the server, with its plans, its budgets and its policy, on a clock of its
 * own. Nothing is computed; what it would have cost is counted.
 *
 * The trace's times are the clock: a policy changes what a request costs and not when the next one comes, so that all
 * policies are asked the same. */
#ifndef HEARTH_REPLAY_REPLAY_H
#define HEARTH_REPLAY_REPLAY_H

#include "cache/cache.h"
#include "replay/engine.h"
#include "replay/oracle.h"
#include "replay/trace.h"

/* The machine and the model that are replayed. */
struct hearth_replay_params {
    size_t token_bytes;    /* of pages */
    size_t snapshot_bytes; /* 0: a model whose state is all in pages */
    uint64_t ram_bytes;
    double prefill_tokens_per_s;
    double import_bytes_per_s; /* RAM to the engine */
    double export_bytes_per_s; /* and back; 0: it takes no time */
    int32_t page_tokens;       /* 0: 256 */
    uint64_t disk_bytes;       /* 0: there is none */
    double disk_read_bytes_per_s, disk_write_bytes_per_s;
    double share;   /* of RAM, and of the disk, one key may hold while others want it; 0: any */
    uint32_t lanes; /* that keep the state of their last prompt, one request after the other; 0: none does */
    const struct hearth_policy *policy;
};

/* Why tokens were computed that had been computed before. */
#define HEARTH_REPLAY_CAUSE_TABLE(X)                                                             \
    X(EVICTED, "evicted")         /* their state had gone */                                     \
    X(NO_SNAPSHOT, "no_snapshot") /* pages were there, and no snapshot at or before their end */ \
    X(CHEAPER, "compute_cheaper") /* reading them would have taken longer */

enum hearth_replay_cause {
#define X(name, text) HEARTH_REPLAY_##name,
    HEARTH_REPLAY_CAUSE_TABLE(X)
#undef X
};
#define X(name, text) +1
enum { HEARTH_REPLAY_CAUSES = 0 HEARTH_REPLAY_CAUSE_TABLE(X) };
#undef X
const char *hearth_replay_cause_text(enum hearth_replay_cause cause);

#define HEARTH_REPLAY_KEYS 16

struct hearth_replay_result {
    uint64_t computed_tokens;
    uint64_t lost_tokens[HEARTH_REPLAY_CAUSES]; /* of these, had been computed before */
    uint64_t key_tokens[HEARTH_REPLAY_KEYS];    /* computed, by key; those of further keys belong to the last one */
    double prefill_s, import_s;                 /* what computing and importing take */
    double read_s;                              /* that requests waited for the disk, besides */
    uint64_t read_bytes, written_bytes;         /* of the disk */
    uint64_t imported_bytes, stored_bytes;      /* out of RAM, into it */
    uint64_t served, agreed; /* requests of a server that told what it did; of these, the replay reused and evicted as
                                much */
    size_t differs;          /* the first one that did not; where served > agreed */
    double seconds;          /* that the replay itself took */
};

/* The policies that there are; NULL ends them. */
extern const struct hearth_policy *const hearth_replay_policies[];

/* What a budget has to be to hold so many tokens. */
uint64_t hearth_replay_bytes(const struct hearth_replay_params *params, uint64_t tokens);
/* What no policy does better than, as far as hearth_oracle_belady() says so. `read_s`: with a disk, what RAM alone
 * could not have held at best and both tiers can has to be read at least, or computed, where that is faster. */
struct hearth_replay_bound {
    uint64_t computed_tokens;
    double prefill_s, read_s;
};
struct hearth_replay_bound hearth_replay_bound(const struct hearth_trace *trace, const struct hearth_oracle *oracle,
                                               const struct hearth_replay_params *params);

/* Errors: NOMEM. */
int hearth_replay_run(const struct hearth_trace *trace, const struct hearth_oracle *oracle,
                      const struct hearth_replay_params *params, struct hearth_replay_result *result,
                      struct hearth_errmsg *msg);

/* ---- what a request does on a lane, also of one of several boxes (fleet.c) ---- */

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
