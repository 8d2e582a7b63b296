/* The store's own time, and what goes by it.
 *
 * Conversations are deleted by age, and a clock can be wrong: a machine without a battery starts in 1970, a typing
 * error is a year ahead. So ages are by a time of the store's own, which only grows by what was seen to pass:
 *
 *     while a process has the store    as the monotonic clock does (CLOCK_BOOTTIME, with sleep), whatever the wall
 * clock says from one process to the next     by the wall clock, but never backwards and never by more than a day
 * (GAP_US)
 *
 * It is written down now and then, as (own time, wall clock). It begins as the wall clock, or where an older database's
 * last use was. Several processes on one database take the greatest.
 *
 * A wall clock that jumps is told (HEARTH_HEALTH_CLOCK), and nothing is deleted until it was steady for an hour:
 * somebody may be at work on it. What was not used for the time to live is out of lists; it can be used and restored
 * until the grace is over, too, and goes then. A day takes at most a tenth of what is there, or 100 conversations, so
 * that whoever looks at the log once a day can stop it. */
#include "session/store_internal.h"

#include "base/clock.h"
#include "base/health.h"
#include "base/log.h"
#include "session/db_sums.h"

#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#define SECOND_US ((int64_t)1000000)
#define HOUR_US (3600 * SECOND_US)
#define DAY_US (24 * HOUR_US)
#define GAP_US DAY_US
#define JUMP_US (300 * SECOND_US) /* less is a clock that is set right */
#define STEADY_US HOUR_US
#define WRITE_US (600 * SECOND_US)
#define DAY_CONVERSATIONS 100
#define DAY_SHARE 10
#define SCRUB_PAGES 16384
#define FREE_BYTES ((uint64_t)64 << 20)

static int64_t boot_us(void) {
    struct timespec now;
    return clock_gettime(CLOCK_BOOTTIME, &now) == 0 ? (int64_t)now.tv_sec * SECOND_US + now.tv_nsec / 1000
                                                    : hearth_clock_us();
}

static const struct hearth_session_clock *clock_of(const struct hearth_session_store *store) {
    static const struct hearth_session_clock system_clock = {.unix_us = hearth_clock_unix_us, .elapsed_us = boot_us};
    return store->clock != NULL ? store->clock : &system_clock;
}

/* ---- the store's own time ---- */

struct written {
    int64_t age_us, wall_us, ttl_us; /* the last: the server's, for tools that list what has outlived it */
};

static int read_written(struct hearth_db *db, struct written *out) {
    struct hearth_buf value = {0};
    *out = (struct written){0};
    int found = hearth_session_get_meta(db, "age", &value);
    if (found > 0 && value.len == sizeof *out) {
        memcpy(out, value.data, sizeof *out);
    }
    hearth_buf_finish(&value);
    return found;
}

static void distrust(struct hearth_session_store *store, int64_t elapsed_us, int64_t jump_us, const char *since) {
    store->age.unsure_us = elapsed_us;
    if (store->ttl_us > 0 && !store->is_tool) {
        hearth_health_raise(HEARTH_HEALTH_CLOCK,
                            "the clock is %.1f hours %s than it should be since %s; conversations age by the time that "
                            "really passes, and none is deleted before the clock was steady for an hour",
                            (double)(jump_us < 0 ? -jump_us : jump_us) / (double)HOUR_US,
                            jump_us < 0 ? "earlier" : "later", since);
    }
}

int hearth_session_load_age(struct hearth_session_store *store, struct hearth_db *db) {
    const int64_t wall_us = clock_of(store)->unix_us(), elapsed_us = clock_of(store)->elapsed_us();
    struct written last;
    int64_t used = 0;
    int found = read_written(db, &last);
    if (found == 0) {
        found = hearth_db_query_number(db, LAST_USE, &used, "");
        last.age_us = used > 0 && used < wall_us ? used : wall_us;
        last.wall_us = last.age_us;
    }
    if (found < 0) {
        return found;
    }
    if (store->is_tool) {
        store->ttl_us = last.ttl_us;
    }
    const int64_t gap_us = wall_us - last.wall_us;
    pthread_mutex_lock(&store->mutex);
    struct store_age *age = &store->age;
    const int64_t late_us = last.age_us + (gap_us < 0 ? 0 : gap_us > GAP_US ? GAP_US : gap_us);
    const bool first = age->begun_us == 0;
    if (first || late_us > age->base_us + elapsed_us - age->begun_us) {
        age->base_us = late_us;
        age->begun_us = elapsed_us;
    }
    if (first) {
        age->wall_us = wall_us;
        age->looked_us = elapsed_us;
        age->written_us = last.age_us;
        if (gap_us < -JUMP_US || gap_us > GAP_US + JUMP_US) {
            distrust(store, elapsed_us, gap_us, "the last server on this database ended");
        }
    }
    pthread_mutex_unlock(&store->mutex);
    return HEARTH_OK;
}

static int64_t age_at(const struct store_age *age, int64_t elapsed_us) {
    return age->begun_us != 0 ? age->base_us + elapsed_us - age->begun_us : 0;
}

int64_t hearth_session_age(struct hearth_session_store *store) {
    const int64_t elapsed_us = clock_of(store)->elapsed_us();
    pthread_mutex_lock(&store->mutex);
    const int64_t late_us = age_at(&store->age, elapsed_us);
    pthread_mutex_unlock(&store->mutex);
    return late_us;
}

int64_t hearth_session_wall_us(struct hearth_session_store *store) {
    return clock_of(store)->unix_us();
}

int64_t hearth_session_expired_before(struct hearth_session_store *store) {
    return store->ttl_us > 0 ? hearth_session_age(store) - store->ttl_us : INT64_MIN;
}

int hearth_session_write_age(struct hearth_session_store *store, bool now) {
    struct written ours = {.age_us = hearth_session_age(store),
                           .wall_us = clock_of(store)->unix_us(),
                           .ttl_us = store->ttl_us},
                   last;
    struct hearth_buf value = {0};
    pthread_mutex_lock(&store->mutex);
    const bool due = now || !store->age.written || ours.age_us - store->age.written_us >= WRITE_US;
    pthread_mutex_unlock(&store->mutex);
    if (!due || store->is_tool) {
        return HEARTH_OK;
    }
    int err = read_written(&store->writer, &last);
    if (err >= 0 && last.age_us > ours.age_us) {
        ours.age_us = last.age_us;
    }
    err = err >= 0 && !hearth_buf_append(&value, &ours, sizeof ours) ? HEARTH_ERR_NOMEM : err;
    err = err >= 0 ? hearth_session_put_meta(&store->writer, "age", &value) : err;
    hearth_buf_finish(&value);
    if (err == HEARTH_OK) {
        pthread_mutex_lock(&store->mutex);
        store->age.written_us = ours.age_us;
        store->age.written = true;
        pthread_mutex_unlock(&store->mutex);
    }
    return err;
}

/* Compares the clocks. True: what is old may go. */
static bool look_at_clocks(struct hearth_session_store *store) {
    const int64_t wall_us = clock_of(store)->unix_us(), elapsed_us = clock_of(store)->elapsed_us();
    pthread_mutex_lock(&store->mutex);
    struct store_age *age = &store->age;
    const int64_t jump_us = (wall_us - age->wall_us) - (elapsed_us - age->looked_us);
    age->wall_us = wall_us;
    age->looked_us = elapsed_us;
    if (jump_us > JUMP_US || jump_us < -JUMP_US) {
        distrust(store, elapsed_us, jump_us, "a few seconds ago");
    } else if (age->unsure_us != 0 && elapsed_us - age->unsure_us >= STEADY_US) {
        age->unsure_us = 0;
        hearth_health_clear(HEARTH_HEALTH_CLOCK);
    }
    const bool trusted = age->unsure_us == 0;
    pthread_mutex_unlock(&store->mutex);
    return trusted;
}

/* ---- a day's share ---- */

struct share {
    int64_t day_us; /* when the day began */
    int64_t left;
};

/* What may still go today. */
static int read_share(struct hearth_db *db, struct share *share) {
    struct hearth_buf value = {0};
    int64_t sessions, ends;
    *share = (struct share){0};
    int found = hearth_session_get_meta(db, "share", &value);
    if (found > 0 && value.len == sizeof *share) {
        memcpy(share, value.data, sizeof *share);
    }
    hearth_buf_finish(&value);
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

static int write_share(struct hearth_db *db, const struct share *share) {
    struct hearth_buf value = {0};
    int err = hearth_buf_append(&value, share, sizeof *share) ? hearth_session_put_meta(db, "share", &value)
                                                              : HEARTH_ERR_NOMEM;
    hearth_buf_finish(&value);
    return err;
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
    err = hearth_turn_purge_old(db, before_us, most, sessions, turns);
    share.left -= (int64_t)(*sessions > *turns ? *sessions : *turns);
    err = err == HEARTH_OK && *sessions + *turns > 0 ? write_share(db, &share) : err;
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

static void look_at_disk(struct hearth_session_store *store) {
    struct statvfs fs;
    if (atomic_load(&store->unwritable) || statvfs(store->path, &fs) != 0) {
        return; /* a failed write has said more than this would */
    }
    const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (room < FREE_BYTES) {
        hearth_health_raise(HEARTH_HEALTH_SESSION_DISK,
                            "%s: its disk is nearly full; replies cannot be stored when it is", store->path);
    } else {
        hearth_health_clear(HEARTH_HEALTH_SESSION_DISK);
    }
}

void hearth_session_report_write(struct hearth_session_store *store, int err, int code) {
    const int kind = code & 0xFF;
    if (store->path == NULL || store->is_tool) {
        return;
    }
    if (err == HEARTH_OK) {
        atomic_store(&store->unwritable, false); /* the next look ends the condition */
    } else if (err == HEARTH_ERR_IO && (kind == SQLITE_FULL || kind == SQLITE_IOERR || kind == SQLITE_READONLY)) {
        atomic_store(&store->unwritable, true);
        hearth_health_raise(HEARTH_HEALTH_SESSION_DISK, "%s cannot be written (%s); replies cannot be stored",
                            store->path, hearth_db_text(code));
    }
}

/* The next pages, so that damage is told before somebody asks for what is on them. */
static void look_at_pages(struct hearth_session_store *store) {
    const int64_t bad = hearth_db_find_bad_page(store->path, &store->scrub_page, SCRUB_PAGES);
    if (bad > 0) {
        hearth_health_raise(HEARTH_HEALTH_SESSION_DB,
                            "%s is damaged (page %" PRId64 "): what is on it cannot be read; hearth sessions recover "
                            "saves the rest",
                            store->path, bad);
        store->scrub_page = 0;
    }
}

void hearth_session_check_health(struct hearth_session_store *store) {
    if (store->path == NULL || store->is_tool) {
        return;
    }
    look_at_disk(store);
    look_at_pages(store);
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
    hearth_session_check_health(store);
    int err = hearth_session_begin_write(store, NULL);
    if (err != HEARTH_OK) {
        return err;
    }
    const bool trusted = look_at_clocks(store);
    err = hearth_session_flush_touches(store);
    /* Whether it can be written again is found out by writing. */
    err = err == HEARTH_OK ? hearth_session_write_age(store, atomic_load(&store->unwritable)) : err;
    if (err == HEARTH_OK && store->ttl_us > 0 && trusted) {
        err = delete_old(store, limit, &sessions, &turns);
        tell_expired(store);
    }
    err = hearth_session_end_write(store, err, sessions + turns > 0 || store->truncate_due, NULL);
    if (err == HEARTH_OK && sessions + turns > 0) {
        hearth_log(HEARTH_LOG_INFO, "sessions: deleted %zu sessions and %zu turns: nobody has used them for %.1f days",
                   sessions, turns, (double)(store->ttl_us + store->grace_us) / (double)DAY_US);
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
