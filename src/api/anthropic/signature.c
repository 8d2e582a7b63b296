/* Signatures of thinking: a client keeps it and sends it back, and must not have changed it.
 *
 * Form: base64 of HMAC-SHA256 of the text (32 bytes) | key (3 bytes) | version (1 byte). The key is named by a digest
 * of it, so that what another server has signed, or this one under a secret that is lost, can be told from what was
 * changed. White space around the text is not signed: clients trim it. */
#include "api/anthropic/anthropic.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

enum { VERSION = 1, HASH_BYTES = 32, KEY_BYTES = 3, FRAME_BYTES = HASH_BYTES + KEY_BYTES + 1 };

_Static_assert(FRAME_BYTES % 3 == 0 && FRAME_BYTES / 3 * 4 == HEARTH_SIGNATURE_CHARS, "no padding");

static bool keyed_hash(const struct hearth_api *api, const char *label, const char *text, size_t len,
                       unsigned char out[HASH_BYTES]) {
    struct hearth_buf input = {0};
    unsigned size = 0;
    uint8_t secret[32];
    hearth_salt_secret(api, secret);
    const bool ok = hearth_buf_append(&input, label, strlen(label) + 1) && hearth_buf_append(&input, text, len) &&
                    HMAC(EVP_sha256(), secret, sizeof secret, input.data, input.len, out, &size) != NULL &&
                    size == HASH_BYTES;
    hearth_buf_finish(&input);
    return ok;
}

static bool make_frame(const struct hearth_api *api, const char *text, size_t len, unsigned char frame[FRAME_BYTES]) {
    unsigned char key[HASH_BYTES];
    text = hearth_message_trim(text, &len);
    if (!keyed_hash(api, "hearth thinking key", "", 0, key) || !keyed_hash(api, "hearth thinking", text, len, frame)) {
        return false;
    }
    memcpy(frame + HASH_BYTES, key, KEY_BYTES);
    frame[HASH_BYTES + KEY_BYTES] = VERSION;
    return true;
}

bool hearth_signature_make(const struct hearth_api *api, const char *text, size_t len,
                           char out[HEARTH_SIGNATURE_CHARS + 1]) {
    unsigned char frame[FRAME_BYTES];
    if (!make_frame(api, text, len, frame)) {
        return false;
    }
    EVP_EncodeBlock((unsigned char *)out, frame, FRAME_BYTES);
    return true;
}

enum hearth_signature hearth_signature_check(const struct hearth_api *api, const char *text, size_t len,
                                             const char *signature) {
    unsigned char given[FRAME_BYTES], own[FRAME_BYTES];
    if (strlen(signature) != HEARTH_SIGNATURE_CHARS ||
        EVP_DecodeBlock(given, (const unsigned char *)signature, HEARTH_SIGNATURE_CHARS) != FRAME_BYTES ||
        !make_frame(api, text, len, own) || memcmp(given + HASH_BYTES, own + HASH_BYTES, KEY_BYTES + 1) != 0) {
        return HEARTH_SIGNATURE_FOREIGN;
    }
    return CRYPTO_memcmp(given, own, FRAME_BYTES) == 0 ? HEARTH_SIGNATURE_VALID : HEARTH_SIGNATURE_WRONG;
}
