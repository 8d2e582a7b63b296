/* What is wrong with this process while it serves: conditions that the rooms raise and clear, and that /health and
 * /metrics tell. A condition means that something the user may count on does not work now (state that does not
 * reach the disk, conversations that are not kept), though requests are answered. */
#ifndef HEARTH_BASE_HEALTH_H
#define HEARTH_BASE_HEALTH_H

#include <stdbool.h>
#include <stddef.h>

/* Conditions: constant, name in /health and /metrics. */
#define HEARTH_HEALTH_TABLE(X)                                                                       \
    X(KV_DIR, kv_dir)                 /* the cache directory cannot be used */                       \
    X(KV_DISK, kv_disk)               /* state does not reach it: full, or a budget below a page */  \
    X(KV_REMOTE, kv_remote)           /* the store that boxes share is away, or takes nothing new */ \
    X(SESSION_DB, session_db)         /* responses and conversations are not kept, or not all */     \
    X(SESSION_DISK, session_disk)     /* the database cannot be written, or its disk nearly full */  \
    X(SESSION_SHARED, session_shared) /* another process uses the session database */                \
    X(CLOCK, clock)                   /* it has jumped; nothing is deleted by age meanwhile */       \
    X(PREPARATION, preparation)       /* the preparation of a prompt takes far longer than it may */ \
    X(CONFINEMENT, confinement)       /* the process is not confined as it was told to be */

enum hearth_health_condition {
#define X(constant, name) HEARTH_HEALTH_##constant,
    HEARTH_HEALTH_TABLE(X)
#undef X
        HEARTH_HEALTH_CONDITIONS
};

/* Raises a condition, or gives a raised one another message; logs a warning when either is new. One line, for a person:
 * what does not work, why, what to do. Threads: any. */
void hearth_health_raise(enum hearth_health_condition condition, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Ends a condition; logs it when it was raised. Threads: any. */
void hearth_health_clear(enum hearth_health_condition condition);

/* Whether a condition is raised; its message, cut to fit, in `message` (may be NULL when `size` is 0). Threads: any. */
bool hearth_health_raised(enum hearth_health_condition condition, char *message, size_t size);

/* Name of a condition. */
const char *hearth_health_name(enum hearth_health_condition condition);

#endif
