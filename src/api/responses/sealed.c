/* Text that clients keep for us and cannot read or change: reasoning and summaries, as "encrypted_content".
 *
 * Form: base64 of version (1 byte) | kind (1 byte) | nonce | tag | the text under AES-256-GCM. Version and kind are
 * authenticated, too, so that neither can be passed off as the other. The key follows from the store's secret and is
 * the same after a restart; without a database it lasts as long as the process. */
#include "api/responses/responses.h"

#include "base/seal.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

enum { VERSION = 1, HEAD_BYTES = 2, FRAME_BYTES = HEAD_BYTES + HEARTH_SEAL_NONCE_BYTES + HEARTH_SEAL_TAG_BYTES };

/* More than any text that was sealed here: OpenSSL counts in int. */
#define SEALED_MAX ((size_t)256 << 20)

char *hearth_api_sealed_close(const struct hearth_api *api, enum hearth_api_sealed_kind kind, const char *text,
                              size_t len) {
    struct hearth_seal *seal = NULL;
    char *out = NULL;
    uint8_t secret[32];
    hearth_salt_secret(api, secret);
    if (len > SEALED_MAX || hearth_seal_create_from(secret, &seal, NULL) != HEARTH_OK) {
        return NULL;
    }
    uint8_t *frame = malloc(FRAME_BYTES + len);
    if (frame != NULL) {
        frame[0] = VERSION;
        frame[1] = (uint8_t)kind;
        memcpy(frame + FRAME_BYTES, text, len);
        if (hearth_seal_close(seal, frame, HEAD_BYTES, frame + FRAME_BYTES, len, frame + HEAD_BYTES,
                              frame + HEAD_BYTES + HEARTH_SEAL_NONCE_BYTES)) {
            out = malloc((FRAME_BYTES + len + 2) / 3 * 4 + 1);
        }
        if (out != NULL) {
            EVP_EncodeBlock((unsigned char *)out, frame, (int)(FRAME_BYTES + len));
        }
    }
    free(frame);
    hearth_seal_destroy(seal);
    return out;
}

/* Takes a frame apart, in place. */
static char *open_frame(const struct hearth_api *api, enum hearth_api_sealed_kind kind, uint8_t *frame, size_t len) {
    struct hearth_seal *seal = NULL;
    char *out = NULL;
    uint8_t secret[32];
    hearth_salt_secret(api, secret);
    if (len < FRAME_BYTES || frame[0] != VERSION || frame[1] != (uint8_t)kind ||
        hearth_seal_create_from(secret, &seal, NULL) != HEARTH_OK) {
        return NULL;
    }
    if (hearth_seal_open(seal, frame, HEAD_BYTES, frame + FRAME_BYTES, len - FRAME_BYTES, frame + HEAD_BYTES,
                         frame + HEAD_BYTES + HEARTH_SEAL_NONCE_BYTES)) {
        out = strndup((const char *)frame + FRAME_BYTES, len - FRAME_BYTES);
    }
    hearth_seal_destroy(seal);
    return out;
}

/* Bits that base64 does not use are free to change: only the text that was handed out is taken. */
static bool encodes_as(const uint8_t *frame, size_t len, const char *text) {
    char *again = malloc((len + 2) / 3 * 4 + 1);
    bool same = false;
    if (again != NULL) {
        EVP_EncodeBlock((unsigned char *)again, frame, (int)len);
        same = strcmp(again, text) == 0;
    }
    free(again);
    return same;
}

char *hearth_api_sealed_open(const struct hearth_api *api, enum hearth_api_sealed_kind kind, const char *text) {
    const size_t len = strlen(text);
    size_t padding = 0;
    if (len == 0 || len % 4 != 0 || len > SEALED_MAX) {
        return NULL;
    }
    uint8_t *frame = malloc(len / 4 * 3 + 1);
    if (frame == NULL) {
        return NULL;
    }
    while (padding < 2 && text[len - 1 - padding] == '=') {
        padding++;
    }
    const int bytes = EVP_DecodeBlock(frame, (const unsigned char *)text, (int)len);
    char *out = NULL;
    if (bytes >= (int)padding && encodes_as(frame, (size_t)bytes - padding, text)) {
        out = open_frame(api, kind, frame, (size_t)bytes - padding);
    }
    free(frame);
    return out;
}
