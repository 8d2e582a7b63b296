/* The API keys, and the owner of a request.
 *
 * The list of keys is immutable: hearth_api_set_keys() replaces it as a whole, under a mutex that is held only while
 * keys are compared. What a request needs to know of its key is copied at that moment, so nothing uses the list
 * afterwards.
 *
 * Keys are stored as hashes, salted by their line or by a salt of this process. The key of a request is hashed with
 * each salt and compared with every hash in constant time.
 *
 * A key with a name belongs to the owner of that name, so that a key can be replaced; as a tenant, the owner is a
 * digest of the name. A key without a name is an owner of its own, known by its digest. As a salt and in the store an
 * owner is what the store has recorded for it (session/store_owner.c). Adding other keys changes none of this. */
#include "api/job.h"
#include "api/key_hash.h"
#include "api/quota.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "session/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

struct key {
    struct hearth_key_hash hash;
    struct hearth_caller caller; /* of a key without a name: what does not depend on the request */
    struct hearth_owner_quota *owner;
    bool named, owner_known; /* owner_known: the store has named the owner */
};

struct hearth_api_keys {
    size_t count;
    struct key keys[];
};

/* What an owner has used of its limits. It stays when keys are read again. */
struct hearth_owner_quota {
    struct hearth_owner_quota *next;
    struct hearth_quota *quota;
    char id[HEARTH_KEY_HASH_TEXT_MAX]; /* a name, or a key's hash */
    char name[48];                     /* "": no request has brought the key yet */
    const void *list;                  /* the list whose limits were last applied */
};

/* ---- limits ---- */

/* The quota of a key. Keys of one name share a quota, with the limits of one of them. NULL: out of memory. */
static struct hearth_owner_quota *quota_of(struct hearth_api *api, const struct hearth_api_keys *list, const char *id,
                                           const struct hearth_api_limits *limits) {
    struct hearth_owner_quota *at = api->quotas;
    while (at != NULL && strcmp(at->id, id) != 0) {
        at = at->next;
    }
    if (at == NULL) {
        at = calloc(1, sizeof *at);
        struct hearth_quota *quota = at != NULL ? hearth_quota_create() : NULL;
        if (quota == NULL) {
            free(at);
            return NULL;
        }
        *at = (struct hearth_owner_quota){.next = api->quotas, .quota = quota};
        snprintf(at->id, sizeof at->id, "%s", id);
        api->quotas = at;
    }
    const struct hearth_api_limits none = {0};
    if (at->list != list || memcmp(limits, &none, sizeof none) != 0) {
        at->list = list;
        hearth_quota_set(at->quota, limits);
    }
    return at;
}

/* ---- the list ---- */

static bool fill(struct hearth_api *api, const struct hearth_api_keys *list, const struct hearth_api_key *from,
                 struct key *key) {
    struct hearth_caller *caller = &key->caller;
    char id[HEARTH_KEY_HASH_TEXT_MAX];
    HEARTH_ASSERT(from->key[0] != '\0');
    *caller = (struct hearth_caller){.highest = from->highest, .scopes = from->scopes};
    caller->scopes = caller->scopes != 0 ? caller->scopes : HEARTH_SCOPE_ALL;
    caller->tenant.weight = from->weight;
    key->named = from->name != NULL;
    if (hearth_key_hash_is(from->key) ? !hearth_key_hash_read(from->key, &key->hash)
                                      : !hearth_key_hash_make(api->key_salt, from->key, &key->hash)) {
        return false;
    }
    hearth_key_hash_print(&key->hash, id);
    if (key->named) {
        snprintf(caller->name, sizeof caller->name, "%s", from->name);
        snprintf(id, sizeof id, "%s", from->name);
        if (!hearth_salt_of_owner(from->name, &caller->salt)) {
            return false;
        }
        memcpy(&caller->tenant.id, &caller->salt, sizeof caller->tenant.id);
    }
    key->owner = quota_of(api, list, id, &from->limits);
    caller->quota = key->owner != NULL ? key->owner->quota : NULL;
    return key->owner != NULL;
}

static struct hearth_api_keys *create(struct hearth_api *api, const struct hearth_api_key *from, size_t count) {
    struct hearth_api_keys *keys = calloc(1, sizeof *keys + count * sizeof keys->keys[0]);
    bool ok = keys != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        keys->count++;
        ok = fill(api, keys, &from[i], &keys->keys[i]);
    }
    if (!ok) {
        free(keys);
        keys = NULL;
    }
    return keys;
}

bool hearth_api_keys_init(struct hearth_api *api, const struct hearth_api_key *keys, size_t count) {
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, 0) != (ssize_t)sizeof bits) {
        return false;
    }
    snprintf(api->key_salt, sizeof api->key_salt, "%016" PRIx64, bits);
    api->keys = create(api, keys, count);
    return api->keys != NULL;
}

void hearth_api_keys_finish(struct hearth_api *api) {
    free(api->keys);
    for (struct hearth_owner_quota *at = api->quotas, *next; at != NULL; at = next) {
        next = at->next;
        hearth_quota_destroy(at->quota);
        free(at);
    }
    pthread_mutex_destroy(&api->keys_mutex);
}

int hearth_api_set_keys(struct hearth_api *api, const struct hearth_api_key *keys, size_t count) {
    pthread_mutex_lock(&api->keys_mutex);
    struct hearth_api_keys *old = api->keys, *fresh = create(api, keys, count);
    api->keys = fresh != NULL ? fresh : old;
    pthread_mutex_unlock(&api->keys_mutex);
    if (fresh == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    hearth_http_set_keyed(api->http, count > 0);
    if (old->count == 0 && count > 1) {
        hearth_log(HEARTH_LOG_WARN, "api: several keys, which share nothing: what was cached and stored without keys "
                                    "belongs to no key now");
    }
    free(old);
    return HEARTH_OK;
}

/* Finds the owner of a valid key. If it is the only key, the owner takes over what was stored while there were no keys.
 */
static bool identify(struct hearth_api *api, struct key *key, const char *given, struct hearth_caller *caller) {
    const bool alone = api->keys->count == 1;
    struct hearth_digest digest;
    *caller = key->caller;
    if (!hearth_salt_of_key(given, &digest)) {
        return false;
    }
    if (!key->owner_known) {
        const struct hearth_digest name = key->named ? caller->salt : digest;
        key->owner_known = hearth_session_owner(api->store, name, digest, alone, &caller->salt) == HEARTH_OK;
        key->caller.salt = key->owner_known ? caller->salt : key->caller.salt;
    }
    if (!key->named) {
        memcpy(&caller->tenant.id, &digest, sizeof caller->tenant.id);
        snprintf(caller->name, sizeof caller->name, "key-%06x", (unsigned)(caller->tenant.id & 0xFFFFFF));
    }
    struct hearth_quota_state state;
    hearth_quota_read(caller->quota, hearth_clock_us(), &state);
    caller->stored = state.stored;
    snprintf(key->owner->name, sizeof key->owner->name, "%s", caller->name);
    return true;
}

static struct key *find(struct hearth_api_keys *keys, const char *given) {
    struct hearth_key_hash hash = {.salt = ""};
    struct key *found = NULL;
    bool hashed = false;
    for (size_t i = 0; i < keys->count; i++) {
        struct key *key = &keys->keys[i];
        if (!hashed || strcmp(hash.salt, key->hash.salt) != 0) {
            hashed = hearth_key_hash_make(key->hash.salt, given, &hash);
        }
        if (hashed && hearth_key_hash_equal(&hash, &key->hash)) {
            found = key;
        }
    }
    return found;
}

bool hearth_api_authorize(struct hearth_api *api, const struct hearth_http_exchange *exchange,
                          struct hearth_caller *caller) {
    const char *given = hearth_http_header(exchange, "authorization");
    *caller = (struct hearth_caller){.highest = HEARTH_CLASS_INTERACTIVE, .scopes = HEARTH_SCOPE_ALL};
    if (given != NULL && strncasecmp(given, "Bearer ", 7) == 0) {
        given += 7;
    } else {
        given = hearth_http_header(exchange, "x-api-key");
    }
    pthread_mutex_lock(&api->keys_mutex);
    bool found = api->keys->count == 0;
    if (!found && given != NULL && strnlen(given, HEARTH_KEY_BYTES_MAX) < HEARTH_KEY_BYTES_MAX) {
        struct key *key = find(api->keys, given);
        found = key != NULL && identify(api, key, given, caller);
    }
    if (!found) {
        caller->scopes = 0;
    }
    pthread_mutex_unlock(&api->keys_mutex);
    return found;
}

bool hearth_caller_sees(const struct hearth_caller *caller, const struct hearth_job *job) {
    return (caller->scopes & HEARTH_SCOPE_ADMIN) != 0 || (job != NULL && job->caller.tenant.id == caller->tenant.id);
}

void hearth_api_keys_each(struct hearth_api *api,
                          void (*each)(void *user, const char *name, struct hearth_quota *quota), void *user) {
    pthread_mutex_lock(&api->keys_mutex);
    for (struct hearth_owner_quota *at = api->quotas; at != NULL; at = at->next) {
        if (*at->name != '\0') {
            each(user, at->name, at->quota);
        }
    }
    pthread_mutex_unlock(&api->keys_mutex);
}
