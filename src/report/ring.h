/* The last requests, in memory: a ring bounded in entries and in bytes, the oldest go first.
 *
 * An entry is a report as JSON (report.h), as it is told, and what is asked for when it is looked for. Threads: the
 * caller's, one at a time. */
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

/* Which entries are wanted; zeroed: all. */
struct hearth_ring_filter {
    const struct hearth_digest *owner;          /* NULL: everybody's */
    const char *session, *key, *client, *trace; /* NULL: any */
    int64_t slow_us; /* > 0: those whose client waited at least so long for the first token */
    size_t limit;    /* 0: all */
};

/* Appends a JSON array of reports, the newest first, without the texts of divergences. They are copied as they are
 * kept: nothing is parsed. False: out of memory. */
bool hearth_ring_list(const struct hearth_ring *ring, const struct hearth_ring_filter *filter, struct hearth_buf *out);
/* One report with its texts, of this owner (NULL: any). *out = NULL: it is not there. False: out of memory. */
bool hearth_ring_find(const struct hearth_ring *ring, const char *id, const struct hearth_digest *owner, json_t **out);

#endif
