/* How much of a text is also in another one: what a difference between two prompts has cost. */
#ifndef HEARTH_SESSION_SHARED_TEXT_H
#define HEARTH_SESSION_SHARED_TEXT_H

#include <stddef.h>

/* The weight of the bytes of `now` that also stand in `then`, anywhere, in runs of 48 bytes or more; `weigh` gives the
 * weight of `now` in front of a byte. A lower bound: in text that repeats itself some runs are not found. Time is
 * linear. Out of memory: 0. Threads: pure. */
double hearth_shared_text_weighed(const char *then, size_t then_len, const char *now, size_t now_len,
                                  double (*weigh)(void *user, size_t offset), void *user);

#endif
