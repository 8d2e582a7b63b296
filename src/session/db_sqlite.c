/* Databases in files: opening one, bringing it up to date, asking and writing, copying it, and moving one that is at
 * fault away.
 *
 * WAL with synchronous=FULL: a commit is on disk when it returns, and readers never wait for the writer. Space of
 * deleted rows is given back in steps (auto_vacuum=INCREMENTAL), and rows are overwritten (secure_delete). The file is
 * made before SQLite opens it, so that no other user can ever read it; SQLite gives -wal and -shm the same mode.
 *
 * What is refused stays as it is: until a database is known to be hearth's, closing it carries no log into it.
 *
 * Versions: user_version counts the steps that were taken. A step and its number are one transaction, and the number is
 * read again inside it: another process may have been faster. The first step also writes the application_id.
 *
 * A copy is made by SQLite's backup API while others read and write, under a temporary name, synced and renamed: what
 * stands at the name is whole.
 *
 * Only a database that may be forgotten is moved away (replaces_others); others stay where they are, and opening fails.
 * -wal and -shm are renamed first: a new database must never meet the log of an old one. Processes take turns by a lock
 * on PATH.lock and check again whether the file is at fault, so that none moves away what another has just begun. */
#include "session/db_sqlite.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "session/db_file.h"
#include "session/db_sums.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOGLESS "PRAGMA journal_mode = DELETE"

enum { OPEN_FLAGS = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE };

/* ---- SQL by its text ---- */

static int run_sql(sqlite3 *handle, const char *sql) {
    return sqlite3_exec(handle, sql, NULL, NULL, NULL);
}

/* The first column of the first row that a query gives, as a number, and whether it is a word. */
static int read_value(sqlite3 *handle, const char *sql, int64_t *number, const char *word, bool *is_word) {
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(handle, sql, -1, &statement, NULL);
    code = code == SQLITE_OK ? sqlite3_step(statement) : code;
    if (code == SQLITE_ROW) {
        const char *text = word != NULL ? (const char *)sqlite3_column_text(statement, 0) : NULL;
        if (number != NULL) {
            *number = sqlite3_column_int64(statement, 0);
        }
        if (is_word != NULL) {
            *is_word = text != NULL && strcmp(text, word) == 0;
        }
        code = SQLITE_OK;
    }
    sqlite3_finalize(statement);
    return code;
}

static int read_number(sqlite3 *handle, const char *sql, int64_t *out) {
    return read_value(handle, sql, out, NULL, NULL);
}

static bool reads_word(sqlite3 *handle, const char *sql, const char *word, int *code) {
    bool is_word = false;
    *code = read_value(handle, sql, NULL, word, &is_word);
    return is_word;
}

static int end(sqlite3 *handle, int code) {
    code = code == SQLITE_OK ? run_sql(handle, "COMMIT") : code;
    if (code != SQLITE_OK && sqlite3_get_autocommit(handle) == 0) {
        (void)run_sql(handle, "ROLLBACK");
    }
    return code;
}

static int exec(struct hearth_db *db, const char *sql) {
    return run_sql(db->handle, sql);
}

static int read_first(struct hearth_db *db, const char *sql, int64_t *out) {
    return read_number(db->handle, sql, out);
}

static int begin(struct hearth_db *db, bool write) {
    return run_sql(db->handle, write ? "BEGIN IMMEDIATE" : "BEGIN");
}

static int end_transaction(struct hearth_db *db, bool commit) {
    return end(db->handle, commit ? SQLITE_OK : SQLITE_ABORT);
}

static bool is_in_transaction(const struct hearth_db *db) {
    return db->handle != NULL && sqlite3_get_autocommit(db->handle) == 0;
}

static int64_t count_changes(const struct hearth_db *db) {
    return sqlite3_total_changes(db->handle);
}

/* ---- statements ---- */

static int bind(sqlite3_stmt *statement, int index, const struct hearth_db_value *value) {
    if (value->is_null) {
        return sqlite3_bind_null(statement, index);
    }
    if (value->type == HEARTH_DB_ARG_NUMBER) {
        return sqlite3_bind_int64(statement, index, value->number);
    }
    return value->type == HEARTH_DB_ARG_TEXT
               ? sqlite3_bind_text64(statement, index, value->bytes, value->len, SQLITE_STATIC, SQLITE_UTF8)
               : sqlite3_bind_blob64(statement, index, value->bytes, value->len, SQLITE_STATIC);
}

static void reset(struct hearth_db *db, int which) {
    (void)sqlite3_reset(db->statements[which]);
    (void)sqlite3_clear_bindings(db->statements[which]);
}

static int next(struct hearth_db *db, int which) {
    const int code = sqlite3_step(db->statements[which]);
    if (code == SQLITE_ROW) {
        return 1;
    }
    reset(db, which);
    return code == SQLITE_DONE ? 0 : hearth_db_fail(db, code);
}

static int query(struct hearth_db *db, int which, const struct hearth_db_value *args, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const int code = bind(db->statements[which], (int)i + 1, &args[i]);
        if (code != SQLITE_OK) {
            reset(db, which);
            return hearth_db_fail(db, code);
        }
    }
    return next(db, which);
}

static struct hearth_db_value column(const struct hearth_db *db, int which, int at) {
    sqlite3_stmt *statement = db->statements[which];
    const int type = sqlite3_column_type(statement, at);
    if (type == SQLITE_INTEGER) {
        return (struct hearth_db_value){.number = sqlite3_column_int64(statement, at)};
    }
    const void *bytes =
        type == SQLITE_TEXT ? (const void *)sqlite3_column_text(statement, at) : sqlite3_column_blob(statement, at);
    return (struct hearth_db_value){
        .is_null = type == SQLITE_NULL, .bytes = bytes, .len = (size_t)sqlite3_column_bytes(statement, at)};
}

/* ---- copies ---- */

static int copy_pages(sqlite3 *from, sqlite3 *to) {
    enum { PAGES = 1024, TRIES = 600, PAUSE_MS = 100 };
    sqlite3_backup *backup = sqlite3_backup_init(to, "main", from, "main");
    int code = backup != NULL ? SQLITE_OK : sqlite3_errcode(to);
    for (int tries = 0; code == SQLITE_OK;) {
        code = sqlite3_backup_step(backup, PAGES);
        if ((code == SQLITE_BUSY || code == SQLITE_LOCKED) && tries++ < TRIES) {
            sqlite3_sleep(PAUSE_MS);
            code = SQLITE_OK;
        }
    }
    const int ended = backup != NULL ? sqlite3_backup_finish(backup) : code;
    return code == SQLITE_DONE ? ended : code;
}

int hearth_db_part_from_log(const char *path) {
    sqlite3 *handle = NULL;
    int code = sqlite3_open_v2(path, &handle, OPEN_FLAGS, hearth_db_vfs());
    code = code == SQLITE_OK ? run_sql(handle, LOGLESS) : code;
    const int closed = sqlite3_close(handle);
    return code == SQLITE_OK ? closed : code;
}

static int write_copy(sqlite3 *from, const char *path) {
    sqlite3 *to = NULL;
    const int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    int code = fd >= 0 ? sqlite3_open_v2(path, &to, OPEN_FLAGS, hearth_db_vfs()) : SQLITE_CANTOPEN;
    code = code == SQLITE_OK ? copy_pages(from, to) : code;
    code = code == SQLITE_OK ? run_sql(to, LOGLESS) : code;
    const int closed = sqlite3_close(to);
    code = code == SQLITE_OK ? closed : code;
    if (fd >= 0) {
        code = fsync(fd) != 0 && code == SQLITE_OK ? SQLITE_IOERR_FSYNC : code;
        (void)close(fd);
    }
    return code;
}

int hearth_db_copy(sqlite3 *from, const char *path, bool replace, struct hearth_errmsg *reason) {
    struct hearth_buf name = {0}, log = {0};
    if (!hearth_buf_printf(&name, "%s.new-%d", path, (int)getpid()) ||
        !hearth_buf_printf(&log, "%s-journal", (const char *)name.data)) {
        hearth_buf_finish(&name);
        (void)hearth_fail(reason, HEARTH_ERR_NOMEM, "%s", hearth_err_text(HEARTH_ERR_NOMEM));
        return SQLITE_NOMEM;
    }
    const char *fresh = (const char *)name.data;
    (void)unlink(fresh); /* left by an earlier process of this number */
    int code = write_copy(from, fresh);
    if (code == SQLITE_OK && (replace ? rename(fresh, path) : link(fresh, path)) != 0) {
        code = errno == EEXIST ? SQLITE_CANTOPEN : SQLITE_IOERR;
        (void)hearth_fail(reason, HEARTH_ERR_IO, "%s: %s", path, strerror(errno));
    } else if (code != SQLITE_OK) {
        const char *what = code == SQLITE_CANTOPEN ? strerror(errno) : sqlite3_errstr(code);
        (void)hearth_fail(reason, HEARTH_ERR_IO, "%s: %s", path, what);
    }
    (void)unlink(fresh);
    (void)unlink((const char *)log.data);
    hearth_buf_finish(&name);
    hearth_buf_finish(&log);
    return code;
}

/* Copies a database before it is brought up to date: PATH.before-v<version of this hearth>. */
static int copy_before(struct hearth_db *db, int64_t version, struct hearth_errmsg *reason) {
    struct hearth_buf name = {0};
    if (!hearth_buf_printf(&name, "%s.before-v%d", db->path, db->kind->version)) {
        return SQLITE_NOMEM;
    }
    const char *copy = (const char *)name.data;
    const enum hearth_db_file there = hearth_db_probe(db->kind, copy);
    const bool free = there == HEARTH_DB_FILE_NONE || there == HEARTH_DB_FILE_OURS || there == HEARTH_DB_FILE_EMPTY;
    const int code = free ? hearth_db_copy(db->handle, copy, true, reason) : SQLITE_CANTOPEN;
    if (!free) {
        (void)hearth_fail(reason, HEARTH_ERR_IO, "it is to be copied to %s first, which is no file of hearth's", copy);
    }
    if (code == SQLITE_OK) {
        hearth_log(HEARTH_LOG_INFO, "%s: %s is brought from version %lld to %d; a copy of it as it was is kept as %s",
                   db->kind->label, db->path, (long long)version, db->kind->version, copy);
    }
    hearth_buf_finish(&name);
    return code;
}

/* ---- opening ---- */

/* Asks for checksums: a new file gets them at once, an old one when it is copied or rewritten. */
static int ask_for_sums(sqlite3 *handle) {
    int bytes = HEARTH_DB_SUM_BYTES;
    return sqlite3_file_control(handle, "main", SQLITE_FCNTL_RESERVE_BYTES, &bytes);
}

static bool file_has_sums(const char *path) {
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

/* Rewrites a file without checksums, unless another connection uses it, which would go on without them. */
static void add_sums(struct hearth_db *db) {
    int code;
    if (file_has_sums(db->path)) {
        return;
    }
    if (reads_word(db->handle, LOGLESS, "delete", &code)) {
        code = ask_for_sums(db->handle);
        code = code == SQLITE_OK ? run_sql(db->handle, "VACUUM") : code;
        if (code != SQLITE_OK) {
            hearth_log(HEARTH_LOG_WARN, "%s: %s: its pages get no checksums for now: %s", db->kind->label, db->path,
                       sqlite3_errstr(code));
        }
    }
    (void)reads_word(db->handle, "PRAGMA journal_mode = WAL", "wal", &code);
}

/* Finds the version: 0 for an empty file. In a transaction, because three separate reads could mistake a database that
 * another process is creating for another program's. */
static int find_version(struct hearth_db *db, int64_t *out) {
    int64_t tables = 0, application = 0;
    int code = read_number(db->handle, "PRAGMA user_version", out);
    code = code == SQLITE_OK ? read_number(db->handle, "PRAGMA application_id", &application) : code;
    code = code == SQLITE_OK ? read_number(db->handle, "SELECT count(*) FROM sqlite_master", &tables) : code;
    if (code == SQLITE_OK && application != db->kind->application && (tables > 0 || *out != 0)) {
        return HEARTH_DB_ALIEN;
    }
    return code == SQLITE_OK && (*out < 0 || *out > db->kind->version) ? HEARTH_DB_NEWER : code;
}

static int take_step(struct hearth_db *db, int64_t *version) {
    char mark[96];
    int code = run_sql(db->handle, "BEGIN IMMEDIATE");
    if (code != SQLITE_OK) {
        return code;
    }
    code = find_version(db, version);
    if (code == SQLITE_OK && *version < db->kind->version) {
        snprintf(mark, sizeof mark, "PRAGMA application_id = %d; PRAGMA user_version = %lld", db->kind->application,
                 (long long)*version + 1);
        code = run_sql(db->handle, db->kind->steps[*version]);
        code = code == SQLITE_OK ? run_sql(db->handle, mark) : code;
        *version += 1;
    }
    return end(db->handle, code);
}

/* Brings a new or older database up to date. */
static int bring_up(struct hearth_db *db, int64_t version, struct hearth_errmsg *reason) {
    const bool sums = db->kind->has_sums && db->path != NULL;
    int code = sums && version > 0 && version < db->kind->version ? copy_before(db, version, reason) : SQLITE_OK;
    while (code == SQLITE_OK && version < db->kind->version) {
        code = take_step(db, &version);
    }
    if (code == SQLITE_OK && sums) {
        add_sums(db);
    }
    return code;
}

static int open_handle(struct hearth_db *db) {
    const bool sums = db->kind->has_sums && db->path != NULL;
    int code = sqlite3_open_v2(db->path != NULL ? db->path : ":memory:", &db->handle, OPEN_FLAGS,
                               sums ? hearth_db_vfs() : NULL);
    if (code == SQLITE_OK) {
        sqlite3_extended_result_codes(db->handle, 1);
        code = sqlite3_busy_timeout(db->handle, db->busy_ms);
        (void)sqlite3_db_config(db->handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    }
    return code == SQLITE_OK && sums ? ask_for_sums(db->handle) : code;
}

static int set_up(struct hearth_db *db, struct hearth_errmsg *reason) {
    int64_t version = 0;
    int code = run_sql(db->handle, "BEGIN");
    /* First of all, so that nothing is written into another program's file. */
    code = code == SQLITE_OK ? end(db->handle, find_version(db, &version)) : code;
    /* Only for a new file: the setting writes, and an existing one can then be read on a full disk. */
    code = code == SQLITE_OK && version == 0 ? run_sql(db->handle, "PRAGMA auto_vacuum = INCREMENTAL") : code;
    code = code == SQLITE_OK
               ? run_sql(db->handle,
                         "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA secure_delete = ON;"
                         "PRAGMA journal_size_limit = 8388608; PRAGMA cache_size = -8192; PRAGMA foreign_keys = OFF;"
                         "PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY")
               : code;
    code = code == SQLITE_OK ? bring_up(db, version, reason) : code;
    for (size_t i = 0; code == SQLITE_OK && i < db->kind->statement_count; i++) {
        code = sqlite3_prepare_v3(db->handle, db->kind->statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                                  &db->statements[i], NULL);
        code = code == SQLITE_ERROR ? HEARTH_DB_ALIEN : code; /* its tables are not hearth's */
    }
    return code;
}

static int open_file(struct hearth_db *db, struct hearth_errmsg *reason) {
    int code = db->path != NULL ? hearth_db_make_file(db->kind, db->path, reason) : SQLITE_OK;
    code = code == SQLITE_OK ? open_handle(db) : code;
    code = code == SQLITE_OK ? set_up(db, reason) : code; /* not the handle's text, which may be about the rollback */
    if (code == SQLITE_OK) {
        (void)sqlite3_db_config(db->handle, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
    }
    return code;
}

static void close_file(struct hearth_db *db) {
    for (size_t i = 0; i < db->kind->statement_count; i++) {
        sqlite3_finalize(db->statements[i]);
        db->statements[i] = NULL;
    }
    sqlite3_close(db->handle);
    db->handle = NULL;
}

static bool is_open(const struct hearth_db *db) {
    return db->handle != NULL;
}

static bool has_moved(const struct hearth_db *db) {
    int moved = 0;
    return db->path != NULL && sqlite3_file_control(db->handle, NULL, SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK &&
           moved != 0;
}

const struct hearth_db_driver hearth_db_sqlite = {.open = open_file,
                                                  .close = close_file,
                                                  .is_open = is_open,
                                                  .has_moved = has_moved,
                                                  .query = query,
                                                  .next = next,
                                                  .reset = reset,
                                                  .column = column,
                                                  .exec = exec,
                                                  .read_number = read_first,
                                                  .begin = begin,
                                                  .end = end_transaction,
                                                  .is_in_transaction = is_in_transaction,
                                                  .changes = count_changes};

void hearth_db_give_back(struct hearth_db *db) {
    (void)run_sql(db->handle, "PRAGMA incremental_vacuum(4096)");
}

bool hearth_db_empty_log(struct hearth_db *db, int wait_ms) {
    (void)sqlite3_busy_timeout(db->handle, wait_ms);
    const int code = sqlite3_wal_checkpoint_v2(db->handle, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    (void)sqlite3_busy_timeout(db->handle, db->busy_ms);
    return code == SQLITE_OK;
}

/* ---- moving away ---- */

/* Why a database cannot be used; NULL: it can be, or that is unknown now. */
static const char *find_fault(const struct hearth_db_kind *kind, const char *path) {
    struct hearth_db db;
    hearth_db_init(&db, &hearth_db_sqlite, kind, path, 5000, NULL);
    int code = hearth_db_open(&db, NULL);
    const char *fault = code == HEARTH_DB_ALIEN || code == HEARTH_DB_NEWER ? "of another version" : "damaged";
    bool found = hearth_db_is_damage(kind, code);
    if (code == SQLITE_OK) {
        const bool ok = reads_word(db.handle, "PRAGMA quick_check(1)", "ok", &code);
        found = !ok && (code == SQLITE_OK || hearth_db_is_damage(kind, code));
    }
    hearth_db_finish(&db);
    return found ? fault : NULL;
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

/* The first second, from now on, for which there is no file. */
static int64_t free_time(const char *path) {
    struct hearth_buf name = {0};
    struct stat st;
    int64_t time = hearth_clock_unix();
    for (bool taken = true; taken; time += taken) {
        name.len = 0;
        taken =
            hearth_buf_printf(&name, "%s.bad-%lld", path, (long long)time) && stat((const char *)name.data, &st) == 0;
    }
    hearth_buf_finish(&name);
    return time;
}

bool hearth_db_quarantine(const struct hearth_db_kind *kind, const char *path) {
    struct hearth_buf name = {0};
    int fd = hearth_buf_printf(&name, "%s.lock", path)
                 ? open((const char *)name.data, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600)
                 : -1;
    bool ok = fd >= 0 && flock(fd, LOCK_EX) == 0;
    const char *found = ok ? find_fault(kind, path) : NULL;
    if (found != NULL) {
        const int64_t time = free_time(path);
        ok = move(path, "-wal", time) && move(path, "-shm", time) && move(path, "", time);
        hearth_log(HEARTH_LOG_WARN, "%s: %s is %s: %s %s.bad-%lld, a new one is begun", kind->label, path, found,
                   ok ? "quarantined as" : "it cannot be renamed to", path, (long long)time);
    }
    if (fd >= 0) {
        close(fd);
    }
    hearth_buf_finish(&name);
    return ok;
}
