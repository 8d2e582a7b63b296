/* The maintenance thread: one thread of low priority that knows what is in the directory, also of what other processes
 * do there.
 *
 * Rescans: a shard with a changed modification time is walked and compared with the table. A time that is younger
 * than a second says nothing about the next moment (clocks of file systems tick coarsely), so the shard is walked once
 * more. Ticks tell a file that was written during a walk, which the walk may not have seen, from one that is gone.
 *
 * Touches are told to the files at most every TOUCH_US each, and at the end. */
#include "tier/disk_engine.h"

#include "base/clock.h"
#include "base/prefault.h"

#include <stdlib.h>

#define TOUCH_US 30000000
#define FRESH_US 1000000

/* ---- rescans ---- */

/* Compares the table with what a walk that began at `tick` has seen; fills the list of new files. A file of another
 * length is a new one: it was evicted, and written again by a process that compresses otherwise. */
static void compare(struct disk *disk, int shard, uint64_t tick, const struct disk_files *seen,
                    struct disk_files *new_ones) {
    hearth_disk_lock(disk);
    for (size_t i = 0; i < seen->n; i++) {
        struct disk_file *file = hearth_disk_find_locked(disk, seen->v[i].id.name);
        if (file && file->bytes == seen->v[i].bytes) {
            file->seen = tick;
        } else if (hearth_table_find(&disk->jobs, seen->v[i].id.name)) {
            disk->shards[shard].again = true; /* the writer handles it, or else the next rescan */
        } else {
            (void)hearth_disk_files_add(new_ones, &seen->v[i]);
        }
    }
    for (struct disk_file *file = TAILQ_FIRST(&disk->shards[shard].files), *next; file; file = next) {
        next = TAILQ_NEXT(file, list);
        if (file->born >= tick || file->seen == tick) {
            continue;
        }
        const struct hearth_digest name = file->link.key;
        hearth_disk_forget_locked(disk, file, true);
        hearth_disk_tell_locked(disk, HEARTH_BACKING_LOST, name);
    }
    hearth_disk_unlock(disk);
}

static void rescan_shard(struct disk *disk, int shard, struct disk_files *new_ones) {
    struct hearth_directory *directory = hearth_disk_directory(disk);
    struct disk_shard *state = &disk->shards[shard];
    const int64_t time = hearth_directory_shard_time(directory, disk->model, shard);
    hearth_disk_lock(disk);
    const bool vanished = time == 0 && !TAILQ_EMPTY(&state->files); /* it came and went since the last look */
    const bool looks = (time != state->time || state->again || vanished) && directory == disk->directory;
    const uint64_t tick = disk->tick += looks;
    hearth_disk_unlock(disk);
    if (!looks) { /* or the writer has opened the directory again, and may have written there: the next rescan looks */
        return;
    }
    struct disk_files seen = {0};
    state->again = time != 0 && hearth_clock_unix_us() - time / 1000 < FRESH_US;
    if (hearth_directory_walk(directory, disk->model, shard, hearth_disk_files_add, &seen) == HEARTH_OK) {
        state->time = time;
        compare(disk, shard, tick, &seen, new_ones);
    }
    free(seen.v);
}

static void rescan(struct disk *disk) {
    struct disk_files new_ones = {0};
    for (int shard = 0; shard < DISK_SHARDS && !hearth_disk_stopped(disk); shard++) {
        rescan_shard(disk, shard, &new_ones);
        hearth_disk_evict_and_remove(disk);
    }
    if (new_ones.n > 0) {
        hearth_disk_examine_all(disk, &new_ones, NULL);
    }
    free(new_ones.v);
}

/* ---- touches ---- */

struct telling {
    struct hearth_file_id id;
    struct timespec stamp;
    uint32_t hits;
};

/* Takes the touches that are due off the list; with `all`, every one. NULL: there are none. The caller frees. */
static struct telling *take_due(struct disk *disk, bool all, size_t *n) {
    const int64_t now = hearth_clock_unix_us();
    size_t left = 0;
    *n = 0;
    hearth_disk_lock(disk);
    struct telling *due = disk->touched_n > 0 ? malloc(disk->touched_n * sizeof *due) : NULL;
    for (size_t i = 0; due && i < disk->touched_n; i++) {
        struct disk_file *file = hearth_disk_find_locked(disk, disk->touched[i]);
        if (!file || !file->touching) {
            continue;
        }
        const int64_t since = now - file->touched_us;
        if (!all && since >= 0 && since < TOUCH_US) {
            disk->touched[left++] = disk->touched[i];
            continue;
        }
        due[(*n)++] = (struct telling){.id = hearth_disk_id(disk, file->link.key, file->kind),
                                       .stamp = hearth_file_stamp(file->used_us, file->pos, file->superseded),
                                       .hits = file->hits};
        file->hits = 0;
        file->touched_us = now;
        file->touching = false;
    }
    if (due) {
        disk->touched_n = left;
    }
    hearth_disk_unlock(disk);
    return due;
}

static void tell_touches(struct disk *disk, bool all) {
    size_t n;
    struct telling *due = take_due(disk, all, &n);
    struct hearth_directory *directory = hearth_disk_directory(disk);
    for (size_t i = 0; i < n; i++) {
        (void)hearth_file_touch(directory, &due[i].id, &due[i].stamp, due[i].hits); /* gone: the next rescan says so */
    }
    free(due);
}

/* Prepares memory for pages that will be read, as much as the process wants (base/prefault.h). */
static void prefault_pages(struct disk *disk) {
    hearth_disk_lock(disk);
    const size_t len = disk->page_bytes;
    hearth_disk_unlock(disk);
    while (len > 0 && !hearth_disk_stopped(disk) && hearth_prefault_make(len)) {
    }
}

/* ---- the thread ---- */

void *hearth_disk_maintainer(void *arg) {
    struct disk *disk = arg;
    hearth_io_step_back(DISK_MAINTAIN_NICE);
    hearth_disk_scan(disk);
    prefault_pages(disk);
    int64_t next = hearth_clock_us() + disk->params.rescan_us;
    while (!hearth_disk_stopped(disk)) {
        hearth_disk_lock(disk);
        while (!disk->stop && !disk->gc_wanted && !disk->removals_due &&
               hearth_clock_cond_wait(&disk->maintain_cond, &disk->lock, next)) {
            continue;
        }
        hearth_disk_unlock(disk);
        hearth_disk_evict_and_remove(disk);
        if (hearth_clock_us() < next) {
            continue;
        }
        rescan(disk);
        hearth_disk_removals(disk);
        prefault_pages(disk);
        tell_touches(disk, false);
        hearth_disk_health(disk);
        next = hearth_clock_us() + disk->params.rescan_us;
    }
    hearth_disk_removals(disk);
    tell_touches(disk, true);
    return NULL;
}
