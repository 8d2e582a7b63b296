/* The RAM tier: blobs in this process's memory.
 *
 * A blob is one small header and the buffer that came with `put`, shrunk and kept: bytes are never copied. Its
 * checksum is computed at put and again at every view, because libllama may abort on damaged state: whatever wrote
 * over the bytes in between, the engine does not see them.
 *
 * Invariants: `used_bytes` is the sum of hearth_blob_bytes() of the blobs held; a tier is destroyed empty or not,
 * and frees what is left (blobs are linked for that). */
#include "tier/ram.h"

#include "base/assert.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/prefault.h"

#include <stdatomic.h>
#include <stdlib.h>

struct hearth_blob {
    struct hearth_blob *next, **link; /* in the tier's list: `*link` is this blob */
    atomic_uint refs;                 /* the tier's, and those of hearth_blob_ref() */
    uint8_t *bytes;                   /* NULL exactly when len is 0, or the tier is hollow */
    size_t len;
    uint64_t checksum;
};

_Static_assert(sizeof(struct hearth_blob) <= HEARTH_BLOB_OVERHEAD_BYTES, "the overhead that is accounted is too small");

/* ---- blobs ---- */

size_t hearth_blob_bytes(const struct hearth_blob *blob) {
    return blob->len + HEARTH_BLOB_OVERHEAD_BYTES;
}

void hearth_blob_ref(struct hearth_blob *blob) {
    atomic_fetch_add(&blob->refs, 1);
}

void hearth_blob_unref(struct hearth_blob *blob) {
    if (atomic_fetch_sub(&blob->refs, 1) == 1) {
        hearth_prefault_give(blob->bytes);
        free(blob);
    }
}

bool hearth_blob_verifies(const struct hearth_blob *blob) {
    return !blob->bytes || hearth_checksum(blob->bytes, blob->len) == blob->checksum;
}

const void *hearth_blob_data(const struct hearth_blob *blob, size_t *len) {
    *len = blob->len;
    return blob->bytes;
}

/* ---- the tier ---- */

struct hearth_ram *hearth_ram_create(void) {
    return calloc(1, sizeof(struct hearth_ram));
}

void hearth_ram_destroy(struct hearth_ram *ram) {
    while (ram->blobs) {
        hearth_ram_drop(ram, ram->blobs);
    }
    free(ram);
}

struct hearth_blob *hearth_ram_put(struct hearth_ram *ram, struct hearth_buf *bytes, const uint64_t *checksum) {
    struct hearth_blob *blob = malloc(sizeof *blob);
    if (!blob) {
        hearth_buf_finish(bytes);
        return NULL;
    }
    size_t len = bytes->len;
    if (ram->hollow) {
        bytes->len = 0;
    }
    uint8_t *taken = hearth_buf_take(bytes);
    *blob = (struct hearth_blob){
        .next = ram->blobs,
        .link = &ram->blobs,
        .refs = 1,
        .bytes = taken,
        .len = len,
        .checksum = checksum      ? *checksum
                    : ram->hollow ? 0
                                  : hearth_checksum(taken, len),
    };
    if (blob->next) {
        blob->next->link = &blob->next;
    }
    ram->blobs = blob;
    ram->used_bytes += hearth_blob_bytes(blob);
    return blob;
}

int hearth_ram_view(struct hearth_ram *ram, const struct hearth_blob *blob, const void **bytes, size_t *len) {
    *bytes = NULL;
    *len = 0;
    if (!hearth_blob_verifies(blob)) {
        ram->bad_blobs++;
        if (!ram->damage_logged) {
            ram->damage_logged = true;
            hearth_log(HEARTH_LOG_ERROR,
                       "cache: %zu bytes of stored state changed in memory and are not used; "
                       "check this machine's RAM (further damage is only counted)",
                       blob->len);
        }
        return HEARTH_ERR_STATE;
    }
    *bytes = blob->bytes;
    *len = blob->len;
    return HEARTH_OK;
}

void hearth_ram_drop(struct hearth_ram *ram, struct hearth_blob *blob) {
    if (!blob) {
        return;
    }
    HEARTH_ASSERT(ram->used_bytes >= hearth_blob_bytes(blob));
    HEARTH_ASSERT(*blob->link == blob && (!blob->next || blob->next->link == &blob->next));
    ram->used_bytes -= hearth_blob_bytes(blob);
    *blob->link = blob->next;
    if (blob->next) {
        blob->next->link = blob->link;
    }
    hearth_blob_unref(blob);
}
