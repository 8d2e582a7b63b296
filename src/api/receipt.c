/* The receipt that hearth adds to a response, and log-probabilities. */
#include "api/idle.h"
#include "api/stored_turns.h"

/* Adds members that are printed only if they are not 0. */
static bool add_notes(const struct hearth_tally *tally, json_t *json) {
    const enum hearth_class priority = tally->job->priority;
    const struct hearth_api_resolved *resolved = tally->job->resolved;
    const size_t kept = resolved->tools == NULL ? json_array_size(resolved->request.tools) : 0;
    const uint32_t idle = hearth_idle_computed(tally->job, &tally->receipt);
    return (kept == 0 || json_object_set_new(json, "tools_kept", json_integer((json_int_t)kept)) == 0) &&
           (priority == HEARTH_CLASS_INTERACTIVE ||
            json_object_set_new(json, "class", json_string(hearth_class_text(priority))) == 0) &&
           (tally->preemptions == 0 ||
            json_object_set_new(json, "preemptions", json_integer((json_int_t)tally->preemptions)) == 0) &&
           (idle == 0 || json_object_set_new(json, "computed_idle", json_integer((json_int_t)idle)) == 0) &&
           (!tally->late || json_object_set_new(json, "deadline", json_true()) == 0);
}

static bool add_warnings(const struct hearth_tally *tally, json_t *json) {
    json_t *warnings = hearth_content_warnings(&tally->job->resolved->history);
    return warnings == NULL || json_object_set_new(json, "warnings", warnings) == 0;
}

json_t *hearth_api_receipt_json(const struct hearth_tally *tally) {
    const struct hearth_receipt *receipt = &tally->receipt;
    json_t *json =
        json_pack("{s:{s:I, s:I, s:I, s:I}, s:I, s:I, s:o, s:o, s:o, s:o, s:s, s:s}", "reused", "live",
                  (json_int_t)receipt->reused_live_tokens, "ram", (json_int_t)receipt->reused_ram_tokens, "disk",
                  (json_int_t)receipt->reused_disk_tokens, "remote", (json_int_t)receipt->reused_remote_tokens,
                  "computed", (json_int_t)receipt->computed_tokens, "matched", (json_int_t)receipt->matched_tokens,
                  "queue_ms", hearth_api_json_real(HEARTH_MS(receipt->queue_us)), "plan_ms",
                  hearth_api_json_real(HEARTH_MS(receipt->plan_us)), "restore_ms",
                  hearth_api_json_real(HEARTH_MS(receipt->restore_us)), "prefill_ms",
                  hearth_api_json_real(HEARTH_MS(receipt->prefill_us)), "reason", hearth_reason_text(receipt->reason),
                  "reason_text", hearth_reason_help(receipt->reason));
    if (json != NULL && (!add_notes(tally, json) || !add_warnings(tally, json) ||
                         !hearth_conversation_add_json(tally->job->rendered->conversation, json) ||
                         !hearth_api_stored_add_json(tally->job, json))) {
        json_decref(json);
        return NULL;
    }
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
    if (json_object_set_new(entry, "top_logprobs", top) < 0) {
        json_decref(entry);
        return NULL;
    }
    return entry;
}
