/* Writing: batches of files, each written and synced side by side, then published, then their directories synced; only
 * then it is said that they are there. A turn's few files are one batch, so it costs two waits for the disk, not two
 * for each file.
 *
 * Large files go past the page cache, through a few aligned blocks: the kernel's own copy costs some thirty times the
 * processor time, which decoding would miss, and would push out of memory what is about to be read. Where that is
 * refused, and for small files, it is plain writing.
 *
 * Pace: a burst is written as fast as it goes, so that a turn is safe at once; what goes on and on is written at a rate
 * that takes a small part of the processors (about 0.2 ms for each MB), however fast the disk is. At the end
 * there is no limit.
 *
 * Failure:
 *
 *   1. What could not be written is tried once more after a remedy: room is made when the file system is full, the
 *      directory is made anew when it was removed.
 *   2. What fails again is dropped: its bytes are needed elsewhere, and the cache can put them again.
 *   3. Then the tier is `failing` and takes nothing. A small file is tried after 1 s, 2 s, ... 30 s until it can be
 *      written. There is one log line when it begins and one when it ends.
 *
 * Invariants: a job is answered exactly once, by answer(); a draft is published or discarded before that. */
#include "tier/disk_engine.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/prefault.h"
#include "base/spans.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH_FILES 32
#define BATCH_BYTES ((uint64_t)32 << 20)
#define BURST_BYTES ((int64_t)192 << 20)     /* bytes written at full speed */
#define RATE_BYTES_PER_S ((int64_t)40 << 20) /* after that, per processor */
#define PROBE_MAX ((uint64_t)1 << 20)
#define BLOCKS 8 /* blocks under way at a time */
#define BLOCK_BYTES ((size_t)1 << 20)
#define DIRECT_MIN 32768 /* bytes of a file */

/* ---- failure ---- */

/* Suspends writing. `step` names what failed. */
static void fail(struct disk *disk, const char *step, int error, uint64_t bytes) {
    hearth_disk_lock(disk);
    const bool began = !disk->stats.failing;
    disk->backoff_us = hearth_backing_backoff_us(disk->backoff_us);
    disk->retry_at_us = hearth_clock_us() + disk->backoff_us;
    disk->probe_bytes = (int64_t)(bytes < PROBE_MAX ? bytes : PROBE_MAX);
    disk->stats.failing = true;
    (void)snprintf(disk->stats.trouble, sizeof disk->stats.trouble, "cannot %s %.80s: %s", step, disk->params.dir,
                   strerror(error));
    hearth_disk_drop_queue_locked(disk);
    if (began) {
        disk->failed_error = error;
        memcpy(disk->failed_trouble, disk->stats.trouble, sizeof disk->failed_trouble);
    }
    hearth_disk_unlock(disk);
    if (began) {
        hearth_disk_health(disk);
    }
}

static void recover(struct disk *disk, bool for_good) {
    hearth_disk_lock(disk);
    const bool ended = disk->stats.failing;
    disk->stats.failing = false;
    disk->stats.trouble[0] = '\0';
    if (for_good) {
        disk->backoff_us = 0; /* a probe alone proves little: after the next failure the wait is longer */
    }
    hearth_disk_unlock(disk);
    if (ended) {
        hearth_log(HEARTH_LOG_INFO, "disk: writing to %s works again", disk->params.dir);
        hearth_disk_health(disk);
    }
}

/* Does something against the error. Returns whether to try again. */
static bool remedy(struct disk *disk, int error, uint64_t bytes) {
    switch (error) {
    case ENOSPC:
    case EDQUOT: (void)hearth_disk_make_room(disk, bytes + bytes / 4, true); return true;
    case ENOENT: /* removed */
    case ENOTDIR:
    case ESTALE: return hearth_disk_reopen(disk);
    default: return false;
    }
}

/* Writes and syncs one file of zeros. */
static void probe(struct disk *disk) {
    struct hearth_directory *directory = hearth_disk_directory(disk);
    hearth_disk_lock(disk);
    const size_t len = disk->probe_bytes > 0 ? (size_t)disk->probe_bytes : HEARTH_FORMAT_BLOCK;
    hearth_disk_unlock(disk);
    struct hearth_io *io = hearth_io_create(1, true, DISK_WRITER_NICE);
    void *zeros = calloc(1, len);
    struct hearth_file_draft draft = {.fd = -1};
    int error = 0;
    const char *step = "write in";
    if (!io || !zeros) {
        error = ENOMEM;
    } else if (hearth_file_create(directory, disk->model, &draft) != HEARTH_OK) {
        error = errno;
        if (remedy(disk, error, 0) &&
            hearth_file_create(hearth_disk_directory(disk), disk->model, &draft) == HEARTH_OK) {
            error = 0;
        }
        directory = hearth_disk_directory(disk);
    }
    for (int kind = HEARTH_IO_WRITE; error == 0 && kind <= HEARTH_IO_SYNC; kind++) {
        struct hearth_io_op op = {
            .kind = (enum hearth_io_kind)kind, .fd = draft.fd, .parts = {{.iov_base = zeros, .iov_len = len}}};
        hearth_io_submit(io, &op);
        (void)hearth_io_reap(io, true);
        error = op.error;
    }
    if (draft.fd >= 0) {
        hearth_file_discard(directory, &draft);
    }
    free(zeros);
    hearth_io_destroy(io);
    if (error == 0) {
        recover(disk, false);
    } else {
        fail(disk, step, error, len);
    }
}

/* ---- one batch ---- */

struct write_batch {
    struct disk_job *jobs[BATCH_FILES];
    size_t n;
    const char *step; /* the first step that failed */
    int error;
    uint64_t failed_bytes;
};

static void job_failed(struct write_batch *batch, struct disk_job *job, const char *step, int error) {
    job->fate = DISK_FAILED;
    job->error = error != 0 ? error : EIO;
    if (batch->error == 0) {
        batch->error = job->error;
        batch->step = step;
    }
    batch->failed_bytes += job->file_bytes;
}

/* THERE: the file is on disk already, known or put there by another process since the last rescan. REFUSED: another
 * version of hearth has a different file of this name there. OPEN also if it is there and could not be read. */
static enum disk_fate is_there(struct disk *disk, const struct disk_job *job) {
    hearth_disk_lock(disk);
    const struct disk_file *file = hearth_disk_find_locked(disk, job->id.name);
    const bool known = file != NULL, unreadable = known && file->unreadable;
    hearth_disk_unlock(disk);
    const enum disk_verdict verdict = unreadable ? DISK_UNREADABLE
                                      : known    ? DISK_GOOD
                                                 : hearth_disk_examine(disk, &job->id, false);
    return verdict == DISK_GOOD ? DISK_THERE : verdict == DISK_ALIEN ? DISK_REFUSED : DISK_OPEN;
}

/* The owner for the file's attribute: hashed with the disk's key, so that files tell owners apart without naming them.
 */
static uint64_t owner_of(const struct disk *disk, const struct hearth_record *record) {
    const struct hearth_digest hidden = hearth_digest_chain(disk->base.key, &record->owner, sizeof record->owner);
    return record->owner != 0 ? hidden.lo | 1 : 0;
}

/* Makes the job's bytes and its draft. */
static void prepare(struct disk *disk, struct write_batch *batch, struct disk_job *job) {
    const struct hearth_format_params format = {
        .fingerprint = disk->params.fingerprint,
        .page_tokens = disk->params.page_tokens,
        .seal = disk->seal,
        .compress = disk->params.compress,
    };
    size_t len = 0;
    const void *state = job->blob ? hearth_blob_data(job->blob, &len) : NULL;
    if (job->blob && !hearth_blob_verifies(job->blob)) { /* a good checksum of bad bytes would be believed for ever */
        job->fate = DISK_REFUSED;
        return;
    }
    if (job->header.len == 0 &&
        hearth_format_write(&format, job->record, state, len, &job->header, &job->payload) != HEARTH_OK) {
        job_failed(batch, job, "make files for", ENOMEM);
        return;
    }
    job->state = job->payload.len > 0 ? job->payload.data : state;
    job->state_len = job->payload.len > 0 ? job->payload.len : len;
    job->file_bytes = job->header.len + job->state_len;
    job->error = 0;
    if (hearth_file_create(hearth_disk_directory(disk), disk->model, &job->draft) != HEARTH_OK) {
        job_failed(batch, job, "make files in", errno);
    } else {
        hearth_file_own(&job->draft, owner_of(disk, job->record));
        job->direct = job->file_bytes >= DIRECT_MIN && hearth_io_direct(job->draft.fd, true);
    }
}

/* ---- the bytes ---- */

struct writer {
    struct disk *disk;
    struct hearth_io *io;
    uint8_t *blocks;                 /* BLOCKS of BLOCK_BYTES; NULL: out of memory, everything is written plainly */
    struct hearth_io_op ops[BLOCKS]; /* of the blocks; one with a negative fd is free */
    size_t under_way;
};

/* Takes one operation that has ended. */
static void reap(struct writer *writer) {
    struct hearth_io_op *op = hearth_io_reap(writer->io, true);
    struct disk_job *job = op->user;
    writer->under_way--;
    if (op->error != 0 && job->error == 0) {
        job->error = op->error;
    }
    if (op >= writer->ops && op < writer->ops + BLOCKS) {
        op->fd = -1;
    }
}

static void submit(struct writer *writer, struct hearth_io_op *op) {
    hearth_io_submit(writer->io, op);
    writer->under_way++;
}

/* Copies bytes of the file into a block; zeros behind its end. */
static void fill(const struct disk_job *job, uint64_t from, uint8_t *to, size_t len) {
    const size_t header = job->header.len;
    size_t n = 0;
    if (from < header) {
        n = header - (size_t)from < len ? header - (size_t)from : len;
        memcpy(to, job->header.data + from, n);
    }
    const size_t at = (size_t)(from + n) - header, rest = job->state_len - at;
    const size_t more = len - n < rest ? len - n : rest;
    if (more > 0) {
        memcpy(to + n, (const uint8_t *)job->state + at, more);
    }
    memset(to + n + more, 0, len - n - more);
}

static void write_direct(struct writer *writer, struct disk_job *job) {
    const uint64_t end = hearth_disk_blocks(job->file_bytes);
    for (uint64_t at = 0; at < end && job->error == 0;) {
        size_t i = 0;
        while (i < BLOCKS && writer->ops[i].fd >= 0) {
            i++;
        }
        if (i == BLOCKS) {
            reap(writer);
            continue;
        }
        const size_t len = end - at < BLOCK_BYTES ? (size_t)(end - at) : BLOCK_BYTES;
        uint8_t *block = writer->blocks + i * BLOCK_BYTES;
        fill(job, at, block, len);
        writer->ops[i] = (struct hearth_io_op){.kind = HEARTH_IO_WRITE,
                                               .fd = job->draft.fd,
                                               .offset = at,
                                               .parts = {{.iov_base = block, .iov_len = len}},
                                               .user = job};
        submit(writer, &writer->ops[i]);
        at += len;
    }
}

static void write_plain(struct writer *writer, struct disk_job *job) {
    job->op = (struct hearth_io_op){
        .kind = HEARTH_IO_WRITE,
        .fd = job->draft.fd,
        .parts = {{.iov_base = job->header.data, .iov_len = job->header.len},
                  {.iov_base = (void *)(uintptr_t)job->state, .iov_len = job->state_len}},
        .user = job,
    };
    submit(writer, &job->op);
}

/* Discards what failed. */
static void discard_failed(struct writer *writer, struct write_batch *batch, const char *step) {
    for (size_t i = 0; i < batch->n; i++) {
        struct disk_job *job = batch->jobs[i];
        if (job->fate != DISK_OPEN || job->error == 0) {
            continue;
        }
        hearth_file_discard(hearth_disk_directory(writer->disk), &job->draft);
        job_failed(batch, job, step, job->error);
    }
}

static void write_all(struct writer *writer, struct write_batch *batch) {
    for (size_t i = 0; i < batch->n; i++) {
        struct disk_job *job = batch->jobs[i];
        if (job->fate != DISK_OPEN) {
            continue;
        }
        if (job->direct && writer->blocks) {
            write_direct(writer, job);
        } else {
            write_plain(writer, job);
        }
    }
    while (writer->under_way > 0) {
        reap(writer);
    }
    for (size_t i = 0; i < batch->n; i++) {
        struct disk_job *job = batch->jobs[i];
        if (job->fate != DISK_OPEN || !job->direct) {
            continue;
        }
        if (job->error == EINVAL && hearth_io_direct(job->draft.fd, false)) { /* refused after all */
            job->error = 0;
            write_plain(writer, job);
        }
    }
    while (writer->under_way > 0) {
        reap(writer);
    }
    for (size_t i = 0; i < batch->n; i++) {
        struct disk_job *job = batch->jobs[i];
        if (job->fate == DISK_OPEN && job->error == 0 && job->file_bytes % HEARTH_FORMAT_BLOCK != 0) {
            job->error = -hearth_io_cut(job->draft.fd, job->file_bytes);
        }
    }
    discard_failed(writer, batch, "write in");
}

static void sync_all(struct writer *writer, struct write_batch *batch) {
    for (size_t i = 0; i < batch->n; i++) {
        struct disk_job *job = batch->jobs[i];
        if (job->fate != DISK_OPEN) {
            continue;
        }
        job->op = (struct hearth_io_op){.kind = HEARTH_IO_SYNC, .fd = job->draft.fd, .user = job};
        submit(writer, &job->op);
    }
    while (writer->under_way > 0) {
        reap(writer);
    }
    discard_failed(writer, batch, "sync files in");
}

/* ---- names ---- */

static void publish_all(struct disk *disk, struct write_batch *batch) {
    struct hearth_directory *directory = hearth_disk_directory(disk);
    const int64_t now = hearth_clock_unix_us();
    for (size_t i = 0; i < batch->n; i++) {
        struct disk_job *job = batch->jobs[i];
        if (job->fate != DISK_OPEN) {
            continue;
        }
        const struct timespec stamp = hearth_file_stamp(now, job->record->p1, false);
        if (hearth_file_publish(directory, &job->draft, &job->id, &stamp) != HEARTH_OK) {
            job_failed(batch, job, "name files in", errno);
        }
    }
    bool synced[DISK_SHARDS] = {false};
    int errors[DISK_SHARDS] = {0};
    for (size_t i = 0; i < batch->n; i++) {
        struct disk_job *job = batch->jobs[i];
        if (job->fate != DISK_OPEN) {
            continue;
        }
        const unsigned shard = hearth_disk_shard(job->id.name);
        if (!synced[shard] && hearth_file_sync_shard(directory, &job->id) != HEARTH_OK) {
            errors[shard] = errno != 0 ? errno : EIO;
        }
        synced[shard] = true;
        if (errors[shard] != 0) {
            job_failed(batch, job, "sync", errors[shard]); /* if the file is there all the same, a rescan finds it */
        } else {
            job->fate = DISK_WRITTEN;
        }
    }
}

static void write_once(struct writer *writer, struct write_batch *batch) {
    struct disk *disk = writer->disk;
    batch->error = 0;
    batch->failed_bytes = 0;
    for (size_t i = 0; i < batch->n; i++) {
        struct disk_job *job = batch->jobs[i];
        if (job->fate != DISK_OPEN && job->fate != DISK_FAILED) {
            continue;
        }
        job->fate = is_there(disk, job);
        if (job->fate == DISK_OPEN) {
            prepare(disk, batch, job);
        }
    }
    write_all(writer, batch);
    sync_all(writer, batch);
    publish_all(disk, batch);
}

/* Removes what a job replaces. */
static void remove_replaced(struct disk *disk, struct hearth_digest name) {
    struct hearth_file_id id;
    if (!hearth_disk_known(disk, name, &id) || hearth_file_remove(hearth_disk_directory(disk), &id) == HEARTH_ERR_IO) {
        return;
    }
    hearth_disk_lock(disk);
    struct disk_file *gone = hearth_disk_find_locked(disk, name);
    if (gone) {
        hearth_disk_forget_locked(disk, gone, true);
        hearth_disk_tell_locked(disk, HEARTH_BACKING_LOST, name);
    }
    hearth_disk_unlock(disk);
}

static void answer(struct disk *disk, struct disk_job *job) {
    const bool written = job->fate == DISK_WRITTEN, there = written || job->fate == DISK_THERE;
    hearth_disk_lock(disk);
    if (written) {
        const uint64_t bytes = hearth_disk_blocks(job->file_bytes);
        disk->stats.written++;
        disk->stats.written_bytes += job->file_bytes;
        struct disk_file *before = hearth_disk_find_locked(disk, job->id.name);
        if (before) { /* it could not be read, or a rescan was faster */
            hearth_disk_forget_locked(disk, before, true);
        }
        disk->stats.files++;
        disk->stats.bytes += bytes;
        /* Out of memory, the next rescan finds it. */
        (void)hearth_disk_add_locked(disk, &job->id, bytes, hearth_clock_unix_us());
        hearth_disk_published_locked(disk, bytes);
    }
    if (job->fate == DISK_FAILED) {
        disk->stats.io_errors++;
    }
    const struct hearth_digest replaced = job->replaced;
    const bool replaces = there && job->replaces;
    hearth_disk_answer_locked(disk, job, there ? HEARTH_BACKING_WRITTEN : HEARTH_BACKING_DROPPED);
    hearth_disk_unlock(disk);
    if (replaces) {
        remove_replaced(disk, replaced);
    }
}

/* Drops the batch because the budget has no room and nothing there can be evicted. */
static void refuse(struct write_batch *batch) {
    hearth_log(HEARTH_LOG_DEBUG, "disk: %zu files are not written: the budget has no room", batch->n);
    for (size_t i = 0; i < batch->n; i++) {
        batch->jobs[i]->fate = DISK_REFUSED;
    }
}

static void write_batch(struct writer *writer, struct write_batch *batch) {
    struct disk *disk = writer->disk;
    uint64_t bytes = 0;
    for (size_t i = 0; i < batch->n; i++) {
        struct disk_job *job = batch->jobs[i];
        job->id = hearth_disk_id(disk, job->record->name, job->record->kind);
        bytes += hearth_disk_blocks(job->bytes) + HEARTH_FORMAT_BLOCK;
    }
    batch->error = 0;
    const int64_t begun_us = hearth_clock_us();
    if (hearth_disk_make_room(disk, bytes, false)) {
        write_once(writer, batch);
    } else {
        refuse(batch);
    }
    if (batch->error != 0 && remedy(disk, batch->error, batch->failed_bytes)) {
        write_once(writer, batch);
    }
    if (hearth_spans_on()) {
        hearth_span_put(&(struct hearth_span){.track = HEARTH_TRACK_DISK,
                                              .name = "write",
                                              .begun_us = begun_us,
                                              .ended_us = hearth_clock_us(),
                                              .args = {{"files", (int64_t)batch->n}, {"bytes", (int64_t)bytes}}});
    }
    const int error = batch->error;
    bool written = false;
    for (size_t i = 0; i < batch->n; i++) {
        written = written || batch->jobs[i]->fate == DISK_WRITTEN;
    }
    if (error != 0) {
        fail(disk, batch->step, error, batch->failed_bytes);
    } else if (written) {
        recover(disk, true);
    }
    for (size_t i = 0; i < batch->n; i++) {
        answer(disk, batch->jobs[i]);
    }
}

/* ---- the thread ---- */

/* Adds to the allowance for the time that went by. True: it is overdrawn, until `until`. */
static bool paced_locked(struct disk *disk, int64_t *until) {
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int64_t rate = RATE_BYTES_PER_S * (cores > 0 ? cores : 1), now = hearth_clock_us();
    const int64_t since = now - disk->paced_us < 10000000 ? now - disk->paced_us : 10000000;
    disk->paced_us = now;
    disk->allowance += since * (rate / 1000000);
    if (disk->allowance > BURST_BYTES) {
        disk->allowance = BURST_BYTES;
    }
    *until = now - disk->allowance / (rate / 1000000) + 1;
    return disk->allowance < 0 && !disk->stop_writer;
}

/* Waits for work. False: the thread ends. A batch without jobs: it is time for a probe. */
static bool collect(struct disk *disk, struct write_batch *batch) {
    uint64_t bytes = 0;
    batch->n = 0;
    hearth_disk_lock(disk);
    disk->writing = false;
    bool due = false;
    int64_t until = 0;
    for (;;) {
        const bool paced = paced_locked(disk, &until), idle = TAILQ_EMPTY(&disk->queue);
        if (!paced && (!idle || disk->stop_writer || due)) {
            break;
        }
        if (paced) {
            (void)hearth_clock_cond_wait(&disk->write_cond, &disk->lock, until);
        } else if (disk->stats.failing) {
            due = !hearth_clock_cond_wait(&disk->write_cond, &disk->lock, disk->retry_at_us);
        } else {
            (void)pthread_cond_wait(&disk->write_cond, &disk->lock);
        }
    }
    const uint64_t most = disk->stats.budget_bytes / 8 < BATCH_BYTES ? disk->stats.budget_bytes / 8 : BATCH_BYTES;
    const bool late = disk->stop_writer && hearth_clock_us() >= disk->deadline_us;
    while (!late && !TAILQ_EMPTY(&disk->queue) && batch->n < BATCH_FILES) {
        struct disk_job *job = TAILQ_FIRST(&disk->queue);
        bool twice = false;
        for (size_t i = 0; i < batch->n; i++) {
            twice = twice || hearth_digest_equal(batch->jobs[i]->link.key, job->link.key);
        }
        if (twice || (batch->n > 0 && bytes + job->bytes > most)) {
            break;
        }
        hearth_disk_unqueue_locked(disk, job);
        batch->jobs[batch->n++] = job;
        bytes += job->bytes;
    }
    disk->writing = batch->n > 0;
    disk->allowance -= (int64_t)bytes;
    const bool more = batch->n > 0 || !disk->stop_writer;
    hearth_disk_unlock(disk);
    return more;
}

/* Makes the queue. The threads of the pool, or the kernel's, inherit the low priority. */
static bool start(struct writer *writer) {
    const bool no_uring = writer->disk->params.no_uring;
    if (!writer->io) {
        writer->io = hearth_io_create(BATCH_FILES + BLOCKS, no_uring, DISK_WRITER_NICE);
    }
    return writer->io != NULL;
}

void *hearth_disk_writer(void *arg) {
    struct disk *disk = arg;
    struct writer writer = {.disk = disk, .blocks = hearth_prefault_take(BLOCKS * BLOCK_BYTES)};
    struct write_batch batch = {.n = 0};
    for (size_t i = 0; i < BLOCKS; i++) {
        writer.ops[i].fd = -1;
    }
    hearth_io_step_back(DISK_WRITER_NICE);
    while (collect(disk, &batch)) {
        if (batch.n == 0) {
            probe(disk);
        } else if (start(&writer)) {
            write_batch(&writer, &batch);
        } else {
            fail(disk, "start threads that write in", ENOMEM, 0);
            for (size_t i = 0; i < batch.n; i++) {
                batch.jobs[i]->fate = DISK_FAILED;
                answer(disk, batch.jobs[i]);
            }
        }
    }
    hearth_io_destroy(writer.io);
    free(writer.blocks);
    return NULL;
}
