/* The service's thread: take what arrived, ask the step for an action, carry it out, publish counters; until stopped.
 *
 * Invariants: a task in `tasks` has delivered no final event yet; a lane's `busy` flag is set exactly while a task
 * runs on it; `lives[i].tokens` is always what the engine's sequence lives[i].seq holds. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "sched/service_internal.h"

#include <stdlib.h>
#include <time.h>

#define CAPTURE_SLICE_PAGES 1
#define CAPTURE_ALONE_PAGES 8
#define CAPTURE_AHEAD_PAGES 4  /* of a lane that goes on: more than a batch computes, in most cases */
#define CAPTURE_SHARE 10       /* between two batches: a tenth of a batch's time, but at least one page */
#define CAPTURE_FULL_US 500000 /* how long a lane that is needed waits for the backing tier to make room */
#define GATHER_US 20000        /* how long a batch of short prompts waits for requests that are being prepared */
#define POLL_EVENTS 512

/* ---- tasks ---- */

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

void hearth_event_fill(struct hearth_event *event, const struct hearth_task *task) {
    event->receipt = task->receipt;
    event->generated_tokens = task->generated;
    event->generate_us = task->last_us - task->first_us;
    event->drafted_tokens = task->spec.drafted;
    event->accepted_tokens = task->spec.accepted;
    event->preemptions = task->preemptions;
}

struct hearth_event *hearth_task_event(const struct hearth_task *task, enum hearth_event_type type) {
    struct hearth_event *event = calloc(1, sizeof *event);
    if (!event) {
        return NULL;
    }
    event->type = type;
    hearth_event_fill(event, task);
    return event;
}

void hearth_task_end(struct hearth_service *service, struct hearth_task *task, struct hearth_event *event) {
    struct hearth_task **link = &service->tasks;
    while (*link != task) {
        link = &(*link)->next;
    }
    *link = task->next;
    hearth_parked_ended(service, task);
    service->ended += task->admitted;
    bool warm = hearth_task_is_prefetch(task), in_admission = task->in_admission;
    uint64_t tenant = task->request.tenant.id;
    double lane_us = warm ? 0 : (double)(task->prefill_us + task->decode_us);
    hearth_ended_note(service, task);
    task->request.deliver(task->request.user, event);
    hearth_task_destroy(service, task);
    pthread_mutex_lock(&service->mutex);
    service->active--;
    service->warm -= warm;
    if (in_admission) {
        hearth_admission_leave(&service->admission, tenant);
    }
    if (lane_us > 0) {
        service->lane_us = service->lane_us > 0 ? (4 * service->lane_us + lane_us) / 5 : lane_us;
    }
    pthread_cond_broadcast(&service->idle);
    pthread_mutex_unlock(&service->mutex);
}

/* The receipt of a task that ends before its prompt was computed. */
static void receipt_end(struct hearth_service *service, struct hearth_task *task) {
    struct hearth_receipt *receipt = &task->receipt;
    int64_t now_us = hearth_service_now_us(service);
    if (!task->admitted) {
        receipt->queue_us = now_us - task->submitted_us;
    } else if (!task->prefilled) {
        uint32_t reused = receipt->prompt_tokens - receipt->computed_tokens;
        uint32_t there = (uint32_t)(task->lane >= 0 ? service->step.lanes[task->lane].computed : task->preempted_at);
        receipt->computed_tokens = there > reused ? there - reused : 0;
        receipt->prefill_us = task->lane >= 0 ? now_us - task->started_us : task->prefill_us;
    }
}

void hearth_task_fail(struct hearth_service *service, struct hearth_task *task, int err, const char *text) {
    receipt_end(service, task);
    if (task->lane >= 0) {
        hearth_lane_leave(service, task);
    } else {
        hearth_step_withdraw(&service->step, task->id);
    }
    if (err == HEARTH_ERR_CANCELLED) {
        service->counters.requests_cancelled++;
    } else {
        service->counters.requests_failed++;
    }
    struct hearth_event *event = task->failure;
    task->failure = NULL;
    event->type = HEARTH_EVENT_FAILED;
    hearth_event_fill(event, task);
    event->err = err;
    (void)hearth_fail(&event->message, err, "%s", text);
    hearth_task_end(service, task, event);
}

/* ---- lanes ---- */

static enum hearth_capture capture_slice(struct hearth_service *service, int lane, int pages, int64_t limit_us) {
    int64_t start_us = hearth_service_now_us(service), spent_us = 0, real_us = hearth_clock_us();
    enum hearth_capture state;
    do {
        state = hearth_cache_capture(service->cache, &service->lives[lane], pages);
        spent_us = hearth_service_now_us(service) - start_us;
    } while (state == HEARTH_CAPTURE_MORE && spent_us < limit_us);
    hearth_service_captured(service, start_us, real_us);
    if (lane >= (int)service->lanes) {
        return state; /* the parked sequence: captured when it is needed, not in turn */
    }
    if (state == HEARTH_CAPTURE_FULL) {
        service->capture_full |= UINT64_C(1) << lane;
    }
    if (state != HEARTH_CAPTURE_MORE && !service->lives[lane].busy) {
        hearth_step_captured(&service->step, lane);
    }
    return state;
}

bool hearth_lane_snapshot(struct hearth_service *service, int lane, enum hearth_snapshot_kind kind) {
    int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    bool taken = hearth_cache_snapshot(service->cache, &service->lives[lane], kind);
    hearth_service_captured(service, start_us, real_us);
    return taken;
}

void hearth_lane_capture(struct hearth_service *service, int lane) {
    int64_t give_up_us = 0;
    for (;;) {
        enum hearth_capture state = capture_slice(service, lane, CAPTURE_ALONE_PAGES, 0);
        if (state == HEARTH_CAPTURE_DONE) {
            return;
        }
        if (state == HEARTH_CAPTURE_MORE) {
            continue;
        }
        int64_t now_us = hearth_clock_us();
        give_up_us = give_up_us > 0 ? give_up_us : now_us + CAPTURE_FULL_US;
        if (now_us >= give_up_us) {
            break;
        }
        (void)hearth_cache_wait(service->cache, give_up_us - now_us);
        service->told_us += hearth_clock_us() - now_us;
        if (hearth_cache_poll(service->cache, POLL_EVENTS) > 0) {
            service->backing_news = true; /* others may have waited for it, too */
        }
    }
    service->lives[lane].dirty = service->lives[lane].snapshot_count > 0;
}

void hearth_lane_capture_now(struct hearth_service *service, int lane) {
    while (capture_slice(service, lane, CAPTURE_ALONE_PAGES, 0) == HEARTH_CAPTURE_MORE) {
    }
}

void hearth_service_poll(struct hearth_service *service, bool admitting) {
    size_t events = hearth_cache_poll(service->cache, POLL_EVENTS);
    service->backing_more = events == POLL_EVENTS;
    service->backing_news = events > 0 || service->backing_news ||
                            (service->backing_retry_us > 0 && hearth_clock_us() >= service->backing_retry_us);
    if (!service->backing_news || admitting) {
        return;
    }
    service->backing_news = false;
    service->backing_retry_us = 0;
    hearth_step_changed(&service->step);
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (service->capture_full >> i & 1 && service->step.lanes[i].state == HEARTH_LANE_IDLE) {
            service->step.lanes[i].capture = hearth_cache_capture_pending(service->cache, &service->lives[i]);
        }
    }
    service->capture_full = 0;
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

/* ---- inbox ---- */

static void take_task(struct hearth_service *service, struct hearth_task *task) {
    task->next = service->tasks;
    service->tasks = task;
    service->counters.requests++;
    service->counters.prompt_tokens += task->prompt_tokens;
    if (task->deadline_us > 0 && task->deadline_us < service->deadline_us) {
        service->deadline_us = task->deadline_us;
    }
    if (!hearth_task_queue(service, task, task->submitted_us)) {
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
    }
}

static void cancel_task(struct hearth_service *service, int64_t id) {
    struct hearth_task *task = hearth_task_find(service, id);
    if (task) {
        hearth_task_fail(service, task, HEARTH_ERR_CANCELLED, "the request was cancelled");
    }
}

/* Waits to be woken, until a time of the real clock. False: that time has come. */
static bool wait_until_locked(struct hearth_service *service, int64_t until_us) {
    struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    return pthread_cond_timedwait(&service->wake, &service->mutex, &until) == 0;
}

/* Sleeps until another thread has something; for a moment only, when a task is held for the backing tier, and never
 * beyond a deadline. */
static void sleep_locked(struct hearth_service *service) {
    int64_t now_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    int64_t until_us = service->backing_retry_us > 0 ? service->backing_retry_us : INT64_MAX;
    int64_t left_us = service->deadline_us > now_us ? service->deadline_us - now_us : 0;
    bool deadline = service->deadline_us < INT64_MAX && left_us < until_us - real_us;
    if (deadline) {
        until_us = real_us + left_us;
    }
    if (until_us == INT64_MAX) {
        pthread_cond_wait(&service->wake, &service->mutex);
        return;
    }
    if (wait_until_locked(service, until_us)) {
        return;
    }
    if (deadline) {
        service->slept_until_us = service->deadline_us;
    } else {
        service->backing_ready = true;
    }
}

/* What other threads left, taken out under the mutex. */
struct inbox {
    struct hearth_task *tasks;
    int64_t *cancels;
    size_t cancel_count;
    struct hearth_expectation *expectations;
    size_t expectation_count;
    struct hearth_forget_task *forgets;
    bool cancel_all, cancel_warm, stopping;
};

static bool nothing_locked(const struct hearth_service *service) {
    return !service->inbox && service->cancel_count == 0 && !service->cancel_all && !service->cancel_warm &&
           !service->stopping && !service->backing_ready && !service->backing_news && !service->backing_more &&
           service->expectation_count == 0 && !service->forget_inbox && service->slept_until_us == 0;
}

/* Whether the next batch begins short prompts and nothing else, with a lane free for one more. A request that comes
 * while that batch is computed waits for all of it. */
static bool begins_burst(const struct hearth_service *service) {
    bool begins = false, free = false;
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_step_lane *lane = &service->step.lanes[i];
        if (lane->state == HEARTH_LANE_IDLE) {
            free = true;
        } else if (!hearth_step_is_short(lane)) {
            return false;
        }
        begins = begins || (lane->state == HEARTH_LANE_PREFILL && lane->computed == lane->begun);
    }
    return begins && free;
}

/* Before such a batch: waits a moment for requests that are being prepared, so that they are computed together. */
static void gather_locked(struct hearth_service *service) {
    service->gather_until_us = service->gather_until_us > 0 ? service->gather_until_us : hearth_clock_us() + GATHER_US;
    while (service->announced > 0 && nothing_locked(service)) {
        if (!wait_until_locked(service, service->gather_until_us)) {
            return;
        }
    }
}

static void take_inbox(struct hearth_service *service, bool wait, struct inbox *in) {
    pthread_mutex_lock(&service->mutex);
    while (wait && nothing_locked(service)) {
        sleep_locked(service);
    }
    if (begins_burst(service)) {
        gather_locked(service);
    }
    service->backing_ready = false;
    service->min_decode_tps = service->params.min_decode_tps;
    *in = (struct inbox){.tasks = service->inbox,
                         .cancels = service->cancels,
                         .cancel_count = service->cancel_count,
                         .expectations = service->expectations,
                         .expectation_count = service->expectation_count,
                         .forgets = service->forget_inbox,
                         .cancel_all = service->cancel_all || service->stopping,
                         .cancel_warm = service->cancel_warm,
                         .stopping = service->stopping};
    service->inbox = NULL;
    service->inbox_tail = &service->inbox;
    service->cancels = NULL;
    service->cancel_count = service->cancel_cap = 0;
    service->expectations = NULL;
    service->expectation_count = service->expectation_cap = 0;
    service->forget_inbox = NULL;
    service->forget_inbox_tail = &service->forget_inbox;
    service->cancel_all = service->cancel_warm = false;
    pthread_mutex_unlock(&service->mutex);
}

static void cancel_warm(struct hearth_service *service) {
    for (struct hearth_task *task = service->tasks, *next; task; task = next) {
        next = task->next;
        if (hearth_task_is_prefetch(task)) {
            hearth_task_fail(service, task, HEARTH_ERR_CANCELLED, "the server is shutting down");
        }
    }
}

/* Takes what other threads left; waits for it when `wait`. False: the service ends. */
static bool drain_inbox(struct hearth_service *service, bool wait) {
    struct inbox in;
    take_inbox(service, wait, &in);
    while (in.tasks) {
        struct hearth_task *task = in.tasks;
        in.tasks = task->next;
        take_task(service, task);
    }
    for (size_t i = 0; i < in.expectation_count; i++) {
        hearth_service_expect_back(service, in.expectations[i]);
    }
    free(in.expectations);
    for (size_t i = 0; i < in.cancel_count; i++) {
        cancel_task(service, in.cancels[i]);
    }
    free(in.cancels);
    if (in.cancel_warm) {
        cancel_warm(service);
    }
    while (in.cancel_all && service->tasks) {
        cancel_task(service, service->tasks->id);
    }
    struct hearth_forget_task **end = &service->forgets;
    while (*end) {
        end = &(*end)->next;
    }
    *end = in.forgets;
    return !in.stopping;
}

/* ---- the loop ---- */

static void capture(struct hearth_service *service, const struct hearth_action *action) {
    if (service->on_lane[action->lane]) {
        hearth_lane_capture_ahead(service, action->lane, CAPTURE_AHEAD_PAGES);
    } else if (action->alone) {
        (void)capture_slice(service, action->lane, CAPTURE_ALONE_PAGES, 0);
    } else {
        (void)capture_slice(service, action->lane, CAPTURE_SLICE_PAGES, service->batch_us / CAPTURE_SHARE);
    }
}

/* Preempts a lane. The lane alone is no help to a task that lacks cells: it takes the cells, too, or is held. */
static void give_way(struct hearth_service *service, const struct hearth_action *action) {
    struct hearth_task *to = hearth_task_find(service, action->id);
    if (hearth_task_lacks_cells(service, to)) {
        hearth_task_admit(service, to);
    } else {
        hearth_lane_preempt(service, action->lane, action->loses_place);
    }
}

void *hearth_service_run(void *user) {
    struct hearth_service *service = user;
    struct hearth_action action = {.type = HEARTH_ACTION_SLEEP};
    while (drain_inbox(service, action.type == HEARTH_ACTION_SLEEP)) {
        int64_t real_us = hearth_clock_us();
        hearth_service_poll(service, action.type == HEARTH_ACTION_ADMIT);
        hearth_service_forget_due(service);
        hearth_service_expire(service);
        hearth_service_prepare(service);
        hearth_step_next(&service->step, hearth_service_now_us(service), &action);
        switch (action.type) {
        case HEARTH_ACTION_ADMIT: hearth_task_admit(service, hearth_task_find(service, action.id)); break;
        case HEARTH_ACTION_COMPUTE:
            service->gather_until_us = 0;
            hearth_service_compute(service, action.shares);
            break;
        case HEARTH_ACTION_CAPTURE: capture(service, &action); break;
        case HEARTH_ACTION_PREEMPT: give_way(service, &action); break;
        case HEARTH_ACTION_SLEEP: break;
        }
        hearth_service_publish(service);
        hearth_service_worked(service, real_us);
    }
    for (uint32_t i = 0; i < service->places; i++) {
        hearth_lane_capture(service, (int)i);
    }
    hearth_service_keep_finish(service);
    return NULL;
}
