/* The last hour. Design in trend.h.
 *
 * A slot holds one minute, and is emptied by the first count of another one: minutes in which nothing happened cost
 * nothing, and are told as empty. */
#include "report/trend.h"

#include <math.h>

/* Zeroed if it is of an earlier hour. */
static struct hearth_trend_minute *slot_of(struct hearth_trend *trend, int64_t minute) {
    struct hearth_trend_minute *slot = &trend->minutes[minute % HEARTH_TREND_MINUTES];
    if (slot->minute != minute) {
        *slot = (struct hearth_trend_minute){.minute = minute};
    }
    return slot;
}

void hearth_trend_add(struct hearth_trend *trend, const struct hearth_report *report, int64_t minute) {
    if (!report->computes) {
        return;
    }
    struct hearth_trend_minute *slot = slot_of(trend, minute);
    slot->requests++;
    slot->prompt_tokens += report->receipt.prompt_tokens;
    slot->computed_tokens += report->receipt.computed_tokens;
    if (report->ttft_us > 0) {
        const double bucket = 4 * log2((double)report->ttft_us / 1000.0);
        const int last = HEARTH_TREND_BUCKETS - 1;
        slot->ttft[bucket < 0 ? 0 : bucket > last ? last : (int)bucket]++;
    }
}

void hearth_trend_count(struct hearth_trend *trend, uint64_t evictions, uint64_t preemptions, int64_t minute) {
    if (evictions != trend->evictions || preemptions != trend->preemptions) {
        struct hearth_trend_minute *slot = slot_of(trend, minute);
        slot->evictions += evictions - trend->evictions;
        slot->preemptions += (uint32_t)(preemptions - trend->preemptions);
        trend->evictions = evictions;
        trend->preemptions = preemptions;
    }
}

double hearth_trend_quantile(const struct hearth_trend_minute *minute, double quantile) {
    uint64_t all = 0, seen = 0;
    for (size_t i = 0; i < HEARTH_TREND_BUCKETS; i++) {
        all += minute->ttft[i];
    }
    for (size_t i = 0; i < HEARTH_TREND_BUCKETS; i++) {
        seen += minute->ttft[i];
        if (minute->ttft[i] > 0 && (double)seen >= quantile * (double)all) {
            return exp2(((double)i + 0.5) / 4);
        }
    }
    return 0;
}

json_t *hearth_trend_json(const struct hearth_trend *trend, int64_t minute) {
    static const struct hearth_trend_minute empty;
    json_t *list = json_array();
    for (int64_t at = minute - HEARTH_TREND_MINUTES + 1; at <= minute; at++) {
        const struct hearth_trend_minute *slot = &trend->minutes[at % HEARTH_TREND_MINUTES];
        slot = slot->minute == at ? slot : &empty;
        json_array_append_new(
            list, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "at", (json_int_t)at * 60, "requests",
                            (json_int_t)slot->requests, "prompt_tokens", (json_int_t)slot->prompt_tokens,
                            "computed_tokens", (json_int_t)slot->computed_tokens, "evictions",
                            (json_int_t)slot->evictions, "preemptions", (json_int_t)slot->preemptions, "ttft_p50_ms",
                            hearth_trend_quantile(slot, 0.5), "ttft_p99_ms", hearth_trend_quantile(slot, 0.99)));
    }
    return list;
}
