/* The salt of a request: requests with the same salt share state. State is found by a chain of digests that begins with
 * the salt (tier/record.h), so requests with different salts never see each other's state, whatever their prompts are.
 * The time of an answer therefore tells nothing about the prompts of another key.
 *
 * The salt is made of the API key, where there are several, and of the request's own cache_salt. It is a cryptographic
 * digest, because a client could otherwise choose a cache_salt that collides with another client's. The name of each
 * part is hashed in front of it, so that a key is never taken for a cache_salt. Source of the field: vLLM's cache_salt.
 */
#include "api/internal.h"

#include <openssl/evp.h>
#include <string.h>

/* SHA-256 over the salt before, the kind and the text; the first half of it. False: out of memory. */
static bool mix(struct hearth_digest *salt, const char *kind, const char *text, size_t len) {
    unsigned char hash[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const bool ok = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1 &&
                    EVP_DigestUpdate(context, salt, sizeof *salt) == 1 &&
                    EVP_DigestUpdate(context, kind, strlen(kind) + 1) == 1 &&
                    EVP_DigestUpdate(context, text, len) == 1 && EVP_DigestFinal_ex(context, hash, NULL) == 1;
    EVP_MD_CTX_free(context);
    if (ok) {
        memcpy(salt, hash, sizeof *salt);
    }
    return ok;
}

bool hearth_salt_of_key(const char *key, struct hearth_digest *out) {
    *out = (struct hearth_digest){0, 0};
    return mix(out, "hearth api key", key, strlen(key));
}

bool hearth_salt_of_owner(const char *name, struct hearth_digest *out) {
    *out = (struct hearth_digest){0, 0};
    return mix(out, "hearth owner", name, strlen(name));
}

void hearth_salt_secret(const struct hearth_api *api, uint8_t out[32]) {
    if (api->store != NULL) {
        hearth_session_store_secret(api->store, out);
    } else {
        memcpy(out, api->secret, sizeof api->secret);
    }
}

bool hearth_salt_read(const json_t *body, struct hearth_digest *salt, struct hearth_api_error *error) {
    const json_t *value;
    if (!hearth_field_get(body, "cache_salt", HEARTH_FIELD_TEXT, &value, error)) {
        return false;
    }
    if (value == NULL) {
        return true;
    }
    if (json_string_length(value) == 0) {
        return hearth_api_fail(error, 400, "invalid_value", "cache_salt", "cache_salt must not be empty");
    }
    return mix(salt, "hearth cache_salt", json_string_value(value), json_string_length(value));
}
