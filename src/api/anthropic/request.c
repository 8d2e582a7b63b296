/* POST /v1/messages and /v1/messages/count_tokens: a request's fields, and what becomes of it.
 *
 * What has another name or form in the chat API is translated to it, checked here first so that an error names the
 * place as the client knows it, and read there: tools and tool_choice (tools.c), thinking, output_config. Fields of
 * services that are not here (metadata, container, mcp_servers, context_management, …) are left alone. */
#include "api/anthropic/anthropic.h"

#include "base/log.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define THINKING_MIN_TOKENS 1024
#define MINUTE_US ((int64_t)60 * 1000000)

bool hearth_anthropic_fail(struct hearth_anthropic_reading *reading, const char *format, ...) {
    struct hearth_errmsg what;
    va_list args;
    va_start(args, format);
    vsnprintf(what.text, sizeof what.text, format, args);
    va_end(args);
    return hearth_api_fail(&reading->job->error, 400, "invalid_value", reading->place, "%s%s%s", reading->place,
                           reading->place[0] != '\0' ? ": " : "", what.text);
}

static bool fail_at(struct hearth_anthropic_reading *reading, const char *place, const char *what) {
    snprintf(reading->place, sizeof reading->place, "%s", place);
    return hearth_anthropic_fail(reading, "%s", what);
}

bool hearth_anthropic_read_cache_control(struct hearth_anthropic_reading *reading, const json_t *object, size_t index,
                                         size_t upto) {
    const json_t *control = hearth_json_get(object, "cache_control");
    const char *type = json_string_value(json_object_get(control, "type"));
    const json_t *ttl = hearth_json_get(control, "ttl");
    struct hearth_generation *generation = &reading->job->generation;
    const char *word = ttl != NULL ? json_string_value(ttl) : "5m";
    if (control == NULL) {
        return true;
    }
    if (type == NULL || strcmp(type, "ephemeral") != 0) {
        return hearth_anthropic_fail(reading, "cache_control.type: Input should be 'ephemeral'");
    }
    if (word == NULL || (strcmp(word, "5m") != 0 && strcmp(word, "1h") != 0)) {
        return hearth_anthropic_fail(reading, "cache_control.ttl: Input should be '5m' or '1h'");
    }
    if (reading->breakpoints++ < HEARTH_BREAKPOINTS_MAX) {
        generation->breakpoints[generation->breakpoint_count++] = (struct hearth_breakpoint){
            .message = index, .upto = upto, .ttl_us = strcmp(word, "1h") == 0 ? 60 * MINUTE_US : 5 * MINUTE_US};
    }
    return true;
}

/* Breakpoints know their messages by the index until all are read, and from the end from then on. */
static bool settle_breakpoints(struct hearth_anthropic_reading *reading, const json_t *body) {
    struct hearth_generation *generation = &reading->job->generation;
    const size_t count = reading->job->history.count;
    reading->place[0] = '\0';
    if (!hearth_anthropic_read_cache_control(reading, body, count - 1, SIZE_MAX)) {
        return false;
    }
    if (reading->breakpoints > HEARTH_BREAKPOINTS_MAX) {
        return hearth_api_fail(&reading->job->error, 400, "invalid_value", "cache_control",
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

static bool set(struct hearth_anthropic_reading *reading, json_t *object, const char *name, json_t *value) {
    return json_object_set_new(object, name, value) == 0 || hearth_api_fail_nomem(&reading->job->error);
}

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
    const json_t *config = hearth_json_get(body, "output_config");
    const json_t *effort = hearth_json_get(config, "effort");
    const json_t *format = hearth_json_get(config, "format");
    const char *place = format != NULL ? "output_config.format" : "output_format";
    struct hearth_errmsg why = {{0}};
    if (config != NULL && !json_is_object(config)) {
        return fail_at(reading, "output_config", "Input should be an object");
    }
    if (effort != NULL && !is_effort(json_string_value(effort))) {
        return fail_at(reading, "output_config.effort", "Input should be 'low', 'medium', 'high', 'xhigh' or 'max'");
    }
    if (effort != NULL && !set(reading, neutral, "reasoning_effort", json_incref((json_t *)effort))) {
        return false;
    }
    format = format != NULL ? format : hearth_json_get(body, "output_format");
    if (format == NULL) {
        return true;
    }
    const char *type = json_string_value(json_object_get(format, "type"));
    json_t *schema = hearth_json_get(format, "schema");
    if (type == NULL || strcmp(type, "json_schema") != 0 || !json_is_object(schema)) {
        return fail_at(reading, place, "Input should be {\"type\": \"json_schema\", \"schema\": …}");
    }
    if (!hearth_chat_schema_check(schema, &why)) {
        snprintf(reading->place, sizeof reading->place, "%s.schema", place);
        return hearth_anthropic_fail(reading, "%s", why.text);
    }
    return set(reading, neutral, "response_format",
               json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", schema));
}

static bool translate_thinking(struct hearth_anthropic_reading *reading, const json_t *body, json_t *neutral) {
    const json_t *thinking = hearth_json_get(body, "thinking");
    const char *type = json_string_value(json_object_get(thinking, "type"));
    if (thinking == NULL) {
        return true;
    }
    if (type == NULL) {
        return fail_at(reading, "thinking.type", "Field required");
    }
    int64_t budget = THINKING_MIN_TOKENS;
    const json_t *given = hearth_json_get(thinking, "budget_tokens");
    if (given != NULL && (!hearth_json_integer(given, &budget) || budget < THINKING_MIN_TOKENS)) {
        snprintf(reading->place, sizeof reading->place, "thinking.%.20s.budget_tokens", type);
        return hearth_anthropic_fail(reading, "Input should be an integer greater than or equal to %d",
                                     THINKING_MIN_TOKENS);
    }
    if (strcmp(type, "between_tools") == 0) {
        type = "adaptive";
    }
    return set(reading, neutral, "thinking", json_pack("{s:s, s:O*}", "type", type, "budget_tokens", given));
}

static bool translate_stops(struct hearth_anthropic_reading *reading, const json_t *body, json_t *neutral) {
    const json_t *stops = hearth_json_get(body, "stop_sequences");
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
    return set(reading, neutral, "stop", json_incref((json_t *)stops));
}

static bool check_max_tokens(struct hearth_anthropic_reading *reading, const json_t *body) {
    const json_t *value = hearth_json_get(body, "max_tokens");
    int64_t tokens;
    if (value == NULL) {
        return fail_at(reading, "max_tokens", "Field required");
    }
    if (!hearth_json_integer(value, &tokens)) {
        return fail_at(reading, "max_tokens", "Input should be a valid integer");
    }
    return tokens >= 0 || fail_at(reading, "max_tokens", "Input should be greater than or equal to 0");
}

/* A chat request with everything of this one but its messages. NULL: job->error is filled. */
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
    bool ok = neutral != NULL || hearth_api_fail_nomem(&reading->job->error);
    for (size_t i = 0; ok && i < sizeof same / sizeof same[0]; i++) {
        json_t *value = json_object_get(body, same[i]);
        ok = value == NULL || set(reading, neutral, same[i], json_incref(value));
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
    struct hearth_job *job = reading->job;
    json_t *neutral = translate(reading, body);
    const bool ok = neutral != NULL &&
                    hearth_generation_read(job->api, neutral, false, &job->generation, &job->error) &&
                    hearth_generation_alloc_prompts(&job->generation, 1, &job->error) &&
                    hearth_anthropic_read_tools(reading, body, neutral) &&
                    hearth_response_format_read(neutral, &job->chat, &job->error) &&
                    hearth_reasoning_read(job->api, neutral, &job->chat, &job->error);
    json_decref(neutral);
    return ok;
}

/* ---- endpoints ---- */

void hearth_anthropic_begin(struct hearth_api *api, struct hearth_http_exchange *exchange) {
    (void)api;
    hearth_http_set_header(exchange, "request-id", hearth_http_request_id(exchange));
}

/* Puts the past of a thread into the history: its system text, and what was said. */
static bool load_thread(struct hearth_anthropic_reading *reading, const json_t *body, const char *id) {
    static const char param[] = "thread.previous_message_id";
    static const char *const kept[] = {"system", "tools"};
    struct hearth_job *job = reading->job;
    struct hearth_digest digest;
    int index = 0;
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        if (hearth_json_get(body, kept[i]) != NULL) {
            return hearth_api_fail(&job->error, 400, "thread_fingerprint_mismatch", kept[i],
                                   "%s: is the thread's, and is not sent again", kept[i]);
        }
    }
    if (!hearth_id_parse(id, &digest, &index) || index >= 0) {
        return hearth_api_fail(&job->error, 404, "thread_not_found", param, "%s: there is no thread at '%.100s'", param,
                               id);
    }
    if (hearth_kept_get(job) == NULL) {
        return false;
    }
    if (!hearth_kept_load_line(job, digest, id, param)) {
        job->error.code = job->error.status == 404   ? "thread_not_found"
                          : job->error.status == 400 ? "thread_continue_in_flight"
                                                     : job->error.code;
        return false;
    }
    const struct hearth_line *line = &job->kept->line;
    reading->thread = hearth_kept_config_json(&line->turns[line->count - 1]);
    if (reading->thread == NULL) {
        reading->thread = json_object();
    }
    return (hearth_kept_add_system(&job->history, reading->thread) || hearth_api_fail_nomem(&job->error)) &&
           hearth_kept_add_line(job, NULL, param);
}

/* {"type": "create"} or {"type": "continue", "previous_message_id"}: a conversation that the server keeps under the ids
 * of its messages. */
static bool read_thread(struct hearth_anthropic_reading *reading, const json_t *body) {
    const json_t *thread = hearth_json_get(body, "thread");
    const char *type = json_string_value(json_object_get(thread, "type"));
    const char *id = json_string_value(json_object_get(thread, "previous_message_id"));
    if (thread == NULL) {
        return true;
    }
    reading->threads = true;
    if (type != NULL && strcmp(type, "create") == 0) {
        return true;
    }
    if (type == NULL || strcmp(type, "continue") != 0) {
        return fail_at(reading, "thread.type", "Input should be 'create' or 'continue'");
    }
    return id != NULL ? load_thread(reading, body, id)
                      : fail_at(reading, "thread.previous_message_id", "Field required");
}

static bool read_all(struct hearth_anthropic_reading *reading, const json_t *body) {
    struct hearth_job *job = reading->job;
    return read_thread(reading, body) && read_options(reading, body) && hearth_anthropic_read_messages(reading, body) &&
           settle_breakpoints(reading, body) &&
           (reading->threads ? hearth_kept_keep(job, NULL, true) : hearth_kept_attach_session(job, body));
}

/* Everything up to the prompt. A last message of the assistant's is continued. */
static bool prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_anthropic_reading reading = {
        .job = job, .session = hearth_json_get(body, "session_id") != NULL || job->session_header != NULL};
    const bool ok = read_all(&reading, body);
    json_decref(reading.thread);
    if (!ok) {
        return false;
    }
    const struct hearth_history *history = &job->history;
    const struct hearth_message *last = history->messages[history->count - 1];
    job->generation.room_tokens = hearth_prompt_room(job->api, job->generation.max_tokens);
    job->chat.request.continues = last->role == HEARTH_ROLE_ASSISTANT && last->call_count == 0 && !history->ends_empty;
    return hearth_chat_request_ready(job) && hearth_chat_request_prompt(job);
}

/* True when nothing but the prompt's length is wrong. */
static bool is_too_long(const struct hearth_job *job) {
    return job->error.code != NULL && strcmp(job->error.code, "context_length_exceeded") == 0 &&
           job->error.ctx_tokens > 0;
}

bool hearth_anthropic_messages_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_anthropic_reading reading = {.job = job};
    if (!check_max_tokens(&reading, body)) {
        return false;
    }
    if (!prepare(job, body)) {
        if (is_too_long(job)) {
            snprintf(job->error.message.text, sizeof job->error.message.text,
                     "prompt is too long: %zu tokens > %zu maximum", job->error.prompt_tokens,
                     job->error.ctx_tokens - job->error.room_tokens);
        }
        return false;
    }
    if (job->kept != NULL && job->generation.max_tokens == 0) {
        job->kept->keeps = false; /* it warms, and says nothing */
    }
    job->dialect_state = hearth_anthropic_state_create(job, body);
    job->dialect = &hearth_anthropic_dialect;
    return job->dialect_state != NULL || hearth_api_fail_nomem(&job->error);
}

/* The exact length, whether it fits or not. */
bool hearth_anthropic_count_prepare(struct hearth_job *job, const json_t *body) {
    if (!prepare(job, body) && !is_too_long(job)) {
        return false;
    }
    const json_int_t tokens = (json_int_t)job->generation.prompts[0].tokens.n;
    return hearth_job_respond(job, json_pack("{s:I}", "input_tokens", tokens));
}
