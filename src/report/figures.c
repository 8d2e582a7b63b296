/* Histograms and counters. Design in figures.h.
 *
 * The bounds reach from a millisecond (a restore of a few pages) to two minutes (a long prompt on a slow machine),
 * three to a decade: a quantile that Prometheus reads off is within a factor of two of the true one. */
#include "report/figures.h"

#include <inttypes.h>

static const double bounds_s[HEARTH_HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                          0.25,  0.5,    1,     2.5,  10,    30,   120};

void hearth_histogram_add(struct hearth_histogram *histogram, int64_t us) {
    const double s = us > 0 ? (double)us / 1e6 : 0;
    size_t i = 0;
    while (i < HEARTH_HISTOGRAM_BUCKETS && s > bounds_s[i]) {
        i++;
    }
    histogram->buckets[i]++;
    histogram->count++;
    histogram->sum_s += s;
}

void hearth_figures_add(struct hearth_figures *figures, const struct hearth_report *report, unsigned request_class) {
    const struct hearth_receipt *receipt = &report->receipt;
    if (!report->computes) {
        return;
    }
    if (report->ttft_us > 0) {
        hearth_histogram_add(&figures->ttft, report->ttft_us);
    }
    hearth_histogram_add(&figures->queue, receipt->queue_us);
    hearth_histogram_add(&figures->prefill, receipt->prefill_us);
    if (hearth_receipt_reused_tokens(receipt) > receipt->reused_live_tokens) {
        hearth_histogram_add(&figures->restore, receipt->restore_us);
    }
    figures->requests[request_class][receipt->reason]++;
}

static bool print_histogram(const struct hearth_histogram *histogram, const char *name, const char *help,
                            const char *model, struct hearth_buf *out) {
    uint64_t below = 0;
    bool ok =
        hearth_buf_printf(out, "# HELP hearth_%s_seconds %s\n# TYPE hearth_%s_seconds histogram\n", name, help, name);
    for (size_t i = 0; ok && i < HEARTH_HISTOGRAM_BUCKETS; i++) {
        below += histogram->buckets[i];
        ok = hearth_buf_printf(out, "hearth_%s_seconds_bucket{model=\"%s\",le=\"%g\"} %" PRIu64 "\n", name, model,
                               bounds_s[i], below);
    }
    return ok && hearth_buf_printf(out,
                                   "hearth_%s_seconds_bucket{model=\"%s\",le=\"+Inf\"} %" PRIu64
                                   "\nhearth_%s_seconds_sum{model=\"%s\"} %.6f\nhearth_%s_seconds_count{model=\"%s\"} "
                                   "%" PRIu64 "\n",
                                   name, model, histogram->count, name, model, histogram->sum_s, name, model,
                                   histogram->count);
}

/* A label's value: a backslash, a quote and a line break are escaped. */
static bool escape(const char *text, struct hearth_buf *out) {
    bool ok = true;
    for (const char *at = text; ok && *at != '\0'; at++) {
        ok = *at == '\n'                 ? hearth_buf_text(out, "\\n")
             : *at == '"' || *at == '\\' ? hearth_buf_printf(out, "\\%c", *at)
                                         : hearth_buf_append(out, at, 1);
    }
    return ok && hearth_buf_append(out, "", 1);
}

static bool print_requests(const struct hearth_figures *figures, const char *model,
                           const char *const classes[HEARTH_FIGURES_CLASSES], struct hearth_buf *out) {
    bool ok = hearth_buf_text(out, "# HELP hearth_requests_by_reason_total Requests by why not more was reused\n"
                                   "# TYPE hearth_requests_by_reason_total counter\n");
    for (size_t class = 0; class < HEARTH_FIGURES_CLASSES; class ++) {
        for (size_t reason = 0; ok && reason < HEARTH_FIGURES_REASONS; reason++) {
            ok = hearth_buf_printf(
                out, "hearth_requests_by_reason_total{model=\"%s\",class=\"%s\",reason=\"%s\"} %" PRIu64 "\n", model,
                classes[class], hearth_reason_text((enum hearth_reason)reason), figures->requests[class][reason]);
        }
    }
    return ok;
}

bool hearth_figures_print(const struct hearth_figures *figures, const char *model,
                          const char *const classes[HEARTH_FIGURES_CLASSES], struct hearth_buf *out) {
    struct hearth_buf label = {0};
    bool ok = escape(model, &label);
    const char *name = (const char *)label.data;
#define X(field, help) ok = ok && print_histogram(&figures->field, #field, help, name, out);
    HEARTH_FIGURES_TABLE(X)
#undef X
    ok = ok && print_requests(figures, name, classes, out);
    hearth_buf_finish(&label);
    return ok;
}
