/* A response as it grows.
 *
 *     response.created, response.in_progress
 *     for each item:  output_item.added, its parts and deltas, what they came to, output_item.done
 *     response.completed | response.incomplete | response.failed
 *
 * Every event has its name twice (the event line and "type") and a number. One item grows at a time: a piece of another
 * one ends it. What was sent is what the last event says, so items are kept as they were sent.
 *
 * A custom tool's call is JSON around its text as the model writes it: its text is sent when it is complete.
 * Source: https://platform.openai.com/docs/api-reference/responses-streaming */
#include "api/responses/responses.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

enum kind { REASONING, MESSAGE, CALL };

struct hearth_response_item {
    enum kind kind;
    size_t index; /* in the output */
    char id[64];
    size_t call;            /* index of a call, as deltas count them */
    char *call_id, *name;   /* of a call */
    const json_t *what;     /* what its name stands for (hearth_offers_read()); NULL: a plain function */
    struct hearth_buf text; /* so far: text, reasoning, arguments */
    json_t *logprobs;
};

void hearth_response_item_destroy(struct hearth_response_item *item) {
    if (item != NULL) {
        hearth_buf_finish(&item->text);
        json_decref(item->logprobs);
        free(item->call_id);
        free(item->name);
        free(item);
    }
}

static bool is_custom(const struct hearth_response_item *item) {
    return json_is_true(json_object_get(item->what, "custom"));
}

/* The name of a call as the client knows it. */
static json_t *own_name(const struct hearth_response_item *item) {
    const json_t *own = json_object_get(item->what, "name");
    return own != NULL ? json_incref((json_t *)(uintptr_t)own) : hearth_api_json_text(item->name);
}

/* Adds members to an object; takes both. NULL: one of them is. */
static json_t *join(json_t *object, json_t *members) {
    if (json_object_update(object, members) < 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(members);
    return object;
}

/* Sends one event; takes its members. */
static bool send(struct hearth_job *job, struct hearth_buf *out, const char *type, json_t *members) {
    struct hearth_response *response = job->dialect_state;
    const json_int_t sequence = (json_int_t)response->sequence++;
    return hearth_sse(out, type, join(json_pack("{s:s, s:I}", "type", type, "sequence_number", sequence), members));
}

/* Sends an event of the open item. */
static bool send_of_item(struct hearth_job *job, struct hearth_buf *out, const char *type, json_t *members) {
    const struct hearth_response *response = job->dialect_state;
    const json_int_t index = (json_int_t)response->open->index;
    return send(job, out, type,
                join(json_pack("{s:s, s:I}", "item_id", response->open->id, "output_index", index), members));
}

/* Sends an event of the open item's first part: `name` ("part", "text" or "delta") holds what it says. */
static bool send_part(struct hearth_job *job, struct hearth_buf *out, const char *type, const char *place,
                      const char *name, json_t *value) {
    return send_of_item(job, out, type, json_pack("{s:i, s:o}", place, 0, name, value));
}

static json_t *text_part(const char *type, const struct hearth_buf *text, json_t *logprobs) {
    json_t *part = json_pack("{s:s, s:o}", "type", type, "text", hearth_json_text((const char *)text->data, text->len));
    if (strcmp(type, "output_text") == 0) {
        json_object_set_new(part, "annotations", json_array());
        json_object_set_new(part, "logprobs", logprobs != NULL ? json_incref(logprobs) : json_array());
    }
    return part;
}

/* ---- the open item ---- */

/* The item before any of its content has come. */
static json_t *empty_item(const struct hearth_response_item *item) {
    switch (item->kind) {
    case REASONING:
        return json_pack("{s:s, s:s, s:s, s:[], s:[]}", "id", item->id, "type", "reasoning", "status", "in_progress",
                         "summary", "content");
    case MESSAGE:
        return json_pack("{s:s, s:s, s:s, s:s, s:[]}", "id", item->id, "type", "message", "status", "in_progress",
                         "role", "assistant", "content");
    case CALL: break;
    }
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:O*, s:s}", "id", item->id, "type",
                     is_custom(item) ? "custom_tool_call" : "function_call", "status", "in_progress", "call_id",
                     hearth_api_json_text(item->call_id), "name", own_name(item), "namespace",
                     json_object_get(item->what, "namespace"), is_custom(item) ? "input" : "arguments", "");
}

static bool send_added(struct hearth_job *job, struct hearth_buf *out) {
    static const struct hearth_buf nothing = {0};
    const struct hearth_response *response = job->dialect_state;
    const struct hearth_response_item *item = response->open;
    bool ok = send(job, out, "response.output_item.added",
                   json_pack("{s:I, s:o}", "output_index", (json_int_t)item->index, "item", empty_item(item)));
    if (item->kind != CALL) {
        const char *type = item->kind == MESSAGE ? "output_text" : "reasoning_text";
        ok = ok && send_part(job, out, "response.content_part.added", "content_index", "part",
                             text_part(type, &nothing, NULL));
    }
    if (item->kind == REASONING && hearth_response_asked(job)->summarises) {
        ok = ok && send_part(job, out, "response.reasoning_summary_part.added", "summary_index", "part",
                             text_part("summary_text", &nothing, NULL));
    }
    return ok;
}

static const char *prefix_of(const struct hearth_response_item *item) {
    return item->kind == REASONING ? "rs_" : item->kind == MESSAGE ? "msg_" : is_custom(item) ? "ctc_" : "fc_";
}

/* Begins an item; `delta` is a call's first. */
static bool open_item(struct hearth_job *job, enum kind kind, const struct hearth_chat_delta *delta,
                      struct hearth_buf *out) {
    struct hearth_response *response = job->dialect_state;
    struct hearth_response_item *item = hearth_memory_calloc(1, sizeof *item);
    if (item == NULL) {
        return false;
    }
    response->open = item;
    item->kind = kind;
    item->index = json_array_size(response->output);
    item->call = kind == CALL ? delta->call : HEARTH_CHAT_NO_CALL;
    if (kind == CALL) {
        item->call_id = hearth_memory_strdup(delta->call_id != NULL ? delta->call_id : "");
        item->name = hearth_memory_strdup(delta->call_name != NULL ? delta->call_name : "");
        if (item->call_id == NULL || item->name == NULL) {
            return false;
        }
        item->what = json_object_get(hearth_response_asked(job)->names, item->name);
    }
    hearth_api_id_print(item->id, sizeof item->id, prefix_of(item), job->id_bits,
                        (int)(hearth_response_asked(job)->first_index + item->index));
    return send_added(job, out);
}

/* Sends the complete texts of the open item; `done` is the item as it is printed. */
static bool send_texts(struct hearth_job *job, const json_t *done, struct hearth_buf *out) {
    const struct hearth_response *response = job->dialect_state;
    struct hearth_response_item *item = response->open;
    json_t *text = hearth_json_text((const char *)item->text.data, item->text.len);
    bool ok;
    if (item->kind == MESSAGE) {
        json_t *logprobs = item->logprobs != NULL ? json_incref(item->logprobs) : json_array();
        ok = send_of_item(job, out, "response.output_text.done",
                          json_pack("{s:i, s:O, s:o}", "content_index", 0, "text", text, "logprobs", logprobs)) &&
             send_part(job, out, "response.content_part.done", "content_index", "part",
                       text_part("output_text", &item->text, item->logprobs));
    } else if (item->kind == REASONING) {
        ok = send_part(job, out, "response.reasoning_text.done", "content_index", "text", json_incref(text)) &&
             send_part(job, out, "response.content_part.done", "content_index", "part",
                       text_part("reasoning_text", &item->text, NULL));
        if (ok && hearth_response_asked(job)->summarises) {
            ok = send_part(job, out, "response.reasoning_summary_text.done", "summary_index", "text",
                           json_incref(text)) &&
                 send_part(job, out, "response.reasoning_summary_part.done", "summary_index", "part",
                           text_part("summary_text", &item->text, NULL));
        }
    } else if (is_custom(item)) {
        json_t *input = json_object_get(done, "input");
        ok = send_of_item(job, out, "response.custom_tool_call_input.delta", json_pack("{s:O}", "delta", input)) &&
             send_of_item(job, out, "response.custom_tool_call_input.done", json_pack("{s:O}", "input", input));
    } else {
        ok = send_of_item(job, out, "response.function_call_arguments.done",
                          json_pack("{s:o, s:O}", "name", own_name(item), "arguments", text));
    }
    json_decref(text);
    return ok;
}

/* The open item in its stored form. */
static json_t *stored_item(const struct hearth_response_item *item) {
    const char *text = item->text.len > 0 ? (const char *)item->text.data : "";
    if (item->kind == MESSAGE) {
        return hearth_api_item_text(HEARTH_ROLE_ASSISTANT, text, item->text.len);
    }
    if (item->kind == REASONING) {
        return hearth_api_item_reasoning(text, item->text.len);
    }
    return hearth_api_item_call(item->call_id, item->name, text, item->text.len);
}

/* Ends the open item, if there is one. `cut`: the reply broke off in it. */
static bool close_item(struct hearth_job *job, bool cut, struct hearth_buf *out) {
    struct hearth_response *response = job->dialect_state;
    struct hearth_response_item *item = response->open;
    if (item == NULL) {
        return true;
    }
    json_t *stored = stored_item(item);
    json_t *extra = hearth_response_extra(job, item->kind == REASONING ? (const char *)item->text.data : NULL,
                                          item->text.len, item->logprobs, cut);
    json_t *done =
        hearth_response_item(stored, hearth_response_asked(job)->names, hearth_response_asked(job)->summarises, extra,
                             job->id_bits, hearth_response_asked(job)->first_index + item->index);
    const bool ok = send_texts(job, done, out) &&
                    send(job, out, "response.output_item.done",
                         json_pack("{s:I, s:O}", "output_index", (json_int_t)item->index, "item", done));
    json_array_append_new(response->extras, extra);
    json_array_append_new(response->output, done);
    json_decref(stored);
    hearth_response_item_destroy(item);
    response->open = NULL;
    return ok;
}

/* Makes sure that the open item is one of this kind (and call). */
static bool need_item(struct hearth_job *job, enum kind kind, const struct hearth_chat_delta *delta,
                      struct hearth_buf *out) {
    struct hearth_response *response = job->dialect_state;
    const struct hearth_response_item *open = response->open;
    if (open != NULL && open->kind == kind && (kind != CALL || open->call == delta->call)) {
        return true;
    }
    return close_item(job, false, out) && open_item(job, kind, delta, out);
}

/* ---- deltas ---- */

/* Takes the log-probabilities that have come with a piece of text; they are kept with the item. NULL: out of memory. */
static json_t *take_logprobs(struct hearth_choice *choice, struct hearth_response_item *item) {
    json_t *entries = choice->logprobs;
    choice->logprobs = NULL;
    if (entries == NULL) {
        return json_array();
    }
    if (item->logprobs == NULL) {
        item->logprobs = json_array();
    }
    json_array_extend(item->logprobs, entries);
    return entries;
}

static bool add_content(struct hearth_choice *choice, const struct hearth_chat_delta *delta, struct hearth_buf *out) {
    struct hearth_job *job = choice->job;
    const struct hearth_response *response = job->dialect_state;
    if (!need_item(job, MESSAGE, delta, out)) {
        return false;
    }
    struct hearth_response_item *item = response->open;
    return hearth_buf_append(&item->text, delta->content, delta->content_len) &&
           send_of_item(job, out, "response.output_text.delta",
                        json_pack("{s:i, s:o, s:o}", "content_index", 0, "delta",
                                  hearth_json_text(delta->content, delta->content_len), "logprobs",
                                  take_logprobs(choice, item)));
}

static bool add_reasoning(struct hearth_job *job, const struct hearth_chat_delta *delta, struct hearth_buf *out) {
    const struct hearth_response *response = job->dialect_state;
    if (!need_item(job, REASONING, delta, out) ||
        !hearth_buf_append(&response->open->text, delta->reasoning, delta->reasoning_len)) {
        return false;
    }
    json_t *piece = hearth_json_text(delta->reasoning, delta->reasoning_len);
    const bool ok =
        send_part(job, out, "response.reasoning_text.delta", "content_index", "delta", json_incref(piece)) &&
        (!hearth_response_asked(job)->summarises ||
         send_part(job, out, "response.reasoning_summary_text.delta", "summary_index", "delta", json_incref(piece)));
    json_decref(piece);
    return ok;
}

static bool add_call(struct hearth_job *job, const struct hearth_chat_delta *delta, struct hearth_buf *out) {
    const struct hearth_response *response = job->dialect_state;
    if (!need_item(job, CALL, delta, out)) {
        return false;
    }
    struct hearth_response_item *item = response->open;
    return delta->arguments_len == 0 ||
           (hearth_buf_append(&item->text, delta->arguments, delta->arguments_len) &&
            (is_custom(item) ||
             send_of_item(job, out, "response.function_call_arguments.delta",
                          json_pack("{s:o}", "delta", hearth_json_text(delta->arguments, delta->arguments_len)))));
}

bool hearth_response_events_delta(struct hearth_choice *choice, const struct hearth_chat_delta *delta,
                                  struct hearth_buf *out) {
    struct hearth_job *job = choice->job;
    if (delta->content == NULL && choice->logprobs != NULL) { /* of tokens without text */
        json_decref(choice->logprobs);
        choice->logprobs = NULL;
    }
    return (delta->reasoning == NULL || delta->reasoning_len == 0 || add_reasoning(job, delta, out)) &&
           (delta->content == NULL || delta->content_len == 0 || add_content(choice, delta, out)) &&
           (delta->call == HEARTH_CHAT_NO_CALL || add_call(job, delta, out));
}

/* ---- beginning and end ---- */

static bool send_response(struct hearth_job *job, struct hearth_buf *out, const char *type,
                          enum hearth_turn_status status, bool last) {
    return send(job, out, type, json_pack("{s:o}", "response", hearth_response_json(job, status, last)));
}

bool hearth_response_events_begin(struct hearth_job *job, struct hearth_buf *out) {
    return send_response(job, out, "response.created",
                         hearth_response_asked(job)->background ? HEARTH_TURN_QUEUED : HEARTH_TURN_IN_PROGRESS,
                         false) &&
           send_response(job, out, "response.in_progress", HEARTH_TURN_IN_PROGRESS, false);
}

bool hearth_response_events_end(struct hearth_choice *choice, struct hearth_buf *out) {
    struct hearth_job *job = choice->job;
    const struct hearth_response *response = job->dialect_state;
    if (response->open == NULL && json_array_size(response->output) == 0 && !open_item(job, MESSAGE, NULL, out)) {
        return false; /* an empty reply has an empty text */
    }
    return close_item(job, choice->cut, out);
}

bool hearth_response_events_finish(struct hearth_job *job, struct hearth_buf *out) {
    const enum hearth_turn_status status = hearth_response_status(job);
    hearth_conversation_unlock(job->resolved->lock);
    return send_response(job, out,
                         status == HEARTH_TURN_COMPLETED   ? "response.completed"
                         : status == HEARTH_TURN_CANCELLED ? "response.cancelled"
                                                           : "response.incomplete",
                         status, true);
}

bool hearth_response_events_fail(struct hearth_job *job, struct hearth_buf *out) {
    hearth_conversation_unlock(job->resolved->lock);
    return send_response(job, out, job->cancelled ? "response.cancelled" : "response.failed",
                         job->cancelled ? HEARTH_TURN_CANCELLED : HEARTH_TURN_FAILED, true);
}

bool hearth_response_events_overflow(struct hearth_job *job, struct hearth_buf *out) {
    if (!hearth_overflow_compacts(job)) {
        return hearth_response_events_fail(job, out);
    }
    hearth_conversation_unlock(job->resolved->lock);
    return send(job, out, "response.completed", json_pack("{s:o}", "response", hearth_overflow_json(job)));
}

bool hearth_response_events_ping(struct hearth_job *job, struct hearth_buf *out) {
    return send(job, out, "keepalive", json_object());
}
