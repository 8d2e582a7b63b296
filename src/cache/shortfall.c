/* How much larger a budget would have kept the state that a prompt has lost.
 *
 * That state was stored when it was last used. Ghosts and pages without state show what was evicted since then and not
 * stored again. A budget that is larger by all of that would have kept it under any policy. So the answer is
 * sufficient, but not minimal: it may include state that no request needs again.
 *
 * Takes time linear in what is stored, but only for prompts that have lost state, which take far longer to compute. */
#include "cache/ghost.h"
#include "cache/shortfall.h"
#include "cache/store.h"

struct lost_bytes {
    size_t pages, snapshots;
    size_t uncopied; /* bytes in RAM without a copy in the backing tier */
};

/* Adds up what was evicted since a time. */
static struct lost_bytes lost_since(const struct hearth_cache *cache, uint64_t since) {
    const size_t token_bytes =
        hearth_caps_has_pages(&cache->engine->caps) ? cache->engine->caps.page_bytes_per_token : 0;
    struct lost_bytes lost = {0};
    for (uint32_t r = 0; r < cache->tree.root_count; r++) {
        for (const struct hearth_page *page = cache->tree.roots[r]; page; page = hearth_tree_next(page)) {
            const struct hearth_ghosts *ghosts = page->ghosts;
            if (page->item.copy.state == HEARTH_COPY_NONE) {
                lost.uncopied += (size_t)page->len * token_bytes;
            }
            if (page->parent && !hearth_cache_store_has_state(cache, page)) {
                lost.pages += (size_t)page->len * token_bytes;
            }
            for (uint32_t i = 0; ghosts && i < ghosts->count && i < ghosts->cap; i++) {
                const struct hearth_ghost *ghost = &ghosts->v[i];
                lost.pages += ghost->offset >= 0 && ghost->gone >= since ? ghost->page_bytes : 0;
                lost.snapshots += ghost->offset >= 0 && ghost->gone >= since ? ghost->snapshot_bytes : 0;
            }
            lost.snapshots += ghosts && ghosts->snapshot.gone >= since ? ghosts->snapshot.bytes : 0;
        }
    }
    return lost;
}

/* The whole budget, as it is split (cache.c: split_budget()), that has room for the lost bytes of either kind. */
static uint64_t whole_budget(const struct hearth_cache *cache, struct lost_bytes lost) {
    const uint64_t pages = cache->pages.budget_bytes, snapshots = cache->snapshots.budget_bytes;
    const uint64_t more_pages = lost.pages, more_snapshots = lost.snapshots;
    if (snapshots == 0 || hearth_caps_has_pages(&cache->engine->caps)) {
        return pages + snapshots + more_pages + more_snapshots;
    }
    return pages + snapshots +
           (16 * more_pages > more_snapshots / 15 * 16 ? 16 * more_pages : more_snapshots / 15 * 16);
}

void hearth_cache_shortfall(const struct hearth_cache *cache, const struct hearth_plan *plan,
                            const struct hearth_cache_prompt *prompt, struct hearth_shortfall *missing) {
    const struct hearth_path *path = &plan->path;
    const struct hearth_page *last = path->n > 0 ? path->pages[path->n - 1] : path->root;
    const int32_t usable = hearth_cache_store_usable(cache, path);
    uint64_t since = UINT64_MAX;
    *missing = (struct hearth_shortfall){.budget = cache->pages.budget_bytes + cache->snapshots.budget_bytes};
    if (plan->reason != HEARTH_REASON_EVICTED || !last) {
        return;
    }
    const struct hearth_ghost *ghost = hearth_ghost_find(last, path->matched - last->p0, prompt->tokens + path->matched,
                                                         prompt->n - (size_t)path->matched);
    missing->end = path->matched;
    if (ghost) {
        missing->end = ghost->end;
        since = ghost->used;
    }
    for (size_t i = 0; i < path->n; i++) {
        const struct hearth_page *page = path->pages[i];
        const struct hearth_ghosts *ghosts = page->ghosts;
        if (page->p0 >= usable && !hearth_cache_store_has_state(cache, page) && page->item.used < since) {
            since = page->item.used;
        }
        if (ghosts && ghosts->snapshot.pos > plan->resume && ghosts->snapshot.used < since) {
            since = ghosts->snapshot.used;
        }
    }
    const struct lost_bytes lost = lost_since(cache, since);
    missing->disk = cache->backing ? (lost.pages + lost.snapshots + lost.uncopied) / 5 * 6 : 0; /* files are larger */
    missing->ram = whole_budget(cache, lost);
}
