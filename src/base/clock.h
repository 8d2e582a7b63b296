/* Time. */
#ifndef HEARTH_BASE_CLOCK_H
#define HEARTH_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Monotonic time. Units: microseconds since an arbitrary start. Any thread. */
int64_t hearth_clock_us(void);
/* Makes a condition whose waits end by hearth_clock_us(). */
void hearth_clock_cond_init(pthread_cond_t *cond);
/* Waits under the mutex until the condition is signalled, or wakes spuriously. False: `until_us` of hearth_clock_us()
 * has come. Any thread. */
bool hearth_clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_us);
/* Wall-clock time. Units: seconds since 1970. Any thread. */
int64_t hearth_clock_unix(void);
/* Likewise. Units: microseconds. */
int64_t hearth_clock_unix_us(void);

#endif
