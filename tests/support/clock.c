/* Waits are real ones without a time limit; moving the clock signals those that are over. */
#include "support/clock.h"

#include "base/assert.h"
#include "base/clock.h"

#include <stdatomic.h>
#include <sys/queue.h>

#define WAITS_MAX 64

struct wait {
    LIST_ENTRY(wait) next;
    pthread_cond_t *cond;
    pthread_mutex_t *mutex;
    int64_t until_us;
};

#define BEGIN_US INT64_C(1000000000)

static atomic_int_fast64_t now_us = BEGIN_US;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, wait) waits = LIST_HEAD_INITIALIZER(waits);

int64_t __wrap_hearth_clock_us(void);
int64_t __wrap_hearth_clock_unix_us(void);
bool __wrap_hearth_clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_us);

int64_t __wrap_hearth_clock_us(void) {
    return atomic_load(&now_us);
}

int64_t __wrap_hearth_clock_unix_us(void) {
    static atomic_int_fast64_t began_s; /* files that are made have times of the real clock */
    if (atomic_load(&began_s) == 0) {
        atomic_store(&began_s, hearth_clock_unix());
    }
    return atomic_load(&began_s) * 1000000 + atomic_load(&now_us) - BEGIN_US;
}

bool __wrap_hearth_clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_us) {
    struct wait wait = {.cond = cond, .mutex = mutex, .until_us = until_us};
    pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&waits, &wait, next);
    pthread_mutex_unlock(&lock);
    if (atomic_load(&now_us) < until_us) {
        pthread_cond_wait(cond, mutex);
    }
    pthread_mutex_lock(&lock);
    LIST_REMOVE(&wait, next);
    pthread_mutex_unlock(&lock);
    return atomic_load(&now_us) < until_us;
}

void clock_advance_us(int64_t us) {
    struct wait due[WAITS_MAX], *wait;
    size_t n = 0;
    const int64_t now = atomic_fetch_add(&now_us, us) + us;
    pthread_mutex_lock(&lock);
    LIST_FOREACH(wait, &waits, next) {
        HEARTH_ASSERT(n < WAITS_MAX);
        due[n] = *wait;
        n += wait->until_us <= now;
    }
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < n; i++) { /* under its mutex: a thread that is about to wait is waiting then */
        pthread_mutex_lock(due[i].mutex);
        pthread_cond_broadcast(due[i].cond);
        pthread_mutex_unlock(due[i].mutex);
    }
}

int64_t clock_next_us(void) {
    const int64_t now = atomic_load(&now_us);
    int64_t next = INT64_MAX;
    struct wait *wait;
    pthread_mutex_lock(&lock);
    LIST_FOREACH(wait, &waits, next) {
        next = wait->until_us > now && wait->until_us < next ? wait->until_us : next;
    }
    pthread_mutex_unlock(&lock);
    return next;
}
