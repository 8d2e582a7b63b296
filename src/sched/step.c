/* The step. The rules stand in step.h.
 *
 * Invariants: an idle lane has id 0; a queued request is on no lane; shares sum to at most batch_tokens; a share never
 * crosses a mark or the prefill's end; a tenant's account counts its waiting and running requests, except prefetches.
 */
#include "sched/step_private.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

struct hearth_step *hearth_step_create(const struct hearth_step_params *params) {
    HEARTH_ASSERT(params->lanes > 0 && params->lanes <= HEARTH_LANES_MAX && params->batch_tokens > 0);
    struct hearth_step *step = calloc(1, sizeof *step);
    if (step) {
        step->params = *params;
        step->changes = 1;
    }
    return step;
}

void hearth_step_destroy(struct hearth_step *step) {
    if (step) {
        free(step->queue);
        free(step);
    }
}

const struct hearth_step_lane *hearth_step_lane(const struct hearth_step *step, int lane) {
    return &step->lanes[lane];
}

size_t hearth_step_queued(const struct hearth_step *step) {
    return step->queued;
}

int64_t hearth_step_unestimated(const struct hearth_step *step, uint64_t turn, bool *unknown) {
    for (size_t i = 0; i < step->queued; i++) {
        if (step->queue[i].need_tokens < 0 && step->queue[i].request.priority != HEARTH_CLASS_PREFETCH) {
            *unknown = true;
            return step->queue[i].request.id;
        }
    }
    *unknown = false;
    return step->queued > 0 ? step->queue[turn % step->queued].request.id : 0;
}

static bool lane_free(const struct hearth_step *step) {
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        if (step->lanes[i].state == HEARTH_LANE_IDLE) {
            return true;
        }
    }
    return false;
}

/* ---- next ---- */

/* The lane whose state has waited longest to be captured, idle lanes first; -1: none waits. */
static int next_capture(const struct hearth_step *step) {
    int best = -1;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i], *other = best >= 0 ? &step->lanes[best] : lane;
        bool idle = lane->state == HEARTH_LANE_IDLE, other_idle = other->state == HEARTH_LANE_IDLE;
        if (lane->capture && (best < 0 || (idle && !other_idle) ||
                              (idle == other_idle && lane->capture_since_us < other->capture_since_us))) {
            best = (int)i;
        }
    }
    return best;
}

void hearth_step_next(struct hearth_step *step, int64_t now_us, struct hearth_action *action) {
    memset(action, 0, sizeof *action);
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        if (step->lanes[i].state == HEARTH_LANE_DECODE && step->lanes[i].decodes_us == 0) {
            step->lanes[i].decodes_us = now_us > 0 ? now_us : 1;
        }
    }
    if (step->queued > 0) {
        struct hearth_ranking ranking;
        bool free = lane_free(step);
        hearth_rank_scan(step, free, now_us, &ranking);
        const struct hearth_step_waiter *waiter = free ? hearth_rank_next(step, &ranking, now_us) : NULL;
        if (waiter) {
            action->type = HEARTH_ACTION_ADMIT;
            action->id = waiter->request.id;
            return;
        }
        if (!free && hearth_victim_choose(step, &ranking, now_us, action)) {
            return;
        }
    }
    int capture = next_capture(step);
    bool passed = false;
    int32_t batch = hearth_step_fill(step, now_us, action->shares, &passed);
    if (capture >= 0 && (batch == 0 || !step->captured_last)) {
        action->type = HEARTH_ACTION_CAPTURE;
        action->lane = capture;
        step->captured_last = true;
        return;
    }
    step->captured_last = false;
    step->passed = passed ? step->passed + 1 : 0;
    action->type = batch > 0 ? HEARTH_ACTION_COMPUTE : HEARTH_ACTION_SLEEP;
}

/* ---- events ---- */

void hearth_step_changed(struct hearth_step *step) {
    if (++step->changes == 0) {
        step->changes = 1;
    }
}

void hearth_step_resize(struct hearth_step *step, const struct hearth_step_sizes *sizes) {
    step->sizes = *sizes;
}

void hearth_step_pending(struct hearth_step *step, int index, bool capture) {
    struct hearth_step_lane *lane = &step->lanes[index];
    lane->capture = capture;
    if (lane->state != HEARTH_LANE_IDLE) {
        lane->capture_since_us = lane->assigned_us;
    }
}

void hearth_step_set_not_preemptible(struct hearth_step *step, int index, bool not_preemptible) {
    step->lanes[index].not_preemptible = not_preemptible;
}

bool hearth_step_submit(struct hearth_step *step, const struct hearth_step_request *request) {
    if (!HEARTH_BUF_ROOM(step->queue, step->queued, step->queue_cap)) {
        return false;
    }
    struct hearth_step_waiter *waiter = &step->queue[step->queued++];
    *waiter = (struct hearth_step_waiter){.request = *request, .need_tokens = -1};
    if (request->priority != HEARTH_CLASS_PREFETCH) {
        waiter->account = hearth_accounts_wait(&step->accounts, request->tenant);
    }
    return true;
}

static size_t queue_find(const struct hearth_step *step, int64_t id) {
    size_t i = 0;
    while (i < step->queued && step->queue[i].request.id != id) {
        i++;
    }
    return i;
}

static void queue_remove(struct hearth_step *step, size_t at) {
    if (step->queue[at].request.id == step->reserved_for) {
        step->reserved_for = 0;
    }
    memmove(step->queue + at, step->queue + at + 1, (step->queued - at - 1) * sizeof *step->queue);
    step->queued--;
}

void hearth_step_withdraw(struct hearth_step *step, int64_t id) {
    size_t at = queue_find(step, id);
    if (at == step->queued) {
        return;
    }
    if (step->queue[at].request.priority != HEARTH_CLASS_PREFETCH) {
        hearth_accounts_gone(&step->accounts, step->queue[at].account);
    }
    queue_remove(step, at);
}

void hearth_step_need(struct hearth_step *step, int64_t id, int32_t tokens) {
    size_t at = queue_find(step, id);
    if (at < step->queued) {
        step->queue[at].need_tokens = tokens;
    }
}

void hearth_step_hold(struct hearth_step *step, int64_t id, bool cells, int64_t now_us) {
    size_t at = queue_find(step, id);
    HEARTH_ASSERT(at < step->queued);
    struct hearth_step_waiter *waiter = &step->queue[at];
    waiter->held_at = step->changes;
    waiter->for_cells = cells;
    if (cells && waiter->request.priority != HEARTH_CLASS_PREFETCH && waiter->cells_us == 0) {
        waiter->cells_us = now_us > 0 ? now_us : 1;
    }
    if (step->reserved_for == id) {
        step->reserved_for = 0; /* the reservation ends, because other requests have waited for it */
        waiter->preempt_backoff_until_us = now_us + HEARTH_PREEMPT_BACKOFF_US;
    }
}

/* How long a request keeps its lane at least. A request that did not wait has no quantum, because it would lose no
 * turn. */
static int64_t quantum_us(const struct hearth_step_waiter *waiter, int64_t preempt_cost_us, int64_t now_us) {
    int64_t waited_us = now_us - waiter->request.queued_us, more_us = waited_us / HEARTH_QUANTUM_SHARE;
    if (!waiter->request.preempted) {
        return waited_us < HEARTH_QUANTUM_US ? waited_us : HEARTH_QUANTUM_US;
    }
    int64_t quantum = preempt_cost_us * HEARTH_QUANTUM_TIMES;
    if (quantum > HEARTH_QUANTUM_US || waiter->request.lost > 0) {
        quantum = (int64_t)HEARTH_QUANTUM_US
                  << (waiter->request.lost < HEARTH_LOST_TIMES ? waiter->request.lost : HEARTH_LOST_TIMES);
    } else if (quantum < HEARTH_QUANTUM_LEAST_US) {
        quantum = HEARTH_QUANTUM_LEAST_US;
    }
    return quantum + (more_us < HEARTH_QUANTUM_MORE_US ? more_us : HEARTH_QUANTUM_MORE_US);
}

void hearth_step_assign(struct hearth_step *step, int64_t id, int index, int32_t computed, int32_t target,
                        const int32_t *marks, size_t mark_count, int64_t preempt_cost_us, int64_t now_us) {
    struct hearth_step_lane *lane = &step->lanes[index];
    size_t at = queue_find(step, id);
    HEARTH_ASSERT(at < step->queued && lane->state == HEARTH_LANE_IDLE && computed < target);
    const struct hearth_step_waiter *waiter = &step->queue[at];
    *lane = (struct hearth_step_lane){.state = HEARTH_LANE_PREFILL,
                                      .id = id,
                                      .priority = waiter->request.priority,
                                      .idle = waiter->request.idle,
                                      .account = waiter->account,
                                      .arrived_us = waiter->request.arrived_us,
                                      .assigned_us = now_us,
                                      .quantum_us = quantum_us(waiter, preempt_cost_us, now_us),
                                      .begun = computed,
                                      .computed = computed,
                                      .target = target};
    for (size_t i = 0; i < mark_count; i++) {
        (void)hearth_step_mark(step, index, marks[i]);
    }
    if (lane->priority != HEARTH_CLASS_PREFETCH) {
        hearth_accounts_run(&step->accounts, lane->account, now_us);
    }
    queue_remove(step, at);
    hearth_step_changed(step);
}

bool hearth_step_mark(struct hearth_step *step, int index, int32_t pos) {
    struct hearth_step_lane *lane = &step->lanes[index];
    if (lane->state != HEARTH_LANE_PREFILL || pos <= lane->computed || pos >= lane->target) {
        return false;
    }
    int at = 0;
    while (at < lane->mark_count && lane->marks[at] < pos) {
        at++;
    }
    if (at < lane->mark_count && lane->marks[at] == pos) {
        return true;
    }
    if (lane->mark_count == HEARTH_MARKS_MAX) {
        return false;
    }
    memmove(lane->marks + at + 1, lane->marks + at, (size_t)(lane->mark_count - at) * sizeof *lane->marks);
    lane->marks[at] = pos;
    lane->mark_count++;
    return true;
}

void hearth_step_due(struct hearth_step *step, int index, int32_t tokens) {
    HEARTH_ASSERT(step->lanes[index].state == HEARTH_LANE_DECODE && tokens > 0);
    step->lanes[index].due = tokens;
}

void hearth_step_charge(struct hearth_step *step, int index, double us) {
    struct hearth_step_lane *lane = &step->lanes[index];
    lane->spent_us += us;
    if (lane->priority != HEARTH_CLASS_PREFETCH) {
        hearth_accounts_charge(&step->accounts, lane->account, us);
    }
}

bool hearth_step_computed(struct hearth_step *step, int index, int32_t tokens) {
    struct hearth_step_lane *lane = &step->lanes[index];
    lane->computed += tokens;
    if (lane->state != HEARTH_LANE_PREFILL) {
        return false;
    }
    HEARTH_ASSERT(lane->computed <= lane->target);
    hearth_step_changed(step); /* a held request may share what was just computed */
    if (lane->computed == lane->target) {
        lane->state = HEARTH_LANE_DECODE;
        lane->due = 1;
    }
    if (lane->mark_count == 0 || lane->marks[0] != lane->computed) {
        return false;
    }
    lane->mark_count--;
    memmove(lane->marks, lane->marks + 1, (size_t)lane->mark_count * sizeof *lane->marks);
    return true;
}

void hearth_step_release(struct hearth_step *step, int index, bool capture, int64_t now_us) {
    if (step->lanes[index].priority != HEARTH_CLASS_PREFETCH) {
        hearth_accounts_stop(&step->accounts, step->lanes[index].account);
    }
    step->lanes[index] =
        (struct hearth_step_lane){.state = HEARTH_LANE_IDLE, .capture = capture, .capture_since_us = now_us};
    hearth_step_changed(step);
}
