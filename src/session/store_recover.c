/* Recovery: rows are picked up from the pages that have some (session/db_scan.h), put into a new database as they are,
 * and checked there. A turn's checksum (or tag) covers its content, its owner and its parent, so one that
 * verifies is the truth, and one without its parent does not verify. What is left of a conversation is its beginning;
 * its session goes back to the last turn of it that is there. One of which nothing is left is not made an empty one.
 *
 * The file is read twice: first owners and models, which the other rows name. */
#include "session/store_recover.h"

#include "session/db_scan.h"
#include "session/db_sqlite.h"
#include "session/store_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY = sizeof(struct hearth_digest) };

/* Rows of a table are known by the types of their cells: n number, k key, b bytes, o number or NULL, p key or NULL; the
 * id comes first and is NULL. Old rows lack what an ALTER has added. */
static const char models[] = "INSERT OR IGNORE INTO models (id, model, salt) VALUES (?1, ?2, ?3)";
static const struct row_kind {
    const char *cells, *sql;
    bool first; /* true in the first pass */
} kinds[] = {
    {"knnn", "INSERT OR IGNORE INTO owners (id, owner) VALUES (?1, ?2)", true},
    {"knn", "INSERT OR IGNORE INTO owners (id, owner) VALUES (?1, ?2)", true},
    {"k", "INSERT OR IGNORE INTO owners (id, owner) VALUES (?1, ?2)", true},
    {"kk", models, true},
    {"kbn", "INSERT OR IGNORE INTO configs (id, key, body, owner) VALUES (?1, ?2, ?3, ?4)", false},
    {"kb", "INSERT OR IGNORE INTO configs (id, key, body) VALUES (?1, ?2, ?3)", false},
    {"knoooonnonnnnpb",
     "INSERT OR IGNORE INTO turns (id, key, owner, parent, session, config, model, status, hidden, writer, created, "
     "base,"
     " depth, total, path, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
     false},
    {"knonnbn",
     "INSERT OR IGNORE INTO sessions (id, key, owner, head, created, used, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
     false},
    {"knonnb",
     "INSERT OR IGNORE INTO sessions (id, key, owner, head, created, used, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
     false},
    {"nnb", "INSERT OR IGNORE INTO forgets (id, model, keep, body) VALUES (?1, ?2, ?3, ?4)", false},
};

struct recovery {
    struct hearth_db *db;
    bool first;
    int code;
    uint64_t rows;
};

static bool is_like(const struct hearth_db_row *row, const char *cells) {
    if (row->id <= 0 || row->count != strlen(cells) + 1 || row->cells[0].type != HEARTH_DB_NULL) {
        return false;
    }
    for (size_t i = 1; i < row->count; i++) {
        const enum hearth_db_cell_type type = row->cells[i].type;
        const bool bytes = type == HEARTH_DB_BYTES, key = bytes && row->cells[i].len == KEY;
        const bool fits = cells[i - 1] == 'n'   ? type == HEARTH_DB_NUMBER
                          : cells[i - 1] == 'k' ? key
                          : cells[i - 1] == 'b' ? bytes
                          : cells[i - 1] == 'o' ? type == HEARTH_DB_NUMBER || type == HEARTH_DB_NULL
                                                : key || type == HEARTH_DB_NULL;
        if (!fits) {
            return false;
        }
    }
    return true;
}

static int put_row(sqlite3 *handle, const char *sql, const struct hearth_db_row *row) {
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(handle, sql, -1, &statement, NULL);
    const size_t wanted = rc == SQLITE_OK ? (size_t)sqlite3_bind_parameter_count(statement) : 0;
    rc = rc == SQLITE_OK ? sqlite3_bind_int64(statement, 1, row->id) : rc;
    for (size_t i = 1; rc == SQLITE_OK && i < row->count && i < wanted; i++) {
        const int at = (int)i + 1;
        if (row->cells[i].type == HEARTH_DB_NUMBER) {
            rc = sqlite3_bind_int64(statement, at, row->cells[i].number);
        } else if (row->cells[i].type == HEARTH_DB_BYTES) {
            rc = sqlite3_bind_blob64(statement, at, row->cells[i].bytes, row->cells[i].len, SQLITE_STATIC);
        }
    }
    rc = rc == SQLITE_OK ? sqlite3_step(statement) : rc;
    sqlite3_finalize(statement);
    return rc == SQLITE_DONE || (rc & 0xFF) == SQLITE_CONSTRAINT ? SQLITE_OK : rc;
}

/* Whether a row is the secret, which is kept so that signatures stay valid. */
static bool is_secret(const struct hearth_db_row *row) {
    return row->id == 0 && row->count == 2 && row->cells[0].type == HEARTH_DB_BYTES && row->cells[0].len == 6 &&
           memcmp(row->cells[0].bytes, "secret", 6) == 0 && row->cells[1].type == HEARTH_DB_BYTES;
}

/* Whether a row is an entry of the models' index, which has everything that a model's row has. */
static bool is_model_entry(const struct hearth_db_row *row) {
    return row->id == 0 && row->count == 3 && row->cells[0].len == KEY && row->cells[1].len == KEY &&
           row->cells[2].type == HEARTH_DB_NUMBER && row->cells[2].number > 0;
}

static bool take(void *user, const struct hearth_db_row *row) {
    struct recovery *recovery = user;
    if (recovery->first && is_model_entry(row)) {
        const struct hearth_db_row model = {
            .id = row->cells[2].number, .count = 3, .cells = {{0}, row->cells[0], row->cells[1]}};
        recovery->code = put_row(recovery->db->handle, models, &model);
    }
    if (recovery->first && is_secret(row)) {
        const struct store_about about = {.kind = STORE_META};
        struct hearth_buf plain = {0};
        const void *bytes = row->cells[1].bytes;
        const size_t len = row->cells[1].len;
        if (hearth_session_unpack(recovery->db, &about, bytes, len, &plain, NULL) == HEARTH_OK) {
            (void)hearth_session_put_meta(recovery->db, "secret", bytes, len);
        }
        hearth_buf_finish(&plain);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (is_like(row, kinds[i].cells)) { /* the first kind that fits: two keys are a model */
            if (kinds[i].first == recovery->first) {
                recovery->code = put_row(recovery->db->handle, kinds[i].sql, row);
                recovery->rows++;
            }
            break;
        }
    }
    return recovery->code == SQLITE_OK;
}

/* ---- what of it is the truth ---- */

static int drop(struct hearth_db *db, const char *table, int64_t id) {
    char sql[64];
    snprintf(sql, sizeof sql, "DELETE FROM %s WHERE id = %" PRId64, table, id);
    return hearth_db_exec(db, sql);
}

/* Calls a function for each row, the oldest first: a parent is older than its children. */
static int each(struct hearth_db *db, const char *table,
                int (*check)(struct hearth_db *db, int64_t id, struct hearth_recovery *out),
                struct hearth_recovery *out) {
    char sql[80];
    int64_t id = 0;
    int err = HEARTH_OK;
    while (err == HEARTH_OK) {
        const int64_t last = id;
        snprintf(sql, sizeof sql, "SELECT ifnull(min(id), 0) FROM %s WHERE id > %" PRId64, table, last);
        err = hearth_db_number(db, sql, &id);
        if (err != HEARTH_OK || id <= last) {
            break;
        }
        err = check(db, id, out);
    }
    return err;
}

static int check_turn(struct hearth_db *db, int64_t id, struct hearth_recovery *out) {
    struct store_row row = {0}, parent = {0};
    struct hearth_turn turn = {0};
    int found = hearth_turn_load(db, NULL, id, STORE_ALL, &row, &turn);
    bool whole = found > 0 && row.depth >= 1 && (row.parent == 0) == (row.depth == 1);
    if (whole && row.parent != 0) {
        found = hearth_turn_load(db, NULL, row.parent, STORE_COLUMNS, &parent, NULL);
        whole = found > 0 && parent.depth + 1 == row.depth;
    }
    hearth_turn_finish(&turn);
    if (found < 0 && found != HEARTH_ERR_STATE) {
        return found;
    }
    out->turns += whole;
    out->lost_turns += !whole;
    return whole ? HEARTH_OK : drop(db, "turns", id);
}

static int check_session(struct hearth_db *db, int64_t id, struct hearth_recovery *out) {
    char sql[224], *name = NULL;
    int64_t stands = 0, head = 0;
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM sessions AS s WHERE id = %" PRId64
             " AND (head IS NULL OR EXISTS (SELECT 1 FROM turns WHERE id = s.head))",
             id);
    int err = hearth_db_number(db, sql, &stands);
    if (err == HEARTH_OK && stands == 0) {
        snprintf(sql, sizeof sql,
                 "SELECT ifnull((SELECT id FROM turns WHERE session = %" PRId64 " AND hidden = 0"
                 " ORDER BY depth DESC, id DESC LIMIT 1), 0)",
                 id);
        err = hearth_db_number(db, sql, &head);
        snprintf(sql, sizeof sql, "UPDATE sessions SET head = nullif(%" PRId64 ", 0) WHERE id = %" PRId64, head, id);
        err = err == HEARTH_OK ? hearth_db_exec(db, sql) : err;
    }
    err = err == HEARTH_OK ? hearth_session_read_name(db, id, &name) : err;
    const bool whole = err == HEARTH_OK && name != NULL && (stands != 0 || head != 0);
    free(name);
    if (err != HEARTH_OK && err != HEARTH_ERR_STATE) {
        return err;
    }
    out->sessions += whole;
    out->lost_sessions += !whole;
    out->shorter += whole && stands == 0;
    return whole ? HEARTH_OK : drop(db, "sessions", id);
}

static int finish(struct hearth_db *db, struct hearth_recovery *out) {
    static const char missing[] =
        "SELECT count(*) FROM (SELECT parent FROM turns WHERE parent IS NOT NULL UNION"
        " SELECT head FROM sessions WHERE head IS NOT NULL) WHERE parent NOT IN (SELECT id FROM turns)";
    char sql[400];
    /* Without keys the only owner is zero; a turn of another owner does not verify. */
    static const char keyless[] =
        "INSERT OR IGNORE INTO owners (id, owner) SELECT DISTINCT owner, zeroblob(16) FROM turns"
        " WHERE owner NOT IN (SELECT id FROM owners)";
    int64_t lost = 0;
    int err = hearth_db_exec(db, keyless);
    err = err == HEARTH_OK ? hearth_db_number(db, missing, &lost) : err;
    out->lost_turns = (uint64_t)lost;
    err = err == HEARTH_OK ? each(db, "turns", check_turn, out) : err;
    err = err == HEARTH_OK ? each(db, "sessions", check_session, out) : err;
    snprintf(sql, sizeof sql,
             "DELETE FROM configs WHERE id NOT IN (SELECT config FROM turns WHERE config IS NOT NULL);"
             "INSERT OR IGNORE INTO uses (turn, used) SELECT id, %" PRId64 " FROM turns"
             " WHERE id NOT IN (SELECT parent FROM turns WHERE parent IS NOT NULL);"
             "UPDATE sessions SET aged = %" PRId64 ";",
             db->age_us, db->age_us);
    return err == HEARTH_OK ? hearth_db_exec(db, sql) : err;
}

static int fill(struct hearth_session_store *store, const struct hearth_recovery_params *params,
                struct hearth_recovery *out, struct hearth_errmsg *msg) {
    struct recovery recovery = {.db = &store->writer, .first = true};
    int err = hearth_session_begin_write(store, msg);
    if (err != HEARTH_OK) {
        return err;
    }
    for (int pass = 0; pass < 2 && err == HEARTH_OK; pass++, recovery.first = false) {
        err = hearth_db_scan(params->from, take, &recovery, msg);
        if (err == HEARTH_OK && recovery.code != SQLITE_OK) {
            err = hearth_db_fail(&store->writer, recovery.code);
            (void)hearth_fail(msg, err, "%s: %s", params->to, hearth_db_text(recovery.code));
        }
    }
    if (err == HEARTH_OK && (err = finish(&store->writer, out)) != HEARTH_OK) {
        (void)hearth_fail(msg, err, "%s: %s", params->to, hearth_db_text(store->writer.code));
    }
    if (err == HEARTH_OK && recovery.rows > 0 && out->turns + out->sessions == 0 && out->lost_turns > 0) {
        err = hearth_fail(msg, HEARTH_ERR_INVALID, "%s: nothing of it can be read%s", params->from,
                          params->seal == NULL ? " (without --key: is it encrypted?)" : " with this key");
    } else if (err == HEARTH_OK && recovery.rows == 0) {
        err = hearth_fail(msg, HEARTH_ERR_INVALID, "%s: there is nothing of hearth's in it", params->from);
    }
    return hearth_session_end_write(store, err, false, err == HEARTH_OK ? msg : NULL); /* `msg` has a reason already */
}

int hearth_session_recover(const struct hearth_recovery_params *params, struct hearth_recovery *out,
                           struct hearth_errmsg *msg) {
    const struct hearth_session_store_params fresh = {.path = params->to, .seal = params->seal};
    struct hearth_session_store *store;
    struct stat st;
    *out = (struct hearth_recovery){0};
    if (stat(params->from, &st) != 0) {
        return hearth_fail(msg, HEARTH_ERR_IO, "%s: %s", params->from, strerror(errno));
    }
    if (lstat(params->to, &st) == 0 || errno != ENOENT) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: %s", params->to,
                           errno == ENOENT ? "it is there already" : "it is there already, or cannot be looked at");
    }
    int err = hearth_session_store_create(&fresh, &store, msg);
    if (err != HEARTH_OK) {
        return err;
    }
    err = fill(store, params, out, msg);
    hearth_session_store_destroy(store);
    if (err == HEARTH_OK && hearth_db_part_from_log(params->to) != SQLITE_OK) {
        err = hearth_fail(msg, HEARTH_ERR_IO, "%s: it cannot be written", params->to);
    }
    if (err != HEARTH_OK) {
        (void)unlink(params->to);
    }
    struct hearth_buf lock = {0};
    if (hearth_buf_printf(&lock, "%s.lock", params->to)) {
        (void)unlink((const char *)lock.data);
    }
    hearth_buf_finish(&lock);
    return err;
}
