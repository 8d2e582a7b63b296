/* Files that carry something to another machine, as `hearth kv export` and `hearth sessions export` write them and
 * their imports read them.
 *
 * Two formats stay: a session is a JSON document, which people read and other programs make, and is parsed as a whole;
 * the state of a conversation is gigabytes in framed and checked sections, of which one at a time is in memory. What
 * both need of a file is here.
 *
 * A file that is written is there whole or not at all: it is written beside its name and renamed. "-" is standard
 * output or input; what is no plain file (a device, a pipe) is written into. */
#ifndef HEARTH_CONSOLE_TRANSFER_H
#define HEARTH_CONSOLE_TRANSFER_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool hearth_transfer_is_stream(const char *path);

struct hearth_transfer_out {
    const char *path; /* borrowed */
    int fd;
    char beside[4096]; /* "": it is written directly */
};

/* Only this user can read the file. Returns an exit status after a complaint, else 0. */
int hearth_transfer_create(const char *path, struct hearth_transfer_out *out);
/* Closes; keeps what was written if `status` is 0. Returns `status`, or another one after a complaint. */
int hearth_transfer_finish(struct hearth_transfer_out *file, int status);
/* All of it, or errno. */
bool hearth_transfer_write(int fd, const void *bytes, size_t len);

struct hearth_transfer_in {
    const char *path; /* borrowed */
    int fd;
    uint64_t bytes; /* that were read */
};

/* Returns an exit status after a complaint, else 0. */
int hearth_transfer_open(const char *path, struct hearth_transfer_in *out);
void hearth_transfer_close(struct hearth_transfer_in *file);
/* All of `len` bytes. False: the input ends (errno is 0), or fails. */
bool hearth_transfer_read(struct hearth_transfer_in *file, void *bytes, size_t len);
/* Appends `len` bytes, or with `to_end` as many as come but no more than `len`. Memory grows with what has come,
 * whatever `len` says. False: the input ends (errno is 0) or does not (EFBIG), or fails, or there is no memory. */
bool hearth_transfer_append(struct hearth_transfer_in *file, struct hearth_buf *out, uint64_t len, bool to_end);

#endif
