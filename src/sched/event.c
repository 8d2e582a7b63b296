/* Events for the caller of a request, and the words that they use. */
#include "base/assert.h"
#include "sched/service_internal.h"

#include <stdlib.h>

const char *hearth_finish_text(enum hearth_finish finish) {
    static const char *const texts[] = {
#define X(name, text) [HEARTH_FINISH_##name] = text,
        HEARTH_FINISH_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)finish < sizeof texts / sizeof *texts);
    return texts[finish];
}

const char *hearth_class_text(enum hearth_class priority) {
    static const char *const texts[] = {
#define X(name, text, patience) [HEARTH_CLASS_##name] = text,
        HEARTH_CLASS_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)priority < sizeof texts / sizeof *texts);
    return texts[priority];
}

const char *hearth_lane_state_text(enum hearth_lane_state state) {
    static const char *const texts[] = {
#define X(name, text) [HEARTH_LANE_##name] = text,
        HEARTH_LANE_STATE_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)state < sizeof texts / sizeof *texts);
    return texts[state];
}

void hearth_event_destroy(struct hearth_event *event) {
    if (!event) {
        return;
    }
    hearth_buf_finish(&event->text);
    free(event->sampled);
    free(event->stop_string);
    free(event);
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

void hearth_task_progress(struct hearth_service *service, struct hearth_task *task) {
    size_t there = service->lives[task->lane].tokens.n;
    if (!task->request.progress || task->prefilled) {
        return;
    }
    struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_PROGRESS);
    if (!event) {
        return; /* out of memory: the next event tells the progress */
    }
    event->receipt.prefill_us = hearth_service_now_us(service) - task->started_us;
    event->prefilled_tokens = (uint32_t)(there < task->prompt_tokens ? there : task->prompt_tokens);
    task->request.deliver(task->request.user, event);
}
