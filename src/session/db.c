/* Connections to databases: what all drivers have in common.
 *
 * Arguments are read from their letters into values here, so a driver knows no va_list. */
#include "session/db.h"

#include "base/assert.h"
#include "base/clock.h"

#include <sqlite3.h>
#include <stdarg.h>
#include <string.h>
#include <zstd.h>

/* ---- life ---- */

void hearth_db_init(struct hearth_db *db, const struct hearth_db_driver *driver, const struct hearth_db_kind *kind,
                    const char *path, int busy_ms, const struct hearth_seal *seal) {
    HEARTH_ASSERT(kind->statement_count <= HEARTH_DB_STATEMENTS_MAX);
    *db = (struct hearth_db){.driver = driver, .kind = kind, .path = path, .busy_ms = busy_ms, .seal = seal};
    pthread_mutex_init(&db->mutex, NULL);
}

int hearth_db_open(struct hearth_db *db, struct hearth_errmsg *reason) {
    struct hearth_errmsg own = {.text = ""};
    const int code = db->driver->open(db, &own);
    if (code != HEARTH_DB_OK) {
        (void)hearth_fail(reason, HEARTH_ERR_IO, "%s", own.text[0] != '\0' ? own.text : hearth_db_text(code));
        hearth_db_close(db);
    }
    db->code = code;
    return code;
}

void hearth_db_close(struct hearth_db *db) {
    db->driver->close(db);
}

void hearth_db_finish(struct hearth_db *db) {
    hearth_db_close(db);
    if (db->driver->finish != NULL) {
        db->driver->finish(db);
    }
    ZSTD_freeCCtx(db->pack);
    ZSTD_freeDCtx(db->unpack);
    pthread_mutex_destroy(&db->mutex);
}

bool hearth_db_is_open(const struct hearth_db *db) {
    return db->driver->is_open(db);
}

bool hearth_db_has_moved(const struct hearth_db *db) {
    return db->driver->has_moved(db);
}

/* ---- codes ---- */

const char *hearth_db_text(int code) {
    switch (code) {
#define X(name, number, text) \
    case HEARTH_DB_##name: return text;
        HEARTH_DB_CODE_TABLE(X)
#undef X
    default: return code == SQLITE_IOERR_DATA ? "a page does not match its checksum" : sqlite3_errstr(code);
    }
}

const char *hearth_db_reason(const struct hearth_db *db) {
    return hearth_db_is_outage(db->code) && db->said.text[0] != '\0' ? db->said.text : hearth_db_text(db->code);
}

bool hearth_db_is_outage(int code) {
    return code >= HEARTH_DB_LOST && code <= HEARTH_DB_OTHER && code != HEARTH_DB_NO_MEMORY;
}

bool hearth_db_may_pass(int code) {
    return code >= HEARTH_DB_LOST && code <= HEARTH_DB_READ_ONLY;
}

static bool is_sqlite(int code) {
    return code < HEARTH_DB_ALIEN || code > HEARTH_DB_OTHER;
}

bool hearth_db_is_nomem(int code) {
    return code == HEARTH_DB_NO_MEMORY ||
           (is_sqlite(code) && ((code & 0xFF) == SQLITE_NOMEM || code == SQLITE_IOERR_NOMEM));
}

bool hearth_db_is_damage(const struct hearth_db_kind *kind, int code) {
    const bool other = code == HEARTH_DB_ALIEN || code == HEARTH_DB_NEWER;
    return other ? kind->replaces_others
                 : is_sqlite(code) &&
                       ((code & 0xFF) == SQLITE_CORRUPT || (code & 0xFF) == SQLITE_NOTADB || code == SQLITE_IOERR_DATA);
}

bool hearth_db_is_unwritable(int code) {
    const int kind = code & 0xFF;
    return code == HEARTH_DB_NO_ROOM || code == HEARTH_DB_READ_ONLY ||
           (is_sqlite(code) && (kind == SQLITE_FULL || kind == SQLITE_IOERR || kind == SQLITE_READONLY));
}

bool hearth_db_is_busy(int code) {
    return code == HEARTH_DB_SLOW || (is_sqlite(code) && (code & 0xFF) == SQLITE_BUSY);
}

int hearth_db_fail(struct hearth_db *db, int code) {
    db->code = code;
    return hearth_db_is_nomem(code) ? HEARTH_ERR_NOMEM : hearth_db_is_outage(code) ? HEARTH_ERR_STORE : HEARTH_ERR_IO;
}

int hearth_db_fail_nomem(struct hearth_db *db) {
    return hearth_db_fail(db, SQLITE_NOMEM);
}

/* ---- statements ---- */

static struct hearth_db_value bytes_value(const void *bytes, size_t len) {
    return (struct hearth_db_value){.type = HEARTH_DB_ARG_BYTES, .bytes = len > 0 ? bytes : "", .len = len};
}

static struct hearth_db_value value_of(char letter, va_list *args) {
    if (letter == 'd' || letter == 'z') {
        const struct hearth_digest *digest = va_arg(*args, const struct hearth_digest *);
        struct hearth_db_value value = bytes_value(digest, sizeof *digest);
        value.is_null = letter == 'z' && hearth_digest_is_zero(*digest);
        return value;
    }
    if (letter == 'b') {
        const struct hearth_buf *buf = va_arg(*args, const struct hearth_buf *);
        return bytes_value(buf->data, buf->len);
    }
    if (letter == 't') {
        const char *text = va_arg(*args, const char *);
        return (struct hearth_db_value){.type = HEARTH_DB_ARG_TEXT, .bytes = text, .len = strlen(text)};
    }
    const int64_t number = va_arg(*args, int64_t);
    return (struct hearth_db_value){
        .type = HEARTH_DB_ARG_NUMBER, .number = number, .is_null = letter == 'n' && number == 0};
}

static _Thread_local int64_t waited_us;

int64_t hearth_db_waited_us(void) {
    return waited_us;
}

void hearth_db_note_wait(int64_t since_us) {
    waited_us += hearth_clock_us() - since_us;
}

void hearth_db_lock(pthread_mutex_t *mutex) {
    const int64_t since_us = hearth_clock_us();
    pthread_mutex_lock(mutex);
    hearth_db_note_wait(since_us);
}

static int query(struct hearth_db *db, int which, const char *types, va_list *args) {
    struct hearth_db_value values[HEARTH_DB_ARGS_MAX];
    size_t count = 0;
    for (; types[count] != '\0'; count++) {
        HEARTH_ASSERT(count < HEARTH_DB_ARGS_MAX);
        values[count] = value_of(types[count], args);
    }
    const int64_t since_us = hearth_clock_us();
    const int found = db->driver->query(db, which, values, count);
    hearth_db_note_wait(since_us);
    return found;
}

int hearth_db_query(struct hearth_db *db, int which, const char *types, ...) {
    va_list args;
    va_start(args, types);
    int found = query(db, which, types, &args);
    va_end(args);
    return found;
}

int hearth_db_next(struct hearth_db *db, int which) {
    const int64_t since_us = hearth_clock_us();
    const int found = db->driver->next(db, which);
    hearth_db_note_wait(since_us);
    return found;
}

void hearth_db_reset(struct hearth_db *db, int which) {
    db->driver->reset(db, which);
}

int hearth_db_run(struct hearth_db *db, int which, const char *types, ...) {
    va_list args;
    va_start(args, types);
    int found = query(db, which, types, &args);
    va_end(args);
    if (found > 0) {
        hearth_db_reset(db, which);
    }
    return found < 0 ? found : HEARTH_OK;
}

int hearth_db_query_number(struct hearth_db *db, int which, int64_t *out, const char *types, ...) {
    va_list args;
    va_start(args, types);
    int found = query(db, which, types, &args);
    va_end(args);
    *out = 0;
    if (found > 0) {
        *out = hearth_db_column_number(db, which, 0);
        hearth_db_reset(db, which);
    }
    return found;
}

/* ---- columns ---- */

bool hearth_db_column_is_null(const struct hearth_db *db, int which, int column) {
    return db->driver->column(db, which, column).is_null;
}

int64_t hearth_db_column_number(const struct hearth_db *db, int which, int column) {
    return db->driver->column(db, which, column).number;
}

const void *hearth_db_column_bytes(const struct hearth_db *db, int which, int column, size_t *len) {
    const struct hearth_db_value value = db->driver->column(db, which, column);
    *len = value.len;
    return value.bytes;
}

bool hearth_db_ran_out(const struct hearth_db *db) {
    return db->handle != NULL && hearth_db_is_nomem(sqlite3_extended_errcode(db->handle));
}

const char *hearth_db_column_text(const struct hearth_db *db, int which, int column) {
    const char *text = db->driver->column(db, which, column).bytes;
    return text != NULL ? text : "";
}

struct hearth_digest hearth_db_column_digest(const struct hearth_db *db, int which, int column) {
    struct hearth_digest digest = {0, 0};
    size_t len;
    const void *bytes = hearth_db_column_bytes(db, which, column, &len);
    if (bytes != NULL && len == sizeof digest) {
        memcpy(&digest, bytes, sizeof digest);
    }
    return digest;
}

/* ---- SQL by its text, transactions ---- */

static int result(struct hearth_db *db, int code) {
    return code == HEARTH_DB_OK ? HEARTH_OK : hearth_db_fail(db, code);
}

int hearth_db_exec(struct hearth_db *db, const char *sql) {
    return result(db, db->driver->exec(db, sql));
}

int hearth_db_number(struct hearth_db *db, const char *sql, int64_t *out) {
    return result(db, db->driver->read_number(db, sql, out));
}

int hearth_db_begin(struct hearth_db *db, bool write) {
    return result(db, db->driver->begin(db, write));
}

int hearth_db_end(struct hearth_db *db, int err) {
    const int ended = db->driver->end(db, err == HEARTH_OK);
    return err == HEARTH_OK ? result(db, ended) : err;
}

bool hearth_db_is_in_transaction(const struct hearth_db *db) {
    return db->driver->is_in_transaction(db);
}

int64_t hearth_db_changes(const struct hearth_db *db) {
    return db->driver->changes(db);
}
