/* Events to a response, whole or streamed.
 *
 * The text of a chat goes through a hearth_chat_stream, which tells content, reasoning and calls apart: its deltas
 * become chunks, its end the choice's message. That is remembered before anything says that the reply is complete, for
 * a client's next request may come at once. Plain completions are their text.
 *
 * A whole response is written when the last choice is done. A stream begins with its first event (so that an error
 * before it is still a status), then per choice a first chunk, chunks of text, and a last one with finish_reason,
 * timings and receipt; after all of them a chunk with usage if that was asked for, and [DONE]. Source:
 * https://platform.openai.com/docs/api-reference/chat/streaming; timings as llama-server prints them. */
#include "api/api_internal.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

static const char sse_done[] = "data: [DONE]\n\n";

static void end_stream(struct hearth_job *job) {
    struct hearth_http_exchange *exchange = job->exchange;
    job->exchange = NULL;
    hearth_http_end(exchange);
}

void hearth_reply_fail(struct hearth_job *job, const struct hearth_api_error *error) {
    struct hearth_http_exchange *exchange = job->exchange;
    hearth_job_cancel(job);
    if (!job->begun) {
        job->exchange = NULL;
        hearth_api_respond_error(exchange, error);
        return;
    }
    struct hearth_buf line = {0};
    if (hearth_buf_text(&line, "data: ") && hearth_json_write(hearth_api_error_json(error), &line) &&
        hearth_buf_text(&line, "\n\n")) {
        hearth_http_write(exchange, line.data, line.len);
    }
    hearth_buf_finish(&line);
    end_stream(job);
}

static void fail_nomem(struct hearth_job *job) {
    struct hearth_api_error error;
    hearth_api_fail_nomem(&error);
    hearth_reply_fail(job, &error);
}

/* The members that every response and chunk has; `choices` is given up. */
static json_t *envelope(const struct hearth_job *job, const char *object, json_t *choices) {
    const char *model = job->generation.model != NULL ? job->generation.model : job->api->model_name;
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", job->id, "object", object, "created",
                     (json_int_t)job->created_unix, "model", model, "system_fingerprint", job->api->version, "choices",
                     choices);
}

static bool add_cost(json_t *response, const struct hearth_tally *tally, bool usage) {
    return (!usage || json_object_set_new(response, "usage", hearth_usage_json(tally)) == 0) &&
           json_object_set_new(response, "timings", hearth_timings_json(tally)) == 0 &&
           json_object_set_new(response, "hearth", hearth_receipt_json(tally)) == 0;
}

/* Sends one event of the stream. False: the stream has ended for want of memory. */
static bool send_chunk(struct hearth_job *job, json_t *chunk) {
    struct hearth_buf line = {0};
    bool ok = hearth_buf_text(&line, "data: ") && hearth_json_write(chunk, &line);
    ok = ok && hearth_buf_text(&line, "\n\n");
    if (ok) {
        hearth_http_write(job->exchange, line.data, line.len);
    } else {
        fail_nomem(job);
    }
    hearth_buf_finish(&line);
    return ok;
}

static json_t *one_choice(const struct hearth_job *job, json_t *choice) {
    return envelope(job, job->dialect->chunk_object, json_pack("[o]", choice));
}

static void begin_stream(struct hearth_job *job) {
    if (!job->begun) {
        hearth_http_set_header(job->exchange, "Cache-Control", "no-cache");
        hearth_http_set_header(job->exchange, "X-Accel-Buffering", "no");
        hearth_http_begin(job->exchange, 200, "text/event-stream; charset=utf-8");
        job->begun = true;
    }
}

/* Adds the event's sampled tokens to the choice's log-probabilities. End tokens have no text and are left out. */
static bool collect_logprobs(struct hearth_choice *choice, const struct hearth_event *event) {
    struct hearth_job *job = choice->job;
    struct hearth_engine *engine = job->api->engine;
    if (job->generation.sampling.logprobs < 0) {
        return true;
    }
    if (choice->logprobs == NULL) {
        choice->logprobs = json_array();
    }
    for (size_t i = 0; i < event->sampled_count; i++) {
        if (!engine->ops->token_is_end(engine, event->sampled[i].token) &&
            json_array_append_new(choice->logprobs, hearth_logprobs_entry(job->api, &event->sampled[i])) < 0) {
            return false;
        }
    }
    return true;
}

/* The collected log-probabilities in the dialect's form; NULL when there are none or none were asked for. */
static json_t *take_logprobs(struct hearth_choice *choice) {
    json_t *entries = choice->logprobs;
    choice->logprobs = NULL;
    return entries != NULL ? choice->job->dialect->logprobs(choice, entries) : NULL;
}

static bool send_delta(struct hearth_choice *choice, const struct hearth_chat_delta *delta) {
    struct hearth_job *job = choice->job;
    return send_chunk(job, one_choice(job, job->dialect->delta(choice, delta, take_logprobs(choice))));
}

static bool send_content(struct hearth_choice *choice, const struct hearth_buf *text) {
    const struct hearth_chat_delta delta = {
        .content = (const char *)text->data, .content_len = text->len, .call = HEARTH_CHAT_NO_CALL};
    return send_delta(choice, &delta);
}

/* Sends a choice's first chunk, and the prompt when it is to be echoed. */
static bool start_choice(struct hearth_job *job, struct hearth_choice *choice) {
    if (choice->started) {
        return true;
    }
    begin_stream(job);
    choice->started = true;
    if (job->dialect->first != NULL && !send_chunk(job, one_choice(job, job->dialect->first(choice)))) {
        return false;
    }
    return !job->generation.echo || send_content(choice, &choice->prompt->text);
}

/* What comes out of a chat's stream. An error in between ends the response, and the rest is passed over. */
static void on_delta(void *user, const struct hearth_chat_delta *delta) {
    struct hearth_choice *choice = user;
    if (choice->job->generation.stream && choice->job->exchange != NULL) {
        send_delta(choice, delta);
    }
}

/* Log-probabilities wait for text; what still waits at the end goes with none. */
static bool send_waiting_logprobs(struct hearth_choice *choice) {
    static const struct hearth_buf nothing = {0};
    return json_array_size(choice->logprobs) == 0 || send_content(choice, &nothing);
}

static bool send_last(struct hearth_job *job, struct hearth_choice *choice) {
    struct hearth_tally tally;
    json_t *chunk = one_choice(job, job->dialect->last(choice));
    hearth_tally_choice(choice, &tally);
    if (chunk != NULL && !add_cost(chunk, &tally, false)) {
        json_decref(chunk);
        chunk = NULL;
    }
    return send_chunk(job, chunk);
}

static void finish_stream(struct hearth_job *job) {
    if (job->generation.include_usage) {
        struct hearth_tally tally;
        json_t *chunk = envelope(job, job->dialect->chunk_object, json_array());
        hearth_tally_job(job, &tally);
        if (chunk != NULL && !add_cost(chunk, &tally, true)) {
            json_decref(chunk);
            chunk = NULL;
        }
        if (!send_chunk(job, chunk)) {
            return;
        }
    }
    hearth_http_write(job->exchange, sse_done, sizeof sse_done - 1);
    end_stream(job);
}

static void respond_whole(struct hearth_job *job) {
    struct hearth_tally tally;
    json_t *choices = json_array();
    for (size_t i = 0; i < job->choice_count; i++) {
        struct hearth_choice *choice = &job->choices[i];
        json_t *logprobs = take_logprobs(choice);
        if (json_array_append_new(choices, job->dialect->whole(choice, logprobs)) < 0) {
            json_decref(choices);
            fail_nomem(job);
            return;
        }
    }
    json_t *response = envelope(job, job->dialect->object, choices);
    hearth_tally_job(job, &tally);
    if (response == NULL || !add_cost(response, &tally, true)) {
        json_decref(response);
        fail_nomem(job);
        return;
    }
    struct hearth_http_exchange *exchange = job->exchange;
    job->exchange = NULL;
    hearth_json_respond(exchange, 200, response);
}

/* Takes over what an event brings. False: the response has ended with an error. */
static bool take_event(struct hearth_job *job, struct hearth_choice *choice, const struct hearth_event *event) {
    if (event->type != HEARTH_EVENT_TEXT) {
        choice->receipt = event->receipt;
    }
    if (event->type == HEARTH_EVENT_DONE) {
        choice->finish = event->finish;
        choice->generated_tokens = event->generated_tokens;
        choice->generate_us = event->generate_us;
    }
    bool ok = collect_logprobs(choice, event);
    for (size_t i = 0; ok && job->chat.format != NULL && i < event->sampled_count; i++) {
        ok = hearth_tokens_push(&choice->sampled, event->sampled[i].token);
    }
    if (!ok) {
        fail_nomem(job);
    }
    return ok;
}

/* The event's text, as far as it can be sent. False: the response has ended with an error. */
static bool take_text(struct hearth_job *job, struct hearth_choice *choice, const struct hearth_buf *text) {
    bool ok = true;
    if (job->chat.format == NULL) {
        if (job->generation.stream) {
            return text->len == 0 || send_content(choice, text);
        }
        ok = hearth_buf_append(&choice->text, text->data, text->len);
    } else {
        if (choice->stream == NULL) {
            choice->stream = hearth_chat_stream_create(job->chat.format, job->generation.stream);
        }
        ok = choice->stream != NULL &&
             (text->len == 0 || hearth_chat_stream_feed(choice->stream, (const char *)text->data, text->len, on_delta,
                                                        choice) == HEARTH_OK);
    }
    if (!ok && job->exchange != NULL) {
        fail_nomem(job);
    }
    return job->exchange != NULL;
}

static void log_repair(const struct hearth_job *job, const struct hearth_choice *choice) {
    hearth_log(HEARTH_LOG_WARN, "api: %s: %s, choice %u: %zu complete tool calls and %zu bytes of text are delivered",
               hearth_http_request_id(job->exchange),
               choice->cut ? "a reply broke off within a tool call" : "a reply does not parse", choice->index,
               choice->message->call_count, choice->message->content_len);
}

/* A chat's reply is complete: its message is made and remembered. False: the response has ended with an error. */
static bool end_chat(struct hearth_job *job, struct hearth_choice *choice, const struct hearth_event *event) {
    bool repaired = false;
    bool stopped = event->stop_string != NULL && !hearth_shape_is_end(job->shape, event->stop_string);
    bool limited = event->finish == HEARTH_FINISH_LENGTH;
    int rc = hearth_chat_stream_end(choice->stream, limited || stopped, on_delta, choice, &choice->message, &repaired);
    hearth_chat_stream_destroy(choice->stream);
    choice->stream = NULL;
    if (job->exchange == NULL) {
        return false;
    }
    if (rc != HEARTH_OK) {
        fail_nomem(job);
        return false;
    }
    choice->cut = limited || (stopped && repaired);
    if (choice->message->reasoning != NULL) {
        choice->reasoning_tokens = (uint32_t)hearth_shape_reasoning_tokens(job->shape, &choice->sampled);
    }
    if (repaired) {
        log_repair(job, choice);
    }
    hearth_history_remember(choice, choice->message, event->stop_string);
    return true;
}

void hearth_reply_event(struct hearth_job *job, struct hearth_choice *choice, const struct hearth_event *event) {
    bool streams = job->generation.stream;
    HEARTH_ASSERT(job->exchange != NULL);
    if (event->type == HEARTH_EVENT_FAILED) {
        struct hearth_api_error error;
        hearth_api_fail_err(&error, event->err, &event->message);
        hearth_reply_fail(job, &error);
        return;
    }
    if (!take_event(job, choice, event) || (streams && !start_choice(job, choice)) ||
        !take_text(job, choice, &event->text) || event->type != HEARTH_EVENT_DONE) {
        return;
    }
    if ((job->chat.format != NULL && !end_chat(job, choice, event)) ||
        (streams && (!send_waiting_logprobs(choice) || !send_last(job, choice)))) {
        return;
    }
    if (job->open_choices == 0) {
        if (streams) {
            finish_stream(job);
        } else {
            respond_whole(job);
        }
    }
}
