/* The archive: transcripts in an SQLite database, or on a PostgreSQL server that boxes share, so that they outlive the
 * process.
 *
 * It knows rows, not trees: what a row means is told in transcript_archive.c.
 *
 *     nodes     a stretch of text and its tokens; `parent` is the node before it, zero for a root
 *     replies   a reply to the prompt that ends at node `parent`; `other` is the chain of what was said up to it
 *     records   what was said in the prompt that ends at a node; `other`: what the conversation's next prompt finds it
 * by
 *
 * Rows are found when they are asked for, by indexed queries of a few microseconds; nothing is loaded at the start. So
 * the first request finds what it needs however large the database is, memory holds what is in use, and what another
 * process writes into the same database is found, too.
 *
 * Writing happens behind, on a thread of its own: rows wait for at most a tenth of a second and become one transaction,
 * which a power cut cannot undo. The queue is bounded; what does not fit is dropped and counted. A `generation` counts
 * the events that can take rows away (dropped, evicted, a database moved away): what was written under an earlier one
 * may be gone and should be put again.
 *
 * When the database cannot be read or written, everything is a miss and what is put waits in the queue; one log line
 * says so at the beginning and one at the end, and it is tried again by itself. A database that is damaged or of
 * another version is moved to PATH.bad-<time> and a new one begun.
 *
 * Each row carries a checksum, or with a key is encrypted and authenticated, over everything that it says: SQLite
 * itself would hand on a flipped bit. A row that fails is a miss.
 *
 * Threads: any. Several processes may use one database. */
#ifndef HEARTH_SESSION_ARCHIVE_H
#define HEARTH_SESSION_ARCHIVE_H

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/seal.h"

struct hearth_archive;

struct hearth_archive_params {
    const char *path;               /* its directory exists; or a URL (session/db_pg.h). Copied */
    const struct hearth_seal *seal; /* borrowed; NULL: rows are not encrypted */
    uint64_t limit_bytes;           /* if the database grows beyond it, what was unused for longest is deleted */
};

/* Opens or creates the database; if that fails, the archive's thread tries again. Errors: NOMEM. */
int hearth_archive_create(const struct hearth_archive_params *params, struct hearth_archive **out);
/* Writes the queue, if possible, and closes the database. NULL is allowed. */
void hearth_archive_destroy(struct hearth_archive *archive);

/* ---- rows ---- */

enum hearth_archive_kind { HEARTH_ARCHIVE_NODE, HEARTH_ARCHIVE_REPLY, HEARTH_ARCHIVE_RECORD };

struct hearth_archive_row {
    enum hearth_archive_kind kind;
    bool newest; /* for a reply that is put: it becomes its node's newest, even if it is there already */
    bool gone;   /* for put: delete the row of this key: a reply, or a node without children, with all that it has */
    struct hearth_digest key, parent;
    struct hearth_digest
        other;    /* of a node: the reply of which it is a print, or zero; of a record: the key by which it is found */
    uint64_t len; /* of a node: bytes of its text */
    struct hearth_buf body;
    bool closed; /* archive.c's: the body is in the form that is stored */
};

void hearth_archive_row_finish(struct hearth_archive_row *row);

/* Most replies of one node; the oldest are deleted. */
#define HEARTH_ARCHIVE_REPLIES_MAX 16

/* The queries; rows come newest first. Rows of queries marked * come without a body. */
enum hearth_archive_query {
    HEARTH_ARCHIVE_GET_NODE,
    HEARTH_ARCHIVE_GET_RECORD,
    HEARTH_ARCHIVE_REPLIES,  /* of a node */
    HEARTH_ARCHIVE_SAID,     /* * replies of a chain */
    HEARTH_ARCHIVE_CHILDREN, /* * of a node; in a file, of zero: the roots */
    HEARTH_ARCHIVE_PRINTS,   /* * of a node: those that are prints of a reply */
    HEARTH_ARCHIVE_PAST,     /* * records by `other` */
    HEARTH_ARCHIVE_QUERIES
};

/* Fills at most `max` rows, which the caller finishes. Returns how many; without an archive (NULL) none. What is queued
 * to be deleted is not found any more. */
size_t hearth_archive_read(struct hearth_archive *archive, enum hearth_archive_query query, struct hearth_digest key,
                           struct hearth_archive_row *rows, size_t max);

/* Queues rows, each behind the ones that it hangs on, and takes their bodies. False: the queue is full, and they are
 * dropped. */
bool hearth_archive_put(struct hearth_archive *archive, struct hearth_archive_row *rows, size_t count);
/* Whether put would take a row; if not, nothing needs to be prepared. */
bool hearth_archive_has_room(struct hearth_archive *archive);
/* The present generation; never 0. */
uint64_t hearth_archive_generation(struct hearth_archive *archive);
/* Begins a new generation, because something could not be put. */
void hearth_archive_begin_generation(struct hearth_archive *archive);

/* Waits until everything that was put is on disk. False: that failed, or took too long. */
bool hearth_archive_flush(struct hearth_archive *archive, int64_t timeout_us);

/* Whether a file belongs to an archive. */
bool hearth_archive_is(const char *path);
/* Copies all rows of an archive in a file into another archive, which may have some of them. `count`: how many are
 * there now. Errors: IO (rows cannot be written), NOMEM; some rows may be there then. No other thread may put
 * meanwhile. */
int hearth_archive_copy(struct hearth_archive *from, struct hearth_archive *to, uint64_t *count);

struct hearth_archive_stats {
    uint64_t written; /* rows on disk, since the start */
    uint64_t dropped; /* rows that found no room in the queue, or whose parent is missing */
    uint64_t evicted; /* nodes deleted for the limit */
    uint64_t damaged; /* rows that failed their check */
    uint64_t bytes;   /* size of the database, without its free pages */
    size_t queued_bytes;
    bool failing; /* it cannot be read or written now */
};
void hearth_archive_stats(struct hearth_archive *archive, struct hearth_archive_stats *stats);

#endif
