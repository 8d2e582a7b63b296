/* Cancel points: long work asks now and then whether it is still wanted, and ends with an error if it is not.
 *
 * What it is done for stands with the thread, not with the work: rooms far below the request (templates, tokenizers,
 * grammars) ask without knowing of requests, and where no thread has entered anything they never end early. Once the
 * answer is an error it stays one, so that work that goes another way after a failure ends, too. */
#ifndef HEARTH_BASE_CANCEL_H
#define HEARTH_BASE_CANCEL_H

#include <stdint.h>

struct hearth_cancel {
    /* HEARTH_OK, or why the work ends. NULL: it is always wanted. On the thread that works. */
    int (*wanted)(void *user);
    void *user;
    int64_t cpu_us; /* CPU time of the thread that the work may take; 0: any */
    /* Its own. */
    int64_t begun_us;
    uint32_t polls;
    int verdict;
};

/* What this thread does from here to hearth_cancel_leave() is done under `cancel`, with its first three members set.
 * Owns: borrowed until then. Not to be nested. */
void hearth_cancel_enter(struct hearth_cancel *cancel);
void hearth_cancel_leave(void);

/* A cancel point. Errors: EFFORT (its CPU time is used up), and what `wanted` says. Threads: any. */
int hearth_cancel_check(void);
/* The same for tight loops: every 256th call really asks. */
int hearth_cancel_poll(void);

/* CPU time that this thread has used. Units: microseconds. */
int64_t hearth_cancel_cpu_us(void);

#endif
