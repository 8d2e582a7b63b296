/* The file of an item: everything comes back, and nothing that was damaged is taken for what it was. */
#include "support/disk_item.h"

#include "support/stops.h"

/* ---- what comes back ---- */

static void comes_back(const struct item *item, const struct hearth_seal *seal, bool compress) {
    struct file file = write_file(item, seal, compress);
    struct hearth_format_info info;
    struct hearth_buf out = {0};
    assert_int_equal(hearth_format_read(file.bytes, file.len, seal, &info), HEARTH_FORMAT_GOOD);
    check_record(&item->record, &info.record, true);
    assert_true(info.readable && info.encrypted == (seal != NULL));
    assert_true(hearth_digest_equal(info.fingerprint, fingerprint));
    assert_int_equal(info.page_tokens, item->page_tokens);
    assert_int_equal(info.header_bytes, file.header_bytes);
    assert_int_equal(info.header_bytes + info.payload_bytes, file.len);
    assert_int_equal(info.compressed, compress && item->record.state_bytes >= 1000);
    assert_true(info.created_us > (uint64_t)1700000000 * 1000000);
    if (!info.compressed && seal == NULL) {
        assert_int_equal(info.payload_checksum, hearth_checksum(item->state, item->record.state_bytes));
    }
    assert_int_equal(open_payload(&file, seal, &info, &out), HEARTH_FORMAT_GOOD);
    assert_int_equal(out.len, item->record.state_bytes);
    if (out.len > 0) {
        assert_memory_equal(out.data, item->state, out.len);
    }
    hearth_buf_finish(&out);
    hearth_format_info_finish(&info);
    free(file.bytes);
}

static void everything_comes_back(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 1000, 5001, 256 * 1024, 256 * 1024 + 1, 3 * 256 * 1024 + 77};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct item items[] = {
            make_item(HEARTH_RECORD_PAGE, 256, 256, 512, sizes[i]),
            make_item(HEARTH_RECORD_PAGE, 256, 300, 301, sizes[i]),
            make_item(HEARTH_RECORD_PAGE, 1, 7, 8, sizes[i]),
            make_item(HEARTH_RECORD_PAGE, HEARTH_RECORD_TOKENS_MAX, 0, HEARTH_RECORD_TOKENS_MAX, sizes[i]),
            make_item(HEARTH_RECORD_SNAPSHOT, 256, 700, 700, sizes[i]),
            make_item(HEARTH_RECORD_SNAPSHOT, 256, 600, 700, sizes[i]), /* a piece of a window */
            make_item(HEARTH_RECORD_SNAPSHOT, 256, 512, 768, sizes[i]),
            make_item(HEARTH_RECORD_SNAPSHOT, 256, 512, 512, sizes[i]), /* at a block's end: no tokens */
        };
        for (size_t k = 0; k < sizeof items / sizeof items[0]; k++) {
            comes_back(&items[k], NULL, false);
            comes_back(&items[k], NULL, true);
            comes_back(&items[k], key, false);
            comes_back(&items[k], key, true);
            item_finish(&items[k]);
        }
    }
}

/* A snapshot at a block's end may also carry that block's tokens. */
static void a_whole_block_before_a_snapshot(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 64, 64, 128, 10);
    item.record.kind = HEARTH_RECORD_SNAPSHOT;
    item.record.p0 = 128;
    item.record.name = hearth_record_name(&item.record);
    comes_back(&item, NULL, false);
    item_finish(&item);
}

/* Only what version 1 cannot say has another one: a piece of a window. Neither is read as the other. */
static void versions(void **state) {
    (void)state;
    for (uint32_t piece = 0; piece < 2; piece++) {
        struct item item = make_item(HEARTH_RECORD_SNAPSHOT, 256, piece ? 600 : 700, 700, 1000);
        struct file file = write_file(&item, NULL, false);
        struct hearth_format_info info;
        uint32_t version;
        memcpy(&version, file.bytes + 16, sizeof version);
        assert_int_equal(version, 1 + piece);
        version = 2 - piece;
        memcpy(file.bytes + 16, &version, sizeof version);
        uint64_t checksum = hearth_checksum(file.bytes + 16, file.header_bytes - 16);
        memcpy(file.bytes + 8, &checksum, sizeof checksum);
        assert_int_equal(hearth_format_read(file.bytes, file.header_bytes, NULL, &info), HEARTH_FORMAT_DAMAGED);
        hearth_format_info_finish(&info);
        free(file.bytes);
        item_finish(&item);
    }
}

static void usual_pages_have_one_block(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 0, 256, 10);
    memset(item.record.text, 'x', HEARTH_RECORD_TEXT_BYTES - 1);
    struct file file = write_file(&item, key, true);
    assert_int_equal(file.header_bytes, HEARTH_FORMAT_BLOCK);
    free(file.bytes);
    comes_back(&item, key, false); /* the longest text */
    item_finish(&item);
}

static void noise_is_not_compressed(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 0, 256, 600000);
    struct rng rng = {9};
    for (size_t i = 0; i < item.record.state_bytes; i++) {
        item.state[i] = (uint8_t)rng_next(&rng);
    }
    struct file file = write_file(&item, NULL, true);
    struct hearth_format_info info;
    assert_int_equal(hearth_format_read(file.bytes, file.len, NULL, &info), HEARTH_FORMAT_GOOD);
    assert_false(info.compressed);
    assert_int_equal(info.payload_bytes, 600000);
    hearth_format_info_finish(&info);
    free(file.bytes);
    /* A noisy unit among others is kept as it is. */
    memset(item.state, 0, 256 * 1024);
    file = write_file(&item, NULL, true);
    assert_true(file.len < 400000);
    assert_int_equal(hearth_format_read(file.bytes, file.len, NULL, &info), HEARTH_FORMAT_GOOD);
    struct hearth_buf out = {0};
    assert_int_equal(open_payload(&file, NULL, &info, &out), HEARTH_FORMAT_GOOD);
    assert_memory_equal(out.data, item.state, 600000);
    hearth_buf_finish(&out);
    hearth_format_info_finish(&info);
    free(file.bytes);
    item_finish(&item);
}

static void a_plain_payload_is_not_copied(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 0, 256, 5000);
    struct file file = write_file(&item, NULL, false);
    struct hearth_format_info info;
    assert_int_equal(hearth_format_read(file.bytes, file.len, NULL, &info), HEARTH_FORMAT_GOOD);
    struct hearth_buf payload = payload_of(&file), out = {0};
    const void *memory = payload.data;
    assert_int_equal(hearth_format_open(&info, NULL, &payload, &out, NULL), HEARTH_FORMAT_GOOD);
    assert_ptr_equal(out.data, memory);
    hearth_buf_finish(&out);
    hearth_format_info_finish(&info);
    free(file.bytes);
    item_finish(&item);
}

/* Bytes that are no text become U+FFFD, cut between characters; what the reader refuses is never written. */
static void text_is_repaired(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 0, 256, 0);
    memset(item.record.text, '\xFF', HEARTH_RECORD_TEXT_BYTES); /* without an end, too */
    struct file file = write_file(&item, NULL, false);
    struct hearth_format_info info;
    assert_int_equal(hearth_format_read(file.bytes, file.len, NULL, &info), HEARTH_FORMAT_GOOD);
    assert_int_equal(strlen(info.record.text), 189);
    assert_memory_equal(info.record.text, "\xEF\xBF\xBD\xEF\xBF\xBD", 6);
    hearth_format_info_finish(&info);
    free(file.bytes);
    item_finish(&item);
}

/* A file of another layout is of another version: whoever changes these bytes changes HEARTH_FORMAT_VERSION. */
static void the_layout_is_pinned(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 300, 400, 5000);
    struct file file = write_file(&item, NULL, false);
    memset(file.bytes + 8, 0, 8);  /* the checksum and */
    memset(file.bytes + 96, 0, 8); /* the time that it covers */
    assert_int_equal(hearth_checksum(file.bytes, file.len), 0x6B317E0C87BE4700u);
    assert_int_equal(HEARTH_FORMAT_VERSION, 2); /* which adds pieces of windows, and changes nothing here */
    free(file.bytes);
    item_finish(&item);
}

/* ---- damage ---- */

static void flip_every_bit(const struct item *item, const struct hearth_seal *written_with) {
    struct file file = write_file(item, written_with, false);
    const struct hearth_seal *const readers[] = {written_with, NULL};
    for (size_t r = 0; r < 2; r++) {
        for (size_t bit = 0; bit < 8 * file.header_bytes; bit++) {
            file.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            enum hearth_format_verdict verdict = read_only(file.bytes, file.len, readers[r]);
            /* A length may claim more than there is: the reader asks for it, and the file ends. */
            bool length = bit / 8 >= 20 && bit / 8 < 24 && verdict == HEARTH_FORMAT_SHORT;
            if (!length && verdict != (bit < 64 ? HEARTH_FORMAT_NOT_OURS : HEARTH_FORMAT_DAMAGED)) {
                fail_msg("bit %zu: %s", bit, hearth_format_verdict_text(verdict));
            }
            file.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        assert_int_equal(read_only(file.bytes, file.len, readers[r]), HEARTH_FORMAT_GOOD);
    }
    free(file.bytes);
}

static void every_bit_of_a_header_matters(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 256, 512, 100);
    flip_every_bit(&item, NULL);
    flip_every_bit(&item, key);
    item_finish(&item);
    item = make_item(HEARTH_RECORD_SNAPSHOT, 1024, 1000, 1000, 20000); /* two blocks */
    flip_every_bit(&item, NULL);
    item_finish(&item);
}

static void damaged_payloads_are_found(void **state) {
    (void)state;
    struct rng rng = {seed_announced(5)};
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 256, 512, 300000);
    for (int how = 0; how < 4; how++) {
        const struct hearth_seal *seal = how & 1 ? key : NULL;
        struct file file = write_file(&item, seal, (how & 2) != 0);
        size_t payload_bytes = file.len - file.header_bytes;
        struct hearth_format_info info;
        struct hearth_buf out = {0};
        assert_int_equal(hearth_format_read(file.bytes, file.len, seal, &info), HEARTH_FORMAT_GOOD);
        for (int i = 0; i < 200; i++) {
            size_t at = file.header_bytes + rng_below(&rng, (uint32_t)payload_bytes);
            uint8_t bit = (uint8_t)(1u << rng_below(&rng, 8));
            file.bytes[at] ^= bit;
            assert_int_equal(open_payload(&file, seal, &info, &out), HEARTH_FORMAT_WRONG_PAYLOAD);
            /* Also where the checksum was made to fit: the tag does not, and what is compressed never overruns. */
            uint64_t checksum = info.payload_checksum;
            info.payload_checksum = hearth_checksum(file.bytes + file.header_bytes, payload_bytes);
            enum hearth_format_verdict verdict = open_payload(&file, seal, &info, &out);
            assert_true(verdict == HEARTH_FORMAT_WRONG_PAYLOAD || seal == NULL);
            assert_true(out.len == 0 || out.len == item.record.state_bytes);
            hearth_buf_finish(&out);
            info.payload_checksum = checksum;
            file.bytes[at] ^= bit;
        }
        for (size_t cut = 1; cut <= payload_bytes; cut += cut < 10 ? 1 : 4096) {
            struct file shorter = {file.bytes, file.len - cut, file.header_bytes};
            assert_int_equal(open_payload(&shorter, seal, &info, &out), HEARTH_FORMAT_WRONG_PAYLOAD);
        }
        assert_int_equal(open_payload(&file, seal, &info, &out), HEARTH_FORMAT_GOOD);
        hearth_buf_finish(&out);
        hearth_format_info_finish(&info);
        free(file.bytes);
    }
    item_finish(&item);
}

/* Each length in a block of memory of its own, so that a sanitizer sees what is read beyond it. */
static void truncated_headers_are_short(void **state) {
    (void)state;
    const struct hearth_seal *const seals[] = {NULL, key};
    struct item item = make_item(HEARTH_RECORD_PAGE, 1024, 0, 1000, 5000);
    for (size_t s = 0; s < 2; s++) {
        struct file file = write_file(&item, seals[s], false);
        assert_int_equal(file.header_bytes, 2 * HEARTH_FORMAT_BLOCK);
        for (size_t len = 0; len < file.header_bytes; len++) {
            uint8_t *part = malloc(len + (len == 0));
            memcpy(part, file.bytes, len);
            assert_int_equal(read_only(part, len, seals[s]), HEARTH_FORMAT_SHORT);
            free(part);
        }
        assert_int_equal(read_only(NULL, 0, seals[s]), HEARTH_FORMAT_SHORT);
        assert_int_equal(read_only(file.bytes, file.header_bytes, seals[s]), HEARTH_FORMAT_GOOD);
        free(file.bytes);
    }
    item_finish(&item);
}

static void garbage_is_not_ours(void **state) {
    (void)state;
    struct rng rng = {seed_announced(11)};
    uint8_t bytes[2 * HEARTH_FORMAT_BLOCK] = {0};
    assert_int_equal(read_only(bytes, sizeof bytes, NULL), HEARTH_FORMAT_NOT_OURS);
    for (int i = 0; i < 2000; i++) {
        for (size_t k = 0; k < sizeof bytes; k++) {
            bytes[k] = (uint8_t)rng_next(&rng);
        }
        assert_int_equal(read_only(bytes, rng_below(&rng, sizeof bytes - 8) + 8, NULL), HEARTH_FORMAT_NOT_OURS);
        memcpy(bytes, "hearthkv", 8);
        enum hearth_format_verdict verdict = read_only(bytes, sizeof bytes, NULL);
        assert_true(verdict == HEARTH_FORMAT_DAMAGED || verdict == HEARTH_FORMAT_SHORT);
    }
}

static void misuse_stops(void **state) {
    (void)state;
    const struct hearth_format_params params = {fingerprint, 256, NULL, false};
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 256, 512, 10);
    struct hearth_buf header = {0}, payload = {0};
    assert_stops((void)hearth_format_write(&params, &item.record, item.state, 9, &header, &payload));
    item.record.name.lo ^= 1; /* another one's */
    assert_stops((void)hearth_format_write(&params, &item.record, item.state, 10, &header, &payload));
    item.record.name.lo ^= 1;
    item.record.base_pos = 255; /* no block begins there */
    assert_stops((void)hearth_format_write(&params, &item.record, item.state, 10, &header, &payload));
    item.record.base_pos = 0; /* crosses one */
    assert_stops((void)hearth_format_write(&params, &item.record, item.state, 10, &header, &payload));
    item.record.base_pos = 256;
    item.record.p0 = item.record.p1; /* a page of nothing */
    assert_stops((void)hearth_format_write(&params, &item.record, item.state, 10, &header, &payload));
    item.record.state_bytes = (size_t)HEARTH_FORMAT_STATE_MAX + 1;
    assert_int_equal(hearth_format_write(&params, &item.record, item.state, item.record.state_bytes, &header, &payload),
                     HEARTH_ERR_TOO_LARGE);
    item_finish(&item);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions),
        cmocka_unit_test(everything_comes_back),
        cmocka_unit_test(a_whole_block_before_a_snapshot),
        cmocka_unit_test(usual_pages_have_one_block),
        cmocka_unit_test(noise_is_not_compressed),
        cmocka_unit_test(a_plain_payload_is_not_copied),
        cmocka_unit_test(text_is_repaired),
        cmocka_unit_test(the_layout_is_pinned),
        cmocka_unit_test(every_bit_of_a_header_matters),
        cmocka_unit_test(damaged_payloads_are_found),
        cmocka_unit_test(truncated_headers_are_short),
        cmocka_unit_test(garbage_is_not_ours),
        cmocka_unit_test(misuse_stops),
    };
    return cmocka_run_group_tests(tests, make_keys, destroy_keys);
}
