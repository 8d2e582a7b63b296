/* Replays (src/replay): the clairvoyant's counts against a naive cache of blocks, a cache that holds everything against
 * what was never seen before, and that no policy does better than the bound. */
#include "replay/replay.h"
#include "support/random.h"

#include "base/assert.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { REQUESTS = 300, TALKS = 12, BLOCKS_MAX = 40 };

/* Conversations that grow, fork and end. */
static void make_trace(struct rng *rng, struct hearth_trace *trace) {
    uint32_t spaces[TALKS], lengths[TALKS];
    *trace = (struct hearth_trace){0};
    for (uint32_t i = 0; i < TALKS; i++) {
        spaces[i] = i, lengths[i] = 1;
    }
    for (int i = 0; i < REQUESTS; i++) {
        uint32_t at = rng_below(rng, TALKS);
        lengths[at] += rng_below(rng, 4);
        if (lengths[at] > BLOCKS_MAX || rng_once_in(rng, 20)) {
            spaces[at] = (uint32_t)(TALKS + i), lengths[at] = 1 + rng_below(rng, 8);
        }
        struct hearth_trace_request *request =
            hearth_trace_add(trace, (int64_t)i * 1000000, spaces[at], 0, lengths[at]);
        assert_non_null(request);
        request->calls = rng_once_in(rng, 2);
    }
}

static bool same_path(const struct hearth_trace *trace, size_t a, size_t b, int32_t depth) {
    const struct hearth_trace_request *left = &trace->requests[a], *right = &trace->requests[b];
    return trace->runs[left->run].space == trace->runs[right->run].space && depth < left->blocks &&
           depth < right->blocks;
}

/* The next request after `now` that has block `depth` of request `owner`, or `count`. */
static size_t next_use(const struct hearth_trace *trace, size_t owner, size_t now, int32_t depth) {
    size_t next = now + 1;
    while (next < trace->count && !same_path(trace, owner, next, depth)) {
        next++;
    }
    return next;
}

/* Belady's choice, block by block. */
static uint64_t naive_belady(const struct hearth_trace *trace, size_t budget) {
    static struct {
        size_t owner; /* a request that has it */
        int32_t depth;
    } held[REQUESTS * BLOCKS_MAX];
    size_t n = 0;
    uint64_t computed = 0;
    for (size_t i = 0; i < trace->count; i++) {
        const int32_t blocks = trace->requests[i].blocks;
        bool has[BLOCKS_MAX + 4] = {false};
        for (size_t k = 0; k < n;) { /* what is on the path is taken out, and put back below */
            bool on = same_path(trace, held[k].owner, i, held[k].depth);
            if (on) {
                has[held[k].depth] = true;
                held[k] = held[--n];
            } else {
                k++;
            }
        }
        int32_t hit = 0;
        while (hit < blocks && has[hit]) {
            hit++;
        }
        computed += (uint64_t)(blocks - hit) * HEARTH_TRACE_BLOCK_TOKENS;
        for (int32_t d = 0; d < blocks; d++) {
            held[n].owner = i;
            held[n++].depth = d;
        }
        while (n > budget) {
            size_t worst = 0, worst_next = 0;
            for (size_t k = 0; k < n; k++) {
                size_t next = next_use(trace, held[k].owner, i, held[k].depth);
                if (next > worst_next || (next == worst_next && held[k].depth > held[worst].depth)) {
                    worst = k, worst_next = next;
                }
            }
            held[worst] = held[--n];
        }
    }
    return computed;
}

static void make_traced(uint64_t seed, struct hearth_trace *trace, struct hearth_oracle *oracle) {
    struct rng rng = {seed};
    make_trace(&rng, trace);
    assert_int_equal(hearth_oracle_make(trace, oracle, NULL), HEARTH_OK);
}

static void finish_traced(struct hearth_trace *trace, struct hearth_oracle *oracle) {
    hearth_oracle_finish(oracle);
    hearth_trace_finish(trace);
}

static void belady_is_belady(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct hearth_trace trace;
        struct hearth_oracle oracle;
        make_traced(seed, &trace, &oracle);
        for (size_t budget = 4; budget <= 256; budget *= 4) {
            assert_int_equal(hearth_oracle_belady(&trace, &oracle, budget, 0), naive_belady(&trace, budget));
        }
        assert_int_equal(hearth_oracle_belady(&trace, &oracle, UINT32_MAX, 0), oracle.new_tokens);
        finish_traced(&trace, &oracle);
    }
}

static struct hearth_replay_params small_model(size_t snapshot_bytes) {
    return (struct hearth_replay_params){.token_bytes = 65536,
                                         .snapshot_bytes = snapshot_bytes,
                                         .prefill_tokens_per_s = 1000,
                                         .import_bytes_per_s = 1e10};
}

static struct hearth_replay_result replayed(const struct hearth_trace *trace, const struct hearth_oracle *oracle,
                                            const struct hearth_replay_params *params) {
    struct hearth_replay_result result;
    assert_int_equal(hearth_replay_run(trace, oracle, params, &result, NULL), HEARTH_OK);
    return result;
}

/* With room for everything only what is new is computed, whatever the policy and the shape of the model. */
static void all_room_computes_what_is_new(void **state) {
    (void)state;
    struct hearth_trace trace;
    struct hearth_oracle oracle;
    make_traced(7, &trace, &oracle);
    for (size_t i = 0; hearth_replay_policies[i]; i++) {
        struct hearth_replay_params params = small_model(0);
        params.policy = hearth_replay_policies[i];
        params.ram_bytes = UINT64_C(1) << 50;
        const struct hearth_replay_result result = replayed(&trace, &oracle, &params);
        assert_int_equal(result.computed_tokens, oracle.new_tokens);
        assert_int_equal(result.lost_tokens[HEARTH_REPLAY_EVICTED], 0);
    }
    finish_traced(&trace, &oracle);
}

/* No policy computes less than the bound, and the same replay is the same twice. */
static void no_policy_beats_the_bound(void **state) {
    (void)state;
    struct hearth_trace trace;
    struct hearth_oracle oracle;
    make_traced(8, &trace, &oracle);
    for (uint64_t tokens = 2048; tokens <= 32768; tokens *= 2) {
        for (size_t i = 0; hearth_replay_policies[i]; i++) {
            struct hearth_replay_params params = small_model(0);
            params.policy = hearth_replay_policies[i];
            params.ram_bytes = hearth_replay_bytes(&params, tokens);
            const struct hearth_replay_result first = replayed(&trace, &oracle, &params);
            const struct hearth_replay_result second = replayed(&trace, &oracle, &params);
            assert_int_equal(first.computed_tokens, second.computed_tokens);
            assert_true(first.computed_tokens >= hearth_replay_bound(&trace, &oracle, &params).computed_tokens);
            uint64_t lost = 0;
            for (size_t k = 0; k < HEARTH_REPLAY_CAUSES; k++) {
                lost += first.lost_tokens[k];
            }
            assert_int_equal(first.computed_tokens, oracle.new_tokens + lost);
        }
    }
    finish_traced(&trace, &oracle);
}

/* What RAM evicts comes from disk: a wrong choice costs a read. Both tiers together compute no less than the bound of
 * their sum, and take no less time than its seconds; with a disk for everything only what is new is computed. */
static void a_disk_turns_prefill_into_reads(void **state) {
    (void)state;
    struct hearth_trace trace;
    struct hearth_oracle oracle;
    make_traced(10, &trace, &oracle);
    for (size_t i = 0; hearth_replay_policies[i]; i++) {
        struct hearth_replay_params params = small_model(0);
        params.policy = hearth_replay_policies[i];
        params.ram_bytes = hearth_replay_bytes(&params, 6144);
        params.disk_read_bytes_per_s = params.disk_write_bytes_per_s = 1e9; /* 15,000 tokens; 1,000 are computed */
        const struct hearth_replay_result ram = replayed(&trace, &oracle, &params);
        params.disk_bytes = hearth_replay_bytes(&params, 12288);
        const struct hearth_replay_result both = replayed(&trace, &oracle, &params);
        const struct hearth_replay_bound bound = hearth_replay_bound(&trace, &oracle, &params);
        params.disk_bytes = UINT64_C(1) << 50;
        const struct hearth_replay_result all = replayed(&trace, &oracle, &params);
        assert_true(ram.read_bytes == 0 && ram.read_s <= 0);
        assert_true(both.computed_tokens < ram.computed_tokens && both.read_bytes > 0 && both.read_s > 0);
        assert_true(both.prefill_s + both.read_s < ram.prefill_s);
        assert_true(both.computed_tokens >= bound.computed_tokens);
        assert_true(both.prefill_s + both.read_s >= bound.prefill_s + bound.read_s && bound.read_s > 0);
        assert_int_equal(all.computed_tokens, oracle.new_tokens);
    }
    finish_traced(&trace, &oracle);
}

/* Pages and snapshots share one budget: snapshots that are small take nothing from pages. */
static void small_snapshots_cost_little(void **state) {
    (void)state;
    struct hearth_trace trace;
    struct hearth_oracle oracle;
    make_traced(9, &trace, &oracle);
    for (uint64_t tokens = 8192; tokens <= 32768; tokens *= 2) {
        uint64_t computed_tokens[2];
        for (size_t i = 0; i < 2; i++) {
            struct hearth_replay_params params = small_model(i * 4096);
            params.policy = &hearth_policy_returns;
            params.ram_bytes = hearth_replay_bytes(&params, tokens);
            const struct hearth_replay_result result = replayed(&trace, &oracle, &params);
            computed_tokens[i] = result.computed_tokens;
        }
        assert_true(computed_tokens[1] <= computed_tokens[0] * 9 / 8);
    }
    finish_traced(&trace, &oracle);
}

/* Lets the trace's last request end with blocks that no other one has. */
static void add_anew(struct hearth_trace *trace, struct hearth_trace_request *request, uint32_t blocks) {
    assert_true(HEARTH_BUF_ROOM(trace->runs, trace->run_count, trace->run_cap));
    trace->runs[trace->run_count++] = (struct hearth_trace_run){.space = (uint64_t)trace->count << 32, .count = blocks};
    request->run_count++;
    request->blocks += (int32_t)blocks;
    request->prompt_tokens += (int32_t)blocks * HEARTH_TRACE_BLOCK_TOKENS;
}

/* Conversations that grow by two blocks with each turn, in turn, of which one in eight says its last block anew. */
static void make_growing(struct hearth_trace *trace) {
    struct rng rng = {11};
    uint32_t lengths[TALKS];
    *trace = (struct hearth_trace){0};
    for (uint32_t i = 0; i < TALKS * 100; i++) {
        const uint32_t at = i % TALKS;
        const bool anew = rng_once_in(&rng, 8);
        lengths[at] = i < TALKS ? 64 : lengths[at] + 2;
        struct hearth_trace_request *request = hearth_trace_add(trace, (int64_t)i * 1000000, at, 0, lengths[at] - anew);
        assert_non_null(request);
        if (anew) {
            add_anew(trace, request, 1);
        }
    }
}

/* Of the snapshots that each turn takes few are kept: those that the next turn is likely to need. */
static void large_snapshots_leave_room_for_pages(void **state) {
    (void)state;
    struct hearth_trace trace;
    struct hearth_oracle oracle;
    uint64_t computed_tokens[2];
    make_growing(&trace);
    assert_int_equal(hearth_oracle_make(&trace, &oracle, NULL), HEARTH_OK);
    for (size_t i = 0; i < 2; i++) {
        struct hearth_replay_params params = small_model(i * 8 * HEARTH_TRACE_BLOCK_TOKENS * 65536);
        struct hearth_replay_result result;
        params.policy = &hearth_policy_returns;
        params.ram_bytes = hearth_replay_bytes(&params, UINT64_C(2400) * HEARTH_TRACE_BLOCK_TOKENS);
        assert_int_equal(hearth_replay_run(&trace, &oracle, &params, &result, NULL), HEARTH_OK);
        computed_tokens[i] = result.computed_tokens;
    }
    assert_true(computed_tokens[1] * 5 <= computed_tokens[0] * 8);
    hearth_oracle_finish(&oracle);
    hearth_trace_finish(&trace);
}

/* Conversations of which each turn says so many of its last blocks anew that the next one is not known for one of the
 * same conversation: nothing can be learnt, and what was unused for longest goes. Most turns leave the one before them
 * inside of a page, at the end of which that one may have a name. */
static void what_cannot_be_learnt_costs_as_lru(void **state) {
    (void)state;
    enum { ANEW = 12 };
    struct rng rng = {12};
    struct hearth_trace trace = {0};
    struct hearth_oracle oracle;
    uint32_t lengths[TALKS] = {0};
    for (uint32_t i = 0; i < TALKS * 100; i++) {
        const uint32_t at = rng_below(&rng, TALKS);
        lengths[at] += lengths[at] > 0 ? 1 : 64;
        struct hearth_trace_request *request = hearth_trace_add(&trace, (int64_t)i * 1000000, at, 0, lengths[at]);
        assert_non_null(request);
        add_anew(&trace, request, ANEW);
    }
    assert_int_equal(hearth_oracle_make(&trace, &oracle, NULL), HEARTH_OK);
    for (uint64_t blocks = 600; blocks <= 2000; blocks += 700) {
        struct hearth_replay_params params = small_model(0);
        struct hearth_replay_result ours, lru;
        params.ram_bytes = hearth_replay_bytes(&params, blocks * HEARTH_TRACE_BLOCK_TOKENS);
        params.policy = &hearth_policy_returns;
        assert_int_equal(hearth_replay_run(&trace, &oracle, &params, &ours, NULL), HEARTH_OK);
        params.policy = &hearth_policy_lru;
        assert_int_equal(hearth_replay_run(&trace, &oracle, &params, &lru, NULL), HEARTH_OK);
        assert_int_equal(ours.computed_tokens, lru.computed_tokens);
    }
    hearth_oracle_finish(&oracle);
    hearth_trace_finish(&trace);
}

/* Very many conversations with two turns each, the second one behind those of `MANY` others: just within what fits, so
 * that only what was unused for longest may go. The second turn says the last page of the first one anew, which leaves
 * a page that was unused for longer than all that is needed. */
static void of_very_many_the_oldest_goes(void **state) {
    (void)state;
    enum { MANY = 400, FIRST = 28, LEFT = 4, SECOND = 40, ROOM = MANY * (FIRST + LEFT + SECOND) * 33 / 32 };
    struct hearth_trace trace = {0};
    struct hearth_oracle oracle;
    struct hearth_replay_params params = small_model(0);
    for (uint32_t i = 0; i < 4 * MANY; i++) {
        struct hearth_trace_request *request = hearth_trace_add(&trace, (int64_t)(2 * i) * 1000000, i, 0, FIRST);
        assert_non_null(request);
        add_anew(&trace, request, LEFT);
        assert_true(i < MANY || hearth_trace_add(&trace, (int64_t)(2 * i + 1) * 1000000, i - MANY, 0, SECOND) != NULL);
    }
    assert_int_equal(hearth_oracle_make(&trace, &oracle, NULL), HEARTH_OK);
    params.policy = &hearth_policy_returns;
    params.ram_bytes = hearth_replay_bytes(&params, UINT64_C(1) * ROOM * HEARTH_TRACE_BLOCK_TOKENS);
    const struct hearth_replay_result result = replayed(&trace, &oracle, &params);
    assert_int_equal(result.computed_tokens, oracle.new_tokens);
    finish_traced(&trace, &oracle);
}

/* ---- adversaries ---- */

enum adversary { LOOP, UNIQUE, SHARED, SCAN, READER, ADVERSARIES };

/* A loop just over the size of the cache; prompts that never come back; one that always does; a conversation beside
 * prompts that come once; and eight conversations beside an agent that reads 400 files: its prompt grows by one with
 * each turn, and is never needed again when the last one is read. */
static void make_adversary(enum adversary kind, struct hearth_trace *trace) {
    *trace = (struct hearth_trace){0};
    for (uint32_t i = 0; kind == READER && i < 3600; i++) {
        const bool reads = i % 9 == 0;
        struct hearth_trace_request *request =
            hearth_trace_add(trace, (int64_t)i * 5000000, reads ? 100 : i % 9, 0, reads ? 8 + i / 9 : 32);
        assert_non_null(request);
        request->lasted_us = 2000000;
        request->calls = true;
    }
    for (uint32_t i = 0; kind != READER && i < 4000; i++) {
        const bool talk = kind == SCAN && i % 4 == 0;
        const uint64_t space = kind == LOOP ? i % 18 : kind == SHARED || talk ? 0 : i + 1;
        struct hearth_trace_request *request = hearth_trace_add(trace, (int64_t)i * 5000000, space, 0, 32);
        assert_non_null(request);
        request->lasted_us = 2000000;
        request->calls = kind != UNIQUE;
    }
}

static uint64_t computed(const struct hearth_trace *trace, const struct hearth_oracle *oracle,
                         const struct hearth_policy *policy, size_t snapshot_bytes) {
    struct hearth_replay_params params = small_model(snapshot_bytes);
    params.policy = policy;
    params.ram_bytes = hearth_replay_bytes(&params, UINT64_C(16) * 32 * HEARTH_TRACE_BLOCK_TOKENS);
    const struct hearth_replay_result result = replayed(trace, oracle, &params);
    return result.computed_tokens;
}

/* With all state in pages, with small snapshots, and with those of a window of 256 tokens. */
static void adversaries_cost_no_more_than_lru(void **state) {
    static const size_t snapshot_bytes[] = {0, 65536, (size_t)256 * 65536};
    (void)state;
    for (int kind = 0; kind < ADVERSARIES; kind++) {
        struct hearth_trace trace;
        struct hearth_oracle oracle;
        make_adversary((enum adversary)kind, &trace);
        assert_int_equal(hearth_oracle_make(&trace, &oracle, NULL), HEARTH_OK);
        for (size_t i = 0; i < sizeof snapshot_bytes / sizeof *snapshot_bytes; i++) {
            const uint64_t ours = computed(&trace, &oracle, &hearth_policy_returns, snapshot_bytes[i]);
            const uint64_t lru = computed(&trace, &oracle, &hearth_policy_lru, snapshot_bytes[i]);
            assert_true(ours <= lru + 32 * HEARTH_TRACE_BLOCK_TOKENS); /* a prompt, while it learns */
            const bool is_window = i == 2;
            assert_true((kind != LOOP && kind != READER) || ours * (is_window ? 3 : 4) < lru * 2);
        }
        finish_traced(&trace, &oracle);
    }
}

/* ---- keys ---- */

/* Key 1 has eight conversations of 32 blocks, which come back every minute. Key 2 has `loud` conversations with as much
 * state, which come back in turn, four requests to each one of key 1. */
static void make_keys(uint32_t loud, struct hearth_trace *trace) {
    *trace = (struct hearth_trace){0};
    for (uint32_t i = 0; i < 4000; i++) {
        const bool quiet = i % 5 == 0;
        struct hearth_trace_request *request =
            hearth_trace_add(trace, (int64_t)i * 1500000, quiet ? i / 5 % 8 : 100 + (i - i / 5) % loud, 0, 32);
        assert_non_null(request);
        request->key = quiet ? 1 : 2;
        request->lasted_us = 1000000;
        request->calls = true;
    }
}

/* Tokens that each key computes, with room for 24 conversations: in RAM, or for four of them there and the others on a
 * disk. */
static void computed_by_key(uint32_t loud, double share, size_t snapshot_bytes, bool disk, uint64_t out[2]) {
    struct hearth_trace trace;
    struct hearth_oracle oracle;
    struct hearth_replay_params params = small_model(snapshot_bytes);
    params.policy = &hearth_policy_returns;
    params.share = share;
    params.ram_bytes =
        hearth_replay_bytes(&params, UINT64_C(24) * 32 * HEARTH_TRACE_BLOCK_TOKENS) + UINT64_C(24) * 4 * snapshot_bytes;
    if (disk) {
        params.disk_bytes = params.ram_bytes;
        params.ram_bytes /= 6;
        params.disk_read_bytes_per_s = params.disk_write_bytes_per_s = 1e9;
    }
    make_keys(loud, &trace);
    assert_int_equal(hearth_oracle_make(&trace, &oracle, NULL), HEARTH_OK);
    const struct hearth_replay_result result = replayed(&trace, &oracle, &params);
    out[0] = result.key_tokens[1];
    out[1] = result.key_tokens[2];
    finish_traced(&trace, &oracle);
}

/* A key that wants far more than its share cannot push another one below its own; without a bound it does. Where there
 * is room for both, a bound changes nothing. */
static void a_key_keeps_its_share(void **state) {
    (void)state;
    const uint64_t prompt = UINT64_C(32) * HEARTH_TRACE_BLOCK_TOKENS, once = 8 * prompt;
    for (int i = 0; i < 4; i++) {
        const size_t snapshot_bytes = i % 2 > 0 ? 65536 : 0;
        const bool disk = i > 1;
        uint64_t any[2], bounded[2], room[2], room_bounded[2];
        computed_by_key(30, 0, snapshot_bytes, disk, any);
        computed_by_key(30, 0.6, snapshot_bytes, disk, bounded);
        assert_true(any[0] > once + 20 * prompt);
        assert_true(bounded[0] <= once + 4 * prompt);
        computed_by_key(14, 0, snapshot_bytes, disk, room);
        computed_by_key(14, 0.6, snapshot_bytes, disk, room_bounded);
        assert_int_equal(room[0] + room[1], room_bounded[0] + room_bounded[1]);
    }
}

/* ---- reading ---- */

static int read_text(const char *text, const struct hearth_trace_choice *choice, struct hearth_trace *trace,
                     struct hearth_errmsg *msg) {
    char path[] = "/tmp/hearth-trace-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(close(fd), 0);
    char *paths[] = {path};
    int err = hearth_trace_read(paths, 1, choice, trace, msg);
    assert_int_equal(unlink(path), 0);
    return err;
}

static const char sessions[] =
    "{\"tool_tokens\": 128, \"system_tokens\": 64, \"requests\": [{\"t\": 0, \"in\": 330, \"stop\": \"tool_use\","
    " \"api_time\": 2, \"blocks\": [[1, 5]]}, {\"t\": 5, \"requests\": [{\"t\": 1, \"in\": 64, \"blocks\": [[9, 9]]}]},"
    " {\"t\": 10, \"in\": 400, \"stop\": \"end_turn\", \"api_time\": 1, \"blocks\": [[1, 4], [7, 8]]}]}\n"
    "{\"tool_tokens\": 128, \"system_tokens\": 64, \"requests\": [{\"t\": 0, \"in\": 256, \"blocks\": [[1, 4]]}]}\n";

static void sessions_share_their_head(void **state) {
    (void)state;
    const struct hearth_trace_choice one = {.of = 1, .concurrency = 1};
    struct hearth_trace trace;
    struct hearth_oracle oracle;
    assert_int_equal(read_text(sessions, &one, &trace, NULL), HEARTH_OK);
    assert_int_equal(trace.count, 4);
    assert_int_equal(trace.prompt_tokens, 330 + 64 + 400 + 256);
    assert_int_equal(trace.requests[1].at_us, 6000000);
    assert_int_equal(trace.requests[3].at_us, 11000000); /* when the first session is over */
    assert_true(trace.requests[0].calls && !trace.requests[2].calls);
    assert_int_equal(hearth_oracle_make(&trace, &oracle, NULL), HEARTH_OK);
    assert_int_equal(oracle.seen[0], 0);
    assert_int_equal(oracle.seen[1], 0); /* an agent has names of its own */
    assert_int_equal(oracle.seen[2], 4);
    assert_int_equal(oracle.seen[3], 3); /* tools and system prompt */
    finish_traced(&trace, &oracle);
    const struct hearth_trace_choice second = {.part = 1, .of = 2, .concurrency = 1};
    assert_int_equal(read_text(sessions, &second, &trace, NULL), HEARTH_OK);
    assert_int_equal(trace.count, 1);
    hearth_trace_finish(&trace);
}

static void global_names_are_shared(void **state) {
    (void)state;
    const struct hearth_trace_choice all = {.of = 1, .concurrency = 1};
    struct hearth_trace trace;
    struct hearth_oracle oracle;
    assert_int_equal(read_text("{\"timestamp\": 0, \"input_length\": 1000, \"hash_ids\": [3, 4]}\n"
                               "{\"timestamp\": 1500, \"input_length\": 1024, \"hash_ids\": [3, 5]}\n"
                               "{\"t\": 2, \"in\": 200, \"stop\": \"tool_use\", \"blocks\": [[24, 26]]}\n",
                               &all, &trace, NULL),
                     HEARTH_OK);
    assert_int_equal(trace.requests[1].at_us, 1500000);
    assert_int_equal(trace.requests[0].blocks, 15);
    assert_int_equal(trace.requests[1].blocks, 16);
    assert_int_equal(hearth_oracle_make(&trace, &oracle, NULL), HEARTH_OK);
    assert_int_equal(oracle.seen[1], 8);
    assert_int_equal(oracle.seen[2], 3);
    finish_traced(&trace, &oracle);
}

static void what_is_no_trace_is_refused(void **state) {
    (void)state;
    const struct hearth_trace_choice all = {.of = 1, .concurrency = 1};
    struct hearth_trace trace;
    struct hearth_errmsg msg = {""};
    assert_int_equal(read_text("{\"t\": 0, \"blocks\": [[1, 2]]}\nhello\n", &all, &trace, &msg), HEARTH_ERR_INVALID);
    assert_non_null(strstr(msg.text, ":2: "));
    assert_int_equal(read_text("\n", &all, &trace, &msg), HEARTH_ERR_INVALID);
    static const char *const out_of_range[] = {
        "{\"t\": 0, \"blocks\": [[0, 9223372036854775807]]}\n",
        "{\"t\": 0, \"blocks\": [[0, 999999], [0, 999999]]}\n",
        "{\"t\": 0, \"blocks\": [[-1, 1]]}\n",
        "{\"tool_tokens\": 9223372036854775807, \"system_tokens\": 1, \"requests\": []}\n",
        "{\"requests\": [{\"t\": 1e300, \"requests\": [{\"t\": 1e300, \"blocks\": []}]}]}\n",
    };
    for (size_t i = 0; i < sizeof out_of_range / sizeof out_of_range[0]; i++) {
        assert_int_equal(read_text(out_of_range[i], &all, &trace, &msg), HEARTH_ERR_INVALID);
        assert_non_null(strstr(msg.text, ":1: a number is out of range"));
    }
    char *paths[] = {"/nowhere/trace"};
    assert_int_equal(hearth_trace_read(paths, 1, &all, &trace, &msg), HEARTH_ERR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(belady_is_belady),
        cmocka_unit_test(all_room_computes_what_is_new),
        cmocka_unit_test(no_policy_beats_the_bound),
        cmocka_unit_test(a_disk_turns_prefill_into_reads),
        cmocka_unit_test(small_snapshots_cost_little),
        cmocka_unit_test(large_snapshots_leave_room_for_pages),
        cmocka_unit_test(what_cannot_be_learnt_costs_as_lru),
        cmocka_unit_test(of_very_many_the_oldest_goes),
        cmocka_unit_test(adversaries_cost_no_more_than_lru),
        cmocka_unit_test(a_key_keeps_its_share),
        cmocka_unit_test(sessions_share_their_head),
        cmocka_unit_test(global_names_are_shared),
        cmocka_unit_test(what_is_no_trace_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
