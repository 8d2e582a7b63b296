/* The boxes that share a server's database, and what each has still to forget.
 *
 * State that a deletion leaves is in two places of a box: in the RAM of its process, and in a directory that outlives
 * it. Both are rows of `boxes`, for the model that the box serves: the process under a random name, the directory under
 * its own. A forget that is put leaves a row of `box_forgets` for every box of its model, by a trigger; a box carries
 * out what it finds there, and the forget goes with the last of these rows. So a box that was down finds what was
 * deleted meanwhile, and of two processes over one directory each forgets its RAM, and one of them the files.
 *
 * A box is known before it puts its first turn: it is made known when the writer's connection is opened. It takes over
 * all forgets that are there, since its directory may be older than the database's memory of it. A process that was not
 * seen for an hour is taken for gone, a directory after 30 days; times are by the server's clock. */
#include "session/store_internal.h"

#include "base/clock.h"
#include "base/log.h"

#define BEAT_US ((int64_t)60 * 1000000)

enum { PROCESS, PLACE }; /* in `boxes` and `box_rows` */

/* Shows that this process lives. The server may not have noticed yet that the box's last connection has ended: the next
 * sweep tries again. */
static int show_life(struct hearth_session_store *store) {
    struct hearth_db *db = &store->writer;
    int64_t taken;
    if (store->life_generation == db->generation) {
        return HEARTH_OK;
    }
    const int found = hearth_db_query_number(db, LOCK_TAKE, &taken, "i", store->process);
    store->life_generation = found > 0 && taken != 0 ? db->generation : 0;
    return found < 0 ? found : HEARTH_OK;
}

/* Writes the rows of this box. In a transaction. */
static int put_boxes(struct hearth_session_store *store) {
    int found = 0;
    for (int i = 0; i < HEARTH_SESSION_BOXES && found >= 0; i++) {
        if (!hearth_digest_is_zero(store->boxes[i])) {
            const int64_t had = store->box_rows[i];
            found = hearth_db_query_number(&store->writer, BOX_PUT, &store->box_rows[i], "ddi", &store->boxes[i],
                                           &store->model, (int64_t)(i == PLACE));
            if (found > 0 && had != 0 && had != store->box_rows[i]) {
                hearth_log(HEARTH_LOG_WARN,
                           "sessions: the database was out of reach for so long that it has forgotten "
                           "this box: what other boxes deleted meanwhile may be %s still",
                           i == PLACE ? "in its --kv-dir" : "in its RAM");
            }
        }
    }
    store->beat_us = hearth_clock_us();
    return found < 0 ? found : HEARTH_OK;
}

/* Whether the box's rows are there, so that nothing has to be written. 1, 0 or an error. */
static int is_known(struct hearth_session_store *store) {
    int found = 1;
    for (int i = 0; i < HEARTH_SESSION_BOXES && found > 0; i++) {
        if (!hearth_digest_is_zero(store->boxes[i])) {
            int64_t row;
            found = hearth_db_query_number(&store->writer, BOX_FIND, &row, "dd", &store->boxes[i], &store->model);
            found = found > 0 ? row == store->box_rows[i] : found;
        }
    }
    return found;
}

int hearth_session_enter_box(struct hearth_session_store *store) {
    struct hearth_db *db = &store->writer;
    int err = show_life(store);
    if (err != HEARTH_OK || hearth_digest_is_zero(store->model)) {
        return err;
    }
    const int known = is_known(store);
    if (known != 0) {
        return known < 0 ? known : HEARTH_OK;
    }
    err = hearth_db_begin(db, true);
    return err == HEARTH_OK ? hearth_db_end(db, put_boxes(store)) : err;
}

int hearth_session_beat(struct hearth_session_store *store) {
    if (!store->on_server || store->is_tool) {
        return HEARTH_OK;
    }
    int err = show_life(store);
    if (err != HEARTH_OK || hearth_digest_is_zero(store->model) || hearth_clock_us() - store->beat_us < BEAT_US) {
        return err;
    }
    err = put_boxes(store);
    return err == HEARTH_OK ? hearth_db_run(&store->writer, BOXES_DROP, "") : err;
}

int hearth_session_leave_box(struct hearth_session_store *store) {
    return store->box_rows[PROCESS] != 0 ? hearth_db_run(&store->writer, BOX_DROP, "i", store->box_rows[PROCESS])
                                         : HEARTH_OK;
}
