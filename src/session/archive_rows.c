/* The archive's rows: what is asked, what is written, and what goes for the limit.
 *
 * A body is a sealed row (sealed_row.h) about kind, key, parent and other.
 *
 * What goes: a leaf unused for longest, then what it hung on, upwards as long as nothing else hangs there and it was
 * not used later. An inner node is at least as much in use as what hangs on it, so only leaves need their time kept: a
 * reply touches its node. */
#include "session/archive_internal.h"

#include "base/clock.h"
#include "session/db.h"
#include "session/sealed_row.h"

#include <string.h>

/* ---- bodies ---- */

struct about {
    uint64_t kind, len;
    struct hearth_digest key, parent, other;
};

static struct about about_row(const struct hearth_archive_row *row) {
    return (struct about){(uint64_t)row->kind, row->len, row->key, row->parent, row->other};
}

static bool close_body(const struct hearth_seal *seal, struct hearth_archive_row *row) {
    const struct about about = about_row(row);
    const size_t len = row->body.len;
    if (hearth_sealed_row_close(seal, &about, sizeof about, &row->body) == HEARTH_OK) {
        return true;
    }
    row->body.len = len; /* it is tried again */
    return false;
}

static bool open_body(const struct hearth_seal *seal, struct hearth_archive_row *row) {
    const struct about about = about_row(row);
    return hearth_sealed_row_open(seal, &about, sizeof about, row->body.data, &row->body.len);
}

void hearth_archive_row_finish(struct hearth_archive_row *row) {
    hearth_buf_finish(&row->body);
}

/* ---- reading ---- */

static enum hearth_archive_kind kind_of(enum hearth_archive_query query) {
    switch (query) {
    case HEARTH_ARCHIVE_GET_RECORD: return HEARTH_ARCHIVE_RECORD;
    case HEARTH_ARCHIVE_REPLIES:
    case HEARTH_ARCHIVE_SAID: return HEARTH_ARCHIVE_REPLY;
    default: return HEARTH_ARCHIVE_NODE;
    }
}

/* False: out of memory, or its body fails. */
static bool take_row(sqlite3_stmt *statement, const struct hearth_seal *seal, struct hearth_archive_row *row,
                     uint64_t *damaged) {
    row->key = hearth_db_column_digest(statement, 0);
    row->parent = hearth_db_column_digest(statement, 1);
    row->other = hearth_db_column_digest(statement, 2);
    row->len = (uint64_t)sqlite3_column_int64(statement, 3);
    if (sqlite3_column_type(statement, 4) == SQLITE_NULL) {
        return true;
    }
    const void *bytes = sqlite3_column_blob(statement, 4);
    size_t len = (size_t)sqlite3_column_bytes(statement, 4);
    if (!hearth_buf_append(&row->body, bytes, len)) {
        return false;
    }
    if (!open_body(seal, row)) {
        ++*damaged;
        hearth_archive_row_finish(row);
        return false;
    }
    return true;
}

int hearth_archive_rows_read(struct archive_db *db, const struct hearth_seal *seal, enum hearth_archive_query query,
                             struct hearth_digest key, struct hearth_archive_row *rows, size_t max, size_t *count,
                             uint64_t *damaged) {
    sqlite3_stmt *statement = db->statements[query];
    *count = 0;
    int rc = hearth_db_bind_digest(statement, 1, &key);
    rc = rc == SQLITE_OK ? sqlite3_bind_int64(statement, 2, (sqlite3_int64)max) : rc;
    while (rc == SQLITE_OK && (rc = sqlite3_step(statement)) == SQLITE_ROW && *count < max) {
        struct hearth_archive_row *row = &rows[*count];
        *row = (struct hearth_archive_row){.kind = kind_of(query)};
        *count += take_row(statement, seal, row, damaged);
        rc = SQLITE_OK;
    }
    return hearth_db_done(statement, rc);
}

int hearth_archive_rows_bytes(struct archive_db *db, uint64_t *bytes) {
    sqlite3_stmt *statement = db->statements[PAGES_USED];
    int rc = sqlite3_step(statement);
    if (rc == SQLITE_ROW) {
        *bytes = (uint64_t)sqlite3_column_int64(statement, 0);
    }
    return hearth_db_done(statement, rc);
}

/* ---- writing ---- */

/* Runs a statement about one key; *found: there was a row. */
static int run_key(struct archive_db *db, enum archive_statement which, const struct hearth_digest *key, bool *found) {
    sqlite3_stmt *statement = db->statements[which];
    int rc = hearth_db_bind_digest(statement, 1, key);
    rc = rc == SQLITE_OK ? sqlite3_step(statement) : rc;
    if (found != NULL) {
        *found = rc == SQLITE_ROW;
    }
    return hearth_db_done(statement, rc);
}

static int touch(struct archive_db *db, const struct hearth_digest *key) {
    sqlite3_stmt *statement = db->statements[TOUCH_NODE];
    int rc = hearth_db_bind_digest(statement, 1, key);
    rc = rc == SQLITE_OK ? sqlite3_bind_int64(statement, 2, hearth_clock_unix()) : rc;
    return hearth_db_done(statement, rc == SQLITE_OK ? sqlite3_step(statement) : rc);
}

static int put_row(struct archive_db *db, const struct hearth_archive_row *row) {
    enum archive_statement which = row->kind == HEARTH_ARCHIVE_NODE     ? PUT_NODE
                                   : row->kind == HEARTH_ARCHIVE_RECORD ? PUT_RECORD
                                   : row->newest                        ? PUT_NEWEST_REPLY
                                                                        : PUT_REPLY;
    sqlite3_stmt *statement = db->statements[which];
    int rc = hearth_db_bind_digest(statement, 1, &row->key);
    if (rc == SQLITE_OK && row->kind != HEARTH_ARCHIVE_RECORD) {
        rc = hearth_db_bind_digest(statement, 2, &row->parent);
        rc = rc == SQLITE_OK ? hearth_db_bind_digest(statement, 3, &row->other) : rc;
    }
    rc = rc == SQLITE_OK ? sqlite3_bind_blob64(statement, 4, row->body.data, row->body.len, SQLITE_STATIC) : rc;
    if (rc == SQLITE_OK && row->kind == HEARTH_ARCHIVE_NODE) {
        rc = sqlite3_bind_int64(statement, 5, (sqlite3_int64)row->len);
        rc = rc == SQLITE_OK ? sqlite3_bind_int64(statement, 6, hearth_clock_unix()) : rc;
    }
    rc = hearth_db_done(statement, rc == SQLITE_OK ? sqlite3_step(statement) : rc);
    if (rc == SQLITE_OK && row->kind == HEARTH_ARCHIVE_REPLY) {
        rc = touch(db, &row->parent);
        rc = rc == SQLITE_OK && row->newest ? run_key(db, TRIM_REPLIES, &row->parent, NULL) : rc;
    }
    return rc;
}

static int delete_node(struct archive_db *db, const struct hearth_digest *key) {
    int rc = run_key(db, DELETE_REPLIES, key, NULL);
    rc = rc == SQLITE_OK ? run_key(db, DELETE_RECORD, key, NULL) : rc;
    return rc == SQLITE_OK ? run_key(db, DELETE_NODE, key, NULL) : rc;
}

static int delete_row(struct archive_db *db, const struct hearth_archive_row *row) {
    bool has_child = false;
    if (row->kind == HEARTH_ARCHIVE_REPLY) {
        return run_key(db, DELETE_REPLY, &row->key, NULL);
    }
    const int rc = run_key(db, HAS_CHILD, &row->key, &has_child);
    return rc == SQLITE_OK && !has_child ? delete_node(db, &row->key) : rc;
}

/* Whether the node that a row hangs on is there; `last` is the one that was written last. */
static int hangs(struct archive_db *db, const struct hearth_archive_row *row, const struct hearth_digest *last,
                 bool *there) {
    const struct hearth_digest *on = row->kind == HEARTH_ARCHIVE_RECORD ? &row->key : &row->parent;
    *there = (row->kind == HEARTH_ARCHIVE_NODE && hearth_digest_is_zero(*on)) ||
             (last != NULL && hearth_digest_equal(*on, *last));
    return *there ? SQLITE_OK : run_key(db, HAS_NODE, on, there);
}

static int write_all(struct archive_db *db, const struct hearth_seal *seal, struct archive_item *items,
                     uint64_t *lost) {
    int rc = SQLITE_OK;
    const struct hearth_digest *last = NULL;
    for (struct archive_item *item = items; item != NULL && rc == SQLITE_OK; item = item->next) {
        bool there = false;
        if (item->row.gone) {
            rc = delete_row(db, &item->row);
            last = NULL;
            continue;
        }
        rc = hangs(db, &item->row, last, &there);
        if (rc != SQLITE_OK || !there) {
            *lost += rc == SQLITE_OK;
            continue;
        }
        item->closed = item->closed || close_body(seal, &item->row);
        rc = item->closed ? put_row(db, &item->row) : SQLITE_NOMEM;
        last = item->row.kind == HEARTH_ARCHIVE_NODE ? &item->row.key : last;
    }
    return rc;
}

static int begin(struct archive_db *db) {
    return sqlite3_exec(db->handle, "BEGIN IMMEDIATE", NULL, NULL, NULL);
}

int hearth_archive_rows_write(struct archive_db *db, const struct hearth_seal *seal, struct archive_item *items,
                              uint64_t *lost) {
    *lost = 0;
    int rc = begin(db);
    return rc == SQLITE_OK ? hearth_db_end(db->handle, write_all(db, seal, items, lost)) : rc;
}

/* ---- the limit ---- */

/* Deletes a leaf and then upwards what nothing else hangs on and was not used later than the leaf. */
static int delete_up(struct archive_db *db, struct hearth_digest key, int64_t used, struct hearth_digest parent,
                     uint64_t *evicted) {
    for (;;) {
        bool has_child = true;
        int rc = delete_node(db, &key);
        ++*evicted;
        if (rc != SQLITE_OK || hearth_digest_is_zero(parent) ||
            (rc = run_key(db, HAS_CHILD, &parent, &has_child)) != SQLITE_OK || has_child) {
            return rc;
        }
        sqlite3_stmt *statement = db->statements[USED_AND_PARENT];
        key = parent;
        rc = hearth_db_bind_digest(statement, 1, &key);
        rc = rc == SQLITE_OK ? sqlite3_step(statement) : rc;
        bool goes = rc == SQLITE_ROW && sqlite3_column_int64(statement, 0) <= used;
        parent = goes ? hearth_db_column_digest(statement, 1) : parent;
        rc = hearth_db_done(statement, rc);
        if (rc != SQLITE_OK || !goes) {
            return rc;
        }
    }
}

/* *found is false when nothing is left. */
static int delete_oldest(struct archive_db *db, bool *found, uint64_t *evicted) {
    sqlite3_stmt *statement = db->statements[OLDEST_LEAF];
    int rc = sqlite3_step(statement);
    *found = rc == SQLITE_ROW;
    struct hearth_digest key = hearth_db_column_digest(statement, 0), parent = hearth_db_column_digest(statement, 2);
    int64_t used = *found ? sqlite3_column_int64(statement, 1) : 0;
    rc = hearth_db_done(statement, rc);
    return rc == SQLITE_OK && *found ? delete_up(db, key, used, parent, evicted) : rc;
}

int hearth_archive_rows_evict(struct archive_db *db, uint64_t keep_bytes, uint64_t *evicted) {
    enum { AT_ONCE = 64 }; /* leaves in a transaction: others want to write, too */
    uint64_t bytes = 0;
    bool found = true;
    int rc = hearth_archive_rows_bytes(db, &bytes);
    while (rc == SQLITE_OK && found && bytes > keep_bytes) {
        rc = begin(db);
        for (int i = 0; rc == SQLITE_OK && found && bytes > keep_bytes && i < AT_ONCE; i++) {
            rc = delete_oldest(db, &found, evicted);
            rc = rc == SQLITE_OK ? hearth_archive_rows_bytes(db, &bytes) : rc;
        }
        rc = hearth_db_end(db->handle, rc);
    }
    return rc == SQLITE_OK ? sqlite3_exec(db->handle, "PRAGMA incremental_vacuum", NULL, NULL, NULL) : rc;
}
