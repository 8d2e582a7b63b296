/* Computing: one batch for all lanes, then a token for each lane whose logits came out.
 *
 * Invariants: a lane's task holds one token more than its sequence while it generates (the one sampled last); a task
 * ends at an end token, a stop string, max_tokens, or when the context is full, whichever comes first. */
#include "base/assert.h"
#include "base/log.h"
#include "sched/service_internal.h"

#include <stdlib.h>
#include <string.h>

static struct hearth_task *lane_task(struct hearth_service *service, uint32_t lane) {
    struct hearth_task *task = hearth_task_find(service, service->step.lanes[lane].id);
    HEARTH_ASSERT(task && task->lane == (int)lane);
    return task;
}

/* ---- ends ---- */

/* Delivers the last event. `event` carries what came with the last token. */
static void finish_task(struct hearth_service *service, struct hearth_task *task, struct hearth_event *event,
                       enum hearth_finish finish, const char *stop) {
    bool ok = hearth_reply_flush(&task->reply, &event->text);
    if (ok && stop) {
        event->stop_string = strdup(stop);
        ok = event->stop_string != NULL;
    }
    if (!ok) {
        hearth_event_destroy(event);
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
        return;
    }
    event->type = HEARTH_EVENT_DONE;
    event->finish = finish;
    event->receipt = task->receipt;
    event->generated_tokens = task->generated;
    event->generate_us = task->last_us - task->first_us;
    service->counters.requests_done++;
    hearth_lane_leave(service, task);
    hearth_task_end(service, task, event);
}

/* ---- tokens ---- */

/* Adds the token's text to the reply; `*stop` as hearth_reply_feed. */
static bool feed_text(struct hearth_service *service, struct hearth_task *task, hearth_token token,
                      struct hearth_buf *out, const char **stop) {
    struct hearth_engine *engine = service->engine;
    char small[64];
    size_t len = engine->ops->token_text(engine, token, task->special_text, small, sizeof small);
    if (len <= sizeof small)
        return hearth_reply_feed(&task->reply, small, len, out, stop);
    char *large = malloc(len);
    bool ok = large != NULL;
    if (ok) {
        (void)engine->ops->token_text(engine, token, task->special_text, large, len);
        ok = hearth_reply_feed(&task->reply, large, len, out, stop);
    }
    free(large);
    return ok;
}

/* An event with the sampled token in it; NULL: out of memory. */
static struct hearth_event *token_event(struct hearth_service *service, struct hearth_task *task, size_t index) {
    struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_TEXT);
    if (!event)
        return NULL;
    event->sampled = calloc(1, sizeof *event->sampled);
    if (!event->sampled) {
        hearth_event_destroy(event);
        return NULL;
    }
    event->sampled_count = 1;
    event->sampled[0].token =
        service->engine->ops->sample(service->engine, task->sampler, index,
                                     task->sampling.logprobs >= 0 ? &event->sampled[0].logprobs : NULL);
    return event;
}

/* The prompt is computed. */
static bool deliver_prefilled(struct hearth_service *service, struct hearth_task *task) {
    task->prefilled = true;
    task->first_us = task->last_us = hearth_service_now_us(service);
    task->receipt.prefill_us = task->first_us - task->started_us;
    struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_PREFILLED);
    if (!event)
        return false;
    task->deliver(task->user, event);
    return true;
}

/* Samples the next token of a lane and sends it on. Returns true while the task goes on. */
static bool advance(struct hearth_service *service, struct hearth_task *task, size_t index) {
    bool ok = task->prefilled || deliver_prefilled(service, task);
    if (ok && task->max_tokens == 0) {
        struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_DONE);
        if (event) {
            finish_task(service, task, event, HEARTH_FINISH_LENGTH, NULL);
            return false;
        }
        ok = false;
    }
    struct hearth_event *event = ok ? token_event(service, task, index) : NULL;
    if (!event) {
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
        return false;
    }
    hearth_token token = event->sampled[0].token;
    const char *stop = NULL;
    task->generated++;
    service->counters.generated_tokens++;
    task->last_us = hearth_service_now_us(service);
    if (service->engine->ops->token_is_end(service->engine, token)) {
        finish_task(service, task, event, HEARTH_FINISH_STOP, NULL);
        return false;
    }
    if (!hearth_tokens_push(&task->tokens, token) || !feed_text(service, task, token, &event->text, &stop)) {
        hearth_event_destroy(event);
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
        return false;
    }
    bool full = task->tokens.n >= service->engine->caps.ctx_tokens;
    if (stop || full || (task->max_tokens > 0 && task->generated >= (uint32_t)task->max_tokens)) {
        finish_task(service, task, event, stop ? HEARTH_FINISH_STOP : HEARTH_FINISH_LENGTH, stop);
        return false;
    }
    task->deliver(task->user, event);
    return true;
}

/* ---- batches ---- */

struct batch {
    const int32_t *shares;
    size_t n;
    size_t output[HEARTH_LANES_MAX]; /* item whose logits belong to the lane */
    bool has_output[HEARTH_LANES_MAX];
    int32_t prefill_tokens;
};

static void build_batch(struct hearth_service *service, struct batch *batch) {
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_step_lane *lane = &service->step.lanes[i];
        if (batch->shares[i] == 0)
            continue;
        const struct hearth_task *task = lane_task(service, i);
        int32_t end = lane->computed + batch->shares[i];
        batch->has_output[i] = (size_t)end == task->tokens.n;
        for (int32_t pos = lane->computed; pos < end; pos++)
            service->items[batch->n++] = (struct hearth_batch_item){
                .token = task->tokens.v[pos],
                .seq = (int32_t)i,
                .pos = pos,
                .output = (size_t)pos + 1 == task->tokens.n,
            };
        batch->output[i] = batch->n - 1;
        if (lane->state == HEARTH_LANE_PREFILL)
            batch->prefill_tokens += batch->shares[i];
    }
}

/* The busy lane that arrived last; it is the one to set aside, so that the oldest always gets on. */
static struct hearth_task *youngest_task(struct hearth_service *service, int *busy) {
    struct hearth_task *youngest = NULL;
    *busy = 0;
    for (struct hearth_task *task = service->tasks; task; task = task->next) {
        if (task->lane < 0)
            continue;
        ++*busy;
        if (!youngest || task->id > youngest->id)
            youngest = task;
    }
    return youngest;
}

/* The KV cache is full: an idle lane is emptied, else the youngest request is set aside, its state captured, and
 * continues when another has ended. */
static void relieve(struct hearth_service *service) {
    if (hearth_lane_make_room(service, -1))
        return;
    int busy;
    struct hearth_task *task = youngest_task(service, &busy);
    HEARTH_ASSERT(task);
    if (busy == 1) {
        hearth_task_fail(service, task, HEARTH_ERR_NO_CELLS, "the KV cache has no room for this request alone");
        return;
    }
    int lane = task->lane;
    int64_t arrived_us = service->step.lanes[lane].arrived_us;
    hearth_lane_leave(service, task);
    hearth_lane_capture(service, lane);
    hearth_live_clear(service->cache, &service->lives[lane]);
    service->counters.preemptions++;
    task->waits_for_ended = service->ended + 1;
    if (!hearth_step_submit(&service->step, task->id, arrived_us, (int32_t)task->tokens.n, true))
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
}

static void fail_batch(struct hearth_service *service, const struct batch *batch, int err) {
    hearth_log(HEARTH_LOG_ERROR, "computing a batch of %zu tokens failed: %s", batch->n, hearth_err_text(err));
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (batch->shares[i] == 0)
            continue;
        struct hearth_task *task = lane_task(service, i);
        hearth_live_clear(service->cache, &service->lives[i]);
        hearth_task_fail(service, task, HEARTH_ERR_ENGINE, "the engine failed while computing this request");
    }
}

static enum hearth_snapshot_kind mark_kind(const struct hearth_service *service, const struct hearth_task *task,
                                           int32_t pos) {
    for (size_t i = 0; i < task->mark_count; i++)
        if (task->marks[i] == pos)
            return HEARTH_SNAPSHOT_MARK;
    int32_t every = (int32_t)service->params.snapshot_interval_tokens;
    return every > 0 && pos % every == 0 ? HEARTH_SNAPSHOT_INTERVAL : HEARTH_SNAPSHOT_DIVERGENCE;
}

/* Books one lane's share: its sequence holds the tokens now. Returns false when the task ended. */
static bool book_share(struct hearth_service *service, uint32_t lane, int32_t share) {
    struct hearth_task *task = lane_task(service, lane);
    struct hearth_live *live = &service->lives[lane];
    if (!hearth_live_append(live, task->tokens.v + live->tokens.n, (size_t)share)) {
        hearth_live_clear(service->cache, live);
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
        return false;
    }
    if (hearth_step_computed(&service->step, (int)lane, share))
        (void)hearth_cache_snapshot(service->cache, live, mark_kind(service, task, (int32_t)live->tokens.n));
    return true;
}

void hearth_service_compute(struct hearth_service *service, const int32_t *shares) {
    struct batch batch = {.shares = shares};
    build_batch(service, &batch);
    int64_t start_us = hearth_service_now_us(service);
    int err = service->engine->ops->decode(service->engine, service->items, batch.n);
    int64_t us = hearth_service_now_us(service) - start_us;
    if (err == HEARTH_ERR_NO_CELLS) {
        relieve(service);
        return;
    }
    if (err) {
        fail_batch(service, &batch, err);
        return;
    }
    service->counters.steps++;
    if (batch.prefill_tokens > 0)
        service->counters.prefill_us += (uint64_t)us;
    else
        service->counters.decode_us += (uint64_t)us;
    if ((size_t)batch.prefill_tokens == batch.n)
        hearth_cache_learn_prefill(service->cache, batch.prefill_tokens, us);
    bool goes_on[HEARTH_LANES_MAX] = {false};
    for (uint32_t i = 0; i < service->lanes; i++)
        goes_on[i] = shares[i] > 0 && book_share(service, i, shares[i]);
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (!goes_on[i] || !batch.has_output[i])
            continue;
        struct hearth_task *task = lane_task(service, i);
        bool first = !task->prefilled;
        if (advance(service, task, batch.output[i]) && first)
            (void)hearth_cache_snapshot(service->cache, &service->lives[i], HEARTH_SNAPSHOT_PROMPT_END);
    }
}
