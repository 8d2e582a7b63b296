/* Idle time: the known part of a conversation's next prompt is computed before the request comes. */
#ifndef HEARTH_API_IDLE_H
#define HEARTH_API_IDLE_H

#include "api/job.h"

#define HEARTH_IDLE_REMEMBERED_MAX 64

/* Tokens [from, to) of the prompt that goes on from a reply. */
struct hearth_idle_range {
    struct hearth_digest replied; /* the chain up to and including that reply */
    size_t from, to;
};

struct hearth_idle {
    struct hearth_api *api;
    struct hearth_job *waiting;                                  /* jobs that have not begun, the oldest first */
    struct hearth_job *submitted;                                /* jobs that the service has */
    size_t running;                                              /* conversations that are computed ahead now */
    struct hearth_idle_range ranges[HEARTH_IDLE_REMEMBERED_MAX]; /* a ring */
    size_t next_range;
};

/* ---- idle.c ---- */

/* Makes api->idle. It stays NULL, and nothing is computed in idle time, where params.idle_tokens is 0 or thinking is
 * kept. False: out of memory. */
bool hearth_idle_create(struct hearth_api *api);
/* Destroys it once no job is left except those that wait to begin. NULL is allowed. */
void hearth_idle_destroy(struct hearth_idle *idle);

/* On the loop: whether the tokens of a job's prompt have to be kept until the job ends. */
bool hearth_idle_is_wanted(const struct hearth_job *job);
/* Loop: the job is over, and about to be freed. Where it has come to a reply that a next turn may follow, its request
 * is taken over, and the next prompt computed as far as it is known. */
void hearth_idle_follow(struct hearth_job *job);
/* On the loop, before a job is submitted: stops computing ahead for its conversation, since the job computes the rest.
 */
void hearth_idle_overtake(const struct hearth_job *job);
/* On the loop, once a second and when a job has ended. NULL is allowed. */
void hearth_idle_tick(struct hearth_idle *idle, int64_t now_us);

/* ---- idle_ranges.c: what was computed ahead ---- */

void hearth_idle_note(struct hearth_idle *idle, struct hearth_digest replied, size_t from, size_t to);
/* On the loop: how many of a job's reused prompt tokens were computed in idle time. */
uint32_t hearth_idle_computed(const struct hearth_job *job, const struct hearth_receipt *receipt);
/* How many conversations are being computed ahead, or will be in a moment. NULL is allowed. */
size_t hearth_idle_running(const struct hearth_idle *idle);

#endif
