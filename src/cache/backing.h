/* Copies: the state of pages and snapshots in the backing tier. Inside the cache; without a backing tier nothing here
 * does anything.
 *
 * An item (page or snapshot) has at most one copy. The cache puts it when a capture has ended, and reads it when a
 * prompt needs the item and RAM does not have it. The tier finds the copies of earlier processes, so they are known
 * from the start on.
 *
 *     NONE --put--> WRITING --written--> THERE        WRITING --dropped--> NONE      THERE --lost, unreadable--> NONE
 *
 *     backing.c          the tables: copies and duplicates; reading, use
 *     backing_write.c    puts copies
 *     backing_found.c    finds a place in the tree for what the tier has found
 *     backing_seek.c     asks the tier what it has
 *     backing_events.c   handles the tier's events */
#ifndef HEARTH_CACHE_BACKING_H
#define HEARTH_CACHE_BACKING_H

#include "cache/store.h"

/* ---- backing.c ---- */

/* The item with a copy of this name, or NULL. */
struct hearth_cache_item *hearth_copy_find(const struct hearth_cache *cache, struct hearth_digest name);
/* Gives an item without a copy one in this state (not NONE). False: another item has this copy, or out of memory. */
bool hearth_copy_enter(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_digest name,
                       enum hearth_copy_state state);
/* Links an item to a copy that the tier has, which holds the item's tokens from p0 on. False: as above. */
bool hearth_copy_found(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_digest name,
                       int32_t p0);
/* Forgets that the item has a copy; what is in RAM stays. The caller counts the change. */
void hearth_copy_forget(struct hearth_cache *cache, struct hearth_cache_item *item);
/* Has the tier remove the item's copy, and forgets it. The caller counts the change. */
void hearth_copy_remove(struct hearth_cache *cache, struct hearth_cache_item *item);
/* Asks the tier to remove the copy of this name. cache->removing counts it until the tier answers. */
void hearth_copy_remove_name(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind);
/* Whether the tier has still to answer a removal of this name: a copy put now could not be told from the removed one.
 */
bool hearth_copy_is_removed(const struct hearth_cache *cache, struct hearth_digest name);
/* The page, which ended at `end`, has grown, so its copy is one of the shorter page. The caller counts the change. */
void hearth_copy_outgrown(struct hearth_cache *cache, struct hearth_page *page, int32_t end);
/* The engine refused the state that was read from the copy. The caller counts the change. */
void hearth_copy_reject(struct hearth_cache *cache, struct hearth_cache_item *item, const char *reason);

/* Whether the item has state, but not in RAM. */
bool hearth_copy_lacks_blob(const struct hearth_cache *cache, const struct hearth_cache_item *item);
/* Asks for the state of an item that only the backing tier has. False: it cannot be had. */
bool hearth_copy_fetch(struct hearth_cache *cache, struct hearth_cache_item *item);
/* Asks for what [from, to) of the path and the snapshots need, until `limit_bytes` are on their way. Returns how many
 * items are awaited. */
size_t hearth_copies_fetch(struct hearth_cache *cache, const struct hearth_path *path, int32_t from, int32_t to,
                           struct hearth_snapshot *const *snapshots, size_t count, size_t limit_bytes);

/* As hearth_cache_seek(), for tokens behind a root. */
uint64_t hearth_cache_seek_from(struct hearth_cache *cache, struct hearth_digest root, const hearth_token *tokens,
                                size_t n);

/* How many bytes of [from, to) of the path and of the snapshots are not in RAM. Items in RAM cost nothing, also those
 * that were read a moment ago: no request waited for them. */
size_t hearth_copies_missing(struct hearth_cache *cache, const struct hearth_path *path, int32_t from, int32_t to,
                             struct hearth_snapshot *const *snapshots, size_t count);

/* Tells the tier that the path was used up to `resume`, with these snapshots. */
void hearth_copies_touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume,
                         struct hearth_snapshot *const *snapshots, size_t count);
/* A later reply of the conversation has made the snapshot less likely to be needed. */
void hearth_copies_supersede(struct hearth_cache *cache, struct hearth_snapshot *snapshot);
/* Tells the tier that the snapshot is superseded, if it has a copy. */
void hearth_copies_touch_superseded(struct hearth_cache *cache, const struct hearth_snapshot *snapshot);

/* Notes a copy that belongs to no page or snapshot, so that it is found when its path is forgotten. `base` and
 * `base_pos` as in a record. Nothing is noted when out of memory, or when there are very many. */
void hearth_duplicate_add(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind,
                          struct hearth_digest base, int32_t base_pos, int32_t p0, int32_t p1);
/* The same for an item's copy, or for the copy of a page before it grew. */
void hearth_duplicate_add_copy(struct hearth_cache *cache, const struct hearth_cache_item *item);
void hearth_duplicate_add_old(struct hearth_cache *cache, const struct hearth_page *page);
/* Has the tier remove the duplicates of one block that lie on the path `tokens`, wholly in [from, to). `base` is the
 * digest of the first `base_pos` tokens. */
void hearth_duplicates_forget(struct hearth_cache *cache, struct hearth_digest base, int32_t base_pos,
                              const hearth_token *tokens, int32_t from, int32_t to);
void hearth_duplicates_finish(struct hearth_cache *cache);

/* ---- backing_write.c ---- */

/* Puts what the path, to which a live sequence was captured, has and the tier lacks, unless the path is too short. Of
 * the snapshots that every turn takes, it puts the one that the next turn will probably need. */
void hearth_copies_write(struct hearth_cache *cache, const struct hearth_path *path, const struct hearth_live *live);
/* Puts one item, whatever its value. */
void hearth_copy_put_page(struct hearth_cache *cache, struct hearth_page *page);
void hearth_copy_put_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* ---- backing_found.c ---- */

/* Notes are records that are no items of the cache: they stand under a base that no prompt has (heads.c, learnt.c).
 * Returns true if the event is about a record under `base`. A note that was found is read if it is `wanted`; its name
 * is in `awaited` until then, and `*read` is set by the event that brings it. */
bool hearth_copies_take_note(struct hearth_cache *cache, struct hearth_digest base, struct hearth_table *awaited,
                             const struct hearth_backing_event *event, bool wanted, bool *read);

/* Gives a found item its place in the tree, or keeps it until there is one. Takes the record. */
void hearth_arrive(struct hearth_cache *cache, struct hearth_record *record, uint32_t hits, bool remote);
/* The page is new or has grown: items that waited for it get their places. */
void hearth_arrive_behind(struct hearth_cache *cache, const struct hearth_page *page);
/* As hearth_duplicates_forget(), for the items that wait for this digest. */
void hearth_arrive_forget(struct hearth_cache *cache, struct hearth_digest base, int32_t base_pos,
                          const hearth_token *tokens, int32_t from, int32_t to);
void hearth_arrive_finish(struct hearth_cache *cache);

/* The digest of a salt's root. */
struct hearth_digest hearth_cache_root_digest(const struct hearth_cache *cache, struct hearth_digest salt);
/* The root of a salt's tree, or NULL if the salt is not known. With `create` it is made if necessary (NULL: out of
 * memory). */
struct hearth_page *hearth_cache_root(struct hearth_cache *cache, struct hearth_digest salt, bool create);

/* ---- backing_events.c ---- */

/* Handles the next event of the tier; false: there is none. Pages may be added to the tree and states removed, but
 * never a pinned item or one with children. */
bool hearth_copies_poll(struct hearth_cache *cache);

#endif
