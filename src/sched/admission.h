/* Admission slots: which requests wait for a lane (announced, new or preempted), counted by tenant, and whether there
 * is room for one more.
 *
 * There are as many slots as the queue is long, and one more for each free lane. When all are taken a tenant may still
 * take its part of them: the slots divided by the number of tenants that wait, itself included. So a tenant that fills
 * the queue keeps no other tenant out, and is the one that is refused. All tenants together then hold at most (1 + 1/2
 * + 1/3 + …) times the slots, and one more for each preempted request, which takes a slot in any case.
 *
 * Threads: the caller's. */
#ifndef HEARTH_SCHED_ADMISSION_H
#define HEARTH_SCHED_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Most tenants with waiting requests that are counted apart. A further tenant is refused once all slots are taken. */
#define HEARTH_ADMISSION_TENANTS 128

/* Zeroed: no request waits. */
struct hearth_admission {
    struct hearth_admission_tenant {
        uint64_t tenant;
        uint32_t taken; /* slots of the tenant; 0: the entry is free */
    } of[HEARTH_ADMISSION_TENANTS];
    size_t count;
    uint32_t taken; /* slots of all tenants */
};

void hearth_admission_take(struct hearth_admission *admission, uint64_t tenant);
void hearth_admission_leave(struct hearth_admission *admission, uint64_t tenant);
/* Whether another request of the tenant finds no slot. */
bool hearth_admission_full(const struct hearth_admission *admission, uint64_t tenant, uint32_t slots,
                           uint32_t free_lanes);

#endif
