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

int64_t hearth_clock_us(void) {
    struct timespec now = read_clock(CLOCK_MONOTONIC);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t hearth_clock_unix(void) {
    return (int64_t)read_clock(CLOCK_REALTIME).tv_sec;
}
