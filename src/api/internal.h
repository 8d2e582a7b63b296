/* Inside of the api room.
 *
 * A request that needs work is a job. It goes from the loop to a worker (prepare: JSON to prompts or to a finished
 * response), back to the loop, from there as one request per choice to the service, and ends when the response has
 * ended and every choice has had its last event.
 *
 *     dispatch.c          create, the table of routes     route.c              paths and queries
 *     job.h               jobs, dialects, their printers  phases.h             the phases of a request
 *     error.c             the error object                respond.c            answers that end an exchange
 *     json.c, fields.c    typed fields of a JSON object   ids.c                ids of turns and items
 *     keys.c              the keys that open it           salt.c               the requests that share state
 *     urgency.c           class, deadline                 access.c             what is told of every request
 *     limits.c            counts a body before parsing    body.c               parses what of a body is new
 *     generation.c        what the sampler is asked for   chat_request.c       what the template is asked for
 *     tools.c             tools of a request              loading.c            tools that appear on the way
 *     tool_changes.c      tools that have changed         format.c             structured output, reasoning
 *     messages.c          JSON to messages                content.c            what is no text, as a note
 *     history.c           messages to prompts             rereading.c          earlier replies, parsed again
 *     divergence.c        where a prompt left another one volatile.c           lines that change with every request
 *     breakpoints.c       what of a prompt is kept longer prompt.c             lengths of prompts
 *     template_probe.c    what the template does          output_constraint.c  what a reply must look like
 *     script.c            replies written beforehand      idle.c               what is computed ahead of a turn
 *
 *     dialects            chat_completions.c, completions.c, completion.c, responses/, anthropic/
 *     sessions/           conversations that live in the server
 *     smaller endpoints   models.c, native.c, metrics.c, slots.c, requests.c, recording.c, feed.c (GET /events), ui.c
 */
#ifndef HEARTH_API_INTERNAL_H
#define HEARTH_API_INTERNAL_H

#include "api/api.h"
#include "api/strip.h"
#include "base/memory.h"
#include "http/server.h"
#include "report/figures.h"
#include "report/trend.h"
#include "session/json_memory.h"
#include "session/store.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#define HEARTH_CONTENT_JSON "application/json; charset=utf-8"
#define HEARTH_CHOICES_MAX 128u
#define HEARTH_STOPS_MAX 16u
#define HEARTH_MS(us) ((double)(us) / 1000.0)
#define HEARTH_JSON_DUMP (JSON_COMPACT | JSON_REAL_PRECISION(15)) /* 0.1 stays 0.1 */

struct hearth_api_constraint;
struct hearth_transcript_prompt;
struct hearth_api_error;
struct hearth_caller;

/* ---- template_probe.c: what the template does ---- */

struct hearth_api_template_probe {
    bool prints_ids;            /* the ids of calls */
    bool prints_thinking;       /* whether there is to be thinking, in front of the reply that it is about */
    struct hearth_buf turn_end; /* text with its 0: what is printed behind any message of the assistant */
    /* Tokens that stand in front of the generation prompt, and otherwise there once a reply is behind the message: of
     * a user's message, and of a call's result. Empty: none, or not known. */
    struct hearth_tokens asked_rewritten, result_rewritten;
};

/* Renders what it takes. False: out of memory; hearth_api_template_probe_finish() is needed in any case. */
bool hearth_api_template_probe_run(struct hearth_chat *chat, struct hearth_engine *engine,
                                   struct hearth_api_template_probe *probe);
void hearth_api_template_probe_finish(struct hearth_api_template_probe *probe);

/* ---- dispatch.c ---- */

struct hearth_api {
    struct hearth_engine *engine;
    struct hearth_chat *chat;
    struct hearth_service *service;
    struct hearth_http_server *http;
    struct hearth_api_params params; /* as given: its texts and lists are the caller's, for hearth_api_create() only */
    struct hearth_api_keys *keys;    /* keys.c's, under keys_mutex */
    struct hearth_owner_quota *quotas; /* likewise */
    char key_salt[17];
    pthread_mutex_t keys_mutex;
    _Atomic int64_t request_timeout_us;
    atomic_uint_fast64_t refused;      /* requests that found too many others, before the service was asked */
    atomic_uint_fast64_t unauthorized; /* requests without a valid key */
    char *model_path, *model_name, *model_file, *version;
    char *lora_path;                /* or NULL */
    struct hearth_ring *ring;       /* the last requests; NULL: none are kept */
    struct hearth_journal *journal; /* stores them; NULL: they are in memory only */
    struct {                        /* feed.c's, the loop's */
        struct hearth_feed_stream *streams;
        size_t count;
        uint64_t told; /* requests that the ring had at the last event */
        struct hearth_http_work end;
    } events;
    struct hearth_recording *recordings; /* recording.c's, the loop's */
    struct hearth_trend trend;           /* likewise */
    struct hearth_figures figures;       /* the loop's, as the next three */
    double prefill_us_per_token;         /* usually; 0: not known yet */
    int64_t created_unix;
    atomic_bool stopping;
    atomic_bool drained; /* no reply will be computed any more, */
    atomic_bool ended;   /* nor anything else */
    bool shut_down;
    uint64_t mark_seed;                             /* for texts that no client has written */
    atomic_size_t jobs;                             /* alive; 0 at the end */
    bool trim_due;                                  /* the loop's: what large jobs have taken is still malloc()'s */
    struct hearth_job *running;                     /* the loop's list of those that were submitted */
    struct hearth_session_store *store, *own_store; /* the second: in memory, where none was given */
    struct hearth_api_deletion_worker *deletion_worker;
    struct hearth_digest compacting[16]; /* the loop's ring of responses/overflow.c */
    size_t compacting_next;
    uint8_t secret[32];           /* where there is no store (hearth_salt_secret) */
    pthread_mutex_t events_mutex; /* the event queues of all jobs */
    pthread_mutex_t ends_mutex;   /* how a turn that was stored open ends: by its reply, or cancelled */
    struct hearth_api_pool *pool;

    /* Chat. */
    struct hearth_transcripts *transcripts; /* history.c's, as is: */
    struct hearth_message_cache *message_cache;
    struct hearth_first_values *first_values; /* tools as they were first printed */
    struct hearth_toolsets *toolsets;
    struct hearth_api_template_probe template_probe;
    struct hearth_idle *idle;  /* the loop's, but for what never changes; NULL: nothing is computed ahead */
    struct hearth_strip strip; /* what is taken out of system and developer messages */
    char *reasoning_budget_message;
    json_t *template_kwargs;      /* object, or NULL */
    struct hearth_script *script; /* or NULL */
    /* output_constraint.c's: the last grammars that were found to be good, to each owner those that it has sent. */
    struct hearth_digest grammars[64];
    size_t next_grammar;
    pthread_mutex_t grammars_mutex;
};

/* How a route is answered. On the loop, without the body: by itself, */
typedef bool hearth_api_now_fn(struct hearth_api *api, struct hearth_http_exchange *exchange,
                               const struct hearth_caller *caller, struct hearth_api_error *error);
/* or by a value. False, NULL: as the error says, which stands for want of memory until it is filled. */
typedef json_t *hearth_api_get_fn(struct hearth_api *api, struct hearth_http_exchange *exchange,
                                  const struct hearth_caller *caller, struct hearth_api_error *error);
/* On a worker, from the parsed body: fills either job->response or, by phases, job->dialect. False: job->error is
 * filled. */
typedef bool hearth_api_prepare_fn(struct hearth_job *job, const json_t *body);

struct hearth_route {
    const char *method;
    const char *path; /* a '*' stands for any text that is not empty; earlier routes of the table win */
    unsigned flags;
    unsigned scope;         /* of enum hearth_scope: what the key needs; 0: any key will do */
    hearth_api_now_fn *now; /* beside one of the last two it comes first, and must neither answer nor fail */
    hearth_api_get_fn *get;
    const struct hearth_api_phases *phases;
    hearth_api_prepare_fn *prepare;
};

enum hearth_route_flag {
    HEARTH_ROUTE_OPEN = 1,     /* needs no key */
    HEARTH_ROUTE_CHAT = 2,     /* its "messages" are a chat's, which are read once by their bytes */
    HEARTH_ROUTE_BODYLESS = 4, /* the body may be missing: NULL is given then */
    HEARTH_ROUTE_REPLY = 8,    /* the model is to reply: it takes its turn, and may be refused when too many wait */
    HEARTH_ROUTE_COUNT = 16,   /* as much work as there is text in the body, and no reply of the model */
    HEARTH_ROUTE_LIST = 32,    /* the body is an array */
    HEARTH_ROUTE_STREAM = 64,  /* `now` begins a stream */
};

/* ---- keys.c: the keys that open the server ---- */

/* What is known of a key, without the key itself. */
struct hearth_caller {
    struct hearth_digest salt;   /* of its state and conversations; zero: there are no other callers */
    struct hearth_tenant tenant; /* zero: no keys are needed */
    enum hearth_class highest;
    unsigned scopes;            /* of enum hearth_scope */
    struct hearth_quota *quota; /* NULL: no keys are needed */
    char name[48];
    struct hearth_session_quota stored; /* what it may have in the session database */
};

/* False: out of memory. */
bool hearth_api_keys_init(struct hearth_api *api, const struct hearth_api_key *keys, size_t count);
void hearth_api_keys_finish(struct hearth_api *api);
/* Tells what each key has used that a request has brought so far. */
void hearth_api_keys_each(struct hearth_api *api,
                          void (*each)(void *user, const char *name, struct hearth_quota *quota), void *user);
/* True when a caller may know what a job is about: its owner, and a key that sees everything. `job` may be NULL: its
 * owner is not known. */
bool hearth_caller_sees(const struct hearth_caller *caller, const struct hearth_job *job);
/* True when the exchange brings a key that is good here; fills the caller then. Any thread. */
bool hearth_api_authorize(struct hearth_api *api, const struct hearth_http_exchange *exchange,
                          struct hearth_caller *caller);

/* ---- limits.c: what the key allows; false: the error is filled ---- */

bool hearth_key_limits_scope(const struct hearth_caller *caller, unsigned scope, struct hearth_api_error *error);
/* Whether a request may begin now. `take`: it does, and hearth_key_limits_end() follows when its job ends. */
bool hearth_key_limits_ask(const struct hearth_caller *caller, const struct hearth_route *route, bool take,
                           struct hearth_api_error *error);
void hearth_key_limits_end(const struct hearth_job *job);
/* Worker: whether the owner may keep more (`session`: one more conversation, too). */
bool hearth_key_limits_store(const struct hearth_job *job, bool session, struct hearth_api_error *error);
/* Says in the answer's headers what is left. */
void hearth_key_limits_tell(const struct hearth_caller *caller, struct hearth_http_exchange *exchange);

/* ---- access.c: what the log says of every request ---- */

/* An answer that no job gave: an error, which is told with its cause. */
void hearth_access_log_error(const struct hearth_http_exchange *exchange, const struct hearth_api_error *error);
/* Logs that a request has deleted something stored. `id` may be a client's text. */
void hearth_access_log_deleted(const struct hearth_job *job, const char *kind, const char *id, unsigned turns);
/* Notes the client of a new job, and how many requests are in front of it. */
void hearth_access_take_client(struct hearth_job *job, const struct hearth_http_exchange *exchange);
/* The job is about to be submitted: notes which ones are there before it. */
void hearth_access_note_ahead(struct hearth_job *job);
/* Counts a job that has ended. */
void hearth_access_log_job(const struct hearth_job *job);

/* ---- route.c ---- */

/* A parameter of a query, decoded; NULL: it is not there, or out of memory. Caller frees. */
char *hearth_api_query(const char *query, const char *name);

/* The route of a request, or NULL; *path_known: there is one for the path. */
const struct hearth_route *hearth_route_find(const char *method, const char *path, bool *path_known);
/* Whether a path matches a route's pattern. */
bool hearth_route_matches(const struct hearth_route *route, const char *path);

/* ---- error.c: {"error": {"message", "type", "param", "code"}} ---- */

struct hearth_api_error {
    int status;
    int err;          /* of enum hearth_err, when it comes from there; else 0 */
    const char *code; /* static, or NULL */
    char param[96];   /* "" when none */
    struct hearth_errmsg message;
    uint32_t retry_after_s;                        /* when it is worth trying again; 0: not said */
    uint32_t retry_after_ms;                       /* the same, where it is known so well */
    size_t prompt_tokens, ctx_tokens, room_tokens; /* for context_length_exceeded, else 0 */
};

/* On a worker, too, an error stands for want of memory until it is filled: what finds none there only returns false. */

/* Fills an error and returns false. `param` may be NULL. */
bool hearth_api_fail(struct hearth_api_error *error, int status, const char *code, const char *param,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Fills an error from a code of enum hearth_err; `msg` may be empty. Returns false. */
bool hearth_api_fail_err(struct hearth_api_error *error, int err, const struct hearth_errmsg *msg);
bool hearth_api_fail_nomem(struct hearth_api_error *error);
/* The error object; NULL: out of memory. */
json_t *hearth_api_error_json(const struct hearth_api_error *error);
/* The same in Anthropic's form. */
json_t *hearth_api_error_json_anthropic(const struct hearth_api_error *error, const char *request_id);
/* The same in llama-server's. */
json_t *hearth_api_error_json_native(const struct hearth_api_error *error);
/* The request's path. A base URL that ends in /v1 although the client adds it itself is no other one: /v1/v1/messages
 * is /v1/messages. */
const char *hearth_api_path(const struct hearth_http_exchange *exchange);
/* True for a client that speaks Anthropic's API: by its path, or by its anthropic-version header. */
bool hearth_api_is_anthropic_path(const char *path);
bool hearth_api_is_anthropic(const struct hearth_http_exchange *exchange);
/* Fills the error of a request that the service did not take: as above, and when to try again. Returns false. */
bool hearth_api_fail_submit(struct hearth_api *api, struct hearth_api_error *error, int err,
                            const struct hearth_errmsg *msg);
/* Ends the exchange with an error, in the form of its API. The last one logs it, for exchanges that no job has. */
void hearth_api_write_error(struct hearth_http_exchange *exchange, const struct hearth_api_error *error);
void hearth_api_respond_error(struct hearth_http_exchange *exchange, const struct hearth_api_error *error);
/* The handler's callback for errors that http finds. */
void hearth_api_http_error(void *user, int status, const char *message, const char *path, const char *request_id,
                           struct hearth_buf *body);

/* ---- json.c, fields.c ---- */

/* A number; what JSON has no word for becomes 0. */
json_t *hearth_api_json_real(double value);
/* A string; bytes that are not UTF-8 become U+FFFD. NULL: out of memory, or the text is. */
json_t *hearth_api_json_text(const char *text);
/* The JSON value of a text in the store; NULL: the text is empty, or out of memory. */
json_t *hearth_api_json_read(const struct hearth_buf *text);
/* Appends the value's text and gives the value up. False: `value` was NULL, or out of memory. */
bool hearth_api_json_write(json_t *value, struct hearth_buf *out);
/* Ends the exchange with a value, which is given up (NULL: answers 503, out of memory). */
void hearth_api_json_respond(struct hearth_http_exchange *exchange, int status, json_t *value);

enum hearth_field_type { HEARTH_FIELD_FLOAT, HEARTH_FIELD_INT, HEARTH_FIELD_BOOL };

struct hearth_field {
    const char *name;
    enum hearth_field_type type; /* of what `offset` leads to: float, int32_t, bool */
    double min, max;
    bool above_min; /* min itself is not allowed */
    size_t offset;
};

/* A body's metadata: none, or at most 16 pairs of strings. */
bool hearth_metadata_check(const json_t *body, struct hearth_api_error *error);
/* A body's metadata in the form in which a session holds them; and the other way, where the result is always an
 * object. */
bool hearth_metadata_read(const json_t *body, struct hearth_buf *out, struct hearth_api_error *error);
json_t *hearth_metadata_json(const struct hearth_buf *text);
/* Reads fields of `object` into the struct at `out`. What is absent or null is left as it is. */
bool hearth_fields_read(const json_t *object, const struct hearth_field *fields, size_t count, void *out,
                        struct hearth_api_error *error);
/* Prints the same fields of the struct at `of`. */
json_t *hearth_fields_json(const struct hearth_field *fields, size_t count, const void *of);
/* Reads a number of tokens, of which -1 is no limit; a value of NULL leaves it as it is. */
bool hearth_field_tokens(const json_t *value, const char *param, int32_t *out, struct hearth_api_error *error);
/* A member of `object` that must be of a kind if it is there: *out is NULL where it is absent or null. False: it is
 * something else, and the error says "NAME must be KIND". */
enum hearth_field_kind { HEARTH_FIELD_TEXT, HEARTH_FIELD_SWITCH, HEARTH_FIELD_OBJECT, HEARTH_FIELD_NUMBER };
bool hearth_field_get(const json_t *object, const char *name, enum hearth_field_kind kind, const json_t **out,
                      struct hearth_api_error *error);
/* The same for true or false; *out stays as it is where the member is absent or null. */
bool hearth_field_bool(const json_t *object, const char *name, bool *out, struct hearth_api_error *error);
/* The code of an error about a value that is missing, or of another type than it should be. */
const char *hearth_fields_code(const json_t *value);
/* An integer (1.0 is one too). False: it is none, or has no place in 64 bits. */
bool hearth_api_json_integer(const json_t *value, int64_t *out);
/* A token id of the vocabulary. */
bool hearth_api_json_token(const struct hearth_api *api, const json_t *value, hearth_token *out);
/* The field, or NULL when it is absent or null. */
json_t *hearth_api_json_get(const json_t *object, const char *name);
/* Whether it is an object whose "type" is this word. */
bool hearth_api_type_is(const json_t *object, const char *type);

/* ---- generation.c ---- */

#define HEARTH_PROMPT_MARKS_MAX 24

struct hearth_api_prompt {
    struct hearth_tokens tokens;
    int32_t marks[HEARTH_PROMPT_MARKS_MAX];
    size_t mark_count;
    int32_t head_tokens;    /* end of tools + system, or 0 */
    struct hearth_buf text; /* what `echo` prints */
};

/* A place in a chat that its client will come back to (Anthropic's cache_control): what stands before it is kept for
 * some time. */
struct hearth_breakpoint {
    size_t message; /* the one that it is in or behind, counted from the end of the history (0: the last); SIZE_MAX: the
                       system text */
    size_t upto;    /* bytes of its content; SIZE_MAX: its end */
    int64_t ttl_us;
};

#define HEARTH_BREAKPOINTS_MAX 4

/* What a request asks the sampler and the stream for. */
struct hearth_generation {
    struct hearth_sampling sampling;
    struct hearth_logit_bias *bias;
    char **stops;
    size_t stop_count;
    char *model; /* as the client wrote it, or NULL */
    int32_t max_tokens, n;
    bool locate_only;    /* nothing is computed: the reply says where the state of the prompt is */
    int32_t room_tokens; /* that the prompt must leave for the reply; 0: one */
    bool stream, include_usage, cache, echo, return_tokens;
    struct hearth_digest salt; /* of the API key and of cache_salt; state and transcripts are shared within it */
    struct hearth_breakpoint breakpoints[HEARTH_BREAKPOINTS_MAX];
    size_t breakpoint_count;
};

/* Reads everything that chat and plain completions have in common; `generation` is zeroed but for the key's salt.
 * `plain`: it is the latter, which have no tools. */
bool hearth_generation_read(const struct hearth_api *api, const json_t *body, bool plain,
                            struct hearth_generation *generation, struct hearth_api_error *error);
/* False: with so many prompts there would be too many choices. */
bool hearth_generation_check_choices(const struct hearth_generation *generation, size_t prompt_count,
                                     struct hearth_api_error *error);
void hearth_generation_finish(struct hearth_generation *generation);
/* Sampling in llama-server's words. */
json_t *hearth_api_sampling_json(const struct hearth_sampling *sampling, int32_t max_tokens);
/* Fields that ask for what is not there: each may be null, or say that it is not wanted. */
bool hearth_generation_check_supported(const json_t *body, bool plain, struct hearth_api_error *error);

/* ---- salt.c: the requests that share state ---- */

/* The salt of an API key. False: out of memory. */
bool hearth_salt_of_owner(const char *name, struct hearth_digest *out);
bool hearth_salt_of_key(const char *key, struct hearth_digest *out);
/* The store's secret: it signs and seals what clients send back and must not have changed. */
void hearth_salt_secret(const struct hearth_api *api, uint8_t out[32]);
/* Mixes a request's cache_salt, if it has one, into the salt of its key. */
bool hearth_salt_read(const json_t *body, struct hearth_digest *salt, struct hearth_api_error *error);

/* ---- chat_request.c, tools.c, format.c: what a chat request asks of its template ---- */

/* A chat's options as the body names them. `request` borrows from here and has no messages. */
struct hearth_api_chat_options {
    struct hearth_chat_request request;
    json_t *tools;    /* those of the request that are not deferred; NULL: none. The head of the prompt
                         describes request.tools: these, or what the conversation began with */
    json_t *deferred; /* those that it does not: messages may refer to them; NULL: none */
    json_t *loaded;   /* tools that messages describe; NULL: none */
    json_t *removed;  /* names that messages have taken away, as members; NULL: none */
    json_t *offered;  /* those that the reply may call; NULL: all of request.tools */
    bool defers;      /* tools with "defer_loading" are deferred: messages can refer to them */
    json_t *schema;
    char *grammar;
    json_t *kwargs;
    int32_t reasoning_budget;       /* tokens; -1: no limit */
    char *reasoning_budget_message; /* or NULL */
    bool functions;                 /* tools came as "functions", so a call goes out as "function_call" */
};

/* tools.c: tools, tool_choice, parallel_tool_calls, and their old names functions and function_call. `options` is
 * zeroed but for `defers`. */
bool hearth_api_tools_read(const struct hearth_api *api, const json_t *body, struct hearth_api_chat_options *options,
                           struct hearth_api_error *error);

/* loading.c: tools that come with a message. Those that take `text` append to the message's; tools are of the form that
 * hearth_api_tools_read() makes. False: out of memory. */
const char *hearth_api_tool_name(const json_t *tool);
/* The tool of that name, or NULL; and its place, or the number of tools. */
json_t *hearth_api_tool_find(const json_t *tools, const char *name);
size_t hearth_api_tool_index(const json_t *tools, const char *name);
/* Appends a definition as a message holds it, in a line of its own. */
bool hearth_api_tool_describe(const json_t *tool, struct hearth_buf *text);
/* The message refers to a tool. A deferred one is described and may be called from here on; another one is named. */
bool hearth_api_tools_load(struct hearth_api_chat_options *options, const char *name, struct hearth_buf *text);
/* The message defines a tool, also in the place of one of the same name. A reference is taken. */
bool hearth_api_tools_add(struct hearth_api_chat_options *options, json_t *tool, struct hearth_buf *text);
/* The message takes a tool away: it stays described, and may not be called from here on. */
bool hearth_api_tools_remove(struct hearth_api_chat_options *options, const char *name, struct hearth_buf *text);
/* Begins a line that says that what follows can be called from here on, unless the text ends with definitions. */
bool hearth_api_tools_announce(struct hearth_buf *text);
/* format.c: response_format, json_schema, grammar. After the tools. */
bool hearth_response_format_read(const json_t *body, struct hearth_api_chat_options *options,
                                 struct hearth_api_error *error);
/* format.c: reasoning_format, reasoning_effort, thinking and its budget, chat_template_kwargs. */
bool hearth_api_reasoning_read(const struct hearth_api *api, const json_t *body,
                               struct hearth_api_chat_options *options, struct hearth_api_error *error);

/* ---- body.c: a chat's body, of which only what is new is parsed ---- */

struct hearth_body_item {
    const char *bytes; /* one element of "messages", in the body's text */
    size_t len;
    struct hearth_message *known; /* what the same bytes were read as before, */
    json_t *value;                /* or what they are */
};

/* It points into the body's text. */
struct hearth_body {
    struct hearth_body_item *items;
    size_t count, cap;
    size_t begin, end; /* of the text between the brackets of "messages"; `end` is 0 where they cannot be told apart */
};

/* The body with an empty array in the place of its messages, which become those of `body` (hearth_limits_check()).
 * NULL: it could not be told apart, parse it as a whole; `body` is empty then. */
json_t *hearth_body_parse_new(struct hearth_message_cache *message_cache, struct hearth_digest salt, const char *text,
                              size_t len, struct hearth_body *body);
void hearth_body_finish(struct hearth_body *body);

/* ---- messages.c, history.c: messages of a request, and their tokens ---- */

struct hearth_history {
    struct hearth_message **messages;
    size_t count, cap;
    bool ends_empty; /* a message that says nothing stood behind the last one, which is complete then */
};

/* Takes the message over. False: out of memory (the message is gone), or it was NULL. */
bool hearth_history_add(struct hearth_history *history, struct hearth_message *message);
/* Likewise, for a message that a client has sent: one that is empty is left out. */
bool hearth_history_add_sent(struct hearth_history *history, struct hearth_message *message);

/* Appends messages [first, end) of another history. False: out of memory. */
bool hearth_history_append(struct hearth_history *to, const struct hearth_history *from, size_t first, size_t end);

/* A message that is being put together. What was refused memory may be missing in it: then it does not become one. */
struct hearth_api_draft {
    struct hearth_message *message; /* its content and calls are not there yet; NULL: none was begun */
    struct hearth_buf content, reasoning, unseen;
};

bool hearth_api_draft_begin(struct hearth_api_draft *draft, enum hearth_role role);
/* Adds a call, with arguments as text or as an object (NULL: {}); `id` may be NULL. */
bool hearth_api_draft_call(struct hearth_api_draft *draft, const char *id, const char *name, const json_t *arguments);
/* Seals the message. `strip` (or NULL) takes lines out of system and developer messages. NULL: out of memory, now or
 * before. */
struct hearth_message *hearth_api_draft_end(struct hearth_api_draft *draft, const struct hearth_strip *strip);
void hearth_api_draft_drop(struct hearth_api_draft *draft);
/* The same for a message that has only a text. */
struct hearth_message *hearth_api_message_of(enum hearth_role role, const char *text, size_t len,
                                             const struct hearth_strip *strip);

/* messages.c: adds the ids of a message's calls to a set, the keys of an object, which is made when `*ids` is NULL: a
 * result is looked up in it, and a request may have as many of them as its body holds. False: out of memory. */
bool hearth_api_call_ids_add(json_t **ids, const struct hearth_message *message);

/* ---- content.c: content that is not text ---- */

/* A type of content that a note can stand for. NULL is none. */
bool hearth_content_is_known(const char *type);
/* Appends the note for a part of any dialect to `text`, and what it says of the part to `unseen` (or NULL), a line.
 * False: out of memory. */
bool hearth_content_note(const json_t *part, struct hearth_buf *text, struct hearth_buf *unseen);
/* Appends to `unseen`, as a line, that an item of this type was left out. False: out of memory. */
bool hearth_content_leave_out(const char *type, struct hearth_buf *unseen);
/* What responses say of notes, as strings; NULL: there are none, or out of memory. */
json_t *hearth_content_warnings(const struct hearth_history *history);
/* The same as a header of a response that has not begun. */
void hearth_content_warn(const struct hearth_history *history, struct hearth_http_exchange *exchange);

void hearth_history_finish(struct hearth_history *history);
/* A message that was begun and the reply that has gone on with it, as one. NULL: out of memory, or the reply calls. */
struct hearth_message *hearth_history_join(const struct hearth_message *begun, const struct hearth_message *message);
/* Transcripts and the like of an API whose parameters are set. False: out of memory. */
bool hearth_history_init(struct hearth_api *api);
void hearth_history_shutdown(struct hearth_api *api);

/* Corrects a receipt's reason: the cache says `diverged` for every prompt that leaves a stored one. If nothing worth
 * having is left behind, a new conversation becomes `cold` and a continued one `extended`. */
void hearth_history_refine_reason(const struct hearth_job *job, struct hearth_receipt *receipt);
/* Replies that the history of a request has, of this server or not. */
uint32_t hearth_history_replies(const struct hearth_chat_request *request);

/* ---- breakpoints.c: marks and pins of a chat's prompt ---- */

/* Adds a mark at a byte of the prompt's text; there are ascending and different ones only. */
void hearth_marks_add(struct hearth_transcript_prompt *prompt, size_t offset);
/* ---- output_constraint.c: what a reply must look like, for the service ---- */

void hearth_api_constraint_destroy(struct hearth_api_constraint *constraint); /* NULL is allowed */
/* True for a stop string that the template's replies end with, as opposed to one that the client asked for. */
bool hearth_api_constraint_is_end(const struct hearth_api_constraint *constraint, const char *stop);
/* How many of a reply's tokens are reasoning, tags included. */
size_t hearth_api_constraint_reasoning_tokens(const struct hearth_api_constraint *constraint,
                                              const struct hearth_tokens *sampled);

/* ---- script.c: replies written beforehand, for tests and demonstrations ---- */

/* Reads a file of JSON lines. Errors: IO, INVALID (`msg` names the line), NOMEM. */
int hearth_script_load(const char *path, struct hearth_script **out, struct hearth_errmsg *msg);
void hearth_script_destroy(struct hearth_script *script); /* NULL is allowed */
/* ---- prompt.c ---- */

/* False: with `room_tokens` (at least 1) for a reply the prompt does not fit the context, or it is empty. */
bool hearth_api_prompt_check_length(const struct hearth_api *api, const struct hearth_api_prompt *prompt,
                                    int32_t room_tokens, const char *param, struct hearth_api_error *error);
/* False: `len` bytes of text have more tokens than fit, however they are tokenised. */
bool hearth_api_prompt_check_text(const struct hearth_api *api, size_t len, int32_t room_tokens, const char *param,
                                  struct hearth_api_error *error);
/* What a prompt leaves for a reply of at most `max_tokens` (-1: any) in dialects whose clients compact when a prompt is
 * too long. They cut the history down to what just fits, and have the summary written into what is left: with no room
 * it ends at once, and their sessions with it. */
int32_t hearth_api_prompt_room(const struct hearth_api *api, int32_t max_tokens);

/* ---- models.c ---- */

/* False: `wanted` (llama-server's [{"id", "scale"}], NULL: nothing) is not what is loaded. */
bool hearth_lora_check(const struct hearth_api *api, const json_t *wanted, struct hearth_api_error *error);

/* ---- feed.c: the streams of GET /events. On the loop ---- */

/* Begins a stream. */
hearth_api_now_fn hearth_feed_get;
/* Called once a second and when the server begins to stop: tells what has changed, or ends the streams. */
void hearth_feed_tick(struct hearth_api *api);

/* Called once a second: adds what counters have gained to the present minute. */
void hearth_feed_count(struct hearth_api *api);
/* GET /trends: the last hour, minute by minute. */
hearth_api_get_fn hearth_feed_trends_get;

/* ---- recording.c: the streams of GET /record, requests as a trace that `hearth replay` can read. On the loop ---- */

/* Begins a stream. */
hearth_api_now_fn hearth_recording_get;
/* Tells the streams of a job that has ended, if it computed. */
void hearth_recording_add(const struct hearth_job *job);
/* Called once a second and when the server begins to stop: keeps streams open, or ends them. */
void hearth_recording_tick(struct hearth_api *api);

/* ---- slots.c, native.c: what the service is doing, and for which keys. On the loop ---- */

/* The job of a request of the service; NULL: it has ended. */
const struct hearth_job *hearth_slots_find(const struct hearth_api *api, int64_t service_id);
/* All lanes; the caller frees them. NULL: out of memory. */
struct hearth_lane_info *hearth_slots_lanes(struct hearth_api *api, size_t *count);
/* What each lane does, and what waits, as a caller may see it. NULL: out of memory. */
json_t *hearth_slots_summary(struct hearth_api *api, const struct hearth_caller *caller);
json_t *hearth_queue_json(struct hearth_api *api, const struct hearth_caller *caller);
/* native.c: what /health says of a tier, and of what does not work. NULL: out of memory. */
json_t *hearth_api_tier_json(struct hearth_backing *tier);
json_t *hearth_api_reasons_json(void);

/* ---- endpoints ---- */

hearth_api_prepare_fn hearth_tokenize_prepare, hearth_detokenize_prepare, hearth_slots_act_prepare,
    hearth_lora_set_prepare;
hearth_api_prepare_fn hearth_api_sessions_create_prepare, hearth_api_sessions_list_prepare,
    hearth_api_sessions_get_prepare, hearth_api_sessions_delete_prepare, hearth_api_sessions_fork_prepare,
    hearth_api_sessions_prefetch_prepare, hearth_api_sessions_state_prepare;
hearth_api_get_fn hearth_models_list, hearth_models_get, hearth_hello_get, hearth_props_get, hearth_slots_get,
    hearth_queue_get, hearth_lora_get, hearth_requests_clients, hearth_requests_get;
hearth_api_now_fn hearth_api_health_get, hearth_metrics_get, hearth_requests_list, hearth_ui_get;

#endif
