/* The clairvoyant.
 *
 * One pass backwards over the trace names every block by a digest of all blocks up to it, and looks up which later
 * request has that block next. A prompt's blocks come back in the order of their depth: a block is never needed
 * without those before it. So what comes back with one request is a run of a path, and Belady's cache needs no blocks
 * at all, only how many of the blocks of each request to come it holds:
 *
 *     request r comes    held[r] of its blocks are there, the rest is computed; then each of its blocks counts for the
 *                        request that has it next, or is dropped when there is none
 *     over the budget    the last request with anything held loses its deepest blocks
 *
 * Invariant: what is held of a request are its leading blocks; when a block of it is dropped, nothing is held of any
 * request behind it. */
#include "replay/oracle.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

/* The last known use of each block, by the digest of its path. Linear probing; a digest of 0 is an empty place. */
struct uses {
    struct use {
        uint64_t path;
        uint32_t request;
    } *v;
    size_t n, room; /* room: a power of two */
};

static struct use *find(const struct uses *uses, uint64_t path) {
    size_t at = path & (uses->room - 1);
    while (uses->v[at].path != 0 && uses->v[at].path != path) {
        at = (at + 1) & (uses->room - 1);
    }
    return &uses->v[at];
}

/* Makes room for one more. False: out of memory. */
static bool grow(struct uses *uses) {
    if (uses->n * 2 < uses->room) {
        return true;
    }
    struct uses grown = {.n = uses->n, .room = uses->room ? uses->room * 2 : 4096};
    grown.v = calloc(grown.room, sizeof *grown.v);
    if (!grown.v) {
        return false;
    }
    for (size_t i = 0; i < uses->room; i++) {
        if (uses->v[i].path != 0) {
            *find(&grown, uses->v[i].path) = uses->v[i];
        }
    }
    free(uses->v);
    *uses = grown;
    return true;
}

static uint64_t step(uint64_t path, hearth_token token) {
    uint64_t x = (path ^ (uint64_t)token) * UINT64_C(0x9E3779B97F4A7C15) + 1;
    x ^= x >> 29;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 32;
    return x ? x : 1;
}

/* Notes the use of the request's `blocks`, and appends its steps to the list: those of its prompt, and of its reply,
 * which is made then and not used. False: out of memory. */
static bool note(struct hearth_oracle *oracle, struct uses *uses, uint32_t request, const struct hearth_tokens *tokens,
                 size_t blocks, size_t *count, size_t *cap) {
    uint64_t path = 1;
    uint32_t next = UINT32_MAX;
    bool known = true;
    for (size_t i = 0; i < tokens->n && (i < blocks || known); i++) {
        path = step(path, tokens->v[i]);
        if (!grow(uses)) {
            return false;
        }
        struct use *use = find(uses, path);
        known = known && use->path != 0;
        if (known) {
            if (!HEARTH_BUF_ROOM(oracle->steps, *count, *cap)) {
                return false;
            }
            *count += use->request != next;
            next = use->request;
            oracle->steps[*count - 1] = (struct hearth_oracle_step){.next = next, .end = (int32_t)i + 1};
            int32_t *seen = &oracle->seen[next];
            *seen = *seen > (int32_t)i + 1 ? *seen : (int32_t)i + 1;
        }
        if (i < blocks) {
            uses->n += use->path == 0;
            *use = (struct use){.path = path, .request = request};
        }
    }
    return true;
}

/* The steps were noted from the last request to the first: `begin[i]` is where those of request i begin, and those of
 * request i - 1 follow. Puts them in the order of requests. False: out of memory. */
static bool turn(struct hearth_oracle *oracle, const size_t *begin, size_t requests, size_t count) {
    struct hearth_oracle_step *steps = malloc((count + 1) * sizeof *steps);
    size_t at = 0;
    if (!steps || count > UINT32_MAX) {
        free(steps);
        return false;
    }
    for (size_t i = 0; i < requests; i++) {
        size_t n = (i > 0 ? begin[i - 1] : count) - begin[i];
        oracle->first[i] = (uint32_t)at;
        memcpy(steps + at, oracle->steps + begin[i], n * sizeof *steps);
        at += n;
    }
    oracle->first[requests] = (uint32_t)at;
    free(oracle->steps);
    oracle->steps = steps;
    return true;
}

int hearth_oracle_make(const struct hearth_trace *trace, struct hearth_oracle *out, struct hearth_errmsg *msg) {
    struct uses uses = {0};
    struct hearth_tokens tokens = {0};
    size_t count = 0, cap = 0;
    size_t *begin = calloc(trace->count, sizeof *begin);
    *out = (struct hearth_oracle){.seen = calloc(trace->count, sizeof(int32_t)),
                                  .first = calloc(trace->count + 1, sizeof(uint32_t)),
                                  .steps = malloc(sizeof *out->steps)};
    cap = out->steps ? 1 : 0;
    bool ok = begin && out->seen && out->first && out->steps;
    for (size_t i = trace->count; ok && i-- > 0;) {
        begin[i] = count;
        ok = hearth_trace_whole(trace, &trace->requests[i], &tokens) &&
             note(out, &uses, (uint32_t)i, &tokens, (size_t)trace->requests[i].blocks, &count, &cap);
    }
    ok = ok && turn(out, begin, trace->count, count);
    for (size_t i = 0; ok && i < trace->count; i++) {
        out->new_tokens += (uint64_t)(trace->requests[i].prompt_tokens - out->seen[i] * trace->block_tokens);
    }
    free(begin);
    free(uses.v);
    hearth_tokens_finish(&tokens);
    if (!ok) {
        hearth_oracle_finish(out);
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for the trace's future");
    }
    return HEARTH_OK;
}

void hearth_oracle_finish(struct hearth_oracle *oracle) {
    free(oracle->seen);
    free(oracle->first);
    free(oracle->steps);
    *oracle = (struct hearth_oracle){0};
}

/* What a request to come takes. */
static uint64_t weight(int32_t held, uint64_t snapshot_blocks) {
    return held > 0 ? (uint64_t)held + snapshot_blocks : 0;
}

uint64_t hearth_oracle_belady(const struct hearth_trace *trace, const struct hearth_oracle *oracle, uint64_t blocks,
                              uint64_t snapshot_blocks) {
    int32_t *held = calloc(trace->count, sizeof *held);
    uint64_t used = 0, computed = 0;
    size_t last = 0; /* nothing is held of any request behind it */
    if (!held) {
        return UINT64_MAX;
    }
    for (size_t i = 0; i < trace->count; i++) {
        const struct hearth_trace_request *request = &trace->requests[i];
        computed += (uint64_t)(request->prompt_tokens - held[i] * trace->block_tokens);
        used -= weight(held[i], snapshot_blocks);
        held[i] = 0;
        int32_t from = 0;
        for (uint32_t k = oracle->first[i]; k < oracle->first[i + 1]; k++) {
            const struct hearth_oracle_step *next = &oracle->steps[k];
            used -= weight(held[next->next], snapshot_blocks);
            held[next->next] += next->end - from;
            used += weight(held[next->next], snapshot_blocks);
            last = next->next > last ? next->next : last;
            from = next->end;
        }
        for (; used > blocks; last -= held[last] == 0) {
            HEARTH_ASSERT(last > i);
            uint64_t over = used - blocks, before = weight(held[last], snapshot_blocks);
            bool all = over >= before || (uint64_t)held[last] <= over;
            held[last] = all ? 0 : held[last] - (int32_t)over;
            used += weight(held[last], snapshot_blocks) - before;
        }
    }
    free(held);
    return computed;
}
