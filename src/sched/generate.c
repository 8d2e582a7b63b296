/* Computing: one batch for all lanes, then a token for each lane with logits.
 *
 * A token is sampled, or forced: by a script, or because a thought has used up its budget. Either way it runs
 * through the sampler (penalties, grammar), the thinker and the syntax automaton. All of these belong to the task,
 * so they survive a preemption.
 *
 * Guessed tokens (speculate.h) are computed in the same batch. Then tokens are sampled position by position, as without
 * a guess, until one differs from the guess or ends the reply. The sequence is cut back to the accepted tokens before
 * anything else happens to the lane. Some engines can only be cut back further, to a checkpoint: then the tokens in
 * between are computed again with the next batch, or at once when the reply has ended.
 *
 * Invariants: while a lane generates, its task holds one token more than its sequence (the one sampled last), or
 * some more after a cut back to a checkpoint; outside of this file a sequence holds its lane's live tokens and no
 * guess; a task ends at an end token, a stop string, max_tokens, or when the context is full, whichever comes first. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "base/spans.h"
#include "sched/service_internal.h"

#include <stdlib.h>
#include <string.h>

static struct hearth_task *lane_task(struct hearth_service *service, uint32_t lane) {
    struct hearth_task *task = service->on_lane[lane];
    HEARTH_ASSERT(task && task->lane == (int)lane && task->id == hearth_step_lane(service->step, (int)lane)->id);
    return task;
}

/* ---- ends ---- */

/* Ends a task by delivering `event`, which may carry the last token's text. */
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
    hearth_event_fill(event, task);
    event->receipt.ended_us = hearth_service_now_us(service);
    event->receipt.end_tokens = (uint32_t)service->lives[task->lane].tokens.n;
    service->counters.requests_done += !hearth_task_is_idle(task);
    hearth_lane_leave(service, task);
    hearth_task_end(service, task, event);
}

/* ---- tokens ---- */

/* Puts the text of a token into the service's buffer. False: out of memory. */
static bool token_text(struct hearth_service *service, const struct hearth_task *task, hearth_token token) {
    bool special = false;
    for (size_t i = 0; i < task->request.printed_count && !special; i++) {
        special = task->request.printed[i] == token;
    }
    service->piece.len = 0;
    return hearth_buf_reserve(&service->piece, 1) && /* so that a text of no bytes is one, too */
           hearth_engine_append_text(service->engine, token, special, &service->piece);
}

/* Whether the reply's text ends with a complete character once `text` is appended. */
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

/* The flags for sampling the next token, or for showing it to the sampler. */
static unsigned sample_flags(const struct hearth_task *task) {
    const struct hearth_grammar *grammar = task->request.sampling.grammar;
    bool inside = hearth_thinker_inside(&task->thinker); /* a lazy grammar must not be triggered by a thought */
    return inside && grammar && grammar->lazy ? HEARTH_SAMPLE_FREE : 0;
}

/* The next token when it is forced: a token that ends an overlong thought, or the script's next token. -1: the model
 * decides. */
static hearth_token forced_token(const struct hearth_service *service, const struct hearth_task *task) {
    hearth_token token = hearth_thinker_forced(&task->thinker);
    if (token >= 0 || task->request.script_count == 0) {
        return token;
    }
    return task->scripted < task->request.script_count ? task->request.script[task->scripted]
                                                       : service->engine->caps.end_token;
}

/* Shows a token to the thinker. Inside a thought a lazy grammar sees no tokens. The tokens that end a thought may
 * trigger the grammar, so it is shown these afterwards. */
static void follow(struct hearth_service *service, struct hearth_task *task, hearth_token token, const char *text,
                   size_t len) {
    struct hearth_engine *engine = service->engine;
    bool unseen = (sample_flags(task) & HEARTH_SAMPLE_FREE) != 0;
    struct hearth_thinking_end end = hearth_thinker_accept(&task->thinker, token, whole_character(task, text, len));
    for (size_t i = 0; i < end.count && unseen; i++) {
        engine->ops->sampler_accept(engine, task->sampler, end.tokens[i], HEARTH_SAMPLE_GRAMMAR);
    }
}

/* Adds the token's text to the reply; `*stop` as for hearth_reply_feed(). False: out of memory. */
static bool feed_text(struct hearth_service *service, struct hearth_task *task, hearth_token token,
                      struct hearth_buf *out, const char **stop) {
    const bool ok = token_text(service, task, token);
    const char *text = (const char *)service->piece.data;
    if (!ok || !hearth_reply_feed(&task->reply, text, service->piece.len, out, stop)) {
        return false;
    }
    follow(service, task, token, text, service->piece.len);
    return true;
}

/* Chooses the next token from the logits of a batch item. */
static hearth_token choose(struct hearth_service *service, struct hearth_task *task, size_t index,
                           struct hearth_sample_logprobs *logprobs) {
    struct hearth_engine *engine = service->engine;
    unsigned flags = sample_flags(task);
    hearth_token token = forced_token(service, task);
    if (token < 0) {
        return engine->ops->sample(engine, task->sampler, index, flags, logprobs);
    }
    task->scripted += task->request.script_count > 0 && hearth_thinker_forced(&task->thinker) < 0;
    if (logprobs) {
        engine->ops->token_logprobs(engine, task->sampler, index, token, logprobs);
    }
    engine->ops->sampler_accept(engine, task->sampler, token, flags);
    return token;
}

/* Makes the event that carries the sampled token; NULL: out of memory. */
static struct hearth_event *token_event(struct hearth_service *service, struct hearth_task *task, size_t index) {
    struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_TEXT);
    if (!event) {
        return NULL;
    }
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

/* Tells the client that the prompt is computed. False: out of memory. */
static bool deliver_prefilled(struct hearth_service *service, struct hearth_task *task) {
    task->prefilled = true;
    task->first_us = task->last_us = hearth_service_now_us(service);
    task->receipt.prefill_us = task->first_us - task->started_us;
    task->receipt.faults = hearth_service_faults() - task->faults;
    struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_PREFILLED);
    if (!event) {
        return false;
    }
    task->request.deliver(task->request.user, event);
    return true;
}

/* Whether the script is used up and the model has no end token to follow it. */
static bool script_over(const struct hearth_service *service, const struct hearth_task *task) {
    return task->request.script_count > 0 && task->scripted >= task->request.script_count &&
           service->engine->caps.end_token < 0;
}

/* How a task ends. */
struct ending {
    struct hearth_event *event; /* NULL: out of memory */
    enum hearth_finish finish;
    const char *stop;
};

static void end_task(struct hearth_service *service, struct hearth_task *task, const struct ending *ending) {
    if (ending->event) {
        finish_task(service, task, ending->event, ending->finish, ending->stop);
    } else {
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
    }
}

/* Samples a lane's next token and delivers it. True: the task goes on; false: `ending` says how it ends. */
static bool advance(struct hearth_service *service, struct hearth_task *task, size_t index, struct ending *ending) {
    hearth_memory_begin();
    bool ok = task->prefilled || deliver_prefilled(service, task);
    bool over = script_over(service, task);
    *ending = (struct ending){.finish = HEARTH_FINISH_STOP};
    if (ok && (task->request.max_tokens == 0 || over)) {
        ending->event = hearth_task_event(task, HEARTH_EVENT_DONE);
        ending->finish = over ? HEARTH_FINISH_STOP : HEARTH_FINISH_LENGTH;
        return false;
    }
    ending->event = ok ? token_event(service, task, index) : NULL;
    if (!ending->event) {
        return false;
    }
    hearth_token token = ending->event->sampled[0].token;
    task->generated++;
    service->counters.generated_tokens++;
    task->last_us = hearth_service_now_us(service);
    bool end = service->engine->ops->token_is_end(service->engine, token);
    /* A grammar that ran out of memory no longer constrains, so its token is not sent. */
    if ((!end && (!hearth_tokens_push(&task->tokens, token) ||
                  !feed_text(service, task, token, &ending->event->text, &ending->stop))) ||
        hearth_memory_refused()) {
        hearth_event_destroy(ending->event);
        ending->event = NULL;
        return false;
    }
    if (end) {
        return false;
    }
    bool full = task->tokens.n >= service->engine->caps.ctx_tokens;
    bool most = task->request.max_tokens > 0 && task->generated >= (uint32_t)task->request.max_tokens;
    if (ending->stop || full || most) {
        ending->finish = ending->stop ? HEARTH_FINISH_STOP : HEARTH_FINISH_LENGTH;
        return false;
    }
    task->request.deliver(task->request.user, ending->event);
    ending->event = NULL;
    return true;
}

/* ---- batches ---- */

struct batch {
    int32_t shares[HEARTH_LANES_MAX]; /* tokens of each lane in the batch, except guesses */
    int32_t ahead[HEARTH_LANES_MAX];  /* guessed tokens of each lane in the batch */
    size_t n;                         /* number of items */
    size_t output[HEARTH_LANES_MAX];  /* each lane's first item with logits, if it has one */
    bool has_output[HEARTH_LANES_MAX];
    int32_t prefill_tokens;
};

static void add_lane(struct hearth_service *service, struct batch *batch, uint32_t i, int32_t share) {
    const struct hearth_step_lane *lane = hearth_step_lane(service->step, (int)i);
    const struct hearth_task *task = lane_task(service, i);
    struct hearth_guess *guess = &service->spec.guesses[i];
    int32_t held = (int32_t)task->tokens.n, begin = (int32_t)service->lives[i].tokens.n, due = held - begin;
    if (lane->state == HEARTH_LANE_PREFILL) {
        guess->count = guess->ahead = 0;
        guess->checkpoint.pos = 0;
        batch->prefill_tokens += share;
    } else if (share > due) {
        hearth_speculate_prepare(service, (int)i);
        batch->ahead[i] = share - due < guess->ahead ? share - due : guess->ahead;
    }
    batch->shares[i] = share < due ? share : due;
    batch->has_output[i] = batch->shares[i] == due;
    batch->output[i] = batch->n + (size_t)batch->shares[i] - 1;
    for (int32_t pos = begin; pos < begin + batch->shares[i] + batch->ahead[i]; pos++) {
        service->items[batch->n++] = (struct hearth_batch_item){
            .token = pos < held ? task->tokens.v[pos] : guess->tokens[pos - held],
            .seq = service->lives[i].seq,
            .pos = pos,
            .output = pos + 1 >= held,
        };
    }
}

/* Frees cells after a batch found too few. It drops guesses; without any it preempts a prefetch that runs beside other
 * requests; else it empties an idle lane; else it preempts the request with the largest start tag. A request that runs
 * alone fails. */
static void relieve(struct hearth_service *service) {
    if (hearth_speculate_drop(service)) { /* without guesses the batch may fit */
        return;
    }
    int lane = hearth_step_cells_victim(service->step), busy = 0;
    HEARTH_ASSERT(lane >= 0);
    for (uint32_t i = 0; i < service->lanes; i++) {
        busy += service->on_lane[i] != NULL;
    }
    struct hearth_task *task = lane_task(service, (uint32_t)lane);
    bool prefetch = busy > 1 && hearth_task_is_prefetch(task);
    if (!prefetch && hearth_lane_make_room(service, -1)) {
        return;
    }
    if (busy == 1) {
        hearth_task_fail(service, task, HEARTH_ERR_NO_CELLS, "the KV cache has no room for this request alone");
        return;
    }
    service->counters.preemptions++;
    hearth_lane_preempt_without_cells(service, lane, false);
}

static void fail_batch(struct hearth_service *service, const struct batch *batch, int err) {
    hearth_log(HEARTH_LOG_ERROR, "computing a batch of %zu tokens failed: %s", batch->n, hearth_err_text(err));
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (batch->shares[i] == 0) {
            continue;
        }
        struct hearth_task *task = lane_task(service, i);
        hearth_live_clear(service->cache, &service->lives[i]);
        hearth_task_fail(service, task, err == HEARTH_ERR_NOMEM ? err : HEARTH_ERR_ENGINE,
                         err == HEARTH_ERR_NOMEM ? hearth_err_text(err)
                                                 : "the engine failed while computing this request");
    }
}

static enum hearth_snapshot_kind mark_kind(const struct hearth_service *service, const struct hearth_task *task,
                                           int32_t pos) {
    if (pos == task->end_mark) {
        return HEARTH_SNAPSHOT_PROMPT_END;
    }
    for (size_t i = 0; i < task->mark_count; i++) {
        if (task->marks[i] == pos) {
            return pos < task->request.head_tokens ? HEARTH_SNAPSHOT_HEAD : HEARTH_SNAPSHOT_MARK;
        }
    }
    int32_t every = (int32_t)service->params.snapshot_interval_tokens;
    return every > 0 && pos % every == 0 ? HEARTH_SNAPSHOT_INTERVAL : HEARTH_SNAPSHOT_DIVERGENCE;
}

static bool pinned_end(const struct hearth_task *task) {
    return task->pin_count > 0 && (size_t)task->pins[task->pin_count - 1].position == task->prompt_tokens;
}

/* Captures a long prompt or reply every so many tokens, so that a crash loses no more than that. Without a backing tier
 * only prefetches are captured on the way: a request that takes over the lane of one then waits for a short capture
 * only. */
static void persist(struct hearth_service *service, struct hearth_task *task, struct hearth_live *live) {
    int32_t every = (int32_t)service->params.backing_interval_tokens, n = (int32_t)live->tokens.n;
    if ((!service->params.backing && !hearth_task_is_prefetch(task)) || every == 0 ||
        n / every == task->persisted / every) {
        return;
    }
    task->persisted = n;
    (void)hearth_lane_snapshot(service, task->lane, HEARTH_SNAPSHOT_INTERVAL);
    hearth_lane_capture_now(service, task->lane); /* does not wait for a slow disk, which would stop all lanes */
}

/* Adds the lane's share of the computed batch to its live tokens, and takes a snapshot if the lane now stands on a
 * mark. False: out of memory, and the task has failed. */
static bool book_share(struct hearth_service *service, uint32_t lane, int32_t share) {
    struct hearth_task *task = lane_task(service, lane);
    struct hearth_live *live = &service->lives[lane];
    if (!hearth_live_append(live, task->tokens.v + live->tokens.n, (size_t)share)) {
        hearth_live_clear(service->cache, live);
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
        return false;
    }
    if (hearth_step_computed(service->step, (int)lane, share)) {
        int32_t pos = (int32_t)live->tokens.n;
        bool taken = hearth_lane_snapshot(service, (int)lane, mark_kind(service, task, pos));
        task->end_kept = task->end_kept || (taken && pos == task->end_mark);
    }
    hearth_lane_window(service, (int)lane);
    persist(service, task, live);
    if (hearth_step_lane(service->step, (int)lane)->state == HEARTH_LANE_PREFILL) {
        hearth_task_progress(service, task);
    }
    return true;
}

/* Samples for a lane that had no guess in the batch; its task goes on or ends. */
static void go_on(struct hearth_service *service, struct hearth_task *task, int lane, size_t index) {
    struct ending ending;
    bool wanted = !task->prefilled && (!task->end_kept || pinned_end(task));
    if (hearth_task_is_prefetch(task)) { /* other prompts may branch off here before the prefetch is captured */
        (void)hearth_lane_snapshot(service, lane, HEARTH_SNAPSHOT_DIVERGENCE);
    }
    int64_t real_us = hearth_clock_us();
    bool goes_on = advance(service, task, index, &ending);
    if (goes_on) {
        (void)hearth_speculate_observe(service, task, lane, 0, task->tokens.v[task->tokens.n - 1]);
    } else {
        end_task(service, task, &ending);
    }
    hearth_service_sampled(service, real_us);
    if (goes_on && wanted) {
        (void)hearth_lane_snapshot(service, lane, HEARTH_SNAPSHOT_PROMPT_END);
    }
}

/* ---- guesses ---- */

/* The outcome of a guess that was computed. */
struct verified {
    int32_t end;  /* positions that the sequence holds now */
    int32_t keep; /* of these, the positions that were sampled as guessed */
    bool ended;
    struct ending ending;
};

static void verify(struct hearth_service *service, const struct batch *batch, int lane, struct verified *verified) {
    struct hearth_task *task = lane_task(service, (uint32_t)lane);
    int32_t ahead = batch->ahead[lane], right = 0;
    int64_t real_us = hearth_clock_us();
    verified->end = (int32_t)task->tokens.n + ahead;
    verified->keep = (int32_t)task->tokens.n;
    for (bool same = true; same; verified->keep += same) {
        size_t index = batch->output[lane] + (size_t)right;
        verified->ended = !advance(service, task, index, &verified->ending);
        same = !verified->ended &&
               hearth_speculate_observe(service, task, lane, right, task->tokens.v[task->tokens.n - 1]) &&
               right < ahead;
        right += same;
    }
    task->spec.drafted += (uint32_t)ahead;
    task->spec.accepted += (uint32_t)right;
    service->counters.drafted_tokens += (uint64_t)ahead;
    service->counters.accepted_tokens += (uint64_t)right;
    hearth_service_sampled(service, real_us);
}

/* Computes the end of a finished reply again after a cut back to a checkpoint, because its state has to be complete. */
static void complete(struct hearth_service *service, struct hearth_task *task, int lane, int32_t keep) {
    struct hearth_live *live = &service->lives[lane];
    int32_t begin = (int32_t)live->tokens.n;
    for (int32_t pos = begin; pos < keep; pos++) {
        service->items[pos - begin] =
            (struct hearth_batch_item){.token = task->tokens.v[pos], .seq = live->seq, .pos = pos};
    }
    int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    int err = service->engine->ops->decode(service->engine, service->items, (size_t)(keep - begin));
    int64_t us = hearth_service_now_us(service) - start_us;
    service->told_us += hearth_clock_us() - real_us;
    service->counters.decode_us += (uint64_t)us;
    hearth_step_charge(service->step, lane, (double)us);
    if (err && err != HEARTH_ERR_NO_CELLS) {
        hearth_log(HEARTH_LOG_WARN,
                   "sched: request %lld: the end of a reply could not be computed (%s): its state is lost",
                   (long long)task->id, hearth_err_text(err));
        hearth_live_clear(service->cache, live);
    }
    if (!err && !hearth_live_append(live, task->tokens.v + begin, (size_t)(keep - begin))) {
        hearth_live_clear(service->cache, live);
    }
}

/* Cuts a lane back to its accepted tokens, adds these to its live tokens, and ends the task if the reply has ended. */
static void take_back(struct hearth_service *service, int lane, const struct verified *verified) {
    struct hearth_task *task = lane_task(service, (uint32_t)lane);
    struct hearth_live *live = &service->lives[lane];
    int32_t pos = hearth_speculate_return(service, lane, verified->end, verified->keep);
    if (pos < 0) {
        hearth_log(HEARTH_LOG_WARN,
                   "sched: request %lld: guesses could not be taken back: its state is lost, and it "
                   "guesses no more",
                   (long long)task->id);
        task->request.speculate_off = true;
        hearth_live_clear(service->cache, live);
    }
    bool books = pos > (int32_t)live->tokens.n;
    if (books && !book_share(service, (uint32_t)lane, pos - (int32_t)live->tokens.n)) {
        hearth_event_destroy(verified->ending.event);
        return;
    }
    if (verified->ended && pos >= 0 && pos < verified->keep) {
        complete(service, task, lane, verified->keep);
    }
    if (verified->ended) {
        end_task(service, task, &verified->ending);
    } else if (pos < 0) { /* the lane's state is lost: the task is queued and computed again */
        hearth_lane_requeue(service, task, false, true);
    }
}

/* ---- a batch ---- */

static void count_batch(struct hearth_service *service, const struct batch *batch, int64_t us) {
    int32_t shares[HEARTH_LANES_MAX];
    service->counters.steps++;
    if (batch->prefill_tokens > 0) {
        service->counters.prefill_us += (uint64_t)us;
    } else {
        service->counters.decode_us += (uint64_t)us;
    }
    if ((size_t)batch->prefill_tokens == batch->n) {
        hearth_cache_learn_prefill(service->cache, batch->prefill_tokens, us);
    }
    for (uint32_t i = 0; i < service->lanes; i++) {
        shares[i] = batch->shares[i] + batch->ahead[i];
    }
    hearth_service_charge(service, shares, (int32_t)batch->n - batch->prefill_tokens, batch->prefill_tokens, us);
}

void hearth_service_compute(struct hearth_service *service, const int32_t *shares) {
    struct batch batch = {0};
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (shares[i] > 0) {
            add_lane(service, &batch, i, shares[i]);
        }
    }
    int64_t start_us = hearth_service_now_us(service), real_us = hearth_clock_us();
    int err = service->engine->ops->decode(service->engine, service->items, batch.n);
    int64_t us = hearth_service_now_us(service) - start_us;
    service->told_us += hearth_clock_us() - real_us;
    if (err == HEARTH_ERR_NO_CELLS) {
        relieve(service);
        return;
    }
    if (err) {
        fail_batch(service, &batch, err);
        return;
    }
    if (hearth_spans_on()) {
        hearth_service_batch_spans(service, batch.shares, batch.n, real_us, hearth_clock_us());
    }
    count_batch(service, &batch, us);
    bool goes_on[HEARTH_LANES_MAX] = {false};
    struct verified verified[HEARTH_LANES_MAX];
    for (uint32_t i = 0; i < service->lanes; i++) {
        goes_on[i] = batch.shares[i] > 0 && (batch.ahead[i] > 0 || book_share(service, i, batch.shares[i]));
    }
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (goes_on[i] && batch.ahead[i] > 0) {
            verify(service, &batch, (int)i, &verified[i]);
        } else if (goes_on[i] && batch.has_output[i]) {
            go_on(service, lane_task(service, i), (int)i, batch.output[i]);
        }
    }
    for (uint32_t i = 0; i < service->lanes; i++) { /* the logits are no longer needed */
        if (goes_on[i] && batch.ahead[i] > 0) {
            take_back(service, (int)i, &verified[i]);
        }
    }
    hearth_speculate_plan(service);
}
