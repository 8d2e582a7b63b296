/* Ranks: in which order requests get lanes. Pure functions of the step's state.
 *
 * Order. Requests are ordered by start tags, as in start-time fair queueing (sched/account.h): the time of arrival,
 * plus the patience of the request's class, plus the lead of its tenant. The smallest tag is admitted first, and ages
 * most as a prefill. A backlog is no claim: for admission a request counts as having arrived at most HEARTH_BACKLOG_US
 * before its tenant last got a lane; requests of one tenant keep their order of arrival. Leads change, so tags are
 * computed when a lane is free. A much shorter prompt passes the first one while that has not waited for long. A held
 * request is passed over until something changes. A prefetch (class warm) is admitted when no other request is queued,
 * and gets a few tokens of a batch behind all others while any lane of theirs is busy. One of idle time is admitted,
 * and computed, when no other request has a lane; of several, the newest comes first: its conversation is the likeliest
 * to come back. */
#include "sched/step_private.h"

#include <string.h>

/* The arrival of a request plus the patience of its class: its place among the requests of its tenant. */
static int64_t came_us(enum hearth_class priority, int64_t arrived_us) {
    static const int64_t patience_s[] = {
#define X(name, text, patience) [HEARTH_CLASS_##name] = (patience),
        HEARTH_CLASS_TABLE(X)
#undef X
    };
    return arrived_us + patience_s[priority] * 1000000;
}

int64_t hearth_rank_lane_us(const struct hearth_step *step, const struct hearth_step_lane *lane) {
    if (lane->priority == HEARTH_CLASS_PREFETCH) {
        return INT64_MAX;
    }
    return came_us(lane->priority, lane->arrived_us) + hearth_accounts_lead_us(&step->accounts, lane->account);
}

struct hearth_start_tag hearth_rank_tag(const struct hearth_step *step, const struct hearth_step_waiter *waiter) {
    if (waiter->request.priority == HEARTH_CLASS_PREFETCH) {
        const int64_t came = waiter->request.arrived_us; /* idle prefetches behind the others, the newest first */
        return (struct hearth_start_tag){INT64_MAX, waiter->request.idle ? INT64_MAX - came : came};
    }
    struct hearth_start_tag tag = {.came_us = came_us(waiter->request.priority, waiter->request.arrived_us)};
    int64_t oldest_us = step->accounts.v[waiter->account].last_run_us - HEARTH_BACKLOG_US;
    tag.virtual_us =
        (tag.came_us > oldest_us ? tag.came_us : oldest_us) + hearth_accounts_lead_us(&step->accounts, waiter->account);
    return tag;
}

static bool tag_before(struct hearth_start_tag a, struct hearth_start_tag b) {
    return a.virtual_us != b.virtual_us ? a.virtual_us < b.virtual_us : a.came_us < b.came_us;
}

static bool held(const struct hearth_step *step, const struct hearth_step_waiter *waiter) {
    return waiter->held_at == step->changes;
}

bool hearth_rank_shorter(const struct hearth_step *step, int32_t need, int32_t left) {
    return need >= 0 && left / HEARTH_SHORTER_TIMES >= need &&
           (double)left * step->sizes.prefill_us >= HEARTH_SHORTER_MIN_US;
}

static bool less_work(const struct hearth_step_waiter *a, const struct hearth_step_waiter *b) {
    return a->request.priority != b->request.priority ? a->request.priority < b->request.priority
                                                      : a->need_tokens < b->need_tokens;
}

/* Finds, for each class, the largest tag that is admitted. A request that has lacked cells for long enough stops
 * requests with larger tags, which would otherwise take every cell that becomes free. A better class is stopped only
 * after a longer wait. */
static void find_cutoffs(const struct hearth_step *step, int64_t now_us,
                         struct hearth_start_tag last[HEARTH_CLASS_PREFETCH]) {
    for (int c = 0; c < HEARTH_CLASS_PREFETCH; c++) {
        last[c] = (struct hearth_start_tag){INT64_MAX, INT64_MAX};
    }
    for (size_t i = 0; i < step->queued; i++) {
        const struct hearth_step_waiter *waiter = &step->queue[i];
        int64_t lacked_us = waiter->cells_us > 0 ? now_us - waiter->cells_us : 0;
        if (lacked_us < HEARTH_CELLS_WAIT_US) {
            continue;
        }
        struct hearth_start_tag tag = hearth_rank_tag(step, waiter);
        for (int c = lacked_us < HEARTH_CELLS_LONG_US ? (int)waiter->request.priority : 0; c < HEARTH_CLASS_PREFETCH;
             c++) {
            if (tag_before(tag, last[c])) {
                last[c] = tag;
            }
        }
    }
}

bool hearth_rank_others_run(const struct hearth_step *step) {
    for (uint32_t i = 0; i < step->params.lanes; i++) {
        if (step->lanes[i].state != HEARTH_LANE_IDLE && !step->lanes[i].idle) {
            return true;
        }
    }
    return false;
}

void hearth_rank_scan(const struct hearth_step *step, bool free, int64_t now_us, struct hearth_ranking *w) {
    struct hearth_start_tag tags[HEARTH_CLASS_PREFETCH + 1] = {{0}}, last[HEARTH_CLASS_PREFETCH];
    find_cutoffs(step, now_us, last);
    *w = (struct hearth_ranking){.others = false};
    const bool others_run = hearth_rank_others_run(step);
    for (size_t i = 0; i < step->queued; i++) {
        const struct hearth_step_waiter *waiter = &step->queue[i];
        bool prefetch = waiter->request.priority == HEARTH_CLASS_PREFETCH;
        w->others = w->others || !prefetch;
        if (held(step, waiter) || (waiter->request.idle && others_run) ||
            (!free && now_us < waiter->preempt_backoff_until_us)) {
            continue;
        }
        struct hearth_start_tag tag = hearth_rank_tag(step, waiter);
        if (!prefetch && tag_before(last[waiter->request.priority], tag)) {
            continue;
        }
        const struct hearth_step_waiter **best = &w->best[waiter->request.priority];
        if (!*best || tag_before(tag, tags[waiter->request.priority])) {
            *best = waiter;
            tags[waiter->request.priority] = tag;
        }
        bool passed = !prefetch && waiter->need_tokens >= 0 && tag.virtual_us <= now_us;
        if (passed && (!w->least_work || less_work(waiter, w->least_work))) {
            w->least_work = waiter;
        }
    }
    for (int c = 0; c < HEARTH_CLASS_PREFETCH; c++) {
        if (w->best[c] && (!w->first || tag_before(tags[c], tags[w->first->request.priority]))) {
            w->first = w->best[c];
        }
    }
}

static const struct hearth_step_waiter *reserved_for(const struct hearth_step *step) {
    for (size_t i = 0; i < step->queued && step->reserved_for; i++) {
        if (step->queue[i].request.id == step->reserved_for) {
            return held(step, &step->queue[i]) ? NULL : &step->queue[i];
        }
    }
    return NULL;
}

const struct hearth_step_waiter *hearth_rank_next(const struct hearth_step *step, const struct hearth_ranking *w,
                                                  int64_t now_us) {
    const struct hearth_step_waiter *first = reserved_for(step);
    if (first) {
        return first;
    }
    first = w->first;
    if (!w->others) {
        return w->best[HEARTH_CLASS_PREFETCH];
    }
    bool lets_pass = first && w->least_work && w->least_work->request.priority <= first->request.priority &&
                     now_us - first->request.queued_us < HEARTH_SHORTER_WAIT_US && first->need_tokens >= 0 &&
                     hearth_rank_shorter(step, w->least_work->need_tokens, first->need_tokens);
    return lets_pass ? w->least_work : first;
}

size_t hearth_step_waiting(const struct hearth_step *step, struct hearth_step_place places[HEARTH_WAITING_MAX]) {
    struct hearth_start_tag tags[HEARTH_WAITING_MAX];
    size_t n = 0;
    for (size_t i = 0; i < step->queued; i++) {
        const struct hearth_step_waiter *waiter = &step->queue[i];
        const struct hearth_start_tag tag = hearth_rank_tag(step, waiter);
        size_t at = n;
        while (at > 0 && tag_before(tag, tags[at - 1])) {
            at--;
        }
        if (at == HEARTH_WAITING_MAX) {
            continue;
        }
        n += n < HEARTH_WAITING_MAX;
        memmove(tags + at + 1, tags + at, (n - at - 1) * sizeof *tags);
        memmove(places + at + 1, places + at, (n - at - 1) * sizeof *places);
        tags[at] = tag;
        places[at] = (struct hearth_step_place){waiter->request.id, held(step, waiter)};
    }
    return n;
}
