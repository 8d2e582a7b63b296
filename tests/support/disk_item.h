/* Items, their files and two keys, for the tests of the disk format. Offsets stand in the tests as numbers, as
 * docs/disk-format.md has them, so that a changed layout fails. */
#ifndef HEARTH_TESTS_DISK_ITEM_H
#define HEARTH_TESTS_DISK_ITEM_H

#include "base/seal.h"
#include "support/random.h"
#include "tier/format.h"

#include <setjmp.h> /* cmocka needs these before it */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct hearth_seal *key, *other_key;
static const struct hearth_digest fingerprint = {0x1234, 0x5678};

/* ---- items and files ---- */

struct item {
    struct hearth_record record;
    uint8_t *state;
    int32_t page_tokens;
};

/* State as of 16-bit floats: it can be compressed, but not much. */
static inline uint8_t *make_state(size_t len, struct rng *rng) {
    uint8_t *state = malloc(len + 1);
    assert_non_null(state);
    for (size_t i = 0; i < len; i++) {
        state[i] = (uint8_t)(i % 2 == 0 ? rng_next(rng) : 0x38 + rng_below(rng, 8));
    }
    return state;
}

static inline struct item make_item(enum hearth_record_kind kind, int32_t page_tokens, int32_t p0, int32_t p1,
                                    size_t state_bytes) {
    struct rng rng = {(uint64_t)p1 + state_bytes};
    struct item item = {.page_tokens = page_tokens, .state = make_state(state_bytes, &rng)};
    item.record = (struct hearth_record){.kind = kind,
                                         .label = 3,
                                         .base = {rng_next(&rng), rng_next(&rng)},
                                         .base_pos = p0 / page_tokens * page_tokens,
                                         .p0 = p0,
                                         .p1 = p1,
                                         .state_bytes = state_bytes,
                                         .text = "Größe: a first line"};
    size_t n = hearth_record_tokens(&item.record);
    item.record.tokens = malloc(n * sizeof(hearth_token) + 1);
    assert_non_null(item.record.tokens);
    for (size_t i = 0; i < n; i++) {
        item.record.tokens[i] = (hearth_token)rng_below(&rng, 150000);
    }
    item.record.name = hearth_record_name(&item.record);
    return item;
}

static inline void item_finish(struct item *item) {
    free(item->record.tokens);
    free(item->state);
}

/* A file's bytes, header and payload. */
struct file {
    uint8_t *bytes;
    size_t len, header_bytes;
};

static inline struct file write_file(const struct item *item, const struct hearth_seal *seal, bool compress) {
    const struct hearth_format_params params = {fingerprint, item->page_tokens, seal, compress};
    struct hearth_buf header = {0}, payload = {0};
    assert_int_equal(
        hearth_format_write(&params, &item->record, item->state, item->record.state_bytes, &header, &payload),
        HEARTH_OK);
    assert_true(seal != NULL || compress || payload.data == NULL); /* else the state is not copied */
    const uint8_t *stored = payload.len > 0 ? payload.data : item->state;
    size_t stored_len = payload.len > 0 ? payload.len : item->record.state_bytes;
    struct file file = {malloc(header.len + stored_len), header.len + stored_len, header.len};
    assert_non_null(file.bytes);
    memcpy(file.bytes, header.data, header.len);
    memcpy(file.bytes + header.len, stored, stored_len);
    assert_int_equal(header.len % HEARTH_FORMAT_BLOCK, 0);
    hearth_buf_finish(&header);
    hearth_buf_finish(&payload);
    return file;
}

static inline struct hearth_buf payload_of(const struct file *file) {
    struct hearth_buf payload = {0};
    assert_true(hearth_buf_append(&payload, file->bytes + file->header_bytes, file->len - file->header_bytes));
    return payload;
}

/* Opens it in parts, which comes to the same as opening it as a whole did. */
static inline void open_parts(const struct file *file, const struct hearth_seal *seal,
                              const struct hearth_format_info *info, enum hearth_format_verdict verdict,
                              const struct hearth_buf *whole) {
    struct hearth_format_opening *opening = hearth_format_open_begin(info, seal);
    struct hearth_buf payload = payload_of(file), out = {0};
    uint64_t checksum;
    if (verdict == HEARTH_FORMAT_WRONG_KEY) {
        assert_null(opening);
        hearth_buf_finish(&payload);
        return;
    }
    for (size_t at = 0, n; at < payload.len; at += n) {
        n = payload.len - at < 70001 ? payload.len - at : 70001;
        hearth_format_open_part(opening, payload.data + at, n);
    }
    assert_int_equal(hearth_format_open_end(opening, info, &payload, &out, &checksum), verdict);
    assert_true(payload.data == NULL && out.len == whole->len);
    if (verdict == HEARTH_FORMAT_GOOD) {
        assert_memory_equal(out.data, whole->data, whole->len);
        assert_int_equal(checksum, hearth_checksum(whole->data, whole->len));
    }
    hearth_buf_finish(&out);
}

static inline enum hearth_format_verdict open_payload(const struct file *file, const struct hearth_seal *seal,
                                                      const struct hearth_format_info *info, struct hearth_buf *out) {
    struct hearth_buf payload = payload_of(file);
    uint64_t checksum;
    enum hearth_format_verdict verdict = hearth_format_open(info, seal, &payload, out, &checksum);
    assert_true(payload.data == NULL && payload.len == 0);
    assert_true(verdict == HEARTH_FORMAT_GOOD || out->data == NULL);
    assert_true(verdict != HEARTH_FORMAT_GOOD || checksum == hearth_checksum(out->data, out->len));
    open_parts(file, seal, info, verdict, out);
    return verdict;
}

static inline enum hearth_format_verdict read_only(const void *bytes, size_t len, const struct hearth_seal *seal) {
    struct hearth_format_info info;
    enum hearth_format_verdict verdict = hearth_format_read(bytes, len, seal, &info);
    assert_true(verdict != HEARTH_FORMAT_SHORT || info.header_bytes > len);
    assert_true(info.record.tokens == NULL || verdict == HEARTH_FORMAT_GOOD);
    hearth_format_info_finish(&info);
    return verdict;
}

static inline void fix_checksum(struct file *file) {
    uint64_t checksum = hearth_checksum(file->bytes + 16, file->header_bytes - 16);
    memcpy(file->bytes + 8, &checksum, sizeof checksum);
}

static inline void check_record(const struct hearth_record *want, const struct hearth_record *got, bool readable) {
    struct hearth_digest none = {0, 0};
    assert_int_equal(got->kind, want->kind);
    assert_int_equal(got->label, want->label);
    assert_int_equal(got->base_pos, want->base_pos);
    assert_int_equal(got->p0, want->p0);
    assert_int_equal(got->p1, want->p1);
    assert_int_equal(got->state_bytes, want->state_bytes);
    assert_true(hearth_digest_equal(got->name, want->name));
    assert_true(hearth_digest_equal(got->base, readable ? want->base : none));
    assert_string_equal(got->text, readable ? want->text : "");
    if (readable) {
        assert_memory_equal(got->tokens, want->tokens, hearth_record_tokens(want) * sizeof *want->tokens);
    } else {
        assert_null(got->tokens);
    }
}

/* ---- the keys: setup and teardown of a group ---- */

static inline struct hearth_seal *make_key(uint8_t with) {
    char path[] = "/tmp/hearth-key-XXXXXX"; /* mkstemp makes it 0600 */
    uint8_t bytes[32];
    struct hearth_seal *seal = NULL;
    int fd = mkstemp(path);
    memset(bytes, with, sizeof bytes);
    if (fd >= 0 && write(fd, bytes, sizeof bytes) == (ssize_t)sizeof bytes) {
        (void)hearth_seal_create(path, &seal, NULL);
    }
    (void)close(fd);
    (void)unlink(path);
    return seal;
}

static inline int make_keys(void **state) {
    (void)state;
    key = make_key(1);
    other_key = make_key(2);
    return key == NULL || other_key == NULL;
}

static inline int destroy_keys(void **state) {
    (void)state;
    hearth_seal_destroy(key);
    hearth_seal_destroy(other_key);
    return 0;
}

#endif
