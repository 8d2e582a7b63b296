/* A connection to a database of this room, of which every version is known: an SQLite file (session/db_sqlite.h), or
 * whatever else a driver speaks to. Archive (session/archive.h) and store (session/store.h) open, ask and write by it
 * alone.
 *
 * Codes are the driver's and those below. Statements and transactions return errors of base/err.h; `code` then says
 * what the driver said. Threads: one at a time; `mutex` is there for the users of a connection and is not touched
 * here. */
#ifndef HEARTH_SESSION_DB_H
#define HEARTH_SESSION_DB_H

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/seal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Codes beside SQLite's, of which 0 is success: X(name, code, text). */
#define HEARTH_DB_CODE_TABLE(X)                                             \
    X(ALIEN, 0x1000, "it is no database of hearth's")                       \
    X(NEWER, 0x1001, "it is of a newer version of hearth")                  \
    X(LOST, 0x2000, "the database server cannot be reached")                \
    X(SLOW, 0x2001, "the database server did not answer in time")           \
    X(NO_ROOM, 0x2002, "the database server's disk is full")                \
    X(READ_ONLY, 0x2003, "the database cannot be written")                  \
    X(REFUSED, 0x2004, "the database server refuses this user or database") \
    X(CONFLICT, 0x2005, "another transaction was faster")                   \
    X(NO_MEMORY, 0x2006, "out of memory")                                   \
    X(OTHER, 0x2007, "the database server reports an error")

enum hearth_db_code {
    HEARTH_DB_OK = 0,
#define X(name, code, text) HEARTH_DB_##name = (code),
    HEARTH_DB_CODE_TABLE(X)
#undef X
};

/* A macro's number as SQL text. */
#define HEARTH_DB_TEXT(x) HEARTH_DB_TEXT_(x)
#define HEARTH_DB_TEXT_(x) #x

enum { HEARTH_DB_STATEMENTS_MAX = 80, HEARTH_DB_ARGS_MAX = 16 };

/* A kind of database: its name, its tables and its statements. */
struct hearth_db_kind {
    const char *label;        /* begins its log lines */
    int application;          /* its application_id */
    const char *const *steps; /* SQL; steps[v] brings version v (user_version) to v + 1; 0 is an empty file */
    int version;              /* of this hearth; as many steps as there are */
    const char *const *statements;
    size_t statement_count;
    bool replaces_others; /* its content may be lost: a database that is alien, newer or damaged is moved away */
    /* For a server; NULL and 0 for a kind that is only in files. */
    const char *schema;                   /* the schema that its tables are in */
    const char *const *server_steps;      /* as `steps`, in a server's words */
    int server_version;                   /* as many as there are */
    const char *const *server_statements; /* by number; NULL: it is the same as in a file */
    bool has_sums; /* pages have checksums (session/db_sums.h); an older version is copied before a step is taken */
};

struct hearth_db;
struct hearth_db_value;

/* What a driver does. Codes are as above; functions that return "1, 0 or an error" are like hearth_db_query(). */
struct hearth_db_driver {
    int (*open)(struct hearth_db *db, struct hearth_errmsg *reason);
    void (*close)(struct hearth_db *db);  /* does nothing if it is closed */
    void (*finish)(struct hearth_db *db); /* closes it, and frees what outlives connections; may be NULL */
    bool (*is_open)(const struct hearth_db *db);
    bool (*has_moved)(const struct hearth_db *db);
    int (*query)(struct hearth_db *db, int which, const struct hearth_db_value *args, size_t count);
    int (*next)(struct hearth_db *db, int which);
    void (*reset)(struct hearth_db *db, int which);
    struct hearth_db_value (*column)(const struct hearth_db *db, int which, int column);
    int (*exec)(struct hearth_db *db, const char *sql);
    int (*read_number)(struct hearth_db *db, const char *sql, int64_t *out);
    int (*begin)(struct hearth_db *db, bool write);
    int (*end)(struct hearth_db *db, bool commit);
    bool (*is_in_transaction)(const struct hearth_db *db);
    int64_t (*changes)(const struct hearth_db *db);
};

struct hearth_db {
    pthread_mutex_t mutex;
    const struct hearth_db_kind *kind;
    const struct hearth_db_driver *driver;
    const char *path; /* borrowed; NULL: in memory */
    int busy_ms;
    const struct hearth_seal *seal; /* borrowed; seals rows (session/sealed_row.h); NULL: not encrypted */
    struct sqlite3 *handle;         /* SQLite's; NULL: closed */
    struct sqlite3_stmt *statements[HEARTH_DB_STATEMENTS_MAX];
    struct hearth_db_server *pg; /* PostgreSQL's (session/db_pg.c) */
    struct ZSTD_CCtx_s *pack;    /* for packing rows (store_blob.c); NULL: not needed so far */
    struct ZSTD_DCtx_s *unpack;
    _Atomic int64_t asked_us; /* since when a server owes an answer, by hearth_clock_us(); 0: it owes none. Any thread
                                 may read it */
    uint64_t generation; /* of a server: counts connections; locks and transactions of an earlier connection are gone */
    struct hearth_errmsg said; /* a server's message on the last failure */
    int code;                  /* of the last failure; the user resets it */
    int64_t now_us, age_us; /* the user's: when its transaction began, by the wall clock and by the store's own time */
};

/* Prepares a closed connection. */
void hearth_db_init(struct hearth_db *db, const struct hearth_db_driver *driver, const struct hearth_db_kind *kind,
                    const char *path, int busy_ms, const struct hearth_seal *seal);
void hearth_db_finish(struct hearth_db *db);
/* Opens the connection and its statements. A missing database is created; an older version is brought up to date, each
 * step in its own transaction. Returns a code, which is also in `code`; on failure `reason` has one line and nothing is
 * open. */
int hearth_db_open(struct hearth_db *db, struct hearth_errmsg *reason);
void hearth_db_close(struct hearth_db *db); /* does nothing if it is closed */
bool hearth_db_is_open(const struct hearth_db *db);
/* Whether the path no longer names the open database, or the connection is lost. */
bool hearth_db_has_moved(const struct hearth_db *db);

/* ---- codes ---- */

const char *hearth_db_text(int code);
/* The reason of the last failure, in the server's words if there are any. */
const char *hearth_db_reason(const struct hearth_db *db);
/* Whether SQLite or its file layer was refused memory. */
bool hearth_db_is_nomem(int code);
/* Whether the file itself is at fault. */
bool hearth_db_is_damage(const struct hearth_db_kind *kind, int code);
/* Whether writing failed: the disk is full, fails, or is read-only. */
bool hearth_db_is_unwritable(int code);
/* Whether other processes kept it busy. */
bool hearth_db_is_busy(int code);
/* Whether a server is in trouble that may pass; requests that need the database are told to come back. */
bool hearth_db_is_outage(int code);
/* Whether that passes by itself; not so if an operator has to act, for example on a wrong password. */
bool hearth_db_may_pass(int code);
/* Notes a code, and returns NOMEM, STORE or IO. */
int hearth_db_fail(struct hearth_db *db, int code);
int hearth_db_fail_nomem(struct hearth_db *db);

/* ---- statements ----
 * By their number in the kind. Arguments by letter: d a digest's address, z likewise but zero is NULL, i an int64_t,
 * n likewise but 0 is NULL, b a buffer's address, t text. What is pointed to stays until the statement is reset. A
 * statement is always given the same types. */

struct hearth_db_value {
    enum { HEARTH_DB_ARG_NUMBER, HEARTH_DB_ARG_BYTES, HEARTH_DB_ARG_TEXT } type;
    bool is_null;
    int64_t number;
    const void *bytes; /* of an argument never NULL unless is_null; text has a NUL behind it */
    size_t len;
};

/* Binds and runs a statement. 1: there is a row, and the statement must be reset; 0: none; or an error. */
int hearth_db_query(struct hearth_db *db, int which, const char *types, ...);
/* Goes to the next row; returns the same. */
int hearth_db_next(struct hearth_db *db, int which);
void hearth_db_reset(struct hearth_db *db, int which);
/* Runs a statement and ignores its rows. */
int hearth_db_run(struct hearth_db *db, int which, const char *types, ...);
/* The first column of the first row. 1, 0 (none; *out is 0) or an error. */
int hearth_db_query_number(struct hearth_db *db, int which, int64_t *out, const char *types, ...);

/* Columns of the statement's present row; valid until the next row or the reset. */
bool hearth_db_column_is_null(const struct hearth_db *db, int which, int column);
int64_t hearth_db_column_number(const struct hearth_db *db, int which, int column);                 /* 0 for NULL */
const void *hearth_db_column_bytes(const struct hearth_db *db, int which, int column, size_t *len); /* NULL: none */
const char *hearth_db_column_text(const struct hearth_db *db, int which, int column);               /* "" for NULL */
/* Whether a column had no bytes because memory was refused. */
bool hearth_db_ran_out(const struct hearth_db *db);
/* The digest in a column; zero for NULL or anything else. */
struct hearth_digest hearth_db_column_digest(const struct hearth_db *db, int which, int column);

/* Runs SQL that is no statement of the kind; *out is the first number in its result. */
int hearth_db_exec(struct hearth_db *db, const char *sql);
int hearth_db_number(struct hearth_db *db, const char *sql, int64_t *out);

/* How long this thread has waited for databases so far, and for a connection. */
int64_t hearth_db_waited_us(void);
/* Counts the time since then as such a wait. */
void hearth_db_note_wait(int64_t since_us);
/* Locks a mutex that is also held during queries; the wait counts, too. */
void hearth_db_lock(pthread_mutex_t *mutex);

/* ---- transactions ---- */

/* Begins a transaction. Everything read until its end is from one moment; with `write` no other transaction writes. */
int hearth_db_begin(struct hearth_db *db, bool write);
/* Commits if `err` is OK, else rolls back. Returns the first error. */
int hearth_db_end(struct hearth_db *db, int err);
/* Whether a rollback has failed. */
bool hearth_db_is_in_transaction(const struct hearth_db *db);
/* Rows changed since the connection was opened. */
int64_t hearth_db_changes(const struct hearth_db *db);

#endif
