/* Time. */
#ifndef HEARTH_BASE_CLOCK_H
#define HEARTH_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic time. Units: microseconds since an arbitrary start. Any thread. */
int64_t hearth_clock_us(void);
/* Wall-clock time. Units: seconds since 1970. Any thread. */
int64_t hearth_clock_unix(void);
/* Likewise. Units: microseconds. */
int64_t hearth_clock_unix_us(void);

#endif
