/* The children of a page, found by (offset, first token).
 *
 * One child, which nearly every page has, is a pointer in the page. More are a hash table with the key in its slots, so
 * that finding one of a hundred thousand conversations behind a system prompt reads one line of memory and one child.
 * Inside the tree. */
#ifndef HEARTH_CACHE_CHILDREN_H
#define HEARTH_CACHE_CHILDREN_H

#include "cache/tree.h"

/* A slot; empty where `page` is NULL. */
struct hearth_child {
    int32_t offset;
    hearth_token first;
    struct hearth_page *page;
};

/* The child in a page that has several, or NULL. */
struct hearth_page *hearth_children_lookup(const struct hearth_page *page, int32_t offset, hearth_token first);

/* The child at an offset that begins with a token, or NULL. */
static inline struct hearth_page *hearth_children_find(const struct hearth_page *page, int32_t offset,
                                                       hearth_token first) {
    if (page->child_count != 1) {
        return page->child_count ? hearth_children_lookup(page, offset, first) : NULL;
    }
    struct hearth_page *one = page->children.one;
    return one->first == first && one->p0 - page->p0 == offset ? one : NULL;
}

/* Adds a child that has its p0 and `first`. False: out of memory. */
bool hearth_children_add(struct hearth_page *page, struct hearth_page *child);
void hearth_children_remove(struct hearth_page *page, const struct hearth_page *child);
/* The child after `child`, in no particular order; NULL stands before the first and after the last. Of `child` only p0
 * and `first` are read. */
struct hearth_page *hearth_children_next(const struct hearth_page *page, const struct hearth_page *child);
/* Frees the table. */
void hearth_children_finish(struct hearth_page *page);

#endif
