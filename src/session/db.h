/* A database of this room: an SQLite file of which every version is known, opened the same way by whoever keeps
 * something in one (session/archive.h, session/store.h).
 *
 * Result codes are SQLite's, and two of our own. Threads: a connection is used by one at a time. */
#ifndef HEARTH_SESSION_DB_H
#define HEARTH_SESSION_DB_H

#include "base/digest.h"
#include "base/err.h"

#include <sqlite3.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define HEARTH_DB_ALIEN 0x1000 /* what is there is somebody else's */
#define HEARTH_DB_NEWER 0x1001 /* it is of a newer hearth */

/* In SQL text: numbers from macros. */
#define HEARTH_DB_TEXT(x) HEARTH_DB_TEXT_(x)
#define HEARTH_DB_TEXT_(x) #x

/* What a database is. */
struct hearth_db_kind {
    const char *label;        /* begins its log lines */
    int application;          /* its application_id */
    const char *const *steps; /* SQL; steps[v] brings version v (user_version) to v + 1; 0 is an empty file */
    int version;              /* of this hearth; as many steps as there are */
    const char *pragmas;      /* besides those that all have; NULL: none */
    const char *const *statements;
    size_t statement_count;
    bool replaces_others; /* it may forget: what is alien, newer or damaged is set aside */
    bool has_sums;        /* pages have checksums (session/db_sums.h); an older version is copied before a step */
};

/* The bytes of a database file as they are. A descriptor of our own is no way to them: closing it would end the locks
 * that this process's connections have on the file. Threads: one at a time. */
struct hearth_db_raw {
    sqlite3_file *file;
    const char *name;
};
/* 0, or -1 with errno: it is missing, not a regular file, or cannot be read. */
int hearth_db_raw_open(const char *path, struct hearth_db_raw *raw);
void hearth_db_raw_close(struct hearth_db_raw *raw);
/* Bytes read, fewer than `len` at the end of the file; -1: an error. */
ssize_t hearth_db_raw_read(const struct hearth_db_raw *raw, void *bytes, size_t len, uint64_t at);

/* What stands at a path, told without a connection to it. */
enum hearth_db_file {
    HEARTH_DB_FILE_NONE,
    HEARTH_DB_FILE_CLOSED, /* it cannot be read */
    HEARTH_DB_FILE_EMPTY,
    HEARTH_DB_FILE_OURS, /* it was begun as a database of this kind, whatever became of it */
    HEARTH_DB_FILE_OTHER,
};
enum hearth_db_file hearth_db_probe(const struct hearth_db_kind *kind, const char *path);
/* Checks that PATH is free or a file of this kind that can be opened, and that every file beside it (log, journal,
 * shared memory) belongs to it. Any other file is refused and stays as it is: a code, and `why` where the code
 * (HEARTH_DB_ALIEN) does not say it all. */
int hearth_db_check_file(const struct hearth_db_kind *kind, const char *path, struct hearth_errmsg *why);
/* The same, and makes an empty file where there is none; only this user can read it then. */
int hearth_db_make_file(const struct hearth_db_kind *kind, const char *path, struct hearth_errmsg *why);

/* Opens a connection with its statements. The file is created where it is missing, only ours to read; an older version
 * is brought up to date, each step in a transaction of its own. ":memory:" is no file. On failure `why` holds one line
 * and nothing is open. */
int hearth_db_open(const struct hearth_db_kind *kind, const char *path, int busy_ms, sqlite3 **handle,
                   sqlite3_stmt **statements, struct hearth_errmsg *why);
/* Closes what is open; NULL is allowed. */
void hearth_db_close(const struct hearth_db_kind *kind, sqlite3 **handle, sqlite3_stmt **statements);
/* True when the file at the path is another one by now, or none. */
bool hearth_db_has_moved(sqlite3 *handle);

/* Binds a digest, zero as NULL; it stays where it is until the statement is done. A SQLite code. */
int hearth_db_bind_digest(sqlite3_stmt *statement, int index, const struct hearth_digest *digest);
/* The digest in a column; zero for NULL, and for what is none. */
struct hearth_digest hearth_db_column_digest(sqlite3_stmt *statement, int index);
/* A code in words. */
const char *hearth_db_text(int rc);
/* True for a code that says that memory was refused, to SQLite or to its layer for files. */
bool hearth_db_is_nomem(int rc);
/* True for a code that says the file itself is at fault. */
bool hearth_db_is_damage(const struct hearth_db_kind *kind, int rc);
/* Moves the database out of the way if it is at fault, which is looked into; logs. False: that failed. */
bool hearth_db_quarantine(const struct hearth_db_kind *kind, const char *path);

/* Copies an open database into a file, while others use it. Unless it may `replace` what is there, that is an error. */
int hearth_db_copy(sqlite3 *from, const char *path, bool replace, struct hearth_errmsg *why);
/* The copy that is kept of a database before it is brought up: PATH.before-v<version of this hearth>. */
int hearth_db_copy_before(const struct hearth_db_kind *kind, sqlite3 *handle, const char *path, int64_t version,
                          struct hearth_errmsg *why);
/* Turns a database that no connection uses into one file without a log, which can be carried about. */
int hearth_db_part_from_log(const char *path);
/* A new file gets sums; an old one when it is copied or rewritten. */
int hearth_db_ask_for_sums(sqlite3 *handle);
/* Rewrites a file that has no sums, if nobody else uses it now. */
void hearth_db_add_sums(const struct hearth_db_kind *kind, sqlite3 *handle, const char *path);

/* The first number that a query gives. */
int hearth_db_number(sqlite3 *handle, const char *sql, int64_t *out);
/* Ends what BEGIN began: commits when `rc` is SQLITE_OK, else rolls back. Returns the first code that is none. */
int hearth_db_end(sqlite3 *handle, int rc);
/* Resets a statement; what a step returned becomes SQLITE_OK when it went well. */
int hearth_db_done(sqlite3_stmt *statement, int rc);

#endif
