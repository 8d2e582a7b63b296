/* Seats: who waits for a lane, announced, new or set aside, by tenant, and whether there is room for one more.
 *
 * There are so many seats, and one more for each lane that is free. When all are taken a tenant may still come for its
 * part of them: the seats divided by how many tenants wait, itself included. So whoever has filled the queue keeps
 * nobody else out, and is the one who is refused. All tenants together then hold at most (1 + 1/2 + 1/3 + …) times the
 * seats, and one more for each lane that was taken from its request: that one sits down in any case.
 *
 * Threads: the caller's. */
#ifndef HEARTH_SCHED_SEATS_H
#define HEARTH_SCHED_SEATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tenants that are told apart. While so many wait, further ones are not let in once the seats are taken. */
#define HEARTH_SEATS_TENANTS 128

/* Zeroed: nobody waits. */
struct hearth_seats {
    struct hearth_seats_of {
        uint64_t tenant;
        uint32_t taken; /* zero: the place is free for another tenant */
    } of[HEARTH_SEATS_TENANTS];
    size_t count;
    uint32_t taken; /* of all */
};

void hearth_seats_take(struct hearth_seats *seats, uint64_t tenant);
void hearth_seats_leave(struct hearth_seats *seats, uint64_t tenant);
/* Whether another request of the tenant would have to stand. */
bool hearth_seats_full(const struct hearth_seats *seats, uint64_t tenant, uint32_t there_are, uint32_t free_lanes);

#endif
