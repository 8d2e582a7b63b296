/* What stands at a path is told from its bytes, before a connection is opened: that would carry a log into the file and
 * leave files beside it, and another program's file is never touched.
 *
 * The bytes are read through SQLite's layer for files. close() on a descriptor of this file would end every lock that
 * this process has on the file (POSIX), and with them those of its open connections: the next process to close the
 * database would take itself for the last one and delete the log under them.
 * Source: https://www.sqlite.org/howtocorrupt.html, section 2.2
 *
 * SQLite takes what stands beside it, PATH-wal, -journal and -shm, for the database's own: it carries a log into the
 * file whatever it is the log of, and deletes what it has no use for. So these are checked, too. A file with a header
 * that does not say WAL is a copy or was recovered, and a log beside it belongs to what stood there before.
 *
 * A database of hearth has its application_id, in the header or in the last copy of the first page that stands in the
 * log beside it: a database is begun in the file and goes on in the log. An empty file (a start that was ended at once
 * leaves one) and a database without a table belong to no program.
 *
 * A log is a head and frames, each a page with numbers of its own:
 *
 *     head     magic, version, bytes of a page, checkpoints | salt (8) | sum (8)      32 bytes
 *     frame    number of the page, pages of the database where a transaction ends, else 0 | salt (8) | sum (8) | page
 *
 * A sum goes over all that stands before it, so a frame is good when all before it are. The salt is the head's; frames
 * that an earlier log has left behind the end have another one. What a crash leaves is one transaction that does not
 * verify, as each is synced before the next one begins. Behind it nothing can have been committed.
 * Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log */
#include "session/db_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 0x377F0682 };
enum { HEAD = 108, VERSION_AT = 60, APPLICATION_AT = 68, PAGES_AT = 28, MODE_AT = 19 };

uint32_t hearth_db_big32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

int hearth_db_open_beside(const char *path, const char *suffix) {
    char *name = NULL;
    int fd = -1;
    if (asprintf(&name, "%s%s", path, suffix) >= 0) {
        fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        free(name);
    }
    return fd;
}

/* The beginning of the first page as it stands in the log, in place of what the file has. */
static void read_log(const char *path, uint8_t head[HEAD]) {
    uint8_t log[HEARTH_DB_LOG_HEAD], frame[HEARTH_DB_LOG_FRAME], first[HEAD];
    const int fd = hearth_db_open_beside(path, "-wal");
    if (fd >= 0 && pread(fd, log, sizeof log, 0) == HEARTH_DB_LOG_HEAD && hearth_db_big32(log) >> 1 == MAGIC >> 1) {
        const uint32_t page = hearth_db_big32(log + 8);
        for (off_t at = HEARTH_DB_LOG_HEAD;
             page >= HEARTH_DB_PAGE_MIN && pread(fd, frame, sizeof frame, at) == HEARTH_DB_LOG_FRAME;
             at += HEARTH_DB_LOG_FRAME + (off_t)page) {
            const bool current = memcmp(frame + 8, log + 16, 8) == 0; /* the salts: not left from an earlier log */
            if (current && hearth_db_big32(frame) == 1 && pread(fd, first, HEAD, at + HEARTH_DB_LOG_FRAME) == HEAD) {
                memcpy(head, first, HEAD);
            }
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

static bool has_no_table(const uint8_t head[HEAD]) {
    return hearth_db_big32(head + APPLICATION_AT) == 0 && hearth_db_big32(head + VERSION_AT) == 0 &&
           hearth_db_big32(head + PAGES_AT) <= 1 && head[100] == 13 && head[103] == 0 && head[104] == 0;
}

int hearth_db_raw_open(const char *path, struct hearth_db_raw *raw) {
    struct stat st;
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");
    *raw = (struct hearth_db_raw){0};
    if (lstat(path, &st) != 0) {
        return -1;
    }
    errno = S_ISREG(st.st_mode) ? ENOMEM : EINVAL;
    if (vfs == NULL || !S_ISREG(st.st_mode)) { /* a pipe would be waited for */
        return -1;
    }
    raw->name = sqlite3_create_filename(path, "", "", 0, NULL);
    raw->file = raw->name != NULL ? calloc(1, (size_t)vfs->szOsFile) : NULL;
    if (raw->file == NULL ||
        vfs->xOpen(vfs, raw->name, raw->file, SQLITE_OPEN_READONLY | SQLITE_OPEN_MAIN_DB, NULL) != SQLITE_OK) {
        const int saved = errno;
        hearth_db_raw_close(raw);
        errno = saved;
        return -1;
    }
    return 0;
}

void hearth_db_raw_close(struct hearth_db_raw *raw) {
    if (raw->file != NULL && raw->file->pMethods != NULL) {
        (void)raw->file->pMethods->xClose(raw->file);
    }
    free(raw->file);
    sqlite3_free_filename(raw->name);
    *raw = (struct hearth_db_raw){0};
}

ssize_t hearth_db_raw_read(const struct hearth_db_raw *raw, void *bytes, size_t len, uint64_t at) {
    sqlite3_int64 size = 0;
    if (raw->file->pMethods->xFileSize(raw->file, &size) != SQLITE_OK) {
        return -1;
    }
    const uint64_t left = (uint64_t)size > at ? (uint64_t)size - at : 0;
    len = left < len ? (size_t)left : len;
    const int rc = len > 0 ? raw->file->pMethods->xRead(raw->file, bytes, (int)len, (sqlite3_int64)at) : SQLITE_OK;
    return rc == SQLITE_OK ? (ssize_t)len : -1;
}

static bool read_head(const char *path, uint8_t head[HEAD], ssize_t *n) {
    struct hearth_db_raw raw;
    if (hearth_db_raw_open(path, &raw) != 0) {
        return false;
    }
    *n = hearth_db_raw_read(&raw, head, HEAD, 0);
    hearth_db_raw_close(&raw);
    return true;
}

enum hearth_db_file hearth_db_probe(const struct hearth_db_kind *kind, const char *path) {
    uint8_t head[HEAD] = {0};
    ssize_t n = 0;
    if (!read_head(path, head, &n)) {
        return errno == ENOENT ? HEARTH_DB_FILE_NONE : HEARTH_DB_FILE_CLOSED;
    }
    if (n < 0) {
        return HEARTH_DB_FILE_CLOSED;
    }
    if (n == 0) {
        return HEARTH_DB_FILE_EMPTY;
    }
    if (n < HEAD || memcmp(head, "SQLite format 3", 16) != 0) {
        return HEARTH_DB_FILE_OTHER;
    }
    if (hearth_db_big32(head + APPLICATION_AT) != (uint32_t)kind->application) {
        read_log(path, head);
    }
    return hearth_db_big32(head + APPLICATION_AT) == (uint32_t)kind->application ? HEARTH_DB_FILE_OURS
           : has_no_table(head)                                                  ? HEARTH_DB_FILE_EMPTY
                                                                                 : HEARTH_DB_FILE_OTHER;
}

static int fault(struct hearth_errmsg *reason, int rc, const char *what) {
    (void)hearth_fail(reason, HEARTH_ERR_IO, "%s", what);
    return rc;
}

/* What a file beside a database begins with when it is SQLite's; zeros when it is done with. */
static bool begins_like(const char *path, const char *suffix, const uint8_t *magic, size_t len) {
    static const uint8_t zeros[8];
    uint8_t head[8];
    const int fd = hearth_db_open_beside(path, suffix);
    const ssize_t n = fd >= 0 ? pread(fd, head, len, 0) : 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return n == 0 || (n == (ssize_t)len && (memcmp(head, magic, len) == 0 || memcmp(head, zeros, len) == 0));
}

/* The size of a file beside a database; 0: there is none; -1: it is no plain file. */
static int64_t size_beside(const char *path, const char *suffix) {
    struct stat st;
    char *name = NULL;
    int64_t size = 0;
    if (asprintf(&name, "%s%s", path, suffix) >= 0) {
        size = lstat(name, &st) != 0 ? 0 : S_ISREG(st.st_mode) ? (int64_t)st.st_size : -1;
        free(name);
    }
    return size;
}

/* Refuses what stands beside a database and is not of it. The shared memory is told by its size alone: opening it would
 * end this process's locks on it. */
static int check_beside(const char *path, struct hearth_errmsg *reason) {
    enum { SHARED_BEGIN = 3, SHARED_PAGE = 4096 }; /* it is cut to the one, and grows by the other */
    static const uint8_t log_magic[2][4] = {{0x37, 0x7F, 0x06, 0x82}, {0x37, 0x7F, 0x06, 0x83}};
    static const uint8_t journal_magic[8] = {0xD9, 0xD5, 0x05, 0xF9, 0x20, 0xA1, 0x63, 0xD7};
    const int64_t log = size_beside(path, "-wal"), shared = size_beside(path, "-shm");
    uint8_t head[HEAD] = {0};
    ssize_t n = 0;
    const char *other =
        log < 0 || (!begins_like(path, "-wal", log_magic[0], 4) && !begins_like(path, "-wal", log_magic[1], 4)) ? "-wal"
        : size_beside(path, "-journal") < 0 || !begins_like(path, "-journal", journal_magic, 8) ? "-journal"
        : shared < 0 || (shared > SHARED_BEGIN && shared % SHARED_PAGE != 0)                    ? "-shm"
                                                                                                : NULL;
    if (other != NULL) {
        (void)hearth_fail(reason, HEARTH_ERR_IO,
                          "what stands beside it with %s behind its name is no file of hearth's: move "
                          "it away, or give the database another name",
                          other);
        return SQLITE_CANTOPEN;
    }
    const bool there = log > 0 && read_head(path, head, &n);
    if (log > 0 && n == 0 && (there || errno == ENOENT)) { /* SQLite would delete it and begin anew */
        return fault(reason, SQLITE_CANTOPEN,
                     "the file is gone or empty, and the log beside it (its name and -wal) holds what was "
                     "written last: put the file back, or move the log away to begin anew");
    }
    if (there && n == HEAD && head[MODE_AT] == 1) {
        return fault(reason, SQLITE_CANTOPEN,
                     "the log beside it (its name and -wal) is of the database that stood here "
                     "before: move it away, and the file with -shm");
    }
    return SQLITE_OK;
}

int hearth_db_check_file(const struct hearth_db_kind *kind, const char *path, struct hearth_errmsg *reason) {
    struct stat st;
    if (lstat(path, &st) != 0) {
        return errno != ENOENT         ? fault(reason, SQLITE_CANTOPEN, strerror(errno))
               : kind->replaces_others ? SQLITE_OK
                                       : check_beside(path, reason);
    }
    if (!S_ISREG(st.st_mode)) {
        return fault(reason, SQLITE_CANTOPEN,
                     S_ISLNK(st.st_mode) ? "it is a symbolic link" : "it is not a regular file");
    }
    if (st.st_uid != geteuid()) {
        return fault(reason, SQLITE_CANTOPEN, "it belongs to another user");
    }
    if (access(path, R_OK | W_OK) != 0) {
        return fault(reason, SQLITE_CANTOPEN, strerror(errno));
    }
    if (kind->replaces_others) {
        return SQLITE_OK;
    }
    /* SQLite takes a file of one byte for an empty one. */
    const bool other = st.st_size == 1 || hearth_db_probe(kind, path) == HEARTH_DB_FILE_OTHER;
    return other ? HEARTH_DB_ALIEN : check_beside(path, reason);
}

int hearth_db_make_file(const struct hearth_db_kind *kind, const char *path, struct hearth_errmsg *reason) {
    struct stat st;
    const int rc = hearth_db_check_file(kind, path, reason);
    if (rc != SQLITE_OK) {
        return rc;
    }
    const int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) {
        close(fd);
        return SQLITE_OK;
    }
    if (errno != EEXIST || lstat(path, &st) != 0) {
        return fault(reason, SQLITE_CANTOPEN, strerror(errno));
    }
    if ((st.st_mode & 077) != 0 && chmod(path, 0600) != 0) {
        return fault(reason, SQLITE_CANTOPEN, strerror(errno));
    }
    return SQLITE_OK;
}

/* ---- damage of the log ---- */

static uint32_t little32(const uint8_t *at) {
    return (uint32_t)at[3] << 24 | (uint32_t)at[2] << 16 | (uint32_t)at[1] << 8 | at[0];
}

/* Takes `len` bytes, a multiple of eight, into a sum. */
static void add(uint32_t sum[2], const uint8_t *at, size_t len, bool big) {
    for (const uint8_t *end = at + len; at < end; at += 8) {
        sum[0] += (big ? hearth_db_big32(at) : little32(at)) + sum[1];
        sum[1] += (big ? hearth_db_big32(at + 4) : little32(at + 4)) + sum[0];
    }
}

static bool is_sum(const uint32_t sum[2], const uint8_t *at) {
    return hearth_db_big32(at) == sum[0] && hearth_db_big32(at + 4) == sum[1];
}

bool hearth_db_log_head_is_good(const uint8_t head[HEARTH_DB_LOG_HEAD]) {
    const uint32_t magic = hearth_db_big32(head), page = hearth_db_big32(head + 8);
    uint32_t sum[2] = {0, 0};
    add(sum, head, 24, (magic & 1) != 0);
    return magic >> 1 == MAGIC >> 1 && page >= HEARTH_DB_PAGE_MIN && page <= HEARTH_DB_PAGE_MAX &&
           is_sum(sum, head + 24);
}

/* The number of the frame from which on the log cannot be believed although more was committed behind it; 0: none. */
static uint64_t find_gap(int fd, const uint8_t head[HEARTH_DB_LOG_HEAD], uint8_t *frame) {
    const size_t bytes = HEARTH_DB_LOG_FRAME + hearth_db_big32(head + 8);
    const bool big = (hearth_db_big32(head) & 1) != 0;
    uint32_t sum[2] = {hearth_db_big32(head + 24), hearth_db_big32(head + 28)};
    uint64_t gap = 0, ends = 0;
    off_t at = HEARTH_DB_LOG_HEAD;
    for (uint64_t number = 1; pread(fd, frame, bytes, at) == (ssize_t)bytes; number++, at += (off_t)bytes) {
        const bool current = memcmp(frame + 8, head + 16, 8) == 0;
        if (gap == 0) {
            add(sum, frame, 8, big);
            add(sum, frame + HEARTH_DB_LOG_FRAME, bytes - HEARTH_DB_LOG_FRAME, big);
            gap = current && is_sum(sum, frame + 16) ? 0 : number;
        }
        ends += gap != 0 && current && hearth_db_big32(frame + 4) != 0;
    }
    return ends > 1 ? gap : 0;
}

/* Another process may write meanwhile: what is at fault is so twice, in the same log. */
static bool has_gap(int fd) {
    uint8_t head[HEARTH_DB_LOG_HEAD], again[HEARTH_DB_LOG_HEAD];
    uint8_t *frame = malloc(HEARTH_DB_LOG_FRAME + HEARTH_DB_PAGE_MAX);
    uint64_t gap[2] = {0, 0};
    bool same = frame != NULL;
    for (int i = 0; i < 2 && same; i++) {
        same = pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head && hearth_db_log_head_is_good(head);
        gap[i] = same ? find_gap(fd, head, frame) : 0;
        same =
            same && pread(fd, again, sizeof again, 0) == (ssize_t)sizeof again && memcmp(head, again, sizeof head) == 0;
    }
    free(frame);
    return same && gap[0] != 0 && gap[0] == gap[1];
}

/* A head that does not verify hides all of the frames. One that is being written is whole a moment later. */
static bool has_lost_its_head(int fd) {
    static const uint8_t zeros[HEARTH_DB_LOG_HEAD];
    uint8_t head[2][HEARTH_DB_LOG_HEAD], frame[HEARTH_DB_LOG_FRAME];
    for (int i = 0; i < 2; i++) {
        if (pread(fd, head[i], sizeof head[i], 0) != (ssize_t)sizeof head[i] ||
            memcmp(head[i], zeros, sizeof zeros) == 0 || hearth_db_log_head_is_good(head[i])) {
            return false;
        }
        (void)usleep(10000);
    }
    return memcmp(head[0], head[1], sizeof head[0]) == 0 &&
           pread(fd, frame, sizeof frame, HEARTH_DB_LOG_HEAD) == (ssize_t)sizeof frame;
}

bool hearth_db_log_is_damaged(const char *path) {
    const int fd = hearth_db_open_beside(path, "-wal");
    const bool damaged = fd >= 0 && (has_lost_its_head(fd) || has_gap(fd));
    if (fd >= 0) {
        (void)close(fd);
    }
    return damaged;
}
