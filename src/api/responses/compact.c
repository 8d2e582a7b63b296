/* POST /v1/responses/compact: a conversation, shortened by the model itself.
 *
 * The model is shown the conversation as it was, so that its state is reused, and behind it asked for a summary. What
 * is given back is a window to go on from: the last things that the user said, word for word, and the summary as an
 * item that only this server can read (items.c makes a message of it again). Tools and instructions that the request
 * does not name are those of the response that it goes on from: they stand in front of what is known.
 * Source: https://platform.openai.com/docs/api-reference/responses/compact */
#include "api/responses/responses.h"

#include <stdlib.h>
#include <string.h>

static const char question[] =
    "Write a summary of our conversation so far, for someone who has to go on with it and sees nothing else. Say what "
    "the user wants, what has been decided and done, what was found out (names, paths, numbers, errors: exactly), and "
    "what comes next. Write plain text and nothing but the summary.";

/* Shares of the context: for the summary (at most, also in tokens), and for the user's messages that are kept beside
 * it. */
#define SUMMARY_SHARE 8
#define SUMMARY_TOKENS 4096
#define SUMMARY_TOKENS_MIN 256 /* a smaller summary is at most half as long as what it stands for */
#define MESSAGES_SHARE 8
#define TOKEN_BYTES 4u

/* The last messages of the user, oldest first, that fit in a share of the context. */
static json_t *last_messages(const struct hearth_job *job) {
    const struct hearth_history *history = &job->resolved->history;
    const size_t room = job->api->engine->caps.ctx_tokens / MESSAGES_SHARE * TOKEN_BYTES;
    const size_t end = history->count - 1; /* without the question at the end */
    json_t *items = json_array();
    for (size_t i = end, bytes = 0; i-- > 0;) {
        const struct hearth_message *message = history->messages[i];
        if (message->role != HEARTH_ROLE_USER ||
            strncmp(message->content, HEARTH_SUMMARY_HEAD, strlen(HEARTH_SUMMARY_HEAD)) == 0) {
            continue;
        }
        bytes += message->content_len;
        if (bytes > room) {
            break;
        }
        json_array_insert_new(items, 0, hearth_api_item_text(HEARTH_ROLE_USER, message->content, message->content_len));
    }
    return items;
}

static json_t *whole(struct hearth_job *job) {
    const struct hearth_message *message = job->choices[0].message;
    struct hearth_tally tally;
    /* Where its limit has ended the reply within the thinking, that is all there is of the conversation. */
    const bool thought = message->content_len == 0 && message->reasoning != NULL;
    const char *text = thought ? message->reasoning : message->content;
    char *sealed =
        hearth_api_sealed_close(job->api, HEARTH_SEALED_SUMMARY, text, thought ? strlen(text) : message->content_len);
    if (sealed == NULL) {
        return NULL;
    }
    json_t *items = last_messages(job), *output = json_array(), *item;
    json_array_append_new(items, json_pack("{s:s, s:s}", "type", "compaction", "encrypted_content", sealed));
    size_t i;
    json_array_foreach(items, i, item) {
        json_array_append_new(output, hearth_api_item_printed(item, job->id_bits, i));
    }
    json_decref(items);
    free(sealed);
    hearth_tally_job(job, &tally);
    return json_pack("{s:s, s:s, s:I, s:o, s:o, s:o, s:o}", "id", job->id, "object", "response.compaction",
                     "created_at", (json_int_t)job->created_unix, "output", output, "usage",
                     hearth_response_usage(&tally), "timings", hearth_timings_json(&tally), "hearth",
                     hearth_api_receipt_json(&tally));
}

static int32_t reply_most(size_t prompt_tokens) {
    const size_t half = prompt_tokens / 2;
    return half > SUMMARY_TOKENS_MIN ? (int32_t)half : SUMMARY_TOKENS_MIN;
}

static const struct hearth_dialect compact_dialect = {
    .id_prefix = "resp_",
    .reply_most = reply_most,
    .whole = whole,
    .destroy = hearth_response_destroy,
};

/* The body with what a compaction asks for: its last item is the question. NULL: job->error is filled. */
static json_t *compact_body(struct hearth_job *job, const json_t *body) {
    static const char *const not_ours[] = {
        "store", "background", "stream", "conversation", "text", "include", "max_output_tokens", "tool_choice", "n"};
    json_t *items = hearth_inputs_get(job, hearth_api_json_get(body, "input"), "input", &job->error);
    json_t *copy = items != NULL ? json_copy((json_t *)(uintptr_t)body) : NULL;
    if (items == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof not_ours / sizeof not_ours[0]; i++) {
        json_object_del(copy, not_ours[i]);
    }
    const size_t share = job->api->engine->caps.ctx_tokens / SUMMARY_SHARE;
    const json_int_t most = (json_int_t)(share < SUMMARY_TOKENS ? share : SUMMARY_TOKENS);
    json_array_append_new(items, hearth_api_item_text(HEARTH_ROLE_USER, question, strlen(question)));
    json_object_set_new(copy, "input", items);
    json_object_set_new(copy, "max_output_tokens", json_integer(most));
    json_object_set_new(copy, "truncation", json_string("auto"));
    if (json_array_size(hearth_api_json_get(copy, "tools")) > 0) {
        json_object_set_new(copy, "tool_choice", json_string("none"));
    }
    return copy;
}

/* Takes instructions and tools from the response that the request continues, if the request has none. */
static void inherit(struct hearth_job *job, json_t *body) {
    const char *id = json_string_value(hearth_api_json_get(body, "previous_response_id"));
    struct hearth_digest digest;
    struct hearth_turn turn = {0};
    int index;
    if (id == NULL || !hearth_api_id_parse(id, &digest, &index) || index >= 0 ||
        hearth_turn_get(job->api->store, job->owner, digest, &turn) != HEARTH_OK) {
        return; /* the error is told later */
    }
    json_t *response = hearth_response_of_turn(&turn, job->api->model_name);
    hearth_turn_finish(&turn);
    json_t *tools = json_object_get(response, "tools"), *text = json_object_get(response, "instructions");
    if (hearth_api_json_get(body, "tools") == NULL && json_array_size(tools) > 0) {
        json_object_set(body, "tools", tools);
    }
    if (hearth_api_json_get(body, "instructions") == NULL && json_is_string(text)) {
        json_object_set(body, "instructions", text);
    }
    json_decref(response);
}

bool hearth_responses_compact_prepare(struct hearth_job *job, const json_t *body) {
    if (hearth_api_json_get(body, "input") == NULL && hearth_api_json_get(body, "previous_response_id") == NULL) {
        return hearth_api_fail(&job->error, 400, "missing_required_parameter", "input",
                               "input or previous_response_id is needed");
    }
    json_t *own = json_copy((json_t *)(uintptr_t)body);
    inherit(job, own);
    json_t *asked = compact_body(job, own);
    const bool ok = asked != NULL && hearth_responses_read(job, asked, &compact_dialect, false);
    json_decref(own);
    json_decref(asked);
    return ok;
}
