/* Fuzzes what the API makes of a request, one target for each dialect. An input is a line "METHOD /path?query", and
 * behind it the body. Whatever it is, either an error object comes out that blames the request, or a finished response,
 * or prompts that the service may be given.
 *
 * The store has one conversation, under a name and ids that inputs can say: session "s", turn 1. It is made anew now
 * and then, so that what requests put there does not pile up. */
#include "fuzz.h"

#include "api/anthropic/anthropic.h"
#include "api/responses/responses.h"
#include "engine/sim.h"
#include "session/message_cache.h"

#include <stdio.h>

/* So many inputs share a store. */
#define STORE_INPUTS 2000

static const char past[] =
    "{\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"hi\"}]}],"
    "\"output\":[{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]},"
    "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},null],"
    "\"response\":{\"names\":{\"f\":{\"custom\":true}}}}";
static const char config[] = "{\"system\":[{\"role\":\"system\",\"content\":\"be\"}],\"template\":\"\","
                             "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]}";

static void open_store(struct hearth_api *api) {
    const struct hearth_session_store_params memory = {.path = NULL};
    struct hearth_errmsg msg;
    char name[] = "s";
    struct hearth_turn turn = {.id = {0, 1}, .status = HEARTH_TURN_COMPLETED, .session = name};
    hearth_api_deletion_worker_destroy(api->deletion_worker);
    hearth_session_store_destroy(api->own_store);
    HEARTH_ASSERT(hearth_session_store_create(&memory, &api->own_store, &msg) == HEARTH_OK);
    api->store = api->own_store;
    hearth_session_store_secret(api->store, api->secret);
    HEARTH_ASSERT(hearth_buf_text(&turn.body, past) && hearth_buf_text(&turn.config, config));
    HEARTH_ASSERT(hearth_turn_put(api->store, &turn, &msg) == HEARTH_OK);
    turn.session = NULL;
    hearth_turn_finish(&turn);
    api->deletion_worker = hearth_api_deletion_worker_create(api);
    HEARTH_ASSERT(api->deletion_worker != NULL);
}

static void init_api(struct hearth_api *api) {
    struct hearth_sim_params sim;
    struct hearth_service_params service;
    struct hearth_errmsg msg;
    hearth_sim_params_default(&sim);
    sim.ctx_tokens = 512;
    HEARTH_ASSERT(hearth_sim_create(&sim, &api->engine, &msg) == HEARTH_OK);
    hearth_service_params_default(&service);
    HEARTH_ASSERT(hearth_service_create(api->engine, &service, &api->service, &msg) == HEARTH_OK);
    const struct hearth_chat_params chat = {.bos_text = "", .eos_text = ""};
    HEARTH_ASSERT(hearth_chat_create(&chat, &api->chat, &msg) == HEARTH_OK);
    hearth_sampling_default(&api->params.sampling);
    api->params.max_tokens = -1;
    api->params.reasoning_budget = -1;
    api->params.slots = true;
    api->model_name = strdup("sim");
    api->params.transcript_bytes = 1024 * 1024;
    HEARTH_ASSERT(hearth_history_init(api));
}

static void check_error(const struct hearth_api_error *error) {
    struct hearth_buf text = {0};
    /* 408: the preparation took too long; 503: no memory. Both can happen to any input. */
    HEARTH_ASSERT(error->status >= 400 && (error->status < 500 || error->status == 501 || error->status == 503));
    HEARTH_ASSERT(error->message.text[0] != '\0');
    HEARTH_ASSERT(hearth_api_json_write(hearth_api_error_json(error), &text));
    HEARTH_ASSERT(hearth_api_json_write(hearth_api_error_json_anthropic(error, "r"), &text));
    HEARTH_ASSERT(hearth_api_json_write(hearth_api_error_json_native(error), &text));
    hearth_buf_finish(&text);
}

static void check_prompts(const struct hearth_job *job) {
    const struct hearth_generation *generation = &job->parsed->generation;
    const struct hearth_api_rendered *rendered = job->rendered;
    HEARTH_ASSERT(rendered->prompt_count > 0 && generation->n >= 1 && generation->max_tokens >= -1);
    HEARTH_ASSERT(rendered->prompt_count * (size_t)generation->n <= HEARTH_CHOICES_MAX);
    for (size_t i = 0; i < rendered->prompt_count; i++) {
        const struct hearth_api_prompt *prompt = &rendered->prompts[i];
        HEARTH_ASSERT(prompt->tokens.n > 0 && prompt->tokens.n < job->api->engine->caps.ctx_tokens);
        for (size_t k = 0; k < prompt->mark_count; k++) {
            HEARTH_ASSERT(prompt->marks[k] > (k > 0 ? prompt->marks[k - 1] : 0));
            HEARTH_ASSERT((size_t)prompt->marks[k] < prompt->tokens.n);
        }
    }
}

/* What the service would be given. */
static void check_submission(struct hearth_job *job) {
    struct hearth_request request = {0};
    hearth_api_constraint_fill_request(job, &request);
    const struct hearth_grammar *grammar = request.sampling.grammar;
    HEARTH_ASSERT(grammar == NULL || (grammar->text != NULL && grammar->text[0] != '\0'));
    HEARTH_ASSERT(grammar == NULL || !grammar->lazy || grammar->pattern_count + grammar->token_count > 0);
    const struct hearth_thinking *thinking = request.thinking;
    HEARTH_ASSERT(thinking == NULL || (thinking->start_count > 0 && thinking->forced_count > 0));
}

static void prepare(struct hearth_job *job) {
    json_t *body = NULL;
    if (!hearth_job_parse_body(job, &body) || !job->route->prepare(job, body)) {
        check_error(&job->error);
    } else if (job->dialect != NULL) {
        check_prompts(job);
        check_submission(job);
    } else {
        json_t *response = json_loadb((const char *)job->response.data, job->response.len, JSON_ALLOW_NUL, NULL);
        HEARTH_ASSERT(response != NULL);
        json_decref(response);
    }
    json_decref(body);
}

static void finish(struct hearth_job *job) {
    if (job->dialect_state != NULL) {
        job->dialect->destroy(job->dialect_state);
    }
    hearth_body_finish(&job->parts);
    hearth_api_phases_finish(job);
    free(job->about);
    hearth_buf_finish(&job->response);
    hearth_buf_finish(&job->body);
}

/* Takes "METHOD /path?query" apart, in place. NULL: it is none. */
static const struct hearth_route *read_line(char *line, char **path, char **query) {
    bool known;
    *path = strchr(line, ' ');
    if (*path == NULL) {
        return NULL;
    }
    *(*path)++ = '\0';
    *query = *path + strcspn(*path, "?");
    if (**query == '?') {
        *(*query)++ = '\0';
    }
    return hearth_route_find(line, *path, &known);
}

/* Only routes whose path has one of these words in it. */
static void request(const uint8_t *data, size_t size, const char *const words[]) {
    static struct hearth_api api;
    static unsigned inputs;
    char line[512], *path, *query;
    const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
    const size_t len = end != NULL ? (size_t)(end - data) : size;
    if (api.engine == NULL) {
        init_api(&api);
    }
    if (inputs++ % STORE_INPUTS == 0) {
        open_store(&api);
    }
    (void)snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), (const char *)data);
    const struct hearth_route *route = read_line(line, &path, &query);
    bool ours = false;
    for (size_t i = 0; route != NULL && words[i] != NULL; i++) {
        ours = ours || strstr(route->path, words[i]) != NULL;
    }
    if (!ours || route->prepare == NULL) {
        return;
    }
    struct hearth_job job = {.api = &api,
                             .route = route,
                             .id_bits = hearth_turn_new_id(),
                             .path = path,
                             .query = query,
                             .method = line,
                             .speculate = true};
    hearth_api_phases_begin(&job);
    HEARTH_ASSERT(hearth_buf_append(&job.body, data + len, size - len)); /* a newline in front of JSON is nothing */
    if (end == NULL || size - len == 1) {
        job.body.len = 0;
    }
    prepare(&job);
    finish(&job);
}

FUZZ_TARGET(request_chat) {
    static const char *const words[] = {"chat/completions", "template", NULL};
    request(data, size, words);
}

FUZZ_TARGET(request_completions) {
    static const char *const words[] = {"/completion", "/infill", "tokenize", "/slots", "/lora", NULL};
    request(data, size, words);
}

FUZZ_TARGET(request_responses) {
    static const char *const words[] = {"/responses", NULL};
    request(data, size, words);
}

FUZZ_TARGET(request_messages) {
    static const char *const words[] = {"/v1/messages", NULL};
    request(data, size, words);
}

FUZZ_TARGET(request_stored) {
    static const char *const words[] = {"/sessions", "/conversations", NULL};
    request(data, size, words);
}
