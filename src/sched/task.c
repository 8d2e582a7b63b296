/* Tasks: a request from its arrival to its last event.
 *
 * Deadlines go by the engine's clock. While the thread sleeps the clock of sim stands still: there the time that was
 * slept counts.
 *
 * Invariant: a task in `tasks` has delivered no final event yet. */
#include "sched/service_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- a request of its own ----
 *
 * One walk over all that a request points to runs twice: first to count the bytes, then to copy them. The first (base
 * NULL) writes nothing and returns every pointer unchanged. */

/* The block into which the pointed-to structs are copied. */
struct copy_block {
    char *base;
    size_t used;
};

static void *put(struct copy_block *block, const void *bytes, size_t len) {
    size_t at = block->used;
    block->used += (len + 15) / 16 * 16;
    if (!block->base || len == 0) {
        return (void *)bytes;
    }
    return memcpy(block->base + at, bytes, len);
}

static const hearth_token *put_tokens(struct copy_block *block, const hearth_token *tokens, size_t count) {
    return put(block, tokens, count * sizeof *tokens);
}

static const char *put_text(struct copy_block *block, const char *text) {
    return text ? put(block, text, strlen(text) + 1) : NULL;
}

static const char *const *put_texts(struct copy_block *block, const char *const *texts, size_t count) {
    const char **copy = put(block, texts, count * sizeof *texts);
    for (size_t i = 0; i < count; i++) {
        const char *text = put_text(block, texts[i]);
        if (block->base) {
            copy[i] = text;
        }
    }
    return copy;
}

static const struct hearth_grammar *put_grammar(struct copy_block *block, const struct hearth_grammar *grammar) {
    if (!grammar) {
        return NULL;
    }
    struct hearth_grammar copy = *grammar;
    copy.text = put_text(block, grammar->text);
    copy.patterns = put_texts(block, grammar->patterns, grammar->pattern_count);
    copy.tokens = put_tokens(block, grammar->tokens, grammar->token_count);
    copy.prefill = put_tokens(block, grammar->prefill, grammar->prefill_count);
    struct hearth_grammar *put_copy = put(block, grammar, sizeof *grammar);
    if (block->base) {
        *put_copy = copy;
    }
    return put_copy;
}

static const struct hearth_thinking *put_thinking(struct copy_block *block, const struct hearth_thinking *thinking) {
    if (!thinking) {
        return NULL;
    }
    struct hearth_thinking copy = *thinking;
    copy.start = put_tokens(block, thinking->start, thinking->start_count);
    copy.prefill = put_tokens(block, thinking->prefill, thinking->prefill_count);
    copy.forced = put_tokens(block, thinking->forced, thinking->forced_count);
    copy.end_counts = put(block, thinking->end_counts, thinking->end_count * sizeof *thinking->end_counts);
    const hearth_token **ends = put(block, thinking->ends, thinking->end_count * sizeof *ends);
    for (size_t i = 0; i < thinking->end_count; i++) {
        const hearth_token *end = put_tokens(block, thinking->ends[i], thinking->end_counts[i]);
        if (block->base) {
            ends[i] = end;
        }
    }
    copy.ends = ends;
    struct hearth_thinking *put_copy = put(block, thinking, sizeof *thinking);
    if (block->base) {
        *put_copy = copy;
    }
    return put_copy;
}

static struct hearth_request walk(struct copy_block *block, const struct hearth_request *request) {
    struct hearth_request copy = *request;
    copy.prompt = NULL;
    copy.marks = NULL;
    copy.pins = NULL;
    copy.prompt_tokens = copy.mark_count = 0;
    copy.stops = put_texts(block, request->stops, request->stop_count);
    copy.sampling.logit_bias =
        put(block, request->sampling.logit_bias, request->sampling.logit_biases * sizeof *request->sampling.logit_bias);
    copy.sampling.grammar = put_grammar(block, request->sampling.grammar);
    copy.printed = put_tokens(block, request->printed, request->printed_count);
    copy.script = put_tokens(block, request->script, request->script_count);
    copy.thinking = put_thinking(block, request->thinking);
    return copy;
}

/* Copies a request into `*copy`. Its pointers lead into one block, which is returned: the caller frees that with
 * free(). Prompt, marks and pins are left out (NULL in the copy). NULL: out of memory. */
static void *copy_request(const struct hearth_request *request, struct hearth_request *copy) {
    struct copy_block block = {0};
    (void)walk(&block, request);
    block.base = malloc(block.used + 1);
    if (!block.base) {
        return NULL;
    }
    block.used = 0;
    *copy = walk(&block, request);
    return block.base;
}

/* ---- life ---- */

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
        !(task->block = copy_request(request, &task->request)) || !(task->failure = calloc(1, sizeof *task->failure))) {
        hearth_task_destroy(service, task);
        return NULL;
    }
    task->prompt_tokens = request->prompt_tokens;
    task->reply = (struct hearth_reply){.stops = task->request.stops, .stop_count = task->request.stop_count};
    for (size_t i = 0; i < request->mark_count && task->mark_count < HEARTH_MARKS_MAX; i++) {
        task->marks[task->mark_count++] = request->marks[i];
    }
    for (; task->pin_count < request->pin_count; task->pin_count++) {
        task->pins[task->pin_count] = request->pins[task->pin_count];
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

/* Answers as soon as the service takes the request, between two batches. It takes no lane, waits for none, and does not
 * count as a use of the state. */
void hearth_task_locate(struct hearth_service *service, struct hearth_task *task) {
    struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_DONE);
    /* The next turn comes behind the whole prompt, so all of the prompt can be reused: one token more, found in no
     * prompt. */
    if (!event || !hearth_tokens_push(&task->tokens, -1)) {
        hearth_event_destroy(event);
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
        return;
    }
    const struct hearth_cache_prompt prompt = hearth_task_prompt(task);
    struct hearth_cache_location location;
    hearth_cache_locate(service->cache, &prompt, hearth_service_live_list(service), hearth_service_lives(service),
                        &location);
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
    event->receipt.ended_us = hearth_service_now_us(service);
    service->counters.requests_done++;
    if (task->lane >= 0) {
        event->receipt.end_tokens = (uint32_t)service->lives[task->lane].tokens.n;
        hearth_lane_leave(service, task);
    } else {
        hearth_step_withdraw(service->step, task->id);
    }
    hearth_task_end(service, task, event);
}

void hearth_service_expire(struct hearth_service *service) {
    const int64_t now_us = hearth_service_slept_us(service);
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
