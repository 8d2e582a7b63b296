/* The last hour, minute by minute: how long requests waited for their first token, how much was reused, what was
 * evicted and preempted. A fixed size; times are kept as counts in buckets, so that any quantile is within a tenth.
 *
 * Threads: the caller's, one at a time. */
#ifndef HEARTH_REPORT_TREND_H
#define HEARTH_REPORT_TREND_H

#include "report/report.h"

#define HEARTH_TREND_MINUTES 60
#define HEARTH_TREND_BUCKETS 80 /* four to a doubling, from a millisecond to a quarter of an hour */

struct hearth_trend_minute {
    int64_t minute; /* since 1970; 0: nothing has been counted */
    uint32_t requests, preemptions;
    uint64_t prompt_tokens, computed_tokens, evictions;
    uint32_t ttft[HEARTH_TREND_BUCKETS];
};

/* Zeroed: nothing has been counted. */
struct hearth_trend {
    struct hearth_trend_minute minutes[HEARTH_TREND_MINUTES]; /* a minute is at its number modulo these */
    uint64_t evictions, preemptions;                          /* counters as they were told last */
};

/* Counts a request that has ended in this minute. */
void hearth_trend_add(struct hearth_trend *trend, const struct hearth_report *report, int64_t minute);
/* Counts how much the counters have grown since the last call. Call it now and then, from the start on. */
void hearth_trend_count(struct hearth_trend *trend, uint64_t evictions, uint64_t preemptions, int64_t minute);
/* The quantile of a minute's times, in milliseconds; 0: there was no request. */
double hearth_trend_quantile(const struct hearth_trend_minute *minute, double quantile);
/* An array of the hour up to this minute, the oldest first; NULL: out of memory. */
json_t *hearth_trend_json(const struct hearth_trend *trend, int64_t minute);

#endif
