/* Eviction by value per byte. Pure functions; design in policy.h. */
#include "cache/policy.h"

/* How likely a prompt comes back to a snapshot of each kind, relative to a page. Order of the kind table. */
static const double reuse[] = {
    [HEARTH_SNAPSHOT_REPLY_END] = 1.0,  [HEARTH_SNAPSHOT_PROMPT_END] = 0.5, [HEARTH_SNAPSHOT_MARK] = 1.0,
    [HEARTH_SNAPSHOT_DIVERGENCE] = 1.5, [HEARTH_SNAPSHOT_INTERVAL] = 0.25,  [HEARTH_SNAPSHOT_HEAD] = 0.002,
};
/* Most heads are shared as a whole or not at all, so that what is inside them goes first. One that a prompt has come
 * back to is like the end of a head. */
static double reuse_of(const struct hearth_policy_item *item) {
    bool used = item->kind == HEARTH_SNAPSHOT_HEAD && item->hits > 1;
    return reuse[used ? HEARTH_SNAPSHOT_MARK : item->kind];
}

/* Once the conversation has gone on, its earlier snapshots serve only forks and edits. */
static const double reuse_superseded = 0.2;

double hearth_policy_gdsf(const struct hearth_policy_item *item, const struct hearth_costs *costs, double inflation) {
    double again_us = hearth_costs_compute_us(costs, item->saved_tokens);
    double backing_us = hearth_costs_backing_us(costs, item->bytes, 1);
    if (item->copied && backing_us < again_us) {
        again_us = backing_us;
    }
    double saved_us = again_us - hearth_costs_restore_us(costs, item->bytes, 1);
    if (saved_us <= 0) {
        return inflation;
    }
    double p_reuse = !item->is_snapshot ? 1.0 : reuse_of(item) * (item->superseded ? reuse_superseded : 1.0);
    return inflation + p_reuse * (double)item->hits * saved_us / (double)item->bytes;
}

double hearth_policy_lru(const struct hearth_policy_item *item, const struct hearth_costs *costs, double inflation) {
    (void)costs, (void)inflation;
    return (double)item->used_us - 1e-3 * item->pos;
}

void hearth_costs_init(struct hearth_costs *costs) {
    *costs = (struct hearth_costs){.prefill_us_per_token = 500,
                                   .import_us_per_byte = 1.0 / 2000,
                                   .import_us = 50,
                                   .backing_us_per_byte = 1.0 / 500,
                                   .backing_us = 200};
}

void hearth_costs_learn(double *cost, double sample) {
    *cost += (sample - *cost) * 0.2;
}
