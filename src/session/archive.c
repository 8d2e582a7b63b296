/* The archive: its connections, its queue and its thread. See archive.h.
 *
 * Two connections: `reader`, under its mutex, for all that is asked; `writer`, of the thread alone. In WAL mode neither
 * waits for the other.
 *
 * The thread takes the whole queue after a short wait and writes it in one transaction. When that fails the rows go
 * back to the queue's head and it is tried again later and later; the rest of the queue fills up and then drops. A
 * result code that says the file is at fault closes both connections, has the file moved away and opens a new one.
 *
 * On a server a reader that gets no answer is closed, and all is a miss until the thread has a connection.
 *
 * Invariants: `queued_bytes` is the sum over the queue and what the thread has taken. `put_count` and `done_count`
 * count rows; a row is done once it is on disk or dropped, in the order in which it was put. */
#include "session/archive_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/table.h"
#include "session/db_pg.h"
#include "session/db_sqlite.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_BYTES_MAX ((size_t)64 * 1024 * 1024)
#define GATHER_US 50000   /* how long a row waits for others */
#define BACKOFF_US 500000 /* after a failure; doubled each time */
#define BACKOFF_MAX_US 30000000
#define WRITER_BUSY_MS 10000
#define READER_BUSY_MS 1000
#define READER_WAIT_S 1

/* Queued rows that were put together. */
struct archive_batch {
    struct archive_batch *next;
    size_t count, bytes; /* rows; memory that they count for */
    struct hearth_archive_row rows[];
};

struct hearth_archive {
    char *path;
    char *name; /* how log lines name it */
    bool on_server;
    atomic_bool away; /* the last read had no answer: everything is a miss until the thread has a connection */
    uint64_t limit_bytes;
    atomic_uint_fast64_t generation;
    atomic_uint_fast64_t damaged;
    struct hearth_db reader, writer;

    pthread_mutex_t mutex; /* guards everything below except `backoff_us`, which is the thread's */
    pthread_cond_t work, done;
    pthread_t thread;
    struct archive_batch *head, **tail;
    struct hearth_table going; /* names: the keys of queued rows that are to be deleted */
    uint64_t put_count, done_count;
    uint64_t failures; /* failed attempts since the start */
    bool stopping, flushing;
    bool reader_failed; /* the thread must open it again */
    int reader_code;
    struct hearth_archive_stats stats;

    int64_t backoff_us;
};

/* ---- opening, and failures ---- */

void hearth_archive_begin_generation(struct hearth_archive *archive) {
    atomic_fetch_add(&archive->generation, 1);
}

/* Opens the connections that are not open. Returns a code. */
static int open_all(struct hearth_archive *archive, struct hearth_errmsg *reason) {
    int code = !hearth_db_is_open(&archive->writer) ? hearth_db_open(&archive->writer, reason) : HEARTH_DB_OK;
    pthread_mutex_lock(&archive->reader.mutex);
    code =
        code == HEARTH_DB_OK && !hearth_db_is_open(&archive->reader) ? hearth_db_open(&archive->reader, reason) : code;
    atomic_store(&archive->away, code != HEARTH_DB_OK);
    pthread_mutex_unlock(&archive->reader.mutex);
    return code;
}

static void close_all(struct hearth_archive *archive) {
    pthread_mutex_lock(&archive->reader.mutex);
    hearth_db_close(&archive->reader);
    pthread_mutex_unlock(&archive->reader.mutex);
    hearth_db_close(&archive->writer);
}

/* Changes between failing and not failing, with one log line. */
static void set_failing(struct hearth_archive *archive, bool failing, const char *reason) {
    pthread_mutex_lock(&archive->mutex);
    bool changed = archive->stats.failing != failing;
    archive->stats.failing = failing;
    pthread_mutex_unlock(&archive->mutex);
    if (changed && failing) {
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s: %s; they are in memory only until that works again",
                   archive->name, reason);
    } else if (changed) {
        hearth_log(HEARTH_LOG_INFO, "transcripts: %s works again", archive->name);
    }
    if (!failing) {
        archive->backoff_us = 0;
    }
}

/* Opens the database; one that is at fault is moved away before. */
static bool open_or_replace(struct hearth_archive *archive) {
    struct hearth_errmsg reason = {.text = ""};
    if (hearth_db_is_open(&archive->writer) && hearth_db_has_moved(&archive->writer)) {
        close_all(archive); /* removed, or moved away by another process */
        hearth_archive_begin_generation(archive);
    }
    int code = open_all(archive, &reason);
    if (!archive->on_server && hearth_db_is_damage(&hearth_archive_db_kind, code)) {
        close_all(archive);
        hearth_archive_begin_generation(archive);
        code = hearth_db_quarantine(&hearth_archive_db_kind, archive->path) ? open_all(archive, &reason) : code;
    }
    if (code != HEARTH_DB_OK) {
        close_all(archive);
        set_failing(archive, true, reason.text);
    }
    return code == HEARTH_DB_OK;
}

/* Handles the failure of an open connection, with its code. */
static void handle_failure(struct hearth_archive *archive, int code, const char *reason) {
    const bool damage = !archive->on_server && hearth_db_is_damage(&hearth_archive_db_kind, code);
    close_all(archive); /* so that a replaced file is found */
    if (!damage || !hearth_db_quarantine(&hearth_archive_db_kind, archive->path)) {
        set_failing(archive, true, reason);
    }
    if (damage) {
        hearth_archive_begin_generation(archive);
    }
}

/* ---- the thread ---- */

static int enforce_limit(struct hearth_archive *archive) {
    struct hearth_db *db = &archive->writer;
    uint64_t bytes = 0, evicted = 0;
    int err = hearth_archive_rows_count_bytes(db, &bytes);
    if (err == HEARTH_OK && bytes > archive->limit_bytes) {
        err = hearth_archive_rows_evict(db, archive->limit_bytes - archive->limit_bytes / 8, &evicted);
        if (err == HEARTH_OK && !archive->on_server) {
            hearth_db_give_back(db);
        }
        if (evicted > 0) {
            hearth_archive_begin_generation(archive);
        }
        err = err == HEARTH_OK ? hearth_archive_rows_count_bytes(db, &bytes) : err;
    }
    pthread_mutex_lock(&archive->mutex);
    archive->stats.bytes = bytes;
    archive->stats.evicted += evicted;
    pthread_mutex_unlock(&archive->mutex);
    return err;
}

static int write_batches(struct hearth_db *db, struct archive_batch *batch, uint64_t *lost) {
    const struct hearth_digest *last = NULL;
    int err = HEARTH_OK;
    for (; batch != NULL && err == HEARTH_OK; batch = batch->next) {
        err = hearth_archive_rows_write(db, batch->rows, batch->count, &last, lost);
    }
    return err;
}

/* Writes rows. False: nothing was written; try again later. */
static bool write_items(struct hearth_archive *archive, struct archive_batch *items, uint64_t *lost) {
    struct hearth_db *db = &archive->writer;
    if (!open_or_replace(archive)) {
        return false;
    }
    int err = items != NULL ? hearth_db_begin(db, true) : HEARTH_OK;
    err = err == HEARTH_OK && items != NULL ? hearth_db_end(db, write_batches(db, items, lost)) : err;
    const bool written = err == HEARTH_OK;
    if (*lost > 0) {
        hearth_archive_begin_generation(archive);
    }
    err = written ? enforce_limit(archive) : err;
    if (err != HEARTH_OK) {
        handle_failure(archive, db->code, hearth_db_reason(db));
    } else {
        set_failing(archive, false, NULL);
    }
    return written;
}

/* Frees rows and returns how many there were. With the mutex. */
static uint64_t free_items(struct hearth_archive *archive, struct archive_batch *items) {
    uint64_t count = 0;
    for (struct archive_batch *next; items != NULL; items = next) {
        next = items->next;
        count += items->count;
        archive->stats.queued_bytes -= items->bytes;
        for (size_t i = 0; i < items->count; i++) {
            if (items->rows[i].gone) {
                (void)hearth_table_take_name(&archive->going, items->rows[i].key);
            }
            hearth_archive_row_finish(&items->rows[i]);
        }
        free(items);
    }
    return count;
}

/* Waits until there is something to do. With the mutex. */
static void wait_for_work(struct hearth_archive *archive, int64_t not_before_us) {
    while (!archive->stopping && archive->head == NULL && !archive->reader_failed && !archive->stats.failing) {
        pthread_cond_wait(&archive->work, &archive->mutex);
    }
    int64_t until_us = hearth_clock_us() + GATHER_US;
    until_us = not_before_us > until_us ? not_before_us : until_us;
    bool failing = archive->stats.failing;
    while (!archive->stopping && (failing || !archive->flushing) && hearth_clock_us() < until_us) {
        (void)hearth_clock_cond_wait(&archive->work, &archive->mutex, until_us);
    }
}

/* Takes the queue and writes it, or puts it back. With the mutex, which is released while it writes. */
static bool write_queue(struct hearth_archive *archive) {
    struct archive_batch *items = archive->head, **end = archive->tail;
    bool reader_failed = archive->reader_failed;
    int reader_code = archive->reader_code;
    archive->head = NULL;
    archive->tail = &archive->head;
    archive->reader_failed = false;
    pthread_mutex_unlock(&archive->mutex);

    if (reader_failed) {
        handle_failure(archive, reader_code, hearth_db_text(reader_code));
    }
    uint64_t lost = 0;
    bool ok = write_items(archive, items, &lost);

    pthread_mutex_lock(&archive->reader.mutex); /* what was read before this was read without what is deleted now */
    pthread_mutex_lock(&archive->mutex);
    pthread_mutex_unlock(&archive->reader.mutex);
    if (ok) {
        uint64_t count = free_items(archive, items);
        archive->stats.written += count - lost;
        archive->stats.dropped += lost;
        archive->done_count += count;
    } else {
        archive->failures++;
        if (items != NULL) { /* in front of rows that came meanwhile */
            *end = archive->head;
            archive->tail = archive->head != NULL ? archive->tail : end;
            archive->head = items;
        }
    }
    pthread_cond_broadcast(&archive->done);
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
    hearth_clock_cond_init(&archive->work);
    hearth_clock_cond_init(&archive->done);
    return pthread_create(&archive->thread, NULL, run, archive) == 0;
}

/* Closes the reader first: the last connection empties the log. */
static void finish(struct hearth_archive *archive) {
    hearth_db_finish(&archive->reader);
    hearth_db_finish(&archive->writer);
    pthread_mutex_destroy(&archive->mutex);
    hearth_memory_wipe(archive->path); /* a URL may hold a password */
    free(archive->name);
    free(archive);
}

int hearth_archive_create(const struct hearth_archive_params *params, struct hearth_archive **out) {
    struct hearth_archive *archive = calloc(1, sizeof *archive);
    *out = NULL;
    if (archive == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    archive->path = strdup(params->path);
    archive->on_server = hearth_db_is_pg(params->path);
    archive->name = archive->on_server ? hearth_db_pg_name(params->path) : strdup(params->path);
    archive->limit_bytes = params->limit_bytes;
    archive->tail = &archive->head;
    atomic_init(&archive->generation, 1);
    atomic_init(&archive->damaged, 0);
    atomic_init(&archive->away, false);
    pthread_mutex_init(&archive->mutex, NULL);
    const struct hearth_db_driver *driver = archive->on_server ? &hearth_db_pg : &hearth_db_sqlite;
    hearth_db_init(&archive->writer, driver, &hearth_archive_db_kind, archive->path, WRITER_BUSY_MS, params->seal);
    hearth_db_init(&archive->reader, driver, &hearth_archive_db_kind, archive->path, READER_BUSY_MS, params->seal);
    const bool named = archive->path != NULL && archive->name != NULL;
    if (named) {
        (void)open_or_replace(archive); /* if that fails, the thread tries again */
    }
    if (!named || !init_conds(archive)) {
        finish(archive);
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
    if (archive->head != NULL) {
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s: what was said last could not be written", archive->name);
    }
    (void)free_items(archive, archive->head);
    hearth_table_finish_names(&archive->going);
    pthread_cond_destroy(&archive->work);
    pthread_cond_destroy(&archive->done);
    finish(archive);
}

/* ---- asking ---- */

/* Locks the reader. False: the server is silent, and a miss costs less than waiting for it. */
static bool lock_reader(struct hearth_archive *archive) {
    struct timespec until;
    const int64_t since_us = hearth_clock_us();
    if (!archive->on_server) {
        hearth_db_lock(&archive->reader.mutex);
        return true;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += READER_WAIT_S;
    const bool locked =
        !atomic_load(&archive->away) && pthread_mutex_clocklock(&archive->reader.mutex, CLOCK_MONOTONIC, &until) == 0;
    atomic_store(&archive->away, !locked);
    hearth_db_note_wait(since_us);
    return locked;
}

/* Leaves out rows that are queued to be deleted. With the reader's mutex. */
static size_t leave_out_going(struct hearth_archive *archive, struct hearth_archive_row *rows, size_t count) {
    size_t kept = 0;
    pthread_mutex_lock(&archive->mutex);
    for (size_t i = 0; i < count; i++) {
        if (hearth_table_find(&archive->going, rows[i].key) != NULL) {
            hearth_archive_row_finish(&rows[i]);
        } else {
            rows[kept++] = rows[i];
        }
    }
    pthread_mutex_unlock(&archive->mutex);
    return kept;
}

size_t hearth_archive_read(struct hearth_archive *archive, enum hearth_archive_query query, struct hearth_digest key,
                           struct hearth_archive_row *rows, size_t max) {
    size_t count = 0;
    uint64_t damaged = 0;
    int code = HEARTH_DB_OK;
    if (archive == NULL || !lock_reader(archive)) {
        return 0;
    }
    struct hearth_db *db = &archive->reader;
    if (hearth_db_is_open(db) && hearth_archive_rows_read(db, query, key, rows, max, &count, &damaged) != HEARTH_OK &&
        (archive->on_server || !hearth_db_is_busy(db->code)) && !hearth_db_is_nomem(db->code)) {
        code = db->code;
        hearth_db_close(db);
    }
    count = leave_out_going(archive, rows, count);
    pthread_mutex_unlock(&db->mutex);
    if (damaged > 0 && atomic_fetch_add(&archive->damaged, damaged) == 0) {
        hearth_log(HEARTH_LOG_WARN, "transcripts: %s: a row does not match its checksum; such rows are left out",
                   archive->name);
    }
    atomic_store(&archive->away, code != HEARTH_DB_OK);
    if (code != HEARTH_DB_OK) {
        pthread_mutex_lock(&archive->mutex);
        archive->reader_failed = true;
        archive->reader_code = code;
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

bool hearth_archive_put(struct hearth_archive *archive, struct hearth_archive_row *rows, size_t count) {
    const size_t bytes = sizeof(struct archive_batch) + count * sizeof *rows;
    struct archive_batch *batch = hearth_archive_has_room(archive) ? malloc(bytes) : NULL;
    if (batch == NULL) {
        for (size_t i = 0; i < count; i++) {
            hearth_archive_row_finish(&rows[i]);
        }
        pthread_mutex_lock(&archive->mutex);
        archive->stats.dropped += count;
        pthread_mutex_unlock(&archive->mutex);
        hearth_archive_begin_generation(archive);
        return false;
    }
    *batch = (struct archive_batch){.count = count, .bytes = bytes};
    pthread_mutex_lock(&archive->mutex);
    for (size_t i = 0; i < count; i++) {
        batch->rows[i] = rows[i];
        batch->bytes += rows[i].body.cap;
        if (rows[i].gone) { /* out of memory: it is found until it is deleted */
            (void)hearth_table_add_name(&archive->going, rows[i].key);
        }
    }
    *archive->tail = batch;
    archive->tail = &batch->next;
    archive->stats.queued_bytes += batch->bytes;
    archive->put_count += count;
    pthread_cond_signal(&archive->work);
    pthread_mutex_unlock(&archive->mutex);
    return true;
}

bool hearth_archive_flush(struct hearth_archive *archive, int64_t timeout_us) {
    int64_t until_us = hearth_clock_us() + timeout_us;
    pthread_mutex_lock(&archive->mutex);
    uint64_t wanted = archive->put_count, failures = archive->failures;
    while (archive->done_count < wanted && archive->failures == failures && hearth_clock_us() < until_us) {
        archive->flushing = true;
        pthread_cond_signal(&archive->work);
        (void)hearth_clock_cond_wait(&archive->done, &archive->mutex, until_us);
    }
    archive->flushing = false;
    bool done = archive->done_count >= wanted;
    pthread_mutex_unlock(&archive->mutex);
    return done;
}

void hearth_archive_stats(struct hearth_archive *archive, struct hearth_archive_stats *stats) {
    pthread_mutex_lock(&archive->mutex);
    *stats = archive->stats;
    pthread_mutex_unlock(&archive->mutex);
    stats->damaged = atomic_load(&archive->damaged);
}
