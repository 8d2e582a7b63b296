/* What the cache knows of the copies in the backing tier. Design in backing.h.
 *
 * The table `cache->copies` finds an item by the name of its copy. The table `cache->duplicates` holds the names of
 * what else the tier has: a page that another process cut in another way, or what a page was before it grew. The name
 * follows from the tokens, so a duplicate lies on a path if the path's tokens give its name.
 *
 * This file does not change what an item counts for in a budget; its callers do (hearth_cache_store_changed()).
 *
 * Invariants: a copy is in the table exactly when its state is not NONE; `cache->writing` counts those WRITING; an item
 * with a copy that is WRITING has its blob in RAM. */
#include "cache/backing.h"

#include "base/assert.h"

#include <stddef.h>
#include <stdlib.h>

#define DUPLICATES_MAX 16384

struct hearth_cache_item *hearth_copy_find(const struct hearth_cache *cache, struct hearth_digest name) {
    struct hearth_link *link = hearth_table_find(&cache->copies, name);
    return link ? (struct hearth_cache_item *)((char *)link - offsetof(struct hearth_cache_item, copy)) : NULL;
}

static enum hearth_record_kind kind_of(const struct hearth_cache_item *item) {
    return item->is_snapshot ? HEARTH_RECORD_SNAPSHOT : HEARTH_RECORD_PAGE;
}

/* ---- what else the tier holds ---- */

struct duplicate {
    struct hearth_link link; /* by base */
    struct hearth_digest name;
    enum hearth_record_kind kind;
    int32_t base_pos, p0, p1;
};

void hearth_copy_remove_name(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind) {
    if (cache->backing->ops->remove(cache->backing, name, kind)) {
        cache->removing++;
        (void)hearth_table_add_name(&cache->removals, name);
    } else {
        cache->remove_failed = true;
    }
}

bool hearth_copy_is_removed(const struct hearth_cache *cache, struct hearth_digest name) {
    return hearth_table_find(&cache->removals, name) != NULL;
}

void hearth_duplicate_add(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind,
                          struct hearth_digest base, int32_t base_pos, int32_t p0, int32_t p1) {
    for (struct hearth_link *link = hearth_table_find(&cache->duplicates, base); link; link = hearth_table_next(link)) {
        if (hearth_digest_equal(((struct duplicate *)link)->name, name)) {
            return;
        }
    }
    struct duplicate *duplicate = cache->duplicates.count < DUPLICATES_MAX ? malloc(sizeof *duplicate) : NULL;
    if (!duplicate) {
        return;
    }
    *duplicate =
        (struct duplicate){.link.key = base, .name = name, .kind = kind, .base_pos = base_pos, .p0 = p0, .p1 = p1};
    if (!hearth_table_add(&cache->duplicates, &duplicate->link)) {
        free(duplicate);
    }
}

void hearth_duplicate_add_copy(struct hearth_cache *cache, const struct hearth_cache_item *item) {
    const struct hearth_copy *copy = &item->copy;
    if (copy->state == HEARTH_COPY_NONE) {
        return;
    }
    const struct hearth_page *page =
        item->is_snapshot ? hearth_cache_item_snapshot(item)->page : hearth_cache_item_page(item);
    int32_t p1 = item->is_snapshot ? hearth_cache_item_snapshot(item)->pos : page->p0 + page->len;
    hearth_duplicate_add(cache, copy->link.key, kind_of(item), hearth_tree_base(&cache->tree, page),
                         hearth_tree_block_start(&cache->tree, p1), copy->p0, p1);
}

void hearth_duplicate_add_old(struct hearth_cache *cache, const struct hearth_page *page) {
    const struct hearth_old *old = page->old;
    hearth_duplicate_add(cache, old->name, HEARTH_RECORD_PAGE, hearth_tree_base(&cache->tree, page),
                         hearth_tree_block_start(&cache->tree, old->p1), old->p0, old->p1);
}

void hearth_duplicates_forget(struct hearth_cache *cache, struct hearth_digest base, int32_t base_pos,
                              const hearth_token *tokens, int32_t from, int32_t to) {
    for (struct hearth_link *link = hearth_table_find(&cache->duplicates, base), *next; link; link = next) {
        struct duplicate *duplicate = (struct duplicate *)link;
        next = hearth_table_next(link);
        if (duplicate->base_pos != base_pos || duplicate->p0 < from || duplicate->p1 <= from || duplicate->p1 > to) {
            continue;
        }
        const struct hearth_record record = {.kind = duplicate->kind,
                                             .base = base,
                                             .base_pos = base_pos,
                                             .p0 = duplicate->p0,
                                             .p1 = duplicate->p1,
                                             .tokens = (hearth_token *)(uintptr_t)(tokens + base_pos)};
        if (!hearth_digest_equal(hearth_record_name(&record), duplicate->name)) {
            continue;
        }
        hearth_copy_remove_name(cache, duplicate->name, duplicate->kind);
        hearth_table_remove(&cache->duplicates, link);
        free(duplicate);
    }
}

void hearth_duplicates_finish(struct hearth_cache *cache) {
    struct hearth_link *link;
    for (size_t at = 0; (link = hearth_table_pop(&cache->duplicates, &at)) != NULL;) {
        free(link);
    }
    hearth_table_finish(&cache->duplicates);
}

/* ---- books ---- */

bool hearth_copy_enter(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_digest name,
                       enum hearth_copy_state state) {
    HEARTH_ASSERT(item->copy.state == HEARTH_COPY_NONE && state != HEARTH_COPY_NONE);
    item->copy.link.key = name;
    if (hearth_copy_find(cache, name) || !hearth_table_add(&cache->copies, &item->copy.link)) {
        return false;
    }
    item->copy.state = (uint8_t)state;
    item->copy.remote = item->copy.waits = false;
    cache->writing += state == HEARTH_COPY_WRITING;
    return true;
}

bool hearth_copy_found(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_digest name,
                       int32_t p0) {
    if (!hearth_copy_enter(cache, item, name, HEARTH_COPY_THERE)) {
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
    item->copy.reading = item->copy.waits = false;
}

void hearth_copy_remove(struct hearth_cache *cache, struct hearth_cache_item *item) {
    if (item->copy.state == HEARTH_COPY_NONE) {
        return;
    }
    hearth_copy_remove_name(cache, item->copy.link.key, kind_of(item));
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
    if (page->old) { /* any other page is left in the tier */
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

/* ---- reading ---- */

bool hearth_copy_lacks_blob(const struct hearth_cache *cache, const struct hearth_cache_item *item) {
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
        return hearth_snapshot_state_bytes(&cache->engine->caps, hearth_cache_item_snapshot(item));
    }
    const struct hearth_page *page = hearth_cache_item_page(item);
    return (size_t)(page->p0 + page->len - item->copy.p0) * cache->engine->caps.page_bytes_per_token;
}

/* Asks for one item, unless its state is in RAM or too many bytes are on their way. Returns 1 if the item is awaited,
 * else 0. */
static size_t fetch_one(struct hearth_cache *cache, struct hearth_cache_item *item, size_t *on_way_bytes,
                        size_t limit_bytes) {
    if (!hearth_copy_lacks_blob(cache, item) ||
        (!item->copy.reading && *on_way_bytes > 0 && *on_way_bytes >= limit_bytes)) {
        return 0;
    }
    if (!hearth_copy_fetch(cache, item)) {
        return 0;
    }
    *on_way_bytes += state_bytes(cache, item);
    return 1;
}

/* The first of the path's pages that ends behind position `from`. */
static size_t page_behind(const struct hearth_path *path, int32_t from) {
    size_t low = 0;
    for (size_t high = path->n; low < high;) {
        const size_t middle = low + (high - low) / 2;
        if (hearth_path_end(path, middle) > from) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

size_t hearth_copies_fetch(struct hearth_cache *cache, const struct hearth_path *path, int32_t from, int32_t to,
                           struct hearth_snapshot *const *snapshots, size_t count, size_t limit_bytes) {
    size_t awaited = 0, on_way_bytes = 0;
    for (size_t i = page_behind(path, from); i < path->n && path->pages[i]->p0 < to; i++) {
        awaited += fetch_one(cache, &path->pages[i]->item, &on_way_bytes, limit_bytes);
        if (on_way_bytes > 0 && on_way_bytes >= limit_bytes) {
            return awaited;
        }
    }
    for (size_t i = 0; i < count; i++) {
        awaited += fetch_one(cache, &snapshots[i]->item, &on_way_bytes, limit_bytes);
    }
    return awaited;
}

static size_t missing(struct hearth_cache *cache, struct hearth_cache_item *item) {
    const bool lacks = hearth_copy_lacks_blob(cache, item);
    item->fetched = item->fetched && lacks;
    return lacks ? state_bytes(cache, item) : 0;
}

size_t hearth_copies_missing(struct hearth_cache *cache, const struct hearth_path *path, int32_t from, int32_t to,
                             struct hearth_snapshot *const *snapshots, size_t count) {
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += missing(cache, &snapshots[i]->item);
    }
    for (size_t i = 0; i < path->n && path->pages[i]->p0 < to; i++) {
        bytes += hearth_path_end(path, i) > from ? missing(cache, &path->pages[i]->item) : 0;
    }
    return bytes;
}

/* ---- use ---- */

void hearth_copies_touch_superseded(struct hearth_cache *cache, const struct hearth_snapshot *snapshot) {
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
    hearth_copies_touch_superseded(cache, snapshot);
}

void hearth_copies_touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume,
                         struct hearth_snapshot *const *snapshots, size_t count) {
    if (!cache->backing) {
        return;
    }
    struct hearth_backing_touch *touches = calloc(path->n + count + 1, sizeof *touches);
    size_t n = 0;
    for (size_t i = 0; touches && i < path->n && path->pages[i]->p0 < resume; i++) {
        const struct hearth_copy *copy = &path->pages[i]->item.copy;
        int32_t end = hearth_path_end(path, i);
        if (copy->state == HEARTH_COPY_THERE) {
            touches[n++] = (struct hearth_backing_touch){.name = copy->link.key, .pos = end < resume ? end : resume};
        }
    }
    for (size_t i = 0; touches && i < count; i++) {
        const struct hearth_snapshot *snapshot = snapshots[i];
        if (snapshot->item.copy.state == HEARTH_COPY_THERE) {
            touches[n++] = (struct hearth_backing_touch){
                .name = snapshot->item.copy.link.key, .pos = resume, .superseded = snapshot->superseded};
        }
    }
    if (n > 0) {
        cache->backing->ops->touch(cache->backing, touches, n);
    }
    free(touches);
}
