/* The directory's own name, and whether other servers use it: each has a lock on one byte of the file `servers`, which
 * is empty, for as long as its handle is open. The kernel takes the lock of a process that dies. The locks are those of
 * open file descriptions, so that two handles of one process count as two, and the file is not `lock`, as a file system
 * of another machine may make one kind of lock of both.
 *
 * Where such locks or the file are not to be had (a read-only directory), no other user is seen. */
#include "tier/directory_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { TRIES = 64 };

/* Locks a byte of this process's own: the process's number, or, where a process on another machine has the same, the
 * next that is free. */
static bool lock_byte(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = getpid(), .l_len = 1};
    int rc = -1;
    for (int i = 0; i < TRIES && rc != 0; i++, lock.l_start++) {
        rc = fcntl(fd, F_OFD_SETLK, &lock);
        if (rc != 0 && errno != EAGAIN && errno != EACCES && errno != EINTR) {
            break;
        }
    }
    return rc == 0;
}

void hearth_directory_enter(struct hearth_directory *directory) {
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    (void)pthread_mutex_lock(&directory->mutex);
    const int fd = directory->users_fd < 0 ? openat(directory->fd, HEARTH_DIRECTORY_USERS, flags, 0600) : -1;
    if (fd >= 0 && fchmod(fd, 0600) == 0 && lock_byte(fd)) {
        directory->users_fd = fd;
    } else if (fd >= 0) {
        (void)close(fd);
    }
    (void)pthread_mutex_unlock(&directory->mutex);
}

void hearth_directory_leave(struct hearth_directory *directory) {
    (void)pthread_mutex_lock(&directory->mutex);
    if (directory->users_fd >= 0) {
        (void)close(directory->users_fd);
        directory->users_fd = -1;
    }
    (void)pthread_mutex_unlock(&directory->mutex);
}

bool hearth_directory_is_shared(struct hearth_directory *directory) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    (void)pthread_mutex_lock(&directory->mutex);
    const bool shared =
        directory->users_fd >= 0 && fcntl(directory->users_fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    (void)pthread_mutex_unlock(&directory->mutex);
    return shared;
}

/* ---- its name ---- */

enum { HEX = 32 };

static bool read_name(const struct hearth_directory *directory, char name[HEX + 1]) {
    const int fd = openat(directory->fd, HEARTH_DIRECTORY_BOX, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, name, HEX) : -1;
    if (fd >= 0) {
        (void)close(fd);
    }
    name[HEX] = '\0';
    return n == HEX && strspn(name, "0123456789abcdef") == HEX;
}

/* Written beside and renamed, so that it is there whole; of two servers that do that at once the later one names it. */
static int write_name(struct hearth_directory *directory) {
    struct hearth_digest name;
    char hex[HEX + 2], draft[64];
    if (getrandom(&name, sizeof name, 0) != (ssize_t)sizeof name) {
        return HEARTH_ERR_IO;
    }
    hearth_digest_hex(name, hex);
    hex[HEX] = '\n';
    (void)snprintf(draft, sizeof draft, HEARTH_DIRECTORY_BOX ".%ld", (long)getpid());
    const int fd = openat(directory->fd, draft, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    const bool written = fd >= 0 && write(fd, hex, HEX + 1) == HEX + 1 && fsync(fd) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    if (!written || renameat(directory->fd, draft, directory->fd, HEARTH_DIRECTORY_BOX) != 0) {
        (void)unlinkat(directory->fd, draft, 0);
        return HEARTH_ERR_IO;
    }
    return hearth_directory_sync(directory, ".");
}

int hearth_directory_identify(struct hearth_directory *directory, struct hearth_digest *out) {
    char hex[HEX + 1];
    *out = (struct hearth_digest){0, 0};
    if (!read_name(directory, hex)) {
        const int err = write_name(directory);
        if (err != HEARTH_OK || !read_name(directory, hex)) {
            return err != HEARTH_OK ? err : HEARTH_ERR_IO;
        }
    }
    *out = hearth_digest_bytes(hex, HEX);
    return HEARTH_OK;
}
