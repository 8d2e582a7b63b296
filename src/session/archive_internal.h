/* Inside the archive: one connection to the database. archive.c queues, archive_db.c opens, archive_rows.c reads and
 * writes. */
#ifndef HEARTH_SESSION_ARCHIVE_INTERNAL_H
#define HEARTH_SESSION_ARCHIVE_INTERNAL_H

#include "session/archive.h"

#include <sqlite3.h>

/* application_id of the database ("hrth"). */
#define HEARTH_ARCHIVE_APPLICATION 0x68727468

/* After the queries of hearth_archive_read(). */
enum archive_statement {
    PUT_NODE = HEARTH_ARCHIVE_QUERIES,
    PUT_REPLY,
    PUT_NEWEST_REPLY,
    PUT_RECORD,
    TRIM_REPLIES,
    TOUCH_NODE,
    HAS_NODE,
    HAS_CHILD,
    USED_AND_PARENT,
    OLDEST_LEAF,
    DELETE_NODE,
    DELETE_REPLIES,
    DELETE_REPLY,
    DELETE_RECORD,
    PAGES_USED,
    STATEMENTS
};

struct archive_db {
    sqlite3 *handle; /* NULL: closed */
    sqlite3_stmt *statements[STATEMENTS];
};

/* A queued row. */
struct archive_item {
    struct archive_item *next;
    struct hearth_archive_row row;
    bool closed;  /* its body is as it will stand in the database */
    size_t bytes; /* memory that it is counted with */
};

/* ---- archive_db.c: result codes are SQLite's (session/db.h) ---- */

/* Opens a connection; the database is created where it is missing. On failure `why` holds one line, the connection is
 * closed. */
int hearth_archive_db_open(const char *path, int busy_ms, struct archive_db *db, struct hearth_errmsg *why);
void hearth_archive_db_close(struct archive_db *db);
/* True when the file at the path is another one by now, or none. */
bool hearth_archive_db_has_moved(const struct archive_db *db);
/* True for a code that says the file itself is at fault. */
bool hearth_archive_db_is_bad(int rc);
/* Moves the database out of the way if it is at fault, which is looked into; logs. False: that failed. */
bool hearth_archive_db_quarantine(const char *path);

/* ---- archive_rows.c ---- */

/* Reads rows; bodies that fail their check are left out and counted. */
int hearth_archive_rows_read(struct archive_db *db, const struct hearth_seal *seal, enum hearth_archive_query query,
                             struct hearth_digest key, struct hearth_archive_row *rows, size_t max, size_t *count,
                             uint64_t *damaged);
/* Writes items in one transaction. *lost counts rows left out since what they hang on is not there. */
int hearth_archive_rows_write(struct archive_db *db, const struct hearth_seal *seal, struct archive_item *items,
                              uint64_t *lost);
/* Bytes of pages in use. */
int hearth_archive_rows_bytes(struct archive_db *db, uint64_t *bytes);
/* Deletes what was unused for longest, leaves first, until no more than `keep_bytes` are in use. */
int hearth_archive_rows_evict(struct archive_db *db, uint64_t keep_bytes, uint64_t *evicted);

#endif
