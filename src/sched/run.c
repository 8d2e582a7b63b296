/* The service's thread: take what arrived, ask the step for an action, carry it out, publish counters; until stopped.
 *
 * Invariants: a job in `jobs` has delivered no final event yet; a lane's `busy` flag is set exactly while a job runs on
 * it; `lives[i].tokens` is always what the engine's sequence i holds. */
#include "base/assert.h"
#include "base/log.h"
#include "sched/service_internal.h"

#include <stdlib.h>

#define CAPTURE_SLICE_PAGES 1
#define CAPTURE_ALONE_PAGES 8

static int64_t now_us(const struct hearth_service *service) {
    return service->engine->ops->now_us(service->engine);
}

/* ---- jobs ---- */

struct hearth_job *hearth_job_find(struct hearth_service *service, int64_t id) {
    struct hearth_job *job = service->jobs;
    while (job && job->id != id)
        job = job->next;
    return job;
}

void hearth_job_destroy(struct hearth_service *service, struct hearth_job *job) {
    if (job->sampler)
        service->engine->ops->sampler_destroy(service->engine, job->sampler);
    hearth_reply_finish(&job->reply);
    hearth_tokens_finish(&job->tokens);
    free(job->logit_bias);
    free(job);
}

struct hearth_event *hearth_job_event(const struct hearth_job *job, enum hearth_event_type type) {
    struct hearth_event *event = calloc(1, sizeof *event);
    if (!event)
        return NULL;
    event->type = type;
    event->receipt = job->receipt;
    event->generated_tokens = job->generated;
    event->generate_us = job->last_us - job->first_us;
    return event;
}

void hearth_job_end(struct hearth_service *service, struct hearth_job *job, struct hearth_event *event) {
    struct hearth_job **link = &service->jobs;
    while (*link != job)
        link = &(*link)->next;
    *link = job->next;
    service->ended++;
    job->deliver(job->user, event);
    hearth_job_destroy(service, job);
    pthread_mutex_lock(&service->mutex);
    service->active--;
    pthread_cond_broadcast(&service->idle);
    pthread_mutex_unlock(&service->mutex);
}

void hearth_job_fail(struct hearth_service *service, struct hearth_job *job, int err, const char *text) {
    if (job->lane >= 0)
        hearth_lane_leave(service, job);
    else
        hearth_step_withdraw(&service->step, job->id);
    if (err == HEARTH_ERR_CANCELLED)
        service->counters.requests_cancelled++;
    else
        service->counters.requests_failed++;
    struct hearth_event *event = hearth_job_event(job, HEARTH_EVENT_FAILED);
    if (!event) {
        /* The receiver must hear of the end: the one event that may not be lost waits for memory. */
        hearth_log(HEARTH_LOG_ERROR, "out of memory while failing a request");
        abort();
    }
    event->err = err;
    (void)hearth_fail(&event->message, err, "%s", text);
    hearth_job_end(service, job, event);
}

/* ---- lanes ---- */

void hearth_lane_leave(struct hearth_service *service, struct hearth_job *job) {
    struct hearth_live *live = &service->lives[job->lane];
    live->busy = false;
    live->used_us = now_us(service);
    hearth_step_release(&service->step, job->lane, hearth_cache_capture_pending(service->cache, live), live->used_us);
    job->lane = -1;
}

static enum hearth_capture capture_slice(struct hearth_service *service, int lane, int pages) {
    int64_t start_us = now_us(service);
    enum hearth_capture state = hearth_cache_capture(service->cache, &service->lives[lane], pages);
    service->counters.capture_us += (uint64_t)(now_us(service) - start_us);
    if (state == HEARTH_CAPTURE_DONE)
        hearth_step_captured(&service->step, lane);
    return state;
}

void hearth_lane_capture(struct hearth_service *service, int lane) {
    while (capture_slice(service, lane, CAPTURE_ALONE_PAGES) == HEARTH_CAPTURE_MORE) {
    }
}

bool hearth_lane_make_room(struct hearth_service *service, int keep) {
    int victim = -1;
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_live *live = &service->lives[i];
        if (live->busy || (int)i == keep || live->tokens.n == 0)
            continue;
        if (victim < 0 || live->used_us < service->lives[victim].used_us)
            victim = (int)i;
    }
    if (victim < 0)
        return false;
    hearth_lane_capture(service, victim);
    hearth_live_clear(service->cache, &service->lives[victim]);
    return true;
}

/* ---- inbox ---- */

static void take_job(struct hearth_service *service, struct hearth_job *job) {
    job->next = service->jobs;
    service->jobs = job;
    service->counters.requests++;
    service->counters.prompt_tokens += job->prompt_tokens;
    if (!hearth_step_submit(&service->step, job->id, job->submitted_us, (int32_t)job->tokens.n, false))
        hearth_job_fail(service, job, HEARTH_ERR_NOMEM, "out of memory");
}

static void cancel_job(struct hearth_service *service, int64_t id) {
    struct hearth_job *job = hearth_job_find(service, id);
    if (job)
        hearth_job_fail(service, job, HEARTH_ERR_CANCELLED, "the request was cancelled");
}

/* Takes what other threads left; waits for it when `wait`. False: the service ends. */
static bool drain_inbox(struct hearth_service *service, bool wait) {
    pthread_mutex_lock(&service->mutex);
    while (wait && !service->inbox && service->cancel_count == 0 && !service->cancel_all && !service->stopping)
        pthread_cond_wait(&service->wake, &service->mutex);
    struct hearth_job *arrived = service->inbox;
    service->inbox = NULL;
    service->inbox_tail = &service->inbox;
    int64_t *cancels = service->cancels;
    size_t cancel_count = service->cancel_count;
    service->cancels = NULL;
    service->cancel_count = service->cancel_cap = 0;
    bool all = service->cancel_all || service->stopping, stopping = service->stopping;
    service->cancel_all = false;
    pthread_mutex_unlock(&service->mutex);

    while (arrived) {
        struct hearth_job *job = arrived;
        arrived = job->next;
        take_job(service, job);
    }
    for (size_t i = 0; i < cancel_count; i++)
        cancel_job(service, cancels[i]);
    free(cancels);
    while (all && service->jobs)
        cancel_job(service, service->jobs->id);
    return !stopping;
}

/* ---- counters ---- */

static void publish(struct hearth_service *service) {
    struct hearth_cache_stats cache;
    hearth_cache_stats(service->cache, &cache);
    struct hearth_service_stats *c = &service->counters;
    c->pages = cache.pages;
    c->page_bytes = cache.page_bytes;
    c->snapshots = cache.snapshots;
    c->snapshot_bytes = cache.snapshot_bytes;
    c->evicted_pages = cache.evicted_pages;
    c->evicted_snapshots = cache.evicted_snapshots;
    c->restore_failures = cache.restore_failures;
    c->queued = service->step.queued;
    c->lanes_busy = 0;
    struct hearth_lane_info info[HEARTH_LANES_MAX];
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_step_lane *lane = &service->step.lanes[i];
        info[i] = (struct hearth_lane_info){.state = lane->state,
                                            .request_id = lane->id,
                                            .live_tokens = (uint32_t)service->lives[i].tokens.n};
        c->lanes_busy += lane->state != HEARTH_LANE_IDLE;
    }
    for (const struct hearth_job *job = service->jobs; job; job = job->next)
        if (job->lane >= 0) {
            info[job->lane].prompt_tokens = (uint32_t)job->prompt_tokens;
            info[job->lane].computed_tokens = (uint32_t)service->step.lanes[job->lane].computed;
            info[job->lane].generated_tokens = job->generated;
        }
    pthread_mutex_lock(&service->mutex);
    service->stats = *c;
    for (uint32_t i = 0; i < service->lanes; i++)
        service->lane_info[i] = info[i];
    pthread_mutex_unlock(&service->mutex);
}

/* ---- the loop ---- */

void *hearth_service_run(void *user) {
    struct hearth_service *service = user;
    struct hearth_action action = {.type = HEARTH_ACTION_SLEEP};
    while (drain_inbox(service, action.type == HEARTH_ACTION_SLEEP)) {
        hearth_step_next(&service->step, now_us(service), &action);
        switch (action.type) {
        case HEARTH_ACTION_ADMIT: hearth_job_admit(service, hearth_job_find(service, action.id)); break;
        case HEARTH_ACTION_COMPUTE: hearth_service_compute(service, action.shares); break;
        case HEARTH_ACTION_CAPTURE:
            (void)capture_slice(service, action.lane, action.alone ? CAPTURE_ALONE_PAGES : CAPTURE_SLICE_PAGES);
            break;
        case HEARTH_ACTION_SLEEP: break;
        }
        publish(service);
    }
    return NULL;
}
