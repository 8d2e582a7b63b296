/* See outfile.h. */
#include "console/outfile.h"

#include "console/show.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool hearth_outfile_write(int fd, const void *bytes, size_t len) {
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

bool hearth_outfile_is_stream(const char *path) {
    return strcmp(path, "-") == 0;
}

int hearth_outfile_open(const char *path, struct hearth_outfile *out) {
    struct stat st;
    const bool direct = !hearth_outfile_is_stream(path) && stat(path, &st) == 0 && !S_ISREG(st.st_mode);
    *out = (struct hearth_outfile){.path = path, .fd = -1};
    if (hearth_outfile_is_stream(path)) {
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

int hearth_outfile_close(struct hearth_outfile *file, int status) {
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
