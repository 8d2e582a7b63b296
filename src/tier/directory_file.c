/* The files of the state directory: opened, made, used, removed, quarantined.
 *
 * Reading trusts nothing about a name: it may by now be a directory, a link, a FIFO or another user's file. So files
 * are opened without following and without blocking, and looked at through the descriptor before a byte is read.
 *
 * Writing: a draft in tmp/ is locked by its writer for as long as that has it open. A gc that gets the lock knows that
 * the writer is gone. In the instant between open() and flock() a gc can win; the writer sees that (the lock is taken,
 * or the file has no name any more) and starts over under another name. The name in the shard appears by rename() and
 * replaces what was there, which held the same or was worthless. */
#include "tier/directory_internal.h"

#include "base/assert.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/xattr.h>
#include <unistd.h>

#define HITS_NAME "user.hearth.hits"
#define OWNER_NAME "user.hearth.owner"
/* Quarantined files are for a look at what has happened: some are enough, as long as they do not fill the disk. */
#define BAD_ITEMS_MAX 64
#define BAD_BYTES_MAX (1024 * (uint64_t)1048576)
#define SUPERSEDED_US (86400 * INT64_C(1000000)) /* a passed snapshot goes before what the last day has used */

/* A number that no other writer uses, here or on another machine. */
static uint64_t unique(void) {
    static _Atomic uint64_t counter;
    uint64_t value;
    if (getrandom(&value, sizeof value, GRND_NONBLOCK) != (ssize_t)sizeof value) {
        struct timespec now;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        value = (uint64_t)now.tv_nsec << 32 ^ (uint64_t)now.tv_sec << 16 ^ (uint64_t)getpid();
    }
    return value + atomic_fetch_add(&counter, 1) * UINT64_C(0x9e3779b97f4a7c15);
}

/* ---- reading ---- */

static int open_plain(struct hearth_directory *directory, const char *path, int *out, struct stat *st) {
    *out = -1;
    if (hearth_directory_is_linked(directory, path)) {
        return HEARTH_ERR_NOT_FOUND;
    }
    const int fd = openat(directory->fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        switch (errno) {
        case ENOENT:
        case ENOTDIR: return HEARTH_ERR_NOT_FOUND;
        case ELOOP:  /* a link */
        case ENXIO:  /* a socket, a device that is not there */
        case EACCES: /* another user's, or rights that hearth never gives */
        case EPERM:
        case ENODEV: return HEARTH_ERR_STATE;
        default: return HEARTH_ERR_IO;
        }
    }
    int err = HEARTH_OK;
    if (fstat(fd, st) != 0) {
        err = HEARTH_ERR_IO;
    } else if (!S_ISREG(st->st_mode) || st->st_uid != geteuid()) {
        err = HEARTH_ERR_STATE;
    }
    if (err != HEARTH_OK) {
        (void)close(fd);
        return err;
    }
    *out = fd;
    return HEARTH_OK;
}

int hearth_file_open(struct hearth_directory *directory, const struct hearth_file_id *id, int *fd) {
    struct stat st;
    return open_plain(directory, hearth_directory_file_path(id).text, fd, &st);
}

/* A noted number; 0: none, or the file system has no such attributes. */
static uint64_t read_number(int fd, const char *name) {
    char text[24];
    const ssize_t n = fgetxattr(fd, name, text, sizeof text - 1);
    if (n <= 0) {
        return 0;
    }
    text[n] = '\0';
    return strtoull(text, NULL, 10);
}

uint32_t hearth_file_hits(int fd) {
    const uint64_t value = read_number(fd, HITS_NAME);
    return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

uint64_t hearth_file_owner(struct hearth_directory *directory, const struct hearth_file_id *id) {
    int fd;
    struct stat st;
    if (open_plain(directory, hearth_directory_file_path(id).text, &fd, &st) != HEARTH_OK) {
        return 0;
    }
    const uint64_t owner = read_number(fd, OWNER_NAME);
    (void)close(fd);
    return owner;
}

int hearth_file_stat(struct hearth_directory *directory, const struct hearth_file_id *id, struct hearth_file *file,
                     uint32_t *hits) {
    int fd;
    struct stat st;
    const int err = open_plain(directory, hearth_directory_file_path(id).text, &fd, &st);
    if (err != HEARTH_OK) {
        return err;
    }
    file->id = *id;
    hearth_directory_describe(&st, file);
    if (hits) {
        *hits = hearth_file_hits(fd);
    }
    (void)close(fd);
    return HEARTH_OK;
}

/* ---- what is quarantined ---- */

/* Keeps bad/ small: the oldest go, by their names, which begin with the time. Never the newest. */
static void tidy_bad(struct hearth_directory *directory) {
    struct dirent **names;
    size_t n;
    if (hearth_directory_names(directory, HEARTH_DIRECTORY_BAD, &names, &n) != HEARTH_OK) {
        return;
    }
    uint64_t bytes = 0;
    size_t left = 0;
    for (size_t i = n; i-- > 0;) {
        char path[320];
        struct stat st;
        (void)snprintf(path, sizeof path, HEARTH_DIRECTORY_BAD "/%.300s", names[i]->d_name);
        if (fstatat(directory->fd, path, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        const uint64_t size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
        if (left == 0 || (left < BAD_ITEMS_MAX && bytes + size <= BAD_BYTES_MAX)) {
            left++;
            bytes += size;
        } else {
            (void)unlinkat(directory->fd, path, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
        }
    }
    hearth_directory_names_free(names, n);
}

/* A name in bad/: when, of which model, and what. */
static void bad_path(struct hearth_model_id model, const char *what, char out[256]) {
    struct timespec now;
    struct tm when;
    char date[32] = "";
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &when)) {
        (void)strftime(date, sizeof date, "%Y%m%dT%H%M%S", &when);
    }
    (void)snprintf(out, 256, HEARTH_DIRECTORY_BAD "/%s.%06ld-%s-%.80s.%04x", date, now.tv_nsec / 1000, model.hex, what,
                   (unsigned)(unique() & 0xffff));
}

/* rename(2), which makes bad/ when it is not there, or is a link. */
static int move_to_bad(struct hearth_directory *directory, const char *from, const char *to) {
    if (hearth_directory_is_linked(directory, to)) {
        (void)unlinkat(directory->fd, HEARTH_DIRECTORY_BAD, 0);
    }
    int rc = renameat(directory->fd, from, directory->fd, to);
    if (rc != 0 && errno == ENOENT && hearth_directory_make(directory, HEARTH_DIRECTORY_BAD, NULL) == HEARTH_OK) {
        rc = renameat(directory->fd, from, directory->fd, to);
    }
    return rc;
}

/* Moves a file that is no directory, but has the name of one (a shard, tmp), out of the way. It is examined once, so
 * that what another process makes meanwhile is not taken for it. Where two processes do this, the slower one may move
 * the directory that the faster one has made in its place; it then puts that back. */
static void displace(struct hearth_directory *directory, struct hearth_model_id model, const char *name) {
    const struct hearth_directory_path path = hearth_directory_in_model(model, name);
    struct stat st;
    char to[256];
    if (fstatat(directory->fd, path.text, &st, AT_SYMLINK_NOFOLLOW) != 0 || S_ISDIR(st.st_mode)) {
        return;
    }
    bad_path(model, name, to);
    if (move_to_bad(directory, path.text, to) != 0) {
        return;
    }
    if (fstatat(directory->fd, to, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) {
        (void)renameat(directory->fd, to, directory->fd, path.text);
        return;
    }
    const uint64_t count = atomic_fetch_add(&directory->bad, 1) + 1;
    hearth_log(HEARTH_LOG_WARN, "%s is no directory: quarantined in bad/ (%" PRIu64 " so far)", path.text, count);
    tidy_bad(directory);
}

void hearth_file_quarantine(struct hearth_directory *directory, const struct hearth_file_id *id, const char *why) {
    const struct hearth_directory_path from = hearth_directory_file_path(id);
    char to[256], name[64], hex[33];
    if (hearth_directory_is_linked(directory, from.text)) {
        return; /* it belongs to another program */
    }
    hearth_digest_hex(id->name, hex);
    (void)snprintf(name, sizeof name, "%s.%s", hex, id->kind == HEARTH_RECORD_PAGE ? "page" : "snap");
    bad_path(id->model, name, to);
    /* A link, a pipe or a socket holds nothing to look at; and confined, a process may not give one a name (renaming it
     * into another directory is that to Landlock). */
    struct stat st;
    const bool holds =
        fstatat(directory->fd, from.text, &st, AT_SYMLINK_NOFOLLOW) != 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode);
    const char *what = "quarantined in bad/";
    if (!holds && unlinkat(directory->fd, from.text, 0) == 0) {
        what = "removed";
    } else if (move_to_bad(directory, from.text, to) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) {
            return; /* gone: another process was first */
        }
        const int saved = errno;
        if (unlinkat(directory->fd, from.text, 0) == 0 || unlinkat(directory->fd, from.text, AT_REMOVEDIR) == 0) {
            what = "removed, as it could not be quarantined";
        } else if (errno == ENOENT) {
            return;
        } else {
            what = strerror(saved);
        }
    }
    const uint64_t count = atomic_fetch_add(&directory->bad, 1) + 1;
    hearth_log(HEARTH_LOG_WARN, "state file %s is not used: %s (%s; %" PRIu64 " so far)", from.text, why, what, count);
    tidy_bad(directory);
}

/* ---- writing ---- */

static struct hearth_directory_path draft_path(const struct hearth_file_draft *draft) {
    char inside[80];
    (void)snprintf(inside, sizeof inside, "tmp/%.64s", draft->name);
    return hearth_directory_in_model(draft->model, inside);
}

/* Opens and locks a draft under the name it has. False: another process was there (errno EEXIST), or it failed. */
static bool try_draft(struct hearth_directory *directory, struct hearth_file_draft *draft) {
    const struct hearth_directory_path path = draft_path(draft);
    if (hearth_directory_is_linked(directory, path.text)) {
        return false;
    }
    const int fd =
        openat(directory->fd, path.text, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0) {
        return false;
    }
    struct stat st;
    const bool locked = hearth_directory_flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (!locked || fstat(fd, &st) != 0 || st.st_nlink == 0) {
        (void)unlinkat(directory->fd, path.text, 0);
        (void)close(fd);
        errno = EEXIST;
        return false;
    }
    if ((st.st_mode & 0777) != 0600 && fchmod(fd, 0600) != 0) {
        const int saved = errno;
        (void)unlinkat(directory->fd, path.text, 0);
        (void)close(fd);
        errno = saved == EEXIST ? EIO : saved;
        return false;
    }
    draft->fd = fd;
    return true;
}

int hearth_file_create(struct hearth_directory *directory, struct hearth_model_id model,
                       struct hearth_file_draft *draft) {
    *draft = (struct hearth_file_draft){.fd = -1, .model = model};
    bool made_tmp = false;
    for (int tries = 0; tries < 100; tries++) {
        (void)snprintf(draft->name, sizeof draft->name, "%ld-%016" PRIx64, (long)getpid(), unique());
        if (try_draft(directory, draft)) {
            return HEARTH_OK;
        }
        if ((errno == ENOENT || errno == ENOTDIR || errno == ELOOP) && !made_tmp) { /* another process tidied up */
            made_tmp = true;
            (void)hearth_directory_make(directory, model.hex, NULL);
            displace(directory, model, "tmp");
            if (hearth_directory_make(directory, hearth_directory_in_model(model, "tmp").text, NULL) != HEARTH_OK) {
                return HEARTH_ERR_IO;
            }
        } else if (errno != EEXIST) {
            return HEARTH_ERR_IO;
        }
    }
    errno = EEXIST;
    return HEARTH_ERR_IO;
}

void hearth_file_own(const struct hearth_file_draft *draft, uint64_t owner) {
    char text[24];
    const int n = snprintf(text, sizeof text, "%" PRIu64, owner);
    if (owner != 0) {
        (void)fsetxattr(draft->fd, OWNER_NAME, text, (size_t)n, 0); /* without it the file has no owner */
    }
}

void hearth_file_discard(struct hearth_directory *directory, struct hearth_file_draft *draft) {
    const int saved = errno;
    if (draft->fd >= 0) {
        (void)unlinkat(directory->fd, draft_path(draft).text, 0);
        (void)close(draft->fd);
        draft->fd = -1;
    }
    errno = saved;
}

/* The shard's name within the model. */
static void shard_name(const struct hearth_file_id *id, char out[3]) {
    char hex[33];
    hearth_digest_hex(id->name, hex);
    memcpy(out, hex, 2);
    out[2] = '\0';
}

/* Makes the file's shard, and that it is there outlast a power cut. */
static int make_shard(struct hearth_directory *directory, const struct hearth_file_id *id) {
    char shard[3];
    bool made;
    shard_name(id, shard);
    displace(directory, id->model, shard);
    int err = hearth_directory_make(directory, hearth_directory_in_model(id->model, shard).text, &made);
    if (err == HEARTH_OK && made) {
        err = hearth_directory_sync(directory, id->model.hex);
    }
    return err;
}

int hearth_file_publish(struct hearth_directory *directory, struct hearth_file_draft *draft,
                        const struct hearth_file_id *id, const struct timespec *stamp) {
    HEARTH_ASSERT(draft->fd >= 0 && strcmp(draft->model.hex, id->model.hex) == 0);
    const struct hearth_directory_path from = draft_path(draft), to = hearth_directory_file_path(id);
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, *stamp};
    bool done = false, failed = futimens(draft->fd, times) != 0;
    for (int tries = 0; tries < 4 && !done && !failed; tries++) {
        done = !hearth_directory_is_linked(directory, to.text) &&
               renameat(directory->fd, from.text, directory->fd, to.text) == 0;
        if (done) {
            break;
        }
        switch (errno) {
        case ENOENT: /* the first file of its shard */
        case ENOTDIR:
        case ELOOP: failed = make_shard(directory, id) != HEARTH_OK; break;
        case EISDIR: /* a directory has the name */
        case EEXIST:
        case ENOTEMPTY: hearth_file_quarantine(directory, id, "a directory"); break;
        default: failed = true;
        }
    }
    if (!done) {
        hearth_file_discard(directory, draft);
        return HEARTH_ERR_IO;
    }
    (void)close(draft->fd);
    draft->fd = -1;
    return HEARTH_OK;
}

int hearth_file_sync_shard(struct hearth_directory *directory, const struct hearth_file_id *id) {
    char shard[3];
    shard_name(id, shard);
    return hearth_directory_sync(directory, hearth_directory_in_model(id->model, shard).text);
}

int hearth_file_remove(struct hearth_directory *directory, const struct hearth_file_id *id) {
    const struct hearth_directory_path path = hearth_directory_file_path(id);
    if (hearth_directory_is_linked(directory, path.text)) {
        return HEARTH_ERR_NOT_FOUND;
    }
    if (unlinkat(directory->fd, path.text, 0) == 0) {
        return HEARTH_OK;
    }
    return errno == ENOENT || errno == ENOTDIR ? HEARTH_ERR_NOT_FOUND
           : errno == EISDIR                   ? HEARTH_ERR_STATE
                                               : HEARTH_ERR_IO;
}

/* ---- use ---- */

struct timespec hearth_file_stamp(int64_t used_us, int32_t pos, bool superseded) {
    int64_t us = used_us - pos - (superseded ? SUPERSEDED_US : 0);
    us = us > 0 ? us : 0;
    return (struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
}

int hearth_file_touch(struct hearth_directory *directory, const struct hearth_file_id *id, const struct timespec *stamp,
                      uint32_t hits) {
    int fd;
    struct stat st;
    const int err = open_plain(directory, hearth_directory_file_path(id).text, &fd, &st);
    if (err != HEARTH_OK) {
        return err;
    }
    if (hits > 0) {
        const uint32_t before = hearth_file_hits(fd);
        char text[16];
        const int n = snprintf(text, sizeof text, "%" PRIu32, hits > UINT32_MAX - before ? UINT32_MAX : before + hits);
        (void)fsetxattr(fd, HITS_NAME, text, (size_t)n, 0); /* for people: without it there is no number */
    }
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, *stamp};
    const int rc = futimens(fd, times);
    (void)close(fd);
    return rc == 0 ? HEARTH_OK : HEARTH_ERR_IO;
}
