/* Conditions of the process, one slot each, under one mutex: raised seldom, read by /health and /metrics.
 *
 * Like the log, the table belongs to the process: the rooms that raise conditions need not know the one that reports
 * them. */
#include "base/health.h"

#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 512 };

static struct {
    pthread_mutex_t mutex;
    struct {
        bool raised;
        char message[MESSAGE_BYTES];
    } slots[HEARTH_HEALTH_CONDITIONS];
} health = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static const char *const names[] = {
#define X(constant, name) #name,
    HEARTH_HEALTH_TABLE(X)
#undef X
};

const char *hearth_health_name(enum hearth_health_condition condition) {
    return names[condition];
}

void hearth_health_raise(enum hearth_health_condition condition, const char *format, ...) {
    char message[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    pthread_mutex_lock(&health.mutex);
    const bool is_new = !health.slots[condition].raised || strcmp(health.slots[condition].message, message) != 0;
    health.slots[condition].raised = true;
    memcpy(health.slots[condition].message, message, sizeof message);
    pthread_mutex_unlock(&health.mutex);
    if (is_new) {
        hearth_log(HEARTH_LOG_WARN, "%s", message);
    }
}

void hearth_health_clear(enum hearth_health_condition condition) {
    pthread_mutex_lock(&health.mutex);
    const bool was_raised = health.slots[condition].raised;
    health.slots[condition].raised = false;
    pthread_mutex_unlock(&health.mutex);
    if (was_raised) {
        hearth_log(HEARTH_LOG_INFO, "health: %s is over", names[condition]);
    }
}

bool hearth_health_raised(enum hearth_health_condition condition, char *message, size_t size) {
    pthread_mutex_lock(&health.mutex);
    const bool raised = health.slots[condition].raised;
    if (size > 0) {
        (void)snprintf(message, size, "%s", raised ? health.slots[condition].message : "");
    }
    pthread_mutex_unlock(&health.mutex);
    return raised;
}
