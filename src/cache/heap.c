/* A binary heap in one array; every node knows its place, so removal and re-ordering need no search.
 *
 * Invariant: v[i].node->index == i + 1, and no priority is below its parent's. */
#include "cache/heap.h"

#include "base/assert.h"
#include "base/buf.h"

#include <stdlib.h>

void hearth_heap_finish(struct hearth_heap *heap) {
    free(heap->v);
    *heap = (struct hearth_heap){0};
}

static void place(struct hearth_heap *heap, size_t i, struct hearth_heap_entry entry) {
    heap->v[i] = entry;
    entry.node->index = (uint32_t)i + 1;
}

static void sift_up(struct hearth_heap *heap, size_t i) {
    struct hearth_heap_entry entry = heap->v[i];
    while (i > 0) {
        size_t up = (i - 1) / 2;
        if (heap->v[up].priority <= entry.priority) {
            break;
        }
        place(heap, i, heap->v[up]);
        i = up;
    }
    place(heap, i, entry);
}

static void sift_down(struct hearth_heap *heap, size_t i) {
    struct hearth_heap_entry entry = heap->v[i];
    for (;;) {
        size_t down = 2 * i + 1;
        if (down >= heap->n) {
            break;
        }
        if (down + 1 < heap->n && heap->v[down + 1].priority < heap->v[down].priority) {
            down++;
        }
        if (entry.priority <= heap->v[down].priority) {
            break;
        }
        place(heap, i, heap->v[down]);
        i = down;
    }
    place(heap, i, entry);
}

bool hearth_heap_push(struct hearth_heap *heap, struct hearth_heap_node *node, double priority) {
    HEARTH_ASSERT(node->index == 0);
    if (heap->n == UINT32_MAX || !HEARTH_BUF_ROOM(heap->v, heap->n, heap->cap)) {
        return false;
    }
    place(heap, heap->n++, (struct hearth_heap_entry){.priority = priority, .node = node});
    sift_up(heap, heap->n - 1);
    return true;
}

void hearth_heap_remove(struct hearth_heap *heap, struct hearth_heap_node *node) {
    if (node->index == 0) {
        return;
    }
    size_t i = node->index - 1;
    HEARTH_ASSERT(i < heap->n && heap->v[i].node == node);
    struct hearth_heap_entry last = heap->v[--heap->n];
    node->index = 0;
    if (last.node == node) {
        return;
    }
    place(heap, i, last);
    sift_up(heap, i);
    sift_down(heap, last.node->index - 1);
}

void hearth_heap_update(struct hearth_heap *heap, struct hearth_heap_node *node, double priority) {
    if (node->index == 0) {
        return;
    }
    HEARTH_ASSERT(hearth_heap_has(heap, node));
    heap->v[node->index - 1].priority = priority;
    sift_up(heap, node->index - 1);
    sift_down(heap, node->index - 1);
}

struct hearth_heap_node *hearth_heap_top(const struct hearth_heap *heap) {
    return heap->n ? heap->v[0].node : NULL;
}
