/* Digests on XXH3.
 *
 * A parent enters a chain as its 16 canonical (big-endian) bytes, so that a chain has the same value on every
 * machine as long as the hashed bytes have. */
#include "base/digest.h"

#include <string.h>

#define XXH_INLINE_ALL /* a state on the stack, and nothing between a small input and its hash */
#include <xxhash.h>

static struct hearth_digest digest_of(XXH128_hash_t hash) {
    return (struct hearth_digest){.lo = hash.low64, .hi = hash.high64};
}

struct hearth_digest hearth_digest_bytes(const void *bytes, size_t len) {
    return digest_of(XXH3_128bits(bytes, len));
}

struct hearth_digest hearth_digest_chain(struct hearth_digest parent, const void *bytes, size_t len) {
    enum { ON_STACK = 2048 };
    XXH128_canonical_t head;
    XXH128_canonicalFromHash(&head, (XXH128_hash_t){.low64 = parent.lo, .high64 = parent.hi});
    if (len <= ON_STACK) {
        /* One shot over a copy: for the lengths of usual pages faster than a stream, and equal to it. */
        uint8_t joined[sizeof head + ON_STACK];
        memcpy(joined, &head, sizeof head);
        if (len > 0) {
            memcpy(joined + sizeof head, bytes, len);
        }
        return digest_of(XXH3_128bits(joined, sizeof head + len));
    }
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    (void)XXH3_128bits_reset(&state);
    (void)XXH3_128bits_update(&state, &head, sizeof head);
    (void)XXH3_128bits_update(&state, bytes, len);
    return digest_of(XXH3_128bits_digest(&state));
}

bool hearth_digest_equal(struct hearth_digest a, struct hearth_digest b) {
    return a.lo == b.lo && a.hi == b.hi;
}

bool hearth_digest_is_zero(struct hearth_digest digest) {
    return digest.lo == 0 && digest.hi == 0;
}

static const char digits[] = "0123456789abcdef";

void hearth_digest_hex(struct hearth_digest digest, char out[33]) {
    for (int i = 0; i < 16; i++) {
        out[i] = digits[digest.hi >> (60 - 4 * i) & 15];
        out[16 + i] = digits[digest.lo >> (60 - 4 * i) & 15];
    }
    out[32] = '\0';
}

bool hearth_digest_parse(const char *text, struct hearth_digest *out) {
    uint64_t half[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit) {
            return false;
        }
        half[i / 16] = half[i / 16] << 4 | (uint64_t)(digit - digits);
    }
    *out = (struct hearth_digest){.hi = half[0], .lo = half[1]};
    return true;
}

uint64_t hearth_checksum(const void *bytes, size_t len) {
    return XXH3_64bits(bytes, len);
}

struct hearth_checksum *hearth_checksum_begin(void) {
    XXH3_state_t *state = XXH3_createState();
    if (state) {
        (void)XXH3_64bits_reset(state);
    }
    return (struct hearth_checksum *)state;
}

void hearth_checksum_add(struct hearth_checksum *sum, const void *bytes, size_t len) {
    (void)XXH3_64bits_update((XXH3_state_t *)sum, bytes, len);
}

uint64_t hearth_checksum_end(struct hearth_checksum *sum) {
    const uint64_t out = sum ? XXH3_64bits_digest((XXH3_state_t *)sum) : 0;
    (void)XXH3_freeState((XXH3_state_t *)sum);
    return out;
}
