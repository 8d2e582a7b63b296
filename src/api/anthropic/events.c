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
#include "api/divergence.h"

#include <stdlib.h>
#include <string.h>

#define HOUR_US ((int64_t)3600 * 1000000)

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL };

struct hearth_anthropic_state {
    bool omits_thinking; /* thinking.display: "omitted" */
    bool diagnoses;
    char *previous_id; /* diagnostics.previous_message_id, or NULL */
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
    free(state);
}

static bool all_space(const char *text, size_t len) {
    (void)hearth_message_trim(text, &len);
    return len == 0;
}

/* ---- what it has cost ---- */

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

/* Here the tokens of a prompt fall into three parts: read from the cache, written to it (those that had to be computed
 * up to the last breakpoint), and the rest. State is kept and found whether a client marks it or not, so reads are told
 * in any case; without breakpoints everything that was computed is the rest. `total`: also the members that a stream's
 * last event leaves out. `known_tokens`: the prompt's length, used until there is a receipt. */
static json_t *usage_json(const struct hearth_job *job, uint32_t known_tokens, bool total) {
    const struct hearth_choice *choice = &job->choices[0];
    const struct hearth_receipt *receipt = &choice->receipt;
    const uint32_t cached = hearth_receipt_reused_tokens(receipt);
    const bool known = receipt->prompt_tokens > 0;
    const json_int_t prompt = known ? receipt->prompt_tokens : known_tokens;
    const json_int_t created = known ? written(job, cached, 1) : 0;
    const json_int_t created_1h = known ? written(job, cached, HOUR_US) : 0;
    json_t *lives = total ? json_pack("{s:I, s:I}", "ephemeral_5m_input_tokens", created - created_1h,
                                      "ephemeral_1h_input_tokens", created_1h)
                          : NULL;
    return json_pack("{s:I, s:I, s:I, s:I, s:{s:I}, s:o*, s:s*}", "input_tokens", prompt - (json_int_t)cached - created,
                     "cache_creation_input_tokens", created, "cache_read_input_tokens", (json_int_t)cached,
                     "output_tokens", (json_int_t)choice->generated_tokens, "output_tokens_details", "thinking_tokens",
                     (json_int_t)choice->reasoning_tokens, "cache_creation", lives, "service_tier",
                     total ? "standard" : NULL);
}

/* Why the prompt left an earlier one, in Anthropic's words; JSON null: it did not. */
static json_t *diagnostics_json(const struct hearth_job *job) {
    const struct hearth_divergence *divergence = job->rendered->divergence;
    const struct hearth_diagnosis *diagnosis = divergence != NULL ? &divergence->diagnosis : NULL;
    const char *previous_id = ((const struct hearth_anthropic_state *)job->dialect_state)->previous_id;
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
                     (json_int_t)job->choices[0].receipt.computed_tokens);
}

/* ---- the message ---- */

/* Makes a message of what it is given and takes: `reason` and `sequence` may be NULL, `receipt` too. */
static json_t *message_json(const struct hearth_job *job, json_t *content, const char *reason, const char *sequence,
                            json_t *usage, json_t *receipt) {
    const struct hearth_anthropic_state *state = job->dialect_state;
    const char *model = job->parsed->generation.model != NULL ? job->parsed->generation.model : job->api->model_name;
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o*, s:s?, s:o?, s:o, s:o*}", "id", job->id, "type", "message", "role",
                     "assistant", "model", model, "content", content, "diagnostics",
                     state->diagnoses ? diagnostics_json(job) : NULL, "stop_reason", reason, "stop_sequence",
                     hearth_api_json_text(sequence), "usage", usage, "hearth", receipt);
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
    return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", hearth_api_json_text(shown), "signature",
                     signature);
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
                     hearth_api_json_text(call->name), "input", input);
}

static json_t *content_json(const struct hearth_job *job) {
    const struct hearth_message *message = job->choices[0].message;
    json_t *content = json_array();
    if (message->reasoning != NULL && !all_space(message->reasoning, strlen(message->reasoning))) {
        json_array_append_new(content, thinking_json(job, message->reasoning));
    }
    if (!all_space(message->content, message->content_len)) {
        json_array_append_new(content, json_pack("{s:s, s:o}", "type", "text", "text",
                                                 hearth_json_text(message->content, message->content_len)));
    }
    for (size_t i = 0; i < message->call_count; i++) {
        json_array_append_new(content, call_json(&message->calls[i]));
    }
    return content;
}

static json_t *whole(struct hearth_job *job) {
    const struct hearth_choice *choice = &job->choices[0];
    return message_json(job, content_json(job), stop_reason(choice), choice->stop, usage_json(job, 0, true),
                        receipt_json(job));
}

/* ---- events ---- */

static bool ping(struct hearth_job *job, struct hearth_buf *out) {
    (void)job;
    return hearth_sse(out, "ping", json_pack("{s:s}", "type", "ping"));
}

static bool begin(struct hearth_job *job, struct hearth_buf *out) {
    json_t *message =
        message_json(job, json_array(), NULL, NULL, usage_json(job, job->rendered->first_tokens, true), NULL);
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
        if (!close_block(job, out) ||
            !open_block(job, BLOCK_CALL,
                        json_pack("{s:s, s:o, s:o, s:{}}", "type", "tool_use", "id", id_json(delta->call_id), "name",
                                  hearth_api_json_text(delta->call_name), "input"),
                        out)) {
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
    json_t *event = json_pack("{s:s, s:{s:s, s:o?}, s:o, s:o}", "type", "message_delta", "delta", "stop_reason",
                              stop_reason(choice), "stop_sequence", hearth_api_json_text(choice->stop), "usage",
                              usage_json(job, 0, false), "hearth", receipt_json(job));
    return hearth_sse(out, "message_delta", event) &&
           hearth_sse(out, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

static bool fail(struct hearth_job *job, struct hearth_buf *out) {
    return hearth_sse(out, "error", hearth_api_error_json_anthropic(&job->error, job->request_id));
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
