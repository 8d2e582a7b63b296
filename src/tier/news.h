/* A flag for a tier made of several: one of these has events. Waiting for it is possible.
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
/* Raises the flag: a callback for the set_wake() of the tiers below; `user` is the news. */
void hearth_news_come(void *user);
/* Clears the flag before the tiers below are polled; later events raise it again. */
void hearth_news_clear(struct hearth_news *news);
/* As the operations of the same names in tier/backing.h. */
bool hearth_news_wait(struct hearth_news *news, int64_t timeout_us);
void hearth_news_set_wake(struct hearth_news *news, void (*wake)(void *user), void *user);

#endif
