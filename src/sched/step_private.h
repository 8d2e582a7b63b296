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
    int32_t need_tokens;              /* about what has to be computed of its prompt; negative: not known */
    int64_t preempt_backoff_until_us; /* until then it may not preempt */
    int64_t cells_us;                 /* since when it lacks cells; 0: it does not */
    uint32_t held_at; /* change counter when it was held; retried when the counter moves on; 0 = not held */
};

struct hearth_step {
    struct hearth_step_params params;
    struct hearth_step_sizes sizes;
    struct hearth_step_lane lanes[HEARTH_LANES_MAX];
    struct hearth_step_waiter *queue; /* in the order in which they came */
    size_t queued, queue_cap;
    struct hearth_accounts accounts;
    int64_t reserved_for; /* the request for which a lane was preempted: it is the next; 0: none */
    uint32_t changes;     /* moves whenever a held request may find things different */
    uint32_t moves;       /* moves with the queue */
    uint32_t passed;      /* how many batches in a row a long prefill has been left out of */
    bool captured_last;   /* the last action was a capture: compute before the next */
};

/* ---- rank.c ---- */

/* Where a queued request stands in the order of admission; prefetches stand behind all others. */
struct hearth_start_tag {
    int64_t virtual_us; /* when it counts as arrived among all; INT64_MAX for a prefetch */
    int64_t came_us;    /* and among the requests of its tenant */
};
struct hearth_start_tag hearth_rank_tag(const struct hearth_step *step, const struct hearth_step_waiter *waiter);
/* When the request of a busy lane counts as arrived; INT64_MAX: it is a prefetch. */
int64_t hearth_rank_lane_us(const struct hearth_step *step, const struct hearth_step_lane *lane);
/* Whether a lane is busy with more than what is computed in idle time. */
bool hearth_rank_others_run(const struct hearth_step *step);
/* Whether a prompt of `need` tokens (negative: not known) is much shorter than what is left of another. */
bool hearth_rank_shorter(const struct hearth_step *step, int32_t need, int32_t left);
/* The queued requests, not held, that may be admitted or may preempt next: the first of each kind. */
struct hearth_ranking {
    const struct hearth_step_waiter *best[HEARTH_CLASS_PREFETCH + 1]; /* of each class */
    const struct hearth_step_waiter *first;                           /* of all but prefetches */
    const struct hearth_step_waiter *least_work; /* of those past their start tag: by class, then by work */
    bool others;                                 /* a request waits, held or not, that is no prefetch */
};
void hearth_rank_scan(const struct hearth_step *step, bool free, int64_t now_us, struct hearth_ranking *ranking);
/* The request that gets a free lane; NULL: none. No prefetch while other requests wait: one of them may need the lane
 * in a moment. */
const struct hearth_step_waiter *hearth_rank_next(const struct hearth_step *step, const struct hearth_ranking *ranking,
                                                  int64_t now_us);

/* ---- victim.c ---- */

/* No lane is free: whether a request preempts one. Tried are the first of all, the first of each class, and the one
 * with the least to compute. Fills the action, and reserves the lane. */
bool hearth_victim_choose(struct hearth_step *step, const struct hearth_ranking *ranking, int64_t now_us,
                          struct hearth_action *action);

/* ---- batch.c ---- */

/* Fills shares[lane] with the tokens that each lane has of the next batch, for as many lanes as there are; returns how
 * many these are together, at most batch_tokens. `*passed`: a long prefill was left out for a shorter one. */
int32_t hearth_step_fill(const struct hearth_step *step, int64_t now_us, int32_t *shares, bool *passed);

#endif
