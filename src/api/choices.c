/* The envelope of chat and plain completions: choices with an index, whole or as chunks.
 *
 * In a stream each choice has a first chunk, chunks of text, and a last one with finish_reason, timings and receipt.
 * A chunk with usage, if the client wants it, and [DONE] follow the last choice. Where a turn is stored, the last
 * chunk waits for it, because this chunk says that the reply is complete.
 * Source: https://platform.openai.com/docs/api-reference/chat/streaming; timings as llama-server prints them. */
#include "api/job.h"

static const struct hearth_choices_form *form_of(const struct hearth_job *job) {
    return (const struct hearth_choices_form *)job->dialect;
}

/* The members that every response and chunk has; takes `choices`. */
static json_t *envelope(const struct hearth_job *job, const char *object, json_t *choices) {
    const char *model = job->parsed->generation.model != NULL ? job->parsed->generation.model : job->api->model_name;
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o, s:s*}", "id", job->id, "object", object, "created",
                     (json_int_t)job->created_unix, "model", model, "system_fingerprint", job->api->version, "choices",
                     choices, "service_tier", job->tier);
}

/* Adds usage, timings and receipt. */
static json_t *with_cost(json_t *response, const struct hearth_tally *tally, bool usage) {
    json_object_update_new(response,
                           json_pack("{s:o*, s:o, s:o}", "usage", usage ? hearth_usage_json(tally) : NULL, "timings",
                                     hearth_timings_json(tally), "hearth", hearth_api_receipt_json(tally)));
    return response;
}

static json_t *one_choice(const struct hearth_job *job, json_t *choice) {
    return envelope(job, form_of(job)->chunk_object, json_pack("[o]", choice));
}

/* The collected log-probabilities in the dialect's form; NULL when there are none or none were asked for. */
static json_t *take_logprobs(struct hearth_choice *choice) {
    json_t *entries = choice->logprobs;
    choice->logprobs = NULL;
    return entries != NULL ? form_of(choice->job)->logprobs(choice, entries) : NULL;
}

static bool print_content(struct hearth_choice *choice, const struct hearth_buf *text, struct hearth_buf *out) {
    const struct hearth_chat_delta delta = {
        .content = (const char *)text->data, .content_len = text->len, .call = HEARTH_CHAT_NO_CALL};
    return hearth_choices_delta(choice, &delta, out);
}

bool hearth_choices_begin_choice(struct hearth_choice *choice, struct hearth_buf *out) {
    const struct hearth_job *job = choice->job;
    const struct hearth_choices_form *form = form_of(job);
    return (form->first == NULL || hearth_sse(out, NULL, one_choice(job, form->first(choice)))) &&
           (!job->parsed->generation.echo || print_content(choice, &choice->prompt->text, out));
}

bool hearth_choices_delta(struct hearth_choice *choice, const struct hearth_chat_delta *delta, struct hearth_buf *out) {
    const struct hearth_job *job = choice->job;
    return hearth_sse(out, NULL, one_choice(job, form_of(job)->delta(choice, delta, take_logprobs(choice))));
}

/* llama-server's report on a prompt that is being computed. */
static json_t *progress_json(const struct hearth_choice *choice, uint32_t prefilled_tokens) {
    const struct hearth_receipt *receipt = &choice->receipt;
    const int64_t us = receipt->plan_us + receipt->restore_us + receipt->prefill_us;
    return json_pack("{s:I, s:I, s:I, s:I}", "total", (json_int_t)receipt->prompt_tokens, "cache",
                     (json_int_t)hearth_receipt_reused_tokens(receipt), "processed", (json_int_t)prefilled_tokens,
                     "time_ms", (json_int_t)(us / 1000));
}

bool hearth_sse_progress(struct hearth_buf *out, json_t *chunk, const struct hearth_choice *choice,
                         uint32_t prefilled_tokens) {
    json_object_set_new(chunk, "prompt_progress", progress_json(choice, prefilled_tokens));
    return hearth_sse(out, NULL, chunk);
}

/* Prints a chunk without text and calls: it tells how far the prompt is. */
bool hearth_choices_progress(struct hearth_choice *choice, uint32_t prefilled_tokens, struct hearth_buf *out) {
    static const struct hearth_chat_delta nothing = {.content = "", .call = HEARTH_CHAT_NO_CALL};
    const struct hearth_job *job = choice->job;
    return hearth_sse_progress(out, one_choice(job, form_of(job)->delta(choice, &nothing, NULL)), choice,
                               prefilled_tokens);
}

static bool print_last(struct hearth_choice *choice, struct hearth_buf *out) {
    const struct hearth_job *job = choice->job;
    struct hearth_tally tally;
    hearth_tally_choice(choice, &tally);
    return hearth_sse(out, NULL, with_cost(one_choice(job, form_of(job)->last(choice)), &tally, false));
}

bool hearth_choices_end(struct hearth_choice *choice, struct hearth_buf *out) {
    static const struct hearth_buf nothing = {0};
    /* Log-probabilities wait for text; those that still wait at the end are sent without any. */
    return (json_array_size(choice->logprobs) == 0 || print_content(choice, &nothing, out)) &&
           (choice->job->resolved->stored != NULL || print_last(choice, out));
}

bool hearth_choices_finish(struct hearth_job *job, struct hearth_buf *out) {
    bool ok = true;
    for (size_t i = 0; ok && job->resolved->stored != NULL && i < job->choice_count; i++) {
        ok = print_last(&job->choices[i], out);
    }
    if (ok && job->parsed->generation.include_usage) {
        struct hearth_tally tally;
        hearth_tally_job(job, &tally);
        ok = hearth_sse(out, NULL, with_cost(envelope(job, form_of(job)->chunk_object, json_array()), &tally, true));
    }
    return ok && hearth_buf_text(out, "data: [DONE]\n\n");
}

bool hearth_choices_fail(struct hearth_job *job, struct hearth_buf *out) {
    return hearth_sse(out, NULL, hearth_api_error_json(&job->error));
}

json_t *hearth_choices_whole(struct hearth_job *job) {
    struct hearth_tally tally;
    json_t *choices = json_array();
    for (size_t i = 0; i < job->choice_count; i++) {
        struct hearth_choice *choice = &job->choices[i];
        json_array_append_new(choices, form_of(job)->whole(choice, take_logprobs(choice)));
    }
    hearth_tally_job(job, &tally);
    return with_cost(envelope(job, form_of(job)->object, choices), &tally, true);
}
