/* The archive: its queue and its thread. See archive.h.
 *
 * Two connections: `reader`, under a mutex of its own, for whoever asks; `writer`, of the thread alone. In WAL mode
 * neither waits for the other.
 *
 * The thread takes the whole queue after a short wait and writes it in one transaction. When that fails the rows go
 * back to the queue's head and it is tried again later and later; the rest of the queue fills up and then drops. A
 * result code that says the file is at fault closes both connections, has the file set aside and opens a new one.
 *
 * Invariants: `queued_bytes` is the sum over the queue and what the thread has taken. `put_count` and `settled_count`
 * count rows; a row is settled once it is on disk or given up, in the order in which it was put. */
#include "session/archive_internal.h"
#include "session/db.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE_BYTES_MAX ((size_t)64 * 1024 * 1024)
#define GATHER_US 50000   /* rows wait so long for others */
#define BACKOFF_US 500000 /* after a failure; doubled each time */
#define BACKOFF_MAX_US 30000000
#define WRITER_BUSY_MS 10000
#define READER_BUSY_MS 1000

struct hearth_archive {
    char *path;
    const struct hearth_seal *seal;
    uint64_t limit_bytes;
    atomic_uint_fast64_t generation;
    atomic_uint_fast64_t damaged;

    pthread_mutex_t read_mutex;
    struct archive_db reader;

    pthread_mutex_t mutex; /* all below but `writer` */
    pthread_cond_t work, settled;
    pthread_t thread;
    struct archive_item *head, **tail;
    uint64_t put_count, settled_count;
    uint64_t failures;    /* attempts that failed, since the start */
    bool stopping, hurry; /* hurry: somebody waits in flush */
    bool reader_failed;   /* the thread is to open it anew */
    int reader_code;
    struct hearth_archive_stats stats;

    struct archive_db writer;
    int64_t backoff_us;
};

void hearth_archive_forget(struct hearth_archive *archive) {
    atomic_fetch_add(&archive->generation, 1);
}

/* ---- opening, and trouble ---- */

/* Opens what is not open. The thread's, so that nobody who asks waits for it. */
static int open_all(struct hearth_archive *archive, struct hearth_errmsg *why) {
    struct archive_db reader;
    int rc = SQLITE_OK;
    if (archive->writer.handle == NULL) {
        rc = hearth_archive_db_open(archive->path, WRITER_BUSY_MS, &archive->writer, why);
    }
    pthread_mutex_lock(&archive->read_mutex);
    bool closed = archive->reader.handle == NULL;
    pthread_mutex_unlock(&archive->read_mutex);
    if (rc == SQLITE_OK && closed) {
        rc = hearth_archive_db_open(archive->path, READER_BUSY_MS, &reader, why);
        pthread_mutex_lock(&archive->read_mutex);
        archive->reader = reader; /* still closed: nobody else opens it */
        pthread_mutex_unlock(&archive->read_mutex);
    }
    return rc;
}

static void close_all(struct hearth_archive *archive) {
    pthread_mutex_lock(&archive->read_mutex);
    hearth_archive_db_close(&archive->reader);
    pthread_mutex_unlock(&archive->read_mutex);
    hearth_archive_db_close(&archive->writer);
}

/* The state changes, with one line. */
static void set_failing(struct hearth_archive *archive, bool failing, const char *why) {
    pthread_mutex_lock(&archive->mutex);
    bool changed = archive->stats.failing != failing;
    archive->stats.failing = failing;
    pthread_mutex_unlock(&archive->mutex);
    if (changed && failing) {
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s: %s; they are in memory only until that works again",
                   archive->path, why);
    } else if (changed) {
        hearth_log(HEARTH_LOG_INFO, "transcripts: %s works again", archive->path);
    }
    if (!failing) {
        archive->backoff_us = 0;
    }
}

/* Opens the database, setting one aside that is at fault. */
static bool open_or_replace(struct hearth_archive *archive) {
    struct hearth_errmsg why = {.text = ""};
    if (archive->writer.handle != NULL && hearth_archive_db_has_moved(&archive->writer)) {
        close_all(archive); /* removed, or set aside by another process */
        hearth_archive_forget(archive);
    }
    int rc = open_all(archive, &why);
    if (hearth_archive_db_is_bad(rc)) {
        close_all(archive);
        hearth_archive_forget(archive);
        if (hearth_archive_db_quarantine(archive->path)) {
            rc = open_all(archive, &why);
        }
    }
    if (rc != SQLITE_OK) {
        close_all(archive);
        set_failing(archive, true, why.text);
    }
    return rc == SQLITE_OK;
}

/* What to do about a result code of a connection that was open. */
static void meet_trouble(struct hearth_archive *archive, int rc, const char *why) {
    bool bad = hearth_archive_db_is_bad(rc);
    if (!bad) {
        set_failing(archive, true, why);
    }
    close_all(archive); /* a file that has been replaced is found again, too */
    if (bad && !hearth_archive_db_quarantine(archive->path)) {
        set_failing(archive, true, why);
    }
    if (bad) {
        hearth_archive_forget(archive);
    }
}

/* ---- the thread ---- */

static int keep_limit(struct hearth_archive *archive) {
    uint64_t bytes = 0, evicted = 0;
    int rc = hearth_archive_rows_bytes(&archive->writer, &bytes);
    if (rc == SQLITE_OK && bytes > archive->limit_bytes) {
        rc = hearth_archive_rows_evict(&archive->writer, archive->limit_bytes - archive->limit_bytes / 8, &evicted);
        if (evicted > 0) {
            hearth_archive_forget(archive);
        }
        if (rc == SQLITE_OK) {
            rc = hearth_archive_rows_bytes(&archive->writer, &bytes);
        }
    }
    pthread_mutex_lock(&archive->mutex);
    archive->stats.bytes = bytes;
    archive->stats.evicted += evicted;
    pthread_mutex_unlock(&archive->mutex);
    return rc;
}

/* False: nothing was written, try again later. */
static bool write_items(struct hearth_archive *archive, struct archive_item *items, uint64_t *lost) {
    if (!open_or_replace(archive)) {
        return false;
    }
    int rc = items != NULL ? hearth_archive_rows_write(&archive->writer, archive->seal, items, lost) : SQLITE_OK;
    bool written = rc == SQLITE_OK;
    if (*lost > 0) {
        hearth_archive_forget(archive);
    }
    rc = written ? keep_limit(archive) : rc;
    if (rc != SQLITE_OK) {
        struct hearth_errmsg why;
        (void)hearth_fail(&why, HEARTH_ERR_IO, "%s", sqlite3_errmsg(archive->writer.handle));
        meet_trouble(archive, rc, why.text);
    } else {
        set_failing(archive, false, NULL);
    }
    return written;
}

/* With the mutex. Returns how many. */
static uint64_t free_items(struct hearth_archive *archive, struct archive_item *items) {
    uint64_t count = 0;
    for (; items != NULL; count++) {
        struct archive_item *next = items->next;
        archive->stats.queued_bytes -= items->bytes;
        hearth_archive_row_finish(&items->row);
        free(items);
        items = next;
    }
    return count;
}

static void wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_us) {
    struct timespec at = {.tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000};
    (void)pthread_cond_timedwait(cond, mutex, &at);
}

/* Waits, with the mutex, until there is something to do. */
static void wait_for_work(struct hearth_archive *archive, int64_t not_before_us) {
    while (!archive->stopping && archive->head == NULL && !archive->reader_failed && !archive->stats.failing) {
        pthread_cond_wait(&archive->work, &archive->mutex);
    }
    int64_t until_us = hearth_clock_us() + GATHER_US;
    until_us = not_before_us > until_us ? not_before_us : until_us;
    bool failing = archive->stats.failing;
    while (!archive->stopping && (failing || !archive->hurry) && hearth_clock_us() < until_us) {
        wait_until(&archive->work, &archive->mutex, until_us);
    }
}

/* Takes the queue, writes it and settles it, or puts it back. With the mutex, which is let go of meanwhile. */
static bool write_queue(struct hearth_archive *archive) {
    struct archive_item *items = archive->head, **end = archive->tail;
    bool reader_failed = archive->reader_failed;
    int reader_code = archive->reader_code;
    archive->head = NULL;
    archive->tail = &archive->head;
    archive->reader_failed = false;
    pthread_mutex_unlock(&archive->mutex);

    if (reader_failed) {
        meet_trouble(archive, reader_code, sqlite3_errstr(reader_code));
    }
    uint64_t lost = 0;
    bool ok = write_items(archive, items, &lost);

    pthread_mutex_lock(&archive->mutex);
    if (ok) {
        uint64_t count = free_items(archive, items);
        archive->stats.written += count - lost;
        archive->stats.dropped += lost;
        archive->settled_count += count;
    } else {
        archive->failures++;
        if (items != NULL) { /* back in front of what has come meanwhile */
            *end = archive->head;
            archive->tail = archive->head != NULL ? archive->tail : end;
            archive->head = items;
        }
    }
    pthread_cond_broadcast(&archive->settled);
    return ok;
}

static void *run(void *user) {
    struct hearth_archive *archive = user;
    int64_t not_before_us = 0;
    pthread_mutex_lock(&archive->mutex);
    for (;;) {
        wait_for_work(archive, not_before_us);
        bool last = archive->stopping;
        if (archive->head == NULL && last) {
            break;
        }
        bool ok = write_queue(archive);
        if (last && !ok) {
            break;
        }
        not_before_us = 0;
        if (archive->stats.failing) {
            archive->backoff_us = archive->backoff_us > 0 ? archive->backoff_us * 2 : BACKOFF_US;
            archive->backoff_us = archive->backoff_us < BACKOFF_MAX_US ? archive->backoff_us : BACKOFF_MAX_US;
            not_before_us = hearth_clock_us() + archive->backoff_us;
        }
    }
    pthread_mutex_unlock(&archive->mutex);
    return NULL;
}

/* ---- life ---- */

static bool init_conds(struct hearth_archive *archive) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* hearth_clock_us()'s */
    pthread_cond_init(&archive->work, &attributes);
    pthread_cond_init(&archive->settled, &attributes);
    pthread_condattr_destroy(&attributes);
    return pthread_create(&archive->thread, NULL, run, archive) == 0;
}

int hearth_archive_create(const struct hearth_archive_params *params, struct hearth_archive **out) {
    struct hearth_archive *archive = calloc(1, sizeof *archive);
    *out = NULL;
    if (archive == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    archive->path = strdup(params->path);
    archive->seal = params->seal;
    archive->limit_bytes = params->limit_bytes;
    archive->tail = &archive->head;
    atomic_init(&archive->generation, 1);
    atomic_init(&archive->damaged, 0);
    pthread_mutex_init(&archive->mutex, NULL);
    pthread_mutex_init(&archive->read_mutex, NULL);
    if (archive->path != NULL) {
        (void)open_or_replace(archive); /* otherwise the thread tries again */
    }
    if (archive->path == NULL || !init_conds(archive)) {
        close_all(archive);
        free(archive->path);
        free(archive);
        return HEARTH_ERR_NOMEM;
    }
    *out = archive;
    return HEARTH_OK;
}

void hearth_archive_destroy(struct hearth_archive *archive) {
    if (archive == NULL) {
        return;
    }
    pthread_mutex_lock(&archive->mutex);
    archive->stopping = true;
    pthread_cond_signal(&archive->work);
    pthread_mutex_unlock(&archive->mutex);
    pthread_join(archive->thread, NULL);
    close_all(archive);
    if (archive->head != NULL) {
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s: what was said last could not be written", archive->path);
    }
    (void)free_items(archive, archive->head);
    pthread_cond_destroy(&archive->work);
    pthread_cond_destroy(&archive->settled);
    pthread_mutex_destroy(&archive->mutex);
    pthread_mutex_destroy(&archive->read_mutex);
    free(archive->path);
    free(archive);
}

/* ---- asking ---- */

size_t hearth_archive_read(struct hearth_archive *archive, enum hearth_archive_query query, struct hearth_digest key,
                           struct hearth_archive_row *rows, size_t max) {
    size_t count = 0;
    uint64_t damaged = 0;
    int rc = SQLITE_OK;
    pthread_mutex_lock(&archive->read_mutex);
    if (archive->reader.handle != NULL) {
        rc = hearth_archive_rows_read(&archive->reader, archive->seal, query, key, rows, max, &count, &damaged);
        if (rc != SQLITE_OK && (rc & 0xFF) != SQLITE_BUSY && !hearth_db_is_nomem(rc)) {
            hearth_archive_db_close(&archive->reader);
        } else {
            rc = SQLITE_OK;
        }
    }
    pthread_mutex_unlock(&archive->read_mutex);
    if (damaged > 0 && atomic_fetch_add(&archive->damaged, damaged) == 0) {
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s: a row does not match its checksum; such rows are left out",
                   archive->path);
    }
    if (rc != SQLITE_OK) {
        pthread_mutex_lock(&archive->mutex);
        archive->reader_failed = true;
        archive->reader_code = rc;
        pthread_cond_signal(&archive->work);
        pthread_mutex_unlock(&archive->mutex);
    }
    return count;
}

/* ---- putting ---- */

bool hearth_archive_has_room(struct hearth_archive *archive) {
    pthread_mutex_lock(&archive->mutex);
    bool room = archive->stats.queued_bytes < QUEUE_BYTES_MAX;
    pthread_mutex_unlock(&archive->mutex);
    return room;
}

uint64_t hearth_archive_generation(struct hearth_archive *archive) {
    return atomic_load(&archive->generation);
}

/* A list of items that own the bodies; NULL: out of memory, nothing taken. */
static struct archive_item *make_items(struct hearth_archive_row *rows, size_t count, struct archive_item ***end,
                                       size_t *bytes) {
    struct archive_item *head = NULL, **tail = &head;
    for (size_t i = 0; i < count; i++) {
        struct archive_item *item = calloc(1, sizeof *item);
        if (item == NULL) {
            while (head != NULL) {
                item = head->next;
                free(head);
                head = item;
            }
            return NULL;
        }
        item->row = rows[i];
        item->bytes = sizeof *item + rows[i].body.cap;
        *bytes += item->bytes;
        *tail = item;
        tail = &item->next;
    }
    *end = tail;
    return head;
}

bool hearth_archive_put(struct hearth_archive *archive, struct hearth_archive_row *rows, size_t count) {
    struct archive_item **end = NULL;
    size_t bytes = 0;
    struct archive_item *items = hearth_archive_has_room(archive) ? make_items(rows, count, &end, &bytes) : NULL;
    if (items == NULL) {
        for (size_t i = 0; i < count; i++) {
            hearth_archive_row_finish(&rows[i]);
        }
        pthread_mutex_lock(&archive->mutex);
        archive->stats.dropped += count;
        pthread_mutex_unlock(&archive->mutex);
        hearth_archive_forget(archive);
        return false;
    }
    pthread_mutex_lock(&archive->mutex);
    *archive->tail = items;
    archive->tail = end;
    archive->stats.queued_bytes += bytes;
    archive->put_count += count;
    pthread_cond_signal(&archive->work);
    pthread_mutex_unlock(&archive->mutex);
    return true;
}

bool hearth_archive_flush(struct hearth_archive *archive, int64_t timeout_us) {
    int64_t until_us = hearth_clock_us() + timeout_us;
    pthread_mutex_lock(&archive->mutex);
    uint64_t wanted = archive->put_count, failures = archive->failures;
    while (archive->settled_count < wanted && archive->failures == failures && hearth_clock_us() < until_us) {
        archive->hurry = true;
        pthread_cond_signal(&archive->work);
        wait_until(&archive->settled, &archive->mutex, until_us);
    }
    archive->hurry = false;
    bool done = archive->settled_count >= wanted;
    pthread_mutex_unlock(&archive->mutex);
    return done;
}

void hearth_archive_stats(struct hearth_archive *archive, struct hearth_archive_stats *stats) {
    pthread_mutex_lock(&archive->mutex);
    *stats = archive->stats;
    pthread_mutex_unlock(&archive->mutex);
    stats->damaged = atomic_load(&archive->damaged);
}
