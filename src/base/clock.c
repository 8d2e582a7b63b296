/* The two clocks of the system. Neither call fails with these clock ids and a valid pointer (clock_gettime(2)). */
#include "base/clock.h"

#include "base/assert.h"

#include <errno.h>
#include <time.h>

static struct timespec read_clock(clockid_t id) {
    struct timespec now;
    int rc = clock_gettime(id, &now);
    HEARTH_ASSERT(rc == 0);
    return now;
}

static int64_t in_us(struct timespec time) {
    return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

int64_t hearth_clock_us(void) {
    return in_us(read_clock(CLOCK_MONOTONIC));
}

void hearth_clock_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);
    rc = rc == 0 ? pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) : rc;
    rc = rc == 0 ? pthread_cond_init(cond, &attr) : rc;
    HEARTH_ASSERT(rc == 0);
    (void)pthread_condattr_destroy(&attr);
}

bool hearth_clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_us) {
    const struct timespec until = {.tv_sec = (time_t)(until_us / 1000000),
                                   .tv_nsec = (long)(until_us % 1000000) * 1000};
    return pthread_cond_timedwait(cond, mutex, &until) != ETIMEDOUT;
}

int64_t hearth_clock_unix_us(void) {
    return in_us(read_clock(CLOCK_REALTIME));
}

int64_t hearth_clock_unix(void) {
    return (int64_t)read_clock(CLOCK_REALTIME).tv_sec;
}
