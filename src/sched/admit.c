/* Admission: a queued task gets a lane, or is held back.
 *
 * plan → wait, if a lane is computing the beginning of this prompt → capture what the target lane would lose → restore
 * → start. A failure on the way costs only computation: what could not be restored is removed from the store, and
 * the next plan is made without it. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/memory.h"
#include "sched/service_internal.h"

#include <stdlib.h>

/* Least gap between a mark and a fork in front of it. More prompts will part at a fork, so a stop there pays for fewer
 * tokens than HEARTH_MARK_MIN_GAP_TOKENS. */
#define FORK_MIN_TOKENS 16

/* Takes the task out of consideration until something changes. */
static void hold(struct hearth_service *service, struct hearth_task *task, enum hearth_wait wait) {
    const int64_t now_us = hearth_service_now_us(service);
    if (!task->admitted) { /* until the first admission all the time counts as waiting */
        task->receipt.plan_us = task->receipt.restore_us = 0;
    }
    hearth_task_wait(service, task, wait, now_us);
    hearth_step_hold(service->step, task->id, wait == HEARTH_WAIT_CELLS, now_us);
}

/* Holds the task while a lane computes the beginning of the same prompt: of two prompts that arrive together and begin
 * alike, the second one takes the shared part over from the first. On classes that need snapshots the first lane is
 * told to take one where the prompts part. */
static bool wait_for_leader(struct hearth_service *service, struct hearth_task *task, int32_t resume) {
    bool needs_snapshot = hearth_caps_needs_snapshot(&service->engine->caps);
    if (task->request.cache_off || !service->engine->caps.cache_ok ||
        (needs_snapshot && !hearth_cache_stores(service->cache))) {
        return false;
    }
    for (uint32_t i = 0; i < service->lanes; i++) {
        const struct hearth_task *leader = service->on_lane[i];
        if (!leader || hearth_step_lane(service->step, (int)i)->state != HEARTH_LANE_PREFILL) {
            continue;
        }
        if ((hearth_task_is_prefetch(leader) && !hearth_task_is_prefetch(task)) ||
            (hearth_task_is_idle(leader) && !hearth_task_is_idle(task))) {
            continue; /* the prefetch gives way, so waiting for it is of no use */
        }
        const struct hearth_step_lane *lane = hearth_step_lane(service->step, leader->lane);
        if (!hearth_digest_equal(leader->request.salt, task->request.salt)) {
            continue;
        }
        int32_t fork =
            (int32_t)hearth_tokens_common(task->tokens.v, task->tokens.n - 1, leader->tokens.v, (size_t)lane->target);
        if (fork < resume + HEARTH_MARK_MIN_GAP_TOKENS || fork <= lane->computed) {
            continue;
        }
        if (!needs_snapshot) {
            hold(service, task, HEARTH_WAIT_PREFIX);
            return true;
        }
        /* The snapshot at the leader's end comes too late for a prompt that is the same: fork one token earlier. */
        if (fork == lane->target) {
            fork--;
        }
        if (fork > lane->computed && hearth_step_mark(service->step, leader->lane, fork)) {
            hold(service, task, HEARTH_WAIT_PREFIX);
            return true;
        }
    }
    return false;
}

/* Preempts prefetches that compute the beginning of the task's prompt, so that the task continues what they have
 * computed. */
static void take_over(struct hearth_service *service, const struct hearth_task *task) {
    for (uint32_t i = 0; i < service->lanes && !hearth_task_is_prefetch(task) && !task->request.cache_off; i++) {
        const struct hearth_step_lane *lane = hearth_step_lane(service->step, (int)i);
        const struct hearth_live *live = &service->lives[i];
        if (lane->state == HEARTH_LANE_IDLE || lane->priority != HEARTH_CLASS_PREFETCH ||
            !hearth_digest_equal(live->salt, task->request.salt)) {
            continue;
        }
        const struct hearth_task *prefetch = service->on_lane[i];
        int32_t fork =
            (int32_t)hearth_tokens_common(task->tokens.v, task->tokens.n, prefetch->tokens.v, (size_t)lane->target);
        if (fork > lane->computed) {
            hearth_lane_preempt(service, (int)i, false);
        }
    }
}

/* ---- sampler ---- */

static bool make_sampler(struct hearth_engine *engine, struct hearth_task *task, struct hearth_errmsg *msg) {
    task->sampler = engine->ops->sampler_create(engine, &task->request.sampling, msg);
    if (!task->sampler) {
        return false;
    }
    if (hearth_sampling_penalises(&task->request.sampling)) {
        const int32_t lookback = hearth_sampling_lookback(&task->request.sampling);
        const size_t n = task->tokens.n, last = lookback < 0 ? n : (size_t)lookback;
        for (size_t i = n > last ? n - last : 0; i < n; i++) {
            engine->ops->sampler_accept(engine, task->sampler, task->tokens.v[i], HEARTH_SAMPLE_PROMPT);
        }
    }
    return !hearth_memory_refused();
}

/* Makes the task's sampler unless it has one. False: that failed, and so has the task. */
static bool ensure_sampler(struct hearth_service *service, struct hearth_task *task) {
    struct hearth_errmsg msg;
    if (task->sampler) {
        return true;
    }
    hearth_memory_begin();
    if (make_sampler(service->engine, task, &msg)) {
        return true;
    }
    const bool nomem = hearth_memory_refused();
    hearth_task_fail(service, task, nomem ? HEARTH_ERR_NOMEM : HEARTH_ERR_INVALID, nomem ? "out of memory" : msg.text);
    return false;
}

/* ---- start ---- */

static int by_position(const void *a, const void *b) {
    return (*(const int32_t *)a > *(const int32_t *)b) - (*(const int32_t *)a < *(const int32_t *)b);
}

static bool is_pinned(const struct hearth_task *task, int32_t pos) {
    for (size_t i = 0; i < task->pin_count; i++) {
        if (task->pins[i].position == pos) {
            return true;
        }
    }
    return false;
}

/* Collects the positions where the prefill stops for a snapshot: places that the request named or pinned, the place
 * where the prompt left a known path, and one every so many tokens. Only classes that need snapshots have stops (a
 * window is stored page by page). Marks keep a gap, except pinned ones and the end mark. The end mark costs no further
 * snapshot: it takes the place of the one at the prompt's end. */
static size_t collect_marks(const struct hearth_service *service, const struct hearth_task *task, int32_t resumed,
                            int32_t marks[HEARTH_MARKS_MAX]) {
    const struct hearth_caps *caps = &service->engine->caps;
    if (!hearth_caps_needs_snapshot(caps) || caps->window_tokens > 0 || !hearth_cache_stores(service->cache)) {
        return 0;
    }
    size_t n = 0;
    if (task->end_mark > 0) {
        marks[n++] = task->end_mark;
    }
    if (task->divergence > 0) {
        marks[n++] = task->divergence;
    }
    for (size_t i = 0; i < task->pin_count; i++) {
        marks[n++] = task->pins[i].position;
    }
    for (size_t i = 0; i < task->mark_count && n < HEARTH_MARKS_MAX; i++) {
        marks[n++] = task->marks[i];
    }
    int32_t every = (int32_t)service->params.snapshot_interval_tokens;
    for (int64_t at = every > 0 ? ((int64_t)resumed / every + 1) * every : INT64_MAX;
         at < (int64_t)task->tokens.n && n < HEARTH_MARKS_MAX; at += every) {
        marks[n++] = (int32_t)at;
    }
    qsort(marks, n, sizeof *marks, by_position);
    size_t kept = 0;
    int32_t before = resumed;
    for (size_t i = 0; i < n; i++) {
        bool end = (marks[i] == task->end_mark || is_pinned(task, marks[i])) && marks[i] > resumed;
        bool near = marks[i] < before + (marks[i] == task->divergence ? FORK_MIN_TOKENS : HEARTH_MARK_MIN_GAP_TOKENS);
        if (marks[i] >= (int32_t)task->tokens.n || (near && !end) || marks[i] == before) {
            continue;
        }
        before = marks[kept++] = marks[i];
    }
    return kept;
}

/* Tells the cache of the request's owner, and notes what a replay of a recording has to begin with. Returns the time.
 */
static int64_t note_begin(const struct hearth_service *service, struct hearth_task *task) {
    const int64_t now_us = hearth_service_now_us(service);
    struct hearth_cache_stats stats;
    hearth_cache_own(service->cache, task->request.salt, task->request.tenant.id);
    if (!task->admitted) {
        hearth_cache_stats(service->cache, &stats);
        task->receipt.began_us = now_us;
        task->receipt.evicted = stats.evicted_pages + stats.evicted_snapshots;
    }
    return now_us;
}

/* Notes the cache's counters when a plan could reuse more than all plans before it; explain_lost() compares them later.
 */
static void note_planned(const struct hearth_service *service, struct hearth_task *task,
                         const struct hearth_plan *plan) {
    struct hearth_cache_stats stats;
    if (task->admitted || plan->resume <= task->planned.resume) {
        return;
    }
    hearth_cache_stats(service->cache, &stats);
    task->planned.resume = plan->resume;
    task->planned.bad_reads = stats.bad_reads;
    task->planned.store_misses = stats.store_misses;
}

/* Corrects the receipt's reason when state that an earlier plan had could not be read. If it was read while other lanes
 * ran, the last plan only knows that the state is missing. */
static void explain_lost(const struct hearth_service *service, struct hearth_task *task,
                         const struct hearth_plan *plan) {
    struct hearth_receipt *receipt = &task->receipt;
    struct hearth_shortfall *missing = &receipt->missing;
    struct hearth_cache_stats stats;
    if (plan->resume >= task->planned.resume || receipt->reason == HEARTH_REASON_CACHE_OFF) {
        return;
    }
    hearth_cache_stats(service->cache, &stats);
    if (stats.bad_reads > task->planned.bad_reads) {
        receipt->reason = HEARTH_REASON_RESTORE_FAILED;
    }
    missing->store = stats.store_misses > task->planned.store_misses;
    if (receipt->reason == HEARTH_REASON_RESTORE_FAILED || missing->store) {
        missing->end = missing->end > task->planned.resume ? missing->end : task->planned.resume;
    }
}

static void fill_receipt(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan,
                         const struct hearth_restore *restored) {
    if (task->admitted) {
        return; /* back after a preemption: the receipt describes the first start */
    }
    struct hearth_receipt *receipt = &task->receipt;
    receipt->reused_live_tokens = (uint32_t)restored->live_tokens;
    receipt->reused_ram_tokens = (uint32_t)restored->ram_tokens;
    receipt->reused_disk_tokens = (uint32_t)restored->disk_tokens;
    receipt->reused_remote_tokens = (uint32_t)restored->remote_tokens;
    if (restored->remote_tokens > restored->disk_tokens) { /* the task has waited for the store */
        receipt->wait_us[HEARTH_WAIT_STORE] += receipt->wait_us[HEARTH_WAIT_DISK];
        receipt->wait_us[HEARTH_WAIT_DISK] = 0;
    }
    receipt->computed_tokens = receipt->prompt_tokens - (uint32_t)restored->resumed;
    receipt->matched_tokens = (uint32_t)plan->matched;
    if (receipt->reason != HEARTH_REASON_RESTORE_FAILED) {
        receipt->reason = plan->reason;
    }
    explain_lost(service, task, plan);
    receipt->behind = task->busy_then + (uint32_t)(service->firsts - task->firsts);
    service->firsts += !hearth_task_is_prefetch(task);
    task->admitted = true;
    if (hearth_task_is_idle(task)) {
        return; /* the tokens that the idle prefetch computes are counted when it computes them */
    }
    service->counters.prompt_reused_live_tokens += receipt->reused_live_tokens;
    service->counters.prompt_reused_ram_tokens += receipt->reused_ram_tokens;
    service->counters.prompt_reused_disk_tokens += receipt->reused_disk_tokens;
    service->counters.prompt_reused_remote_tokens += receipt->reused_remote_tokens;
    service->counters.prompt_computed_tokens += receipt->computed_tokens;
}

/* Pins what is stored of the prompt. */
static void pin(struct hearth_service *service, const struct hearth_task *task) {
    struct hearth_cache_prompt prompt = hearth_task_prompt(task);
    prompt.n = task->prompt_tokens;
    hearth_cache_pin(service->cache, &prompt, task->pins, task->pin_count);
}

/* Counts the head (tools and system prompt) of a new conversation, so that heads that many share are read again
 * after the next start (cache/heads.h). A conversation is new when its prompt leaves what is known in the first half
 * of what follows its head. */
static void count_head(struct hearth_service *service, const struct hearth_task *task, int32_t matched) {
    const int32_t head = task->request.head_tokens, n = (int32_t)task->tokens.n;
    if (task->admitted || hearth_task_is_prefetch(task) || task->request.cache_off ||
        matched - head >= (n - head) / 2) {
        return;
    }
    const struct hearth_cache_prompt prompt = hearth_task_prompt(task);
    hearth_cache_head(service->cache, &prompt, head);
}

static void start(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan,
                  const struct hearth_restore *restored, int64_t admit_us) {
    struct hearth_live *live = &service->lives[plan->target];
    HEARTH_ASSERT((size_t)restored->resumed == live->tokens.n);
    count_head(service, task, plan->matched);
    task->divergence = plan->divergence;
    task->end_kept = task->end_mark > 0 && restored->resumed == task->end_mark;
    fill_receipt(service, task, plan, restored);
    int32_t marks[HEARTH_MARKS_MAX];
    size_t mark_count = collect_marks(service, task, restored->resumed, marks);
    live->busy = true;
    live->prefetched = hearth_task_is_prefetch(task);
    live->expected_until_us = 0;
    pin(service, task);
    for (size_t i = 0; i < task->pin_count; i++) {
        hearth_live_pin(live, &task->pins[i]);
    }
    hearth_task_assigned(service, task, plan->target, restored->resumed, marks, mark_count, admit_us);
}

/* ---- admission ---- */

static bool any_busy(const struct hearth_service *service) {
    for (uint32_t i = 0; i < service->lanes; i++) {
        if (service->lives[i].busy) {
            return true;
        }
    }
    return false;
}

/* What has failed in this admission. Each plan must resume earlier than the one before it, or at the same position in a
 * way that has not failed there. If neither holds (`again`), the prompt is computed from its beginning, so the loop
 * ends. */
struct failure {
    int32_t resume; /* where the last failed plan resumed; negative: none has failed */
    unsigned tried; /* the ways (enum hearth_resume, as bits) that failed there */
    bool again;
};

/* Handles a failed restore. True: plan and try again; false: the task was held. */
static bool after_failure(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan,
                          const struct hearth_restore *restored, struct failure *failure) {
    if (restored->no_cells &&
        (hearth_lane_make_room(service, plan->target) || hearth_lane_preempt_for_cells(service, task))) {
        return true;
    }
    if (restored->no_cells && any_busy(service)) {
        task->waits_for_ended = service->ended + 1;
        hold(service, task, HEARTH_WAIT_CELLS);
        return false;
    }
    const unsigned how = 1U << plan->how;
    const bool moved = plan->resume != failure->resume;
    failure->again = failure->resume >= 0 && (moved ? plan->resume > failure->resume : (failure->tried & how) != 0);
    failure->tried = moved ? how : failure->tried | how;
    failure->resume = plan->resume;
    if (restored->failed && (!restored->gone || failure->again)) { /* after an eviction the next plan says why */
        task->receipt.reason = HEARTH_REASON_RESTORE_FAILED;
    }
    return true;
}

bool hearth_task_lacks_cells(const struct hearth_service *service, const struct hearth_task *task) {
    bool over = task->waits_for_ended == 0 || (int32_t)(task->waits_for_ended - service->ended) <= 0;
    return !over && any_busy(service);
}

/* Until when the task may wait for the first scan of the backing tier to find more; 0: it does not. It waits at most as
 * long as computing its prompt would take, so at most twice as long as with the better choice. */
static int64_t wait_for_scan(const struct hearth_service *service, const struct hearth_task *task,
                             const struct hearth_plan *plan) {
    const int32_t rest = (int32_t)task->tokens.n - plan->resume;
    if (!hearth_cache_scanning(service->cache)) {
        return 0;
    }
    return hearth_task_is_prefetch(task)
               ? INT64_MAX
               : task->submitted_us + (int64_t)hearth_costs_compute_us(hearth_cache_costs(service->cache), rest);
}

/* The same while the plan's state is read into RAM and other lanes go on. State is read ahead once; what RAM could not
 * keep is read again by the restore. When no other request is there the restore itself reads everything, except for a
 * prefetch: a request that arrives would have to wait for that. */
static int64_t wait_for_reads(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan,
                              int64_t now_us) {
    if (!any_busy(service) && !hearth_task_is_prefetch(task)) {
        return 0;
    }
    const bool first = task->fetch_us == 0;
    task->fetch_us = !first ? task->fetch_us : now_us > 0 ? now_us : 1;
    const bool reads = first ? hearth_cache_fetch(service->cache, plan) : hearth_cache_fetching(plan);
    return reads ? task->fetch_us + HEARTH_BACKING_WAIT_US : 0;
}

/* The same for a shared store to say what it has of the prompt. The store is asked once for each task. */
static int64_t wait_for_seek(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan,
                             int64_t now_us) {
    if (task->seek_us == 0 && plan->resume + 1 < (int32_t)task->tokens.n) {
        const struct hearth_cache_prompt prompt = hearth_task_prompt(task);
        task->seek = hearth_cache_seek(service->cache, &prompt, plan->resume);
        task->seek_us = now_us > 0 ? now_us : 1;
    }
    return task->seek > 0 && !hearth_cache_sought(service->cache, task->seek) ? task->seek_us + HEARTH_BACKING_WAIT_US
                                                                              : 0;
}

/* Whether the task is held for the backing tier. */
static bool wait_for_backing(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan) {
    const int64_t now_us = hearth_service_slept_us(service);
    enum hearth_wait wait = HEARTH_WAIT_STORE;
    note_planned(service, task, plan);
    int64_t until_us = wait_for_seek(service, task, plan, now_us);
    if (until_us <= now_us) {
        wait = HEARTH_WAIT_SCAN;
        until_us = wait_for_scan(service, task, plan);
    }
    if (until_us <= now_us) {
        wait = HEARTH_WAIT_DISK;
        until_us = wait_for_reads(service, task, plan, now_us);
    }
    if (until_us <= now_us) {
        return false;
    }
    service->held_until_us = until_us < service->held_until_us ? until_us : service->held_until_us;
    hold(service, task, wait);
    return true;
}

/* ---- prefetches ---- */

/* Ends a prefetch that needed no lane: the state of `reused` tokens of its prompt is there already. */
static void end_prefetch(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan,
                         int32_t reused) {
    struct hearth_event *event = hearth_task_event(task, HEARTH_EVENT_DONE);
    if (!event) {
        hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
        return;
    }
    pin(service, task);
    if (!task->admitted) {
        uint32_t *where = plan->how != HEARTH_RESUME_STORED   ? &event->receipt.reused_live_tokens
                          : task->fetch_us == 0               ? &event->receipt.reused_ram_tokens
                          : hearth_cache_fetched_remote(plan) ? &event->receipt.reused_remote_tokens
                                                              : &event->receipt.reused_disk_tokens;
        *where = (uint32_t)reused;
        event->receipt.matched_tokens = (uint32_t)reused;
    }
    event->finish = HEARTH_FINISH_LENGTH;
    service->counters.requests_done += !hearth_task_is_idle(task);
    hearth_step_withdraw(service->step, task->id);
    hearth_task_end(service, task, event);
}

/* Ends the prefetch if the state of its whole prompt can be had, or holds it until that state is in RAM; nothing is
 * computed then. It is planned with one token more than the prompt has, because the next prompt will continue behind
 * all of it. True: the task was ended or held. */
static bool prefetch_is_there(struct hearth_service *service, struct hearth_task *task) {
    int32_t n = (int32_t)task->tokens.n;
    if (task->request.cache_off || !hearth_tokens_push(&task->tokens, -1)) {
        return false;
    }
    task->tokens.n = (size_t)n;
    struct hearth_cache_prompt prompt = hearth_task_prompt(task);
    prompt.n++;
    struct hearth_plan *plan = &service->plan;
    if (!hearth_cache_plan(service->cache, &prompt, hearth_service_live_list(service), hearth_service_lives(service),
                           plan)) {
        return false;
    }
    if (wait_for_backing(service, task, plan)) {
        return true;
    }
    if (plan->resume == n || !hearth_cache_in_ram(service->cache, plan)) {
        end_prefetch(service, task, plan, plan->resume);
    } else {
        return false;
    }
    return true;
}

/* ---- entry ---- */

/* Whether the task is about to continue a lane whose last reply is not captured yet. The state at the reply's end must
 * be captured now, because the lane will not stand there again. */
static bool passes_end(const struct hearth_service *service, const struct hearth_task *task,
                       const struct hearth_plan *plan) {
    const struct hearth_live *live = &service->lives[plan->target];
    return plan->how == HEARTH_RESUME_IN_PLACE && task->preemptions == 0 && plan->resume == (int32_t)live->tokens.n &&
           !live->prefetched && hearth_cache_capture_pending(service->cache, live);
}

/* Frees the parked sequence when a plan has chosen it as target: no request may run there. State that the plan
 * continues moves to a lane, other state to RAM. The caller then plans again, because lanes and store have changed. */
static void leave_parked_place(struct hearth_service *service, const struct hearth_task *task, enum hearth_resume how) {
    if (how == HEARTH_RESUME_IN_PLACE) {
        hearth_parked_return(service, task);
    } else {
        hearth_parked_clear(service);
    }
}

void hearth_task_admit(struct hearth_service *service, struct hearth_task *task) {
    HEARTH_ASSERT(task && task->lane < 0);
    if (!ensure_sampler(service, task)) {
        return;
    }
    if (hearth_task_lacks_cells(service, task) && !hearth_lane_preempt_for_cells(service, task)) {
        hold(service, task, HEARTH_WAIT_CELLS);
        return;
    }
    if (hearth_task_is_prefetch(task) && prefetch_is_there(service, task)) {
        return;
    }
    take_over(service, task);
    const int64_t admit_us = note_begin(service, task);
    int64_t start_us = admit_us;
    uint64_t tried = 0; /* lanes (as bits) that were captured already: what RAM did not take is given up as lost */
    struct failure failure = {.resume = -1};
    for (bool first = true;; first = false) {
        struct hearth_cache_prompt prompt = hearth_task_prompt(task);
        prompt.cache_off = task->request.cache_off || failure.again;
        struct hearth_plan *plan = &service->plan;
        if (!hearth_cache_plan(service->cache, &prompt, hearth_service_live_list(service),
                               hearth_service_lives(service), plan)) {
            hearth_task_fail(service, task, HEARTH_ERR_NOMEM, "out of memory");
            return;
        }
        if (first && (wait_for_leader(service, task, plan->resume) ||
                      (!prompt.cache_off && wait_for_backing(service, task, plan)))) {
            return;
        }
        if (plan->target == (int)service->lanes) {
            leave_parked_place(service, task, plan->how);
            tried = 0;
            continue;
        }
        if (!(tried >> plan->target & 1) &&
            hearth_cache_must_capture(service->cache, plan, &service->lives[plan->target])) {
            hearth_lane_capture(service, plan->target);
            tried |= UINT64_C(1) << plan->target;
            continue;
        }
        hearth_step_pending(service->step, plan->target, false);
        if (!task->admitted) {
            hearth_cache_shortfall(service->cache, plan, &prompt, &task->receipt.missing);
        }
        int64_t planned_us = hearth_service_now_us(service);
        struct hearth_restore restored;
        int64_t real_us = hearth_clock_us();
        bool passes = passes_end(service, task, plan);
        hearth_cache_restore(service->cache, plan, &prompt, service->live_list, &restored);
        service->backing_news = service->backing_news || restored.polled;
        if (passes && !restored.failed) {
            (void)hearth_cache_snapshot(service->cache, &service->lives[plan->target], HEARTH_SNAPSHOT_REPLY_END);
        }
        service->told_us += hearth_clock_us() - real_us;
        hearth_service_restore_span(plan->target, &restored, real_us);
        task->receipt.plan_us += planned_us - start_us;
        task->receipt.restore_us += restored.us;
        service->counters.restore_us += (uint64_t)restored.us;
        if (!restored.failed && !restored.no_cells) {
            start(service, task, plan, &restored, admit_us);
            return;
        }
        if (!after_failure(service, task, plan, &restored, &failure)) {
            return;
        }
        start_us = hearth_service_now_us(service);
    }
}
