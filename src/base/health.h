/* What is wrong with this process while it serves: conditions that the rooms raise and clear, and that /health and
 * /metrics tell. A condition means that something the user may count on does not work now (state that does not
 * reach the disk, conversations that are not kept), though requests are answered. */
#ifndef HEARTH_BASE_HEALTH_H
#define HEARTH_BASE_HEALTH_H

#include <stdbool.h>
#include <stddef.h>

/* Conditions: constant, name in /health and /metrics, help. */
#define HEARTH_HEALTH_TABLE(X)                                                                          \
    X(KV_DIR, kv_dir, "The cache directory cannot be used")                                             \
    X(KV_DISK, kv_disk, "State does not reach the disk: it is full, or its budget is below one page")   \
    X(KV_REMOTE, kv_remote, "The store that boxes share cannot be used, or takes no new state")         \
    X(SESSION_DB, session_db, "Responses and conversations are not kept on disk, or not all of them")   \
    X(SESSION_DISK, session_disk, "The session database cannot be written, or its disk is nearly full") \
    X(SESSION_SHARED, session_shared, "Another process uses the session database")                      \
    X(CLOCK, clock, "The clock has jumped; nothing is deleted by age until it can be trusted")          \
    X(PREPARATION, preparation, "The preparation of a prompt takes far longer than it may")             \
    X(CONFINEMENT, confinement, "The process is not confined as it was told to be")

enum hearth_health_condition {
#define X(constant, name, help) HEARTH_HEALTH_##constant,
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

/* Name and help of a condition. */
const char *hearth_health_name(enum hearth_health_condition condition);
const char *hearth_health_help(enum hearth_health_condition condition);

#endif
