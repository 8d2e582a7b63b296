/* Tells the step what it needs to decide: the speed of the machine, the needs of waiting requests, which state can be
 * kept. */
#include "sched/service_internal.h"

/* Tokens a second that a generating lane gets beside prompts. With fewer, a reader would see the reply stand still;
 * with more, long prompts would be cut into pieces that take longer in all. */
#define DECODE_TPS 2.0

/* Counts tokens that a lane has computed in idle time. */
static void count_idle(struct hearth_service *service, int lane, int32_t tokens, double each_us) {
    if (service->on_lane[lane] && hearth_task_is_idle(service->on_lane[lane])) {
        service->counters.idle_tokens += (uint64_t)tokens;
        service->counters.idle_us += (uint64_t)(tokens * each_us);
    }
}

/* Notes how much of a batch of `all` tokens was computed for the task and how much for others. In a batch with
 * decoding, the time of a prompt token is only an estimate, so `best_us` ignores it. */
static void note_beside(const struct hearth_service *service, struct hearth_task *task, int32_t share, int32_t all,
                        bool decodes, double each_us, int64_t us) {
    struct hearth_receipt *receipt = &task->receipt;
    const double own_us = share * each_us;
    if (!task->prefilled) {
        const int64_t thousand_us = (int64_t)(each_us * 1000);
        receipt->beside_us += own_us < (double)us ? us - (int64_t)own_us : 0;
        if (share > 0 && !decodes && (receipt->best_us == 0 || thousand_us < receipt->best_us)) {
            receipt->best_us = thousand_us;
        }
        return;
    }
    /* A single batch takes more or less time than the average: differences of both signs are added, so that they even
     * out. */
    const double alone_us = share > 0 && share < all ? hearth_pace_decode_us(&service->pace, share) : -1;
    receipt->reply_beside_us += alone_us >= 0 ? us - (int64_t)alone_us : 0;
}

void hearth_service_charge(struct hearth_service *service, const int32_t *shares, int32_t decode_tokens,
                           int32_t prefill_tokens, int64_t us) {
    double decode_us, prefill_us;
    hearth_pace_learn(&service->pace, decode_tokens, prefill_tokens, us);
    hearth_pace_split(&service->pace, decode_tokens, prefill_tokens, us, &decode_us, &prefill_us);
    for (uint32_t i = 0; i < service->lanes; i++) {
        bool prefills = hearth_step_lane(service->step, (int)i)->state == HEARTH_LANE_PREFILL;
        if (service->on_lane[i]) {
            note_beside(service, service->on_lane[i], shares[i], decode_tokens + prefill_tokens, decode_tokens > 0,
                        prefills ? prefill_us : decode_us, us);
        }
        if (shares[i] > 0) {
            hearth_step_charge(service->step, (int)i, shares[i] * (prefills ? prefill_us : decode_us));
            count_idle(service, (int)i, shares[i], prefill_us);
        }
    }
}

/* Tells the step the measured speeds. If no rate was asked for, each decoding lane gets DECODE_TPS, except beside a
 * burst of short prompts. */
static void tell_speeds(struct hearth_service *service) {
    const struct hearth_pace *pace = &service->pace;
    int32_t chunk = hearth_service_chunk(service), decoding = 0;
    double tps = service->min_decode_tps;
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_step_lane *lane = hearth_step_lane(service->step, (int)i);
        if (lane->state == HEARTH_LANE_DECODE) {
            decoding += lane->due;
        }
    }
    const struct hearth_step_sizes sizes = {.beside_tokens =
                                                hearth_pace_beside(pace, decoding, tps > 0 ? tps : DECODE_TPS, chunk),
                                            .alone_tokens = hearth_pace_alone(pace, chunk),
                                            .prefetch_chunk_tokens = hearth_pace_prefetch_beside(pace),
                                            .prefetch_alone_tokens = hearth_pace_prefetch_alone(pace, chunk),
                                            .idle_tokens = hearth_pace_idle(pace, chunk),
                                            .bursts = tps <= 0,
                                            .prefill_us = hearth_pace_prefill_us(pace)};
    hearth_step_resize(service->step, &sizes);
}

/* Whether RAM would keep the task's state beside everything else. */
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

/* Tells the step what to capture on the way. While every lane is busy, one may be preempted, so whole pages of long
 * prompts are captured during the prefill. A short prompt is captured as a whole no slower than a batch is computed. */
static void tell_lanes(struct hearth_service *service, bool all_busy) {
    int32_t page = (int32_t)service->params.page_tokens;
    bool pages = hearth_caps_has_pages(&service->engine->caps);
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_task *task = service->on_lane[i];
        const struct hearth_step_lane *lane = hearth_step_lane(service->step, (int)i);
        bool not_preemptible = task && !can_wait(service, task);
        hearth_step_set_not_preemptible(service->step, (int)i, not_preemptible);
        if (hearth_step_is_long(lane) && !not_preemptible && pages && !lane->capture && all_busy) {
            hearth_step_pending(service->step, (int)i, lane->computed - 1 - task->ahead >= page);
        }
    }
}

/* Estimates the prefill of waiting requests: unknown prompts first, then round-robin, one a batch. */
static void tell_needs(struct hearth_service *service) {
    const uint64_t steps = service->counters.steps;
    bool unknown;
    int64_t id = hearth_step_unestimated(service->step, steps, &unknown);
    if (!unknown && service->estimated == steps) {
        return;
    }
    service->estimated = steps;
    const struct hearth_task *task = hearth_task_find(service, id);
    struct hearth_cache_prompt prompt = hearth_task_prompt(task);
    prompt.cache_off = task->request.cache_off;
    hearth_step_need(
        service->step, id,
        hearth_cache_peek(service->cache, &prompt, hearth_service_live_list(service), hearth_service_lives(service)));
}

void hearth_service_prepare(struct hearth_service *service) {
    bool all_busy = true, victim;
    const bool cells = hearth_step_lacks_cells(service->step, hearth_service_now_us(service), &victim);
    tell_speeds(service);
    if (victim && service->estimated != service->counters.steps) { /* a right that came with time: once a batch */
        hearth_step_changed(service->step);
    }
    for (uint32_t i = 0; i < service->lanes; i++) {
        all_busy = all_busy && service->on_lane[i];
    }
    if (hearth_step_queued(service->step) > 0 || all_busy) {
        tell_lanes(service, all_busy);
    }
    if (hearth_step_queued(service->step) > 0 && (all_busy || cells)) {
        tell_needs(service);
    }
}
