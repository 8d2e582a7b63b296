/* Locks that a server's database holds: of a process, as a sign of life, and of a conversation, while one box goes on
 * with it. A file needs neither: of processes its lock file tells, and those that share it know that they do.
 *
 * Both are advisory locks of the writer's session at the server, so they end with its connection, whatever ends that.
 * Turns are written over the same connection: as long as it is the one that the lock was taken on (`generation`), the
 * lock was held when the turn was committed. After a reconnect another box may have been faster: the lock is taken
 * again in the transaction that puts the turn, and the conversation must stand where the turn goes on from. Otherwise
 * putting fails.
 *
 * A lock is given back behind the turn that ends it, by the same thread, or else by hearth_session_flush_locks(): what
 * gives it back may not wait for a server. Until then the process has it, and may take it over for the next turn.
 *
 * Numbers: a process has one above zero, a conversation one below. */
#include "session/store_internal.h"

#include <stdlib.h>

static int64_t key_of(const struct hearth_db *db, struct hearth_digest owner, const char *name) {
    return (int64_t)(hearth_session_key(db, owner, name).lo | (uint64_t)1 << 63);
}

/* Takes a lock. 1, 0 (another session has it) or an error. */
static int take(struct hearth_db *db, int64_t key) {
    int64_t taken;
    const int found = hearth_db_query_number(db, LOCK_TAKE, &taken, "i", key);
    return found < 0 ? found : taken != 0;
}

int hearth_session_is_locked(struct hearth_db *db, int64_t process) {
    int64_t free;
    const int found = hearth_db_query_number(db, LOCK_PROBE, &free, "i", process);
    return found < 0 ? found : free == 0;
}

/* The lock with a token, or with token 0 the lock of a key. With the store's mutex. */
static struct store_lock *find(struct hearth_session_store *store, uint64_t token, int64_t key) {
    struct store_lock *at = store->locks;
    while (at != NULL && (token != 0 ? at->lock.token != token : at->lock.key != key)) {
        at = at->next;
    }
    return at;
}

/* Takes over a lock that was released and is still held; otherwise adds `made`. */
static int take_or_add(struct hearth_session_store *store, int64_t key, struct store_lock *made) {
    struct hearth_db *db = &store->writer;
    pthread_mutex_lock(&store->mutex);
    struct store_lock *held = find(store, 0, key);
    made->lock = (struct hearth_session_lock){.key = key, .token = ++store->lock_tokens, .generation = db->generation};
    const bool ours = held != NULL && held->lock.generation == db->generation;
    if (held != NULL && held->released) {
        held->lock = made->lock;
        held->released = !ours;
    }
    pthread_mutex_unlock(&store->mutex);
    if (ours) {
        return 1;
    }
    const int taken = take(db, key);
    pthread_mutex_lock(&store->mutex);
    if (taken > 0 && held != NULL) {
        held->released = false;
    } else if (taken > 0) {
        struct store_lock *added = malloc(sizeof *added);
        if (added != NULL) {
            *added = *made;
            added->next = store->locks;
            store->locks = added;
        } /* otherwise it is held until the connection ends */
    }
    pthread_mutex_unlock(&store->mutex);
    return taken;
}

int hearth_session_lock(struct hearth_session_store *store, struct hearth_digest owner, const char *name,
                        struct hearth_session_lock *out) {
    struct hearth_db *db = &store->writer;
    struct store_lock made = {.next = NULL};
    *out = made.lock;
    if (!store->on_server) {
        return 1;
    }
    int taken = hearth_session_lock_writer(store);
    if (taken != HEARTH_OK) {
        return taken;
    }
    taken = hearth_session_open_writer(store);
    taken = taken == HEARTH_OK ? take_or_add(store, key_of(db, owner, name), &made) : taken;
    pthread_mutex_unlock(&db->mutex);
    if (taken > 0) {
        *out = made.lock;
    }
    return taken;
}

void hearth_session_unlock(struct hearth_session_store *store, const struct hearth_session_lock *lock) {
    if (lock->token == 0) {
        return;
    }
    pthread_mutex_lock(&store->mutex);
    struct store_lock *held = find(store, lock->token, 0);
    if (held != NULL) {
        held->released = true;
    }
    pthread_mutex_unlock(&store->mutex);
}

/* Takes a lock that was released, or the one with the token, out of the list. NULL: there is none. */
static struct store_lock *take_out(struct hearth_session_store *store, uint64_t token) {
    pthread_mutex_lock(&store->mutex);
    struct store_lock **at = &store->locks;
    while (*at != NULL && (token != 0 ? (*at)->lock.token != token : !(*at)->released)) {
        at = &(*at)->next;
    }
    struct store_lock *found = *at;
    if (found != NULL) {
        *at = found->next;
    }
    pthread_mutex_unlock(&store->mutex);
    return found;
}

/* Releases a lock at the server. With the writer's mutex. */
static void drop(struct hearth_session_store *store, struct store_lock *lock) {
    struct hearth_db *db = &store->writer;
    int64_t ignored;
    if (lock->lock.generation == db->generation && hearth_db_is_open(db)) { /* otherwise it ended with its connection */
        (void)hearth_db_query_number(db, LOCK_DROP, &ignored, "i", lock->lock.key);
    }
    free(lock);
}

void hearth_session_flush_locks(struct hearth_session_store *store) {
    if (!store->on_server) {
        return;
    }
    pthread_mutex_lock(&store->writer.mutex);
    for (struct store_lock *lock; (lock = take_out(store, 0)) != NULL;) {
        drop(store, lock);
    }
    pthread_mutex_unlock(&store->writer.mutex);
}

void hearth_session_drop_lock(struct hearth_session_store *store, const struct hearth_session_lock *lock) {
    struct store_lock *held = lock->token != 0 ? take_out(store, lock->token) : NULL;
    if (held != NULL) {
        drop(store, held);
    }
}

int hearth_session_keep_lock(struct hearth_session_store *store, struct hearth_session_lock *lock, int64_t session,
                             int64_t parent, struct hearth_errmsg *msg) {
    struct hearth_db *db = &store->writer;
    if (lock->token == 0 || lock->generation == db->generation) {
        return HEARTH_OK;
    }
    int64_t head = 0;
    const int kept = take(db, lock->key);
    const int err = kept > 0 ? hearth_session_read_head(db, session, &head) : kept;
    if (err != HEARTH_OK) {
        return err;
    }
    if (kept == 0 || head != parent) {
        return hearth_fail(msg, HEARTH_ERR_STORE,
                           "the database was lost meanwhile, and the conversation may have gone on elsewhere");
    }
    lock->generation = db->generation;
    pthread_mutex_lock(&store->mutex);
    struct store_lock *held = find(store, lock->token, 0);
    if (held != NULL) {
        held->lock.generation = db->generation;
    }
    pthread_mutex_unlock(&store->mutex);
    return HEARTH_OK;
}
