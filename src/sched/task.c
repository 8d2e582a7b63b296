/* Tasks: a request from its arrival to its last event.
 *
 * Deadlines go by the engine's clock. While the thread sleeps the clock of sim stands still: there the time that was
 * slept counts.
 *
 * Invariant: a task in `tasks` has delivered no final event yet. */
#include "sched/copy.h"
#include "sched/service_internal.h"

#include <stdlib.h>

/* The last mark, if it lies so near the prompt's end that its snapshot can stand for the one there: it is where the
 * generation prompt begins, which templates that rewrite replies leave out later. */
static int32_t end_mark(const struct hearth_request *request) {
    int32_t last = request->mark_count > 0 ? request->marks[request->mark_count - 1] : 0;
    int32_t end = (int32_t)request->prompt_tokens;
    return last > 0 && last < end && last >= end - HEARTH_MARK_MIN_GAP_TOKENS ? last : 0;
}

struct hearth_task *hearth_task_create(struct hearth_service *service, const struct hearth_request *request) {
    struct hearth_task *task = calloc(1, sizeof *task);
    if (!task) {
        return NULL;
    }
    if (!hearth_tokens_assign(&task->tokens, request->prompt, request->prompt_tokens) ||
        !(task->block = hearth_request_copy(request, &task->request)) ||
        !(task->failure = calloc(1, sizeof *task->failure)) ||
        !hearth_reply_init(&task->reply, request->stops, request->stop_count)) {
        hearth_task_destroy(service, task);
        return NULL;
    }
    task->prompt_tokens = request->prompt_tokens;
    for (size_t i = 0; i < request->mark_count && task->mark_count < HEARTH_MARKS_MAX; i++) {
        task->marks[task->mark_count++] = request->marks[i];
    }
    for (size_t i = 0; i < request->pin_count; i++) {
        task->pins[task->pin_count++] = request->pins[i];
    }
    task->end_mark = end_mark(request);
    hearth_thinker_init(&task->thinker, task->request.thinking);
    task->lane = task->last_lane = -1;
    task->receipt.prompt_tokens = (uint32_t)request->prompt_tokens;
    return task;
}

struct hearth_task *hearth_task_find(struct hearth_service *service, int64_t id) {
    struct hearth_task *task = service->tasks;
    while (task && task->id != id) {
        task = task->next;
    }
    return task;
}

void hearth_task_destroy(struct hearth_service *service, struct hearth_task *task) {
    if (task->sampler) {
        service->engine->ops->sampler_destroy(service->engine, task->sampler);
    }
    hearth_reply_finish(&task->reply);
    hearth_draft_finish(&task->spec.index);
    hearth_tokens_finish(&task->tokens);
    hearth_event_destroy(task->failure);
    free(task->block);
    free(task);
}

bool hearth_task_queue(struct hearth_service *service, struct hearth_task *task, int64_t arrived_us) {
    task->queued_us = task->preemptions > 0 ? hearth_service_now_us(service) : arrived_us;
    hearth_task_wait(service, task,
                     task->waits_for_ended > 0 ? HEARTH_WAIT_CELLS
                     : task->preemptions > 0   ? HEARTH_WAIT_PREEMPTED
                                               : HEARTH_WAIT_LANE,
                     task->queued_us);
    const struct hearth_step_request request = {.id = task->id,
                                                .priority = task->request.priority,
                                                .tenant = task->request.tenant,
                                                .arrived_us = arrived_us,
                                                .queued_us = task->queued_us,
                                                .tokens = (int32_t)task->tokens.n,
                                                .lost = task->lost,
                                                .preempted = task->preemptions > 0,
                                                .idle = task->request.idle};
    return hearth_step_submit(service->step, &request);
}

/* ---- ends ---- */

void hearth_task_end(struct hearth_service *service, struct hearth_task *task, struct hearth_event *event) {
    struct hearth_task **link = &service->tasks;
    while (*link != task) {
        link = &(*link)->next;
    }
    *link = task->next;
    hearth_parked_ended(service, task);
    service->ended += task->admitted;
    bool prefetch = hearth_task_is_prefetch(task), idle = hearth_task_is_idle(task), in_admission = task->in_admission;
    uint64_t tenant = task->request.tenant.id;
    double lane_us = prefetch ? 0 : (double)(task->prefill_us + task->decode_us);
    hearth_ended_note(service, task);
    task->request.deliver(task->request.user, event);
    hearth_task_destroy(service, task);
    pthread_mutex_lock(&service->mutex);
    service->active--;
    service->prefetches -= prefetch && !idle;
    if (in_admission) {
        hearth_admission_leave(&service->admission, tenant);
    }
    if (lane_us > 0) {
        service->lane_us = service->lane_us > 0 ? (4 * service->lane_us + lane_us) / 5 : lane_us;
    }
    pthread_cond_broadcast(&service->idle);
    pthread_mutex_unlock(&service->mutex);
}

/* Fills the receipt of a task that ends before its prompt was computed. */
static void receipt_end(struct hearth_service *service, struct hearth_task *task) {
    struct hearth_receipt *receipt = &task->receipt;
    int64_t now_us = hearth_service_now_us(service);
    hearth_task_waited(service, task, now_us);
    if (task->admitted && !task->prefilled) {
        uint32_t reused = receipt->prompt_tokens - receipt->computed_tokens;
        uint32_t there =
            (uint32_t)(task->lane >= 0 ? hearth_step_lane(service->step, task->lane)->computed : task->preempted_at);
        receipt->computed_tokens = there > reused ? there - reused : 0;
        receipt->prefill_us = task->lane >= 0 ? now_us - task->started_us : task->prefill_us;
    }
}

void hearth_task_fail(struct hearth_service *service, struct hearth_task *task, int err, const char *text) {
    receipt_end(service, task);
    if (task->lane >= 0) {
        hearth_lane_leave(service, task);
    } else {
        hearth_step_withdraw(service->step, task->id);
    }
    if (err == HEARTH_ERR_CANCELLED) {
        service->counters.requests_cancelled += !hearth_task_is_idle(task);
    } else {
        service->counters.requests_failed += !hearth_task_is_idle(task);
    }
    struct hearth_event *event = task->failure;
    task->failure = NULL;
    event->type = HEARTH_EVENT_FAILED;
    hearth_event_fill(event, task);
    event->err = err;
    (void)hearth_fail(&event->message, err, "%s", text);
    hearth_task_end(service, task, event);
}

/* The deadline has passed: a reply that has begun ends with what it has, any other request fails. */
static void expire(struct hearth_service *service, struct hearth_task *task) {
    hearth_task_waited(service, task, hearth_service_now_us(service));
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
        hearth_step_withdraw(service->step, task->id);
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
