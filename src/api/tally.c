/* Adds up what a response has cost over its choices, as usage (OpenAI) and timings (llama-server).
 *
 * Prompt tokens count once, for the first choice, as the others find them in the cache. Sampled tokens of all
 * choices are added. The choices are generated at the same time, so the longest generation time counts. */
#include "api/job.h"

static void add_generated(const struct hearth_choice *choice, struct hearth_tally *tally) {
    tally->generated_tokens += choice->generated_tokens;
    tally->reasoning_tokens += choice->reasoning_tokens;
    tally->drafted_tokens += choice->drafted_tokens;
    tally->accepted_tokens += choice->accepted_tokens;
    tally->preemptions += choice->preemptions;
    tally->late |= choice->late;
    if (choice->generate_us > tally->generate_us) {
        tally->generate_us = choice->generate_us;
    }
}

void hearth_tally_choice(const struct hearth_choice *choice, struct hearth_tally *tally) {
    *tally = (struct hearth_tally){.receipt = choice->receipt, .job = choice->job};
    add_generated(choice, tally);
}

/* The receipt for a prompt: from its first choice that had a lane. */
static const struct hearth_receipt *first_receipt(const struct hearth_job *job, size_t first) {
    size_t i = first, end = first + (size_t)job->parsed->generation.n;
    while (i < end && job->choices[i].empty) {
        i++;
    }
    return &job->choices[i < end ? i : first].receipt;
}

void hearth_tally_job(const struct hearth_job *job, struct hearth_tally *tally) {
    struct hearth_receipt *sum = &tally->receipt;
    size_t per_prompt = (size_t)job->parsed->generation.n;
    *tally = (struct hearth_tally){
        .receipt.reason = first_receipt(job, 0)->reason, .receipt.missing = first_receipt(job, 0)->missing, .job = job};
    for (size_t i = 0; i < job->choice_count; i++) {
        add_generated(&job->choices[i], tally);
        if (i % per_prompt != 0) {
            continue;
        }
        const struct hearth_receipt *receipt = first_receipt(job, i);
        sum->prompt_tokens += receipt->prompt_tokens;
        sum->reused_live_tokens += receipt->reused_live_tokens;
        sum->reused_ram_tokens += receipt->reused_ram_tokens;
        sum->reused_disk_tokens += receipt->reused_disk_tokens;
        sum->reused_remote_tokens += receipt->reused_remote_tokens;
        sum->computed_tokens += receipt->computed_tokens;
        sum->matched_tokens += receipt->matched_tokens;
        sum->queue_us += receipt->queue_us;
        sum->behind = receipt->behind > sum->behind ? receipt->behind : sum->behind;
        sum->cells_needed = receipt->cells_needed > sum->cells_needed ? receipt->cells_needed : sum->cells_needed;
        for (size_t wait = 0; wait < HEARTH_WAIT_COUNT; wait++) {
            sum->wait_us[wait] += receipt->wait_us[wait];
        }
        sum->plan_us += receipt->plan_us;
        sum->restore_us += receipt->restore_us;
        sum->prefill_us += receipt->prefill_us;
        sum->beside_us += receipt->beside_us;
        sum->reply_beside_us += receipt->reply_beside_us;
        sum->faults += receipt->faults;
        sum->best_us = receipt->best_us;
    }
}

json_t *hearth_usage_json(const struct hearth_tally *tally) {
    const struct hearth_receipt *receipt = &tally->receipt;
    json_int_t prompt = receipt->prompt_tokens;
    json_int_t completion = (json_int_t)tally->generated_tokens;
    json_int_t cached = hearth_receipt_reused_tokens(receipt);
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", prompt, "completion_tokens", completion,
                     "total_tokens", prompt + completion, "prompt_tokens_details", "cached_tokens", cached,
                     "completion_tokens_details", "reasoning_tokens", (json_int_t)tally->reasoning_tokens);
}

/* The prompt's time is from getting a lane to the first token: plan, restore and prefill. */
json_t *hearth_timings_json(const struct hearth_tally *tally) {
    const struct hearth_receipt *receipt = &tally->receipt;
    json_int_t cached = hearth_receipt_reused_tokens(receipt);
    double prompt_n = receipt->computed_tokens;
    double prompt_ms = HEARTH_MS(receipt->plan_us + receipt->restore_us + receipt->prefill_us);
    double predicted_n = (double)tally->generated_tokens;
    double predicted_ms = HEARTH_MS(tally->generate_us);
    json_t *drafted = tally->drafted_tokens > 0 ? json_integer((json_int_t)tally->drafted_tokens) : NULL;
    json_t *accepted = drafted != NULL ? json_integer((json_int_t)tally->accepted_tokens) : NULL;
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o*, s:o*}", "cache_n", cached, "prompt_n",
                     (json_int_t)receipt->computed_tokens, "prompt_ms", hearth_api_json_real(prompt_ms),
                     "prompt_per_token_ms", hearth_api_json_real(prompt_ms / prompt_n), "prompt_per_second",
                     hearth_api_json_real(prompt_n * 1000.0 / prompt_ms), "predicted_n",
                     (json_int_t)tally->generated_tokens, "predicted_ms", hearth_api_json_real(predicted_ms),
                     "predicted_per_token_ms", hearth_api_json_real(predicted_ms / predicted_n), "predicted_per_second",
                     hearth_api_json_real(predicted_n * 1000.0 / predicted_ms), "draft_n", drafted, "draft_n_accepted",
                     accepted);
}
