/* The log beside a database (PATH-wal). SQLite takes the first frame that does not verify for the end of the log, which
 * it is after a crash. When it is a bit that has flipped, all that was committed behind it would be gone without a
 * word: conversations that are shorter than they were. */
#ifndef HEARTH_SESSION_DB_LOG_H
#define HEARTH_SESSION_DB_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum { HEARTH_DB_LOG_HEAD = 32, HEARTH_DB_LOG_FRAME = 24 };

/* Numbers in SQLite's files. */
uint32_t hearth_db_big32(const uint8_t *at);

/* Opens PATH and suffix (a log, a journal) for reading, never through a link, without waiting. Less than 0: errno. The
 * caller closes it; never of the database or its shared memory, whose locks a close would end. */
int hearth_db_open_beside(const char *path, const char *suffix);

/* Whether a log's head verifies. */
bool hearth_db_log_head_is_good(const uint8_t head[HEARTH_DB_LOG_HEAD]);

/* True: transactions were committed behind a place that does not verify, or the head that all depends on does not.
 * False, too, where there is no log. Others may write meanwhile. */
bool hearth_db_log_is_damaged(const char *path);

#endif
