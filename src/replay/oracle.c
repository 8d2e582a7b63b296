/* The clairvoyant.
 *
 * One pass backwards over the trace keeps all prompts in a tree, and with each of its blocks the later request that has
 * it next. Prompts are runs of names and share long ones: an edge of the tree is a run, and all blocks of it come back
 * with the same request, and a prompt that ends or turns off within it cuts it in two. So a prompt costs as much as it
 * has edges, however many blocks they have.
 *
 * A prompt's blocks come back in the order of their depth: a block is never needed without those before it. So what
 * comes back with one request is a run of a path, and Belady's cache needs no blocks at all, only how many of the
 * blocks of each request to come it holds:
 *
 *     request r comes    held[r] of its blocks are there, the rest is computed; then each of its blocks counts for the
 *                        request that has it next, or is dropped when there is none
 *     over the budget    the last request with anything held loses its deepest blocks
 *
 * Invariants: edges behind the same one begin with different names. What is held of a request are its leading blocks;
 * when a block of it is dropped, nothing is held of any request behind it. */
#include "replay/oracle.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define ROOT UINT32_MAX /* what the first edges are behind */

struct edge {
    uint64_t space;
    uint32_t first, count; /* names first, first + 1, … of the space */
    uint32_t parent;       /* the edge before it, or ROOT */
    uint32_t request;      /* that has these blocks next */
};

struct tree {
    struct edge *edges;
    size_t count, cap;
    uint32_t *places; /* edges by their beginning, linear probing: the number of one, and 1; 0 is an empty place */
    size_t room;      /* a power of two, or 0 */
};

/* ---- the tree ---- */

/* The place of the edge that begins so, or where it is to go. */
static uint32_t *place_of(const struct tree *tree, uint32_t parent, uint64_t space, uint32_t first) {
    uint64_t x = (space ^ first) * UINT64_C(0x9E3779B97F4A7C15) + parent;
    x = (x ^ x >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    size_t at = (x ^ x >> 32) & (tree->room - 1);
    for (; tree->places[at] != 0; at = (at + 1) & (tree->room - 1)) {
        const struct edge *edge = &tree->edges[tree->places[at] - 1];
        if (edge->parent == parent && edge->space == space && edge->first == first) {
            break;
        }
    }
    return &tree->places[at];
}

static void put_edge(const struct tree *tree, uint32_t number) {
    const struct edge *edge = &tree->edges[number];
    *place_of(tree, edge->parent, edge->space, edge->first) = number + 1;
}

/* Makes room for one more edge. False: out of memory. */
static bool grow(struct tree *tree) {
    if (tree->count >= ROOT - 1 || !HEARTH_BUF_ROOM(tree->edges, tree->count, tree->cap)) {
        return false;
    }
    if (tree->count * 2 < tree->room) {
        return true;
    }
    const size_t room = tree->room > 0 ? tree->room * 2 : 4096;
    uint32_t *places = calloc(room, sizeof *places);
    if (!places) {
        return false;
    }
    free(tree->places);
    tree->places = places;
    tree->room = room;
    for (size_t i = 0; i < tree->count; i++) {
        put_edge(tree, (uint32_t)i);
    }
    return true;
}

/* ---- a path through it ---- */

/* Where a prompt has come to: behind the first `at` blocks of an edge. */
struct trail {
    uint32_t request;
    uint32_t edge; /* or ROOT */
    uint32_t at;
    int32_t end;       /* its blocks so far that are in the tree */
    bool known;        /* all of them are */
    size_t first_step; /* of the request */
};

/* Goes on by blocks of the run, as far as they are in one edge. Returns how many there are. */
static uint32_t follow(const struct tree *tree, struct trail *trail, const struct hearth_trace_run *run) {
    if (trail->edge == ROOT || trail->at == tree->edges[trail->edge].count) {
        const uint32_t place = *place_of(tree, trail->edge, run->space, run->first);
        if (place == 0) {
            return 0;
        }
        trail->edge = place - 1;
        trail->at = 0;
    }
    const struct edge *edge = &tree->edges[trail->edge];
    if (edge->space != run->space || edge->first + trail->at != run->first) {
        return 0;
    }
    const uint32_t left = edge->count - trail->at, n = run->count < left ? run->count : left;
    trail->at += n;
    return n;
}

/* The prompt ends or turns off here: where that is within an edge it becomes two, and the first of them is what the
 * prompt has. False: out of memory. */
static bool cut(struct tree *tree, struct trail *trail) {
    if (trail->edge == ROOT || trail->at == tree->edges[trail->edge].count) {
        return true;
    }
    if (!grow(tree)) {
        return false;
    }
    const uint32_t number = (uint32_t)tree->count++;
    struct edge *head = &tree->edges[number], *tail = &tree->edges[trail->edge];
    *head = *tail;
    head->count = trail->at;
    head->request = trail->request;
    *place_of(tree, tail->parent, tail->space, tail->first) = number + 1;
    tail->parent = number;
    tail->first += trail->at;
    tail->count -= trail->at;
    put_edge(tree, trail->edge);
    trail->edge = number;
    return true;
}

/* Adds the run, which is not in the tree, and goes to its end. Likewise. */
static bool add_edge(struct tree *tree, struct trail *trail, const struct hearth_trace_run *run) {
    if (!cut(tree, trail) || !grow(tree)) {
        return false;
    }
    const uint32_t number = (uint32_t)tree->count++;
    tree->edges[number] = (struct edge){.space = run->space,
                                        .first = run->first,
                                        .count = run->count,
                                        .parent = trail->edge,
                                        .request = trail->request};
    put_edge(tree, number);
    trail->edge = number;
    trail->at = run->count;
    return true;
}

/* ---- what comes back ---- */

struct noting {
    struct hearth_oracle *oracle;
    struct tree tree;
    size_t count, cap; /* of steps */
};

/* The blocks up to where the trail has come to come back with request `next`. Likewise. */
static bool note_step(struct noting *noting, const struct trail *trail, uint32_t next) {
    struct hearth_oracle *oracle = noting->oracle;
    if (!HEARTH_BUF_ROOM(oracle->steps, noting->count, noting->cap)) {
        return false;
    }
    noting->count += noting->count == trail->first_step || oracle->steps[noting->count - 1].next != next;
    oracle->steps[noting->count - 1] = (struct hearth_oracle_step){.next = next, .end = trail->end};
    oracle->seen[next] = oracle->seen[next] > trail->end ? oracle->seen[next] : trail->end;
    return true;
}

/* Notes a run of the prompt, or of its reply, which is made then and not used. Likewise. */
static bool note_run(struct noting *noting, struct trail *trail, struct hearth_trace_run run, bool used) {
    while (run.count > 0) {
        const uint32_t n = trail->known ? follow(&noting->tree, trail, &run) : 0;
        if (n == 0) {
            trail->known = false;
            return !used || add_edge(&noting->tree, trail, &run);
        }
        struct edge *edge = &noting->tree.edges[trail->edge];
        trail->end += (int32_t)n;
        if (!note_step(noting, trail, edge->request)) {
            return false;
        }
        edge->request = used && trail->at == edge->count ? trail->request : edge->request;
        run.first += n;
        run.count -= n;
    }
    return true;
}

/* Notes the use of the request's blocks, and appends its steps to the list. Likewise. */
static bool note(struct noting *noting, const struct hearth_trace *trace, uint32_t number) {
    const struct hearth_trace_request *request = &trace->requests[number];
    struct trail trail = {.request = number, .edge = ROOT, .known = true, .first_step = noting->count};
    uint32_t left = (uint32_t)request->blocks; /* of the prompt */
    bool ok = grow(&noting->tree);
    for (uint32_t i = 0; ok && i < request->run_count; i++) {
        struct hearth_trace_run prompt = trace->runs[request->run + i], reply = prompt;
        prompt.count = prompt.count < left ? prompt.count : left;
        reply.first += prompt.count;
        reply.count -= prompt.count;
        ok = note_run(noting, &trail, prompt, true);
        if (prompt.count > 0 && prompt.count == left) {
            ok = ok && cut(&noting->tree, &trail);
        }
        left -= prompt.count;
        ok = ok && note_run(noting, &trail, reply, false);
    }
    return ok;
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
    size_t *begin = calloc(trace->count, sizeof *begin);
    *out = (struct hearth_oracle){.seen = calloc(trace->count, sizeof(int32_t)),
                                  .first = calloc(trace->count + 1, sizeof(uint32_t)),
                                  .steps = malloc(sizeof *out->steps)};
    struct noting noting = {.oracle = out, .cap = out->steps ? 1 : 0};
    bool ok = begin && out->seen && out->first && out->steps;
    for (size_t i = trace->count; ok && i-- > 0;) {
        begin[i] = noting.count;
        ok = note(&noting, trace, (uint32_t)i);
    }
    ok = ok && turn(out, begin, trace->count, noting.count);
    for (size_t i = 0; ok && i < trace->count; i++) {
        out->new_tokens += (uint64_t)(trace->requests[i].prompt_tokens - out->seen[i] * trace->block_tokens);
    }
    free(begin);
    free(noting.tree.edges);
    free(noting.tree.places);
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
