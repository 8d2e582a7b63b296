/* Copies in the backing tier, as the cache keeps them: what is written, what is read back, and what the tier tells.
 *
 * An item (page or snapshot) has at most one copy. It is put when a capture has ended, read when a prompt needs it and
 * RAM does not have it, and known from the start of the process on, because the tier finds what is there.
 *
 *     NONE --put--> WRITING --written--> THERE        WRITING --dropped--> NONE      THERE --lost, unreadable--> NONE
 *
 * Inside the cache; without a backing tier nothing here does anything. */
#ifndef HEARTH_CACHE_COPIES_H
#define HEARTH_CACHE_COPIES_H

#include "cache/store.h"

/* The digest of a salt's root. */
struct hearth_digest hearth_copies_root_digest(const struct hearth_cache *cache, struct hearth_digest salt);
/* The root of a salt's tree, or NULL where nothing is known by that salt; with `create` it is made in any case (NULL:
 * out of memory). */
struct hearth_page *hearth_copies_root(struct hearth_cache *cache, struct hearth_digest salt, bool create);

/* Puts what the path, which a live sequence has been captured to, holds and the tier does not; unless it is too short
 * to keep. Of the snapshots that every turn takes, the one is put that the next turn is likely to need. */
void hearth_copies_write(struct hearth_cache *cache, const struct hearth_path *path, const struct hearth_live *live);
/* A later reply of its conversation has made the snapshot less likely to be asked for. */
void hearth_copies_supersede(struct hearth_cache *cache, struct hearth_snapshot *snapshot);

/* Asks for an item with its state only in the backing tier. False: it cannot be had. */
bool hearth_copy_fetch(struct hearth_cache *cache, struct hearth_cache_item *item);
/* Asks for what [from, to) of the path and the snapshot (or NULL) need, as far as `limit_bytes` on their way allow.
 * Returns how many items have been asked for and have not come. */
size_t hearth_copies_fetch(struct hearth_cache *cache, const struct hearth_path *path, int32_t from, int32_t to,
                           struct hearth_snapshot *snapshot, size_t limit_bytes);
/* Takes the item's copy out of the books; the item keeps what is in RAM. The caller counts the change. */
void hearth_copy_forget(struct hearth_cache *cache, struct hearth_cache_item *item);
/* Has the item's copy removed from the tier and takes it out of the books. Likewise. */
void hearth_copy_remove(struct hearth_cache *cache, struct hearth_cache_item *item);
/* The page, which ended at `end`, has grown: its copy is one of what it was. Likewise. */
void hearth_copy_outgrown(struct hearth_cache *cache, struct hearth_page *page, int32_t end);
/* The engine refused what came of the copy. Likewise. */
void hearth_copy_reject(struct hearth_cache *cache, struct hearth_cache_item *item, const char *why);

/* The path was used up to `resume`, with this snapshot (or NULL). */
void hearth_copies_touch(struct hearth_cache *cache, const struct hearth_path *path, int32_t resume,
                         const struct hearth_snapshot *snapshot);

/* Deals with the next event of the tier; false when there is none. Pages may appear in the tree and states go; none is
 * removed that is pinned or that anything hangs on. */
bool hearth_copies_poll(struct hearth_cache *cache);

/* ---- forget.c ---- */

/* Asks the tier to remove an item; counted in cache->removing until it answers. */
void hearth_backing_remove(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind);
/* Notes an item of the tier that no page or snapshot has for its copy: it is looked for when its path is forgotten.
 * `base` and `base_pos` as a record has them. Out of memory, or with very many of them: it is not. */
void hearth_duplicate_add(struct hearth_cache *cache, struct hearth_digest name, enum hearth_record_kind kind,
                          struct hearth_digest base, int32_t base_pos, int32_t p0, int32_t p1);
/* Likewise of what an item has for its copy, or a page for its old one. */
void hearth_duplicate_add_copy(struct hearth_cache *cache, const struct hearth_cache_item *item);
void hearth_duplicate_add_old(struct hearth_cache *cache, const struct hearth_page *page);
void hearth_duplicates_finish(struct hearth_cache *cache);

/* ---- arrive.c: what the tier found ---- */

/* Gives an item its place in the tree, or keeps it until there is one. Takes the record. */
void hearth_arrive(struct hearth_cache *cache, struct hearth_record *record, uint32_t hits);
/* The page is new, or has grown: what has waited for it gets its place. */
void hearth_arrive_behind(struct hearth_cache *cache, const struct hearth_page *page);
/* Of those that wait for a digest: has removed from the tier what lies on the path `tokens` (of which the first
 * `base_pos` the digest is of), wholly in [from, to). */
void hearth_arrive_forget(struct hearth_cache *cache, struct hearth_digest base, int32_t base_pos,
                          const hearth_token *tokens, int32_t from, int32_t to);
void hearth_arrive_finish(struct hearth_cache *cache);
/* Links an item to its copy. False: out of memory. */
bool hearth_copy_found(struct hearth_cache *cache, struct hearth_cache_item *item, struct hearth_digest name,
                       int32_t p0);

#endif
