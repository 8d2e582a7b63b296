/* A job: one request on its way through the api room, and the dialect that it is answered in.
 *
 *     job_life.c      its life: worker, service, store, end     reply.c    events to a response, whole or streamed
 *     pool.c          the workers                               choices.c  the form of OpenAI's chat and completions
 *     stored_turns.c  what is stored of it, and when            tally.c, receipt.c  usage, timings, receipt, logprobs
 */
#ifndef HEARTH_API_JOB_H
#define HEARTH_API_JOB_H

#include "api/phases.h"
#include "session/store.h"

#define HEARTH_DEADLINE_HEADERS 2

struct hearth_choice {
    struct hearth_job *job;
    uint32_t index;
    const struct hearth_api_prompt *prompt;
    int64_t service_id;
    bool started;                                 /* its first event was printed */
    bool ended;                                   /* it delivers no more events */
    struct hearth_event *queue_head, *queue_tail; /* under events_mutex */
    /* The result so far. */
    struct hearth_buf text;            /* of a plain completion that is not streamed */
    struct hearth_tokens sampled;      /* of a chat: all sampled tokens; once it has ended, without end token. With
                                          return_tokens: those that are not printed yet */
    struct hearth_chat_stream *stream; /* of a chat; NULL once it has ended */
    struct hearth_message *message;    /* of a chat, once it has ended */
    bool cut;                          /* it did not end by itself, or ended within a call */
    bool late;                         /* because of its deadline */
    bool empty; /* the deadline came before it had begun: it ends empty when other choices have ended */
    char *stop; /* the client's stop string that ended it, or NULL */
    uint32_t reasoning_tokens;
    json_t *logprobs;  /* array; in a stream, entries that wait for their text */
    size_t text_chars; /* characters of the text whose log-probabilities have been printed */
    enum hearth_finish finish;
    struct hearth_receipt receipt;
    uint32_t generated_tokens;
    int64_t generate_us;
    int64_t token_us; /* when the last token came */
    uint32_t drafted_tokens, accepted_tokens, preemptions;
};

/* How an API prints a response. Functions with `out` append whole server-sent events (hearth_sse) and return false when
 * out of memory; any of them may be NULL. They run on the loop unless a comment says otherwise. */
struct hearth_dialect {
    const char *id_prefix;
    bool (*begin)(struct hearth_job *job, struct hearth_buf *out);       /* the stream begins; receipts may be empty */
    bool (*start)(struct hearth_choice *choice, struct hearth_buf *out); /* its first event has come */
    bool (*delta)(struct hearth_choice *choice, const struct hearth_chat_delta *delta, struct hearth_buf *out);
    bool (*end)(struct hearth_choice *choice, struct hearth_buf *out); /* it is complete */
    bool (*finish)(struct hearth_job *job, struct hearth_buf *out);    /* all are, and what is to be stored is stored */
    bool (*fail)(struct hearth_job *job, struct hearth_buf *out);      /* as job->error says */
    /* Tells in the stream, behind `begin`, that the prompt is too long, and ends it: for clients that recognise a full
     * context by an event only. There are no choices then. NULL: a status tells it. */
    bool (*overflow)(struct hearth_job *job, struct hearth_buf *out);
    bool (*ping)(struct hearth_job *job, struct hearth_buf *out); /* after some silence; NULL: a comment */
    /* Prints how much of the prompt is computed, for clients that asked for it; NULL: a comment is sent. */
    bool (*progress)(struct hearth_choice *choice, uint32_t prefilled_tokens, struct hearth_buf *out);
    /* The most tokens of a reply to a prompt of this length; NULL: as many as the request allows. */
    int32_t (*reply_most)(size_t prompt_tokens);
    json_t *(*whole)(struct hearth_job *job); /* the body of a response that is not streamed; NULL: out of memory */
    bool begin_early;                         /* the stream begins when the request has been submitted */
    /* On a worker, for a turn that is stored: the "response" member of its body, from which the dialect prints the turn
     * again. NULL: out of memory. With job->failed there is no message. */
    json_t *(*record)(struct hearth_job *job, enum hearth_turn_status status);
    void (*destroy)(void *state); /* frees job->dialect_state */
};

/* The end of a job is posted apart from its events, since events of cancelled choices may still be posted. */
struct hearth_job_end {
    struct hearth_http_work work; /* first, so that it converts */
    struct hearth_job *job;
};

/* ---- access.c ---- */

#define HEARTH_TRACE_ID_BYTES 33

/* Reads the trace id from a traceparent header. False, and "": there is none, or the header is malformed. `header` may
 * be NULL. */
bool hearth_traceparent_read(const char *header, char trace[HEARTH_TRACE_ID_BYTES]);

struct hearth_job {
    struct hearth_http_work work; /* first, so that it converts */
    struct hearth_api *api;
    const struct hearth_route *route;
    struct hearth_http_exchange *exchange; /* on the loop; NULL once the response has ended or the client has gone */
    atomic_bool gone;
    struct hearth_job *pool_next;
    struct hearth_job *prev, *next; /* the loop's list of submitted jobs */
    void (*pool_run)(struct hearth_job *job);
    struct hearth_buf body;
    size_t body_bytes;    /* bytes of the body that the server still counts */
    bool is_long;         /* preparing it may take long */
    char *path, *query;   /* of the request */
    char *session_header; /* x-session-id, or NULL */
    char *about;          /* the session that a request without a prompt is about, for the log; or NULL */
    char request_id[48];
    const char *method;
    char client[48];                   /* the first word of its User-Agent, or "" */
    char trace[HEARTH_TRACE_ID_BYTES]; /* of its traceparent, or "" */
    int64_t arrived_us, read_us;       /* when it had arrived completely; how long reading its body took */
    size_t sent_bytes;                 /* bytes of its response */
    int64_t unread_us;                 /* how much of its reply's time the client had not taken what was written */
    char ahead[160];                   /* which requests waited or ran when it was submitted, in words */
    struct hearth_caller caller;
    struct hearth_digest owner; /* salt of its key: it may see the owner's turns and sessions */
    char priority_header[24], deadline_headers[HEARTH_DEADLINE_HEADERS][24]; /* "": not sent */
    int64_t deadline_us;                                                     /* from its arrival; 0: none */
    enum hearth_class priority; /* with tier, speculate and progress: urgency.c's, before the body is parsed */
    bool speculate, progress;
    const char *tier;             /* OpenAI's service_tier, if the request names one */
    struct hearth_digest id_bits; /* of its id; also of its turn, if one is stored */
    char id[64];

    /* Written by the worker. */
    bool failed;
    struct hearth_api_error error;
    struct hearth_buf response; /* a finished JSON body if dialect is NULL; or the first answer of a detached job */
    const struct hearth_dialect *dialect;
    void *dialect_state;
    int64_t prepare_start_us, prepare_us, prepare_cpu_us, prepare_db_us;
    struct hearth_body parts;     /* the messages of the body, where they were told apart */
    struct hearth_api_made *made; /* what the phases have made, for phases.c alone to write: */
    const struct hearth_api_parsed *parsed;
    const struct hearth_api_resolved *resolved;
    const struct hearth_api_rendered *rendered;
    atomic_bool detached; /* goes on without a client */
    bool turn_written;    /* its turn is in the store */

    /* Used by the loop. */
    /* Called when all choices have ended, or the job has failed: a worker stores the turn, if there is one, then the
     * response is finished. */
    void (*complete)(struct hearth_job *job);
    struct hearth_choice *choices;
    size_t choice_count, open_choices;
    bool reserved;   /* it has an admission slot of the service that its first choice has not taken over yet */
    bool posted;     /* under events_mutex */
    bool submitted;  /* it is in the API's list */
    bool open;       /* the response has not ended: events are handled */
    bool begun;      /* the stream has begun */
    bool completing; /* a worker is storing its turn */
    struct hearth_job_end end;
    bool cancelled;           /* by another request */
    int answered;             /* status of the response; 0: its client left before */
    int64_t first_us;         /* when its first token came; 0: none has come */
    int64_t gone_us;          /* when its client left; 0: it has not */
    int64_t written_us;       /* when something was last sent */
    int64_t behind_us;        /* when the oldest part was sent that the client has not taken yet; 0: it has taken all */
    int64_t unread_before_us; /* `unread_us` without the time since then */
    int64_t created_unix;
};

/* Makes a job of an exchange and hands it to the workers. */
void hearth_job_start(struct hearth_api *api, const struct hearth_route *route, struct hearth_http_exchange *exchange,
                      const struct hearth_caller *caller);
/* On a worker: reads job->body in the form that the route wants. *out: the caller's reference, or NULL if the body may
 * be missing and is. False: job->error is filled. */
bool hearth_job_parse_body(struct hearth_job *job, json_t **out);
/* The text for the route's '*' number `index`, decoded; NULL: the path has fewer, or out of memory. The caller frees
 * it. */
char *hearth_job_param(const struct hearth_job *job, size_t index);
/* Takes a value as the job's response; NULL: out of memory, and returns false. */
bool hearth_job_respond(struct hearth_job *job, json_t *value);

/* ---- urgency.c: how urgent it is, and until when ---- */

/* On the loop: stores the headers that hearth_urgency_read() will read. */
void hearth_urgency_take_headers(struct hearth_job *job, const struct hearth_http_exchange *exchange);
/* On a worker, before the rest of the body is read: reads priority, service_tier, deadline_ms, speculate,
 * return_progress and the headers. */
bool hearth_urgency_read(struct hearth_job *job, const json_t *body);
/* The time left until the request's or the server's deadline; 0: there is none. False: it has passed. */
bool hearth_urgency_left(struct hearth_job *job, int64_t *left_us);
/* Fills job->error for a deadline that has passed. Returns false. */
bool hearth_urgency_fail_late(struct hearth_job *job);

/* ---- ids.c ---- */

/* Reads an id such as "resp_…" with a turn's id in it. False: it is none. `out` also takes an item's id; *index is then
 * its place in the turn, else -1. */
bool hearth_api_id_parse(const char *text, struct hearth_digest *out, int *index);
/* Prints an item's id: prefix, turn, index. `out` has room for 64 bytes. */
void hearth_api_id_print(char *out, size_t cap, const char *prefix, struct hearth_digest turn, int index);
/* Gives the job its id, with the dialect's prefix. */
void hearth_api_id_name(struct hearth_job *job);
/* Tells a load balancer in front of this server that a response or conversation of this id is here, so that later
 * requests that name it come here, too (contrib/haproxy). */
void hearth_api_id_show(const struct hearth_job *job, struct hearth_http_exchange *exchange);

/* ---- pool.c ---- */

struct hearth_api_pool *hearth_api_pool_create(size_t threads);
/* Calls job->pool_run on a worker, or at once if the pool was stopped. Jobs of routes that only count
 * (HEARTH_ROUTE_COUNT) run after the others. These jobs, jobs with long bodies and the jobs of one key never occupy the
 * last of several workers. */
void hearth_api_pool_push(struct hearth_api_pool *pool, struct hearth_job *job);
/* Called once a second: /health reports jobs that have taken far more CPU time than `cpu_most_us` (0: no limit). */
void hearth_api_pool_watch(struct hearth_api_pool *pool, int64_t cpu_most_us);
/* Runs what is queued and ends the threads; no other thread may push meanwhile. A job in preparation that passes no
 * cancel point ends the process. NULL is allowed. */
void hearth_api_pool_stop(struct hearth_api_pool *pool);
/* Stops and frees the pool. NULL is allowed. */
void hearth_api_pool_destroy(struct hearth_api_pool *pool);

/* ---- reply.c: the loop's side of a response ---- */

/* The job was submitted: a stream may begin. */
void hearth_api_reply_submitted(struct hearth_job *job);
/* Handles one event of a choice, which may end the response. */
void hearth_api_reply_event(struct hearth_job *job, struct hearth_choice *choice, const struct hearth_event *event);
/* The prompt was refused. True: the stream has said so. */
bool hearth_api_reply_refuse(struct hearth_job *job);
/* Ends the response when all choices have ended and the turn is stored. */
void hearth_api_reply_end(struct hearth_job *job);
/* Cancels every choice that is still running. */
void hearth_api_reply_cancel(struct hearth_job *job);
/* Ends the response with job->error: a status while nothing has been sent, an event of the stream afterwards. */
void hearth_api_reply_fail(struct hearth_job *job);
/* Once a second: sends a sign of life to a client that waits. */
void hearth_api_reply_tick(struct hearth_job *job, int64_t now_us);
/* Appends "event: NAME\ndata: VALUE\n\n" (without a name, no first line); takes `value`. False: it was NULL, or out of
 * memory. */
bool hearth_sse(struct hearth_buf *out, const char *event, json_t *value);

/* ---- choices.c: the envelope of chat and plain completions ---- */

/* Where the two differ. The functions return a member of "choices", or NULL when out of memory, and take `logprobs`
 * (NULL: none). For `whole` and `last` the choice's result is in its members `message` (chats) or `text`, `finish` and
 * `cut`. A delta of a plain completion has only content. */
struct hearth_choices_form {
    struct hearth_dialect dialect; /* hearth_choices_dialect(), with its prefix */
    const char *object, *chunk_object;
    json_t *(*whole)(const struct hearth_choice *choice, json_t *logprobs);
    json_t *(*first)(const struct hearth_choice *choice);
    json_t *(*delta)(const struct hearth_choice *choice, const struct hearth_chat_delta *delta, json_t *logprobs);
    json_t *(*last)(const struct hearth_choice *choice);
    /* Puts an array of logprobs entries (hearth_api_logprobs_entry) into the dialect's form. */
    json_t *(*logprobs)(struct hearth_choice *choice, json_t *entries);
};

bool hearth_choices_begin_choice(struct hearth_choice *choice, struct hearth_buf *out);
bool hearth_choices_delta(struct hearth_choice *choice, const struct hearth_chat_delta *delta, struct hearth_buf *out);
bool hearth_choices_end(struct hearth_choice *choice, struct hearth_buf *out);
bool hearth_choices_finish(struct hearth_job *job, struct hearth_buf *out);
bool hearth_choices_fail(struct hearth_job *job, struct hearth_buf *out);
bool hearth_choices_progress(struct hearth_choice *choice, uint32_t prefilled_tokens, struct hearth_buf *out);
json_t *hearth_choices_whole(struct hearth_job *job);
/* Appends an event with llama-server's report on a prompt that is being computed; takes `chunk`. False: it was NULL, or
 * out of memory. */
bool hearth_sse_progress(struct hearth_buf *out, json_t *chunk, const struct hearth_choice *choice,
                         uint32_t prefilled_tokens);

#define HEARTH_CHOICES_DIALECT(prefix)                                                          \
    .id_prefix = (prefix), .start = hearth_choices_begin_choice, .delta = hearth_choices_delta, \
    .end = hearth_choices_end, .finish = hearth_choices_finish, .fail = hearth_choices_fail,    \
    .progress = hearth_choices_progress, .whole = hearth_choices_whole

/* ---- tally.c, receipt.c ---- */

/* Sums over the choices of a job. A prompt counts once, with its first choice. */
struct hearth_tally {
    struct hearth_receipt receipt;
    uint64_t generated_tokens, reasoning_tokens, drafted_tokens, accepted_tokens;
    uint32_t preemptions;
    bool late;
    int64_t generate_us;
    const struct hearth_job *job;
};
void hearth_tally_job(const struct hearth_job *job, struct hearth_tally *tally);
void hearth_tally_choice(const struct hearth_choice *choice, struct hearth_tally *tally);
json_t *hearth_usage_json(const struct hearth_tally *tally);
json_t *hearth_timings_json(const struct hearth_tally *tally);
json_t *hearth_api_receipt_json(const struct hearth_tally *tally);
/* One sampled token with its alternatives, as in chat completions. */
json_t *hearth_api_logprobs_entry(const struct hearth_api *api, const struct hearth_sampled *sampled);

#endif
