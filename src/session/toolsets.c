/* A table with a list in order of use. Turns of a conversation share one set, so a turn costs an entry and no tools.
 *
 * Invariants. Every entry is in the table and in the list. `bytes` counts each entry, and a set once for every time
 * that its neighbour in the list was another one when it came: too much rather than too little. */
#include "session/toolsets.h"

#include "base/table.h"

#include <pthread.h>
#include <stdlib.h>

struct entry {
    struct hearth_link link; /* first, so that it converts */
    struct entry *newer, *older;
    struct hearth_toolset *set;
    size_t bytes; /* that were counted for it */
};

struct hearth_toolsets {
    pthread_mutex_t mutex;
    struct hearth_table table;
    struct entry *newest, *oldest;
    size_t bytes, budget_bytes;
};

/* ---- sets ---- */

/* A parsed value takes a few times the room of its text. */
static size_t memory_of(const json_t *value) {
    return 3 * json_dumpb(value, NULL, 0, JSON_COMPACT);
}

struct hearth_toolset *hearth_toolset_create(json_t *head, json_t *late) {
    struct hearth_toolset *set = calloc(1, sizeof *set);
    if (set != NULL) {
        set->refs = 1;
        set->head = json_incref(head);
        set->late = json_incref(late);
        set->bytes = sizeof *set + memory_of(head) + memory_of(late);
    }
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

static void unlist(struct hearth_toolsets *toolsets, struct entry *entry) {
    *(entry->newer != NULL ? &entry->newer->older : &toolsets->newest) = entry->older;
    *(entry->older != NULL ? &entry->older->newer : &toolsets->oldest) = entry->newer;
}

static void list_newest(struct hearth_toolsets *toolsets, struct entry *entry) {
    entry->newer = NULL;
    entry->older = toolsets->newest;
    *(toolsets->newest != NULL ? &toolsets->newest->newer : &toolsets->oldest) = entry;
    toolsets->newest = entry;
}

static void drop(struct hearth_toolsets *toolsets, struct entry *entry) {
    unlist(toolsets, entry);
    hearth_table_remove(&toolsets->table, &entry->link);
    toolsets->bytes -= entry->bytes;
    hearth_toolset_unref(entry->set);
    free(entry);
}

struct hearth_toolsets *hearth_toolsets_create(size_t budget_bytes) {
    struct hearth_toolsets *toolsets = calloc(1, sizeof *toolsets);
    if (toolsets != NULL) {
        pthread_mutex_init(&toolsets->mutex, NULL);
        toolsets->budget_bytes = budget_bytes;
    }
    return toolsets;
}

void hearth_toolsets_destroy(struct hearth_toolsets *toolsets) {
    if (toolsets == NULL) {
        return;
    }
    while (toolsets->oldest != NULL) {
        drop(toolsets, toolsets->oldest);
    }
    hearth_table_finish(&toolsets->table);
    pthread_mutex_destroy(&toolsets->mutex);
    free(toolsets);
}

struct hearth_digest hearth_toolsets_begin(struct hearth_digest salt) {
    return hearth_digest_bytes(&salt, sizeof salt);
}

struct hearth_digest hearth_toolsets_say(struct hearth_digest said, const struct hearth_message *message) {
    return hearth_digest_chain(said, &message->says, sizeof message->says);
}

struct hearth_toolset *hearth_toolsets_get(struct hearth_toolsets *toolsets, struct hearth_digest said) {
    struct hearth_toolset *set = NULL;
    pthread_mutex_lock(&toolsets->mutex);
    struct entry *entry = (struct entry *)hearth_table_find(&toolsets->table, said);
    if (entry != NULL) {
        unlist(toolsets, entry);
        list_newest(toolsets, entry);
        set = hearth_toolset_ref(entry->set);
    }
    pthread_mutex_unlock(&toolsets->mutex);
    return set;
}

void hearth_toolsets_put(struct hearth_toolsets *toolsets, struct hearth_digest said, struct hearth_toolset *set) {
    struct entry *entry = calloc(1, sizeof *entry);
    if (entry == NULL) {
        return; /* the conversation will be printed as it is sent */
    }
    pthread_mutex_lock(&toolsets->mutex);
    struct entry *before = (struct entry *)hearth_table_find(&toolsets->table, said);
    if (before != NULL) {
        drop(toolsets, before);
    }
    entry->link.key = said;
    if (!hearth_table_add(&toolsets->table, &entry->link)) {
        free(entry);
    } else {
        const bool shared = toolsets->newest != NULL && toolsets->newest->set == set;
        entry->set = hearth_toolset_ref(set);
        entry->bytes = sizeof *entry + (shared ? 0 : set->bytes);
        toolsets->bytes += entry->bytes;
        list_newest(toolsets, entry);
        while (toolsets->oldest != NULL && toolsets->bytes > toolsets->budget_bytes) {
            drop(toolsets, toolsets->oldest);
        }
    }
    pthread_mutex_unlock(&toolsets->mutex);
}
