/* A flag for a tier that is made of several: one of the tiers below has events. With a way to wait for it.
 * Threads: any, but init and finish. */
#ifndef HEARTH_TIER_NEWS_H
#define HEARTH_TIER_NEWS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct hearth_news {
    pthread_mutex_t lock; /* held while `wake` runs, so that it is not called after it was changed */
    pthread_cond_t came;
    bool there;
    void (*wake)(void *user);
    void *wake_user;
};

void hearth_news_init(struct hearth_news *news, bool there);
void hearth_news_finish(struct hearth_news *news);
/* There is something: a callback for the set_wake() of the tiers below, `user` being the news. */
void hearth_news_come(void *user);
/* Before the tiers below are polled: what comes from here on raises the flag again. */
void hearth_news_clear(struct hearth_news *news);
/* As the operations of the same names in tier/backing.h. */
bool hearth_news_wait(struct hearth_news *news, int64_t timeout_us);
void hearth_news_set_wake(struct hearth_news *news, void (*wake)(void *user), void *user);

#endif
