/* The loop of the service's thread: take the inbox, ask the step for an action, carry it out, publish counters; until
 * the service stops.
 *
 * Invariant: `lives[i].tokens` is always what the engine's sequence lives[i].seq holds. */
#include "base/clock.h"
#include "sched/service_internal.h"

#include <stdlib.h>

/* Handles events of the backing tier. Tasks that are held for the tier are tried again, except when the last action was
 * such a try: lanes get their turn in between. */
static void poll_backing(struct hearth_service *service, bool admitting) {
    size_t events = hearth_cache_poll(service->cache, HEARTH_POLL_EVENTS);
    service->backing_more = events == HEARTH_POLL_EVENTS;
    service->backing_news =
        events > 0 || service->backing_news || hearth_service_slept_us(service) >= service->held_until_us;
    if (!service->backing_news || admitting) {
        return;
    }
    service->backing_news = false;
    service->held_until_us = INT64_MAX;
    hearth_step_changed(service->step);
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (service->capture_full >> i & 1 && hearth_step_lane(service->step, (int)i)->state == HEARTH_LANE_IDLE) {
            hearth_step_pending(service->step, (int)i,
                                hearth_cache_capture_pending(service->cache, &service->lives[i]));
        }
    }
    service->capture_full = 0;
}

/* ---- inbox ---- */

static void take_task(struct hearth_service *service, struct hearth_task *task) {
    task->next = service->tasks;
    service->tasks = task;
    if (task->request.locate_only) {
        hearth_task_locate(service, task);
        return;
    }
    task->firsts = service->firsts;
    task->spec.rates = service->spec.rates;
    uint32_t busy = 0;
    for (uint32_t i = 0; i < service->lanes; i++) {
        busy += service->on_lane[i] != NULL;
        task->busy_then += service->on_lane[i] && !hearth_task_is_prefetch(service->on_lane[i]);
    }
    if (!hearth_task_is_idle(task)) {
        service->counters.requests++;
        service->counters.prompt_tokens += task->prompt_tokens;
    }
    if (task->deadline_us > 0 && task->deadline_us < service->deadline_us) {
        service->deadline_us = task->deadline_us;
    }
    if (!hearth_task_queue(service, task, task->submitted_us)) {
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
        return;
    }
    if (busy < service->lanes) {
        task->wait = HEARTH_WAIT_BATCH; /* tasks are taken between two batches: it has waited for the last one */
    }
    hearth_task_wait(service, task, HEARTH_WAIT_LANE, hearth_service_now_us(service));
}

static void cancel_task(struct hearth_service *service, struct hearth_task *task) {
    hearth_task_fail(service, task, HEARTH_ERR_CANCELLED, "the request was cancelled");
}

static void take_note(struct hearth_service *service, struct hearth_note note) {
    struct hearth_task *task = hearth_task_find(service, note.id);
    if (note.expect_us > 0 && task) {
        task->expect_us = note.expect_us;
    } else if (note.expect_us > 0) {
        hearth_ended_expect(service, note.id, note.expect_us);
    } else if (task) {
        cancel_task(service, task);
    }
}

/* Sleeps until another thread leaves something, a task has waited for the backing tier for as long as it may, or a
 * deadline comes. */
static void sleep_locked(struct hearth_service *service) {
    const int64_t now_us = hearth_service_now_us(service);
    const int64_t until_us =
        service->deadline_us < service->held_until_us ? service->deadline_us : service->held_until_us;
    const int64_t left_us = until_us > now_us ? until_us - now_us : 0;
    if (until_us == INT64_MAX) {
        pthread_cond_wait(&service->wake, &service->mutex);
    } else if (!hearth_clock_cond_wait(&service->wake, &service->mutex, hearth_clock_us() + left_us)) {
        service->slept_until_us = until_us;
    }
}

/* What other threads have left for the service's thread. */
struct inbox {
    struct hearth_task *tasks;
    struct hearth_note *notes;
    size_t note_count;
    struct hearth_task_forget *forgets;
    bool cancel_all, cancel_prefetches, stopping;
};

static bool nothing_locked(const struct hearth_service *service) {
    return !service->inbox && service->note_count == 0 && !service->cancel_all && !service->cancel_prefetches &&
           !service->stopping && !service->backing_ready && !service->backing_news && !service->backing_more &&
           !service->forget_inbox && service->slept_until_us == 0;
}

/* About how long the next batch takes, if it starts short prompts only and leaves a lane free for one more; else 0. */
static int64_t burst_us(const struct hearth_service *service) {
    bool begins = false, free = false;
    int32_t tokens = 0;
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_step_lane *lane = hearth_step_lane(service->step, (int)i);
        if (lane->state == HEARTH_LANE_IDLE) {
            free = true;
        } else if (lane->idle) {
            continue;
        } else if (!hearth_step_is_short(lane)) {
            return 0;
        }
        tokens += lane->target - lane->computed;
        begins = begins || lane->computed == lane->begun;
    }
    const int32_t most = (int32_t)service->engine->caps.batch_tokens;
    const double us = (tokens < most ? tokens : most) * hearth_pace_prefill_us(&service->pace);
    return begins && free ? (int64_t)us : 0;
}

/* Waits, before such a batch, for requests that are still being prepared, so that they are computed together. A request
 * that misses the batch waits for all of it, so the batch waits for it at most that long. */
static void gather_locked(struct hearth_service *service) {
    const int64_t us = burst_us(service);
    if (us == 0) {
        return;
    }
    service->gather_until_us = service->gather_until_us > 0 ? service->gather_until_us : hearth_clock_us() + us;
    while (service->announced > 0 && nothing_locked(service)) {
        if (!hearth_clock_cond_wait(&service->wake, &service->mutex, service->gather_until_us)) {
            return;
        }
    }
}

static void take_inbox(struct hearth_service *service, bool wait, struct inbox *in) {
    pthread_mutex_lock(&service->mutex);
    service->slept_until_us = 0;
    while (wait && nothing_locked(service)) {
        sleep_locked(service);
    }
    gather_locked(service);
    service->backing_ready = false;
    service->min_decode_tps = service->params.min_decode_tps;
    *in = (struct inbox){.tasks = service->inbox,
                         .notes = service->notes,
                         .note_count = service->note_count,
                         .forgets = service->forget_inbox,
                         .cancel_all = service->cancel_all || service->stopping,
                         .cancel_prefetches = service->cancel_prefetches,
                         .stopping = service->stopping};
    service->inbox = NULL;
    service->inbox_tail = &service->inbox;
    service->notes = NULL;
    service->note_count = service->note_cap = 0;
    service->forget_inbox = NULL;
    service->forget_inbox_tail = &service->forget_inbox;
    service->cancel_all = service->cancel_prefetches = false;
    pthread_mutex_unlock(&service->mutex);
}

static void cancel_prefetches(struct hearth_service *service) {
    for (struct hearth_task *task = service->tasks, *next; task; task = next) {
        next = task->next;
        if (hearth_task_is_prefetch(task)) {
            hearth_task_fail(service, task, HEARTH_ERR_CANCELLED, "the server is shutting down");
        }
    }
}

/* Takes what other threads left; if `wait`, sleeps until there is something. False: the service ends. */
static bool drain_inbox(struct hearth_service *service, bool wait) {
    struct inbox in;
    take_inbox(service, wait, &in);
    while (in.tasks) {
        struct hearth_task *task = in.tasks;
        in.tasks = task->next;
        take_task(service, task);
    }
    for (size_t i = 0; i < in.note_count; i++) {
        take_note(service, in.notes[i]);
    }
    free(in.notes);
    if (in.cancel_prefetches) {
        cancel_prefetches(service);
    }
    while (in.cancel_all && service->tasks) {
        cancel_task(service, service->tasks);
    }
    struct hearth_task_forget **end = &service->forgets;
    while (*end) {
        end = &(*end)->next;
    }
    *end = in.forgets;
    return !in.stopping;
}

/* ---- the loop ---- */

/* Preempts a lane. A lane alone does not help a task that lacks cells: the task gets the victim's cells, too, or is
 * held. */
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
        poll_backing(service, action.type == HEARTH_ACTION_ADMIT);
        hearth_service_forget_due(service);
        hearth_service_expire(service);
        hearth_service_prepare(service);
        hearth_step_next(service->step, hearth_service_now_us(service), &action);
        if (action.type != HEARTH_ACTION_ADMIT && action.type != HEARTH_ACTION_PREEMPT) {
            hearth_service_publish_waiting(service);
        }
        switch (action.type) {
        case HEARTH_ACTION_ADMIT: hearth_task_admit(service, hearth_task_find(service, action.id)); break;
        case HEARTH_ACTION_COMPUTE:
            service->gather_until_us = 0;
            hearth_service_compute(service, action.shares);
            break;
        case HEARTH_ACTION_CAPTURE: hearth_lane_capture_turn(service, &action); break;
        case HEARTH_ACTION_PREEMPT: give_way(service, &action); break;
        case HEARTH_ACTION_SLEEP:
            if (!service->tasks) {
                hearth_cache_prefetch_heads(service->cache);
            }
            break;
        }
        hearth_service_publish(service);
        hearth_service_worked(service, real_us);
    }
    for (uint32_t i = 0; i < service->places; i++) {
        hearth_lane_capture(service, (int)i);
    }
    hearth_service_forget_finish(service);
    hearth_ended_finish(service);
    return NULL;
}
