/* Routers: which of several boxes a request of a replay goes to. */
#ifndef HEARTH_REPLAY_ROUTER_H
#define HEARTH_REPLAY_ROUTER_H

#include "base/table.h"
#include "cache/cache.h"
#include "replay/sim_store.h"
#include "replay/trace.h"

#define HEARTH_ROUTER_TABLE(X)                                                                                         \
    X(AFFINITY, "affinity")         /* the conversation's box; a hot one passes new requests on, as HAProxy does */    \
    X(LEAST_LOADED, "least-loaded") /* the box with the fewest requests; of several, the one that had the fewest */    \
    X(PREFIX, "prefix")             /* of those that are not hot, the one that holds most of the prompt (KV events) */ \
    X(RANDOM, "random")

enum hearth_router_kind {
#define X(name, text) HEARTH_ROUTER_##name,
    HEARTH_ROUTER_TABLE(X)
#undef X
};
#define X(name, text) +1
enum { HEARTH_ROUTERS = 0 HEARTH_ROUTER_TABLE(X) };
#undef X
const char *hearth_router_text(enum hearth_router_kind kind);

/* A box is hot with so many percent of its share of the requests that run: hash-balance-factor in
 * contrib/haproxy/hearth.cfg. */
#define HEARTH_ROUTER_HOT_PERCENT 150

#define HEARTH_ROUTER_WORDS (HEARTH_SIM_STORE_BOXES_MAX / 64)

struct hearth_router_box {
    bool down;
    uint32_t running; /* requests */
    uint64_t routed;
};

struct hearth_router {
    enum hearth_router_kind kind;
    uint32_t boxes;
    struct hearth_router_box box[HEARTH_SIM_STORE_BOXES_MAX];
    struct hearth_table blocks; /* PREFIX: which boxes can restore a block */
    int32_t page_tokens;
    uint64_t random;
    struct hearth_router_ear {
        struct hearth_router *router;
        struct hearth_cache_observer observer;
    } ears[HEARTH_SIM_STORE_BOXES_MAX];
};

void hearth_router_init(struct hearth_router *router, enum hearth_router_kind kind, uint32_t boxes,
                        int32_t page_tokens);
void hearth_router_finish(struct hearth_router *router);
/* What the cache of a box is to tell its blocks to; NULL: nothing has to be told. */
const struct hearth_cache_observer *hearth_router_observer(struct hearth_router *router, uint32_t box);
/* The box is empty: what it told of its blocks is not true any more. */
void hearth_router_forget(struct hearth_router *router, uint32_t box);
/* The box for a request; UINT32_MAX: all are down. `tokens`: its prompt. */
uint32_t hearth_router_choose(struct hearth_router *router, const struct hearth_trace_request *request,
                              const struct hearth_tokens *tokens);

#endif
