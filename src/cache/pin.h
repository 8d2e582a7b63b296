/* A pin: how long the state of a prompt's beginning stays in RAM, whatever else is needed. */
#ifndef HEARTH_CACHE_PIN_H
#define HEARTH_CACHE_PIN_H

#include <stdint.h>

/* A lease of the state of the first `position` tokens, so that a prompt that begins with them can go on from there. It
 * is kept as far as memory permits: pinned state is evicted after all other state and takes at most half of the cache's
 * budget; beyond that, leases that end first are ended early. Copies in the backing tier outlast a pin, but the pin
 * does not hold them there. */
struct hearth_pin {
    int32_t position; /* > 0 */
    int64_t ttl_us;   /* > 0; from when the prompt begins to be computed, and again from when its state is stored */
};

#define HEARTH_PINS_MAX 8

#endif
