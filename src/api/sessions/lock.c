/* One response at a time: a running response locks its conversation. A second one would begin at the same head, and one
 * of the two replies would be lost. The lock is in memory and, if boxes share a database, in the database, too. */
#include "api/stored_turns.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct hearth_conversation_lock {
    struct hearth_conversation_lock *next;
    struct hearth_api *api;
    struct hearth_session_lock shared;
    struct hearth_digest owner;
    bool held;
    char name[];
};

static pthread_mutex_t locks_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct hearth_conversation_lock *locks;

static bool fail_locked(struct hearth_api_error *error) {
    return hearth_api_fail(error, 409, "conversation_locked", "conversation",
                           "Another process is currently operating on this conversation. Please retry in a few "
                           "seconds.");
}

bool hearth_conversation_lock(const struct hearth_job *job, const char *name, struct hearth_conversation_lock **out,
                              struct hearth_api_error *error) {
    struct hearth_conversation_lock *lock = malloc(sizeof *lock + strlen(name) + 1), *at;
    if (lock == NULL) {
        return false;
    }
    lock->api = job->api;
    lock->owner = job->owner;
    lock->held = true;
    memcpy(lock->name, name, strlen(name) + 1);
    pthread_mutex_lock(&locks_mutex);
    for (at = locks; at != NULL; at = at->next) {
        if (at->api == lock->api && hearth_digest_equal(at->owner, lock->owner) && strcmp(at->name, name) == 0) {
            break;
        }
    }
    if (at == NULL) {
        lock->next = locks;
        locks = lock;
        *out = lock;
    }
    pthread_mutex_unlock(&locks_mutex);
    if (at != NULL) {
        free(lock);
        return fail_locked(error);
    }
    lock->shared = (struct hearth_session_lock){.token = 0};
    const int taken = hearth_session_lock(job->api->store, job->owner, name, &lock->shared);
    if (taken <= 0) {
        hearth_conversation_lock_destroy(lock);
        *out = NULL;
        return taken == 0 ? fail_locked(error) : hearth_api_fail_err(error, taken, NULL);
    }
    return true;
}

struct hearth_session_lock hearth_conversation_lock_shared(const struct hearth_conversation_lock *lock) {
    return lock != NULL ? lock->shared : (struct hearth_session_lock){.token = 0};
}

void hearth_conversation_unlock(struct hearth_conversation_lock *lock) {
    if (lock == NULL || !lock->held) {
        return;
    }
    lock->held = false;
    if (lock->shared.token != 0) {
        hearth_session_unlock(lock->api->store, &lock->shared);
        hearth_api_deletion_worker_wake(lock->api->deletion_worker);
    }
    pthread_mutex_lock(&locks_mutex);
    struct hearth_conversation_lock **at = &locks;
    while (*at != lock) {
        at = &(*at)->next;
    }
    *at = lock->next;
    pthread_mutex_unlock(&locks_mutex);
}

void hearth_conversation_lock_destroy(struct hearth_conversation_lock *lock) {
    hearth_conversation_unlock(lock);
    free(lock);
}
