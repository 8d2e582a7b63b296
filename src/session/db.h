/* A connection to a database of this room: an SQLite file of which every version is known. Archive (session/archive.h)
 * and store (session/store.h) open, ask, write, copy and replace their files by it alone.
 *
 * Codes are SQLite's and two of our own. Statements and transactions return errors of base/err.h; `code` then says what
 * SQLite said. Threads: one at a time; `mutex` is there for the users of a connection and is not touched here. */
#ifndef HEARTH_SESSION_DB_H
#define HEARTH_SESSION_DB_H

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/seal.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTH_DB_ALIEN 0x1000 /* the file belongs to another program */
#define HEARTH_DB_NEWER 0x1001 /* it is of a newer hearth */

/* In SQL text: numbers from macros. */
#define HEARTH_DB_TEXT(x) HEARTH_DB_TEXT_(x)
#define HEARTH_DB_TEXT_(x) #x

enum { HEARTH_DB_STATEMENTS_MAX = 64 };

/* What a database is. */
struct hearth_db_kind {
    const char *label;        /* begins its log lines */
    int application;          /* its application_id */
    const char *const *steps; /* SQL; steps[v] brings version v (user_version) to v + 1; 0 is an empty file */
    int version;              /* of this hearth; as many steps as there are */
    const char *const *statements;
    size_t statement_count;
    bool replaces_others; /* it may forget: what is alien, newer or damaged is moved away */
    bool has_sums;        /* pages have checksums (session/db_sums.h); an older version is copied before a step */
};

struct hearth_db {
    pthread_mutex_t mutex;
    const struct hearth_db_kind *kind;
    const char *path; /* borrowed; NULL: in memory */
    int busy_ms;
    const struct hearth_seal *seal; /* borrowed; rows are closed with it (session/sealed_row.h); NULL: not encrypted */
    sqlite3 *handle;                /* NULL: closed */
    sqlite3_stmt *statements[HEARTH_DB_STATEMENTS_MAX];
    struct ZSTD_CCtx_s *pack; /* for packing rows (store_blob.c); NULL: not needed so far */
    struct ZSTD_DCtx_s *unpack;
    int code;               /* of the last failure; reset by the user */
    int64_t now_us, age_us; /* the user's: when its transaction began, by the wall clock and by the store's own time */
};

/* A closed connection. */
void hearth_db_init(struct hearth_db *db, const struct hearth_db_kind *kind, const char *path, int busy_ms,
                    const struct hearth_seal *seal);
void hearth_db_finish(struct hearth_db *db);
/* Opens it with its statements. The file is created where it is missing, for this user only; an older version is
 * brought up to date, each step in a transaction of its own. A code, also in `code`; on failure `reason` holds one line
 * and nothing is open. */
int hearth_db_open(struct hearth_db *db, struct hearth_errmsg *reason);
void hearth_db_close(struct hearth_db *db); /* nothing when it is closed */
/* True when the file at the path is another one by now, or none. */
bool hearth_db_has_moved(const struct hearth_db *db);

/* ---- codes ---- */

const char *hearth_db_text(int code);
/* True when memory was refused, to SQLite or to its layer for files. */
bool hearth_db_is_nomem(int code);
/* True when the file itself is at fault. */
bool hearth_db_is_damage(const struct hearth_db_kind *kind, int code);
/* Remembers a code and returns NOMEM or IO. */
int hearth_db_fail(struct hearth_db *db, int code);

/* ---- statements ----
 * By their number in the kind. Arguments by letter: d a digest's address, z likewise but zero is NULL, i an int64_t,
 * n likewise but 0 is NULL, b a buffer's address. What is pointed to stays until the statement is reset. */

/* Binds and steps. 1: there is a row, and the statement is to be reset; 0: none; or an error. */
int hearth_db_query(struct hearth_db *db, int which, const char *types, ...);
/* The next row, in the same way. */
int hearth_db_next(struct hearth_db *db, int which);
void hearth_db_reset(struct hearth_db *db, int which);
/* For a statement whose rows do not matter. */
int hearth_db_run(struct hearth_db *db, int which, const char *types, ...);
/* The first column of the first row. 1, 0 (none; *out is 0) or an error. */
int hearth_db_query_number(struct hearth_db *db, int which, int64_t *out, const char *types, ...);
/* The digest in a column of a row; zero for NULL, and for what is none. */
struct hearth_digest hearth_db_column_digest(sqlite3_stmt *statement, int index);

/* SQL that is no statement of the kind; *out is the first number that it gives. */
int hearth_db_exec(struct hearth_db *db, const char *sql);
int hearth_db_number(struct hearth_db *db, const char *sql, int64_t *out);

/* Ends what BEGIN began: commits when `err` is OK, else rolls back. Returns the first error. */
int hearth_db_end(struct hearth_db *db, int err);

/* ---- files ---- */

/* Renames a file that is at fault to PATH.bad-<time>, after another look at it; logs. False: that failed. */
bool hearth_db_quarantine(const struct hearth_db_kind *kind, const char *path);
/* Copies an open database into a file, while others use it. Unless it may `replace` what is there, that is an error.
 * Returns a code. */
int hearth_db_copy(sqlite3 *from, const char *path, bool replace, struct hearth_errmsg *reason);
/* Turns a database that no connection uses into one file without a log, which can be carried about. */
int hearth_db_part_from_log(const char *path);

#endif
