/* Preemption: carries out what the step decides (victim.c).
 *
 * A preempted request loses nothing but its lane. Its state moves to the parked sequence unchanged. Where the engine
 * has no such sequence, or another request's state needs it, the state is captured in RAM; of a long prompt most has
 * been captured before. RAM keeps that state with a lease, because the request is expected back. Everything else
 * (sampler, thinker, text) belongs to the task. State that RAM had to evict all the same is computed again, and the
 * step then preempts the request less often. A request keeps its lane until it ends when RAM could not hold its state,
 * or when its client wants nothing stored: it is preempted only when the KV cache is full, and then computed from the
 * start. */
#include "base/assert.h"
#include "sched/service_internal.h"

void hearth_lane_requeue(struct hearth_service *service, struct hearth_task *task, bool loses_place, bool empty) {
    int lane = task->lane;
    bool prefetch = hearth_task_is_prefetch(task);
    struct hearth_live *live = &service->lives[lane];
    const struct hearth_step_lane *turn = hearth_step_lane(service->step, lane);
    const int64_t arrived_us = turn->arrived_us;
    task->turn_begun = turn->begun;
    task->turn_us = (turn->decodes_us > 0 ? turn->decodes_us : hearth_service_now_us(service)) - turn->assigned_us;
    hearth_lane_leave(service, task);
    hearth_lane_count(service, task, true, 0);
    task->preempted_at = (int32_t)live->tokens.n;
    task->fetch_us = 0;
    task->preemptions++;
    task->preempted_steps = service->counters.steps;
    live->prefetched = live->prefetched || !task->prefilled;
    if (prefetch && empty) {
        hearth_lane_capture_now(service, lane);
    } else if (!prefetch && !empty && live->tokens.n > 0 && hearth_lane_park(service, task, lane)) {
        live = &service->lives[service->lanes];
    } else if (!prefetch) {
        hearth_lane_capture(service, lane);
    }
    if (!prefetch && live->tokens.n > 0) {
        const struct hearth_cache_prompt prompt = {
            .tokens = live->tokens.v, .n = live->tokens.n, .salt = task->request.salt};
        /* others may pass it for so long, besides the patience of its class, and the last of them then has a slice
         * (victim.c) */
        live->expected_until_us = live->used_us + HEARTH_LEAD_MAX_US + HEARTH_SLICE_US;
        hearth_cache_expect(service->cache, &prompt, live->expected_until_us);
    }
    if (empty) {
        hearth_live_clear(service->cache, live);
    }
    task->preempt_cost_us = hearth_service_now_us(service) - live->used_us;
    if (!hearth_task_queue(service, task, loses_place ? live->used_us : arrived_us)) {
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
    }
}

void hearth_lane_preempt(struct hearth_service *service, int lane, bool loses_place) {
    struct hearth_task *task = service->on_lane[lane];
    HEARTH_ASSERT(task && task->lane == lane);
    service->counters.yields++;
    hearth_lane_requeue(service, task, loses_place, false);
}

void hearth_lane_preempt_without_cells(struct hearth_service *service, int lane, bool loses_place) {
    struct hearth_task *task = service->on_lane[lane];
    HEARTH_ASSERT(task && task->lane == lane);
    task->waits_for_ended = service->ended + 1;
    hearth_lane_requeue(service, task, loses_place, true);
}

/* A preempted request may not preempt for KV cells until a batch has run; otherwise two requests that do not fit beside
 * each other would evict each other forever. */
bool hearth_lane_preempt_for_cells(struct hearth_service *service, struct hearth_task *task) {
    bool loses_place, may = task->preemptions == 0 || service->counters.steps != task->preempted_steps;
    int lane = may ? hearth_step_victim_for(service->step, task->id, hearth_service_now_us(service), &loses_place) : -1;
    if (lane < 0) {
        return false;
    }
    service->counters.yields++;
    task->waits_for_ended = 0; /* the task gets the victim's cells now */
    hearth_lane_preempt_without_cells(service, lane, loses_place);
    return true;
}
