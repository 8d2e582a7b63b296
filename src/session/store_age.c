/* The store's own time, by which conversations age.
 *
 * Conversations are deleted by age, and a clock can be wrong: a machine without a battery starts in 1970, a typing
 * error is a year ahead. So ages are by a time of the store's own, which only grows by what was seen to pass:
 *
 *     while a process has the store        as the monotonic clock does (CLOCK_BOOTTIME, with sleep), whatever the wall
 *                                          clock says
 *     from one process to the next         by the wall clock, but never backwards and never by more than a day (GAP_US)
 *
 * It is written down now and then, as (own time, wall clock). It begins as the wall clock, or where an older database's
 * last use was. Several processes on one database take the greatest.
 *
 * A wall clock that jumps is told (HEARTH_HEALTH_CLOCK), and nothing is deleted until it was steady for an hour: it may
 * be being set. */
#include "session/store_internal.h"

#include "base/clock.h"
#include "base/health.h"

#include <string.h>
#include <time.h>

#define SECOND_US ((int64_t)1000000)
#define HOUR_US (3600 * SECOND_US)
#define GAP_US (24 * HOUR_US)
#define JUMP_US (300 * SECOND_US) /* a smaller jump is a clock that is being corrected */
#define STEADY_US HOUR_US
#define WRITE_US (600 * SECOND_US)

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
    int64_t age_us, wall_us, ttl_us; /* the last one is the server's ttl, for tools that list expired sessions */
};

/* Reads the written time. 1, 0 (none was written) or an error. */
static int read_written(struct hearth_db *db, struct written *out) {
    struct written value;
    const int len = hearth_session_get_meta(db, "age", &value, sizeof value);
    *out = len == (int)sizeof value ? value : (struct written){0};
    return len > 0 ? 1 : len;
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
        age->checked_us = elapsed_us;
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
    err = err >= 0 ? hearth_session_put_meta(&store->writer, "age", &ours, sizeof ours) : err;
    if (err == HEARTH_OK) {
        pthread_mutex_lock(&store->mutex);
        store->age.written_us = ours.age_us;
        store->age.written = true;
        pthread_mutex_unlock(&store->mutex);
    }
    return err;
}

bool hearth_session_clock_is_steady(struct hearth_session_store *store) {
    const int64_t wall_us = clock_of(store)->unix_us(), elapsed_us = clock_of(store)->elapsed_us();
    pthread_mutex_lock(&store->mutex);
    struct store_age *age = &store->age;
    const int64_t jump_us = (wall_us - age->wall_us) - (elapsed_us - age->checked_us);
    age->wall_us = wall_us;
    age->checked_us = elapsed_us;
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
