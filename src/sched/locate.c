/* Answers a request that only asks where the state of its prompt is and what bringing it back would cost. It is
 * answered as soon as the service takes it, between two batches. It takes no lane, waits for none, and does not count
 * as a use of the state. */
#include "sched/service_internal.h"

void hearth_task_locate(struct hearth_service *service, struct hearth_task *task) {
    struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_DONE);
    /* The next turn comes behind the whole prompt, so all of the prompt can be reused: one token more, found in no
     * prompt. */
    if (!event || !hearth_tokens_push(&task->tokens, -1)) {
        hearth_event_destroy(event);
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
        return;
    }
    const struct hearth_cache_prompt prompt = {
        .tokens = task->tokens.v, .n = task->tokens.n, .salt = task->request.salt};
    struct hearth_cache_location location;
    hearth_cache_locate(service->cache, &prompt, (const struct hearth_live *const *)service->live_list,
                        hearth_service_lives(service), &location);
    event->receipt = (struct hearth_receipt){.prompt_tokens = (uint32_t)task->prompt_tokens,
                                             .reused_live_tokens = (uint32_t)location.live_tokens,
                                             .reused_ram_tokens = (uint32_t)location.ram_tokens,
                                             .reused_disk_tokens = (uint32_t)location.disk_tokens,
                                             .reused_remote_tokens = (uint32_t)location.remote_tokens,
                                             .computed_tokens = (uint32_t)location.computed_tokens - 1,
                                             .restore_us = location.restore_us,
                                             .prefill_us = location.computed_tokens > 1 ? location.compute_us : 0,
                                             .read_bytes = location.read_bytes};
    event->finish = HEARTH_FINISH_LENGTH;
    hearth_task_end(service, task, event);
}
