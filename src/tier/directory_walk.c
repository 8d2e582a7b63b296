/* What is in the state directory: its paths, and the names that are there. Below everything else of the directory.
 *
 * No link is followed, neither to a file nor to a directory. A name that was just seen may be gone: ENOENT is never an
 * error. */
#include "tier/directory_internal.h"

#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* ---- names ---- */

/* 32 lower-case hex digits and nothing else. */
static bool is_model_name(const char *name) {
    struct hearth_digest digest;
    return hearth_digest_parse(name, &digest) && name[32] == '\0';
}

/* A file's id from the names of shard and file. False: the name is no item's. */
static bool parse_name(const char *shard, const char *name, struct hearth_file_id *id) {
    char digits[33];
    (void)snprintf(digits, sizeof digits, "%.2s%.30s", shard, name);
    if (!hearth_digest_parse(digits, &id->name)) {
        return false;
    }
    id->kind = strcmp(name + 30, ".page") == 0 ? HEARTH_RECORD_PAGE : HEARTH_RECORD_SNAPSHOT;
    return id->kind == HEARTH_RECORD_PAGE || strcmp(name + 30, ".snap") == 0;
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

int hearth_directory_descend(const struct hearth_directory *directory, const char *path) {
    if (hearth_directory_is_linked(directory, path)) {
        return -1;
    }
    return openat(directory->fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int hearth_directory_sync(struct hearth_directory *directory, const char *path) {
    const int fd = hearth_directory_descend(directory, path);
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
    const int fd = hearth_directory_descend(directory, path);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !stream) {
        (void)close(fd);
    }
    return stream;
}

static int is_name(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

void hearth_directory_names_free(struct dirent **names, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(names[i]);
    }
    free(names);
}

int hearth_directory_names(struct hearth_directory *directory, const char *path, struct dirent ***names, size_t *n) {
    *names = NULL;
    *n = 0;
    const int fd = hearth_directory_descend(directory, path);
    const int found = fd >= 0 ? scandirat(fd, ".", names, is_name, alphasort) : -1;
    const int error = errno;
    if (fd >= 0) {
        (void)close(fd);
    }
    if (found < 0) {
        return is_absent(error) ? HEARTH_OK : error == ENOMEM ? HEARTH_ERR_NOMEM : HEARTH_ERR_IO;
    }
    *n = (size_t)found;
    return HEARTH_OK;
}

/* ---- models ---- */

int hearth_directory_models(struct hearth_directory *directory, bool (*visit)(void *user, struct hearth_model_id model),
                            void *user) {
    struct dirent **names;
    size_t n;
    const int err = hearth_directory_names(directory, ".", &names, &n);
    bool go_on = err == HEARTH_OK;
    for (size_t i = 0; i < n && go_on; i++) {
        struct stat st;
        if (is_model_name(names[i]->d_name) &&
            fstatat(directory->fd, names[i]->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) {
            struct hearth_model_id model;
            memcpy(model.hex, names[i]->d_name, sizeof model.hex);
            go_on = visit(user, model);
        }
    }
    hearth_directory_names_free(names, n);
    return err;
}

/* ---- walking ---- */

void hearth_directory_describe(const struct stat *st, struct hearth_file *file) {
    file->bytes = ((uint64_t)st->st_size + 4095) / 4096 * 4096;
    file->stamp_us = (int64_t)st->st_mtim.tv_sec * 1000000 + st->st_mtim.tv_nsec / 1000;
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
        hearth_directory_describe(&st, &file);
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
