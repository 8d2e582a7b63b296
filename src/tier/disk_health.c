/* What /health says about the disk (base/health.h): one condition at a time, the worst.
 *
 * A failed write comes first. Then come conditions under which writes will fail: a budget that cannot hold a single
 * item, and a file system with little room although the budget still counts on it. Another server in the same
 * directory is not a problem and is only reported. */
#include "tier/disk_engine.h"

#include "base/health.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define LITTLE_ROOM (1024 * MIB)

/* Says when two servers use one directory: they may, but they share one budget, so both should be meant to. */
static void update_shared(struct disk *disk) {
    const bool shared = hearth_directory_is_shared(hearth_disk_directory(disk));
    hearth_disk_lock(disk);
    const bool changed = disk->stats.shared != shared;
    disk->stats.shared = shared;
    hearth_disk_unlock(disk);
    if (changed && shared) {
        hearth_log(HEARTH_LOG_WARN, "disk: another server uses %s, too; they keep one budget, the smallest --kv-disk",
                   disk->params.dir);
    } else if (changed) {
        hearth_log(HEARTH_LOG_INFO, "disk: no other server uses %s any more", disk->params.dir);
    }
}

void hearth_disk_health(struct disk *disk) {
    struct hearth_backing_stats stats;
    update_shared(disk);
    const uint64_t room = hearth_directory_free_bytes(hearth_disk_directory(disk));
    const bool own = disk->params.budget_bytes == 0;
    hearth_disk_lock(disk);
    const uint64_t item = disk->params.item_bytes > disk->page_bytes ? disk->params.item_bytes : disk->page_bytes;
    if (own && disk->stats.budget_bytes < item + HEARTH_FORMAT_BLOCK) { /* the disk was full at the start */
        disk->stats.budget_bytes = (room + disk->stats.bytes) / 5;
    }
    stats = disk->stats;
    char trouble[sizeof disk->failed_trouble];
    memcpy(trouble, disk->failed_trouble, sizeof trouble);
    const bool full = disk->failed_error == ENOSPC || disk->failed_error == EDQUOT;
    hearth_disk_unlock(disk);
    const uint64_t want = stats.budget_bytes > stats.bytes ? stats.budget_bytes - stats.bytes : 0;
    const char *dir = disk->params.dir;
    if (!stats.failing || full) {
        hearth_health_clear(HEARTH_HEALTH_KV_DIR);
    }
    if (stats.failing) {
        hearth_health_raise(full ? HEARTH_HEALTH_KV_DISK : HEARTH_HEALTH_KV_DIR,
                            "disk: %s; new state is kept in RAM only, writing is tried again by itself", trouble);
    } else if (stats.budget_bytes < item + HEARTH_FORMAT_BLOCK && own) {
        hearth_health_raise(HEARTH_HEALTH_KV_DISK,
                            "disk: the file system of %s is full: a fifth of what is free cannot hold a page or "
                            "snapshot of this model (%" PRIu64 " KiB), and nothing is kept there until there is room",
                            dir, item / 1024 + 1);
    } else if (stats.budget_bytes < item + HEARTH_FORMAT_BLOCK) {
        hearth_health_raise(HEARTH_HEALTH_KV_DISK,
                            "disk: a budget of %" PRIu64 " MiB cannot hold a page or snapshot of this model (%" PRIu64
                            " KiB): nothing is kept in %s (--kv-disk gives more)",
                            stats.budget_bytes / MIB, item / 1024 + 1, dir);
    } else if (room < LITTLE_ROOM && room < want) {
        hearth_health_raise(HEARTH_HEALTH_KV_DISK,
                            "disk: the file system of %s is nearly full, there is no room for its budget: make "
                            "some, or give a smaller one (--kv-disk)",
                            dir);
    } else {
        hearth_health_clear(HEARTH_HEALTH_KV_DISK);
    }
}
