/* KV events: what the cache holds, published over ZeroMQ for routers that place requests on the server that has most of
 * a prompt. The messages are vLLM's: topic, number, and an array in MessagePack.
 *
 *     [time, [event, …], 0]     ["BlockStored", [block], parent or nil, [token, …], block_size, nil, "CPU"]
 *                               ["BlockRemoved", [block], "CPU"]      ["AllBlocksCleared"]
 *
 * A block is a page: --page-tokens tokens, named by 64 bits of the digest of everything up to its end.
 *
 * Source: vllm/distributed/kv_events.py of vLLM 0.11; RFC 23/REQREP for the envelope of the replay socket. */
#ifndef HEARTH_PUBLISH_KV_EVENTS_H
#define HEARTH_PUBLISH_KV_EVENTS_H

#include "base/err.h"
#include "cache/cache.h"

struct hearth_kv_events;

struct hearth_kv_events_params {
    const char *endpoint; /* where to publish, in ZeroMQ's form: tcp://HOST:PORT, ipc://PATH */
    const char *replay;   /* where missed messages can be asked for; NULL: nowhere */
    const char *topic;
    int32_t page_tokens;
};

/* Binds the sockets and starts the thread. Errors: INVALID (an endpoint that cannot be bound), NOMEM; one clear line in
 * `msg`. */
int hearth_kv_events_create(const struct hearth_kv_events_params *params, struct hearth_kv_events **out,
                            struct hearth_errmsg *msg);
/* Publishes what is queued and ends. After the cache is gone. NULL is allowed. */
void hearth_kv_events_destroy(struct hearth_kv_events *events);

/* The observer for the cache; it belongs to `events`. Its calls never wait: if events come faster than they are
 * published, they are dropped, and AllBlocksCleared says so. */
const struct hearth_cache_observer *hearth_kv_events_observer(struct hearth_kv_events *events);

/* For /metrics. Any thread. */
struct hearth_kv_events_stats {
    uint64_t published;                /* messages */
    uint64_t stored, removed, dropped; /* events */
};
void hearth_kv_events_stats(struct hearth_kv_events *events, struct hearth_kv_events_stats *stats);

#endif
