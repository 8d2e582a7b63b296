/* Events of the backing tier. Each is about the item with that name in the table; one about a name that is not there is
 * about an item that went in the meantime, and is ignored.
 *
 *     FOUND      an item without a place gets one (cache/backing_found.c)
 *     WRITTEN    WRITING -> THERE: the blob may be evicted
 *     DROPPED    WRITING -> NONE: it is put again after the next capture
 *     READ       the bytes become the blob, if RAM has room; without bytes as LOST
 *     LOST       THERE -> NONE: an item without a blob goes, too, unless something hangs on it
 *     MOVED      another tier has it: reading it has another price
 *     REMOVED    an item that was captured again meanwhile is put: before, the answers to both puts would have the same
 *                name, and a DROPPED of what was removed could be taken for one of what is there */
#include "cache/backing.h"

#include "base/assert.h"

#include <stdlib.h>

/* Bytes of an item came: they become its blob, if there is room. */
static void take_bytes(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_backing_event *event) {
    if (!hearth_copy_lacks_blob(cache, item)) {
        return;
    }
    size_t before = hearth_cache_item_bytes(item);
    size_t need = event->bytes.len + HEARTH_BLOB_OVERHEAD_BYTES;
    struct hearth_page *page =
        item->is_snapshot ? hearth_cache_item_snapshot(item)->page : hearth_cache_item_page(item);
    /* Room is made of pages, too, and they take their snapshots with them. */
    hearth_cache_store_pin(cache, &page->item);
    const uint16_t asks = cache->shares.asks; /* a capture that is under way may have set it */
    cache->shares.asks = item->owner;
    bool room = item->is_snapshot ? hearth_cache_store_reserve_snapshot(cache, need + HEARTH_SNAPSHOT_NODE_BYTES)
                                  : hearth_cache_store_reserve_page(cache, need + hearth_page_node_bytes(page->len), 0);
    cache->shares.asks = asks;
    hearth_cache_store_unpin(cache, &page->item);
    cache->read_bytes[event->remote] += event->bytes.len;
    if (!room && !cache->restoring) {
        return;
    }
    item->blob = hearth_ram_put(cache->ram, &event->bytes, &event->checksum);
    item->fetched = item->blob != NULL;
    item->fetched_remote = event->remote;
    if (!item->is_snapshot) {
        hearth_cache_item_page(item)->blob_p0 = item->copy.p0;
    }
    hearth_cache_store_changed(cache, item, before);
}

/* The copy is gone or unreadable. An item without state in RAM is removed, too, unless it has children. */
static void lose(struct hearth_cache *cache, struct hearth_cache_item *item) {
    size_t before = hearth_cache_item_bytes(item);
    hearth_copy_forget(cache, item);
    hearth_cache_store_changed(cache, item, before);
    if (item->blob) {
        return;
    }
    if (!item->is_snapshot) {
        hearth_cache_store_drop_state(cache, hearth_cache_item_page(item));
    } else if (item->pins == 0) {
        hearth_cache_store_drop_snapshot(cache, hearth_cache_item_snapshot(item));
    }
}

static void on_written(struct hearth_cache *cache, struct hearth_cache_item *item, bool remote) {
    if (item->copy.state != HEARTH_COPY_WRITING || item->copy.waits) {
        return;
    }
    size_t before = hearth_cache_item_bytes(item);
    item->copy.state = HEARTH_COPY_THERE;
    item->copy.remote = remote;
    cache->writing--;
    if (!item->is_snapshot) {
        free(hearth_cache_item_page(item)->old);
        hearth_cache_item_page(item)->old = NULL;
    } else if (hearth_cache_item_snapshot(item)->superseded) {
        hearth_copies_touch_superseded(cache, hearth_cache_item_snapshot(item));
    }
    hearth_cache_store_changed(cache, item, before);
}

static void on_dropped(struct hearth_cache *cache, struct hearth_cache_item *item) {
    if (item->copy.state != HEARTH_COPY_WRITING || item->copy.waits) {
        return;
    }
    size_t before = hearth_cache_item_bytes(item);
    hearth_copy_forget(cache, item);
    hearth_cache_store_changed(cache, item, before);
}

static void on_read(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_backing_event *event) {
    item->copy.reading = false;
    if (event->err == HEARTH_OK) {
        take_bytes(cache, item, event);
    } else if (item->copy.state == HEARTH_COPY_THERE) {
        cache->bad_reads += event->err != HEARTH_ERR_NOT_FOUND; /* NOT_FOUND: it was removed to make room */
        cache->store_misses += event->err == HEARTH_ERR_NOT_FOUND && item->copy.remote;
        /* After an I/O error the copy may still be there: it is written again once it has been computed. */
        if (event->err == HEARTH_ERR_IO) {
            hearth_duplicate_add_copy(cache, item);
        }
        lose(cache, item);
    }
}

/* The tier has removed an item. Copies of the same name that were found meanwhile may be gone, too. An item that waited
 * for the removal is put now. */
static void on_removed(struct hearth_cache *cache, struct hearth_cache_item *item,
                       const struct hearth_backing_event *event) {
    HEARTH_ASSERT(cache->removing > 0);
    cache->removing--;
    (void)hearth_table_take_name(&cache->removals, event->name);
    cache->remove_failed = cache->remove_failed || event->err != HEARTH_OK;
    if (!item || (item->copy.state != HEARTH_COPY_THERE && !item->copy.waits)) {
        return;
    }
    if (hearth_copy_lacks_blob(cache, item)) {
        lose(cache, item);
        return;
    }
    size_t before = hearth_cache_item_bytes(item);
    hearth_copy_forget(cache, item);
    hearth_cache_store_changed(cache, item, before);
    if (item->is_snapshot) {
        hearth_copy_put_snapshot(cache, hearth_cache_item_snapshot(item));
    } else {
        hearth_copy_put_page(cache, hearth_cache_item_page(item));
    }
}

bool hearth_copies_poll(struct hearth_cache *cache) {
    struct hearth_backing_event event;
    if (!cache->backing || !cache->backing->ops->poll(cache->backing, &event)) {
        return false;
    }
    bool named = event.type != HEARTH_BACKING_SCANNED && event.type != HEARTH_BACKING_SOUGHT;
    struct hearth_cache_item *item = named ? hearth_copy_find(cache, event.name) : NULL;
    if (named && !item && (hearth_heads_take(cache, &event) || hearth_learnt_take(cache, &event))) {
        hearth_backing_event_finish(&event);
        return true;
    }
    switch (event.type) {
    case HEARTH_BACKING_FOUND:
        if (!item) {
            hearth_arrive(cache, event.record, event.hits, event.remote);
            event.record = NULL;
        }
        break;
    case HEARTH_BACKING_REMOVED: on_removed(cache, item, &event); break;
    case HEARTH_BACKING_LOST:
        if (item && item->copy.state == HEARTH_COPY_THERE) {
            lose(cache, item);
        }
        break;
    case HEARTH_BACKING_WRITTEN:
        if (item) {
            on_written(cache, item, event.remote);
        }
        break;
    case HEARTH_BACKING_DROPPED:
        if (item) {
            on_dropped(cache, item);
        }
        break;
    case HEARTH_BACKING_READ:
        if (item) {
            on_read(cache, item, &event);
        }
        break;
    case HEARTH_BACKING_SCANNED:
        cache->backing_scanned = true;
        if (cache->observer) { /* found pages have their places when the first prompt comes, so the observer is told now
                                */
            (void)hearth_cache_root(cache, (struct hearth_digest){0}, true);
        }
        break;
    case HEARTH_BACKING_SOUGHT: cache->sought = event.ticket; break;
    case HEARTH_BACKING_MOVED:
        if (item) {
            item->copy.remote = event.remote;
        }
        break;
    }
    hearth_backing_event_finish(&event);
    return true;
}

size_t hearth_cache_poll(struct hearth_cache *cache, size_t limit) {
    size_t n = 0;
    while (n < limit && hearth_copies_poll(cache)) {
        n++;
    }
    if (n > 0) {
        hearth_cache_store_shrink(cache); /* items that lost their copy count again */
    }
    return n;
}

bool hearth_cache_wait(struct hearth_cache *cache, int64_t timeout_us) {
    return cache->backing && cache->backing->ops->wait(cache->backing, timeout_us);
}

bool hearth_cache_scanning(const struct hearth_cache *cache) {
    return cache->backing && (!cache->backing_scanned || cache->heads.awaited.count > 0);
}

bool hearth_cache_removing(struct hearth_cache *cache, bool *failed) {
    *failed = cache->removing == 0 && cache->remove_failed;
    if (cache->removing == 0) {
        cache->remove_failed = false;
    }
    return cache->removing > 0;
}
