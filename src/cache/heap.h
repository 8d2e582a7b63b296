/* An indexed binary min-heap of intrusive nodes: the next victim is at the top, any node can be moved or taken out.
 *
 * Priorities stand in the heap's array beside the nodes, so that finding a place reads no node. */
#ifndef HEARTH_CACHE_HEAP_H
#define HEARTH_CACHE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Embedded in each element of a heap. Zeroed: in no heap. */
struct hearth_heap_node {
    uint32_t index; /* place in the heap + 1; 0 = not in a heap */
};

struct hearth_heap_entry {
    double priority;
    struct hearth_heap_node *node;
};

/* Zeroed: empty. */
struct hearth_heap {
    struct hearth_heap_entry *v;
    size_t n, cap;
};

void hearth_heap_finish(struct hearth_heap *heap);
/* False: out of memory. The node must not be in a heap. */
bool hearth_heap_push(struct hearth_heap *heap, struct hearth_heap_node *node, double priority);
/* Takes a node out; a node that is in no heap is left alone. */
void hearth_heap_remove(struct hearth_heap *heap, struct hearth_heap_node *node);
/* Changes the node's priority; a node that is in no heap is left alone. */
void hearth_heap_update(struct hearth_heap *heap, struct hearth_heap_node *node, double priority);
/* The node with the lowest priority, or NULL. */
struct hearth_heap_node *hearth_heap_top(const struct hearth_heap *heap);
/* Whether the node is in this very heap. */
static inline bool hearth_heap_has(const struct hearth_heap *heap, const struct hearth_heap_node *node) {
    return node->index > 0 && node->index <= heap->n && heap->v[node->index - 1].node == node;
}

#endif
