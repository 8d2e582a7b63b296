/* GET /record: each request that ends, as a line of JSON without a word of it:
 *
 *     {"t":12.25,"in":5120,"out":80,"stop":"tool_use","api_time":1.5,"head":4096,
 *      "served":{"began":3.5,"ended":4.75,"reused":4864,"evicted":17},"digests":"9f0c…"}
 *
 * `t`: seconds from the beginning of the stream to when the request came. `head`: tokens of the tools and the system
 * text. `served`: when it was planned and ended by the engine's clock, how many tokens were reused, and how many pages
 * and snapshots had been evicted by then; with it a replay can do the same. `digests`: 16 hexadecimal digits for each
 * whole block of 64 tokens (?block=N: of so many, a power of two) of the prompt and of the reply, as far as its
 * sequence held it, of all tokens up to its end, so that two prompts have a digest in common exactly when they begin
 * alike up to there. Where there are keys, `key` stands for the request's. The first line says what the server keeps
 * its state in. The chain begins with the server's secret, the stream's time and the key's salt: without
 * these no text can be tried, and prompts of two keys have nothing in common, as their states have not.
 *
 * Nothing is kept, nor computed while no stream is open. Bounds: STREAMS_MAX streams; one whose reader leaves more than
 * UNREAD_MAX bytes is ended. A key that is taken away ends its streams within a second. */

#include "api/job.h"
#include "base/clock.h"

#include <inttypes.h>
#include <stdlib.h>

#define STREAMS_MAX 4
#define UNREAD_MAX ((size_t)8 << 20)
#define BLOCK_TOKENS 64 /* at most, and as in src/replay/trace.h */
#define PING_US 15000000

struct hearth_recording {
    struct hearth_recording *next;
    struct hearth_api *api;
    struct hearth_http_exchange *exchange;
    int64_t began_us, sent_us;
    uint32_t block_tokens;
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

/* ?block=N. 0: the error is filled. */
static uint32_t read_block(const struct hearth_http_exchange *exchange, struct hearth_api_error *error) {
    char *text = hearth_api_query(hearth_http_query(exchange), "block"), *end = NULL;
    const unsigned long block = text != NULL ? strtoul(text, &end, 10) : BLOCK_TOKENS;
    const bool ok = (text == NULL || (*text >= '0' && *text <= '9' && *end == '\0')) && block > 0 &&
                    block <= BLOCK_TOKENS && (block & (block - 1)) == 0;
    free(text);
    if (!ok) {
        hearth_api_fail(error, 400, "invalid_value", "block", "block must be a power of two of at most %d",
                        BLOCK_TOKENS);
    }
    return ok ? (uint32_t)block : 0;
}

static void write_server(struct hearth_recording *stream) {
    const struct hearth_api *api = stream->api;
    const struct hearth_caps *caps = &api->engine->caps;
    struct hearth_buf text = {0};
    if (hearth_buf_printf(&text,
                          "{\"server\":{\"ram_bytes\":%zu,\"token_bytes\":%zu,\"snapshot_bytes\":%zu,"
                          "\"page_tokens\":%d,\"lanes\":%u}}\n",
                          api->params.cache_bytes, hearth_caps_has_pages(caps) ? caps->page_bytes_per_token : 0,
                          hearth_caps_needs_snapshot(caps) ? caps->snapshot_bytes : 0, api->params.page_tokens,
                          api->params.lanes)) {
        write_text(stream, text.data, text.len);
    }
    hearth_buf_finish(&text);
}

bool hearth_recording_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                          const struct hearth_caller *caller, struct hearth_api_error *error) {
    (void)caller;
    const uint32_t block_tokens = read_block(exchange, error);
    size_t count = 0;
    for (const struct hearth_recording *one = api->recordings; one != NULL; one = one->next) {
        count++;
    }
    if (block_tokens == 0) {
        return false;
    }
    if (count >= STREAMS_MAX || atomic_load(&api->stopping)) {
        return hearth_api_fail(error, 503, "busy", NULL, "there are %d recordings already, or the server ends",
                               STREAMS_MAX);
    }
    struct hearth_recording *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return false;
    }
    *stream = (struct hearth_recording){
        .api = api, .exchange = exchange, .began_us = hearth_clock_us(), .block_tokens = block_tokens};
    hearth_http_set_header(exchange, "Cache-Control", "no-store");
    hearth_http_begin(exchange, 200, "application/x-ndjson");
    write_server(stream);
    if (hearth_http_is_head(exchange)) {
        hearth_http_end(exchange);
        free(stream);
        return true;
    }
    stream->next = api->recordings;
    api->recordings = stream;
    hearth_http_on_gone(exchange, on_gone, stream);
    return true;
}

/* ---- a request ---- */

/* Where the chains of a key's digests begin in this stream. */
static struct hearth_digest begin_of(const struct hearth_recording *stream, const struct hearth_digest *owner) {
    uint8_t secret[32];
    hearth_salt_secret(stream->api, secret);
    const struct hearth_digest at = hearth_digest_bytes(secret, sizeof secret);
    return hearth_digest_chain(hearth_digest_chain(at, &stream->began_us, sizeof stream->began_us), owner,
                               sizeof *owner);
}

/* Appends the digests of the prompt, and of the part of the reply that the sequence held. */
static bool append_digests(const struct hearth_recording *stream, const struct hearth_choice *choice,
                           struct hearth_buf *out) {
    const struct hearth_tokens *prompt = &choice->prompt->tokens, *reply = &choice->sampled;
    const size_t block = stream->block_tokens, held = choice->receipt.end_tokens;
    const size_t said = held > prompt->n ? held - prompt->n : 0, n = prompt->n + (said < reply->n ? said : reply->n);
    struct hearth_digest at = begin_of(stream, &choice->job->owner);
    bool ok = hearth_buf_reserve(out, n / block * 16 + 16);
    for (size_t i = 0; ok && i + block <= n; i += block) {
        hearth_token tokens[BLOCK_TOKENS];
        for (size_t k = 0; k < block; k++) {
            tokens[k] = i + k < prompt->n ? prompt->v[i + k] : reply->v[i + k - prompt->n];
        }
        at = hearth_digest_chain(at, tokens, block * sizeof *tokens);
        ok = hearth_buf_printf(out, "%016llx", (unsigned long long)at.lo);
    }
    return ok;
}

static bool append_served(const struct hearth_receipt *receipt, struct hearth_buf *out) {
    return receipt->ended_us < receipt->began_us ||
           hearth_buf_printf(out, "\"served\":{\"began\":%.6f,\"ended\":%.6f,\"reused\":%u,\"evicted\":%" PRIu64 "},",
                             (double)receipt->began_us / 1e6, (double)receipt->ended_us / 1e6,
                             receipt->prompt_tokens - receipt->computed_tokens, receipt->evicted);
}

/* Appends what stands for the request's key in this stream. */
static bool append_key(const struct hearth_recording *stream, const struct hearth_job *job, struct hearth_buf *out) {
    return hearth_digest_is_zero(job->owner) ||
           hearth_buf_printf(out, "\"key\":\"%016" PRIx64 "\",", begin_of(stream, &job->owner).hi);
}

static bool append_block(const struct hearth_recording *stream, struct hearth_buf *out) {
    return stream->block_tokens == BLOCK_TOKENS ||
           hearth_buf_printf(out, "\"block\":%" PRIu32 ",", stream->block_tokens);
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
    return hearth_buf_printf(out, "{\"t\":%.6f,\"in\":%zu,\"out\":%u,\"stop\":\"%s\",\"api_time\":%.6f,\"head\":%d,",
                             (double)(choice->job->arrived_us - stream->began_us) / 1e6, prompt->tokens.n,
                             choice->generated_tokens, stop_of(choice),
                             (double)(hearth_clock_us() - choice->job->arrived_us) / 1e6, prompt->head_tokens) &&
           append_block(stream, out) && append_key(stream, choice->job, out) && append_served(&choice->receipt, out) &&
           hearth_buf_text(out, "\"digests\":\"") && append_digests(stream, choice, out) &&
           hearth_buf_text(out, "\"}\n");
}

/* Records a request that has ended. Of several choices of one prompt the first stands for all. */
void hearth_recording_add(const struct hearth_job *job) {
    struct hearth_buf text = {0};
    for (struct hearth_recording *stream = job->api->recordings, *next; stream != NULL; stream = next) {
        bool ok = job->arrived_us >= stream->began_us;
        next = stream->next;
        text.len = 0;
        for (size_t i = 0; ok && i < job->choice_count; i += (size_t)job->parsed->generation.n) {
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
