/* A table with a list in order of use. Values are found by the digest of their canonical text and then compared, so
 * that no two different ones stand for each other. */
#include "session/originals.h"

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

struct hearth_originals {
    pthread_mutex_t mutex;
    struct hearth_table table;
    struct hearth_lru lru;
    size_t bytes, budget_bytes;
};

static void evict(struct hearth_originals *originals, size_t budget_bytes) {
    while (originals->lru.oldest != NULL && originals->bytes > budget_bytes) {
        struct original *each = (struct original *)originals->lru.oldest;
        hearth_lru_remove(&originals->lru, &each->lru);
        hearth_table_remove(&originals->table, &each->lru.link);
        originals->bytes -= each->bytes;
        json_decref(each->value);
        free(each);
    }
}

struct hearth_originals *hearth_originals_create(size_t budget_bytes) {
    struct hearth_originals *originals = calloc(1, sizeof *originals);
    if (originals != NULL) {
        pthread_mutex_init(&originals->mutex, NULL);
        originals->budget_bytes = budget_bytes;
    }
    return originals;
}

void hearth_originals_destroy(struct hearth_originals *originals) {
    if (originals != NULL) {
        evict(originals, 0);
        hearth_table_finish(&originals->table);
        pthread_mutex_destroy(&originals->mutex);
        free(originals);
    }
}

static struct original *find(const struct hearth_originals *originals, struct hearth_digest key, const json_t *value) {
    struct hearth_link *link = hearth_table_find(&originals->table, key);
    while (link != NULL && !json_equal(((struct original *)link)->value, value)) {
        link = hearth_table_next(link);
    }
    return (struct original *)link;
}

static void add(struct hearth_originals *originals, struct hearth_digest key, json_t *value, size_t bytes) {
    struct original *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return; /* it will be printed as it comes */
    }
    made->lru.link.key = key;
    made->bytes = sizeof *made + bytes * BYTES_PER_BYTE;
    if (made->bytes > originals->budget_bytes || !hearth_table_add(&originals->table, &made->lru.link)) {
        free(made);
        return;
    }
    made->value = json_incref(value);
    hearth_lru_add(&originals->lru, &made->lru);
    originals->bytes += made->bytes;
    evict(originals, originals->budget_bytes);
}

json_t *hearth_originals_of(struct hearth_originals *originals, struct hearth_digest salt, json_t *value) {
    char *text = hearth_json_canonical(value);
    if (text == NULL) {
        return json_incref(value);
    }
    const size_t bytes = strlen(text);
    const struct hearth_digest key = hearth_digest_chain(salt, text, bytes);
    free(text);
    pthread_mutex_lock(&originals->mutex);
    struct original *found = find(originals, key, value);
    if (found != NULL) {
        hearth_lru_touch(&originals->lru, &found->lru);
    } else {
        add(originals, key, value, bytes);
    }
    json_t *first = json_incref(found != NULL ? found->value : value);
    pthread_mutex_unlock(&originals->mutex);
    return first;
}
