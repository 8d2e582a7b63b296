/* What is there: directories walked, headers read.
 *
 * The scan walks the shards on several threads (a walk asks the disk for inodes), sorts what it saw by use and reads
 * the headers on several threads in that order, so that what is wanted first is known first. When the cache does not
 * keep up with the events, the readers of headers pause.
 *
 * A file that this process cannot read (another version, another key) is left alone; its bytes count. The drafts of
 * this model whose processes have ended go first: they count nowhere, and the next eviction may be far away.
 *
 * Invariants: a file is told of once, by the one that adds it to the table. A file for which a job waits is left to the
 * writer, which sees that it is there and answers WRITTEN. */
#include "tier/disk_engine.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 8
#define FEW 32 /* so few files are read by one thread */

/* ---- one header ---- */

struct header_read {
    int64_t size;
    uint32_t hits;
    struct hearth_format_info info;
    enum hearth_format_verdict verdict;
    int error; /* errno of a failed read */
};

static void read_header(const struct disk *disk, int fd, struct header_read *header) {
    uint8_t block[HEARTH_FORMAT_BLOCK], *bytes = block;
    hearth_io_expect_little(fd);
    header->size = hearth_io_size(fd);
    int64_t got = header->size < 0 ? header->size : hearth_io_read_now(fd, block, sizeof block);
    if (got >= 0) {
        header->verdict = hearth_format_read(block, (size_t)got, disk->seal, &header->info);
    }
    const size_t want = header->info.header_bytes;
    if (got == (int64_t)sizeof block && header->verdict == HEARTH_FORMAT_SHORT && want > sizeof block &&
        want <= HEARTH_FORMAT_HEADER_MAX && (int64_t)want <= header->size) {
        hearth_format_info_finish(&header->info);
        bytes = malloc(want);
        got = bytes ? hearth_io_read_now(fd, bytes, want) : -ENOMEM;
        if (got >= 0) {
            header->verdict = hearth_format_read(bytes, (size_t)got, disk->seal, &header->info);
        }
    }
    if (bytes != block) {
        free(bytes);
    }
    header->error = got < 0 ? (int)-got : 0;
}

/* NULL if a header that verifies belongs to the file it is in; else why not. */
static const char *mismatch(const struct disk *disk, const struct hearth_file_id *id,
                            const struct header_read *header) {
    const struct hearth_format_info *info = &header->info;
    const uint64_t whole = info->header_bytes + info->payload_bytes;
    if ((uint64_t)header->size != whole) {
        return (uint64_t)header->size < whole ? hearth_format_verdict_text(HEARTH_FORMAT_SHORT) : "its length is wrong";
    }
    if (!hearth_digest_equal(info->record.name, id->name) || info->record.kind != id->kind ||
        !hearth_digest_equal(info->fingerprint, disk->params.fingerprint) ||
        info->page_tokens != disk->params.page_tokens) {
        return "it holds something else than its name says";
    }
    return NULL;
}

/* Adds the file to the table; with `tell` takes the record for FOUND. */
static enum disk_verdict take_in(struct disk *disk, const struct hearth_file_id *id, struct header_read *header,
                                 bool tell) {
    struct hearth_events_entry *ev = tell ? calloc(1, sizeof *ev) : NULL;
    struct hearth_record *record = tell ? malloc(sizeof *record) : NULL;
    bool added = !tell || (ev && record), told = false;
    hearth_disk_lock(disk);
    if (hearth_disk_find_locked(disk, id->name)) {
        hearth_disk_unlock(disk);
        free(ev);
        free(record);
        return DISK_GOOD;
    }
    if (tell && hearth_table_find(&disk->jobs, id->name)) {
        tell = false; /* the writer answers */
    }
    const uint64_t bytes = hearth_disk_blocks((uint64_t)header->size);
    added = added && hearth_disk_add_locked(disk, id, bytes, 0);
    if (added && disk->stats.scanned) { /* during the scan the scan counts */
        disk->stats.files++;
        disk->stats.bytes += bytes;
    }
    if (added && tell) {
        *record = header->info.record;
        header->info.record.tokens = NULL;
        hearth_disk_note_size_locked(disk, record);
        ev->event = (struct hearth_backing_event){
            .type = HEARTH_BACKING_FOUND, .name = id->name, .record = record, .hits = header->hits};
        hearth_events_post(&disk->events, ev);
        told = true;
    }
    hearth_disk_unlock(disk);
    if (!told) {
        free(ev);
        free(record);
    }
    return added ? DISK_GOOD : DISK_UNREADABLE;
}

static enum disk_verdict quarantine(struct disk *disk, const struct hearth_file_id *id, const char *why) {
    hearth_disk_quarantine(disk, id, why);
    return DISK_BAD;
}

enum disk_verdict hearth_disk_examine(struct disk *disk, const struct hearth_file_id *id, bool tell) {
    int fd;
    const int err = hearth_file_open(hearth_disk_directory(disk), id, &fd);
    if (err == HEARTH_ERR_STATE) {
        return quarantine(disk, id, "not a plain file of this user");
    }
    if (err != HEARTH_OK) {
        return err == HEARTH_ERR_NOT_FOUND ? DISK_GONE : DISK_UNREADABLE;
    }
    struct header_read header = {.verdict = HEARTH_FORMAT_SHORT};
    read_header(disk, fd, &header);
    header.hits = hearth_file_hits(fd);
    hearth_io_close(fd);
    enum disk_verdict verdict = DISK_UNREADABLE;
    if (header.error != 0) {
        hearth_disk_lock(disk);
        disk->stats.io_errors++;
        hearth_disk_unlock(disk);
    } else if (header.verdict == HEARTH_FORMAT_NEWER || header.verdict == HEARTH_FORMAT_WRONG_KEY ||
               (header.verdict == HEARTH_FORMAT_GOOD && !header.info.readable)) {
        hearth_log(HEARTH_LOG_DEBUG, "disk: a file is left alone: %s", hearth_format_verdict_text(header.verdict));
        verdict = DISK_ALIEN;
    } else if (header.verdict != HEARTH_FORMAT_GOOD) {
        if (header.verdict != HEARTH_FORMAT_NOMEM) {
            verdict = quarantine(disk, id, hearth_format_verdict_text(header.verdict));
        }
    } else {
        const char *why = mismatch(disk, id, &header);
        verdict = why ? quarantine(disk, id, why) : take_in(disk, id, &header, tell);
    }
    hearth_format_info_finish(&header.info);
    return verdict;
}

/* ---- many, on several threads ---- */

struct pool {
    struct disk *disk;
    pthread_t threads[THREADS];
    size_t thread_count;
    atomic_size_t next, running;
    /* the work on number i */
    void (*step)(struct pool *pool, size_t i);
    size_t n;
    /* walking */
    struct disk_files seen[DISK_SHARDS];
    int64_t times[DISK_SHARDS];
    /* reading headers */
    const struct disk_files *files;
};

static void *pool_main(void *arg) {
    struct pool *pool = arg;
    hearth_io_step_back(DISK_MAINTAIN_NICE);
    for (size_t i; (i = atomic_fetch_add(&pool->next, 1)) < pool->n && !hearth_disk_stopped(pool->disk);) {
        pool->step(pool, i);
    }
    if (atomic_fetch_sub(&pool->running, 1) == 1) {
        hearth_disk_lock(pool->disk);
        (void)pthread_cond_broadcast(&pool->disk->maintain_cond);
        hearth_disk_unlock(pool->disk);
    }
    return NULL;
}

static void pool_start(struct pool *pool, size_t threads) {
    pool->thread_count = 0;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->running, 1); /* holds the count above zero until all are started */
    while (pool->thread_count < threads) {
        atomic_fetch_add(&pool->running, 1);
        if (pthread_create(&pool->threads[pool->thread_count], NULL, pool_main, pool) != 0) {
            atomic_fetch_sub(&pool->running, 1);
            break;
        }
        pool->thread_count++;
    }
    atomic_fetch_sub(&pool->running, 1);
}

/* Waits for the threads while the maintenance thread does its chores. If no thread could be started, it does the work
 * itself. */
static void pool_finish(struct pool *pool) {
    struct disk *disk = pool->disk;
    if (pool->thread_count == 0) {
        for (size_t i; (i = atomic_fetch_add(&pool->next, 1)) < pool->n && !hearth_disk_stopped(disk);) {
            pool->step(pool, i);
            hearth_disk_evict_and_remove(disk);
        }
        return;
    }
    for (bool running = true; running;) {
        hearth_disk_evict_and_remove(disk);
        hearth_disk_lock(disk);
        while ((running = atomic_load(&pool->running) > 0) && !disk->gc_wanted && !disk->removals_due) {
            (void)pthread_cond_wait(&disk->maintain_cond, &disk->lock);
        }
        hearth_disk_unlock(disk);
    }
    for (size_t i = 0; i < pool->thread_count; i++) {
        (void)pthread_join(pool->threads[i], NULL);
    }
}

/* Waits until the cache has read some of the events. */
static void wait_for_room(struct disk *disk) {
    hearth_disk_lock(disk);
    while (disk->events.count > DISK_EVENTS_WAITING && !disk->stop) {
        (void)pthread_cond_wait(&disk->room_cond, &disk->lock);
    }
    hearth_disk_unlock(disk);
}

static void examine_step(struct pool *pool, size_t i) {
    wait_for_room(pool->disk);
    (void)hearth_disk_examine(pool->disk, &pool->files->v[i].id, true);
}

void hearth_disk_examine_all(struct disk *disk, const struct disk_files *files, void (*also)(struct disk *disk)) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        return;
    }
    pool->disk = disk;
    pool->step = examine_step;
    pool->n = files->n;
    pool->files = files;
    pool_start(pool, files->n > FEW ? THREADS : files->n > 0); /* never this one: it evicts while they wait */
    if (also) {
        also(disk);
    }
    pool_finish(pool);
    free(pool);
}

/* ---- the scan ---- */

static void walk_step(struct pool *pool, size_t i) {
    struct hearth_directory *directory = hearth_disk_directory(pool->disk);
    pool->times[i] = hearth_directory_shard_time(directory, pool->disk->model, (int)i); /* before: nothing is missed */
    (void)hearth_directory_walk(directory, pool->disk->model, (int)i, hearth_disk_files_add, &pool->seen[i]);
}

static int newest_first(const void *a, const void *b) {
    const struct hearth_file *x = a, *y = b;
    return x->stamp_us > y->stamp_us ? -1 : x->stamp_us < y->stamp_us;
}

struct count {
    struct disk *disk;
    struct hearth_directory *directory;
    uint64_t files, bytes;
};

static bool count_file(void *user, const struct hearth_file *file) {
    struct count *count = user;
    count->files++;
    count->bytes += file->bytes;
    return true;
}

static bool count_model(void *user, struct hearth_model_id model) {
    struct count *count = user;
    if (strcmp(model.hex, count->disk->model.hex) != 0) {
        (void)hearth_directory_walk(count->directory, model, -1, count_file, count);
    }
    return !hearth_disk_stopped(count->disk);
}

/* Counts the other models. */
static void count_others(struct disk *disk) {
    struct count count = {.disk = disk, .directory = hearth_disk_directory(disk)};
    (void)hearth_directory_models(count.directory, count_model, &count);
    const uint64_t room = hearth_directory_free_bytes(count.directory);
    hearth_disk_lock(disk);
    disk->stats.files += count.files;
    disk->stats.bytes += count.bytes;
    if (disk->params.budget_bytes == 0) {
        disk->stats.budget_bytes = (room + disk->stats.bytes) / 5;
    }
    hearth_disk_unlock(disk);
}

/* Merges what the walk saw into one list, newest first, and counts it. */
static void gather(struct disk *disk, struct pool *pool, struct disk_files *all) {
    struct count count = {.disk = disk};
    for (int i = 0; i < DISK_SHARDS; i++) {
        for (size_t k = 0; k < pool->seen[i].n; k++) {
            (void)count_file(&count, &pool->seen[i].v[k]);
            (void)hearth_disk_files_add(all, &pool->seen[i].v[k]);
        }
        free(pool->seen[i].v);
        disk->shards[i].time = pool->times[i];
        disk->shards[i].again = true;
    }
    if (all->n > 0) {
        qsort(all->v, all->n, sizeof *all->v, newest_first);
    }
    hearth_disk_lock(disk);
    disk->stats.files += count.files;
    disk->stats.bytes += count.bytes;
    hearth_disk_unlock(disk);
}

void hearth_disk_scan(struct disk *disk) {
    const int64_t start = hearth_clock_us();
    struct disk_files all = {0};
    struct pool *pool = calloc(1, sizeof *pool);
    hearth_directory_clean_drafts(hearth_disk_directory(disk), disk->model);
    if (pool) {
        pool->disk = disk;
        pool->step = walk_step;
        pool->n = DISK_SHARDS;
        pool_start(pool, THREADS);
        pool_finish(pool);
        gather(disk, pool, &all);
        free(pool);
    }
    hearth_disk_examine_all(disk, &all, count_others);
    hearth_disk_lock(disk);
    disk->stats.scanned = true;
    disk->counted = true; /* the budget is kept from now on; damaged files are out of the way by now */
    hearth_disk_published_locked(disk, 0);
    hearth_disk_tell_locked(disk, HEARTH_BACKING_SCANNED, (struct hearth_digest){0});
    const size_t found = disk->files.count;
    hearth_disk_unlock(disk);
    hearth_log(HEARTH_LOG_DEBUG, "disk: %zu of %zu files are ours, found in %" PRId64 " ms", found, all.n,
               (hearth_clock_us() - start) / 1000);
    free(all.v);
}
