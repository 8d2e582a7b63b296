/* Logging: one sink for the process, set before threads start and read without a lock afterwards (the level is
 * atomic).
 *
 * A line is formatted on the stack when it fits and on the heap otherwise. Without memory for that, the part that
 * fits is written. A trailing newline of the message is dropped, since each line ends by itself. */
#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    hearth_log_sink *sink;
    void *user;
    _Atomic enum hearth_log_level lowest;
} logging = {NULL, NULL, HEARTH_LOG_INFO};

void hearth_log_set(hearth_log_sink *sink, void *user, enum hearth_log_level lowest) {
    logging.sink = sink;
    logging.user = user;
    logging.lowest = lowest;
}

void hearth_log_set_lowest(enum hearth_log_level lowest) {
    logging.lowest = lowest;
}

enum hearth_log_level hearth_log_lowest(void) {
    return logging.lowest;
}

void hearth_log(enum hearth_log_level level, const char *format, ...) {
    if (!logging.sink || level < logging.lowest) {
        return;
    }
    char on_stack[1024];
    char *line = on_stack;
    char *on_heap = NULL;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(on_stack, sizeof on_stack, format, args);
    va_end(args);
    if (n < 0) {
        return;
    }
    if ((size_t)n >= sizeof on_stack && (on_heap = malloc((size_t)n + 1))) {
        va_start(args, format);
        (void)vsnprintf(on_heap, (size_t)n + 1, format, args);
        va_end(args);
        line = on_heap;
    }
    size_t len = strlen(line);
    if (len > 0 && line[len - 1] == '\n') {
        line[len - 1] = '\0';
    }
    logging.sink(logging.user, level, line);
    free(on_heap);
}
