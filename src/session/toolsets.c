/* An LRU list under a lock. A turn costs an entry but no tools: turns of a conversation, and conversations with the
 * same beginning, share a set.
 *
 * Invariants. Every entry is in the table and in the list. A set is in `sets` as long as an entry holds it, and no
 * two sets there are equal byte by byte (the order of members is printed, so it counts). `bytes` is the sum over
 * both. */
#include "session/toolsets.h"

#include "base/lru.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct toolset_entry {
    struct hearth_lru_entry lru; /* first, so that it converts */
    struct hearth_toolset *set;
};

struct hearth_toolsets {
    pthread_mutex_t mutex;
    struct hearth_lru lru; /* of entries; counts the sets' bytes, too */
    struct hearth_table sets;
};

/* ---- sets ---- */

struct hearth_toolset *hearth_toolset_create(json_t *head, json_t *late) {
    struct hearth_toolset *set = calloc(1, sizeof *set);
    char *first = hearth_json_dumps(head, JSON_COMPACT), *second = hearth_json_dumps(late, JSON_COMPACT);
    if (set != NULL && first != NULL && second != NULL) {
        const size_t len = strlen(first), more = strlen(second);
        set->refs = 1;
        set->head = json_incref(head);
        set->late = json_incref(late);
        set->link.key = hearth_digest_chain(hearth_digest_bytes(first, len), second, more);
        set->bytes = sizeof *set + 3 * (len + more); /* a parsed value takes a few times the memory of its text */
    } else {
        free(set);
        set = NULL;
    }
    free(first);
    free(second);
    return set;
}

struct hearth_toolset *hearth_toolset_ref(struct hearth_toolset *set) {
    __atomic_add_fetch(&set->refs, 1, __ATOMIC_RELAXED);
    return set;
}

void hearth_toolset_unref(struct hearth_toolset *set) {
    if (set != NULL && __atomic_sub_fetch(&set->refs, 1, __ATOMIC_ACQ_REL) == 0) {
        json_decref(set->head);
        json_decref(set->late);
        free(set);
    }
}

/* ---- entries ---- */

/* Takes hold of a set for an entry: of an equal one that is held already, or of this one. NULL: out of memory. */
static struct hearth_toolset *hold(struct hearth_toolsets *toolsets, struct hearth_toolset *set) {
    struct hearth_toolset *known = (struct hearth_toolset *)hearth_table_find(&toolsets->sets, set->link.key);
    if (known == NULL && hearth_table_add(&toolsets->sets, &set->link)) {
        known = set;
        toolsets->lru.bytes += set->bytes;
    }
    if (known != NULL) {
        known->held++;
        hearth_toolset_ref(known);
    }
    return known;
}

static void let_go(struct hearth_toolsets *toolsets, struct hearth_toolset *set) {
    if (--set->held == 0) {
        hearth_table_remove(&toolsets->sets, &set->link);
        toolsets->lru.bytes -= set->bytes;
    }
    hearth_toolset_unref(set);
}

static void release(struct hearth_toolsets *toolsets, struct toolset_entry *entry) {
    if (entry->set != NULL) {
        let_go(toolsets, entry->set);
    }
    free(entry);
}

static void evict(struct hearth_toolsets *toolsets) {
    for (struct hearth_lru_entry *entry; (entry = hearth_lru_evict(&toolsets->lru)) != NULL;) {
        release(toolsets, (struct toolset_entry *)entry);
    }
}

struct hearth_toolsets *hearth_toolsets_create(size_t budget_bytes) {
    struct hearth_toolsets *toolsets = calloc(1, sizeof *toolsets);
    if (toolsets != NULL) {
        pthread_mutex_init(&toolsets->mutex, NULL);
        toolsets->lru.budget_bytes = budget_bytes;
    }
    return toolsets;
}

void hearth_toolsets_destroy(struct hearth_toolsets *toolsets) {
    if (toolsets == NULL) {
        return;
    }
    toolsets->lru.budget_bytes = 0;
    evict(toolsets);
    hearth_lru_finish(&toolsets->lru);
    hearth_table_finish(&toolsets->sets);
    pthread_mutex_destroy(&toolsets->mutex);
    free(toolsets);
}

struct hearth_digest hearth_toolsets_begin(struct hearth_digest salt) {
    return hearth_digest_bytes(&salt, sizeof salt);
}

struct hearth_toolset *hearth_toolsets_get(struct hearth_toolsets *toolsets, struct hearth_digest said) {
    struct hearth_toolset *set = NULL;
    pthread_mutex_lock(&toolsets->mutex);
    struct toolset_entry *entry = (struct toolset_entry *)hearth_table_find(&toolsets->lru.table, said);
    if (entry != NULL) {
        hearth_lru_touch(&toolsets->lru, &entry->lru);
        set = hearth_toolset_ref(entry->set);
    }
    pthread_mutex_unlock(&toolsets->mutex);
    return set;
}

void hearth_toolsets_put(struct hearth_toolsets *toolsets, struct hearth_digest said, struct hearth_toolset *set) {
    struct toolset_entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
        return; /* the conversation will be printed as it is sent */
    }
    pthread_mutex_lock(&toolsets->mutex);
    struct toolset_entry *before = (struct toolset_entry *)hearth_table_find(&toolsets->lru.table, said);
    entry->lru.link.key = said;
    entry->lru.bytes = sizeof *entry;
    entry->set = hold(toolsets, set);
    if (entry->set != NULL && before != NULL) {
        hearth_lru_remove(&toolsets->lru, &before->lru);
        release(toolsets, before);
    }
    if (entry->set == NULL || !hearth_lru_add(&toolsets->lru, &entry->lru, NULL)) {
        release(toolsets, entry);
    }
    evict(toolsets);
    pthread_mutex_unlock(&toolsets->mutex);
}
