/* Databases in files: SQLite. Of a file every version is known, and whose it is. */
#ifndef HEARTH_SESSION_DB_SQLITE_H
#define HEARTH_SESSION_DB_SQLITE_H

#include "session/db.h"

/* The path is a file's, which is created where it is missing, for this user only; NULL: in memory. */
extern const struct hearth_db_driver hearth_db_sqlite;

/* Renames a file that is at fault to PATH.bad-<time>, after another look at it; logs. False: that failed. */
bool hearth_db_quarantine(const struct hearth_db_kind *kind, const char *path);
/* Copies an open database into a file, while others use it. Unless it may `replace` what is there, that is an error.
 * Returns a code. */
int hearth_db_copy(struct sqlite3 *from, const char *path, bool replace, struct hearth_errmsg *reason);
/* Turns a database that no connection uses into one file without a log, which can be carried about. */
int hearth_db_part_from_log(const char *path);
/* Gives pages that are free back to the file system. What fails is tried again with the next one. */
void hearth_db_give_back(struct hearth_db *db);
/* Empties the log into the file; waits for readers for so long. False: the log still holds something. */
bool hearth_db_empty_log(struct hearth_db *db, int wait_ms);

#endif
