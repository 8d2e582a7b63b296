/* What is known to be in the store: what seeks have found and puts have written. Bounded: what was unused for longest
 * is forgotten and reported as LOST, so that the cache has no pages of it either. The next seek finds it again.
 *
 * Invariant: an entry is in `known` and in `known_at`, or in neither. */
#include "tier/remote_engine.h"

#include <stddef.h>
#include <stdlib.h>

struct remote_known *hearth_remote_known_find(struct remote *remote, struct hearth_digest name) {
    return (struct remote_known *)(void *)hearth_table_find(&remote->known.table, name);
}

void hearth_remote_post_lost(struct remote *remote, struct hearth_digest name) {
    /* out of memory: reading it will be a miss */
    (void)hearth_events_tell(&remote->events,
                             &(struct hearth_backing_event){.type = HEARTH_BACKING_LOST, .name = name});
}

void hearth_remote_known_remove(struct remote *remote, struct remote_known *known) {
    hearth_lru_remove(&remote->known, &known->entry);
    hearth_table_remove(&remote->known_at, &known->at);
    free(known);
}

struct remote_known *hearth_remote_known_add(struct remote *remote, struct hearth_digest name,
                                             struct hearth_digest base, uint64_t payload_bytes) {
    struct remote_known *known = hearth_remote_known_find(remote, name);
    if (known) {
        hearth_lru_touch(&remote->known, &known->entry);
        return known;
    }
    known = malloc(sizeof *known);
    if (!known) {
        return NULL;
    }
    *known = (struct remote_known){
        .entry = {.link.key = name, .bytes = sizeof *known}, .at.key = base, .payload_bytes = payload_bytes};
    if (!hearth_table_add(&remote->known_at, &known->at)) {
        free(known);
        return NULL;
    }
    if (!hearth_lru_add(&remote->known, &known->entry, NULL)) {
        hearth_table_remove(&remote->known_at, &known->at);
        free(known);
        return NULL;
    }
    for (struct hearth_lru_entry *oldest; (oldest = hearth_lru_evict(&remote->known)) != NULL;) {
        struct remote_known *gone = (struct remote_known *)(void *)oldest;
        hearth_table_remove(&remote->known_at, &gone->at);
        hearth_remote_post_lost(remote, oldest->link.key);
        known = gone == known ? NULL : known;
        free(gone);
    }
    return known;
}

void hearth_remote_note_page(struct remote *remote, const struct hearth_record *record, uint64_t payload_bytes) {
    if (record->kind == HEARTH_RECORD_PAGE && record->p1 - record->p0 == remote->params.page_tokens) {
        remote->page_bytes = (size_t)payload_bytes;
    }
}

void hearth_remote_known_finish(struct remote *remote) {
    remote->known.budget_bytes = 0;
    for (struct hearth_lru_entry *oldest; (oldest = hearth_lru_evict(&remote->known)) != NULL;) {
        free(oldest);
    }
    hearth_lru_finish(&remote->known);
    hearth_table_finish(&remote->known_at);
}
