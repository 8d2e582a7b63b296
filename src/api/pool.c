/* The workers: a few threads that parse and render. Jobs run in the order in which they come, with two exceptions: a
 * job whose key has fewer running jobs goes first, and jobs that only count tokens go last. Besides, threads are
 * reserved:
 *
 *     one     for short jobs: small bodies with little work, no body, or storing a turn
 *     two     for jobs that do more than count tokens, the one above included
 *     one     for keys that do not already occupy all the others
 *
 * The job of each thread and its start are recorded, so that the tick notices a job that takes far longer than allowed,
 * and shutdown does not wait for it for ever. The number of connections and of detached jobs bounds the queue. */
#include "api/job.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/health.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 8
/* Size of a worker's stack. It is address space; only what is used becomes memory. Tokenizers of some models split text
 * by std::regex, which goes a level deeper for each letter of a long run (engine/llama_text.c): with the usual 8 MiB,
 * 50,000 blanks would end the process. */
#define STACK_BYTES ((size_t)1 << 30)
#define STACK_KEPT ((size_t)256 << 10) /* of a used stack; the rest goes back to the system */
#define SCAN_MAX 256                   /* most waiting jobs that are compared when one is chosen, if one may begin */
#define STUCK_US 3000000               /* CPU time beyond the limit: the job has passed no cancel point and is stuck */
#define STUCK_END_US 5000000           /* the same at the end, for a job that was told to stop */

enum weight { SHORT, LONG, COUNTING };

struct worker {
    struct hearth_api_pool *pool;
    pthread_t thread;
    uintptr_t stack; /* lowest address; 0: unknown */
    clockid_t cpu_clock;
    bool measured;          /* the thread has a CPU clock */
    struct hearth_job *job; /* on it, or NULL: only compared, it may be freed; and of it: */
    uint64_t tenant;
    enum weight weight;
    bool prepares;
    int64_t since_us, cpu_since_us;
};

struct hearth_api_pool {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct hearth_job *head, *tail;
    bool ending;
    struct worker workers[THREADS_MAX];
    size_t count;
};

static enum weight weight_of(const struct hearth_job *job) {
    const bool counts = (job->route->flags & HEARTH_ROUTE_COUNT) != 0;
    return job->completing ? SHORT : counts ? COUNTING : job->is_long ? LONG : SHORT;
}

/* How many running jobs have at least this weight, and how many belong to a key. */
static size_t running_of_weight(const struct hearth_api_pool *pool, enum weight least) {
    size_t n = 0;
    for (size_t i = 0; i < pool->count; i++) {
        n += pool->workers[i].job != NULL && pool->workers[i].weight >= least;
    }
    return n;
}

static size_t running_of_tenant(const struct hearth_api_pool *pool, uint64_t tenant) {
    size_t n = 0;
    for (size_t i = 0; i < pool->count && tenant != 0; i++) {
        n += pool->workers[i].job != NULL && pool->workers[i].tenant == tenant;
    }
    return n;
}

static bool may_begin(const struct hearth_api_pool *pool, const struct hearth_job *job, size_t of_tenant) {
    const enum weight weight = weight_of(job);
    const size_t reserved = weight == COUNTING && pool->count > 2 ? 2 : 1;
    return pool->count < 2 || ((weight == SHORT || running_of_weight(pool, LONG) + 1 < pool->count) &&
                               (weight < COUNTING || running_of_weight(pool, COUNTING) + reserved < pool->count) &&
                               of_tenant + 1 < pool->count);
}

/* Takes the next job that a thread may begin off the queue; NULL: none. */
static struct hearth_job *take(struct hearth_api_pool *pool) {
    struct hearth_job *before = NULL, *best = NULL, *before_best = NULL;
    size_t best_rank = SIZE_MAX, scanned = 0;
    for (struct hearth_job *job = pool->head; job != NULL && best_rank > 0 && (best == NULL || scanned < SCAN_MAX);
         scanned++) {
        const size_t of_tenant = running_of_tenant(pool, job->caller.tenant.id);
        const size_t rank = of_tenant + (weight_of(job) == COUNTING ? THREADS_MAX : 0);
        if (rank < best_rank && (pool->ending || may_begin(pool, job, of_tenant))) {
            best = job;
            before_best = before;
            best_rank = rank;
        }
        before = job;
        job = job->pool_next;
    }
    if (best != NULL) {
        *(before_best != NULL ? &before_best->pool_next : &pool->head) = best->pool_next;
        pool->tail = pool->tail == best ? before_best : pool->tail;
    }
    return best;
}

static int64_t cpu_us(const struct worker *worker) {
    struct timespec now = {0};
    (void)(worker->measured && clock_gettime(worker->cpu_clock, &now));
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static uintptr_t own_stack(void) {
    pthread_attr_t attr;
    void *lowest = NULL;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        lowest = pthread_attr_getstack(&attr, &lowest, &size) == 0 ? lowest : NULL;
        pthread_attr_destroy(&attr);
    }
    return (uintptr_t)lowest;
}

/* Gives the memory of the stack far below this frame back to the system; a thread would keep it. */
static void give_stack_back(const struct worker *worker) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t here = (uintptr_t)__builtin_frame_address(0) / page * page - STACK_KEPT;
    if (worker->stack != 0 && here > worker->stack) {
        (void)madvise((void *)worker->stack, here - worker->stack, MADV_DONTNEED);
    }
}

static void *work(void *user) {
    struct worker *worker = user;
    struct hearth_api_pool *pool = worker->pool;
    worker->stack = own_stack();
    pthread_mutex_lock(&pool->mutex);
    worker->measured = pthread_getcpuclockid(pthread_self(), &worker->cpu_clock) == 0;
    for (;;) {
        struct hearth_job *job = take(pool);
        if (job == NULL && pool->ending) {
            break; /* the other threads run what is left */
        }
        if (job == NULL) {
            pthread_cond_wait(&pool->changed, &pool->mutex);
            continue;
        }
        worker->job = job;
        worker->tenant = job->caller.tenant.id;
        worker->weight = weight_of(job);
        worker->prepares = !job->completing;
        worker->since_us = hearth_clock_us();
        worker->cpu_since_us = cpu_us(worker);
        pthread_mutex_unlock(&pool->mutex);
        job->pool_run(job); /* may free the job */
        give_stack_back(worker);
        pthread_mutex_lock(&pool->mutex);
        worker->job = NULL;
        pthread_cond_signal(&pool->changed); /* a job that could not begin beside this one */
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* Starts a thread with a deep stack or, if the system refuses that, with the usual one. */
static bool start(struct hearth_api_pool *pool, struct worker *worker) {
    pthread_attr_t attr;
    bool started = false;
    worker->pool = pool;
    if (pthread_attr_init(&attr) == 0) {
        started = pthread_attr_setstacksize(&attr, STACK_BYTES) == 0 &&
                  pthread_create(&worker->thread, &attr, work, worker) == 0;
        pthread_attr_destroy(&attr);
    }
    return started || pthread_create(&worker->thread, NULL, work, worker) == 0;
}

struct hearth_api_pool *hearth_api_pool_create(size_t threads) {
    struct hearth_api_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return NULL;
    }
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->changed, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&pool->mutex);
    while (pool->count < threads && pool->count < THREADS_MAX && start(pool, &pool->workers[pool->count])) {
        pool->count++;
    }
    pthread_mutex_unlock(&pool->mutex);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pool->count == 0) {
        hearth_api_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void hearth_api_pool_push(struct hearth_api_pool *pool, struct hearth_job *job) {
    job->pool_next = NULL;
    pthread_mutex_lock(&pool->mutex);
    if (pool->ending) { /* the threads have ended */
        pthread_mutex_unlock(&pool->mutex);
        job->pool_run(job);
        return;
    }
    *(pool->head == NULL ? &pool->head : &pool->tail->pool_next) = job;
    pool->tail = job;
    pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
}

void hearth_api_pool_watch(struct hearth_api_pool *pool, int64_t cpu_most_us) {
    int64_t longest_us = 0;
    size_t stuck = 0;
    pthread_mutex_lock(&pool->mutex);
    for (size_t i = 0; i < pool->count && cpu_most_us > 0; i++) {
        const struct worker *worker = &pool->workers[i];
        const int64_t spent_us = worker->job != NULL ? cpu_us(worker) - worker->cpu_since_us : 0;
        longest_us = spent_us > longest_us ? spent_us : longest_us;
        stuck += worker->prepares && spent_us > cpu_most_us + STUCK_US;
    }
    pthread_mutex_unlock(&pool->mutex);
    if (stuck > 0) {
        hearth_health_raise(HEARTH_HEALTH_PREPARATION,
                            "%zu of %zu workers prepare a request for far longer than the %lld s that it may take; if "
                            "that does not end, the server is to be started again",
                            stuck, pool->count, (long long)(cpu_most_us / 1000000));
    } else {
        hearth_health_clear(HEARTH_HEALTH_PREPARATION);
    }
}

/* Ends the process if a thread is stuck: it passes no cancel point, so it cannot be ended. */
static void end_if_stuck(struct hearth_api_pool *pool, const struct worker *worker) {
    pthread_mutex_lock(&pool->mutex);
    const bool stuck = worker->job != NULL && worker->prepares && hearth_clock_us() - worker->since_us > STUCK_END_US;
    pthread_mutex_unlock(&pool->mutex);
    if (stuck) {
        hearth_log(HEARTH_LOG_ERROR, "a request that is being prepared does not end; the process ends without it");
        _exit(1);
    }
}

void hearth_api_pool_stop(struct hearth_api_pool *pool) {
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->mutex);
    pool->ending = true;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
    for (size_t i = 0; i < pool->count; i++) {
        int rc;
        do {
            struct timespec until;
            (void)clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += STUCK_END_US / 1000000;
            rc = pthread_timedjoin_np(pool->workers[i].thread, NULL, &until);
            if (rc == ETIMEDOUT) {
                end_if_stuck(pool, &pool->workers[i]);
            }
        } while (rc == ETIMEDOUT);
        HEARTH_ASSERT(rc == 0);
    }
    pool->count = 0;
}

void hearth_api_pool_destroy(struct hearth_api_pool *pool) {
    if (pool == NULL) {
        return;
    }
    hearth_api_pool_stop(pool);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}
