/* The queue of events. Two locks: `lock` guards the list; `wake_lock` makes set_wake() return only when the call before
 * has ended. `wake` is never called under `lock`. */
#include "tier/events.h"

#include "base/clock.h"

#include <stdlib.h>

void hearth_events_init(struct hearth_events *events) {
    *events = (struct hearth_events){0};
    events->end = &events->first;
    (void)pthread_mutex_init(&events->lock, NULL);
    (void)pthread_mutex_init(&events->wake_lock, NULL);
    hearth_clock_cond_init(&events->came);
}

void hearth_events_finish(struct hearth_events *events) {
    struct hearth_backing_event event;
    while (hearth_events_poll(events, &event)) {
        hearth_backing_event_finish(&event);
    }
    (void)pthread_cond_destroy(&events->came);
    (void)pthread_mutex_destroy(&events->lock);
    (void)pthread_mutex_destroy(&events->wake_lock);
}

void hearth_events_call_wake(struct hearth_events *events) {
    (void)pthread_mutex_lock(&events->wake_lock);
    if (events->wake) {
        events->wake(events->wake_user);
    }
    (void)pthread_mutex_unlock(&events->wake_lock);
}

bool hearth_events_append(struct hearth_events *events, struct hearth_events_entry *entry) {
    entry->next = NULL;
    (void)pthread_mutex_lock(&events->lock);
    const bool was_empty = !events->first;
    *events->end = entry;
    events->end = &entry->next;
    (void)pthread_cond_signal(&events->came);
    (void)pthread_mutex_unlock(&events->lock);
    return was_empty;
}

void hearth_events_post(struct hearth_events *events, struct hearth_events_entry *entry) {
    if (hearth_events_append(events, entry)) {
        hearth_events_call_wake(events);
    }
}

struct hearth_events_entry *hearth_events_take(struct hearth_events *events) {
    (void)pthread_mutex_lock(&events->lock);
    struct hearth_events_entry *entry = events->first;
    if (entry) {
        events->first = entry->next;
        events->end = events->first ? events->end : &events->first;
    }
    (void)pthread_mutex_unlock(&events->lock);
    return entry;
}

bool hearth_events_poll(struct hearth_events *events, struct hearth_backing_event *event) {
    struct hearth_events_entry *entry = hearth_events_take(events);
    if (!entry) {
        return false;
    }
    *event = entry->event;
    free(entry);
    return true;
}

bool hearth_events_wait(struct hearth_events *events, int64_t timeout_us) {
    const int64_t until_us = hearth_clock_us() + timeout_us;
    (void)pthread_mutex_lock(&events->lock);
    while (!events->first && hearth_clock_cond_wait(&events->came, &events->lock, until_us)) {
        continue;
    }
    const bool there = events->first != NULL;
    (void)pthread_mutex_unlock(&events->lock);
    return there;
}

void hearth_events_set_wake(struct hearth_events *events, void (*wake)(void *user), void *user) {
    (void)pthread_mutex_lock(&events->wake_lock);
    events->wake = wake;
    events->wake_user = user;
    (void)pthread_mutex_unlock(&events->wake_lock);
    (void)pthread_mutex_lock(&events->lock);
    const bool due = events->first != NULL;
    (void)pthread_mutex_unlock(&events->lock);
    if (due) {
        hearth_events_call_wake(events);
    }
}
