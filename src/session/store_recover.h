/* Saves what can be read of a damaged session database. */
#ifndef HEARTH_SESSION_STORE_RECOVER_H
#define HEARTH_SESSION_STORE_RECOVER_H

#include "session/store.h"

struct hearth_recovery_params {
    const char *from;               /* is only read */
    const char *to;                 /* a new file; it must not be there */
    const struct hearth_seal *seal; /* borrowed; the database's key, or NULL */
};

struct hearth_recovery {
    uint64_t turns, sessions;           /* in the new database */
    uint64_t lost_turns, lost_sessions; /* of which there are traces */
    uint64_t shorter;                   /* sessions that stand at an earlier turn than before */
};

/* Recovers a database. Every turn in the new one is as it was put, with all its ancestors. Errors: IO, INVALID (there
 * is a file at `to`, or nothing of a session database can be read), NOMEM; one clear line in `msg`, and no file at
 * `to`. */
int hearth_session_recover(const struct hearth_recovery_params *params, struct hearth_recovery *out,
                           struct hearth_errmsg *msg);

#endif
