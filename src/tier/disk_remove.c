/* Removes files at once when they are to be forgotten, not when the budget needs it.
 *
 * The maintenance thread does it, so no caller waits for the file system. A file that waits to be written is
 * dropped; one that is being written is removed after that. A removal that fails is tried again at the next rescans;
 * then its answer says so.
 *
 * Invariants: a removal is in the list until it is answered, once. Its REMOVED comes behind every event of what was
 * put before it, so the cache ends with the right state. */
#include "tier/disk_engine.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 3 /* a busy file system is tried again; one that has refused thrice is told about */

bool hearth_disk_remove(struct hearth_backing *backing, struct hearth_digest name, enum hearth_record_kind kind) {
    struct disk *disk = (struct disk *)backing;
    struct disk_removal *removal = calloc(1, sizeof *removal);
    if (!removal) {
        return false;
    }
    removal->id = hearth_disk_id(disk, name, kind);
    removal->ev.event = (struct hearth_backing_event){.type = HEARTH_BACKING_REMOVED, .name = name};
    hearth_disk_lock(disk);
    hearth_disk_drop_jobs_locked(disk, name);
    STAILQ_INSERT_TAIL(&disk->removals, removal, next);
    disk->removals_due = true;
    (void)pthread_cond_signal(&disk->maintain_cond);
    hearth_disk_unlock(disk);
    return true;
}

/* Removes the file. True: the removal is to be answered. Jobs in the queue were put later, and will be written. */
static bool carry_out(struct disk *disk, struct disk_removal *removal) {
    hearth_disk_lock(disk);
    const bool being_written = hearth_disk_writes_locked(disk, removal->id.name);
    struct disk_file *file = hearth_disk_find_locked(disk, removal->id.name);
    if (file && !being_written) {
        hearth_disk_forget_locked(disk, file, true);
    }
    hearth_disk_unlock(disk);
    if (being_written) {
        return false; /* due again once the writer has answered */
    }
    if (hearth_file_remove(hearth_disk_directory(disk), &removal->id) == HEARTH_ERR_IO) {
        const int error = errno;
        hearth_disk_lock(disk);
        disk->stats.io_errors++;
        hearth_disk_unlock(disk);
        if (++removal->tries < TRIES) {
            return false;
        }
        hearth_log(HEARTH_LOG_WARN, "disk: a state file that is to be forgotten cannot be removed: %s",
                   strerror(error));
        removal->ev.event.err = HEARTH_ERR_IO;
    }
    return true;
}

void hearth_disk_removals(struct disk *disk) {
    struct disk_removals due = STAILQ_HEAD_INITIALIZER(due), left = STAILQ_HEAD_INITIALIZER(left);
    hearth_disk_lock(disk);
    STAILQ_CONCAT(&due, &disk->removals);
    disk->removals_due = false;
    disk->removing = !STAILQ_EMPTY(&due);
    hearth_disk_unlock(disk);
    for (struct disk_removal *removal; (removal = STAILQ_FIRST(&due)) != NULL;) {
        STAILQ_REMOVE_HEAD(&due, next);
        if (carry_out(disk, removal)) {
            hearth_disk_lock(disk);
            hearth_events_post(&disk->events, &removal->ev);
            hearth_disk_unlock(disk);
        } else {
            STAILQ_INSERT_TAIL(&left, removal, next);
        }
    }
    hearth_disk_lock(disk);
    disk->removing = false;
    STAILQ_CONCAT(&left, &disk->removals);
    STAILQ_CONCAT(&disk->removals, &left); /* which is empty by now: they come first */
    hearth_disk_unlock(disk);
}

void hearth_disk_drop_removals(struct disk *disk) {
    for (struct disk_removal *removal; (removal = STAILQ_FIRST(&disk->removals)) != NULL;) {
        STAILQ_REMOVE_HEAD(&disk->removals, next);
        free(removal);
    }
}
