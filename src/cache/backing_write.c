/* Writing to the backing tier.
 *
 * Every turn of a conversation leaves snapshots before and behind its reply, and each may be as large as hundreds of
 * pages. Once the conversation has shown which of them it comes back to, the other kinds stay in RAM:
 *
 *     it came back                 written                       stays in RAM
 *     nowhere yet                  all kinds
 *     behind a reply               reply end, divergence, interval    prompt end, head, mark
 *     before a reply (rewritten)   prompt end, divergence, interval   reply end, head, mark
 *
 * A snapshot with a durable lease is always written; one of an earlier turn that did without is not. */
#include "cache/backing.h"

#include "base/utf8.h"

/* The first words of a page, as one line of whole characters, for people who list the files. */
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
    record->owner = cache->shares.owners[item->owner].id;
    size_t before = hearth_cache_item_bytes(item);
    if (blob) {
        (void)hearth_blob_data(blob, &record->state_bytes);
    }
    if (!hearth_copy_enter(cache, item, record->name, HEARTH_COPY_WRITING)) {
        return;
    }
    item->copy.p0 = record->p0;
    item->copy.waits = hearth_copy_is_removed(cache, record->name);
    if (!item->copy.waits && !cache->backing->ops->put(cache->backing, record, blob, replaces)) {
        hearth_copy_forget(cache, item);
    }
    hearth_cache_store_changed(cache, item, before);
}

/* The name of a page's copy. */
static struct hearth_digest copy_name(const struct hearth_page *page) {
    return page && page->item.copy.state != HEARTH_COPY_NONE ? page->item.copy.link.key : (struct hearth_digest){0};
}

void hearth_copy_put_page(struct hearth_cache *cache, struct hearth_page *page) {
    int32_t end = page->p0 + page->len;
    struct hearth_record record = {
        .kind = HEARTH_RECORD_PAGE,
        .base = hearth_tree_base(&cache->tree, page),
        .base_pos = hearth_tree_block_start(&cache->tree, end),
        .p0 = page->blob_p0,
        .p1 = end,
        .tokens = (hearth_token *)hearth_tree_block(&cache->tree, page, end), /* copied, not changed */
        .cover = page->blob_p0 % cache->tree.page_tokens != 0 ? copy_name(page->parent) : (struct hearth_digest){0},
    };
    describe(cache, page, record.text);
    put(cache, &page->item, &record, page->item.blob, page->old ? &page->old->name : NULL);
}

/* A window that is complete at its position is written like any other snapshot. */
static bool is_whole(const struct hearth_cache *cache, const struct hearth_snapshot *snapshot) {
    const int32_t from = snapshot->pos - cache->engine->caps.window_tokens;
    return snapshot->p0 == (from > 0 ? from : 0) || snapshot->p0 == snapshot->pos;
}

void hearth_copy_put_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    struct hearth_record record = {
        .kind = HEARTH_RECORD_SNAPSHOT,
        .label = (uint8_t)snapshot->kind,
        .base = hearth_tree_base(&cache->tree, snapshot->page),
        .base_pos = hearth_tree_block_start(&cache->tree, snapshot->pos),
        .p0 = is_whole(cache, snapshot) ? snapshot->pos : snapshot->p0,
        .p1 = snapshot->pos,
        .tokens = (hearth_token *)hearth_tree_block(&cache->tree, snapshot->page, snapshot->pos),
        .cover = copy_name(snapshot->page),
    };
    put(cache, &snapshot->item, &record, snapshot->item.blob, NULL);
}

static bool worth_writing(const struct hearth_snapshot *snapshot, const struct hearth_live *live) {
    enum hearth_came_from came_from = live->came_from;
    if (snapshot->item.lease.durable) {
        return true;
    }
    if (snapshot->superseded && snapshot->pos <= live->came_at) {
        return false; /* of an earlier turn, which went on without a copy */
    }
    switch (snapshot->kind) {
    case HEARTH_SNAPSHOT_REPLY_END: return came_from != HEARTH_FROM_PROMPT;
    case HEARTH_SNAPSHOT_PROMPT_END: return came_from != HEARTH_FROM_REPLY;
    case HEARTH_SNAPSHOT_HEAD:
    case HEARTH_SNAPSHOT_MARK: return came_from == HEARTH_FROM_NOTHING;
    case HEARTH_SNAPSHOT_DIVERGENCE:
    case HEARTH_SNAPSHOT_WINDOW:
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
            hearth_copy_put_page(cache, page);
        }
        for (uint32_t k = 0; k < page->snapshot_count; k++) {
            struct hearth_snapshot *snapshot = page->snapshots[k];
            if (snapshot->item.copy.state == HEARTH_COPY_NONE && snapshot->item.blob && worth_writing(snapshot, live)) {
                hearth_copy_put_snapshot(cache, snapshot);
            }
        }
    }
}
