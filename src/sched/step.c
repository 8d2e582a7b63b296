/* The step. Rules in step.h.
 *
 * Invariants: an idle lane has id 0; a queued request is on no lane; shares sum to at most batch_tokens; a share never
 * crosses a mark or the prefill's end; a tenant's account counts its requests that wait and run, except prefetches. */
#include "sched/step.h"

#include "base/assert.h"
#include "sched/batch.h"

#include <stdlib.h>
#include <string.h>

const char *hearth_class_text(enum hearth_class priority) {
    static const char *const texts[] = {
#define X(name, text, patience) [HEARTH_CLASS_##name] = text,
        HEARTH_CLASS_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)priority < sizeof texts / sizeof *texts);
    return texts[priority];
}

const char *hearth_lane_state_text(enum hearth_lane_state state) {
    static const char *const texts[] = {
#define X(name, text) [HEARTH_LANE_##name] = text,
        HEARTH_LANE_STATE_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)state < sizeof texts / sizeof *texts);
    return texts[state];
}

void hearth_step_init(struct hearth_step *step, const struct hearth_step_params *params) {
    HEARTH_ASSERT(params->lanes > 0 && params->lanes <= HEARTH_LANES_MAX && params->batch_tokens > 0);
    memset(step, 0, sizeof *step);
    step->params = *params;
    step->changes = 1;
}

void hearth_step_finish(struct hearth_step *step) {
    free(step->queue);
    step->queue = NULL;
    step->queued = step->queue_cap = 0;
}

/* ---- choosing ---- */

static bool lane_free(const struct hearth_step *step) {
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        if (step->lanes[i].state == HEARTH_LANE_IDLE) {
            return true;
        }
    }
    return false;
}

/* When a request counts as arrived among the requests of its tenant. */
static int64_t came_us(enum hearth_class priority, int64_t arrived_us) {
    static const int64_t patience_s[] = {
#define X(name, text, patience) [HEARTH_CLASS_##name] = (patience),
        HEARTH_CLASS_TABLE(X)
#undef X
    };
    return arrived_us + patience_s[priority] * 1000000;
}

int64_t hearth_step_lane_start_us(const struct hearth_step *step, const struct hearth_step_lane *lane) {
    if (lane->priority == HEARTH_CLASS_WARM) {
        return INT64_MAX;
    }
    return came_us(lane->priority, lane->arrived_us) + hearth_accounts_lead_us(&step->accounts, lane->account);
}

struct hearth_start_tag hearth_step_start_tag(const struct hearth_step *step,
                                              const struct hearth_step_request *request) {
    if (request->priority == HEARTH_CLASS_WARM) {
        return (struct hearth_start_tag){INT64_MAX, request->arrived_us};
    }
    struct hearth_start_tag tag = {.came_us = came_us(request->priority, request->arrived_us)};
    int64_t oldest_us = step->accounts.v[request->account].last_run_us - HEARTH_BACKLOG_US;
    tag.virtual_us = (tag.came_us > oldest_us ? tag.came_us : oldest_us) +
                     hearth_accounts_lead_us(&step->accounts, request->account);
    return tag;
}

bool hearth_start_tag_before(struct hearth_start_tag a, struct hearth_start_tag b) {
    return a.virtual_us != b.virtual_us ? a.virtual_us < b.virtual_us : a.came_us < b.came_us;
}

static bool held(const struct hearth_step *step, const struct hearth_step_request *request) {
    return request->held_at == step->changes;
}

/* Whether a prompt of `need` tokens (negative: not known) is much shorter than what is left of another. */
static bool shorter(const struct hearth_step *step, int32_t need, int32_t left) {
    return need >= 0 && left / HEARTH_SHORTER_TIMES >= need &&
           (double)left * step->params.prefill_us >= HEARTH_SHORTER_MIN_US;
}

/* The queued requests, not held, that may be admitted or may preempt next: the first of each kind. */
struct waiting {
    const struct hearth_step_request *best[HEARTH_CLASS_WARM + 1]; /* of each class */
    const struct hearth_step_request *first;                       /* of all but prefetches */
    const struct hearth_step_request *least_work; /* of those whose start tag has passed: by class, then by work */
    bool others;                                  /* a request waits, held or not, that is no prefetch */
};

static bool less_work(const struct hearth_step_request *a, const struct hearth_step_request *b) {
    return a->priority != b->priority ? a->priority < b->priority : a->need_tokens < b->need_tokens;
}

/* For each class the largest tag that is admitted: a request that has lacked cells for long enough stops those behind
 * it, which would otherwise take every cell that becomes free. A better class is stopped only after a longer wait. */
static void find_cutoffs(const struct hearth_step *step, int64_t now_us,
                         struct hearth_start_tag last[HEARTH_CLASS_WARM]) {
    for (int c = 0; c < HEARTH_CLASS_WARM; c++) {
        last[c] = (struct hearth_start_tag){INT64_MAX, INT64_MAX};
    }
    for (size_t i = 0; i < step->queued; i++) {
        const struct hearth_step_request *request = &step->queue[i];
        int64_t lacked_us = request->cells_us > 0 ? now_us - request->cells_us : 0;
        if (lacked_us < HEARTH_CELLS_WAIT_US) {
            continue;
        }
        struct hearth_start_tag tag = hearth_step_start_tag(step, request);
        for (int c = lacked_us < HEARTH_CELLS_LONG_US ? (int)request->priority : 0; c < HEARTH_CLASS_WARM; c++) {
            if (hearth_start_tag_before(tag, last[c])) {
                last[c] = tag;
            }
        }
    }
}

static void scan_queue(const struct hearth_step *step, bool free, int64_t now_us, struct waiting *w) {
    struct hearth_start_tag tags[HEARTH_CLASS_WARM + 1] = {{0}}, last[HEARTH_CLASS_WARM];
    find_cutoffs(step, now_us, last);
    *w = (struct waiting){.others = false};
    for (size_t i = 0; i < step->queued; i++) {
        const struct hearth_step_request *request = &step->queue[i];
        bool warm = request->priority == HEARTH_CLASS_WARM;
        w->others = w->others || !warm;
        if (held(step, request) || (!free && now_us < request->preempt_backoff_until_us)) {
            continue;
        }
        struct hearth_start_tag tag = hearth_step_start_tag(step, request);
        if (!warm && hearth_start_tag_before(last[request->priority], tag)) {
            continue;
        }
        const struct hearth_step_request **best = &w->best[request->priority];
        if (!*best || hearth_start_tag_before(tag, tags[request->priority])) {
            *best = request;
            tags[request->priority] = tag;
        }
        bool passed = !warm && request->need_tokens >= 0 && tag.virtual_us <= now_us;
        if (passed && (!w->least_work || less_work(request, w->least_work))) {
            w->least_work = request;
        }
    }
    for (int c = 0; c < HEARTH_CLASS_WARM; c++) {
        if (w->best[c] && (!w->first || hearth_start_tag_before(tags[c], tags[w->first->priority]))) {
            w->first = w->best[c];
        }
    }
}

static const struct hearth_step_request *reserved_for(const struct hearth_step *step) {
    for (size_t i = 0; i < step->queued && step->reserved_for; i++) {
        if (step->queue[i].id == step->reserved_for) {
            return held(step, &step->queue[i]) ? NULL : &step->queue[i];
        }
    }
    return NULL;
}

/* The request that gets a free lane; NULL: none. No prefetch while other requests wait: one of them may need the lane
 * in a moment. */
static const struct hearth_step_request *next_request(const struct hearth_step *step, const struct waiting *w,
                                                      int64_t now_us) {
    const struct hearth_step_request *first = reserved_for(step);
    if (first) {
        return first;
    }
    first = w->first;
    if (!w->others) {
        return w->best[HEARTH_CLASS_WARM];
    }
    bool lets_pass = first && w->least_work && w->least_work->priority <= first->priority &&
                     now_us - first->queued_us < HEARTH_SHORTER_WAIT_US && first->need_tokens >= 0 &&
                     shorter(step, w->least_work->need_tokens, first->need_tokens);
    return lets_pass ? w->least_work : first;
}

/* ---- preemption ---- */

/* The prefetch that began last, or -1. */
static int prefetch_lane(const struct hearth_step *step) {
    int best = -1;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        if (lane->state == HEARTH_LANE_IDLE || lane->priority != HEARTH_CLASS_WARM) {
            continue;
        }
        if (best < 0 || lane->id > step->lanes[best].id) {
            best = (int)i;
        }
    }
    return best;
}

/* Whether the lane may be a victim of a request of that class by now. */
static bool may_preempt(const struct hearth_step_lane *lane, enum hearth_class class, int64_t now_us) {
    if (lane->state == HEARTH_LANE_IDLE || lane->priority == HEARTH_CLASS_WARM || lane->not_preemptible) {
        return false;
    }
    double held_us = (double)(now_us - lane->assigned_us);
    double had_us = lane->state == HEARTH_LANE_PREFILL ? lane->spent_us : held_us;
    if (lane->priority > class && had_us < held_us / HEARTH_QUANTUM_SHARE) {
        had_us = held_us / HEARTH_QUANTUM_SHARE; /* others prefill before it: its turn may not come for long */
    }
    return had_us >= (double)lane->quantum_us;
}

/* Why a lane is a victim; the larger, the better. */
enum preempt_reason { PREEMPT_NOT, PREEMPT_SLICE, PREEMPT_SHARE, PREEMPT_SHORTER, PREEMPT_CLASS };

static bool arrives_anew(enum preempt_reason reason) {
    return reason == PREEMPT_SHARE || reason == PREEMPT_SLICE;
}

static enum preempt_reason reason_to_preempt(const struct hearth_step *step, const struct hearth_step_lane *lane,
                                             const struct hearth_step_request *request, int64_t now_us) {
    if (lane->priority > request->priority) {
        return PREEMPT_CLASS;
    }
    if (hearth_step_start_tag(step, request).virtual_us > now_us) {
        return PREEMPT_NOT;
    }
    if (lane->state == HEARTH_LANE_PREFILL && lane->priority == request->priority &&
        shorter(step, request->need_tokens, lane->target - lane->computed)) {
        return PREEMPT_SHORTER;
    }
    int64_t ahead_us = hearth_accounts_lead_us(&step->accounts, lane->account) -
                       hearth_accounts_lead_us(&step->accounts, request->account);
    if (ahead_us >= HEARTH_SHARE_US && lane->priority == request->priority) {
        return PREEMPT_SHARE;
    }
    if (lane->state == HEARTH_LANE_DECODE && now_us - lane->decodes_us >= HEARTH_SLICE_US &&
        now_us - request->queued_us >= HEARTH_SLICE_WAIT_US) {
        return PREEMPT_SLICE;
    }
    return PREEMPT_NOT;
}

/* Of two victims for the same reason: whether the first is the better one. */
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
static int victim_for(const struct hearth_step *step, const struct hearth_step_request *request, int64_t now_us,
                      enum preempt_reason *best_reason) {
    int best = -1;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        enum preempt_reason reason = PREEMPT_NOT;
        if (may_preempt(lane, request->priority, now_us)) {
            reason = reason_to_preempt(step, lane, request, now_us);
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

/* No lane is free: whether a request preempts one. Tried are the first of all, the first of each class, and the one
 * with the least to compute. */
static bool preempts(struct hearth_step *step, const struct waiting *w, int64_t now_us, struct hearth_action *action) {
    const struct hearth_step_request *asking[] = {w->first, w->best[HEARTH_CLASS_INTERACTIVE],
                                                  w->best[HEARTH_CLASS_SIDE], w->best[HEARTH_CLASS_BACKGROUND],
                                                  w->least_work};
    enum preempt_reason reason = PREEMPT_NOT;
    action->lane = w->first ? prefetch_lane(step) : -1;
    action->id = w->first ? w->first->id : 0;
    for (size_t i = 0; i < sizeof asking / sizeof *asking && action->lane < 0; i++) {
        if (asking[i]) {
            action->lane = victim_for(step, asking[i], now_us, &reason);
            action->id = asking[i]->id;
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

int hearth_step_victim_for(const struct hearth_step *step, int64_t id, int64_t now_us, bool *loses_place) {
    const struct hearth_step_request *request = step->queue;
    while (request < step->queue + step->queued && request->id != id) {
        request++;
    }
    HEARTH_ASSERT(request < step->queue + step->queued);
    enum preempt_reason reason = PREEMPT_NOT;
    int lane = request->priority == HEARTH_CLASS_WARM ? -1 : prefetch_lane(step);
    if (lane < 0 && request->priority != HEARTH_CLASS_WARM) {
        lane = victim_for(step, request, now_us, &reason);
    }
    *loses_place = arrives_anew(reason);
    return lane;
}

int hearth_step_cells_victim(const struct hearth_step *step) {
    int last = -1;
    int64_t last_us = 0;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        if (lane->state == HEARTH_LANE_IDLE) {
            continue;
        }
        int64_t virtual_us = hearth_step_lane_start_us(step, lane);
        if (last < 0 || virtual_us > last_us || (virtual_us == last_us && lane->id > step->lanes[last].id)) {
            last = (int)i;
            last_us = virtual_us;
        }
    }
    return last;
}

/* ---- next ---- */

/* The lane whose state has waited longest to be captured, idle ones first, or -1. */
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
        struct waiting waiting;
        bool free = lane_free(step);
        scan_queue(step, free, now_us, &waiting);
        const struct hearth_step_request *request = free ? next_request(step, &waiting, now_us) : NULL;
        if (request) {
            action->type = HEARTH_ACTION_ADMIT;
            action->id = request->id;
            return;
        }
        if (!free && preempts(step, &waiting, now_us, action)) {
            return;
        }
    }
    int capture = next_capture(step);
    bool passed = false;
    int32_t batch = hearth_batch_fill(step, now_us, action->shares, &passed);
    if (capture >= 0 && (batch == 0 || !step->captured_last)) {
        action->type = HEARTH_ACTION_CAPTURE;
        action->lane = capture;
        action->alone = batch == 0;
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

bool hearth_step_submit(struct hearth_step *step, const struct hearth_step_request *request) {
    if (step->queued == step->queue_cap) {
        size_t cap = step->queue_cap ? step->queue_cap * 2 : 16;
        struct hearth_step_request *queue = realloc(step->queue, cap * sizeof *queue);
        if (!queue) {
            return false;
        }
        step->queue = queue;
        step->queue_cap = cap;
    }
    struct hearth_step_request *queued = &step->queue[step->queued++];
    *queued = *request;
    queued->held_at = 0;
    queued->cells_us = 0;
    queued->preempt_backoff_until_us = 0;
    queued->preempt_backoffs = 0;
    queued->need_tokens = -1;
    if (queued->priority != HEARTH_CLASS_WARM) {
        queued->account = hearth_accounts_wait(&step->accounts, queued->tenant);
    }
    step->moves++;
    return true;
}

static size_t queue_find(const struct hearth_step *step, int64_t id) {
    size_t i = 0;
    while (i < step->queued && step->queue[i].id != id) {
        i++;
    }
    return i;
}

static void queue_remove(struct hearth_step *step, size_t at) {
    if (step->queue[at].id == step->reserved_for) {
        step->reserved_for = 0;
    }
    memmove(step->queue + at, step->queue + at + 1, (step->queued - at - 1) * sizeof *step->queue);
    step->queued--;
    step->moves++;
}

void hearth_step_withdraw(struct hearth_step *step, int64_t id) {
    size_t at = queue_find(step, id);
    if (at == step->queued) {
        return;
    }
    if (step->queue[at].priority != HEARTH_CLASS_WARM) {
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
    struct hearth_step_request *request = &step->queue[at];
    request->held_at = step->changes;
    if (cells && request->priority != HEARTH_CLASS_WARM && request->cells_us == 0) {
        request->cells_us = now_us > 0 ? now_us : 1;
    }
    step->moves++;
    if (step->reserved_for == id) {
        step->reserved_for = 0; /* other requests have waited long enough for it */
        request->preempt_backoff_until_us = now_us + ((int64_t)HEARTH_PREEMPT_BACKOFF_US << request->preempt_backoffs);
        request->preempt_backoffs += request->preempt_backoffs < HEARTH_PREEMPT_BACKOFF_TIMES;
    }
}

/* How long a request has its lane at least. One that got it at once has waited for no turn that it could lose. */
static int64_t quantum_us(const struct hearth_step_request *request, int64_t preempt_cost_us, int64_t now_us) {
    int64_t waited_us = now_us - request->queued_us, more_us = waited_us / HEARTH_QUANTUM_SHARE;
    if (!request->preempted) {
        return waited_us < HEARTH_QUANTUM_US ? waited_us : HEARTH_QUANTUM_US;
    }
    int64_t quantum = preempt_cost_us * HEARTH_QUANTUM_TIMES;
    if (quantum > HEARTH_QUANTUM_US || request->lost > 0) {
        quantum = (int64_t)HEARTH_QUANTUM_US << (request->lost < HEARTH_LOST_TIMES ? request->lost : HEARTH_LOST_TIMES);
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
    const struct hearth_step_request *request = &step->queue[at];
    *lane = (struct hearth_step_lane){.state = HEARTH_LANE_PREFILL,
                                      .id = id,
                                      .priority = request->priority,
                                      .account = request->account,
                                      .arrived_us = request->arrived_us,
                                      .assigned_us = now_us,
                                      .quantum_us = quantum_us(request, preempt_cost_us, now_us),
                                      .begun = computed,
                                      .computed = computed,
                                      .target = target};
    for (size_t i = 0; i < mark_count; i++) {
        (void)hearth_step_mark(step, index, marks[i]);
    }
    if (lane->priority != HEARTH_CLASS_WARM) {
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
    if (lane->priority != HEARTH_CLASS_WARM) {
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
    if (step->lanes[index].priority != HEARTH_CLASS_WARM) {
        hearth_accounts_stop(&step->accounts, step->lanes[index].account);
    }
    step->lanes[index] =
        (struct hearth_step_lane){.state = HEARTH_LANE_IDLE, .capture = capture, .capture_since_us = now_us};
    hearth_step_changed(step);
}

void hearth_step_captured(struct hearth_step *step, int index) {
    step->lanes[index].capture = false;
}
