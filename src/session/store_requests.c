/* Requests that have ended, as the ring in memory has them (report/ring.h), so that they outlast the process.
 *
 *     requests   `request` is its id, `session` the key of a session's row and `turn` that of a turn's, NULL for none;
 *                `body` is what is told of it
 *
 * A row goes with its session and with its turn, by triggers, whatever deletes them; one that comes late, when
 * they are gone already, is not written. Rows count for no owner's quota: they are bounded together, the oldest go. */
#include "session/store_internal.h"

static struct store_about about_of(struct hearth_digest owner, struct hearth_digest session, struct hearth_digest turn,
                                   int64_t created) {
    return (struct store_about){
        .kind = STORE_REQUEST, .created = created, .key = session, .owner = owner, .parent = turn};
}

static int put_row(struct hearth_db *db, struct hearth_session_request *row) {
    const struct hearth_digest session =
        row->session != NULL ? hearth_session_key(db, row->owner, row->session) : (struct hearth_digest){0, 0};
    const struct store_about about = about_of(row->owner, session, row->turn, row->created_us);
    struct hearth_buf blob = {0};
    int64_t id;
    const int err = hearth_session_pack(db, &about, &row->body, NULL, &blob);
    const int added = err == HEARTH_OK ? hearth_db_query_number(db, REQUEST_ADD, &id, "tdzzib", row->id, &row->owner,
                                                                &session, &row->turn, row->created_us, &blob)
                                       : err;
    row->written = added > 0;
    hearth_buf_finish(&blob);
    return added < 0 ? added : HEARTH_OK;
}

int hearth_session_requests_put(struct hearth_session_store *store, struct hearth_session_request *rows, size_t count,
                                size_t keep, uint64_t keep_bytes) {
    int err = hearth_session_begin_write(store, NULL);
    if (err != HEARTH_OK) {
        return err;
    }
    for (size_t i = 0; i < count && err == HEARTH_OK; i++) {
        err = put_row(&store->writer, &rows[i]);
    }
    err =
        err == HEARTH_OK ? hearth_db_run(&store->writer, REQUESTS_TRIM, "ii", (int64_t)keep, (int64_t)keep_bytes) : err;
    return hearth_session_end_write(store, err, false, NULL);
}

int hearth_session_requests_each(struct hearth_session_store *store, bool bodies,
                                 bool (*take)(void *user, const struct hearth_session_request *row), void *user) {
    struct hearth_db *db;
    int err = hearth_session_begin_read(store, &db);
    if (err != HEARTH_OK) {
        return err;
    }
    int found = hearth_db_query(db, REQUESTS_ALL, "");
    for (bool more = true; more && found > 0; found = more ? hearth_db_next(db, REQUESTS_ALL) : 0) {
        struct hearth_session_request row = {.id = hearth_db_column_text(db, REQUESTS_ALL, 0),
                                             .owner = hearth_db_column_digest(db, REQUESTS_ALL, 1),
                                             .turn = hearth_db_column_digest(db, REQUESTS_ALL, 3),
                                             .created_us = hearth_db_column_number(db, REQUESTS_ALL, 4)};
        const struct store_about about =
            about_of(row.owner, hearth_db_column_digest(db, REQUESTS_ALL, 2), row.turn, row.created_us);
        size_t len;
        const void *blob = hearth_db_column_bytes(db, REQUESTS_ALL, 5, &len);
        err = bodies ? hearth_session_unpack(db, &about, blob, len, &row.body, NULL) : HEARTH_OK;
        more = err == HEARTH_OK ? take(user, &row) : err == HEARTH_ERR_STATE; /* a damaged one is left out */
        err = err == HEARTH_ERR_STATE ? HEARTH_OK : err;
        hearth_buf_finish(&row.body);
    }
    hearth_db_reset(db, REQUESTS_ALL);
    return hearth_session_end_read(store, db, found < 0 ? found : err);
}

int64_t hearth_session_requests_count(struct hearth_session_store *store) {
    struct hearth_db *db;
    int64_t count = 0;
    int err = hearth_session_begin_read(store, &db);
    if (err == HEARTH_OK) {
        const int found = hearth_db_query_number(db, COUNT_REQUESTS, &count, "");
        err = hearth_session_end_read(store, db, found < 0 ? found : HEARTH_OK);
    }
    return err == HEARTH_OK ? count : err;
}
