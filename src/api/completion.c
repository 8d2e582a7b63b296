/* POST /completion, /completions and /infill: text in, text out, in llama-server's own shape. A prompt may mix text and
 * token ids; several give an array of answers.
 *
 * What stands between two pieces of code is asked for with the marks that the vocabulary has for it. Other files come
 * first, as they stay the same while text is typed; the oldest of them go when there is no room for all.
 * Source: llama-server's README, server-task.cpp (to_json_non_oaicompat), server-common.cpp (format_prompt_infill). */
#include "api/job.h"

#include <stdlib.h>
#include <string.h>

#define MEMBER(member) offsetof(struct hearth_generation, member)

/* ---- answers ---- */

static const char *stop_type(const struct hearth_choice *choice) {
    return choice->finish == HEARTH_FINISH_LENGTH ? "limit" : choice->stop != NULL ? "word" : "eos";
}

/* The tokens sampled since the last call; none if the client does not want them. */
static json_t *take_tokens(struct hearth_choice *choice) {
    json_t *tokens = json_array();
    for (size_t i = 0; i < choice->sampled.n; i++) {
        json_array_append_new(tokens, json_integer(choice->sampled.v[i]));
    }
    choice->sampled.n = 0;
    return tokens;
}

static json_t *settings_json(const struct hearth_job *job) {
    json_t *settings = hearth_api_sampling_json(&job->parsed->generation.sampling, job->parsed->generation.max_tokens);
    json_object_set_new(settings, "n_ctx", json_integer((json_int_t)job->api->engine->caps.ctx_tokens));
    json_object_set_new(settings, "stream", json_boolean(job->parsed->generation.stream));
    return settings;
}

/* The log-probabilities that have come; NULL: none. */
static json_t *take_probs(struct hearth_choice *choice) {
    json_t *entries = choice->logprobs;
    choice->logprobs = NULL;
    return entries;
}

/* The last answer of a choice; in a stream it has no text. */
static json_t *final_json(struct hearth_choice *choice, json_t *content) {
    const struct hearth_job *job = choice->job;
    const struct hearth_buf *prompt = &choice->prompt->text;
    const char *model = job->parsed->generation.model != NULL ? job->parsed->generation.model : job->api->model_name;
    struct hearth_tally tally;
    hearth_tally_choice(choice, &tally);
    const uint32_t evaluated = choice->receipt.prompt_tokens, predicted = choice->generated_tokens;
    return json_pack(
        "{s:i, s:o, s:o, s:i, s:b, s:s, s:I, s:I, s:o, s:o, s:b, s:s, s:s, s:I, s:o, s:o, s:o*}", "index",
        (int)choice->index, "content", content, "tokens", take_tokens(choice), "id_slot", -1, "stop", 1, "model", model,
        "tokens_predicted", (json_int_t)predicted, "tokens_evaluated", (json_int_t)evaluated, "generation_settings",
        settings_json(job), "prompt", hearth_json_text((const char *)prompt->data, prompt->len), "truncated",
        choice->finish == HEARTH_FINISH_LENGTH && evaluated + predicted >= job->api->engine->caps.ctx_tokens,
        "stop_type", stop_type(choice), "stopping_word", choice->stop != NULL ? choice->stop : "", "tokens_cached",
        (json_int_t)hearth_receipt_reused_tokens(&choice->receipt), "timings", hearth_timings_json(&tally), "hearth",
        hearth_api_receipt_json(&tally), "completion_probabilities", take_probs(choice));
}

static json_t *whole_json(struct hearth_choice *choice) {
    return final_json(choice, hearth_json_text((const char *)choice->text.data, choice->text.len));
}

static json_t *native_whole(struct hearth_job *job) {
    if (job->choice_count == 1) {
        return whole_json(&job->choices[0]);
    }
    json_t *answers = json_array();
    for (size_t i = 0; i < job->choice_count; i++) {
        json_array_append_new(answers, whole_json(&job->choices[i]));
    }
    return answers;
}

static json_t *piece_json(struct hearth_choice *choice, const char *text, size_t len) {
    return json_pack("{s:i, s:o, s:o, s:b, s:i, s:I, s:I, s:o*}", "index", (int)choice->index, "content",
                     hearth_json_text(text, len), "tokens", take_tokens(choice), "stop", 0, "id_slot", -1,
                     "tokens_predicted", (json_int_t)choice->generated_tokens, "tokens_evaluated",
                     (json_int_t)choice->receipt.prompt_tokens, "completion_probabilities", take_probs(choice));
}

static bool native_delta(struct hearth_choice *choice, const struct hearth_chat_delta *delta, struct hearth_buf *out) {
    return hearth_sse(out, NULL, piece_json(choice, delta->content, delta->content_len));
}

static bool native_progress(struct hearth_choice *choice, uint32_t prefilled_tokens, struct hearth_buf *out) {
    return hearth_sse_progress(out, piece_json(choice, "", 0), choice, prefilled_tokens);
}

static bool native_end(struct hearth_choice *choice, struct hearth_buf *out) {
    return hearth_sse(out, NULL, final_json(choice, json_string("")));
}

static bool native_fail(struct hearth_job *job, struct hearth_buf *out) {
    return hearth_sse(out, NULL, hearth_api_error_json_native(&job->error));
}

static const struct hearth_dialect native_dialect = {
    .id_prefix = "cmpl-",
    .delta = native_delta,
    .end = native_end,
    .fail = native_fail,
    .progress = native_progress,
    .whole = native_whole,
};

/* ---- requests ---- */

/* Reads everything but the prompt. */
static bool parse_options(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                          struct hearth_api_error *error) {
    static const struct hearth_field own[] = {
        {"n_probs", HEARTH_FIELD_INT, 0, HEARTH_LOGPROBS_MAX, false,
         MEMBER(sampling) + offsetof(struct hearth_sampling, logprobs)},
        {"n_cmpl", HEARTH_FIELD_INT, 1, 16, false, MEMBER(n)},
        {"return_tokens", HEARTH_FIELD_BOOL, 0, 0, false, MEMBER(return_tokens)},
    };
    struct hearth_generation *generation = &out->generation;
    if (!hearth_generation_read(job->api, body, true, generation, error) ||
        !hearth_fields_read(body, own, sizeof own / sizeof own[0], generation, error) ||
        !hearth_response_format_read(body, &out->chat, error)) {
        return false;
    }
    if (generation->sampling.logprobs == 0) { /* here 0 means none; elsewhere it means the chosen token alone */
        generation->sampling.logprobs = -1;
    }
    generation->echo = true; /* the prompt's text is part of the answer */
    return true;
}

static bool parse_completion(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                             struct hearth_api_error *error) {
    return parse_options(job, body, out, error) && hearth_completions_prompts_parse(job, body, out, error);
}

const struct hearth_api_phases hearth_completion_phases = {
    .parse = parse_completion, .render = hearth_completions_render, .dialect = &native_dialect};

/* ---- infill ---- */

/* A text of the body; NULL: that failed, and the error is filled. */
static const char *text_of(const json_t *object, const char *name, const char *otherwise,
                           struct hearth_api_error *error) {
    const json_t *value = hearth_api_json_get(object, name);
    if (value == NULL && otherwise != NULL) {
        return otherwise;
    }
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
        hearth_api_fail(error, 400, value == NULL ? "missing_required_parameter" : "invalid_type", name,
                        "%s must be a string", name);
        return NULL;
    }
    return json_string_value(value);
}

/* parsed.prompts: [[text before the gap, text behind it, text that is being typed, [[name, text] of other files]]] */
static bool parse_infill(const struct hearth_job *job, const json_t *body, struct hearth_api_parsed *out,
                         struct hearth_api_error *error) {
    const struct hearth_fim *fim = &job->api->engine->caps.fim;
    const json_t *files = hearth_api_json_get(body, "input_extra"), *file;
    json_t *list = json_array();
    size_t i;
    if (fim->prefix < 0 || fim->suffix < 0 || fim->middle < 0) {
        json_decref(list);
        return hearth_api_fail(error, 501, "not_supported", NULL,
                               "this model's vocabulary has no marks for the code before and behind a gap: ask "
                               "/completion or /v1/chat/completions, or serve a model that was trained to infill");
    }
    const bool ok = parse_options(job, body, out, error);
    const char *prefix = ok ? text_of(body, "input_prefix", NULL, error) : NULL;
    const char *suffix = prefix != NULL ? text_of(body, "input_suffix", NULL, error) : NULL;
    const char *prompt = suffix != NULL ? text_of(body, "prompt", "", error) : NULL;
    if (prompt != NULL && files != NULL && !json_is_array(files)) {
        prompt = NULL;
        hearth_api_fail(error, 400, "invalid_type", "input_extra",
                        "input_extra must be an array of {\"filename\", \"text\"}");
    }
    json_array_foreach(files, i, file) {
        const char *name = prompt != NULL ? text_of(file, "filename", "tmp", error) : NULL;
        const char *text = name != NULL ? text_of(file, "text", NULL, error) : NULL;
        prompt = text != NULL ? prompt : NULL;
        json_array_append_new(list,
                              text != NULL ? json_pack("[s, O]", name, json_object_get(file, "text")) : json_null());
    }
    if (prompt == NULL) {
        json_decref(list);
        return false;
    }
    out->prompts = json_pack("[[O, O, s, o]]", json_object_get(body, "input_prefix"),
                             json_object_get(body, "input_suffix"), prompt, list);
    return out->prompts != NULL;
}

/* Appends a mark (-1: none) and the tokens of a text, in which marks are text. */
static bool add_part(const struct hearth_job *job, hearth_token mark, const char *text, struct hearth_tokens *out,
                     struct hearth_api_error *error) {
    const struct hearth_engine *engine = job->api->engine;
    if (mark >= 0 && !hearth_tokens_push(out, mark)) {
        return false;
    }
    const int rc = engine->ops->tokenize(job->api->engine, text, strlen(text), false, false, out);
    return rc >= 0 || hearth_api_fail_err(error, rc, NULL);
}

/* Appends one of the other files: its name if the vocabulary has a mark for files, and its text. */
static bool add_file(const struct hearth_job *job, const json_t *file, struct hearth_tokens *out,
                     struct hearth_api_error *error) {
    const hearth_token mark = job->api->engine->caps.fim.file;
    return (mark >= 0 ? add_part(job, mark, json_string_value(json_array_get(file, 0)), out, error) &&
                            add_part(job, -1, "\n", out, error)
                      : add_part(job, -1, "\n\n", out, error)) &&
           add_part(job, -1, json_string_value(json_array_get(file, 1)), out, error);
}

/* Appends the other files that come in front: as many of the last ones as fit. */
static bool add_files(const struct hearth_job *job, const json_t *files, size_t room, struct hearth_tokens *out,
                      struct hearth_api_error *error) {
    const struct hearth_fim *fim = &job->api->engine->caps.fim;
    const size_t count = json_array_size(files), before = out->n;
    size_t *ends = calloc(count + 1, sizeof *ends), i;
    json_t *file;
    bool ok = ends != NULL;
    ok = ok && (fim->repo < 0 || (add_part(job, fim->repo, "project\n", out, error)));
    const size_t head = out->n;
    json_array_foreach(files, i, file) {
        ok = ok && add_file(job, file, out, error);
        if (ok) {
            ends[i] = out->n;
        }
    }
    size_t cut = head;
    for (i = 0; ok && i < count && out->n - cut + (head - before) > room; i++) {
        cut = ends[i];
    }
    if (ok && cut > head) {
        memmove(out->v + head, out->v + cut, (out->n - cut) * sizeof *out->v);
        out->n -= cut - head;
    }
    free(ends);
    return ok && (fim->file < 0 || add_part(job, fim->file, "filename\n", out, error));
}

static bool make_infill(const struct hearth_job *job, struct hearth_tokens *out, struct hearth_api_error *error) {
    const struct hearth_caps *caps = &job->api->engine->caps;
    const json_t *parts = json_array_get(job->parsed->prompts, 0), *files = json_array_get(parts, 3);
    const char *prefix = json_string_value(json_array_get(parts, 0));
    const char *suffix = json_string_value(json_array_get(parts, 1));
    const char *prompt = json_string_value(json_array_get(parts, 2));
    struct hearth_tokens code = {0};
    bool ok = add_part(job, caps->fim.prefix, prefix, &code, error) && add_part(job, -1, prompt, &code, error) &&
              add_part(job, caps->fim.suffix, suffix, &code, error) &&
              add_part(job, caps->fim.middle, "", &code, error);
    const int32_t reply = hearth_api_prompt_room(job->api, job->parsed->generation.max_tokens);
    const size_t taken = code.n + (size_t)reply + 16; /* the marks around the files */
    const size_t room = taken < caps->ctx_tokens ? caps->ctx_tokens - taken : 0;
    ok = ok && (!caps->add_bos || job->api->engine->ops->tokenize(job->api->engine, "", 0, true, false, out) >= 0);
    ok = ok && (json_array_size(files) == 0 || add_files(job, files, room, out, error)) &&
         (hearth_tokens_append(out, code.v, code.n));
    hearth_tokens_finish(&code);
    return ok;
}

static bool render_infill(const struct hearth_job *job, struct hearth_api_rendered *out,
                          struct hearth_api_error *error) {
    if (!hearth_api_constraint_of_text(job, out, error) || !hearth_api_prompts_alloc(1, out) ||
        !make_infill(job, &out->prompts[0].tokens, error) ||
        !hearth_api_prompt_check_length(job->api, &out->prompts[0], 1, "input_prefix", error)) {
        return false;
    }
    struct hearth_api_prompt *prompt = &out->prompts[0];
    for (size_t i = 0; i < prompt->tokens.n; i++) {
        if (!hearth_engine_append_text(job->api->engine, prompt->tokens.v[i], true, &prompt->text)) {
            return false;
        }
    }
    return true;
}

const struct hearth_api_phases hearth_infill_phases = {
    .parse = parse_infill, .render = render_infill, .dialect = &native_dialect};
