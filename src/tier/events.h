/* The queue of events from a tier to the cache: any thread adds, the engine's thread takes or waits.
 *
 * An event is the first member of the request that it answers, so an answer never needs memory. Threads: any, unless a
 * declaration says otherwise. */
#ifndef HEARTH_TIER_EVENTS_H
#define HEARTH_TIER_EVENTS_H

#include "tier/backing.h"

#include <pthread.h>

/* An event in the queue. malloc() allocates it as the first member of a larger struct; it is freed when it is taken. */
struct hearth_events_entry {
    struct hearth_events_entry *next;
    uint64_t charge; /* bytes that the event counts for in a limit of its tier (the disk's reads); 0: none */
    struct hearth_backing_event event;
};

struct hearth_events {
    pthread_mutex_t lock;
    pthread_cond_t came;
    struct hearth_events_entry *first, **end;
    pthread_mutex_t wake_lock; /* held while `wake` runs, so that it is not called after it was changed */
    void (*wake)(void *user);
    void *wake_user;
};

void hearth_events_init(struct hearth_events *events);
/* Frees what is left in it. No other thread uses it any more. */
void hearth_events_finish(struct hearth_events *events);
/* Adds an event; the queue owns the entry from now on. Calls `wake` if the queue was empty. */
void hearth_events_post(struct hearth_events *events, struct hearth_events_entry *entry);
/* As post(), for a caller that holds a lock of its own. True: the queue was empty, and the caller must call
 * hearth_events_call_wake() without that lock. */
bool hearth_events_append(struct hearth_events *events, struct hearth_events_entry *entry);
void hearth_events_call_wake(struct hearth_events *events);
/* Takes the first entry, which the caller frees. NULL: there is none. */
struct hearth_events_entry *hearth_events_take(struct hearth_events *events);
/* As the operations of the same names in tier/backing.h. */
bool hearth_events_poll(struct hearth_events *events, struct hearth_backing_event *event);
bool hearth_events_wait(struct hearth_events *events, int64_t timeout_us);
void hearth_events_set_wake(struct hearth_events *events, void (*wake)(void *user), void *user);

#endif
