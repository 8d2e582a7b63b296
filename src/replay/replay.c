/* One replay of one policy.
 *
 * A request is what a lane makes of it: planned, restored, computed up to its end with snapshots at its marks,
 * captured. Then the lane is emptied: nothing is reused but what the cache kept, so that its budget is all there is.
 *
 * Only the whole blocks of a prompt are captured. The token behind them, which no other prompt has, stands for what is
 * left of it and for what comes next: a request resumes at their end at the latest. */
#include "replay/replay.h"

#include "base/assert.h"
#include "base/clock.h"
#include "cache/tree.h"
#include "replay/lane.h"

#define INTERVAL_BLOCKS (8192 / HEARTH_TRACE_BLOCK_TOKENS) /* --snapshot-interval */
#define LEARN_TIMES 64                                     /* until an average is where its samples are */

struct replay {
    struct hearth_hollow hollow;
    struct hearth_ram *ram;
    struct hearth_cache *cache;
    struct hearth_live live;
    struct hearth_plan plan;
    struct hearth_tokens tokens;
    struct hearth_replay_result *result;
};

const char *hearth_replay_cause_text(enum hearth_replay_cause cause) {
    static const char *const texts[] = {
#define X(name, text) [HEARTH_REPLAY_##name] = text,
        HEARTH_REPLAY_CAUSE_TABLE(X)
#undef X
    };
    return texts[cause];
}

static enum hearth_replay_cause cause_of(enum hearth_reason reason) {
    switch (reason) {
    case HEARTH_REASON_COMPUTE_CHEAPER: return HEARTH_REPLAY_CHEAPER;
    case HEARTH_REASON_NO_SNAPSHOT: return HEARTH_REPLAY_NO_SNAPSHOT;
    default: return HEARTH_REPLAY_EVICTED;
    }
}

const struct hearth_policy *const hearth_replay_policies[] = {&hearth_policy_returns, &hearth_policy_lru,
                                                              &hearth_policy_gdsf, NULL};

/* A page with all that counts in a budget. */
static size_t page_bytes(const struct hearth_replay_params *params) {
    return hearth_page_node_bytes(HEARTH_REPLAY_PAGE_BLOCKS) + HEARTH_BLOB_OVERHEAD_BYTES +
           params->token_bytes * HEARTH_TRACE_BLOCK_TOKENS * HEARTH_REPLAY_PAGE_BLOCKS;
}

uint64_t hearth_replay_bytes(const struct hearth_replay_params *params, uint64_t tokens) {
    return tokens * page_bytes(params) / (HEARTH_TRACE_BLOCK_TOKENS * HEARTH_REPLAY_PAGE_BLOCKS);
}

uint64_t hearth_replay_bound(const struct hearth_trace *trace, const struct hearth_oracle *oracle,
                             const struct hearth_replay_params *params) {
    const uint64_t block_bytes = page_bytes(params) / HEARTH_REPLAY_PAGE_BLOCKS;
    return hearth_oracle_belady(trace, oracle, params->ram_bytes / block_bytes,
                                (params->snapshot_bytes + block_bytes - 1) / block_bytes);
}

/* ---- a request ---- */

/* Computes up to `end`, and takes a snapshot there. False: out of memory. */
static bool compute_to(const struct hearth_replay_lane *lane, int32_t end, enum hearth_snapshot_kind kind) {
    int32_t at = (int32_t)lane->live->tokens.n;
    if (end <= at) {
        return true;
    }
    lane->hollow->ends[lane->live->seq] = end;
    if (!hearth_live_append(lane->live, lane->prompt->v + at, (size_t)(end - at))) {
        return false;
    }
    if ((size_t)end + 1 < lane->prompt->n) {
        (void)hearth_cache_snapshot(lane->cache, lane->live, kind);
    }
    return true;
}

bool hearth_replay_compute(const struct hearth_replay_lane *lane, const struct hearth_trace_request *request,
                           int32_t divergence) {
    int32_t marks[3] = {request->head_blocks, divergence, request->blocks};
    bool ok = true;
    while (ok && (int32_t)lane->live->tokens.n < request->blocks) {
        int32_t at = (int32_t)lane->live->tokens.n, next = (at / INTERVAL_BLOCKS + 1) * INTERVAL_BLOCKS;
        enum hearth_snapshot_kind kind = HEARTH_SNAPSHOT_INTERVAL;
        for (int i = 0; i < 3; i++) {
            if (marks[i] > at && marks[i] <= next) {
                next = marks[i];
                kind = i == 1 ? HEARTH_SNAPSHOT_DIVERGENCE : HEARTH_SNAPSHOT_MARK;
            }
        }
        ok = compute_to(lane, next, kind);
    }
    return ok;
}

void hearth_replay_teach(struct hearth_cache *cache, const struct hearth_replay_params *params) {
    for (int i = 0; i < LEARN_TIMES; i++) {
        hearth_cache_learn_prefill(cache, 1000000,
                                   (int64_t)(1e12 * HEARTH_TRACE_BLOCK_TOKENS / params->prefill_tokens_per_s));
    }
}

static void count(struct replay *r, const struct hearth_trace_request *request, int32_t seen,
                  const struct hearth_restore *restored) {
    int32_t lost = seen - restored->resumed;
    r->result->computed_tokens += (uint64_t)(request->prompt_tokens - restored->resumed * HEARTH_TRACE_BLOCK_TOKENS);
    if (lost > 0) {
        r->result->lost_tokens[cause_of(r->plan.reason)] += (uint64_t)lost * HEARTH_TRACE_BLOCK_TOKENS;
    }
}

static bool replay_request(struct replay *r, const struct hearth_trace *trace,
                           const struct hearth_trace_request *request, int32_t seen) {
    struct hearth_live *lives[] = {&r->live};
    struct hearth_restore restored;
    if (!hearth_trace_tokens(trace, request, &r->tokens) ||
        !hearth_tokens_push(&r->tokens, (hearth_token)(request - trace->requests) | INT32_MIN)) {
        return false;
    }
    const struct hearth_cache_prompt prompt = {.tokens = r->tokens.v, .n = r->tokens.n};
    r->hollow.now_us = request->at_us;
    do {
        if (!hearth_cache_plan(r->cache, &prompt, (const struct hearth_live *const *)lives, 1, &r->plan)) {
            return false;
        }
        hearth_cache_restore(r->cache, &r->plan, &prompt, lives, &restored);
    } while (restored.failed);
    count(r, request, seen, &restored);
    r->live.lasted_us = request->lasted_us;
    r->live.awaits = request->calls ? HEARTH_AWAITS_TOOL : HEARTH_AWAITS_USER;
    const struct hearth_replay_lane lane = {
        .hollow = &r->hollow, .cache = r->cache, .live = &r->live, .prompt = &r->tokens};
    if (!hearth_replay_compute(&lane, request, r->plan.divergence)) {
        return false;
    }
    while (hearth_cache_capture(r->cache, &r->live, INT32_MAX) != HEARTH_CAPTURE_DONE) {
    }
    hearth_live_clear(r->cache, &r->live);
    return true;
}

/* ---- a trace ---- */

static int init(struct replay *r, const struct hearth_replay_params *params, struct hearth_errmsg *msg) {
    const size_t block_bytes = params->token_bytes * HEARTH_TRACE_BLOCK_TOKENS;
    const struct hearth_cache_params cache = {
        .page_tokens = HEARTH_REPLAY_PAGE_BLOCKS, .budget_bytes = params->ram_bytes, .policy = params->policy};
    hearth_live_init(&r->live, 0);
    r->ram = hearth_ram_create();
    if (!r->ram ||
        !hearth_hollow_init(&r->hollow, 1, block_bytes, params->snapshot_bytes, 1e6 / params->import_bytes_per_s)) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a replay");
    }
    r->ram->hollow = true;
    int err = hearth_cache_create(&r->hollow.base, r->ram, &cache, &r->cache, msg);
    if (err) {
        return err;
    }
    hearth_replay_teach(r->cache, params);
    return HEARTH_OK;
}

static void finish(struct replay *r) {
    if (r->cache) {
        hearth_live_finish(r->cache, &r->live);
        hearth_cache_destroy(r->cache);
    }
    hearth_plan_finish(&r->plan);
    hearth_tokens_finish(&r->tokens);
    if (r->ram) {
        hearth_ram_destroy(r->ram);
    }
    hearth_hollow_finish(&r->hollow);
}

int hearth_replay_run(const struct hearth_trace *trace, const struct hearth_oracle *oracle,
                      const struct hearth_replay_params *params, struct hearth_replay_result *result,
                      struct hearth_errmsg *msg) {
    struct replay r = {.result = result};
    int64_t start_us = hearth_clock_us();
    *result = (struct hearth_replay_result){0};
    int err = init(&r, params, msg);
    for (size_t i = 0; !err && i < trace->count; i++) {
        if (!replay_request(&r, trace, &trace->requests[i], oracle->seen[i])) {
            err = hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a replay");
        }
    }
    result->imported_bytes = r.hollow.imported_bytes;
    result->stored_bytes = r.hollow.exported_bytes;
    result->import_s = (double)result->imported_bytes / params->import_bytes_per_s;
    result->prefill_s = (double)result->computed_tokens / params->prefill_tokens_per_s;
    finish(&r);
    result->seconds = (double)(hearth_clock_us() - start_us) / 1e6;
    return err;
}
