/* Logging through a sink: the library never prints. */
#ifndef HEARTH_BASE_LOG_H
#define HEARTH_BASE_LOG_H

enum hearth_log_level { HEARTH_LOG_DEBUG, HEARTH_LOG_INFO, HEARTH_LOG_WARN, HEARTH_LOG_ERROR };

/* Receives one complete line without a newline. Any thread. */
typedef void hearth_log_sink(void *user, enum hearth_log_level level, const char *line);

/* Sets the process's sink and the lowest level that reaches it. Call before threads start. NULL: silence (the
 * default). */
void hearth_log_set(hearth_log_sink *sink, void *user, enum hearth_log_level lowest);
enum hearth_log_level hearth_log_lowest(void);
/* Another lowest level. Any thread. */
void hearth_log_set_lowest(enum hearth_log_level lowest);
void hearth_log(enum hearth_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
