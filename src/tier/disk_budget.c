/* The budget of the directory, and evictions that a writer waits for.
 *
 * The estimate of the directory's size is this process's own, and every eviction corrects it, because it counts what
 * is there. An eviction runs when the estimate comes near the budget, and after every sixteenth of the budget that
 * this process has written, since other processes may have written as much. It frees a little more than is needed,
 * so that it does not run for every file. Shares decide which owner loses files (tier/share.h). */
#include "tier/disk_engine.h"

#include "base/clock.h"
#include "base/log.h"

#include <inttypes.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

void hearth_disk_published_locked(struct disk *disk, uint64_t bytes) {
    const uint64_t budget = disk->stats.budget_bytes;
    disk->published += bytes;
    if (!disk->counted || (disk->stats.bytes + budget / 32 <= budget && disk->published <= budget / 16)) {
        return;
    }
    disk->gc_wanted = true;
    (void)pthread_cond_signal(&disk->maintain_cond);
}

/* Waits until no eviction is wanted or under way, or it is too late for that. */
static void wait_evicted_locked(struct disk *disk) {
    const int64_t most = hearth_clock_us() + HEARTH_BACKING_WAIT_US;
    for (bool early = true; early && (disk->gc_wanted || disk->gc_busy);) {
        const bool ends = disk->stop_writer && disk->deadline_us < most;
        early = hearth_clock_cond_wait(&disk->gc_cond, &disk->lock, ends ? disk->deadline_us : most);
    }
}

bool hearth_disk_make_room(struct disk *disk, uint64_t need, bool tight) {
    hearth_disk_lock(disk);
    bool over = disk->counted && disk->stats.bytes + need > disk->stats.budget_bytes;
    if (over || tight) {
        disk->gc_wanted = true;
        disk->gc_tight = disk->gc_tight || tight;
        disk->gc_need = disk->gc_need > need ? disk->gc_need : need;
        (void)pthread_cond_signal(&disk->maintain_cond);
        wait_evicted_locked(disk);
        /* What the eviction has counted decides: a rescan may since have counted some of it again. */
        const uint64_t bytes = disk->gc_wanted || disk->gc_busy ? disk->stats.bytes : disk->gc_left_bytes;
        over = disk->counted && bytes + need > disk->stats.budget_bytes;
    }
    hearth_disk_unlock(disk);
    return !over;
}

static void removed(void *user, const struct hearth_file *file) {
    struct disk *disk = user;
    hearth_disk_lock(disk);
    disk->stats.evicted++;
    struct disk_file *known =
        strcmp(file->id.model.hex, disk->model.hex) == 0 ? hearth_disk_find_locked(disk, file->id.name) : NULL;
    if (known) {
        hearth_disk_forget_locked(disk, known, false);
        hearth_disk_tell_locked(disk, HEARTH_BACKING_LOST, file->id.name);
    }
    hearth_disk_unlock(disk);
}

static void evict(struct disk *disk) {
    hearth_disk_lock(disk);
    const bool tight = disk->gc_tight;
    const uint64_t budget = disk->stats.budget_bytes, need = disk->gc_need;
    disk->gc_wanted = disk->gc_tight = false;
    disk->gc_busy = true;
    disk->gc_need = 0;
    disk->published = 0;
    const uint64_t want = need > disk->stats.queued_bytes ? need : disk->stats.queued_bytes;
    struct hearth_gc gc = {.budget_bytes = budget, .share = disk->params.share, .removed = removed, .user = disk};
    gc.need_bytes = want < budget / 4 ? want : need < budget ? need : budget;
    gc.need_bytes += budget / 16;
    hearth_disk_unlock(disk);
    struct hearth_directory *directory = hearth_disk_directory(disk);
    int err = hearth_directory_gc(directory, &gc);
    uint64_t files = gc.removed_files, bytes = gc.removed_bytes;
    if (err == HEARTH_OK && tight && bytes < need) { /* the file system is full although the budget is not */
        gc.budget_bytes = gc.bytes;
        gc.need_bytes = need - bytes;
        err = hearth_directory_gc(directory, &gc);
        files += gc.removed_files;
        bytes += gc.removed_bytes;
    }
    if (files > 0) {
        hearth_log(HEARTH_LOG_INFO, "disk: %" PRIu64 " files (%" PRIu64 " MiB) that were unused for longest made way%s",
                   files, bytes / MIB, tight ? ", as the file system is full" : "");
    }
    hearth_disk_lock(disk);
    if (err == HEARTH_OK) {
        disk->stats.files = gc.files;
        disk->stats.bytes = gc.bytes + disk->published; /* what was written meanwhile may count twice: the safe side */
    } else { /* something could not be read or removed; what was removed is gone all the same */
        disk->stats.io_errors++;
        disk->stats.files -= files < disk->stats.files ? files : disk->stats.files;
        disk->stats.bytes -= bytes < disk->stats.bytes ? bytes : disk->stats.bytes;
    }
    disk->gc_left_bytes = disk->stats.bytes;
    disk->gc_busy = false;
    (void)pthread_cond_broadcast(&disk->gc_cond);
    hearth_disk_unlock(disk);
}

void hearth_disk_evict_and_remove(struct disk *disk) {
    hearth_disk_lock(disk);
    const bool wanted = disk->gc_wanted, removals = disk->removals_due;
    hearth_disk_unlock(disk);
    if (removals) {
        hearth_disk_removals(disk);
    }
    if (wanted) {
        evict(disk);
    }
}
