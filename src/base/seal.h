/* Keys for what is stored: AES-256-GCM by OpenSSL. For files of state, for transcripts, and for what clients keep.
 * Threads: any, after creation. */
#ifndef HEARTH_BASE_SEAL_H
#define HEARTH_BASE_SEAL_H

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"

#define HEARTH_SEAL_NONCE_BYTES 12
#define HEARTH_SEAL_TAG_BYTES 16

struct hearth_seal;

/* Derives a key from a file's bytes (all of them, 16 to 1 MiB; HKDF-SHA256). A file that others can read is refused.
 * Errors: IO, INVALID, NOMEM, ENGINE (OpenSSL failed); one clear line in `msg`. */
int hearth_seal_create(const char *key_file, struct hearth_seal **out, struct hearth_errmsg *msg);
/* The same from 32 bytes that are random and secret. Errors: NOMEM, ENGINE. */
int hearth_seal_create_from(const uint8_t secret[32], struct hearth_seal **out, struct hearth_errmsg *msg);
void hearth_seal_destroy(struct hearth_seal *seal); /* NULL is allowed; wipes the key */

/* Tells keys apart without revealing them; never zero. For hearth_record_root(): without the key nothing can compute
 * the names of guessed prompts, so it is not written anywhere. */
struct hearth_digest hearth_seal_id(const struct hearth_seal *seal);
/* Likewise, and independent of it: what headers say about the key they need. */
struct hearth_digest hearth_seal_mark(const struct hearth_seal *seal);

/* Encrypts in place under a random nonce, which is written with the tag. False: no randomness, or OpenSSL failed. */
bool hearth_seal_close(const struct hearth_seal *seal, const void *aad, size_t aad_len, void *bytes, size_t len,
                       uint8_t nonce[HEARTH_SEAL_NONCE_BYTES], uint8_t tag[HEARTH_SEAL_TAG_BYTES]);
/* Decrypts in place. False: the tag does not match; the bytes are worthless then. */
bool hearth_seal_open(const struct hearth_seal *seal, const void *aad, size_t aad_len, void *bytes, size_t len,
                      const uint8_t nonce[HEARTH_SEAL_NONCE_BYTES], const uint8_t tag[HEARTH_SEAL_TAG_BYTES]);

/* The same of bytes that come in parts, which are decrypted in place one after the other and are worthless until the
 * end says true. NULL: OpenSSL failed, or out of memory. Owns: hearth_seal_open_end(). */
struct hearth_seal_opening;
struct hearth_seal_opening *hearth_seal_open_begin(const struct hearth_seal *seal, const void *aad, size_t aad_len,
                                                   const uint8_t nonce[HEARTH_SEAL_NONCE_BYTES]);
void hearth_seal_open_part(struct hearth_seal_opening *unsealing, void *bytes, size_t len);
/* Frees it (NULL is allowed: false). False: the tag does not match. */
bool hearth_seal_open_end(struct hearth_seal_opening *unsealing, const uint8_t tag[HEARTH_SEAL_TAG_BYTES]);

#endif
