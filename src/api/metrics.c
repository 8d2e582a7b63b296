/* GET /metrics: the service's table of numbers, the backing tier's and the HTTP server's, as Prometheus text; some of
 * them once more under llama-server's names. Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text
 * format 0.0.4) */
#include "api/idle.h"
#include "api/quota.h"

#include "base/clock.h"
#include "base/health.h"
#include "publish/kv_events.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A counter's name ends in _total by convention. */
static bool add(struct hearth_buf *out, const char *name, const char *kind, const char *help, uint64_t value) {
    const char *suffix = strcmp(kind, "counter") == 0 ? "_total" : "";
    return hearth_buf_printf(out, "# HELP hearth_%s%s %s\n# TYPE hearth_%s%s %s\nhearth_%s%s %" PRIu64 "\n", name,
                             suffix, help, name, suffix, kind, name, suffix, value);
}

/* hearth_disk_…, after the tier's name. */
static bool add_backing(struct hearth_buf *out, struct hearth_backing *backing) {
    struct hearth_backing_stats stats;
    char name[96];
    bool ok = true;
    if (backing == NULL) {
        return true;
    }
    backing->ops->stats(backing, &stats);
#define X(field, kind, help)                                        \
    (void)snprintf(name, sizeof name, "%s_" #field, backing->name); \
    ok = ok && add(out, name, #kind, help, stats.field);
    HEARTH_BACKING_STATS_TABLE(X)
    X(scanned, gauge, "1: everything that was there at the start is known")
    X(failing, gauge, "1: writing is suspended after errors")
    X(shared, gauge, "1: another server uses the directory")
#undef X
    return ok;
}

static bool add_events(struct hearth_buf *out, struct hearth_kv_events *events) {
    struct hearth_kv_events_stats stats;
    if (events == NULL) {
        return true;
    }
    hearth_kv_events_stats(events, &stats);
    return add(out, "kv_events_published", "counter", "Messages of KV events", stats.published) &&
           add(out, "kv_events_stored", "counter", "Blocks that were told to be here", stats.stored) &&
           add(out, "kv_events_removed", "counter", "Blocks that were told to be gone", stats.removed) &&
           add(out, "kv_events_dropped", "counter", "Events that were not told, as they came too fast", stats.dropped);
}

/* ---- llama-server's names ---- */

static double seconds(uint64_t us) {
    return (double)us / 1e6;
}

static double per_second(uint64_t tokens, uint64_t us) {
    return us > 0 ? (double)tokens / seconds(us) : 0;
}

/* Figures for dashboards made for llama-server. Averages are since the start, as there. */
static bool add_llamacpp(struct hearth_buf *out, const struct hearth_service_stats *stats) {
    const struct {
        const char *name, *kind, *help;
        double value;
    } rows[] = {
        {"prompt_tokens_total", "counter", "Prompt tokens processed", (double)stats->prompt_computed_tokens},
        {"prompt_seconds_total", "counter", "Prompt process time", seconds(stats->prefill_us)},
        {"prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s",
         per_second(stats->prompt_computed_tokens, stats->prefill_us)},
        {"tokens_predicted_total", "counter", "Generation tokens processed", (double)stats->generated_tokens},
        {"tokens_predicted_seconds_total", "counter", "Predict process time", seconds(stats->decode_us)},
        {"predicted_tokens_seconds", "gauge", "Average generation throughput in tokens/s",
         per_second(stats->generated_tokens, stats->decode_us)},
        {"requests_processing", "gauge", "Requests processing", (double)stats->lanes_busy},
        {"requests_deferred", "gauge", "Requests deferred", (double)stats->queued},
        {"n_decode_total", "counter", "Calls of llama_decode()", (double)stats->steps},
        {"spec_decode_num_draft_tokens_total", "counter", "Draft tokens generated", (double)stats->drafted_tokens},
        {"spec_decode_num_accepted_tokens_total", "counter", "Draft tokens accepted", (double)stats->accepted_tokens},
    };
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof rows / sizeof rows[0]; i++) {
        ok = hearth_buf_printf(out, "# HELP llamacpp:%s %s\n# TYPE llamacpp:%s %s\nllamacpp:%s %.15g\n", rows[i].name,
                               rows[i].help, rows[i].name, rows[i].kind, rows[i].name, rows[i].value);
    }
    return ok;
}

static bool add_health(struct hearth_buf *out) {
    bool ok = hearth_buf_printf(out, "# HELP hearth_degraded 1: what the condition tells of holds now\n"
                                     "# TYPE hearth_degraded gauge\n");
    for (size_t i = 0; ok && i < HEARTH_HEALTH_CONDITIONS; i++) {
        const enum hearth_health_condition condition = (enum hearth_health_condition)i;
        ok = hearth_buf_printf(out, "hearth_degraded{condition=\"%s\"} %d\n", hearth_health_name(condition),
                               hearth_health_raised(condition, NULL, 0));
    }
    return ok;
}

/* ---- requests by class and key ---- */

struct group {
    enum hearth_class priority;
    const char *key;
    unsigned running, waiting;
};

struct groups {
    struct group v[2 * HEARTH_WAITING_MAX];
    size_t n;
};

static struct group *group_of(const struct hearth_api *api, struct groups *groups, int64_t id,
                              enum hearth_class priority) {
    const struct hearth_job *job = hearth_slots_find(api, id);
    const char *key = job != NULL ? job->caller.name : "";
    for (size_t i = 0; i < groups->n; i++) {
        if (groups->v[i].priority == priority && strcmp(groups->v[i].key, key) == 0) {
            return &groups->v[i];
        }
    }
    if (groups->n == sizeof groups->v / sizeof groups->v[0]) {
        return &groups->v[0];
    }
    groups->v[groups->n] = (struct group){.priority = priority, .key = key};
    return &groups->v[groups->n++];
}

static bool add_group(struct hearth_buf *out, const struct groups *groups, const char *name, bool waiting) {
    bool ok =
        hearth_buf_printf(out, "# HELP hearth_%s Requests by class and key\n# TYPE hearth_%s gauge\n", name, name);
    for (size_t i = 0; ok && i < groups->n; i++) {
        const struct group *group = &groups->v[i];
        ok = hearth_buf_printf(out, "hearth_%s{class=\"%s\",key=\"%s\"} %u\n", name, hearth_class_text(group->priority),
                               group->key, waiting ? group->waiting : group->running);
    }
    return ok;
}

static bool is_for(const struct hearth_api *api, int64_t id, const struct hearth_caller *only) {
    return only == NULL || hearth_caller_sees(only, hearth_slots_find(api, id));
}

/* Adds figures by class and key. Of waiting requests the service knows the first ones only. */
static bool add_groups(struct hearth_buf *out, struct hearth_api *api, const struct hearth_caller *only) {
    struct hearth_waiting_info waiting[HEARTH_WAITING_MAX];
    struct groups groups = {.n = 0};
    size_t lane_count = 0;
    struct hearth_lane_info *lanes = hearth_slots_lanes(api, &lane_count);
    const size_t count = hearth_service_waiting(api->service, waiting, HEARTH_WAITING_MAX);
    for (size_t i = 0; i < lane_count; i++) {
        if (lanes[i].state != HEARTH_LANE_IDLE && is_for(api, lanes[i].request_id, only)) {
            group_of(api, &groups, lanes[i].request_id, lanes[i].priority)->running++;
        }
    }
    for (size_t i = 0; i < count && i < HEARTH_WAITING_MAX; i++) {
        if (is_for(api, waiting[i].request_id, only)) {
            group_of(api, &groups, waiting[i].request_id, waiting[i].priority)->waiting++;
        }
    }
    free(lanes);
    return lanes != NULL && add_group(out, &groups, "requests_running", false) &&
           add_group(out, &groups, "requests_waiting", true);
}

/* ---- limits ---- */

struct key_rows {
    struct hearth_buf *out;
    const struct hearth_quota *only; /* NULL: all */
    const char *name;
    size_t at; /* of the figure in struct hearth_quota_state */
    bool ok;
};

static void add_key(void *user, const char *key, struct hearth_quota *quota) {
    struct key_rows *rows = user;
    struct hearth_quota_state state;
    if (rows->only == NULL || rows->only == quota) {
        hearth_quota_read(quota, hearth_clock_us(), &state);
        const uint64_t *value = (const uint64_t *)(const void *)((const char *)&state + rows->at);
        rows->ok = rows->ok &&
                   hearth_buf_printf(rows->out, "hearth_key_%s{key=\"%s\"} %" PRIu64 "\n", rows->name, key, *value);
    }
}

static bool add_keys(struct hearth_buf *out, struct hearth_api *api, const struct hearth_caller *only) {
    static const struct {
        const char *name, *help;
        size_t at;
    } figures[] = {
        {"requests_total", "Requests that have begun", offsetof(struct hearth_quota_state, requests_total)},
        {"tokens_total", "Tokens of prompts and replies", offsetof(struct hearth_quota_state, tokens_total)},
        {"refused_total", "Requests refused by a limit", offsetof(struct hearth_quota_state, refused_total)}};
    struct key_rows rows = {.out = out, .only = only != NULL ? only->quota : NULL, .ok = true};
    for (size_t i = 0; i < sizeof figures / sizeof figures[0] && rows.ok; i++) {
        rows.name = figures[i].name;
        rows.at = figures[i].at;
        rows.ok = hearth_buf_printf(out, "# HELP hearth_key_%s %s\n# TYPE hearth_key_%s counter\n", rows.name,
                                    figures[i].help, rows.name);
        hearth_api_keys_each(api, add_key, &rows);
    }
    return rows.ok;
}

/* ---- the whole ---- */

static bool add_figures(struct hearth_buf *out, const struct hearth_api *api) {
    const char *classes[HEARTH_FIGURES_CLASSES];
    static_assert(HEARTH_FIGURES_CLASSES == HEARTH_CLASS_PREFETCH + 1, "each class has its counters");
    for (unsigned i = 0; i < HEARTH_FIGURES_CLASSES; i++) {
        classes[i] = hearth_class_text((enum hearth_class)i);
    }
    return hearth_figures_print(&api->figures, api->model_name, classes, out);
}

/* Appends everything, with what each key has used. */
static bool add_all(struct hearth_buf *text, struct hearth_api *api) {
    struct hearth_service_stats stats;
    struct hearth_http_stats http;
    hearth_service_stats(api->service, &stats);
    stats.requests_refused += atomic_load(&api->refused);
    hearth_http_stats(api->http, &http);
    bool ok = true;
#define X(name, kind, help) ok = ok && add(text, #name, #kind, help, stats.name);
    HEARTH_SERVICE_STATS_TABLE(X)
#undef X
#define X(name, kind, help) ok = ok && add(text, "http_" #name, #kind, help, http.name);
    HEARTH_HTTP_STATS_TABLE(X)
#undef X
    ok = ok &&
         add(text, "requests_unauthorized", "counter", "Requests without a valid key", atomic_load(&api->unauthorized));
    ok = ok && add(text, "feed_streams", "gauge", "Pages that are open (GET /events)", api->events.count);
    ok = ok && add(text, "idle_running", "gauge", "Conversations that are being computed ahead",
                   hearth_idle_running(api->idle));
    return ok && add_figures(text, api) && add_health(text) && add_backing(text, api->params.disk) &&
           add_backing(text, api->params.remote) && add_events(text, api->params.kv_events) &&
           add_groups(text, api, NULL) && add_keys(text, api, NULL) && add_llamacpp(text, &stats);
}

/* Appends what a key may see: its own figures, and how full the server is. */
static bool add_own(struct hearth_buf *text, struct hearth_api *api, const struct hearth_caller *caller) {
    struct hearth_service_stats stats;
    hearth_service_stats(api->service, &stats);
    return add(text, "lanes_busy", "gauge", "Lanes that compute", stats.lanes_busy) &&
           add(text, "queued", "gauge", "Requests that wait", stats.queued) && add_groups(text, api, caller) &&
           add_keys(text, api, caller);
}

bool hearth_metrics_get(struct hearth_api *api, struct hearth_http_exchange *exchange,
                        const struct hearth_caller *caller, struct hearth_api_error *error) {
    struct hearth_buf text = {0};
    if (!api->params.metrics) {
        return hearth_api_fail(error, 501, NULL, NULL, "/metrics is off; start the server with --metrics");
    }
    const bool ok = hearth_caller_sees(caller, NULL) ? add_all(&text, api) : add_own(&text, api, caller);
    if (ok) {
        hearth_http_respond(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.len);
    }
    hearth_buf_finish(&text);
    return ok;
}
