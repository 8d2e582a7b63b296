/* Passes llama.cpp's log to hearth's, line by line.
 *
 * What llama.cpp calls information and warnings is debugging output for a server. Its errors become warnings,
 * because the call that caused them fails, and hearth reports this itself.
 *
 * llama.cpp's C API tells only that something failed; the reason is in the log. So the last error of each thread is
 * kept for the message that the caller gets. */
#include "engine/llama_engine.h"

#include "base/log.h"

#include <pthread.h>
#include <string.h>

#define LINE_MAX_BYTES 1024

static _Thread_local char line[LINE_MAX_BYTES];
static _Thread_local size_t line_len;
static _Thread_local enum ggml_log_level line_level;
static _Thread_local char last_error[LINE_MAX_BYTES];
static _Thread_local bool no_cells;

static void finish_line(void) {
    line[line_len] = '\0';
    if (line_level == GGML_LOG_LEVEL_ERROR) {
        /* Without the C++ function's name in front; the first error is the cause, later ones follow from it. */
        const char *colon = strstr(line, ": ");
        const char *text = colon != NULL && memchr(line, ' ', (size_t)(colon - line)) == NULL ? colon + 2 : line;
        if (last_error[0] == '\0') {
            memcpy(last_error, text, strlen(text) + 1);
        }
    }
    /* These two come from find_slot's callers in llama-kv-cache.cpp and llama-memory-recurrent.cpp. */
    if (strstr(line, "available cells in kv cache") != NULL || strstr(line, "not enough cells in kv cache") != NULL) {
        no_cells = true;
    }
    if (line_len > 0) {
        hearth_log(line_level == GGML_LOG_LEVEL_ERROR ? HEARTH_LOG_WARN : HEARTH_LOG_DEBUG, "llama.cpp: %s", line);
    }
    line_len = 0;
}

static void log_callback(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level != GGML_LOG_LEVEL_CONT) {
        line_level = level;
    }
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            finish_line();
        } else if (line_len < LINE_MAX_BYTES - 1) {
            line[line_len++] = *text;
        }
    }
}

static void install(void) {
    llama_log_set(log_callback, NULL);
}

void hearth_llama_log_install(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install);
}

const char *hearth_llama_log_error(void) {
    return last_error;
}

void hearth_llama_log_reset(void) {
    last_error[0] = '\0';
    no_cells = false;
}

bool hearth_llama_log_no_cells(void) {
    return no_cells;
}
