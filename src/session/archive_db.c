/* The archive's database: opening it, and setting it aside.
 *
 * WAL with synchronous=FULL: a commit is on disk when it returns, and readers never wait for the writer. Space of
 * deleted rows is given back in steps (auto_vacuum=INCREMENTAL). The file is made before SQLite opens it, so that
 * nobody else can ever read it; SQLite gives -wal and -shm the same mode.
 *
 * Setting aside renames -wal and -shm first: a new database must never meet the log of an old one. Processes take turns
 * by a lock on PATH.lock and look again whether the file is at fault, so that none moves away what another has just
 * begun. */
#include "session/archive_internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT(x) TEXT_(x)
#define TEXT_(x) #x
#define LEAF "NOT EXISTS (SELECT 1 FROM nodes AS c WHERE c.parent = n.key)"

static const char schema[] =
    "CREATE TABLE nodes (key BLOB PRIMARY KEY, parent BLOB, other BLOB, len INTEGER NOT NULL, used INTEGER NOT NULL,"
    " body BLOB NOT NULL);"
    "CREATE INDEX nodes_parent ON nodes (parent);"
    "CREATE INDEX nodes_used ON nodes (used);"
    "CREATE INDEX nodes_prints ON nodes (parent) WHERE other IS NOT NULL;"
    "CREATE TABLE replies (key BLOB PRIMARY KEY, parent BLOB NOT NULL, other BLOB NOT NULL, body BLOB NOT NULL);"
    "CREATE INDEX replies_parent ON replies (parent);"
    "CREATE INDEX replies_said ON replies (other);"
    "CREATE TABLE records (key BLOB PRIMARY KEY, body BLOB NOT NULL);"
    "PRAGMA application_id = " TEXT(HEARTH_ARCHIVE_APPLICATION) ";"
                                                                "PRAGMA user_version = " TEXT(
                                                                    HEARTH_ARCHIVE_VERSION) ";";

static const char *const statements[STATEMENTS] = {
    [HEARTH_ARCHIVE_GET_NODE] = "SELECT key, parent, other, len, body FROM nodes WHERE key = ?1 LIMIT ?2",
    [HEARTH_ARCHIVE_GET_RECORD] = "SELECT key, NULL, NULL, 0, body FROM records WHERE key = ?1 LIMIT ?2",
    [HEARTH_ARCHIVE_REPLIES] =
        "SELECT key, parent, other, 0, body FROM replies WHERE parent = ?1 ORDER BY rowid DESC LIMIT ?2",
    [HEARTH_ARCHIVE_SAID] =
        "SELECT key, parent, other, 0, NULL FROM replies WHERE other = ?1 ORDER BY rowid DESC LIMIT ?2",
    [HEARTH_ARCHIVE_CHILDREN] =
        "SELECT key, parent, other, len, NULL FROM nodes WHERE parent = ?1 ORDER BY rowid DESC LIMIT ?2",
    [HEARTH_ARCHIVE_PRINTS] = "SELECT key, parent, other, len, NULL FROM nodes WHERE parent = ?1 AND other IS NOT NULL"
                              " ORDER BY rowid DESC LIMIT ?2",
    [PUT_NODE] = "INSERT INTO nodes (key, parent, other, body, len, used) VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
                 " ON CONFLICT (key) DO UPDATE SET other = ?3, body = ?4, len = ?5, used = ?6",
    [PUT_REPLY] = "INSERT INTO replies (key, parent, other, body) VALUES (?1, ?2, ?3, ?4)"
                  " ON CONFLICT (key) DO UPDATE SET body = ?4",
    [PUT_NEWEST_REPLY] = "INSERT OR REPLACE INTO replies (key, parent, other, body) VALUES (?1, ?2, ?3, ?4)",
    [PUT_RECORD] = "INSERT OR REPLACE INTO records (key, body) VALUES (?1, ?4)",
    [TRIM_REPLIES] = "DELETE FROM replies WHERE parent = ?1 AND rowid NOT IN (SELECT rowid FROM replies WHERE "
                     "parent = ?1 ORDER BY rowid DESC LIMIT " TEXT(HEARTH_ARCHIVE_REPLIES_MAX) ")",
    [TOUCH_NODE] = "UPDATE nodes SET used = ?2 WHERE key = ?1 AND used < ?2",
    [HAS_NODE] = "SELECT 1 FROM nodes WHERE key = ?1",
    [HAS_CHILD] = "SELECT 1 FROM nodes WHERE parent = ?1 LIMIT 1",
    [USED_AND_PARENT] = "SELECT used, parent FROM nodes WHERE key = ?1",
    [OLDEST_LEAF] = "SELECT key, used, parent FROM nodes AS n WHERE " LEAF " ORDER BY used LIMIT 1",
    [DELETE_NODE] = "DELETE FROM nodes WHERE key = ?1",
    [DELETE_REPLIES] = "DELETE FROM replies WHERE parent = ?1",
    [DELETE_RECORD] = "DELETE FROM records WHERE key = ?1",
    [PAGES_USED] = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count,"
                   " pragma_page_size",
};

/* ---- opening ---- */

static int fault(struct hearth_errmsg *why, int rc, const char *what) {
    (void)hearth_fail(why, HEARTH_ERR_IO, "%s", what);
    return rc;
}

/* A file that is there and only ours. */
static int make_file(const char *path, struct hearth_errmsg *why) {
    struct stat st;
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) {
        close(fd);
        return SQLITE_OK;
    }
    if (errno != EEXIST) {
        return fault(why, SQLITE_CANTOPEN, strerror(errno));
    }
    if (lstat(path, &st) != 0) {
        return fault(why, SQLITE_CANTOPEN, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return fault(why, SQLITE_CANTOPEN, "it is not a regular file");
    }
    if (st.st_uid != geteuid()) {
        return fault(why, SQLITE_CANTOPEN, "it belongs to another user");
    }
    if ((st.st_mode & 077) != 0 && chmod(path, 0600) != 0) {
        return fault(why, SQLITE_CANTOPEN, strerror(errno));
    }
    return SQLITE_OK;
}

static int number(sqlite3 *handle, const char *sql, int64_t *out) {
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

/* The version that is there: 0 for a file in which nothing is yet, -1 for what is somebody else's. */
static int version(sqlite3 *handle, int64_t *out) {
    int64_t tables = 0, application = 0;
    int rc = number(handle, "PRAGMA user_version", out);
    rc = rc == SQLITE_OK ? number(handle, "PRAGMA application_id", &application) : rc;
    rc = rc == SQLITE_OK ? number(handle, "SELECT count(*) FROM sqlite_master", &tables) : rc;
    if (rc == SQLITE_OK && application != HEARTH_ARCHIVE_APPLICATION && (tables > 0 || *out != 0)) {
        *out = -1;
    }
    return rc;
}

static int begin_database(sqlite3 *handle) {
    int64_t found = 0;
    int rc = sqlite3_exec(handle, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc != SQLITE_OK) {
        return rc;
    }
    rc = version(handle, &found); /* another process may have been faster */
    if (rc == SQLITE_OK && found == 0) {
        rc = sqlite3_exec(handle, schema, NULL, NULL, NULL);
    }
    rc = rc == SQLITE_OK ? sqlite3_exec(handle, "COMMIT", NULL, NULL, NULL) : rc;
    if (rc != SQLITE_OK) {
        (void)sqlite3_exec(handle, "ROLLBACK", NULL, NULL, NULL);
    }
    return rc;
}

static int open_handle(const char *path, int busy_ms, sqlite3 **handle) {
    int rc =
        sqlite3_open_v2(path, handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_extended_result_codes(*handle, 1);
        rc = sqlite3_busy_timeout(*handle, busy_ms);
    }
    return rc;
}

static int set_up(struct archive_db *db) {
    int64_t found = 0;
    int rc = sqlite3_exec(db->handle,
                          "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                          "PRAGMA journal_size_limit = 8388608; PRAGMA cache_size = -8192; PRAGMA foreign_keys = OFF;"
                          "PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY",
                          NULL, NULL, NULL);
    rc = rc == SQLITE_OK ? version(db->handle, &found) : rc;
    if (rc == SQLITE_OK && found == 0) {
        rc = begin_database(db->handle);
        rc = rc == SQLITE_OK ? version(db->handle, &found) : rc;
    }
    if (rc == SQLITE_OK && found != HEARTH_ARCHIVE_VERSION) {
        return HEARTH_ARCHIVE_ALIEN;
    }
    for (int i = 0; rc == SQLITE_OK && i < STATEMENTS; i++) {
        rc = sqlite3_prepare_v3(db->handle, statements[i], -1, SQLITE_PREPARE_PERSISTENT, &db->statements[i], NULL);
        rc = rc == SQLITE_ERROR ? HEARTH_ARCHIVE_ALIEN : rc; /* not our tables */
    }
    return rc;
}

int hearth_archive_db_open(const char *path, int busy_ms, struct archive_db *db, struct hearth_errmsg *why) {
    *db = (struct archive_db){0};
    int rc = make_file(path, why);
    if (rc != SQLITE_OK) {
        return rc;
    }
    rc = open_handle(path, busy_ms, &db->handle);
    rc = rc == SQLITE_OK ? set_up(db) : rc;
    if (rc != SQLITE_OK) {
        (void)fault(why, rc, rc == HEARTH_ARCHIVE_ALIEN ? "it is of another version" : sqlite3_errmsg(db->handle));
        hearth_archive_db_close(db);
    }
    return rc;
}

void hearth_archive_db_close(struct archive_db *db) {
    for (int i = 0; i < STATEMENTS; i++) {
        sqlite3_finalize(db->statements[i]);
    }
    sqlite3_close(db->handle);
    *db = (struct archive_db){0};
}

bool hearth_archive_db_has_moved(const struct archive_db *db) {
    int moved = 0;
    return sqlite3_file_control(db->handle, NULL, SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved != 0;
}

/* ---- setting aside ---- */

bool hearth_archive_db_is_bad(int rc) {
    return rc == HEARTH_ARCHIVE_ALIEN || (rc & 0xFF) == SQLITE_CORRUPT || (rc & 0xFF) == SQLITE_NOTADB;
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
static const char *find_fault(const char *path) {
    struct archive_db db;
    struct hearth_errmsg why;
    int rc = hearth_archive_db_open(path, 5000, &db, &why);
    const char *found = rc == HEARTH_ARCHIVE_ALIEN ? "of another version" : "damaged";
    if (rc == SQLITE_OK) {
        bool ok = text_is_ok(db.handle, "PRAGMA quick_check(1)", &rc);
        hearth_archive_db_close(&db);
        return ok || (rc != SQLITE_OK && !hearth_archive_db_is_bad(rc)) ? NULL : found;
    }
    return hearth_archive_db_is_bad(rc) ? found : NULL;
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

bool hearth_archive_db_set_aside(const char *path) {
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
    const char *found = find_fault(path);
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
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s is %s: %s %s.bad-%lld, a new one is begun", path, found,
                   ok ? "set aside as" : "it cannot be renamed to", path, (long long)time);
    }
    close(fd);
    return ok;
}
