/* GET /record: each request that ends, as a line of JSON without a word of it:
 *
 *     {"t":12.25,"in":5120,"out":80,"stop":"tool_use","api_time":1.5,"head":4096,"digests":"9f0c…"}
 *
 * `t`: seconds from the beginning of the stream to when the request came. `head`: tokens of the tools and the system
 * text. `digests`: 16 hexadecimal digits for each whole block of BLOCK_TOKENS tokens, of all tokens up to its end, so
 * that two prompts have a digest in common exactly when they begin alike up to there. The chain begins with the
 * server's secret, the stream's time and the key's salt: who does not have these cannot try texts, and prompts of two
 * keys have nothing in common, as their states have not.
 *
 * Nothing is kept, nor computed while no stream is open. Bounds: STREAMS_MAX streams; one whose reader leaves more than
 * UNREAD_MAX bytes is ended. A key that is taken away ends its streams within a second. */
#include "api/recording.h"

#include "api/job.h"
#include "base/clock.h"

#include <stdlib.h>

#define STREAMS_MAX 4
#define UNREAD_MAX ((size_t)8 << 20)
#define BLOCK_TOKENS 64 /* as in src/replay/trace.h */
#define PING_US 15000000

struct hearth_recording {
    struct hearth_recording *next;
    struct hearth_api *api;
    struct hearth_http_exchange *exchange;
    int64_t began_us, sent_us;
};

static void forget(struct hearth_recording *stream) {
    struct hearth_recording **at = &stream->api->recordings;
    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
    free(stream);
}

static void on_gone(void *user) {
    forget(user);
}

static void end(struct hearth_recording *stream) {
    hearth_http_end(stream->exchange);
    forget(stream);
}

static void write_text(struct hearth_recording *stream, const void *text, size_t len) {
    hearth_http_write(stream->exchange, text, len);
    stream->sent_us = hearth_clock_us();
}

void hearth_recording_get(struct hearth_api *api, struct hearth_http_exchange *exchange) {
    struct hearth_api_error error;
    struct hearth_recording *stream = calloc(1, sizeof *stream);
    size_t count = 0;
    for (const struct hearth_recording *one = api->recordings; one != NULL; one = one->next) {
        count++;
    }
    if (stream == NULL || count >= STREAMS_MAX || atomic_load(&api->stopping)) {
        hearth_api_fail(&error, 503, "busy", NULL, "there are %d recordings already, or the server ends", STREAMS_MAX);
        hearth_api_respond_error(exchange, &error);
        free(stream);
        return;
    }
    *stream = (struct hearth_recording){.api = api, .exchange = exchange, .began_us = hearth_clock_us()};
    hearth_http_set_header(exchange, "Cache-Control", "no-store");
    hearth_http_begin(exchange, 200, "application/x-ndjson");
    write_text(stream, "\n", 1);
    if (hearth_http_is_head(exchange)) {
        hearth_http_end(exchange);
        free(stream);
        return;
    }
    stream->next = api->recordings;
    api->recordings = stream;
    hearth_http_on_gone(exchange, on_gone, stream);
}

/* ---- a request ---- */

static bool append_digests(const struct hearth_recording *stream, const struct hearth_job *job,
                           const struct hearth_tokens *tokens, struct hearth_buf *out) {
    uint8_t secret[32];
    hearth_salt_secret(stream->api, secret);
    struct hearth_digest at = hearth_digest_bytes(secret, sizeof secret);
    at = hearth_digest_chain(at, &stream->began_us, sizeof stream->began_us);
    at = hearth_digest_chain(at, &job->owner, sizeof job->owner);
    bool ok = hearth_buf_reserve(out, tokens->n / BLOCK_TOKENS * 16 + 16);
    for (size_t i = 0; ok && i + BLOCK_TOKENS <= tokens->n; i += BLOCK_TOKENS) {
        at = hearth_digest_chain(at, tokens->v + i, BLOCK_TOKENS * sizeof *tokens->v);
        ok = hearth_buf_printf(out, "%016llx", (unsigned long long)at.lo);
    }
    return ok;
}

static const char *stop_of(const struct hearth_choice *choice) {
    if (choice->message != NULL && choice->message->call_count > 0) {
        return "tool_use";
    }
    return choice->finish == HEARTH_FINISH_LENGTH ? "max_tokens" : "end_turn";
}

static bool append_line(const struct hearth_recording *stream, const struct hearth_choice *choice,
                        struct hearth_buf *out) {
    const struct hearth_api_prompt *prompt = choice->prompt;
    return hearth_buf_printf(out,
                             "{\"t\":%.6f,\"in\":%zu,\"out\":%u,\"stop\":\"%s\",\"api_time\":%.6f,\"head\":%d,"
                             "\"digests\":\"",
                             (double)(choice->job->arrived_us - stream->began_us) / 1e6, prompt->tokens.n,
                             choice->generated_tokens, stop_of(choice),
                             (double)(hearth_clock_us() - choice->job->arrived_us) / 1e6, prompt->head_tokens) &&
           append_digests(stream, choice->job, &prompt->tokens, out) && hearth_buf_text(out, "\"}\n");
}

/* Of several choices of one prompt the first stands for all. */
void hearth_recording_add(const struct hearth_job *job) {
    struct hearth_buf text = {0};
    for (struct hearth_recording *stream = job->api->recordings, *next; stream != NULL; stream = next) {
        bool ok = job->arrived_us >= stream->began_us;
        next = stream->next;
        text.len = 0;
        for (size_t i = 0; ok && i < job->choice_count; i += (size_t)job->parsed.generation.n) {
            const struct hearth_choice *choice = &job->choices[i];
            ok = choice->service_id <= 0 || choice->receipt.prompt_tokens == 0 || append_line(stream, choice, &text);
        }
        if (ok && text.len > 0) {
            write_text(stream, text.data, text.len);
        }
    }
    hearth_buf_finish(&text);
}

void hearth_recording_tick(struct hearth_api *api) {
    const int64_t now_us = hearth_clock_us();
    for (struct hearth_recording *stream = api->recordings, *next; stream != NULL; stream = next) {
        struct hearth_caller caller;
        next = stream->next;
        if (atomic_load(&api->stopping) || hearth_http_unread(stream->exchange) > UNREAD_MAX ||
            !hearth_api_authorize(api, stream->exchange, &caller) || (caller.scopes & HEARTH_SCOPE_ADMIN) == 0) {
            end(stream);
        } else if (now_us - stream->sent_us >= PING_US) {
            write_text(stream, "\n", 1);
        }
    }
}
