/* The budget of the state directory.
 *
 * One process at a time, by a lock on DIR/lock that the kernel takes from a process that dies. It sees the directory as
 * it is: a walk over all models (about a microsecond per file when the kernel has the names), then the oldest stamps
 * go, of owners that hold more than their share first (tier/share.h). An owner wants its state as long as the newest
 * stamp of its files is young. Files name their owner; those that do not are of one owner together. A file that
 * was used since the walk is spared, and one that another process removed meanwhile is not counted.
 *
 * What else goes: drafts with writers that are gone (their locks are free), and the directories of models that hold
 * nothing and are held by no server. A server holds a shared lock on its model's directory; here the exclusive one is
 * asked for without waiting. A directory with anything in it that is not hearth's, such as transcripts, stays. */
#include "tier/directory_internal.h"

#include "base/clock.h"
#include "tier/share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define DRAFT_AGE_S 86400 /* where there are no locks: a draft so old has no writer, however slow it is */
#define PROGRESS_FILES 512

struct gc_candidate {
    struct hearth_digest name;
    int64_t stamp_us;
    uint64_t bytes;
    uint32_t model; /* index */
    uint8_t kind;
    bool gone;
    uint16_t owner; /* of the sweep's shares */
};

struct sweep {
    struct hearth_directory *directory;
    struct hearth_gc *gc;
    struct hearth_model_id *models;
    size_t model_n, model_cap;
    struct gc_candidate *files;
    size_t n, cap;
    struct hearth_shares shares;
    bool nomem;
    int error; /* errno of the last removal that failed */
};

/* ---- what is there ---- */

static bool add_model(void *user, struct hearth_model_id model) {
    struct sweep *sweep = user;
    if (!HEARTH_BUF_ROOM(sweep->models, sweep->model_n, sweep->model_cap)) {
        sweep->nomem = true;
        return false;
    }
    sweep->models[sweep->model_n++] = model;
    return true;
}

static bool add_file(void *user, const struct hearth_file *file) {
    struct sweep *sweep = user;
    if (!HEARTH_BUF_ROOM(sweep->files, sweep->n, sweep->cap)) {
        sweep->nomem = true;
        return false;
    }
    sweep->files[sweep->n++] = (struct gc_candidate){.name = file->id.name,
                                                     .stamp_us = file->stamp_us,
                                                     .bytes = file->bytes,
                                                     .model = (uint32_t)(sweep->model_n - 1),
                                                     .kind = (uint8_t)file->id.kind};
    sweep->gc->bytes += file->bytes;
    if (sweep->gc->progress && sweep->n % PROGRESS_FILES == 0) {
        sweep->gc->progress(sweep->gc->user, sweep->n, 0);
    }
    return true;
}

/* ---- drafts of the dead ---- */

static void clean_draft(struct hearth_directory *directory, const char *path) {
    struct stat st;
    if (fstatat(directory->fd, path, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return;
    }
    if (!S_ISREG(st.st_mode)) { /* not a file of hearth's */
        (void)unlinkat(directory->fd, path, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
        return;
    }
    const int fd = openat(directory->fd, path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    const bool locked = hearth_directory_flock(fd, LOCK_EX | LOCK_NB) == 0;
    const bool busy = !locked && errno == EWOULDBLOCK;
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (locked || (!busy && st.st_mtim.tv_sec + DRAFT_AGE_S < now.tv_sec)) {
        (void)unlinkat(directory->fd, path, 0);
    }
    (void)close(fd);
}

void hearth_directory_clean_drafts(struct hearth_directory *directory, struct hearth_model_id model) {
    struct dirent **names;
    size_t n;
    if (hearth_directory_names(directory, hearth_directory_in_model(model, "tmp").text, &names, &n) != HEARTH_OK) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        char inside[96];
        if (strlen(names[i]->d_name) < 80) {
            (void)snprintf(inside, sizeof inside, "tmp/%.80s", names[i]->d_name);
            clean_draft(directory, hearth_directory_in_model(model, inside).text);
        }
    }
    hearth_directory_names_free(names, n);
}

/* ---- models without anything ---- */

static bool is_shard(const char *name) {
    return strlen(name) == 2 && strspn(name, "0123456789abcdef") == 2;
}

/* Removes a model's directory if it holds nothing but its own empty frame. The caller has its lock. */
static void remove_frame(struct hearth_directory *directory, struct hearth_model_id model) {
    struct dirent **names;
    size_t n;
    if (hearth_directory_names(directory, model.hex, &names, &n) != HEARTH_OK) {
        return;
    }
    bool empty = true;
    for (size_t i = 0; i < n && empty; i++) {
        empty = is_shard(names[i]->d_name) || strcmp(names[i]->d_name, "about") == 0 ||
                strcmp(names[i]->d_name, "tmp") == 0;
    }
    for (size_t i = 0; i < n && empty; i++) { /* rmdir() fails for a directory with anything else in it */
        empty = strcmp(names[i]->d_name, "about") == 0 ||
                unlinkat(directory->fd, hearth_directory_in_model(model, names[i]->d_name).text, AT_REMOVEDIR) == 0;
    }
    hearth_directory_names_free(names, n);
    if (empty) {
        (void)unlinkat(directory->fd, hearth_directory_in_model(model, "about").text, 0);
        (void)unlinkat(directory->fd, model.hex, AT_REMOVEDIR);
    }
}

static void remove_model(struct hearth_directory *directory, struct hearth_model_id model) {
    const int fd = openat(directory->fd, model.hex, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if (hearth_directory_flock(fd, LOCK_EX | LOCK_NB) == 0) {
        remove_frame(directory, model);
    }
    (void)close(fd);
}

/* ---- eviction ---- */

static int oldest_first(const void *a, const void *b) {
    const struct gc_candidate *x = a, *y = b;
    return x->stamp_us < y->stamp_us ? -1 : x->stamp_us > y->stamp_us;
}

static struct hearth_file_id id_of(const struct sweep *sweep, const struct gc_candidate *file) {
    return (struct hearth_file_id){
        .model = sweep->models[file->model], .name = file->name, .kind = (enum hearth_record_kind)file->kind};
}

/* Reads the owner of each file, and divides what may be left among the owners. False: out of memory. */
static bool share_out(struct sweep *sweep, uint64_t most) {
    struct hearth_shares *shares = &sweep->shares;
    if (!hearth_shares_init(shares, sweep->gc->share, HEARTH_SHARE_DISK_US)) {
        return false;
    }
    for (size_t i = 0; shares->part < 1 && i < sweep->n; i++) {
        struct gc_candidate *file = &sweep->files[i];
        const struct hearth_file_id id = id_of(sweep, file);
        file->owner = hearth_share_find(shares, hearth_file_owner(sweep->directory, &id));
        hearth_share_used(shares, file->owner, file->stamp_us);
        hearth_share_count(shares, file->owner, 0, file->bytes);
    }
    hearth_share_divide(shares, most, hearth_clock_unix_us());
    return true;
}

/* Removes one file. A file that is no longer there counts as gone, not as removed. */
static void evict(struct sweep *sweep, struct gc_candidate *victim) {
    struct hearth_gc *gc = sweep->gc;
    const struct hearth_file file = {.id = id_of(sweep, victim), .bytes = victim->bytes, .stamp_us = victim->stamp_us};
    struct stat st;
    const struct hearth_directory_path path = hearth_directory_file_path(&file.id);
    const int rc = fstatat(sweep->directory->fd, path.text, &st, AT_SYMLINK_NOFOLLOW);
    if (rc == 0 && (int64_t)st.st_mtim.tv_sec * 1000000 + st.st_mtim.tv_nsec / 1000 > victim->stamp_us) {
        return; /* it was used meanwhile */
    }
    int err = rc == 0 ? hearth_file_remove(sweep->directory, &file.id) : HEARTH_ERR_NOT_FOUND;
    if (err == HEARTH_ERR_STATE) {
        hearth_file_quarantine(sweep->directory, &file.id, "a directory");
        err = HEARTH_ERR_NOT_FOUND;
    }
    if (err == HEARTH_ERR_IO) {
        sweep->error = errno;
        return;
    }
    gc->files--;
    gc->bytes -= victim->bytes;
    if (sweep->shares.part < 1) {
        hearth_share_count(&sweep->shares, victim->owner, victim->bytes, 0);
    }
    victim->gone = true;
    if (err == HEARTH_OK) {
        gc->removed_files++;
        gc->removed_bytes += victim->bytes;
        if (gc->removed) {
            gc->removed(gc->user, &file);
        }
    }
}

static int sweep_files(struct sweep *sweep) {
    struct hearth_gc *gc = sweep->gc;
    const uint64_t most = gc->need_bytes < gc->budget_bytes ? gc->budget_bytes - gc->need_bytes : 0;
    gc->files = sweep->n;
    if (gc->progress) {
        gc->progress(gc->user, sweep->n, sweep->n);
    }
    if (gc->bytes > most) {
        qsort(sweep->files, sweep->n, sizeof *sweep->files, oldest_first);
        if (!share_out(sweep, most)) {
            return HEARTH_ERR_NOMEM;
        }
    }
    const int first = sweep->shares.part < 1 ? 0 : HEARTH_SHARE_PASSES - 1;
    for (int pass = first; pass < HEARTH_SHARE_PASSES && gc->bytes > most; pass++) {
        for (size_t i = 0; i < sweep->n && gc->bytes > most; i++) {
            if (!sweep->files[i].gone && hearth_share_gives(&sweep->shares, sweep->files[i].owner, pass)) {
                evict(sweep, &sweep->files[i]);
            }
        }
    }
    return sweep->error != 0 && gc->bytes > most ? HEARTH_ERR_IO : HEARTH_OK;
}

/* The lock's descriptor, or -1. */
static int take_lock(struct hearth_directory *directory) {
    const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = openat(directory->fd, HEARTH_DIRECTORY_LOCK, O_RDWR | O_CREAT | flags, 0600);
    if (fd < 0) {
        fd = openat(directory->fd, HEARTH_DIRECTORY_LOCK, O_RDONLY | flags); /* enough for a lock */
    }
    if (fd >= 0 && hearth_directory_flock(fd, LOCK_EX) != 0 && errno != ENOTSUP && errno != ENOLCK) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

int hearth_directory_gc(struct hearth_directory *directory, struct hearth_gc *gc) {
    gc->files = gc->bytes = gc->removed_files = gc->removed_bytes = 0;
    const int lock = take_lock(directory);
    if (lock < 0) {
        return HEARTH_ERR_IO;
    }
    struct sweep models = {.gc = gc}, sweep = {.directory = directory, .gc = gc};
    int err = hearth_directory_models(directory, add_model, &models);
    for (size_t i = 0; i < models.model_n && !models.nomem && !sweep.nomem; i++) {
        hearth_directory_clean_drafts(directory, models.models[i]);
        if (!add_model(&sweep, models.models[i])) {
            break;
        }
        const int failed = hearth_directory_walk(directory, models.models[i], -1, add_file, &sweep);
        err = err == HEARTH_OK ? failed : err;
    }
    if (models.nomem || sweep.nomem) {
        err = HEARTH_ERR_NOMEM;
    } else {
        const int failed = sweep_files(&sweep);
        err = err == HEARTH_OK ? failed : err;
        for (size_t i = 0; i < sweep.model_n; i++) {
            remove_model(directory, sweep.models[i]);
        }
    }
    free(models.models);
    free(sweep.models);
    free(sweep.files);
    hearth_shares_finish(&sweep.shares);
    (void)close(lock);
    errno = sweep.error != 0 ? sweep.error : EIO;
    return err;
}

/* ---- everything besides the files of items: quarantined files, drafts, files of other programs ----
 *
 * The removal of a model is the only place that removes files of unknown names. */

/* A path of two parts. False: it is too long to be a file of hearth's. */
static bool join(char out[512], const char *in, const char *name) {
    const int n = snprintf(out, 512, "%s/%s", in, name);
    return n > 0 && n < 512;
}

/* Adds up the plain files in a directory. */
static void count_in(struct hearth_directory *directory, const char *path, uint64_t *files, uint64_t *bytes) {
    struct dirent **names;
    size_t n;
    if (hearth_directory_names(directory, path, &names, &n) != HEARTH_OK) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        char file[512];
        struct stat st;
        if (join(file, path, names[i]->d_name) && fstatat(directory->fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0) {
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
    struct dirent **names;
    size_t n;
    uint64_t removed = 0;
    if (hearth_directory_names(directory, path, &names, &n) != HEARTH_OK) {
        *failed = EIO;
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        char inside[512];
        struct stat st;
        if (!join(inside, path, names[i]->d_name)) {
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
