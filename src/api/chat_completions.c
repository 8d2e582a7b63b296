/* POST /v1/chat/completions and /apply-template: messages in, and choices in the form of a chat.
 *
 * Messages are checked and copied into a plain form before the template sees them: "developer" becomes "system", arrays
 * of text parts become one string (joined by newlines, as llama.cpp does for templates that know strings only), and
 * nothing is passed on that the template was not promised. History with tool calls and tool results is rendered as it
 * stands; only a request for new ones is refused.
 * Source: https://platform.openai.com/docs/api-reference/chat/create */
#include "api/api_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const roles[][2] = {
    {"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}, {"tool", "tool"},
};

static bool fail_message(struct hearth_api_error *error, const char *code, size_t index, const char *what) {
    char param[48];
    snprintf(param, sizeof param, "messages[%zu]", index);
    return hearth_api_fail(error, 400, code, param, "%s: %s", param, what);
}

/* Appends the text of one part of a content array. */
static bool add_part(const json_t *part, size_t index, struct hearth_buf *text, struct hearth_api_error *error) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *value = json_object_get(part, "text");
    if (type == NULL) {
        return fail_message(error, "invalid_type", index, "a content part must be an object with a type");
    }
    if (strcmp(type, "text") != 0) {
        return fail_message(error, "unsupported_value", index, "only content parts of type \"text\" are supported");
    }
    if (!json_is_string(value)) {
        return fail_message(error, "invalid_type", index, "a text part needs a string \"text\"");
    }
    if ((text->len > 0 && !hearth_buf_append(text, "\n", 1)) ||
        !hearth_buf_append(text, json_string_value(value), json_string_length(value))) {
        return hearth_api_fail_nomem(error);
    }
    return true;
}

/* The content as one string; a new reference. */
static json_t *flat_content(const json_t *message, size_t index, bool may_lack, struct hearth_api_error *error) {
    json_t *content = hearth_json_get(message, "content");
    if (json_is_string(content)) {
        return json_incref(content);
    }
    if (content == NULL && may_lack) {
        return json_string("");
    }
    if (!json_is_array(content)) {
        fail_message(error, content == NULL ? "missing_required_parameter" : "invalid_type", index,
                     "content must be a string or an array of text parts");
        return NULL;
    }
    struct hearth_buf text = {0};
    json_t *flat = NULL;
    size_t i;
    json_t *part;
    bool ok = true;
    json_array_foreach(content, i, part) {
        ok = ok && add_part(part, index, &text, error);
    }
    if (ok) {
        flat = hearth_json_text((const char *)text.data, text.len);
        if (flat == NULL) {
            hearth_api_fail_nomem(error);
        }
    }
    hearth_buf_finish(&text);
    return flat;
}

/* Arguments are a string of JSON; clients that send the object itself get it printed. */
static json_t *arguments_text(const json_t *arguments) {
    if (json_is_string(arguments)) {
        return json_deep_copy(arguments);
    }
    struct hearth_buf text = {0};
    json_t *value = NULL;
    if (hearth_json_write(json_deep_copy(arguments), &text)) {
        value = hearth_json_text((const char *)text.data, text.len);
    }
    hearth_buf_finish(&text);
    return value;
}

/* The tool calls of an assistant message in plain form; a new reference. */
static json_t *plain_tool_calls(const json_t *calls, size_t index, struct hearth_api_error *error) {
    json_t *plain = json_array();
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call) {
        const json_t *function = json_object_get(call, "function");
        json_t *name = json_object_get(function, "name");
        const json_t *arguments = json_object_get(function, "arguments");
        json_t *id = hearth_json_get(call, "id");
        if (!json_is_string(name) || !(json_is_string(arguments) || json_is_object(arguments)) ||
            (id != NULL && !json_is_string(id))) {
            fail_message(error, "invalid_type", index, "a tool call needs a function with a name and arguments");
            json_decref(plain);
            return NULL;
        }
        json_t *copy = json_pack("{s:s, s:{s:O, s:o}}", "type", "function", "function", "name", name, "arguments",
                                 arguments_text(arguments));
        if ((id != NULL && json_object_set(copy, "id", id) < 0) || json_array_append_new(plain, copy) < 0) {
            hearth_api_fail_nomem(error);
            json_decref(plain);
            return NULL;
        }
    }
    return plain;
}

/* Copies the members beside role and content that templates know. */
static bool add_members(const json_t *message, size_t index, const char *role, json_t *plain,
                        struct hearth_api_error *error) {
    static const char *const texts[] = {"name", "tool_call_id", "reasoning_content"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        json_t *value = hearth_json_get(message, texts[i]);
        if (value != NULL && !json_is_string(value)) {
            return fail_message(error, "invalid_type", index,
                                "name, tool_call_id and reasoning_content must be strings");
        }
        if (value != NULL && json_object_set(plain, texts[i], value) < 0) {
            return hearth_api_fail_nomem(error);
        }
    }
    const json_t *calls = hearth_json_get(message, "tool_calls");
    if (calls == NULL || (json_is_array(calls) && json_array_size(calls) == 0)) {
        return true;
    }
    if (!json_is_array(calls) || strcmp(role, "assistant") != 0) {
        return fail_message(error, "invalid_type", index, "tool_calls must be an array, in an assistant message");
    }
    json_t *plain_calls = plain_tool_calls(calls, index, error);
    if (plain_calls == NULL) {
        return false;
    }
    return json_object_set_new(plain, "tool_calls", plain_calls) == 0 || hearth_api_fail_nomem(error);
}

/* A message in plain form; a new reference. */
static json_t *plain_message(const json_t *message, size_t index, struct hearth_api_error *error) {
    const char *given = json_string_value(json_object_get(message, "role"));
    const char *role = NULL;
    if (!json_is_object(message) || given == NULL) {
        fail_message(error, "invalid_type", index, "a message must be an object with a role");
        return NULL;
    }
    for (size_t i = 0; i < sizeof roles / sizeof roles[0] && role == NULL; i++) {
        role = strcmp(given, roles[i][0]) == 0 ? roles[i][1] : NULL;
    }
    if (role == NULL) {
        fail_message(error, "invalid_value", index, "role must be system, developer, user, assistant or tool");
        return NULL;
    }
    json_t *content = flat_content(message, index, strcmp(role, "assistant") == 0, error);
    if (content == NULL) {
        return NULL;
    }
    json_t *plain = json_pack("{s:s, s:o}", "role", role, "content", content);
    if (plain == NULL) {
        hearth_api_fail_nomem(error);
        return NULL;
    }
    if (!add_members(message, index, role, plain, error)) {
        json_decref(plain);
        return NULL;
    }
    return plain;
}

/* All messages, as JSON text. */
static bool plain_messages(const json_t *body, struct hearth_buf *out, struct hearth_api_error *error) {
    const json_t *messages = hearth_json_get(body, "messages");
    if (!json_is_array(messages)) {
        return hearth_api_fail(error, 400, messages == NULL ? "missing_required_parameter" : "invalid_type", "messages",
                               "messages must be an array");
    }
    if (json_array_size(messages) == 0) {
        return hearth_api_fail(error, 400, "invalid_value", "messages", "messages must not be empty");
    }
    json_t *plain = json_array();
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message) {
        json_t *copy = plain_message(message, i, error);
        if (copy == NULL) {
            json_decref(plain);
            return false;
        }
        if (json_array_append_new(plain, copy) < 0) {
            json_decref(plain);
            return hearth_api_fail_nomem(error);
        }
    }
    return (hearth_json_write(plain, out) && hearth_buf_append(out, "", 1)) || hearth_api_fail_nomem(error);
}

/* Renders the body's messages through the template. `out` is for the caller to finish in any case. */
static bool render(struct hearth_job *job, const json_t *body, struct hearth_chat_prompt *out) {
    struct hearth_buf messages = {0};
    struct hearth_buf kwargs = {0};
    struct hearth_errmsg msg = {{0}};
    bool ok = false;
    json_t *arguments = hearth_json_get(body, "chat_template_kwargs");
    const json_t *prompted = hearth_json_get(body, "add_generation_prompt");
    *out = (struct hearth_chat_prompt){.system_end = HEARTH_CHAT_NO_MARK, .last_input_start = HEARTH_CHAT_NO_MARK};
    if (arguments != NULL && !json_is_object(arguments)) {
        hearth_api_fail(&job->error, 400, "invalid_type", "chat_template_kwargs",
                        "chat_template_kwargs must be an object");
        goto done;
    }
    if (prompted != NULL && !json_is_boolean(prompted)) {
        hearth_api_fail(&job->error, 400, "invalid_type", "add_generation_prompt",
                        "add_generation_prompt must be true or false");
        goto done;
    }
    if (!plain_messages(body, &messages, &job->error)) {
        goto done;
    }
    if (arguments != NULL &&
        !(hearth_json_write(json_incref(arguments), &kwargs) && hearth_buf_append(&kwargs, "", 1))) {
        hearth_api_fail_nomem(&job->error);
        goto done;
    }
    int rc = hearth_chat_render(job->api->chat, (const char *)messages.data, (const char *)kwargs.data,
                                prompted == NULL || json_is_true(prompted), out, &msg);
    ok = rc == HEARTH_OK || hearth_api_fail_err(&job->error, rc, &msg);
done:
    hearth_buf_finish(&messages);
    hearth_buf_finish(&kwargs);
    return ok;
}

bool hearth_apply_template_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_chat_prompt rendered;
    bool ok = hearth_generation_check_supported(body, &job->error);
    if (!ok) {
        return false;
    }
    ok = render(job, body, &rendered);
    if (ok) {
        json_t *prompt = hearth_json_text((const char *)rendered.text.data, rendered.text.len);
        ok = hearth_json_write(json_pack("{s:o}", "prompt", prompt), &job->response) ||
             hearth_api_fail_nomem(&job->error);
    }
    hearth_chat_prompt_finish(&rendered);
    return ok;
}

/* logprobs: true, with up to 20 alternatives per token by top_logprobs. */
static bool read_logprobs(const json_t *body, struct hearth_generation *generation, struct hearth_api_error *error) {
    const json_t *wanted = hearth_json_get(body, "logprobs");
    const json_t *top = hearth_json_get(body, "top_logprobs");
    int64_t count = 0;
    if (wanted != NULL && !json_is_boolean(wanted)) {
        return hearth_api_fail(error, 400, "invalid_type", "logprobs", "logprobs must be true or false");
    }
    if (top != NULL && !json_is_true(wanted)) {
        return hearth_api_fail(error, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs to be true");
    }
    if (top != NULL && (!hearth_json_integer(top, &count) || count < 0 || count > HEARTH_LOGPROBS_MAX)) {
        return hearth_api_fail(error, 400, "invalid_value", "top_logprobs",
                               "top_logprobs must be an integer from 0 to %d", HEARTH_LOGPROBS_MAX);
    }
    if (json_is_true(wanted)) {
        generation->sampling.logprobs = (int32_t)count;
    }
    return true;
}

static json_t *chat_whole(const struct hearth_choice *choice, json_t *logprobs) {
    return json_pack("{s:i, s:{s:s, s:o}, s:o?, s:s}", "index", (int)choice->index, "message", "role", "assistant",
                     "content", hearth_json_text((const char *)choice->text.data, choice->text.len), "logprobs",
                     logprobs, "finish_reason", hearth_finish_text(choice->finish));
}

static json_t *chat_first(const struct hearth_choice *choice) {
    return json_pack("{s:i, s:{s:s, s:s}, s:n, s:n}", "index", (int)choice->index, "delta", "role", "assistant",
                     "content", "", "logprobs", "finish_reason");
}

static json_t *chat_delta(const struct hearth_choice *choice, const char *text, size_t len, json_t *logprobs) {
    return json_pack("{s:i, s:{s:o}, s:o?, s:n}", "index", (int)choice->index, "delta", "content",
                     hearth_json_text(text, len), "logprobs", logprobs, "finish_reason");
}

static json_t *chat_last(const struct hearth_choice *choice) {
    return json_pack("{s:i, s:{}, s:n, s:s}", "index", (int)choice->index, "delta", "logprobs", "finish_reason",
                     hearth_finish_text(choice->finish));
}

static json_t *chat_logprobs(struct hearth_choice *choice, json_t *entries) {
    (void)choice;
    return json_pack("{s:o, s:n}", "content", entries, "refusal");
}

static const struct hearth_dialect chat_dialect = {
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .whole = chat_whole,
    .first = chat_first,
    .delta = chat_delta,
    .last = chat_last,
    .logprobs = chat_logprobs,
};

bool hearth_chat_completions_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_generation *generation = &job->generation;
    struct hearth_chat_prompt rendered = {0};
    if (!hearth_generation_read(job->api, body, generation, &job->error) ||
        !read_logprobs(body, generation, &job->error) ||
        !hearth_generation_alloc_prompts(generation, 1, &job->error)) {
        return false;
    }
    bool ok = render(job, body, &rendered) &&
              hearth_prompt_from_text(job->api, (const char *)rendered.text.data, rendered.text.len, "messages",
                                      &generation->prompts[0], &job->error);
    if (ok) {
        hearth_prompt_set_marks(job->api, &rendered, &generation->prompts[0]);
        job->dialect = &chat_dialect;
    }
    hearth_chat_prompt_finish(&rendered);
    return ok;
}
