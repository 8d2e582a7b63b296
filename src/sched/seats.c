/* Seats. What they are in seats.h.
 *
 * Invariant: a tenant has one place with taken > 0 at most. */
#include "sched/seats.h"

#include "base/assert.h"

/* The tenant's place, or one that is free; NULL: neither. */
static struct hearth_seats_of *place_of(struct hearth_seats *seats, uint64_t tenant) {
    struct hearth_seats_of *free = NULL;
    for (size_t i = 0; i < seats->count; i++) {
        if (seats->of[i].taken > 0 && seats->of[i].tenant == tenant)
            return &seats->of[i];
        if (seats->of[i].taken == 0)
            free = &seats->of[i];
    }
    if (!free && seats->count < HEARTH_SEATS_TENANTS)
        free = &seats->of[seats->count++];
    return free;
}

void hearth_seats_take(struct hearth_seats *seats, uint64_t tenant) {
    struct hearth_seats_of *place = place_of(seats, tenant);
    seats->taken++;
    if (place) {
        place->tenant = tenant;
        place->taken++;
    }
}

void hearth_seats_leave(struct hearth_seats *seats, uint64_t tenant) {
    HEARTH_ASSERT(seats->taken > 0);
    seats->taken--;
    for (size_t i = 0; i < seats->count; i++)
        if (seats->of[i].taken > 0 && seats->of[i].tenant == tenant) {
            seats->of[i].taken--;
            return;
        }
}

bool hearth_seats_full(const struct hearth_seats *seats, uint64_t tenant, uint32_t there_are, uint32_t free_lanes) {
    uint32_t own = 0;
    uint64_t tenants = 1;
    bool room = seats->count < HEARTH_SEATS_TENANTS; /* to tell the tenant apart */
    for (size_t i = 0; i < seats->count; i++) {
        const struct hearth_seats_of *of = &seats->of[i];
        if (of->taken > 0 && of->tenant == tenant)
            own = of->taken;
        else
            tenants += of->taken > 0;
        room = room || of->taken == 0 || of->tenant == tenant;
    }
    return seats->taken >= (uint64_t)there_are + free_lanes && (!room || own * tenants >= there_are);
}
