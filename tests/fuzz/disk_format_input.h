/* How an input of fuzz_disk_format is read, for the target and for the program that makes its seeds:
 *
 *     how (1) | length of the header's content (2, little-endian) | content | payload
 *
 * Zeros follow the content up to a whole block (so that inputs stay small), unless the header is cut. */
#ifndef HEARTH_TESTS_FUZZ_DISK_FORMAT_INPUT_H
#define HEARTH_TESTS_FUZZ_DISK_FORMAT_INPUT_H

#include "base/seal.h"

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

#endif
