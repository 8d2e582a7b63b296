/* The owners of stored state. An item belongs to the owner of its root, which becomes known with the owner's first
 * request: of state that was found on disk, not before. */
#include "cache/backing.h"

static void give(struct hearth_cache *cache, struct hearth_cache_item *item, uint16_t owner) {
    const size_t bytes = hearth_cache_item_bytes(item);
    hearth_share_count(&cache->shares, item->owner, bytes, 0);
    item->owner = owner;
    hearth_share_count(&cache->shares, owner, 0, bytes);
}

void hearth_cache_own(struct hearth_cache *cache, struct hearth_digest salt, uint64_t id) {
    const uint16_t owner = hearth_share_find(&cache->shares, id);
    struct hearth_page *root = hearth_cache_root(cache, salt, true);
    hearth_share_ask(&cache->shares, owner, cache->pages.budget_bytes + cache->snapshots.budget_bytes,
                     cache->engine->ops->now_us(cache->engine));
    if (!root || root->item.owner == owner) {
        return;
    }
    root->item.owner = owner;
    for (const struct hearth_page *at = hearth_tree_next(root); at; at = hearth_tree_next(at)) {
        struct hearth_page *page = (struct hearth_page *)(uintptr_t)at; /* the walk changes nothing */
        give(cache, &page->item, owner);
        for (uint32_t i = 0; i < page->snapshot_count; i++) {
            give(cache, &page->snapshots[i]->item, owner);
        }
    }
}
