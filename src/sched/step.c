/* The step. Rules in step.h.
 *
 * Invariants: an idle lane has id 0; a queued request is on no lane; shares sum to at most batch_tokens; a share never
 * crosses a mark or the prefill's end. */
#include "sched/step.h"

#include "base/assert.h"

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
    for (uint32_t i = 0; i < step->params.lanes; i++)
        if (step->lanes[i].state == HEARTH_LANE_IDLE)
            return true;
    return false;
}

/* A queued request to ask for, whether or not there is a lane: the first that is not held, but no warm one behind
 * others, which may well come to need the lane in a moment. */
static const struct hearth_step_request *next_request(const struct hearth_step *step) {
    bool others = false;
    for (size_t i = 0; i < step->queued; i++) {
        const struct hearth_step_request *request = &step->queue[i];
        if (request->priority == HEARTH_CLASS_WARM && others)
            return NULL;
        if (request->held_at != step->changes)
            return request;
        others = others || request->priority != HEARTH_CLASS_WARM;
    }
    return NULL;
}

/* The warm lane that began last, or -1. */
static int warm_lane(const struct hearth_step *step) {
    int best = -1;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        if (lane->state == HEARTH_LANE_IDLE || lane->priority != HEARTH_CLASS_WARM)
            continue;
        if (best < 0 || lane->id > step->lanes[best].id)
            best = (int)i;
    }
    return best;
}

/* Tokens until the lane's next mark or the end of its prefill. */
static int32_t until_mark(const struct hearth_step_lane *lane) {
    int32_t end = lane->mark_count > 0 ? lane->marks[0] : lane->target;
    return end - lane->computed;
}

/* When a request counts as arrived, in the order of admission and in that of prefills. */
static int64_t rank_us(enum hearth_class priority, int64_t arrived_us) {
    static const int64_t patience_s[] = {
#define X(name, text, patience) [HEARTH_CLASS_##name] = (patience),
        HEARTH_CLASS_TABLE(X)
#undef X
    };
    return priority == HEARTH_CLASS_WARM ? INT64_MAX : arrived_us + patience_s[priority] * 1000000;
}

static double urgency(const struct hearth_step *step, const struct hearth_step_lane *lane, int64_t now_us) {
    double left = (double)(lane->target - lane->computed);
    if (lane->priority == HEARTH_CLASS_WARM)
        return left + 1e12; /* behind all others */
    double waited_s = (double)(now_us - rank_us(lane->priority, lane->arrived_us)) / 1e6;
    return left - waited_s * step->params.ageing_tokens_per_s;
}

/* Prefill tokens that warm requests may have in a batch. */
static int32_t warm_room(const struct hearth_step *step) {
    for (uint32_t i = 0; i < step->params.lanes; i++)
        if (step->lanes[i].state != HEARTH_LANE_IDLE && step->lanes[i].priority != HEARTH_CLASS_WARM)
            return step->params.warm_chunk_tokens;
    return step->params.warm_alone_tokens > 0 ? step->params.warm_alone_tokens : INT32_MAX;
}

/* Fills shares; returns how many tokens the batch has. */
static int32_t fill_batch(const struct hearth_step *step, int64_t now_us, int32_t *shares) {
    int32_t room = step->params.batch_tokens, chunk = step->params.chunk_tokens, total = 0;
    int32_t warm = warm_room(step);
    for (uint32_t i = 0; i < step->params.lanes && room > 0; i++)
        if (step->lanes[i].state == HEARTH_LANE_DECODE) {
            shares[i] = step->lanes[i].due < room ? step->lanes[i].due : room;
            room -= shares[i];
            chunk -= shares[i];
            total += shares[i];
        }
    if (chunk > room)
        chunk = room;
    while (chunk > 0) {
        const struct hearth_step_lane *best = NULL;
        for (uint32_t i = 0; i < step->params.lanes; i++) {
            const struct hearth_step_lane *lane = &step->lanes[i];
            if (lane->state != HEARTH_LANE_PREFILL || shares[i] > 0 ||
                (lane->priority == HEARTH_CLASS_WARM && warm <= 0))
                continue;
            if (!best || urgency(step, lane, now_us) < urgency(step, best, now_us))
                best = lane;
        }
        if (!best)
            break;
        int32_t share = until_mark(best);
        if (share > chunk)
            share = chunk;
        if (best->priority == HEARTH_CLASS_WARM) {
            share = share < warm ? share : warm;
            warm -= share;
        }
        HEARTH_ASSERT(share > 0);
        shares[best - step->lanes] = share;
        chunk -= share;
        total += share;
    }
    return total;
}

/* The idle lane whose state has waited longest to be captured, or -1. */
static int next_capture(const struct hearth_step *step) {
    int best = -1;
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        const struct hearth_step_lane *lane = &step->lanes[i];
        if (lane->state == HEARTH_LANE_IDLE && lane->capture &&
            (best < 0 || lane->capture_since_us < step->lanes[best].capture_since_us))
            best = (int)i;
    }
    return best;
}

void hearth_step_next(struct hearth_step *step, int64_t now_us, struct hearth_action *action) {
    memset(action, 0, sizeof *action);
    const struct hearth_step_request *request = next_request(step);
    if (request && lane_free(step)) {
        action->type = HEARTH_ACTION_ADMIT;
        action->id = request->id;
        return;
    }
    action->lane = request && request->priority != HEARTH_CLASS_WARM ? warm_lane(step) : -1;
    if (action->lane >= 0) {
        action->type = HEARTH_ACTION_YIELD;
        return;
    }
    int capture = next_capture(step);
    int32_t batch = fill_batch(step, now_us, action->shares);
    if (capture >= 0 && (batch == 0 || !step->captured_last)) {
        action->type = HEARTH_ACTION_CAPTURE;
        action->lane = capture;
        action->alone = batch == 0;
        step->captured_last = true;
        return;
    }
    step->captured_last = false;
    action->type = batch > 0 ? HEARTH_ACTION_COMPUTE : HEARTH_ACTION_SLEEP;
}

/* ---- events ---- */

void hearth_step_changed(struct hearth_step *step) {
    if (++step->changes == 0)
        step->changes = 1;
}

/* Where a request goes in the queue: behind all of its class and of those above, and behind what has aged; or, to the
 * front, before all of its class. */
static size_t queue_place(const struct hearth_step *step, enum hearth_class priority, int64_t arrived_us, bool front) {
    size_t at = front ? 0 : step->queued;
    while (front && at < step->queued && step->queue[at].priority < priority)
        at++;
    while (!front && at > 0 && step->queue[at - 1].priority > priority &&
           rank_us(step->queue[at - 1].priority, step->queue[at - 1].arrived_us) > rank_us(priority, arrived_us))
        at--;
    return at;
}

bool hearth_step_submit(struct hearth_step *step, int64_t id, enum hearth_class priority, int64_t arrived_us,
                        int32_t tokens, bool front) {
    if (step->queued == step->queue_cap) {
        size_t cap = step->queue_cap ? step->queue_cap * 2 : 16;
        struct hearth_step_request *queue = realloc(step->queue, cap * sizeof *queue);
        if (!queue)
            return false;
        step->queue = queue;
        step->queue_cap = cap;
    }
    size_t at = queue_place(step, priority, arrived_us, front);
    memmove(step->queue + at + 1, step->queue + at, (step->queued - at) * sizeof *step->queue);
    step->queue[at] = (struct hearth_step_request){
        .id = id, .priority = priority, .arrived_us = arrived_us, .tokens = tokens};
    step->queued++;
    return true;
}

static size_t queue_find(const struct hearth_step *step, int64_t id) {
    size_t i = 0;
    while (i < step->queued && step->queue[i].id != id)
        i++;
    return i;
}

void hearth_step_withdraw(struct hearth_step *step, int64_t id) {
    size_t at = queue_find(step, id);
    if (at == step->queued)
        return;
    memmove(step->queue + at, step->queue + at + 1, (step->queued - at - 1) * sizeof *step->queue);
    step->queued--;
}

void hearth_step_hold(struct hearth_step *step, int64_t id) {
    size_t at = queue_find(step, id);
    HEARTH_ASSERT(at < step->queued);
    step->queue[at].held_at = step->changes;
}

void hearth_step_assign(struct hearth_step *step, int64_t id, int index, int32_t computed, int32_t target,
                        const int32_t *marks, size_t mark_count) {
    struct hearth_step_lane *lane = &step->lanes[index];
    size_t at = queue_find(step, id);
    HEARTH_ASSERT(at < step->queued && lane->state == HEARTH_LANE_IDLE && computed < target);
    *lane = (struct hearth_step_lane){.state = HEARTH_LANE_PREFILL,
                                      .id = id,
                                      .priority = step->queue[at].priority,
                                      .arrived_us = step->queue[at].arrived_us,
                                      .computed = computed,
                                      .target = target};
    for (size_t i = 0; i < mark_count; i++)
        (void)hearth_step_mark(step, index, marks[i]);
    hearth_step_withdraw(step, id);
    hearth_step_changed(step);
}

bool hearth_step_mark(struct hearth_step *step, int index, int32_t pos) {
    struct hearth_step_lane *lane = &step->lanes[index];
    if (lane->state != HEARTH_LANE_PREFILL || pos <= lane->computed || pos >= lane->target)
        return false;
    int at = 0;
    while (at < lane->mark_count && lane->marks[at] < pos)
        at++;
    if (at < lane->mark_count && lane->marks[at] == pos)
        return true;
    if (lane->mark_count == HEARTH_MARKS_MAX)
        return false;
    memmove(lane->marks + at + 1, lane->marks + at, (size_t)(lane->mark_count - at) * sizeof *lane->marks);
    lane->marks[at] = pos;
    lane->mark_count++;
    return true;
}

void hearth_step_due(struct hearth_step *step, int index, int32_t tokens) {
    HEARTH_ASSERT(step->lanes[index].state == HEARTH_LANE_DECODE && tokens > 0);
    step->lanes[index].due = tokens;
}

bool hearth_step_computed(struct hearth_step *step, int index, int32_t tokens) {
    struct hearth_step_lane *lane = &step->lanes[index];
    lane->computed += tokens;
    if (lane->state != HEARTH_LANE_PREFILL)
        return false;
    HEARTH_ASSERT(lane->computed <= lane->target);
    hearth_step_changed(step); /* somebody may wait to share what was just computed */
    if (lane->computed == lane->target) {
        lane->state = HEARTH_LANE_DECODE;
        lane->due = 1;
    }
    if (lane->mark_count == 0 || lane->marks[0] != lane->computed)
        return false;
    lane->mark_count--;
    memmove(lane->marks, lane->marks + 1, (size_t)lane->mark_count * sizeof *lane->marks);
    return true;
}

void hearth_step_release(struct hearth_step *step, int index, bool capture, int64_t now_us) {
    step->lanes[index] =
        (struct hearth_step_lane){.state = HEARTH_LANE_IDLE, .capture = capture, .capture_since_us = now_us};
    hearth_step_changed(step);
}

void hearth_step_captured(struct hearth_step *step, int index) {
    step->lanes[index].capture = false;
}
