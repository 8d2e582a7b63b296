/* What callers can read of the service and set in it: counters, lanes, the queue, fill levels.
 *
 * The thread publishes copies under the mutex at every turn of its loop; the list of waiting requests, which costs more
 * than the rest, except before requests are admitted or preempted, because often many of these actions follow each
 * other. */
#include "sched/service_internal.h"

#include <string.h>

#define RETRY_MAX_S 60

/* ---- the thread's side ---- */

static void fill_counters(struct hearth_service *service) {
    struct hearth_cache_stats cache;
    hearth_cache_stats(service->cache, &cache);
    struct hearth_service_stats *c = &service->counters;
    c->pages = cache.pages;
    c->page_bytes = cache.page_bytes;
    c->snapshots = cache.snapshots;
    c->snapshot_bytes = cache.snapshot_bytes;
    c->pinned_bytes = cache.pinned_bytes;
    c->evicted_pages = cache.evicted_pages;
    c->evicted_snapshots = cache.evicted_snapshots;
    c->restore_failures = cache.restore_failures;
    c->warmed_tokens = cache.warmed_tokens;
    c->queued = hearth_step_queued(service->step);
    c->lanes_busy = 0;
}

static struct hearth_lane_info lane_info(const struct hearth_service *service, uint32_t index, int64_t now_us) {
    const struct hearth_step_lane *lane = hearth_step_lane(service->step, (int)index);
    const struct hearth_task *task = service->on_lane[index];
    struct hearth_lane_info info = {
        .state = lane->state, .request_id = lane->id, .live_tokens = (uint32_t)service->lives[index].tokens.n};
    if (!task) {
        return info;
    }
    int64_t decodes_us = lane->decodes_us > 0 ? lane->decodes_us : now_us;
    info.prompt_tokens = (uint32_t)task->prompt_tokens;
    info.generated_tokens = task->generated;
    info.drafted_tokens = task->spec.drafted;
    info.accepted_tokens = task->spec.accepted;
    info.reused_tokens = hearth_receipt_reused_tokens(&task->receipt);
    if (info.reused_tokens > (uint32_t)lane->begun) {
        info.reused_tokens = (uint32_t)lane->begun; /* the rest was lost during a preemption */
    }
    info.computed_tokens = (uint32_t)lane->computed - info.reused_tokens;
    info.priority = task->request.priority;
    info.tenant = task->request.tenant.id;
    info.queue_us = task->waited_us;
    info.prefill_us = task->prefill_us + decodes_us - lane->assigned_us;
    info.decode_us = task->decode_us + now_us - decodes_us;
    info.preemptions = task->preemptions;
    return info;
}

void hearth_service_publish_waiting(struct hearth_service *service) {
    const int64_t now_us = hearth_service_now_us(service);
    struct hearth_waiting_info list[HEARTH_WAITING_MAX];
    struct hearth_step_place places[HEARTH_WAITING_MAX];
    const size_t n = hearth_step_waiting(service->step, places);
    for (size_t i = 0; i < n; i++) {
        const struct hearth_task *task = hearth_task_find(service, places[i].id);
        list[i] = (struct hearth_waiting_info){.request_id = task->id,
                                               .priority = task->request.priority,
                                               .tenant = task->request.tenant.id,
                                               .prompt_tokens = (uint32_t)task->prompt_tokens,
                                               .generated_tokens = task->generated,
                                               .preemptions = task->preemptions,
                                               .waited_us = task->waited_us + now_us - task->queued_us,
                                               .wait = task->wait,
                                               .held = places[i].held};
    }
    pthread_mutex_lock(&service->mutex);
    memcpy(service->waiting, list, n * sizeof *list);
    service->waiting_count = n;
    pthread_mutex_unlock(&service->mutex);
}

void hearth_service_publish(struct hearth_service *service) {
    int64_t now_us = hearth_service_now_us(service);
    struct hearth_service_stats *c = &service->counters;
    struct hearth_lane_info info[HEARTH_LANES_MAX];
    fill_counters(service);
    for (uint32_t i = 0; i < service->lanes; i++) {
        info[i] = lane_info(service, i, now_us);
        c->lanes_busy += info[i].state != HEARTH_LANE_IDLE;
    }
    pthread_mutex_lock(&service->mutex);
    c->requests_refused = service->refused;
    service->stats = *c;
    memcpy(service->lane_info, info, service->lanes * sizeof *info);
    pthread_mutex_unlock(&service->mutex);
}

/* ---- the side of other threads ---- */

void hearth_service_stats(struct hearth_service *service, struct hearth_service_stats *stats) {
    pthread_mutex_lock(&service->mutex);
    *stats = service->stats;
    stats->requests_refused = service->refused;
    pthread_mutex_unlock(&service->mutex);
}

size_t hearth_service_lanes(struct hearth_service *service, struct hearth_lane_info *lanes, size_t cap) {
    pthread_mutex_lock(&service->mutex);
    if (cap > 0) { /* else `lanes` may be NULL, which memcpy does not take */
        memcpy(lanes, service->lane_info, (service->lanes < cap ? service->lanes : cap) * sizeof *lanes);
    }
    pthread_mutex_unlock(&service->mutex);
    return service->lanes;
}

size_t hearth_service_waiting(struct hearth_service *service, struct hearth_waiting_info *waiting, size_t cap) {
    pthread_mutex_lock(&service->mutex);
    size_t n = service->waiting_count;
    if (cap > 0) {
        memcpy(waiting, service->waiting, (n < cap ? n : cap) * sizeof *waiting);
    }
    pthread_mutex_unlock(&service->mutex);
    return n;
}

bool hearth_service_full_locked(const struct hearth_service *service, const struct hearth_tenant *tenant) {
    uint32_t queue = service->params.queue;
    uint32_t free_lanes = service->lanes > service->on_lanes ? service->lanes - service->on_lanes : 0;
    if (queue == 0) {
        return false;
    }
    return tenant ? hearth_admission_full(&service->admission, tenant->id, queue, free_lanes)
                  : service->admission.taken >= (uint64_t)queue + free_lanes;
}

bool hearth_service_overloaded(struct hearth_service *service, const struct hearth_tenant *tenant,
                               uint32_t *retry_after_s) {
    pthread_mutex_lock(&service->mutex);
    bool full = hearth_service_full_locked(service, tenant);
    double wait_s = service->lane_us / service->lanes / 1e6; /* until the next request leaves its lane */
    pthread_mutex_unlock(&service->mutex);
    *retry_after_s = wait_s >= RETRY_MAX_S ? RETRY_MAX_S : 1 + (uint32_t)wait_s;
    return full;
}

void hearth_service_reserve(struct hearth_service *service, const struct hearth_tenant *tenant) {
    pthread_mutex_lock(&service->mutex);
    hearth_admission_take(&service->admission, tenant->id);
    service->announced++;
    pthread_mutex_unlock(&service->mutex);
}

void hearth_service_unreserve(struct hearth_service *service, const struct hearth_tenant *tenant) {
    pthread_mutex_lock(&service->mutex);
    hearth_admission_leave(&service->admission, tenant->id);
    service->announced--;
    pthread_cond_signal(&service->wake); /* a batch may wait for the announced request */
    pthread_mutex_unlock(&service->mutex);
}

void hearth_service_tune(struct hearth_service *service, uint32_t queue, double min_decode_tps) {
    pthread_mutex_lock(&service->mutex);
    service->params.queue = queue;
    service->params.min_decode_tps = min_decode_tps;
    pthread_mutex_unlock(&service->mutex);
}
