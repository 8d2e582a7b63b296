/* The events from a tier to the cache: any thread adds, the engine's thread takes or waits.
 *
 * An event is the first member of the request that it answers, so an answer never needs memory. A tier that is made of
 * several has only the flag: one of these has events. Threads: any, but init and finish. */
#ifndef HEARTH_TIER_EVENTS_H
#define HEARTH_TIER_EVENTS_H

#include "tier/backing.h"

#include <pthread.h>
#include <sys/queue.h>

/* Whether there are events. `wake` is called under the lock, when they come where there were none. */
struct hearth_news {
    pthread_mutex_t lock;
    pthread_cond_t came;
    bool there;
    void (*wake)(void *user);
    void *wake_user;
};

void hearth_news_init(struct hearth_news *news);
void hearth_news_finish(struct hearth_news *news);
/* Raises the flag: a callback for the set_wake() of the tiers below; `user` is the news. */
void hearth_news_come(void *user);
/* Clears the flag before the tiers below are polled; later events raise it again. */
void hearth_news_clear(struct hearth_news *news);
/* Raises it again, without a wake, when an event was taken: a tier below that has more does not raise it again. */
void hearth_news_keep(struct hearth_news *news);
/* As the operations of the same names in tier/backing.h. */
bool hearth_news_wait(struct hearth_news *news, int64_t timeout_us);
void hearth_news_set_wake(struct hearth_news *news, void (*wake)(void *user), void *user);

/* An event in the queue. malloc() allocates it as the first member of a larger struct; it is freed when it is taken. */
struct hearth_events_entry {
    STAILQ_ENTRY(hearth_events_entry) next;
    uint64_t charge; /* bytes that the event counts for in a limit of its tier (the disk's reads); 0: none */
    struct hearth_backing_event event;
};

struct hearth_events {
    struct hearth_news news; /* its lock guards the list, too */
    STAILQ_HEAD(, hearth_events_entry) list;
    size_t count;
};

void hearth_events_init(struct hearth_events *events);
/* Frees what is left in it. No other thread uses it any more. */
void hearth_events_finish(struct hearth_events *events);
/* Adds an event; the queue owns the entry from now on. */
void hearth_events_post(struct hearth_events *events, struct hearth_events_entry *entry);
/* Posts an event that answers no request: FOUND, LOST and the like. False: out of memory. */
bool hearth_events_tell(struct hearth_events *events, const struct hearth_backing_event *event);
/* Takes the first entry, which the caller frees. NULL: there is none. */
struct hearth_events_entry *hearth_events_take(struct hearth_events *events);
/* As the operation of the same name in tier/backing.h. */
bool hearth_events_poll(struct hearth_events *events, struct hearth_backing_event *event);

#endif
