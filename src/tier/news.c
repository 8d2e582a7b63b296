/* A flag under a lock. It is cleared before the tiers are polled, so none of their events is overlooked. */
#include "tier/news.h"

#include "base/clock.h"

void hearth_news_init(struct hearth_news *news, bool there) {
    *news = (struct hearth_news){.there = there};
    (void)pthread_mutex_init(&news->lock, NULL);
    hearth_clock_cond_init(&news->came);
}

void hearth_news_finish(struct hearth_news *news) {
    (void)pthread_cond_destroy(&news->came);
    (void)pthread_mutex_destroy(&news->lock);
}

void hearth_news_come(void *user) {
    struct hearth_news *news = user;
    (void)pthread_mutex_lock(&news->lock);
    news->there = true;
    (void)pthread_cond_signal(&news->came);
    if (news->wake) {
        news->wake(news->wake_user);
    }
    (void)pthread_mutex_unlock(&news->lock);
}

void hearth_news_clear(struct hearth_news *news) {
    (void)pthread_mutex_lock(&news->lock);
    news->there = false;
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
