/* The last requests, in memory: a ring bounded in entries and in bytes; the oldest are dropped first.
 *
 * An entry is a report as JSON (report.h), in the form in which it is printed, and the members by which it is searched.
 * If there is a database, the journal (journal.h) takes fresh entries out of the ring, which so is its queue, too.
 * Threads: any. */
#ifndef HEARTH_REPORT_RING_H
#define HEARTH_REPORT_RING_H

#include "base/digest.h"
#include "report/report.h"

struct hearth_ring;

#define HEARTH_RING_BYTES ((size_t)8 << 20) /* of all entries together */

/* `entries` > 0. NULL: out of memory. */
struct hearth_ring *hearth_ring_create(size_t entries);
void hearth_ring_destroy(struct hearth_ring *ring);

/* Adds a request of an owner (the digest under which its state is kept). `texts`: keep the texts of the divergence.
 * False: out of memory, and nothing is kept. */
bool hearth_ring_add(struct hearth_ring *ring, const struct hearth_report *report, struct hearth_digest owner,
                     bool texts);

/* Drops the reports of a session, or of a turn (`session` NULL), that was deleted. NULL is allowed. */
void hearth_ring_forget(struct hearth_ring *ring, struct hearth_digest owner, const char *session,
                        struct hearth_digest turn);

/* Which entries are wanted; zeroed: all. */
struct hearth_ring_filter {
    const struct hearth_digest *owner;          /* NULL: of all owners */
    const char *session, *key, *client, *trace; /* NULL: any */
    int64_t slow_us;                            /* > 0: requests whose first token took at least so long */
    size_t limit;                               /* 0: all */
    uint64_t after;                             /* entries that were added after this number */
};

/* The number of the newest. */
uint64_t hearth_ring_added(struct hearth_ring *ring);
/* Appends a JSON array of reports, the newest first, without the texts of divergences. The texts of entries are copied;
 * nothing is parsed. False: out of memory. */
bool hearth_ring_list(struct hearth_ring *ring, const struct hearth_ring_filter *filter, struct hearth_buf *out);
/* What each client lost in the requests of the filter (waste.h): at most `clients` of them. NULL: out of memory. */
json_t *hearth_ring_waste(struct hearth_ring *ring, const struct hearth_ring_filter *filter, size_t clients);
/* One report with its texts, of this owner (NULL: any). *out = NULL: it is not there. False: out of memory. */
bool hearth_ring_find(struct hearth_ring *ring, const char *id, const struct hearth_digest *owner, json_t **out);

/* ---- for the journal ---- */

/* A copy of an entry that is to be stored. */
struct hearth_ring_fresh {
    uint64_t number;
    struct hearth_digest owner, turn;
    int64_t at_us;
    char *id, *session, *listed, *divergence; /* the second and the last may be NULL */
};

/* Whether an entry is in the database: not yet, on its way, it is, or it does not belong there. */
enum hearth_ring_stored { HEARTH_RING_FRESH, HEARTH_RING_TAKEN, HEARTH_RING_STORED, HEARTH_RING_LOOSE };

/* Copies at most `most` entries that were not taken before, the oldest first, and returns how many. The caller finishes
 * and marks each one. */
size_t hearth_ring_take_fresh(struct hearth_ring *ring, struct hearth_ring_fresh *out, size_t most);
void hearth_ring_fresh_finish(struct hearth_ring_fresh *fresh);
void hearth_ring_mark(struct hearth_ring *ring, uint64_t number, enum hearth_ring_stored stored);
/* Waits at most `timeout_us` for wake() (which ends every later wait at once) or, with `for_fresh`, for a fresh entry.
 */
void hearth_ring_wait(struct hearth_ring *ring, bool for_fresh, int64_t timeout_us);
void hearth_ring_wake(struct hearth_ring *ring);
/* Adds a stored entry. One that cannot be parsed is left out. */
void hearth_ring_load(struct hearth_ring *ring, const char *listed, const char *divergence, struct hearth_digest owner,
                      struct hearth_digest turn);
/* Drops the entries that are no longer in the database. */
void hearth_ring_drop_deleted(struct hearth_ring *ring, bool (*is_there)(const void *user, const char *id),
                              const void *user);

#endif
