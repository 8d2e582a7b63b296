/* POST /v1/chat/completions and /apply-template: messages in, and choices in the form of a chat.
 *
 * A reply is a message: text, reasoning, calls. Whole, it is printed at once; in a stream its pieces are printed as
 * they come, calls with an index: the first piece has id and name, the others parts of the arguments. A request that
 * brought its tools as "functions" gets its call as "function_call".
 * Source: https://platform.openai.com/docs/api-reference/chat/create; reasoning_content as llama-server prints it. */
#include "api/job.h"

#include <string.h>

/* Reads logprobs and top_logprobs, which asks for up to 20 alternatives per token. */
static bool read_logprobs(const json_t *body, struct hearth_generation *generation, struct hearth_api_error *error) {
    const json_t *wanted;
    const json_t *top = hearth_api_json_get(body, "top_logprobs");
    int64_t count = 0;
    if (!hearth_field_get(body, "logprobs", HEARTH_FIELD_SWITCH, &wanted, error)) {
        return false;
    }
    if (top != NULL && (!hearth_api_json_integer(top, &count) || count < 0 || count > HEARTH_LOGPROBS_MAX)) {
        return hearth_api_fail(error, 400, "invalid_value", "top_logprobs",
                               "top_logprobs must be an integer from 0 to %d", HEARTH_LOGPROBS_MAX);
    }
    if (count > 0 && !json_is_true(wanted)) {
        return hearth_api_fail(error, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs to be true");
    }
    if (json_is_true(wanted)) {
        generation->sampling.logprobs = (int32_t)count;
    }
    return true;
}

/* A reply that was cut off says so even if its calls are complete, so that the client does not treat it as whole. */
static const char *finish_reason(const struct hearth_choice *choice) {
    if (choice->cut) {
        return hearth_finish_text(HEARTH_FINISH_LENGTH);
    }
    if (choice->message->call_count > 0) {
        return choice->job->parsed->chat.functions ? "function_call" : "tool_calls";
    }
    return hearth_finish_text(choice->finish);
}

static json_t *function_json(const struct hearth_call *call) {
    return json_pack("{s:o, s:o}", "name", hearth_api_json_text(call->name), "arguments",
                     hearth_api_json_text(call->arguments));
}

static json_t *calls_json(const struct hearth_message *message) {
    json_t *calls = json_array();
    for (size_t i = 0; i < message->call_count; i++) {
        const struct hearth_call *call = &message->calls[i];
        json_array_append_new(calls,
                              json_pack("{s:o, s:s, s:o}", "id", hearth_api_json_text(call->id != NULL ? call->id : ""),
                                        "type", "function", "function", function_json(call)));
    }
    return calls;
}

static json_t *message_json(const struct hearth_choice *choice) {
    const struct hearth_message *message = choice->message;
    const bool functions = choice->job->parsed->chat.functions, calls = message->call_count > 0;
    const bool silent = message->content_len == 0 && calls;
    return json_pack("{s:s, s:o, s:o*, s:o*, s:o*}", "role", "assistant", "content",
                     silent ? json_null() : hearth_json_text(message->content, message->content_len),
                     "reasoning_content", hearth_api_json_text(message->reasoning), "function_call",
                     calls && functions ? function_json(&message->calls[0]) : NULL, "tool_calls",
                     calls && !functions ? calls_json(message) : NULL);
}

static json_t *chat_whole(const struct hearth_choice *choice, json_t *logprobs) {
    return json_pack("{s:i, s:o, s:o?, s:s}", "index", (int)choice->index, "message", message_json(choice), "logprobs",
                     logprobs, "finish_reason", finish_reason(choice));
}

static json_t *chat_first(const struct hearth_choice *choice) {
    return json_pack("{s:i, s:{s:s, s:s}, s:n, s:n}", "index", (int)choice->index, "delta", "role", "assistant",
                     "content", "", "logprobs", "finish_reason");
}

/* Prints a piece of a call; the first one has id and name. */
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

static json_t *delta_text(const char *text, size_t len) {
    return text != NULL ? hearth_json_text(text, len) : NULL;
}

static json_t *chat_delta(const struct hearth_choice *choice, const struct hearth_chat_delta *delta, json_t *logprobs) {
    const bool functions = choice->job->parsed->chat.functions;
    json_t *piece = delta->call != HEARTH_CHAT_NO_CALL ? call_piece(delta, functions) : NULL;
    return json_pack("{s:i, s:{s:o*, s:o*, s:o*}, s:o?, s:n}", "index", (int)choice->index, "delta",
                     "reasoning_content", delta_text(delta->reasoning, delta->reasoning_len), "content",
                     delta_text(delta->content, delta->content_len), functions ? "function_call" : "tool_calls", piece,
                     "logprobs", logprobs, "finish_reason");
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

/* ---- phases ---- */

static bool parse(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                  struct hearth_api_error *error) {
    return hearth_generation_read(job->api, body, false, &out->generation, error) &&
           read_logprobs(body, &out->generation, error) && hearth_api_chat_parse(job, body, out, error);
}

static bool resolve(const struct hearth_job *job, struct hearth_api_resolved *out, struct hearth_api_error *error) {
    return hearth_api_chat_resolve(job, out, error) && hearth_history_resolve(job, out, error);
}

const struct hearth_api_phases hearth_api_chat_phases = {
    .parse = parse, .resolve = resolve, .render = hearth_api_chat_render, .dialect = &chat_form.dialect};

static bool parse_to_count(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                           struct hearth_api_error *error) {
    return hearth_generation_read(job->api, body, false, &out->generation, error) &&
           hearth_api_chat_parse(job, body, out, error);
}

static json_t *count(const struct hearth_job *job, struct hearth_api_error *error) {
    (void)error;
    return json_pack("{s:s, s:I}", "object", "response.input_tokens", "input_tokens",
                     (json_int_t)job->rendered->prompts[0].tokens.n);
}

/* Answers with the exact length of a chat's prompt, whether it fits the context or not. */
const struct hearth_api_phases hearth_api_chat_tokens_phases = {
    .parse = parse_to_count, .resolve = resolve, .render = hearth_api_chat_render, .answer = count};

static bool parse_to_print(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                           struct hearth_api_error *error) {
    return hearth_generation_check_supported(body, false, error) && hearth_api_chat_parse(job, body, out, error);
}

static json_t *print_prompt(const struct hearth_job *job, struct hearth_api_error *error) {
    struct hearth_chat_prompt rendered = {0};
    struct hearth_errmsg reason = {{0}};
    json_t *answer = NULL;
    int rc = hearth_chat_render(job->api->chat, &job->resolved->request, job->resolved->format, &rendered, &reason);
    if (rc == HEARTH_OK) {
        rendered.text.len = hearth_guards_strip((char *)rendered.text.data, rendered.text.len);
        answer = json_pack("{s:o}", "prompt", hearth_json_text((const char *)rendered.text.data, rendered.text.len));
    } else {
        hearth_api_fail_err(error, rc, &reason);
    }
    hearth_chat_prompt_finish(&rendered);
    return answer;
}

const struct hearth_api_phases hearth_apply_template_phases = {
    .parse = parse_to_print, .resolve = hearth_api_chat_resolve, .answer = print_prompt};
