/* Computing: one batch for all lanes, then a token for each lane whose logits came out.
 *
 * A token is sampled, or forced: by a script, or because a thought has used up its budget. Forced or not, it runs
 * through the sampler (penalties, grammar), the thinker and the syntax automaton, all of which belong to the task and
 * so outlive a preemption.
 *
 * Invariants: a lane's task holds one token more than its sequence while it generates (the one sampled last); a task
 * ends at an end token, a stop string, max_tokens, or when the context is full, whichever comes first. */
#include "base/assert.h"
#include "base/log.h"
#include "base/utf8.h"
#include "sched/service_internal.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_SMALL 64
#define WARM_SHARE 5 /* of a batch that decodes: what a warm request may add to it */
#define WARM_CHUNK_MAX 64
#define WARM_ALONE_US 200000.0
#define WARM_ALONE_MIN 32

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

/* The text of a token: in `small` when it fits, else allocated in `*large`. NULL: out of memory. */
static const char *token_text(struct hearth_service *service, const struct hearth_task *task, hearth_token token,
                              char small[TEXT_SMALL], char **large, size_t *len) {
    struct hearth_engine *engine = service->engine;
    bool special = task->request.special_text;
    for (size_t i = 0; i < task->request.printed_count && !special; i++)
        special = task->request.printed[i] == token;
    *len = engine->ops->token_text(engine, token, special, small, TEXT_SMALL);
    *large = NULL;
    if (*len <= TEXT_SMALL)
        return small;
    *large = malloc(*len);
    if (*large)
        (void)engine->ops->token_text(engine, token, special, *large, *len);
    return *large;
}

/* Whether the reply's text ends with a whole character, now that `text` came. */
static bool whole_character(struct hearth_task *task, const char *text, size_t len) {
    char end[sizeof task->unfinished + sizeof task->unfinished];
    size_t kept = task->unfinished_len, fresh = len < sizeof task->unfinished ? len : sizeof task->unfinished;
    memcpy(end, task->unfinished, kept);
    memcpy(end + kept, text + len - fresh, fresh);
    size_t complete = hearth_utf8_complete(end, kept + fresh);
    task->unfinished_len = kept + fresh - complete;
    memcpy(task->unfinished, end + complete, task->unfinished_len);
    return task->unfinished_len == 0;
}

/* How the next token is to be sampled, or shown to the sampler. */
static unsigned sample_flags(const struct hearth_task *task) {
    const struct hearth_sampling *sampling = &task->request.sampling;
    if (hearth_thinker_inside(&task->thinker)) /* a lazy grammar must not be triggered by a thought */
        return sampling->grammar && sampling->grammar->lazy ? HEARTH_SAMPLE_FREE : 0;
    return sampling->temperature > 0 && hearth_syntax_next(&task->syntax) ? HEARTH_SAMPLE_GREEDY : 0;
}

/* The token that has to come next, whatever the model says: the end of a thought that is too long, or the next one of
 * a script. -1: none. */
static hearth_token forced_token(const struct hearth_service *service, const struct hearth_task *task) {
    hearth_token token = hearth_thinker_forced(&task->thinker);
    if (token >= 0 || task->request.script_count == 0)
        return token;
    return task->scripted < task->request.script_count ? task->request.script[task->scripted]
                                                       : service->engine->caps.end_token;
}

/* The token came, with this text. What ends a thought may also trigger a lazy grammar that has not seen it. */
static void follow(struct hearth_service *service, struct hearth_task *task, hearth_token token, const char *text,
                   size_t len) {
    struct hearth_engine *engine = service->engine;
    bool inside = hearth_thinker_inside(&task->thinker);
    bool unseen = (sample_flags(task) & HEARTH_SAMPLE_FREE) != 0;
    struct hearth_thinking_end end = hearth_thinker_accept(&task->thinker, token, whole_character(task, text, len));
    for (size_t i = 0; i < end.count && unseen; i++)
        engine->ops->sampler_accept(engine, task->sampler, end.tokens[i], HEARTH_SAMPLE_GRAMMAR);
    if (!inside)
        hearth_syntax_feed(&task->syntax, text, len);
}

/* Adds the token's text to the reply; `*stop` as hearth_reply_feed. False: out of memory. */
static bool feed_text(struct hearth_service *service, struct hearth_task *task, hearth_token token,
                      struct hearth_buf *out, const char **stop) {
    char small[TEXT_SMALL], *large;
    size_t len;
    const char *text = token_text(service, task, token, small, &large, &len);
    bool ok = text && hearth_reply_feed(&task->reply, text, len, out, stop);
    if (ok)
        follow(service, task, token, text, len);
    free(large);
    return ok;
}

/* Chooses the next token from the logits of a batch item. */
static hearth_token choose(struct hearth_service *service, struct hearth_task *task, size_t index,
                           struct hearth_logprobs *logprobs) {
    struct hearth_engine *engine = service->engine;
    unsigned flags = sample_flags(task);
    hearth_token token = forced_token(service, task);
    if (token < 0)
        return engine->ops->sample(engine, task->sampler, index, flags, logprobs);
    task->scripted += task->request.script_count > 0 && hearth_thinker_forced(&task->thinker) < 0;
    if (logprobs && engine->ops->token_logprobs)
        engine->ops->token_logprobs(engine, task->sampler, index, token, logprobs);
    engine->ops->sampler_accept(engine, task->sampler, token, flags);
    return token;
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
        choose(service, task, index, task->request.sampling.logprobs >= 0 ? &event->sampled[0].logprobs : NULL);
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
    task->request.deliver(task->request.user, event);
    return true;
}

/* The script has been said, and there is no token to end with. */
static bool script_over(const struct hearth_service *service, const struct hearth_task *task) {
    return task->request.script_count > 0 && task->scripted >= task->request.script_count &&
           service->engine->caps.end_token < 0;
}

/* Samples the next token of a lane and sends it on. Returns true while the task goes on. */
static bool advance(struct hearth_service *service, struct hearth_task *task, size_t index) {
    bool ok = task->prefilled || deliver_prefilled(service, task);
    bool over = script_over(service, task);
    if (ok && (task->request.max_tokens == 0 || over)) {
        struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_DONE);
        if (event) {
            finish_task(service, task, event, over ? HEARTH_FINISH_STOP : HEARTH_FINISH_LENGTH, NULL);
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
    if (stop || full || (task->request.max_tokens > 0 && task->generated >= (uint32_t)task->request.max_tokens)) {
        finish_task(service, task, event, stop ? HEARTH_FINISH_STOP : HEARTH_FINISH_LENGTH, stop);
        return false;
    }
    task->request.deliver(task->request.user, event);
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

/* The busy lane that arrived last, if possible a warm one; it is the one to set aside, so that the oldest always gets
 * on. */
static struct hearth_task *youngest_task(struct hearth_service *service, int *busy) {
    struct hearth_task *youngest = NULL;
    *busy = 0;
    for (struct hearth_task *task = service->tasks; task; task = task->next) {
        if (task->lane < 0)
            continue;
        ++*busy;
        if (!youngest || hearth_task_warm(task) > hearth_task_warm(youngest) ||
            (hearth_task_warm(task) == hearth_task_warm(youngest) && task->id > youngest->id))
            youngest = task;
    }
    return youngest;
}

/* The KV cache is full: a warm request beside others is set aside, else an idle lane is emptied, else the youngest
 * request is set aside. Its state is captured, and it continues when another has ended. */
static void relieve(struct hearth_service *service) {
    int busy;
    struct hearth_task *task = youngest_task(service, &busy);
    HEARTH_ASSERT(task);
    bool warm = busy > 1 && hearth_task_warm(task);
    if (!warm && hearth_lane_make_room(service, -1))
        return;
    if (busy == 1) {
        hearth_task_fail(service, task, HEARTH_ERR_NO_CELLS, "the KV cache has no room for this request alone");
        return;
    }
    int lane = task->lane;
    int64_t arrived_us = service->step.lanes[lane].arrived_us;
    hearth_lane_leave(service, task);
    if (warm)
        hearth_lane_capture_now(service, lane);
    else
        hearth_lane_capture(service, lane);
    hearth_live_clear(service->cache, &service->lives[lane]);
    service->counters.preemptions++;
    task->waits_for_ended = service->ended + 1;
    if (!hearth_step_submit(&service->step, task->id, task->request.priority, arrived_us, (int32_t)task->tokens.n,
                            true))
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
    if (pos == task->end_mark)
        return HEARTH_SNAPSHOT_PROMPT_END;
    for (size_t i = 0; i < task->mark_count; i++)
        if (task->marks[i] == pos)
            return HEARTH_SNAPSHOT_MARK;
    int32_t every = (int32_t)service->params.snapshot_interval_tokens;
    return every > 0 && pos % every == 0 ? HEARTH_SNAPSHOT_INTERVAL : HEARTH_SNAPSHOT_DIVERGENCE;
}

static bool pinned_end(const struct hearth_task *task) {
    return task->pin_count > 0 && (size_t)task->pins[task->pin_count - 1].position == task->prompt_tokens;
}

/* A long prompt or reply is stored on the way, so that a crash costs no more than an interval; that of a warm request
 * in any case, so that whoever needs its lane does not wait for more. */
static void persist(struct hearth_service *service, struct hearth_task *task, struct hearth_live *live) {
    int32_t every = (int32_t)service->params.far_interval_tokens, n = (int32_t)live->tokens.n;
    if ((!service->params.far && !hearth_task_warm(task)) || every == 0 || n / every == task->persisted / every)
        return;
    task->persisted = n;
    (void)hearth_cache_snapshot(service->cache, live, HEARTH_SNAPSHOT_INTERVAL);
    if (hearth_task_warm(task))
        hearth_lane_capture_now(service, task->lane);
    else
        hearth_lane_capture(service, task->lane);
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
    if (hearth_step_computed(&service->step, (int)lane, share)) {
        int32_t pos = (int32_t)live->tokens.n;
        bool taken = hearth_cache_snapshot(service->cache, live, mark_kind(service, task, pos));
        task->end_kept = task->end_kept || (taken && pos == task->end_mark);
    }
    persist(service, task, live);
    return true;
}

static int32_t between(double value, int32_t low, int32_t high) {
    return value < low ? low : value > high ? high : (int32_t)value;
}

/* How many tokens of warm requests a batch may hold, by what is known of speeds: beside lanes of others a fifth more
 * time, and alone no more than whoever comes meanwhile can wait for. */
static void pace_warm(struct hearth_service *service, const struct batch *batch, int64_t us) {
    struct hearth_step_params *params = &service->step.params;
    double us_per_token = hearth_cache_costs(service->cache)->prefill_us_per_token + 1e-3;
    if (batch->prefill_tokens == 0)
        service->decode_us = service->decode_us > 0 ? (4 * service->decode_us + us) / 5 : us;
    if (service->decode_us > 0)
        params->warm_chunk_tokens = between((double)service->decode_us / WARM_SHARE / us_per_token, 1, WARM_CHUNK_MAX);
    params->warm_alone_tokens = between(WARM_ALONE_US / us_per_token, WARM_ALONE_MIN, params->chunk_tokens);
}

/* A lane's logits came out: the task goes on, or ends. */
static void go_on(struct hearth_service *service, struct hearth_task *task, int lane, size_t index) {
    struct hearth_live *live = &service->lives[lane];
    bool wanted = !task->prefilled && (!task->end_kept || pinned_end(task));
    if (hearth_task_warm(task)) /* others will leave it here, also before it is captured */
        (void)hearth_cache_snapshot(service->cache, live, HEARTH_SNAPSHOT_DIVERGENCE);
    if (advance(service, task, index) && wanted)
        (void)hearth_cache_snapshot(service->cache, live, HEARTH_SNAPSHOT_PROMPT_END);
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
    service->batch_us = us;
    if (batch.prefill_tokens > 0)
        service->counters.prefill_us += (uint64_t)us;
    else
        service->counters.decode_us += (uint64_t)us;
    if ((size_t)batch.prefill_tokens == batch.n)
        hearth_cache_learn_prefill(service->cache, batch.prefill_tokens, us);
    pace_warm(service, &batch, us);
    bool goes_on[HEARTH_LANES_MAX] = {false};
    for (uint32_t i = 0; i < service->lanes; i++)
        goes_on[i] = shares[i] > 0 && book_share(service, i, shares[i]);
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (goes_on[i] && batch.has_output[i])
            go_on(service, lane_task(service, i), (int)i, batch.output[i]);
    }
}
