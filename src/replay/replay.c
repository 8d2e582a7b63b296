/* One replay of one policy.
 *
 * A request is what a lane makes of it: planned, restored, computed up to its end with snapshots at its marks,
 * captured. Then the lane is emptied: nothing is reused but what the cache kept, so that its budget is all there is.
 *
 * Only the whole blocks of a prompt are captured. The token behind them, which no other prompt has, stands for what is
 * left of it and for what comes next: a request resumes at their end at the latest. Where a block is a token nothing is
 * left, and there is no such token.
 *
 * A server that was recorded has said when each request began and ended by its clock, and what its reply was. Then the
 * replay does what the server did, call by call: with `lanes` it keeps their state, the reply is captured behind its
 * prompt, in the server's slices, and speeds are learnt from the same batches. What it cannot know is which requests
 * were computed side by side: each one is ended before the next begins. */
#include "replay/replay.h"

#include "base/assert.h"
#include "base/clock.h"
#include "cache/tree.h"
#include "replay/sim_store.h"

#include <math.h>
#include <stdlib.h>

#define INTERVAL_TOKENS 8192 /* --snapshot-interval */
#define PAGE_TOKENS 256      /* --page-tokens */
#define LEARN_TIMES 64       /* until an average is where its samples are */
#define BATCH_TOKENS 2048    /* --batch-size */
#define CAPTURE_PAGES 8      /* of a slice (sched/lane.c) */
#define CAPTURE_FULL_US 500000
#define DISK_LATENCY_US 100
#define DISK_QUEUE_BYTES \
    (UINT64_C(512) << 20) /* may wait to be written at least; else a quarter of RAM (cli/serve_disk.c) */

struct replay {
    const struct hearth_trace *trace;
    const struct hearth_replay_params *params;
    struct hearth_hollow hollow;
    struct hearth_ram *ram;
    struct hearth_sim_store *disk; /* NULL: none */
    struct hearth_cache *cache;
    struct hearth_live *lives, **lanes;
    uint32_t lane_count;
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

static int32_t page_tokens(const struct hearth_replay_params *params) {
    return params->page_tokens > 0 ? params->page_tokens : PAGE_TOKENS;
}

/* A page with all that counts in a budget. */
static size_t page_bytes(const struct hearth_replay_params *params) {
    return hearth_page_node_bytes(page_tokens(params)) + HEARTH_BLOB_OVERHEAD_BYTES +
           params->token_bytes * (size_t)page_tokens(params);
}

uint64_t hearth_replay_bytes(const struct hearth_replay_params *params, uint64_t tokens) {
    return tokens * page_bytes(params) / (uint64_t)page_tokens(params);
}

int32_t hearth_replay_page_blocks(const struct hearth_replay_params *params, const struct hearth_trace *trace) {
    const int32_t blocks = page_tokens(params) / trace->block_tokens;
    return blocks > 0 ? blocks : 1;
}

int32_t hearth_replay_interval_blocks(const struct hearth_trace *trace) {
    return INTERVAL_TOKENS / trace->block_tokens;
}

size_t hearth_replay_block_bytes(const struct hearth_replay_params *params, const struct hearth_trace *trace) {
    return params->token_bytes * (size_t)trace->block_tokens + ((size_t)trace->block_tokens - 1) * sizeof(hearth_token);
}

struct hearth_replay_bound hearth_replay_bound(const struct hearth_trace *trace, const struct hearth_oracle *oracle,
                                               const struct hearth_replay_params *params) {
    const uint64_t block_bytes = page_bytes(params) / (uint64_t)hearth_replay_page_blocks(params, trace);
    const uint64_t snapshot_blocks = (params->snapshot_bytes + block_bytes - 1) / block_bytes;
    const uint64_t ram_blocks = params->ram_bytes / block_bytes, disk_blocks = params->disk_bytes / block_bytes;
    struct hearth_replay_bound bound = {
        .computed_tokens = hearth_oracle_belady(trace, oracle, ram_blocks + disk_blocks, snapshot_blocks)};
    bound.prefill_s = (double)bound.computed_tokens / params->prefill_tokens_per_s;
    if (disk_blocks > 0) {
        const uint64_t ram_tokens = hearth_oracle_belady(trace, oracle, ram_blocks, snapshot_blocks);
        const double compute_s = 1 / params->prefill_tokens_per_s;
        const double read_s = (double)params->token_bytes / params->disk_read_bytes_per_s;
        bound.read_s = (double)(ram_tokens - bound.computed_tokens) * (read_s < compute_s ? read_s : compute_s);
    }
    return bound;
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
    const int32_t every = hearth_cache_snapshot_interval(&lane->hollow->base.caps, lane->interval_blocks);
    bool ok = true;
    while (ok && (int32_t)lane->live->tokens.n < request->blocks) {
        int32_t at = (int32_t)lane->live->tokens.n, next = (at / every + 1) * every;
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

void hearth_replay_teach(struct hearth_cache *cache, const struct hearth_replay_params *params,
                         const struct hearth_trace *trace) {
    for (int i = 0; i < LEARN_TIMES; i++) {
        hearth_cache_learn_prefill(cache, 1000000,
                                   (int64_t)(1e12 * trace->block_tokens / params->prefill_tokens_per_s));
    }
}

/* Of a recorded server: as it learns from the batches of a prompt. */
static void learn(const struct replay *r, int32_t tokens) {
    for (; tokens > 0; tokens -= BATCH_TOKENS) {
        const int32_t batch = tokens < BATCH_TOKENS ? tokens : BATCH_TOKENS;
        hearth_cache_learn_prefill(r->cache, batch / r->trace->block_tokens,
                                   (int64_t)(1e6 * batch / r->params->prefill_tokens_per_s));
    }
}

static void count(struct replay *r, const struct hearth_trace_request *request, int32_t seen,
                  const struct hearth_restore *restored) {
    const int32_t block = r->trace->block_tokens, lost = seen - restored->resumed;
    const uint64_t computed = (uint64_t)(request->prompt_tokens - restored->resumed * block);
    r->result->computed_tokens += computed;
    r->result->key_tokens[request->key < HEARTH_REPLAY_KEYS ? request->key : HEARTH_REPLAY_KEYS - 1] += computed;
    if (lost > 0) {
        r->result->lost_tokens[cause_of(r->plan.reason)] += (uint64_t)lost * (uint64_t)block;
    }
}

/* Whether the server did the same with the request, which begins with so much evicted. Blocks of several tokens leave
 * less than one of them open, and how much is evicted. */
static void compare(struct replay *r, const struct hearth_trace_request *request, const struct hearth_restore *restored,
                    uint64_t evicted) {
    struct hearth_replay_result *result = r->result;
    if (!request->served) {
        return;
    }
    const int32_t block = r->trace->block_tokens, more = request->reused_tokens - restored->resumed * block;
    const bool same = more >= 0 && more < block && (block > 1 || evicted == request->evicted);
    if (!same && result->served == result->agreed) {
        result->differs = (size_t)(request - r->trace->requests);
    }
    result->served++;
    result->agreed += same;
}

static uint64_t evicted(const struct replay *r) {
    struct hearth_cache_stats stats;
    hearth_cache_stats(r->cache, &stats);
    return stats.evicted_pages + stats.evicted_snapshots;
}

/* The prompt's blocks, what is behind them, and its reply. False: out of memory. */
static bool make_prompt(struct replay *r, const struct hearth_trace_request *request) {
    const size_t n = (size_t)request->blocks;
    const hearth_token behind = (hearth_token)(request - r->trace->requests) | INT32_MIN;
    if (!hearth_trace_whole(r->trace, request, &r->tokens)) {
        return false;
    }
    return (r->trace->block_tokens == 1 && n > 0) || r->tokens.n > n || hearth_tokens_push(&r->tokens, behind);
}

/* As the server does (sched/lane.c): where RAM is full of what waits to be written, a moment is waited for that. */
static void capture(struct replay *r, struct hearth_live *live) {
    int64_t give_up_us = 0;
    for (enum hearth_capture done;
         (done = hearth_cache_capture(r->cache, live, CAPTURE_PAGES)) != HEARTH_CAPTURE_DONE;) {
        const int64_t now_us = r->hollow.now_us;
        if (done == HEARTH_CAPTURE_MORE) {
            continue;
        }
        give_up_us = give_up_us > 0 ? give_up_us : now_us + CAPTURE_FULL_US;
        if (now_us >= give_up_us) {
            break;
        }
        (void)hearth_cache_wait(r->cache, give_up_us - now_us);
        (void)hearth_cache_poll(r->cache, SIZE_MAX);
    }
}

/* The lane's request has been computed: it is captured. False: out of memory. */
static bool end(struct replay *r, struct hearth_live *live, const struct hearth_trace_request *request) {
    const int32_t n = request->blocks, whole = n + request->reply_blocks;
    if (whole > n && (int32_t)r->tokens.n >= whole) {
        r->hollow.ends[live->seq] = whole;
        if (!hearth_live_append(live, r->tokens.v + n, (size_t)request->reply_blocks)) {
            return false;
        }
    }
    const int64_t ended_us = request->at_us + request->lasted_us;
    if (request->served && ended_us > r->hollow.now_us) {
        r->hollow.now_us = ended_us;
    }
    live->used_us = r->hollow.now_us;
    live->lasted_us = request->served ? live->used_us - live->began_us : request->lasted_us;
    live->awaits = request->calls ? HEARTH_AWAITS_TOOL : HEARTH_AWAITS_USER;
    capture(r, live);
    if (r->params->lanes == 0) {
        hearth_live_clear(r->cache, live);
    }
    return true;
}

static bool replay_request(struct replay *r, const struct hearth_trace_request *request, int32_t seen) {
    struct hearth_restore restored;
    if (!make_prompt(r, request)) {
        return false;
    }
    /* of the reply a request knows nothing */
    const size_t n = (size_t)request->blocks + (r->trace->block_tokens > 1 || request->blocks == 0);
    const struct hearth_cache_prompt prompt = {.tokens = r->tokens.v, .n = n, .salt = {.lo = request->key}};
    r->hollow.now_us = request->at_us;
    (void)hearth_cache_poll(r->cache, SIZE_MAX);
    hearth_cache_own(r->cache, prompt.salt, request->key);
    const uint64_t evicted_then = evicted(r);
    do {
        if (!hearth_cache_plan(r->cache, &prompt, (const struct hearth_live *const *)r->lanes, r->lane_count,
                               &r->plan)) {
            return false;
        }
        const int64_t start_us = r->hollow.now_us;
        hearth_cache_restore(r->cache, &r->plan, &prompt, r->lanes, &restored);
        r->result->read_s += (double)(r->hollow.now_us - start_us) / 1e6;
    } while (restored.failed);
    struct hearth_live *live = r->lanes[r->plan.target];
    count(r, request, seen, &restored);
    compare(r, request, &restored, evicted_then);
    if (request->served) {
        learn(r, request->prompt_tokens - restored.resumed * r->trace->block_tokens);
    }
    const struct hearth_replay_lane lane = {.hollow = &r->hollow,
                                            .cache = r->cache,
                                            .live = live,
                                            .prompt = &r->tokens,
                                            .interval_blocks = hearth_replay_interval_blocks(r->trace)};
    return hearth_replay_compute(&lane, request, r->plan.divergence) && end(r, live, request);
}

/* ---- a trace ---- */

/* The disk's tier; NULL without a disk, or without memory. */
static struct hearth_backing *open_disk(struct replay *r) {
    const struct hearth_replay_params *params = r->params;
    const uint64_t quarter = params->ram_bytes / 4;
    const struct hearth_sim_store_params disk = {.disk = true,
                                                 .store_bytes_per_s = params->disk_read_bytes_per_s,
                                                 .write_bytes_per_s = params->disk_write_bytes_per_s,
                                                 .network_bytes_per_s = INFINITY,
                                                 .latency_us = DISK_LATENCY_US,
                                                 .bytes = params->disk_bytes,
                                                 .share = params->share,
                                                 .queue_bytes =
                                                     quarter > DISK_QUEUE_BYTES ? quarter : DISK_QUEUE_BYTES};
    r->disk = params->disk_bytes > 0 ? hearth_sim_store_create(&disk, 1) : NULL;
    return r->disk ? hearth_sim_store_tier(r->disk, 0, &r->hollow.now_us) : NULL;
}

static int init(struct replay *r, struct hearth_errmsg *msg) {
    const struct hearth_replay_params *params = r->params;
    const struct hearth_cache_params cache = {.backing = open_disk(r),
                                              .page_tokens = hearth_replay_page_blocks(params, r->trace),
                                              .budget_bytes = params->ram_bytes,
                                              .share = params->share,
                                              .policy = params->policy};
    r->lane_count = params->lanes > 0 ? params->lanes : 1;
    r->lives = calloc(r->lane_count, sizeof *r->lives);
    r->lanes = calloc(r->lane_count, sizeof(struct hearth_live *));
    for (uint32_t i = 0; r->lives && r->lanes && i < r->lane_count; i++) {
        r->lanes[i] = &r->lives[i];
        hearth_live_init(&r->lives[i], (int32_t)i);
    }
    r->ram = hearth_ram_create();
    if (!r->lives || !r->lanes || !r->ram || (params->disk_bytes > 0 && !r->disk) ||
        !hearth_hollow_init(&r->hollow, r->lane_count, hearth_replay_block_bytes(params, r->trace),
                            params->snapshot_bytes, 1e6 / params->import_bytes_per_s)) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a replay");
    }
    r->hollow.export_us_per_byte = params->export_bytes_per_s > 0 ? 1e6 / params->export_bytes_per_s : 0;
    r->ram->hollow = true;
    int err = hearth_cache_create(&r->hollow.base, r->ram, &cache, &r->cache, msg);
    if (err) {
        return err;
    }
    if (!r->trace->requests[0].served) {
        hearth_replay_teach(r->cache, params, r->trace);
    }
    return HEARTH_OK;
}

static void finish(struct replay *r) {
    for (uint32_t i = 0; r->cache && i < r->lane_count; i++) {
        hearth_live_finish(r->cache, r->lanes[i]);
    }
    hearth_cache_destroy(r->cache);
    hearth_sim_store_destroy(r->disk);
    free(r->lives);
    free(r->lanes);
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
    struct replay r = {.trace = trace, .params = params, .result = result};
    int64_t start_us = hearth_clock_us();
    *result = (struct hearth_replay_result){0};
    int err = init(&r, msg);
    for (size_t i = 0; !err && i < trace->count; i++) {
        if (!replay_request(&r, &trace->requests[i], oracle->seen[i])) {
            err = hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a replay");
        }
    }
    result->imported_bytes = r.hollow.imported_bytes;
    result->stored_bytes = r.hollow.exported_bytes;
    result->import_s = (double)result->imported_bytes / params->import_bytes_per_s;
    result->prefill_s = (double)result->computed_tokens / params->prefill_tokens_per_s;
    if (r.disk) {
        struct hearth_sim_store_figures figures;
        hearth_sim_store_figures(r.disk, &figures);
        result->read_bytes = figures.read_bytes;
        result->written_bytes = figures.written_bytes;
    }
    result->read_s = r.disk && result->read_s > result->import_s ? result->read_s - result->import_s : 0;
    finish(&r);
    result->seconds = (double)(hearth_clock_us() - start_us) / 1e6;
    return err;
}
