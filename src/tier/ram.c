/* The RAM tier: blobs in this process's memory.
 *
 * A blob is one small header and the buffer that came with `put`, shrunk and kept: bytes are never copied. Its
 * checksum is computed at put and again at every view, because libllama may abort on damaged state: whatever wrote
 * over the bytes in between, the engine does not see them.
 *
 * Invariants: `used_bytes` is the sum of hearth_blob_bytes() of the blobs held; a tier is destroyed empty or not,
 * and frees what is left (blobs are linked for that). */
#include "base/assert.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/warm.h"
#include "tier/tier.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct hearth_blob {
    struct hearth_blob *prev, *next; /* ring of the tier's blobs */
    atomic_uint refs;                /* the tier's, and those of hearth_blob_ref() */
    uint8_t *bytes;                  /* NULL exactly when len is 0 */
    size_t len;
    uint64_t checksum;
};

_Static_assert(sizeof(struct hearth_blob) <= HEARTH_BLOB_OVERHEAD_BYTES, "the overhead that is accounted is too small");

struct ram_tier {
    struct hearth_tier base;
    struct hearth_blob ring; /* head; holds no bytes */
    bool damage_logged;
};

static struct ram_tier *ram_of(struct hearth_tier *tier) {
    return (struct ram_tier *)tier;
}

void hearth_blob_ref(struct hearth_blob *blob) {
    atomic_fetch_add(&blob->refs, 1);
}

void hearth_blob_unref(struct hearth_blob *blob) {
    if (atomic_fetch_sub(&blob->refs, 1) == 1) {
        hearth_warm_give(blob->bytes);
        free(blob);
    }
}

bool hearth_blob_verifies(const struct hearth_blob *blob) {
    return hearth_checksum(blob->bytes, blob->len) == blob->checksum;
}

const void *hearth_blob_data(const struct hearth_blob *blob, size_t *len) {
    *len = blob->len;
    return blob->bytes;
}

static void ram_destroy(struct hearth_tier *tier) {
    struct ram_tier *ram = ram_of(tier);
    for (struct hearth_blob *blob = ram->ring.next, *next; blob != &ram->ring; blob = next) {
        next = blob->next;
        hearth_blob_unref(blob);
    }
    free(ram);
}

static struct hearth_blob *ram_put(struct hearth_tier *tier, struct hearth_buf *bytes, const uint64_t *checksum) {
    struct ram_tier *ram = ram_of(tier);
    struct hearth_blob *blob = malloc(sizeof *blob);
    if (blob == NULL) {
        hearth_buf_finish(bytes);
        return NULL;
    }
    size_t len = bytes->len;
    uint8_t *taken = hearth_buf_take(bytes);
    *blob = (struct hearth_blob){
        .prev = ram->ring.prev,
        .next = &ram->ring,
        .refs = 1,
        .bytes = taken,
        .len = len,
        .checksum = checksum ? *checksum : hearth_checksum(taken, len),
    };
    blob->prev->next = blob;
    blob->next->prev = blob;
    ram->base.used_bytes += hearth_blob_bytes(blob);
    return blob;
}

static int ram_view(struct hearth_tier *tier, const struct hearth_blob *blob, const void **bytes, size_t *len) {
    struct ram_tier *ram = ram_of(tier);
    *bytes = NULL;
    *len = 0;
    if (!hearth_blob_verifies(blob)) {
        ram->base.bad_blobs++;
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

static void ram_drop(struct hearth_tier *tier, struct hearth_blob *blob) {
    HEARTH_ASSERT(tier->used_bytes >= hearth_blob_bytes(blob));
    HEARTH_ASSERT(blob->prev->next == blob && blob->next->prev == blob);
    tier->used_bytes -= hearth_blob_bytes(blob);
    blob->prev->next = blob->next;
    blob->next->prev = blob->prev;
    hearth_blob_unref(blob);
}

static const struct hearth_tier_ops ram_ops = {
    .destroy = ram_destroy,
    .put = ram_put,
    .view = ram_view,
    .drop = ram_drop,
};

size_t hearth_blob_bytes(const struct hearth_blob *blob) {
    return blob->len + HEARTH_BLOB_OVERHEAD_BYTES;
}

struct hearth_tier *hearth_ram_tier_create(void) {
    struct ram_tier *ram = calloc(1, sizeof *ram);
    if (ram == NULL) {
        return NULL;
    }
    ram->base.ops = &ram_ops;
    ram->base.name = "ram";
    ram->ring.prev = ram->ring.next = &ram->ring;
    return &ram->base;
}
