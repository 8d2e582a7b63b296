/* Preemption: what the step decides (victim.c) is carried out.
 *
 * A preempted request loses nothing but its lane. Its state goes to the parked sequence, where it stays as it is; where
 * there is none, or the state of another request needs it, to RAM, most of a long prompt having been captured on the
 * way. The request is expected back, so that RAM keeps its state while it can; everything else (sampler, thinker, text)
 * belongs to the task. State that RAM had to evict all the same is computed again, which the step counts against
 * preempting the request often. A request whose state RAM could not hold, or whose client wants nothing stored, keeps
 * its lane until it ends; it is preempted only when the KV cache is full, and then computes anew. */
#include "base/assert.h"
#include "sched/service_internal.h"

#define PREEMPTED_KEEP_US 120000000 /* how long RAM keeps a preempted request's state, while it can */
#define CELLS_RETRY_US 1000000      /* how often a task that is held for cells is asked again */

void hearth_lane_requeue(struct hearth_service *service, struct hearth_task *task, bool loses_place, bool empty) {
    int lane = task->lane;
    bool prefetch = hearth_task_is_prefetch(task);
    struct hearth_live *live = &service->lives[lane];
    int64_t arrived_us = hearth_step_lane(service->step, lane)->arrived_us;
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
        live->expected_until_us = live->used_us + PREEMPTED_KEEP_US;
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
    int64_t now_us = hearth_service_now_us(service);
    int lane = may ? hearth_step_victim_for(service->step, task->id, now_us, &loses_place) : -1;
    if (lane < 0) {
        if (service->cells_retry_us == 0) {
            service->cells_retry_us = now_us + CELLS_RETRY_US;
        }
        return false;
    }
    service->counters.yields++;
    task->waits_for_ended = 0; /* they are its own now */
    hearth_lane_preempt_without_cells(service, lane, loses_place);
    return true;
}
