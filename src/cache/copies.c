/* Copies. Design in copies.h.
 *
 * Names are computed when an item is put; the table `cache->copies` finds the item that an event is about. An event
 * about a name that is not in the table is about something that went in the meantime, and is ignored.
 *
 * Invariants: a copy is in the table exactly when its state is not NONE; `cache->writing` counts those WRITING; an item
 * whose copy is WRITING has its blob in RAM. */
#include "cache/copies.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/utf8.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static struct hearth_page *page_of(struct hearth_copy *copy) {
    return (struct hearth_page *)((char *)copy - offsetof(struct hearth_page, copy));
}

static struct hearth_snapshot *snapshot_of(struct hearth_copy *copy) {
    return (struct hearth_snapshot *)((char *)copy - offsetof(struct hearth_snapshot, copy));
}

static struct hearth_copy *find(const struct hearth_cache *cache, struct hearth_digest name) {
    return (struct hearth_copy *)hearth_table_find(&cache->copies, name);
}

/* Bytes that the item counts in RAM. */
static size_t bytes_of(struct hearth_copy *copy) {
    return copy->is_snapshot ? hearth_snapshot_bytes(snapshot_of(copy)) : hearth_page_bytes(page_of(copy));
}

static void changed(struct hearth_cache *cache, struct hearth_copy *copy, size_t before) {
    if (copy->is_snapshot)
        hearth_store_snapshot_changed(cache, snapshot_of(copy), before);
    else
        hearth_store_page_changed(cache, page_of(copy), before);
}

struct hearth_digest hearth_copies_root_digest(const struct hearth_cache *cache, struct hearth_digest salt) {
    struct hearth_digest key = cache->far ? cache->far->key : (struct hearth_digest){0};
    return hearth_record_root(cache->engine->caps.fingerprint, key, salt);
}

struct hearth_page *hearth_copies_root(struct hearth_cache *cache, struct hearth_digest salt, bool create) {
    struct hearth_digest digest = hearth_copies_root_digest(cache, salt);
    struct hearth_page *root = hearth_tree_end(&cache->tree, digest, 0);
    if (root || (!create && !hearth_table_find(&cache->orphans, digest)))
        return root;
    root = hearth_tree_add_root(&cache->tree, digest);
    if (root)
        hearth_arrive_behind(cache, root);
    return root;
}

/* ---- books ---- */

static bool enter(struct hearth_cache *cache, struct hearth_copy *copy, struct hearth_digest name,
                  enum hearth_copy_state state) {
    HEARTH_ASSERT(copy->state == HEARTH_COPY_NONE && state != HEARTH_COPY_NONE);
    copy->link.key = name;
    if (find(cache, name) || !hearth_table_add(&cache->copies, &copy->link))
        return false;
    copy->state = (uint8_t)state;
    cache->writing += state == HEARTH_COPY_WRITING;
    return true;
}

bool hearth_copy_found(struct hearth_cache *cache, struct hearth_copy *copy, struct hearth_digest name, int32_t p0) {
    if (!enter(cache, copy, name, HEARTH_COPY_THERE))
        return false;
    copy->p0 = p0;
    return true;
}

void hearth_copy_forget(struct hearth_cache *cache, struct hearth_copy *copy) {
    if (copy->state == HEARTH_COPY_NONE)
        return;
    cache->writing -= copy->state == HEARTH_COPY_WRITING;
    hearth_table_remove(&cache->copies, &copy->link);
    copy->state = HEARTH_COPY_NONE;
    copy->reading = false;
}

void hearth_copy_remove(struct hearth_cache *cache, struct hearth_copy *copy) {
    if (copy->state == HEARTH_COPY_NONE)
        return;
    hearth_far_remove(cache, copy->link.key, copy->is_snapshot ? HEARTH_RECORD_SNAPSHOT : HEARTH_RECORD_PAGE);
    hearth_copy_forget(cache, copy);
}

void hearth_copy_outgrown(struct hearth_cache *cache, struct hearth_page *page, int32_t end) {
    if (page->copy.state == HEARTH_COPY_NONE)
        return;
    if (page->old)
        hearth_spare_old(cache, page);
    else
        page->old = malloc(sizeof *page->old);
    if (page->old) /* else it is left where it is */
        *page->old = (struct hearth_old){.name = page->copy.link.key, .p0 = page->copy.p0, .p1 = end};
    hearth_copy_forget(cache, &page->copy);
}

void hearth_copy_reject(struct hearth_cache *cache, struct hearth_copy *copy, const char *why) {
    if (copy->state != HEARTH_COPY_THERE)
        return;
    cache->far->ops->reject(cache->far, copy->link.key, why);
    hearth_copy_forget(cache, copy);
}

/* ---- writing ---- */

/* The first words of a page, for people: one line of whole characters. */
static void describe(const struct hearth_cache *cache, const struct hearth_page *page,
                     char out[HEARTH_RECORD_TEXT_BYTES]) {
    struct hearth_buf raw = {0}, text = {0};
    bool ok = true;
    for (int32_t i = 0; ok && i < page->len && raw.len < HEARTH_RECORD_TEXT_BYTES; i++)
        ok = hearth_engine_append_text(cache->engine, page->tokens[i], false, &raw);
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

static void put(struct hearth_cache *cache, struct hearth_copy *copy, struct hearth_record *record,
                struct hearth_blob *blob, const struct hearth_digest *replaces) {
    record->name = hearth_record_name(record);
    size_t before = bytes_of(copy);
    if (blob)
        (void)hearth_blob_data(blob, &record->state_bytes);
    if (!enter(cache, copy, record->name, HEARTH_COPY_WRITING))
        return;
    copy->p0 = record->p0;
    if (!cache->far->ops->put(cache->far, record, blob, replaces))
        hearth_copy_forget(cache, copy);
    changed(cache, copy, before);
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
    put(cache, &page->copy, &record, page->blob, page->old ? &page->old->name : NULL);
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
    put(cache, &snapshot->copy, &record, snapshot->blob, NULL);
}

/* Every turn of a conversation leaves snapshots before and behind its reply, and each may be as large as hundreds of
 * pages. Once it has shown which of them it comes back to, the other kinds stay in RAM. */
static bool worth_writing(const struct hearth_snapshot *snapshot, const struct hearth_live *live) {
    enum hearth_came_from came_from = live->came_from;
    if (snapshot->promise.durable)
        return true;
    if (snapshot->superseded && snapshot->pos <= live->came_at)
        return false; /* an earlier turn's, which did without */
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
    if (!cache->far || path->matched < cache->far_min_tokens)
        return;
    bool stateless = !hearth_caps_has_pages(&cache->engine->caps);
    for (size_t i = 0; i < path->n; i++) {
        struct hearth_page *page = path->pages[i];
        if (page->copy.state == HEARTH_COPY_NONE && (page->blob || stateless))
            put_page(cache, page);
        for (uint32_t k = 0; k < page->snapshot_count; k++) {
            struct hearth_snapshot *snapshot = page->snapshots[k];
            if (snapshot->copy.state == HEARTH_COPY_NONE && snapshot->blob &&
                worth_writing(snapshot, live))
                put_snapshot(cache, snapshot);
        }
    }
}

/* ---- reading ---- */

static bool lacks_blob(const struct hearth_cache *cache, const struct hearth_copy *copy) {
    if (copy->is_snapshot)
        return !snapshot_of((struct hearth_copy *)copy)->blob;
    return !page_of((struct hearth_copy *)copy)->blob && hearth_caps_has_pages(&cache->engine->caps);
}

bool hearth_copy_fetch(struct hearth_cache *cache, struct hearth_copy *copy) {
    if (copy->state != HEARTH_COPY_THERE)
        return false;
    if (!copy->reading)
        copy->reading = cache->far->ops->get(cache->far, copy->link.key);
    return copy->reading;
}

static size_t state_bytes(const struct hearth_cache *cache, struct hearth_copy *copy) {
    if (copy->is_snapshot)
        return cache->engine->caps.snapshot_bytes;
    const struct hearth_page *page = page_of(copy);
    return (size_t)(page->p0 + page->len - copy->p0) * cache->engine->caps.page_bytes_per_token;
}

/* Asks for one item unless it is here, or enough is on its way. Returns 1 while it is awaited. */
static size_t fetch_one(struct hearth_cache *cache, struct hearth_copy *copy, size_t *on_way_bytes,
                        size_t limit_bytes) {
    if (!lacks_blob(cache, copy) || (!copy->reading && *on_way_bytes > 0 && *on_way_bytes >= limit_bytes))
        return 0;
    if (!hearth_copy_fetch(cache, copy))
        return 0;
    *on_way_bytes += state_bytes(cache, copy);
    return 1;
}

size_t hearth_copies_fetch(struct hearth_cache *cache, const struct hearth_path *path, int32_t from, int32_t to,
                           struct hearth_snapshot *snapshot, size_t limit_bytes) {
    size_t awaited = 0, on_way_bytes = 0;
    for (size_t i = 0; i < path->n && path->pages[i]->p0 < to; i++)
        if (hearth_path_end(path, i) > from)
            awaited += fetch_one(cache, &path->pages[i]->copy, &on_way_bytes, limit_bytes);
    if (snapshot)
        awaited += fetch_one(cache, &snapshot->copy, &on_way_bytes, limit_bytes);
    return awaited;
}

/* ---- use ---- */

void hearth_copies_touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume,
                         const struct hearth_snapshot *snapshot) {
    if (!cache->far)
        return;
    struct hearth_far_touch *touches = calloc(path->n + 1, sizeof *touches);
    size_t n = 0;
    for (size_t i = 0; touches && i < path->n && path->pages[i]->p0 < resume; i++) {
        const struct hearth_copy *copy = &path->pages[i]->copy;
        int32_t end = hearth_path_end(path, i);
        if (copy->state == HEARTH_COPY_THERE)
            touches[n++] = (struct hearth_far_touch){.name = copy->link.key, .pos = end < resume ? end : resume};
    }
    if (touches && snapshot && snapshot->copy.state == HEARTH_COPY_THERE)
        touches[n++] = (struct hearth_far_touch){
            .name = snapshot->copy.link.key, .pos = snapshot->pos, .superseded = snapshot->superseded};
    if (n > 0)
        cache->far->ops->touch(cache->far, touches, n);
    free(touches);
}

static void touch_superseded(struct hearth_cache *cache, const struct hearth_snapshot *snapshot) {
    struct hearth_far_touch touch = {.name = snapshot->copy.link.key, .pos = snapshot->pos, .superseded = true};
    if (snapshot->copy.state == HEARTH_COPY_THERE)
        cache->far->ops->touch(cache->far, &touch, 1);
}

void hearth_copies_supersede(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    if (snapshot->superseded)
        return;
    snapshot->superseded = true;
    touch_superseded(cache, snapshot);
}

/* ---- events ---- */

/* Bytes of an item came: they become its blob, if there is room. */
static void take_bytes(struct hearth_cache *cache, struct hearth_copy *copy, struct hearth_far_event *event) {
    if (!lacks_blob(cache, copy))
        return;
    size_t before = bytes_of(copy);
    size_t need = event->bytes.len + HEARTH_BLOB_OVERHEAD_BYTES;
    if (copy->is_snapshot) {
        struct hearth_snapshot *snapshot = snapshot_of(copy);
        if (!hearth_store_reserve_snapshot(cache, need + HEARTH_SNAPSHOT_NODE_BYTES) && !cache->restoring)
            return;
        snapshot->blob = hearth_ram_put(cache->ram, &event->bytes, &event->checksum);
        snapshot->fetched = snapshot->blob != NULL;
    } else {
        struct hearth_page *page = page_of(copy);
        need += HEARTH_PAGE_NODE_BYTES + (size_t)page->len * sizeof *page->tokens;
        if (!hearth_store_reserve_page(cache, need, 0) && !cache->restoring)
            return;
        page->blob = hearth_ram_put(cache->ram, &event->bytes, &event->checksum);
        page->blob_p0 = copy->p0;
        page->fetched = page->blob != NULL;
    }
    changed(cache, copy, before);
}

/* The copy is gone, or cannot be read: what has no state in RAM either goes too, unless something hangs on it. */
static void lose(struct hearth_cache *cache, struct hearth_copy *copy) {
    size_t before = bytes_of(copy);
    hearth_copy_forget(cache, copy);
    changed(cache, copy, before);
    if (!copy->is_snapshot && !page_of(copy)->blob)
        hearth_store_drop_state(cache, page_of(copy));
    else if (copy->is_snapshot && !snapshot_of(copy)->blob && snapshot_of(copy)->pins == 0)
        hearth_store_drop_snapshot(cache, snapshot_of(copy));
}

static void on_written(struct hearth_cache *cache, struct hearth_copy *copy) {
    if (copy->state != HEARTH_COPY_WRITING)
        return;
    size_t before = bytes_of(copy);
    copy->state = HEARTH_COPY_THERE;
    cache->writing--;
    if (!copy->is_snapshot) {
        free(page_of(copy)->old);
        page_of(copy)->old = NULL;
    } else if (snapshot_of(copy)->superseded) {
        touch_superseded(cache, snapshot_of(copy));
    }
    changed(cache, copy, before);
}

static void on_dropped(struct hearth_cache *cache, struct hearth_copy *copy) {
    if (copy->state != HEARTH_COPY_WRITING)
        return;
    size_t before = bytes_of(copy);
    hearth_copy_forget(cache, copy);
    changed(cache, copy, before);
}

static void on_read(struct hearth_cache *cache, struct hearth_copy *copy, struct hearth_far_event *event) {
    copy->reading = false;
    if (event->err == HEARTH_OK) {
        take_bytes(cache, copy, event);
    } else if (copy->state == HEARTH_COPY_THERE) {
        if (event->err == HEARTH_ERR_IO) /* it may be there after all: it is written again when it has been computed */
            hearth_spare_copy(cache, copy);
        lose(cache, copy);
    }
}

/* What was put there again in the meantime may be gone, too: it is put once more. */
static void on_removed(struct hearth_cache *cache, struct hearth_copy *copy, int err) {
    HEARTH_ASSERT(cache->removing > 0);
    cache->removing--;
    cache->remove_failed = cache->remove_failed || err != HEARTH_OK;
    if (!copy || copy->state != HEARTH_COPY_THERE)
        return;
    if (lacks_blob(cache, copy)) {
        lose(cache, copy);
        return;
    }
    size_t before = bytes_of(copy);
    hearth_copy_forget(cache, copy);
    changed(cache, copy, before);
    if (copy->is_snapshot)
        put_snapshot(cache, snapshot_of(copy));
    else
        put_page(cache, page_of(copy));
}

bool hearth_copies_poll(struct hearth_cache *cache) {
    struct hearth_far_event event;
    if (!cache->far || !cache->far->ops->poll(cache->far, &event))
        return false;
    struct hearth_copy *copy = event.type == HEARTH_FAR_SCANNED ? NULL : find(cache, event.name);
    switch (event.type) {
    case HEARTH_FAR_FOUND:
        if (!copy) {
            hearth_arrive(cache, event.record, event.hits);
            event.record = NULL;
        }
        break;
    case HEARTH_FAR_REMOVED: on_removed(cache, copy, event.err); break;
    case HEARTH_FAR_LOST:
        if (copy && copy->state == HEARTH_COPY_THERE)
            lose(cache, copy);
        break;
    case HEARTH_FAR_WRITTEN:
        if (copy)
            on_written(cache, copy);
        break;
    case HEARTH_FAR_DROPPED:
        if (copy)
            on_dropped(cache, copy);
        break;
    case HEARTH_FAR_READ:
        if (copy)
            on_read(cache, copy, &event);
        break;
    case HEARTH_FAR_SCANNED: cache->far_scanned = true; break;
    }
    hearth_far_event_finish(&event);
    return true;
}
