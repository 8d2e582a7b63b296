/* Deletes sessions that have expired, and reports on the file and its disk.
 *
 * A session that was not used for its time to live is no longer listed; until the grace is over it can still be used
 * and restored; then it is deleted, the longest unused first. A turn that other turns continue has no time of its own:
 * when its time is over it only loses its row in `uses`, so that each such row is read once. A day deletes at most a
 * tenth of what is there, or 100 conversations, so that an operator who reads the log once a day can stop it. */
#include "session/db_sums.h"
#include "session/store_internal.h"

#include "base/health.h"
#include "base/log.h"

#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>

#define DAY_US ((int64_t)24 * 3600 * 1000000)
#define DAY_CONVERSATIONS 100
#define DAY_SHARE 10
#define SCRUB_PAGES 16384
#define FREE_BYTES ((uint64_t)64 << 20)

/* ---- deleting what is old ---- */

static int sweep_sessions(struct hearth_db *db, int64_t before_us, size_t limit, size_t *count) {
    int err = HEARTH_OK, found = 1;
    for (size_t i = 0; i < limit && err == HEARTH_OK; i++) {
        found = hearth_db_query(db, SESSION_EXPIRED, "i", before_us);
        if (found <= 0) {
            return found;
        }
        const int64_t id = hearth_db_column_number(db, SESSION_EXPIRED, 0),
                      head = hearth_db_column_number(db, SESSION_EXPIRED, 1);
        const int64_t used = hearth_db_column_number(db, SESSION_EXPIRED, 2);
        hearth_db_reset(db, SESSION_EXPIRED);
        if (used >= before_us) { /* by the id of its turn, not by its name */
            err = hearth_db_run(db, SESSION_TOUCH, "iii", id, (int64_t)0, used);
            continue;
        }
        err = hearth_db_run(db, SESSION_DELETE, "i", id);
        err = err == HEARTH_OK ? hearth_turn_purge_unneeded(db, head) : err;
        ++*count;
    }
    return err;
}

static int sweep_turns(struct hearth_db *db, int64_t before_us, size_t limit, size_t *count) {
    enum { ROWS_PER_TURN = 16 }; /* rows of `uses` that are only dropped */
    size_t gone = 0;
    int err = HEARTH_OK;
    for (size_t i = 0; gone < limit && i / ROWS_PER_TURN < limit && err == HEARTH_OK; i++) {
        int64_t id, child, used;
        int found = hearth_db_query_number(db, USE_OLDEST, &id, "i", before_us);
        if (found <= 0) {
            err = found;
            break;
        }
        found = hearth_db_query_number(db, TURN_CHILD, &child, "ii", id, (int64_t)0);
        if (found != 0) {
            err = found < 0 ? found : hearth_db_run(db, USE_DROP, "i", id);
            continue;
        }
        found = hearth_db_query_number(db, HEAD_HELD, &used, "i", id);
        if (found != 0) { /* a turn with a session lives as long as that */
            err = found < 0 ? found : hearth_db_run(db, USE_PUT, "ii", id, used);
            continue;
        }
        const size_t had = gone;
        err = hearth_turn_purge(db, id, before_us, limit - gone, &gone);
        if (err == HEARTH_OK && gone == had) {
            err = hearth_db_run(db, USE_DROP, "i", id); /* the row has no turn */
        }
    }
    *count += gone;
    return err;
}

/* ---- a day's share ---- */

struct share {
    int64_t day_us; /* when the present day began */
    int64_t left;
};

/* What may still be deleted today. */
static int read_share(struct hearth_db *db, struct share *share) {
    struct share today;
    int64_t sessions, ends;
    int found = hearth_session_get_meta(db, "share", &today, sizeof today);
    *share = found == (int)sizeof today ? today : (struct share){0};
    if (found >= 0 && (db->age_us - share->day_us >= DAY_US || share->day_us > db->age_us)) {
        found = hearth_db_query_number(db, COUNT_SESSIONS, &sessions, "");
        found = found >= 0 ? hearth_db_query_number(db, COUNT_USES, &ends, "") : found;
        if (found >= 0) {
            const int64_t most = (sessions + ends) / DAY_SHARE;
            *share = (struct share){.day_us = db->age_us, .left = most > DAY_CONVERSATIONS ? most : DAY_CONVERSATIONS};
        }
    }
    return found < 0 ? found : HEARTH_OK;
}

static int delete_old(struct hearth_session_store *store, size_t limit, size_t *sessions, size_t *turns) {
    struct hearth_db *db = &store->writer;
    const int64_t before_us = db->age_us - store->ttl_us - store->grace_us;
    int64_t oldest;
    struct share share;
    int found = hearth_db_query_number(db, USE_OLDEST, &oldest, "i", before_us);
    found = found == 0 ? hearth_db_query_number(db, SESSION_EXPIRED, &oldest, "i", before_us) : found;
    int err = found > 0 ? read_share(db, &share) : found;
    if (found <= 0 || err != HEARTH_OK || share.left <= 0) {
        return err;
    }
    const size_t most = (uint64_t)share.left < limit ? (size_t)share.left : limit;
    err = sweep_sessions(db, before_us, most, sessions);
    err = err == HEARTH_OK && *sessions < most ? sweep_turns(db, before_us, most, turns) : err;
    share.left -= (int64_t)(*sessions > *turns ? *sessions : *turns);
    err = err == HEARTH_OK && *sessions + *turns > 0 ? hearth_session_put_meta(db, "share", &share, sizeof share) : err;
    if (err == HEARTH_OK && share.left <= 0) {
        hearth_log(HEARTH_LOG_INFO, "sessions: as much as goes in a day is deleted; the rest waits");
    }
    return err;
}

/* ---- what is told ---- */

static void tell_expired(struct hearth_session_store *store) {
    int64_t expired = 0;
    const int found = store->grace_us > 0 ? hearth_db_query_number(&store->writer, SESSIONS_EXPIRED, &expired, "i",
                                                                   store->writer.age_us - store->ttl_us)
                                          : 0;
    pthread_mutex_lock(&store->mutex);
    const bool more = found > 0 && (uint64_t)expired > store->age.expired;
    store->age.expired = (uint64_t)expired;
    pthread_mutex_unlock(&store->mutex);
    if (more) {
        hearth_log(HEARTH_LOG_INFO,
                   "sessions: %" PRId64 " were not used for %" PRId64 " days; they are deleted %" PRId64
                   " days later (hearth sessions ls --expired lists them, hearth sessions restore keeps them)",
                   expired, store->ttl_us / DAY_US, store->grace_us / DAY_US);
    }
}

static void check_disk(struct hearth_session_store *store) {
    struct statvfs fs;
    if (atomic_load(&store->unwritable) || statvfs(store->path, &fs) != 0) {
        return; /* a failed write has already said more */
    }
    const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (room < FREE_BYTES) {
        hearth_health_raise(HEARTH_HEALTH_SESSION_DISK,
                            "%s: its disk is nearly full; replies cannot be stored when it is", store->path);
    } else {
        hearth_health_clear(HEARTH_HEALTH_SESSION_DISK);
    }
}

/* Checks the next pages, so that damage is reported before a request needs them. */
static void check_pages(struct hearth_session_store *store) {
    const int64_t bad = hearth_db_find_bad_page(store->path, &store->scrub_page, SCRUB_PAGES);
    if (bad > 0) {
        hearth_health_raise(HEARTH_HEALTH_SESSION_DB,
                            "%s is damaged (page %" PRId64 "): what is on it cannot be read; hearth sessions recover "
                            "saves the rest",
                            store->path, bad);
        store->scrub_page = 0;
    }
}

static void check_health(struct hearth_session_store *store) {
    if (store->path == NULL || store->is_tool) {
        return;
    }
    if (store->on_server) {
        if (!atomic_load(&store->unwritable)) {
            hearth_health_clear(HEARTH_HEALTH_SESSION_DISK);
        }
        return;
    }
    check_disk(store);
    check_pages(store);
    if (hearth_session_is_shared(store)) {
        hearth_health_raise(HEARTH_HEALTH_SESSION_SHARED,
                            "%s: another server uses it, too; both may, but neither knows which conversations the "
                            "other one is just going on with",
                            store->path);
    } else {
        hearth_health_clear(HEARTH_HEALTH_SESSION_SHARED);
    }
}

/* ---- sweeping ---- */

int hearth_session_store_sweep(struct hearth_session_store *store, size_t limit) {
    size_t sessions = 0, turns = 0;
    check_health(store);
    int err = hearth_session_begin_write(store, NULL);
    if (err != HEARTH_OK) {
        return err;
    }
    const bool trusted = hearth_session_clock_is_steady(store);
    err = hearth_session_flush_touches(store);
    /* Only a write shows whether the database can be written again. */
    err = err == HEARTH_OK ? hearth_session_write_age(store, atomic_load(&store->unwritable)) : err;
    err = err == HEARTH_OK ? hearth_session_beat(store) : err;
    if (err == HEARTH_OK && store->ttl_us > 0 && trusted) {
        err = delete_old(store, limit, &sessions, &turns);
        tell_expired(store);
    }
    err = hearth_session_end_write(store, err, sessions + turns > 0 || store->truncate_due, NULL);
    if (err == HEARTH_OK && sessions + turns > 0) {
        hearth_log(HEARTH_LOG_INFO, "sessions: deleted %zu sessions and %zu turns: unused for %.1f days", sessions,
                   turns, (double)(store->ttl_us + store->grace_us) / (double)DAY_US);
    }
    return err == HEARTH_OK ? (int)(sessions + turns) : err;
}

int hearth_session_restore(struct hearth_session_store *store, struct hearth_digest owner, const char *name) {
    struct hearth_db *db = &store->writer;
    int64_t id = 0, count = 0;
    int err = hearth_session_begin_write(store, NULL);
    if (err != HEARTH_OK) {
        return err;
    }
    if (name != NULL) {
        err = hearth_session_find(db, owner, name, &id);
        err = err == HEARTH_OK && id == 0 ? HEARTH_ERR_NOT_FOUND : err;
        err = err == HEARTH_OK ? hearth_db_run(db, SESSION_TOUCH, "iii", id, (int64_t)0, db->age_us) : err;
        count = 1;
    } else {
        const int64_t before_us = hearth_session_expired_before(store);
        int found = hearth_db_query_number(db, SESSIONS_EXPIRED, &count, "i", before_us);
        err = found < 0 ? found : hearth_db_run(db, SESSIONS_RESTORE, "ii", db->age_us, before_us);
        err = err == HEARTH_OK ? hearth_db_run(db, USES_RESTORE, "ii", db->age_us, before_us) : err;
    }
    err = hearth_session_end_write(store, err, false, NULL);
    return err == HEARTH_OK ? (int)count : err;
}
