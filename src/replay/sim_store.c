/* The shared store of a replay.
 *
 * A box and the store have a line each way, for reads and for writes. A box's is a time from which on it is free:
 * transfers of a box follow each other there, and share the store's with those of other boxes. An answer is an event in
 * a heap of its box, which the box sees when its clock has come there.
 *
 *     put    WRITTEN at the end of the transfer; the item can be found from then on
 *     get    READ at the end of the transfer
 *     seek   FOUND for all that is there, then SOUGHT, a round trip later
 *
 * As with Redis, the store does not report what it evicts: a box learns that when it seeks or reads the item. So each
 * item counts the boxes that know of it, and an evicted item stays as a ghost while there are such boxes. (When there
 * are very many ghosts, the oldest are reported.)
 *
 * A seek for a prompt's block finds only items that the prompt can use: it must have all tokens of the block up to the
 * first one of a page, or up to a snapshot's position. Items are found by the digest of these tokens. So items of other
 * conversations that go on from the same block are not found.
 *
 * Invariants: an item is in `items` and its bytes count in the budget, or it is in `ghosts`; either way it can be found
 * at its place. `known_by` of an item is the number of boxes that have it in `known`. */
#include "replay/sim_store.h"

#include "base/assert.h"
#include "base/lru.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES 256 /* of an item, beside its tokens (tier/format.h) */
#define GHOSTS_MAX 1000000

struct store_item {
    struct hearth_lru_entry entry; /* first; its key is the name */
    struct hearth_link at;         /* its key is place_of() the item */
    struct hearth_digest base;
    int64_t ready_us; /* when it has been written */
    size_t state_bytes;
    int32_t base_pos, p0, p1;
    uint16_t owner; /* of store->shares */
    uint8_t known_by, kind, label;
    bool gone;             /* a ghost */
    hearth_token tokens[]; /* [base_pos, p1) */
};

struct store_event {
    int64_t at_us;
    uint64_t number; /* events of one time come in their order */
    struct hearth_backing_event event;
};

/* Of a box, on its way to the store. */
struct store_write {
    int64_t end_us;
    size_t bytes;
    struct hearth_digest name;
};

struct store_box {
    struct hearth_backing backing; /* first */
    struct hearth_sim_store *store;
    int64_t *now_us;
    struct store_event *events; /* a heap */
    size_t event_count, event_cap;
    struct store_write *writes; /* by end; the first `written` are done */
    size_t write_count, write_cap, written;
    uint64_t queued_bytes;
    int64_t in_free_us, out_free_us;
    struct hearth_lru known; /* entries of their own, whose key is an item's name, and which count as one byte */
};

struct hearth_sim_store {
    struct hearth_sim_store_params params;
    struct hearth_backing_ops ops;
    struct hearth_wire in, out;
    struct hearth_lru items, ghosts; /* a ghost counts as one byte */
    struct hearth_table items_at;    /* of both, by place */
    struct hearth_table branched;    /* bases of those that need more than the first token of their block */
    struct hearth_shares shares;     /* of what is in `items` */
    struct hearth_sim_store_figures figures;
    uint64_t event_number, ticket;
    bool away;
    uint32_t box_count;
    struct store_box boxes[];
};

static struct store_box *box_of(struct hearth_backing *backing) {
    return (struct store_box *)backing;
}

/* ---- events ---- */

static bool sooner(const struct store_event *a, const struct store_event *b) {
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->number < b->number;
}

/* Tells the box at a time. Out of memory: it is not told, which is a miss. */
static void tell(struct store_box *box, int64_t at_us, struct hearth_backing_event event) {
    if (!HEARTH_BUF_ROOM(box->events, box->event_count, box->event_cap)) {
        hearth_backing_event_finish(&event);
        return;
    }
    struct store_event *events = box->events;
    const struct store_event added = {.at_us = at_us, .number = box->store->event_number++, .event = event};
    size_t at = box->event_count++;
    for (; at > 0 && sooner(&added, &events[(at - 1) / 2]); at = (at - 1) / 2) {
        events[at] = events[(at - 1) / 2];
    }
    events[at] = added;
}

static struct hearth_backing_event take_first(struct store_box *box) {
    struct store_event *events = box->events;
    const struct hearth_backing_event first = events[0].event;
    const struct store_event last = events[--box->event_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < box->event_count; at = child) {
        child += child + 1 < box->event_count && sooner(&events[child + 1], &events[child]);
        if (!sooner(&events[child], &last)) {
            break;
        }
        events[at] = events[child];
    }
    events[at] = last;
    return first;
}

static bool store_poll(struct hearth_backing *backing, struct hearth_backing_event *event) {
    struct store_box *box = box_of(backing);
    if (box->event_count == 0 || box->events[0].at_us > *box->now_us) {
        return false;
    }
    *event = take_first(box);
    return true;
}

static bool store_wait(struct hearth_backing *backing, int64_t timeout_us) {
    struct store_box *box = box_of(backing);
    const int64_t next_us = box->event_count > 0 ? box->events[0].at_us : INT64_MAX;
    if (next_us <= *box->now_us) {
        return true;
    }
    const bool comes = next_us != INT64_MAX && next_us - *box->now_us <= timeout_us;
    *box->now_us = comes ? next_us : *box->now_us + timeout_us;
    return comes;
}

/* ---- items ---- */

static struct store_item *find_in(const struct hearth_lru *lru, struct hearth_digest name) {
    return (struct store_item *)(void *)hearth_table_find(&lru->table, name);
}

static struct store_item *find(const struct hearth_sim_store *store, struct hearth_digest name) {
    return find_in(&store->items, name);
}

/* An item, or a ghost. */
static struct store_item *find_any(const struct hearth_sim_store *store, struct hearth_digest name) {
    struct store_item *item = find(store, name);
    return item ? item : find_in(&store->ghosts, name);
}

/* Where what hangs on a block is found: by the block's base, and the first `n` of its tokens. */
static struct hearth_digest place_at(struct hearth_digest base, const hearth_token *tokens, int32_t n) {
    base.lo ^= hearth_checksum(tokens, (size_t)n * sizeof *tokens);
    return base;
}

static struct hearth_digest name_of(const struct store_item *item) {
    return item->entry.link.key;
}

/* How many tokens of its block a prompt must have for an item to be of use. */
static int32_t needs(const struct store_item *item) {
    return (item->kind == HEARTH_RECORD_PAGE ? item->p0 + 1 : item->p1) - item->base_pos;
}

/* Frees an item that is in neither list. */
static void destroy_item(struct hearth_sim_store *store, struct store_item *item) {
    hearth_table_remove(&store->items_at, &item->at);
    if (needs(item) > 1) {
        (void)hearth_table_take_name(&store->branched, item->base);
    }
    free(item);
}

static struct hearth_lru_entry *known_of(const struct store_box *box, struct hearth_digest name) {
    return (struct hearth_lru_entry *)hearth_table_find(&box->known.table, name);
}

/* Adds an item to what a box knows, as the next older one than `newer` (NULL: as the newest). Returns the entry; NULL:
 * out of memory. */
static struct hearth_lru_entry *know(struct store_box *box, struct store_item *item, struct hearth_lru_entry *newer) {
    struct hearth_lru_entry *known = known_of(box, name_of(item));
    if (known) {
        hearth_lru_touch(&box->known, known);
        return known;
    }
    known = malloc(sizeof *known);
    if (!known) {
        return NULL;
    }
    *known = (struct hearth_lru_entry){.link.key = name_of(item), .bytes = 1};
    if (!hearth_lru_add(&box->known, known, newer)) {
        free(known);
        return NULL;
    }
    item->known_by++;
    return known;
}

/* Removes an item from what a box knows. False: it was not there. */
static bool unknow(struct store_box *box, struct store_item *item) {
    struct hearth_lru_entry *known = known_of(box, name_of(item));
    if (!known) {
        return false;
    }
    hearth_lru_remove(&box->known, known);
    free(known);
    item->known_by--;
    return true;
}

/* Reports to a box that an item is lost, if the box knows of it. */
static bool tell_lost(struct store_box *box, struct store_item *item, int64_t at_us) {
    const bool known = unknow(box, item);
    if (known) {
        tell(box, at_us, (struct hearth_backing_event){.type = HEARTH_BACKING_LOST, .name = name_of(item)});
    }
    return known;
}

/* Frees a ghost that no box knows of. */
static void drop_ghost(struct hearth_sim_store *store, struct store_item *item) {
    if (item->gone && item->known_by == 0) {
        hearth_lru_remove(&store->ghosts, &item->entry);
        destroy_item(store, item);
    }
}

/* Reports to all boxes that know of an item, which is in neither list, that it is lost, and frees it. */
static void drop_for_all(struct hearth_sim_store *store, struct store_item *item, int64_t at_us) {
    for (uint32_t i = 0; item->known_by > 0; i++) {
        (void)tell_lost(&store->boxes[i], item, at_us);
    }
    destroy_item(store, item);
}

/* Removes what a box has not used for longest from what it knows: a seek finds it again. */
static void forget_oldest(struct store_box *box) {
    while (box->known.bytes > box->known.budget_bytes) {
        struct hearth_sim_store *store = box->store;
        struct store_item *item = find_any(store, box->known.oldest->link.key);
        (void)tell_lost(box, item, *box->now_us);
        drop_ghost(store, item);
    }
}

/* Takes an item, which is in neither list any more, out of the store. */
static void lose_item(struct hearth_sim_store *store, struct store_item *item, int64_t at_us) {
    hearth_share_count(&store->shares, item->owner, item->entry.bytes, 0);
    item->gone = true;
    item->entry.bytes = 1;
    if (store->params.disk || item->known_by == 0 || !hearth_lru_add(&store->ghosts, &item->entry, NULL)) {
        drop_for_all(store, item, at_us);
    }
    for (struct hearth_lru_entry *oldest; (oldest = hearth_lru_evict(&store->ghosts)) != NULL;) {
        drop_for_all(store, (struct store_item *)oldest, at_us);
    }
}

static struct store_item *make_item(struct hearth_sim_store *store, const struct hearth_record *record) {
    const size_t bytes = hearth_record_tokens(record) * sizeof(hearth_token);
    struct store_item *item = malloc(sizeof *item + bytes);
    if (!item) {
        return NULL;
    }
    *item = (struct store_item){.base = record->base,
                                .state_bytes = record->state_bytes,
                                .base_pos = record->base_pos,
                                .p0 = record->p0,
                                .p1 = record->p1,
                                .kind = (uint8_t)record->kind,
                                .label = record->label};
    memcpy(item->tokens, record->tokens, bytes);
    item->at.key = place_at(item->base, item->tokens, needs(item));
    const bool branches = needs(item) > 1;
    if (branches && !hearth_table_add_name(&store->branched, item->base)) {
        free(item);
        return NULL;
    }
    if (!hearth_table_add(&store->items_at, &item->at)) {
        (void)(branches && hearth_table_take_name(&store->branched, item->base));
        free(item);
        return NULL;
    }
    return item;
}

/* What is told of an item. NULL: out of memory. */
static struct hearth_record *record_of(const struct hearth_sim_store *store, struct store_item *item) {
    const struct hearth_record record = {.kind = (enum hearth_record_kind)item->kind,
                                         .label = item->label,
                                         .base = item->base,
                                         .base_pos = item->base_pos,
                                         .p0 = item->p0,
                                         .p1 = item->p1,
                                         .tokens = item->tokens,
                                         .state_bytes = item->state_bytes,
                                         .owner = store->shares.owners[item->owner].id,
                                         .name = name_of(item)};
    return hearth_record_copy(&record);
}

/* Adds an item, made of its ghost if there is one. NULL: out of memory. */
static struct store_item *add_item(struct hearth_sim_store *store, const struct hearth_record *record, size_t bytes) {
    struct store_item *item = find_in(&store->ghosts, record->name);
    if (item) {
        hearth_lru_remove(&store->ghosts, &item->entry);
    } else {
        item = make_item(store, record);
        if (!item) {
            return NULL;
        }
    }
    item->gone = false;
    item->entry = (struct hearth_lru_entry){.link.key = record->name, .bytes = bytes};
    if (!hearth_lru_add(&store->items, &item->entry, NULL)) {
        drop_for_all(store, item, 0);
        return NULL;
    }
    item->owner = hearth_share_find(&store->shares, record->owner);
    hearth_share_count(&store->shares, item->owner, 0, bytes);
    return item;
}

/* Of a store that owners share: some more than is needed, as a disk does (tier/disk_budget.c). */
static void evict_shared(struct hearth_sim_store *store, size_t most, int64_t now_us) {
    for (int pass = 0; pass < HEARTH_SHARE_PASSES; pass++) {
        struct hearth_lru_entry *entry = store->items.oldest;
        for (struct hearth_lru_entry *newer; entry && store->items.bytes > most; entry = newer) {
            struct store_item *item = (struct store_item *)entry;
            newer = entry->newer;
            if (hearth_share_gives(&store->shares, item->owner, pass)) {
                hearth_lru_remove(&store->items, entry);
                store->figures.evicted++;
                lose_item(store, item, now_us);
            }
        }
    }
}

static void evict(struct hearth_sim_store *store, int64_t now_us) {
    if (store->shares.part < 1 && store->items.bytes > store->items.budget_bytes) {
        const size_t most = store->items.budget_bytes - store->items.budget_bytes / 16;
        hearth_share_divide(&store->shares, most, now_us);
        if (store->shares.wanting > 1) {
            evict_shared(store, most, now_us);
        }
    }
    for (struct hearth_lru_entry *oldest; (oldest = hearth_lru_evict(&store->items)) != NULL;) {
        store->figures.evicted++;
        lose_item(store, (struct store_item *)oldest, now_us);
    }
}

static void use(struct hearth_sim_store *store, struct store_item *item, int64_t now_us) {
    hearth_lru_touch(&store->items, &item->entry);
    hearth_share_used(&store->shares, item->owner, now_us);
}

static size_t bytes_of(const struct hearth_record *record) {
    return record->state_bytes + HEADER_BYTES + hearth_record_tokens(record) * sizeof(hearth_token);
}

/* ---- the cache's calls ---- */

/* Transfers over one end of the box's network. Returns when it has ended. */
static int64_t transfer(struct store_box *box, int64_t *free_us, struct hearth_wire *wire, size_t bytes) {
    const int64_t earliest_us = *box->now_us + box->store->params.latency_us;
    const int64_t start_us = *free_us > earliest_us ? *free_us : earliest_us;
    *free_us = hearth_wire_send(wire, start_us, bytes, box->store->params.network_bytes_per_s / 1e6);
    return *free_us;
}

/* Takes the writes that have ended by now out of the queue. */
static void end_writes(struct store_box *box, int64_t now_us) {
    while (box->written < box->write_count && box->writes[box->written].end_us <= now_us) {
        box->queued_bytes -= box->writes[box->written++].bytes;
    }
    if (box->written > 0 && box->written * 2 >= box->write_count) {
        box->write_count -= box->written;
        for (size_t i = 0; i < box->write_count; i++) {
            box->writes[i] = box->writes[i + box->written];
        }
        box->written = 0;
    }
}

static bool store_put(struct hearth_backing *backing, const struct hearth_record *record, struct hearth_blob *blob,
                      const struct hearth_digest *replaces) {
    (void)blob;
    struct store_box *box = box_of(backing);
    struct hearth_sim_store *store = box->store;
    const int64_t now_us = *box->now_us;
    const size_t bytes = bytes_of(record);
    struct store_item *item = find(store, record->name);
    int64_t written_us = now_us + store->params.latency_us;
    end_writes(box, now_us);
    if (store->away || (!item && box->queued_bytes + bytes > store->params.queue_bytes)) {
        store->figures.dropped++;
        return false;
    }
    if (item) {
        store->figures.deduplicated++;
    } else {
        item = HEARTH_BUF_ROOM(box->writes, box->write_count, box->write_cap) ? add_item(store, record, bytes) : NULL;
        if (!item) {
            return false;
        }
        item->ready_us = written_us = transfer(box, &box->out_free_us, &store->in, bytes);
        box->writes[box->write_count++] =
            (struct store_write){.end_us = written_us, .bytes = bytes, .name = record->name};
        box->queued_bytes += bytes;
        store->figures.written_bytes += bytes;
    }
    use(store, item, now_us);
    (void)know(box, item, NULL);
    tell(box, written_us,
         (struct hearth_backing_event){
             .type = HEARTH_BACKING_WRITTEN, .remote = !store->params.disk, .name = record->name});
    struct store_item *old = replaces ? find(store, *replaces) : NULL;
    if (old) {
        hearth_lru_remove(&store->items, &old->entry);
        lose_item(store, old, written_us);
    }
    evict(store, now_us);
    forget_oldest(box);
    return true;
}

static bool store_get(struct hearth_backing *backing, struct hearth_digest name) {
    struct store_box *box = box_of(backing);
    struct hearth_sim_store *store = box->store;
    struct store_item *item = store->away ? NULL : find(store, name);
    struct hearth_backing_event event = {.type = HEARTH_BACKING_READ, .remote = !store->params.disk, .name = name};
    int64_t at_us = *box->now_us + (store->away ? 0 : store->params.latency_us);
    if (item) {
        event.bytes.len = item->state_bytes; /* hollow */
        at_us = transfer(box, &box->in_free_us, &store->out, item->entry.bytes);
        store->figures.read_bytes += item->entry.bytes;
        use(store, item, *box->now_us);
    } else {
        struct store_item *ghost = store->away ? NULL : find_in(&store->ghosts, name);
        event.err = store->away ? HEARTH_ERR_IO : HEARTH_ERR_NOT_FOUND;
        if (ghost && unknow(box, ghost)) {
            drop_ghost(store, ghost);
        }
    }
    tell(box, at_us, event);
    return true;
}

/* Reports to a box the items at a place, and those that are lost. Returns the last entry of what it knows, or `newer`.
 */
static struct hearth_lru_entry *tell_of(struct store_box *box, struct hearth_digest place, int64_t at_us,
                                        struct hearth_lru_entry *newer) {
    struct hearth_sim_store *store = box->store;
    for (struct hearth_link *link = hearth_table_find(&store->items_at, place), *next; link; link = next) {
        struct store_item *item = (struct store_item *)(void *)((char *)link - offsetof(struct store_item, at));
        next = hearth_table_next(link);
        if (item->gone) {
            (void)tell_lost(box, item, at_us);
            drop_ghost(store, item);
            continue;
        }
        struct hearth_record *record = item->ready_us <= at_us ? record_of(store, item) : NULL;
        if (record) {
            struct hearth_lru_entry *known = know(box, item, newer);
            newer = known ? known : newer;
            tell(box, at_us,
                 (struct hearth_backing_event){
                     .type = HEARTH_BACKING_FOUND, .remote = true, .name = record->name, .record = record});
        }
    }
    return newer;
}

static uint64_t store_seek(struct hearth_backing *backing, const struct hearth_backing_place *places, size_t n) {
    struct store_box *box = box_of(backing);
    struct hearth_sim_store *store = box->store;
    const int64_t at_us = *box->now_us + store->params.latency_us;
    if (store->away) {
        return 0;
    }
    struct hearth_lru_entry *newer = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct hearth_backing_place *place = &places[i];
        const size_t most = hearth_table_find(&store->branched, place->base) ? place->n : 1;
        for (size_t tokens = 1; place->tokens && tokens <= most && tokens <= place->n; tokens++) {
            newer = tell_of(box, place_at(place->base, place->tokens, (int32_t)tokens), at_us, newer);
        }
    }
    const uint64_t ticket = ++store->ticket;
    tell(box, at_us, (struct hearth_backing_event){.type = HEARTH_BACKING_SOUGHT, .ticket = ticket});
    return ticket;
}

/* What a box uses from its RAM it goes on knowing of; for the store it ages. (The server tells the store when an eighth
 * of a value's time has passed since it last did.) */
static void store_touch(struct hearth_backing *backing, const struct hearth_backing_touch *touches, size_t n) {
    struct store_box *box = box_of(backing);
    while (n-- > 0) {
        struct hearth_lru_entry *known = known_of(box, touches[n].name);
        if (known) {
            hearth_lru_touch(&box->known, known);
        }
    }
}

/* The end of a path goes before its beginning. */
static void disk_touch(struct hearth_backing *backing, const struct hearth_backing_touch *touches, size_t n) {
    struct hearth_sim_store *store = box_of(backing)->store;
    const int64_t now_us = *box_of(backing)->now_us;
    for (size_t i = n; i-- > 0;) {
        struct store_item *item = find(store, touches[i].name);
        if (item) {
            use(store, item, now_us);
        }
    }
}

static void store_reject(struct hearth_backing *backing, struct hearth_digest name, const char *why) {
    (void)backing, (void)name, (void)why;
}

/* Replays forget nothing. */
static bool store_remove(struct hearth_backing *backing, struct hearth_digest name, enum hearth_record_kind kind) {
    (void)backing, (void)name, (void)kind;
    return false;
}

static void store_stats(struct hearth_backing *backing, struct hearth_backing_stats *stats) {
    (void)backing;
    *stats = (struct hearth_backing_stats){.scanned = true};
}

static void store_set_wake(struct hearth_backing *backing, void (*wake)(void *user), void *user) {
    (void)backing, (void)wake, (void)user;
}

static void store_destroy(struct hearth_backing *backing) {
    (void)backing; /* the store's */
}

/* Of the store; a disk's are those, but for what hearth_sim_store_create() changes. */
static const struct hearth_backing_ops ops = {.destroy = store_destroy,
                                              .put = store_put,
                                              .get = store_get,
                                              .seek = store_seek,
                                              .touch = store_touch,
                                              .reject = store_reject,
                                              .remove = store_remove,
                                              .poll = store_poll,
                                              .wait = store_wait,
                                              .stats = store_stats,
                                              .set_wake = store_set_wake};

/* ---- life ---- */

static void forget_all(struct store_box *box) {
    while (box->known.oldest) {
        struct store_item *item = find_any(box->store, box->known.oldest->link.key);
        (void)unknow(box, item);
        drop_ghost(box->store, item);
    }
}

static void drop_events(struct store_box *box) {
    while (box->event_count > 0) {
        struct hearth_backing_event event = take_first(box);
        hearth_backing_event_finish(&event);
    }
}

struct hearth_sim_store *hearth_sim_store_create(const struct hearth_sim_store_params *params, uint32_t boxes) {
    HEARTH_ASSERT(boxes <= HEARTH_SIM_STORE_BOXES_MAX);
    struct hearth_sim_store *store = calloc(1, sizeof *store + boxes * sizeof *store->boxes);
    if (!store) {
        return NULL;
    }
    const double write_bytes_per_s =
        params->write_bytes_per_s > 0 ? params->write_bytes_per_s : params->store_bytes_per_s;
    if (!hearth_shares_init(&store->shares, params->share, HEARTH_SHARE_DISK_US) ||
        !hearth_wire_init(&store->in, write_bytes_per_s / 1e6) ||
        !hearth_wire_init(&store->out, params->store_bytes_per_s / 1e6)) {
        hearth_sim_store_destroy(store);
        return NULL;
    }
    store->params = *params;
    store->ops = ops;
    if (params->disk) { /* it need not be asked what it has */
        store->ops.seek = NULL;
        store->ops.touch = disk_touch;
    }
    store->items.budget_bytes = params->bytes;
    store->ghosts.budget_bytes = GHOSTS_MAX;
    store->box_count = boxes;
    return store;
}

struct hearth_backing *hearth_sim_store_tier(struct hearth_sim_store *store, uint32_t number, int64_t *now_us) {
    struct store_box *box = &store->boxes[number];
    box->backing = (struct hearth_backing){.ops = &store->ops, .name = store->params.disk ? "disk" : "remote"};
    box->store = store;
    box->now_us = now_us;
    box->known.budget_bytes = store->params.known > 0 ? store->params.known : SIZE_MAX;
    tell(box, *now_us, (struct hearth_backing_event){.type = HEARTH_BACKING_SCANNED});
    return &box->backing;
}

void hearth_sim_store_lose_box(struct hearth_sim_store *store, uint32_t number, int64_t at_us) {
    struct store_box *box = &store->boxes[number];
    end_writes(box, at_us);
    for (size_t i = box->written; i < box->write_count; i++) {
        struct store_item *item = find(store, box->writes[i].name);
        if (item && item->ready_us > at_us) {
            hearth_lru_remove(&store->items, &item->entry);
            lose_item(store, item, at_us);
        }
    }
    box->write_count = box->written = 0;
    box->queued_bytes = 0;
    box->in_free_us = box->out_free_us = at_us;
    drop_events(box);
    forget_all(box);
}

void hearth_sim_store_lose(struct hearth_sim_store *store, int64_t at_us) {
    while (store->items.oldest) {
        struct hearth_lru_entry *entry = store->items.oldest;
        hearth_lru_remove(&store->items, entry);
        lose_item(store, (struct store_item *)entry, at_us);
    }
    for (uint32_t i = 0; i < store->box_count; i++) {
        struct store_box *box = &store->boxes[i];
        box->write_count = box->written = 0;
        box->queued_bytes = 0;
    }
    store->away = true;
}

void hearth_sim_store_return(struct hearth_sim_store *store) {
    store->away = false;
}

void hearth_sim_store_destroy(struct hearth_sim_store *store) {
    if (!store) {
        return;
    }
    hearth_sim_store_lose(store, 0);
    for (uint32_t i = 0; i < store->box_count; i++) {
        drop_events(&store->boxes[i]);
        free(store->boxes[i].events);
        free(store->boxes[i].writes);
        forget_all(&store->boxes[i]);
        hearth_lru_finish(&store->boxes[i].known);
    }
    hearth_shares_finish(&store->shares);
    hearth_lru_finish(&store->items);
    hearth_lru_finish(&store->ghosts);
    hearth_table_finish(&store->items_at);
    hearth_table_finish_names(&store->branched);
    hearth_wire_finish(&store->in);
    hearth_wire_finish(&store->out);
    free(store);
}

void hearth_sim_store_figures(const struct hearth_sim_store *store, struct hearth_sim_store_figures *figures) {
    *figures = store->figures;
}

const struct hearth_wire *hearth_sim_store_wire(const struct hearth_sim_store *store, bool reads) {
    return reads ? &store->out : &store->in;
}
