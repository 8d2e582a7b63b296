/* Functions that all backing tiers share. */
#include "tier/backing.h"

#include "base/prefault.h"

#include <stdlib.h>
#include <string.h>

void hearth_backing_event_finish(struct hearth_backing_event *event) {
    hearth_record_destroy(event->record);
    hearth_prefault_give(event->bytes.data);
    *event = (struct hearth_backing_event){0};
}

/* With less, a server would spend its time on failing; with more, a short failure would cost many turns their state. */
#define RETRY_US 1000000

int64_t hearth_backing_backoff_us(int64_t last_us) {
    const int64_t next_us = last_us == 0 ? RETRY_US : 2 * last_us;
    return next_us < HEARTH_BACKING_WAIT_US ? next_us : HEARTH_BACKING_WAIT_US;
}

struct hearth_backing_place *hearth_backing_places_copy(const struct hearth_backing_place *places, size_t n) {
    size_t tokens = 0;
    for (size_t i = 0; i < n; i++) {
        tokens += places[i].tokens ? places[i].n : 0;
    }
    /* The tokens stand behind the places. */
    struct hearth_backing_place *copy = malloc(n * sizeof *copy + tokens * sizeof(hearth_token));
    hearth_token *at = (hearth_token *)(void *)(copy + n);
    for (size_t i = 0; copy && i < n; i++) {
        copy[i] = places[i];
        if (places[i].tokens) {
            copy[i].tokens = memcpy(at, places[i].tokens, places[i].n * sizeof *at);
            at += places[i].n;
        }
    }
    return copy;
}
