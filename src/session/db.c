/* Databases: opening one, bringing it up to date, and setting it aside.
 *
 * WAL with synchronous=FULL: a commit is on disk when it returns, and readers never wait for the writer. Space of
 * deleted rows is given back in steps (auto_vacuum=INCREMENTAL). The file is made before SQLite opens it, so that
 * nobody else can ever read it; SQLite gives -wal and -shm the same mode.
 *
 * What is refused stays as it is: until a database is known to be ours, closing it carries no log into it.
 *
 * Versions: user_version counts the steps that were taken. A step and its number are one transaction, and the number is
 * looked at again inside it: another process may have been faster. The first step also writes the application_id.
 *
 * Setting aside is for what may be forgotten (replaces_others); other databases stay where they are, and opening fails.
 * It renames -wal and -shm first: a new database must never meet the log of an old one. Processes take turns
 * by a lock on PATH.lock and look again whether the file is at fault, so that none moves away what another has just
 * begun. */
#include "session/db.h"
#include "session/db_sums.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

int hearth_db_done(sqlite3_stmt *statement, int rc) {
    (void)sqlite3_reset(statement);
    (void)sqlite3_clear_bindings(statement);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int hearth_db_end(sqlite3 *handle, int rc) {
    rc = rc == SQLITE_OK ? sqlite3_exec(handle, "COMMIT", NULL, NULL, NULL) : rc;
    if (rc != SQLITE_OK && sqlite3_get_autocommit(handle) == 0) {
        (void)sqlite3_exec(handle, "ROLLBACK", NULL, NULL, NULL);
    }
    return rc;
}

/* ---- opening ---- */

int hearth_db_number(sqlite3 *handle, const char *sql, int64_t *out) {
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(handle, sql, -1, &statement, NULL);
    if (rc == SQLITE_OK) {
        rc = sqlite3_step(statement);
    }
    if (rc == SQLITE_ROW) {
        *out = sqlite3_column_int64(statement, 0);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(statement);
    return rc;
}

/* The version that is there: 0 for a file in which nothing is yet. In a transaction: three reads of three moments would
 * take a database that another process is just making for somebody else's. */
static int find_version(const struct hearth_db_kind *kind, sqlite3 *handle, int64_t *out) {
    int64_t tables = 0, application = 0;
    int rc = hearth_db_number(handle, "PRAGMA user_version", out);
    rc = rc == SQLITE_OK ? hearth_db_number(handle, "PRAGMA application_id", &application) : rc;
    rc = rc == SQLITE_OK ? hearth_db_number(handle, "SELECT count(*) FROM sqlite_master", &tables) : rc;
    if (rc == SQLITE_OK && application != kind->application && (tables > 0 || *out != 0)) {
        return HEARTH_DB_ALIEN;
    }
    return rc == SQLITE_OK && (*out < 0 || *out > kind->version) ? HEARTH_DB_NEWER : rc;
}

static int take_step(const struct hearth_db_kind *kind, sqlite3 *handle, int64_t *version) {
    char mark[96];
    int rc = sqlite3_exec(handle, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        return rc;
    }
    rc = find_version(kind, handle, version);
    if (rc == SQLITE_OK && *version < kind->version) {
        snprintf(mark, sizeof mark, "PRAGMA application_id = %d; PRAGMA user_version = %lld", kind->application,
                 (long long)*version + 1);
        rc = sqlite3_exec(handle, kind->steps[*version], NULL, NULL, NULL);
        rc = rc == SQLITE_OK ? sqlite3_exec(handle, mark, NULL, NULL, NULL) : rc;
        *version += 1;
    }
    return hearth_db_end(handle, rc);
}

static bool is_file(const char *path) {
    return strcmp(path, ":memory:") != 0;
}

static int open_handle(const struct hearth_db_kind *kind, const char *path, int busy_ms, sqlite3 **handle) {
    const bool sums = kind->has_sums && is_file(path);
    int rc = sqlite3_open_v2(path, handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE,
                             sums ? hearth_db_vfs() : NULL);
    if (rc == SQLITE_OK) {
        sqlite3_extended_result_codes(*handle, 1);
        rc = sqlite3_busy_timeout(*handle, busy_ms);
        (void)sqlite3_db_config(*handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    }
    return rc == SQLITE_OK && sums ? hearth_db_ask_for_sums(*handle) : rc;
}

/* Brings a database up to date that is of an older version, or new. */
static int bring_up(const struct hearth_db_kind *kind, sqlite3 *handle, const char *path, int64_t version,
                    struct hearth_errmsg *why) {
    int rc = version > 0 && version < kind->version && kind->has_sums && is_file(path)
                 ? hearth_db_copy_before(kind, handle, path, version, why)
                 : SQLITE_OK;
    while (rc == SQLITE_OK && version < kind->version) {
        rc = take_step(kind, handle, &version);
    }
    if (rc == SQLITE_OK && kind->has_sums && is_file(path)) {
        hearth_db_add_sums(kind, handle, path);
    }
    return rc;
}

static int set_up(const struct hearth_db_kind *kind, sqlite3 *handle, const char *path, sqlite3_stmt **statements,
                  struct hearth_errmsg *why) {
    int64_t version = 0;
    int rc = sqlite3_exec(handle, "BEGIN", NULL, NULL, NULL);
    /* Before anything is written into somebody else's file. */
    rc = rc == SQLITE_OK ? hearth_db_end(handle, find_version(kind, handle, &version)) : rc;
    if (rc != SQLITE_OK) {
        return rc;
    }
    /* Only for a new one: it writes, and what is there can be read on a disk that is full. */
    rc = version == 0 ? sqlite3_exec(handle, "PRAGMA auto_vacuum = INCREMENTAL", NULL, NULL, NULL) : SQLITE_OK;
    if (rc != SQLITE_OK) {
        return rc;
    }
    rc = sqlite3_exec(handle,
                      "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                      "PRAGMA journal_size_limit = 8388608; PRAGMA cache_size = -8192; PRAGMA foreign_keys = OFF;"
                      "PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY",
                      NULL, NULL, NULL);
    rc = rc == SQLITE_OK && kind->pragmas != NULL ? sqlite3_exec(handle, kind->pragmas, NULL, NULL, NULL) : rc;
    rc = rc == SQLITE_OK ? bring_up(kind, handle, path, version, why) : rc;
    for (size_t i = 0; rc == SQLITE_OK && i < kind->statement_count; i++) {
        rc = sqlite3_prepare_v3(handle, kind->statements[i], -1, SQLITE_PREPARE_PERSISTENT, &statements[i], NULL);
        rc = rc == SQLITE_ERROR ? HEARTH_DB_ALIEN : rc; /* not our tables */
    }
    return rc;
}

int hearth_db_open(const struct hearth_db_kind *kind, const char *path, int busy_ms, sqlite3 **handle,
                   sqlite3_stmt **statements, struct hearth_errmsg *why) {
    *handle = NULL;
    for (size_t i = 0; i < kind->statement_count; i++) {
        statements[i] = NULL;
    }
    struct hearth_errmsg own = {.text = ""};
    int rc = is_file(path) ? hearth_db_make_file(kind, path, &own) : SQLITE_OK;
    rc = rc == SQLITE_OK ? open_handle(kind, path, busy_ms, handle) : rc;
    rc = rc == SQLITE_OK ? set_up(kind, *handle, path, statements, &own) : rc;
    if (rc != SQLITE_OK) {
        (void)hearth_fail(why, HEARTH_ERR_IO, "%s",
                          own.text[0] != '\0' ? own.text
                                              : hearth_db_text(rc)); /* the handle's may be of the rollback */
        hearth_db_close(kind, handle, statements);
    } else {
        (void)sqlite3_db_config(*handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
    }
    return rc;
}

void hearth_db_close(const struct hearth_db_kind *kind, sqlite3 **handle, sqlite3_stmt **statements) {
    for (size_t i = 0; i < kind->statement_count; i++) {
        sqlite3_finalize(statements[i]);
        statements[i] = NULL;
    }
    sqlite3_close(*handle);
    *handle = NULL;
}

bool hearth_db_has_moved(sqlite3 *handle) {
    int moved = 0;
    return sqlite3_file_control(handle, NULL, SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved != 0;
}

/* ---- digests in statements ---- */

int hearth_db_bind_digest(sqlite3_stmt *statement, int index, const struct hearth_digest *digest) {
    return hearth_digest_is_zero(*digest) ? sqlite3_bind_null(statement, index)
                                          : sqlite3_bind_blob(statement, index, digest, sizeof *digest, SQLITE_STATIC);
}

struct hearth_digest hearth_db_column_digest(sqlite3_stmt *statement, int index) {
    struct hearth_digest digest = {0, 0};
    const void *bytes = sqlite3_column_blob(statement, index);
    if (bytes != NULL && sqlite3_column_bytes(statement, index) == sizeof digest) {
        memcpy(&digest, bytes, sizeof digest);
    }
    return digest;
}

/* ---- setting aside ---- */

const char *hearth_db_text(int rc) {
    return rc == HEARTH_DB_ALIEN     ? "it is no database of hearth's"
           : rc == HEARTH_DB_NEWER   ? "it is of a newer version of hearth"
           : rc == SQLITE_IOERR_DATA ? "a page does not match its checksum"
                                     : sqlite3_errstr(rc);
}

bool hearth_db_is_nomem(int rc) {
    return (rc & 0xFF) == SQLITE_NOMEM || rc == SQLITE_IOERR_NOMEM;
}

bool hearth_db_is_damage(const struct hearth_db_kind *kind, int rc) {
    bool other = rc == HEARTH_DB_ALIEN || rc == HEARTH_DB_NEWER;
    return other ? kind->replaces_others
                 : (rc & 0xFF) == SQLITE_CORRUPT || (rc & 0xFF) == SQLITE_NOTADB || rc == SQLITE_IOERR_DATA;
}

static bool text_is_ok(sqlite3 *handle, const char *sql, int *rc) {
    sqlite3_stmt *statement = NULL;
    bool ok = false;
    *rc = sqlite3_prepare_v2(handle, sql, -1, &statement, NULL);
    if (*rc == SQLITE_OK) {
        *rc = sqlite3_step(statement);
    }
    if (*rc == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(statement, 0);
        ok = text != NULL && strcmp(text, "ok") == 0;
        *rc = SQLITE_OK;
    }
    sqlite3_finalize(statement);
    return ok;
}

/* Why the database cannot be used; NULL: it can, or that cannot be told now. */
static const char *find_fault(const struct hearth_db_kind *kind, const char *path) {
    enum { STATEMENTS_MAX = 64 };
    sqlite3 *handle;
    sqlite3_stmt *statements[STATEMENTS_MAX];
    struct hearth_errmsg why;
    HEARTH_ASSERT(kind->statement_count <= STATEMENTS_MAX);
    int rc = hearth_db_open(kind, path, 5000, &handle, statements, &why);
    const char *found = rc == HEARTH_DB_ALIEN || rc == HEARTH_DB_NEWER ? "of another version" : "damaged";
    if (rc == SQLITE_OK) {
        bool ok = text_is_ok(handle, "PRAGMA quick_check(1)", &rc);
        hearth_db_close(kind, &handle, statements);
        return ok || (rc != SQLITE_OK && !hearth_db_is_damage(kind, rc)) ? NULL : found;
    }
    return hearth_db_is_damage(kind, rc) ? found : NULL;
}

static bool move(const char *path, const char *suffix, int64_t time) {
    struct hearth_buf from = {0}, to = {0};
    bool ok = hearth_buf_printf(&from, "%s%s", path, suffix) &&
              hearth_buf_printf(&to, "%s.bad-%lld%s", path, (long long)time, suffix) &&
              (rename((const char *)from.data, (const char *)to.data) == 0 || errno == ENOENT);
    hearth_buf_finish(&from);
    hearth_buf_finish(&to);
    return ok;
}

bool hearth_db_quarantine(const struct hearth_db_kind *kind, const char *path) {
    struct hearth_buf name = {0};
    int fd = hearth_buf_printf(&name, "%s.lock", path)
                 ? open((const char *)name.data, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600)
                 : -1;
    hearth_buf_finish(&name);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return false;
    }
    const char *found = find_fault(kind, path);
    int64_t time = hearth_clock_unix();
    bool ok = true;
    if (found != NULL) {
        char other[32];
        struct stat st;
        for (bool taken = true; taken; time += taken) { /* two in one second */
            snprintf(other, sizeof other, ".bad-%lld", (long long)time);
            taken = hearth_buf_printf(&name, "%s%s", path, other) && stat((const char *)name.data, &st) == 0;
            hearth_buf_finish(&name);
        }
        ok = move(path, "-wal", time) && move(path, "-shm", time) && move(path, "", time);
        hearth_log(HEARTH_LOG_WARN, "%s: %s is %s: %s %s.bad-%lld, a new one is begun", kind->label, path, found,
                   ok ? "set aside as" : "it cannot be renamed to", path, (long long)time);
    }
    close(fd);
    return ok;
}
