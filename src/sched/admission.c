/* Admission slots. Design in admission.h.
 *
 * Invariant: a tenant has at most one entry with taken > 0. */
#include "sched/admission.h"

#include "base/assert.h"

/* The tenant's entry, else a free one, else NULL. */
static struct hearth_admission_tenant *entry_of(struct hearth_admission *admission, uint64_t tenant) {
    struct hearth_admission_tenant *free = NULL;
    for (size_t i = 0; i < admission->count; i++) {
        if (admission->of[i].taken > 0 && admission->of[i].tenant == tenant) {
            return &admission->of[i];
        }
        if (admission->of[i].taken == 0) {
            free = &admission->of[i];
        }
    }
    if (!free && admission->count < HEARTH_ADMISSION_TENANTS) {
        free = &admission->of[admission->count++];
    }
    return free;
}

void hearth_admission_take(struct hearth_admission *admission, uint64_t tenant) {
    struct hearth_admission_tenant *entry = entry_of(admission, tenant);
    admission->taken++;
    if (entry) {
        entry->tenant = tenant;
        entry->taken++;
    }
}

void hearth_admission_leave(struct hearth_admission *admission, uint64_t tenant) {
    HEARTH_ASSERT(admission->taken > 0);
    admission->taken--;
    for (size_t i = 0; i < admission->count; i++) {
        if (admission->of[i].taken > 0 && admission->of[i].tenant == tenant) {
            admission->of[i].taken--;
            return;
        }
    }
}

bool hearth_admission_full(const struct hearth_admission *admission, uint64_t tenant, uint32_t slots,
                           uint32_t free_lanes) {
    uint32_t own = 0;
    uint64_t tenants = 1;
    bool room = admission->count < HEARTH_ADMISSION_TENANTS; /* for an entry of its own */
    for (size_t i = 0; i < admission->count; i++) {
        const struct hearth_admission_tenant *of = &admission->of[i];
        if (of->taken > 0 && of->tenant == tenant) {
            own = of->taken;
        } else {
            tenants += of->taken > 0;
        }
        room = room || of->taken == 0 || of->tenant == tenant;
    }
    return admission->taken >= (uint64_t)slots + free_lanes && (!room || own * tenants >= slots);
}
