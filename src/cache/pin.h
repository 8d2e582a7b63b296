/* A pin: for how long the state of a prompt's beginning is to be kept, whatever else is asked for. */
#ifndef HEARTH_CACHE_PIN_H
#define HEARTH_CACHE_PIN_H

#include <stdint.h>

/* A lease of the state of the first `position` tokens, so that a prompt that begins with them can go on from
 * there. Memory permitting: what is pinned goes after all that is not, and takes at most half of the cache's budget;
 * beyond, what ends first is let go early. What the backing tier has of it outlasts that, but is not held there. */
struct hearth_pin {
    int32_t position; /* > 0 */
    int64_t ttl_us;   /* > 0; from when the prompt begins to be computed, and again from when its state is stored */
};

#define HEARTH_PINS_MAX 8

#endif
