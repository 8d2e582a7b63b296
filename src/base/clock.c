/* The two clocks of the system. Neither call fails with these clock ids and a valid pointer (clock_gettime(2)). */
#include "base/clock.h"

#include "base/assert.h"

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

int64_t hearth_clock_unix_us(void) {
    return in_us(read_clock(CLOCK_REALTIME));
}

int64_t hearth_clock_unix(void) {
    return (int64_t)read_clock(CLOCK_REALTIME).tv_sec;
}
