/* Victims: which lane a waiting request may preempt. Pure functions of the step's state.
 *
 * Preemption. While a request waits that is not held, and no lane is free, it may preempt a victim, for the first of
 * these reasons that some lane offers (HEARTH_STEP_TABLE holds the figures):
 *
 *     reason       the victim                                                                  its place in the queue
 *     prefetch     is a prefetch; of idle time: also for a prefetch that is not                keeps it
 *     class        is of a worse class than the waiting request                                keeps it
 *     shorter      has much more left of its prompt than the waiting one, of its class, needs  keeps it
 *     share        its tenant had far more than its share, the waiting one's tenant did not    arrives anew
 *     slice        has generated for long, and the waiting request has waited for some time    arrives anew
 *
 * For the last three the start tag of the waiting request has to have passed: it waits out the patience of its class
 * and the lead of its tenant first. A victim goes on from the state it had. The lane goes to the request that preempted
 * it, then to the smallest tag. A lane that is `not_preemptible` is no victim: the caller sets that where state could
 * not be kept.
 *
 * Example: 64k of a background prompt are being read on the only lane when an interactive request of 300 tokens
 * arrives. Its class is better: once the background request has had its quantum, it is preempted, its state is kept,
 * the short prompt is read and answered, and the long one goes on where it stopped.
 *
 * No starvation. The tag of a tenant's first request lies at most 10 s (patience) plus HEARTH_LEAD_MAX_US behind its
 * arrival, or behind the last time that the tenant got a lane: requests that arrive more than these 40 s later are
 * behind it; before it are finitely many, each with a lane for no more than its prompt and a slice. Within a tenant the
 * order is that of arrival and patience. A request that finds no cells is passed by requests that need fewer, but only
 * for HEARTH_CELLS_WAIT_US (by a better class, HEARTH_CELLS_LONG_US): then no request with a larger tag is admitted, so
 * that lanes empty until it fits.
 *
 * No livelock. Except for prefetches, a request that has waited for its lane is a victim only when it has run its
 * quantum since it was assigned (a prefill: that much of computing for itself; for a better class, at most
 * HEARTH_QUANTUM_SHARE times that in all). A quantum is a multiple of what preempting the request and bringing it back
 * cost; it grows by a part of the time that the request waited, and doubles each time that state was lost meanwhile. So
 * a request that takes T is preempted at most 1 + T / HEARTH_QUANTUM_LEAST_US times, and starts over at most 2 + log2(T
 * / HEARTH_QUANTUM_US) times.
 *
 * Cells. When a batch finds too few KV cells, the lane with the largest tag is preempted, ignoring its quantum, and
 * waits until another request has ended. Each such preemption adds a waiter, so their number is bounded between two
 * ends. Before that, once a batch has been computed, the waiting request may take the cells of a victim (by the reasons
 * above), which then waits likewise. */
#include "sched/step_private.h"

#include "base/assert.h"

/* The prefetch that began last, idle ones first, or -1; `idle`: only idle ones. */
static int prefetch_lane(const struct hearth_step *step, bool idle) {
    int best = -1;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        if (lane->state == HEARTH_LANE_IDLE || lane->priority != HEARTH_CLASS_PREFETCH || (idle && !lane->idle)) {
            continue;
        }
        const struct hearth_step_lane *other = best >= 0 ? &step->lanes[best] : lane;
        if (best < 0 || (lane->idle == other->idle ? lane->id > other->id : lane->idle)) {
            best = (int)i;
        }
    }
    return best;
}

/* Whether a request of that class may preempt the lane now. */
static bool may_preempt(const struct hearth_step_lane *lane, enum hearth_class class, int64_t now_us) {
    if (lane->state == HEARTH_LANE_IDLE || lane->priority == HEARTH_CLASS_PREFETCH || lane->not_preemptible) {
        return false;
    }
    double held_us = (double)(now_us - lane->assigned_us);
    double had_us = lane->state == HEARTH_LANE_PREFILL ? lane->spent_us : held_us;
    if (lane->priority > class && had_us < held_us / HEARTH_QUANTUM_SHARE) {
        had_us = held_us / HEARTH_QUANTUM_SHARE; /* other prefills come first: the lane's own turn may be far away */
    }
    return had_us >= (double)lane->quantum_us;
}

/* Why a lane is a victim; the larger the value, the better. */
enum preempt_reason { PREEMPT_NOT, PREEMPT_SLICE, PREEMPT_SHARE, PREEMPT_SHORTER, PREEMPT_CLASS };

static bool arrives_anew(enum preempt_reason reason) {
    return reason == PREEMPT_SHARE || reason == PREEMPT_SLICE;
}

static enum preempt_reason reason_to_preempt(const struct hearth_step *step, const struct hearth_step_lane *lane,
                                             const struct hearth_step_waiter *waiter, int64_t now_us) {
    if (lane->priority > waiter->request.priority) {
        return PREEMPT_CLASS;
    }
    if (hearth_rank_tag(step, waiter).virtual_us > now_us) {
        return PREEMPT_NOT;
    }
    if (lane->state == HEARTH_LANE_PREFILL && lane->priority == waiter->request.priority &&
        hearth_rank_shorter(step, waiter->need_tokens, lane->target - lane->computed)) {
        return PREEMPT_SHORTER;
    }
    int64_t ahead_us = hearth_accounts_lead_us(&step->accounts, lane->account) -
                       hearth_accounts_lead_us(&step->accounts, waiter->account);
    if (ahead_us >= HEARTH_SHARE_US && lane->priority == waiter->request.priority) {
        return PREEMPT_SHARE;
    }
    if (lane->state == HEARTH_LANE_DECODE && now_us - lane->decodes_us >= HEARTH_SLICE_US &&
        now_us - waiter->request.queued_us >= HEARTH_SLICE_WAIT_US) {
        return PREEMPT_SLICE;
    }
    return PREEMPT_NOT;
}

/* Of two victims for the same reason: whether `a` is the better one. */
static bool better_victim(const struct hearth_step *step, const struct hearth_step_lane *a,
                          const struct hearth_step_lane *b, enum preempt_reason reason) {
    switch (reason) {
    case PREEMPT_CLASS:
        if (a->priority != b->priority) {
            return a->priority > b->priority;
        }
        return a->arrived_us > b->arrived_us;
    case PREEMPT_SHORTER: return a->target - a->computed > b->target - b->computed;
    case PREEMPT_SHARE:
        return hearth_accounts_lead_us(&step->accounts, a->account) >
               hearth_accounts_lead_us(&step->accounts, b->account);
    case PREEMPT_SLICE: return a->decodes_us < b->decodes_us;
    case PREEMPT_NOT: break;
    }
    return false;
}

/* The best victim for a request, or -1. */
static int victim_for(const struct hearth_step *step, const struct hearth_step_waiter *waiter, int64_t now_us,
                      enum preempt_reason *best_reason) {
    int best = -1;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        enum preempt_reason reason = PREEMPT_NOT;
        if (may_preempt(lane, waiter->request.priority, now_us)) {
            reason = reason_to_preempt(step, lane, waiter, now_us);
        }
        if (reason == PREEMPT_NOT || (best >= 0 && reason < *best_reason)) {
            continue;
        }
        if (best < 0 || reason > *best_reason || better_victim(step, lane, &step->lanes[best], reason)) {
            best = (int)i;
        }
        *best_reason = reason;
    }
    return best;
}

bool hearth_victim_choose(struct hearth_step *step, const struct hearth_ranking *w, int64_t now_us,
                          struct hearth_action *action) {
    const struct hearth_step_waiter *asking[] = {w->first, w->best[HEARTH_CLASS_INTERACTIVE],
                                                 w->best[HEARTH_CLASS_SIDE], w->best[HEARTH_CLASS_BACKGROUND],
                                                 w->least_work};
    enum preempt_reason reason = PREEMPT_NOT;
    const struct hearth_step_waiter *asks = w->first ? w->first : w->best[HEARTH_CLASS_PREFETCH];
    const bool may = asks && (w->first || (!w->others && !asks->request.idle));
    action->lane = may ? prefetch_lane(step, asks != w->first) : -1;
    action->id = may ? asks->request.id : 0;
    for (size_t i = 0; i < sizeof asking / sizeof *asking && action->lane < 0; i++) {
        if (asking[i]) {
            action->lane = victim_for(step, asking[i], now_us, &reason);
            action->id = asking[i]->request.id;
        }
    }
    if (action->lane < 0) {
        return false;
    }
    action->type = HEARTH_ACTION_PREEMPT;
    action->loses_place = arrives_anew(reason);
    step->reserved_for = action->id;
    return true;
}

static int cells_victim_for(const struct hearth_step *step, const struct hearth_step_waiter *waiter, int64_t now_us,
                            bool *loses_place) {
    enum preempt_reason reason = PREEMPT_NOT;
    const bool prefetch = waiter->request.priority == HEARTH_CLASS_PREFETCH;
    int lane = waiter->request.idle ? -1 : prefetch_lane(step, prefetch);
    if (lane < 0 && !prefetch) {
        lane = victim_for(step, waiter, now_us, &reason);
    }
    *loses_place = arrives_anew(reason);
    return lane;
}

int hearth_step_victim_for(const struct hearth_step *step, int64_t id, int64_t now_us, bool *loses_place) {
    const struct hearth_step_waiter *waiter = step->queue;
    while (waiter < step->queue + step->queued && waiter->request.id != id) {
        waiter++;
    }
    HEARTH_ASSERT(waiter < step->queue + step->queued);
    return cells_victim_for(step, waiter, now_us, loses_place);
}

bool hearth_step_lacks_cells(const struct hearth_step *step, int64_t now_us, bool *victim) {
    bool lacks = false, loses_place;
    *victim = false;
    for (size_t i = 0; i < step->queued && !*victim; i++) {
        const struct hearth_step_waiter *waiter = &step->queue[i];
        lacks = lacks || waiter->cells_us > 0;
        *victim = waiter->cells_us > 0 && waiter->for_cells && waiter->held_at == step->changes &&
                  now_us >= waiter->preempt_backoff_until_us &&
                  cells_victim_for(step, waiter, now_us, &loses_place) >= 0;
    }
    return lacks;
}

int hearth_step_cells_victim(const struct hearth_step *step) {
    int last = -1;
    int64_t last_us = 0;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        if (lane->state == HEARTH_LANE_IDLE) {
            continue;
        }
        int64_t virtual_us = hearth_rank_lane_us(step, lane);
        if (last < 0 || virtual_us > last_us || (virtual_us == last_us && lane->id > step->lanes[last].id)) {
            last = (int)i;
            last_us = virtual_us;
        }
    }
    return last;
}
