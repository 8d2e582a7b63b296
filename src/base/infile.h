/* Small text files that are read as a whole: settings, keys, templates, scripts. */
#ifndef HEARTH_BASE_INFILE_H
#define HEARTH_BASE_INFILE_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Appends the file at `path` and a NUL; it may be a pipe. Errors: IO (it cannot be read, is longer than 64 MiB, or is a
 * pipe that nothing writes into for ten seconds), INVALID (it holds a NUL: it is no text), NOMEM;
 * `msg` holds one line. */
int hearth_infile_read(const char *path, struct hearth_buf *out, struct hearth_errmsg *msg);

/* The next line of a text, cut out of it, without blanks and '\r' around it. NULL at the end; `*number` counts. */
char *hearth_infile_line(char **rest, unsigned *number);

/* True for a line that says nothing: it is empty, or begins with '#'. */
static inline bool hearth_infile_is_silent(const char *line) {
    return *line == '\0' || *line == '#';
}

#endif
