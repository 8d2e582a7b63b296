/* Entries of a table in order of use, so that the one that was unused for longest can be evicted. The list allocates
 * nothing and owns nothing. Threads: the caller's lock. */
#ifndef HEARTH_BASE_LRU_H
#define HEARTH_BASE_LRU_H

#include "base/table.h"

/* The first member of what is listed, so that pointers convert. */
struct hearth_lru_entry {
    struct hearth_link link; /* first, so that it converts, too */
    struct hearth_lru_entry *newer, *older;
};

struct hearth_lru {
    struct hearth_lru_entry *newest, *oldest; /* NULL: empty */
};

/* Adds an entry that is not listed, as the newest. */
void hearth_lru_add(struct hearth_lru *lru, struct hearth_lru_entry *entry);
void hearth_lru_remove(struct hearth_lru *lru, struct hearth_lru_entry *entry);
/* Makes a listed entry the newest. */
void hearth_lru_touch(struct hearth_lru *lru, struct hearth_lru_entry *entry);

#endif
