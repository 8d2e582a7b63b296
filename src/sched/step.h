/* The step: which request computes next. A pure function of its own state, events and the time; it knows requests and
 * lanes as numbers, no engine and no tokens.
 *
 * Every call of hearth_step_next() returns one action. The caller (service.c) carries it out and reports the outcome
 * through an event before it asks again:
 *
 *     ADMIT id      a lane is free: plan the request   → hearth_step_assign() or hearth_step_hold()
 *     COMPUTE       one batch: shares[lane] tokens     → hearth_step_charge() and hearth_step_computed() per lane, then
 *                                                        sampled or finished
 *     CAPTURE lane  nothing better to do: store state  → hearth_step_captured()
 *     PREEMPT lane  a waiting request matters more     → hearth_step_release(), hearth_step_submit()
 *     SLEEP         nothing at all
 *
 * Batches. Every generating lane gets its token (and those guessed ahead, hearth_step_due()) in every batch. The rest
 * of the batch is prefill, shortest remaining first, with ageing so that a stream of short prompts does not starve a
 * long one; the caller says how much prefill the generating lanes can bear. A long prefill is left out of the batches
 * of a much shorter one, which would wait for its tokens, but never of many in a row; its own batches leave room for
 * short ones for the same reason. With `bursts`, two short prompts or more that outnumber the generating lanes are
 * computed in one batch when what is left of all of them fits: the generating lanes wait once instead of many times,
 * and all prompts end together. A share ends at the lane's next mark, where the caller may take a snapshot. Captures
 * get all the time while no request runs, otherwise one slice between two batches, which the caller keeps short against
 * a batch: captured state outlasts a crash, so a finished reply does not wait for the long prompt of another request.
 *
 * Order. Requests are ordered by start tags, as in start-time fair queueing (sched/account.h): the time of arrival,
 * plus the patience of the request's class, plus the lead of its tenant. The smallest tag is admitted first, and ages
 * most as a prefill. A backlog is no claim: for admission a request counts as having arrived at most HEARTH_BACKLOG_US
 * before its tenant last got a lane; requests of one tenant keep their order of arrival. Leads change, so tags are
 * computed when a lane is free. A much shorter prompt passes the first one while that has not waited for long. A held
 * request is passed over until something changes. A prefetch (class warm) is admitted when no other request is queued,
 * and gets a few tokens of a batch behind all others while any lane of theirs is busy.
 *
 * Preemption. While a request waits that is not held, and no lane is free, it may preempt a victim, for the first of
 * these reasons that some lane offers (the figures stand below):
 *
 *     reason       the victim                                                                  its place in the queue
 *     prefetch     is a prefetch                                                               keeps it
 *     class        is of a worse class than the waiting request                                keeps it
 *     shorter      has much more left of its prompt than the waiting one, of its class, needs  keeps it
 *     share        its tenant had far more than its share, the waiting one's tenant did not    arrives anew
 *     slice        has generated for long, and the waiting request has waited for some time    arrives anew
 *
 * For the last three the start tag of the waiting request has to have passed: it waits out the patience of its class
 * and the lead of its tenant first. A victim goes on from the state it had. The lane goes to the request that preempted
 * it, then to the smallest tag. A lane that is `not_preemptible` is no victim: the caller sets that where state could
 * not be kept.
 *
 * Example: 64k of a background prompt are being read on the only lane when an interactive request of 300 tokens
 * arrives. Its class is better: once the background request has had its quantum, it is preempted, its state is kept,
 * the short prompt is read and answered, and the long one goes on where it stopped.
 *
 * No starvation. The tag of a tenant's first request lies at most 10 s (patience) plus HEARTH_LEAD_MAX_US behind its
 * arrival, or behind the last time that the tenant got a lane: requests that arrive more than these 40 s later are
 * behind it; before it are finitely many, each with a lane for no more than its prompt and a slice. Within a tenant the
 * order is that of arrival and patience. A request that finds no cells is passed by requests that need fewer, but only
 * for HEARTH_CELLS_WAIT_US (by a better class, HEARTH_CELLS_LONG_US): then no request with a larger tag is admitted, so
 * that lanes empty until it fits.
 *
 * No livelock. Except for prefetches, a request that has waited for its lane is a victim only when it has run its
 * quantum since it was assigned (a prefill: that much of computing for itself; for a better class, at most
 * HEARTH_QUANTUM_SHARE times that in all). A quantum is a multiple of what preempting the request and bringing it back
 * cost; it grows by a part of the time that the request waited, and doubles each time that state was lost meanwhile. So
 * a request that takes T is preempted at most 1 + T / HEARTH_QUANTUM_LEAST_US times, and starts over at most 2 + log2(T
 * / HEARTH_QUANTUM_US) times.
 *
 * Cells. When a batch finds too few KV cells, the lane with the largest tag is preempted, ignoring its quantum, and
 * waits until another request has ended. Each such preemption adds a waiter, so their number is bounded between two
 * ends. Before that, once a batch has been computed, the waiting request may take the cells of a victim (by the reasons
 * above), which then waits likewise. */
#ifndef HEARTH_SCHED_STEP_H
#define HEARTH_SCHED_STEP_H

#include "sched/account.h"
#include "sched/service.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTH_LANES_MAX 64
#define HEARTH_MARKS_MAX 40
/* A stop costs a batch of its own: not worth it for fewer tokens than this. */
#define HEARTH_MARK_MIN_GAP_TOKENS 32

/*    name                   value      without it */
#define HEARTH_STEP_TABLE(X)                                                                                       \
    X(QUANTUM_TIMES, 5)            /* preempting and coming back would cost more than a fifth of a turn */         \
    X(QUANTUM_LEAST_US, 50000)     /* turns would be too short to matter, */                                       \
    X(QUANTUM_US, 1500000)         /* or too long; also the turn after much state was lost, */                     \
    X(LOST_TIMES, 10)              /* doubled each time, at most so many times */                                  \
    X(QUANTUM_SHARE, 4)            /* a request that waited for long would be preempted at once: one part of it */ \
    X(QUANTUM_MORE_US, 5000000)    /* at most this, or the next waiter waits as long */                            \
    X(SHORTER_TIMES, 4)            /* estimates would decide between prompts of about equal length */              \
    X(SHORTER_MIN_US, 100000)      /* prompts would be preempted that end sooner than preempting takes */          \
    X(SHORTER_WAIT_US, 5000000)    /* short prompts would pass a long one forever */                               \
    X(SHARE_US, 10000000)          /* tenants that differ by a few replies would preempt each other */             \
    X(BACKLOG_US, 5000000)         /* a tenant with an old backlog would keep new ones waiting */                  \
    X(SLICE_US, 20000000)          /* replies of a few hundred tokens would be cut */                              \
    X(SLICE_WAIT_US, 5000000)      /* replies would be cut for a request that has hardly waited */                 \
    X(CELLS_WAIT_US, 5000000)      /* requests that need fewer cells would pass one that needs many forever, */    \
    X(CELLS_LONG_US, 30000000)     /* and those of a better class, too */                                          \
    X(PREEMPT_BACKOFF_US, 1000000) /* lanes would be preempted in vain for a request that lacks something else, */ \
    X(PREEMPT_BACKOFF_TIMES, 4)    /* doubled each time, at most so many times */                                  \
    X(LONG_TOKENS, 2048)           /* equal prompts of medium length would be split differently */                 \
    X(PASS_MOST, 3)                /* short prompts would leave a long one out of all batches; one needs two */    \
    X(PREFILL_LEAST, 8)            /* prefills would stop beside a full batch of generating lanes */

enum {
#define X(name, value) HEARTH_##name = (value),
    HEARTH_STEP_TABLE(X)
#undef X
};

struct hearth_step_lane {
    enum hearth_lane_state state;
    int64_t id; /* request; 0 when idle */
    enum hearth_class priority;
    uint32_t account;                /* of its tenant */
    int64_t arrived_us;              /* its place in the order */
    int64_t assigned_us, decodes_us; /* since when it has the lane, and generates on it */
    int64_t quantum_us;              /* before it has had that much, it is no victim */
    double spent_us;                 /* computing for it since it was assigned */
    int32_t begun;                   /* positions the sequence held when it was assigned */
    int32_t computed;                /* positions the sequence holds */
    int32_t target;                  /* prefill ends here: prompt length (with generated tokens after a preemption) */
    int32_t marks[HEARTH_MARKS_MAX]; /* ascending positions where a share has to end */
    int mark_count;
    int32_t due;          /* while it decodes: tokens it computes in the next batch */
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
    /* The step's own. */
    uint32_t account;
    int32_t need_tokens;              /* about what has to be computed of its prompt; negative: not known */
    int64_t preempt_backoff_until_us; /* until then it may not preempt */
    uint32_t preempt_backoffs;        /* how often a lane was preempted for it in vain */
    int64_t cells_us;                 /* since when it has lacked cells; 0: it has not */
    uint32_t held_at; /* change counter when it was held; retried when the counter moves on; 0 = not held */
};

struct hearth_step_params {
    uint32_t lanes;
    int32_t batch_tokens;       /* most tokens in one batch */
    int32_t chunk_tokens;       /* prefill tokens per batch: what is computed at once anyway */
    int32_t beside_tokens;      /* of these, most while a lane generates; 0: no fewer */
    int32_t alone_tokens;       /* and while none does, and a long prefill runs; 0: no fewer */
    bool bursts;                /* short prompts that outnumber the generating lanes are computed in one batch */
    int32_t warm_chunk_tokens;  /* of these, most for prefetches while lanes of other requests are busy */
    int32_t warm_alone_tokens;  /* and while none is: a request that arrives waits for the batch; 0: no limit */
    double ageing_tokens_per_s; /* remaining tokens forgiven per second of waiting */
    double prefill_us;          /* about what a prompt's token takes; 0: not known, length is no reason to preempt */
};

struct hearth_step {
    struct hearth_step_params params;
    struct hearth_step_lane lanes[HEARTH_LANES_MAX];
    struct hearth_step_request *queue; /* in the order in which they came */
    size_t queued, queue_cap;
    struct hearth_accounts accounts;
    int64_t reserved_for; /* the request for which a lane was preempted: it is the next; 0: none */
    uint32_t changes;     /* moves whenever a held request may find things different */
    uint32_t moves;       /* moves with the queue */
    uint32_t passed;      /* how many batches in a row a long prefill has been left out of */
    bool captured_last;   /* the last action was a capture slice: compute before the next */
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
    int64_t id;       /* ADMIT; PREEMPT: the request that gets the lane */
    int lane;         /* CAPTURE; PREEMPT: the victim */
    bool loses_place; /* PREEMPT: the victim queues as if it arrived now */
    bool alone;       /* CAPTURE: nothing else waits, take all the time you need until an event arrives */
    int32_t shares[HEARTH_LANES_MAX]; /* COMPUTE: tokens per lane */
};

void hearth_step_init(struct hearth_step *step, const struct hearth_step_params *params);
void hearth_step_finish(struct hearth_step *step);

/* The next action. Pure but for the bookkeeping of turns. */
void hearth_step_next(struct hearth_step *step, int64_t now_us, struct hearth_action *action);

/* Where a queued request stands in the order of admission; prefetches stand behind all others. */
struct hearth_start_tag {
    int64_t virtual_us; /* when it counts as arrived among all; INT64_MAX for a prefetch */
    int64_t came_us;    /* and among the requests of its tenant */
};
struct hearth_start_tag hearth_step_start_tag(const struct hearth_step *step,
                                              const struct hearth_step_request *request);
bool hearth_start_tag_before(struct hearth_start_tag a, struct hearth_start_tag b);

/* The victim for a queued request that cannot use a free lane, for want of cells; -1: there is none now.
 * `*loses_place` as in the action. */
int hearth_step_victim_for(const struct hearth_step *step, int64_t id, int64_t now_us, bool *loses_place);
/* The busy lane with the largest start tag: the victim when a batch finds too few cells. -1: none is busy. */
int hearth_step_cells_victim(const struct hearth_step *step);
/* When the request of a busy lane counts as arrived; INT64_MAX: it is a prefetch. */
int64_t hearth_step_lane_start_us(const struct hearth_step *step, const struct hearth_step_lane *lane);
/* Whether a lane reads a prompt that takes many batches. */
static inline bool hearth_step_is_long(const struct hearth_step_lane *lane) {
    return lane->state == HEARTH_LANE_PREFILL && lane->target - lane->begun > HEARTH_LONG_TOKENS;
}
/* Whether it reads one that takes a few, and is no prefetch. */
static inline bool hearth_step_is_short(const struct hearth_step_lane *lane) {
    return lane->state == HEARTH_LANE_PREFILL && lane->priority != HEARTH_CLASS_WARM && !hearth_step_is_long(lane);
}

/* ---- events ---- */

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
/* The lane's state was captured (or dropped). */
void hearth_step_captured(struct hearth_step *step, int lane);
/* Something outside changed that a held request may have waited for. */
void hearth_step_changed(struct hearth_step *step);

#endif
