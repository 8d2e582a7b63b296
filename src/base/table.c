/* Hash table of intrusive chains, doubled when there are as many members as buckets. Digests are uniform: their low
 * bits choose the bucket. */
#include "base/table.h"

#include "base/assert.h"

#include <stdlib.h>

#define BUCKETS_MIN 256

static struct hearth_link **bucket_of(const struct hearth_table *table, struct hearth_digest key) {
    return &table->buckets[key.lo & (table->bucket_count - 1)];
}

static void push(struct hearth_table *table, struct hearth_link *link) {
    struct hearth_link **bucket = bucket_of(table, link->key);
    link->next = *bucket;
    *bucket = link;
    table->count++;
}

static bool grow(struct hearth_table *table) {
    struct hearth_table larger = {.bucket_count = table->bucket_count > 0 ? 2 * table->bucket_count : BUCKETS_MIN};
    larger.buckets = calloc(larger.bucket_count, sizeof *larger.buckets);
    if (larger.buckets == NULL) {
        return false;
    }
    for (size_t i = 0; i < table->bucket_count; i++) {
        /* Oldest first, so that the order within a key stays. */
        struct hearth_link *reversed = NULL;
        while (table->buckets[i] != NULL) {
            struct hearth_link *link = table->buckets[i];
            table->buckets[i] = link->next;
            link->next = reversed;
            reversed = link;
        }
        while (reversed != NULL) {
            struct hearth_link *link = reversed;
            reversed = link->next;
            push(&larger, link);
        }
    }
    free(table->buckets);
    *table = larger;
    return true;
}

void hearth_table_finish(struct hearth_table *table) {
    free(table->buckets);
    *table = (struct hearth_table){0};
}

bool hearth_table_add(struct hearth_table *table, struct hearth_link *link) {
    if (table->count == table->bucket_count && !grow(table)) {
        return false;
    }
    push(table, link);
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

static struct hearth_link *find_from(struct hearth_link *link, struct hearth_digest key) {
    while (link != NULL && !hearth_digest_equal(link->key, key)) {
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
