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
    uint64_t limit_bytes;           /* what was unused for longest goes when the database is larger */
};

/* Opens or begins the database; where that fails it is tried again behind. Errors: NOMEM. */
int hearth_archive_create(const struct hearth_archive_params *params, struct hearth_archive **out);
/* Writes what is queued, if it can be written, and closes. NULL is allowed. */
void hearth_archive_destroy(struct hearth_archive *archive);

/* ---- rows ---- */

enum hearth_archive_kind { HEARTH_ARCHIVE_NODE, HEARTH_ARCHIVE_REPLY, HEARTH_ARCHIVE_RECORD };

struct hearth_archive_row {
    enum hearth_archive_kind kind;
    bool newest; /* a reply that is put: the newest of its node, even when it is there already */
    bool gone;   /* put: it is deleted, by its key: a reply, or a node that nothing hangs on with all that it has */
    struct hearth_digest key, parent;
    struct hearth_digest
        other;    /* of a node: the reply that it is a print of, or zero; of a record: what it is found by */
    uint64_t len; /* of a node: bytes of its text */
    struct hearth_buf body;
};

void hearth_archive_row_finish(struct hearth_archive_row *row);

/* Replies of one node at most; the oldest go. */
#define HEARTH_ARCHIVE_REPLIES_MAX 16

/* What is asked for; rows come newest first. Those marked * come without a body. */
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

/* Fills at most `max` rows, which are the caller's to finish, and returns how many. */
size_t hearth_archive_read(struct hearth_archive *archive, enum hearth_archive_query query, struct hearth_digest key,
                           struct hearth_archive_row *rows, size_t max);

/* Queues rows, each after those it hangs on; takes their bodies over. False: no room, dropped. */
bool hearth_archive_put(struct hearth_archive *archive, struct hearth_archive_row *rows, size_t count);
/* False while put would drop a row: nothing needs to be prepared for it then. */
bool hearth_archive_has_room(struct hearth_archive *archive);
/* Never 0. */
uint64_t hearth_archive_generation(struct hearth_archive *archive);
/* Begins a new generation: something could not be put. */
void hearth_archive_begin_generation(struct hearth_archive *archive);

/* Waits until what was put before is on disk. False: it failed, or the time is over. */
bool hearth_archive_flush(struct hearth_archive *archive, int64_t timeout_us);

/* Whether a file is an archive's. */
bool hearth_archive_is(const char *path);
/* Puts all rows of an archive in a file into another archive, which may have some of them. `count`: how many are there
 * now. Errors: IO (they cannot be written), NOMEM; some may be there then. Nothing else may put meanwhile. */
int hearth_archive_copy(struct hearth_archive *from, struct hearth_archive *to, uint64_t *count);

struct hearth_archive_stats {
    uint64_t written; /* rows on disk, since the start */
    uint64_t dropped; /* rows that the queue had no room for, or without the row that they hang on */
    uint64_t evicted; /* nodes, for the limit */
    uint64_t damaged; /* rows that failed their check */
    uint64_t bytes;   /* of the database, what is free in it left out */
    size_t queued_bytes;
    bool failing; /* it cannot be read or written now */
};
void hearth_archive_stats(struct hearth_archive *archive, struct hearth_archive_stats *stats);

#endif
