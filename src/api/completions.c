/* POST /v1/completions: plain text or tokens in, text out. Several prompts give several choices, prompt by prompt. A
 * schema or a grammar holds from the first character on.
 * Source: https://platform.openai.com/docs/api-reference/completions/create */
#include "api/job.h"

#include <string.h>

#define LEGACY_LOGPROBS_MAX 5

/* A prompt of token ids, and of texts between them. The text is only needed to be echoed. */
static bool prompt_from_parts(struct hearth_job *job, const json_t *parts, struct hearth_prompt *prompt) {
    struct hearth_engine *engine = job->api->engine;
    size_t i;
    const json_t *part;
    json_array_foreach(parts, i, part) {
        const size_t len = json_string_length(part);
        hearth_token token;
        if (json_is_string(part)) {
            const char *text = json_string_value(part);
            if (!hearth_prompt_check_text(job->api, len, 1, "prompt", &job->error)) {
                return false;
            }
            const int rc = engine->ops->tokenize(engine, text, len, i == 0, true, &prompt->tokens);
            if (rc < 0 || (job->generation.echo && !hearth_buf_append(&prompt->text, text, len))) {
                return rc < 0 ? hearth_api_fail_err(&job->error, rc, NULL) : hearth_api_fail_nomem(&job->error);
            }
            continue;
        }
        if (!hearth_json_token(job->api, part, &token)) {
            return hearth_api_fail(&job->error, 400, "invalid_value", "prompt",
                                   "prompt: an array of token ids must hold ids of the vocabulary only");
        }
        if (!hearth_tokens_push(&prompt->tokens, token) ||
            (job->generation.echo && !hearth_engine_append_text(job->api->engine, token, false, &prompt->text))) {
            return hearth_api_fail_nomem(&job->error);
        }
    }
    return hearth_prompt_check_length(job->api, prompt, 1, "prompt", &job->error);
}

static bool read_prompt(struct hearth_job *job, const json_t *value, struct hearth_prompt *prompt) {
    if (json_is_array(value)) {
        return prompt_from_parts(job, value, prompt);
    }
    if (json_is_object(value)) { /* llama-server's form with images */
        if (json_array_size(hearth_json_get(value, "multimodal_data")) > 0) {
            return hearth_api_fail(&job->error, 400, "unsupported_value", "prompt",
                                   "prompt: this server reads text only");
        }
        value = hearth_json_get(value, "prompt_string");
    }
    if (!json_is_string(value)) {
        return hearth_api_fail(&job->error, 400, "invalid_type", "prompt",
                               "prompt must be a string, an array of token ids, or an array of those");
    }
    size_t len = json_string_length(value);
    if (job->generation.echo && !hearth_buf_append(&prompt->text, json_string_value(value), len)) {
        return hearth_api_fail_nomem(&job->error);
    }
    return hearth_prompt_from_text(job->api, json_string_value(value), len, "prompt", prompt, &job->error);
}

/* True for an array of prompts; one that holds a number is a prompt itself, of ids and texts. */
static bool is_several(const json_t *value) {
    size_t i;
    const json_t *part;
    bool numbers = false;
    json_array_foreach(value, i, part) {
        numbers = numbers || json_is_number(part);
    }
    const json_t *first = json_array_get(value, 0);
    return json_is_array(first) || json_is_object(first) || (json_is_string(first) && !numbers);
}

bool hearth_completions_prompts(struct hearth_job *job, const json_t *body) {
    const json_t *value = hearth_json_get(body, "prompt");
    if (value == NULL) {
        return hearth_api_fail(&job->error, 400, "missing_required_parameter", "prompt", "prompt is missing");
    }
    const bool several = is_several(value);
    size_t count = several ? json_array_size(value) : 1;
    if (!hearth_generation_alloc_prompts(&job->generation, count, &job->error)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!read_prompt(job, several ? json_array_get(value, i) : value, &job->generation.prompts[i])) {
            return false;
        }
    }
    return true;
}

static bool read_own_fields(struct hearth_job *job, const json_t *body) {
    struct hearth_generation *generation = &job->generation;
    const json_t *logprobs = hearth_json_get(body, "logprobs");
    const json_t *best_of = hearth_json_get(body, "best_of");
    int64_t count = 0;
    static const struct hearth_field echo[] = {
        {"echo", HEARTH_FIELD_BOOL, 0, 0, false, offsetof(struct hearth_generation, echo)}};
    if (!hearth_fields_read(body, echo, 1, generation, &job->error)) {
        return false;
    }
    if (logprobs != NULL && !json_is_false(logprobs)) {
        if (!hearth_json_integer(logprobs, &count) || count < 0 || count > LEGACY_LOGPROBS_MAX) {
            return hearth_api_fail(&job->error, 400, "invalid_value", "logprobs",
                                   "logprobs must be an integer from 0 to %d", LEGACY_LOGPROBS_MAX);
        }
        generation->sampling.logprobs = (int32_t)count;
    }
    if (generation->echo && generation->sampling.logprobs >= 0) {
        return hearth_api_fail(&job->error, 400, "unsupported_parameter", "echo",
                               "echo with logprobs is not supported");
    }
    if (best_of != NULL && (!hearth_json_integer(best_of, &count) || count < 1)) {
        return hearth_api_fail(&job->error, 400, "invalid_type", "best_of", "best_of must be a positive integer");
    }
    if (best_of != NULL && count > generation->n) {
        return hearth_api_fail(&job->error, 400, "unsupported_parameter", "best_of",
                               "best_of above n is not supported");
    }
    return true;
}

static json_t *text_choice(const struct hearth_choice *choice, json_t *text, json_t *logprobs, const char *finish) {
    return json_pack("{s:i, s:o, s:o?, s:s?}", "index", (int)choice->index, "text", text, "logprobs", logprobs,
                     "finish_reason", finish);
}

static json_t *text_whole(const struct hearth_choice *choice, json_t *logprobs) {
    const struct hearth_buf *echo = &choice->prompt->text;
    struct hearth_buf text = {0};
    json_t *value = NULL;
    if (hearth_buf_append(&text, echo->data, echo->len) &&
        hearth_buf_append(&text, choice->text.data, choice->text.len)) {
        value = hearth_json_text((const char *)text.data, text.len);
    }
    hearth_buf_finish(&text);
    return text_choice(choice, value, logprobs, hearth_finish_text(choice->finish));
}

static json_t *text_delta(const struct hearth_choice *choice, const struct hearth_chat_delta *delta, json_t *logprobs) {
    return text_choice(choice, hearth_json_text(delta->content, delta->content_len), logprobs, NULL);
}

static json_t *text_last(const struct hearth_choice *choice) {
    return text_choice(choice, json_string(""), NULL, hearth_finish_text(choice->finish));
}

static size_t count_chars(const char *text) {
    size_t count = 0;
    for (; *text != '\0'; text++) {
        count += ((unsigned char)*text & 0xC0) != 0x80;
    }
    return count;
}

/* Four parallel arrays. Offsets are in characters of the choice's text. */
static json_t *text_logprobs(struct hearth_choice *choice, json_t *entries) {
    json_t *tokens = json_array();
    json_t *chosen = json_array();
    json_t *tops = json_array();
    json_t *offsets = json_array();
    size_t i, k;
    json_t *entry, *alternative;
    json_array_foreach(entries, i, entry) {
        json_t *token = json_object_get(entry, "token");
        json_t *top = json_object();
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, alternative) {
            json_object_set(top, json_string_value(json_object_get(alternative, "token")),
                            json_object_get(alternative, "logprob"));
        }
        json_array_append(tokens, token);
        json_array_append(chosen, json_object_get(entry, "logprob"));
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer((json_int_t)choice->text_chars));
        choice->text_chars += count_chars(json_string_value(token));
    }
    json_decref(entries);
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", chosen, "top_logprobs", tops,
                     "text_offset", offsets);
}

static const struct hearth_choices_form text_form = {
    .dialect = {HEARTH_CHOICES_DIALECT("cmpl-")},
    .object = "text_completion",
    .chunk_object = "text_completion",
    .whole = text_whole,
    .delta = text_delta,
    .last = text_last,
    .logprobs = text_logprobs,
};

bool hearth_completions_prepare(struct hearth_job *job, const json_t *body) {
    if (!hearth_generation_read(job->api, body, true, &job->generation, &job->error) || !read_own_fields(job, body) ||
        !hearth_response_format_read(body, &job->chat, &job->error) || !hearth_shape_text(job) ||
        !hearth_completions_prompts(job, body)) {
        return false;
    }
    job->dialect = &text_form.dialect;
    return true;
}
