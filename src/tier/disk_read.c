/* Reading: requests are started in the order of the calls and answered in that order, several are under way at a time.
 *
 * A file is read by one operation into two blocks, header and state, so that the state needs no copy; how long the
 * header is, is guessed from the file before. A large file that is not in the page cache is read past it: the disk then
 * writes into the block itself, and many files are under way at a time. Where that is refused it is announced to the
 * kernel, as deep as the queue goes, so the disk still sees many large reads. What has arrived is verified before more
 * is asked for, while it is in the processor's cache.
 *
 * Invariants: `reads` holds every request that is not answered, in order; `read_next` is the first that no thread took.
 * At most DISK_READ_BYTES are in flight or wait to be polled, but one request is always let through. */
#include "tier/disk_engine.h"

#include "base/log.h"
#include "base/clock.h"
#include "base/prefault.h"
#include "base/spans.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 16         /* files that one thread has under way */
#define DIRECT_MIN 65536 /* bytes of a file */

/* ---- the queue ---- */

bool hearth_disk_get(struct hearth_backing *backing, struct hearth_digest name) {
    struct disk *disk = (struct disk *)backing;
    struct disk_read *read = calloc(1, sizeof *read);
    if (!read) {
        return false;
    }
    read->fd = -1;
    read->ev.event = (struct hearth_backing_event){.type = HEARTH_BACKING_READ, .name = name};
    hearth_disk_lock(disk);
    STAILQ_INSERT_TAIL(&disk->reads, read, next);
    if (!disk->read_next) {
        disk->read_next = read;
    }
    (void)pthread_cond_signal(&disk->read_cond);
    hearth_disk_unlock(disk);
    return true;
}

/* Takes the next request. NULL: there is none now; with `wait`: the threads are to end. */
static struct disk_read *take(struct disk *disk, bool wait) {
    struct disk_read *read = NULL;
    hearth_disk_lock(disk);
    while (wait && !disk->stop && (!disk->read_next || disk->read_bytes >= DISK_READ_BYTES)) {
        (void)pthread_cond_wait(&disk->read_cond, &disk->lock);
    }
    if (!disk->stop && disk->read_next && disk->read_bytes < DISK_READ_BYTES) {
        read = disk->read_next;
        disk->read_next = STAILQ_NEXT(read, next);
        const struct disk_file *file = hearth_disk_find_locked(disk, read->ev.event.name);
        if (file) {
            read->id = hearth_disk_id(disk, read->ev.event.name, file->kind);
            read->known_bytes = file->bytes;
            read->ev.charge = file->bytes;
            disk->read_bytes += file->bytes;
        }
        read->head_len = disk->head_guess;
        read->begun_us = hearth_clock_us();
    }
    hearth_disk_unlock(disk);
    return read;
}

/* Reads overlap, so each span has an id. */
static void put_span(const struct disk_read *read) {
    struct hearth_span span = {.track = HEARTH_TRACK_DISK,
                               .category = "disk",
                               .name = "read",
                               .begun_us = read->begun_us,
                               .ended_us = hearth_clock_us(),
                               .args = {{"bytes", (int64_t)read->size}}};
    (void)snprintf(span.id, sizeof span.id, "r%llx_%llx", (unsigned long long)read->ev.event.name.lo,
                   (unsigned long long)read->begun_us);
    hearth_span_put(&span);
}

/* Answers a request, and the finished ones that had to wait for it. */
static void deliver(struct disk *disk, struct disk_read *read, int err) {
    free(read->head);
    read->head = NULL;
    hearth_buf_finish(&read->body);
    if (read->fd >= 0) {
        hearth_io_close(read->fd);
    }
    read->fd = -1;
    if (hearth_spans_on()) {
        put_span(read);
    }
    read->ev.event.err = err;
    hearth_disk_lock(disk);
    struct disk_file *file = hearth_disk_find_locked(disk, read->ev.event.name);
    if (file) {
        file->unreadable = err == HEARTH_ERR_IO;
    }
    if (err == HEARTH_OK) {
        disk->stats.read++;
        disk->stats.read_bytes += read->size;
    } else if (err == HEARTH_ERR_IO) {
        disk->stats.io_errors++;
    } else if (file && (err == HEARTH_ERR_NOT_FOUND || err == HEARTH_ERR_STATE)) { /* forget what was known of it */
        hearth_disk_forget_locked(disk, file, true);
    }
    if (err != HEARTH_OK) {
        disk->read_bytes -= read->ev.charge;
        read->ev.charge = 0;
        (void)pthread_cond_broadcast(&disk->read_cond);
    }
    read->done = true;
    for (struct disk_read *first; (first = STAILQ_FIRST(&disk->reads)) != NULL && first->done;) {
        STAILQ_REMOVE_HEAD(&disk->reads, next);
        hearth_events_post(&disk->events, &first->ev);
    }
    hearth_disk_unlock(disk);
}

void hearth_disk_drop_reads(struct disk *disk) {
    for (struct disk_read *read; (read = STAILQ_FIRST(&disk->reads)) != NULL;) {
        STAILQ_REMOVE_HEAD(&disk->reads, next);
        hearth_backing_event_finish(&read->ev.event);
        free(read);
    }
}

/* ---- one file ---- */

static int quarantine(struct disk *disk, const struct disk_read *read, const char *why) {
    hearth_disk_quarantine(disk, &read->id, why);
    return HEARTH_ERR_STATE;
}

/* Fills the operation's parts. */
static void aim(struct disk_read *read) {
    read->op = (struct hearth_io_op){
        .kind = HEARTH_IO_READ,
        .fd = read->fd,
        .parts = {{.iov_base = read->head, .iov_len = read->head_len},
                  {.iov_base = read->body.data, .iov_len = read->direct ? read->body.cap : read->body.len}},
        .enough = read->size,
        .user = read,
    };
}

/* Whether the file system refused to bypass the page cache after all: then the file is read like others. */
static bool refused(struct disk_read *read) {
    if (!read->direct || read->op.error != EINVAL || !hearth_io_direct(read->fd, false)) {
        return false;
    }
    read->direct = false;
    aim(read);
    return true;
}

/* Opens the file and fills the operation. Errors: what to answer. */
static int begin(struct disk *disk, struct disk_read *read) {
    if (read->known_bytes == 0) {
        return HEARTH_ERR_NOT_FOUND;
    }
    const int err = hearth_file_open(hearth_disk_directory(disk), &read->id, &read->fd);
    if (err == HEARTH_ERR_STATE) {
        return quarantine(disk, read, "not a plain file of this user");
    }
    if (err != HEARTH_OK) {
        return err == HEARTH_ERR_NOT_FOUND ? err : HEARTH_ERR_IO;
    }
    const int64_t size = hearth_io_size(read->fd);
    if (size < 0) {
        return HEARTH_ERR_IO;
    }
    read->size = (uint64_t)size;
    /* A file never changes its size. One that has grown is damaged and gets no memory. */
    if (hearth_disk_blocks(read->size) != read->known_bytes) {
        return quarantine(disk, read, "its length has changed");
    }
    if (!hearth_io_cached(read->fd, read->size)) {
        read->direct = read->size >= DIRECT_MIN && hearth_io_direct(read->fd, true);
        if (!read->direct) {
            hearth_io_expect(read->fd, read->size);
        }
    }
    if (read->head_len > read->size) {
        read->head_len = (size_t)read->size;
    }
    const size_t rest = (size_t)read->size - read->head_len, room = (size_t)hearth_disk_blocks(rest);
    void *head = NULL;
    if (posix_memalign(&head, HEARTH_FORMAT_BLOCK, read->head_len > 0 ? read->head_len : 1) != 0) {
        return HEARTH_ERR_NOMEM;
    }
    read->head = head;
    if (rest > 0) {
        read->body = (struct hearth_buf){.data = hearth_prefault_take(room), .len = rest, .cap = room};
    }
    if (rest > 0 && !read->body.data) {
        read->body = (struct hearth_buf){0};
        return HEARTH_ERR_NOMEM;
    }
    aim(read);
    return HEARTH_OK;
}

/* Copies bytes of the file out of the two blocks. */
static void gather(const struct disk_read *read, size_t from, uint8_t *to, size_t len) {
    size_t n = 0;
    if (from < read->head_len) {
        n = read->head_len - from < len ? read->head_len - from : len;
        memcpy(to, read->head + from, n);
    }
    if (n < len) {
        memcpy(to + n, read->body.data + (from + n - read->head_len), len - n);
    }
}

/* Moves the border between the blocks to the end of the header. Rarely needed. */
static int reshape(struct disk_read *read, size_t header_bytes) {
    const size_t rest = (size_t)read->size - header_bytes;
    uint8_t *head = malloc(header_bytes);
    struct hearth_buf body = {.data = rest > 0 ? hearth_prefault_take(rest) : NULL, .len = rest, .cap = rest};
    if (!head || (rest > 0 && !body.data)) {
        free(head);
        free(body.data);
        return HEARTH_ERR_NOMEM;
    }
    gather(read, 0, head, header_bytes);
    gather(read, header_bytes, body.data, rest);
    free(read->head);
    hearth_buf_finish(&read->body);
    read->head = head;
    read->head_len = header_bytes;
    read->body = body;
    return HEARTH_OK;
}

/* Reads the header, whatever its length; afterwards the blocks hold header and payload. */
static enum hearth_format_verdict read_header(struct disk *disk, struct disk_read *read,
                                              struct hearth_format_info *info) {
    enum hearth_format_verdict verdict = hearth_format_read(read->head, read->head_len, disk->seal, info);
    if (verdict == HEARTH_FORMAT_SHORT && info->header_bytes > read->head_len && info->header_bytes <= read->size) {
        const size_t want = info->header_bytes;
        hearth_format_info_finish(info);
        if (reshape(read, want) != HEARTH_OK) {
            return HEARTH_FORMAT_NOMEM;
        }
        verdict = hearth_format_read(read->head, read->head_len, disk->seal, info);
    }
    if (verdict != HEARTH_FORMAT_GOOD) {
        return verdict;
    }
    if (info->header_bytes + info->payload_bytes != read->size) {
        return info->header_bytes + info->payload_bytes > read->size ? HEARTH_FORMAT_SHORT : HEARTH_FORMAT_DAMAGED;
    }
    if (info->header_bytes != read->head_len && reshape(read, info->header_bytes) != HEARTH_OK) {
        return HEARTH_FORMAT_NOMEM;
    }
    return HEARTH_FORMAT_GOOD;
}

static bool is_what_was_asked(const struct disk *disk, const struct disk_read *read,
                              const struct hearth_format_info *info) {
    return info->readable && hearth_digest_equal(info->record.name, read->id.name) &&
           info->record.kind == read->id.kind && hearth_digest_equal(info->fingerprint, disk->params.fingerprint) &&
           info->page_tokens == disk->params.page_tokens;
}

/* Verifies what was read. Returns what to answer. */
static int finish(struct disk *disk, struct disk_read *read) {
    if (read->op.error != 0) {
        hearth_log(HEARTH_LOG_WARN, "disk: a state file could not be read: %s", strerror(read->op.error));
        return HEARTH_ERR_IO;
    }
    if (read->op.done != read->size) {
        return quarantine(disk, read, hearth_format_verdict_text(HEARTH_FORMAT_SHORT));
    }
    struct hearth_format_info info = {0};
    struct hearth_backing_event *event = &read->ev.event;
    enum hearth_format_verdict verdict = read_header(disk, read, &info);
    if (verdict == HEARTH_FORMAT_GOOD) {
        if (!is_what_was_asked(disk, read, &info)) {
            hearth_format_info_finish(&info);
            return quarantine(disk, read, "it holds something else than its name says");
        }
        verdict = hearth_format_open(&info, disk->seal, &read->body, &event->bytes, &event->checksum);
    }
    if (verdict == HEARTH_FORMAT_GOOD) {
        hearth_disk_lock(disk);
        disk->head_guess = info.header_bytes;
        hearth_disk_unlock(disk);
    }
    hearth_format_info_finish(&info);
    switch (verdict) {
    case HEARTH_FORMAT_GOOD: return HEARTH_OK;
    case HEARTH_FORMAT_NOMEM: return HEARTH_ERR_NOMEM;
    case HEARTH_FORMAT_NEWER:
    case HEARTH_FORMAT_WRONG_KEY: return HEARTH_ERR_NOT_FOUND;
    default: return quarantine(disk, read, hearth_format_verdict_text(verdict));
    }
}

/* ---- the threads ---- */

void *hearth_disk_reader(void *arg) {
    struct disk *disk = arg;
    unsigned under_way = 0;
    struct hearth_io *io = hearth_io_create(DEPTH, disk->params.no_uring, 0);
    for (;;) {
        struct hearth_io_op *op = io ? hearth_io_reap(io, false) : NULL;
        struct disk_read *read = NULL;
        if (!op && under_way < DEPTH) {
            read = take(disk, under_way == 0);
        }
        if (!op && !read && under_way == 0) {
            break;
        }
        if (!op && !read) {
            op = hearth_io_reap(io, true);
        }
        if (op) {
            under_way--;
            read = op->user;
            if (refused(read)) {
                hearth_io_submit(io, &read->op);
                under_way++;
                continue;
            }
            deliver(disk, read, finish(disk, read));
            continue;
        }
        const int err = io ? begin(disk, read) : HEARTH_ERR_NOMEM;
        if (err != HEARTH_OK) {
            deliver(disk, read, err);
            continue;
        }
        hearth_io_submit(io, &read->op);
        under_way++;
    }
    hearth_io_destroy(io);
    return NULL;
}
