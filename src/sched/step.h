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
/* Fewer tokens are no reason for a stop, which costs a batch of its own, nor to wait for another lane that computes
 * them: prompts that have no more in common than how a template begins would wait for each other. */
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
    uint32_t account;                /* of its tenant */
    int64_t arrived_us;              /* its place in the order */
    int64_t assigned_us, decodes_us; /* since when it has the lane, and generates on it */
    int64_t quantum_us;              /* it is no victim before it has had the lane for so long */
    double spent_us;                 /* computing for it since it was assigned */
    int32_t begun;                   /* positions the sequence held when it was assigned */
    int32_t computed;                /* positions the sequence holds */
    int32_t target;                  /* prefill ends here: prompt length (with generated tokens after a preemption) */
    int32_t marks[HEARTH_MARKS_MAX]; /* ascending positions where a share has to end */
    int mark_count;
    int32_t due;          /* while it decodes: tokens it computes in the next batch */
    bool idle;            /* computes only while no lane of another request is busy */
    bool not_preemptible; /* its state could not be kept: no victim, unless it is a prefetch */
    bool capture;         /* state waits to be captured */
    int64_t capture_since_us;
};

struct hearth_step_request {
    int64_t id;
    enum hearth_class priority;
    struct hearth_tenant tenant;
    int64_t arrived_us; /* its place in the order */
    int64_t queued_us;  /* since when it waits: later than that once it was preempted */
    int32_t tokens;
    uint32_t lost;  /* how often it lost much state while it was preempted */
    bool preempted; /* it has had a lane */
    bool idle;      /* a prefetch that runs only while no other request does */
};

/* What does not change. */
struct hearth_step_params {
    uint32_t lanes;
    int32_t batch_tokens;       /* most tokens in one batch */
    int32_t chunk_tokens;       /* prefill tokens per batch: what is computed at once anyway */
    double ageing_tokens_per_s; /* remaining tokens forgiven per second of waiting */
};

/* What follows from the speed of the machine. */
struct hearth_step_sizes {
    int32_t beside_tokens;         /* of the chunk, most while a lane generates; 0: no fewer */
    int32_t alone_tokens;          /* and while none does, and a long prefill runs; 0: no fewer */
    int32_t prefetch_chunk_tokens; /* of these, most for prefetches while lanes of other requests are busy */
    int32_t prefetch_alone_tokens; /* and while none is: a request that arrives waits for the batch; 0: no limit */
    int32_t idle_tokens;           /* likewise, of those that run in idle time */
    bool bursts;                   /* short prompts that outnumber the generating lanes are computed in one batch */
    double prefill_us;             /* about what a prompt's token takes; 0: not known, length is no reason to preempt */
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
    int32_t shares[HEARTH_LANES_MAX]; /* COMPUTE: tokens per lane; CAPTURE: of the batch after it */
};

struct hearth_step;

/* NULL: out of memory. */
struct hearth_step *hearth_step_create(const struct hearth_step_params *params);
void hearth_step_destroy(struct hearth_step *step);

/* The next action. Pure but for the bookkeeping of turns. */
void hearth_step_next(struct hearth_step *step, int64_t now_us, struct hearth_action *action);

/* A lane, to be read only. */
const struct hearth_step_lane *hearth_step_lane(const struct hearth_step *step, int lane);
/* How many requests are queued; and a number that moves with the queue. */
size_t hearth_step_queued(const struct hearth_step *step);
uint32_t hearth_step_moves(const struct hearth_step *step);
/* The queue in the order of admission: writes at most `cap` places, returns how many. */
struct hearth_step_place {
    int64_t id;
    bool held;
};
size_t hearth_step_waiting(const struct hearth_step *step, struct hearth_step_place *places, size_t cap);
/* The queued request that is to be estimated next (hearth_step_need()): the first that has not been, then the `turn`-th
 * of all. 0: the queue is empty. `*unknown`: it has not been. */
int64_t hearth_step_unestimated(const struct hearth_step *step, uint64_t turn, bool *unknown);

/* The victim for a queued request that cannot use a free lane, for want of cells; -1: there is none now.
 * `*loses_place` as in the action. */
int hearth_step_victim_for(const struct hearth_step *step, int64_t id, int64_t now_us, bool *loses_place);
/* The busy lane with the largest start tag: the victim when a batch finds too few cells. -1: none is busy. */
int hearth_step_cells_victim(const struct hearth_step *step);
/* Whether a lane reads a prompt that takes many batches. */
static inline bool hearth_step_is_long(const struct hearth_step_lane *lane) {
    return lane->state == HEARTH_LANE_PREFILL && lane->target - lane->begun > HEARTH_LONG_TOKENS;
}
/* Whether it reads one that takes a few, and is no prefetch. */
static inline bool hearth_step_is_short(const struct hearth_step_lane *lane) {
    return lane->state == HEARTH_LANE_PREFILL && lane->priority != HEARTH_CLASS_PREFETCH && !hearth_step_is_long(lane);
}

/* ---- events ---- */

/* The machine is as fast as this now. */
void hearth_step_resize(struct hearth_step *step, const struct hearth_step_sizes *sizes);
/* State of a lane waits to be captured, or does not. */
void hearth_step_pending(struct hearth_step *step, int lane, bool capture);
/* Whether the state of a busy lane could not be kept if it was preempted: then it is no victim. */
void hearth_step_set_not_preemptible(struct hearth_step *step, int lane, bool not_preemptible);

/* A request arrived, or was preempted. False: out of memory. */
bool hearth_step_submit(struct hearth_step *step, const struct hearth_step_request *request);
/* A queued request is gone. */
void hearth_step_withdraw(struct hearth_step *step, int64_t id);
/* About how many tokens a queued request has to compute before it generates. */
void hearth_step_need(struct hearth_step *step, int64_t id, int32_t tokens);
/* A queued request runs on an idle lane, which holds `computed` of its `target` positions. Marks ascend, lie in
 * (computed, target); more than HEARTH_MARKS_MAX are cut. Preempting it and bringing it back cost `preempt_cost_us`. */
void hearth_step_assign(struct hearth_step *step, int64_t id, int lane, int32_t computed, int32_t target,
                        const int32_t *marks, size_t mark_count, int64_t preempt_cost_us, int64_t now_us);
/* A queued request cannot run now: it is not tried again until something changes; and if a lane was preempted for it,
 * it preempts no other for some time. `cells`: what it lacks are cells, and requests behind it do not keep it from them
 * forever. */
void hearth_step_hold(struct hearth_step *step, int64_t id, bool cells, int64_t now_us);
/* Adds a mark to a prefilling lane. False when the lane is past it or full of marks. */
bool hearth_step_mark(struct hearth_step *step, int lane, int32_t pos);
/* A decoding lane computes so many tokens per batch from now on, instead of one: what is due (more than one when state
 * was rolled back further than tokens were) and what is guessed behind it. A batch that is full gives it fewer. */
void hearth_step_due(struct hearth_step *step, int lane, int32_t tokens);
/* What the lane's part of the last batch cost, in microseconds; before hearth_step_computed(). */
void hearth_step_charge(struct hearth_step *step, int lane, double us);
/* The lane's share was computed, and so many tokens of it are kept. True when the lane stands on a mark (which is then
 * gone). */
bool hearth_step_computed(struct hearth_step *step, int lane, int32_t tokens);
/* The lane's request ended or was preempted; its state, if any, waits to be captured. */
void hearth_step_release(struct hearth_step *step, int lane, bool capture, int64_t now_us);
/* Something outside changed that a held request may have waited for. */
void hearth_step_changed(struct hearth_step *step);

#endif
