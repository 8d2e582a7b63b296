/* See transfer.h. */
#include "console/transfer.h"

#include "console/show.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE_BYTES ((size_t)4 << 20)

bool hearth_transfer_write(int fd, const void *bytes, size_t len) {
    const char *from = bytes;
    while (len > 0) {
        const ssize_t n = write(fd, from, len);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        from += n;
        len -= (size_t)n;
    }
    return true;
}

bool hearth_transfer_is_stream(const char *path) {
    return strcmp(path, "-") == 0;
}

int hearth_transfer_create(const char *path, struct hearth_transfer_out *out) {
    struct stat st;
    const bool direct = !hearth_transfer_is_stream(path) && stat(path, &st) == 0 && !S_ISREG(st.st_mode);
    *out = (struct hearth_transfer_out){.path = path, .fd = -1};
    if (hearth_transfer_is_stream(path)) {
        out->fd = STDOUT_FILENO;
    } else if (direct) {
        out->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else if ((size_t)snprintf(out->beside, sizeof out->beside, "%s.XXXXXX", path) < sizeof out->beside) {
        out->fd = mkstemp(out->beside); /* 0600 */
    } else {
        errno = ENAMETOOLONG;
    }
    return out->fd >= 0 ? 0 : hearth_complain(1, "cannot write %s: %s", path, strerror(errno));
}

int hearth_transfer_finish(struct hearth_transfer_out *file, int status) {
    if (status == 0 && *file->beside && (fsync(file->fd) != 0 || rename(file->beside, file->path) != 0)) {
        status = hearth_complain(1, "cannot write %s: %s", file->path, strerror(errno));
    }
    if (status != 0 && *file->beside) {
        (void)unlink(file->beside);
    }
    if (file->fd != STDOUT_FILENO) {
        (void)close(file->fd);
    }
    return status;
}

int hearth_transfer_open(const char *path, struct hearth_transfer_in *out) {
    *out = (struct hearth_transfer_in){
        .path = path, .fd = hearth_transfer_is_stream(path) ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC)};
    return out->fd >= 0 ? 0 : hearth_complain(1, "cannot read %s: %s", path, strerror(errno));
}

void hearth_transfer_close(struct hearth_transfer_in *file) {
    if (file->fd != STDIN_FILENO) {
        (void)close(file->fd);
    }
}

/* At most `len` bytes; 0 at the end, -1 after a failure. */
static ssize_t read_some(struct hearth_transfer_in *file, void *bytes, size_t len) {
    ssize_t n;
    do {
        errno = 0;
        n = read(file->fd, bytes, len);
    } while (n < 0 && errno == EINTR);
    file->bytes += n > 0 ? (uint64_t)n : 0;
    return n;
}

bool hearth_transfer_read(struct hearth_transfer_in *file, void *bytes, size_t len) {
    uint8_t *to = bytes;
    ssize_t n = 1;
    for (; len > 0 && (n = read_some(file, to, len)) > 0; len -= (size_t)n) {
        to += n;
    }
    return len == 0;
}

bool hearth_transfer_append(struct hearth_transfer_in *file, struct hearth_buf *out, uint64_t len, bool to_end) {
    for (ssize_t n = 1; len > 0 || to_end; len -= (uint64_t)n) {
        const size_t most = len < PIECE_BYTES ? (size_t)len : PIECE_BYTES;
        if (!hearth_buf_reserve(out, most + 1)) {
            errno = ENOMEM;
            return false;
        }
        n = read_some(file, out->data + out->len, most + to_end);
        if (n <= 0) {
            return to_end && n == 0;
        }
        if ((uint64_t)n > len) {
            errno = EFBIG;
            return false;
        }
        out->len += (size_t)n;
    }
    return true;
}
