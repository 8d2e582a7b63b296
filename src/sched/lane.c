/* Lanes: how a request gets one and leaves it, how its state is captured, and the parked sequence, which holds the
 * state of a preempted request.
 *
 * Invariants: on_lane[i] is the task of lane i or NULL; a lane's `busy` flag is set exactly while a task runs on it;
 * the parked sequence is never busy, and empty until a request is preempted; `admission` counts the tasks without a
 * lane (preempted, new or announced), `on_lanes` those with one. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/spans.h"
#include "sched/service_internal.h"

#include <limits.h>

/* How long a capture waits for the backing tier to make room in RAM while another request needs the lane. A shorter
 * wait would lose state that needs a moment; a longer one would hold up the other lanes for a slow tier. */
#define CAPTURE_FULL_US 500000

/* ---- capturing ---- */

static enum hearth_capture capture_pages(struct hearth_service *service, int lane, int pages) {
    int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    enum hearth_capture state = hearth_cache_capture(service->cache, &service->lives[lane], pages);
    hearth_service_captured(service, start_us, real_us);
    if (lane >= (int)service->lanes) {
        return state; /* the parked sequence is captured when it is needed, not in turn */
    }
    if (state == HEARTH_CAPTURE_FULL) {
        service->capture_full |= UINT64_C(1) << lane;
    }
    if (state != HEARTH_CAPTURE_MORE && !service->lives[lane].busy) {
        hearth_step_pending(service->step, lane, false);
    }
    return state;
}

bool hearth_lane_snapshot(struct hearth_service *service, int lane, enum hearth_snapshot_kind kind) {
    int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    bool taken = hearth_cache_snapshot(service->cache, &service->lives[lane], kind);
    hearth_service_captured(service, start_us, real_us);
    return taken;
}

void hearth_lane_window(struct hearth_service *service, int lane) {
    if (hearth_cache_window_due(service->cache, &service->lives[lane])) {
        int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
        hearth_cache_capture_window(service->cache, &service->lives[lane]);
        hearth_service_captured(service, start_us, real_us);
    }
}

void hearth_lane_capture(struct hearth_service *service, int lane) {
    int64_t give_up_us = 0;
    while (capture_pages(service, lane, INT_MAX) != HEARTH_CAPTURE_DONE) {
        int64_t now_us = hearth_clock_us();
        give_up_us = give_up_us > 0 ? give_up_us : now_us + CAPTURE_FULL_US;
        if (now_us >= give_up_us) {
            service->lives[lane].dirty = service->lives[lane].snapshot_count > 0;
            return;
        }
        (void)hearth_cache_wait(service->cache, give_up_us - now_us);
        service->told_us += hearth_clock_us() - now_us;
        if (hearth_cache_poll(service->cache, HEARTH_POLL_EVENTS) > 0) {
            service->backing_news = true; /* other held tasks may have waited for it, too */
        }
    }
}

void hearth_lane_capture_now(struct hearth_service *service, int lane) {
    (void)capture_pages(service, lane, INT_MAX);
}

/* Captures whole pages of a lane that still computes, no more than a batch computes. */
static void capture_ahead(struct hearth_service *service, int lane) {
    struct hearth_task *task = service->on_lane[lane];
    const struct hearth_live *live = &service->lives[lane];
    int32_t page = (int32_t)service->params.page_tokens;
    int pages = (hearth_service_chunk(service) + page - 1) / page;
    int whole = ((int32_t)live->tokens.n - 1 - task->ahead) / page;
    int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    pages = pages < whole ? pages : whole;
    if (pages > 0) {
        hearth_cache_capture_ahead(service->cache, &service->lives[lane], pages);
    }
    task->ahead += (pages > 0 ? pages : 1) * page; /* also pages that RAM did not take: they are not tried again */
    hearth_service_captured(service, start_us, real_us);
    hearth_step_pending(service->step, lane, false);
}

void hearth_lane_capture_turn(struct hearth_service *service, const struct hearth_action *action) {
    if (service->on_lane[action->lane]) {
        capture_ahead(service, action->lane);
    } else {
        (void)capture_pages(service, action->lane, 1);
    }
}

bool hearth_lane_make_room(struct hearth_service *service, int keep) {
    int victim = -1;
    int64_t now_us = hearth_service_now_us(service);
    for (uint32_t i = 0; i < service->places; i++) {
        const struct hearth_live *live = &service->lives[i];
        if (live->busy || (int)i == keep || live->tokens.n == 0) {
            continue;
        }
        if (victim < 0 || hearth_live_better_victim(live, &service->lives[victim], now_us)) {
            victim = (int)i;
        }
    }
    if (victim < 0) {
        return false;
    }
    hearth_lane_capture(service, victim);
    hearth_live_clear(service->cache, &service->lives[victim]);
    return true;
}

/* ---- coming and leaving ---- */

void hearth_lane_count(struct hearth_service *service, struct hearth_task *task, bool in_admission, int on_lanes) {
    if (hearth_task_is_prefetch(task)) {
        return;
    }
    pthread_mutex_lock(&service->mutex);
    if (in_admission && !task->in_admission) {
        hearth_admission_take(&service->admission, task->request.tenant.id);
    }
    if (!in_admission && task->in_admission) {
        hearth_admission_leave(&service->admission, task->request.tenant.id);
    }
    task->in_admission = in_admission;
    service->on_lanes += (uint32_t)on_lanes;
    pthread_mutex_unlock(&service->mutex);
}

/* About how long the preempted task needs to compute again what it has lost since. A turn that is lost as a whole
 * counts as long as its prefill was: by a pace that is too good it would cost nothing, and the task would be preempted
 * for ever after turns that are too short to keep anything. */
static int64_t lost_us(const struct hearth_service *service, const struct hearth_task *task, int32_t computed) {
    const double each_us = hearth_pace_prefill_us(&service->pace);
    if (task->preempted_at <= computed) {
        return 0;
    }
    const int64_t again_us = each_us > 0 ? (int64_t)(each_us * (task->preempted_at - computed)) : HEARTH_QUANTUM_US;
    return computed <= task->turn_begun && again_us < task->turn_us ? task->turn_us : again_us;
}

void hearth_task_assigned(struct hearth_service *service, struct hearth_task *task, int lane, int32_t computed,
                          const int32_t *marks, size_t mark_count, int64_t admit_us) {
    int64_t now_us = hearth_service_now_us(service), again_us = lost_us(service, task, computed);
    task->lost += again_us >= HEARTH_QUANTUM_LEAST_US;
    hearth_step_assign(service->step, task->id, lane, computed, (int32_t)task->tokens.n, marks, mark_count,
                       task->preempt_cost_us + again_us + now_us - admit_us, now_us);
    task->lane = lane;
    if (task->preempted_at != computed || task->ahead > computed) {
        task->ahead = computed;
    }
    task->persisted = computed;
    task->faults = task->admitted && task->preemptions > 0 ? task->faults : hearth_service_faults();
    task->preempted_at = 0;
    task->waits_for_ended = 0;
    task->waited_us += now_us - task->queued_us;
    hearth_task_waited(service, task, admit_us);
    task->started_us = now_us - task->prefill_us; /* so that the receipt covers all of it */
    task->lane_us = hearth_spans_on() ? hearth_clock_us() : 0;
    service->on_lane[lane] = task;
    hearth_service_lanes_taken(service, now_us);
    hearth_lane_count(service, task, false, 1);
    if (task->request.progress) {
        hearth_task_progress(service, task);
    }
}

void hearth_lane_leave(struct hearth_service *service, struct hearth_task *task) {
    struct hearth_live *live = &service->lives[task->lane];
    const struct hearth_step_lane *lane = hearth_step_lane(service->step, task->lane);
    live->busy = false;
    live->used_us = hearth_service_now_us(service);
    live->lasted_us = live->used_us - live->began_us;
    live->awaits = HEARTH_AWAITS_USER;
    int64_t decodes_us = lane->decodes_us > 0 ? lane->decodes_us : live->used_us;
    task->prefill_us += decodes_us - lane->assigned_us;
    task->decode_us += live->used_us - decodes_us;
    hearth_step_release(service->step, task->lane, hearth_cache_capture_pending(service->cache, live), live->used_us);
    if (hearth_spans_on() && task->lane_us > 0) {
        hearth_service_lane_span(task);
    }
    service->on_lane[task->lane] = NULL;
    task->last_lane = task->lane;
    task->lane = -1;
    hearth_lane_count(service, task, false, -1);
}

/* ---- the parked sequence ---- */

static void swap_parked(struct hearth_service *service, int lane, struct hearth_task *task) {
    struct hearth_live *parked = &service->lives[service->lanes], held = *parked;
    *parked = service->lives[lane];
    service->lives[lane] = held;
    hearth_step_pending(service->step, lane, hearth_cache_capture_pending(service->cache, &held));
    service->parked = task;
}

static void capture_parked(struct hearth_service *service) {
    int64_t start_us = hearth_service_now_us(service);
    hearth_lane_capture(service, (int)service->lanes);
    if (service->parked) {
        service->parked->preempt_cost_us += hearth_service_now_us(service) - start_us;
    }
}

void hearth_parked_clear(struct hearth_service *service) {
    capture_parked(service);
    hearth_live_clear(service->cache, &service->lives[service->lanes]);
    service->parked = NULL;
}

void hearth_parked_ended(struct hearth_service *service, const struct hearth_task *task) {
    if (service->parked == task) {
        hearth_parked_clear(service);
    }
}

void hearth_parked_return(struct hearth_service *service, const struct hearth_task *task) {
    int lane = hearth_live_victim(hearth_service_live_list(service), service->lanes, hearth_service_now_us(service));
    HEARTH_ASSERT(lane >= 0);
    if (service->parked != task) {
        capture_parked(service);
    }
    hearth_lane_capture(service, lane);
    hearth_live_clear(service->cache, &service->lives[lane]);
    swap_parked(service, lane, NULL);
}

bool hearth_lane_park(struct hearth_service *service, struct hearth_task *task, int lane) {
    if (service->places == service->lanes) {
        return false;
    }
    capture_parked(service);
    swap_parked(service, lane, task);
    return true;
}
