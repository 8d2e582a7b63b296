/* The step: which request computes next. A pure function of its own state, events and the time; it knows requests and
 * lanes as numbers, no engine and no tokens.
 *
 * Every call of hearth_step_next() returns one action. The caller (run.c) carries it out and reports the outcome
 * through an event before it asks again:
 *
 *     ADMIT id      a lane is free: plan the request   → hearth_step_assign() or hearth_step_hold()
 *     COMPUTE       one batch: shares[lane] tokens     → hearth_step_charge() and hearth_step_computed() per lane, then
 *                                                        sampled or finished
 *     CAPTURE lane  store state of a lane in RAM       → hearth_step_pending()
 *     PREEMPT lane  a waiting request needs it more    → hearth_step_release(), hearth_step_submit()
 *     SLEEP         nothing can be done before an event comes
 *
 * Batches. Every generating lane gets its token (and those guessed ahead, hearth_step_due()) in every batch. The rest
 * of the batch is prefill, shortest remaining first, with ageing so that a stream of short prompts does not starve a
 * long one; the caller says how much prefill the generating lanes can bear. A long prefill is left out of the batches
 * of a much shorter one, which would wait for its tokens, but never of many in a row; its own batches leave room for
 * short ones for the same reason. With `bursts`, two short prompts or more that outnumber the generating lanes are
 * computed in one batch when what is left of all of them fits: the generating lanes wait once instead of many times,
 * and all prompts end together. A share ends at the lane's next mark, where the caller may take a snapshot. Captures
 * get all the time while no request runs, otherwise one page between two batches: captured state outlasts a crash, so
 * a finished reply does not wait for the long prompt of another request.
 *
 * Order and preemption: rank.c and victim.c.
 */
#ifndef HEARTH_SCHED_STEP_H
#define HEARTH_SCHED_STEP_H

#include "sched/service.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTH_LANES_MAX 64
#define HEARTH_MARKS_MAX 40
/* A shorter gap is not worth a stop, which costs a batch of its own, nor waiting for another lane that computes the
 * same tokens: prompts that share no more than the beginning of their template would wait for each other. */
#define HEARTH_MARK_MIN_GAP_TOKENS 32

/* In brackets: the trace in tests/golden that the value decides.
 *
 *    name                   value      without it */
#define HEARTH_STEP_TABLE(X)                                                                                           \
    X(QUANTUM_TIMES, 5)         /* preempting and coming back would cost more than a fifth of a turn (preempt-cost) */ \
    X(QUANTUM_LEAST_US, 50000)  /* turns would be too short to matter, */                                              \
    X(QUANTUM_US, 1500000)      /* or too long; also the turn after much state was lost, */                            \
    X(LOST_TIMES, 10)           /* doubled each time, at most so many times (preempt-lost) */                          \
    X(QUANTUM_SHARE, 4)         /* a request that waited for long would be preempted at once: one part of it */        \
    X(QUANTUM_MORE_US, 5000000) /* at most this, or the next waiter waits as long (preempt-waited) */                  \
    X(SHORTER_TIMES, 4)         /* estimates would decide between prompts of about equal length */                     \
    X(SHORTER_MIN_US, 100000)   /* prompts would be preempted that are nearly read (preempt-nearly-read) */            \
    X(SHORTER_WAIT_US, 5000000) /* short prompts would pass a long one forever */                                      \
    X(SHARE_US, 10000000)       /* tenants that differ by a few replies would preempt each other (preempt-lead) */     \
    X(BACKLOG_US, 5000000)      /* a tenant with an old backlog would keep new ones waiting */                         \
    X(SLICE_US, 20000000)       /* replies of a few hundred tokens would be cut */                                     \
    X(SLICE_WAIT_US, 5000000)   /* replies would be cut for a request that has hardly waited */                        \
    X(CELLS_WAIT_US, 5000000)   /* requests that need fewer cells would pass one that needs many forever, */           \
    X(CELLS_LONG_US, 30000000)  /* and those of a better class, too */                                                 \
    X(PREEMPT_BACKOFF_US, 2000000) /* lanes would be preempted in vain, again and again (cells-in-vain) */             \
    X(LONG_TOKENS, 2048)           /* equal prompts of medium length would be split differently */                     \
    X(PASS_MOST, 3)                /* short prompts would leave a long one out of all batches (long-among-short) */    \
    X(PREFILL_LEAST, 8)            /* prefills would crawl beside a full batch of generating lanes (full-batches) */

enum {
#define X(name, value) HEARTH_##name = (value),
    HEARTH_STEP_TABLE(X)
#undef X
};

/* A lane: what llama.cpp calls a slot. A request that runs, with one sequence of the engine. */
struct hearth_step_lane {
    enum hearth_lane_state state;
    int64_t id; /* request; 0 when idle */
    enum hearth_class priority;
    uint32_t account;                /* index of its tenant's account */
    int64_t arrived_us;              /* its place in the order of admission */
    int64_t assigned_us, decodes_us; /* when it got the lane, and when it began to generate */
    int64_t quantum_us;              /* it may be preempted once it has had the lane this long */
    double spent_us;                 /* computing charged to it since it got the lane */
    int32_t begun;                   /* positions that the sequence held when it got the lane */
    int32_t computed;                /* positions that the sequence holds */
    int32_t target; /* the prefill ends here: the length of the prompt (and of generated tokens, after a preemption) */
    int32_t marks[HEARTH_MARKS_MAX]; /* ascending positions where a share has to end */
    int mark_count;
    int32_t due;          /* while it decodes: tokens it computes in the next batch */
    bool idle;            /* it computes only while no other request has a busy lane */
    bool not_preemptible; /* its state could not be kept: it is no victim, unless it is a prefetch */
    bool capture;         /* state waits to be captured */
    int64_t capture_since_us;
};

struct hearth_step_request {
    int64_t id;
    enum hearth_class priority;
    struct hearth_tenant tenant;
    int64_t arrived_us; /* its place in the order of admission */
    int64_t queued_us;  /* when its present wait began; later than arrived_us after a preemption */
    uint32_t lost;      /* how often it lost much state during a preemption */
    bool preempted;     /* it has had a lane */
    bool idle;          /* a prefetch that runs only while no other request does */
};

/* Constants of one machine and engine. */
struct hearth_step_params {
    uint32_t lanes;
    int32_t batch_tokens;       /* most tokens of a batch */
    int32_t chunk_tokens;       /* prefill tokens per batch: what the engine computes at once in any case */
    double ageing_tokens_per_s; /* a waiting prefill counts as this many tokens shorter for each second */
};

/* Sizes that follow from the speed of the machine. */
struct hearth_step_sizes {
    int32_t beside_tokens;         /* most prefill tokens of the chunk while a lane generates; 0: no limit */
    int32_t alone_tokens;          /* most while none generates and a long prefill runs; 0: no limit */
    int32_t prefetch_chunk_tokens; /* most for prefetches while lanes of other requests are busy */
    int32_t prefetch_alone_tokens; /* most for prefetches while none is, since a request that arrives waits for the
                                      batch; 0: no limit */
    int32_t idle_tokens;           /* the same for prefetches of idle time */
    bool bursts;                   /* short prompts that outnumber the generating lanes are computed in one batch */
    double prefill_us; /* about how long a prompt token takes; 0: unknown, and no request is preempted for its length */
};

enum hearth_action_type {
    HEARTH_ACTION_SLEEP,
    HEARTH_ACTION_ADMIT,
    HEARTH_ACTION_COMPUTE,
    HEARTH_ACTION_CAPTURE,
    HEARTH_ACTION_PREEMPT,
};

struct hearth_action {
    enum hearth_action_type type;
    int64_t id;                       /* ADMIT; PREEMPT: the request that gets the lane */
    int lane;                         /* CAPTURE; PREEMPT: the victim */
    bool loses_place;                 /* PREEMPT: the victim queues as if it arrived now */
    int32_t shares[HEARTH_LANES_MAX]; /* COMPUTE: tokens of each lane; CAPTURE: those of the batch after it */
};

struct hearth_step;

/* Makes a step; NULL: out of memory. */
struct hearth_step *hearth_step_create(const struct hearth_step_params *params);
void hearth_step_destroy(struct hearth_step *step);

/* Decides the next action. Pure except for the bookkeeping of turns. */
void hearth_step_next(struct hearth_step *step, int64_t now_us, struct hearth_action *action);

/* A lane, for reading only. */
const struct hearth_step_lane *hearth_step_lane(const struct hearth_step *step, int lane);
size_t hearth_step_queued(const struct hearth_step *step);
/* A place of the queue; hearth_step_waiting() writes the first ones in the order of admission and returns how many. */
struct hearth_step_place {
    int64_t id;
    bool held;
};
size_t hearth_step_waiting(const struct hearth_step *step, struct hearth_step_place places[HEARTH_WAITING_MAX]);
/* The queued request to estimate next (hearth_step_need()): the first without an estimate, else the `turn`-th of all.
 * 0: the queue is empty. `*unknown`: it has no estimate. */
int64_t hearth_step_unestimated(const struct hearth_step *step, uint64_t turn, bool *unknown);

/* The victim for a queued request that cannot use a free lane, for want of cells; -1: there is none now.
 * `*loses_place` as in the action. */
int hearth_step_victim_for(const struct hearth_step *step, int64_t id, int64_t now_us, bool *loses_place);
/* Whether a queued request lacks cells. `*victim`: such a request is held, and could have those of a victim now. */
bool hearth_step_lacks_cells(const struct hearth_step *step, int64_t now_us, bool *victim);
/* The busy lane with the largest start tag, the victim when a batch finds too few cells. -1: none is busy. */
int hearth_step_cells_victim(const struct hearth_step *step);
/* Whether the lane prefills a prompt that takes many batches. */
static inline bool hearth_step_is_long(const struct hearth_step_lane *lane) {
    return lane->state == HEARTH_LANE_PREFILL && lane->target - lane->begun > HEARTH_LONG_TOKENS;
}
/* Whether the lane prefills a prompt that takes few batches and is no prefetch. */
static inline bool hearth_step_is_short(const struct hearth_step_lane *lane) {
    return lane->state == HEARTH_LANE_PREFILL && lane->priority != HEARTH_CLASS_PREFETCH && !hearth_step_is_long(lane);
}

/* ---- events ---- */

/* Sets the sizes that follow from the machine's speed. */
void hearth_step_resize(struct hearth_step *step, const struct hearth_step_sizes *sizes);
/* Says whether state of a lane waits to be captured. */
void hearth_step_pending(struct hearth_step *step, int lane, bool capture);
/* Says whether the state of a busy lane could not be kept if it were preempted: then it is no victim. */
void hearth_step_set_not_preemptible(struct hearth_step *step, int lane, bool not_preemptible);

/* Adds a request that arrived or was preempted. False: out of memory. */
bool hearth_step_submit(struct hearth_step *step, const struct hearth_step_request *request);
/* Removes a queued request. */
void hearth_step_withdraw(struct hearth_step *step, int64_t id);
/* Says about how many tokens a queued request has to compute before it generates. */
void hearth_step_need(struct hearth_step *step, int64_t id, int32_t tokens);
/* Puts a queued request on an idle lane that holds `computed` of its `target` positions. Marks ascend and lie in
 * (computed, target); those beyond HEARTH_MARKS_MAX are dropped. `preempt_cost_us`: the cost of preempting it and
 * bringing it back. */
void hearth_step_assign(struct hearth_step *step, int64_t id, int lane, int32_t computed, int32_t target,
                        const int32_t *marks, size_t mark_count, int64_t preempt_cost_us, int64_t now_us);
/* Holds a queued request: it is not tried again until something changes, and if a lane was preempted for it, it
 * preempts no other for some time. `cells`: it lacks cells, and requests behind it may take them only for a limited
 * time. */
void hearth_step_hold(struct hearth_step *step, int64_t id, bool cells, int64_t now_us);
/* Adds a mark to a prefilling lane. False: the lane is past it, or has all the marks it can have. */
bool hearth_step_mark(struct hearth_step *step, int lane, int32_t pos);
/* Sets how many tokens a decoding lane computes per batch, instead of one: the due tokens (more than one if state was
 * cut back further than tokens were) and the guesses behind them. A full batch gives it fewer. */
void hearth_step_due(struct hearth_step *step, int lane, int32_t tokens);
/* Charges the cost of the lane's part of the last batch, in microseconds; before hearth_step_computed(). */
void hearth_step_charge(struct hearth_step *step, int lane, double us);
/* The lane's share was computed, and so many of its tokens are kept. True: the lane stands on a mark, which is removed.
 */
bool hearth_step_computed(struct hearth_step *step, int lane, int32_t tokens);
/* The lane's request ended or was preempted; `capture`: its state waits to be captured. */
void hearth_step_release(struct hearth_step *step, int lane, bool capture, int64_t now_us);
/* Says that something changed that a held request may wait for. */
void hearth_step_changed(struct hearth_step *step);

#endif
