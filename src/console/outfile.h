/* A file that is there whole or not at all: it is written beside its name and renamed. "-" is standard output; what is
 * no plain file (a device, a pipe) is written into. */
#ifndef HEARTH_CONSOLE_OUTFILE_H
#define HEARTH_CONSOLE_OUTFILE_H

#include <stdbool.h>
#include <stddef.h>

struct hearth_outfile {
    const char *path; /* borrowed */
    int fd;
    char beside[4096]; /* "": it is written directly */
};

/* The file is only ours to read. Returns an exit status after a complaint, else 0. */
int hearth_outfile_open(const char *path, struct hearth_outfile *out);
/* Closes; keeps what was written if `status` is 0. Returns `status`, or another one after a complaint. */
int hearth_outfile_close(struct hearth_outfile *file, int status);
bool hearth_outfile_is_stream(const char *path);
/* All of it, or errno. */
bool hearth_outfile_write(int fd, const void *bytes, size_t len);

#endif
