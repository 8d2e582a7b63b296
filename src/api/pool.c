/* The workers: a few threads that do a part of the jobs' work, first come, first served. Jobs that only count tokens go
 * last, and one thread is kept free of them: whoever has a book counted keeps nobody waiting. How many jobs there are
 * is bounded by the number of connections and of detached jobs. */
#include "api/job.h"

#include <signal.h>
#include <stdlib.h>

#define THREADS_MAX 8
/* Address space, of which only what is used becomes memory. Tokenizers of some models split text by std::regex, which
 * goes a level deeper for each letter of a long run (engine/llama_text.c): with the usual 8 MiB, 50,000 blanks would
 * end the process. */
#define STACK_BYTES ((size_t)1 << 30)

struct line {
    struct hearth_job *head, *tail;
};

struct hearth_pool {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct line first, last;
    size_t last_running;
    bool ending;
    pthread_t threads[THREADS_MAX];
    size_t thread_count;
};

static bool counts(const struct hearth_job *job) {
    return (job->route->flags & HEARTH_ROUTE_COUNT) != 0;
}

static void append(struct line *line, struct hearth_job *job) {
    if (line->head == NULL) {
        line->head = job;
    } else {
        line->tail->pool_next = job;
    }
    line->tail = job;
}

/* The next job that a thread may begin, taken out of its line; NULL: none. */
static struct hearth_job *take(struct hearth_pool *pool) {
    const bool spared = pool->thread_count > 1 && pool->last_running + 1 >= pool->thread_count;
    struct line *line = pool->first.head == NULL && !spared ? &pool->last : &pool->first;
    struct hearth_job *job = line->head;
    if (job != NULL) {
        line->head = job->pool_next;
    }
    return job;
}

static void *work(void *user) {
    struct hearth_pool *pool = user;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        struct hearth_job *job = take(pool);
        if (job == NULL && pool->ending) {
            break; /* what is left is done by the thread that is counting now */
        }
        if (job == NULL) {
            pthread_cond_wait(&pool->changed, &pool->mutex);
            continue;
        }
        const bool last = counts(job);
        pool->last_running += last;
        pthread_mutex_unlock(&pool->mutex);
        job->pool_run(job); /* which may free it */
        pthread_mutex_lock(&pool->mutex);
        pool->last_running -= last;
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* A thread with a deep stack, or, where the system does not give it one, with the usual. */
static bool start(struct hearth_pool *pool, pthread_t *thread) {
    pthread_attr_t attr;
    bool started = false;
    if (pthread_attr_init(&attr) == 0) {
        started = pthread_attr_setstacksize(&attr, STACK_BYTES) == 0 && pthread_create(thread, &attr, work, pool) == 0;
        pthread_attr_destroy(&attr);
    }
    return started || pthread_create(thread, NULL, work, pool) == 0;
}

struct hearth_pool *hearth_pool_create(size_t threads) {
    struct hearth_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return NULL;
    }
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->changed, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&pool->mutex);
    while (pool->thread_count < threads && pool->thread_count < THREADS_MAX &&
           start(pool, &pool->threads[pool->thread_count])) {
        pool->thread_count++;
    }
    pthread_mutex_unlock(&pool->mutex);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pool->thread_count == 0) {
        hearth_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void hearth_pool_push(struct hearth_pool *pool, struct hearth_job *job) {
    job->pool_next = NULL;
    pthread_mutex_lock(&pool->mutex);
    if (pool->ending) { /* nobody else is left to do it */
        pthread_mutex_unlock(&pool->mutex);
        job->pool_run(job);
        return;
    }
    append(counts(job) ? &pool->last : &pool->first, job);
    pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
}

void hearth_pool_stop(struct hearth_pool *pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->ending = true;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
    for (size_t i = 0; i < pool->thread_count; i++) {
        pthread_join(pool->threads[i], NULL);
    }
    pool->thread_count = 0;
}

void hearth_pool_destroy(struct hearth_pool *pool) {
    if (pool == NULL) {
        return;
    }
    hearth_pool_stop(pool);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}
