/* What is backed up: the copies that items have in the backing tier. Inside the cache; without a backing tier nothing
 * here does anything.
 *
 * An item (page or snapshot) has at most one copy. It is put when a capture has ended, read when a prompt needs it and
 * RAM does not have it, and known from the start of the process on, because the tier finds what is there.
 *
 *     NONE --put--> WRITING --written--> THERE        WRITING --dropped--> NONE      THERE --lost, unreadable--> NONE
 *
 *     backing.c          the books: copies, duplicates, reading, use
 *     backing_write.c    what is put
 *     backing_found.c    a place in the tree for what the tier found
 *     backing_seek.c     what the tier is asked
 *     backing_events.c   what the tier tells */
#ifndef HEARTH_CACHE_BACKING_H
#define HEARTH_CACHE_BACKING_H

#include "cache/store.h"

/* ---- backing.c ---- */

/* The item with a copy of this name, or NULL. */
struct hearth_cache_item *hearth_copy_find(const struct hearth_cache *cache, struct hearth_digest name);
/* Gives an item without one a copy in this state (not NONE). False: another item has it, or out of memory. */
bool hearth_copy_enter(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_digest name,
                       enum hearth_copy_state state);
/* Links an item to a copy that is there and holds its tokens from p0 on. False: likewise. */
bool hearth_copy_found(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_digest name,
                       int32_t p0);
/* Takes the item's copy out of the books; the item keeps what is in RAM. The caller counts the change. */
void hearth_copy_forget(struct hearth_cache *cache, struct hearth_cache_item *item);
/* Has the item's copy removed from the tier and takes it out of the books. Likewise. */
void hearth_copy_remove(struct hearth_cache *cache, struct hearth_cache_item *item);
/* Asks the tier to remove an item; counted in cache->removing until it answers. */
void hearth_copy_remove_name(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind);
/* Whether the tier was asked to remove an item of this name and has not answered: what is put now could not be told
 * from it. */
bool hearth_copy_is_removed(const struct hearth_cache *cache, struct hearth_digest name);
/* The page, which ended at `end`, has grown: its copy is one of what it was. The caller counts the change. */
void hearth_copy_outgrown(struct hearth_cache *cache, struct hearth_page *page, int32_t end);
/* The engine refused what came of the copy. Likewise. */
void hearth_copy_reject(struct hearth_cache *cache, struct hearth_cache_item *item, const char *reason);

/* Whether the item has state that is not in RAM. */
bool hearth_copy_lacks_blob(const struct hearth_cache *cache, const struct hearth_cache_item *item);
/* Asks for an item with its state only in the backing tier. False: it cannot be had. */
bool hearth_copy_fetch(struct hearth_cache *cache, struct hearth_cache_item *item);
/* Asks for what [from, to) of the path and the snapshots need, as far as `limit_bytes` on their way allow. Returns how
 * many items have been asked for and have not come. */
size_t hearth_copies_fetch(struct hearth_cache *cache, const struct hearth_path *path, int32_t from, int32_t to,
                           struct hearth_snapshot *const *snapshots, size_t count, size_t limit_bytes);

/* As hearth_cache_seek(), of tokens behind a root. */
uint64_t hearth_cache_seek_from(struct hearth_cache *cache, struct hearth_digest root, const hearth_token *tokens,
                                size_t n);

/* How many bytes of [from, to) of the path and of the snapshots are not in RAM. Items in RAM cost nothing, also
 * those that were read from the tier a moment ago: no request waited for them. */
size_t hearth_copies_missing(struct hearth_cache *cache, const struct hearth_path *path, int32_t from, int32_t to,
                             struct hearth_snapshot *const *snapshots, size_t count);

/* The path was used up to `resume`, with these snapshots. */
void hearth_copies_touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume,
                         struct hearth_snapshot *const *snapshots, size_t count);
/* A later reply of its conversation has made the snapshot less likely to be asked for. */
void hearth_copies_supersede(struct hearth_cache *cache, struct hearth_snapshot *snapshot);
/* Tells the tier so, when the copy is there. */
void hearth_copies_touch_superseded(struct hearth_cache *cache, const struct hearth_snapshot *snapshot);

/* Notes an item of the tier that no page or snapshot has for its copy: it is looked for when its path is forgotten.
 * `base` and `base_pos` as a record has them. Out of memory, or with very many of them: it is not. */
void hearth_duplicate_add(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind,
                          struct hearth_digest base, int32_t base_pos, int32_t p0, int32_t p1);
/* Likewise of what an item has for its copy, or a page for its old one. */
void hearth_duplicate_add_copy(struct hearth_cache *cache, const struct hearth_cache_item *item);
void hearth_duplicate_add_old(struct hearth_cache *cache, const struct hearth_page *page);
/* Has removed from the tier the duplicates of one block that lie on the path `tokens` (of which the first `base_pos`
 * the digest is of), wholly in [from, to). */
void hearth_duplicates_forget(struct hearth_cache *cache, struct hearth_digest base, int32_t base_pos,
                              const hearth_token *tokens, int32_t from, int32_t to);
void hearth_duplicates_finish(struct hearth_cache *cache);

/* ---- backing_write.c ---- */

/* Puts what the path, which a live sequence has been captured to, holds and the tier does not; unless it is too short
 * to keep. Of the snapshots that every turn takes, the one is put that the next turn is likely to need. */
void hearth_copies_write(struct hearth_cache *cache, const struct hearth_path *path, const struct hearth_live *live);
/* Puts one item, whatever it is worth. */
void hearth_copy_put_page(struct hearth_cache *cache, struct hearth_page *page);
void hearth_copy_put_snapshot(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* ---- backing_found.c ---- */

/* Notes are no items of the cache: records under a base that no prompt has (heads.c, learnt.c). True when the event is
 * about one under `base`. One that was found is read if it is `wanted`, and its name is in `awaited` meanwhile; `*read`
 * says that the event brings it. */
bool hearth_copies_take_note(struct hearth_cache *cache, struct hearth_digest base, struct hearth_table *awaited,
                             const struct hearth_backing_event *event, bool wanted, bool *read);

/* Gives an item its place in the tree, or keeps it until there is one. Takes the record. */
void hearth_arrive(struct hearth_cache *cache, struct hearth_record *record, uint32_t hits, bool remote);
/* The page is new, or has grown: what has waited for it gets its place. */
void hearth_arrive_behind(struct hearth_cache *cache, const struct hearth_page *page);
/* As hearth_duplicates_forget(), of the items that wait for this digest. */
void hearth_arrive_forget(struct hearth_cache *cache, struct hearth_digest base, int32_t base_pos,
                          const hearth_token *tokens, int32_t from, int32_t to);
void hearth_arrive_finish(struct hearth_cache *cache);

/* The digest of a salt's root. */
struct hearth_digest hearth_cache_root_digest(const struct hearth_cache *cache, struct hearth_digest salt);
/* The root of a salt's tree, or NULL where nothing is known by that salt; with `create` it is made in any case (NULL:
 * out of memory). */
struct hearth_page *hearth_cache_root(struct hearth_cache *cache, struct hearth_digest salt, bool create);

/* ---- backing_events.c ---- */

/* Deals with the next event of the tier; false when there is none. Pages may appear in the tree and states go; none is
 * removed that is pinned or that anything hangs on. */
bool hearth_copies_poll(struct hearth_cache *cache);

#endif
