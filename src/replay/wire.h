/* A line of a bandwidth that transfers share, on a virtual clock. Time is cut into slots; each transfer fills what is
 * left of the slots from its start on, no faster than its own end of the line allows. Transfers may be sent in any
 * order of their times. */
#ifndef HEARTH_REPLAY_WIRE_H
#define HEARTH_REPLAY_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTH_WIRE_SLOT_US 10000
#define HEARTH_WIRE_MINUTE_US 60000000

struct hearth_wire {
    double bytes_per_us;
    struct hearth_wire_slot *slots; /* a ring: of a time that is further ahead than it is long, nothing is known */
    double *minutes;                /* bytes of each */
    size_t minute_count, minute_cap;
};

/* False: out of memory. */
bool hearth_wire_init(struct hearth_wire *wire, double bytes_per_us);
void hearth_wire_finish(struct hearth_wire *wire);

/* A transfer of `bytes` that begins at `start_us`, with at most `most_bytes_per_us`. Returns when it has ended;
 * INT64_MAX: out of memory. */
int64_t hearth_wire_send(struct hearth_wire *wire, int64_t start_us, size_t bytes, double most_bytes_per_us);

#endif
