/* A table with a list in order of use. The bytes are kept and compared: a digest alone would let two different messages
 * stand for each other. */
#include "session/intern.h"

#include "base/lru.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct hearth_lru_entry lru; /* first, so that it converts */
    struct hearth_message *message;
    struct hearth_digest salt;
    size_t len;
    char bytes[];
};

struct hearth_intern {
    pthread_mutex_t mutex;
    struct hearth_table table;
    struct hearth_lru lru;
    size_t bytes, budget_bytes;
};

static size_t memory_of(const struct entry *entry) {
    return sizeof *entry + entry->len + entry->message->bytes;
}

static void evict(struct hearth_intern *intern, size_t budget_bytes) {
    while (intern->lru.oldest != NULL && intern->bytes > budget_bytes) {
        struct entry *entry = (struct entry *)intern->lru.oldest;
        hearth_lru_remove(&intern->lru, &entry->lru);
        hearth_table_remove(&intern->table, &entry->lru.link);
        intern->bytes -= memory_of(entry);
        hearth_message_unref(entry->message);
        free(entry);
    }
}

static struct entry *find(const struct hearth_intern *intern, struct hearth_digest salt, struct hearth_digest key,
                          const char *bytes, size_t len) {
    struct hearth_link *link = hearth_table_find(&intern->table, key);
    for (; link != NULL; link = hearth_table_next(link)) {
        struct entry *entry = (struct entry *)link;
        if (entry->len == len && hearth_digest_equal(entry->salt, salt) && memcmp(entry->bytes, bytes, len) == 0) {
            return entry;
        }
    }
    return NULL;
}

struct hearth_intern *hearth_intern_create(size_t budget_bytes) {
    struct hearth_intern *intern = calloc(1, sizeof *intern);
    if (intern != NULL) {
        pthread_mutex_init(&intern->mutex, NULL);
        intern->budget_bytes = budget_bytes;
    }
    return intern;
}

void hearth_intern_destroy(struct hearth_intern *intern) {
    if (intern != NULL) {
        evict(intern, 0);
        hearth_table_finish(&intern->table);
        pthread_mutex_destroy(&intern->mutex);
        free(intern);
    }
}

struct hearth_message *hearth_intern_get(struct hearth_intern *intern, struct hearth_digest salt, const char *bytes,
                                         size_t len) {
    struct hearth_digest key = hearth_digest_chain(salt, bytes, len);
    struct hearth_message *message = NULL;
    pthread_mutex_lock(&intern->mutex);
    struct entry *entry = find(intern, salt, key, bytes, len);
    if (entry != NULL) {
        hearth_lru_touch(&intern->lru, &entry->lru);
        message = hearth_message_ref(entry->message);
    }
    pthread_mutex_unlock(&intern->mutex);
    return message;
}

void hearth_intern_put(struct hearth_intern *intern, struct hearth_digest salt, const char *bytes, size_t len,
                       struct hearth_message *message) {
    struct entry *entry = malloc(sizeof *entry + len);
    if (entry == NULL) {
        return;
    }
    *entry = (struct entry){.lru.link.key = hearth_digest_chain(salt, bytes, len), .salt = salt, .len = len};
    memcpy(entry->bytes, bytes, len);
    entry->message = hearth_message_ref(message);
    pthread_mutex_lock(&intern->mutex);
    if (find(intern, salt, entry->lru.link.key, bytes, len) != NULL ||
        !hearth_table_add(&intern->table, &entry->lru.link)) {
        hearth_message_unref(message);
        free(entry);
    } else {
        hearth_lru_add(&intern->lru, &entry->lru);
        intern->bytes += memory_of(entry);
        evict(intern, intern->budget_bytes);
    }
    pthread_mutex_unlock(&intern->mutex);
}
