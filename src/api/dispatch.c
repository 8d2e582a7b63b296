/* The table of routes, and the start and the end of the API.
 *
 * Shutdown goes in this order. New requests are refused, and /health says so. The service is drained: each running
 * request gets its last event, and so its answer. The HTTP server takes no more requests, and its loop ends when the
 * answers are sent. The workers end, then the deletion worker, which they may still wake. At last the HTTP server is
 * freed, which runs the work that was posted meanwhile: jobs without a client end there, and store what they have to
 * store. Then no job is left. */
#include "api/anthropic/anthropic.h"
#include "api/idle.h"
#include "api/responses/responses.h"

#include "report/journal.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#define WORKERS 4
/* The least time that clients have to take the last answers when the server stops. */
#define ANSWER_US 500000

#define CHAT HEARTH_ROUTE_CHAT
#define OPEN HEARTH_ROUTE_OPEN
#define BODYLESS HEARTH_ROUTE_BODYLESS
#define REPLY HEARTH_ROUTE_REPLY
#define COUNT HEARTH_ROUTE_COUNT
#define LIST HEARTH_ROUTE_LIST
#define STREAM HEARTH_ROUTE_STREAM
#define INFER HEARTH_SCOPE_INFER
#define SESSIONS HEARTH_SCOPE_SESSIONS
#define ADMIN HEARTH_SCOPE_ADMIN

/* Method, path, flags, scope, and how it is answered. */
static const struct hearth_route routes[] = {
    {"POST", "/v1/chat/completions", CHAT | REPLY, INFER, .phases = &hearth_api_chat_phases},
    {"POST", "/chat/completions", CHAT | REPLY, INFER, .phases = &hearth_api_chat_phases},
    {"POST", "/v1/completions", REPLY, INFER, .phases = &hearth_completions_phases},
    {"POST", "/completions", REPLY, INFER, .phases = &hearth_completion_phases},
    {"POST", "/completion", REPLY, INFER, .phases = &hearth_completion_phases},
    {"POST", "/infill", REPLY, INFER, .phases = &hearth_infill_phases},
    {"POST", "/v1/chat/completions/input_tokens", CHAT | COUNT, INFER, .phases = &hearth_api_chat_tokens_phases},
    {"POST", "/chat/completions/input_tokens", CHAT | COUNT, INFER, .phases = &hearth_api_chat_tokens_phases},
    {"POST", "/apply-template", CHAT | COUNT, INFER, .phases = &hearth_apply_template_phases},
    {"POST", "/tokenize", COUNT, INFER, .prepare = hearth_tokenize_prepare},
    {"POST", "/detokenize", COUNT, INFER, .prepare = hearth_detokenize_prepare},
    {"POST", "/v1/sessions", BODYLESS, SESSIONS, .prepare = hearth_api_sessions_create_prepare},
    {"GET", "/v1/sessions", BODYLESS, SESSIONS, .prepare = hearth_api_sessions_list_prepare},
    {"POST", "/v1/sessions/*/fork", BODYLESS, SESSIONS, .prepare = hearth_api_sessions_fork_prepare},
    {"POST", "/v1/sessions/*/warm", BODYLESS, SESSIONS, .prepare = hearth_api_sessions_prefetch_prepare},
    {"GET", "/v1/sessions/*/state", BODYLESS, SESSIONS, .prepare = hearth_api_sessions_state_prepare},
    {"GET", "/v1/sessions/*", BODYLESS, SESSIONS, .prepare = hearth_api_sessions_get_prepare},
    {"DELETE", "/v1/sessions/*", BODYLESS, SESSIONS, .prepare = hearth_api_sessions_delete_prepare},
    {"POST", "/v1/messages", REPLY, INFER, .now = hearth_anthropic_begin, .prepare = hearth_anthropic_messages_prepare},
    {"POST", "/v1/messages/count_tokens", COUNT, INFER, .now = hearth_anthropic_begin,
     .phases = &hearth_anthropic_count_phases},
    {"POST", "/anthropic/v1/messages", REPLY, INFER, .now = hearth_anthropic_begin,
     .prepare = hearth_anthropic_messages_prepare},
    {"POST", "/anthropic/v1/messages/count_tokens", COUNT, INFER, .now = hearth_anthropic_begin,
     .phases = &hearth_anthropic_count_phases},
    {"GET", "/anthropic/v1/models", 0, .get = hearth_models_list},
    {"GET", "/anthropic/v1/models/*", 0, .get = hearth_models_get},
    {"POST", "/v1/responses", REPLY, INFER, .prepare = hearth_responses_prepare},
    {"POST", "/responses", REPLY, INFER, .prepare = hearth_responses_prepare},
    {"POST", "/responses/input_tokens", COUNT, INFER, .prepare = hearth_responses_tokens_prepare},
    {"POST", "/responses/compact", REPLY, INFER, .prepare = hearth_responses_compact_prepare},
    {"POST", "/v1/responses/input_tokens", COUNT, INFER, .prepare = hearth_responses_tokens_prepare},
    {"POST", "/v1/responses/compact", REPLY, INFER, .prepare = hearth_responses_compact_prepare},
    {"POST", "/v1/responses/*/cancel", BODYLESS, INFER, .now = hearth_responses_cancel,
     .prepare = hearth_responses_cancel_prepare},
    {"GET", "/v1/responses/*/input_items", BODYLESS, SESSIONS, .prepare = hearth_responses_items_prepare},
    {"GET", "/v1/responses/*", BODYLESS, SESSIONS, .prepare = hearth_responses_get_prepare},
    {"DELETE", "/v1/responses/*", BODYLESS, SESSIONS, .prepare = hearth_responses_delete_prepare},
    {"POST", "/v1/conversations", BODYLESS, SESSIONS, .prepare = hearth_conversations_create_prepare},
    {"GET", "/v1/conversations/*/items/*", BODYLESS, SESSIONS, .prepare = hearth_conversations_item_prepare},
    {"DELETE", "/v1/conversations/*/items/*", BODYLESS, SESSIONS, .prepare = hearth_conversations_remove_prepare},
    {"GET", "/v1/conversations/*/items", BODYLESS, SESSIONS, .prepare = hearth_conversations_list_prepare},
    {"POST", "/v1/conversations/*/items", 0, SESSIONS, .prepare = hearth_conversations_add_prepare},
    {"GET", "/v1/conversations/*", BODYLESS, SESSIONS, .prepare = hearth_conversations_get_prepare},
    {"POST", "/v1/conversations/*", BODYLESS, SESSIONS, .prepare = hearth_conversations_update_prepare},
    {"DELETE", "/v1/conversations/*", BODYLESS, SESSIONS, .prepare = hearth_conversations_delete_prepare},
    {"GET", "/v1/models", 0, .get = hearth_models_list},
    {"GET", "/models", 0, .get = hearth_models_list},
    {"GET", "/v1/models/*", 0, .get = hearth_models_get},
    {"GET", "/models/*", 0, .get = hearth_models_get},
    {"GET", "/", OPEN, .now = hearth_ui_get},
    {"GET", "/page.css", OPEN, .now = hearth_ui_get},
    {"GET", "/page.js", OPEN, .now = hearth_ui_get},
    {"GET", "/api/hello", OPEN, .get = hearth_hello_get},
    {"GET", "/health", OPEN, .now = hearth_api_health_get},
    {"GET", "/v1/health", OPEN, .now = hearth_api_health_get},
    {"GET", "/props", 0, .get = hearth_props_get},
    {"GET", "/slots", 0, .get = hearth_slots_get},
    {"POST", "/slots/*", BODYLESS, ADMIN, .prepare = hearth_slots_act_prepare},
    {"GET", "/lora-adapters", 0, .get = hearth_lora_get},
    {"POST", "/lora-adapters", LIST, ADMIN, .prepare = hearth_lora_set_prepare},
    {"GET", "/requests", 0, .now = hearth_requests_list},
    {"GET", "/requests/clients", 0, .get = hearth_requests_clients},
    {"GET", "/requests/*", 0, .get = hearth_requests_get},
    {"GET", "/events", STREAM, .now = hearth_feed_get},
    {"GET", "/trends", 0, ADMIN, .get = hearth_feed_trends_get},
    {"GET", "/record", STREAM, ADMIN, .now = hearth_recording_get},
    {"GET", "/queue", 0, .get = hearth_queue_get},
    {"GET", "/metrics", 0, .now = hearth_metrics_get},
};

/* ---- routes that are not here: what to do instead ---- */

/* Of llama-server. `method` NULL: any. docs/api.md has this table, too. */
static const struct {
    const char *method, *path, *instead;
} unsupported[] = {
    {NULL, "/embedding", "embeddings are not served: run llama-server --embeddings beside it"},
    {NULL, "/embeddings", "embeddings are not served: run llama-server --embeddings beside it"},
    {NULL, "/v1/embeddings", "embeddings are not served: run llama-server --embeddings beside it"},
    {NULL, "/rerank", "reranking is not served: run llama-server --reranking beside it"},
    {NULL, "/reranking", "reranking is not served: run llama-server --reranking beside it"},
    {NULL, "/v1/rerank", "reranking is not served: run llama-server --reranking beside it"},
    {NULL, "/v1/reranking", "reranking is not served: run llama-server --reranking beside it"},
    {NULL, "/audio/transcriptions", "this server reads and writes text only"},
    {NULL, "/v1/audio/transcriptions", "this server reads and writes text only"},
    {"POST", "/props", "what /props says is set by the options of hearth serve"},
    {"POST", "/models", "the model is the one that hearth serve was started with: start it with another one"},
    {"DELETE", "/models", "the model is the one that hearth serve was started with: start it with another one"},
    {NULL, "/models/load", "the model is the one that hearth serve was started with: start it with another one"},
    {NULL, "/models/unload", "the model is the one that hearth serve was started with: stop the server"},
    {NULL, "/models/sse", "the model is there as soon as the server is: ask /health"},
    {NULL, "/v1/chat/completions/control", "limit the reasoning with thinking_budget_tokens in the request itself"},
    {NULL, "/v1/stream", "a stream ends with its connection: use /v1/responses with background, and poll it"},
    {NULL, "/v1/streams/lookup", "a stream ends with its connection: use /v1/responses with background, and poll it"},
    {NULL, "/cors-proxy", "the page at / asks this server only"},
    {NULL, "/tools", "tools are run by the client: send them in the request"},
};

#define OPENAI "the base URL of an OpenAI client ends in /v1: http://127.0.0.1:8080/v1"
#define OLLAMA "this is no Ollama: choose an OpenAI-compatible provider, whose base URL is http://127.0.0.1:8080/v1"

/* Ends of paths that belong to a route under another base URL. */
static const struct {
    const char *end, *hint;
} hints[] = {
    {"/chat/completions", OPENAI},
    {"/completions", OPENAI},
    {"/responses", OPENAI},
    {"/messages", "the base URL of an Anthropic client is without /v1: http://127.0.0.1:8080"},
    {"/api/chat", OLLAMA},
    {"/api/generate", OLLAMA},
};

/* What a client with a path that is not here should have as its base URL; NULL: nothing is known of it. */
static const char *hint_of(const char *path) {
    const size_t len = strlen(path);
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        const size_t end = strlen(hints[i].end);
        if (len >= end && strcmp(path + len - end, hints[i].end) == 0) {
            return hints[i].hint;
        }
    }
    return NULL;
}

static const char *instead_of(const char *method, const char *path) {
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++) {
        if (strcmp(unsupported[i].path, path) == 0 &&
            (unsupported[i].method == NULL || strcmp(unsupported[i].method, method) == 0)) {
            return unsupported[i].instead;
        }
    }
    return NULL;
}

static void respond_no_route(struct hearth_http_exchange *exchange, const char *path, bool path_known) {
    struct hearth_api_error error;
    const char *instead = instead_of(hearth_http_method(exchange), path);
    if (instead != NULL) {
        hearth_api_fail(&error, 501, "not_supported", NULL, "%s %s: %s", hearth_http_method(exchange), path, instead);
    } else if (!path_known) {
        const char *hint = hint_of(path);
        hearth_api_fail(&error, 404, "unknown_url", NULL, "there is no %s %s here%s%s", hearth_http_method(exchange),
                        path, hint != NULL ? "; " : "", hint != NULL ? hint : "");
    } else {
        char allow[64] = "";
        for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
            if (hearth_route_matches(&routes[i], path) && strstr(allow, routes[i].method) == NULL) {
                snprintf(allow + strlen(allow), sizeof allow - strlen(allow), "%s, %s", routes[i].method,
                         strcmp(routes[i].method, "GET") == 0 ? "HEAD, " : "");
            }
        }
        snprintf(allow + strlen(allow), sizeof allow - strlen(allow), "OPTIONS");
        hearth_http_set_header(exchange, "Allow", allow);
        hearth_api_fail(&error, 405, "method_not_allowed", NULL, "%s is not allowed for %s",
                        hearth_http_method(exchange), path);
    }
    hearth_api_respond_error(exchange, &error);
}

const struct hearth_route *hearth_route_find(const char *method, const char *path, bool *path_known) {
    *path_known = false;
    if (instead_of(method, path) != NULL) { /* /models/sse is no model */
        return NULL;
    }
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (hearth_route_matches(&routes[i], path)) {
            *path_known = true;
            if (strcmp(routes[i].method, method) == 0) {
                return &routes[i];
            }
        }
    }
    return NULL;
}

/* ---- whether a request may begin ---- */

/* Whether a request that wants a reply can begin now. False: `error` says why not. */
static bool has_room(struct hearth_api *api, const struct hearth_caller *caller, struct hearth_api_error *error) {
    uint32_t retry_after_s = 0;
    if (atomic_load(&api->stopping)) {
        return hearth_api_fail_err(error, HEARTH_ERR_BUSY, NULL);
    }
    if (hearth_service_overloaded(api->service, &caller->tenant, &retry_after_s)) {
        atomic_fetch_add(&api->refused, 1);
        return hearth_api_fail_submit(api, error, HEARTH_ERR_OVERLOADED, NULL);
    }
    return true;
}

/* Refuses a compressed body with a message of its own, since the JSON parser's error would not name the cause. */
static bool has_plain_body(const struct hearth_http_exchange *exchange, struct hearth_api_error *error) {
    const char *coding = hearth_http_header(exchange, "content-encoding");
    return coding == NULL || *coding == '\0' || strcasecmp(coding, "identity") == 0 ||
           hearth_api_fail(error, 415, "unsupported_content_encoding", NULL,
                           "a body with Content-Encoding \"%.40s\" is not read here: send it without compression",
                           coding);
}

static bool is_for_worker(const struct hearth_route *route) {
    return route->phases != NULL || route->prepare != NULL;
}

/* The route of a request that may go on, and its caller. NULL: it was answered; everything that can be refused without
 * the body is refused here. `take`: the request begins now, and counts. */
static const struct hearth_route *admit(struct hearth_api *api, struct hearth_http_exchange *exchange,
                                        struct hearth_caller *caller, bool take) {
    struct hearth_api_error error;
    bool path_known;
    const struct hearth_route *route =
        hearth_route_find(hearth_http_method(exchange), hearth_api_path(exchange), &path_known);
    const bool authorized = hearth_api_authorize(api, exchange, caller);
    if (!authorized && (route == NULL || (route->flags & HEARTH_ROUTE_OPEN) == 0)) {
        atomic_fetch_add(&api->unauthorized, 1);
        hearth_http_set_header(exchange, "WWW-Authenticate", "Bearer");
        hearth_api_fail(&error, 401, "invalid_api_key", NULL, "a valid API key is needed (Authorization: Bearer …)");
        hearth_api_respond_error(exchange, &error);
        return NULL;
    }
    if (route == NULL) {
        respond_no_route(exchange, hearth_api_path(exchange), path_known);
        return NULL;
    }
    const bool wanted = hearth_key_limits_scope(caller, route->scope, &error) &&
                        (!is_for_worker(route) || has_plain_body(exchange, &error)) &&
                        ((route->flags & HEARTH_ROUTE_REPLY) == 0 || has_room(api, caller, &error)) &&
                        (!is_for_worker(route) || hearth_key_limits_ask(caller, route, take, &error));
    if (!wanted || take || !is_for_worker(route)) { /* the request is answered here, or `now` does it */
        hearth_key_limits_tell(caller, exchange);
    }
    if (!wanted) {
        hearth_api_respond_error(exchange, &error);
        return NULL;
    }
    return route;
}

static void answer_now(struct hearth_api *api, const struct hearth_route *route, struct hearth_http_exchange *exchange,
                       const struct hearth_caller *caller) {
    struct hearth_api_error error;
    (void)hearth_api_fail_nomem(&error);
    json_t *value = route->get != NULL ? route->get(api, exchange, caller, &error) : NULL;
    if (value != NULL) {
        hearth_api_json_respond(exchange, 200, value);
    } else if (route->get != NULL || !route->now(api, exchange, caller, &error)) {
        hearth_api_respond_error(exchange, &error);
    }
}

/* Answers at the head what needs no body. /health needs no key; bodies of clients without a key are not read. */
static bool on_head(void *user, struct hearth_http_exchange *exchange) {
    struct hearth_caller caller;
    hearth_memory_begin();
    const struct hearth_route *route = admit(user, exchange, &caller, false);
    if (route != NULL && !is_for_worker(route) && (route->flags & HEARTH_ROUTE_STREAM) == 0) {
        answer_now(user, route, exchange, &caller);
        route = NULL;
    }
    return route != NULL;
}

/* Checks the request again when its body is there, because time has passed since its head. */
static void on_request(void *user, struct hearth_http_exchange *exchange) {
    struct hearth_api *api = user;
    struct hearth_caller caller;
    hearth_memory_begin();
    const struct hearth_route *route = admit(api, exchange, &caller, true);
    if (route != NULL && !is_for_worker(route)) {
        answer_now(api, route, exchange, &caller);
    } else if (route != NULL) {
        (void)(route->now != NULL && route->now(api, exchange, &caller, NULL));
        hearth_job_start(api, route, exchange, &caller);
    }
}

static void on_tick(void *user) {
    struct hearth_api *api = user;
    const int64_t now_us = hearth_clock_us();
    for (struct hearth_job *job = api->running, *next; job != NULL; job = next) {
        next = job->next;
        hearth_memory_begin();
        hearth_api_reply_tick(job, now_us);
    }
    hearth_idle_tick(api->idle, now_us);
    hearth_feed_tick(api);
    hearth_recording_tick(api);
    hearth_feed_count(api);
    hearth_api_pool_watch(api->pool, api->params.prepare_timeout_us);
    if (api->trim_due) {
        api->trim_due = false;
        (void)malloc_trim(0);
    }
}

/* Ends the streams of events when the server begins to stop, since it does not wait for them. */
static void end_streams(struct hearth_http_work *work) {
    struct hearth_api *api = (struct hearth_api *)((char *)work - offsetof(struct hearth_api, events.end));
    hearth_feed_tick(api);
    hearth_recording_tick(api);
}

void hearth_api_params_default(struct hearth_api_params *params) {
    *params = (struct hearth_api_params){.max_tokens = -1,
                                         .slots = true,
                                         .ui = true,
                                         .keep_requests = 500,
                                         .keep_texts = true,
                                         .version = "hearth",
                                         .transcript_bytes = 256u * 1024 * 1024,
                                         .idle_after_us = 250000,
                                         .reasoning_format = HEARTH_REASONING_AUTO,
                                         .reasoning_budget = -1,
                                         .ping_us = 10000000,
                                         .prepare_timeout_us = 20000000};
    hearth_http_params_default(&params->http);
    hearth_sampling_default(&params->sampling);
}

/* Copies a text as valid UTF-8, whatever it was; NULL: out of memory. */
static char *copy_text(const char *text) {
    struct hearth_buf copy = {0};
    if (!hearth_utf8_append(&copy, text, strlen(text)) || !hearth_buf_append(&copy, "", 1)) {
        hearth_buf_finish(&copy);
        return NULL;
    }
    return (char *)hearth_buf_take(&copy);
}

/* Keeps what the parameters say: the texts are copied. */
static bool copy_params(struct hearth_api *api, const struct hearth_api_params *params) {
    const char *path = params->model_path != NULL ? params->model_path : "";
    const char *slash = strrchr(path, '/');
    const char *file = slash != NULL ? slash + 1 : path;
    const char *name = params->alias != NULL && *params->alias != '\0' ? params->alias : file;
    const struct {
        const char *from; /* NULL: none */
        char **to;
    } texts[] = {{path, &api->model_path},
                 {file, &api->model_file},
                 {*name != '\0' ? name : "hearth", &api->model_name},
                 {params->version, &api->version},
                 {params->lora_path, &api->lora_path},
                 {params->reasoning_budget_message, &api->reasoning_budget_message}};
    api->params = *params;
    api->params.sampling.logit_bias = NULL;
    api->params.sampling.logit_biases = 0;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].from != NULL && (*texts[i].to = copy_text(texts[i].from)) == NULL) {
            return false;
        }
    }
    api->ring = params->keep_requests > 0 ? hearth_ring_create(params->keep_requests) : NULL;
    return (params->keep_requests == 0 || api->ring != NULL) &&
           hearth_api_keys_init(api, params->keys, params->key_count);
}

static int read_params(struct hearth_api *api, const struct hearth_api_params *params, struct hearth_errmsg *msg) {
    json_error_t at;
    if (params->template_kwargs != NULL) {
        api->template_kwargs = json_loads(params->template_kwargs, 0, &at);
        if (!json_is_object(api->template_kwargs)) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "--chat-template-kwargs: not a JSON object%s%s",
                               api->template_kwargs == NULL ? ": " : "", api->template_kwargs == NULL ? at.text : "");
        }
        const json_t *thinking = json_object_get(api->template_kwargs, "enable_thinking");
        if (thinking != NULL && !json_is_boolean(thinking)) {
            return hearth_fail(msg, HEARTH_ERR_INVALID,
                               "--chat-template-kwargs: enable_thinking must be true or false");
        }
    }
    int rc = params->script_path != NULL ? hearth_script_load(params->script_path, &api->script, msg) : HEARTH_OK;
    return rc != HEARTH_OK ? rc
                           : hearth_strip_init(&api->strip, params->strip_lines, params->strip_line_count,
                                               params->strip_paragraphs, params->strip_paragraph_count, msg);
}

static int open_store(struct hearth_api *api, const struct hearth_api_params *params, struct hearth_errmsg *msg) {
    api->store = params->store;
    if (api->store == NULL) {
        const struct hearth_session_store_params memory = {.path = NULL};
        const int rc = hearth_session_store_create(&memory, &api->own_store, msg);
        if (rc != HEARTH_OK) {
            return rc;
        }
        api->store = api->own_store;
    }
    const int left = hearth_turn_fail_orphans(api->store, HEARTH_API_GONE_US);
    if (left > 0) {
        hearth_log(HEARTH_LOG_INFO, "sessions: %d responses that ran when the server ended have failed", left);
    }
    if (api->ring != NULL && hearth_session_store_lasts(api->store) &&
        (api->journal = hearth_journal_create(api->store, api->ring, params->keep_requests, api->params.keep_texts)) ==
            NULL) {
        return HEARTH_ERR_NOMEM;
    }
    if (api->ring == NULL && hearth_session_store_lasts(api->store)) {
        (void)hearth_session_requests_put(api->store, NULL, 0, 0, 0); /* removes what was kept before */
    }
    return HEARTH_OK;
}

int hearth_api_create(const struct hearth_api_params *params, struct hearth_api **out, struct hearth_errmsg *msg) {
    HEARTH_ASSERT(params->engine != NULL && params->chat != NULL && params->service != NULL);
    *out = NULL;
    json_object_seed(0); /* before threads are started */
    hearth_json_watch_memory();
    struct hearth_api *api = calloc(1, sizeof *api);
    if (api == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for the API");
    }
    api->engine = params->engine;
    api->chat = params->chat;
    api->service = params->service;
    atomic_init(&api->request_timeout_us, params->request_timeout_us);
    atomic_init(&api->refused, 0);
    atomic_init(&api->unauthorized, 0);
    pthread_mutex_init(&api->keys_mutex, NULL);
    api->created_unix = hearth_clock_unix();
    api->events.end.run = end_streams;
    pthread_mutex_init(&api->events_mutex, NULL);
    pthread_mutex_init(&api->ends_mutex, NULL);
    pthread_mutex_init(&api->grammars_mutex, NULL);
    if (getrandom(&api->mark_seed, sizeof api->mark_seed, GRND_NONBLOCK) < 0) {
        api->mark_seed = (uint64_t)hearth_clock_us();
    }
    const struct hearth_http_handler handler = {
        .head = on_head, .request = on_request, .error = hearth_api_http_error, .tick = on_tick, .user = api};
    int rc = HEARTH_ERR_NOMEM;
    if (copy_params(api, params)) {
        rc = read_params(api, params, msg);
    }
    if (rc == HEARTH_OK && (!hearth_history_init(api) || !hearth_idle_create(api))) {
        rc = HEARTH_ERR_NOMEM;
    }
    if (rc == HEARTH_OK) {
        rc = open_store(api, params, msg);
    }
    if (rc == HEARTH_OK) {
        rc = hearth_http_create(&params->http, &handler, &api->http, msg);
    }
    if (rc == HEARTH_OK) {
        hearth_http_set_keyed(api->http, params->key_count > 0);
        api->pool = hearth_api_pool_create(WORKERS);
        api->deletion_worker = hearth_api_deletion_worker_create(api);
        rc = api->pool != NULL && api->deletion_worker != NULL ? hearth_http_start(api->http) : HEARTH_ERR_NOMEM;
    }
    if (rc != HEARTH_OK) {
        if (rc == HEARTH_ERR_NOMEM) {
            hearth_fail(msg, rc, "no memory for the API");
        }
        api->shut_down = true; /* the service has no request of this API any more */
        hearth_api_destroy(api);
        return rc;
    }
    *out = api;
    return HEARTH_OK;
}

void hearth_api_set_request_timeout(struct hearth_api *api, int64_t request_timeout_us) {
    atomic_store(&api->request_timeout_us, request_timeout_us);
}

int hearth_api_load_tls(struct hearth_api *api, const char *cert_path, const char *key_path,
                        struct hearth_errmsg *msg) {
    return hearth_http_load_tls(api->http, cert_path, key_path, msg);
}

uint16_t hearth_api_port(const struct hearth_api *api) {
    return hearth_http_port(api->http);
}

void hearth_api_shutdown(struct hearth_api *api, int64_t grace_us) {
    if (api->shut_down) {
        return;
    }
    api->shut_down = true;
    hearth_http_close_after_answers(api->http); /* before the rest, so that clients that learn of the end disconnect */
    atomic_store(&api->stopping, true);
    hearth_http_post(api->http, &api->events.end);
    const int64_t begun_us = hearth_clock_us();
    hearth_service_drain(api->service, grace_us);
    atomic_store(&api->drained, true);
    const int64_t left_us = grace_us - (hearth_clock_us() - begun_us);
    hearth_http_join(api->http, left_us > ANSWER_US ? left_us : ANSWER_US);
    atomic_store(&api->ended, true);
}

void hearth_api_destroy(struct hearth_api *api) {
    if (api == NULL) {
        return;
    }
    hearth_api_shutdown(api, 0);
    atomic_store(&api->drained, true);
    atomic_store(&api->ended, true);
    if (api->http != NULL) {
        hearth_http_join(api->http, 0);
    }
    hearth_api_pool_stop(api->pool);
    hearth_api_deletion_worker_destroy(api->deletion_worker);
    hearth_http_destroy(api->http);
    hearth_idle_destroy(api->idle);
    api->idle = NULL;
    hearth_api_pool_destroy(api->pool);
    HEARTH_ASSERT(atomic_load(&api->jobs) == 0);
    hearth_api_keys_finish(api);
    free(api->model_path);
    free(api->lora_path);
    free(api->model_file);
    free(api->model_name);
    free(api->version);
    hearth_strip_finish(&api->strip);
    free(api->reasoning_budget_message);
    json_decref(api->template_kwargs);
    hearth_history_shutdown(api);
    hearth_journal_destroy(api->journal);
    hearth_session_store_destroy(api->own_store);
    hearth_ring_destroy(api->ring);
    hearth_script_destroy(api->script);
    pthread_mutex_destroy(&api->events_mutex);
    pthread_mutex_destroy(&api->ends_mutex);
    pthread_mutex_destroy(&api->grammars_mutex);
    free(api);
}
