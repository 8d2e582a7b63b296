/* What a message has cost, in Anthropic's words.
 *
 * There the tokens of a prompt fall into three parts: read from the cache, written to it (those that had to be computed
 * up to the last breakpoint), and the rest. State is kept and found here whether a client marks it or not, so reads are
 * told in any case; without breakpoints everything that was computed is the rest. */
#include "api/anthropic/anthropic.h"

#include "session/diagnose.h"

#include <string.h>

#define HOUR_US ((int64_t)3600 * 1000000)

/* Computed tokens up to a breakpoint with at least this time to live. */
static json_int_t written(const struct hearth_job *job, uint32_t cached, int64_t ttl_us) {
    const struct hearth_api_rendered *rendered = job->rendered;
    json_int_t tokens = 0;
    for (size_t i = 0; i < rendered->pin_count; i++) {
        const json_int_t behind = (json_int_t)rendered->pins[i].position - (json_int_t)cached;
        tokens = rendered->pins[i].ttl_us >= ttl_us && behind > tokens ? behind : tokens;
    }
    return tokens;
}

json_t *hearth_anthropic_usage(const struct hearth_job *job, uint32_t known_tokens, bool total) {
    const struct hearth_choice *choice = &job->choices[0];
    const struct hearth_receipt *receipt = &choice->receipt;
    const uint32_t cached = hearth_api_receipt_cached_tokens(receipt);
    const json_int_t prompt = receipt->prompt_tokens > 0 ? receipt->prompt_tokens : known_tokens;
    const bool known = receipt->prompt_tokens > 0;
    const json_int_t created = known ? written(job, cached, 1) : 0;
    const json_int_t created_1h = known ? written(job, cached, HOUR_US) : 0;
    json_t *usage = json_pack("{s:I, s:I, s:I, s:I, s:{s:I}}", "input_tokens", prompt - (json_int_t)cached - created,
                              "cache_creation_input_tokens", created, "cache_read_input_tokens", (json_int_t)cached,
                              "output_tokens", (json_int_t)choice->generated_tokens, "output_tokens_details",
                              "thinking_tokens", (json_int_t)choice->reasoning_tokens);
    if (total && usage != NULL &&
        (json_object_set_new(usage, "cache_creation",
                             json_pack("{s:I, s:I}", "ephemeral_5m_input_tokens", created - created_1h,
                                       "ephemeral_1h_input_tokens", created_1h)) < 0 ||
         json_object_set_new(usage, "service_tier", json_string("standard")) < 0)) {
        json_decref(usage);
        return NULL;
    }
    return usage;
}

json_t *hearth_anthropic_diagnostics(const struct hearth_job *job, const char *previous_id) {
    const struct hearth_diagnosis *diagnosis = hearth_conversation_diagnosis(job->rendered->conversation);
    const struct hearth_receipt *receipt = &job->choices[0].receipt;
    struct hearth_digest id;
    int index = 0;
    if (previous_id != NULL && (!hearth_api_id_parse(previous_id, &id, &index) || index >= 0)) {
        return json_pack("{s:{s:s}}", "cache_miss_reason", "type", "previous_message_not_found");
    }
    if (previous_id == NULL || diagnosis == NULL) {
        return json_null();
    }
    if (diagnosis->cause == HEARTH_CAUSE_ARGUMENTS || diagnosis->cause == HEARTH_CAUSE_RENDERED ||
        (diagnosis->cause == HEARTH_CAUSE_OTHER && diagnosis->message < 0)) {
        return json_pack("{s:{s:s}}", "cache_miss_reason", "type", "unavailable");
    }
    const char *type = strcmp(diagnosis->field, "tools") == 0    ? "tools_changed"
                       : strcmp(diagnosis->field, "system") == 0 ? "system_changed"
                                                                 : "messages_changed";
    return json_pack("{s:{s:s, s:I}}", "cache_miss_reason", "type", type, "cache_missed_input_tokens",
                     (json_int_t)receipt->computed_tokens);
}
