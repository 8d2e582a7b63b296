/* A clock that only a test moves: hearth_clock_us(), hearth_clock_unix_us(), and the waits that end by the former. A
 * test that links this needs `-Wl,--wrap=` with each of these and hearth_clock_cond_wait. */
#ifndef HEARTH_TESTS_CLOCK_H
#define HEARTH_TESTS_CLOCK_H

#include <stdint.h>

/* Moves the clock, and wakes the threads that wait until a time that has come. */
void clock_advance_us(int64_t us);
/* The end of the earliest wait from now on; INT64_MAX: no thread waits. */
int64_t clock_next_us(void);

#endif
