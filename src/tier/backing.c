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
