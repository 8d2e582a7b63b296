/* The cache sees one tier: an item is there while one of the two has it.
 *
 *     FOUND      from either; told once
 *     LOST       told when neither has it any more
 *     MOVED      told when the disk gets what only the store had, or loses what the store has
 *     put        to both: WRITTEN when the first has written it, DROPPED when neither has
 *     replace    WRITTEN when both have answered: until then the cache forgets the old item, too, where it forgets
 *     get        from the disk, else from the store; what one cannot read is asked of the other
 *     remove     from both: REMOVED when both have answered, with the worse answer; as often as it was asked
 *
 * Invariant: `items` has every item that a tier has or that is under way; one that neither has and for which nothing is
 * under way is freed. Threads: but for stats and wake, the one that drives the engine. */
#include "tier/layered.h"

#include "tier/events.h"

#include "base/table.h"

#include <stdlib.h>

enum { DISK, REMOTE, TIERS };

struct layered_item {
    struct hearth_link link; /* first */
    bool there[TIERS];
    int writing; /* unanswered puts of both tiers */
    bool told;   /* WRITTEN of the newest put was reported */
    bool replaces;
    int removing[TIERS]; /* removals that a tier has not answered */
    int owed;            /* removals for which the cache has no answer */
    int remove_err;
    bool reading;
    int reads_from;
};

struct layered {
    struct hearth_backing backing; /* first */
    struct hearth_backing *tiers[TIERS];
    struct hearth_table items;
    struct hearth_news news;
};

static struct layered *layered_of(struct hearth_backing *backing) {
    return (struct layered *)backing;
}

static struct layered_item *find(const struct layered *layered, struct hearth_digest name) {
    return (struct layered_item *)(void *)hearth_table_find(&layered->items, name);
}

/* NULL: out of memory. */
static struct layered_item *item_of(struct layered *layered, struct hearth_digest name) {
    struct layered_item *item = find(layered, name);
    return item ? item : (struct layered_item *)(void *)hearth_table_make(&layered->items, name, sizeof *item);
}

static void release(struct layered *layered, struct layered_item *item) {
    if (!item->there[DISK] && !item->there[REMOTE] && item->writing == 0 && item->owed == 0 && !item->reading) {
        hearth_table_remove(&layered->items, &item->link);
        free(item);
    }
}

/* ---- calls ---- */

static bool layered_put(struct hearth_backing *backing, const struct hearth_record *record, struct hearth_blob *blob,
                        const struct hearth_digest *replaces) {
    struct layered *layered = layered_of(backing);
    struct layered_item *item = item_of(layered, record->name);
    if (!item) {
        return false;
    }
    struct layered_item *old = replaces ? find(layered, *replaces) : NULL;
    if (old) { /* it is removed when the item is written, and not asked for again */
        old->there[DISK] = old->there[REMOTE] = false;
        release(layered, old);
    }
    item->told = false;
    item->replaces = replaces != NULL;
    for (int i = 0; i < TIERS; i++) {
        item->writing += layered->tiers[i]->ops->put(layered->tiers[i], record, blob, replaces);
    }
    const bool taken = item->writing > 0;
    release(layered, item);
    return taken;
}

static bool read_from(struct layered *layered, struct layered_item *item, int tier) {
    item->reads_from = tier;
    item->reading = layered->tiers[tier]->ops->get(layered->tiers[tier], item->link.key);
    return item->reading;
}

static bool layered_get(struct hearth_backing *backing, struct hearth_digest name) {
    struct layered *layered = layered_of(backing);
    struct layered_item *item = item_of(layered, name);
    if (!item) {
        return false;
    }
    const bool asked = read_from(layered, item, item->there[DISK] || !item->there[REMOTE] ? DISK : REMOTE);
    release(layered, item);
    return asked;
}

static uint64_t layered_seek(struct hearth_backing *backing, const struct hearth_backing_place *places, size_t n) {
    struct hearth_backing *remote = layered_of(backing)->tiers[REMOTE];
    return remote->ops->seek ? remote->ops->seek(remote, places, n) : 0;
}

static void layered_touch(struct hearth_backing *backing, const struct hearth_backing_touch *touches, size_t n) {
    struct layered *layered = layered_of(backing);
    for (int i = 0; i < TIERS; i++) {
        layered->tiers[i]->ops->touch(layered->tiers[i], touches, n);
    }
}

static void layered_reject(struct hearth_backing *backing, struct hearth_digest name, const char *why) {
    struct layered *layered = layered_of(backing);
    const struct layered_item *item = find(layered, name);
    const int tier = item ? item->reads_from : DISK;
    layered->tiers[tier]->ops->reject(layered->tiers[tier], name, why);
}

static bool layered_remove(struct hearth_backing *backing, struct hearth_digest name, enum hearth_record_kind kind) {
    struct layered *layered = layered_of(backing);
    struct layered_item *item = item_of(layered, name);
    if (!item) {
        return false;
    }
    int asked = 0;
    for (int i = 0; i < TIERS; i++) {
        const bool takes = layered->tiers[i]->ops->remove(layered->tiers[i], name, kind);
        item->removing[i] += takes;
        asked += takes;
    }
    item->owed += asked > 0;
    item->remove_err = asked < TIERS ? HEARTH_ERR_IO : item->remove_err;
    release(layered, item);
    return asked > 0;
}

/* ---- events: false: the cache is not told ---- */

static void becomes_moved(struct hearth_backing_event *event, const struct layered_item *item) {
    const struct hearth_digest name = event->name;
    hearth_backing_event_finish(event);
    *event = (struct hearth_backing_event){.type = HEARTH_BACKING_MOVED, .name = name, .remote = !item->there[DISK]};
}

static bool on_found(struct layered *layered, int tier, struct hearth_backing_event *event) {
    struct layered_item *item = item_of(layered, event->name);
    if (!item) {
        return true;
    }
    const bool first = !item->there[DISK] && !item->there[REMOTE], disk = item->there[DISK];
    item->there[tier] = true;
    event->remote = !item->there[DISK];
    if (tier == DISK && !first && !disk) {
        becomes_moved(event, item);
        return true;
    }
    return first || tier == REMOTE; /* the answer to a seek is told again: the cache may have forgotten it */
}

static bool on_lost(struct layered *layered, int tier, struct hearth_backing_event *event) {
    struct layered_item *item = find(layered, event->name);
    if (!item) {
        return true;
    }
    const bool moves = tier == DISK && item->there[DISK] && item->there[REMOTE];
    item->there[tier] = false;
    const bool lost = !item->there[DISK] && !item->there[REMOTE];
    if (moves) {
        becomes_moved(event, item);
    }
    release(layered, item);
    return lost || moves;
}

static bool on_put(struct layered *layered, int tier, struct hearth_backing_event *event) {
    struct layered_item *item = find(layered, event->name);
    if (!item) {
        return true;
    }
    item->writing = item->writing > 0 ? item->writing - 1 : 0;
    const bool written = event->type == HEARTH_BACKING_WRITTEN;
    const bool moves = item->told && written && tier == DISK && !item->there[DISK];
    item->there[tier] = item->there[tier] || written;
    const bool tell = !item->told && (item->writing == 0 || (written && !item->replaces));
    if (tell && (item->there[DISK] || item->there[REMOTE])) {
        event->type = HEARTH_BACKING_WRITTEN;
    }
    item->told = item->told || tell;
    event->remote = !item->there[DISK];
    if (moves) {
        becomes_moved(event, item);
    }
    release(layered, item);
    return tell || moves;
}

static bool on_read(struct layered *layered, int tier, struct hearth_backing_event *event) {
    struct layered_item *item = find(layered, event->name);
    if (!item) {
        return true;
    }
    item->reading = false;
    if (event->err != HEARTH_OK) {
        item->there[tier] = item->there[tier] && event->err != HEARTH_ERR_NOT_FOUND && event->err != HEARTH_ERR_STATE;
        if (tier == DISK && item->there[REMOTE] && read_from(layered, item, REMOTE)) {
            return false;
        }
    }
    release(layered, item);
    return true;
}

static bool on_removed(struct layered *layered, int tier, struct hearth_backing_event *event) {
    struct layered_item *item = find(layered, event->name);
    if (!item) {
        return true;
    }
    item->there[tier] = item->there[tier] && event->err != HEARTH_OK;
    item->remove_err = event->err != HEARTH_OK ? event->err : item->remove_err;
    item->removing[tier] -= item->removing[tier] > 0;
    const int disk = item->removing[DISK], remote = item->removing[REMOTE], left = disk > remote ? disk : remote;
    const bool answers = left < item->owed;
    if (answers) {
        event->err = item->remove_err;
        item->owed--;
        item->remove_err = item->owed > 0 ? item->remove_err : HEARTH_OK;
    }
    release(layered, item);
    return answers;
}

static bool passes(struct layered *layered, int tier, struct hearth_backing_event *event) {
    switch (event->type) {
    case HEARTH_BACKING_FOUND: return on_found(layered, tier, event);
    case HEARTH_BACKING_LOST: return on_lost(layered, tier, event);
    case HEARTH_BACKING_WRITTEN:
    case HEARTH_BACKING_DROPPED: return on_put(layered, tier, event);
    case HEARTH_BACKING_READ: return on_read(layered, tier, event);
    case HEARTH_BACKING_REMOVED: return on_removed(layered, tier, event);
    case HEARTH_BACKING_SCANNED: return tier == DISK;
    case HEARTH_BACKING_SOUGHT: return tier == REMOTE;
    case HEARTH_BACKING_MOVED: return true;
    }
    return true;
}

static bool layered_poll(struct hearth_backing *backing, struct hearth_backing_event *event) {
    struct layered *layered = layered_of(backing);
    hearth_news_clear(&layered->news);
    for (int i = 0; i < TIERS; i++) {
        while (layered->tiers[i]->ops->poll(layered->tiers[i], event)) {
            if (passes(layered, i, event)) {
                hearth_news_keep(&layered->news);
                return true;
            }
            hearth_backing_event_finish(event);
        }
    }
    return false;
}

/* ---- waiting ---- */

static bool layered_wait(struct hearth_backing *backing, int64_t timeout_us) {
    return hearth_news_wait(&layered_of(backing)->news, timeout_us);
}

static void layered_set_wake(struct hearth_backing *backing, void (*wake)(void *user), void *user) {
    hearth_news_set_wake(&layered_of(backing)->news, wake, user);
}

static void layered_stats(struct hearth_backing *backing, struct hearth_backing_stats *stats) {
    struct hearth_backing *disk = layered_of(backing)->tiers[DISK];
    disk->ops->stats(disk, stats);
}

/* ---- life ---- */

static void layered_destroy(struct hearth_backing *backing) {
    struct layered *layered = layered_of(backing);
    for (int i = 0; i < TIERS; i++) {
        layered->tiers[i]->ops->set_wake(layered->tiers[i], NULL, NULL);
        layered->tiers[i]->ops->destroy(layered->tiers[i]);
    }
    hearth_table_finish_names(&layered->items);
    hearth_news_finish(&layered->news);
    free(layered);
}

static const struct hearth_backing_ops OPS = {
    .destroy = layered_destroy,
    .put = layered_put,
    .get = layered_get,
    .seek = layered_seek,
    .touch = layered_touch,
    .reject = layered_reject,
    .remove = layered_remove,
    .poll = layered_poll,
    .wait = layered_wait,
    .stats = layered_stats,
    .set_wake = layered_set_wake,
};

int hearth_layered_create(struct hearth_backing *disk, struct hearth_backing *remote, struct hearth_backing **out) {
    struct layered *layered = calloc(1, sizeof *layered);
    if (!layered) {
        return HEARTH_ERR_NOMEM;
    }
    layered->backing = (struct hearth_backing){.ops = &OPS, .name = disk->name, .key = disk->key};
    layered->tiers[DISK] = disk;
    layered->tiers[REMOTE] = remote;
    hearth_news_init(&layered->news);
    for (int i = 0; i < TIERS; i++) {
        layered->tiers[i]->ops->set_wake(layered->tiers[i], hearth_news_come, &layered->news);
    }
    *out = &layered->backing;
    return HEARTH_OK;
}
