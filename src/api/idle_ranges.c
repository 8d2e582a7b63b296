/* Remembers for the conversations that ended last which tokens were computed in idle time, so that receipts and
 * reports can count them apart from what the request itself has computed. The key of a conversation is the chain of
 * its messages up to the reply from which it continues. */
#include "api/idle.h"

void hearth_idle_note(struct hearth_idle *idle, struct hearth_digest replied, size_t from, size_t to) {
    idle->ranges[idle->next_range] = (struct hearth_idle_range){.replied = replied, .from = from, .to = to};
    idle->next_range = (idle->next_range + 1) % HEARTH_IDLE_REMEMBERED_MAX;
}

uint32_t hearth_idle_computed(const struct hearth_job *job, const struct hearth_receipt *receipt) {
    const struct hearth_idle *idle = job->api->idle;
    const struct hearth_digest replied = job->resolved->replied;
    const size_t reused = hearth_receipt_reused_tokens(receipt);
    if (idle == NULL || hearth_digest_is_zero(replied)) {
        return 0;
    }
    for (size_t back = 1; back <= HEARTH_IDLE_REMEMBERED_MAX; back++) { /* the newest first */
        const size_t at = (idle->next_range + HEARTH_IDLE_REMEMBERED_MAX - back) % HEARTH_IDLE_REMEMBERED_MAX;
        const struct hearth_idle_range *range = &idle->ranges[at];
        if (hearth_digest_equal(range->replied, replied)) {
            const size_t to = reused < range->to ? reused : range->to;
            return to > range->from ? (uint32_t)(to - range->from) : 0;
        }
    }
    return 0;
}

size_t hearth_idle_running(const struct hearth_idle *idle) {
    return idle != NULL ? idle->running : 0;
}
