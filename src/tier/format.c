/* Files of items: docs/disk-format.md has the layout, the structs below are the same in C.
 *
 *     plain part (256) | inner part: base, text, tokens (sealed where there is a key) | zeros | payload
 *
 * The first 32 bytes are the same in every version that will ever be: so a file of another version can be told, whole,
 * from a damaged one, and its length is known. The checksum is over all of the header that follows it.
 *
 * Sealing. The inner part is sealed first, with the plain part as additional data (checksums, nonces and tags as zeros:
 * they are not known yet). Its tag, which cannot be made without the key, is the additional data of the payload. So no
 * part can be moved to another file. The plain part says nothing of what the tokens are: even `base` is sealed, since
 * with it guesses could be compared with the name.
 *
 * Verification goes from outside in: length, magic, checksum, version, then the numbers, then the key, then tokens, and
 * the name last, which must be that of the tokens. A writer asserts what a reader demands, so a file that was made here
 * is a file that is read here. */
#include "tier/format.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/seal.h"
#include "base/utf8.h"
#include "tier/pack.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold little-endian numbers");

static const uint8_t magic[8] = {'h', 'e', 'a', 'r', 't', 'h', 'k', 'v'};

/* The plain part. */
struct format_plain {
    uint8_t magic[8];
    uint64_t checksum; /* of all that follows it in the header */
    uint32_t version, header_bytes;
    uint64_t payload_bytes; /* the end of what is fixed for ever */
    struct hearth_digest name, fingerprint, key_mark;
    uint64_t state_bytes, payload_checksum, created_us;
    int32_t page_tokens, base_pos, p0, p1;
    uint32_t flags;
    uint8_t kind, label, zeros[2];
    uint8_t inner_nonce[HEARTH_SEAL_NONCE_BYTES], inner_tag[HEARTH_SEAL_TAG_BYTES];
    uint8_t payload_nonce[HEARTH_SEAL_NONCE_BYTES], payload_tag[HEARTH_SEAL_TAG_BYTES];
    uint8_t rest[72]; /* zeros */
};

/* The inner part; the tokens stand behind it. */
struct format_inner {
    struct hearth_digest base;
    char text[HEARTH_RECORD_TEXT_BYTES];
};

enum {
    FIXED_BYTES = offsetof(struct format_plain, name),
    SUMMED_FROM = offsetof(struct format_plain, version),
    SEALS_BYTES = offsetof(struct format_plain, rest) - offsetof(struct format_plain, inner_nonce),
    TOKENS_AT = sizeof(struct format_plain) + sizeof(struct format_inner),
};
enum { FLAG_SEALED = 1, FLAG_ZSTD = 2, FLAGS_ALL = 3 };

_Static_assert(sizeof(struct format_plain) == 256 && FIXED_BYTES == 32 &&
                   offsetof(struct format_plain, page_tokens) == 104 &&
                   offsetof(struct format_plain, inner_nonce) == 128 && TOKENS_AT == 464,
               "the layout has no gaps");
_Static_assert(TOKENS_AT + HEARTH_RECORD_TOKENS_MAX * sizeof(hearth_token) <= HEARTH_FORMAT_HEADER_MAX,
               "the longest page has a header");
_Static_assert(sizeof(((struct hearth_format_info *)0)->payload_nonce) == HEARTH_SEAL_NONCE_BYTES, "nonces");
_Static_assert(sizeof(((struct hearth_format_info *)0)->payload_tag) == HEARTH_SEAL_TAG_BYTES, "tags");

const char *hearth_format_verdict_text(enum hearth_format_verdict verdict) {
    static const char *const texts[] = {
#define X(name, text) [HEARTH_FORMAT_##name] = text,
        HEARTH_FORMAT_VERDICT_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)verdict < sizeof texts / sizeof texts[0]);
    return texts[verdict];
}

/* What is true of every record in a file. */
static bool plausible(const struct hearth_record *record, int32_t page_tokens) {
    return page_tokens >= 1 && page_tokens <= HEARTH_RECORD_TOKENS_MAX && record->base_pos >= 0 &&
           record->base_pos % page_tokens == 0 && record->base_pos <= record->p0 && record->p0 <= record->p1 &&
           record->p1 - record->base_pos <= page_tokens && record->state_bytes <= HEARTH_FORMAT_STATE_MAX &&
           ((record->kind == HEARTH_RECORD_PAGE && record->p0 < record->p1) || record->kind == HEARTH_RECORD_SNAPSHOT);
}

/* Version 2 added pieces of a window; everything else is written as version 1. */
static uint32_t version_of(const struct hearth_record *record) {
    return record->kind == HEARTH_RECORD_SNAPSHOT && record->p0 < record->p1 ? HEARTH_FORMAT_VERSION : 1;
}

/* Whether parts of the record agree that numbers alone do not tell. */
static bool consistent(const struct hearth_record *record) {
    size_t n = hearth_record_tokens(record);
    for (size_t i = 0; i < n; i++) {
        if (record->tokens[i] < 0) {
            return false;
        }
    }
    return hearth_digest_equal(record->name, hearth_record_name(record));
}

static size_t inner_bytes(const struct hearth_record *record) {
    return sizeof(struct format_inner) + hearth_record_tokens(record) * sizeof *record->tokens;
}

static size_t header_bytes(const struct hearth_record *record) {
    size_t bytes = sizeof(struct format_plain) + inner_bytes(record);
    return (bytes + HEARTH_FORMAT_BLOCK - 1) / HEARTH_FORMAT_BLOCK * HEARTH_FORMAT_BLOCK;
}

static uint64_t header_checksum(const uint8_t *header, size_t bytes) {
    return hearth_checksum(header + SUMMED_FROM, bytes - SUMMED_FROM);
}

/* The plain part, as additional data of the inner part. */
static struct format_plain inner_aad(const uint8_t *header) {
    struct format_plain aad;
    memcpy(&aad, header, sizeof aad);
    aad.checksum = aad.payload_checksum = 0;
    memset(aad.inner_nonce, 0, SEALS_BYTES);
    return aad;
}

/* ---- writing ---- */

/* Copies the text; what a reader would refuse is repaired. */
static bool put_text(const char *text, char out[HEARTH_RECORD_TEXT_BYTES]) {
    size_t len = strnlen(text, HEARTH_RECORD_TEXT_BYTES - 1);
    if (hearth_utf8_valid(text, len)) {
        memcpy(out, text, len);
        return true;
    }
    struct hearth_buf repaired = {0};
    bool ok = hearth_utf8_append(&repaired, text, len);
    if (ok) {
        len = repaired.len < HEARTH_RECORD_TEXT_BYTES ? repaired.len : HEARTH_RECORD_TEXT_BYTES - 1;
        memcpy(out, repaired.data, hearth_utf8_complete((char *)repaired.data, len));
    }
    hearth_buf_finish(&repaired);
    return ok;
}

/* All fields but checksums, nonces and tags. */
static bool put_fields(uint8_t *header, const struct hearth_format_params *params, const struct hearth_record *record,
                       uint64_t payload_bytes, uint32_t flags) {
    struct format_plain plain = {.version = version_of(record),
                                 .header_bytes = (uint32_t)header_bytes(record),
                                 .payload_bytes = payload_bytes,
                                 .name = record->name,
                                 .fingerprint = params->fingerprint,
                                 .state_bytes = record->state_bytes,
                                 .created_us = (uint64_t)hearth_clock_unix_us(),
                                 .page_tokens = params->page_tokens,
                                 .base_pos = record->base_pos,
                                 .p0 = record->p0,
                                 .p1 = record->p1,
                                 .flags = flags,
                                 .kind = (uint8_t)record->kind,
                                 .label = record->label};
    struct format_inner inner = {.base = record->base};
    memcpy(plain.magic, magic, sizeof magic);
    if (params->seal != NULL) {
        plain.key_mark = hearth_seal_mark(params->seal);
    }
    if (!put_text(record->text, inner.text)) {
        return false;
    }
    memcpy(header, &plain, sizeof plain);
    memcpy(header + sizeof plain, &inner, sizeof inner);
    if (hearth_record_tokens(record) > 0) {
        memcpy(header + TOKENS_AT, record->tokens, hearth_record_tokens(record) * sizeof *record->tokens);
    }
    return true;
}

/* Seals the inner part, then the payload (which may be empty). */
static bool seal_both(const struct hearth_seal *seal, const struct hearth_record *record, uint8_t *header,
                      struct hearth_buf *payload) {
    struct format_plain *plain = (struct format_plain *)(void *)header;
    const struct format_plain aad = inner_aad(header);
    return hearth_seal_close(seal, &aad, sizeof aad, header + sizeof *plain, inner_bytes(record), plain->inner_nonce,
                             plain->inner_tag) &&
           hearth_seal_close(seal, plain->inner_tag, sizeof plain->inner_tag, payload->data, payload->len,
                             plain->payload_nonce, plain->payload_tag);
}

static bool reserve_zeroed(struct hearth_buf *buf, size_t bytes) {
    if (!hearth_buf_reserve(buf, bytes)) {
        return false;
    }
    memset(buf->data, 0, bytes);
    buf->len = bytes;
    return true;
}

int hearth_format_write(const struct hearth_format_params *params, const struct hearth_record *record,
                        const void *state, size_t state_bytes, struct hearth_buf *header, struct hearth_buf *payload) {
    HEARTH_ASSERT(header->data == NULL && payload->data == NULL && state_bytes == record->state_bytes);
    if (state_bytes > HEARTH_FORMAT_STATE_MAX) {
        return HEARTH_ERR_TOO_LARGE;
    }
    HEARTH_ASSERT(plausible(record, params->page_tokens) && consistent(record));
    int err = HEARTH_ERR_NOMEM;
    uint32_t flags = params->seal != NULL ? FLAG_SEALED : 0;
    if (params->compress && state_bytes > 0) {
        enum hearth_pack_result packed = hearth_pack(state, state_bytes, payload);
        if (packed == HEARTH_PACK_NOMEM) {
            goto failed;
        }
        flags |= packed == HEARTH_PACK_OK ? FLAG_ZSTD : 0;
    }
    if (params->seal != NULL && (flags & FLAG_ZSTD) == 0 && !hearth_buf_append(payload, state, state_bytes)) {
        goto failed;
    }
    bool own = payload->len > 0;
    uint64_t payload_bytes = own ? payload->len : state_bytes;
    if (!reserve_zeroed(header, header_bytes(record)) ||
        !put_fields(header->data, params, record, payload_bytes, flags)) {
        goto failed;
    }
    if (params->seal != NULL && !seal_both(params->seal, record, header->data, payload)) {
        err = HEARTH_ERR_ENGINE;
        goto failed;
    }
    struct format_plain *plain = (struct format_plain *)(void *)header->data;
    plain->payload_checksum = hearth_checksum(own ? payload->data : state, payload_bytes);
    plain->checksum = header_checksum(header->data, header->len);
    return HEARTH_OK;
failed:
    hearth_buf_finish(header);
    hearth_buf_finish(payload);
    return err;
}

/* ---- reading ---- */

/* Reads what is the same in every version, and verifies the checksum. */
static enum hearth_format_verdict read_fixed(const uint8_t *bytes, size_t len, struct hearth_format_info *info) {
    struct format_plain plain;
    if (len > 0 && memcmp(bytes, magic, len < sizeof magic ? len : sizeof magic) != 0) {
        return HEARTH_FORMAT_NOT_OURS;
    }
    info->header_bytes = HEARTH_FORMAT_BLOCK;
    if (len < FIXED_BYTES) {
        return HEARTH_FORMAT_SHORT;
    }
    memcpy(&plain, bytes, FIXED_BYTES);
    const uint32_t claimed = plain.header_bytes;
    if (claimed == 0 || claimed % HEARTH_FORMAT_BLOCK != 0 || claimed > HEARTH_FORMAT_HEADER_MAX) {
        return HEARTH_FORMAT_DAMAGED;
    }
    info->header_bytes = claimed;
    if (len < claimed) {
        return HEARTH_FORMAT_SHORT;
    }
    if (plain.checksum != header_checksum(bytes, claimed)) {
        return HEARTH_FORMAT_DAMAGED;
    }
    info->payload_bytes = plain.payload_bytes;
    return plain.version >= 1 && plain.version <= HEARTH_FORMAT_VERSION ? HEARTH_FORMAT_GOOD : HEARTH_FORMAT_NEWER;
}

static bool zeros(const uint8_t *bytes, size_t n) {
    while (n > 0 && bytes[n - 1] == 0) {
        n--;
    }
    return n == 0;
}

/* Reads the plain part. False: its values are impossible. */
static bool read_plain(const uint8_t *bytes, struct hearth_format_info *info) {
    struct hearth_record *record = &info->record;
    struct format_plain plain;
    memcpy(&plain, bytes, sizeof plain);
    *record = (struct hearth_record){.kind = (enum hearth_record_kind)plain.kind,
                                     .label = plain.label,
                                     .base_pos = plain.base_pos,
                                     .p0 = plain.p0,
                                     .p1 = plain.p1,
                                     .state_bytes = (size_t)plain.state_bytes,
                                     .name = plain.name};
    info->fingerprint = plain.fingerprint;
    info->key_mark = plain.key_mark;
    info->page_tokens = plain.page_tokens;
    info->payload_checksum = plain.payload_checksum;
    info->created_us = plain.created_us;
    info->encrypted = (plain.flags & FLAG_SEALED) != 0;
    info->compressed = (plain.flags & FLAG_ZSTD) != 0;
    memcpy(info->payload_nonce, plain.payload_nonce, sizeof plain.payload_nonce);
    memcpy(info->payload_tag, plain.payload_tag, sizeof plain.payload_tag);
    memcpy(info->header_tag, plain.inner_tag, sizeof plain.inner_tag);
    bool sizes = info->compressed ? info->payload_bytes > 0 && info->payload_bytes < plain.state_bytes
                                  : info->payload_bytes == plain.state_bytes;
    bool marked = !hearth_digest_is_zero(plain.key_mark);
    bool unused = info->encrypted ? marked : !marked && zeros(plain.inner_nonce, SEALS_BYTES);
    return (plain.flags & ~(uint32_t)FLAGS_ALL) == 0 && sizes && unused && plausible(record, info->page_tokens) &&
           plain.version == version_of(record) && zeros(plain.rest, sizeof plain.rest) &&
           zeros(plain.zeros, sizeof plain.zeros) && info->header_bytes == header_bytes(record) &&
           zeros(bytes + sizeof plain + inner_bytes(record), info->header_bytes - sizeof plain - inner_bytes(record));
}

/* Reads the decrypted inner part: at most HEARTH_FORMAT_HEADER_MAX bytes. */
static enum hearth_format_verdict read_inner(const uint8_t *bytes, struct hearth_format_info *info) {
    struct hearth_record *record = &info->record;
    struct format_inner inner;
    memcpy(&inner, bytes, sizeof inner);
    size_t n = hearth_record_tokens(record), text_len = strnlen(inner.text, sizeof inner.text);
    if (text_len == sizeof inner.text || !hearth_utf8_valid(inner.text, text_len)) {
        return HEARTH_FORMAT_DAMAGED;
    }
    record->tokens = malloc(n > 0 ? n * sizeof *record->tokens : 1);
    if (record->tokens == NULL) {
        return HEARTH_FORMAT_NOMEM;
    }
    memcpy(record->tokens, bytes + sizeof inner, n * sizeof *record->tokens);
    record->base = inner.base;
    memcpy(record->text, inner.text, text_len);
    info->readable = true;
    return consistent(record) ? HEARTH_FORMAT_GOOD : HEARTH_FORMAT_DAMAGED;
}

static bool fits_key(const struct hearth_format_info *info, const struct hearth_seal *seal) {
    return seal != NULL && hearth_digest_equal(info->key_mark, hearth_seal_mark(seal));
}

static enum hearth_format_verdict read_sealed(const uint8_t *bytes, const struct hearth_seal *seal,
                                              struct hearth_format_info *info) {
    if (seal == NULL) {
        return HEARTH_FORMAT_GOOD;
    }
    if (!fits_key(info, seal)) {
        return HEARTH_FORMAT_WRONG_KEY;
    }
    size_t len = inner_bytes(&info->record);
    const struct format_plain aad = inner_aad(bytes);
    uint8_t *inner = malloc(len);
    if (inner == NULL) {
        return HEARTH_FORMAT_NOMEM;
    }
    memcpy(inner, bytes + sizeof aad, len);
    enum hearth_format_verdict verdict = HEARTH_FORMAT_DAMAGED;
    if (hearth_seal_open(seal, &aad, sizeof aad, inner, len, bytes + offsetof(struct format_plain, inner_nonce),
                         info->header_tag)) {
        verdict = read_inner(inner, info);
    }
    free(inner);
    return verdict;
}

enum hearth_format_verdict hearth_format_read(const void *bytes, size_t len, const struct hearth_seal *seal,
                                              struct hearth_format_info *info) {
    *info = (struct hearth_format_info){0};
    enum hearth_format_verdict verdict = read_fixed(bytes, len, info);
    if (verdict != HEARTH_FORMAT_GOOD) {
        return verdict;
    }
    if (!read_plain(bytes, info)) {
        verdict = HEARTH_FORMAT_DAMAGED;
    } else if (info->encrypted) {
        verdict = read_sealed(bytes, seal, info);
    } else {
        verdict = read_inner((const uint8_t *)bytes + sizeof(struct format_plain), info);
    }
    if (verdict != HEARTH_FORMAT_GOOD && verdict != HEARTH_FORMAT_WRONG_KEY) {
        size_t wanted = info->header_bytes;
        hearth_format_info_finish(info);
        info->header_bytes = wanted;
    }
    return verdict;
}

void hearth_format_info_finish(struct hearth_format_info *info) {
    free(info->record.tokens);
    *info = (struct hearth_format_info){0};
}

/* ---- payloads ---- */

/* What is sealed has a tag, which says more than the checksum of what is stored; then the sum is of the state. */
struct hearth_format_opening {
    struct hearth_seal_opening *unsealing; /* NULL: it is in the clear */
    struct hearth_checksum *sum;           /* NULL: sealed and compressed */
    uint64_t bytes;
};

struct hearth_format_opening *hearth_format_open_begin(const struct hearth_format_info *info,
                                                       const struct hearth_seal *seal) {
    const bool sums = !info->encrypted || !info->compressed;
    struct hearth_format_opening *opening =
        !info->encrypted || fits_key(info, seal) ? calloc(1, sizeof *opening) : NULL;
    if (!opening) {
        return NULL;
    }
    opening->sum = sums ? hearth_checksum_begin() : NULL;
    opening->unsealing =
        info->encrypted ? hearth_seal_open_begin(seal, info->header_tag, sizeof info->header_tag, info->payload_nonce)
                        : NULL;
    if ((sums && !opening->sum) || (info->encrypted && !opening->unsealing)) {
        hearth_format_open_cancel(opening);
        return NULL;
    }
    return opening;
}

void hearth_format_open_part(struct hearth_format_opening *opening, uint8_t *bytes, size_t len) {
    opening->bytes += len;
    if (opening->unsealing) {
        hearth_seal_open_part(opening->unsealing, bytes, len);
    }
    if (opening->sum) {
        hearth_checksum_add(opening->sum, bytes, len);
    }
}

void hearth_format_open_cancel(struct hearth_format_opening *opening) {
    static const uint8_t NONE[HEARTH_SEAL_TAG_BYTES];
    if (opening) {
        (void)hearth_seal_open_end(opening->unsealing, NONE);
        (void)hearth_checksum_end(opening->sum);
        free(opening);
    }
}

static enum hearth_format_verdict unpack(const struct hearth_format_info *info, const struct hearth_buf *packed,
                                         struct hearth_buf *out, uint64_t *checksum) {
    switch (hearth_unpack(packed->data, packed->len, info->record.state_bytes, out)) {
    case HEARTH_PACK_OK: break;
    case HEARTH_PACK_USELESS: return HEARTH_FORMAT_WRONG_PAYLOAD;
    case HEARTH_PACK_NOMEM: return HEARTH_FORMAT_NOMEM;
    }
    if (checksum) {
        *checksum = hearth_checksum(out->data, out->len);
    }
    return HEARTH_FORMAT_GOOD;
}

enum hearth_format_verdict hearth_format_open_end(struct hearth_format_opening *opening,
                                                  const struct hearth_format_info *info, struct hearth_buf *payload,
                                                  struct hearth_buf *out, uint64_t *checksum) {
    HEARTH_ASSERT(out->data == NULL && opening->bytes == payload->len);
    struct hearth_buf taken = *payload;
    const uint64_t sum = hearth_checksum_end(opening->sum);
    const bool good = (opening->unsealing ? hearth_seal_open_end(opening->unsealing, info->payload_tag)
                                          : sum == info->payload_checksum) &&
                      taken.len == info->payload_bytes;
    enum hearth_format_verdict verdict = HEARTH_FORMAT_WRONG_PAYLOAD;
    *payload = (struct hearth_buf){0};
    free(opening);
    if (good && !info->compressed) {
        *out = taken;
        if (checksum) {
            *checksum = sum;
        }
        return HEARTH_FORMAT_GOOD;
    }
    if (good) {
        verdict = unpack(info, &taken, out, checksum);
    }
    hearth_buf_finish(&taken);
    return verdict;
}

enum hearth_format_verdict hearth_format_open(const struct hearth_format_info *info, const struct hearth_seal *seal,
                                              struct hearth_buf *payload, struct hearth_buf *out, uint64_t *checksum) {
    struct hearth_format_opening *opening = NULL;
    enum hearth_format_verdict verdict = HEARTH_FORMAT_WRONG_PAYLOAD;
    if (info->encrypted && !fits_key(info, seal)) {
        verdict = HEARTH_FORMAT_WRONG_KEY;
    } else if (payload->len == info->payload_bytes) {
        opening = hearth_format_open_begin(info, seal);
        verdict = HEARTH_FORMAT_NOMEM;
    }
    if (!opening) {
        hearth_buf_finish(payload);
        return verdict;
    }
    hearth_format_open_part(opening, payload->data, payload->len);
    return hearth_format_open_end(opening, info, payload, out, checksum);
}
