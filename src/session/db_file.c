/* Whose file is it? Told from its bytes, before a connection is opened: that would carry a log into the file and leave
 * files beside it, and a file of somebody else's is never touched.
 *
 * The bytes are read through SQLite's layer for files. close() on a descriptor of our own would end every lock that
 * this process has on the file (POSIX), and with them those of its open connections: the next process to close the
 * database would take itself for the last one and delete the log under them.
 * Source: https://www.sqlite.org/howtocorrupt.html, section 2.2
 *
 * SQLite takes what stands beside it, PATH-wal, -journal and -shm, for the database's own: it carries a log into the
 * file whatever it is the log of, and deletes what it has no use for. So these are looked at, too. A file whose header
 * does not say WAL is a copy or was recovered, and a log beside it belongs to what stood there before.
 *
 * Ours has our application_id, in the header or in the last copy of the first page that stands in the log beside it: a
 * database is begun in the file and goes on in the log. An empty file is nobody's (a start that was ended at once
 * leaves one), and so is a database without a table. */
#include "session/db.h"
#include "session/db_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 108, VERSION_AT = 60, APPLICATION_AT = 68, PAGES_AT = 28, MODE_AT = 19 };

/* The beginning of the first page as it stands in the log, in place of what the file has. */
static void read_log(const char *path, uint8_t head[HEAD]) {
    uint8_t log[HEARTH_DB_LOG_HEAD], frame[HEARTH_DB_LOG_FRAME], first[HEAD];
    const int fd = hearth_db_open_beside(path, "-wal");
    if (fd >= 0 && pread(fd, log, sizeof log, 0) == HEARTH_DB_LOG_HEAD &&
        hearth_db_big32(log) >> 1 == 0x377F0682 >> 1) {
        const uint32_t page = hearth_db_big32(log + 8);
        for (off_t at = HEARTH_DB_LOG_HEAD; page >= 512 && pread(fd, frame, sizeof frame, at) == HEARTH_DB_LOG_FRAME;
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

static int fault(struct hearth_errmsg *why, int rc, const char *what) {
    (void)hearth_fail(why, HEARTH_ERR_IO, "%s", what);
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
static int check_beside(const char *path, struct hearth_errmsg *why) {
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
        (void)hearth_fail(why, HEARTH_ERR_IO,
                          "what stands beside it with %s behind its name is no file of hearth's: move "
                          "it away, or give the database another name",
                          other);
        return SQLITE_CANTOPEN;
    }
    const bool there = log > 0 && read_head(path, head, &n);
    if (log > 0 && n == 0 && (there || errno == ENOENT)) { /* SQLite would delete it and begin anew */
        return fault(why, SQLITE_CANTOPEN,
                     "the file is gone or empty, and the log beside it (its name and -wal) holds what was "
                     "written last: put the file back, or move the log away to begin anew");
    }
    if (there && n == HEAD && head[MODE_AT] == 1) {
        return fault(why, SQLITE_CANTOPEN,
                     "the log beside it (its name and -wal) is of the database that stood here "
                     "before: move it away, and the file with -shm");
    }
    return SQLITE_OK;
}

int hearth_db_check_file(const struct hearth_db_kind *kind, const char *path, struct hearth_errmsg *why) {
    struct stat st;
    if (lstat(path, &st) != 0) {
        return errno != ENOENT         ? fault(why, SQLITE_CANTOPEN, strerror(errno))
               : kind->replaces_others ? SQLITE_OK
                                       : check_beside(path, why);
    }
    if (!S_ISREG(st.st_mode)) {
        return fault(why, SQLITE_CANTOPEN, S_ISLNK(st.st_mode) ? "it is a symbolic link" : "it is not a regular file");
    }
    if (st.st_uid != geteuid()) {
        return fault(why, SQLITE_CANTOPEN, "it belongs to another user");
    }
    if (access(path, R_OK | W_OK) != 0) {
        return fault(why, SQLITE_CANTOPEN, strerror(errno));
    }
    if (kind->replaces_others) {
        return SQLITE_OK;
    }
    /* SQLite takes a file of one byte for an empty one. */
    const bool other = st.st_size == 1 || hearth_db_probe(kind, path) == HEARTH_DB_FILE_OTHER;
    return other ? HEARTH_DB_ALIEN : check_beside(path, why);
}

int hearth_db_make_file(const struct hearth_db_kind *kind, const char *path, struct hearth_errmsg *why) {
    struct stat st;
    const int rc = hearth_db_check_file(kind, path, why);
    if (rc != SQLITE_OK) {
        return rc;
    }
    const int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) {
        close(fd);
        return SQLITE_OK;
    }
    if (errno != EEXIST || lstat(path, &st) != 0) {
        return fault(why, SQLITE_CANTOPEN, strerror(errno));
    }
    if ((st.st_mode & 077) != 0 && chmod(path, 0600) != 0) {
        return fault(why, SQLITE_CANTOPEN, strerror(errno));
    }
    return SQLITE_OK;
}
