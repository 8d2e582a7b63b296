/* Payloads of rows. Format in sealed_row.h. */
#include "session/sealed_row.h"

#include "base/digest.h"

#include <string.h>

#define SEAL_BYTES (HEARTH_SEAL_NONCE_BYTES + HEARTH_SEAL_TAG_BYTES)

static uint64_t checksum(const void *about, size_t about_len, const void *bytes, size_t len) {
    return hearth_digest_chain(hearth_digest_bytes(about, about_len), bytes, len).lo;
}

int hearth_sealed_row_close(const struct hearth_seal *seal, const void *about, size_t about_len,
                            struct hearth_buf *row) {
    const uint64_t sum = checksum(about, about_len, row->data, row->len);
    if (!hearth_buf_append(row, &sum, sizeof sum)) {
        return HEARTH_ERR_NOMEM;
    }
    if (seal == NULL) {
        return HEARTH_OK;
    }
    uint8_t head[SEAL_BYTES];
    if (!hearth_buf_reserve(row, SEAL_BYTES)) {
        return HEARTH_ERR_NOMEM;
    }
    if (!hearth_seal_close(seal, about, about_len, row->data, row->len, head, head + HEARTH_SEAL_NONCE_BYTES)) {
        return HEARTH_ERR_IO;
    }
    (void)hearth_buf_append(row, head, sizeof head);
    return HEARTH_OK;
}

bool hearth_sealed_row_open(const struct hearth_seal *seal, const void *about, size_t about_len, void *row,
                            size_t *len) {
    uint64_t sum;
    if (seal != NULL) {
        if (*len < SEAL_BYTES) {
            return false;
        }
        *len -= SEAL_BYTES;
        const uint8_t *head = (const uint8_t *)row + *len;
        if (!hearth_seal_open(seal, about, about_len, row, *len, head, head + HEARTH_SEAL_NONCE_BYTES)) {
            return false;
        }
    }
    if (*len < sizeof sum) {
        return false;
    }
    *len -= sizeof sum;
    memcpy(&sum, (const uint8_t *)row + *len, sizeof sum);
    return sum == checksum(about, about_len, row, *len);
}
