/* Inside of the api room.
 *
 * A request that needs work is a job. It goes from the loop to a worker (prepare: JSON to prompts or to a finished
 * response), back to the loop, from there as one request per choice to the service, and ends when the response has
 * ended and every choice has had its last event.
 *
 *     api.c        create, routes, keys, dispatch       job.c        a job's life
 *     pool.c       the workers                          reply.c      events to a response, whole or streamed
 *     error.c      the error object                     receipt.c    usage, timings, receipt, logprobs
 *     fields.c     typed fields of a JSON object        models.c, native.c, metrics.c: the smaller endpoints
 *     generation.c what a request asks of the sampler   chat_completions.c, completions.c: the dialects
 *     prompt.c     text to tokens and marks */
#ifndef HEARTH_API_API_INTERNAL_H
#define HEARTH_API_API_INTERNAL_H

#include "api/api.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#define HEARTH_CONTENT_JSON "application/json; charset=utf-8"
#define HEARTH_CHOICES_MAX 128u
#define HEARTH_STOPS_MAX 16u
#define HEARTH_JSON_DUMP (JSON_COMPACT | JSON_REAL_PRECISION(10))

struct hearth_job;

/* ---- api.c ---- */

struct hearth_api {
    struct hearth_engine *engine;
    struct hearth_chat *chat;
    struct hearth_service *service;
    struct hearth_http_server *http;
    char **api_keys;
    size_t api_key_count;
    char *model_path, *model_name, *model_file, *version;
    uint32_t lanes;
    struct hearth_sampling sampling;
    int32_t max_tokens;
    bool metrics, slots;
    int64_t created_unix;
    atomic_bool stopping;
    bool shut_down;
    atomic_uint_fast64_t id_count; /* for response ids */
    uint64_t id_seed;
    atomic_size_t jobs;           /* alive; 0 at the end */
    pthread_mutex_t events_mutex; /* the event queues of all jobs */
    struct hearth_pool *pool;
};

struct hearth_route {
    const char *method;
    const char *path; /* a trailing '*' stands for any rest that is not empty */
    /* One of the two: answers at once on the loop, */
    void (*now)(struct hearth_api *api, struct hearth_http_exchange *exchange);
    /* or is given the parsed body on a worker, and fills either job->response or job->generation and job->dialect.
     * False: job->error is filled. */
    bool (*prepare)(struct hearth_job *job, const json_t *body);
    bool open; /* needs no key */
};

/* ---- error.c: {"error": {"message", "type", "param", "code"}} ---- */

struct hearth_api_error {
    int status;
    const char *code; /* static, or NULL */
    char param[96];   /* "" when none */
    struct hearth_errmsg message;
    size_t prompt_tokens, ctx_tokens; /* for context_length_exceeded, else 0 */
};

/* Fills an error and returns false. `param` may be NULL. */
bool hearth_api_fail(struct hearth_api_error *error, int status, const char *code, const char *param,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Fills an error from a code of enum hearth_err; `msg` may be empty. Returns false. */
bool hearth_api_fail_err(struct hearth_api_error *error, int err, const struct hearth_errmsg *msg);
bool hearth_api_fail_nomem(struct hearth_api_error *error);
/* The error object; NULL: out of memory. */
json_t *hearth_api_error_json(const struct hearth_api_error *error);
/* Ends the exchange with an error. */
void hearth_api_respond_error(struct hearth_http_exchange *exchange, const struct hearth_api_error *error);
/* The handler's callback for errors that http finds. */
void hearth_api_http_error(void *user, int status, const char *message, struct hearth_buf *body);

/* ---- json.c ---- */

/* A string; bytes that are not UTF-8 become U+FFFD. NULL: out of memory. */
json_t *hearth_json_text(const char *text, size_t len);
/* A number; what JSON has no word for becomes 0. */
json_t *hearth_json_real(double value);
/* Appends the value's text and gives the value up. False: `value` was NULL, or out of memory. */
bool hearth_json_write(json_t *value, struct hearth_buf *out);
/* Ends the exchange with a value, which is given up (NULL: answers 503, out of memory). */
void hearth_json_respond(struct hearth_http_exchange *exchange, int status, json_t *value);

/* ---- fields.c ---- */

enum hearth_field_type { HEARTH_FIELD_FLOAT, HEARTH_FIELD_INT, HEARTH_FIELD_BOOL };

struct hearth_field {
    const char *name;
    enum hearth_field_type type; /* of what `offset` leads to: float, int32_t, bool */
    double min, max;
    bool above_min; /* min itself is not allowed */
    size_t offset;
};

/* Reads fields of `object` into the struct at `out`. What is absent or null is left as it is. */
bool hearth_fields_read(const json_t *object, const struct hearth_field *fields, size_t count, void *out,
                        struct hearth_api_error *error);
/* An integer (1.0 is one too). False: it is none, or has no place in 64 bits. */
bool hearth_json_integer(const json_t *value, int64_t *out);
/* A token id of the vocabulary. */
bool hearth_json_token(const struct hearth_api *api, const json_t *value, hearth_token *out);
/* The field, or NULL when it is absent or null. */
json_t *hearth_json_get(const json_t *object, const char *name);

/* ---- generation.c ---- */

struct hearth_prompt {
    struct hearth_tokens tokens;
    int32_t marks[2];
    size_t mark_count;
    struct hearth_buf text; /* what `echo` prints */
};

/* What a request asks for. */
struct hearth_generation {
    struct hearth_sampling sampling;
    struct hearth_logit_bias *bias;
    char **stops;
    size_t stop_count;
    char *model;        /* as the client wrote it, or NULL */
    int32_t max_tokens, n;
    bool stream, include_usage, cache, echo;
    struct hearth_prompt *prompts;
    size_t prompt_count;
};

/* Reads everything that chat and plain completions have in common; `generation` is zeroed. */
bool hearth_generation_read(const struct hearth_api *api, const json_t *body, struct hearth_generation *generation,
                            struct hearth_api_error *error);
bool hearth_generation_alloc_prompts(struct hearth_generation *generation, size_t count,
                                     struct hearth_api_error *error);
void hearth_generation_finish(struct hearth_generation *generation);
/* Fields that ask for what this release does not have: each may be null, or say that it is not wanted. */
bool hearth_generation_check_supported(const json_t *body, struct hearth_api_error *error);

/* ---- prompt.c ---- */

/* Tokenises text as a prompt. `param` is named when it is too long or empty. */
bool hearth_prompt_from_text(const struct hearth_api *api, const char *text, size_t len, const char *param,
                             struct hearth_prompt *prompt, struct hearth_api_error *error);
/* Turns the marks of a rendered prompt (byte offsets) into token positions. */
void hearth_prompt_set_marks(const struct hearth_api *api, const struct hearth_chat_prompt *rendered,
                             struct hearth_prompt *prompt);
bool hearth_prompt_check_length(const struct hearth_api *api, const struct hearth_prompt *prompt, const char *param,
                                struct hearth_api_error *error);
/* Appends the text of a token. */
bool hearth_token_append(const struct hearth_api *api, hearth_token token, bool special, struct hearth_buf *out);

/* ---- job.c ---- */

struct hearth_choice {
    struct hearth_job *job;
    uint32_t index;
    const struct hearth_prompt *prompt;
    int64_t service_id;
    bool started;          /* its first chunk has been sent */
    bool ended;            /* no more events */
    struct hearth_event *queue_head, *queue_tail; /* under events_mutex */
    /* What it has come to. */
    struct hearth_buf text;
    json_t *logprobs;      /* array; in a stream, those that wait for text */
    size_t text_chars;     /* characters of the text whose log-probabilities have been printed */
    enum hearth_finish finish;
    struct hearth_receipt receipt;
    uint32_t generated_tokens;
    int64_t generate_us;
};

/* How an API prints choices. The functions return a member of "choices", NULL when out of memory. `logprobs` is
 * given up; NULL when none. */
struct hearth_dialect {
    const char *id_prefix, *object, *chunk_object;
    json_t *(*whole)(const struct hearth_choice *choice, json_t *logprobs);
    json_t *(*first)(const struct hearth_choice *choice);
    json_t *(*delta)(const struct hearth_choice *choice, const char *text, size_t len, json_t *logprobs);
    json_t *(*last)(const struct hearth_choice *choice);
    /* Puts an array of logprobs entries (hearth_logprobs_entry) into the dialect's form. */
    json_t *(*logprobs)(struct hearth_choice *choice, json_t *entries);
};

struct hearth_job {
    struct hearth_http_work work; /* first, so that it converts */
    struct hearth_api *api;
    const struct hearth_route *route;
    struct hearth_http_exchange *exchange; /* the loop's; NULL once the response has ended or the client has gone */
    atomic_bool gone;
    struct hearth_job *pool_next;
    struct hearth_buf body;

    /* Made by the worker. */
    bool failed;
    struct hearth_api_error error;
    struct hearth_buf response;           /* a finished JSON body, when dialect is NULL */
    const struct hearth_dialect *dialect;
    struct hearth_generation generation;

    /* The loop's. */
    struct hearth_choice *choices;
    size_t choice_count, open_choices;
    bool posted; /* under events_mutex */
    bool begun;  /* the stream has */
    char id[48];
    int64_t created_unix;
};

/* Makes a job of an exchange and hands it to the workers. */
void hearth_job_start(struct hearth_api *api, const struct hearth_route *route, struct hearth_http_exchange *exchange);
/* Worker: parses the body and calls the route's prepare. */
void hearth_job_prepare(struct hearth_job *job);
/* Cancels every choice that is still running. */
void hearth_job_cancel(struct hearth_job *job);

/* ---- pool.c ---- */

struct hearth_pool;
struct hearth_pool *hearth_pool_create(size_t threads);
void hearth_pool_push(struct hearth_pool *pool, struct hearth_job *job);
/* Runs what is queued and ends the threads. NULL is allowed. */
void hearth_pool_destroy(struct hearth_pool *pool);

/* ---- reply.c: the loop's side of a response ---- */

/* One event of a choice. The job's exchange may end by it. */
void hearth_reply_event(struct hearth_job *job, struct hearth_choice *choice, const struct hearth_event *event);
/* Ends the response with an error: a status while nothing has been sent, an event of the stream afterwards. */
void hearth_reply_fail(struct hearth_job *job, const struct hearth_api_error *error);

/* ---- receipt.c ---- */

/* Sums over the choices of a job: prompts count once, by the first choice of each. */
struct hearth_tally {
    struct hearth_receipt receipt;
    uint64_t generated_tokens;
    int64_t generate_us;
};
void hearth_tally_job(const struct hearth_job *job, struct hearth_tally *tally);
void hearth_tally_choice(const struct hearth_choice *choice, struct hearth_tally *tally);
json_t *hearth_usage_json(const struct hearth_tally *tally);
json_t *hearth_timings_json(const struct hearth_tally *tally);
json_t *hearth_receipt_json(const struct hearth_tally *tally);
/* One sampled token with its alternatives, as in chat completions. */
json_t *hearth_logprobs_entry(const struct hearth_api *api, const struct hearth_sampled *sampled);

/* ---- endpoints ---- */

bool hearth_chat_completions_prepare(struct hearth_job *job, const json_t *body);
bool hearth_completions_prepare(struct hearth_job *job, const json_t *body);
bool hearth_apply_template_prepare(struct hearth_job *job, const json_t *body);
bool hearth_tokenize_prepare(struct hearth_job *job, const json_t *body);
bool hearth_detokenize_prepare(struct hearth_job *job, const json_t *body);
void hearth_models_list(struct hearth_api *api, struct hearth_http_exchange *exchange);
void hearth_models_get(struct hearth_api *api, struct hearth_http_exchange *exchange);
void hearth_health_get(struct hearth_api *api, struct hearth_http_exchange *exchange);
void hearth_props_get(struct hearth_api *api, struct hearth_http_exchange *exchange);
void hearth_slots_get(struct hearth_api *api, struct hearth_http_exchange *exchange);
void hearth_metrics_get(struct hearth_api *api, struct hearth_http_exchange *exchange);

#endif
