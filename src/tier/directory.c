/* The state directory: opening it, its models, and what is in them. The files are in directory_file.c, the budget in
 * directory_gc.c.
 *
 * Every path is resolved relative to one descriptor, so that a handle means the same directory even when that is
 * renamed. The directory itself may be named through links; below it none is followed, neither to a file nor to a
 * directory: unpacking another user's cache must not lead to places of one's own. It is looked at before a path is
 * used, which is enough where only the user may write.
 *
 * Several processes come and go here without asking each other. What the code relies on: names appear complete
 * (rename), a name that was just seen may be gone (ENOENT is never an error), the owner of an advisory lock lives, and
 * a directory that a server has open is not removed: it holds a shared lock on it, which a gc would have to break. */
#include "tier/directory_internal.h"

#include "base/assert.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- names ---- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Number of leading hex digits. */
static size_t hex_len(const char *text) {
    size_t n = 0;
    while (hex_digit(text[n]) >= 0) {
        n++;
    }
    return n;
}

bool hearth_directory_model_name(const char *name) {
    return hex_len(name) == 32 && name[32] == '\0';
}

static uint64_t hex_u64(const char *digits) {
    uint64_t value = 0;
    for (int i = 0; i < 16; i++) {
        value = value << 4 | (uint64_t)hex_digit(digits[i]);
    }
    return value;
}

/* A file's id from the names of shard and file. False: the name is no item's. */
static bool parse_name(const char *shard, const char *name, struct hearth_file_id *id) {
    if (hex_len(name) != 30) {
        return false;
    }
    if (strcmp(name + 30, ".page") == 0) {
        id->kind = HEARTH_RECORD_PAGE;
    } else if (strcmp(name + 30, ".snap") == 0) {
        id->kind = HEARTH_RECORD_SNAPSHOT;
    } else {
        return false;
    }
    char digits[33];
    memcpy(digits, shard, 2);
    memcpy(digits + 2, name, 30);
    id->name = (struct hearth_digest){.hi = hex_u64(digits), .lo = hex_u64(digits + 16)};
    return true;
}

struct hearth_directory_path hearth_directory_file_path(const struct hearth_file_id *id) {
    struct hearth_directory_path path;
    char hex[33];
    hearth_digest_hex(id->name, hex);
    (void)snprintf(path.text, sizeof path.text, "%s/%.2s/%s.%s", id->model.hex, hex, hex + 2,
                   id->kind == HEARTH_RECORD_PAGE ? "page" : "snap");
    return path;
}

struct hearth_directory_path hearth_directory_in_model(struct hearth_model_id model, const char *name) {
    struct hearth_directory_path path;
    (void)snprintf(path.text, sizeof path.text, "%s/%.100s", model.hex, name);
    return path;
}

struct hearth_model_id hearth_model_id(struct hearth_digest fingerprint, int32_t page_tokens) {
    struct hearth_model_id model;
    hearth_digest_hex(hearth_digest_chain(fingerprint, &page_tokens, sizeof page_tokens), model.hex);
    return model;
}

/* ---- system calls ---- */

int hearth_directory_flock(int fd, int operation) {
    int rc;
    do {
        rc = flock(fd, operation);
    } while (rc != 0 && errno == EINTR);
    return rc;
}

bool hearth_directory_is_linked(const struct hearth_directory *directory, const char *path) {
    char above[512];
    struct stat st;
    for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        (void)snprintf(above, sizeof above, "%.*s", (int)(slash - path), path);
        if (fstatat(directory->fd, above, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode)) {
            errno = ELOOP;
            return true;
        }
    }
    return false;
}

int hearth_directory_make(struct hearth_directory *directory, const char *path, bool *made) {
    if (made) {
        *made = false;
    }
    if (hearth_directory_is_linked(directory, path)) {
        return HEARTH_ERR_IO;
    }
    if (mkdirat(directory->fd, path, 0700) == 0) {
        if (made) {
            *made = true;
        }
        return fchmodat(directory->fd, path, 0700, 0) == 0 || errno == ENOENT ? HEARTH_OK : HEARTH_ERR_IO;
    }
    return errno == EEXIST ? HEARTH_OK : HEARTH_ERR_IO;
}

/* A descriptor of a directory that no link leads to; -1 with errno. */
static int open_directory(const struct hearth_directory *directory, const char *path) {
    if (hearth_directory_is_linked(directory, path)) {
        return -1;
    }
    return openat(directory->fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int hearth_directory_sync(struct hearth_directory *directory, const char *path) {
    const int fd = open_directory(directory, path);
    if (fd < 0) {
        return errno == ENOENT ? HEARTH_ERR_NOT_FOUND : HEARTH_ERR_IO;
    }
    /* EINVAL: a file system that cannot sync directories has nothing to sync. */
    const int err = fsync(fd) == 0 || errno == EINVAL ? HEARTH_OK : HEARTH_ERR_IO;
    (void)close(fd);
    return err;
}

/* Whether opening a directory failed because there is none: something else may have its name. */
static bool is_absent(int error) {
    return error == ENOENT || error == ENOTDIR || error == ELOOP;
}

/* A stream over a directory; NULL with errno. */
static DIR *open_stream(struct hearth_directory *directory, const char *path) {
    const int fd = open_directory(directory, path);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !stream) {
        (void)close(fd);
    }
    return stream;
}

static bool dots(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void hearth_directory_names_free(char **names, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(names[i]);
    }
    free(names);
}

static bool push_name(char ***names, size_t *n, size_t *cap, const char *name) {
    if (*n == *cap) {
        const size_t grown = *cap ? 2 * *cap : 32;
        char **more = realloc(*names, grown * sizeof *more);
        if (!more) {
            return false;
        }
        *names = more;
        *cap = grown;
    }
    (*names)[*n] = strdup(name);
    return (*names)[*n] && ++*n;
}

int hearth_directory_names(struct hearth_directory *directory, const char *path, char ***names, size_t *n) {
    *names = NULL;
    *n = 0;
    DIR *stream = open_stream(directory, path);
    if (!stream) {
        return is_absent(errno) ? HEARTH_OK : errno == ENOMEM ? HEARTH_ERR_NOMEM : HEARTH_ERR_IO;
    }
    size_t cap = 0;
    int err = HEARTH_OK;
    for (const struct dirent *entry; err == HEARTH_OK && (errno = 0, entry = readdir(stream)) != NULL;) {
        if (!dots(entry->d_name) && !push_name(names, n, &cap, entry->d_name)) {
            err = HEARTH_ERR_NOMEM;
        }
    }
    if (err == HEARTH_OK && errno != 0) {
        err = HEARTH_ERR_IO;
    }
    (void)closedir(stream);
    if (err != HEARTH_OK) {
        hearth_directory_names_free(*names, *n);
        *names = NULL;
        *n = 0;
    } else if (*n > 0) {
        qsort(*names, *n, sizeof **names, compare_names);
    }
    return err;
}

/* ---- opening ---- */

int hearth_directory_make_path(const char *path) {
    char *copy = strdup(path);
    if (!copy) {
        errno = ENOMEM;
        return HEARTH_ERR_IO;
    }
    int err = HEARTH_OK, above = 0;
    for (char *end = copy + 1; err == HEARTH_OK; end++) {
        if (*end != '/' && *end != '\0') {
            continue;
        }
        const char was = *end;
        *end = '\0';
        if (mkdir(copy, 0700) == 0) {
            err = chmod(copy, 0700) == 0 ? HEARTH_OK : HEARTH_ERR_IO;
        } else if (errno != EEXIST && was == '\0') {
            err = HEARTH_ERR_IO; /* further up, only the last one tells: it may be there without rights to look */
            errno = errno == ENOENT && above != 0 ? above : errno; /* why what is above it was not made */
        } else if (errno != EEXIST) {
            above = above != 0 ? above : errno;
        }
        *end = was;
        if (was == '\0') {
            break;
        }
    }
    const int saved = errno;
    free(copy);
    errno = saved;
    return err;
}

/* Whether a directory with rights for others may lose them: it is empty, or was hearth's before. */
static bool is_ours(struct hearth_directory *directory) {
    char **names;
    size_t n;
    if (hearth_directory_names(directory, ".", &names, &n) != HEARTH_OK) {
        return false;
    }
    bool lock = false, other = false;
    for (size_t i = 0; i < n; i++) {
        lock = lock || strcmp(names[i], HEARTH_DIRECTORY_LOCK) == 0;
        other = other || strcmp(names[i], "lost+found") != 0;
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
    if (create && hearth_directory_make_path(path) != HEARTH_OK) {
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
        (void)close(directory->held[i]); /* and its lock goes */
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

/* Takes a shared lock on a model's directory until the handle is closed. Where locks are not to be had, there is none.
 * Errors: NOT_FOUND (it was removed meanwhile), IO, NOMEM. */
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
    const int fd = open_directory(directory, model.hex);
    if (fd < 0) {
        return errno == ENOENT ? HEARTH_ERR_NOT_FOUND : HEARTH_ERR_IO;
    }
    (void)hearth_directory_flock(fd, LOCK_SH); /* a gc that has it is about to remove it, and quick */
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

/* The line for people; a failure to write it is harmless. */
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

int hearth_directory_models(struct hearth_directory *directory, bool (*visit)(void *user, struct hearth_model_id model),
                            void *user) {
    char **names;
    size_t n;
    const int err = hearth_directory_names(directory, ".", &names, &n);
    bool go_on = err == HEARTH_OK;
    for (size_t i = 0; i < n && go_on; i++) {
        struct stat st;
        if (hearth_directory_model_name(names[i]) && fstatat(directory->fd, names[i], &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISDIR(st.st_mode)) {
            struct hearth_model_id model;
            memcpy(model.hex, names[i], sizeof model.hex);
            go_on = visit(user, model);
        }
    }
    hearth_directory_names_free(names, n);
    return err;
}

/* ---- walking ---- */

static int64_t stamp_us(const struct stat *st) {
    return (int64_t)st->st_mtim.tv_sec * 1000000 + st->st_mtim.tv_nsec / 1000;
}

static int walk_shard(struct hearth_directory *directory, struct hearth_model_id model, int shard,
                      bool (*visit)(void *user, const struct hearth_file *file), void *user, bool *go_on) {
    char shard_name[3];
    (void)snprintf(shard_name, sizeof shard_name, "%02x", (unsigned)shard & 0xff);
    DIR *stream = open_stream(directory, hearth_directory_in_model(model, shard_name).text);
    if (!stream) {
        return is_absent(errno) ? HEARTH_OK : errno == ENOMEM ? HEARTH_ERR_NOMEM : HEARTH_ERR_IO;
    }
    int err = HEARTH_OK;
    for (const struct dirent *entry; *go_on && (errno = 0, entry = readdir(stream)) != NULL;) {
        struct hearth_file file = {.id = {.model = model}};
        struct stat st;
        if (!parse_name(shard_name, entry->d_name, &file.id) ||
            fstatat(dirfd(stream), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            continue; /* not an item, or gone since */
        }
        file.bytes = ((uint64_t)st.st_size + 4095) / 4096 * 4096;
        file.stamp_us = stamp_us(&st);
        file.inode = (int64_t)st.st_ino;
        *go_on = visit(user, &file);
    }
    if (*go_on && errno != 0) {
        err = HEARTH_ERR_IO;
    }
    (void)closedir(stream);
    return err;
}

int hearth_directory_walk(struct hearth_directory *directory, struct hearth_model_id model, int shard,
                          bool (*visit)(void *user, const struct hearth_file *file), void *user) {
    HEARTH_ASSERT(shard >= -1 && shard < 256);
    int err = HEARTH_OK;
    bool go_on = true;
    const int first = shard < 0 ? 0 : shard, last = shard < 0 ? 255 : shard;
    for (int i = first; i <= last && go_on; i++) {
        const int failed = walk_shard(directory, model, i, visit, user, &go_on);
        err = err == HEARTH_OK ? failed : err; /* one shard that cannot be read does not hide the others */
    }
    return err;
}

int64_t hearth_directory_shard_time(struct hearth_directory *directory, struct hearth_model_id model, int shard) {
    HEARTH_ASSERT(shard >= 0 && shard < 256);
    char name[3];
    struct stat st;
    (void)snprintf(name, sizeof name, "%02x", (unsigned)shard);
    if (fstatat(directory->fd, hearth_directory_in_model(model, name).text, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return 0;
    }
    return (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}
