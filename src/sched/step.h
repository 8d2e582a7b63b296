/* The step: who computes what next. A pure function of its own state, events and the time; it knows requests and lanes
 * as numbers, no engine and no tokens.
 *
 * Every call of hearth_step_next() returns one action; the caller (service.c) carries it out and tells the outcome
 * through an event before it asks again:
 *
 *     ADMIT id     a lane is free: plan the request   → hearth_step_assign() or hearth_step_hold()
 *     COMPUTE      one batch: shares[lane] tokens     → hearth_step_charge() and hearth_step_computed() per lane, then
 *                                                       sampled or finished
 *     CAPTURE lane nothing better to do: store state  → hearth_step_captured()
 *     YIELD lane   a request matters more             → hearth_step_release(), hearth_step_submit()
 *     SLEEP        nothing at all
 *
 * Batches. Every generating lane gets its token (and those guessed ahead, hearth_step_due()) in every batch. The rest
 * of the batch is prefill, shortest remaining first, with ageing so that a long one is not starved by a stream of short
 * ones; so much of it as the caller says that generating lanes can bear. A long prefill is left out of the batches of a
 * much shorter one, which would wait for its tokens, but never of many in a row; in its own batches it leaves room for
 * short ones, which would wait for those, too. A share ends at the lane's next mark, where the caller may take a
 * snapshot. Captures get all the time there is without work, else one slice between two batches, which the caller keeps
 * short against a batch: what is captured outlasts a crash, so a finished reply does not wait for somebody else's long
 * prompt.
 *
 * Order. A request's rank is when it arrived, plus its class's patience, plus its tenant's debt (sched/account.h): the
 * least is admitted first, and ages most as a prefill. A backlog is no claim: for admission none counts as having come
 * more than HEARTH_SENIOR_US before its tenant was last served; among those of one tenant it goes by when they came.
 * Debts change, so it is looked at when a lane is free. A prompt that is much shorter goes first while the one before
 * it has not waited for long. A held request steps aside until something changes. A warm one is admitted when no other
 * is queued, and gets a few tokens of a batch behind all others while any lane of theirs is busy.
 *
 * Setting aside. While a request waits that is not held, and no lane is free, a lane yields, for the first of these
 * reasons that one has (the figures stand below):
 *
 *     warm         it is a warm request's                                                         keeps its place
 *     class        its class is below the other's                                                 keeps its place
 *     shorter      it has much more left of its prompt than the other, of its class, needs        keeps its place
 *     share        its tenant has had far more than its share, the other's has not                queues anew
 *     slice        it has generated for long, and the other has waited for some time              queues anew
 *
 * For the last three the other's rank has to have come: what its class and its tenant owe is waited for first. Who has
 * been set aside goes on from the state it had; the lane is given to the request for which it was, then to whoever
 * ranks first. A lane that `stays` is not asked: the caller sets that where state could not be kept.
 *
 * Why nobody starves. Of a tenant's requests the first one's rank lies at most 10 s (patience) and HEARTH_DEBT_MAX_US
 * behind its arrival, or behind when the tenant was last served: whoever comes later than these 40 s is behind; before
 * it are finitely many, each with a lane for no more than its prompt and a slice. Within a tenant the order is that of
 * arrival and patience. A request that finds no cells is passed by those who need fewer, but only for
 * HEARTH_CELLS_WAIT_US (by a better class, HEARTH_CELLS_LONG_US): then nobody who ranks behind it is admitted, so that
 * lanes empty until it fits.
 *
 * Why nobody is thrown out forever. But for warm ones, a lane whose request has waited for it yields only when it has
 * run its quantum since it was assigned (a prefill: that much of computing for itself; for a better class, at most
 * HEARTH_QUANTUM_SHARE times that in all). A quantum is a multiple of what setting the request aside and bringing it
 * back cost; it grows by a part of the time that it waited, and doubles each time that state was lost meanwhile. So a
 * request that takes T is set aside at most 1 + T / HEARTH_QUANTUM_LEAST_US times, and starts over at most 2 + log2(T /
 * HEARTH_QUANTUM_US) times.
 *
 * Where cells run out it is the last in rank who gives them up, whatever it has had, and then waits until another has
 * ended. Before that, when something has been computed meanwhile, it may take the cells of a lane that yields, whose
 * request then waits likewise: one more that waits each time, so between two ends that comes to an end, too. */
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

/*    name              value      why */
#define HEARTH_STEP_TABLE(X)                                                                                          \
    X(QUANTUM_TIMES,    5)        /* what setting aside and coming back cost is a fifth of what is had for it */      \
    X(QUANTUM_LEAST_US, 50000)    /* between these two, */                                                            \
    X(QUANTUM_US,       1500000)  /* and this also when much state was lost, */                                       \
    X(LOST_TIMES,       10)       /* doubled each time, so many times at most */                                      \
    X(QUANTUM_SHARE,    4)        /* of the time it was set aside a quantum grows by one part in so many */           \
    X(QUANTUM_MORE_US,  5000000)  /* at most by this: whoever is short waits no longer */                             \
    X(SHORTER_TIMES,    4)        /* a prompt is shorter when it needs a quarter at most: sure, though an estimate */ \
    X(SHORTER_MIN_US,   100000)   /* what is left must take this long, or waiting for it is no worse than a yield */  \
    X(SHORTER_WAIT_US,  5000000)  /* a longer prompt lets shorter ones pass for so long, then it is its turn */       \
    X(SHARE_US,         10000000) /* tenants may part by this much before a lane is taken: a few replies' worth */    \
    X(SENIOR_US,        5000000)  /* beside other tenants a tenant has waited so much longer, at most */              \
    X(SLICE_US,         20000000) /* a reply of a few hundred tokens ends within it: most are never cut */            \
    X(SLICE_WAIT_US,    5000000)  /* who waits less had better let the reply end */                                   \
    X(CELLS_WAIT_US,    5000000)  /* who has a lane, but no cells, may be passed by those who need fewer, */          \
    X(CELLS_LONG_US,    30000000) /* and so long by those of a better class */                                        \
    X(HUMBLE_US,        1000000)  /* how long nobody yields again for who had to wait for something else, */          \
    X(HUMBLE_TIMES,     4)        /* doubled each time, so many times at most */                                      \
    X(LONG_TOKENS,      2048)     /* shorter prefills keep large batches: equal prompts are split alike */            \
    X(PASS_MOST,        3)        /* batches in a row that leave a long prefill out: a short prompt needs two */      \
    X(PREFILL_LEAST,    8)        /* tokens of each batch that prefills get in any case, so that they always go on */

enum {
#define X(name, value) HEARTH_##name = (value),
    HEARTH_STEP_TABLE(X)
#undef X
};

struct hearth_step_lane {
    enum hearth_lane_state state;
    int64_t id;           /* request; 0 when idle */
    enum hearth_class priority;
    uint32_t account;     /* its tenant's */
    int64_t arrived_us;   /* its place in the order */
    int64_t assigned_us, decodes_us; /* since when it has the lane, and generates on it */
    int64_t quantum_us;   /* before it has had that much, it does not yield */
    double spent_us;      /* computing for it since it was assigned */
    int32_t begun;        /* positions the sequence held when it was assigned */
    int32_t computed;     /* positions the sequence holds */
    int32_t target;       /* prefill ends here: prompt length (with generated tokens after a preemption) */
    int32_t marks[HEARTH_MARKS_MAX]; /* ascending positions where a share has to end */
    int mark_count;
    int32_t due;          /* while it decodes: tokens it computes in the next batch */
    bool stays;           /* it does not yield, but for a warm one: its state could not be kept */
    bool capture; /* state waits to be captured */
    int64_t capture_since_us;
};

struct hearth_step_request {
    int64_t id;
    enum hearth_class priority;
    struct hearth_tenant tenant;
    int64_t arrived_us;   /* its place in the order */
    int64_t queued_us;    /* since when it waits: later than that once it was set aside */
    int32_t tokens;
    uint32_t lost;        /* how often it lost much state while it was set aside */
    bool aside;           /* it has had a lane */
    /* The step's own. */
    uint32_t account;
    int32_t need_tokens;  /* about what has to be computed of its prompt; negative: not known */
    int64_t humble_until_us; /* until then it waits for a lane that is free */
    uint32_t humbled;        /* how often a lane was set aside for it in vain */
    int64_t cells_us; /* since when it has lacked cells; 0: it has not */
    uint32_t held_at; /* change counter when it was held; retried when the counter moves on; 0 = not held */
};

struct hearth_step_params {
    uint32_t lanes;
    int32_t batch_tokens;         /* most tokens in one batch */
    int32_t chunk_tokens;         /* prefill tokens per batch: what is computed at once anyway */
    int32_t beside_tokens;        /* of these, most while a lane generates; 0: no fewer */
    int32_t alone_tokens;         /* and while none does, and a long prefill runs; 0: no fewer */
    int32_t warm_chunk_tokens;    /* of these, most for warm requests while lanes of others are busy */
    int32_t warm_alone_tokens;    /* and while none is: whoever comes waits for the batch to end; 0: no limit */
    double ageing_tokens_per_s;   /* remaining tokens forgiven per second of waiting */
    double prefill_us;            /* about what a prompt's token takes; 0: not known, nobody yields for being longer */
};

struct hearth_step {
    struct hearth_step_params params;
    struct hearth_step_lane lanes[HEARTH_LANES_MAX];
    struct hearth_step_request *queue; /* in the order in which they came */
    size_t queued, queue_cap;
    struct hearth_accounts accounts;
    int64_t favoured;  /* a lane has yielded for this request: it is the next; 0: none */
    uint32_t changes;  /* moves whenever a held request may find things different */
    uint32_t moves;    /* moves with the queue */
    uint32_t passed;    /* how many batches in a row a long prefill has been left out of */
    bool captured_last; /* the last action was a capture slice: compute before the next */
};

enum hearth_action_type {
    HEARTH_ACTION_SLEEP,
    HEARTH_ACTION_ADMIT,
    HEARTH_ACTION_COMPUTE,
    HEARTH_ACTION_CAPTURE,
    HEARTH_ACTION_YIELD,
};

struct hearth_action {
    enum hearth_action_type type;
    int64_t id;  /* ADMIT; YIELD: the request for which */
    int lane;    /* CAPTURE, YIELD */
    bool anew;   /* YIELD: it queues anew, with the time it was set aside as its arrival */
    bool alone;  /* CAPTURE: nothing else waits, take all the time you need until an event arrives */
    int32_t shares[HEARTH_LANES_MAX]; /* COMPUTE: tokens per lane */
};

void hearth_step_init(struct hearth_step *step, const struct hearth_step_params *params);
void hearth_step_finish(struct hearth_step *step);

/* The next action. Pure but for the bookkeeping of turns. */
void hearth_step_next(struct hearth_step *step, int64_t now_us, struct hearth_action *action);

/* Where a queued request stands in the order of admission; warm ones stand behind all others. */
struct hearth_rank {
    int64_t rank_us; /* when it counts as arrived; INT64_MAX for a warm one */
    int64_t came_us; /* and among those of its tenant */
};
struct hearth_rank hearth_step_rank(const struct hearth_step *step, const struct hearth_step_request *request);
bool hearth_rank_before(struct hearth_rank a, struct hearth_rank b);

/* The lane that yields to a queued request which cannot use one that is free, for want of cells; -1: none does now.
 * `*anew` as in the action. */
int hearth_step_yields_to(const struct hearth_step *step, int64_t id, int64_t now_us, bool *anew);
/* The busy lane whose request ranks last: it gives its cells up when a batch finds too few. -1: none is busy. */
int hearth_step_last_lane(const struct hearth_step *step);
/* When the request of a busy lane counts as arrived; INT64_MAX: it is warm. */
int64_t hearth_step_lane_rank_us(const struct hearth_step *step, const struct hearth_step_lane *lane);
/* Whether a lane reads a prompt that takes many batches. */
static inline bool hearth_step_is_long(const struct hearth_step_lane *lane) {
    return lane->state == HEARTH_LANE_PREFILL && lane->target - lane->begun > HEARTH_LONG_TOKENS;
}
/* Whether it reads one that takes a few, and for which somebody waits. */
static inline bool hearth_step_is_short(const struct hearth_step_lane *lane) {
    return lane->state == HEARTH_LANE_PREFILL && lane->priority != HEARTH_CLASS_WARM && !hearth_step_is_long(lane);
}

/* ---- events ---- */

/* A request arrived, or came back after it was set aside. False: out of memory. */
bool hearth_step_submit(struct hearth_step *step, const struct hearth_step_request *request);
/* A queued request is gone. */
void hearth_step_withdraw(struct hearth_step *step, int64_t id);
/* About how many tokens a queued request has to compute before it generates. */
void hearth_step_need(struct hearth_step *step, int64_t id, int32_t tokens);
/* A queued request runs on an idle lane, which holds `computed` of its `target` positions. Marks ascend, lie in
 * (computed, target); more than HEARTH_MARKS_MAX are cut. Setting it aside and bringing it back cost `aside_us`. */
void hearth_step_assign(struct hearth_step *step, int64_t id, int lane, int32_t computed, int32_t target,
                        const int32_t *marks, size_t mark_count, int64_t aside_us, int64_t now_us);
/* A queued request cannot run now: not asked for again until something changes; and if a lane yielded for it, no other
 * does for some time. `cells`: what it lacks are cells, and who ranks behind it does not keep it from them forever. */
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
/* The lane's request ended or was set aside; its state, if any, waits to be captured. */
void hearth_step_release(struct hearth_step *step, int lane, bool capture, int64_t now_us);
/* The lane's state was captured (or dropped). */
void hearth_step_captured(struct hearth_step *step, int lane);
/* Something outside changed that a held request may have waited for. */
void hearth_step_changed(struct hearth_step *step);

#endif
