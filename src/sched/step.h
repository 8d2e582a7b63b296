/* The step: who computes what next. A pure function of its own state, events and the time; it knows requests and lanes
 * as numbers, no engine and no tokens.
 *
 * Every call of hearth_step_next() returns one action; the caller (service.c) carries it out and tells the outcome
 * through an event before it asks again:
 *
 *     ADMIT id     a lane is free: plan the request   → hearth_step_assign() or hearth_step_hold()
 *     COMPUTE      one batch: shares[lane] tokens     → hearth_step_computed() per lane, then sampled or finished
 *     CAPTURE lane nothing better to do: store state  → hearth_step_captured()
 *     YIELD lane   a warm request is in the way       → hearth_step_release(), hearth_step_submit()
 *     SLEEP        nothing at all
 *
 * Rules. Every generating lane gets its token (and those guessed ahead, hearth_step_due()) in every batch. The rest of
 * the batch is prefill, shortest remaining first, with ageing so that a long one is not starved by a stream of short
 * ones. A share ends at the lane's next mark, where the caller may take a snapshot. Requests are admitted in order of
 * class and arrival (sched/service.h); a held one steps aside until something changes. A warm one is admitted when no
 * other is queued, gives its lane up when another could have it, and gets a few tokens of a batch behind all others
 * while any lane of theirs is busy. Captures get all the time there is without work, else one slice between two
 * batches, which the caller keeps short against a batch: what is captured outlasts a crash, so a finished reply does
 * not wait for somebody else's long prompt. */
#ifndef HEARTH_SCHED_STEP_H
#define HEARTH_SCHED_STEP_H

#include "sched/service.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTH_LANES_MAX 64
#define HEARTH_MARKS_MAX 24
/* A stop costs a batch of its own: not worth it for fewer tokens than this. */
#define HEARTH_MARK_MIN_GAP_TOKENS 32

struct hearth_step_lane {
    enum hearth_lane_state state;
    int64_t id;           /* request; 0 when idle */
    enum hearth_class priority;
    int64_t arrived_us;
    int32_t computed;     /* positions the sequence holds */
    int32_t target;       /* prefill ends here: prompt length (with generated tokens after a preemption) */
    int32_t marks[HEARTH_MARKS_MAX]; /* ascending positions where a share has to end */
    int mark_count;
    int32_t due;          /* while it decodes: tokens it computes in the next batch */
    bool capture; /* state waits to be captured */
    int64_t capture_since_us;
};

struct hearth_step_request {
    int64_t id;
    enum hearth_class priority;
    int64_t arrived_us;
    int32_t tokens;
    uint32_t held_at; /* change counter when it was held; retried when the counter moves on; 0 = not held */
};

struct hearth_step_params {
    uint32_t lanes;
    int32_t batch_tokens;         /* most tokens in one batch */
    int32_t chunk_tokens;         /* prefill tokens per batch: what is computed at once anyway */
    int32_t warm_chunk_tokens;    /* of these, most for warm requests while lanes of others are busy */
    int32_t warm_alone_tokens;    /* and while none is: whoever comes waits for the batch to end; 0: no limit */
    double ageing_tokens_per_s;   /* remaining tokens forgiven per second of waiting */
};

struct hearth_step {
    struct hearth_step_params params;
    struct hearth_step_lane lanes[HEARTH_LANES_MAX];
    struct hearth_step_request *queue; /* in the order of admission */
    size_t queued, queue_cap;
    uint32_t changes;  /* moves whenever a held request may find things different */
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
    int64_t id;  /* ADMIT */
    int lane;    /* CAPTURE, YIELD */
    bool alone;  /* CAPTURE: nothing else waits, take all the time you need until an event arrives */
    int32_t shares[HEARTH_LANES_MAX]; /* COMPUTE: tokens per lane */
};

void hearth_step_init(struct hearth_step *step, const struct hearth_step_params *params);
void hearth_step_finish(struct hearth_step *step);

/* The next action. Pure but for the bookkeeping of turns. */
void hearth_step_next(struct hearth_step *step, int64_t now_us, struct hearth_action *action);

/* ---- events ---- */

/* A request arrived (or came back after a preemption: `front` puts it before all others of its class, and of those
 * below). False: out of memory. */
bool hearth_step_submit(struct hearth_step *step, int64_t id, enum hearth_class priority, int64_t arrived_us,
                        int32_t tokens, bool front);
/* A queued request is gone. */
void hearth_step_withdraw(struct hearth_step *step, int64_t id);
/* A queued request runs on an idle lane, which holds `computed` of its `target` positions. Marks ascend, lie in
 * (computed, target); more than HEARTH_MARKS_MAX are cut. */
void hearth_step_assign(struct hearth_step *step, int64_t id, int lane, int32_t computed, int32_t target,
                        const int32_t *marks, size_t mark_count);
/* A queued request cannot run now: not asked for again until something changes. */
void hearth_step_hold(struct hearth_step *step, int64_t id);
/* Adds a mark to a prefilling lane. False when the lane is past it or full of marks. */
bool hearth_step_mark(struct hearth_step *step, int lane, int32_t pos);
/* A decoding lane computes so many tokens per batch from now on, instead of one: what is due (more than one when state
 * was rolled back further than tokens were) and what is guessed behind it. A batch that is full gives it fewer. */
void hearth_step_due(struct hearth_step *step, int lane, int32_t tokens);
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
