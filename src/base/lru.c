/* A doubly linked list, newest first. The neighbour of an entry is another entry or the list itself, so each link has
 * one place to be written to. */
#include "base/lru.h"

#include <stddef.h>

void hearth_lru_remove(struct hearth_lru *lru, struct hearth_lru_entry *entry) {
    *(entry->newer != NULL ? &entry->newer->older : &lru->newest) = entry->older;
    *(entry->older != NULL ? &entry->older->newer : &lru->oldest) = entry->newer;
}

void hearth_lru_add(struct hearth_lru *lru, struct hearth_lru_entry *entry) {
    entry->newer = NULL;
    entry->older = lru->newest;
    *(lru->newest != NULL ? &lru->newest->newer : &lru->oldest) = entry;
    lru->newest = entry;
}

void hearth_lru_touch(struct hearth_lru *lru, struct hearth_lru_entry *entry) {
    hearth_lru_remove(lru, entry);
    hearth_lru_add(lru, entry);
}
