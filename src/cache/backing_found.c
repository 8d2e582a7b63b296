/* What the backing tier found: a place in the tree for each item.
 *
 * An item says the digest of the whole blocks before it, and the tokens from there on. The page that ends with that
 * digest is where it hangs; from its end the item's tokens are matched like a prompt's. Then, for an item that ends at
 * p1 and a match that ends at m:
 *
 *     m < p0          what it hangs on is not known (yet): it waits as an orphan, under its digest
 *     p0 <= m < p1    a page: what is not known becomes one, [m, p1), with a copy that may begin before it;
 *                     or the page that ends at m grows, when the item is that page grown
 *     m = p1          a page that ends there gets the copy, if it has none; a snapshot is attached
 *
 * So an item found in any order, cut in any way, by whichever process, ends where its tokens say. Nothing of it is
 * believed but that: its state is verified when it is read.
 *
 * Items can hang on each other in chains as long as a conversation, hence a list of work instead of recursion. */
#include "cache/backing.h"

#include <stdlib.h>

struct orphan {
    struct hearth_link link; /* by record->base */
    struct orphan *next;     /* in a list of work */
    struct hearth_record *record;
    uint32_t hits;
    bool remote; /* it is in a store that boxes share */
};

static void orphan_destroy(struct orphan *orphan) {
    hearth_record_destroy(orphan->record);
    free(orphan);
}

/* Moves the items that wait for a digest to the front of the list. */
static void wake(struct hearth_cache *cache, struct hearth_digest base, struct orphan **work) {
    struct hearth_link *link;
    while (cache->orphans.count > 0 && (link = hearth_table_find(&cache->orphans, base)) != NULL) {
        struct orphan *orphan = (struct orphan *)link;
        hearth_table_remove(&cache->orphans, link);
        orphan->next = *work;
        *work = orphan;
    }
}

/* Moves the items that hang on a page to the list: those inside its block, and those behind it. */
static void wake_behind(struct hearth_cache *cache, const struct hearth_page *page, struct orphan **work) {
    if (page->parent) {
        wake(cache, hearth_tree_base(&cache->tree, page), work);
    }
    if ((page->p0 + page->len) % cache->tree.page_tokens == 0) {
        wake(cache, page->end.key, work);
    }
}

static bool sensible(const struct hearth_cache *cache, const struct hearth_record *record) {
    bool page = record->kind == HEARTH_RECORD_PAGE;
    int32_t window = cache->engine->caps.window_tokens;
    bool stateful = !page || hearth_caps_has_pages(&cache->engine->caps);
    return (record->state_bytes > 0) == stateful && record->base_pos % cache->tree.page_tokens == 0 &&
           record->base_pos < record->p1 && record->p1 - record->base_pos <= cache->tree.page_tokens &&
           record->base_pos <= record->p0 && record->p0 <= record->p1 &&
           (page ? record->p0 < record->p1
                 : record->p1 - record->p0 <= (window > 0 ? window + 1 : 0) && record->label < HEARTH_SNAPSHOT_KINDS);
}

/* ---- places ---- */

/* Lets the last page of the path grow to what the item holds. */
static bool grow(struct hearth_cache *cache, struct hearth_path *path, const struct hearth_record *record) {
    struct hearth_page *page = path->pages[path->n - 1];
    struct hearth_blob *old;
    size_t before = hearth_cache_item_bytes(&page->item);
    int32_t end = page->p0 + page->len;
    if (!hearth_tree_extend(&cache->tree, path, record->tokens, record->base_pos, record->p1, NULL, &old)) {
        return false;
    }
    hearth_ram_drop(cache->ram, old);
    hearth_copy_outgrown(cache, page, end);
    page->item.fetched = false;
    (void)hearth_copy_found(cache, &page->item, record->name, record->p0);
    hearth_cache_store_changed(cache, &page->item, before);
    return true;
}

static struct hearth_page *place_page(struct hearth_cache *cache, struct hearth_path *path,
                                      const struct hearth_record *record) {
    struct hearth_page *last = path->n > 0 ? path->pages[path->n - 1] : path->root;
    if (path->matched == record->p1) {
        if (last->p0 + last->len == record->p1 && last->p0 >= record->p0 && last->item.copy.state == HEARTH_COPY_NONE) {
            size_t before = hearth_cache_item_bytes(&last->item);
            (void)hearth_copy_found(cache, &last->item, record->name, record->p0);
            hearth_cache_store_changed(cache, &last->item, before);
        } else {
            hearth_duplicate_add(cache, record->name, record->kind, record->base, record->base_pos, record->p0,
                                 record->p1);
        }
        return last;
    }
    if (hearth_tree_can_extend(&cache->tree, path) && last->p0 == record->p0 && last->item.pins == 0 &&
        last->item.copy.state != HEARTH_COPY_WRITING) {
        return grow(cache, path, record) ? last : NULL;
    }
    struct hearth_page *page = hearth_tree_add(&cache->tree, path, record->tokens, record->base_pos, record->p1, NULL);
    if (!page) {
        return NULL;
    }
    (void)hearth_copy_found(cache, &page->item, record->name, record->p0);
    hearth_cache_store_page_added(cache, page);
    return page;
}

static struct hearth_page *place_snapshot(struct hearth_cache *cache, const struct hearth_path *path,
                                          const struct hearth_record *record) {
    struct hearth_snapshot *snapshot = hearth_path_snapshot(path, record->p1);
    int32_t p0 = record->p0 < record->p1 ? record->p0 : record->p1 - cache->engine->caps.window_tokens;
    p0 = p0 > 0 ? p0 : 0;
    if (!snapshot || snapshot->pos != record->p1) {
        snapshot =
            hearth_tree_add_snapshot(&cache->tree, path, record->p1, NULL, (enum hearth_snapshot_kind)record->label);
        if (!snapshot) {
            return NULL;
        }
        snapshot->p0 = p0;
    }
    if (snapshot->p0 != p0) {
        hearth_duplicate_add(cache, record->name, record->kind, record->base, record->base_pos, record->p0, record->p1);
        return NULL;
    }
    size_t before = hearth_cache_item_bytes(&snapshot->item);
    if (snapshot->item.copy.state == HEARTH_COPY_NONE &&
        !hearth_copy_found(cache, &snapshot->item, record->name, record->p0) && !snapshot->item.blob) {
        hearth_tree_remove_snapshot(&cache->tree, snapshot);
        return NULL;
    }
    hearth_cache_store_changed(cache, &snapshot->item, before);
    return NULL; /* nothing hangs on a snapshot */
}

/* Gives an item its place. True: it has one, or can never have one; false: it waits. `*placed`: the page, if it became
 * or joined one. */
static bool place(struct hearth_cache *cache, const struct orphan *orphan, struct hearth_page **placed) {
    const struct hearth_record *record = orphan->record;
    struct hearth_path *path = &cache->arrival;
    struct hearth_page *base = hearth_tree_end(&cache->tree, record->base, record->base_pos);
    *placed = NULL;
    if (!base) {
        return false;
    }
    if (!hearth_tree_match_behind(base, record->tokens, hearth_record_tokens(record), path)) {
        return true; /* out of memory: the next start finds it again */
    }
    if (path->matched < (record->kind == HEARTH_RECORD_PAGE ? record->p0 : record->p1)) {
        return false;
    }
    *placed =
        record->kind == HEARTH_RECORD_PAGE ? place_page(cache, path, record) : place_snapshot(cache, path, record);
    struct hearth_cache_item *item = hearth_copy_find(cache, record->name);
    if (item && item->copy.state == HEARTH_COPY_THERE) {
        item->copy.remote = orphan->remote;
    }
    if (*placed && (*placed)->item.hits < orphan->hits) {
        (*placed)->item.hits = orphan->hits;
    }
    return true;
}

static void work_off(struct hearth_cache *cache, struct orphan *work) {
    while (work) {
        struct orphan *orphan = work;
        work = orphan->next;
        struct hearth_page *page = NULL;
        if (place(cache, orphan, &page)) {
            orphan_destroy(orphan);
            if (page) {
                wake_behind(cache, page, &work);
            }
            continue;
        }
        orphan->link.key = orphan->record->base;
        if (!hearth_table_add(&cache->orphans, &orphan->link)) {
            orphan_destroy(orphan);
        }
    }
}

/* ---- entry ---- */

void hearth_arrive(struct hearth_cache *cache, struct hearth_record *record, uint32_t hits, bool remote) {
    struct orphan *orphan = sensible(cache, record) ? calloc(1, sizeof *orphan) : NULL;
    if (!orphan) {
        hearth_record_destroy(record);
        return;
    }
    orphan->record = record;
    orphan->hits = hits;
    orphan->remote = remote;
    work_off(cache, orphan);
}

void hearth_arrive_behind(struct hearth_cache *cache, const struct hearth_page *page) {
    struct orphan *work = NULL;
    wake_behind(cache, page, &work);
    work_off(cache, work);
}

void hearth_arrive_forget(struct hearth_cache *cache, struct hearth_digest base, int32_t base_pos,
                          const hearth_token *tokens, int32_t from, int32_t to) {
    for (struct hearth_link *link = hearth_table_find(&cache->orphans, base), *next; link; link = next) {
        struct orphan *orphan = (struct orphan *)link;
        const struct hearth_record *record = orphan->record;
        size_t n = hearth_record_tokens(record);
        next = hearth_table_next(link);
        if (record->base_pos != base_pos || record->p0 < from || record->p1 <= from || record->p1 > to ||
            hearth_tokens_common(record->tokens, n, tokens + base_pos, n) < n) {
            continue;
        }
        hearth_copy_remove_name(cache, record->name, record->kind);
        hearth_table_remove(&cache->orphans, link);
        orphan_destroy(orphan);
    }
}

/* ---- roots ---- */

struct hearth_digest hearth_cache_root_digest(const struct hearth_cache *cache, struct hearth_digest salt) {
    struct hearth_digest key = cache->backing ? cache->backing->key : (struct hearth_digest){0};
    return hearth_record_root(cache->engine->caps.fingerprint, key, salt);
}

struct hearth_page *hearth_cache_root(struct hearth_cache *cache, struct hearth_digest salt, bool create) {
    struct hearth_digest digest = hearth_cache_root_digest(cache, salt);
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

/* ---- life ---- */

void hearth_arrive_finish(struct hearth_cache *cache) {
    struct hearth_link *link;
    for (size_t at = 0; (link = hearth_table_pop(&cache->orphans, &at)) != NULL;) {
        orphan_destroy((struct orphan *)link);
    }
    hearth_table_finish(&cache->orphans);
    hearth_path_finish(&cache->arrival);
}

bool hearth_copies_take_note(struct hearth_cache *cache, struct hearth_digest base, struct hearth_table *awaited,
                             const struct hearth_backing_event *event, bool wanted, bool *read) {
    *read = event->type == HEARTH_BACKING_READ && hearth_table_take_name(awaited, event->name);
    if (event->type != HEARTH_BACKING_FOUND || !hearth_digest_equal(event->record->base, base)) {
        return *read;
    }
    if (wanted && hearth_table_add_name(awaited, event->name) &&
        !cache->backing->ops->get(cache->backing, event->name)) {
        (void)hearth_table_take_name(awaited, event->name);
    }
    return true;
}
