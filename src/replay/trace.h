/* Traces: which prompts were sent when, without a word of them.
 *
 * A prompt is a list of blocks of so many tokens, each named by a number: two prompts share a prefix exactly as long as
 * their leading names agree. A replay takes each block for one token. */
#ifndef HEARTH_REPLAY_TRACE_H
#define HEARTH_REPLAY_TRACE_H

#include "base/buf.h"
#include "base/err.h"

#define HEARTH_TRACE_BLOCK_TOKENS 64 /* unless the trace says otherwise */

/* Names first, first + 1, … of one name space. */
struct hearth_trace_run {
    uint64_t space;
    uint32_t first, count;
};

struct hearth_trace_request {
    int64_t at_us;           /* from the beginning of the trace */
    uint32_t run, run_count; /* its prompt: runs[run, run + run_count) */
    int32_t blocks;          /* of the prompt; what is left of prompt_tokens is always computed */
    int32_t prompt_tokens;
    int32_t head_blocks;  /* of these, tools and system prompt; 0: not known */
    int64_t lasted_us;    /* until its reply was complete; 0: not known */
    bool calls;           /* the reply ended with a call of a tool */
    uint32_t key;         /* nothing is shared with the requests of another one */
    uint32_t talk;        /* the conversation: its requests follow each other; 0: not known */
    int32_t reply_blocks; /* behind the prompt's, which its sequence held at the end; 0: not known */
    bool served;          /* by a server that told what it did: */
    int32_t reused_tokens;
    uint64_t evicted; /* pages and snapshots, since the server started until the request began */
};

/* What the server that was recorded kept its state in. */
struct hearth_trace_server {
    bool known;
    uint64_t ram_bytes, token_bytes, snapshot_bytes;
    int32_t page_tokens;
    uint32_t lanes;
};

struct hearth_trace {
    struct hearth_trace_request *requests; /* by time */
    size_t count, cap;
    struct hearth_trace_run *runs;
    size_t run_count, run_cap;
    uint64_t prompt_tokens;
    uint32_t talks;       /* conversations that are known: 1 to talks */
    int32_t block_tokens; /* of all requests */
    struct hearth_trace_server server;
};

/* Of the sessions, every `of`th is taken, beginning with number `part`, and `concurrency` of them run at once: the next
 * one starts when one ends; the first ones begin within `ramp_us`. With `sessions` the files are read again, as other
 * sessions with the same heads, until there are so many. Requests without sessions come when they came. */
struct hearth_trace_choice {
    uint32_t part, of;
    uint32_t concurrency;
    int64_t ramp_us;
    uint64_t sessions; /* 0: as many as there are */
};

/* Reads files of JSON lines: sessions ({"requests": …}), requests with global names of blocks ({"hash_ids": …}, as
 * Mooncake's), and requests with the digests of their blocks (docs/replay.md). Errors: IO, INVALID, NOMEM; `msg` names
 * file and line. */
int hearth_trace_read(char *const paths[], size_t path_count, const struct hearth_trace_choice *choice,
                      struct hearth_trace *out, struct hearth_errmsg *msg);
void hearth_trace_finish(struct hearth_trace *trace);

/* Adds a request with one run and gives it back, for what else is known of it; NULL: out of memory. For traces that
 * are made up. */
struct hearth_trace_request *hearth_trace_add(struct hearth_trace *trace, int64_t at_us, uint64_t space, uint32_t first,
                                              uint32_t count);
/* Puts the requests in the order of time. */
void hearth_trace_sort(struct hearth_trace *trace);

/* The prompt as tokens: a block each. False: out of memory. */
bool hearth_trace_tokens(const struct hearth_trace *trace, const struct hearth_trace_request *request,
                         struct hearth_tokens *out);
/* The prompt and the reply behind it, as far as it is known. Likewise. */
bool hearth_trace_whole(const struct hearth_trace *trace, const struct hearth_trace_request *request,
                        struct hearth_tokens *out);

#endif
