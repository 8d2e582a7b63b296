/* POST /v1/responses: the fields of a request.
 *
 * What a response's request and a chat's have in common (sampling, tools, structured output, reasoning) is put into a
 * chat's form and read by the chat's readers; what they find wrong is then told under the name that the client used.
 * What is left is what only responses have: items, the conversation that the request goes on from, what is stored.
 *
 * Invariant: job->resolved->history is [instructions][what is stored][the request's own items]. Instructions are not
 * carried over from one response to the next. Source: https://platform.openai.com/docs/api-reference/responses/create
 */
#include "api/responses/responses.h"

#include <stdlib.h>
#include <string.h>

static bool fail_type(struct hearth_api_error *error, const char *param, const char *what) {
    return hearth_api_fail(error, 400, "invalid_type", param, "%s must be %s", param, what);
}

/* ---- the chat's form ---- */

/* text.format, as response_format. */
static bool put_format(const json_t *body, json_t *chat, struct hearth_api_error *error) {
    const json_t *text;
    if (!hearth_field_get(body, "text", HEARTH_FIELD_OBJECT, &text, error)) {
        return false;
    }
    const json_t *format = hearth_api_json_get(text, "format");
    const json_t *type = hearth_api_json_get(format, "type");
    const char *word = json_string_value(type);
    if (format == NULL) {
        return true;
    }
    if (!json_is_object(format)) {
        return fail_type(error, "text.format", "an object");
    }
    if (word == NULL) {
        return hearth_api_fail(error, 400, type == NULL ? "missing_required_parameter" : "invalid_type",
                               "text.format.type", "text.format.type must be a string");
    }
    json_t *form = strcmp(word, "json_schema") != 0
                       ? json_pack("{s:s}", "type", word)
                       : json_pack("{s:s, s:{s:O*, s:O*, s:O*}}", "type", word, "json_schema", "name",
                                   json_object_get(format, "name"), "schema", json_object_get(format, "schema"),
                                   "strict", json_object_get(format, "strict"));
    json_object_set_new(chat, "response_format", form);
    return true;
}

/* Names that mean something else in a chat, or that only chats have. */
static const char *const not_chats[] = {
    "messages",     "functions", "function_call", "response_format",
    "json_schema",  "grammar",   "max_tokens",    "max_completion_tokens",
    "n_predict",    "n",         "logprobs",      "top_logprobs",
    "text",         "tools",     "tool_choice",   "background",
    "instructions", "input",
};

/* The body in the chat's form, without tools. NULL: the error is filled. */
static json_t *chat_body(const json_t *body, struct hearth_api_error *error) {
    json_t *most = hearth_api_json_get(body, "max_output_tokens");
    json_t *chat = json_copy((json_t *)(uintptr_t)body);
    int64_t tokens;
    if (most != NULL && (!hearth_api_json_integer(most, &tokens) || tokens < 0)) {
        hearth_api_fail(error, 400, "invalid_value", "max_output_tokens",
                        "max_output_tokens must be a whole number that is not negative");
        json_decref(chat);
        return NULL;
    }
    for (size_t i = 0; i < sizeof not_chats / sizeof not_chats[0]; i++) {
        json_object_del(chat, not_chats[i]);
    }
    json_object_set(chat, "max_completion_tokens", most);
    if (!put_format(body, chat, error)) {
        json_decref(chat);
        return NULL;
    }
    return chat;
}

/* Replaces `from` by `to` at the beginning of a text. */
static void exchange(char *text, size_t cap, const char *from, const char *to) {
    char rest[sizeof((struct hearth_errmsg *)NULL)->text];
    if (strncmp(text, from, strlen(from)) == 0) {
        snprintf(rest, sizeof rest, "%s", text + strlen(from));
        snprintf(text, cap, "%s%.*s", to, (int)(cap - strlen(to) - 1), rest);
    }
}

/* Renames the fields in an error to those that the client used. */
static void rename_error(struct hearth_api_error *error, const struct hearth_offers *offers) {
    static const char *const names[][2] = {
        {"response_format.json_schema.schema", "text.format.schema"},
        {"response_format.json_schema", "text.format"},
        {"response_format", "text.format"},
        {"max_completion_tokens", "max_output_tokens"},
        {"tool_choice.allowed_tools", "tool_choice"},
        {"messages", "input"},
    };
    size_t place;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        exchange(error->param, sizeof error->param, names[i][0], names[i][1]);
        exchange(error->message.text, sizeof error->message.text, names[i][0], names[i][1]);
    }
    if (sscanf(error->param, "tools[%zu]", &place) == 1 && place < offers->count) {
        char from[64], to[64];
        const bool deeper = strstr(error->param, "].function") != NULL;
        snprintf(from, sizeof from, "tools[%zu]%s", place, deeper ? ".function" : "");
        snprintf(to, sizeof to, "tools[%zu]", offers->from[place]);
        exchange(error->param, sizeof error->param, from, to);
        exchange(error->message.text, sizeof error->message.text, from, to);
    }
}

/* Sampling, tools, format and reasoning. */
static bool read_chat(const struct hearth_api *api, const json_t *body, const json_t *items,
                      struct hearth_response_asked *asked, struct hearth_api_parsed *out,
                      struct hearth_api_error *error) {
    struct hearth_offers offers = {.tools = json_array()};
    json_t *chat = chat_body(body, error);
    bool ok = chat != NULL && hearth_offers_read(error, body, items, &offers, asked->names, chat);
    if (ok) {
        ok = hearth_generation_read(api, chat, false, &out->generation, error) &&
             hearth_api_tools_read(api, chat, &out->chat, error) &&
             hearth_response_format_read(chat, &out->chat, error) &&
             hearth_api_reasoning_read(api, chat, &out->chat, error);
        if (!ok) {
            rename_error(error, &offers);
        }
    }
    json_decref(chat);
    json_decref(offers.tools);
    return ok;
}

/* ---- what only responses have ---- */

static bool read_include(const json_t *body, struct hearth_response_asked *asked, struct hearth_generation *generation,
                         struct hearth_api_error *error) {
    const json_t *include = hearth_api_json_get(body, "include"), *top = hearth_api_json_get(body, "top_logprobs");
    int64_t count = 0;
    if (include != NULL && !json_is_array(include)) {
        return fail_type(error, "include", "an array of strings");
    }
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *word = json_string_value(json_array_get(include, i));
        if (word == NULL) {
            return fail_type(error, "include", "an array of strings");
        }
        asked->encrypts |= strcmp(word, "reasoning.encrypted_content") == 0;
        asked->logprobs |= strcmp(word, "message.output_text.logprobs") == 0;
    }
    if (top != NULL && (!hearth_api_json_integer(top, &count) || count < 0 || count > HEARTH_LOGPROBS_MAX)) {
        return hearth_api_fail(error, 400, "invalid_value", "top_logprobs",
                               "top_logprobs must be an integer from 0 to %d", HEARTH_LOGPROBS_MAX);
    }
    if (asked->logprobs || count > 0) {
        asked->logprobs = true;
        generation->sampling.logprobs = (int32_t)count;
    }
    return true;
}

static bool read_reasoning(const json_t *body, struct hearth_response_asked *asked, struct hearth_api_error *error) {
    const json_t *reasoning = hearth_api_json_get(body, "reasoning");
    const json_t *summary = hearth_api_json_get(reasoning, "summary");
    if (summary == NULL) {
        summary = hearth_api_json_get(reasoning, "generate_summary"); /* the older name */
    }
    if (summary != NULL && !json_is_string(summary)) {
        return fail_type(error, "reasoning.summary", "auto, concise or detailed");
    }
    asked->summarises = summary != NULL && strcmp(json_string_value(summary), "none") != 0;
    return true;
}

/* Reads how long the state of the prompt is to be kept; the only place where a request's caching fields are read. */
static bool read_caching(const json_t *body, struct hearth_generation *generation, struct hearth_api_error *error) {
    static const struct {
        const char *word;
        int64_t seconds;
    } times[] = {{"24h", 86400}, {"12h", 43200},   {"1h", 3600},    {"30m", 1800},
                 {"5m", 300},    {"in_memory", 0}, {"in-memory", 0}};
    const json_t *retention = hearth_api_json_get(body, "prompt_cache_retention");
    const json_t *options;
    if (!hearth_field_get(body, "prompt_cache_options", HEARTH_FIELD_OBJECT, &options, error)) {
        return false;
    }
    const json_t *asked[] = {retention, hearth_api_json_get(options, "ttl")};
    static const char *const names[] = {"prompt_cache_retention", "prompt_cache_options"};
    int64_t longest = 0;
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        const char *word = json_string_value(asked[i]);
        bool known = asked[i] == NULL;
        for (size_t k = 0; word != NULL && k < sizeof times / sizeof times[0]; k++) {
            if (strcmp(word, times[k].word) == 0) {
                longest = times[k].seconds > longest ? times[k].seconds : longest;
                known = true;
            }
        }
        if (!known) {
            return hearth_api_fail(error, 400, "invalid_value", names[i], "%s: a time like 30m, 12h or 24h is needed",
                                   names[i]);
        }
    }
    if (longest > 0) { /* a breakpoint at the end of the last message */
        generation->breakpoints[generation->breakpoint_count++] =
            (struct hearth_breakpoint){.message = 0, .upto = SIZE_MAX, .ttl_us = longest * 1000000};
    }
    return true;
}

static bool read_options(const struct hearth_job *job, const json_t *body, struct hearth_response_asked *asked,
                         struct hearth_generation *generation, struct hearth_api_error *error) {
    const json_t *truncation = hearth_api_json_get(body, "truncation");
    const char *word = json_string_value(truncation);
    if (truncation != NULL && (word == NULL || (strcmp(word, "auto") != 0 && strcmp(word, "disabled") != 0))) {
        return hearth_api_fail(error, 400, word == NULL ? "invalid_type" : "invalid_value", "truncation",
                               "truncation must be auto or disabled");
    }
    if (hearth_api_json_get(body, "prompt") != NULL) {
        return hearth_api_fail(error, 400, "unsupported_parameter", "prompt",
                               "prompt: prompt templates are kept by OpenAI only; use instructions and input");
    }
    asked->truncates = word != NULL && strcmp(word, "auto") == 0;
    /* Requests of a key that may store nothing are not stored, without asking for it. */
    asked->stores = asked->stores && (job->caller.scopes & HEARTH_SCOPE_SESSIONS) != 0;
    if (!hearth_field_bool(body, "store", &asked->stores, error) ||
        !hearth_field_bool(body, "background", &asked->background, error) || !hearth_metadata_check(body, error) ||
        !read_include(body, asked, generation, error) || !read_reasoning(body, asked, error) ||
        !read_caching(body, generation, error)) {
        return false;
    }
    if (asked->locks && (asked->stores || asked->background) &&
        !hearth_key_limits_scope(&job->caller, HEARTH_SCOPE_SESSIONS, error)) {
        return false;
    }
    if (asked->background && !asked->stores) {
        return hearth_api_fail(error, 400, "invalid_value", "background",
                               "background needs store: a response that is not stored cannot be polled");
    }
    return true;
}

static bool read_instructions(const struct hearth_api *api, const json_t *body, struct hearth_response_asked *asked,
                              struct hearth_api_error *error) {
    const json_t *instructions;
    if (!hearth_field_get(body, "instructions", HEARTH_FIELD_TEXT, &instructions, error)) {
        return false;
    }
    if (json_string_length(instructions) == 0) {
        return true;
    }
    const char *text = json_string_value(instructions);
    asked->instructions = hearth_api_message_of(HEARTH_ROLE_SYSTEM, text, strlen(text), &api->strip);
    return asked->instructions != NULL;
}

/* Reads what the request continues: a response, or a conversation. */
static bool read_past(const json_t *body, struct hearth_response_asked *asked, struct hearth_api_error *error) {
    const json_t *previous;
    const json_t *conversation = hearth_api_json_get(body, "conversation");
    const json_t *name = json_is_object(conversation) ? hearth_api_json_get(conversation, "id") : conversation;
    if (!hearth_field_get(body, "previous_response_id", HEARTH_FIELD_TEXT, &previous, error)) {
        return false;
    }
    if (conversation != NULL && !json_is_string(name)) {
        return fail_type(error, "conversation", "the id of a conversation, or an object with one");
    }
    if (previous != NULL && conversation != NULL) {
        return hearth_api_fail(error, 400, "mutually_exclusive_parameters", "previous_response_id",
                               "previous_response_id and conversation exclude each other");
    }
    asked->previous = previous != NULL ? hearth_memory_strdup(json_string_value(previous)) : NULL;
    asked->conversation = conversation != NULL ? hearth_memory_strdup(json_string_value(name)) : NULL;
    asked->stores = asked->stores || conversation != NULL; /* what is said in one belongs to it */
    return !hearth_memory_refused();
}

/* ---- what the response says of it ---- */

static double rounded(float value) {
    char text[32];
    snprintf(text, sizeof text, "%.6g", (double)value);
    return strtod(text, NULL);
}

/* A member of the request, or `other` if it is missing; takes `other`. */
static json_t *said(const json_t *body, const char *name, json_t *other) {
    json_t *value = hearth_api_json_get(body, name);
    if (value == NULL) {
        return other;
    }
    json_decref(other);
    return json_incref(value);
}

static json_t *text_json(const json_t *body) {
    json_t *text = json_copy(hearth_api_json_get(body, "text"));
    if (text == NULL) {
        text = json_object();
    }
    if (hearth_api_json_get(text, "format") == NULL) {
        json_object_set_new(text, "format", json_pack("{s:s}", "type", "text"));
    }
    return text;
}

const char *const hearth_response_echoed[HEARTH_RESPONSE_ECHOED] = {
    "instructions",         "max_output_tokens", "max_tool_calls",
    "previous_response_id", "prompt_cache_key",  "prompt_cache_retention",
    "prompt_cache_options", "safety_identifier", "user",
    "top_logprobs",
};

/* Fills asked->echo. */
static void make_echo(const struct hearth_api *api, const json_t *body, const struct hearth_generation *generation,
                      struct hearth_response_asked *asked) {
    const struct hearth_sampling *sampling = &generation->sampling;
    const json_t *reasoning = hearth_api_json_get(body, "reasoning"), *tier = hearth_api_json_get(body, "service_tier");
    json_t *echo = json_pack(
        "{s:s, s:b, s:o, s:o, s:o, s:{s:O?, s:O?}, s:s, s:b, s:o, s:o, s:o, s:o, s:s}", "model",
        generation->model != NULL ? generation->model : api->model_name, "background", (int)asked->background,
        "metadata", said(body, "metadata", json_object()), "parallel_tool_calls",
        said(body, "parallel_tool_calls", json_true()), "text", text_json(body), "reasoning", "effort",
        hearth_api_json_get(reasoning, "effort"), "summary", hearth_api_json_get(reasoning, "summary"), "service_tier",
        tier == NULL || strcmp(json_string_value(tier), "auto") == 0 ? "default" : json_string_value(tier), "store",
        (int)asked->stores, "temperature",
        said(body, "temperature", hearth_api_json_real(rounded(sampling->temperature))), "tool_choice",
        said(body, "tool_choice", json_string("auto")), "tools", said(body, "tools", json_array()), "top_p",
        said(body, "top_p", hearth_api_json_real(rounded(sampling->top_p))), "truncation",
        asked->truncates ? "auto" : "disabled");
    for (size_t i = 0; i < HEARTH_RESPONSE_ECHOED; i++) {
        json_object_set_new(echo, hearth_response_echoed[i], said(body, hearth_response_echoed[i], json_null()));
    }
    if (asked->conversation != NULL) {
        json_object_set_new(echo, "conversation", json_pack("{s:s}", "id", asked->conversation));
    }
    asked->echo = echo;
}

/* ---- phases ---- */

static bool lookup(const struct hearth_job *job, const json_t *body, struct hearth_api_resolved *out,
                   struct hearth_api_error *error) {
    out->items = hearth_inputs_get(job, hearth_api_json_get(body, "input"), "input", error);
    return out->items != NULL;
}

static void asked_destroy(void *own) {
    struct hearth_response_asked *asked = own;
    json_decref(asked->unanswered);
    json_decref(asked->echo);
    json_decref(asked->names);
    hearth_message_unref(asked->instructions);
    free(asked->previous);
    free(asked->conversation);
    free(asked);
}

/* `store`: what a request that does not say means. */
static bool read_all(const struct hearth_job *job, const json_t *body, bool store, struct hearth_api_parsed *out,
                     struct hearth_api_error *error) {
    struct hearth_response_asked *asked = hearth_memory_calloc(1, sizeof *asked);
    if (asked == NULL) {
        return false;
    }
    out->own = asked;
    out->own_destroy = asked_destroy;
    out->items = json_incref(job->resolved->items);
    asked->stores = asked->locks = store;
    asked->unanswered = json_array();
    asked->names = json_object();
    hearth_overflow_read(asked, body);
    if (!read_chat(job->api, body, out->items, asked, out, error) ||
        !read_options(job, body, asked, &out->generation, error) || !read_instructions(job->api, body, asked, error) ||
        !read_past(body, asked, error) ||
        !hearth_api_items_read(job, out->items, "input", asked->unanswered, &out->history, error)) {
        return false;
    }
    asked->first_index = json_array_size(out->items);
    out->generation.room_tokens = hearth_api_prompt_room(job->api, out->generation.max_tokens);
    make_echo(job->api, body, &out->generation, asked);
    return true;
}

static bool parse(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                  struct hearth_api_error *error) {
    return read_all(job, body, true, out, error);
}

static bool parse_passing(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                          struct hearth_api_error *error) {
    return read_all(job, body, false, out, error);
}

/* Puts the messages of what the request continues into the history. */
static bool resolve_past(const struct hearth_job *job, struct hearth_api_resolved *out,
                         struct hearth_api_error *error) {
    const struct hearth_response_asked *asked = hearth_response_asked(job);
    const char *previous = asked->previous, *conversation = asked->conversation;
    if (previous != NULL && !hearth_api_stored_from_turn(job, previous, "previous_response_id", out, error)) {
        return error->status != 404 ? false
                                    : hearth_api_fail(error, 400, "previous_response_not_found", "previous_response_id",
                                                      "Previous response with id '%.100s' not found.", previous);
    }
    if (conversation == NULL) {
        return true;
    }
    if (asked->locks && out->lock == NULL && !hearth_conversation_lock(job, conversation, &out->lock, error)) {
        return false;
    }
    if (hearth_api_stored_from_session(job, conversation, "conversation", out, error)) {
        out->stored->lock = hearth_conversation_lock_shared(out->lock);
        return true;
    }
    return (error->status == 404 && hearth_api_fail(error, 404, "conversation_not_found", "conversation",
                                                    "Conversation with id '%.100s' not found.", conversation));
}

static bool resolve(const struct hearth_job *job, struct hearth_api_resolved *out, struct hearth_api_error *error) {
    const struct hearth_response_asked *asked = hearth_response_asked(job);
    const struct hearth_history *own = &job->parsed->history;
    struct hearth_history *history = &out->history;
    if ((asked->instructions != NULL && !hearth_history_add(history, hearth_message_ref(asked->instructions))) ||
        !resolve_past(job, out, error)) {
        return false;
    }
    if (out->stored != NULL || asked->stores) {
        struct hearth_api_stored *stored = hearth_api_stored_make(out);
        if (stored == NULL) {
            return false;
        }
        stored->first_new = history->count;
        stored->system_apart = true;
    }
    if (!hearth_api_items_check(asked->unanswered, history, "input", error)) {
        return false;
    }
    if (own->count == 0 && (own->ends_empty || history->count == 0)) {
        return hearth_api_fail(error, 400, "missing_required_parameter", "input",
                               "input: a string or items are needed%s",
                               own->ends_empty ? " that have any content" : "");
    }
    if (!hearth_history_append(history, own, 0, own->count) ||
        (asked->stores && !hearth_api_stored_plan_write(job, hearth_inputs_clean(job->parsed->items), out, error))) {
        return false;
    }
    history->ends_empty = own->ends_empty;
    return hearth_api_chat_take(&job->parsed->chat, out) && hearth_api_chat_end(job, out, error) &&
           hearth_history_resolve(job, out, error) && hearth_truncate_resolve(job, out, error);
}

void hearth_response_destroy(void *state) {
    struct hearth_response *response = state;
    json_decref(response->output);
    json_decref(response->extras);
    hearth_response_item_destroy(response->open);
    free(response);
}

bool hearth_responses_read(struct hearth_job *job, const json_t *body, const struct hearth_dialect *dialect,
                           bool store) {
    static const struct hearth_offers none;
    const struct hearth_api_phases phases = {.lookup = lookup,
                                             .parse = store ? parse : parse_passing,
                                             .resolve = resolve,
                                             .render = hearth_api_chat_render,
                                             .shorten = hearth_truncate_shorten,
                                             .dialect = dialect};
    struct hearth_response *response = hearth_memory_calloc(1, sizeof *response);
    if (response == NULL) {
        return false;
    }
    job->dialect = dialect;
    job->dialect_state = response;
    response->output = json_array();
    response->extras = json_array();
    const bool made = hearth_api_phases_run(job, &phases, body);
    if (!made) {
        rename_error(&job->error, &none);
    }
    return made;
}
