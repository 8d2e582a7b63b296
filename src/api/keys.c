/* Who may use the server, and who a request is from.
 *
 * The keys are one list that is never changed: hearth_api_set_keys() puts another one in its place, under a mutex that
 * is held for as long as it takes to compare keys. What a request needs to know of its key is copied then, so that
 * nothing of the list is used afterwards.
 *
 * A key is known by its digest: as a tenant, as a salt, and by name where it has been given none. All of this is the
 * same whatever stands beside it, and in whatever order. */
#include "api/api_internal.h"

#include "base/assert.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct key {
    char *text;
    struct hearth_caller caller;
};

struct hearth_keys {
    size_t count;
    struct key keys[];
};

static void destroy(struct hearth_keys *keys) {
    for (size_t i = 0; keys != NULL && i < keys->count; i++) {
        free(keys->keys[i].text);
    }
    free(keys);
}

static bool fill(const struct hearth_api_key *from, bool alone, struct key *key) {
    struct hearth_caller *caller = &key->caller;
    struct hearth_digest digest;
    HEARTH_ASSERT(from->key[0] != '\0');
    key->text = strdup(from->key);
    if (key->text == NULL || !hearth_salt_of_key(from->key, &digest)) {
        return false;
    }
    *caller = (struct hearth_caller){.salt = digest, .highest = from->highest};
    memcpy(&caller->tenant.id, &digest, sizeof caller->tenant.id);
    caller->tenant.weight = from->weight;
    if (from->name != NULL) {
        snprintf(caller->name, sizeof caller->name, "%s", from->name);
    } else {
        snprintf(caller->name, sizeof caller->name, "key-%06x", (unsigned)(caller->tenant.id & 0xFFFFFF));
    }
    if (alone) { /* nobody else has state here */
        caller->salt = (struct hearth_digest){0, 0};
    }
    return true;
}

static struct hearth_keys *create(const struct hearth_api_key *from, size_t count) {
    struct hearth_keys *keys = calloc(1, sizeof *keys + count * sizeof keys->keys[0]);
    for (size_t i = 0; keys != NULL && i < count; i++) {
        keys->count++;
        if (!fill(&from[i], count == 1, &keys->keys[i])) {
            destroy(keys);
            return NULL;
        }
    }
    return keys;
}

bool hearth_keys_init(struct hearth_api *api, const struct hearth_api_key *keys, size_t count) {
    api->keys = create(keys, count);
    return api->keys != NULL;
}

void hearth_keys_finish(struct hearth_api *api) {
    destroy(api->keys);
    pthread_mutex_destroy(&api->keys_mutex);
}

int hearth_api_set_keys(struct hearth_api *api, const struct hearth_api_key *keys, size_t count) {
    struct hearth_keys *fresh = create(keys, count);
    if (fresh == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    pthread_mutex_lock(&api->keys_mutex);
    struct hearth_keys *old = api->keys;
    api->keys = fresh;
    pthread_mutex_unlock(&api->keys_mutex);
    hearth_http_set_keyed(api->http, count > 0);
    if ((old->count > 1) != (count > 1)) {
        hearth_log(HEARTH_LOG_WARN, "api: %s: what was cached and stored before belongs to nobody now",
                   count > 1 ? "several keys, which share nothing" : "no longer several keys");
    }
    destroy(old);
    return HEARTH_OK;
}

/* Compares in a time that depends on the length of what was given only. */
static bool equals(const char *given, const char *key) {
    size_t given_len = strlen(given);
    size_t key_len = strlen(key);
    unsigned differ = given_len != key_len;
    for (size_t i = 0; i < given_len; i++) {
        differ |= (unsigned)((unsigned char)given[i] ^ (unsigned char)key[i % key_len]);
    }
    return differ == 0;
}

bool hearth_api_authorize(struct hearth_api *api, const struct hearth_http_exchange *exchange,
                          struct hearth_caller *caller) {
    const char *given = hearth_http_header(exchange, "authorization");
    *caller = (struct hearth_caller){.highest = HEARTH_CLASS_INTERACTIVE};
    if (given != NULL && strncasecmp(given, "Bearer ", 7) == 0) {
        given += 7;
    } else {
        given = hearth_http_header(exchange, "x-api-key");
    }
    pthread_mutex_lock(&api->keys_mutex);
    bool found = api->keys->count == 0;
    for (size_t i = 0; given != NULL && i < api->keys->count; i++) {
        if (equals(given, api->keys->keys[i].text)) {
            *caller = api->keys->keys[i].caller;
            found = true;
        }
    }
    pthread_mutex_unlock(&api->keys_mutex);
    return found;
}
