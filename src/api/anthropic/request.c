/* POST /v1/messages and /v1/messages/count_tokens: a request's fields, and what becomes of it.
 *
 * What has another name or form in the chat API is translated to it, checked here first so that an error names the
 * place as the client knows it, and read there: tools and tool_choice (tools.c), thinking, output_config. Fields of
 * services that are not here (metadata, container, mcp_servers, context_management, …) are left alone. */
#include "api/anthropic/anthropic.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define THINKING_MIN_TOKENS 1024

/* While messages are read, breakpoints count them from the first one; afterwards from the last one. */
static bool count_breakpoints_from_end(struct hearth_anthropic_reading *reading, const json_t *body) {
    struct hearth_generation *generation = &reading->out->generation;
    const size_t count = reading->out->history.count;
    reading->place[0] = '\0';
    if (!hearth_anthropic_read_cache_control(reading, body, count - 1, SIZE_MAX)) {
        return false;
    }
    if (reading->breakpoints > HEARTH_BREAKPOINTS_MAX) {
        return hearth_api_fail(reading->error, 400, "invalid_value", "cache_control",
                               "A maximum of %d blocks with cache_control may be provided. Found %zu.",
                               HEARTH_BREAKPOINTS_MAX, reading->breakpoints);
    }
    for (size_t i = 0; i < generation->breakpoint_count; i++) {
        struct hearth_breakpoint *point = &generation->breakpoints[i];
        if (point->message != HEARTH_ANTHROPIC_FRONT) {
            point->message = point->message < count ? count - 1 - point->message : 0;
        }
    }
    return true;
}

/* ---- the other fields ---- */

static bool is_effort(const char *word) {
    static const char *const words[] = {"low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; word != NULL && i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(word, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* {"format": {"type": "json_schema", "schema"}, "effort"}; output_format was the format's place before. */
static bool translate_output(struct hearth_anthropic_reading *reading, const json_t *body, json_t *neutral) {
    const json_t *config = hearth_api_json_get(body, "output_config");
    const json_t *effort = hearth_api_json_get(config, "effort");
    const json_t *format = hearth_api_json_get(config, "format");
    const char *place = format != NULL ? "output_config.format" : "output_format";
    struct hearth_errmsg reason = {{0}};
    if (config != NULL && !json_is_object(config)) {
        return hearth_anthropic_fail_at(reading, "output_config", "Input should be an object");
    }
    if (effort != NULL && !is_effort(json_string_value(effort))) {
        return hearth_anthropic_fail_at(reading, "output_config.effort",
                                        "Input should be 'low', 'medium', 'high', 'xhigh' or 'max'");
    }
    if (effort != NULL) {
        json_object_set(neutral, "reasoning_effort", (json_t *)effort);
    }
    format = format != NULL ? format : hearth_api_json_get(body, "output_format");
    if (format == NULL) {
        return true;
    }
    json_t *schema = hearth_api_json_get(format, "schema");
    if (!hearth_api_type_is(format, "json_schema") || !json_is_object(schema)) {
        return hearth_anthropic_fail_at(reading, place, "Input should be {\"type\": \"json_schema\", \"schema\": …}");
    }
    if (!hearth_chat_schema_check(schema, &reason)) {
        snprintf(reading->place, sizeof reading->place, "%s.schema", place);
        return hearth_anthropic_fail(reading, "%s", reason.text);
    }
    json_object_set_new(neutral, "response_format",
                        json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", schema));
    return true;
}

static bool translate_thinking(struct hearth_anthropic_reading *reading, const json_t *body, json_t *neutral) {
    const json_t *thinking = hearth_api_json_get(body, "thinking");
    const char *type = json_string_value(json_object_get(thinking, "type"));
    if (thinking == NULL) {
        return true;
    }
    if (type == NULL) {
        return hearth_anthropic_fail_at(reading, "thinking.type", "Field required");
    }
    int64_t budget = THINKING_MIN_TOKENS;
    const json_t *given = hearth_api_json_get(thinking, "budget_tokens");
    if (given != NULL && (!hearth_api_json_integer(given, &budget) || budget < THINKING_MIN_TOKENS)) {
        snprintf(reading->place, sizeof reading->place, "thinking.%.20s.budget_tokens", type);
        return hearth_anthropic_fail(reading, "Input should be an integer greater than or equal to %d",
                                     THINKING_MIN_TOKENS);
    }
    if (strcmp(type, "between_tools") == 0) {
        type = "adaptive";
    }
    json_object_set_new(neutral, "thinking", json_pack("{s:s, s:O*}", "type", type, "budget_tokens", given));
    return true;
}

static bool translate_stops(struct hearth_anthropic_reading *reading, const json_t *body, json_t *neutral) {
    const json_t *stops = hearth_api_json_get(body, "stop_sequences");
    size_t i;
    const json_t *stop;
    if (stops == NULL) {
        return true;
    }
    if (!json_is_array(stops) || json_array_size(stops) > HEARTH_STOPS_MAX) {
        snprintf(reading->place, sizeof reading->place, "stop_sequences");
        return hearth_anthropic_fail(reading, "Input should be a list of at most %u strings", HEARTH_STOPS_MAX);
    }
    json_array_foreach(stops, i, stop) {
        snprintf(reading->place, sizeof reading->place, "stop_sequences.%zu", i);
        if (json_string_length(stop) == 0 || strlen(json_string_value(stop)) != json_string_length(stop)) {
            return hearth_anthropic_fail(reading, "Input should be a string that is not empty");
        }
    }
    return json_object_set_new(neutral, "stop", json_incref((json_t *)stops)) == 0;
}

static bool check_max_tokens(struct hearth_anthropic_reading *reading, const json_t *body) {
    const json_t *value = hearth_api_json_get(body, "max_tokens");
    int64_t tokens;
    if (value == NULL) {
        return hearth_anthropic_fail_at(reading, "max_tokens", "Field required");
    }
    if (!hearth_api_json_integer(value, &tokens)) {
        return hearth_anthropic_fail_at(reading, "max_tokens", "Input should be a valid integer");
    }
    return tokens >= 0 || hearth_anthropic_fail_at(reading, "max_tokens", "Input should be greater than or equal to 0");
}

/* Makes a chat request of everything but the messages. NULL: job->error is filled. */
static json_t *translate(struct hearth_anthropic_reading *reading, const json_t *body) {
    static const char *const same[] = {"model",
                                       "max_tokens",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "stream",
                                       "seed",
                                       "ignore_eos",
                                       "logit_bias",
                                       "cache_prompt",
                                       "cache_salt",
                                       "chat_template_kwargs"};
    json_t *neutral = json_object();
    bool ok = neutral != NULL;
    for (size_t i = 0; ok && i < sizeof same / sizeof same[0]; i++) {
        json_t *value = json_object_get(body, same[i]);
        ok = value == NULL || json_object_set(neutral, same[i], value) == 0;
    }
    ok = ok && translate_stops(reading, body, neutral) && translate_thinking(reading, body, neutral) &&
         translate_output(reading, body, neutral);
    if (!ok) {
        json_decref(neutral);
        return NULL;
    }
    return neutral;
}

static bool read_options(struct hearth_anthropic_reading *reading, const json_t *body) {
    const struct hearth_api *api = reading->job->api;
    struct hearth_api_parsed *out = reading->out;
    json_t *neutral = translate(reading, body);
    const bool ok = neutral != NULL && hearth_generation_read(api, neutral, false, &out->generation, reading->error) &&
                    hearth_anthropic_read_tools(reading, body, neutral) &&
                    hearth_response_format_read(neutral, &out->chat, reading->error) &&
                    hearth_api_reasoning_read(api, neutral, &out->chat, reading->error);
    json_decref(neutral);
    return ok;
}

/* ---- endpoints ---- */

bool hearth_anthropic_begin(struct hearth_api *api, struct hearth_http_exchange *exchange,
                            const struct hearth_caller *caller, struct hearth_api_error *error) {
    (void)api, (void)caller, (void)error;
    hearth_http_set_header(exchange, "request-id", hearth_http_request_id(exchange));
    return true;
}

/* Whether the key may have anything stored: the threads of one that may not are answered, and not kept. */
static bool may_keep(const struct hearth_job *job) {
    return (job->caller.scopes & HEARTH_SCOPE_SESSIONS) != 0;
}

/* Puts the past of a thread into the history: its system text and its messages. */
static bool load_thread(const struct hearth_job *job, const json_t *body, const char *id,
                        struct hearth_api_resolved *out, struct hearth_api_error *error) {
    static const char param[] = "thread.previous_message_id";
    static const char *const fixed[] = {"system", "tools"};
    struct hearth_digest digest;
    int index = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        if (hearth_api_json_get(body, fixed[i]) != NULL) {
            return hearth_api_fail(error, 400, "thread_fingerprint_mismatch", fixed[i],
                                   "%s: is the thread's, and is not sent again", fixed[i]);
        }
    }
    if (!may_keep(job)) { /* the client sends everything then */
        return hearth_api_fail(error, 404, "thread_not_found", param,
                               "%s: there are no threads for a key without the scope 'sessions'", param);
    }
    if (!hearth_api_id_parse(id, &digest, &index) || index >= 0) {
        return hearth_api_fail(error, 404, "thread_not_found", param, "%s: there is no thread at '%.100s'", param, id);
    }
    if (hearth_api_stored_make(out) == NULL) {
        return false;
    }
    if (!hearth_api_stored_load_line(job, digest, id, param, out, error)) {
        error->code = error->status == 404   ? "thread_not_found"
                      : error->status == 400 ? "thread_continue_in_flight"
                                             : error->code;
        return false;
    }
    json_t *config = hearth_api_stored_config_json(&out->stored->line.turns[out->stored->line.count - 1]);
    const bool ok = hearth_api_stored_add_system(&out->history, config);
    json_decref(config);
    return ok && hearth_api_stored_add_line(job, NULL, param, out, error);
}

/* {"type": "create"} or {"type": "continue", "previous_message_id"}: a conversation that the server keeps under the ids
 * of its messages. Tools and results refer to what it goes on from. */
static bool lookup(const struct hearth_job *job, const json_t *body, struct hearth_api_resolved *out,
                   struct hearth_api_error *error) {
    struct hearth_anthropic_reading reading = {.job = job, .error = error};
    const json_t *thread = hearth_api_json_get(body, "thread");
    const char *id = json_string_value(json_object_get(thread, "previous_message_id"));
    if (thread == NULL || hearth_api_type_is(thread, "create")) {
        return true;
    }
    if (!hearth_api_type_is(thread, "continue")) {
        return hearth_anthropic_fail_at(&reading, "thread.type", "Input should be 'create' or 'continue'");
    }
    return id != NULL ? load_thread(job, body, id, out, error)
                      : hearth_anthropic_fail_at(&reading, "thread.previous_message_id", "Field required");
}

/* ---- phases ---- */

static bool parse(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                  struct hearth_api_error *error) {
    const struct hearth_api_stored *stored = job->resolved->stored;
    struct hearth_anthropic_reading reading = {.job = job,
                                               .out = out,
                                               .error = error,
                                               .session = hearth_api_json_get(body, "session_id") != NULL ||
                                                          job->session_header != NULL};
    if (stored != NULL) {
        reading.thread = hearth_api_stored_config_json(&stored->line.turns[stored->line.count - 1]);
        reading.thread = reading.thread != NULL ? reading.thread : json_object();
    }
    out->threads = hearth_api_json_get(body, "thread") != NULL;
    const bool ok = read_options(&reading, body) && hearth_anthropic_read_messages(&reading, body) &&
                    count_breakpoints_from_end(&reading, body) &&
                    (out->threads || hearth_api_session_parse(job, body, out, error));
    json_decref(reading.thread);
    out->names_previous =
        json_is_string(json_object_get(hearth_api_json_get(body, "diagnostics"), "previous_message_id"));
    out->generation.room_tokens = hearth_api_prompt_room(job->api, out->generation.max_tokens);
    return ok;
}

/* The reply continues a last message of the assistant. */
static bool resolve(const struct hearth_job *job, struct hearth_api_resolved *out, struct hearth_api_error *error) {
    if (!hearth_api_chat_take(&job->parsed->chat, out) || !hearth_api_stored_attach_session(job, out, error) ||
        (job->parsed->threads && may_keep(job) && !hearth_api_stored_plan_write(job, NULL, out, error))) {
        return false;
    }
    const struct hearth_message *last = out->history.messages[out->history.count - 1];
    out->request.continues = last->role == HEARTH_ROLE_ASSISTANT && last->call_count == 0 && !out->history.ends_empty;
    return hearth_api_chat_end(job, out, error) && hearth_history_resolve(job, out, error);
}

bool hearth_anthropic_messages_prepare(struct hearth_job *job, const json_t *body) {
    static const struct hearth_api_phases phases = {.lookup = lookup,
                                                    .parse = parse,
                                                    .resolve = resolve,
                                                    .render = hearth_api_chat_render,
                                                    .dialect = &hearth_anthropic_dialect};
    struct hearth_anthropic_reading reading = {.job = job, .error = &job->error};
    if (!check_max_tokens(&reading, body)) {
        return false;
    }
    job->dialect = &hearth_anthropic_dialect;
    job->dialect_state = hearth_anthropic_state_create(body);
    if (job->dialect_state != NULL && hearth_api_phases_run(job, &phases, body)) {
        return true;
    }
    if (job->error.ctx_tokens > 0) {
        snprintf(job->error.message.text, sizeof job->error.message.text,
                 "prompt is too long: %zu tokens > %zu maximum", job->error.prompt_tokens,
                 job->error.ctx_tokens - job->error.room_tokens);
    }
    return false;
}

static json_t *count(const struct hearth_job *job, struct hearth_api_error *error) {
    (void)error;
    return json_pack("{s:I}", "input_tokens", (json_int_t)job->rendered->prompts[0].tokens.n);
}

/* Answers with the exact length of the prompt, whether it fits the context or not. */
const struct hearth_api_phases hearth_anthropic_count_phases = {
    .lookup = lookup, .parse = parse, .resolve = resolve, .render = hearth_api_chat_render, .answer = count};
