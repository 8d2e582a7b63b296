/* Eviction by value per byte. Pure functions; design in policy.h. */
#include "cache/policy.h"

/* How likely a prompt comes back to a snapshot of each kind, relative to a page; in the order of the kind table. */
static const double kinds[] = {
    [HEARTH_SNAPSHOT_REPLY_END] = 1.0,  [HEARTH_SNAPSHOT_PROMPT_END] = 0.5, [HEARTH_SNAPSHOT_MARK] = 1.0,
    [HEARTH_SNAPSHOT_DIVERGENCE] = 1.5, [HEARTH_SNAPSHOT_INTERVAL] = 0.25,  [HEARTH_SNAPSHOT_HEAD] = 0.002,
    [HEARTH_SNAPSHOT_WINDOW] = 1.0,
};
/* The guess for a snapshot. Most heads are shared wholly or not at all, so snapshots inside a head go first; one that a
 * prompt has come back to counts like the end of a head. */
static double guess_of(const struct hearth_policy_item *item) {
    bool used = item->kind == HEARTH_SNAPSHOT_HEAD && item->hits > 1;
    return kinds[used ? HEARTH_SNAPSHOT_MARK : item->kind];
}

/* Once the conversation has gone on, its earlier snapshots serve only forks and edits. */
static const double reuse_superseded = 0.2;

/* What an item in RAM saves when it is used: computing it, or reading it. */
static double saved_us(const struct hearth_policy_item *item, const struct hearth_costs *costs) {
    double again_us = hearth_costs_compute_us(costs, item->saved_tokens);
    double backing_us = hearth_costs_backing_us(costs, item->remote, item->bytes, 1);
    if (item->copied && backing_us < again_us) {
        again_us = backing_us;
    }
    return again_us - hearth_costs_restore_us(costs, item->bytes, 1);
}

static double reuse(const struct hearth_policy_item *item) {
    return !item->is_snapshot ? 1.0
           : item->reuse >= 0 ? item->reuse
                              : guess_of(item) * (item->superseded ? reuse_superseded : 1.0);
}

static double gdsf(const struct hearth_policy_item *item, const struct hearth_costs *costs, double inflation) {
    double saved = saved_us(item, costs);
    return saved <= 0 ? inflation : inflation + reuse(item) * (double)item->hits * saved / (double)item->bytes;
}

const struct hearth_policy hearth_policy_gdsf = {.name = "gdsf", .rank = gdsf};

/* The time of an item's last use, in microseconds. A path's pages are used together, and the deepest goes first. The
 * next turn needs the end of a window, so its deepest piece goes last. */
static double last_use(const struct hearth_policy_item *item, const struct hearth_costs *costs, double x) {
    (void)costs, (void)x;
    bool window = item->is_snapshot && item->kind == HEARTH_SNAPSHOT_WINDOW;
    return (double)item->used_us + (window ? 1e-3 : -1e-3) * item->pos;
}

const struct hearth_policy hearth_policy_lru = {.name = "lru", .rank = last_use};

static double worth(const struct hearth_policy_item *item, const struct hearth_costs *costs, double returns_per_s) {
    double saved = saved_us(item, costs);
    return saved <= 0 ? 0 : returns_per_s * reuse(item) * saved / (double)item->bytes;
}

const struct hearth_policy hearth_policy_returns = {.name = "hearth", .rank = last_use, .worth = worth};

void hearth_costs_init(struct hearth_costs *costs) {
    *costs = (struct hearth_costs){.prefill_us_per_token = 500,
                                   .import_us_per_byte = 1.0 / 2000,
                                   .import_us = 50,
                                   .backing_us_per_byte = 1.0 / 500,
                                   .backing_us = 200,
                                   .remote_us_per_byte = 1.0 / 500};
}

#define LEARN_BYTES (1.0 * (1 << 20)) /* pages of real models have more */
static const double weight = 0.2;     /* of a sample */

void hearth_costs_learn(double *cost, double sample) {
    *cost += (sample - *cost) * weight;
}

void hearth_costs_learn_bytes(double *us_per_byte, int64_t us, uint64_t bytes) {
    const double share = (double)bytes < LEARN_BYTES ? (double)bytes / LEARN_BYTES : 1;
    *us_per_byte += ((double)us / (double)bytes - *us_per_byte) * weight * share;
}
