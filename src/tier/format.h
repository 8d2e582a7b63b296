/* The file of one item, byte by byte: docs/disk-format.md.
 *
 * header (a multiple of 4096 bytes: fixed part, sealed part with tokens and text, padding) | payload
 *
 * Pure: bytes in, bytes out, no I/O. Whatever bytes are given, nothing is read beyond them and nothing that does not
 * verify is accepted. Threads: any. */
#ifndef HEARTH_TIER_FORMAT_H
#define HEARTH_TIER_FORMAT_H

#include "base/err.h"
#include "tier/record.h"

#define HEARTH_FORMAT_VERSION 2  /* version 1 is read, and written if it can say everything */
#define HEARTH_FORMAT_BLOCK 4096 /* a header is a multiple of it; one block holds the pages of usual sizes */
#define HEARTH_FORMAT_HEADER_MAX (512 * 1024)

struct hearth_seal; /* a key (base/seal.h) */

/* The contents of a header. */
struct hearth_format_info {
    struct hearth_record record; /* tokens owned: hearth_format_info_finish(). Of a sealed file without its key: no
                                    tokens, no text, no base, and `readable` is false */
    struct hearth_digest fingerprint;
    int32_t page_tokens;
    uint64_t payload_bytes; /* as stored, behind the header: the file is header_bytes + payload_bytes long */
    size_t header_bytes;
    uint64_t created_us; /* Unix time */
    bool encrypted, compressed, readable;
    /* the rest is for hearth_format_open() */
    uint64_t payload_checksum;
    uint8_t payload_nonce[12], payload_tag[16];
    uint8_t header_tag[16];        /* binds the payload to its header */
    struct hearth_digest key_mark; /* hearth_seal_mark() of the key that is needed */
};

/* Why a file is not used. */
#define HEARTH_FORMAT_VERDICT_TABLE(X)                                                               \
    X(GOOD, "")                                                                                      \
    X(SHORT, "cut short")                                                                            \
    X(NOT_OURS, "not a file of hearth")                                                              \
    X(DAMAGED, "its header is damaged")                                                              \
    X(NEWER, "written by another version of hearth") /* whole, and of another version: left alone */ \
    X(WRONG_PAYLOAD, "its payload is damaged")                                                       \
    X(WRONG_KEY, "sealed with another key") /* likewise left alone */                                \
    X(NOMEM, "out of memory")

enum hearth_format_verdict {
#define X(name, text) HEARTH_FORMAT_##name,
    HEARTH_FORMAT_VERDICT_TABLE(X)
#undef X
};
const char *hearth_format_verdict_text(enum hearth_format_verdict verdict);

/* Reads a header from the first `len` bytes of a file. SHORT with info->header_bytes > len: call again with so many
 * bytes. `seal`: the key at hand, or NULL. A sealed file is GOOD and not `readable` without a key, and WRONG_KEY with
 * another key; `info` holds the same in both cases. NEWER: `info` has header_bytes and payload_bytes. Other verdicts:
 * header_bytes only. Always call hearth_format_info_finish(). */
enum hearth_format_verdict hearth_format_read(const void *bytes, size_t len, const struct hearth_seal *seal,
                                              struct hearth_format_info *info);
void hearth_format_info_finish(struct hearth_format_info *info);

/* Verifies, decrypts and decompresses a payload. Takes `payload` (empty afterwards in any case). `out` (empty before)
 * gets the state, in the same memory unless the file is compressed, and `checksum` (NULL: not wanted) its
 * hearth_checksum(). Verdicts: GOOD, WRONG_PAYLOAD, WRONG_KEY, NOMEM. */
enum hearth_format_verdict hearth_format_open(const struct hearth_format_info *info, const struct hearth_seal *seal,
                                              struct hearth_buf *payload, struct hearth_buf *out, uint64_t *checksum);

/* The same of a payload that comes in parts: each is passed over once, while it is in the processor's caches. What was
 * decrypted is worthless until the end says GOOD. NULL: out of memory, or the key is another one. Owns:
 * hearth_format_open_end(). */
struct hearth_format_opening;
struct hearth_format_opening *hearth_format_open_begin(const struct hearth_format_info *info,
                                                       const struct hearth_seal *seal);
void hearth_format_open_part(struct hearth_format_opening *opening, uint8_t *bytes, size_t len);
/* `payload`: all parts, with what hearth_format_open_part() has made of them. */
enum hearth_format_verdict hearth_format_open_end(struct hearth_format_opening *opening,
                                                  const struct hearth_format_info *info, struct hearth_buf *payload,
                                                  struct hearth_buf *out, uint64_t *checksum);
void hearth_format_open_cancel(struct hearth_format_opening *opening); /* NULL is allowed */

struct hearth_format_params {
    struct hearth_digest fingerprint;
    int32_t page_tokens;
    const struct hearth_seal *seal; /* NULL: in the clear */
    bool compress;
};

/* The longest state that a file can hold. */
#define HEARTH_FORMAT_STATE_MAX ((uint64_t)32 << 30)

/* Makes a file: fills `header`. `payload` is filled only if compressing or sealing has changed the state's bytes; if it
 * stays empty, the state itself is the payload. Both are empty before, and after an error. `record->name` must be
 * right. A text that is not UTF-8 is repaired. Errors: NOMEM, ENGINE (no randomness), TOO_LARGE. */
int hearth_format_write(const struct hearth_format_params *params, const struct hearth_record *record,
                        const void *state, size_t state_bytes, struct hearth_buf *header, struct hearth_buf *payload);

#endif
