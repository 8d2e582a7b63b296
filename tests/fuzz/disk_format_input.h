/* How an input of fuzz_disk_format is read, for the target and for the program that makes its seeds:
 *
 *     how (1) | length of the header's content (2, little-endian) | content | payload
 *
 * Zeros follow the content up to a whole block (so that inputs stay small), unless the header is cut. */
#ifndef HEARTH_TESTS_FUZZ_DISK_FORMAT_INPUT_H
#define HEARTH_TESTS_FUZZ_DISK_FORMAT_INPUT_H

#include "base/seal.h"
#include "tier/format.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bits of `how`. */
enum {
    INPUT_FIX = 1,     /* the header's checksum is made to fit, */
    INPUT_FIX_ALL = 2, /* the payload's too, and the name in a header in the clear */
    INPUT_KEY = 4,     /* the reader has the key */
    INPUT_CUT = 8,     /* the header ends with its content; nothing is made to fit */
};

enum { INPUT_HEAD_BYTES = 3 };

/* The key of all seeds. NULL: it could not be made. */
static inline struct hearth_seal *input_key(void) {
    char path[] = "/tmp/hearth-fuzz-key-XXXXXX";
    uint8_t bytes[32];
    struct hearth_seal *seal = NULL;
    int fd = mkstemp(path);
    memset(bytes, 7, sizeof bytes);
    if (fd >= 0 && write(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes) {
        (void)hearth_seal_create(path, &seal, NULL);
    }
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(path);
    }
    return seal;
}

/* The checksum of a header of that size. */
static inline void input_fix_header(uint8_t *header, size_t len) {
    uint64_t checksum = hearth_checksum(header + 16, len - 16);
    memcpy(header + 8, &checksum, sizeof checksum);
}

/* The checksum of the payload, and the name as the header's own numbers and tokens make it. */
static inline void input_fix_rest(uint8_t *header, size_t len, const uint8_t *payload, size_t payload_len) {
    struct hearth_record record = {.kind = header[124]};
    uint64_t checksum = hearth_checksum(payload, payload_len);
    uint32_t flags;
    memcpy(header + 88, &checksum, sizeof checksum);
    memcpy(&record.base_pos, header + 108, 4);
    memcpy(&record.p0, header + 112, 4);
    memcpy(&record.p1, header + 116, 4);
    memcpy(&flags, header + 120, 4);
    memcpy(&record.base.lo, header + 256, 8);
    memcpy(&record.base.hi, header + 264, 8);
    if ((flags & 1) == 0 && record.base_pos >= 0 && record.base_pos <= record.p0 && record.p0 <= record.p1 &&
        hearth_record_tokens(&record) <= (len - 464) / 4) {
        record.tokens = (hearth_token *)(void *)(header + 464);
        record.name = hearth_record_name(&record);
        memcpy(header + 32, &record.name.lo, 8);
        memcpy(header + 40, &record.name.hi, 8);
    }
}

#endif
