/* A table of entries in order of use, within a budget of bytes: the entry that was unused for longest is evicted first.
 * The list allocates and owns no entries. Threads: the caller's lock. */
#ifndef HEARTH_BASE_LRU_H
#define HEARTH_BASE_LRU_H

#include "base/table.h"

/* The first member of what is listed, so that pointers convert. */
struct hearth_lru_entry {
    struct hearth_link link; /* first, so that it converts, too */
    struct hearth_lru_entry *newer, *older;
    size_t bytes; /* counted while it is listed; fixed then */
};

/* A zeroed struct is empty and has no room. */
struct hearth_lru {
    struct hearth_table table;
    struct hearth_lru_entry *newest, *oldest; /* NULL: empty */
    size_t bytes, budget_bytes;               /* the caller may count more than the entries in `bytes` */
};

/* Frees the table of a list that is empty. */
void hearth_lru_finish(struct hearth_lru *lru);
/* Adds an entry that is not listed, with key and bytes set: as the newest, or next older than `newer`. False: out of
 * memory. It may exceed the budget until hearth_lru_evict(). */
bool hearth_lru_add(struct hearth_lru *lru, struct hearth_lru_entry *entry, struct hearth_lru_entry *newer);
void hearth_lru_remove(struct hearth_lru *lru, struct hearth_lru_entry *entry);
/* Makes a listed entry the newest. */
void hearth_lru_touch(struct hearth_lru *lru, struct hearth_lru_entry *entry);
/* While the bytes exceed the budget: removes and returns the entry that was unused for longest; else NULL. */
struct hearth_lru_entry *hearth_lru_evict(struct hearth_lru *lru);

#endif
