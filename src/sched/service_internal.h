/* Inside the service: tasks, lanes and the inbox. service_life.c is the outside; the other files belong to its thread.
 */
#ifndef HEARTH_SCHED_SERVICE_INTERNAL_H
#define HEARTH_SCHED_SERVICE_INTERNAL_H

#include "cache/cache.h"
#include "sched/pace.h"
#include "sched/reply.h"
#include "sched/admission.h"
#include "sched/service.h"
#include "sched/speculate.h"
#include "sched/step.h"
#include "sched/thinking.h"

#include <pthread.h>
#include <stdatomic.h>

#define HEARTH_POLL_EVENTS 512
#define HEARTH_ENDED_MAX 32
#define HEARTH_ENDED_TOKENS ((size_t)1 << 20) /* of all remembered requests together */

/* A request that has ended, with what is needed when its conversation is expected back. */
struct hearth_ended {
    int64_t id; /* 0: none */
    struct hearth_digest salt;
    struct hearth_tokens tokens;
    int lane; /* where the request ran last */
};

/* A note from another thread about a request: cancel it, or expect its conversation back. */
struct hearth_note {
    int64_t id, expect_us; /* expect_us 0: cancel the request */
};

/* A forget that is not finished; in a list. */
struct hearth_task_forget {
    struct hearth_task_forget *next;
    struct hearth_tokens tokens;
    int32_t keep;
    struct hearth_digest salt;
    void (*done)(void *user, int err);
    void *user;
    bool sought, begun;
    bool unseen;   /* a shared store could not be asked what it has */
    uint64_t seek; /* the ticket of that question */
};

/* A request from arrival to its last event. The service's thread owns it once it has left the inbox. */
struct hearth_task {
    struct hearth_task *next; /* in the inbox, then in the list of active tasks */
    int64_t id;
    struct hearth_tokens tokens; /* prompt, then what was generated */
    size_t prompt_tokens;
    int32_t marks[HEARTH_MARKS_MAX];
    size_t mark_count;
    struct hearth_pin pins[HEARTH_PINS_MAX];
    size_t pin_count;
    int32_t end_mark;              /* the mark that stands for the prompt's end; 0: none */
    bool end_kept;                 /* a snapshot was taken there */
    struct hearth_request request; /* the request without prompt, marks and pins; points into `block` */
    void *block;
    struct hearth_event *failure;   /* allocated at the start, so that a failure can always be told */
    struct hearth_sampler *sampler; /* made at the first admission */
    struct hearth_reply reply;
    struct hearth_thinker thinker;
    size_t scripted;       /* tokens of the script that were used */
    uint8_t unfinished[4]; /* bytes of an unfinished character at the end of the text */
    size_t unfinished_len;

    int lane;          /* -1: queued */
    bool in_admission; /* it has an admission slot: it waits, and is no prefetch; only the service's thread changes it
                          once it is submitted */
    int last_lane;     /* lane where it ran last; -1: none */
    int64_t expect_us; /* how long its conversation is expected back after its end; 0: it is not */
    bool admitted;     /* it has had a lane, and the receipt's reuse is filled */
    bool prefilled;    /* the first token was sampled, or there is none to sample */
    int64_t fetch_us;  /* when reading its state began; 0: never */
    int64_t seek_us;   /* when the backing tier was asked about the prompt; 0: never */
    uint64_t seek;     /* the ticket of that question; 0: nothing to wait for */
    struct {
        int32_t resume;                   /* the most that any plan could reuse before the task got its lane */
        uint64_t bad_reads, store_misses; /* the cache's counters at that plan */
    } planned;
    int32_t persisted;        /* tokens of its sequence at the last capture on the way */
    int32_t divergence;       /* where the prompt left a known path; 0: nowhere */
    uint64_t preempted_steps; /* batches computed when it was last preempted */
    uint32_t waits_for_ended; /* it lacks cells: held until so many tasks with a lane have ended, no lane is busy, or a
                                 victim gives it its cells; 0: not held */
    uint32_t generated;
    int64_t submitted_us, started_us, first_us, last_us;
    int64_t lane_us; /* hearth_clock_us() when it got its lane; for spans */
    struct hearth_receipt receipt;

    int64_t deadline_us;                      /* the engine's clock; 0: none */
    int64_t queued_us;                        /* when its present wait began */
    int64_t waited_us, prefill_us, decode_us; /* sums: earlier waits, and time on earlier lanes */
    int32_t ahead;                            /* positions captured on the way, in whole pages */
    int32_t preempted_at;                     /* positions that it held when it was last preempted */
    int32_t turn_begun;                       /* and at the beginning of that turn, */
    int64_t turn_us;                          /* whose prefill took so long */
    int64_t faults;                           /* page faults of the process when it first got a lane */
    int64_t preempt_cost_us;                  /* time that preempting it and capturing its state took */
    bool waits;                               /* it has no lane */
    enum hearth_wait wait;                    /* while it has no lane: the thing it waits for */
    int64_t wait_since_us;
    uint64_t firsts; /* requests that had had a lane when this one came, and how many of them were busy */
    uint32_t busy_then;
    struct hearth_speculation spec;
    uint32_t preemptions, lost; /* how often it was preempted, and how often much of its state was lost meanwhile */
};

struct hearth_service {
    struct hearth_engine *engine;
    struct hearth_service_params params;
    pthread_t thread;

    /* Shared with other threads, under the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* something is in the inbox */
    pthread_cond_t idle; /* a task ended */
    struct hearth_task *inbox, **inbox_tail;
    struct hearth_note *notes;
    size_t note_count, note_cap;
    bool cancel_all, cancel_prefetches, draining, stopping;
    struct hearth_task_forget *forget_inbox, **forget_inbox_tail;
    bool backing_ready; /* the backing tier has events */
    int64_t next_id;
    size_t active;                     /* requests that were accepted and have not ended */
    struct hearth_admission admission; /* slots of requests without a lane (no prefetches), announced ones included */
    uint32_t announced;                /* slots of requests that are not submitted yet */
    uint32_t on_lanes;                 /* requests on a lane, except prefetches */
    uint32_t prefetches;               /* prefetches that were accepted and have not ended */
    uint64_t refused;                  /* requests refused because too many waited */
    double lane_us;                    /* how long requests had their lanes lately, on average; 0: none has ended */
    struct hearth_service_stats stats; /* as of the last step */
    struct hearth_lane_info lane_info[HEARTH_LANES_MAX];
    struct hearth_waiting_info waiting[HEARTH_WAITING_MAX];
    size_t waiting_count;

    /* The thread's own. */
    struct hearth_ram *ram;
    struct hearth_cache *cache;
    struct hearth_step *step;
    struct hearth_live lives[HEARTH_LANES_MAX + 1]; /* one per lane, and the parked sequence if there is one */
    struct hearth_live *live_list[HEARTH_LANES_MAX + 1];
    struct hearth_plan plan; /* of the last admission */
    uint32_t lanes;
    uint32_t places;            /* sequences in `lives`: as many as lanes, or one more */
    struct hearth_task *parked; /* the task whose state is parked; NULL: none */
    struct hearth_task *tasks;  /* active, newest first */
    struct hearth_task *on_lane[HEARTH_LANES_MAX];
    struct hearth_batch_item *items;
    struct hearth_buf piece; /* the text of the token that was sampled last */
    struct hearth_service_stats counters;
    uint64_t firsts;       /* tasks that have had a lane, except prefetches */
    uint32_t ended;        /* tasks with a lane that have ended */
    bool backing_news;     /* the backing tier has told something since held tasks were last tried */
    int64_t held_until_us; /* when the first held task has waited for the backing tier long enough; INT64_MAX: none */
    bool backing_more;     /* the backing tier may have more events */
    struct hearth_ended ended_ring[HEARTH_ENDED_MAX];
    size_t ended_at;                    /* place of the oldest one, which goes next */
    struct hearth_task_forget *forgets; /* in order of arrival */
    struct hearth_pace pace;            /* how long batches take */
    struct hearth_speculator spec;
    double min_decode_tps;   /* as last tuned */
    int64_t deadline_us;     /* the earliest deadline of all tasks; INT64_MAX: none has one */
    int64_t gather_until_us; /* the next batch waits for announced requests until then (real time); 0: it does not */
    int64_t slept_until_us;  /* the last sleep lasted until this time, even if the engine's clock stood still; else 0 */
    int64_t told_us;         /* real time of this turn of the loop that a counter already has */
    uint64_t estimated;      /* batches computed when a waiting prompt was last estimated */
    uint64_t capture_full;   /* lanes (bits) with a capture that waits for the backing tier to write */
};

static inline bool hearth_task_is_prefetch(const struct hearth_task *task) {
    return task->request.priority == HEARTH_CLASS_PREFETCH;
}

/* A prefetch that is computed in idle time. */
static inline bool hearth_task_is_idle(const struct hearth_task *task) {
    return task->request.idle;
}

/* How many of the lives may hold something: those of the lanes, and the parked one while it is in use. No request runs
 * on the parked sequence: it holds the state of a preempted request until that comes back to a lane. */
static inline uint32_t hearth_service_lives(const struct hearth_service *service) {
    return service->lanes + (service->lives[service->lanes].tokens.n > 0);
}

/* They, as the cache's plans take them. */
static inline const struct hearth_live *const *hearth_service_live_list(const struct hearth_service *service) {
    return (const struct hearth_live *const *)service->live_list;
}

/* All tokens of a task, as the cache looks for them. */
static inline struct hearth_cache_prompt hearth_task_prompt(const struct hearth_task *task) {
    return (struct hearth_cache_prompt){.tokens = task->tokens.v, .n = task->tokens.n, .salt = task->request.salt};
}

/* The engine's clock. */
static inline int64_t hearth_service_now_us(const struct hearth_service *service) {
    return service->engine->ops->now_us(service->engine);
}

/* The same, but never before the time until which the thread has just slept. */
static inline int64_t hearth_service_slept_us(const struct hearth_service *service) {
    const int64_t now_us = hearth_service_now_us(service);
    return now_us > service->slept_until_us ? now_us : service->slept_until_us;
}

/* Prefill tokens that the engine computes at once in any case. */
static inline int32_t hearth_service_chunk(const struct hearth_service *service) {
    const struct hearth_caps *caps = &service->engine->caps;
    return (int32_t)(caps->ubatch_tokens < caps->batch_tokens ? caps->ubatch_tokens : caps->batch_tokens);
}

/* The files from the lowest to the highest; none calls a file that stands below it in this list. */

/* ---- timing.c ---- */

/* Spans (base/spans.h): of a batch and of each lane's share of it, of a restore, and of a
 * request's time on its lane. Times are hearth_clock_us(). */
void hearth_service_batch_spans(const struct hearth_service *service, const int32_t *shares, size_t tokens,
                                int64_t begun_us, int64_t ended_us);
void hearth_service_restore_span(int lane, const struct hearth_restore *restored, int64_t begun_us);
void hearth_service_lane_span(const struct hearth_task *task);
/* Page faults that read from disk, of the whole process; mostly they are pages of the model. */
int64_t hearth_service_faults(void);
/* Counts the time since `real_us` (the real clock) as sampling. */
void hearth_service_sampled(struct hearth_service *service, int64_t real_us);
/* Counts the time since `start_us` (the engine's clock) and `real_us` as capturing. */
void hearth_service_captured(struct hearth_service *service, int64_t start_us, int64_t real_us);
/* Counts the time since `real_us` as the service's own work, less what was already counted. */
void hearth_service_worked(struct hearth_service *service, int64_t real_us);

/* Says what a task without a lane waits for from now on. */
void hearth_task_wait(struct hearth_service *service, struct hearth_task *task, enum hearth_wait wait, int64_t now_us);
/* Ends a task's wait: it has got a lane, or ends. */
void hearth_task_waited(struct hearth_service *service, struct hearth_task *task, int64_t now_us);
/* A lane was taken. If it was the last one, tasks that wait for a prefix or the disk wait for a lane now. */
void hearth_service_lanes_taken(struct hearth_service *service, int64_t now_us);

/* ---- event.c ---- */

/* Fills an event with the receipt and counts of its task so far. */
void hearth_event_fill(struct hearth_event *event, const struct hearth_task *task);
/* Makes such an event; NULL: out of memory. */
struct hearth_event *hearth_task_event(const struct hearth_task *task, enum hearth_event_type type);
/* Delivers how far the prefill has come, if the request wants that. */
void hearth_task_progress(struct hearth_service *service, struct hearth_task *task);

/* ---- lane.c ---- */

/* Carries out a CAPTURE action: stores some pages of the lane's state. */
void hearth_lane_capture_turn(struct hearth_service *service, const struct hearth_action *action);
/* Captures all state of a lane, or of the parked sequence, as far as RAM has or soon gets room. */
void hearth_lane_capture(struct hearth_service *service, int lane);
/* The same without waiting: what RAM has no room for now is captured later. */
void hearth_lane_capture_now(struct hearth_service *service, int lane);
/* Takes a snapshot where a lane stands: hearth_cache_snapshot(), counted as capturing. */
bool hearth_lane_snapshot(struct hearth_service *service, int lane, enum hearth_snapshot_kind kind);
/* Stores the lane's sliding window where pages were filled. */
void hearth_lane_window(struct hearth_service *service, int lane);
/* Frees cells: captures and empties the idle sequence that is the first to be given away (never lane `keep`). False:
 * there is none. */
bool hearth_lane_make_room(struct hearth_service *service, int keep);
/* Says whether the task has an admission slot from now on, and by how many the number of busy lanes changes. */
void hearth_lane_count(struct hearth_service *service, struct hearth_task *task, bool in_admission, int on_lanes);
/* The task got a lane on which `computed` of its positions are there; its admission began at `admit_us`. */
void hearth_task_assigned(struct hearth_service *service, struct hearth_task *task, int lane, int32_t computed,
                          const int32_t *marks, size_t mark_count, int64_t admit_us);
/* The task leaves its lane; the state there waits to be captured. */
void hearth_lane_leave(struct hearth_service *service, struct hearth_task *task);
/* Moves a task's state from its lane to the parked sequence, so that giving the lane away costs the task nothing. State
 * that was parked before moves to the lane; RAM has it by then. False: the engine has no such sequence. */
bool hearth_lane_park(struct hearth_service *service, struct hearth_task *task, int lane);
/* Moves the parked state back to an idle lane: the first one to be given away, which is captured and emptied before.
 * The parked state is captured, too, unless it is the task's. */
void hearth_parked_return(struct hearth_service *service, const struct hearth_task *task);
/* Captures the parked state and empties the parked sequence. */
void hearth_parked_clear(struct hearth_service *service);
/* The same when the task that parked it ends. */
void hearth_parked_ended(struct hearth_service *service, const struct hearth_task *task);

/* ---- ended.c ---- */

/* Remembers a task that ends; takes over its tokens. */
void hearth_ended_note(struct hearth_service *service, struct hearth_task *task);
/* Says that the conversation of an ended request will come back. */
void hearth_ended_expect(struct hearth_service *service, int64_t id, int64_t within_us);
/* Drops remembered requests that begin with more than `stop` of these tokens. */
void hearth_ended_forget(struct hearth_service *service, struct hearth_digest salt, const struct hearth_tokens *tokens,
                         int32_t stop);
void hearth_ended_finish(struct hearth_service *service);

/* ---- task.c ---- */

/* Makes a task; NULL: out of memory. */
struct hearth_task *hearth_task_create(struct hearth_service *service, const struct hearth_request *request);
void hearth_task_destroy(struct hearth_service *service, struct hearth_task *task);
struct hearth_task *hearth_task_find(struct hearth_service *service, int64_t id);
/* Tells the step that a task begins to wait. False: out of memory. */
bool hearth_task_queue(struct hearth_service *service, struct hearth_task *task, int64_t arrived_us);
/* Delivers the event and ends the task. */
void hearth_task_end(struct hearth_service *service, struct hearth_task *task, struct hearth_event *event);
/* Ends a task that failed, wherever it is. Its lane keeps the state that still holds. */
void hearth_task_fail(struct hearth_service *service, struct hearth_task *task, int err, const char *text);
/* Ends a request that only asks where the state of its prompt is. */
void hearth_task_locate(struct hearth_service *service, struct hearth_task *task);
/* Ends the tasks that are past their deadline. */
void hearth_service_expire(struct hearth_service *service);

/* ---- step_inputs.c ---- */

/* Learns speeds from a batch that took `us`, and charges the tenants for it. Before hearth_step_computed(). */
void hearth_service_charge(struct hearth_service *service, const int32_t *shares, int32_t decode_tokens,
                           int32_t prefill_tokens, int64_t us);
/* Tells the step what it needs before it decides: speeds, the needs of waiting requests, which state can be kept, what
 * is to be captured on the way. */
void hearth_service_prepare(struct hearth_service *service);

/* ---- preempt.c ---- */

/* Takes the task off its lane and queues it again, in its old place or (`loses_place`) as if it arrived now. Its state
 * goes to the parked sequence, or else to RAM; that of a prefetch stays on the lane and waits to be captured. With
 * `empty` all of it goes to RAM, and the lane is emptied. */
void hearth_lane_requeue(struct hearth_service *service, struct hearth_task *task, bool loses_place, bool empty);
/* Preempts the request of a lane in favour of a waiting one. */
void hearth_lane_preempt(struct hearth_service *service, int lane, bool loses_place);
/* Preempts a victim for a queued task that lacks the cells to use a free lane: the lane is emptied, its request waits
 * for cells, and the task no longer does. False: there is no victim, or no batch has run since the task was preempted
 * itself. */
bool hearth_lane_preempt_for_cells(struct hearth_service *service, struct hearth_task *task);
/* Preempts the request of a lane because cells are short, and empties the lane. The request is held (waits_for_ended).
 */
void hearth_lane_preempt_without_cells(struct hearth_service *service, int lane, bool loses_place);

/* ---- admit.c ---- */

/* Plans a queued task and starts it on a lane, or holds it. A lane is free, or the task lacks cells. */
void hearth_task_admit(struct hearth_service *service, struct hearth_task *task);
/* Whether the task is held for cells (waits_for_ended). */
bool hearth_task_lacks_cells(const struct hearth_service *service, const struct hearth_task *task);

/* ---- generate.c ---- */

/* Computes one batch and samples from it. */
void hearth_service_compute(struct hearth_service *service, const int32_t *shares);

/* ---- forget.c ---- */

/* Carries out forgets, as far as possible now. */
void hearth_service_forget_due(struct hearth_service *service);
/* Answers the forgets that were not carried out when the service ends. */
void hearth_service_forget_finish(struct hearth_service *service);

/* ---- status.c ---- */

/* Publishes counters and lanes for other threads, or the waiting requests. */
void hearth_service_publish(struct hearth_service *service);
void hearth_service_publish_waiting(struct hearth_service *service);
/* Whether the queue is full; `tenant` NULL: without regard to a tenant's part of the slots. */
bool hearth_service_full_locked(const struct hearth_service *service, const struct hearth_tenant *tenant);

/* ---- run.c ---- */

void *hearth_service_run(void *service);

#endif
