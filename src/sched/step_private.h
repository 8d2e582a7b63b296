/* Inside the step: its state, and what its files offer each other. Other files use step.h.
 *
 *     step.c     events, and the next action
 *     batch.c    what a batch holds
 *     victim.c   which lane is preempted
 *     rank.c     which request is the next
 *     account.c  what each tenant has used */
#ifndef HEARTH_SCHED_STEP_PRIVATE_H
#define HEARTH_SCHED_STEP_PRIVATE_H

#include "sched/account.h"
#include "sched/step.h"

/* A queued request. */
struct hearth_step_waiter {
    struct hearth_step_request request;
    uint32_t account;
    int32_t need_tokens;              /* about how many tokens of its prompt have to be computed; negative: unknown */
    int64_t preempt_backoff_until_us; /* until then it may not preempt */
    int64_t cells_us;                 /* since when it lacks cells; 0: it does not */
    bool for_cells;                   /* when it was last held, it was for want of cells */
    uint32_t held_at; /* `changes` when it was held: it is tried again when that has moved on; 0: not held */
};

struct hearth_step {
    struct hearth_step_params params;
    struct hearth_step_sizes sizes;
    struct hearth_step_lane lanes[HEARTH_LANES_MAX];
    struct hearth_step_waiter *queue; /* in the order of arrival */
    size_t queued, queue_cap;
    struct hearth_accounts accounts;
    int64_t reserved_for; /* the request for which a lane was preempted: it is the next one; 0: none */
    uint32_t changes;     /* moves when a held request may succeed now */
    uint32_t passed;      /* how many batches in a row have left out a long prefill */
    bool captured_last;   /* the last action was a capture: compute before the next one */
};

/* ---- rank.c ---- */

/* A queued request's place in the order of admission; prefetches stand behind all others. */
struct hearth_start_tag {
    int64_t virtual_us; /* its place among all requests; INT64_MAX for a prefetch */
    int64_t came_us;    /* its place among the requests of its tenant */
};
struct hearth_start_tag hearth_rank_tag(const struct hearth_step *step, const struct hearth_step_waiter *waiter);
/* The start tag of a busy lane's request; INT64_MAX for a prefetch. */
int64_t hearth_rank_lane_us(const struct hearth_step *step, const struct hearth_step_lane *lane);
/* Whether a lane is busy with anything but a prefetch of idle time. */
bool hearth_rank_others_run(const struct hearth_step *step);
/* Whether a prompt of `need` tokens (negative: unknown) is much shorter than the `left` tokens of another one. */
bool hearth_rank_shorter(const struct hearth_step *step, int32_t need, int32_t left);
/* The queued requests that may be admitted, or may preempt, next: the first of each kind, held ones left out. */
struct hearth_ranking {
    const struct hearth_step_waiter *best[HEARTH_CLASS_PREFETCH + 1]; /* of each class */
    const struct hearth_step_waiter *first;                           /* the first of all except prefetches */
    const struct hearth_step_waiter *least_work; /* of those past their start tag: by class, then by tokens */
    bool others;                                 /* a request waits that is no prefetch, held or not */
};
void hearth_rank_scan(const struct hearth_step *step, bool free, int64_t now_us, struct hearth_ranking *ranking);
/* The request that gets a free lane; NULL: none. It is no prefetch while other requests wait, because one of them may
 * need the lane in a moment. */
const struct hearth_step_waiter *hearth_rank_next(const struct hearth_step *step, const struct hearth_ranking *ranking,
                                                  int64_t now_us);

/* ---- victim.c ---- */

/* Finds a victim when no lane is free. Tried are the first request of all, the first of each class, and the one with
 * the least work. Fills the action and reserves the lane; false: no request may preempt. */
bool hearth_victim_choose(struct hearth_step *step, const struct hearth_ranking *ranking, int64_t now_us,
                          struct hearth_action *action);

/* ---- batch.c ---- */

/* Fills shares[lane] with each lane's tokens of the next batch; returns their sum, at most batch_tokens. `*passed`: a
 * long prefill was left out for a shorter one. */
int32_t hearth_step_fill(const struct hearth_step *step, int64_t now_us, int32_t *shares, bool *passed);

#endif
