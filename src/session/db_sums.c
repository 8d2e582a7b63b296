/* Checksums of pages: a layer between SQLite and the system's files (a VFS) that only the database file itself meets.
 *
 *     page = SQLite's bytes | sum (8)        the space is what SQLite calls reserved bytes (byte 20 of the header)
 *     sum  = XXH3 of the page's number and SQLite's bytes; never zero
 *
 * SQLite believes what a page says: a flipped bit in a key makes a row that is never found, two swapped pages make
 * other rows. Here such a page is a failed read (SQLITE_IOERR_DATA), so that a look-up is the truth or an error.
 *
 * Sums are made when a page goes into the file and looked at when one comes out of it. The log has sums of its own.
 * What SQLite gets has zeros in their place, so the log has zeros there, too: when another program carries the log into
 * the database (sqlite3 does after a crash), its pages have no sum and are taken as they are. A program that changes
 * rows by itself leaves sums that are wrong; `hearth sessions recover` reads such a file.
 *
 * A file without the reserved bytes has no sums; nor has one of another page size. */
#include "session/db_sums.h"

#include "base/digest.h"
#include "session/db_file.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096, SUM = HEARTH_DB_SUM_BYTES, HEAD = 100 };

struct summed {
    sqlite3_file base;
    bool is_database, has_sums;
    uint8_t page[PAGE]; /* a page on its way to the file */
};

static sqlite3_vfs *below;

static struct summed *mine(sqlite3_file *file) {
    return (struct summed *)(void *)file;
}

static sqlite3_file *real(sqlite3_file *file) {
    return (sqlite3_file *)(void *)(mine(file) + 1);
}

/* ---- sums ---- */

bool hearth_db_head_has_sums(const uint8_t head[21]) {
    return memcmp(head, "SQLite format 3", 16) == 0 && head[16] << 8 == PAGE && head[17] == 0 && head[20] == SUM;
}

static uint64_t sum_of(const uint8_t *page, uint64_t number) {
    const uint64_t sum = hearth_digest_chain((struct hearth_digest){.lo = number, .hi = SUM}, page, PAGE - SUM).lo;
    return sum != 0 ? sum : 1;
}

/* Whether a page (the first is number 1) is as it was written. A page without a sum counts as whole. */
static bool is_whole(const uint8_t *page, uint64_t number) {
    uint64_t sum;
    memcpy(&sum, page + PAGE - SUM, sizeof sum);
    return sum == 0 || sum == sum_of(page, number);
}

static bool is_page(const struct summed *file, int len, sqlite3_int64 at) {
    return file->is_database && file->has_sums && len == PAGE && at % PAGE == 0;
}

static void learn(struct summed *file, const uint8_t *bytes, int len, sqlite3_int64 at) {
    if (file->is_database && at == 0 && len >= HEAD) {
        file->has_sums = hearth_db_head_has_sums(bytes);
    }
}

static int read_at(sqlite3_file *file, void *bytes, int len, sqlite3_int64 at) {
    sqlite3_int64 size;
    int rc = real(file)->pMethods->xRead(real(file), bytes, len, at);
    if (rc == SQLITE_OK) {
        learn(mine(file), bytes, len, at);
    } else if (rc == SQLITE_IOERR_SHORT_READ && is_page(mine(file), len, at) &&
               real(file)->pMethods->xFileSize(real(file), &size) == SQLITE_OK && size > at) {
        return SQLITE_IOERR_DATA; /* a cut-off page, which SQLite would fill with zeros */
    }
    if (rc != SQLITE_OK || !is_page(mine(file), len, at)) {
        return rc;
    }
    if (!is_whole(bytes, (uint64_t)(at / PAGE) + 1)) {
        return SQLITE_IOERR_DATA;
    }
    memset((uint8_t *)bytes + PAGE - SUM, 0, SUM);
    return SQLITE_OK;
}

static int write_at(sqlite3_file *file, const void *bytes, int len, sqlite3_int64 at) {
    struct summed *own = mine(file);
    learn(own, bytes, len, at);
    if (is_page(own, len, at)) {
        memcpy(own->page, bytes, PAGE);
        const uint64_t sum = sum_of(own->page, (uint64_t)(at / PAGE) + 1);
        memcpy(own->page + PAGE - SUM, &sum, sizeof sum);
        bytes = own->page;
    }
    return real(file)->pMethods->xWrite(real(file), bytes, len, at);
}

/* ---- all that only passes through ---- */

#define FORWARD(method, params, ...)                      \
    static int forward_##method params {                  \
        return real(file)->pMethods->method(__VA_ARGS__); \
    }
FORWARD(xClose, (sqlite3_file * file), real(file))
FORWARD(xTruncate, (sqlite3_file * file, sqlite3_int64 len), real(file), len)
FORWARD(xSync, (sqlite3_file * file, int flags), real(file), flags)
FORWARD(xFileSize, (sqlite3_file * file, sqlite3_int64 *len), real(file), len)
FORWARD(xLock, (sqlite3_file * file, int level), real(file), level)
FORWARD(xUnlock, (sqlite3_file * file, int level), real(file), level)
FORWARD(xCheckReservedLock, (sqlite3_file * file, int *out), real(file), out)
FORWARD(xFileControl, (sqlite3_file * file, int what, void *argument), real(file), what, argument)
FORWARD(xSectorSize, (sqlite3_file * file), real(file))
FORWARD(xDeviceCharacteristics, (sqlite3_file * file), real(file))
FORWARD(xShmMap, (sqlite3_file * file, int region, int size, int extend, void volatile **out), real(file), region, size,
        extend, out)
FORWARD(xShmLock, (sqlite3_file * file, int offset, int n, int flags), real(file), offset, n, flags)
FORWARD(xShmUnmap, (sqlite3_file * file, int remove), real(file), remove)

static void forward_xShmBarrier(sqlite3_file *file) {
    real(file)->pMethods->xShmBarrier(real(file));
}

/* Version 2 has no mapped reads, which would bypass the sums. */
static const sqlite3_io_methods methods = {.iVersion = 2,
                                           .xRead = read_at,
                                           .xWrite = write_at,
                                           .xClose = forward_xClose,
                                           .xTruncate = forward_xTruncate,
                                           .xSync = forward_xSync,
                                           .xFileSize = forward_xFileSize,
                                           .xLock = forward_xLock,
                                           .xUnlock = forward_xUnlock,
                                           .xCheckReservedLock = forward_xCheckReservedLock,
                                           .xFileControl = forward_xFileControl,
                                           .xSectorSize = forward_xSectorSize,
                                           .xDeviceCharacteristics = forward_xDeviceCharacteristics,
                                           .xShmMap = forward_xShmMap,
                                           .xShmLock = forward_xShmLock,
                                           .xShmBarrier = forward_xShmBarrier,
                                           .xShmUnmap = forward_xShmUnmap};

static int open_file(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *out_flags) {
    (void)vfs;
    struct summed *own = mine(file);
    own->base.pMethods = NULL;
    own->is_database = (flags & SQLITE_OPEN_MAIN_DB) != 0;
    own->has_sums = false;
    const int rc = below->xOpen(below, name, real(file), flags, out_flags);
    if (real(file)->pMethods != NULL) {
        own->base.pMethods = &methods;
    }
    return rc;
}

static void register_once(void) {
    static sqlite3_vfs vfs;
    below = sqlite3_vfs_find(NULL);
    if (below == NULL) { /* SQLite could not start */
        return;
    }
    vfs = *below;
    vfs.pNext = NULL;
    vfs.zName = HEARTH_DB_VFS;
    vfs.szOsFile = (int)sizeof(struct summed) + below->szOsFile;
    vfs.xOpen = open_file;
    (void)sqlite3_vfs_register(&vfs, 0);
}

const char *hearth_db_vfs(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, register_once);
    return HEARTH_DB_VFS;
}

/* ---- looking through a file ---- */

/* Whether a page is damaged. Another process may be writing it, so it is read again. */
static bool is_bad(const struct hearth_db_raw *raw, uint64_t number) {
    enum { TRIES = 4, PAUSE_US = 20000 };
    uint8_t page[PAGE];
    for (int i = 0; i < TRIES; i++) {
        const ssize_t n = hearth_db_raw_read(raw, page, PAGE, (number - 1) * PAGE);
        if (n >= 0 && (n < PAGE || is_whole(page, number))) {
            return false;
        }
        (void)usleep(PAUSE_US);
    }
    return true;
}

int64_t hearth_db_find_bad_page(const char *path, uint64_t *next, uint64_t most) {
    uint8_t head[HEAD], page[PAGE];
    struct hearth_db_raw raw;
    int64_t bad = 0;
    if (hearth_db_raw_open(path, &raw) != 0) {
        return -1;
    }
    if (hearth_db_raw_read(&raw, head, HEAD, 0) != HEAD || !hearth_db_head_has_sums(head)) {
        *next = 0;
        hearth_db_raw_close(&raw);
        return 0;
    }
    for (uint64_t i = 0; bad == 0 && i < most; i++, ++*next) {
        const ssize_t n = hearth_db_raw_read(&raw, page, PAGE, *next * PAGE);
        if (n == 0) {
            *next = 0;
            break;
        }
        if ((n < 0 || (n == PAGE && !is_whole(page, *next + 1))) && is_bad(&raw, *next + 1)) {
            bad = (int64_t)*next + 1;
        }
    }
    hearth_db_raw_close(&raw);
    return bad;
}
