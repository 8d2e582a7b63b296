/* POST /v1/chat/completions and /apply-template: messages in, and choices in the form of a chat.
 *
 * A reply is a message: text, reasoning, calls. Whole, it is printed at once; in a stream its pieces are printed as
 * they come, calls with an index: the first piece has id and name, the others parts of the arguments. A request that
 * brought its tools as "functions" gets its call as "function_call".
 * Source: https://platform.openai.com/docs/api-reference/chat/create; reasoning_content as llama-server prints it. */
#include "api/job.h"

#include <string.h>

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

/* A reply that broke off says so, even when calls of it are complete: the client must not take it for a whole one. */
static const char *finish_reason(const struct hearth_choice *choice) {
    if (choice->cut) {
        return hearth_finish_text(HEARTH_FINISH_LENGTH);
    }
    if (choice->message->call_count > 0) {
        return choice->job->chat.functions ? "function_call" : "tool_calls";
    }
    return hearth_finish_text(choice->finish);
}

static json_t *function_json(const struct hearth_call *call) {
    return json_pack("{s:o, s:o}", "name", hearth_json_text(call->name, strlen(call->name)), "arguments",
                     hearth_json_text(call->arguments, strlen(call->arguments)));
}

static json_t *calls_json(const struct hearth_message *message) {
    json_t *calls = json_array();
    for (size_t i = 0; i < message->call_count; i++) {
        const struct hearth_call *call = &message->calls[i];
        json_t *value = json_pack("{s:s, s:s, s:o}", "id", call->id != NULL ? call->id : "", "type", "function",
                                  "function", function_json(call));
        if (json_array_append_new(calls, value) < 0) {
            json_decref(calls);
            return NULL;
        }
    }
    return calls;
}

static json_t *message_json(const struct hearth_choice *choice) {
    const struct hearth_message *message = choice->message;
    bool silent = message->content_len == 0 && message->call_count > 0;
    json_t *value = json_pack("{s:s, s:o}", "role", "assistant", "content",
                              silent ? json_null() : hearth_json_text(message->content, message->content_len));
    bool ok = value != NULL;
    if (ok && message->reasoning != NULL) {
        ok = json_object_set_new(value, "reasoning_content",
                                 hearth_json_text(message->reasoning, strlen(message->reasoning))) == 0;
    }
    if (ok && message->call_count > 0) {
        ok = choice->job->chat.functions
                 ? json_object_set_new(value, "function_call", function_json(&message->calls[0])) == 0
                 : json_object_set_new(value, "tool_calls", calls_json(message)) == 0;
    }
    if (!ok) {
        json_decref(value);
        return NULL;
    }
    return value;
}

static json_t *chat_whole(const struct hearth_choice *choice, json_t *logprobs) {
    return json_pack("{s:i, s:o, s:o?, s:s}", "index", (int)choice->index, "message", message_json(choice), "logprobs",
                     logprobs, "finish_reason", finish_reason(choice));
}

static json_t *chat_first(const struct hearth_choice *choice) {
    return json_pack("{s:i, s:{s:s, s:s}, s:n, s:n}", "index", (int)choice->index, "delta", "role", "assistant",
                     "content", "", "logprobs", "finish_reason");
}

/* A piece of a call: the first one has id and name. */
static json_t *call_piece(const struct hearth_chat_delta *delta, bool functions) {
    json_t *arguments = hearth_json_text(delta->arguments != NULL ? delta->arguments : "", delta->arguments_len);
    json_t *function = json_pack("{s:s*, s:o}", "name", delta->call_name, "arguments", arguments);
    if (functions) {
        return function;
    }
    if (delta->call_name == NULL) {
        return json_pack("[{s:I, s:o}]", "index", (json_int_t)delta->call, "function", function);
    }
    return json_pack("[{s:I, s:s, s:s, s:o}]", "index", (json_int_t)delta->call, "id",
                     delta->call_id != NULL ? delta->call_id : "", "type", "function", "function", function);
}

static json_t *chat_delta(const struct hearth_choice *choice, const struct hearth_chat_delta *delta, json_t *logprobs) {
    bool functions = choice->job->chat.functions;
    json_t *value = json_object();
    bool ok = value != NULL;
    if (ok && delta->reasoning != NULL) {
        ok = json_object_set_new(value, "reasoning_content",
                                 hearth_json_text(delta->reasoning, delta->reasoning_len)) == 0;
    }
    if (ok && delta->content != NULL) {
        ok = json_object_set_new(value, "content", hearth_json_text(delta->content, delta->content_len)) == 0;
    }
    if (ok && delta->call != HEARTH_CHAT_NO_CALL) {
        ok = json_object_set_new(value, functions ? "function_call" : "tool_calls", call_piece(delta, functions)) == 0;
    }
    if (!ok) {
        json_decref(value);
        value = NULL;
    }
    return json_pack("{s:i, s:o, s:o?, s:n}", "index", (int)choice->index, "delta", value, "logprobs", logprobs,
                     "finish_reason");
}

static json_t *chat_last(const struct hearth_choice *choice) {
    return json_pack("{s:i, s:{}, s:n, s:s}", "index", (int)choice->index, "delta", "logprobs", "finish_reason",
                     finish_reason(choice));
}

static json_t *chat_logprobs(struct hearth_choice *choice, json_t *entries) {
    (void)choice;
    return json_pack("{s:o, s:n}", "content", entries, "refusal");
}

static const struct hearth_choices_form chat_form = {
    .dialect = {HEARTH_CHOICES_DIALECT("chatcmpl-")},
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .whole = chat_whole,
    .first = chat_first,
    .delta = chat_delta,
    .last = chat_last,
    .logprobs = chat_logprobs,
};

bool hearth_chat_completions_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_api *api = job->api;
    struct hearth_generation *generation = &job->generation;
    if (!hearth_generation_read(api, body, false, generation, &job->error) ||
        !read_logprobs(body, generation, &job->error) || !hearth_generation_alloc_prompts(generation, 1, &job->error) ||
        !hearth_chat_request_read(job, body) || !hearth_chat_request_prompt(job)) {
        return false;
    }
    job->dialect = &chat_form.dialect;
    return true;
}

/* The exact length of a chat's prompt, whether it fits or not. */
bool hearth_chat_tokens_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_generation *generation = &job->generation;
    if (!hearth_generation_read(job->api, body, false, generation, &job->error) ||
        !hearth_generation_alloc_prompts(generation, 1, &job->error) || !hearth_chat_request_read(job, body) ||
        (!hearth_chat_request_prompt(job) && job->error.ctx_tokens == 0)) {
        return false;
    }
    return hearth_job_respond(job, json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens",
                                             (json_int_t)generation->prompts[0].tokens.n));
}

bool hearth_apply_template_prepare(struct hearth_job *job, const json_t *body) {
    struct hearth_chat_prompt rendered = {0};
    struct hearth_errmsg why = {{0}};
    if (!hearth_generation_check_supported(body, false, &job->error) || !hearth_chat_request_read(job, body)) {
        return false;
    }
    int rc = hearth_chat_render(job->api->chat, &job->chat.request, job->chat.format, &rendered, &why);
    bool ok = rc == HEARTH_OK || hearth_api_fail_err(&job->error, rc, &why);
    if (ok) {
        rendered.text.len = hearth_guards_strip((char *)rendered.text.data, rendered.text.len);
        json_t *prompt = hearth_json_text((const char *)rendered.text.data, rendered.text.len);
        ok = hearth_json_write(json_pack("{s:o}", "prompt", prompt), &job->response) ||
             hearth_api_fail_nomem(&job->error);
    }
    hearth_chat_prompt_finish(&rendered);
    return ok;
}
