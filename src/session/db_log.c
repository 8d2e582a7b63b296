/* See db_log.h. A log is a head and frames, each a page with numbers of its own:
 *
 *     head     magic, version, bytes of a page, checkpoints | salt (8) | sum (8)      32 bytes
 *     frame    number of the page, pages of the database where a transaction ends, else 0 | salt (8) | sum (8) | page
 *
 * A sum goes over all that stands before it, so a frame is good when all before it are. The salt is the head's; frames
 * that an earlier log has left behind the end have another one.
 *
 * What a crash leaves is one transaction that does not verify, as each is synced before the next one begins. Behind it
 * nothing can have been committed.
 * Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log */
#include "session/db_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_MIN = 512, PAGE_MAX = 65536, MAGIC = 0x377F0682 };

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
    return magic >> 1 == MAGIC >> 1 && page >= PAGE_MIN && page <= PAGE_MAX && is_sum(sum, head + 24);
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
    uint8_t *frame = malloc(HEARTH_DB_LOG_FRAME + PAGE_MAX);
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
