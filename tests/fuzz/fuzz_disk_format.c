/* Fuzzes the file of an item: whatever its bytes are, nothing is read beyond them, what is accepted is consistent, and
 * what is accepted in the clear can be written again and is the same. Checksums would stop nearly every input at the
 * door, so the first byte says which of them are made to fit (tests/fuzz/disk_format_input.h). */
#include "disk_format_input.h"
#include "fuzz.h"

#include "base/utf8.h"
#include "tier/format.h"

static void check_info(const struct hearth_format_info *info, const struct hearth_seal *key) {
    const struct hearth_record *record = &info->record;
    HEARTH_ASSERT(record->base_pos >= 0 && record->base_pos <= record->p0 && record->p0 <= record->p1);
    HEARTH_ASSERT(record->p1 - record->base_pos <= info->page_tokens);
    HEARTH_ASSERT(info->readable == (record->tokens != NULL));
    HEARTH_ASSERT(info->readable == (!info->encrypted || key != NULL));
    HEARTH_ASSERT(!info->readable || hearth_digest_equal(record->name, hearth_record_name(record)));
    HEARTH_ASSERT(hearth_utf8_valid(record->text, strlen(record->text)));
}

/* The state that was read makes a file that says the same. */
static void write_again(const struct hearth_format_info *info, const struct hearth_buf *state) {
    const struct hearth_format_params params = {
        .fingerprint = info->fingerprint, .page_tokens = info->page_tokens, .compress = info->compressed};
    struct hearth_buf header = {0}, payload = {0};
    struct hearth_format_info again;
    HEARTH_ASSERT(hearth_format_write(&params, &info->record, state->data, state->len, &header, &payload) == HEARTH_OK);
    HEARTH_ASSERT(hearth_format_read(header.data, header.len, NULL, &again) == HEARTH_FORMAT_GOOD);
    HEARTH_ASSERT(hearth_digest_equal(again.record.name, info->record.name) &&
                  again.header_bytes == info->header_bytes);
    HEARTH_ASSERT(again.compressed || again.payload_checksum == hearth_checksum(state->data, state->len));
    hearth_format_info_finish(&again);
    hearth_buf_finish(&header);
    hearth_buf_finish(&payload);
}

FUZZ_TARGET(disk_format) {
    static struct hearth_seal *the_key;
    if (the_key == NULL) {
        the_key = input_key();
        HEARTH_ASSERT(the_key != NULL);
    }
    if (size < INPUT_HEAD_BYTES) {
        return;
    }
    const struct hearth_seal *key = data[0] & INPUT_KEY ? the_key : NULL;
    size_t content = (size_t)data[1] | (size_t)data[2] << 8;
    content = content < size - INPUT_HEAD_BYTES ? content : size - INPUT_HEAD_BYTES;
    size_t len = content;
    if ((data[0] & INPUT_CUT) == 0) {
        size_t blocks = (content + HEARTH_FORMAT_BLOCK - 1) / HEARTH_FORMAT_BLOCK;
        len = (blocks > 0 ? blocks : 1) * HEARTH_FORMAT_BLOCK;
    }
    uint8_t *header = calloc(1, len + (len == 0)); /* of exactly that size, for the sanitizer to see its end */
    struct hearth_buf payload = {0}, state = {0};
    HEARTH_ASSERT(header != NULL);
    memcpy(header, data + INPUT_HEAD_BYTES, content);
    HEARTH_ASSERT(hearth_buf_append(&payload, data + INPUT_HEAD_BYTES + content, size - INPUT_HEAD_BYTES - content));
    if ((data[0] & (INPUT_FIX | INPUT_CUT)) == INPUT_FIX) {
        if (data[0] & INPUT_FIX_ALL) {
            input_fix_rest(header, len, payload.data, payload.len);
        }
        uint32_t header_bytes = (uint32_t)len;
        memcpy(header + 20, &header_bytes, sizeof header_bytes);
        input_fix_header(header, len);
    }
    struct hearth_format_info info;
    enum hearth_format_verdict verdict = hearth_format_read(header, len, key, &info);
    HEARTH_ASSERT(verdict != HEARTH_FORMAT_SHORT || info.header_bytes > len);
    HEARTH_ASSERT(verdict == HEARTH_FORMAT_GOOD || info.record.tokens == NULL);
    if (verdict == HEARTH_FORMAT_GOOD) {
        check_info(&info, key);
        verdict = hearth_format_open(&info, key, &payload, &state, NULL);
        HEARTH_ASSERT(payload.data == NULL && (verdict == HEARTH_FORMAT_GOOD || state.data == NULL));
        if (verdict == HEARTH_FORMAT_GOOD) {
            HEARTH_ASSERT(state.len == info.record.state_bytes);
            if (info.readable) {
                write_again(&info, &state);
            }
        }
    }
    hearth_format_info_finish(&info);
    hearth_buf_finish(&payload);
    hearth_buf_finish(&state);
    free(header);
}
