/* The deletion worker: a thread that finishes deletions. Now and then it removes what has expired, closes what servers
 * that ended have left open, and carries out forgets, also those of other boxes: first the state (the service drops
 * pages and snapshots that no other prompt needs), then the transcripts' texts, then the forget itself. If the server
 * ends in the middle, the next one begins that work again. */
#include "api/stored_turns.h"

#include "base/clock.h"
#include "base/log.h"
#include "report/journal.h"
#include "session/transcript.h"

#include <stdlib.h>

#define EVERY_US 10000000
#define SLICE 64
#define POLL_US 100000 /* how often a wait checks whether the server ends */
#define FLUSH_US 2000000

struct hearth_api_deletion_worker {
    struct hearth_api *api;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stopping, woken;
};

/* A forget on its way through the service. The deletion worker and the service each hold a reference, because at the
 * end of the server the worker does not wait for a service that is still searching the disk. */
struct forget_wait {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int holders, err;
    bool done;
};

static void release_wait(struct forget_wait *forget_wait) {
    pthread_mutex_lock(&forget_wait->mutex);
    const bool last = --forget_wait->holders == 0;
    pthread_mutex_unlock(&forget_wait->mutex);
    if (last) {
        pthread_cond_destroy(&forget_wait->changed);
        pthread_mutex_destroy(&forget_wait->mutex);
        free(forget_wait);
    }
}

/* On the service's thread. */
static void forgotten(void *user, int err) {
    struct forget_wait *forget_wait = user;
    pthread_mutex_lock(&forget_wait->mutex);
    forget_wait->done = true;
    forget_wait->err = err;
    pthread_cond_signal(&forget_wait->changed);
    pthread_mutex_unlock(&forget_wait->mutex);
    release_wait(forget_wait);
}

static bool is_stopping(struct hearth_api_deletion_worker *worker) {
    pthread_mutex_lock(&worker->mutex);
    const bool stopping = worker->stopping;
    pthread_mutex_unlock(&worker->mutex);
    return stopping;
}

/* Waits for the end of the forget or of the worker. */
static int wait_for(struct hearth_api_deletion_worker *worker, struct forget_wait *forget_wait) {
    bool done = false;
    int err = HEARTH_ERR_CANCELLED;
    while (!done && !is_stopping(worker)) {
        pthread_mutex_lock(&forget_wait->mutex);
        if (!forget_wait->done) {
            (void)hearth_clock_cond_wait(&forget_wait->changed, &forget_wait->mutex, hearth_clock_us() + POLL_US);
        }
        done = forget_wait->done;
        err = done ? forget_wait->err : err;
        pthread_mutex_unlock(&forget_wait->mutex);
    }
    return err;
}

/* Has the service drop the state. */
static int drop_state(struct hearth_api_deletion_worker *worker, const struct hearth_forget *forget) {
    struct forget_wait *forget_wait = calloc(1, sizeof *forget_wait);
    if (forget_wait == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    pthread_mutex_init(&forget_wait->mutex, NULL);
    hearth_clock_cond_init(&forget_wait->changed);
    forget_wait->holders = 2;
    const struct hearth_service_forget_request request = {
        .tokens = forget->tokens.v,
        .count = forget->tokens.n,
        .keep_tokens = forget->keep_tokens,
        .salt = forget->salt,
        .done = forgotten,
        .user = forget_wait,
    };
    int err = hearth_service_forget(worker->api->service, &request);
    if (err == HEARTH_OK) {
        err = wait_for(worker, forget_wait);
    } else {
        release_wait(forget_wait); /* the service's reference, since the service has not taken it */
    }
    release_wait(forget_wait);
    return err;
}

/* A forget is done when its texts have left the database of the transcripts, too: a crash must not bring them back. As
 * long as they cannot leave it, the forget stays, and is carried out again later. */
static void carry_out(struct hearth_api_deletion_worker *worker) {
    struct hearth_session_store *store = worker->api->store;
    struct hearth_transcripts *transcripts = worker->api->transcripts;
    struct hearth_forget forget;
    bool written = true; /* false: the database of the transcripts is waited for once in a round */
    int64_t after = 0;
    while (hearth_forget_next(store, worker->api->engine->caps.fingerprint, after, &forget) == HEARTH_OK) {
        const int err = drop_state(worker, &forget);
        if (err == HEARTH_OK) {
            const bool gone = hearth_transcripts_forget(transcripts, forget.salt, forget.tokens.v, forget.tokens.n,
                                                        forget.keep_tokens);
            written = written && hearth_transcripts_flush(transcripts, FLUSH_US);
            if (gone && written) {
                (void)hearth_forget_done(store, forget.id);
            }
            hearth_journal_deleted(worker->api->journal);
        }
        after = forget.id;
        hearth_forget_finish(&forget);
        if (err != HEARTH_OK && err != HEARTH_ERR_IO) { /* IO: the forget stays, and is tried again later */
            return;
        }
    }
}

static void fail_orphans(struct hearth_api_deletion_worker *worker) {
    const int count = hearth_turn_fail_orphans(worker->api->store, HEARTH_API_GONE_US);
    if (count > 0) {
        hearth_log(HEARTH_LOG_INFO, "sessions: %d responses have failed: the server that they ran on has ended", count);
    }
}

static void *run(void *user) {
    struct hearth_api_deletion_worker *worker = user;
    pthread_mutex_lock(&worker->mutex);
    while (!worker->stopping) {
        const int64_t until_us = hearth_clock_us() + EVERY_US;
        while (!worker->woken && !worker->stopping &&
               hearth_clock_cond_wait(&worker->changed, &worker->mutex, until_us)) {
        }
        worker->woken = false;
        const bool stopping = worker->stopping;
        pthread_mutex_unlock(&worker->mutex);
        hearth_session_flush_locks(worker->api->store);
        while (!is_stopping(worker) && hearth_session_store_sweep(worker->api->store, SLICE) >= SLICE) {
        }
        if (!stopping) {
            fail_orphans(worker);
            carry_out(worker);
        }
        pthread_mutex_lock(&worker->mutex);
    }
    pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

struct hearth_api_deletion_worker *hearth_api_deletion_worker_create(struct hearth_api *api) {
    struct hearth_api_deletion_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) {
        return NULL;
    }
    worker->api = api;
    worker->woken = true; /* finish what an earlier process has left */
    pthread_mutex_init(&worker->mutex, NULL);
    hearth_clock_cond_init(&worker->changed);
    if (pthread_create(&worker->thread, NULL, run, worker) != 0) {
        pthread_cond_destroy(&worker->changed);
        pthread_mutex_destroy(&worker->mutex);
        free(worker);
        return NULL;
    }
    return worker;
}

void hearth_api_deletion_worker_wake(struct hearth_api_deletion_worker *worker) {
    if (worker != NULL) {
        pthread_mutex_lock(&worker->mutex);
        worker->woken = true;
        pthread_cond_broadcast(&worker->changed);
        pthread_mutex_unlock(&worker->mutex);
    }
}

void hearth_api_deletion_worker_destroy(struct hearth_api_deletion_worker *worker) {
    if (worker == NULL) {
        return;
    }
    pthread_mutex_lock(&worker->mutex);
    worker->stopping = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->mutex);
    pthread_join(worker->thread, NULL);
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->mutex);
    free(worker);
}
