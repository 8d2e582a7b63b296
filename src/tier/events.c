/* A flag and a list under one lock. The flag of a tier made of several is cleared before those are polled, so none of
 * their events is overlooked. */
#include "tier/events.h"

#include "base/clock.h"

#include <stdlib.h>

/* ---- the flag ---- */

void hearth_news_init(struct hearth_news *news) {
    *news = (struct hearth_news){0};
    (void)pthread_mutex_init(&news->lock, NULL);
    hearth_clock_cond_init(&news->came);
}

void hearth_news_finish(struct hearth_news *news) {
    (void)pthread_cond_destroy(&news->came);
    (void)pthread_mutex_destroy(&news->lock);
}

static void come_locked(struct hearth_news *news) {
    if (!news->there) {
        news->there = true;
        (void)pthread_cond_signal(&news->came);
        if (news->wake) {
            news->wake(news->wake_user);
        }
    }
}

void hearth_news_come(void *user) {
    struct hearth_news *news = user;
    (void)pthread_mutex_lock(&news->lock);
    come_locked(news);
    (void)pthread_mutex_unlock(&news->lock);
}

void hearth_news_clear(struct hearth_news *news) {
    (void)pthread_mutex_lock(&news->lock);
    news->there = false;
    (void)pthread_mutex_unlock(&news->lock);
}

void hearth_news_keep(struct hearth_news *news) {
    (void)pthread_mutex_lock(&news->lock);
    news->there = true;
    (void)pthread_mutex_unlock(&news->lock);
}

bool hearth_news_wait(struct hearth_news *news, int64_t timeout_us) {
    const int64_t until_us = hearth_clock_us() + timeout_us;
    (void)pthread_mutex_lock(&news->lock);
    while (!news->there && hearth_clock_cond_wait(&news->came, &news->lock, until_us)) {
        continue;
    }
    const bool there = news->there;
    (void)pthread_mutex_unlock(&news->lock);
    return there;
}

void hearth_news_set_wake(struct hearth_news *news, void (*wake)(void *user), void *user) {
    (void)pthread_mutex_lock(&news->lock);
    news->wake = wake;
    news->wake_user = user;
    if (wake && news->there) {
        wake(user);
    }
    (void)pthread_mutex_unlock(&news->lock);
}

/* ---- the queue ---- */

void hearth_events_init(struct hearth_events *events) {
    hearth_news_init(&events->news);
    STAILQ_INIT(&events->list);
    events->count = 0;
}

void hearth_events_finish(struct hearth_events *events) {
    struct hearth_backing_event event;
    while (hearth_events_poll(events, &event)) {
        hearth_backing_event_finish(&event);
    }
    hearth_news_finish(&events->news);
}

void hearth_events_post(struct hearth_events *events, struct hearth_events_entry *entry) {
    (void)pthread_mutex_lock(&events->news.lock);
    STAILQ_INSERT_TAIL(&events->list, entry, next);
    events->count++;
    come_locked(&events->news);
    (void)pthread_mutex_unlock(&events->news.lock);
}

bool hearth_events_tell(struct hearth_events *events, const struct hearth_backing_event *event) {
    struct hearth_events_entry *entry = calloc(1, sizeof *entry);
    if (entry) {
        entry->event = *event;
        hearth_events_post(events, entry);
    }
    return entry != NULL;
}

struct hearth_events_entry *hearth_events_take(struct hearth_events *events) {
    (void)pthread_mutex_lock(&events->news.lock);
    struct hearth_events_entry *entry = STAILQ_FIRST(&events->list);
    if (entry) {
        STAILQ_REMOVE_HEAD(&events->list, next);
        events->count--;
    }
    events->news.there = events->count > 0;
    (void)pthread_mutex_unlock(&events->news.lock);
    return entry;
}

bool hearth_events_poll(struct hearth_events *events, struct hearth_backing_event *event) {
    struct hearth_events_entry *entry = hearth_events_take(events);
    if (entry) {
        *event = entry->event;
        free(entry);
    }
    return entry != NULL;
}
