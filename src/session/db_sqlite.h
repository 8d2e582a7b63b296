/* Databases in files: SQLite. Every version of a file's format is known, and which program a file belongs to. */
#ifndef HEARTH_SESSION_DB_SQLITE_H
#define HEARTH_SESSION_DB_SQLITE_H

#include "session/db.h"

/* The path is a file's, which is created where it is missing, for this user only; NULL: in memory. */
extern const struct hearth_db_driver hearth_db_sqlite;

/* Renames a file that is at fault, if a second check confirms it, to PATH.bad-<time>, and logs that. False: it failed.
 */
bool hearth_db_quarantine(const struct hearth_db_kind *kind, const char *path);
/* Copies an open database into a file, while others use it. Unless it may `replace` what is there, that is an error.
 * Returns a code. */
int hearth_db_copy(struct sqlite3 *from, const char *path, bool replace, struct hearth_errmsg *reason);
/* Turns an unused database into one file without a log, which can be copied. */
int hearth_db_part_from_log(const char *path);
/* Gives free pages back to the file system. A failure is made up for by the next call. */
void hearth_db_give_back(struct hearth_db *db);
/* Empties the log into the file, and waits at most `wait_ms` for readers. False: the log is not empty. */
bool hearth_db_empty_log(struct hearth_db *db, int wait_ms);

#endif
