/* Splits the time that a task spends without a lane by what the task waits for.
 *
 * A task waits for one thing at a time: first for a lane, or to come back after a preemption; then for the thing that
 * it is held for. If all lanes become busy while it is held, it waits for a lane from then on.
 *
 * Invariant: the time until wait_since_us of a task without a lane has been counted. */
#include "sched/service_internal.h"

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
