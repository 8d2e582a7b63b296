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

/* Least gap between a mark and the one before it where that mark is a fork: more prompts will part there, so that
 * the stop pays for fewer tokens than HEARTH_MARK_MIN_GAP_TOKENS. */
#define FORK_MIN_TOKENS 16
#define BACKING_PATIENCE_US 100000 /* how often a task that is held for the backing tier is planned anyway */

/* Holds the task until something changes. */
static void hold(struct hearth_service *service, struct hearth_task *task, enum hearth_wait wait) {
    const int64_t now_us = hearth_service_now_us(service);
    if (!task->admitted) { /* all the time so far counts as waiting */
        task->receipt.plan_us = task->receipt.restore_us = 0;
    }
    hearth_task_wait(service, task, wait, now_us);
    hearth_step_hold(service->step, task->id, wait == HEARTH_WAIT_CELLS, now_us);
}

/* Two prompts that arrive together and begin alike: the second is held until the first has computed what they share,
 * and takes it from there. On classes that need a snapshot the first is told to leave one at the fork. */
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
            continue; /* no request waits for it */
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
        /* At the leader's very end its own snapshot comes too late for a prompt that is the same: fork one earlier. */
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

/* Preempts prefetches that compute the beginning of this prompt, so that it goes on from where they are. */
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

/* Gives the task a sampler, if it has none. False: it cannot be made, and the task has failed. */
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

/* Positions where the prefill stops for a snapshot: what the request named or pinned, where it left a known path, and
 * every so often on the way. Only classes that need snapshots stop (a window is stored page by page). Marks have a
 * gap, but for what is pinned and for the end mark, which costs no snapshot: it stands for the one at the prompt's
 * end. */
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

/* Tells the cache of the request's owner, and notes for recordings what a replay has to begin with. Returns the time.
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

/* The cache's counters at the plan that could reuse most: what it loses from there on is told by what they say then. */
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

/* State that a plan had, and that could not be read: where it was read while other lanes went on, the next plan only
 * knows that it is not there. */
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
        return; /* back after a preemption: the receipt tells of the first start */
    }
    struct hearth_receipt *receipt = &task->receipt;
    receipt->reused_live_tokens = (uint32_t)restored->live_tokens;
    receipt->reused_ram_tokens = (uint32_t)restored->ram_tokens;
    receipt->reused_disk_tokens = (uint32_t)restored->disk_tokens;
    receipt->reused_remote_tokens = (uint32_t)restored->remote_tokens;
    if (restored->remote_tokens > restored->disk_tokens) { /* what it waited for was the store */
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
        return; /* what is computed of it is counted then */
    }
    service->counters.prompt_reused_live_tokens += receipt->reused_live_tokens;
    service->counters.prompt_reused_ram_tokens += receipt->reused_ram_tokens;
    service->counters.prompt_reused_disk_tokens += receipt->reused_disk_tokens;
    service->counters.prompt_reused_remote_tokens += receipt->reused_remote_tokens;
    service->counters.prompt_computed_tokens += receipt->computed_tokens;
}

/* Pins what is stored of the prompt already. */
static void pin(struct hearth_service *service, const struct hearth_task *task) {
    const struct hearth_cache_prompt prompt = {
        .tokens = task->tokens.v, .n = task->prompt_tokens, .salt = task->request.salt};
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
    const struct hearth_cache_prompt prompt = {
        .tokens = task->tokens.v, .n = task->tokens.n, .salt = task->request.salt};
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

/* What has failed so far. Each plan has to resume at an earlier position than the one before it, or at the same one in
 * a way that has not failed there; otherwise (`again`) the prompt is computed from its beginning, so that this ends. */
struct failure {
    int32_t resume; /* of the last plan that failed; negative: none has */
    unsigned tried; /* enum hearth_resume, as bits: what failed there */
    bool again;
};

/* Deals with a restore that has failed. True: plan and try again; false: the task was held. */
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
    if (restored->failed && (!restored->gone || failure->again)) { /* otherwise the next plan says what became of it */
        task->receipt.reason = HEARTH_REASON_RESTORE_FAILED;
    }
    return true;
}

bool hearth_task_lacks_cells(const struct hearth_service *service, const struct hearth_task *task) {
    bool over = task->waits_for_ended == 0 || (int32_t)(task->waits_for_ended - service->ended) <= 0;
    return !over && any_busy(service);
}

/* Whether the task waits for the scan of the backing tier, which has not found everything yet. It waits no longer than
 * computing its prompt takes, and so at most twice as long as with the better choice. */
static bool wait_for_scan(const struct hearth_service *service, const struct hearth_task *task,
                          const struct hearth_plan *plan) {
    if (!hearth_cache_scanning(service->cache)) {
        return false;
    }
    if (hearth_task_is_prefetch(task)) {
        return true;
    }
    const int32_t rest = (int32_t)task->tokens.n - plan->resume;
    const int64_t waited_us = hearth_service_now_us(service) - task->submitted_us;
    return (double)waited_us < hearth_costs_compute_us(hearth_cache_costs(service->cache), rest);
}

/* Whether the task waits while the plan's state is read into RAM, so that other lanes go on meanwhile. It is read once:
 * what RAM could not keep is read again by the restore. With no other request to serve the restore reads everything;
 * but not for a prefetch, because a request that arrives would have to wait for it. */
static bool wait_for_reads(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan) {
    int64_t now_us = hearth_service_now_us(service);
    if (!any_busy(service) && !hearth_task_is_prefetch(task)) {
        return false;
    }
    if (task->fetch_us > 0) {
        return now_us - task->fetch_us < HEARTH_BACKING_WAIT_US && hearth_cache_fetching(plan);
    }
    task->fetch_us = now_us > 0 ? now_us : 1;
    return hearth_cache_fetch(service->cache, plan);
}

/* Whether the task waits for the answer of a store that boxes share, which is asked once what it has of a prompt. */
static bool wait_for_seek(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan) {
    const int64_t now_us = hearth_service_now_us(service);
    if (task->seek_us == 0 && plan->resume + 1 < (int32_t)task->tokens.n) {
        const struct hearth_cache_prompt prompt = {
            .tokens = task->tokens.v, .n = task->tokens.n, .salt = task->request.salt};
        task->seek = hearth_cache_seek(service->cache, &prompt, plan->resume);
        task->seek_us = now_us > 0 ? now_us : 1;
    }
    return task->seek > 0 && !hearth_cache_sought(service->cache, task->seek) &&
           now_us - task->seek_us < HEARTH_BACKING_WAIT_US;
}

/* Whether the task was held for the backing tier. */
static bool wait_for_backing(struct hearth_service *service, struct hearth_task *task, const struct hearth_plan *plan) {
    enum hearth_wait wait;
    note_planned(service, task, plan);
    if (wait_for_seek(service, task, plan)) {
        wait = HEARTH_WAIT_STORE;
    } else if (wait_for_scan(service, task, plan)) {
        wait = HEARTH_WAIT_SCAN;
    } else if (wait_for_reads(service, task, plan)) {
        wait = HEARTH_WAIT_DISK;
    } else {
        return false;
    }
    service->backing_retry_us = hearth_clock_us() + BACKING_PATIENCE_US;
    hold(service, task, wait);
    return true;
}

/* ---- prefetches ---- */

/* Ends a prefetch without a lane, when the state of `reused` tokens of its prompt is there. */
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

/* Plans a prefetch with one more token, as the next prompt will continue behind all of it: where the state of the whole
 * prompt can be had, nothing is computed. True: the task is held until that state is in RAM, or has ended. */
static bool prefetch_is_there(struct hearth_service *service, struct hearth_task *task) {
    int32_t n = (int32_t)task->tokens.n;
    if (task->request.cache_off || !hearth_tokens_push(&task->tokens, -1)) {
        return false;
    }
    task->tokens.n = (size_t)n;
    const struct hearth_cache_prompt prompt = {
        .tokens = task->tokens.v, .n = (size_t)n + 1, .salt = task->request.salt};
    const struct hearth_live *const *lives = (const struct hearth_live *const *)service->live_list;
    struct hearth_plan *plan = &service->plan;
    if (!hearth_cache_plan(service->cache, &prompt, lives, hearth_service_lives(service), plan)) {
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

/* Whether the task continues a lane in place before the lane's last reply is captured. The state at the end of that
 * reply has to be captured now: the lane will not be at that position again. */
static bool passes_end(const struct hearth_service *service, const struct hearth_task *task,
                       const struct hearth_plan *plan) {
    const struct hearth_live *live = &service->lives[plan->target];
    return plan->how == HEARTH_RESUME_IN_PLACE && task->preemptions == 0 && plan->resume == (int32_t)live->tokens.n &&
           !live->prefetched && hearth_cache_capture_pending(service->cache, live);
}

/* Frees the parked sequence, which a plan has chosen as its target although no request may run there. State that the
 * plan continues moves to a lane, other state to RAM. The caller then makes another plan, because lanes and store have
 * changed. */
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
    uint64_t tried = 0; /* lanes (bits) that were captured: what RAM did not take is lost */
    struct failure failure = {.resume = -1};
    for (bool first = true;; first = false) {
        struct hearth_cache_prompt prompt = {.tokens = task->tokens.v,
                                             .n = task->tokens.n,
                                             .salt = task->request.salt,
                                             .cache_off = task->request.cache_off || failure.again};
        struct hearth_plan *plan = &service->plan;
        const struct hearth_live *const *lives = (const struct hearth_live *const *)service->live_list;
        if (!hearth_cache_plan(service->cache, &prompt, lives, hearth_service_lives(service), plan)) {
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
