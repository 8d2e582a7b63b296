/* The disk tier: its life, and the calls of the cache that need no thread. What waits to be read or written, and the
 * threads that do it, are in the files that disk_engine.h lists.
 *
 * Every operation on a file stands on its own, so readers, writer and maintenance thread share nothing but what the
 * lock guards (disk_state.c), and processes need not coordinate.
 *
 * Invariant: answers (READ, WRITTEN, DROPPED, REMOVED) never need memory, because the request brings it. */
#include "tier/disk_engine.h"

#include "base/assert.h"
#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RESCAN_US 2000000 /* what another process wrote is found so late; 256 stat() a time */

static struct disk *disk_of(struct hearth_backing *backing) {
    return (struct disk *)backing;
}

/* ---- events ---- */

static void disk_set_wake(struct hearth_backing *backing, void (*wake)(void *user), void *user) {
    hearth_news_set_wake(&disk_of(backing)->events.news, wake, user);
}

static bool disk_poll(struct hearth_backing *backing, struct hearth_backing_event *event) {
    struct disk *disk = disk_of(backing);
    hearth_disk_lock(disk);
    struct hearth_events_entry *ev = hearth_events_take(&disk->events);
    if (ev && disk->events.count == DISK_EVENTS_WAITING / 2) {
        (void)pthread_cond_broadcast(&disk->room_cond);
    }
    if (ev && ev->charge > 0) {
        disk->read_bytes -= ev->charge;
        (void)pthread_cond_broadcast(&disk->read_cond);
    }
    hearth_disk_unlock(disk);
    if (!ev) {
        return false;
    }
    *event = ev->event;
    free(ev);
    return true;
}

static bool disk_wait(struct hearth_backing *backing, int64_t timeout_us) {
    return hearth_news_wait(&disk_of(backing)->events.news, timeout_us);
}

/* ---- use ---- */

/* Notes that a file's last use is to be told to the file. Out of memory, the next use notes it. */
static void note_touch_locked(struct disk *disk, struct disk_file *file) {
    if (file->touching || !HEARTH_BUF_ROOM(disk->touched, disk->touched_n, disk->touched_cap)) {
        return;
    }
    disk->touched[disk->touched_n++] = file->link.key;
    file->touching = true;
}

static void disk_touch(struct hearth_backing *backing, const struct hearth_backing_touch *touches, size_t n) {
    struct disk *disk = disk_of(backing);
    const int64_t now = hearth_clock_unix_us();
    hearth_disk_lock(disk);
    for (size_t i = 0; i < n; i++) {
        struct disk_file *file = hearth_disk_find_locked(disk, touches[i].name);
        if (!file) {
            continue;
        }
        if (touches[i].superseded != file->superseded) {
            file->touched_us = 0; /* worth telling at once */
        }
        file->used_us = now;
        file->pos = touches[i].pos;
        file->superseded = touches[i].superseded;
        file->hits++;
        note_touch_locked(disk, file);
    }
    hearth_disk_unlock(disk);
}

static void disk_reject(struct hearth_backing *backing, struct hearth_digest name, const char *why) {
    struct disk *disk = disk_of(backing);
    struct hearth_file_id id;
    if (hearth_disk_known(disk, name, &id)) {
        hearth_disk_quarantine(disk, &id, why);
        hearth_disk_lock(disk);
        hearth_disk_tell_locked(disk, HEARTH_BACKING_LOST, name);
        hearth_disk_unlock(disk);
    }
}

static void disk_stats(struct hearth_backing *backing, struct hearth_backing_stats *stats) {
    struct disk *disk = disk_of(backing);
    hearth_disk_lock(disk);
    *stats = disk->stats;
    stats->bad = hearth_directory_bad(disk->directory);
    for (const struct disk_retired *retired = disk->retired; retired; retired = retired->next) {
        stats->bad += hearth_directory_bad(retired->directory);
    }
    hearth_disk_unlock(disk);
}

/* ---- life ---- */

static void free_all(struct disk *disk) {
    hearth_disk_lock(disk);
    hearth_disk_drop_queue_locked(disk);
    hearth_disk_unlock(disk);
    hearth_disk_drop_reads(disk);
    hearth_disk_drop_removals(disk);
    hearth_events_finish(&disk->events);
    for (int i = 0; i < DISK_SHARDS; i++) {
        while (!TAILQ_EMPTY(&disk->shards[i].files)) {
            hearth_disk_forget_locked(disk, TAILQ_FIRST(&disk->shards[i].files), false);
        }
    }
    for (int i = 0; i < DISK_GROUPS; i++) {
        hearth_tokens_finish(&disk->groups[i].tokens);
    }
    while (disk->retired) {
        struct disk_retired *retired = disk->retired;
        disk->retired = retired->next;
        hearth_directory_close(retired->directory);
        free(retired);
    }
    hearth_table_finish(&disk->files);
    hearth_table_finish(&disk->jobs);
    hearth_directory_close(disk->directory);
    hearth_seal_destroy(disk->seal);
    pthread_cond_t *conds[] = {&disk->room_cond, &disk->read_cond, &disk->write_cond, &disk->maintain_cond,
                               &disk->gc_cond};
    for (size_t i = 0; i < sizeof conds / sizeof *conds; i++) {
        (void)pthread_cond_destroy(conds[i]);
    }
    (void)pthread_mutex_destroy(&disk->lock);
    free(disk->touched);
    free((char *)(uintptr_t)disk->params.dir);
    free((char *)(uintptr_t)disk->params.about);
    free(disk);
}

/* The writer ends first, while the maintenance thread can still make room for what is queued. */
static void disk_destroy(struct hearth_backing *backing) {
    struct disk *disk = disk_of(backing);
    disk_set_wake(backing, NULL, NULL);
    hearth_disk_lock(disk);
    disk->stop_writer = true;
    disk->deadline_us = hearth_clock_us() + HEARTH_BACKING_END_US;
    (void)pthread_cond_broadcast(&disk->write_cond);
    (void)pthread_cond_broadcast(&disk->gc_cond); /* the writer waits for room until the deadline only */
    hearth_disk_unlock(disk);
    if (disk->has_writer) {
        (void)pthread_join(disk->writer, NULL);
    }
    hearth_disk_lock(disk);
    disk->stop = true;
    (void)pthread_cond_broadcast(&disk->read_cond);
    (void)pthread_cond_broadcast(&disk->maintain_cond);
    (void)pthread_cond_broadcast(&disk->room_cond);
    hearth_disk_unlock(disk);
    for (unsigned i = 0; i < disk->reader_count; i++) {
        (void)pthread_join(disk->readers[i], NULL);
    }
    if (disk->has_maintainer) {
        (void)pthread_join(disk->maintainer, NULL);
    }
    free_all(disk);
}

static const struct hearth_backing_ops disk_ops = {
    .destroy = disk_destroy,
    .put = hearth_disk_put,
    .get = hearth_disk_get,
    .touch = disk_touch,
    .reject = disk_reject,
    .remove = hearth_disk_remove,
    .poll = disk_poll,
    .wait = disk_wait,
    .stats = disk_stats,
    .set_wake = disk_set_wake,
};

static void init(struct disk *disk) {
    pthread_cond_t *conds[] = {&disk->room_cond, &disk->read_cond, &disk->write_cond, &disk->maintain_cond,
                               &disk->gc_cond};
    for (size_t i = 0; i < sizeof conds / sizeof *conds; i++) {
        hearth_clock_cond_init(conds[i]);
    }
    HEARTH_ASSERT(pthread_mutex_init(&disk->lock, NULL) == 0);
    disk->base = (struct hearth_backing){.ops = &disk_ops, .name = "disk"};
    hearth_events_init(&disk->events);
    STAILQ_INIT(&disk->reads);
    STAILQ_INIT(&disk->removals);
    TAILQ_INIT(&disk->queue);
    for (int i = 0; i < DISK_SHARDS; i++) {
        TAILQ_INIT(&disk->shards[i].files);
    }
    disk->tick = 1;
    disk->head_guess = HEARTH_FORMAT_BLOCK;
}

static int set_params(struct disk *disk, const struct hearth_disk_params *params) {
    disk->params = *params;
    disk->params.key_file = NULL;
    disk->params.dir = strdup(params->dir);
    disk->params.about = strdup(params->about ? params->about : "");
    if (!disk->params.dir || !disk->params.about) {
        return HEARTH_ERR_NOMEM;
    }
    if (disk->params.queue_bytes == 0) {
        disk->params.queue_bytes = HEARTH_BACKING_QUEUE_BYTES;
    }
    if (disk->params.rescan_us <= 0) {
        disk->params.rescan_us = RESCAN_US;
    }
    disk->model = hearth_model_id(params->fingerprint, params->page_tokens);
    return HEARTH_OK;
}

static bool start_threads(struct disk *disk) {
    while (disk->reader_count < DISK_READERS &&
           pthread_create(&disk->readers[disk->reader_count], NULL, hearth_disk_reader, disk) == 0) {
        disk->reader_count++;
    }
    disk->has_writer = pthread_create(&disk->writer, NULL, hearth_disk_writer, disk) == 0;
    disk->has_maintainer = pthread_create(&disk->maintainer, NULL, hearth_disk_maintainer, disk) == 0;
    return disk->reader_count > 0 && disk->has_writer && disk->has_maintainer;
}

int hearth_disk_create(const struct hearth_disk_params *params, struct hearth_backing **out,
                       struct hearth_errmsg *msg) {
    *out = NULL;
    struct disk *disk = calloc(1, sizeof *disk);
    if (!disk) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    init(disk);
    int err = set_params(disk, params);
    if (err != HEARTH_OK) {
        (void)hearth_fail(msg, err, "out of memory");
    } else if (params->key_file) {
        err = hearth_seal_create(params->key_file, &disk->seal, msg);
    }
    if (err == HEARTH_OK) {
        err = hearth_directory_open(disk->params.dir, true, &disk->directory, msg);
    }
    if (err == HEARTH_OK) {
        err = hearth_directory_add_model(disk->directory, disk->model, disk->params.about);
        if (err != HEARTH_OK) {
            (void)hearth_fail(msg, err, "cannot write in %s: %s", disk->params.dir, strerror(errno));
        }
    }
    if (err == HEARTH_OK) {
        hearth_directory_enter(disk->directory);
        if (disk->seal) {
            disk->base.key = hearth_seal_id(disk->seal);
        }
        disk->stats.budget_bytes =
            params->budget_bytes > 0 ? params->budget_bytes : hearth_directory_free_bytes(disk->directory) / 5;
        if (!start_threads(disk)) {
            err = hearth_fail(msg, HEARTH_ERR_NOMEM, "the disk tier's threads cannot be started");
            disk_destroy(&disk->base);
            return err;
        }
        hearth_disk_health(disk);
        *out = &disk->base;
        return HEARTH_OK;
    }
    free_all(disk);
    return err;
}
