/* Files of databases as they stand on the disk, told without a connection: a database, and the log beside it
 * (PATH-wal). SQLite takes the first frame of a log that does not verify for its end, which it is after a crash. When
 * it is a bit that has flipped, all that was committed behind it would be gone without a word: conversations that are
 * shorter than they were. */
#ifndef HEARTH_SESSION_DB_FILE_H
#define HEARTH_SESSION_DB_FILE_H

#include "base/err.h"
#include "session/db.h"

#include <sqlite3.h>
#include <sys/types.h>

/* The bytes of a database file as they are. They are not read through a second descriptor, because closing
 * that would end the locks that this process's connections have on the file. Threads: one at a time. */
struct hearth_db_raw {
    sqlite3_file *file;
    const char *name;
};
/* 0, or -1 with errno: it is missing, not a regular file, or cannot be read. */
int hearth_db_raw_open(const char *path, struct hearth_db_raw *raw);
void hearth_db_raw_close(struct hearth_db_raw *raw);
/* Bytes read, fewer than `len` at the end of the file; -1: an error. */
ssize_t hearth_db_raw_read(const struct hearth_db_raw *raw, void *bytes, size_t len, uint64_t at);

enum hearth_db_file {
    HEARTH_DB_FILE_NONE,
    HEARTH_DB_FILE_CLOSED, /* it cannot be read */
    HEARTH_DB_FILE_EMPTY,
    HEARTH_DB_FILE_OURS, /* it was begun as a database of this kind, whatever became of it */
    HEARTH_DB_FILE_OTHER,
};
enum hearth_db_file hearth_db_probe(const struct hearth_db_kind *kind, const char *path);
/* Checks that PATH is free or a file of this kind that can be opened, and that every file beside it (log, journal,
 * shared memory) belongs to it. Any other file is refused and stays as it is: a code, and `reason` where the code
 * (HEARTH_DB_ALIEN) does not say it all. */
int hearth_db_check_file(const struct hearth_db_kind *kind, const char *path, struct hearth_errmsg *reason);
/* The same, and makes an empty file where there is none; only this user can read it then. */
int hearth_db_make_file(const struct hearth_db_kind *kind, const char *path, struct hearth_errmsg *reason);

/* ---- the log ---- */

enum { HEARTH_DB_LOG_HEAD = 32, HEARTH_DB_LOG_FRAME = 24, HEARTH_DB_PAGE_MIN = 512, HEARTH_DB_PAGE_MAX = 65536 };

/* Numbers in SQLite's files. */
uint32_t hearth_db_big32(const uint8_t *at);
/* Opens PATH and suffix (a log, a journal) for reading, never through a link, without waiting. Less than 0: errno. The
 * caller closes it; never of the database or its shared memory, since a close would end their locks. */
int hearth_db_open_beside(const char *path, const char *suffix);
/* Whether a log's head verifies. */
bool hearth_db_log_head_is_good(const uint8_t head[HEARTH_DB_LOG_HEAD]);
/* True: transactions were committed behind a place that does not verify, or the head that all depends on does not.
 * False, too, where there is no log. Others may write meanwhile. */
bool hearth_db_log_is_damaged(const char *path);

#endif
