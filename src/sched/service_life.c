/* The service as its callers see it: submission, cancellation, counters, start and end of the thread.
 *
 * Invariants: everything above "the thread's own" in service_internal.h is accessed under the mutex. Tasks go to the
 * thread through the inbox and never come back; only their events do. */
#include "sched/service.h"

#include "base/clock.h"
#include "sched/service_internal.h"

#include <stdlib.h>

void hearth_service_params_default(struct hearth_service_params *params) {
    *params = (struct hearth_service_params){.page_tokens = 256,
                                             .cache_bytes = (size_t)1 << 30,
                                             .snapshot_interval_tokens = 8192,
                                             .backing_min_tokens = 256,
                                             .backing_interval_tokens = 8192,
                                             .draft_tokens = 8};
}

/* ---- life ---- */

static void free_service(struct hearth_service *service) {
    if (service->params.backing) {
        service->params.backing->ops->set_wake(service->params.backing, NULL, NULL);
    }
    for (uint32_t i = 0; service->cache && i < service->places; i++) {
        hearth_live_finish(service->cache, &service->lives[i]);
    }
    hearth_plan_finish(&service->plan);
    hearth_cache_destroy(service->cache);
    if (service->ram) {
        hearth_ram_destroy(service->ram);
    }
    hearth_step_destroy(service->step);
    pthread_cond_destroy(&service->wake);
    pthread_cond_destroy(&service->idle);
    pthread_mutex_destroy(&service->mutex);
    hearth_speculate_finish(service);
    free(service->items);
    hearth_buf_finish(&service->piece);
    free(service->notes);
    free(service);
}

static struct hearth_step *create_step(const struct hearth_service *service) {
    const struct hearth_step_params params = {.lanes = service->lanes,
                                              .batch_tokens = (int32_t)service->engine->caps.batch_tokens,
                                              .chunk_tokens = hearth_service_chunk(service),
                                              .ageing_tokens_per_s = 200};
    return hearth_step_create(&params);
}

/* Wakes the service's thread because the backing tier has events. */
static void on_backing_event(void *user) {
    struct hearth_service *service = user;
    pthread_mutex_lock(&service->mutex);
    service->backing_ready = true;
    pthread_cond_signal(&service->wake);
    pthread_mutex_unlock(&service->mutex);
}

int hearth_service_create(struct hearth_engine *engine, const struct hearth_service_params *params,
                          struct hearth_service **out, struct hearth_errmsg *msg) {
    *out = NULL;
    if (engine->caps.lanes == 0 || engine->caps.lanes > HEARTH_LANES_MAX) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%u lanes: 1 to %d are possible", engine->caps.lanes,
                           HEARTH_LANES_MAX);
    }
    if (params->page_tokens == 0 || params->page_tokens > engine->caps.ctx_tokens) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "a page of %u tokens does not fit a context of %u",
                           params->page_tokens, engine->caps.ctx_tokens);
    }
    struct hearth_service *service = calloc(1, sizeof *service);
    if (!service) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    service->engine = engine;
    service->params = *params;
    if (service->params.draft_tokens > HEARTH_DRAFT_MAX) {
        service->params.draft_tokens = HEARTH_DRAFT_MAX;
    }
    service->lanes = engine->caps.lanes;
    service->places = service->lanes + (engine->caps.seqs > service->lanes);
    service->inbox_tail = &service->inbox;
    service->forget_inbox_tail = &service->forget_inbox;
    service->next_id = 1;
    service->deadline_us = service->held_until_us = INT64_MAX;
    service->min_decode_tps = params->min_decode_tps;
    hearth_speculate_init(service);
    pthread_mutex_init(&service->mutex, NULL);
    hearth_clock_cond_init(&service->wake);
    hearth_clock_cond_init(&service->idle);
    service->step = create_step(service);
    int err = HEARTH_ERR_NOMEM;
    service->items = calloc(engine->caps.batch_tokens, sizeof *service->items);
    service->ram = hearth_ram_create();
    if (!service->step || !service->items || !service->ram) {
        goto fail;
    }
    struct hearth_cache_params cache_params = {.page_tokens = (int32_t)params->page_tokens,
                                               .budget_bytes = params->cache_bytes,
                                               .snapshot_bytes = params->snapshot_bytes,
                                               .share = params->cache_share,
                                               .policy = params->policy,
                                               .backing = params->backing,
                                               .backing_min_tokens = (int32_t)params->backing_min_tokens,
                                               .observer = params->observer};
    err = hearth_cache_create(engine, service->ram, &cache_params, &service->cache, msg);
    if (err) {
        goto fail;
    }
    if (params->backing) {
        params->backing->ops->set_wake(params->backing, on_backing_event, service);
    }
    for (uint32_t i = 0; i < service->places; i++) {
        hearth_live_init(&service->lives[i], (int32_t)i);
        service->live_list[i] = &service->lives[i];
    }
    if (pthread_create(&service->thread, NULL, hearth_service_run, service) != 0) {
        err = hearth_fail(msg, HEARTH_ERR_NOMEM, "could not start the service's thread");
        goto fail;
    }
    *out = service;
    return HEARTH_OK;
fail:
    free_service(service);
    return err;
}

void hearth_service_destroy(struct hearth_service *service) {
    if (!service) {
        return;
    }
    pthread_mutex_lock(&service->mutex);
    service->stopping = service->draining = true;
    pthread_cond_signal(&service->wake);
    pthread_mutex_unlock(&service->mutex);
    pthread_join(service->thread, NULL);
    hearth_cache_save(service->cache);
    free_service(service);
}

/* ---- requests ---- */

static int check_tokens(const struct hearth_caps *caps, const char *what, const hearth_token *tokens, size_t count,
                        struct hearth_errmsg *msg) {
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= caps->vocab_tokens) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "token %d at position %zu of %s is not in the vocabulary of %u",
                               tokens[i], i, what, caps->vocab_tokens);
        }
    }
    return HEARTH_OK;
}

/* Every list of tokens that a request points to. */
static int check_lists(const struct hearth_caps *caps, const struct hearth_request *request,
                       struct hearth_errmsg *msg) {
    static const struct hearth_thinking no_thinking;
    static const struct hearth_grammar no_grammar;
    const struct hearth_thinking *thinking = request->thinking ? request->thinking : &no_thinking;
    const struct hearth_grammar *grammar = request->sampling.grammar ? request->sampling.grammar : &no_grammar;
    const struct {
        const char *what;
        const hearth_token *tokens;
        size_t count;
    } lists[] = {{"the prompt", request->prompt, request->prompt_tokens},
                 {"the script", request->script, request->script_count},
                 {"the printed tokens", request->printed, request->printed_count},
                 {"the start of reasoning", thinking->start, thinking->start_count},
                 {"the generation prompt", thinking->prefill, thinking->prefill_count},
                 {"the forced end of reasoning", thinking->forced, thinking->forced_count},
                 {"the grammar's triggers", grammar->tokens, grammar->token_count},
                 {"the grammar's beginning", grammar->prefill, grammar->prefill_count}};
    int err = HEARTH_OK;
    for (size_t i = 0; i < sizeof lists / sizeof *lists && !err; i++) {
        err = check_tokens(caps, lists[i].what, lists[i].tokens, lists[i].count, msg);
    }
    for (size_t i = 0; i < thinking->end_count && !err; i++) {
        err = check_tokens(caps, "an end of reasoning", thinking->ends[i], thinking->end_counts[i], msg);
    }
    return err;
}

static int check_class(const struct hearth_request *request, struct hearth_errmsg *msg) {
    if (request->priority > HEARTH_CLASS_PREFETCH) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "there is no class of requests number %d", (int)request->priority);
    }
    if (request->priority == HEARTH_CLASS_PREFETCH && request->max_tokens != 0) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "a warm request generates nothing, not %d tokens",
                           request->max_tokens);
    }
    if (request->pin_count > HEARTH_PINS_MAX) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "at most %d pins", HEARTH_PINS_MAX);
    }
    for (size_t i = 0; i < request->pin_count; i++) {
        const struct hearth_pin *pin = &request->pins[i];
        if (pin->position <= (i > 0 ? request->pins[i - 1].position : 0) ||
            (size_t)pin->position > request->prompt_tokens || pin->ttl_us <= 0) {
            return hearth_fail(msg, HEARTH_ERR_INVALID,
                               "pins ascend, lie in the prompt and last for some time: not %d for %lld us",
                               pin->position, (long long)pin->ttl_us);
        }
    }
    return HEARTH_OK;
}

static int check_request(const struct hearth_service *service, const struct hearth_request *request,
                         struct hearth_errmsg *msg) {
    const struct hearth_caps *caps = &service->engine->caps;
    if (request->prompt_tokens == 0) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "the prompt is empty");
    }
    if (request->prompt_tokens >= caps->ctx_tokens) {
        return hearth_fail(msg, HEARTH_ERR_TOO_LONG,
                           "the prompt has %zu tokens, but the context holds %u and a reply needs at least one",
                           request->prompt_tokens, caps->ctx_tokens);
    }
    int err = check_class(request, msg);
    err = err ? err : check_lists(caps, request, msg);
    if (err) {
        return err;
    }
    for (size_t i = 0; i < request->stop_count; i++) {
        if (request->stops[i][0] == '\0') {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "a stop string is empty");
        }
    }
    if (request->sampling.logprobs > HEARTH_LOGPROBS_MAX) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "at most %d logprobs per token", HEARTH_LOGPROBS_MAX);
    }
    return HEARTH_OK;
}

/* Prefetches have as many slots, but of their own, so they keep no other request out once they are read (an announced
 * request may be of any class). Under the mutex. */
static bool prefetches_full(const struct hearth_service *service) {
    return service->params.queue > 0 && service->prefetches >= service->params.queue;
}

int64_t hearth_service_submit(struct hearth_service *service, const struct hearth_request *request,
                              struct hearth_errmsg *msg) {
    int err = check_request(service, request, msg);
    if (err) {
        return err;
    }
    struct hearth_task *task = hearth_task_create(service, request);
    if (!task) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    task->submitted_us = hearth_service_now_us(service);
    task->deadline_us = request->deadline_us > 0 ? task->submitted_us + request->deadline_us : 0;
    bool prefetch = hearth_task_is_prefetch(task);
    pthread_mutex_lock(&service->mutex);
    bool has_slot = request->joins || (!prefetch && request->reserved);
    bool full = !has_slot && !request->idle &&
                (prefetch ? prefetches_full(service) : hearth_service_full_locked(service, &request->tenant));
    if (service->draining || full) {
        bool draining = service->draining;
        uint32_t waiting = prefetch ? service->prefetches : service->admission.taken;
        service->refused += !draining;
        pthread_mutex_unlock(&service->mutex);
        hearth_task_destroy(service, task);
        if (draining) {
            return hearth_fail(msg, HEARTH_ERR_BUSY, "the server is shutting down");
        }
        return hearth_fail(msg, HEARTH_ERR_OVERLOADED, "%u requests wait already", waiting);
    }
    int64_t id = task->id = service->next_id++;
    service->prefetches += prefetch && !request->idle;
    service->announced -= request->reserved;
    task->in_admission = !prefetch;
    if (!prefetch && !request->reserved) {
        hearth_admission_take(&service->admission, request->tenant.id);
    } else if (prefetch && request->reserved) {
        hearth_admission_leave(&service->admission, request->tenant.id);
    }
    *service->inbox_tail = task;
    service->inbox_tail = &task->next;
    service->active++;
    pthread_cond_signal(&service->wake);
    pthread_mutex_unlock(&service->mutex);
    return id;
}

/* Leaves a note for the thread. Out of memory, a conversation is not expected, which costs only time, or a request is
 * not cancelled. */
static void leave_note(struct hearth_service *service, struct hearth_note note) {
    pthread_mutex_lock(&service->mutex);
    if (HEARTH_BUF_ROOM(service->notes, service->note_count, service->note_cap)) {
        service->notes[service->note_count++] = note;
    }
    pthread_cond_signal(&service->wake);
    pthread_mutex_unlock(&service->mutex);
}

void hearth_service_cancel(struct hearth_service *service, int64_t id) {
    leave_note(service, (struct hearth_note){.id = id});
}

void hearth_service_expect(struct hearth_service *service, int64_t id, int64_t within_us) {
    if (id > 0 && within_us > 0) {
        leave_note(service, (struct hearth_note){id, within_us});
    }
}

void hearth_service_drain(struct hearth_service *service, int64_t grace_us) {
    const int64_t until_us = hearth_clock_us() + grace_us;
    pthread_mutex_lock(&service->mutex);
    service->draining = service->cancel_prefetches = true;
    pthread_cond_signal(&service->wake);
    while (service->active > 0 && hearth_clock_cond_wait(&service->idle, &service->mutex, until_us)) {
    }
    if (service->active > 0) {
        service->cancel_all = true;
        pthread_cond_signal(&service->wake);
        while (service->active > 0) {
            pthread_cond_wait(&service->idle, &service->mutex);
        }
    }
    pthread_mutex_unlock(&service->mutex);
}
