/* An LRU list under a lock. The bytes of a message are stored and compared: with a digest alone, two different
 * messages could stand for each other. */
#include "session/message_cache.h"

#include "base/lru.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct cached_message {
    struct hearth_lru_entry lru; /* first, so that it converts */
    struct hearth_message *message;
    struct hearth_digest salt;
    size_t len;
    char bytes[];
};

struct hearth_message_cache {
    pthread_mutex_t mutex;
    struct hearth_lru lru;
};

static void release(struct cached_message *entry) {
    hearth_message_unref(entry->message);
    free(entry);
}

static void evict(struct hearth_message_cache *cache) {
    for (struct hearth_lru_entry *entry; (entry = hearth_lru_evict(&cache->lru)) != NULL;) {
        release((struct cached_message *)entry);
    }
}

static struct cached_message *find(const struct hearth_message_cache *cache, struct hearth_digest salt,
                                   struct hearth_digest key, const char *bytes, size_t len) {
    struct hearth_link *link = hearth_table_find(&cache->lru.table, key);
    for (; link != NULL; link = hearth_table_next(link)) {
        struct cached_message *entry = (struct cached_message *)link;
        if (entry->len == len && hearth_digest_equal(entry->salt, salt) && memcmp(entry->bytes, bytes, len) == 0) {
            return entry;
        }
    }
    return NULL;
}

struct hearth_message_cache *hearth_message_cache_create(size_t budget_bytes) {
    struct hearth_message_cache *cache = calloc(1, sizeof *cache);
    if (cache != NULL) {
        pthread_mutex_init(&cache->mutex, NULL);
        cache->lru.budget_bytes = budget_bytes;
    }
    return cache;
}

void hearth_message_cache_destroy(struct hearth_message_cache *cache) {
    if (cache != NULL) {
        cache->lru.budget_bytes = 0;
        evict(cache);
        hearth_lru_finish(&cache->lru);
        pthread_mutex_destroy(&cache->mutex);
        free(cache);
    }
}

struct hearth_message *hearth_message_cache_get(struct hearth_message_cache *cache, struct hearth_digest salt,
                                                const char *bytes, size_t len) {
    struct hearth_digest key = hearth_digest_chain(salt, bytes, len);
    struct hearth_message *message = NULL;
    pthread_mutex_lock(&cache->mutex);
    struct cached_message *entry = find(cache, salt, key, bytes, len);
    if (entry != NULL) {
        hearth_lru_touch(&cache->lru, &entry->lru);
        message = hearth_message_ref(entry->message);
    }
    pthread_mutex_unlock(&cache->mutex);
    return message;
}

void hearth_message_cache_put(struct hearth_message_cache *cache, struct hearth_digest salt, const char *bytes,
                              size_t len, struct hearth_message *message) {
    struct cached_message *entry = malloc(sizeof *entry + len);
    if (entry == NULL) {
        return;
    }
    *entry = (struct cached_message){.lru.link.key = hearth_digest_chain(salt, bytes, len),
                                     .lru.bytes = sizeof *entry + len + message->bytes,
                                     .message = hearth_message_ref(message),
                                     .salt = salt,
                                     .len = len};
    memcpy(entry->bytes, bytes, len);
    pthread_mutex_lock(&cache->mutex);
    if (find(cache, salt, entry->lru.link.key, bytes, len) != NULL || !hearth_lru_add(&cache->lru, &entry->lru, NULL)) {
        release(entry);
    }
    evict(cache);
    pthread_mutex_unlock(&cache->mutex);
}
