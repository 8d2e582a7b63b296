/* 128-bit digests (XXH3). They name pages and verify bytes; they are no secret. */
#ifndef HEARTH_BASE_DIGEST_H
#define HEARTH_BASE_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hearth_digest {
    uint64_t lo, hi;
};

/* Digest of bytes. */
struct hearth_digest hearth_digest_bytes(const void *bytes, size_t len);
/* Digest of `parent` followed by bytes: the links of a chain. */
struct hearth_digest hearth_digest_chain(struct hearth_digest parent, const void *bytes, size_t len);
bool hearth_digest_equal(struct hearth_digest a, struct hearth_digest b);
/* Zero stands for "none" where a digest may be left out. */
bool hearth_digest_is_zero(struct hearth_digest digest);
/* 32 lower-case hex digits and a NUL. */
void hearth_digest_hex(struct hearth_digest digest, char out[33]);
/* Reads what that prints; what follows the digits is not looked at. False: it is something else. */
bool hearth_digest_parse(const char *text, struct hearth_digest *out);
/* 64-bit checksum of a payload (XXH3-64). */
uint64_t hearth_checksum(const void *bytes, size_t len);
/* The same of bytes that come in parts. NULL: out of memory. Owns: hearth_checksum_end(). */
struct hearth_checksum;
struct hearth_checksum *hearth_checksum_begin(void);
void hearth_checksum_add(struct hearth_checksum *sum, const void *bytes, size_t len);
uint64_t hearth_checksum_end(struct hearth_checksum *sum); /* frees it; NULL is allowed: 0 */

#endif
