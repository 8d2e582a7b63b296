/* Copies. Design in copies.h.
 *
 * Names are computed when an item is put; the table `cache->copies` finds the item that an event is about. An event
 * about a name that is not in the table is about something that went in the meantime, and is ignored.
 *
 * Invariants: a copy is in the table exactly when its state is not NONE; `cache->writing` counts those WRITING; an item
 * with a copy that is WRITING has its blob in RAM. */
#include "cache/copies.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/utf8.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The item with a copy of this name, or NULL. */
static struct hearth_cache_item *find(const struct hearth_cache *cache, struct hearth_digest name) {
    struct hearth_link *link = hearth_table_find(&cache->copies, name);
    return link ? (struct hearth_cache_item *)((char *)link - offsetof(struct hearth_cache_item, copy)) : NULL;
}

struct hearth_digest hearth_copies_root_digest(const struct hearth_cache *cache, struct hearth_digest salt) {
    struct hearth_digest key = cache->backing ? cache->backing->key : (struct hearth_digest){0};
    return hearth_record_root(cache->engine->caps.fingerprint, key, salt);
}

struct hearth_page *hearth_copies_root(struct hearth_cache *cache, struct hearth_digest salt, bool create) {
    struct hearth_digest digest = hearth_copies_root_digest(cache, salt);
    struct hearth_page *root = hearth_tree_end(&cache->tree, digest, 0);
    if (root || (!create && !hearth_table_find(&cache->orphans, digest))) {
        return root;
    }
    root = hearth_tree_add_root(&cache->tree, digest);
    if (root) {
        hearth_arrive_behind(cache, root);
    }
    return root;
}

/* ---- books ---- */

static bool enter(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_digest name,
                  enum hearth_copy_state state) {
    HEARTH_ASSERT(item->copy.state == HEARTH_COPY_NONE && state != HEARTH_COPY_NONE);
    item->copy.link.key = name;
    if (find(cache, name) || !hearth_table_add(&cache->copies, &item->copy.link)) {
        return false;
    }
    item->copy.state = (uint8_t)state;
    cache->writing += state == HEARTH_COPY_WRITING;
    return true;
}

bool hearth_copy_found(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_digest name,
                       int32_t p0) {
    if (!enter(cache, item, name, HEARTH_COPY_THERE)) {
        return false;
    }
    item->copy.p0 = p0;
    return true;
}

void hearth_copy_forget(struct hearth_cache *cache, struct hearth_cache_item *item) {
    if (item->copy.state == HEARTH_COPY_NONE) {
        return;
    }
    cache->writing -= item->copy.state == HEARTH_COPY_WRITING;
    hearth_table_remove(&cache->copies, &item->copy.link);
    item->copy.state = HEARTH_COPY_NONE;
    item->copy.reading = false;
}

void hearth_copy_remove(struct hearth_cache *cache, struct hearth_cache_item *item) {
    if (item->copy.state == HEARTH_COPY_NONE) {
        return;
    }
    hearth_backing_remove(cache, item->copy.link.key, item->is_snapshot ? HEARTH_RECORD_SNAPSHOT : HEARTH_RECORD_PAGE);
    hearth_copy_forget(cache, item);
}

void hearth_copy_outgrown(struct hearth_cache *cache, struct hearth_page *page, int32_t end) {
    if (page->item.copy.state == HEARTH_COPY_NONE) {
        return;
    }
    if (page->old) {
        hearth_duplicate_add_old(cache, page);
    } else {
        page->old = malloc(sizeof *page->old);
    }
    if (page->old) { /* else it is left where it is */
        *page->old = (struct hearth_old){.name = page->item.copy.link.key, .p0 = page->item.copy.p0, .p1 = end};
    }
    hearth_copy_forget(cache, &page->item);
}

void hearth_copy_reject(struct hearth_cache *cache, struct hearth_cache_item *item, const char *why) {
    if (item->copy.state != HEARTH_COPY_THERE) {
        return;
    }
    cache->backing->ops->reject(cache->backing, item->copy.link.key, why);
    hearth_copy_forget(cache, item);
}

/* ---- writing ---- */

/* The first words of a page, for people: one line of whole characters. */
static void describe(const struct hearth_cache *cache, const struct hearth_page *page,
                     char out[HEARTH_RECORD_TEXT_BYTES]) {
    struct hearth_buf raw = {0}, text = {0};
    bool ok = true;
    for (int32_t i = 0; ok && i < page->len && raw.len < HEARTH_RECORD_TEXT_BYTES; i++) {
        ok = hearth_engine_append_text(cache->engine, page->tokens[i], false, &raw);
    }
    out[0] = '\0';
    if (ok && raw.len > 0 &&
        hearth_utf8_append(&text, (const char *)raw.data, hearth_utf8_complete((const char *)raw.data, raw.len))) {
        size_t len = text.len < HEARTH_RECORD_TEXT_BYTES - 1 ? text.len : HEARTH_RECORD_TEXT_BYTES - 1;
        len = hearth_utf8_complete((const char *)text.data, len);
        for (size_t i = 0; i < len; i++) {
            unsigned char c = text.data[i];
            out[i] = c < 0x20 || c == 0x7f ? ' ' : (char)c;
        }
        out[len] = '\0';
    }
    hearth_buf_finish(&raw);
    hearth_buf_finish(&text);
}

static void put(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_record *record,
                struct hearth_blob *blob, const struct hearth_digest *replaces) {
    record->name = hearth_record_name(record);
    size_t before = hearth_item_bytes(item);
    if (blob) {
        (void)hearth_blob_data(blob, &record->state_bytes);
    }
    if (!enter(cache, item, record->name, HEARTH_COPY_WRITING)) {
        return;
    }
    item->copy.p0 = record->p0;
    if (!cache->backing->ops->put(cache->backing, record, blob, replaces)) {
        hearth_copy_forget(cache, item);
    }
    hearth_cache_store_changed(cache, item, before);
}

static void put_page(struct hearth_cache *cache, struct hearth_page *page) {
    int32_t end = page->p0 + page->len;
    struct hearth_record record = {
        .kind = HEARTH_RECORD_PAGE,
        .base = hearth_tree_base(&cache->tree, page),
        .base_pos = hearth_tree_block_start(&cache->tree, end),
        .p0 = page->blob_p0,
        .p1 = end,
        .tokens = (hearth_token *)hearth_tree_block(&cache->tree, page, end), /* copied, not changed */
    };
    describe(cache, page, record.text);
    put(cache, &page->item, &record, page->item.blob, page->old ? &page->old->name : NULL);
}

static void put_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    struct hearth_record record = {
        .kind = HEARTH_RECORD_SNAPSHOT,
        .label = (uint8_t)snapshot->kind,
        .base = hearth_tree_base(&cache->tree, snapshot->page),
        .base_pos = hearth_tree_block_start(&cache->tree, snapshot->pos),
        .p0 = snapshot->pos,
        .p1 = snapshot->pos,
        .tokens = (hearth_token *)hearth_tree_block(&cache->tree, snapshot->page, snapshot->pos),
    };
    put(cache, &snapshot->item, &record, snapshot->item.blob, NULL);
}

/* Every turn of a conversation leaves snapshots before and behind its reply, and each may be as large as hundreds of
 * pages. Once it has shown which of them it comes back to, the other kinds stay in RAM. */
static bool worth_writing(const struct hearth_snapshot *snapshot, const struct hearth_live *live) {
    enum hearth_came_from came_from = live->came_from;
    if (snapshot->item.lease.durable) {
        return true;
    }
    if (snapshot->superseded && snapshot->pos <= live->came_at) {
        return false; /* an earlier turn's, which did without */
    }
    switch (snapshot->kind) {
    case HEARTH_SNAPSHOT_REPLY_END: return came_from != HEARTH_FROM_PROMPT;
    case HEARTH_SNAPSHOT_PROMPT_END: return came_from != HEARTH_FROM_REPLY;
    case HEARTH_SNAPSHOT_HEAD:
    case HEARTH_SNAPSHOT_MARK: return came_from == HEARTH_FROM_NOTHING;
    case HEARTH_SNAPSHOT_DIVERGENCE:
    case HEARTH_SNAPSHOT_INTERVAL: return true;
    }
    return true;
}

void hearth_copies_write(struct hearth_cache *cache, const struct hearth_path *path, const struct hearth_live *live) {
    if (!cache->backing || path->matched < cache->backing_min_tokens) {
        return;
    }
    bool stateless = !hearth_caps_has_pages(&cache->engine->caps);
    for (size_t i = 0; i < path->n; i++) {
        struct hearth_page *page = path->pages[i];
        if (page->item.copy.state == HEARTH_COPY_NONE && (page->item.blob || stateless)) {
            put_page(cache, page);
        }
        for (uint32_t k = 0; k < page->snapshot_count; k++) {
            struct hearth_snapshot *snapshot = page->snapshots[k];
            if (snapshot->item.copy.state == HEARTH_COPY_NONE && snapshot->item.blob && worth_writing(snapshot, live)) {
                put_snapshot(cache, snapshot);
            }
        }
    }
}

/* ---- reading ---- */

static bool lacks_blob(const struct hearth_cache *cache, const struct hearth_cache_item *item) {
    return !item->blob && (item->is_snapshot || hearth_caps_has_pages(&cache->engine->caps));
}

bool hearth_copy_fetch(struct hearth_cache *cache, struct hearth_cache_item *item) {
    if (item->copy.state != HEARTH_COPY_THERE) {
        return false;
    }
    if (!item->copy.reading) {
        item->copy.reading = cache->backing->ops->get(cache->backing, item->copy.link.key);
    }
    return item->copy.reading;
}

static size_t state_bytes(const struct hearth_cache *cache, struct hearth_cache_item *item) {
    if (item->is_snapshot) {
        return cache->engine->caps.snapshot_bytes;
    }
    const struct hearth_page *page = hearth_item_page(item);
    return (size_t)(page->p0 + page->len - item->copy.p0) * cache->engine->caps.page_bytes_per_token;
}

/* Asks for one item unless it is here, or enough is on its way. Returns 1 while it is awaited. */
static size_t fetch_one(struct hearth_cache *cache, struct hearth_cache_item *item, size_t *on_way_bytes,
                        size_t limit_bytes) {
    if (!lacks_blob(cache, item) || (!item->copy.reading && *on_way_bytes > 0 && *on_way_bytes >= limit_bytes)) {
        return 0;
    }
    if (!hearth_copy_fetch(cache, item)) {
        return 0;
    }
    *on_way_bytes += state_bytes(cache, item);
    return 1;
}

size_t hearth_copies_fetch(struct hearth_cache *cache, const struct hearth_path *path, int32_t from, int32_t to,
                           struct hearth_snapshot *snapshot, size_t limit_bytes) {
    size_t awaited = 0, on_way_bytes = 0;
    for (size_t i = 0; i < path->n && path->pages[i]->p0 < to; i++) {
        if (hearth_path_end(path, i) > from) {
            awaited += fetch_one(cache, &path->pages[i]->item, &on_way_bytes, limit_bytes);
        }
    }
    if (snapshot) {
        awaited += fetch_one(cache, &snapshot->item, &on_way_bytes, limit_bytes);
    }
    return awaited;
}

/* ---- use ---- */

void hearth_copies_touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume,
                         const struct hearth_snapshot *snapshot) {
    if (!cache->backing) {
        return;
    }
    struct hearth_backing_touch *touches = calloc(path->n + 1, sizeof *touches);
    size_t n = 0;
    for (size_t i = 0; touches && i < path->n && path->pages[i]->p0 < resume; i++) {
        const struct hearth_copy *copy = &path->pages[i]->item.copy;
        int32_t end = hearth_path_end(path, i);
        if (copy->state == HEARTH_COPY_THERE) {
            touches[n++] = (struct hearth_backing_touch){.name = copy->link.key, .pos = end < resume ? end : resume};
        }
    }
    if (touches && snapshot && snapshot->item.copy.state == HEARTH_COPY_THERE) {
        touches[n++] = (struct hearth_backing_touch){
            .name = snapshot->item.copy.link.key, .pos = snapshot->pos, .superseded = snapshot->superseded};
    }
    if (n > 0) {
        cache->backing->ops->touch(cache->backing, touches, n);
    }
    free(touches);
}

static void touch_superseded(struct hearth_cache *cache, const struct hearth_snapshot *snapshot) {
    struct hearth_backing_touch touch = {
        .name = snapshot->item.copy.link.key, .pos = snapshot->pos, .superseded = true};
    if (snapshot->item.copy.state == HEARTH_COPY_THERE) {
        cache->backing->ops->touch(cache->backing, &touch, 1);
    }
}

void hearth_copies_supersede(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    if (snapshot->superseded) {
        return;
    }
    snapshot->superseded = true;
    touch_superseded(cache, snapshot);
}

/* ---- events ---- */

/* Bytes of an item came: they become its blob, if there is room. */
static void take_bytes(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_backing_event *event) {
    if (!lacks_blob(cache, item)) {
        return;
    }
    size_t before = hearth_item_bytes(item);
    size_t need = event->bytes.len + HEARTH_BLOB_OVERHEAD_BYTES;
    const struct hearth_page *page = hearth_item_page(item);
    bool room = item->is_snapshot ? hearth_cache_store_reserve_snapshot(cache, need + HEARTH_SNAPSHOT_NODE_BYTES)
                                  : hearth_cache_store_reserve_page(cache, need + hearth_page_node_bytes(page->len), 0);
    if (!room && !cache->restoring) {
        return;
    }
    item->blob = hearth_ram_put(cache->ram, &event->bytes, &event->checksum);
    item->fetched = item->blob != NULL;
    if (!item->is_snapshot) {
        hearth_item_page(item)->blob_p0 = item->copy.p0;
    }
    hearth_cache_store_changed(cache, item, before);
}

/* The copy is gone, or cannot be read: what has no state in RAM either goes too, unless something hangs on it. */
static void lose(struct hearth_cache *cache, struct hearth_cache_item *item) {
    size_t before = hearth_item_bytes(item);
    hearth_copy_forget(cache, item);
    hearth_cache_store_changed(cache, item, before);
    if (item->blob) {
        return;
    }
    if (!item->is_snapshot) {
        hearth_cache_store_drop_state(cache, hearth_item_page(item));
    } else if (item->pins == 0) {
        hearth_cache_store_drop_snapshot(cache, hearth_item_snapshot(item));
    }
}

static void on_written(struct hearth_cache *cache, struct hearth_cache_item *item) {
    if (item->copy.state != HEARTH_COPY_WRITING) {
        return;
    }
    size_t before = hearth_item_bytes(item);
    item->copy.state = HEARTH_COPY_THERE;
    cache->writing--;
    if (!item->is_snapshot) {
        free(hearth_item_page(item)->old);
        hearth_item_page(item)->old = NULL;
    } else if (hearth_item_snapshot(item)->superseded) {
        touch_superseded(cache, hearth_item_snapshot(item));
    }
    hearth_cache_store_changed(cache, item, before);
}

static void on_dropped(struct hearth_cache *cache, struct hearth_cache_item *item) {
    if (item->copy.state != HEARTH_COPY_WRITING) {
        return;
    }
    size_t before = hearth_item_bytes(item);
    hearth_copy_forget(cache, item);
    hearth_cache_store_changed(cache, item, before);
}

static void on_read(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_backing_event *event) {
    item->copy.reading = false;
    if (event->err == HEARTH_OK) {
        take_bytes(cache, item, event);
    } else if (item->copy.state == HEARTH_COPY_THERE) {
        if (event->err ==
            HEARTH_ERR_IO) { /* it may be there after all: it is written again when it has been computed */
            hearth_duplicate_add_copy(cache, item);
        }
        lose(cache, item);
    }
}

/* What was put there again in the meantime may be gone, too: it is put once more. */
static void on_removed(struct hearth_cache *cache, struct hearth_cache_item *item, int err) {
    HEARTH_ASSERT(cache->removing > 0);
    cache->removing--;
    cache->remove_failed = cache->remove_failed || err != HEARTH_OK;
    if (!item || item->copy.state != HEARTH_COPY_THERE) {
        return;
    }
    if (lacks_blob(cache, item)) {
        lose(cache, item);
        return;
    }
    size_t before = hearth_item_bytes(item);
    hearth_copy_forget(cache, item);
    hearth_cache_store_changed(cache, item, before);
    if (item->is_snapshot) {
        put_snapshot(cache, hearth_item_snapshot(item));
    } else {
        put_page(cache, hearth_item_page(item));
    }
}

bool hearth_copies_poll(struct hearth_cache *cache) {
    struct hearth_backing_event event;
    if (!cache->backing || !cache->backing->ops->poll(cache->backing, &event)) {
        return false;
    }
    struct hearth_cache_item *item = event.type == HEARTH_BACKING_SCANNED ? NULL : find(cache, event.name);
    switch (event.type) {
    case HEARTH_BACKING_FOUND:
        if (!item) {
            hearth_arrive(cache, event.record, event.hits);
            event.record = NULL;
        }
        break;
    case HEARTH_BACKING_REMOVED: on_removed(cache, item, event.err); break;
    case HEARTH_BACKING_LOST:
        if (item && item->copy.state == HEARTH_COPY_THERE) {
            lose(cache, item);
        }
        break;
    case HEARTH_BACKING_WRITTEN:
        if (item) {
            on_written(cache, item);
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
    case HEARTH_BACKING_SCANNED: cache->backing_scanned = true; break;
    }
    hearth_backing_event_finish(&event);
    return true;
}
