/* An LRU list under a lock. Values are found by the digest of their canonical text and then compared, so two
 * different values never stand for each other. */
#include "session/first_values.h"

#include "base/lru.h"
#include "session/message.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_PER_BYTE 8 /* of memory, about, for a byte of JSON text: each string and member is an allocation */

struct first_value {
    struct hearth_lru_entry lru; /* first, so that it converts; by salt and canonical text */
    json_t *value;
};

struct hearth_first_values {
    pthread_mutex_t mutex;
    struct hearth_lru lru;
};

static void evict(struct hearth_first_values *values) {
    for (struct hearth_lru_entry *entry; (entry = hearth_lru_evict(&values->lru)) != NULL; free(entry)) {
        json_decref(((struct first_value *)entry)->value);
    }
}

struct hearth_first_values *hearth_first_values_create(size_t budget_bytes) {
    struct hearth_first_values *values = calloc(1, sizeof *values);
    if (values != NULL) {
        pthread_mutex_init(&values->mutex, NULL);
        values->lru.budget_bytes = budget_bytes;
    }
    return values;
}

void hearth_first_values_destroy(struct hearth_first_values *values) {
    if (values != NULL) {
        values->lru.budget_bytes = 0;
        evict(values);
        hearth_lru_finish(&values->lru);
        pthread_mutex_destroy(&values->mutex);
        free(values);
    }
}

static struct first_value *find(const struct hearth_first_values *values, struct hearth_digest key,
                                const json_t *value) {
    struct hearth_link *link = hearth_table_find(&values->lru.table, key);
    while (link != NULL && !json_equal(((struct first_value *)link)->value, value)) {
        link = hearth_table_next(link);
    }
    return (struct first_value *)link;
}

/* Adds a value. One that finds no room will be printed as it comes. */
static void add(struct hearth_first_values *values, struct hearth_digest key, json_t *value, size_t text_bytes) {
    struct first_value *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return;
    }
    made->lru.link.key = key;
    made->lru.bytes = sizeof *made + text_bytes * BYTES_PER_BYTE;
    made->value = value;
    if (made->lru.bytes > values->lru.budget_bytes || !hearth_lru_add(&values->lru, &made->lru, NULL)) {
        free(made);
        return;
    }
    json_incref(value);
    evict(values);
}

json_t *hearth_first_values_get(struct hearth_first_values *values, struct hearth_digest salt, json_t *value) {
    char *text = hearth_json_canonical(value);
    if (text == NULL) {
        return json_incref(value);
    }
    const size_t bytes = strlen(text);
    const struct hearth_digest key = hearth_digest_chain(salt, text, bytes);
    free(text);
    pthread_mutex_lock(&values->mutex);
    struct first_value *found = find(values, key, value);
    if (found != NULL) {
        hearth_lru_touch(&values->lru, &found->lru);
    } else {
        add(values, key, value, bytes);
    }
    json_t *first = json_incref(found != NULL ? found->value : value);
    pthread_mutex_unlock(&values->mutex);
    return first;
}
