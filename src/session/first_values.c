/* A table with a list in order of use. Values are found by the digest of their canonical text and then compared, so
 * that no two different ones stand for each other. */
#include "session/first_values.h"

#include "base/lru.h"
#include "session/message.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_PER_BYTE 8 /* of memory, about, for a byte of JSON text: a string or a member is a block of its own */

struct original {
    struct hearth_lru_entry lru; /* first, so that it converts; by salt and canonical text */
    json_t *value;
    size_t bytes;
};

struct hearth_first_values {
    pthread_mutex_t mutex;
    struct hearth_table table;
    struct hearth_lru lru;
    size_t bytes, budget_bytes;
};

static void evict(struct hearth_first_values *first_values, size_t budget_bytes) {
    while (first_values->lru.oldest != NULL && first_values->bytes > budget_bytes) {
        struct original *each = (struct original *)first_values->lru.oldest;
        hearth_lru_remove(&first_values->lru, &each->lru);
        hearth_table_remove(&first_values->table, &each->lru.link);
        first_values->bytes -= each->bytes;
        json_decref(each->value);
        free(each);
    }
}

struct hearth_first_values *hearth_first_values_create(size_t budget_bytes) {
    struct hearth_first_values *first_values = calloc(1, sizeof *first_values);
    if (first_values != NULL) {
        pthread_mutex_init(&first_values->mutex, NULL);
        first_values->budget_bytes = budget_bytes;
    }
    return first_values;
}

void hearth_first_values_destroy(struct hearth_first_values *first_values) {
    if (first_values != NULL) {
        evict(first_values, 0);
        hearth_table_finish(&first_values->table);
        pthread_mutex_destroy(&first_values->mutex);
        free(first_values);
    }
}

static struct original *find(const struct hearth_first_values *first_values, struct hearth_digest key,
                             const json_t *value) {
    struct hearth_link *link = hearth_table_find(&first_values->table, key);
    while (link != NULL && !json_equal(((struct original *)link)->value, value)) {
        link = hearth_table_next(link);
    }
    return (struct original *)link;
}

static void add(struct hearth_first_values *first_values, struct hearth_digest key, json_t *value, size_t bytes) {
    struct original *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return; /* it will be printed as it comes */
    }
    made->lru.link.key = key;
    made->bytes = sizeof *made + bytes * BYTES_PER_BYTE;
    if (made->bytes > first_values->budget_bytes || !hearth_table_add(&first_values->table, &made->lru.link)) {
        free(made);
        return;
    }
    made->value = json_incref(value);
    hearth_lru_add(&first_values->lru, &made->lru);
    first_values->bytes += made->bytes;
    evict(first_values, first_values->budget_bytes);
}

json_t *hearth_first_values_get(struct hearth_first_values *first_values, struct hearth_digest salt, json_t *value) {
    char *text = hearth_json_canonical(value);
    if (text == NULL) {
        return json_incref(value);
    }
    const size_t bytes = strlen(text);
    const struct hearth_digest key = hearth_digest_chain(salt, text, bytes);
    free(text);
    pthread_mutex_lock(&first_values->mutex);
    struct original *found = find(first_values, key, value);
    if (found != NULL) {
        hearth_lru_touch(&first_values->lru, &found->lru);
    } else {
        add(first_values, key, value, bytes);
    }
    json_t *first = json_incref(found != NULL ? found->value : value);
    pthread_mutex_unlock(&first_values->mutex);
    return first;
}
