/* Hash table of intrusive chains, doubled when there are as many members as buckets. Digests are uniform: their low
 * bits choose the bucket.
 *
 * Doubling moves nothing by itself: the old buckets stay beside the new ones, and every addition empties a few of them,
 * so that no single call takes time that grows with the table. By the time the new buckets are as full as the old ones
 * were, none of those is left.
 *
 * Invariant: the old bucket of a key holds all of its members while it is not below `moved`, and none from then on. */
#include "base/table.h"

#include "base/assert.h"

#include <stdlib.h>

#define BUCKETS_MIN 256
#define MOVED_AT_ONCE 4

static struct hearth_link **bucket_of(const struct hearth_table *table, struct hearth_digest key) {
    if (table->old) {
        size_t i = key.lo & (table->bucket_count / 2 - 1);
        if (i >= table->moved) {
            return &table->old[i];
        }
    }
    return &table->buckets[key.lo & (table->bucket_count - 1)];
}

/* Moves the members of a few old buckets. */
static void move_some(struct hearth_table *table) {
    for (int n = 0; n < MOVED_AT_ONCE && table->old != NULL; n++) {
        /* Oldest first, so that the order within a key stays. */
        struct hearth_link *reversed = NULL, *link = table->old[table->moved];
        table->old[table->moved++] = NULL;
        while (link) {
            struct hearth_link *next = link->next;
            link->next = reversed;
            reversed = link;
            link = next;
        }
        while (reversed) {
            link = reversed;
            reversed = link->next;
            struct hearth_link **bucket = &table->buckets[link->key.lo & (table->bucket_count - 1)];
            link->next = *bucket;
            *bucket = link;
        }
        if (table->moved == table->bucket_count / 2) {
            free(table->old);
            table->old = NULL;
        }
    }
}

static bool grow(struct hearth_table *table) {
    HEARTH_ASSERT(!table->old);
    size_t count = table->bucket_count > 0 ? 2 * table->bucket_count : BUCKETS_MIN;
    struct hearth_link **buckets = calloc(count, sizeof(struct hearth_link *));
    if (!buckets) {
        return false;
    }
    table->old = table->buckets;
    table->moved = 0;
    table->buckets = buckets;
    table->bucket_count = count;
    return true;
}

void hearth_table_finish(struct hearth_table *table) {
    free(table->buckets);
    free(table->old);
    *table = (struct hearth_table){0};
}

bool hearth_table_add(struct hearth_table *table, struct hearth_link *link) {
    move_some(table);
    if (table->count == table->bucket_count && !grow(table)) {
        return false;
    }
    struct hearth_link **bucket = bucket_of(table, link->key);
    link->next = *bucket;
    *bucket = link;
    table->count++;
    return true;
}

void hearth_table_remove(struct hearth_table *table, struct hearth_link *link) {
    struct hearth_link **at = bucket_of(table, link->key);
    while (*at != link) {
        HEARTH_ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = link->next;
    link->next = NULL;
    table->count--;
}

static struct hearth_link *pop(struct hearth_table *table, struct hearth_link **bucket) {
    struct hearth_link *link = *bucket;
    *bucket = link->next;
    link->next = NULL;
    table->count--;
    return link;
}

struct hearth_link *hearth_table_pop(struct hearth_table *table, size_t *at) {
    for (; *at < table->bucket_count; ++*at) {
        if (table->old && *at < table->bucket_count / 2 && table->old[*at]) {
            return pop(table, &table->old[*at]);
        }
        if (table->buckets[*at]) {
            return pop(table, &table->buckets[*at]);
        }
    }
    return NULL;
}

static struct hearth_link *find_from(struct hearth_link *link, struct hearth_digest key) {
    while (link && !hearth_digest_equal(link->key, key)) {
        link = link->next;
    }
    return link;
}

struct hearth_link *hearth_table_find(const struct hearth_table *table, struct hearth_digest key) {
    return table->bucket_count > 0 ? find_from(*bucket_of(table, key), key) : NULL;
}

struct hearth_link *hearth_table_next(const struct hearth_link *link) {
    return find_from(link->next, link->key);
}

/* ---- names ---- */

struct hearth_link *hearth_table_make(struct hearth_table *table, struct hearth_digest name, size_t bytes) {
    struct hearth_link *link = calloc(1, bytes);
    if (link) {
        link->key = name;
    }
    if (link && !hearth_table_add(table, link)) {
        free(link);
        return NULL;
    }
    return link;
}

bool hearth_table_add_name(struct hearth_table *table, struct hearth_digest name) {
    return hearth_table_make(table, name, sizeof(struct hearth_link)) != NULL;
}

bool hearth_table_take_name(struct hearth_table *table, struct hearth_digest name) {
    struct hearth_link *link = hearth_table_find(table, name);
    if (link) {
        hearth_table_remove(table, link);
        free(link);
    }
    return link != NULL;
}

void hearth_table_finish_names(struct hearth_table *table) {
    struct hearth_link *link;
    for (size_t at = 0; (link = hearth_table_pop(table, &at)) != NULL;) {
        free(link);
    }
    hearth_table_finish(table);
}
