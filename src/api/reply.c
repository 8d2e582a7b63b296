/* Turns events into a response, whole or streamed.
 *
 * The text of a chat goes through a hearth_chat_stream, which separates content, reasoning and calls: its deltas go to
 * the dialect, and the result at its end is the choice's message. This message is remembered before the client learns
 * that the reply is complete, because the client's next request may come at once. Plain completions are their text.
 *
 * A whole response is written when the last choice is done. A stream begins with its first event, so that an error
 * before it can still be a status; it begins earlier if the dialect wants that or the wait is long. The output of a
 * dialect is collected and written once per event. A job without a client (detached, or disconnected while its turn is
 * stored) goes through the same code and writes nothing. */
#include "api/job.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* How long the conversation of a client that runs tools is expected back. */
#define TOOLS_US (300 * 1000000ll)

bool hearth_sse(struct hearth_buf *out, const char *event, json_t *value) {
    bool ok = value != NULL && (event == NULL || hearth_buf_printf(out, "event: %s\n", event)) &&
              hearth_buf_text(out, "data: ");
    if (!ok) {
        json_decref(value);
        return false;
    }
    return hearth_api_json_write(value, out) && hearth_buf_text(out, "\n\n");
}

#define BEHIND_US 10000 /* a client that takes what was written within this time is not behind */

/* Counts the time in which the client has not taken what was written, however often more is written meanwhile. */
static void note_unread(struct hearth_job *job) {
    if (!job->begun || !hearth_http_is_behind(job->exchange)) {
        job->behind_us = 0;
        return;
    }
    if (job->behind_us == 0) {
        job->behind_us = job->written_us;
        job->unread_before_us = job->unread_us;
    }
    const int64_t us = hearth_clock_us() - job->behind_us;
    job->unread_us = job->unread_before_us + (us >= BEHIND_US ? us : 0);
}

/* Writes what was printed and frees it. `ok` false: out of memory, and the response ends with that error. */
static bool emit(struct hearth_job *job, struct hearth_buf *out, bool ok) {
    ok = ok && !hearth_memory_refused();
    if (ok && out->len > 0 && job->exchange != NULL) {
        note_unread(job);
        hearth_http_write(job->exchange, out->data, out->len);
        job->written_us = hearth_clock_us();
    }
    hearth_buf_finish(out);
    if (!ok && job->open) {
        hearth_api_fail_nomem(&job->error);
        hearth_api_reply_fail(job);
    }
    return ok;
}

static bool begin_stream(struct hearth_job *job, struct hearth_buf *out) {
    if (job->begun) {
        return true;
    }
    job->begun = true;
    if (job->exchange != NULL) {
        job->answered = 200;
        hearth_api_id_show(job, job->exchange);
        hearth_http_set_header(job->exchange, "Cache-Control", "no-cache");
        hearth_http_set_header(job->exchange, "X-Accel-Buffering", "no");
        hearth_http_begin(job->exchange, 200, "text/event-stream; charset=utf-8");
    }
    return job->dialect->begin == NULL || job->dialect->begin(job, out);
}

void hearth_api_reply_submitted(struct hearth_job *job) {
    job->written_us = hearth_clock_us();
    if (job->parsed->generation.stream && job->dialect->begin_early) {
        struct hearth_buf out = {0};
        const bool ok = begin_stream(job, &out);
        (void)emit(job, &out, ok);
    }
}

void hearth_api_reply_tick(struct hearth_job *job, int64_t now_us) {
    struct hearth_buf out = {0};
    if (!job->open || job->completing || !job->parsed->generation.stream || job->exchange == NULL ||
        now_us - job->written_us < job->api->params.ping_us) {
        return; /* while a worker stores the turn, it uses the dialect's state */
    }
    bool ok = begin_stream(job, &out);
    ok = ok && (job->dialect->ping != NULL ? job->dialect->ping(job, &out) : hearth_buf_text(&out, ": ping\n\n"));
    (void)emit(job, &out, ok);
}

/* Collects the log-probabilities of the event's tokens. End tokens have no text and are left out. */
static bool collect_logprobs(struct hearth_choice *choice, const struct hearth_event *event) {
    struct hearth_job *job = choice->job;
    struct hearth_engine *engine = job->api->engine;
    if (job->parsed->generation.sampling.logprobs < 0) {
        return true;
    }
    if (choice->logprobs == NULL) {
        choice->logprobs = json_array();
    }
    for (size_t i = 0; i < event->sampled_count; i++) {
        if (!engine->ops->token_is_end(engine, event->sampled[i].token) &&
            json_array_append_new(choice->logprobs, hearth_api_logprobs_entry(job->api, &event->sampled[i])) < 0) {
            return false;
        }
    }
    return true;
}

/* Notes when tokens came, for the time to the first token and between tokens. */
static void count_tokens(struct hearth_choice *choice, const struct hearth_event *event) {
    struct hearth_job *job = choice->job;
    if (event->sampled_count == 0) {
        return;
    }
    const int64_t now_us = hearth_clock_us();
    job->first_us = job->first_us == 0 ? now_us : job->first_us;
    if (choice->token_us > 0) {
        hearth_histogram_add(&job->api->figures.inter_token,
                             (now_us - choice->token_us) / (int64_t)event->sampled_count);
    }
    choice->token_us = now_us;
}

/* Whether replies are a chat's, which are parsed; where a session is only prefetched there is nothing to parse. */
static bool is_parsed(const struct hearth_job *job) {
    return job->resolved->format != NULL && job->rendered->constraint != NULL;
}

/* Takes over an event's tokens and times; the costs in the last one have been taken already (job_life.c). False: out of
 * memory. */
static bool take_event(struct hearth_job *job, struct hearth_choice *choice, const struct hearth_event *event) {
    if (event->type == HEARTH_EVENT_DONE) {
        choice->finish = event->finish;
        if (!is_parsed(job) && event->stop_string != NULL && (choice->stop = strdup(event->stop_string)) == NULL) {
            return false;
        }
    } else if (event->type != HEARTH_EVENT_TEXT) {
        choice->receipt = event->receipt;
        hearth_history_refine_reason(job, &choice->receipt);
    }
    count_tokens(choice, event);
    bool ok = collect_logprobs(choice, event);
    const bool wanted = is_parsed(job) || job->parsed->generation.return_tokens;
    for (size_t i = 0; ok && wanted && i < event->sampled_count; i++) {
        ok = hearth_tokens_push(&choice->sampled, event->sampled[i].token);
    }
    return ok;
}

/* Receives a choice's deltas while its text is parsed. */
struct reply_sink {
    struct hearth_choice *choice;
    struct hearth_buf *out;
    bool ok;
};

static void on_delta(void *user, const struct hearth_chat_delta *delta) {
    struct reply_sink *sink = user;
    const struct hearth_job *job = sink->choice->job;
    if (job->parsed->generation.stream && job->dialect->delta != NULL && sink->ok) {
        sink->ok = job->dialect->delta(sink->choice, delta, sink->out);
    }
}

/* Handles the event's text as far as it can be sent. False: out of memory. */
static bool take_text(struct reply_sink *sink, const struct hearth_buf *text) {
    struct hearth_choice *choice = sink->choice;
    const struct hearth_job *job = choice->job;
    if (!is_parsed(job)) {
        const struct hearth_chat_delta delta = {
            .content = (const char *)text->data, .content_len = text->len, .call = HEARTH_CHAT_NO_CALL};
        if (job->parsed->generation.stream) {
            return text->len == 0 || job->dialect->delta(choice, &delta, sink->out);
        }
        return hearth_buf_append(&choice->text, text->data, text->len);
    }
    if (choice->stream == NULL) {
        choice->stream = hearth_chat_stream_create(job->resolved->format, job->parsed->generation.stream);
    }
    return choice->stream != NULL &&
           (text->len == 0 || hearth_chat_stream_feed(choice->stream, (const char *)text->data, text->len, on_delta,
                                                      sink) == HEARTH_OK) &&
           sink->ok;
}

static void log_repair(const struct hearth_job *job, const struct hearth_choice *choice) {
    hearth_log(HEARTH_LOG_WARN, "api: %s: %s, choice %u: %zu complete tool calls and %zu bytes of text are delivered",
               job->id, choice->cut ? "a reply broke off within a tool call" : "a reply does not parse", choice->index,
               choice->message->call_count, choice->message->content_len);
}

/* Makes and remembers the message of a complete reply. False: out of memory. */
static bool end_chat(struct reply_sink *sink, const struct hearth_event *event) {
    struct hearth_choice *choice = sink->choice;
    struct hearth_job *job = choice->job;
    bool repaired = false;
    bool stopped =
        event->stop_string != NULL && !hearth_api_constraint_is_end(job->rendered->constraint, event->stop_string);
    bool limited = event->finish == HEARTH_FINISH_LENGTH;
    int rc = hearth_chat_stream_end(choice->stream, limited || stopped, on_delta, sink, &choice->message, &repaired);
    hearth_chat_stream_destroy(choice->stream);
    choice->stream = NULL;
    choice->stop = stopped ? strdup(event->stop_string) : choice->stop;
    if (rc != HEARTH_OK || !sink->ok || hearth_memory_refused() || (stopped && choice->stop == NULL)) {
        return false;
    }
    choice->cut = limited || (stopped && repaired);
    if (choice->message->reasoning != NULL) {
        choice->reasoning_tokens =
            (uint32_t)hearth_api_constraint_reasoning_tokens(job->rendered->constraint, &choice->sampled);
    }
    if (repaired) {
        log_repair(job, choice);
    }
    hearth_history_remember(choice, choice->message, event->stop_string);
    if (choice->message->call_count > 0) {
        hearth_service_expect(job->api->service, choice->service_id, TOOLS_US);
    }
    return true;
}

/* Tells a client that wants it how far the prompt is computed: after each part, and at the end. */
static bool take_progress(struct reply_sink *sink, const struct hearth_event *event) {
    const struct hearth_choice *choice = sink->choice;
    const struct hearth_job *job = choice->job;
    const bool whole = event->type == HEARTH_EVENT_PREFILLED;
    const uint32_t tokens = whole ? event->receipt.prompt_tokens : event->prefilled_tokens;
    if (!job->progress || !job->parsed->generation.stream || (!whole && event->type != HEARTH_EVENT_PROGRESS)) {
        return true;
    }
    return job->dialect->progress != NULL
               ? job->dialect->progress(sink->choice, tokens, sink->out)
               : hearth_buf_printf(sink->out, ": progress %u/%u\n\n", tokens, event->receipt.prompt_tokens);
}

static void fail_event(struct hearth_job *job, const struct hearth_event *event) {
    if (event->err == HEARTH_ERR_DEADLINE) {
        hearth_urgency_fail_late(job);
    } else {
        hearth_api_fail_submit(job->api, &job->error, event->err, &event->message);
    }
    hearth_api_reply_fail(job);
}

/* Prints one event of a choice. False: out of memory, and the response has ended with that. */
static bool print_event(struct hearth_job *job, struct hearth_choice *choice, const struct hearth_event *event) {
    const bool streams = job->parsed->generation.stream;
    struct hearth_buf out = {0};
    struct reply_sink sink = {.choice = choice, .out = &out, .ok = true};
    bool ok = take_event(job, choice, event);
    if (ok && streams && !choice->started) {
        choice->started = true;
        ok = begin_stream(job, &out) && (job->dialect->start == NULL || job->dialect->start(choice, &out));
    }
    ok = ok && take_progress(&sink, event) && take_text(&sink, &event->text);
    if (ok && event->type == HEARTH_EVENT_DONE) {
        ok = (!is_parsed(job) || end_chat(&sink, event)) &&
             (!streams || job->dialect->end == NULL || job->dialect->end(choice, &out));
    }
    return emit(job, &out, ok);
}

/* Ends choices that their deadline kept from beginning with an empty reply, because others of the request have a reply.
 * False: out of memory. */
static bool end_empty(struct hearth_job *job) {
    bool ok = true;
    for (size_t i = 0; ok && i < job->choice_count; i++) {
        struct hearth_choice *choice = &job->choices[i];
        const struct hearth_event end = {
            .type = HEARTH_EVENT_DONE, .finish = HEARTH_FINISH_LENGTH, .late = true, .receipt = choice->receipt};
        ok = !choice->empty || print_event(job, choice, &end);
    }
    return ok;
}

static bool all_empty(const struct hearth_job *job) {
    size_t empty = 0;
    for (size_t i = 0; i < job->choice_count; i++) {
        empty += job->choices[i].empty;
    }
    return empty == job->choice_count;
}

void hearth_api_reply_event(struct hearth_job *job, struct hearth_choice *choice, const struct hearth_event *event) {
    const bool failed = event->type == HEARTH_EVENT_FAILED;
    HEARTH_ASSERT(job->open);
    choice->empty = failed && event->err == HEARTH_ERR_DEADLINE;
    choice->late = choice->late || choice->empty;
    if (failed && (!choice->empty || all_empty(job))) {
        fail_event(job, event);
        return;
    }
    const bool ended = failed || event->type == HEARTH_EVENT_DONE;
    if ((failed || print_event(job, choice, event)) && ended && job->open_choices == 0 && end_empty(job)) {
        job->complete(job);
    }
}

/* ---- the end ---- */

/* Ends a stream. `whole` false: there was no memory for its last event, so the connection breaks off; an ordinary end
 * would look like a whole reply. */
static void end_stream(struct hearth_http_exchange *exchange, bool whole) {
    if (whole) {
        hearth_http_end(exchange);
    } else {
        hearth_http_break(exchange);
    }
}

static void end_with_error(struct hearth_job *job) {
    struct hearth_http_exchange *exchange = job->exchange;
    struct hearth_buf out = {0};
    job->exchange = NULL;
    if (exchange == NULL) {
        return;
    }
    hearth_memory_begin(); /* the error is sent whole, even if it says that memory is short */
    if (!job->begun) {
        job->answered = job->error.status;
        hearth_api_write_error(exchange, &job->error);
        return;
    }
    const bool told = job->dialect->fail != NULL && job->dialect->fail(job, &out);
    if (told) {
        hearth_http_write(exchange, out.data, out.len);
    }
    hearth_buf_finish(&out);
    end_stream(exchange, told);
}

bool hearth_api_reply_refuse(struct hearth_job *job) {
    struct hearth_http_exchange *exchange = job->exchange;
    struct hearth_buf out = {0};
    if (job->dialect == NULL || job->dialect->overflow == NULL || !job->parsed->generation.stream ||
        job->error.ctx_tokens == 0) {
        return false;
    }
    hearth_api_id_name(job);
    const bool ok = begin_stream(job, &out) && job->dialect->overflow(job, &out);
    const bool told = emit(job, &out, ok);
    job->exchange = NULL;
    end_stream(exchange, told);
    return true;
}

void hearth_api_reply_cancel(struct hearth_job *job) {
    for (size_t i = 0; i < job->choice_count; i++) {
        if (!job->choices[i].ended && job->choices[i].service_id > 0) {
            hearth_service_cancel(job->api->service, job->choices[i].service_id);
        }
    }
}

void hearth_api_reply_fail(struct hearth_job *job) {
    hearth_api_reply_cancel(job);
    job->failed = true;
    job->complete(job);
}

void hearth_api_reply_end(struct hearth_job *job) {
    struct hearth_http_exchange *exchange = job->exchange;
    struct hearth_buf out = {0};
    job->open = false;
    if (job->failed || exchange == NULL) {
        end_with_error(job);
        return;
    }
    if (job->parsed->generation.stream) {
        const bool ok = job->dialect->finish == NULL || job->dialect->finish(job, &out);
        const bool told = emit(job, &out, ok);
        job->exchange = NULL;
        end_stream(exchange, told);
        return;
    }
    json_t *response = job->dialect->whole(job);
    if (response == NULL) {
        job->failed = true;
        hearth_api_fail_nomem(&job->error);
        end_with_error(job);
        return;
    }
    job->exchange = NULL;
    job->answered = 200;
    hearth_api_id_show(job, exchange);
    hearth_api_json_respond(exchange, 200, response);
}
