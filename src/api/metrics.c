/* GET /metrics: the service's table of numbers, the far tier's and the HTTP server's, as Prometheus text.
 * Source: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4) */
#include "api/api_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A counter's name ends in _total by convention. */
static bool add(struct hearth_buf *out, const char *name, const char *kind, const char *help, uint64_t value) {
    const char *suffix = strcmp(kind, "counter") == 0 ? "_total" : "";
    return hearth_buf_printf(out, "# HELP hearth_%s%s %s\n# TYPE hearth_%s%s %s\nhearth_%s%s %" PRIu64 "\n", name,
                             suffix, help, name, suffix, kind, name, suffix, value);
}

/* hearth_disk_…, after the tier's name. */
static bool add_far(struct hearth_buf *out, const struct hearth_api *api) {
    struct hearth_far_stats stats;
    char name[96];
    bool ok = true;
    if (api->far == NULL) {
        return true;
    }
    api->far->ops->stats(api->far, &stats);
#define X(field, kind, help)                                              \
    (void)snprintf(name, sizeof name, "%s_" #field, api->far->name);      \
    ok = ok && add(out, name, #kind, help, stats.field);
    HEARTH_FAR_STATS_TABLE(X)
    X(scanned, gauge, "1: everything that was there at the start is known")
    X(failing, gauge, "1: writing is suspended after errors")
#undef X
    return ok;
}

void hearth_metrics_get(struct hearth_api *api, struct hearth_http_exchange *exchange) {
    struct hearth_api_error error;
    struct hearth_buf text = {0};
    struct hearth_service_stats stats;
    struct hearth_http_stats http;
    if (!api->metrics) {
        hearth_api_fail(&error, 501, NULL, NULL, "/metrics is off; start the server with --metrics");
        hearth_api_respond_error(exchange, &error);
        return;
    }
    hearth_service_stats(api->service, &stats);
    hearth_http_stats(api->http, &http);
    bool ok = true;
#define X(name, kind, help) ok = ok && add(&text, #name, #kind, help, stats.name);
    HEARTH_SERVICE_STATS_TABLE(X)
#undef X
    ok = ok && add_far(&text, api) && add(&text, "http_connections", "gauge", "Connections open", http.connections) &&
         add(&text, "http_accepted", "counter", "Connections accepted", http.connections_total) &&
         add(&text, "http_requests", "counter", "HTTP requests", http.requests_total) &&
         add(&text, "http_dropped", "counter", "Clients gone before the end of their response", http.dropped_total);
    if (ok) {
        hearth_http_respond(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.len);
    } else {
        hearth_api_fail_nomem(&error);
        hearth_api_respond_error(exchange, &error);
    }
    hearth_buf_finish(&text);
}
