/* Histograms and counters over many requests, for /metrics.
 *
 * Labels are classes and reasons, of which there are few; nothing grows with clients, keys or sessions.
 * Source: https://prometheus.io/docs/practices/naming/ (seconds, _total), .../concepts/metric_types/ (histogram) */
#ifndef HEARTH_REPORT_FIGURES_H
#define HEARTH_REPORT_FIGURES_H

#include "report/report.h"

#define HEARTH_HISTOGRAM_BUCKETS 14

/* A histogram of durations; the bounds stand in figures.c. */
struct hearth_histogram {
    uint64_t buckets[HEARTH_HISTOGRAM_BUCKETS + 1]; /* not cumulative; the last: everything above */
    uint64_t count;
    double sum_s;
};

/* Name, help: name is the metric's, between "hearth_" and "_seconds". */
#define HEARTH_FIGURES_TABLE(X)                                           \
    X(ttft, "From a request's last byte to the first token of its reply") \
    X(queue, "Waiting for a lane")                                        \
    X(restore, "Bringing state back from RAM or disk")                    \
    X(prefill, "Computing the rest of the prompt")                        \
    X(inter_token, "Between two tokens of a reply, as they left the server")

#define HEARTH_FIGURES_CLASSES 4
#define HEARTH_FIGURES_REASONS (HEARTH_REASON_RESTORE_FAILED + 1)

/* Zeroed: nothing has been counted. Threads: the caller's, one at a time. */
struct hearth_figures {
#define X(name, help) struct hearth_histogram name;
    HEARTH_FIGURES_TABLE(X)
#undef X
    uint64_t requests[HEARTH_FIGURES_CLASSES][HEARTH_FIGURES_REASONS];
};

/* Counts one duration. */
void hearth_histogram_add(struct hearth_histogram *histogram, int64_t us);
/* Counts a request that has ended. `request_class`: below HEARTH_FIGURES_CLASSES. */
void hearth_figures_add(struct hearth_figures *figures, const struct hearth_report *report, unsigned request_class);
/* Appends all of it as Prometheus text. `classes`: the texts of the classes. False: out of memory. */
bool hearth_figures_print(const struct hearth_figures *figures, const char *model,
                          const char *const classes[HEARTH_FIGURES_CLASSES], struct hearth_buf *out);

#endif
