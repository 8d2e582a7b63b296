/* An indexed binary min-heap of intrusive nodes: the next victim is at the top, any node can be moved or taken out. */
#ifndef HEARTH_CACHE_HEAP_H
#define HEARTH_CACHE_HEAP_H

#include <stdbool.h>
#include <stddef.h>

/* Embedded as the first member of what is kept in the heap. Zeroed: not in a heap. */
struct hearth_heap_node {
    double priority;
    size_t index; /* place in the heap + 1; 0 = not in a heap */
};

/* Zeroed: empty. */
struct hearth_heap {
    struct hearth_heap_node **v;
    size_t n, cap;
};

void hearth_heap_finish(struct hearth_heap *heap);
/* False: out of memory. The node must not be in a heap. */
bool hearth_heap_push(struct hearth_heap *heap, struct hearth_heap_node *node);
/* Takes a node out; a node that is in no heap is left alone. */
void hearth_heap_remove(struct hearth_heap *heap, struct hearth_heap_node *node);
/* Restores the order after the node's priority changed; a node that is in no heap is left alone. */
void hearth_heap_update(struct hearth_heap *heap, struct hearth_heap_node *node);
/* The node with the lowest priority, or NULL. */
struct hearth_heap_node *hearth_heap_top(const struct hearth_heap *heap);

#endif
