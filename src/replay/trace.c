/* Reading traces; the formats stand in docs/replay.md.
 *
 * Names of blocks are numbers of a name space: a session's own, or a file's. Sessions with the same tools and system
 * prompt share their first blocks, which the traces do not say: those blocks get a name space of that head.
 *
 * Traces come from elsewhere: numbers that are outside of what a prompt or a time can be are refused with their line,
 * so that no sum over them overflows.
 *
 * Invariant: after reading, requests are in the order of time, and `prompt_tokens` is the sum over them. */
#include "replay/trace.h"

#include "base/digest.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_MAX (1 << 20) /* of a prompt: 64 million tokens */
#define TIME_MAX_US 1000000000000000000

/* A session's head: the names that its first prompt begins with, replaced by those of a name space of the head. */
struct head {
    uint32_t *names;
    int32_t tool_blocks, blocks;
    uint64_t tool_space, space;
};

struct reader {
    struct hearth_trace *trace;
    const struct hearth_trace_choice *choice;
    const char *path;
    unsigned line;
    uint64_t sessions; /* read so far, of all files */
    uint64_t taken;    /* of these */
    int64_t *free_us;  /* when each of the sessions that run at once ends */
    bool malformed;    /* what failed did so because of a number that cannot be */
    bool mixed;        /* likewise, because of blocks of another size */
};

static bool refuse(struct reader *r) {
    r->malformed = true;
    return false;
}

/* All requests of a trace have blocks of one size. */
static bool set_block(struct reader *r, json_int_t tokens) {
    if (r->trace->block_tokens != 0 && r->trace->block_tokens != tokens) {
        r->mixed = true;
        return false;
    }
    r->trace->block_tokens = (int32_t)tokens;
    return (tokens > 0 && tokens <= HEARTH_TRACE_BLOCK_TOKENS && (tokens & (tokens - 1)) == 0) || refuse(r);
}

static uint64_t space_of(const char *kind, uint64_t a, uint64_t b) {
    char text[96];
    int len = snprintf(text, sizeof text, "%s %llu %llu", kind, (unsigned long long)a, (unsigned long long)b);
    return hearth_checksum(text, (size_t)len);
}

/* ---- requests ---- */

static bool add_run(struct hearth_trace *trace, uint64_t space, uint32_t first, uint32_t count) {
    struct hearth_trace_request *request = &trace->requests[trace->count - 1];
    if (request->run_count > 0) {
        struct hearth_trace_run *last = &trace->runs[trace->run_count - 1];
        if (last->space == space && last->first + last->count == first) {
            last->count += count;
            request->blocks += (int32_t)count;
            return true;
        }
    }
    if (!HEARTH_BUF_ROOM(trace->runs, trace->run_count, trace->run_cap)) {
        return false;
    }
    trace->runs[trace->run_count++] = (struct hearth_trace_run){.space = space, .first = first, .count = count};
    request->run_count++;
    request->blocks += (int32_t)count;
    return true;
}

static struct hearth_trace_request *add_request(struct hearth_trace *trace, int64_t at_us) {
    if (!HEARTH_BUF_ROOM(trace->requests, trace->count, trace->cap)) {
        return NULL;
    }
    trace->requests[trace->count] = (struct hearth_trace_request){.at_us = at_us, .run = (uint32_t)trace->run_count};
    return &trace->requests[trace->count++];
}

struct hearth_trace_request *hearth_trace_add(struct hearth_trace *trace, int64_t at_us, uint64_t space, uint32_t first,
                                              uint32_t count) {
    struct hearth_trace_request *request = add_request(trace, at_us);
    if (!request || !add_run(trace, space, first, count)) {
        return NULL;
    }
    trace->block_tokens = HEARTH_TRACE_BLOCK_TOKENS;
    request->prompt_tokens = request->blocks * HEARTH_TRACE_BLOCK_TOKENS;
    trace->prompt_tokens += (uint64_t)request->prompt_tokens;
    return request;
}

/* Adds the next blocks of the newest request: those of the head one by one. */
static bool add_blocks(struct reader *r, const struct head *head, uint64_t space, uint32_t name, uint32_t count) {
    bool ok = true;
    for (int32_t at; ok && count > 0 && head && (at = r->trace->requests[r->trace->count - 1].blocks) < head->blocks;) {
        const bool heads = head->names[at] == name;
        const uint64_t its_space = !heads ? space : at < head->tool_blocks ? head->tool_space : head->space;
        ok = add_run(r->trace, its_space, heads ? (uint32_t)at : name, 1);
        name++;
        count--;
    }
    return ok && (count == 0 || add_run(r->trace, space, name, count));
}

/* An inclusive range of names. False: it is none. */
static bool read_range(struct reader *r, const json_t *range, json_int_t *first, json_int_t *last) {
    *first = json_integer_value(json_array_get(range, 0));
    *last = json_integer_value(json_array_get(range, 1));
    return (*first >= 0 && *last >= -1 && *last <= UINT32_MAX && *last - *first < BLOCKS_MAX) || refuse(r);
}

/* Adds blocks given as ranges. */
static bool add_ranges(struct reader *r, const struct head *head, uint64_t space, const json_t *ranges) {
    size_t i;
    const json_t *range;
    json_array_foreach(ranges, i, range) {
        json_int_t first, last;
        if (!read_range(r, range, &first, &last) ||
            (last - first >= BLOCKS_MAX - r->trace->requests[r->trace->count - 1].blocks && !refuse(r))) {
            return false;
        }
        if (first <= last && !add_blocks(r, head, space, (uint32_t)first, (uint32_t)(last - first + 1))) {
            return false;
        }
    }
    return true;
}

/* Ends the newest request, whose blocks are there. */
static void end_request(struct reader *r, const json_t *json, const char *tokens) {
    struct hearth_trace_request *request = &r->trace->requests[r->trace->count - 1];
    const json_int_t in = json_integer_value(json_object_get(json, tokens)), block = r->trace->block_tokens;
    if (request->served && in >= 0 && in / block < request->blocks) { /* the rest is its reply's */
        request->reply_blocks = request->blocks - (int32_t)(in / block);
        request->blocks -= request->reply_blocks;
    }
    const json_int_t whole = (json_int_t)request->blocks * block;
    const json_int_t rest = in <= whole ? 0 : in < whole + block ? in - whole : block == 1 ? 0 : block;
    request->prompt_tokens = whole + rest > 0 ? (int32_t)(whole + rest) : 1;
    const char *stop = json_string_value(json_object_get(json, "stop"));
    request->calls = stop && strcmp(stop, "tool_use") == 0;
    r->trace->prompt_tokens += (uint64_t)request->prompt_tokens;
}

/* A time in units of so many microseconds. */
static int64_t time_of(const json_t *json, const char *name, double unit_us) {
    const double us = json_number_value(json_object_get(json, name)) * unit_us, most = TIME_MAX_US;
    return (int64_t)(us > most ? most : us < -most ? -most : us);
}

/* ---- sessions ---- */

/* Notes the names of the first prompt's head. */
static bool read_head(struct reader *r, const json_t *session, struct head *head) {
    const json_int_t most_tokens = (json_int_t)BLOCKS_MAX * HEARTH_TRACE_BLOCK_TOKENS;
    json_int_t tools = json_integer_value(json_object_get(session, "tool_tokens"));
    json_int_t system = json_integer_value(json_object_get(session, "system_tokens")), all = tools + system;
    *head = (struct head){0};
    if (tools < 0 || tools > most_tokens || system < 0 || system > most_tokens) {
        return refuse(r);
    }
    *head = (struct head){.tool_blocks = (int32_t)(tools / HEARTH_TRACE_BLOCK_TOKENS),
                          .tool_space = space_of("tools", (uint64_t)tools, 0),
                          .space = space_of("head", (uint64_t)tools, (uint64_t)all)};
    int32_t most = (int32_t)(all / HEARTH_TRACE_BLOCK_TOKENS);
    head->names = most > 0 ? malloc((size_t)most * sizeof *head->names) : NULL;
    if (!head->names) {
        return most <= 0;
    }
    size_t i;
    const json_t *range, *first = json_array_get(json_object_get(session, "requests"), 0);
    json_array_foreach(json_object_get(first, "blocks"), i, range) {
        json_int_t name, last;
        if (!read_range(r, range, &name, &last)) {
            return false;
        }
        for (; name <= last && head->blocks < most; name++) {
            head->names[head->blocks++] = (uint32_t)name;
        }
    }
    return true;
}

/* Adds the requests of a session, or of an agent inside it; *end_us: when the last of them is over. */
static bool add_requests(struct reader *r, const json_t *session, uint64_t space, int64_t start_us, int64_t *end_us) {
    struct head head = {0};
    const uint32_t talk = ++r->trace->talks;
    bool ok = set_block(r, HEARTH_TRACE_BLOCK_TOKENS) && read_head(r, session, &head);
    size_t i;
    const json_t *json;
    json_array_foreach(json_object_get(session, "requests"), i, json) {
        int64_t at_us = start_us + time_of(json, "t", 1e6);
        ok = ok && ((at_us <= TIME_MAX_US && at_us >= -TIME_MAX_US) || refuse(r));
        if (json_object_get(json, "requests")) {
            ok = ok && add_requests(r, json, space, at_us, end_us);
            continue;
        }
        struct hearth_trace_request *request = ok ? add_request(r->trace, at_us) : NULL;
        ok = request && add_ranges(r, &head, space, json_object_get(json, "blocks"));
        if (!ok) {
            break;
        }
        request->head_blocks = head.blocks < request->blocks ? head.blocks : 0;
        end_request(r, json, "in");
        request->talk = talk;
        request->lasted_us = time_of(json, "api_time", 1e6);
        at_us += request->lasted_us;
        *end_us = at_us > *end_us ? at_us : *end_us;
    }
    free(head.names);
    return ok;
}

static bool add_session(struct reader *r, const json_t *session) {
    uint64_t number = r->sessions++;
    if (number % r->choice->of != r->choice->part || (r->choice->sessions > 0 && r->taken == r->choice->sessions)) {
        return true;
    }
    r->taken++;
    int64_t *start_us = &r->free_us[0];
    for (uint32_t i = 1; i < r->choice->concurrency; i++) {
        start_us = r->free_us[i] < *start_us ? &r->free_us[i] : start_us;
    }
    return add_requests(r, session, space_of("session", number, 0), *start_us, start_us);
}

/* ---- files ---- */

/* What the server did with the newest request, and when by its own clock. */
static bool read_served(struct reader *r, const json_t *served) {
    struct hearth_trace_request *request = &r->trace->requests[r->trace->count - 1];
    const json_int_t reused = json_integer_value(json_object_get(served, "reused"));
    const json_int_t evicted = json_integer_value(json_object_get(served, "evicted"));
    if (!json_is_object(served)) {
        return true;
    }
    request->served = true;
    request->at_us = time_of(served, "began", 1e6);
    request->lasted_us = time_of(served, "ended", 1e6) - request->at_us;
    request->reused_tokens = (int32_t)reused;
    request->evicted = (uint64_t)evicted;
    return (reused >= 0 && reused <= (json_int_t)BLOCKS_MAX * HEARTH_TRACE_BLOCK_TOKENS && evicted >= 0 &&
            request->lasted_us >= 0) ||
           refuse(r);
}

static bool add_open(struct reader *r, const json_t *json) {
    uint64_t space = space_of(r->path, 0, 0);
    const json_t *ids = json_object_get(json, "hash_ids"), *block = json_object_get(json, "block");
    int64_t at_us = ids ? time_of(json, "timestamp", 1e3) : time_of(json, "t", 1e6);
    if (!set_block(r, block ? json_integer_value(block) : HEARTH_TRACE_BLOCK_TOKENS) || !add_request(r->trace, at_us)) {
        return false;
    }
    size_t i;
    const json_t *id;
    bool ok = true;
    json_int_t whole = json_integer_value(json_object_get(json, "input_length")) / HEARTH_TRACE_BLOCK_TOKENS;
    json_array_foreach(ids, i, id) { /* of 512 tokens, the last one of fewer */
        json_int_t left = whole - (json_int_t)i * 8;
        uint32_t count = left < 0 ? 0 : left < 8 ? (uint32_t)left : 8;
        ok = ok && (r->trace->requests[r->trace->count - 1].blocks <= BLOCKS_MAX - 8 || refuse(r)) &&
             (count == 0 || add_run(r->trace, space, (uint32_t)json_integer_value(id) * 8, count));
    }
    ok = ok && add_ranges(r, NULL, space, json_object_get(json, "blocks"));
    if (ok) {
        struct hearth_trace_request *request = &r->trace->requests[r->trace->count - 1];
        json_int_t head = json_integer_value(json_object_get(json, "head")) / r->trace->block_tokens;
        request->lasted_us = time_of(json, "api_time", 1e6);
        const json_int_t key = json_integer_value(json_object_get(json, "key"));
        request->key = key > 0 && key <= UINT32_MAX ? (uint32_t)key : 0;
        ok = read_served(r, json_object_get(json, "served"));
        end_request(r, json, ids ? "input_length" : "in");
        request->head_blocks = head > 0 && head < request->blocks ? (int32_t)head : 0;
    }
    return ok;
}

/* The first line of a recording: what the server keeps its state in. Of several the first one counts. */
static bool read_server(struct reader *r, const json_t *json) {
    static const char *const names[] = {"ram_bytes", "token_bytes", "snapshot_bytes", "page_tokens", "lanes"};
    json_int_t values[sizeof names / sizeof names[0]];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        values[i] = json_integer_value(json_object_get(json, names[i]));
        if (values[i] < 0 || (i > 2 && (values[i] == 0 || values[i] > BLOCKS_MAX))) {
            return refuse(r);
        }
    }
    if (!r->trace->server.known) {
        r->trace->server = (struct hearth_trace_server){.known = true,
                                                        .ram_bytes = (uint64_t)values[0],
                                                        .token_bytes = (uint64_t)values[1],
                                                        .snapshot_bytes = (uint64_t)values[2],
                                                        .page_tokens = (int32_t)values[3],
                                                        .lanes = (uint32_t)values[4]};
    }
    return true;
}

static int add_line(struct reader *r, const char *text, size_t len, struct hearth_errmsg *msg) {
    json_error_t error;
    json_t *json = json_loadb(text, len, 0, &error);
    bool ok = true, known = true;
    if (json_is_array(json_object_get(json, "requests"))) {
        ok = add_session(r, json);
    } else if (json_is_array(json_object_get(json, "hash_ids")) || json_is_array(json_object_get(json, "blocks"))) {
        ok = add_open(r, json);
    } else if (json_is_object(json_object_get(json, "server"))) {
        ok = read_server(r, json_object_get(json, "server"));
    } else {
        known = false;
    }
    json_decref(json);
    if (r->mixed) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s:%u: its blocks have another size than those before it", r->path,
                           r->line);
    }
    if (r->malformed) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s:%u: a number is out of range", r->path, r->line);
    }
    if (!known) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s:%u: this is neither a session nor a request%s%s", r->path,
                           r->line, json ? "" : ": ", json ? "" : error.text);
    }
    return ok ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_NOMEM, "%s: out of memory", r->path);
}

static int read_file(struct reader *r, struct hearth_errmsg *msg) {
    FILE *file = fopen(r->path, "re");
    if (!file) {
        return hearth_fail(msg, HEARTH_ERR_IO, "%s: %s", r->path, strerror(errno));
    }
    char *text = NULL;
    size_t cap = 0;
    ssize_t len;
    int err = HEARTH_OK;
    for (r->line = 1; !err && (len = getline(&text, &cap, file)) >= 0; r->line++) {
        if (len > 1) {
            err = add_line(r, text, (size_t)len, msg);
        }
    }
    if (!err && ferror(file)) {
        err = hearth_fail(msg, HEARTH_ERR_IO, "%s: cannot be read", r->path);
    }
    free(text);
    (void)fclose(file);
    return err;
}

static int earlier(const void *a, const void *b) {
    const struct hearth_trace_request *left = a, *right = b;
    if (left->at_us != right->at_us) {
        return left->at_us < right->at_us ? -1 : 1;
    }
    return left->run < right->run ? -1 : left->run > right->run;
}

void hearth_trace_sort(struct hearth_trace *trace) {
    if (trace->count > 0) {
        qsort(trace->requests, trace->count, sizeof *trace->requests, earlier);
    }
}

int hearth_trace_read(char *const paths[], size_t path_count, const struct hearth_trace_choice *choice,
                      struct hearth_trace *out, struct hearth_errmsg *msg) {
    *out = (struct hearth_trace){0};
    struct reader r = {.trace = out, .choice = choice, .free_us = calloc(choice->concurrency, sizeof(int64_t))};
    int err = r.free_us ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; !err && i < choice->concurrency; i++) {
        r.free_us[i] = choice->ramp_us * i / choice->concurrency;
    }
    uint64_t before;
    do {
        before = r.taken;
        for (size_t i = 0; !err && i < path_count; i++) {
            r.path = paths[i];
            err = read_file(&r, msg);
        }
    } while (!err && r.taken > before && r.taken < choice->sessions);
    free(r.free_us);
    if (!err && out->count == 0) {
        err = hearth_fail(msg, HEARTH_ERR_INVALID, "%s: there is no request in it", paths[0]);
    }
    if (err) {
        hearth_trace_finish(out);
        return err;
    }
    hearth_trace_sort(out);
    return HEARTH_OK;
}

void hearth_trace_finish(struct hearth_trace *trace) {
    free(trace->requests);
    free(trace->runs);
    *trace = (struct hearth_trace){0};
}

/* The first `n` blocks. */
static bool make_tokens(const struct hearth_trace *trace, const struct hearth_trace_request *request, int32_t n,
                        struct hearth_tokens *out) {
    out->n = 0;
    if (!hearth_tokens_reserve(out, (size_t)n + 1)) {
        return false;
    }
    for (uint32_t i = 0; i < request->run_count; i++) {
        const struct hearth_trace_run *run = &trace->runs[request->run + i];
        for (uint32_t k = 0; k < run->count && out->n < (size_t)n; k++) {
            uint64_t x = (run->space ^ (run->first + k)) * UINT64_C(0x9E3779B97F4A7C15);
            x = (x ^ x >> 32) * UINT64_C(0xBF58476D1CE4E5B9);
            out->v[out->n++] = (hearth_token)(x >> 33);
        }
    }
    return true;
}

bool hearth_trace_tokens(const struct hearth_trace *trace, const struct hearth_trace_request *request,
                         struct hearth_tokens *out) {
    return make_tokens(trace, request, request->blocks, out);
}

bool hearth_trace_whole(const struct hearth_trace *trace, const struct hearth_trace_request *request,
                        struct hearth_tokens *out) {
    return make_tokens(trace, request, request->blocks + request->reply_blocks, out);
}
