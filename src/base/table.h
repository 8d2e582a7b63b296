/* A hash table of members that bring their own links: nothing is allocated per member, and one member can be in several
 * tables. Keys are digests; members of equal key are all kept, newest first, and told apart by the caller. */
#ifndef HEARTH_BASE_TABLE_H
#define HEARTH_BASE_TABLE_H

#include "base/digest.h"

struct hearth_link {
    struct hearth_link *next;
    struct hearth_digest key;
};

/* A zeroed struct is an empty table. */
struct hearth_table {
    struct hearth_link **buckets;
    size_t bucket_count; /* a power of two, or 0 */
    size_t count;
    struct hearth_link **old; /* half as many buckets, while members move; else NULL */
    size_t moved;             /* of these, how many are empty for good */
};

/* Frees the buckets; members stay their owners'. */
void hearth_table_finish(struct hearth_table *table);
/* Adds a member; its key is set. Takes a bounded time, also when the table grows. False: out of memory. */
bool hearth_table_add(struct hearth_table *table, struct hearth_link *link);
/* Removes a member that is there. */
void hearth_table_remove(struct hearth_table *table, struct hearth_link *link);
/* Removes and returns any member, or NULL when there is none. `*at` is 0 at first, and nothing else is done to the
 * table until the last is out. */
struct hearth_link *hearth_table_pop(struct hearth_table *table, size_t *at);
/* The newest member of a key, or NULL. */
struct hearth_link *hearth_table_find(const struct hearth_table *table, struct hearth_digest key);
/* The next older member of the same key, or NULL. */
struct hearth_link *hearth_table_next(const struct hearth_link *link);

/* A table that owns its members, with the link as their first member; several may have the same name. */

/* Makes and adds a zeroed member of so many bytes. NULL: out of memory. */
struct hearth_link *hearth_table_make(struct hearth_table *table, struct hearth_digest name, size_t bytes);
/* The same for a table of names alone. False: out of memory. */
bool hearth_table_add_name(struct hearth_table *table, struct hearth_digest name);
/* Takes one away and frees it. False: there is none. */
bool hearth_table_take_name(struct hearth_table *table, struct hearth_digest name);
void hearth_table_finish_names(struct hearth_table *table);

#endif
