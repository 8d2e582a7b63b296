/* An allocator that fails when it is told to, in the place of malloc() and its relations, operator new included. It is
 * linked into a test, or loaded by LD_PRELOAD into a program, and everything in the process allocates through it.
 *
 * One state steers it: a test's own, or a file of that size (FAULTY_ALLOC=path), which both processes map. */
#ifndef HEARTH_TESTS_SUPPORT_FAULTY_ALLOC_H
#define HEARTH_TESTS_SUPPORT_FAULTY_ALLOC_H

#include <stdatomic.h>

struct faulty_alloc {
    atomic_long first; /* the allocation that fails: 1 is the next one; 0: none, and nothing is counted */
    atomic_long count; /* how many fail from there on */
    atomic_long seen;  /* allocations that were counted since it was set */
    atomic_long hits;  /* and of these, failed */
    atomic_long live;  /* blocks that are allocated now */
};

/* The state in force. */
struct faulty_alloc *faulty_alloc_state(void);

/* From now on the calling thread's allocations neither fail nor are counted as such (live ones are). */
void faulty_alloc_spare(void);

/* Begins: the n-th allocation and `count` - 1 behind it fail. Ends: returns how many were counted. */
void faulty_alloc_arm(long n, long count);
long faulty_alloc_disarm(void);

#endif
