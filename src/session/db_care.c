/* Copies of databases, and the step that gives one sums.
 *
 * A copy is made by SQLite's backup API while others read and write, under a temporary name, synced and renamed: what
 * stands at the name is whole. */
#include "session/db.h"
#include "session/db_sums.h"

#include "base/buf.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- copies ---- */

#define LOGLESS "PRAGMA journal_mode = DELETE"

static int copy_pages(sqlite3 *from, sqlite3 *to) {
    enum { PAGES = 1024, TRIES = 600, PAUSE_MS = 100 };
    sqlite3_backup *backup = sqlite3_backup_init(to, "main", from, "main");
    int rc = backup != NULL ? SQLITE_OK : sqlite3_errcode(to);
    for (int tries = 0; rc == SQLITE_OK;) {
        rc = sqlite3_backup_step(backup, PAGES);
        if ((rc == SQLITE_BUSY || rc == SQLITE_LOCKED) && tries++ < TRIES) {
            sqlite3_sleep(PAUSE_MS);
            rc = SQLITE_OK;
        }
    }
    const int end = backup != NULL ? sqlite3_backup_finish(backup) : rc;
    return rc == SQLITE_DONE ? end : rc;
}

int hearth_db_part_from_log(const char *path) {
    sqlite3 *handle = NULL;
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE;
    int rc = sqlite3_open_v2(path, &handle, flags, hearth_db_vfs());
    rc = rc == SQLITE_OK ? sqlite3_exec(handle, LOGLESS, NULL, NULL, NULL) : rc;
    const int closed = sqlite3_close(handle);
    return rc == SQLITE_OK ? closed : rc;
}

static int write_copy(sqlite3 *from, const char *path) {
    sqlite3 *to = NULL;
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE;
    const int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    int rc = fd >= 0 ? sqlite3_open_v2(path, &to, flags, hearth_db_vfs()) : SQLITE_CANTOPEN;
    rc = rc == SQLITE_OK ? copy_pages(from, to) : rc;
    rc = rc == SQLITE_OK ? sqlite3_exec(to, LOGLESS, NULL, NULL, NULL) : rc;
    const int closed = sqlite3_close(to);
    rc = rc == SQLITE_OK ? closed : rc;
    if (fd >= 0) {
        rc = fsync(fd) != 0 && rc == SQLITE_OK ? SQLITE_IOERR_FSYNC : rc;
        (void)close(fd);
    }
    return rc;
}

int hearth_db_copy(sqlite3 *from, const char *path, bool replace, struct hearth_errmsg *why) {
    struct hearth_buf name = {0}, log = {0};
    if (!hearth_buf_printf(&name, "%s.new-%d", path, (int)getpid()) ||
        !hearth_buf_printf(&log, "%s-journal", (const char *)name.data)) {
        hearth_buf_finish(&name);
        (void)hearth_fail(why, HEARTH_ERR_NOMEM, "%s", hearth_err_text(HEARTH_ERR_NOMEM));
        return SQLITE_NOMEM;
    }
    const char *fresh = (const char *)name.data;
    (void)unlink(fresh); /* of an earlier process of this number */
    int rc = write_copy(from, fresh);
    if (rc == SQLITE_OK && (replace ? rename(fresh, path) : link(fresh, path)) != 0) {
        rc = errno == EEXIST ? SQLITE_CANTOPEN : SQLITE_IOERR;
        (void)hearth_fail(why, HEARTH_ERR_IO, "%s: %s", path, strerror(errno));
    } else if (rc != SQLITE_OK) {
        const char *what = rc == SQLITE_CANTOPEN ? strerror(errno) : sqlite3_errstr(rc);
        (void)hearth_fail(why, HEARTH_ERR_IO, "%s: %s", path, what);
    }
    (void)unlink(fresh);
    (void)unlink((const char *)log.data);
    hearth_buf_finish(&name);
    hearth_buf_finish(&log);
    return rc;
}

int hearth_db_copy_before(const struct hearth_db_kind *kind, sqlite3 *handle, const char *path, int64_t version,
                          struct hearth_errmsg *why) {
    struct hearth_buf name = {0};
    if (!hearth_buf_printf(&name, "%s.before-v%d", path, kind->version)) {
        return SQLITE_NOMEM;
    }
    const enum hearth_db_file there = hearth_db_probe(kind, (const char *)name.data);
    const bool free = there == HEARTH_DB_FILE_NONE || there == HEARTH_DB_FILE_OURS || there == HEARTH_DB_FILE_EMPTY;
    const int rc = free ? hearth_db_copy(handle, (const char *)name.data, true, why) : SQLITE_CANTOPEN;
    if (!free) {
        (void)hearth_fail(why, HEARTH_ERR_IO, "it is to be copied to %s first, which is no file of hearth's",
                          (const char *)name.data);
    }
    if (rc == SQLITE_OK) {
        hearth_log(HEARTH_LOG_INFO, "%s: %s is brought from version %lld to %d; a copy of it as it was is kept as %s",
                   kind->label, path, (long long)version, kind->version, (const char *)name.data);
    }
    hearth_buf_finish(&name);
    return rc;
}

/* ---- sums ---- */

int hearth_db_ask_for_sums(sqlite3 *handle) {
    int bytes = HEARTH_DB_SUM_BYTES;
    return sqlite3_file_control(handle, "main", SQLITE_FCNTL_RESERVE_BYTES, &bytes);
}

static bool has_sums(const char *path) {
    uint8_t head[21];
    struct hearth_db_raw raw;
    if (hearth_db_raw_open(path, &raw) != 0) {
        return false;
    }
    const bool has =
        hearth_db_raw_read(&raw, head, sizeof head, 0) == (ssize_t)sizeof head && hearth_db_head_has_sums(head);
    hearth_db_raw_close(&raw);
    return has;
}

static bool is_word(sqlite3 *handle, const char *sql, const char *word) {
    sqlite3_stmt *statement = NULL;
    bool is =
        sqlite3_prepare_v2(handle, sql, -1, &statement, NULL) == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW;
    const char *text = is ? (const char *)sqlite3_column_text(statement, 0) : NULL;
    is = text != NULL && strcmp(text, word) == 0;
    sqlite3_finalize(statement);
    return is;
}

void hearth_db_add_sums(const struct hearth_db_kind *kind, sqlite3 *handle, const char *path) {
    if (has_sums(path)) {
        return;
    }
    /* Only alone: others would go on without sums. */
    if (is_word(handle, "PRAGMA journal_mode = DELETE", "delete")) {
        int rc = hearth_db_ask_for_sums(handle);
        rc = rc == SQLITE_OK ? sqlite3_exec(handle, "VACUUM", NULL, NULL, NULL) : rc;
        if (rc != SQLITE_OK) {
            hearth_log(HEARTH_LOG_WARN, "%s: %s: its pages get no checksums for now: %s", kind->label, path,
                       sqlite3_errstr(rc));
        }
    }
    (void)is_word(handle, "PRAGMA journal_mode = WAL", "wal");
}
