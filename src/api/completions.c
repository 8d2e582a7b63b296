/* POST /v1/completions: plain text or tokens in, text out. Several prompts give several choices, prompt by prompt. A
 * schema or a grammar holds from the first character on.
 * Source: https://platform.openai.com/docs/api-reference/completions/create */
#include "api/job.h"
#include "api/limits.h"

#include <string.h>

#define LEGACY_LOGPROBS_MAX 5
#define TEXT_COPIES 4 /* in memory at the same time, of the text that an answer repeats */

/* ---- parse ---- */

/* Reads the texts and token ids of a prompt. NULL: the error is filled. */
static json_t *read_prompt(const struct hearth_api *api, json_t *value, struct hearth_api_error *error) {
    const bool list = json_is_array(value);
    size_t i;
    const json_t *part;
    hearth_token token;
    json_array_foreach(value, i, part) {
        if (!json_is_string(part) && !hearth_api_json_token(api, part, &token)) {
            hearth_api_fail(error, 400, "invalid_value", "prompt",
                            "prompt: an array of token ids must hold ids of the vocabulary only");
            return NULL;
        }
    }
    if (json_is_object(value)) { /* llama-server's form with images */
        if (json_array_size(hearth_api_json_get(value, "multimodal_data")) > 0) {
            hearth_api_fail(error, 400, "unsupported_value", "prompt", "prompt: this server reads text only");
            return NULL;
        }
        value = hearth_api_json_get(value, "prompt_string");
    }
    if (!json_is_string(value) && !list) {
        hearth_api_fail(error, 400, "invalid_type", "prompt",
                        "prompt must be a string, an array of token ids, or an array of those");
        return NULL;
    }
    return list ? json_incref(value) : json_pack("[O]", value);
}

/* Whether an array holds several prompts; an array with a number in it is itself a prompt, of ids and texts. */
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

bool hearth_completions_prompts_parse(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                                      struct hearth_api_error *error) {
    json_t *value = hearth_api_json_get(body, "prompt");
    if (value == NULL) {
        return hearth_api_fail(error, 400, "missing_required_parameter", "prompt", "prompt is missing");
    }
    const bool several = is_several(value);
    const size_t count = several ? json_array_size(value) : 1;
    if (!hearth_generation_check_choices(&out->generation, count, error)) {
        return false;
    }
    out->prompts = json_array();
    for (size_t i = 0; i < count; i++) {
        json_t *parts = read_prompt(job->api, several ? json_array_get(value, i) : value, error);
        if (json_array_append_new(out->prompts, parts) < 0) { /* or it is NULL */
            return false;
        }
    }
    return true;
}

static bool read_own_fields(const json_t *body, struct hearth_generation *generation, struct hearth_api_error *error) {
    const json_t *logprobs = hearth_api_json_get(body, "logprobs");
    const json_t *best_of = hearth_api_json_get(body, "best_of");
    int64_t count = 0;
    if (!hearth_field_bool(body, "echo", &generation->echo, error)) {
        return false;
    }
    if (logprobs != NULL && !json_is_false(logprobs)) {
        if (!hearth_api_json_integer(logprobs, &count) || count < 0 || count > LEGACY_LOGPROBS_MAX) {
            return hearth_api_fail(error, 400, "invalid_value", "logprobs", "logprobs must be an integer from 0 to %d",
                                   LEGACY_LOGPROBS_MAX);
        }
        generation->sampling.logprobs = (int32_t)count;
    }
    if (generation->echo && generation->sampling.logprobs >= 0) {
        return hearth_api_fail(error, 400, "unsupported_parameter", "echo", "echo with logprobs is not supported");
    }
    if (best_of != NULL && (!hearth_api_json_integer(best_of, &count) || count < 1)) {
        return hearth_api_fail(error, 400, "invalid_type", "best_of", "best_of must be a positive integer");
    }
    if (best_of != NULL && count > generation->n) {
        return hearth_api_fail(error, 400, "unsupported_parameter", "best_of", "best_of above n is not supported");
    }
    return true;
}

/* ---- render ---- */

/* Makes the tokens of a prompt. Its text is kept for `echo` only, and of ids only what fits the context: it may be many
 * times the body, and what does not fit is refused. */
static bool render_prompt(const struct hearth_job *job, const json_t *parts, struct hearth_api_prompt *prompt,
                          struct hearth_api_error *error) {
    struct hearth_engine *engine = job->api->engine;
    const bool echo = job->parsed->generation.echo;
    size_t i;
    const json_t *part;
    json_array_foreach(parts, i, part) {
        const size_t len = json_string_length(part);
        hearth_token token;
        if (json_is_string(part)) {
            const char *text = json_string_value(part);
            if (!hearth_api_prompt_check_text(job->api, len, 1, "prompt", error)) {
                return false;
            }
            const int rc = engine->ops->tokenize(engine, text, len, i == 0, true, &prompt->tokens);
            if (rc < 0 || (echo && !hearth_buf_append(&prompt->text, text, len))) {
                return rc < 0 && hearth_api_fail_err(error, rc, NULL);
            }
        } else if (!hearth_api_json_token(job->api, part, &token) || !hearth_tokens_push(&prompt->tokens, token) ||
                   (echo && prompt->tokens.n <= job->api->engine->caps.ctx_tokens &&
                    !hearth_engine_append_text(engine, token, false, &prompt->text))) {
            return false;
        }
    }
    return hearth_api_prompt_check_length(job->api, prompt, 1, "prompt", error);
}

bool hearth_completions_render(const struct hearth_job *job, struct hearth_api_rendered *out,
                               struct hearth_api_error *error) {
    const json_t *prompts = job->parsed->prompts;
    size_t text_bytes = 0;
    bool ok = hearth_api_constraint_of_text(job, out, error) && hearth_api_prompts_alloc(json_array_size(prompts), out);
    for (size_t i = 0; ok && i < out->prompt_count; i++) {
        ok = render_prompt(job, json_array_get(prompts, i), &out->prompts[i], error);
        text_bytes += out->prompts[i].text.len;
        ok = ok && hearth_limits_answer(job->body_bytes, TEXT_COPIES * text_bytes, error);
    }
    return ok;
}

/* ---- reply ---- */

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

static bool parse(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                  struct hearth_api_error *error) {
    return hearth_generation_read(job->api, body, true, &out->generation, error) &&
           read_own_fields(body, &out->generation, error) && hearth_response_format_read(body, &out->chat, error) &&
           hearth_completions_prompts_parse(job, body, out, error);
}

const struct hearth_api_phases hearth_completions_phases = {
    .parse = parse, .render = hearth_completions_render, .dialect = &text_form.dialect};
