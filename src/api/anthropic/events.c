/* The reply as a message of content blocks, whole or as events.
 *
 * In a stream a block begins with its first piece and ends when a piece of another kind comes, or the reply does: so
 * thinking, text and each call are blocks in the order in which they come. Text that is only white space makes no block
 * (models put some between thinking, text and calls); it is held back until something follows it in the same block. The
 * message's end is told when it has been kept.
 *
 *     message_start  ping  [content_block_start  content_block_delta …  content_block_stop] …  message_delta
 *     message_stop
 *
 * A thinking block ends with its signature. Where the client wants thinking left out, its text is; the block stands. */
#include "api/anthropic/anthropic.h"

#include <stdlib.h>
#include <string.h>

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL };

struct hearth_anthropic_state {
    bool omits_thinking; /* thinking.display: "omitted" */
    bool diagnoses;
    char *previous_id; /* diagnostics.previous_message_id, or NULL */
    char *request_id;
    /* Of a stream. */
    enum block open;
    json_int_t index;           /* of the open block, or of the next one */
    struct hearth_buf thinking; /* the open block's, for its signature */
    struct hearth_buf space;    /* white space that waits for text */
};

struct hearth_anthropic_state *hearth_anthropic_state_create(const json_t *body) {
    struct hearth_anthropic_state *state = calloc(1, sizeof *state);
    const json_t *display = json_object_get(hearth_api_json_get(body, "thinking"), "display");
    const json_t *diagnostics = hearth_api_json_get(body, "diagnostics");
    const char *previous = json_string_value(json_object_get(diagnostics, "previous_message_id"));
    if (state == NULL) {
        return NULL;
    }
    state->omits_thinking = json_is_string(display) && strcmp(json_string_value(display), "omitted") == 0;
    state->diagnoses = json_is_object(diagnostics);
    if (previous != NULL && (state->previous_id = strdup(previous)) == NULL) {
        free(state);
        return NULL;
    }
    return state;
}

static void state_destroy(void *opaque) {
    struct hearth_anthropic_state *state = opaque;
    hearth_buf_finish(&state->thinking);
    hearth_buf_finish(&state->space);
    free(state->previous_id);
    free(state->request_id);
    free(state);
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool all_space(const char *text, size_t len) {
    while (len > 0 && is_space(text[len - 1])) {
        len--;
    }
    return len == 0;
}

/* ---- the message ---- */

/* Makes a message without content, stop and usage. */
static json_t *message_json(const struct hearth_job *job) {
    const struct hearth_anthropic_state *state = job->dialect_state;
    const char *model = job->parsed->generation.model != NULL ? job->parsed->generation.model : job->api->model_name;
    json_t *message = json_pack("{s:s, s:s, s:s, s:s, s:[]}", "id", job->id, "type", "message", "role", "assistant",
                                "model", model, "content");
    if (message != NULL && state->diagnoses &&
        json_object_set_new(message, "diagnostics", hearth_anthropic_diagnostics(job, state->previous_id)) < 0) {
        json_decref(message);
        return NULL;
    }
    return message;
}

static const char *stop_reason(const struct hearth_choice *choice) {
    if (choice->stop != NULL) {
        return "stop_sequence";
    }
    if (choice->cut) {
        return "max_tokens";
    }
    return choice->message->call_count > 0 ? "tool_use" : "end_turn";
}

static json_t *receipt_json(const struct hearth_job *job) {
    struct hearth_tally tally;
    hearth_tally_job(job, &tally);
    return hearth_api_receipt_json(&tally);
}

static json_t *thinking_json(const struct hearth_job *job, const char *text) {
    const struct hearth_anthropic_state *state = job->dialect_state;
    char signature[HEARTH_SIGNATURE_CHARS + 1];
    const char *shown = state->omits_thinking ? "" : text;
    if (!hearth_signature_make(job->api, shown, strlen(shown), signature)) {
        return NULL;
    }
    return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", hearth_json_text(shown, strlen(shown)),
                     "signature", signature);
}

static json_t *id_json(const char *id) {
    char *printed = hearth_anthropic_id_printed(id != NULL ? id : "");
    json_t *value = printed != NULL ? json_string(printed) : NULL;
    free(printed);
    return value;
}

static json_t *call_json(const struct hearth_call *call) {
    json_t *input = json_is_object(call->parsed) ? json_incref(call->parsed) : json_object();
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "tool_use", "id", id_json(call->id), "name",
                     hearth_json_text(call->name, strlen(call->name)), "input", input);
}

static json_t *content_json(const struct hearth_job *job) {
    const struct hearth_message *message = job->choices[0].message;
    json_t *content = json_array();
    bool ok = content != NULL;
    if (ok && message->reasoning != NULL && !all_space(message->reasoning, strlen(message->reasoning))) {
        ok = json_array_append_new(content, thinking_json(job, message->reasoning)) == 0;
    }
    if (ok && !all_space(message->content, message->content_len)) {
        ok = json_array_append_new(content, json_pack("{s:s, s:o}", "type", "text", "text",
                                                      hearth_json_text(message->content, message->content_len))) == 0;
    }
    for (size_t i = 0; ok && i < message->call_count; i++) {
        ok = json_array_append_new(content, call_json(&message->calls[i])) == 0;
    }
    if (!ok) {
        json_decref(content);
        return NULL;
    }
    return content;
}

static json_t *whole(struct hearth_job *job) {
    const struct hearth_choice *choice = &job->choices[0];
    json_t *message = message_json(job);
    if (json_object_set_new(message, "content", content_json(job)) < 0 ||
        json_object_set_new(message, "stop_reason", json_string(stop_reason(choice))) < 0 ||
        json_object_set_new(message, "stop_sequence",
                            choice->stop != NULL ? hearth_json_text(choice->stop, strlen(choice->stop)) : json_null()) <
            0 ||
        json_object_set_new(message, "usage", hearth_anthropic_usage(job, 0, true)) < 0 ||
        json_object_set_new(message, "hearth", receipt_json(job)) < 0) {
        json_decref(message);
        return NULL;
    }
    return message;
}

/* ---- events ---- */

static bool ping(struct hearth_job *job, struct hearth_buf *out) {
    (void)job;
    return hearth_sse(out, "ping", json_pack("{s:s}", "type", "ping"));
}

static bool begin(struct hearth_job *job, struct hearth_buf *out) {
    struct hearth_anthropic_state *state = job->dialect_state;
    json_t *message = message_json(job);
    if (job->exchange != NULL) {
        state->request_id = strdup(hearth_http_request_id(job->exchange));
    }
    if (json_object_set_new(message, "stop_reason", json_null()) < 0 ||
        json_object_set_new(message, "stop_sequence", json_null()) < 0 ||
        json_object_set_new(message, "usage", hearth_anthropic_usage(job, job->rendered->first_tokens, true)) < 0) {
        json_decref(message);
        return false;
    }
    return hearth_sse(out, "message_start", json_pack("{s:s, s:o}", "type", "message_start", "message", message)) &&
           ping(job, out);
}

/* Prints a delta of the open block; takes `delta`. */
static bool print_delta(const struct hearth_anthropic_state *state, json_t *delta, struct hearth_buf *out) {
    return hearth_sse(
        out, "content_block_delta",
        json_pack("{s:s, s:I, s:o}", "type", "content_block_delta", "index", state->index, "delta", delta));
}

static bool print_signature(const struct hearth_job *job, struct hearth_buf *out) {
    const struct hearth_anthropic_state *state = job->dialect_state;
    char signature[HEARTH_SIGNATURE_CHARS + 1];
    return hearth_signature_make(job->api, (const char *)state->thinking.data, state->thinking.len, signature) &&
           print_delta(state, json_pack("{s:s, s:s}", "type", "signature_delta", "signature", signature), out);
}

static bool close_block(const struct hearth_job *job, struct hearth_buf *out) {
    struct hearth_anthropic_state *state = job->dialect_state;
    bool ok = state->open != BLOCK_THINKING || print_signature(job, out);
    state->space.len = state->thinking.len = 0;
    if (ok && state->open != BLOCK_NONE) {
        ok = hearth_sse(out, "content_block_stop",
                        json_pack("{s:s, s:I}", "type", "content_block_stop", "index", state->index));
        state->index++;
    }
    state->open = BLOCK_NONE;
    return ok;
}

/* Begins a block; takes `block`. */
static bool open_block(const struct hearth_job *job, enum block kind, json_t *content, struct hearth_buf *out) {
    struct hearth_anthropic_state *state = job->dialect_state;
    state->open = kind;
    return hearth_sse(
        out, "content_block_start",
        json_pack("{s:s, s:I, s:o}", "type", "content_block_start", "index", state->index, "content_block", content));
}

static bool print_thinking(const struct hearth_job *job, const char *text, size_t len, struct hearth_buf *out) {
    struct hearth_anthropic_state *state = job->dialect_state;
    if (state->open != BLOCK_THINKING) {
        if (all_space(text, len)) { /* signatures ignore white space around a text, so nothing is lost */
            return true;
        }
        if (!close_block(job, out) ||
            !open_block(job, BLOCK_THINKING,
                        json_pack("{s:s, s:s, s:s}", "type", "thinking", "thinking", "", "signature", ""), out)) {
            return false;
        }
    }
    return state->omits_thinking ||
           (hearth_buf_append(&state->thinking, text, len) &&
            print_delta(state,
                        json_pack("{s:s, s:o}", "type", "thinking_delta", "thinking", hearth_json_text(text, len)),
                        out));
}

static bool print_text(const struct hearth_job *job, const char *text, size_t len, struct hearth_buf *out) {
    struct hearth_anthropic_state *state = job->dialect_state;
    if (state->open != BLOCK_TEXT) {
        if (all_space(text, len)) {
            return hearth_buf_append(&state->space, text, len);
        }
        struct hearth_buf space = state->space; /* this block's own white space */
        state->space = (struct hearth_buf){0};
        bool ok = close_block(job, out) &&
                  open_block(job, BLOCK_TEXT, json_pack("{s:s, s:s}", "type", "text", "text", ""), out) &&
                  hearth_buf_append(&space, text, len) &&
                  print_delta(state,
                              json_pack("{s:s, s:o}", "type", "text_delta", "text",
                                        hearth_json_text((const char *)space.data, space.len)),
                              out);
        hearth_buf_finish(&space);
        return ok;
    }
    return print_delta(state, json_pack("{s:s, s:o}", "type", "text_delta", "text", hearth_json_text(text, len)), out);
}

static bool print_call(const struct hearth_job *job, const struct hearth_chat_delta *delta, struct hearth_buf *out) {
    struct hearth_anthropic_state *state = job->dialect_state;
    if (delta->call_name != NULL) {
        json_t *content = json_pack("{s:s, s:o, s:o, s:{}}", "type", "tool_use", "id", id_json(delta->call_id), "name",
                                    hearth_json_text(delta->call_name, strlen(delta->call_name)), "input");
        if (!close_block(job, out)) {
            json_decref(content);
            return false;
        }
        if (!open_block(job, BLOCK_CALL, content, out)) {
            return false;
        }
    }
    const char *piece = delta->arguments != NULL ? delta->arguments : "";
    return print_delta(state,
                       json_pack("{s:s, s:o}", "type", "input_json_delta", "partial_json",
                                 hearth_json_text(piece, delta->arguments != NULL ? delta->arguments_len : 0)),
                       out);
}

static bool print_piece(struct hearth_choice *choice, const struct hearth_chat_delta *delta, struct hearth_buf *out) {
    const struct hearth_job *job = choice->job;
    return (delta->reasoning_len == 0 || print_thinking(job, delta->reasoning, delta->reasoning_len, out)) &&
           (delta->content_len == 0 || print_text(job, delta->content, delta->content_len, out)) &&
           (delta->call == HEARTH_CHAT_NO_CALL || print_call(job, delta, out));
}

static bool end(struct hearth_choice *choice, struct hearth_buf *out) {
    return close_block(choice->job, out);
}

static bool finish(struct hearth_job *job, struct hearth_buf *out) {
    const struct hearth_choice *choice = &job->choices[0];
    json_t *event = json_pack("{s:s, s:{s:s, s:o}, s:o, s:o}", "type", "message_delta", "delta", "stop_reason",
                              stop_reason(choice), "stop_sequence",
                              choice->stop != NULL ? hearth_json_text(choice->stop, strlen(choice->stop)) : json_null(),
                              "usage", hearth_anthropic_usage(job, 0, false), "hearth", receipt_json(job));
    return hearth_sse(out, "message_delta", event) &&
           hearth_sse(out, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

static bool fail(struct hearth_job *job, const struct hearth_api_error *error, struct hearth_buf *out) {
    const struct hearth_anthropic_state *state = job->dialect_state;
    return hearth_sse(out, "error", hearth_api_error_json_anthropic(error, state->request_id));
}

/* What is stored with a turn for printing it again. */
static json_t *record(struct hearth_job *job, enum hearth_turn_status status) {
    const struct hearth_choice *choice = &job->choices[0];
    if (status == HEARTH_TURN_FAILED || choice->message == NULL) {
        return json_object();
    }
    return json_pack("{s:s, s:s*}", "stop_reason", stop_reason(choice), "stop_sequence", choice->stop);
}

const struct hearth_dialect hearth_anthropic_dialect = {
    .id_prefix = "msg_",
    .begin = begin,
    .delta = print_piece,
    .end = end,
    .finish = finish,
    .fail = fail,
    .ping = ping,
    .whole = whole,
    .record = record,
    .destroy = state_destroy,
};
