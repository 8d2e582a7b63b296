/* The payload of a database row, as archive and store write it: checked, or with a key encrypted.
 *
 *     payload | checksum (8)                          without a key
 *     encrypted (payload | checksum) | nonce | tag    with one
 *
 * Checksum and tag cover what the row says about its payload (`about`: key, parent, owner, …), too, so that no payload
 * can stand in another row. Threads: any. */
#ifndef HEARTH_SESSION_SEALED_ROW_H
#define HEARTH_SESSION_SEALED_ROW_H

#include "base/buf.h"
#include "base/err.h"
#include "base/seal.h"

/* Turns a payload into what is written, in its buffer. `seal` NULL: no key. Errors: NOMEM, IO (no randomness); then the
 * buffer's contents are useless. */
int hearth_sealed_row_close(const struct hearth_seal *seal, const void *about, size_t about_len,
                            struct hearth_buf *row);
/* The reverse, in place: `*len` becomes the payload's length, at the row's beginning. False: it does not verify. */
bool hearth_sealed_row_open(const struct hearth_seal *seal, const void *about, size_t about_len, void *row,
                            size_t *len);

#endif
