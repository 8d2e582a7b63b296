/* Cancel points: a pointer for each thread, and a verdict that stays. The limit is of CPU time, not of elapsed time:
 * on a busy machine a request does not become more work. */
#include "base/cancel.h"

#include "base/assert.h"
#include "base/err.h"

#include <time.h>

#define POLLS 256u

static _Thread_local struct hearth_cancel *current;

int64_t hearth_cancel_cpu_us(void) {
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void hearth_cancel_enter(struct hearth_cancel *cancel) {
    HEARTH_ASSERT(!current);
    cancel->begun_us = hearth_cancel_cpu_us();
    cancel->polls = 0;
    cancel->verdict = HEARTH_OK;
    current = cancel;
}

void hearth_cancel_leave(void) {
    HEARTH_ASSERT(current != NULL);
    current = NULL;
}

int hearth_cancel_check(void) {
    struct hearth_cancel *cancel = current;
    if (!cancel || cancel->verdict != HEARTH_OK) {
        return !cancel ? HEARTH_OK : cancel->verdict;
    }
    if (cancel->wanted) {
        cancel->verdict = cancel->wanted(cancel->user);
    }
    if (cancel->verdict == HEARTH_OK && cancel->cpu_us > 0 &&
        hearth_cancel_cpu_us() - cancel->begun_us > cancel->cpu_us) {
        cancel->verdict = HEARTH_ERR_EFFORT;
    }
    return cancel->verdict;
}

int hearth_cancel_poll(void) {
    struct hearth_cancel *cancel = current;
    if (!cancel || (cancel->verdict == HEARTH_OK && cancel->polls++ % POLLS != 0)) {
        return HEARTH_OK;
    }
    return hearth_cancel_check();
}
