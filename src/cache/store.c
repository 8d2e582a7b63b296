/* What is stored: bytes, budgets, eviction. Pages and snapshots have a pool each, with a budget and a heap of victims,
 * the lowest value first (cache/policy.h). Where a model needs both and the split was not given, the border between the
 * budgets moves: the pool that needs room takes what the other one does not use, or evicts there what is worth less.
 *
 *   1. A pool is within its budget after every public call.
 *   2. A page with children is no victim: what is below it would be useless without it.
 *   3. An item that is pinned, or on its way to the backing tier, is no victim.
 *   4. Of an item with a copy in the backing tier only the blob is evicted: the page stays in the tree with its tokens,
 *      whatever hangs on it, and is read when a prompt needs it. Rule 2 does not hold for it.
 *   5. A leased item is a victim only when the pool has no other. Leases of more than half of a pool end early, the
 *      earliest first; of those that end together the deepest page first and the deepest snapshot last, so that what
 *      remains of a path can be used.
 *   6. On classes that need snapshots a leaf behind the last snapshot is useless and goes with it.
 *
 * Example: a path has pages A - B - C, and C has a copy. C's blob may go (4), A and B may not (2); once C itself is
 * gone, B may.
 *
 * Invariants: an item is in the heap of victims exactly when it may go and has no lease; a pool's used_bytes is the sum
 * over its items. */
#include "cache/store.h"

#include "base/assert.h"
#include "cache/backing.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#define WALK_PAGES 256 /* pages that a search for a snapshot walks over */
#define CHOOSE_OF 256  /* talks that are compared at a choice; beyond, their last known worth is used */
#define REVALUED 16    /* of so many talks, those valued again at each choice, in turn … */
#define LEAST_TRIES 8  /* … and of the least valuable ones: until one does not rise, at most so many */
#define CHOOSE_FOR 16  /* victims of the chosen talk until the next choice … */
#define MANY_FOR 64    /* … among very many talks */

static bool has_pages(const struct hearth_cache *cache) {
    return hearth_caps_has_pages(&cache->engine->caps);
}

static struct hearth_cache_pool *pool_of(struct hearth_cache *cache, const struct hearth_cache_item *item) {
    return item->is_snapshot ? &cache->snapshots : &cache->pages;
}

static size_t blob_bytes(const struct hearth_cache_item *item) {
    return item->blob ? hearth_blob_bytes(item->blob) : 0;
}

size_t hearth_cache_item_bytes(const struct hearth_cache_item *item) {
    if (item->is_snapshot) {
        return item->blob ? HEARTH_SNAPSHOT_NODE_BYTES + blob_bytes(item) : 0;
    }
    if (!item->blob && item->copy.state == HEARTH_COPY_THERE) {
        return 0;
    }
    return hearth_page_node_bytes(hearth_cache_item_page(item)->len) + blob_bytes(item);
}

bool hearth_cache_store_has_state(const struct hearth_cache *cache, const struct hearth_page *page) {
    return page->item.blob || page->item.copy.state == HEARTH_COPY_THERE || !has_pages(cache);
}

int32_t hearth_cache_store_usable(const struct hearth_cache *cache, const struct hearth_path *path) {
    for (size_t i = 0; i < path->n; i++) {
        if (!hearth_cache_store_has_state(cache, path->pages[i])) {
            return path->pages[i]->p0;
        }
    }
    return path->matched;
}

/* The node is the first member of the lease. */
static struct hearth_cache_item *item_of(struct hearth_heap_node *node) {
    return (struct hearth_cache_item *)((char *)node - offsetof(struct hearth_cache_item, lease));
}

/* ---- value ---- */

static struct hearth_policy_item known_of(const struct hearth_cache_item *item) {
    struct hearth_policy_item known = {.is_snapshot = item->is_snapshot,
                                       .reuse = -1,
                                       .hits = item->hits + 1,
                                       .bytes = hearth_cache_item_bytes(item),
                                       .used_us = item->used_us,
                                       .copied = item->copy.state == HEARTH_COPY_THERE,
                                       .remote = item->copy.remote};
    if (item->is_snapshot) {
        const struct hearth_snapshot *snapshot = hearth_cache_item_snapshot(item);
        known.kind = snapshot->kind;
        known.superseded = snapshot->superseded;
        known.saved_tokens = snapshot->saved_tokens;
        known.pos = snapshot->pos;
    } else {
        const struct hearth_page *page = hearth_cache_item_page(item);
        known.saved_tokens = page->len;
        known.pos = page->p0 + page->len;
    }
    return known;
}

/* The snapshot before this one on its path; NULL: there is none, or it is very far. `*from`: its position, or
 * where the search ended. */
static struct hearth_snapshot *before_of(const struct hearth_snapshot *snapshot, int32_t *from) {
    const struct hearth_page *page = snapshot->page;
    int32_t limit = snapshot->pos - 1;
    for (int pages = 0; page->parent && pages < WALK_PAGES; limit = page->p0, page = page->parent, pages++) {
        for (uint32_t k = page->snapshot_count; k-- > 0;) {
            if (page->snapshots[k]->pos <= limit) {
                *from = page->snapshots[k]->pos;
                return page->snapshots[k];
            }
        }
    }
    *from = page->p0;
    return NULL;
}

/* Whether the snapshot is on the path of its talk's last turn. */
static bool is_on_path(const struct hearth_cache *cache, const struct hearth_snapshot *snapshot) {
    return snapshot->turn == hearth_returns_talk(cache->returns, snapshot->item.talk)->turns;
}

/* The chance that the next turn resumes at the snapshot (or needs the piece of a window), as the path is now. A
 * snapshot that the last turn did not have on its path is not needed again. */
static double reuse_of(const struct hearth_cache *cache, const struct hearth_snapshot *snapshot) {
    const uint32_t talk = snapshot->item.talk;
    const int32_t window = cache->engine->caps.window_tokens, reach = snapshot->pos + window;
    if (!is_on_path(cache, snapshot)) {
        return 0;
    }
    return window == 0 ? hearth_returns_reuse(cache->returns, talk, snapshot->pos, snapshot->next)
                       : hearth_returns_reuse(cache->returns, talk, snapshot->p0 + 1,
                                              reach < hearth_returns_talk(cache->returns, talk)->end ? reach : 0);
}

static struct hearth_policy_item known_in_talk(const struct hearth_cache *cache, const struct hearth_cache_item *item) {
    struct hearth_policy_item known = known_of(item);
    if (item->is_snapshot && item->talk != HEARTH_TALK_NONE) {
        const struct hearth_snapshot *snapshot = hearth_cache_item_snapshot(item);
        int32_t from;
        (void)before_of(snapshot, &from);
        known.saved_tokens = snapshot->pos - from;
        known.reuse = reuse_of(cache, snapshot);
    }
    return known;
}

/* The rank of an item. Of a talk's snapshots the least valuable goes first; once it is gone, its neighbours are worth
 * more than they were ranked at (first_victim()). */
static double rank_of(struct hearth_cache *cache, const struct hearth_cache_item *item) {
    const struct hearth_policy_item known = known_in_talk(cache, item);
    return known.reuse >= 0 ? cache->policy->worth(&known, &cache->costs, 1)
                            : cache->policy->rank(&known, &cache->costs, pool_of(cache, item)->inflation);
}

/* A talk's items are as old as its last use. Where LRU decides, a page is as old as its own. */
static double worth_of(const struct hearth_cache *cache, const struct hearth_cache_item *item, int64_t now_us) {
    const struct hearth_policy_item known = known_in_talk(cache, item);
    const struct hearth_talk *talk = hearth_returns_talk(cache->returns, item->talk);
    const bool own =
        item->talk == HEARTH_TALK_NONE || (!item->is_snapshot && !hearth_returns_learns_well(cache->returns));
    const int64_t used_us = own ? item->used_us : talk->used_us;
    return cache->policy->worth(&known, &cache->costs,
                                hearth_returns_rate(cache->returns, item->talk, now_us - used_us));
}

bool hearth_cache_store_may_go(const struct hearth_cache *cache, const struct hearth_cache_item *item) {
    if (item->pins > 0 || item->copy.state == HEARTH_COPY_WRITING) {
        return false;
    }
    if (item->is_snapshot) {
        return item->blob != NULL;
    }
    const struct hearth_page *page = hearth_cache_item_page(item);
    if (!page->parent) {
        return false;
    }
    return item->copy.state == HEARTH_COPY_THERE ? item->blob && has_pages(cache) : page->child_count == 0;
}

/* Puts the item into the heap of victims, or takes it out, as its state demands, and values it again. A leased item is
 * in the other heap. Out of memory, the item merely stays longer. */
static void update_victim(struct hearth_cache *cache, struct hearth_cache_item *item) {
    enum hearth_talk_heap victims = pool_of(cache, item)->victims;
    struct hearth_heap_node *node = &item->lease.heap;
    if (item->lease.until_us > 0) {
        return;
    }
    if (hearth_cache_store_may_go(cache, item)) {
        hearth_returns_offer(cache->returns, item->talk, victims, node, rank_of(cache, item));
    } else {
        hearth_returns_withdraw(cache->returns, item->talk, victims, node);
    }
}

/* Makes the item belong to a talk. */
static void join(struct hearth_cache *cache, struct hearth_cache_item *item, uint32_t talk) {
    if (item->talk == talk) {
        return;
    }
    if (item->lease.until_us == 0) {
        hearth_returns_withdraw(cache->returns, item->talk, pool_of(cache, item)->victims, &item->lease.heap);
    }
    if (talk != HEARTH_TALK_NONE) {
        hearth_returns_join(cache->returns, talk);
    }
    if (item->talk != HEARTH_TALK_NONE) {
        hearth_returns_leave(cache->returns, item->talk);
    }
    item->talk = talk;
}

/* ---- leases ---- */

static struct hearth_cache_item *first_leased(const struct hearth_cache_pool *pool) {
    return item_of(hearth_heap_top(&pool->leases));
}

/* The order in which leases end: of those that end together the deepest page first, and the deepest snapshot last. */
static double end_us(const struct hearth_cache_item *item, int64_t until_us) {
    const struct hearth_page *page = hearth_cache_item_page(item);
    int32_t later_us = item->is_snapshot ? hearth_cache_item_snapshot(item)->pos : -(page->p0 + page->len);
    return (double)(until_us + later_us);
}

/* Makes, moves or (0) ends the item's lease. */
static void set_lease(struct hearth_cache *cache, struct hearth_cache_item *item, int64_t until_us) {
    struct hearth_cache_pool *pool = pool_of(cache, item);
    struct hearth_lease *lease = &item->lease;
    bool had = lease->until_us > 0;
    if (had) {
        pool->leased_bytes -= hearth_cache_item_bytes(item);
    }
    if (had && until_us > 0) {
        hearth_heap_update(&pool->leases, &lease->heap, end_us(item, until_us));
    } else if (had || until_us > 0) {
        if (had) {
            hearth_heap_remove(&pool->leases, &lease->heap);
        } else {
            hearth_returns_withdraw(cache->returns, item->talk, pool->victims, &lease->heap);
        }
    }
    if (!had && until_us > 0 && !hearth_heap_push(&pool->leases, &lease->heap, end_us(item, until_us))) {
        until_us = 0;
    }
    lease->until_us = until_us;
    lease->durable = lease->durable && until_us > 0;
    if (until_us > 0) {
        pool->leased_bytes += hearth_cache_item_bytes(item);
    }
    update_victim(cache, item);
}

static void end_leases(struct hearth_cache *cache, struct hearth_cache_pool *pool) {
    int64_t now_us = pool->leases.n > 0 ? cache->engine->ops->now_us(cache->engine) : 0;
    while (pool->leases.n > 0 && first_leased(pool)->lease.until_us <= now_us) {
        set_lease(cache, first_leased(pool), 0);
    }
    while (pool->leased_bytes > pool->budget_bytes / 2) {
        set_lease(cache, first_leased(pool), 0);
    }
}

static void lease_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot, int64_t until_us,
                           bool durable) {
    struct hearth_lease *lease = &snapshot->item.lease;
    if (lease->until_us < until_us) {
        set_lease(cache, &snapshot->item, until_us);
    }
    lease->durable = lease->until_us > 0 && (durable || lease->durable);
}

void hearth_cache_store_lease(struct hearth_cache *cache, const struct hearth_path *path, int32_t to, int64_t until_us,
                              int snapshots, bool durable) {
    for (size_t i = 0; i < path->n && path->pages[i]->p0 < to; i++) {
        if (path->pages[i]->item.lease.until_us < until_us) {
            set_lease(cache, &path->pages[i]->item, until_us);
        }
    }
    const int32_t window = cache->engine->caps.window_tokens;
    for (int32_t at = to; snapshots > 0 && window == 0; snapshots--) {
        struct hearth_snapshot *snapshot = hearth_path_snapshot(path, at);
        if (!snapshot) {
            break;
        }
        lease_snapshot(cache, snapshot, until_us, durable);
        at = snapshot->pos - 1;
    }
    for (size_t i = 0; i < path->n && window > 0; i++) {
        for (uint32_t k = 0; k < path->pages[i]->snapshot_count; k++) {
            struct hearth_snapshot *piece = path->pages[i]->snapshots[k];
            if (piece->p0 < to && piece->pos > to - window * snapshots) {
                lease_snapshot(cache, piece, until_us, durable);
            }
        }
    }
    end_leases(cache, &cache->pages);
    end_leases(cache, &cache->snapshots);
}

void hearth_cache_store_lease_live(struct hearth_cache *cache, const struct hearth_path *path,
                                   const struct hearth_live *live) {
    if (live->pin_count == 0 && live->expected_until_us == 0) {
        return;
    }
    int64_t now_us = cache->engine->ops->now_us(cache->engine);
    for (int i = 0; i < live->pin_count; i++) {
        hearth_cache_store_lease(cache, path, live->pins[i].position, now_us + live->pins[i].ttl_us, 1, true);
    }
    if (live->expected_until_us > now_us) {
        hearth_cache_store_lease(cache, path, path->matched, live->expected_until_us, 2, false);
    }
}

/* ---- the observer ---- */

static void observe_removal(struct hearth_cache *cache, struct hearth_page *page) {
    if (page->observed) {
        page->observed = false;
        cache->observer->removed(cache->observer->user, page->end.key);
    }
}

/* Tells the observer if it has changed whether the page ends a block that can be restored. */
static void observe(struct hearth_cache *cache, struct hearth_page *page) {
    const int32_t end = page->p0 + page->len;
    if (!page->parent || end % cache->tree.page_tokens != 0) {
        return;
    }
    const bool held = !has_pages(cache) || page->item.blob || page->item.copy.state != HEARTH_COPY_NONE;
    if (!held) {
        observe_removal(cache, page);
    } else if (!page->observed) {
        page->observed = true;
        cache->observer->stored(cache->observer->user, page->end.key, hearth_tree_base(&cache->tree, page),
                                end == cache->tree.page_tokens, hearth_tree_block(&cache->tree, page, end));
    }
}

/* ---- changes ---- */

void hearth_cache_store_changed(struct hearth_cache *cache, struct hearth_cache_item *item, size_t before) {
    struct hearth_cache_pool *pool = pool_of(cache, item);
    size_t after = hearth_cache_item_bytes(item);
    pool->used_bytes += after - before;
    hearth_share_count(&cache->shares, item->owner, before, after);
    if (item->lease.until_us > 0) {
        pool->leased_bytes += after - before;
        end_leases(cache, pool);
    }
    update_victim(cache, item);
    if (cache->observer && !item->is_snapshot) {
        observe(cache, hearth_cache_item_page(item));
    }
}

void hearth_cache_store_pin(struct hearth_cache *cache, struct hearth_cache_item *item) {
    item->pins++;
    update_victim(cache, item);
}

void hearth_cache_store_unpin(struct hearth_cache *cache, struct hearth_cache_item *item) {
    HEARTH_ASSERT(item->pins > 0);
    item->pins--;
    update_victim(cache, item);
}

/* A turn of the talk has the snapshot on its path, and the path's next snapshot at `next`. */
static void snapshot_used(struct hearth_cache *cache, struct hearth_snapshot *snapshot, uint32_t talk, int32_t next) {
    snapshot->turn = hearth_returns_talk(cache->returns, talk)->turns;
    snapshot->next = next;
    join(cache, &snapshot->item, talk);
    update_victim(cache, &snapshot->item);
}

/* Ranks again the snapshots that the last turn of a talk has left behind. They only move towards the top, so that each
 * is met once. */
static void rank_left(struct hearth_cache *cache, uint32_t talk) {
    const struct hearth_heap *heap = &hearth_returns_talk(cache->returns, talk)->victims[HEARTH_TALK_SNAPSHOTS];
    for (size_t i = 0; talk != HEARTH_TALK_NONE && i < heap->n; i++) {
        struct hearth_cache_item *item = item_of(heap->v[i].node);
        if (!is_on_path(cache, hearth_cache_item_snapshot(item))) {
            update_victim(cache, item);
        }
    }
}

static bool are_many(const struct hearth_cache *cache, const struct hearth_cache_pool *pool) {
    return cache->returns->offering[pool->victims].n > CHOOSE_OF && cache->shares.n == 1;
}

/* After a turn of a talk the next victim is chosen again; with very many talks only if this one was chosen. */
static void choose_again(const struct hearth_cache *cache, struct hearth_cache_pool *pool, uint32_t talk) {
    if (pool->chosen == talk || !are_many(cache, pool)) {
        pool->chosen_left = 0;
    }
}

void hearth_cache_store_turn(struct hearth_cache *cache, const struct hearth_path *path, uint32_t talk) {
    const int64_t now_us = cache->engine->ops->now_us(cache->engine);
    int32_t next = 0;
    for (size_t i = path->n; i-- > 0;) {
        struct hearth_page *page = path->pages[i];
        join(cache, &page->item, talk);
        page->item.used_us = now_us;
        update_victim(cache, &page->item);
        for (uint32_t k = page->snapshot_count; k-- > 0;) {
            if (page->snapshots[k]->pos <= hearth_path_end(path, i)) {
                snapshot_used(cache, page->snapshots[k], talk, next);
                next = page->snapshots[k]->pos;
            }
        }
    }
    rank_left(cache, talk);
    choose_again(cache, &cache->pages, talk);
    choose_again(cache, &cache->snapshots, talk);
}

void hearth_cache_store_hit(struct hearth_cache *cache, struct hearth_cache_item *item) {
    item->hits++;
    item->used = cache->tree.now;
    item->used_us = cache->engine->ops->now_us(cache->engine);
    update_victim(cache, item);
}

/* ---- removal ---- */

/* Takes the item out of its pool, its heap and the tables, and frees its blob. */
static void leave_pool(struct hearth_cache *cache, struct hearth_cache_item *item) {
    struct hearth_cache_pool *pool = pool_of(cache, item);
    set_lease(cache, item, 0);
    hearth_returns_withdraw(cache->returns, item->talk, pool->victims, &item->lease.heap);
    join(cache, item, HEARTH_TALK_NONE);
    pool->used_bytes -= hearth_cache_item_bytes(item);
    hearth_share_count(&cache->shares, item->owner, hearth_cache_item_bytes(item), 0);
    hearth_copy_forget(cache, item);
    hearth_ram_drop(cache->ram, item->blob);
}

static void free_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    int32_t from;
    struct hearth_snapshot *before = before_of(snapshot, &from);
    if (before && before->item.talk == snapshot->item.talk && before->turn == snapshot->turn) {
        before->next = snapshot->next;
    }
    hearth_ghost_leave_snapshot(snapshot->page, snapshot->pos, snapshot->item.used, cache->tree.now,
                                hearth_snapshot_state_bytes(&cache->engine->caps, snapshot));
    hearth_duplicate_add_copy(cache, &snapshot->item);
    leave_pool(cache, &snapshot->item);
    hearth_tree_remove_snapshot(&cache->tree, snapshot);
}

/* Frees a leaf. `room`: it is evicted to make room, and leaves a ghost. */
static void free_leaf(struct hearth_cache *cache, struct hearth_page *page, bool room) {
    size_t bytes = room ? hearth_page_node_bytes(page->len) : 0;
    bytes += room && has_pages(cache) ? (size_t)page->len * cache->engine->caps.page_bytes_per_token : 0;
    while (page->snapshot_count > 0) {
        cache->snapshots.evicted++;
        free_snapshot(cache, page->snapshots[page->snapshot_count - 1]);
    }
    struct hearth_page *parent = page->parent;
    cache->pages.evicted++;
    if (page->old) {
        hearth_duplicate_add_old(cache, page);
    }
    leave_pool(cache, &page->item);
    observe_removal(cache, page);
    hearth_tree_remove(&cache->tree, page, bytes);
    update_victim(cache, &parent->item);
}

/* Whether the page has no children and nothing else that keeps it. */
static bool is_bare(const struct hearth_page *page) {
    return page->parent && page->child_count == 0 && page->item.pins == 0 && page->snapshot_count == 0 &&
           page->item.copy.state == HEARTH_COPY_NONE;
}

void hearth_cache_store_forget_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    const struct hearth_page *page = snapshot->page;
    const int32_t pos = snapshot->pos;
    hearth_copy_remove(cache, &snapshot->item);
    free_snapshot(cache, snapshot);
    hearth_ghost_forget_snapshot(page, pos);
}

void hearth_cache_store_forget_page(struct hearth_cache *cache, struct hearth_page *page) {
    struct hearth_page *parent = page->parent;
    int32_t offset = page->p0 - parent->p0;
    hearth_token first = page->first;
    while (page->snapshot_count > 0) {
        hearth_cache_store_forget_snapshot(cache, page->snapshots[page->snapshot_count - 1]);
    }
    size_t before = hearth_cache_item_bytes(&page->item);
    hearth_copy_remove(cache, &page->item);
    hearth_cache_store_changed(cache, &page->item, before);
    if (page->old) {
        hearth_copy_remove_name(cache, page->old->name, HEARTH_RECORD_PAGE);
    }
    free(page->old);
    page->old = NULL;
    free_leaf(cache, page, false);
    hearth_ghost_forget(parent, offset, first);
}

void hearth_cache_store_prune(struct hearth_cache *cache, struct hearth_page *page) {
    if (!hearth_caps_needs_snapshot(&cache->engine->caps)) {
        return;
    }
    while (is_bare(page)) {
        struct hearth_page *parent = page->parent;
        free_leaf(cache, page, false);
        page = parent;
    }
}

void hearth_cache_store_drop_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    struct hearth_page *page = snapshot->page;
    free_snapshot(cache, snapshot);
    hearth_cache_store_prune(cache, page);
}

static void drop_blob(struct hearth_cache *cache, struct hearth_cache_item *item) {
    size_t before = hearth_cache_item_bytes(item);
    if (item->copy.state == HEARTH_COPY_WRITING) {
        hearth_copy_remove(cache, item);
    }
    hearth_ram_drop(cache->ram, item->blob);
    item->blob = NULL;
    item->fetched = false;
    hearth_cache_store_changed(cache, item, before);
}

void hearth_cache_store_drop_state(struct hearth_cache *cache, struct hearth_page *page) {
    if (page->item.blob) {
        drop_blob(cache, &page->item);
    }
    struct hearth_page *left = page;
    while (!hearth_cache_store_has_state(cache, left) && is_bare(left)) {
        struct hearth_page *parent = left->parent;
        free_leaf(cache, left, true);
        left = parent;
    }
    if (left != page) {
        hearth_cache_store_prune(cache, left);
    }
}

/* ---- room ---- */

/* The first victim of a talk. */
static struct hearth_cache_item *first_victim(struct hearth_cache *cache, uint32_t talk,
                                              enum hearth_talk_heap victims) {
    struct hearth_heap *heap = &hearth_returns_talk(cache->returns, talk)->victims[victims];
    struct hearth_heap_node *first = hearth_heap_top(heap);
    double rank;
    while (first && victims == HEARTH_TALK_SNAPSHOTS && talk != HEARTH_TALK_NONE &&
           (rank = rank_of(cache, item_of(first))) > heap->v[0].priority) {
        hearth_heap_update(heap, first, rank);
        first = hearth_heap_top(heap);
    }
    return first ? item_of(first) : NULL;
}

static bool may_take(const struct hearth_cache *cache, const struct hearth_cache_item *item) {
    return hearth_share_may_take(&cache->shares, item->owner, hearth_cache_item_bytes(item));
}

/* The talk's first victim with the least worth: of all talks, or of some if there are very many. State that is due to
 * the owner for whom room is made goes first (tier/share.h). NULL: that owner may take none of it. */
static struct hearth_cache_item *choose(struct hearth_cache *cache, struct hearth_cache_pool *pool) {
    const struct hearth_talk_list *list = &cache->returns->offering[pool->victims];
    const int64_t now_us = cache->engine->ops->now_us(cache->engine);
    struct hearth_cache_item *chosen = NULL;
    bool due = false;
    int64_t oldest_us = 0;
    double least = 0;
    for (size_t i = 0, compared = 0; i < list->n && compared < CHOOSE_OF; i++) {
        uint32_t talk = list->talks[pool->choose_from++ % list->n];
        struct hearth_cache_item *first = first_victim(cache, talk, pool->victims);
        if (!may_take(cache, first)) {
            continue;
        }
        const bool is_due = hearth_share_is_due(&cache->shares, first->owner);
        double worth = worth_of(cache, first, now_us);
        compared++;
        const int64_t used_us = hearth_returns_talk(cache->returns, talk)->used_us;
        const bool less = worth < least || (worth <= least && used_us < oldest_us);
        if (!chosen || (is_due && !due) || (is_due == due && less)) {
            oldest_us = used_us;
            chosen = first;
            due = is_due;
            least = worth;
        }
    }
    pool->chosen = chosen ? chosen->talk : HEARTH_TALK_NONE;
    return chosen;
}

/* Values a talk's next victim now. Victims that are worth nothing go in the order of their last use. */
static struct hearth_cache_item *value(struct hearth_cache *cache, const struct hearth_cache_pool *pool, uint32_t talk,
                                       int64_t now_us) {
    struct hearth_cache_item *first = first_victim(cache, talk, pool->victims);
    const double worth = worth_of(cache, first, now_us);
    const double unused = (double)(hearth_returns_talk(cache->returns, talk)->used_us - INT64_MAX / 2);
    hearth_returns_valued(cache->returns, talk, pool->victims, worth > 0 ? worth : unused);
    return first;
}

/* Chooses among very many talks: the one with the first victim that was worth the least when it was last valued. Worth
 * changes little with age until a talk is valued again, and a talk that has had a turn is valued before it is chosen.
 * All are valued when the learnt order begins to decide. */
static struct hearth_cache_item *choose_of_many(struct hearth_cache *cache, struct hearth_cache_pool *pool) {
    const struct hearth_talk_list *list = &cache->returns->offering[pool->victims];
    const int64_t now_us = cache->engine->ops->now_us(cache->engine);
    for (size_t i = 0; i < (pool->valued ? REVALUED : list->n); i++) {
        (void)value(cache, pool, list->talks[pool->choose_from++ % list->n], now_us);
    }
    const struct hearth_talk *least = NULL;
    struct hearth_cache_item *chosen = NULL;
    for (int i = 0; i < LEAST_TRIES && hearth_returns_least(cache->returns, pool->victims) != least; i++) {
        least = hearth_returns_least(cache->returns, pool->victims);
        chosen = value(cache, pool, item_of(hearth_heap_top(&least->victims[pool->victims]))->talk, now_us);
    }
    pool->valued = true;
    pool->chosen = chosen->talk;
    return chosen;
}

/* The next victim without a lease; NULL: none. Victims of one talk go a few at a time. */
static struct hearth_cache_item *candidate(struct hearth_cache *cache, struct hearth_cache_pool *pool) {
    if (!cache->policy->worth || cache->returns->victims[pool->victims] == 0) {
        return first_victim(cache, HEARTH_TALK_NONE, pool->victims);
    }
    if (pool->victims == HEARTH_TALK_PAGES && cache->shares.n == 1 && !hearth_returns_learns_well(cache->returns)) {
        const struct hearth_talk *least = hearth_returns_least(cache->returns, pool->victims);
        return item_of(hearth_heap_top(&least->victims[pool->victims]));
    }
    struct hearth_cache_item *victim = pool->chosen_left > 0 ? first_victim(cache, pool->chosen, pool->victims) : NULL;
    if (!victim || !may_take(cache, victim)) {
        const bool many = are_many(cache, pool);
        pool->valued = pool->valued && many;
        victim = many ? choose_of_many(cache, pool) : choose(cache, pool);
        pool->chosen_left = pool->victims != HEARTH_TALK_PAGES ? 1 : many ? MANY_FOR : CHOOSE_FOR;
    }
    return victim;
}

struct hearth_cache_item *hearth_cache_store_victim(struct hearth_cache *cache, struct hearth_cache_pool *pool) {
    end_leases(cache, pool);
    while (cache->returns->victims[pool->victims] == 0 && pool->leases.n > 0) {
        set_lease(cache, first_leased(pool), 0);
    }
    return candidate(cache, pool);
}

/* Whether the item is worth less than the page for which room is made. */
static bool gives_way(const struct hearth_cache *cache, const struct hearth_cache_item *item) {
    return (item->is_snapshot && !cache->moves) || cache->newcomer == INFINITY ||
           hearth_share_is_due(&cache->shares, item->owner) ||
           worth_of(cache, item, cache->engine->ops->now_us(cache->engine)) < cache->newcomer;
}

/* Evicts one item. False: none may go. */
static bool evict(struct hearth_cache *cache, struct hearth_cache_pool *pool) {
    struct hearth_cache_item *item = hearth_cache_store_victim(cache, pool);
    if (!item || !gives_way(cache, item)) {
        return false;
    }
    pool->inflation = hearth_returns_talk(cache->returns, item->talk)->victims[pool->victims].v[0].priority;
    pool->chosen_left -= pool->chosen_left > 0;
    if (item->copy.state == HEARTH_COPY_THERE) {
        pool->evicted++;
        drop_blob(cache, item);
    } else if (item->is_snapshot) {
        pool->evicted++;
        hearth_cache_store_drop_snapshot(cache, hearth_cache_item_snapshot(item));
    } else {
        struct hearth_page *page = hearth_cache_item_page(item), *parent = page->parent;
        free_leaf(cache, page, true);
        hearth_cache_store_prune(cache, parent);
    }
    return true;
}

/* ---- the border between the budgets ---- */

/* Whether the other pool's next victim is worth less than this pool's. */
static bool is_worth_less(struct hearth_cache *cache, struct hearth_cache_pool *other, struct hearth_cache_pool *pool) {
    const struct hearth_cache_item *theirs = candidate(cache, other), *ours = candidate(cache, pool);
    if (!theirs || !ours) {
        return theirs != NULL;
    }
    if (!cache->policy->worth) {
        return theirs->used_us < ours->used_us;
    }
    const int64_t now_us = cache->engine->ops->now_us(cache->engine);
    return worth_of(cache, theirs, now_us) < worth_of(cache, ours, now_us);
}

/* Moves the border so that the pool gets room for `bytes` more: room that the other pool does not use, or uses for
 * state that is worth less than this pool's victims. Room that leases need stays with the other pool. */
static void move_border(struct hearth_cache *cache, struct hearth_cache_pool *pool, size_t bytes) {
    struct hearth_cache_pool *other = pool == &cache->pages ? &cache->snapshots : &cache->pages;
    const size_t need = pool->used_bytes + bytes;
    while (cache->moves && need > pool->budget_bytes) {
        const size_t kept = other->used_bytes > 2 * other->leased_bytes ? other->used_bytes : 2 * other->leased_bytes;
        const size_t missing = need - pool->budget_bytes;
        size_t left = other->budget_bytes > kept ? other->budget_bytes - kept : 0;
        left = left < missing ? left : missing;
        other->budget_bytes -= left;
        pool->budget_bytes += left;
        if (left < missing && (!is_worth_less(cache, other, pool) || other->used_bytes < 2 * other->leased_bytes ||
                               !evict(cache, other))) {
            return;
        }
    }
}

static bool reserve(struct hearth_cache *cache, struct hearth_cache_pool *pool, size_t bytes) {
    move_border(cache, pool, bytes);
    if (bytes > pool->budget_bytes) {
        return false;
    }
    while (pool->used_bytes + bytes > pool->budget_bytes) {
        if (!evict(cache, pool)) {
            return false;
        }
    }
    return true;
}

bool hearth_cache_store_reserve_page(struct hearth_cache *cache, size_t bytes, size_t path_bytes) {
    const struct hearth_cache_pool *pool = &cache->pages;
    bool fits = pool->used_bytes + bytes <= pool->budget_bytes;
    if (!fits && !cache->backing && !cache->policy->worth && path_bytes + bytes > pool->budget_bytes / 4 * 3) {
        return false;
    }
    return reserve(cache, &cache->pages, bytes);
}

bool hearth_cache_store_reserve_snapshot(struct hearth_cache *cache, size_t bytes) {
    return reserve(cache, &cache->snapshots, bytes);
}

void hearth_cache_store_shrink(struct hearth_cache *cache) {
    end_leases(cache, &cache->snapshots);
    end_leases(cache, &cache->pages);
    while (cache->snapshots.used_bytes > cache->snapshots.budget_bytes && evict(cache, &cache->snapshots)) {
    }
    while (cache->pages.used_bytes > cache->pages.budget_bytes && evict(cache, &cache->pages)) {
    }
}

/* ---- arrival and use ---- */

void hearth_cache_store_page_added(struct hearth_cache *cache, struct hearth_page *page) {
    page->item.used_us = cache->engine->ops->now_us(cache->engine);
    update_victim(cache, &page->parent->item);
    hearth_cache_store_changed(cache, &page->item, 0);
}

bool hearth_cache_store_snapshot_added(struct hearth_cache *cache, struct hearth_snapshot *snapshot) {
    cache->stored_snapshots++;
    snapshot->item.used_us = cache->engine->ops->now_us(cache->engine);
    hearth_cache_store_changed(cache, &snapshot->item, 0);
    if (snapshot->item.lease.heap.index != 0) {
        return true;
    }
    hearth_cache_store_drop_snapshot(cache, snapshot); /* a snapshot that could never be evicted must not be kept */
    return false;
}
