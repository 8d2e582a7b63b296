/* The receipt: what the cache did for one request, and why it did no more. */
#ifndef HEARTH_CACHE_RECEIPT_H
#define HEARTH_CACHE_RECEIPT_H

#include "cache/shortfall.h"

#include <stdint.h>

/* Why no more was reused. The first reason that holds is given (cache/plan.c). */
#define HEARTH_REASON_TABLE(X)                                                                       \
    X(NONE, "none", "everything but the last token was reused")                                      \
    X(CACHE_OFF, "cache_off", "the cache is off for this server or this request")                    \
    X(COLD, "cold", "a new conversation: no stored prompt begins like this one for long")            \
    X(EXTENDED, "extended", "everything known was reused; the rest of the prompt is new")            \
    X(DIVERGED, "diverged", "the prompt leaves every stored one at this token")                      \
    X(NO_SNAPSHOT, "no_snapshot", "tokens match further, but no state was kept at a later position") \
    X(EVICTED, "evicted", "the state of what follows was evicted")                                   \
    X(COMPUTE_CHEAPER, "compute_cheaper", "computing the rest is faster than restoring it")          \
    X(RESTORE_FAILED, "restore_failed", "stored state could not be restored and was dropped")

enum hearth_reason {
#define X(name, text, help) HEARTH_REASON_##name,
    HEARTH_REASON_TABLE(X)
#undef X
};

const char *hearth_reason_text(enum hearth_reason reason);
const char *hearth_reason_help(enum hearth_reason reason);

/* Why a request waited: before its prompt was computed, or in the middle of its prompt or reply. */
#define HEARTH_WAIT_TABLE(X)                                                                    \
    X(LANE, "lane", "all lanes were busy")                                                      \
    X(BATCH, "batch", "a lane was free, and other requests' batch had to end first")            \
    X(PREFIX, "prefix", "another request computed the same beginning")                          \
    X(CELLS, "cells", "the KV cache had no cells left")                                         \
    X(DISK, "disk", "its state was read from disk")                                             \
    X(SCAN, "scan", "the server had just started, and still looked what disk had")              \
    X(STORE, "store", "the store that boxes share was asked, or its state was read from there") \
    X(PREEMPTED, "preempted", "another request took its lane")                                  \
    X(WORKER, "worker", "all threads that prepare requests were busy")

enum hearth_wait {
#define X(name, text, help) HEARTH_WAIT_##name,
    HEARTH_WAIT_TABLE(X)
#undef X
        HEARTH_WAIT_COUNT
};

const char *hearth_wait_text(enum hearth_wait wait);
const char *hearth_wait_help(enum hearth_wait wait);

/* Units: tokens and microseconds. prompt = reused_live + reused_ram + reused_disk +
 * reused_remote + computed. */
struct hearth_receipt {
    uint32_t prompt_tokens;
    uint32_t reused_live_tokens;
    uint32_t reused_ram_tokens;
    uint32_t reused_disk_tokens;
    uint32_t reused_remote_tokens; /* from a shared store */
    uint32_t computed_tokens;
    uint32_t matched_tokens;            /* longest known prefix, usable or not */
    int64_t queue_us;                   /* time without a lane before the first token: all waits until then */
    int64_t wait_us[HEARTH_WAIT_COUNT]; /* time without a lane until the end, by cause */
    uint32_t behind;                    /* requests that ran when this one came, or got their first lane before it */
    uint32_t cells_needed; /* that it and those on lanes needed together when it lacked some; 0: it never did */
    struct hearth_shortfall missing; /* EVICTED: how much room would have kept the state; RESTORE_FAILED: `end` only */
    int64_t plan_us;
    int64_t restore_us;
    int64_t prefill_us;
    int64_t beside_us;       /* of the prefill time, what was computed for other requests meanwhile */
    int64_t reply_beside_us; /* of the reply's time, how much less it would have taken alone */
    int64_t best_us;         /* the fastest that a thousand of its prompt tokens were computed; 0: too few were */
    int64_t faults;          /* pages that the process had to read from disk while the prompt was computed */
    uint64_t read_bytes;     /* of a request that only looks: bytes that bringing its state back would read */
    enum hearth_reason reason;
    int64_t began_us, ended_us; /* by the engine's clock: when it was planned, and when its reply was over; 0: never */
    uint32_t end_tokens;        /* tokens that its sequence held at the end */
    uint64_t evicted;           /* pages and snapshots evicted from the server's start until it was planned */
};

/* Prompt tokens that were reused, from any place. */
static inline uint32_t hearth_receipt_reused_tokens(const struct hearth_receipt *receipt) {
    return receipt->reused_live_tokens + receipt->reused_ram_tokens + receipt->reused_disk_tokens +
           receipt->reused_remote_tokens;
}

#endif
