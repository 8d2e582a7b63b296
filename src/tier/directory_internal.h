/* What the files of the state directory share (tier/directory.h). */
#ifndef HEARTH_TIER_DIRECTORY_INTERNAL_H
#define HEARTH_TIER_DIRECTORY_INTERNAL_H

#include "tier/directory.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

struct hearth_directory {
    int fd; /* of the directory; everything is relative to it */
    char *path;
    _Atomic uint64_t bad; /* files quarantined through this handle */
    pthread_mutex_t mutex;
    int *held; /* locked directories of models, so that no gc removes them */
    struct hearth_model_id *held_models;
    size_t held_n;
    int users_fd; /* with the lock that tells of this handle; -1: none */
};

#define HEARTH_DIRECTORY_LOCK "lock"
#define HEARTH_DIRECTORY_USERS "servers"
#define HEARTH_DIRECTORY_BOX "box"
#define HEARTH_DIRECTORY_BAD "bad"

/* Longest path of a file relative to the directory. */
struct hearth_directory_path {
    char text[160];
};
struct hearth_directory_path hearth_directory_file_path(const struct hearth_file_id *id);
struct hearth_directory_path hearth_directory_in_model(struct hearth_model_id model, const char *name);

/* Whether one of the directories that a path goes through is a link (errno is ELOOP then): it is not to be used. */
bool hearth_directory_is_linked(const struct hearth_directory *directory, const char *path);

/* Makes a directory (0700 whatever the umask); one that exists is fine. Errors: IO, with errno. `made` (or NULL):
 * whether it was made. */
int hearth_directory_make(struct hearth_directory *directory, const char *path, bool *made);
/* Fills everything but the id from stat's answer. */
void hearth_directory_describe(const struct stat *st, struct hearth_file *file);
/* Opens a directory to which no link leads; -1 with errno. */
int hearth_directory_descend(const struct hearth_directory *directory, const char *path);
/* Syncs a directory. Errors: NOT_FOUND, IO. */
int hearth_directory_sync(struct hearth_directory *directory, const char *path);

/* The names in a directory, but "." and "..", sorted. `*names` and each of them are the caller's:
 * hearth_directory_names_free(). A directory that is not there has none. Errors: IO, NOMEM. */
int hearth_directory_names(struct hearth_directory *directory, const char *path, struct dirent ***names, size_t *n);
void hearth_directory_names_free(struct dirent **names, size_t n);

/* flock() that goes on after a signal; 0, or -1 with errno. */
int hearth_directory_flock(int fd, int operation);

#endif
