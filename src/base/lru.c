/* A doubly linked list, newest first. The neighbour of an entry is another entry or the list itself, so each link has
 * one place to be written to. `bytes` is at least the sum over the entries. */
#include "base/lru.h"

#include "base/assert.h"

static void unlink_entry(struct hearth_lru *lru, struct hearth_lru_entry *entry) {
    *(entry->newer ? &entry->newer->older : &lru->newest) = entry->older;
    *(entry->older ? &entry->older->newer : &lru->oldest) = entry->newer;
}

static void link_entry(struct hearth_lru *lru, struct hearth_lru_entry *entry, struct hearth_lru_entry *newer) {
    struct hearth_lru_entry **place = newer ? &newer->older : &lru->newest;
    entry->newer = newer;
    entry->older = *place;
    *(entry->older ? &entry->older->newer : &lru->oldest) = entry;
    *place = entry;
}

void hearth_lru_finish(struct hearth_lru *lru) {
    HEARTH_ASSERT(!lru->newest && lru->bytes == 0);
    hearth_table_finish(&lru->table);
}

bool hearth_lru_add(struct hearth_lru *lru, struct hearth_lru_entry *entry, struct hearth_lru_entry *newer) {
    if (!hearth_table_add(&lru->table, &entry->link)) {
        return false;
    }
    link_entry(lru, entry, newer);
    lru->bytes += entry->bytes;
    return true;
}

void hearth_lru_remove(struct hearth_lru *lru, struct hearth_lru_entry *entry) {
    hearth_table_remove(&lru->table, &entry->link);
    unlink_entry(lru, entry);
    lru->bytes -= entry->bytes;
}

void hearth_lru_touch(struct hearth_lru *lru, struct hearth_lru_entry *entry) {
    unlink_entry(lru, entry);
    link_entry(lru, entry, NULL);
}

struct hearth_lru_entry *hearth_lru_evict(struct hearth_lru *lru) {
    struct hearth_lru_entry *oldest = lru->bytes > lru->budget_bytes ? lru->oldest : NULL;
    if (oldest) {
        hearth_lru_remove(lru, oldest);
    }
    return oldest;
}
