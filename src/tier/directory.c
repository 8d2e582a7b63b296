/* The state directory: opening it, and its models. Paths and walks are in
 * directory_walk.c, the files in directory_file.c, the budget in directory_gc.c.
 *
 * Every path is resolved relative to one descriptor, so that a handle means the same directory even when that is
 * renamed. The directory itself may be named through links; below it none is followed, neither to a file nor to a
 * directory: an unpacked cache of another user must not lead to files elsewhere. It is looked at before a path is
 * used, which is enough where only the user may write.
 *
 * Several processes come and go here without asking each other. What the code relies on: names appear complete
 * (rename), a name that was just seen may be gone (ENOENT is never an error), the owner of an advisory lock lives, and
 * a directory that a server has open is not removed: it holds a shared lock on it, which a gc would have to break. */
#include "tier/directory_internal.h"

#include "base/assert.h"
#include "base/folder.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- opening ---- */

/* Whether rights of others may be taken away from a directory: it is empty, or was hearth's before. */
static bool is_ours(struct hearth_directory *directory) {
    struct dirent **names;
    size_t n;
    if (hearth_directory_names(directory, ".", &names, &n) != HEARTH_OK) {
        return false;
    }
    bool lock = false, other = false;
    for (size_t i = 0; i < n; i++) {
        lock = lock || strcmp(names[i]->d_name, HEARTH_DIRECTORY_LOCK) == 0;
        other = other || strcmp(names[i]->d_name, "lost+found") != 0;
    }
    hearth_directory_names_free(names, n);
    return lock || !other;
}

static int check_rights(struct hearth_directory *directory, struct hearth_errmsg *msg) {
    struct stat st;
    const char *path = directory->path;
    if (fstat(directory->fd, &st) != 0) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot use %s: %s", path, strerror(errno));
    }
    if (st.st_uid != geteuid()) {
        return hearth_fail(msg, HEARTH_ERR_IO, "%s belongs to user %lu, not to user %lu who runs this", path,
                           (unsigned long)st.st_uid, (unsigned long)geteuid());
    }
    if ((st.st_mode & 077) == 0) {
        return HEARTH_OK;
    }
    if (!is_ours(directory)) {
        return hearth_fail(msg, HEARTH_ERR_IO,
                           "%s holds other things than hearth's and others may read it: name an empty directory, "
                           "or take their rights away (chmod go= %s)",
                           path, path);
    }
    if (fchmod(directory->fd, st.st_mode & 0700) != 0) {
        if (errno != EROFS) {
            return hearth_fail(msg, HEARTH_ERR_IO, "cannot take the rights of others from %s: %s", path,
                               strerror(errno));
        }
        hearth_log(HEARTH_LOG_WARN, "%s is read-only, and others may read it", path);
    }
    return HEARTH_OK;
}

/* Makes the lock file. One that is there is enough, so that a directory that became read-only can still be read. */
static int make_lock(struct hearth_directory *directory, struct hearth_errmsg *msg) {
    struct stat st;
    if (fstatat(directory->fd, HEARTH_DIRECTORY_LOCK, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        return HEARTH_OK;
    }
    const int fd =
        openat(directory->fd, HEARTH_DIRECTORY_LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot write in %s: %s", directory->path, strerror(errno));
    }
    (void)fchmod(fd, 0600);
    (void)close(fd);
    return HEARTH_OK;
}

int hearth_directory_open(const char *path, bool create, struct hearth_directory **out, struct hearth_errmsg *msg) {
    *out = NULL;
    if (path[0] == '\0') {
        return hearth_fail(msg, HEARTH_ERR_NOT_FOUND, "the name of the state directory is empty");
    }
    struct hearth_directory *directory = calloc(1, sizeof *directory);
    char *copy = strdup(path);
    if (!directory || !copy) {
        free(directory);
        free(copy);
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    *directory = (struct hearth_directory){.fd = -1, .users_fd = -1, .path = copy};
    HEARTH_ASSERT(pthread_mutex_init(&directory->mutex, NULL) == 0);
    int err = HEARTH_OK;
    if (create && hearth_folder_make(path) != HEARTH_OK) {
        err = hearth_fail(msg, HEARTH_ERR_IO, "cannot make %s: %s", path, strerror(errno));
    } else if ((directory->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        const bool absent = errno == ENOENT;
        err = hearth_fail(msg, absent ? HEARTH_ERR_NOT_FOUND : HEARTH_ERR_IO, "cannot open %s: %s", path,
                          absent ? "there is no such directory" : strerror(errno));
    } else {
        err = check_rights(directory, msg);
    }
    if (err == HEARTH_OK && create) {
        err = make_lock(directory, msg);
    }
    if (err != HEARTH_OK) {
        hearth_directory_close(directory);
        return err;
    }
    *out = directory;
    return HEARTH_OK;
}

void hearth_directory_close(struct hearth_directory *directory) {
    if (!directory) {
        return;
    }
    for (size_t i = 0; i < directory->held_n; i++) {
        (void)close(directory->held[i]); /* also releases its lock */
    }
    hearth_directory_leave(directory);
    if (directory->fd >= 0) {
        (void)close(directory->fd);
    }
    (void)pthread_mutex_destroy(&directory->mutex);
    free(directory->held);
    free(directory->held_models);
    free(directory->path);
    free(directory);
}

const char *hearth_directory_path(const struct hearth_directory *directory) {
    return directory->path;
}

uint64_t hearth_directory_bad(const struct hearth_directory *directory) {
    return atomic_load(&directory->bad);
}

uint64_t hearth_directory_free_bytes(const struct hearth_directory *directory) {
    struct statvfs fs;
    return fstatvfs(directory->fd, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : 0;
}

/* ---- models ---- */

struct hearth_model_id hearth_model_id(struct hearth_digest fingerprint, int32_t page_tokens) {
    struct hearth_model_id model;
    hearth_digest_hex(hearth_digest_chain(fingerprint, &page_tokens, sizeof page_tokens), model.hex);
    return model;
}

/* Takes a shared lock on a model's directory until the handle is closed; without locks in the file system it takes
 * none. Errors: NOT_FOUND (the directory was removed meanwhile), IO, NOMEM. */
static int hold_model_locked(struct hearth_directory *directory, struct hearth_model_id model) {
    for (size_t i = 0; i < directory->held_n; i++) {
        if (strcmp(directory->held_models[i].hex, model.hex) == 0) {
            return HEARTH_OK;
        }
    }
    const size_t n = directory->held_n + 1;
    int *held = realloc(directory->held, n * sizeof *held);
    directory->held = held ? held : directory->held;
    struct hearth_model_id *models = held ? realloc(directory->held_models, n * sizeof *models) : NULL;
    if (!models) {
        return HEARTH_ERR_NOMEM;
    }
    directory->held_models = models;
    const int fd = hearth_directory_descend(directory, model.hex);
    if (fd < 0) {
        return errno == ENOENT ? HEARTH_ERR_NOT_FOUND : HEARTH_ERR_IO;
    }
    (void)hearth_directory_flock(fd, LOCK_SH); /* blocks only while a gc removes the directory */
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_nlink == 0) {
        (void)close(fd);
        return HEARTH_ERR_NOT_FOUND;
    }
    directory->held[n - 1] = fd;
    directory->held_models[n - 1] = model;
    directory->held_n = n;
    return HEARTH_OK;
}

/* Writes the line for people who look into the directory; a failure is harmless. */
static void write_about(struct hearth_directory *directory, struct hearth_model_id model, const char *about) {
    char now[1024], want[1024];
    (void)snprintf(want, sizeof want, "%s", about);
    want[strcspn(want, "\r\n")] = '\0';
    hearth_directory_about(directory, model, now, sizeof now);
    struct hearth_file_draft draft;
    if (strcmp(now, want) == 0 || hearth_file_create(directory, model, &draft) != HEARTH_OK) {
        return;
    }
    char inside[80];
    (void)snprintf(inside, sizeof inside, "tmp/%.64s", draft.name);
    const struct hearth_directory_path from = hearth_directory_in_model(model, inside);
    const struct hearth_directory_path to = hearth_directory_in_model(model, "about");
    if (dprintf(draft.fd, "%s\n", want) < 0 || fdatasync(draft.fd) != 0 ||
        renameat(directory->fd, from.text, directory->fd, to.text) != 0) {
        hearth_file_discard(directory, &draft);
        return;
    }
    (void)close(draft.fd);
}

int hearth_directory_add_model(struct hearth_directory *directory, struct hearth_model_id model, const char *about) {
    int err;
    bool made = false, made_tmp = false;
    int tries = 0;
    (void)pthread_mutex_lock(&directory->mutex);
    do { /* again when a gc took the empty directory away in between */
        err = hearth_directory_make(directory, model.hex, &made);
        if (err == HEARTH_OK) {
            err = hold_model_locked(directory, model);
        }
    } while (err == HEARTH_ERR_NOT_FOUND && ++tries < 100);
    (void)pthread_mutex_unlock(&directory->mutex);
    if (err == HEARTH_OK) {
        err = hearth_directory_make(directory, hearth_directory_in_model(model, "tmp").text, &made_tmp);
    }
    if (err == HEARTH_OK && (made || made_tmp)) {
        err = hearth_directory_sync(directory, model.hex);
        err = err == HEARTH_OK ? hearth_directory_sync(directory, ".") : err;
    }
    if (err != HEARTH_OK) {
        return err == HEARTH_ERR_NOMEM ? err : HEARTH_ERR_IO;
    }
    write_about(directory, model, about ? about : "");
    return HEARTH_OK;
}

void hearth_directory_about(struct hearth_directory *directory, struct hearth_model_id model, char *out, size_t cap) {
    HEARTH_ASSERT(cap > 0);
    out[0] = '\0';
    const struct hearth_directory_path path = hearth_directory_in_model(model, "about");
    const int fd = hearth_directory_is_linked(directory, path.text)
                       ? -1
                       : openat(directory->fd, path.text, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    struct stat st;
    const ssize_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, out, cap - 1) : 0;
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
    (void)close(fd);
}

/* ---- its users ----
 *
 * Each server has a lock on one byte of the file `servers`, which is empty, for as long as its handle is open. The
 * kernel takes the lock of a process that dies. The locks are those of open file descriptions, so that two handles of
 * one process count as two, and the file is not `lock`, as a file system of another machine may make one kind of lock
 * of both. Where such locks or the file are not to be had (a read-only directory), no other user is seen. */

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
