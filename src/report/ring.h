/* The last requests, in memory: a ring bounded in entries and in bytes, the oldest go first.
 *
 * An entry is a report as JSON (report.h), as it is told, and what is asked for when it is looked for. Where there is a
 * database the journal (journal.h) takes fresh entries out of the ring, which is so its queue, too. Threads: any. */
#ifndef HEARTH_REPORT_RING_H
#define HEARTH_REPORT_RING_H

#include "base/digest.h"
#include "report/report.h"

struct hearth_ring;

#define HEARTH_RING_BYTES ((size_t)8 << 20) /* of all entries together */

/* `entries` > 0. NULL: out of memory. */
struct hearth_ring *hearth_ring_create(size_t entries);
void hearth_ring_destroy(struct hearth_ring *ring);

/* Adds a request of an owner (the digest that its state is kept under). `texts`: the texts of the divergence are kept.
 * False: out of memory, and nothing is kept. */
bool hearth_ring_add(struct hearth_ring *ring, const struct hearth_report *report, struct hearth_digest owner,
                     bool texts);

/* Drops what is told of a session, or of a turn (`session` NULL): it was deleted. NULL is allowed. */
void hearth_ring_forget(struct hearth_ring *ring, struct hearth_digest owner, const char *session,
                        struct hearth_digest turn);

/* Which entries are wanted; zeroed: all. */
struct hearth_ring_filter {
    const struct hearth_digest *owner;          /* NULL: everybody's */
    const char *session, *key, *client, *trace; /* NULL: any */
    int64_t slow_us; /* > 0: those whose client waited at least so long for the first token */
    size_t limit;    /* 0: all */
    uint64_t after;  /* those only that were added behind this number */
};

/* The number of the newest. */
uint64_t hearth_ring_added(struct hearth_ring *ring);
/* Appends a JSON array of reports, the newest first, without the texts of divergences. They are copied as they are
 * kept: nothing is parsed. False: out of memory. */
bool hearth_ring_list(struct hearth_ring *ring, const struct hearth_ring_filter *filter, struct hearth_buf *out);
/* What each client lost with the wanted requests (waste.h): at most `clients` of them. NULL: out of memory. */
json_t *hearth_ring_waste(struct hearth_ring *ring, const struct hearth_ring_filter *filter, size_t clients);
/* One report with its texts, of this owner (NULL: any). *out = NULL: it is not there. False: out of memory. */
bool hearth_ring_find(struct hearth_ring *ring, const char *id, const struct hearth_digest *owner, json_t **out);

/* ---- for the journal ---- */

/* An entry that is to be stored: copies. */
struct hearth_ring_fresh {
    uint64_t number;
    struct hearth_digest owner, turn;
    int64_t at_us;
    char *id, *session, *listed, *divergence; /* the second and the last may be NULL */
};

enum hearth_ring_mark {
    HEARTH_RING_STORED,
    HEARTH_RING_LOOSE,  /* it does not belong into the database */
    HEARTH_RING_FAILED, /* it is fresh again */
};

/* Copies at most so many entries that were not taken before, the oldest first, and returns how many. Each is the
 * caller's to finish and to mark. */
size_t hearth_ring_take_fresh(struct hearth_ring *ring, struct hearth_ring_fresh *out, size_t most);
void hearth_ring_fresh_finish(struct hearth_ring_fresh *fresh);
void hearth_ring_mark(struct hearth_ring *ring, uint64_t number, enum hearth_ring_mark mark);
/* Waits for wake() (which ends every later wait at once), `for_fresh` also for a fresh entry, and at most so long. */
void hearth_ring_wait(struct hearth_ring *ring, bool for_fresh, int64_t timeout_us);
void hearth_ring_wake(struct hearth_ring *ring);
/* Adds a stored entry as it was taken. What cannot be read is left out. */
void hearth_ring_load(struct hearth_ring *ring, const char *listed, const char *divergence, struct hearth_digest owner,
                      struct hearth_digest turn);
/* Drops the stored entries that are there no longer. */
void hearth_ring_drop_deleted(struct hearth_ring *ring, bool (*is_there)(const void *user, const char *id),
                              const void *user);

#endif
