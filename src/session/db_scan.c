/* Every page that may be a leaf is read by itself: which tree it belongs to, and whether the way to it is still
 * there, does not matter. A cell says how long it is and where it goes on (overflow pages); all of that is bounded by
 * the size of the file. Pages that stand in the log, in a transaction that was committed, are taken from there, whether
 * what stands before them verifies or not: rows have sums of their own. */
#include "session/db_scan.h"

#include "base/buf.h"
#include "session/db_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PAGE_USUAL = 4096,
    RESERVED_USUAL = 8,
    TABLE_LEAF = 13,
    INDEX_LEAF = 10,
    CELL_MAX = 1 << 30,
};

struct page_scan {
    int fd, log_fd;
    uint32_t page_bytes, usable;
    uint32_t pages;
    off_t *in_log; /* offset of each page in the log, by page number less one; 0: it is in the file */
    uint8_t page[HEARTH_DB_PAGE_MAX], overflow[HEARTH_DB_PAGE_MAX];
    struct hearth_buf cell;
};

static uint32_t big16(const uint8_t *at) {
    return (uint32_t)at[0] << 8 | at[1];
}

/* SQLite's numbers of one to nine bytes. NULL: it does not end before `end`. */
static const uint8_t *get_varint(const uint8_t *at, const uint8_t *end, uint64_t *out) {
    *out = 0;
    for (int i = 0; i < 8 && at < end; i++, at++) {
        *out = *out << 7 | (*at & 0x7F);
        if (*at < 0x80) {
            return at + 1;
        }
    }
    if (at >= end) {
        return NULL;
    }
    *out = *out << 8 | *at;
    return at + 1;
}

/* ---- pages ---- */

static bool read_page(struct page_scan *scan, uint32_t number, uint8_t *out) {
    if (number < 1 || number > scan->pages) {
        return false;
    }
    const off_t in_log = scan->in_log[number - 1];
    const ssize_t n = in_log != 0 ? pread(scan->log_fd, out, scan->page_bytes, in_log)
                                  : pread(scan->fd, out, scan->page_bytes, (off_t)(number - 1) * scan->page_bytes);
    if (n > 0 && n < (ssize_t)scan->page_bytes) { /* cut off */
        memset(out + n, 0, scan->page_bytes - (size_t)n);
    }
    return n > 0;
}

/* Makes room for pages that the log has beyond the end of the file. */
static bool has_room(struct page_scan *scan, uint32_t pages) {
    if (pages <= scan->pages) {
        return true;
    }
    off_t *grown = realloc(scan->in_log, pages * sizeof *grown);
    if (grown != NULL) {
        memset(grown + scan->pages, 0, (pages - scan->pages) * sizeof *grown);
        scan->in_log = grown;
        scan->pages = pages;
    }
    return grown != NULL;
}

/* Takes the frames from `begin` to `end`, which are of a committed transaction. */
static int take_frames(struct page_scan *scan, off_t begin, off_t end, uint32_t pages_max, const uint8_t *salt) {
    uint8_t frame[HEARTH_DB_LOG_FRAME];
    for (off_t at = begin; at < end; at += HEARTH_DB_LOG_FRAME + (off_t)scan->page_bytes) {
        if (pread(scan->log_fd, frame, sizeof frame, at) != HEARTH_DB_LOG_FRAME) {
            return HEARTH_ERR_IO;
        }
        const uint32_t number = hearth_db_big32(frame);
        if (number < 1 || number > pages_max || memcmp(frame + 8, salt, 8) != 0) {
            continue;
        }
        if (!has_room(scan, number)) {
            return HEARTH_ERR_NOMEM;
        }
        scan->in_log[number - 1] = at + HEARTH_DB_LOG_FRAME;
    }
    return HEARTH_OK;
}

static int read_log(struct page_scan *scan) {
    uint8_t head[HEARTH_DB_LOG_HEAD], frame[HEARTH_DB_LOG_FRAME];
    struct stat st;
    int err = HEARTH_OK;
    if (scan->log_fd < 0 || fstat(scan->log_fd, &st) != 0 ||
        pread(scan->log_fd, head, sizeof head, 0) != HEARTH_DB_LOG_HEAD ||
        hearth_db_big32(head + 8) != scan->page_bytes) {
        return HEARTH_OK;
    }
    const uint32_t pages_max = scan->pages + (uint32_t)(st.st_size / scan->page_bytes);
    if (!hearth_db_log_head_is_good(head) && pread(scan->log_fd, frame, sizeof frame, HEARTH_DB_LOG_HEAD) > 0) {
        memcpy(head + 16, frame + 8, 8); /* the salt of what follows */
    }
    off_t begin = HEARTH_DB_LOG_HEAD;
    for (off_t at = HEARTH_DB_LOG_HEAD;
         err == HEARTH_OK && pread(scan->log_fd, frame, sizeof frame, at) == HEARTH_DB_LOG_FRAME;) {
        const bool current = memcmp(frame + 8, head + 16, 8) == 0; /* not left from an earlier log */
        at += HEARTH_DB_LOG_FRAME + (off_t)scan->page_bytes;
        if (current && hearth_db_big32(frame + 4) != 0 && at <= st.st_size) {
            err = take_frames(scan, begin, at, pages_max, head + 16);
            begin = at;
        }
    }
    return err;
}

static int open_scan(struct page_scan *scan, const char *path, struct hearth_errmsg *msg) {
    uint8_t head[21];
    struct stat st;
    scan->log_fd = -1;
    scan->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (scan->fd < 0 || fstat(scan->fd, &st) != 0) {
        return hearth_fail(msg, HEARTH_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return hearth_fail(msg, HEARTH_ERR_IO, "%s: it is not a regular file", path);
    }
    scan->page_bytes = PAGE_USUAL;
    uint32_t reserved = RESERVED_USUAL;
    if (pread(scan->fd, head, sizeof head, 0) == (ssize_t)sizeof head && memcmp(head, "SQLite format 3", 16) == 0) {
        const uint32_t bytes = big16(head + 16) == 1 ? HEARTH_DB_PAGE_MAX : big16(head + 16);
        const bool sane = bytes >= HEARTH_DB_PAGE_MIN && (bytes & (bytes - 1)) == 0 && head[20] <= 32;
        scan->page_bytes = sane ? bytes : scan->page_bytes;
        reserved = sane ? head[20] : reserved;
    }
    scan->usable = scan->page_bytes - reserved;
    const uint64_t pages = ((uint64_t)st.st_size + scan->page_bytes - 1) / scan->page_bytes;
    scan->in_log = calloc(pages + 1, sizeof *scan->in_log);
    scan->pages = (uint32_t)pages;
    if (scan->in_log == NULL || pages > UINT32_MAX / 2) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "%s", hearth_err_text(HEARTH_ERR_NOMEM));
    }
    scan->log_fd = hearth_db_open_beside(path, "-wal");
    const int err = read_log(scan);
    return err == HEARTH_OK ? err : hearth_fail(msg, err, "%s-wal: %s", path, hearth_err_text(err));
}

/* ---- cells ---- */

/* Collects the bytes of a cell from its page and its overflow pages. */
static bool gather(struct page_scan *scan, const uint8_t *at, const uint8_t *end, uint64_t len, bool table) {
    const uint64_t u = scan->usable;
    const uint64_t most = table ? u - 35 : (u - 12) * 64 / 255 - 23, least = (u - 12) * 32 / 255 - 23;
    uint64_t here = len;
    if (len > CELL_MAX || len > (uint64_t)scan->pages * u) {
        return false;
    }
    if (len > most) {
        here = least + (len - least) % (u - 4);
        here = here <= most ? here : least;
    }
    scan->cell.len = 0;
    if ((uint64_t)(end - at) < here + (len > here ? 4 : 0) || !hearth_buf_append(&scan->cell, at, here)) {
        return false;
    }
    uint32_t next = len > here ? hearth_db_big32(at + here) : 0;
    for (uint32_t i = 0; scan->cell.len < len; i++) {
        if (i >= scan->pages || !read_page(scan, next, scan->overflow)) {
            return false;
        }
        const uint64_t rest = len - scan->cell.len, part = rest < u - 4 ? rest : u - 4;
        if (!hearth_buf_append(&scan->cell, scan->overflow + 4, part)) {
            return false;
        }
        next = hearth_db_big32(scan->overflow);
    }
    return true;
}

static uint64_t bytes_of(uint64_t type) {
    static const uint8_t fixed[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0};
    return type < sizeof fixed ? fixed[type] : type >= 12 ? (type - 12) / 2 : UINT64_MAX;
}

static int64_t number_of(const uint8_t *at, uint64_t type, uint64_t len) {
    uint64_t value = len > 0 && (at[0] & 0x80) != 0 ? UINT64_MAX : 0;
    for (uint64_t i = 0; i < len; i++) {
        value = value << 8 | at[i];
    }
    return type == 9 ? 1 : (int64_t)value;
}

static bool read_record(const struct hearth_buf *cell, struct hearth_db_row *row) {
    const uint8_t *at = cell->data, *end = cell->data + cell->len, *value;
    uint64_t head, type;
    row->count = 0;
    at = get_varint(at, end, &head);
    if (at == NULL || head > cell->len) {
        return false;
    }
    value = cell->data + head;
    for (const uint8_t *stop = value; at < stop; row->count++) {
        at = get_varint(at, stop, &type);
        const uint64_t len = at != NULL ? bytes_of(type) : UINT64_MAX;
        if (len > (uint64_t)(end - value) || row->count == HEARTH_DB_CELLS_MAX) {
            return false;
        }
        row->cells[row->count].type = type == 0   ? HEARTH_DB_NULL
                                      : type == 7 ? HEARTH_DB_REAL
                                      : type < 12 ? HEARTH_DB_NUMBER
                                                  : HEARTH_DB_BYTES;
        row->cells[row->count].number = type < 12 && type != 7 ? number_of(value, type, len) : 0;
        row->cells[row->count].bytes = value;
        row->cells[row->count].len = type >= 12 ? (size_t)len : 0;
        value += len;
    }
    return row->count > 0;
}

/* Reads the rows of a page. False: the caller wants no more. */
static bool scan_leaf(struct page_scan *scan, uint32_t number, bool (*take)(void *, const struct hearth_db_row *),
                      void *user) {
    const uint8_t *page = scan->page, *head = page + (number == 1 ? 100 : 0), *end = page + scan->usable;
    const bool table = head[0] == TABLE_LEAF;
    const uint32_t cells = big16(head + 3);
    if ((!table && head[0] != INDEX_LEAF) || head + 8 + cells * 2 > end) {
        return true;
    }
    for (uint32_t i = 0; i < cells; i++) {
        struct hearth_db_row row = {0};
        const uint8_t *at = page + big16(head + 8 + i * 2);
        uint64_t len, id = 0;
        at = at < end ? get_varint(at, end, &len) : NULL;
        at = at != NULL && table ? get_varint(at, end, &id) : at;
        if (at == NULL || !gather(scan, at, end, len, table) || !read_record(&scan->cell, &row)) {
            continue;
        }
        row.id = (int64_t)id;
        if (!take(user, &row)) {
            return false;
        }
    }
    return true;
}

int hearth_db_scan(const char *path, bool (*take)(void *user, const struct hearth_db_row *row), void *user,
                   struct hearth_errmsg *msg) {
    struct page_scan *scan = calloc(1, sizeof *scan);
    if (scan == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "%s", hearth_err_text(HEARTH_ERR_NOMEM));
    }
    const int err = open_scan(scan, path, msg);
    for (uint32_t number = 1; err == HEARTH_OK && number <= scan->pages; number++) {
        if (read_page(scan, number, scan->page) && !scan_leaf(scan, number, take, user)) {
            break;
        }
    }
    if (scan->fd >= 0) {
        (void)close(scan->fd);
    }
    if (scan->log_fd >= 0) {
        (void)close(scan->log_fd);
    }
    hearth_buf_finish(&scan->cell);
    free(scan->in_log);
    free(scan);
    return err;
}
