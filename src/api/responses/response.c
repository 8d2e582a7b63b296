/* The response object: the request's fields (the echo), the items that went out, usage and status.
 *
 * Items are printed from those that are stored: ids, summaries and the form of custom tools' calls follow from what
 * else is known (hearth_response_item), so that a response that is read from the store is the object that was sent.
 * Source: https://platform.openai.com/docs/api-reference/responses/object */
#include "api/responses/responses.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* ---- items ---- */

/* The text of a custom tool's call: the one argument of its function, or what the model wrote instead. */
static json_t *custom_input(const json_t *arguments) {
    const char *text = json_string_value(arguments);
    json_t *parsed = hearth_json_parse(text, json_string_length(arguments), JSON_ALLOW_NUL, NULL);
    json_t *input = json_object_get(parsed, "input");
    input = json_is_string(input) ? json_incref(input) : json_incref((json_t *)(uintptr_t)arguments);
    json_decref(parsed);
    return input;
}

static void name_call(json_t *item, const json_t *names) {
    const char *name = json_string_value(json_object_get(item, "name"));
    json_t *what = name != NULL ? json_object_get(names, name) : NULL;
    json_object_set(item, "namespace", json_object_get(what, "namespace"));
    json_object_set(item, "name", json_object_get(what, "name"));
    if (json_is_true(json_object_get(what, "custom"))) {
        json_object_set_new(item, "input", custom_input(json_object_get(item, "arguments")));
        json_object_set_new(item, "type", json_string("custom_tool_call"));
        json_object_del(item, "arguments");
    }
}

/* The text of the thinking, as its summary. */
static void summarise(json_t *item) {
    size_t i;
    json_t *part, *summary = json_array();
    json_array_foreach(json_object_get(item, "content"), i, part) {
        json_array_append_new(summary,
                              json_pack("{s:s, s:O}", "type", "summary_text", "text", json_object_get(part, "text")));
    }
    json_object_set_new(item, "summary", summary);
}

static void add_logprobs(json_t *item, json_t *logprobs) {
    json_t *parts = json_deep_copy(json_object_get(item, "content"));
    json_object_set(json_array_get(parts, 0), "logprobs", logprobs);
    json_object_set_new(item, "content", parts);
}

json_t *hearth_response_item(const json_t *item, const json_t *names, bool summarises, const json_t *extra,
                             struct hearth_digest turn, size_t index) {
    json_t *logprobs = json_object_get(extra, "logprobs"), *copy = json_copy((json_t *)(uintptr_t)item);
    if (hearth_api_type_is(item, "function_call")) {
        name_call(copy, names);
    } else if (hearth_api_type_is(item, "reasoning")) {
        if (summarises) {
            summarise(copy);
        }
        json_object_set(copy, "encrypted_content", json_object_get(extra, "encrypted_content"));
    } else if (logprobs != NULL) {
        add_logprobs(copy, logprobs);
    }
    json_object_set(copy, "status", json_object_get(extra, "status"));
    json_t *printed = hearth_api_item_printed(copy, turn, index);
    json_decref(copy);
    return printed;
}

/* Log-probabilities of the text: those of the reasoning in front of it are left out. */
static json_t *text_logprobs(struct hearth_choice *choice) {
    json_t *entries = choice->logprobs, *rest = json_array();
    choice->logprobs = NULL;
    for (size_t i = choice->reasoning_tokens; i < json_array_size(entries); i++) {
        json_array_append(rest, json_array_get(entries, i));
    }
    json_decref(entries);
    return rest;
}

json_t *hearth_response_extra(const struct hearth_job *job, const char *reasoning, size_t len, json_t *logprobs,
                              bool cut) {
    json_t *extra = json_object();
    if (reasoning != NULL && hearth_response_asked(job)->encrypts) {
        char *sealed = hearth_api_sealed_close(job->api, HEARTH_SEALED_REASONING, reasoning, len);
        json_object_set_new(extra, "encrypted_content", sealed != NULL ? json_string(sealed) : NULL);
        free(sealed);
    }
    if (logprobs != NULL) {
        json_object_set(extra, "logprobs", logprobs);
    }
    if (cut) {
        json_object_set_new(extra, "status", json_string("incomplete"));
    }
    if (json_object_size(extra) == 0) {
        json_decref(extra);
        return json_null();
    }
    return extra;
}

/* The same for an item of a reply that is not streamed. */
static json_t *extra_of(struct hearth_job *job, const json_t *item, bool last) {
    struct hearth_choice *choice = &job->choices[0];
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *reasoning = strcmp(type, "reasoning") == 0 ? choice->message->reasoning : NULL;
    const bool logprobs =
        strcmp(type, "message") == 0 && hearth_response_asked(job)->logprobs && choice->logprobs != NULL;
    json_t *entries = logprobs ? text_logprobs(choice) : NULL;
    json_t *extra =
        hearth_response_extra(job, reasoning, reasoning != NULL ? strlen(reasoning) : 0, entries, last && choice->cut);
    json_decref(entries);
    return extra;
}

void hearth_response_fill_output(struct hearth_job *job) {
    struct hearth_response *response = job->dialect_state;
    size_t i;
    json_t *item;
    if (response->completed_unix == 0) {
        response->completed_unix = hearth_clock_unix();
    }
    if (job->parsed->generation.stream || json_array_size(response->output) > 0) {
        return; /* printed as it came, or before */
    }
    json_t *items = hearth_api_items_of_message(job->choices[0].message);
    json_array_foreach(items, i, item) {
        json_t *extra = extra_of(job, item, i + 1 == json_array_size(items));
        json_array_append_new(response->output,
                              hearth_response_item(item, hearth_response_asked(job)->names,
                                                   hearth_response_asked(job)->summarises, extra, job->id_bits,
                                                   hearth_response_asked(job)->first_index + i));
        json_array_append_new(response->extras, extra);
    }
    json_decref(items);
}

/* ---- what it came to ---- */

enum hearth_turn_status hearth_response_status(const struct hearth_job *job) {
    if (job->cancelled) {
        return HEARTH_TURN_CANCELLED;
    }
    return job->choices[0].cut ? HEARTH_TURN_INCOMPLETE : HEARTH_TURN_COMPLETED;
}

json_t *hearth_response_usage(const struct hearth_tally *tally) {
    const struct hearth_receipt *receipt = &tally->receipt;
    const json_int_t input = receipt->prompt_tokens, output = (json_int_t)tally->generated_tokens;
    return json_pack("{s:I, s:{s:I, s:I}, s:I, s:{s:I}, s:I}", "input_tokens", input, "input_tokens_details",
                     "cached_tokens", (json_int_t)hearth_receipt_reused_tokens(receipt), "cache_write_tokens",
                     (json_int_t)receipt->computed_tokens, "output_tokens", output, "output_tokens_details",
                     "reasoning_tokens", (json_int_t)tally->reasoning_tokens, "total_tokens", input + output);
}

static json_t *receipt_json(const struct hearth_job *job, const struct hearth_tally *tally) {
    json_t *receipt = hearth_api_receipt_json(tally);
    if (job->resolved->stored != NULL && job->resolved->left_out > 0) {
        json_object_set_new(receipt, "truncated", json_pack("{s:I}", "messages", (json_int_t)job->resolved->left_out));
    }
    return receipt;
}

void hearth_response_add_cost(const struct hearth_job *job, json_t *object) {
    struct hearth_tally tally;
    hearth_tally_job(job, &tally);
    json_object_set_new(object, "usage", hearth_response_usage(&tally));
    json_object_set_new(object, "timings", hearth_timings_json(&tally));
    json_object_set_new(object, "hearth", receipt_json(job, &tally));
}

json_t *hearth_response_error(const struct hearth_api_error *error) {
    return json_pack("{s:s, s:o}", "code", error->status < 500 && error->code != NULL ? error->code : "server_error",
                     "message", hearth_api_json_text(error->message.text));
}

json_t *hearth_response_finished(json_t *object, struct hearth_digest id, int64_t created_unix,
                                 enum hearth_turn_status status, json_t *output) {
    char text[64];
    hearth_api_id_print(text, sizeof text, "resp_", id, -1);
    json_t *incomplete =
        status == HEARTH_TURN_INCOMPLETE ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null();
    json_t *fixed = json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", text, "object", "response", "created_at",
                              (json_int_t)created_unix, "status", hearth_turn_status_text(status), "output", output,
                              "incomplete_details", incomplete);
    json_t *nulls = json_pack("{s:n, s:n, s:n}", "error", "usage", "completed_at");
    json_object_update_missing(fixed, object);
    json_object_update_missing(fixed, nulls);
    json_decref(object);
    json_decref(nulls);
    return fixed;
}

json_t *hearth_response_json(struct hearth_job *job, enum hearth_turn_status status, bool last) {
    const struct hearth_response *response = job->dialect_state;
    json_t *object = json_copy(hearth_response_asked(job)->echo);
    if (last && !job->failed) {
        hearth_response_fill_output(job);
        hearth_response_add_cost(job, object);
        if (status == HEARTH_TURN_COMPLETED) {
            json_object_set_new(object, "completed_at", json_integer(response->completed_unix));
        }
    } else if (last && !job->cancelled) {
        json_object_set_new(object, "error", hearth_response_error(&job->error));
    }
    json_t *output = last ? json_incref(response->output) : json_array();
    return hearth_response_finished(object, job->id_bits, job->created_unix, status, output);
}
