/* Inside the service: tasks, lanes and the inbox. Shared by service.c (the outside) and the files of its thread
 * (run.c, admit.c, generate.c). */
#ifndef HEARTH_SCHED_SERVICE_INTERNAL_H
#define HEARTH_SCHED_SERVICE_INTERNAL_H

#include "cache/cache.h"
#include "sched/reply.h"
#include "sched/service.h"
#include "sched/step.h"
#include "sched/syntax.h"
#include "sched/thinking.h"

#include <pthread.h>
#include <stdatomic.h>

/* A request from arrival to its last event. Owned by the service's thread once it left the inbox. */
struct hearth_task {
    struct hearth_task *next;      /* in the inbox, then in the list of active tasks */
    int64_t id;
    struct hearth_tokens tokens;  /* prompt, then what was generated */
    size_t prompt_tokens;
    int32_t marks[HEARTH_MARKS_MAX];
    size_t mark_count;
    int32_t end_mark;             /* the mark that stands for the prompt's end, or 0 */
    bool end_kept;                /* a snapshot was taken there */
    struct hearth_request request; /* as it came, without prompt, marks and stops; points into `block` */
    void *block;
    struct hearth_sampler *sampler;       /* from the first admission on */
    struct hearth_reply reply;
    struct hearth_thinker thinker;
    struct hearth_syntax syntax;
    size_t scripted;              /* tokens of the script that came */
    uint8_t unfinished[4];        /* bytes of a character at the end of the text so far */
    size_t unfinished_len;

    int lane;                     /* -1: queued */
    bool admitted;                /* the receipt's reuse is filled */
    bool prefilled;               /* the first token was sampled, or there is none to sample */
    int64_t fetch_us;             /* when state began to be read for it; 0: it did not */
    int32_t persisted;            /* tokens of its sequence when that was last captured on the way */
    int32_t divergence;           /* where the prompt left a known path; 0 = nowhere */
    uint32_t waits_for_ended;     /* no cells: held until this many tasks have ended, or no lane is busy; 0 = no */
    uint32_t generated;
    int64_t submitted_us, started_us, first_us, last_us;
    struct hearth_receipt receipt;
};

struct hearth_service {
    struct hearth_engine *engine;
    struct hearth_service_params params;
    pthread_t thread;

    /* Shared with other threads, under the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t wake;          /* the inbox has something */
    pthread_cond_t idle;          /* a task ended */
    struct hearth_task *inbox, **inbox_tail;
    int64_t *cancels;
    size_t cancel_count, cancel_cap;
    bool cancel_all, draining, stopping;
    bool far_ready;               /* the far tier has events */
    int64_t next_id;
    size_t active;                /* accepted and not ended */
    struct hearth_service_stats stats;             /* as of the last step */
    struct hearth_lane_info lane_info[HEARTH_LANES_MAX];

    /* The thread's own. */
    struct hearth_tier *tier;
    struct hearth_cache *cache;
    struct hearth_step step;
    struct hearth_live lives[HEARTH_LANES_MAX];
    struct hearth_live *live_list[HEARTH_LANES_MAX];
    uint32_t lanes;
    struct hearth_task *tasks;      /* active, newest first */
    struct hearth_batch_item *items;
    struct hearth_service_stats counters;
    uint32_t ended;               /* tasks that ended so far */
    int64_t batch_us;             /* how long the last batch took */
    bool far_news;                /* the far tier has said something since held tasks were last asked */
    int64_t far_retry_us;         /* when a task that is held for the far tier is asked anyway; 0: none is */
    uint64_t capture_full;        /* lanes (bits) whose capture waits for the far tier to write */
};

/* The engine's clock. */
static inline int64_t hearth_service_now_us(const struct hearth_service *service) {
    return service->engine->ops->now_us(service->engine);
}

/* ---- run.c ---- */

void *hearth_service_run(void *service);
struct hearth_task *hearth_task_find(struct hearth_service *service, int64_t id);
void hearth_task_destroy(struct hearth_service *service, struct hearth_task *task);
/* Ends a task that failed, wherever it is; its lane is released with the state that still holds. */
void hearth_task_fail(struct hearth_service *service, struct hearth_task *task, int err, const char *text);
/* Delivers the event and ends the task. */
void hearth_task_end(struct hearth_service *service, struct hearth_task *task, struct hearth_event *event);
/* An event with the task's receipt and counts so far; NULL: out of memory. */
struct hearth_event *hearth_task_event(const struct hearth_task *task, enum hearth_event_type type);
/* The task leaves its lane, whose state waits to be captured. */
void hearth_lane_leave(struct hearth_service *service, struct hearth_task *task);
/* Captures a lane's state wholly, or what RAM has room for in a moment. */
void hearth_lane_capture(struct hearth_service *service, int lane);
/* Deals with what the far tier has to tell. Tasks that are held for it are asked again, but not when the last action
 * was to ask one: lanes get their turn in between. */
void hearth_service_poll(struct hearth_service *service, bool admitting);
/* Frees cells: the idle lane unused for longest (never `keep`) is captured and emptied. False: there is none. */
bool hearth_lane_make_room(struct hearth_service *service, int keep);

/* ---- admit.c ---- */

/* Plans a queued task and starts it on a lane, or holds it. */
void hearth_task_admit(struct hearth_service *service, struct hearth_task *task);

/* ---- generate.c ---- */

/* Computes one batch and samples. */
void hearth_service_compute(struct hearth_service *service, const int32_t *shares);

#endif
