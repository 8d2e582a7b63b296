/* What the threads of the disk tier share: the lock, the directory, events, and the table of the files that are there.
 * Below all of them.
 *
 * The directory is the only truth; the table is what this process knows of it, and may be behind: a file that is gone
 * is a miss, one that is new is found.
 *
 * Invariants: a file is in `files` and in its shard's list, or in neither. An event is made where what it tells of is
 * true, under the lock, so the cache sees WRITTEN before a LOST of the same file. */
#include "tier/disk_engine.h"

#include <errno.h>
#include <stdlib.h>

/* ---- lock, time ---- */

void hearth_disk_lock(struct disk *disk) {
    (void)pthread_mutex_lock(&disk->lock);
}

void hearth_disk_unlock(struct disk *disk) {
    (void)pthread_mutex_unlock(&disk->lock);
}

bool hearth_disk_stopped(struct disk *disk) {
    hearth_disk_lock(disk);
    const bool stop = disk->stop;
    hearth_disk_unlock(disk);
    return stop;
}

/* ---- the directory ---- */

struct hearth_directory *hearth_disk_directory(struct disk *disk) {
    hearth_disk_lock(disk);
    struct hearth_directory *directory = disk->directory;
    hearth_disk_unlock(disk);
    return directory;
}

bool hearth_disk_reopen(struct disk *disk) {
    struct disk_retired *retired = malloc(sizeof *retired);
    struct hearth_directory *directory = NULL;
    if (!retired || hearth_directory_open(disk->params.dir, true, &directory, NULL) != HEARTH_OK ||
        hearth_directory_add_model(directory, disk->model, disk->params.about) != HEARTH_OK) {
        const int saved = errno;
        hearth_directory_close(directory);
        free(retired);
        errno = saved;
        return false;
    }
    hearth_disk_lock(disk);
    *retired = (struct disk_retired){.next = disk->retired, .directory = disk->directory};
    disk->retired = retired;
    disk->directory = directory;
    hearth_disk_unlock(disk);
    hearth_directory_leave(retired->directory); /* if it is the same directory, this process counts once */
    hearth_directory_enter(directory);
    return true;
}

struct hearth_file_id hearth_disk_id(const struct disk *disk, struct hearth_digest name, enum hearth_record_kind kind) {
    return (struct hearth_file_id){.model = disk->model, .name = name, .kind = kind};
}

/* ---- events ---- */

void hearth_disk_tell_locked(struct disk *disk, enum hearth_backing_event_type type, struct hearth_digest name) {
    (void)hearth_events_tell(&disk->events, &(struct hearth_backing_event){.type = type, .name = name});
}

/* ---- files ---- */

struct disk_file *hearth_disk_find_locked(struct disk *disk, struct hearth_digest name) {
    return (struct disk_file *)(void *)hearth_table_find(&disk->files, name);
}

bool hearth_disk_known(struct disk *disk, struct hearth_digest name, struct hearth_file_id *id) {
    hearth_disk_lock(disk);
    const struct disk_file *file = hearth_disk_find_locked(disk, name);
    if (file) {
        *id = hearth_disk_id(disk, name, file->kind);
    }
    hearth_disk_unlock(disk);
    return file != NULL;
}

bool hearth_disk_add_locked(struct disk *disk, const struct hearth_file_id *id, uint64_t bytes, int64_t touched_us) {
    struct disk_file *file = malloc(sizeof *file);
    if (!file) {
        return false;
    }
    *file = (struct disk_file){
        .link.key = id->name, .kind = id->kind, .bytes = bytes, .born = disk->tick, .touched_us = touched_us};
    if (!hearth_table_add(&disk->files, &file->link)) {
        free(file);
        return false;
    }
    TAILQ_INSERT_TAIL(&disk->shards[hearth_disk_shard(id->name)].files, file, list);
    return true;
}

void hearth_disk_forget_locked(struct disk *disk, struct disk_file *file, bool counts) {
    hearth_table_remove(&disk->files, &file->link);
    TAILQ_REMOVE(&disk->shards[hearth_disk_shard(file->link.key)].files, file, list);
    if (counts) {
        disk->stats.bytes -= disk->stats.bytes < file->bytes ? disk->stats.bytes : file->bytes;
        disk->stats.files -= disk->stats.files > 0;
    }
    free(file);
}

void hearth_disk_quarantine(struct disk *disk, const struct hearth_file_id *id, const char *why) {
    hearth_file_quarantine(hearth_disk_directory(disk), id, why);
    hearth_disk_lock(disk);
    struct disk_file *file = hearth_disk_find_locked(disk, id->name);
    if (file) {
        hearth_disk_forget_locked(disk, file, true);
    }
    hearth_disk_unlock(disk);
}

void hearth_disk_note_size_locked(struct disk *disk, const struct hearth_record *record) {
    if (record->kind == HEARTH_RECORD_PAGE && record->p1 - record->p0 == disk->params.page_tokens) {
        disk->page_bytes = record->state_bytes;
    }
}

bool hearth_disk_files_add(void *list, const struct hearth_file *file) {
    struct disk_files *files = list;
    if (!HEARTH_BUF_ROOM(files->v, files->n, files->cap)) {
        return false;
    }
    files->v[files->n++] = *file;
    return true;
}
