/* POST /completion, /completions and /infill: text in, text out, in llama-server's own shape. A prompt may mix text and
 * token ids; several give an array of answers.
 *
 * What stands between two pieces of code is asked for with the marks that the vocabulary has for it. Other files come
 * first, as they stay the same while text is typed; the oldest of them go when there is no room for all.
 * Source: llama-server's README, server-task.cpp (to_json_non_oaicompat), server-common.cpp (format_prompt_infill). */
#include "api/slots.h"

#include <stdlib.h>
#include <string.h>

#define MEMBER(member) offsetof(struct hearth_generation, member)

/* ---- answers ---- */

static const char *stop_type(const struct hearth_choice *choice) {
    return choice->finish == HEARTH_FINISH_LENGTH ? "limit" : choice->stop != NULL ? "word" : "eos";
}

/* The tokens that were sampled since this was asked last; none where they are not wanted. */
static json_t *take_tokens(struct hearth_choice *choice) {
    json_t *tokens = json_array();
    for (size_t i = 0; i < choice->sampled.n; i++) {
        json_array_append_new(tokens, json_integer(choice->sampled.v[i]));
    }
    choice->sampled.n = 0;
    return tokens;
}

static json_t *settings_json(const struct hearth_job *job) {
    json_t *settings = hearth_sampling_json(&job->generation.sampling, job->generation.max_tokens);
    json_object_set_new(settings, "n_ctx", json_integer((json_int_t)job->api->engine->caps.ctx_tokens));
    json_object_set_new(settings, "stream", json_boolean(job->generation.stream));
    return settings;
}

/* Adds the log-probabilities that have come; NULL when out of memory. */
static json_t *with_probs(struct hearth_choice *choice, json_t *answer) {
    json_t *entries = choice->logprobs;
    choice->logprobs = NULL;
    if (entries != NULL && json_object_set_new(answer, "completion_probabilities", entries) < 0) {
        json_decref(answer);
        return NULL;
    }
    return answer;
}

/* The last answer about a choice, in a stream with no text. */
static json_t *final_json(struct hearth_choice *choice, json_t *content) {
    const struct hearth_job *job = choice->job;
    const struct hearth_buf *prompt = &choice->prompt->text;
    const char *model = job->generation.model != NULL ? job->generation.model : job->api->model_name;
    struct hearth_tally tally;
    hearth_tally_choice(choice, &tally);
    const uint32_t evaluated = choice->receipt.prompt_tokens, predicted = choice->generated_tokens;
    json_t *answer = json_pack(
        "{s:i, s:o, s:o, s:i, s:b, s:s, s:I, s:I, s:o, s:o, s:b, s:s, s:s, s:I, s:o, s:o}", "index", (int)choice->index,
        "content", content, "tokens", take_tokens(choice), "id_slot", -1, "stop", 1, "model", model, "tokens_predicted",
        (json_int_t)predicted, "tokens_evaluated", (json_int_t)evaluated, "generation_settings", settings_json(job),
        "prompt", hearth_json_text((const char *)prompt->data, prompt->len), "truncated",
        choice->finish == HEARTH_FINISH_LENGTH && evaluated + predicted >= job->api->engine->caps.ctx_tokens,
        "stop_type", stop_type(choice), "stopping_word", choice->stop != NULL ? choice->stop : "", "tokens_cached",
        (json_int_t)hearth_receipt_cached_tokens(&choice->receipt), "timings", hearth_timings_json(&tally), "hearth",
        hearth_receipt_json(&tally));
    return with_probs(choice, answer);
}

static json_t *native_whole(struct hearth_job *job) {
    json_t *answers = json_array();
    for (size_t i = 0; i < job->choice_count; i++) {
        struct hearth_choice *choice = &job->choices[i];
        json_t *text = hearth_json_text((const char *)choice->text.data, choice->text.len);
        if (json_array_append_new(answers, final_json(choice, text)) < 0) {
            json_decref(answers);
            return NULL;
        }
    }
    if (job->choice_count > 1) {
        return answers;
    }
    json_t *only = json_incref(json_array_get(answers, 0));
    json_decref(answers);
    return only;
}

static json_t *piece_json(struct hearth_choice *choice, const char *text, size_t len) {
    return with_probs(choice, json_pack("{s:i, s:o, s:o, s:b, s:i, s:I, s:I}", "index", (int)choice->index, "content",
                                        hearth_json_text(text, len), "tokens", take_tokens(choice), "stop", 0,
                                        "id_slot", -1, "tokens_predicted", (json_int_t)choice->generated_tokens,
                                        "tokens_evaluated", (json_int_t)choice->receipt.prompt_tokens));
}

static bool native_delta(struct hearth_choice *choice, const struct hearth_chat_delta *delta, struct hearth_buf *out) {
    return hearth_sse(out, NULL, piece_json(choice, delta->content, delta->content_len));
}

static bool native_progress(struct hearth_choice *choice, uint32_t prefilled_tokens, struct hearth_buf *out) {
    json_t *piece = piece_json(choice, "", 0);
    if (json_object_set_new(piece, "prompt_progress", hearth_progress_json(choice, prefilled_tokens)) < 0) {
        json_decref(piece);
        return false;
    }
    return hearth_sse(out, NULL, piece);
}

static bool native_end(struct hearth_choice *choice, struct hearth_buf *out) {
    return hearth_sse(out, NULL, final_json(choice, json_string("")));
}

static bool native_fail(struct hearth_job *job, const struct hearth_api_error *error, struct hearth_buf *out) {
    (void)job;
    return hearth_sse(out, NULL, hearth_api_error_json_native(error));
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

/* Everything but the prompt. */
static bool read_options(struct hearth_job *job, const json_t *body) {
    static const struct hearth_field own[] = {
        {"n_probs", HEARTH_FIELD_INT, 0, HEARTH_LOGPROBS_MAX, false,
         MEMBER(sampling) + offsetof(struct hearth_sampling, logprobs)},
        {"n_cmpl", HEARTH_FIELD_INT, 1, 16, false, MEMBER(n)},
        {"return_tokens", HEARTH_FIELD_BOOL, 0, 0, false, MEMBER(return_tokens)},
    };
    struct hearth_generation *generation = &job->generation;
    if (!hearth_generation_read(job->api, body, true, generation, &job->error) ||
        !hearth_fields_read(body, own, sizeof own / sizeof own[0], generation, &job->error) ||
        !hearth_response_format_read(body, &job->chat, &job->error) || !hearth_shape_text(job)) {
        return false;
    }
    if (generation->sampling.logprobs == 0) { /* none are wanted; elsewhere 0 is the chosen one's alone */
        generation->sampling.logprobs = -1;
    }
    generation->echo = true; /* the prompt's text is part of the answer */
    return true;
}

bool hearth_completion_prepare(struct hearth_job *job, const json_t *body) {
    if (!read_options(job, body) || !hearth_completions_prompts(job, body)) {
        return false;
    }
    job->dialect = &native_dialect;
    return true;
}

/* ---- infill ---- */

/* Appends a mark (-1: none) and the tokens of a text, in which marks are text. */
static bool add_part(struct hearth_job *job, hearth_token mark, const char *text, struct hearth_tokens *out) {
    const struct hearth_engine *engine = job->api->engine;
    if (mark >= 0 && !hearth_tokens_push(out, mark)) {
        return hearth_api_fail_nomem(&job->error);
    }
    const int rc = engine->ops->tokenize(job->api->engine, text, strlen(text), false, false, out);
    return rc >= 0 || hearth_api_fail_err(&job->error, rc, NULL);
}

/* A text of the body; NULL: job->error is filled. */
static const char *text_of(struct hearth_job *job, const json_t *object, const char *name, const char *otherwise) {
    const json_t *value = hearth_json_get(object, name);
    if (value == NULL && otherwise != NULL) {
        return otherwise;
    }
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value)) {
        hearth_api_fail(&job->error, 400, value == NULL ? "missing_required_parameter" : "invalid_type", name,
                        "%s must be a string", name);
        return NULL;
    }
    return json_string_value(value);
}

/* One of the other files: its name where the vocabulary marks files, and its text. */
static bool add_file(struct hearth_job *job, const json_t *file, struct hearth_tokens *out) {
    const hearth_token mark = job->api->engine->caps.fim.file;
    const char *name = text_of(job, file, "filename", "tmp"), *text = text_of(job, file, "text", NULL);
    return name != NULL && text != NULL &&
           (mark >= 0 ? add_part(job, mark, name, out) && add_part(job, -1, "\n", out)
                      : add_part(job, -1, "\n\n", out)) &&
           add_part(job, -1, text, out);
}

/* Other files in front: those behind the first so many that there is room for. */
static bool add_files(struct hearth_job *job, const json_t *files, size_t room, struct hearth_tokens *out) {
    const struct hearth_fim *fim = &job->api->engine->caps.fim;
    const size_t count = json_array_size(files), before = out->n;
    size_t *ends = calloc(count + 1, sizeof *ends), i;
    json_t *file;
    bool ok = ends != NULL || hearth_api_fail_nomem(&job->error);
    ok = ok && (fim->repo < 0 || (add_part(job, fim->repo, "project\n", out)));
    const size_t head = out->n;
    json_array_foreach(files, i, file) {
        ok = ok && add_file(job, file, out);
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
    return ok && (fim->file < 0 || add_part(job, fim->file, "filename\n", out));
}

static bool make_infill(struct hearth_job *job, const json_t *body, struct hearth_tokens *out) {
    const struct hearth_caps *caps = &job->api->engine->caps;
    const json_t *files = hearth_json_get(body, "input_extra");
    const char *prefix = text_of(job, body, "input_prefix", NULL);
    const char *suffix = prefix != NULL ? text_of(job, body, "input_suffix", NULL) : NULL;
    const char *prompt = suffix != NULL ? text_of(job, body, "prompt", "") : NULL;
    struct hearth_tokens code = {0};
    if (prompt == NULL) {
        return false;
    }
    if (files != NULL && !json_is_array(files)) {
        return hearth_api_fail(&job->error, 400, "invalid_type", "input_extra",
                               "input_extra must be an array of {\"filename\", \"text\"}");
    }
    bool ok = add_part(job, caps->fim.prefix, prefix, &code) && add_part(job, -1, prompt, &code) &&
              add_part(job, caps->fim.suffix, suffix, &code) && add_part(job, caps->fim.middle, "", &code);
    const int32_t reply = hearth_prompt_room(job->api, job->generation.max_tokens);
    const size_t taken = code.n + (size_t)reply + 16; /* the marks around the files */
    const size_t room = taken < caps->ctx_tokens ? caps->ctx_tokens - taken : 0;
    ok = ok && (!caps->add_bos || job->api->engine->ops->tokenize(job->api->engine, "", 0, true, false, out) >= 0);
    ok = ok && (json_array_size(files) == 0 || add_files(job, files, room, out)) &&
         (hearth_tokens_append(out, code.v, code.n) || hearth_api_fail_nomem(&job->error));
    hearth_tokens_finish(&code);
    return ok;
}

bool hearth_infill_prepare(struct hearth_job *job, const json_t *body) {
    const struct hearth_fim *fim = &job->api->engine->caps.fim;
    struct hearth_generation *generation = &job->generation;
    if (fim->prefix < 0 || fim->suffix < 0 || fim->middle < 0) {
        return hearth_api_fail(&job->error, 501, "not_supported", NULL,
                               "this model's vocabulary has no marks for the code before and behind a gap: ask "
                               "/completion or /v1/chat/completions, or serve a model that was trained to infill");
    }
    if (!read_options(job, body) || !hearth_generation_alloc_prompts(generation, 1, &job->error) ||
        !make_infill(job, body, &generation->prompts[0].tokens) ||
        !hearth_prompt_check_length(job->api, &generation->prompts[0], 1, "input_prefix", &job->error)) {
        return false;
    }
    struct hearth_prompt *prompt = &generation->prompts[0];
    for (size_t i = 0; i < prompt->tokens.n; i++) {
        if (!hearth_engine_append_text(job->api->engine, prompt->tokens.v[i], true, &prompt->text)) {
            return hearth_api_fail_nomem(&job->error);
        }
    }
    job->dialect = &native_dialect;
    return true;
}
