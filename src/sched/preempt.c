/* Preemption, and what else the step decides about lanes (sched/step.h): here its decisions are carried out, and it is
 * told what it needs to know for them.
 *
 * A preempted request loses nothing but its lane. Its state goes to the parked sequence, where it stays as it is; where
 * there is none, or the state of another request needs it, to RAM, most of a long prompt having been captured on the
 * way. The request is expected back, so that RAM keeps its state while it can; everything else (sampler, thinker, text)
 * belongs to the task. State that RAM had to evict all the same is computed again, which the step counts against
 * preempting the request often. A request whose state RAM could not hold, or whose client wants nothing stored, keeps
 * its lane until it ends; it is preempted only when the KV cache is full, and then computes anew.
 *
 * Deadlines go by the engine's clock. While the thread sleeps the clock of sim stands still: there the time that was
 * slept counts.
 *
 * Invariants: on_lane[i] is the task of lane i or NULL; the parked sequence is never busy, and empty until a request is
 * preempted; `admission` counts the tasks without a lane (preempted, new or announced), `on_lanes` those with one. */
#include "base/assert.h"
#include "base/clock.h"
#include "sched/service_internal.h"

#define PREEMPTED_KEEP_US 120000000 /* how long RAM keeps a preempted request's state, while it can */
#define CELLS_RETRY_US 1000000      /* how often a task that is held for cells is asked again */
#define DECODE_TPS 2.0              /* a reader sees the reply go on */
#define PEEK_US 1000000             /* how long the estimate of a waiting prompt holds */

/* ---- the queue ---- */

bool hearth_task_queue(struct hearth_service *service, struct hearth_task *task, int64_t arrived_us) {
    task->queued_us = task->preemptions > 0 ? hearth_service_now_us(service) : arrived_us;
    const struct hearth_step_request request = {.id = task->id,
                                                .priority = task->request.priority,
                                                .tenant = task->request.tenant,
                                                .arrived_us = arrived_us,
                                                .queued_us = task->queued_us,
                                                .tokens = (int32_t)task->tokens.n,
                                                .lost = task->lost,
                                                .preempted = task->preemptions > 0};
    return hearth_step_submit(&service->step, &request);
}

/* From now on the task has an admission slot, or none; and so many lanes more are busy. */
static void count(struct hearth_service *service, struct hearth_task *task, bool in_admission, int on_lanes) {
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

/* About what it takes to compute again the state that a task has lost while it was preempted. */
static int64_t lost_us(const struct hearth_service *service, const struct hearth_task *task, int32_t computed) {
    double each_us = service->step.params.prefill_us;
    if (task->preempted_at <= computed) {
        return 0;
    }
    return each_us > 0 ? (int64_t)(each_us * (task->preempted_at - computed)) : HEARTH_QUANTUM_US;
}

void hearth_task_assigned(struct hearth_service *service, struct hearth_task *task, int lane, int32_t computed,
                          const int32_t *marks, size_t mark_count, int64_t admit_us) {
    int64_t now_us = hearth_service_now_us(service), again_us = lost_us(service, task, computed);
    task->lost += again_us >= HEARTH_QUANTUM_LEAST_US;
    hearth_step_assign(&service->step, task->id, lane, computed, (int32_t)task->tokens.n, marks, mark_count,
                       task->preempt_cost_us + again_us + now_us - admit_us, now_us);
    task->lane = lane;
    if (task->preempted_at != computed || task->ahead > computed) {
        task->ahead = computed;
    }
    task->persisted = computed;
    task->preempted_at = 0;
    task->waits_for_ended = 0;
    task->waited_us += now_us - task->queued_us;
    task->started_us = now_us - task->prefill_us; /* so that the receipt tells of all of it */
    service->on_lane[lane] = task;
    count(service, task, false, 1);
    if (task->request.progress) {
        hearth_task_progress(service, task);
    }
}

void hearth_lane_leave(struct hearth_service *service, struct hearth_task *task) {
    struct hearth_live *live = &service->lives[task->lane];
    const struct hearth_step_lane *lane = &service->step.lanes[task->lane];
    live->busy = false;
    live->used_us = hearth_service_now_us(service);
    int64_t decodes_us = lane->decodes_us > 0 ? lane->decodes_us : live->used_us;
    task->prefill_us += decodes_us - lane->assigned_us;
    task->decode_us += live->used_us - decodes_us;
    hearth_step_release(&service->step, task->lane, hearth_cache_capture_pending(service->cache, live), live->used_us);
    service->on_lane[task->lane] = NULL;
    task->last_lane = task->lane;
    task->lane = -1;
    count(service, task, false, -1);
}

/* ---- the parked sequence ---- */

static void swap_parked(struct hearth_service *service, int lane, int64_t parked_id) {
    struct hearth_live *parked = &service->lives[service->lanes], held = *parked;
    *parked = service->lives[lane];
    service->lives[lane] = held;
    service->step.lanes[lane].capture = hearth_cache_capture_pending(service->cache, &held);
    service->parked_id = parked_id;
}

static void capture_parked(struct hearth_service *service) {
    int64_t start_us = hearth_service_now_us(service);
    struct hearth_task *task = service->parked_id ? hearth_task_find(service, service->parked_id) : NULL;
    hearth_lane_capture(service, (int)service->lanes);
    if (task) {
        task->preempt_cost_us += hearth_service_now_us(service) - start_us;
    }
}

void hearth_parked_clear(struct hearth_service *service) {
    capture_parked(service);
    hearth_live_clear(service->cache, &service->lives[service->lanes]);
    service->parked_id = 0;
}

void hearth_parked_ended(struct hearth_service *service, const struct hearth_task *task) {
    if (service->parked_id == task->id) {
        hearth_parked_clear(service);
    }
}

void hearth_parked_return(struct hearth_service *service, const struct hearth_task *task) {
    const struct hearth_live *const *lives = (const struct hearth_live *const *)service->live_list;
    int lane = hearth_live_victim(lives, service->lanes, hearth_service_now_us(service));
    HEARTH_ASSERT(lane >= 0);
    if (service->parked_id != task->id) {
        capture_parked(service);
    }
    hearth_lane_capture(service, lane);
    hearth_live_clear(service->cache, &service->lives[lane]);
    swap_parked(service, lane, 0);
}

/* A task's state goes from its lane to the parked sequence, so that giving the lane away costs the task nothing. The
 * state that was parked before comes to the lane; RAM has it by then. False: the engine has no such sequence. */
static bool park(struct hearth_service *service, const struct hearth_task *task, int lane) {
    if (service->places == service->lanes) {
        return false;
    }
    capture_parked(service);
    swap_parked(service, lane, task->id);
    return true;
}

/* ---- preempting ---- */

void hearth_lane_requeue(struct hearth_service *service, struct hearth_task *task, bool loses_place, bool empty) {
    int lane = task->lane;
    bool warm = hearth_task_is_prefetch(task);
    struct hearth_live *live = &service->lives[lane];
    int64_t arrived_us = service->step.lanes[lane].arrived_us;
    hearth_lane_leave(service, task);
    count(service, task, true, 0);
    task->preempted_at = (int32_t)live->tokens.n;
    task->fetch_us = 0;
    task->preemptions++;
    task->preempted_steps = service->counters.steps;
    live->prefetched = live->prefetched || !task->prefilled;
    if (warm && empty) {
        hearth_lane_capture_now(service, lane);
    } else if (!warm && !empty && live->tokens.n > 0 && park(service, task, lane)) {
        live = &service->lives[service->lanes];
    } else if (!warm) {
        hearth_lane_capture(service, lane);
    }
    if (!warm && live->tokens.n > 0) {
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
    int lane = may ? hearth_step_victim_for(&service->step, task->id, now_us, &loses_place) : -1;
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

/* ---- what the step is told ---- */

void hearth_service_charge(struct hearth_service *service, const int32_t *shares, int32_t decode_tokens,
                           int32_t prefill_tokens, int64_t us) {
    double decode_us, prefill_us;
    hearth_pace_learn(&service->pace, decode_tokens, prefill_tokens, us);
    hearth_pace_split(&service->pace, decode_tokens, prefill_tokens, us, &decode_us, &prefill_us);
    for (uint32_t i = 0; i < service->lanes; i++) {
        bool prefills = service->step.lanes[i].state == HEARTH_LANE_PREFILL;
        if (shares[i] > 0) {
            hearth_step_charge(&service->step, (int)i, shares[i] * (prefills ? prefill_us : decode_us));
        }
    }
}

/* Speeds as measured. Without a rate on request each decoding lane gets DECODE_TPS, except beside a burst of short
 * prompts. */
static void tell_speeds(struct hearth_service *service) {
    struct hearth_step_params *params = &service->step.params;
    const struct hearth_pace *pace = &service->pace;
    double tps = service->min_decode_tps;
    int32_t decoding = 0;
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_step_lane *lane = &service->step.lanes[i];
        if (lane->state == HEARTH_LANE_DECODE) {
            decoding += lane->due;
        }
    }
    params->warm_chunk_tokens = hearth_pace_warm_beside(pace);
    params->warm_alone_tokens = hearth_pace_warm_alone(pace, params->chunk_tokens);
    params->bursts = tps <= 0;
    params->beside_tokens = hearth_pace_beside(pace, decoding, tps > 0 ? tps : DECODE_TPS, params->chunk_tokens);
    params->alone_tokens = hearth_pace_alone(pace, params->chunk_tokens);
    params->prefill_us = pace->prefill_us > 0 ? pace->prefill_us : pace->beside_us;
}

/* Whether RAM would keep what the task has, beside other things. */
static bool can_wait(const struct hearth_service *service, const struct hearth_task *task) {
    const struct hearth_caps *caps = &service->engine->caps;
    bool pages = hearth_caps_has_pages(caps), snapshots = hearth_caps_needs_snapshot(caps);
    if (task->request.cache_off || !hearth_cache_stores(service->cache)) {
        return false;
    }
    size_t page_bytes, snapshot_bytes;
    hearth_cache_budget(service->cache, &page_bytes, &snapshot_bytes);
    if (snapshots && caps->snapshot_bytes > snapshot_bytes / 2) {
        return false;
    }
    return !pages || task->tokens.n * caps->page_bytes_per_token <= page_bytes / 2;
}

/* While every lane is busy one of them may have to be given up: whole pages of long prompts are captured on the way.
 * All of a short one takes no longer than a batch does. */
static void tell_lanes(struct hearth_service *service, bool all_busy) {
    int32_t page = (int32_t)service->params.page_tokens;
    bool pages = hearth_caps_has_pages(&service->engine->caps);
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_task *task = service->on_lane[i];
        struct hearth_step_lane *lane = &service->step.lanes[i];
        lane->not_preemptible = task && !can_wait(service, task);
        if (!hearth_step_is_long(lane) || lane->not_preemptible || !pages || lane->capture || !all_busy) {
            continue;
        }
        lane->capture = lane->computed - 1 - task->ahead >= page;
        lane->capture_since_us = lane->assigned_us;
    }
}

/* Estimates the prefill of waiting requests: unknown prompts first, then round-robin, one every PEEK_US. */
static void tell_needs(struct hearth_service *service) {
    struct hearth_step *step = &service->step;
    int64_t now_us = hearth_service_now_us(service);
    size_t at = 0;
    while (at < step->queued && (step->queue[at].need_tokens >= 0 || step->queue[at].priority == HEARTH_CLASS_WARM)) {
        at++;
    }
    if (at == step->queued) {
        if (now_us - service->peeked_us < PEEK_US) {
            return;
        }
        at = (size_t)(now_us / PEEK_US) % step->queued;
    }
    service->peeked_us = now_us;
    const struct hearth_task *task = hearth_task_find(service, step->queue[at].id);
    const struct hearth_cache_prompt prompt = {.tokens = task->tokens.v,
                                               .n = task->tokens.n,
                                               .salt = task->request.salt,
                                               .cache_off = task->request.cache_off};
    const struct hearth_live *const *lives = (const struct hearth_live *const *)service->live_list;
    hearth_step_need(step, task->id, hearth_cache_peek(service->cache, &prompt, lives, hearth_service_lives(service)));
}

void hearth_service_prepare(struct hearth_service *service) {
    bool all_busy = true, cells = service->cells_retry_us > 0;
    tell_speeds(service);
    if (cells && hearth_service_now_us(service) >= service->cells_retry_us) {
        service->cells_retry_us = 0;
        hearth_step_changed(&service->step);
    }
    for (uint32_t i = 0; i < service->lanes; i++) {
        all_busy = all_busy && service->on_lane[i];
    }
    if (service->step.queued > 0 || all_busy) {
        tell_lanes(service, all_busy);
    }
    if (service->step.queued > 0 && (all_busy || cells)) {
        tell_needs(service);
    }
}

void hearth_lane_capture_ahead(struct hearth_service *service, int lane, int pages) {
    struct hearth_task *task = service->on_lane[lane];
    const struct hearth_live *live = &service->lives[lane];
    int32_t page = (int32_t)service->params.page_tokens;
    int whole = ((int32_t)live->tokens.n - 1 - task->ahead) / page;
    int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    pages = pages < whole ? pages : whole;
    if (pages > 0) {
        hearth_cache_capture_ahead(service->cache, &service->lives[lane], pages);
    }
    task->ahead += (pages > 0 ? pages : 1) * page; /* also of what RAM did not take: that is not tried again */
    hearth_service_captured(service, start_us, real_us);
    hearth_step_captured(&service->step, lane);
}

/* ---- deadlines ---- */

/* The deadline has passed. A reply that has begun ends with what it has; else the request fails. */
static void expire(struct hearth_service *service, struct hearth_task *task) {
    struct hearth_event *event = task->generated > 0 ? hearth_task_event(task, HEARTH_EVENT_DONE) : NULL;
    service->counters.requests_late++;
    if (!event || !hearth_reply_flush(&task->reply, &event->text)) {
        hearth_event_destroy(event);
        hearth_task_fail(service, task, HEARTH_ERR_DEADLINE, "the deadline passed before the reply began");
        return;
    }
    event->finish = HEARTH_FINISH_LENGTH;
    event->late = true;
    service->counters.requests_done++;
    if (task->lane >= 0) {
        hearth_lane_leave(service, task);
    } else {
        hearth_step_withdraw(&service->step, task->id);
    }
    hearth_task_end(service, task, event);
}

void hearth_service_expire(struct hearth_service *service) {
    int64_t now_us = hearth_service_now_us(service);
    if (service->slept_until_us > now_us) {
        now_us = service->slept_until_us;
    }
    service->slept_until_us = 0;
    if (now_us < service->deadline_us) {
        return;
    }
    service->deadline_us = INT64_MAX;
    for (struct hearth_task *task = service->tasks, *next; task; task = next) {
        next = task->next;
        if (task->deadline_us > 0 && task->deadline_us <= now_us) {
            expire(service, task);
        } else if (task->deadline_us > 0 && task->deadline_us < service->deadline_us) {
            service->deadline_us = task->deadline_us;
        }
    }
}

/* ---- progress ---- */

void hearth_task_progress(struct hearth_service *service, struct hearth_task *task) {
    size_t there = service->lives[task->lane].tokens.n;
    if (!task->request.progress || task->prefilled) {
        return;
    }
    struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_PROGRESS);
    if (!event) {
        return; /* the next one tells it */
    }
    event->receipt.prefill_us = hearth_service_now_us(service) - task->started_us;
    event->prefilled_tokens = (uint32_t)(there < task->prompt_tokens ? there : task->prompt_tokens);
    task->request.deliver(task->request.user, event);
}
