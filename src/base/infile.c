/* See infile.h. A file is opened without blocking: opening a pipe without a writer would block for ever. Once a
 * writer has opened the pipe, reading waits as long as needed, because the writer may be a program that asks for a
 * passphrase first. */
#include "base/infile.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES_MAX = 64 << 20, WRITER_MS = 10000, LOOK_MS = 100 };

static bool wait_for(int fd, int ms) {
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    return poll(&wait, 1, ms) > 0 && (wait.revents & POLLHUP) != 0;
}

/* Reads to the end. 0, or an errno: EFBIG (it has none, or it is far away), ETIMEDOUT (a pipe without a writer). */
static int read_all(int fd, struct hearth_buf *out) {
    const size_t before = out->len;
    struct stat st;
    const bool is_pipe = fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
    char chunk[4096];
    for (int waited_ms = 0;;) {
        const ssize_t n = read(fd, chunk, sizeof chunk);
        if (n > 0) {
            if (out->len - before + (size_t)n > BYTES_MAX) {
                return EFBIG;
            }
            if (!hearth_buf_append(out, chunk, (size_t)n)) {
                return ENOMEM;
            }
        } else if (n == 0) {
            if (!is_pipe || out->len > before || wait_for(fd, 0)) {
                return 0;
            }
            if (waited_ms >= WRITER_MS) {
                return ETIMEDOUT;
            }
            waited_ms += LOOK_MS;
            (void)wait_for(fd, LOOK_MS);
        } else if (errno == EAGAIN) {
            (void)wait_for(fd, -1);
        } else if (errno != EINTR) {
            return errno;
        }
    }
}

int hearth_infile_read(const char *path, struct hearth_buf *out, struct hearth_errmsg *msg) {
    const size_t before = out->len;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    const int fault = fd >= 0 ? read_all(fd, out) : errno;
    if (fd >= 0) {
        (void)close(fd);
    }
    if (fault == ENOMEM) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory while reading %s", path);
    }
    if (fault != 0) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot read %s: %s", path,
                           fault == EFBIG       ? "it is longer than 64 MiB: is it the right file?"
                           : fault == ETIMEDOUT ? "it is a pipe, and nothing writes into it"
                                                : strerror(fault));
    }
    if (out->len > before && memchr((char *)out->data + before, '\0', out->len - before)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s is no text", path);
    }
    return hearth_buf_append(out, "", 1) ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
}

static int is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

char *hearth_infile_line(char **rest, unsigned *number) {
    char *line = *rest, *end;
    if (!*line) {
        return NULL;
    }
    end = line + strcspn(line, "\n");
    *rest = *end ? end + 1 : end;
    *end = '\0';
    if (*number == 0 && strncmp(line, "\xEF\xBB\xBF", 3) == 0) { /* the mark that editors of Windows put first */
        line += 3;
    }
    (*number)++;
    while (is_blank(*line)) {
        line++;
    }
    while (end > line && is_blank(end[-1])) {
        *--end = '\0';
    }
    return line;
}
