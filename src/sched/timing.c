/* Measures where the time goes: that of the service's thread, and that of tasks without a lane.
 *
 * Two clocks. The engine's own clock, which is virtual in tests so that traces repeat, measures what the engine
 * does. sample_us and sched_us are the service's own work, which no engine's clock sees, and are always real time.
 * sched_us is the rest of a turn of the loop without decoding, sampling, restoring, capturing and sleeping.
 *
 * A task without a lane waits for one thing at a time: first for a lane, or to come back after a preemption; then for
 * the thing that it is held for. If all lanes become busy while it is held, it waits for a lane from then on.
 *
 * Invariant: the time until wait_since_us of a task without a lane has been counted. */
#include "base/clock.h"
#include "base/spans.h"
#include "sched/service_internal.h"

#include <sys/resource.h>

#define CAPTURE_SPAN_US 20 /* shorter captures had nothing to do */

void hearth_service_batch_spans(const struct hearth_service *service, const int32_t *shares, size_t tokens,
                                int64_t begun_us, int64_t ended_us) {
    struct hearth_span span = {.track = HEARTH_TRACK_SERVICE,
                               .name = "batch",
                               .begun_us = begun_us,
                               .ended_us = ended_us,
                               .args = {{"tokens", (int64_t)tokens}}};
    hearth_span_put(&span);
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (shares[i] > 0) {
            const bool prefills = hearth_step_lane(service->step, (int)i)->state == HEARTH_LANE_PREFILL;
            span.track = HEARTH_TRACK_LANES + (int)i;
            span.name = prefills ? "prefill" : "decode";
            span.args[0].value = shares[i];
            hearth_span_put(&span);
        }
    }
}

void hearth_service_restore_span(int lane, const struct hearth_restore *restored, int64_t begun_us) {
    if (!hearth_spans_on() || restored->us <= 0) {
        return;
    }
    hearth_span_put(&(struct hearth_span){.track = HEARTH_TRACK_LANES + lane,
                                          .name = "restore",
                                          .begun_us = begun_us,
                                          .ended_us = hearth_clock_us(),
                                          .args = {{"live", (int64_t)restored->live_tokens},
                                                   {"ram", (int64_t)restored->ram_tokens},
                                                   {"disk", (int64_t)restored->disk_tokens},
                                                   {"remote", (int64_t)restored->remote_tokens}}});
}

void hearth_service_lane_span(const struct hearth_task *task) {
    hearth_span_put(&(struct hearth_span){.track = HEARTH_TRACK_LANES + task->lane,
                                          .name = "request",
                                          .begun_us = task->lane_us,
                                          .ended_us = hearth_clock_us(),
                                          .args = {{"task", task->id}, {"tokens", (int64_t)task->tokens.n}}});
}

int64_t hearth_service_faults(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_majflt : 0;
}

void hearth_service_sampled(struct hearth_service *service, int64_t real_us) {
    int64_t us = hearth_clock_us() - real_us;
    service->counters.sample_us += (uint64_t)us;
    service->told_us += us;
}

void hearth_service_captured(struct hearth_service *service, int64_t start_us, int64_t real_us) {
    const int64_t now_us = hearth_clock_us();
    service->counters.capture_us += (uint64_t)(hearth_service_now_us(service) - start_us);
    service->told_us += now_us - real_us;
    if (hearth_spans_on() && now_us - real_us >= CAPTURE_SPAN_US) {
        hearth_span_put(&(struct hearth_span){
            .track = HEARTH_TRACK_SERVICE, .name = "capture", .begun_us = real_us, .ended_us = now_us});
    }
}

void hearth_service_worked(struct hearth_service *service, int64_t real_us) {
    int64_t us = hearth_clock_us() - real_us - service->told_us;
    service->counters.sched_us += us > 0 ? (uint64_t)us : 0;
    service->told_us = 0;
}

/* ---- waiting ---- */

void hearth_task_wait(struct hearth_service *service, struct hearth_task *task, enum hearth_wait wait, int64_t now_us) {
    const int64_t us = now_us - task->wait_since_us;
    if (task->waits && us > 0) {
        task->receipt.wait_us[task->wait] += us;
        task->receipt.queue_us += task->prefilled ? 0 : us;
    }
    task->waits = true;
    task->wait = wait;
    task->wait_since_us = now_us;
    if (wait == HEARTH_WAIT_CELLS) {
        size_t cells = task->tokens.n;
        for (uint32_t i = 0; i < service->lanes; i++) {
            cells += service->on_lane[i] ? service->on_lane[i]->tokens.n : 0;
        }
        task->receipt.cells_needed = cells > task->receipt.cells_needed ? (uint32_t)cells : task->receipt.cells_needed;
    }
}

void hearth_task_waited(struct hearth_service *service, struct hearth_task *task, int64_t now_us) {
    if (task->waits) {
        hearth_task_wait(service, task, task->wait, now_us);
        task->waits = false;
    }
}

void hearth_service_lanes_taken(struct hearth_service *service, int64_t now_us) {
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (!service->on_lane[i]) {
            return;
        }
    }
    for (struct hearth_task *task = service->tasks; task; task = task->next) {
        if (task->waits && (task->wait == HEARTH_WAIT_PREFIX || task->wait == HEARTH_WAIT_DISK)) {
            hearth_task_wait(service, task, HEARTH_WAIT_LANE, now_us);
        }
    }
}
