/* The keeper: a thread that does what deletions leave to be done. Now and then it takes out what has outlived its time,
 * and it carries out forgets: first the state (the service drops pages and snapshots that nobody else needs), then the
 * transcripts' texts, then the forget itself. Whatever it was in the middle of when the server ends is begun again by
 * the next one. */
#include "api/kept.h"

#include "base/clock.h"
#include "base/log.h"
#include "session/transcript.h"

#include <stdlib.h>
#include <time.h>

#define EVERY_S 10
#define SLICE 64
#define LOOK_NS 100000000 /* how often a wait looks whether the server ends */

struct hearth_keeper {
    struct hearth_api *api;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool stopping, woken;
};

/* One forget on its way through the service. The keeper and the service each hold it: at the end of the server the
 * keeper does not wait for a service that still looks through the disk. */
struct errand {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int holders, err;
    bool done;
};

static void let_go(struct errand *errand) {
    pthread_mutex_lock(&errand->mutex);
    const bool last = --errand->holders == 0;
    pthread_mutex_unlock(&errand->mutex);
    if (last) {
        pthread_cond_destroy(&errand->changed);
        pthread_mutex_destroy(&errand->mutex);
        free(errand);
    }
}

/* On the service's thread. */
static void forgotten(void *user, int err) {
    struct errand *errand = user;
    pthread_mutex_lock(&errand->mutex);
    errand->done = true;
    errand->err = err;
    pthread_cond_signal(&errand->changed);
    pthread_mutex_unlock(&errand->mutex);
    let_go(errand);
}

static bool is_stopping(struct hearth_keeper *keeper) {
    pthread_mutex_lock(&keeper->mutex);
    const bool stopping = keeper->stopping;
    pthread_mutex_unlock(&keeper->mutex);
    return stopping;
}

/* Waits for the errand's end or the keeper's. */
static int wait_for(struct hearth_keeper *keeper, struct errand *errand) {
    bool done = false;
    int err = HEARTH_ERR_CANCELLED;
    while (!done && !is_stopping(keeper)) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&errand->mutex);
        if (!errand->done) {
            (void)pthread_cond_timedwait(&errand->changed, &errand->mutex, &until);
        }
        done = errand->done;
        err = done ? errand->err : err;
        pthread_mutex_unlock(&errand->mutex);
    }
    return err;
}

/* Has the service drop the state. */
static int drop_state(struct hearth_keeper *keeper, const struct hearth_forget *forget) {
    struct errand *errand = calloc(1, sizeof *errand);
    if (errand == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    pthread_mutex_init(&errand->mutex, NULL);
    pthread_cond_init(&errand->changed, NULL);
    errand->holders = 2;
    const struct hearth_forget_request request = {
        .tokens = forget->tokens.v,
        .count = forget->tokens.n,
        .keep_tokens = forget->keep_tokens,
        .salt = forget->salt,
        .done = forgotten,
        .user = errand,
    };
    int err = hearth_service_forget(keeper->api->service, &request);
    if (err == HEARTH_OK) {
        err = wait_for(keeper, errand);
    } else {
        let_go(errand); /* nobody else will */
    }
    let_go(errand);
    return err;
}

static void carry_out(struct hearth_keeper *keeper) {
    struct hearth_session_store *store = keeper->api->store;
    struct hearth_forget forget;
    int64_t after = 0;
    while (hearth_forget_next(store, keeper->api->engine->caps.fingerprint, after, &forget) == HEARTH_OK) {
        const int err = drop_state(keeper, &forget);
        if (err == HEARTH_OK) {
            hearth_transcripts_forget(keeper->api->transcripts, forget.salt, forget.tokens.v, forget.tokens.n,
                                      forget.keep_tokens);
            (void)hearth_forget_done(store, forget.id);
        }
        after = forget.id;
        hearth_forget_finish(&forget);
        if (err != HEARTH_OK && err != HEARTH_ERR_IO) { /* IO: it stays, and is tried again later */
            return;
        }
    }
}

static void *run(void *user) {
    struct hearth_keeper *keeper = user;
    pthread_mutex_lock(&keeper->mutex);
    while (!keeper->stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += EVERY_S;
        while (!keeper->woken && !keeper->stopping &&
               pthread_cond_timedwait(&keeper->changed, &keeper->mutex, &until) == 0) {
        }
        keeper->woken = false;
        const bool stopping = keeper->stopping;
        pthread_mutex_unlock(&keeper->mutex);
        while (!is_stopping(keeper) && hearth_session_store_sweep(keeper->api->store, SLICE) >= SLICE) {
        }
        if (!stopping) {
            carry_out(keeper);
        }
        pthread_mutex_lock(&keeper->mutex);
    }
    pthread_mutex_unlock(&keeper->mutex);
    return NULL;
}

struct hearth_keeper *hearth_keeper_create(struct hearth_api *api) {
    struct hearth_keeper *keeper = calloc(1, sizeof *keeper);
    pthread_condattr_t attributes;
    if (keeper == NULL) {
        return NULL;
    }
    keeper->api = api;
    keeper->woken = true; /* what an earlier life has left */
    pthread_mutex_init(&keeper->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&keeper->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&keeper->thread, NULL, run, keeper) != 0) {
        pthread_cond_destroy(&keeper->changed);
        pthread_mutex_destroy(&keeper->mutex);
        free(keeper);
        return NULL;
    }
    return keeper;
}

void hearth_keeper_wake(struct hearth_keeper *keeper) {
    if (keeper != NULL) {
        pthread_mutex_lock(&keeper->mutex);
        keeper->woken = true;
        pthread_cond_broadcast(&keeper->changed);
        pthread_mutex_unlock(&keeper->mutex);
    }
}

void hearth_keeper_destroy(struct hearth_keeper *keeper) {
    if (keeper == NULL) {
        return;
    }
    pthread_mutex_lock(&keeper->mutex);
    keeper->stopping = true;
    pthread_cond_broadcast(&keeper->changed);
    pthread_mutex_unlock(&keeper->mutex);
    pthread_join(keeper->thread, NULL);
    pthread_cond_destroy(&keeper->changed);
    pthread_mutex_destroy(&keeper->mutex);
    free(keeper);
}
