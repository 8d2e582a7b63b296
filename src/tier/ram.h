/* The RAM tier: the bytes of pages and snapshots in this process's memory. What outlasts RAM is a backing tier
 * (tier/backing.h).
 *
 * It stores blobs and gives them back verified; it knows nothing of tokens or trees. It keeps no budget of its own: the
 * cache decides what goes (cache/policy.h), the tier says how many bytes it holds.
 *
 * Threads: the one thread that drives the engine. */
#ifndef HEARTH_TIER_RAM_H
#define HEARTH_TIER_RAM_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hearth_blob; /* one stored blob; belongs to its tier */

struct hearth_ram {
    size_t used_bytes;  /* bytes of all blobs, with the tier's own overhead */
    uint64_t bad_blobs; /* blobs that did not verify */
    bool hollow;        /* blobs have a length and no bytes, and nothing is verified; for replays (src/replay) */
    /* The tier's own. */
    struct hearth_blob *blobs;
    bool damage_logged;
};

/* Makes an empty tier; NULL: out of memory. */
struct hearth_ram *hearth_ram_create(void);
/* Destroys the tier and all blobs in it. */
void hearth_ram_destroy(struct hearth_ram *ram);

/* Stores the buffer's bytes as a blob (the buffer is empty afterwards, also on failure). `checksum`: their
 * hearth_checksum() if it is known, else NULL. NULL: out of memory. */
struct hearth_blob *hearth_ram_put(struct hearth_ram *ram, struct hearth_buf *bytes, const uint64_t *checksum);
/* The verified bytes, borrowed until the blob is dropped. Errors: STATE (the checksum does not match). */
int hearth_ram_view(struct hearth_ram *ram, const struct hearth_blob *blob, const void **bytes, size_t *len);
void hearth_ram_drop(struct hearth_ram *ram, struct hearth_blob *blob); /* NULL is allowed */

/* Bytes that a blob of `len` bytes takes in the accounting, beyond its payload. */
#define HEARTH_BLOB_OVERHEAD_BYTES 64

/* Bytes that the blob counts for: payload and overhead. */
size_t hearth_blob_bytes(const struct hearth_blob *blob);

/* Takes and releases a reference of the bytes alone, which then outlive hearth_ram_drop(); for a writer on another
 * thread. Any thread. */
void hearth_blob_ref(struct hearth_blob *blob);
void hearth_blob_unref(struct hearth_blob *blob);
/* Whether the bytes are still the ones that were put. Any thread. */
bool hearth_blob_verifies(const struct hearth_blob *blob);
/* The bytes, valid while a reference is held; not verified. Any thread. */
const void *hearth_blob_data(const struct hearth_blob *blob, size_t *len);

#endif
