/* Everything in the state directory besides the files of items: quarantined files, drafts, files of other programs;
 * and the removal of a model with everything, which is the only place that removes files of unknown names. */
#include "tier/directory_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* A path of two parts. False: it is too long to be a file of hearth's. */
static bool join(char out[512], const char *in, const char *name) {
    const int n = snprintf(out, 512, "%s/%s", in, name);
    return n > 0 && n < 512;
}

/* Adds up the plain files in a directory. */
static void count_in(struct hearth_directory *directory, const char *path, uint64_t *files, uint64_t *bytes) {
    char **names;
    size_t n;
    if (hearth_directory_names(directory, path, &names, &n) != HEARTH_OK) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        char file[512];
        struct stat st;
        if (join(file, path, names[i]) && fstatat(directory->fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0) {
            const bool plain = S_ISREG(st.st_mode);
            *files += plain || strcmp(path, HEARTH_DIRECTORY_BAD) == 0; /* of bad/ all counts, whatever it is */
            *bytes += plain ? ((uint64_t)st.st_size + 4095) / 4096 * 4096 : 0;
        }
    }
    hearth_directory_names_free(names, n);
}

struct rest_visit {
    struct hearth_directory *directory;
    struct hearth_directory_rest *rest;
};

static bool count_model(void *user, struct hearth_model_id model) {
    struct rest_visit *visit = user;
    uint64_t others = 0;
    count_in(visit->directory, hearth_directory_in_model(model, "tmp").text, &visit->rest->draft_files,
             &visit->rest->draft_bytes);
    count_in(visit->directory, model.hex, &others, &visit->rest->other_bytes);
    return true;
}

void hearth_directory_rest(struct hearth_directory *directory, struct hearth_directory_rest *rest) {
    *rest = (struct hearth_directory_rest){0};
    struct rest_visit visit = {.directory = directory, .rest = rest};
    count_in(directory, HEARTH_DIRECTORY_BAD, &rest->bad_files, &rest->bad_bytes);
    (void)hearth_directory_models(directory, count_model, &visit);
}

/* Removes what is in a directory, and below it down to `depth`; links are removed, not followed. Returns how many
 * things went; *failed is an errno when something stays. */
static uint64_t clear(struct hearth_directory *directory, const char *path, int depth, int *failed) {
    char **names;
    size_t n;
    uint64_t removed = 0;
    if (hearth_directory_names(directory, path, &names, &n) != HEARTH_OK) {
        *failed = EIO;
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        char inside[512];
        struct stat st;
        if (!join(inside, path, names[i])) {
            *failed = ENAMETOOLONG;
            continue;
        }
        if (fstatat(directory->fd, inside, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        const bool is_directory = S_ISDIR(st.st_mode);
        if (is_directory && depth > 0) {
            (void)clear(directory, inside, depth - 1, failed);
        }
        if (unlinkat(directory->fd, inside, is_directory ? AT_REMOVEDIR : 0) == 0) {
            removed++;
        } else if (errno != ENOENT) {
            *failed = errno;
        }
    }
    hearth_directory_names_free(names, n);
    return removed;
}

uint64_t hearth_directory_empty_bad(struct hearth_directory *directory) {
    int failed = 0;
    return clear(directory, HEARTH_DIRECTORY_BAD, 4, &failed);
}

int hearth_directory_remove_model(struct hearth_directory *directory, struct hearth_model_id model) {
    const int fd = openat(directory->fd, model.hex, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? HEARTH_ERR_NOT_FOUND : HEARTH_ERR_IO;
    }
    if (hearth_directory_flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        (void)close(fd);
        return HEARTH_ERR_BUSY;
    }
    struct stat st;
    if (fstatat(fd, "about", &st, AT_SYMLINK_NOFOLLOW) != 0 &&
        errno == ENOENT) { /* a name like a model's, and no more */
        (void)close(fd);
        return HEARTH_ERR_INVALID;
    }
    int failed = 0;
    (void)clear(directory, model.hex, 4, &failed);
    if (unlinkat(directory->fd, model.hex, AT_REMOVEDIR) != 0 && errno != ENOENT && failed == 0) {
        failed = errno;
    }
    (void)close(fd);
    errno = failed;
    return failed != 0 ? HEARTH_ERR_IO : HEARTH_OK;
}
