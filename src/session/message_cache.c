/* A table with a list in order of use. The bytes are kept and compared: a digest alone would let two different messages
 * stand for each other. */
#include "session/message_cache.h"

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

struct hearth_message_cache {
    pthread_mutex_t mutex;
    struct hearth_table table;
    struct hearth_lru lru;
    size_t bytes, budget_bytes;
};

static size_t memory_of(const struct entry *entry) {
    return sizeof *entry + entry->len + entry->message->bytes;
}

static void evict(struct hearth_message_cache *message_cache, size_t budget_bytes) {
    while (message_cache->lru.oldest != NULL && message_cache->bytes > budget_bytes) {
        struct entry *entry = (struct entry *)message_cache->lru.oldest;
        hearth_lru_remove(&message_cache->lru, &entry->lru);
        hearth_table_remove(&message_cache->table, &entry->lru.link);
        message_cache->bytes -= memory_of(entry);
        hearth_message_unref(entry->message);
        free(entry);
    }
}

static struct entry *find(const struct hearth_message_cache *message_cache, struct hearth_digest salt,
                          struct hearth_digest key, const char *bytes, size_t len) {
    struct hearth_link *link = hearth_table_find(&message_cache->table, key);
    for (; link != NULL; link = hearth_table_next(link)) {
        struct entry *entry = (struct entry *)link;
        if (entry->len == len && hearth_digest_equal(entry->salt, salt) && memcmp(entry->bytes, bytes, len) == 0) {
            return entry;
        }
    }
    return NULL;
}

struct hearth_message_cache *hearth_message_cache_create(size_t budget_bytes) {
    struct hearth_message_cache *message_cache = calloc(1, sizeof *message_cache);
    if (message_cache != NULL) {
        pthread_mutex_init(&message_cache->mutex, NULL);
        message_cache->budget_bytes = budget_bytes;
    }
    return message_cache;
}

void hearth_message_cache_destroy(struct hearth_message_cache *message_cache) {
    if (message_cache != NULL) {
        evict(message_cache, 0);
        hearth_table_finish(&message_cache->table);
        pthread_mutex_destroy(&message_cache->mutex);
        free(message_cache);
    }
}

struct hearth_message *hearth_message_cache_get(struct hearth_message_cache *message_cache, struct hearth_digest salt,
                                                const char *bytes, size_t len) {
    struct hearth_digest key = hearth_digest_chain(salt, bytes, len);
    struct hearth_message *message = NULL;
    pthread_mutex_lock(&message_cache->mutex);
    struct entry *entry = find(message_cache, salt, key, bytes, len);
    if (entry != NULL) {
        hearth_lru_touch(&message_cache->lru, &entry->lru);
        message = hearth_message_ref(entry->message);
    }
    pthread_mutex_unlock(&message_cache->mutex);
    return message;
}

void hearth_message_cache_put(struct hearth_message_cache *message_cache, struct hearth_digest salt, const char *bytes,
                              size_t len, struct hearth_message *message) {
    struct entry *entry = malloc(sizeof *entry + len);
    if (entry == NULL) {
        return;
    }
    *entry = (struct entry){.lru.link.key = hearth_digest_chain(salt, bytes, len), .salt = salt, .len = len};
    memcpy(entry->bytes, bytes, len);
    entry->message = hearth_message_ref(message);
    pthread_mutex_lock(&message_cache->mutex);
    if (find(message_cache, salt, entry->lru.link.key, bytes, len) != NULL ||
        !hearth_table_add(&message_cache->table, &entry->lru.link)) {
        hearth_message_unref(message);
        free(entry);
    } else {
        hearth_lru_add(&message_cache->lru, &entry->lru);
        message_cache->bytes += memory_of(entry);
        evict(message_cache, message_cache->budget_bytes);
    }
    pthread_mutex_unlock(&message_cache->mutex);
}
