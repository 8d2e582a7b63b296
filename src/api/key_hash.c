/* See key_hash.h. */
#include "api/key_hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

static const char prefix[] = "sha256:";

bool hearth_key_hash_make(const char *salt, const char *key, struct hearth_key_hash *out) {
    unsigned char hash[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const bool ok = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1 &&
                    EVP_DigestUpdate(context, salt, strlen(salt)) == 1 &&
                    EVP_DigestUpdate(context, key, strlen(key)) == 1 && EVP_DigestFinal_ex(context, hash, NULL) == 1;
    EVP_MD_CTX_free(context);
    if (ok) {
        snprintf(out->salt, sizeof out->salt, "%s", salt);
        memcpy(out->digest, hash, sizeof out->digest);
    }
    return ok;
}

bool hearth_key_hash_is(const char *text) {
    return strncmp(text, prefix, sizeof prefix - 1) == 0;
}

bool hearth_key_hash_read(const char *text, struct hearth_key_hash *out) {
    *out = (struct hearth_key_hash){.salt = ""};
    if (!hearth_key_hash_is(text)) {
        return false;
    }
    text += sizeof prefix - 1;
    const char *colon = strchr(text, ':');
    if (colon != NULL) {
        const size_t len = (size_t)(colon - text);
        if (len == 0 || len > HEARTH_KEY_HASH_SALT_MAX) {
            return false;
        }
        memcpy(out->salt, text, len);
        text = colon + 1;
    }
    size_t bytes;
    return OPENSSL_hexstr2buf_ex(out->digest, sizeof out->digest, &bytes, text, '\0') == 1 &&
           bytes == sizeof out->digest;
}

void hearth_key_hash_print(const struct hearth_key_hash *hash, char out[HEARTH_KEY_HASH_TEXT_MAX]) {
    int at = snprintf(out, HEARTH_KEY_HASH_TEXT_MAX, "%s%s%s", prefix, hash->salt, *hash->salt != '\0' ? ":" : "");
    for (size_t i = 0; i < HEARTH_KEY_HASH_BYTES; i++) {
        at += snprintf(out + at, HEARTH_KEY_HASH_TEXT_MAX - (size_t)at, "%02x", hash->digest[i]);
    }
}

bool hearth_key_hash_equal(const struct hearth_key_hash *a, const struct hearth_key_hash *b) {
    return CRYPTO_memcmp(a->digest, b->digest, sizeof a->digest) == 0;
}
