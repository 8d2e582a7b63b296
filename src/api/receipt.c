/* The receipt that hearth adds to a response, and log-probabilities. */
#include "api/divergence.h"
#include "api/idle.h"
#include "api/stored_turns.h"

static json_t *unless_zero(size_t n) {
    return n != 0 ? json_integer((json_int_t)n) : NULL;
}

json_t *hearth_api_receipt_json(const struct hearth_tally *tally) {
    const struct hearth_job *job = tally->job;
    const struct hearth_api_rendered *rendered = job->rendered;
    const struct hearth_receipt *receipt = &tally->receipt;
    const size_t kept = job->resolved->tools == NULL ? json_array_size(job->resolved->request.tools) : 0;
    json_t *json = json_pack(
        "{s:{s:I, s:I, s:I, s:I}, s:I, s:I, s:o, s:o, s:o, s:o, s:s, s:s, s:o*, s:s*, s:o*, s:o*, s:o*, s:o*}",
        "reused", "live", (json_int_t)receipt->reused_live_tokens, "ram", (json_int_t)receipt->reused_ram_tokens,
        "disk", (json_int_t)receipt->reused_disk_tokens, "remote", (json_int_t)receipt->reused_remote_tokens,
        "computed", (json_int_t)receipt->computed_tokens, "matched", (json_int_t)receipt->matched_tokens, "queue_ms",
        hearth_api_json_real(HEARTH_MS(receipt->queue_us)), "plan_ms",
        hearth_api_json_real(HEARTH_MS(receipt->plan_us)), "restore_ms",
        hearth_api_json_real(HEARTH_MS(receipt->restore_us)), "prefill_ms",
        hearth_api_json_real(HEARTH_MS(receipt->prefill_us)), "reason", hearth_reason_text(receipt->reason),
        "reason_text", hearth_reason_help(receipt->reason), "tools_kept", unless_zero(kept), "class",
        job->priority != HEARTH_CLASS_INTERACTIVE ? hearth_class_text(job->priority) : NULL, "preemptions",
        unless_zero(tally->preemptions), "computed_idle", unless_zero(hearth_idle_computed(job, receipt)), "deadline",
        tally->late ? json_true() : NULL, "warnings", hearth_content_warnings(&job->resolved->history));
    if (rendered->chat) {
        json_object_update_new(json, json_pack("{s:o, s:I, s:I, s:o}", "prepare_ms",
                                               hearth_api_json_real(HEARTH_MS(rendered->prepare_us)), "known",
                                               (json_int_t)rendered->known_tokens, "sampled",
                                               (json_int_t)rendered->sampled_tokens, "divergence",
                                               rendered->divergence != NULL
                                                   ? hearth_report_divergence_json(&rendered->divergence->report, true)
                                                   : json_null()));
    }
    hearth_api_stored_add_json(job, json);
    return json;
}

/* {"token", "logprob", "bytes"}: the text with broken characters repaired, and the exact bytes. */
static json_t *token_json(const struct hearth_api *api, hearth_token token, float logprob) {
    struct hearth_buf text = {0};
    json_t *bytes = json_array();
    if (!hearth_engine_append_text(api->engine, token, true, &text)) {
        json_decref(bytes);
        return NULL;
    }
    for (size_t i = 0; i < text.len; i++) {
        json_array_append_new(bytes, json_integer(text.data[i]));
    }
    json_t *value = json_pack("{s:o, s:i, s:o, s:o}", "token", hearth_json_text((const char *)text.data, text.len),
                              "id", (int)token, "logprob", hearth_api_json_real((double)logprob), "bytes", bytes);
    hearth_buf_finish(&text);
    return value;
}

json_t *hearth_api_logprobs_entry(const struct hearth_api *api, const struct hearth_sampled *sampled) {
    const struct hearth_sample_logprobs *logprobs = &sampled->logprobs;
    json_t *entry = token_json(api, sampled->token, logprobs->chosen);
    json_t *top = json_array();
    for (int32_t i = 0; i < logprobs->n; i++) {
        json_array_append_new(top, token_json(api, logprobs->token[i], logprobs->logprob[i]));
    }
    json_object_set_new(entry, "top_logprobs", top);
    return entry;
}
