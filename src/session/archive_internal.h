/* Inside the archive: archive_rows.c has its database, archive.c its connections, its queue and its thread. */
#ifndef HEARTH_SESSION_ARCHIVE_INTERNAL_H
#define HEARTH_SESSION_ARCHIVE_INTERNAL_H

#include "session/archive.h"
#include "session/db.h"

/* ---- archive_rows.c; errors are those of statements (session/db.h) ---- */

extern const struct hearth_db_kind hearth_archive_db_kind;

/* Fills at most `max` rows. Those whose bodies do not verify are left out and counted. */
int hearth_archive_rows_read(struct hearth_db *db, enum hearth_archive_query query, struct hearth_digest key,
                             struct hearth_archive_row *rows, size_t max, size_t *count, uint64_t *damaged);
/* Writes rows, in a transaction. *last, or NULL, is the key of the node that was written last. *lost counts those that
 * are left out because what they hang on is missing. */
int hearth_archive_rows_write(struct hearth_db *db, struct hearth_archive_row *rows, size_t count,
                              const struct hearth_digest **last, uint64_t *lost);
/* Bytes that are in use. */
int hearth_archive_rows_count_bytes(struct hearth_db *db, uint64_t *bytes);
/* Deletes what was unused for longest, leaves first, until no more than `most` bytes are in use. */
int hearth_archive_rows_evict(struct hearth_db *db, uint64_t most, uint64_t *evicted);

#endif
