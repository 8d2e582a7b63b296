/* The last requests on disk: a thread that writes new entries of the ring (ring.h) into the session database, so that a
 * restarted server has them.
 *
 * A stored request is deleted with its session or its turn: the database does that, and the ring follows. Threads:
 * create and destroy by the owner. */
#ifndef HEARTH_REPORT_JOURNAL_H
#define HEARTH_REPORT_JOURNAL_H

#include "report/ring.h"
#include "session/store.h"

struct hearth_journal;

/* Fills the ring with the stored requests, and starts the thread. Both are borrowed. `keep`: most requests; `texts`:
 * store the texts around the places where prompts parted. NULL: out of memory, or no thread. */
struct hearth_journal *hearth_journal_create(struct hearth_session_store *store, struct hearth_ring *ring, size_t keep,
                                             bool texts);
/* Says that something was deleted that the ring may still have. Any thread; NULL is allowed. */
void hearth_journal_deleted(struct hearth_journal *journal);
/* Writes what is left. NULL is allowed. */
void hearth_journal_destroy(struct hearth_journal *journal);

#endif
