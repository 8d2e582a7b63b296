/* GET /events: what the server does, as server-sent events, for the page at GET /.
 *
 * Once a second the state is printed as one JSON object for each kind of listener: those that see everything, and
 * each owner. All streams of a kind get the same text. Nothing is sent when nothing has changed, and nothing is
 * printed when no stream is open. Reports of requests come from the ring: those that were added since the last
 * event. The first event of a stream has the last FIRST_REQUESTS of them, and everything that does not change.
 *
 * Bounds: at most STREAMS_MAX streams. A stream is ended when its reader leaves more than UNREAD_MAX bytes unread;
 * it may connect again. When a key is removed its streams end with the next event. Loop thread only. */

#include "api/job.h"
#include "base/clock.h"
#include "report/ring.h"

#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX 64
#define UNREAD_MAX ((size_t)1 << 20)
#define FIRST_REQUESTS 200
#define CLIENTS_MAX 50 /* of those that lost something, the costliest */
#define PING_US 15000000

struct hearth_feed_stream {
    struct hearth_feed_stream *next;
    struct hearth_api *api;
    struct hearth_http_exchange *exchange;
    struct hearth_caller caller;
    struct hearth_digest sent; /* digest of the last text */
    int64_t sent_us;
};

#define NUMBER(name) {#name, offsetof(struct hearth_service_stats, name)}

/* Figures of the service that the page shows. */
static const struct {
    const char *name;
    size_t offset;
} numbers[] = {
    NUMBER(prompt_computed_tokens),
    NUMBER(prompt_reused_live_tokens),
    NUMBER(prompt_reused_ram_tokens),
    NUMBER(prompt_reused_disk_tokens),
    NUMBER(prompt_reused_remote_tokens),
    NUMBER(generated_tokens),
    NUMBER(prefill_us),
    NUMBER(decode_us),
    NUMBER(page_bytes),
    NUMBER(snapshot_bytes),
    NUMBER(evicted_pages),
    NUMBER(evicted_snapshots),
    NUMBER(preemptions),
    NUMBER(yields),
};

static json_t *stats_json(struct hearth_api *api) {
    struct hearth_service_stats stats;
    json_t *json = json_object();
    hearth_service_stats(api->service, &stats);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&stats + numbers[i].offset, sizeof value);
        json_object_set_new(json, numbers[i].name, json_integer((json_int_t)value));
    }
    return json;
}

static bool sees_all(const struct hearth_caller *caller) {
    return hearth_caller_sees(caller, NULL);
}

/* Whether two callers see the same. */
static bool same_view(const struct hearth_caller *a, const struct hearth_caller *b) {
    return sees_all(a) == sees_all(b) && (sees_all(a) || (hearth_digest_equal(a->salt, b->salt) &&
                                                          a->tenant.id == b->tenant.id && a->scopes == b->scopes));
}

/* Facts that stay the same while the server runs. */
static json_t *server_json(const struct hearth_api *api, const struct hearth_caller *caller) {
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:b, s:b, s:b}", "model", api->model_name, "version", api->version,
                     "lanes", (json_int_t)api->params.lanes, "ctx_tokens", (json_int_t)api->engine->caps.ctx_tokens,
                     "cache_bytes", (json_int_t)api->params.cache_bytes, "sees_all", sees_all(caller), "slots",
                     api->params.slots, "requests", api->ring != NULL);
}

/* Appends the state as `caller` sees it, with requests behind number `after` of the ring. False: out of memory. */
static bool print_state(struct hearth_api *api, const struct hearth_caller *caller, bool first, uint64_t after,
                        struct hearth_buf *out) {
    json_t *json = json_object();
    if (first) {
        json_object_set_new(json, "server", server_json(api, caller));
    }
    if (api->params.slots) {
        json_object_set_new(json, "lanes", hearth_slots_summary(api, caller));
        json_object_set_new(json, "queue", hearth_queue_json(api, caller));
    }
    if (sees_all(caller)) {
        json_object_set_new(json, "stats", stats_json(api));
        json_object_set_new(json, "disk", hearth_api_tier_json(api->params.disk));
        json_object_set_new(json, "remote", hearth_api_tier_json(api->params.remote));
        json_object_set_new(json, "health", hearth_api_reasons_json());
    }
    if (api->ring != NULL && (first || hearth_ring_added(api->ring) != after)) {
        const struct hearth_ring_filter filter = {.owner = sees_all(caller) ? NULL : &caller->salt};
        json_object_set_new(json, "clients", hearth_ring_waste(api->ring, &filter, CLIENTS_MAX));
    }
    bool ok = hearth_buf_text(out, "data: ") && hearth_api_json_write(json, out);
    if (ok && api->ring != NULL) {
        const struct hearth_ring_filter filter = {
            .owner = sees_all(caller) ? NULL : &caller->salt, .after = after, .limit = first ? FIRST_REQUESTS : 0};
        out->len--; /* the object continues */
        ok = hearth_buf_text(out, ",\"requests\":") && hearth_ring_list(api->ring, &filter, out) &&
             hearth_buf_text(out, "}");
    }
    return ok && hearth_buf_text(out, "\n\n");
}

static void forget(struct hearth_feed_stream *stream) {
    struct hearth_feed_stream **at = &stream->api->events.streams;
    while (*at != stream) {
        at = &(*at)->next;
    }
    *at = stream->next;
    stream->api->events.count--;
    free(stream);
}

static void on_gone(void *user) {
    forget(user);
}

/* Ends the stream; the page connects again. */
static void end(struct hearth_feed_stream *stream) {
    hearth_http_end(stream->exchange);
    forget(stream);
}

bool hearth_feed_get(struct hearth_api *api, struct hearth_http_exchange *exchange, const struct hearth_caller *caller,
                     struct hearth_api_error *error) {
    struct hearth_buf text = {0};
    if (api->events.count >= STREAMS_MAX || atomic_load(&api->stopping)) {
        return hearth_api_fail(error, 503, "busy", NULL, "there are %d streams of events already, or the server ends",
                               STREAMS_MAX);
    }
    struct hearth_feed_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL || !print_state(api, caller, true, 0, &text)) {
        hearth_buf_finish(&text);
        free(stream);
        return false;
    }
    *stream =
        (struct hearth_feed_stream){.api = api, .exchange = exchange, .caller = *caller, .sent_us = hearth_clock_us()};
    hearth_http_set_header(exchange, "Cache-Control", "no-store");
    hearth_http_begin(exchange, 200, "text/event-stream");
    hearth_http_write(exchange, text.data, text.len);
    hearth_buf_finish(&text);
    if (hearth_http_is_head(exchange)) {
        hearth_http_end(exchange);
        free(stream);
        return true;
    }
    stream->next = api->events.streams;
    api->events.streams = stream;
    api->events.count++;
    hearth_http_on_gone(exchange, on_gone, stream);
    return true;
}

/* Writes a text unless the stream has sent it already. */
static void tell(struct hearth_feed_stream *stream, const struct hearth_buf *text, struct hearth_digest digest,
                 int64_t now_us) {
    static const char ping[] = ":\n\n";
    const bool known = hearth_digest_equal(digest, stream->sent);
    if (!known || now_us - stream->sent_us >= PING_US) {
        hearth_http_write(stream->exchange, known ? (const void *)ping : text->data,
                          known ? sizeof ping - 1 : text->len);
        stream->sent = digest;
        stream->sent_us = now_us;
    }
}

/* Whether the stream may go on. */
static bool may_go_on(struct hearth_feed_stream *stream) {
    struct hearth_caller now;
    return !atomic_load(&stream->api->stopping) && hearth_http_unread(stream->exchange) <= UNREAD_MAX &&
           hearth_api_authorize(stream->api, stream->exchange, &now) && same_view(&now, &stream->caller);
}

void hearth_feed_tick(struct hearth_api *api) {
    hearth_memory_begin();
    const int64_t now_us = hearth_clock_us();
    const uint64_t before = api->events.told;
    struct hearth_buf text = {0};
    const struct hearth_caller *printed = NULL; /* the caller that `text` is for */
    struct hearth_digest digest = {0, 0};
    for (struct hearth_feed_stream *stream = api->events.streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        if (!may_go_on(stream)) {
            end(stream);
            printed = NULL;
            continue;
        }
        if (printed == NULL || !same_view(printed, &stream->caller)) {
            text.len = 0;
            printed = print_state(api, &stream->caller, false, before, &text) ? &stream->caller : NULL;
            digest = hearth_digest_bytes(text.data, text.len);
        }
        if (printed != NULL) {
            tell(stream, &text, digest, now_us);
        }
    }
    hearth_buf_finish(&text);
    api->events.told = api->ring != NULL ? hearth_ring_added(api->ring) : 0;
}

/* ---- trends ---- */

void hearth_feed_count(struct hearth_api *api) {
    struct hearth_service_stats stats;
    hearth_service_stats(api->service, &stats);
    hearth_trend_count(&api->trend, stats.evicted_pages + stats.evicted_snapshots, stats.preemptions + stats.yields,
                       hearth_clock_unix() / 60);
}

json_t *hearth_feed_trends_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                               const struct hearth_caller *caller, struct hearth_api_error *error) {
    (void)exchange, (void)caller, (void)error;
    return json_pack("{s:s, s:o}", "object", "list", "data", hearth_trend_json(&api->trend, hearth_clock_unix() / 60));
}
