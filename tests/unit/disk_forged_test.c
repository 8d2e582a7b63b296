/* Files that somebody made, or another hearth: their checksums are good, and still nothing is believed that cannot be.
 * Other versions, other names, other keys. */
#include "support/disk_item.h"

#include "tier/pack.h"

/* Where somebody corrected the checksum: all but what is only said (times, labels, text) still has to fit. In a sealed
 * header nothing can be changed at all but what belongs to the payload, which then does not open. */
static void every_bit_matters_under_a_good_checksum(void **state) {
    (void)state;
    const struct hearth_seal *const seals[] = {NULL, key};
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 256, 512, 100);
    for (size_t s = 0; s < 2; s++) {
        struct file file = write_file(&item, seals[s], false);
        for (size_t bit = 8 * 16; bit < 8 * file.header_bytes; bit++) {
            size_t at = bit / 8;
            struct hearth_format_info info;
            struct hearth_buf out = {0};
            file.bytes[at] ^= (uint8_t)(1u << bit % 8);
            fix_checksum(&file);
            enum hearth_format_verdict verdict = hearth_format_read(file.bytes, file.len, seals[s], &info);
            if (verdict == HEARTH_FORMAT_GOOD) {
                verdict = open_payload(&file, seals[s], &info, &out);
            }
            hearth_format_info_finish(&info);
            bool said = (at >= 48 && at < 64) || (at >= 96 && at < 108) || at == 125 || (at >= 272 && at < 464);
            bool payload_checksum = at >= 88 && at < 96; /* of a sealed payload the tag says more */
            if (verdict == HEARTH_FORMAT_GOOD && !(seals[s] != NULL ? payload_checksum : said)) {
                fail_msg("bit %zu of byte %zu", bit % 8, at);
            }
            hearth_buf_finish(&out);
            file.bytes[at] ^= (uint8_t)(1u << bit % 8);
        }
        free(file.bytes);
    }
    item_finish(&item);
}

static void other_versions_are_left_alone(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 0, 256, 5000);
    struct file file = write_file(&item, NULL, false);
    struct hearth_format_info info;
    const uint32_t versions[] = {0, 3, 0xFFFFFFFF};
    for (size_t i = 0; i < 3; i++) {
        memcpy(file.bytes + 16, &versions[i], 4);
        assert_int_equal(read_only(file.bytes, file.len, NULL), HEARTH_FORMAT_DAMAGED);
        memset(file.bytes + 32, 0xA5, file.header_bytes - 32); /* whatever it has there */
        fix_checksum(&file);
        assert_int_equal(hearth_format_read(file.bytes, file.len, NULL, &info), HEARTH_FORMAT_NEWER);
        assert_int_equal(info.header_bytes + info.payload_bytes, file.len);
        hearth_format_info_finish(&info);
    }
    free(file.bytes);
    item_finish(&item);
}

static void names_are_those_of_the_tokens(void **state) {
    (void)state;
    /* and tokens are numbers of a vocabulary: */
    struct item c = make_item(HEARTH_RECORD_PAGE, 256, 0, 256, 0);
    struct file wrong = write_file(&c, NULL, false);
    memset(wrong.bytes + 464, 0xFF, 4);
    c.record.tokens[0] = -1;
    c.record.name = hearth_record_name(&c.record);
    memcpy(wrong.bytes + 32, &c.record.name.lo, 8);
    memcpy(wrong.bytes + 40, &c.record.name.hi, 8);
    fix_checksum(&wrong);
    assert_int_equal(read_only(wrong.bytes, wrong.len, NULL), HEARTH_FORMAT_DAMAGED);
    free(wrong.bytes);
    item_finish(&c);
    struct item a = make_item(HEARTH_RECORD_PAGE, 256, 0, 256, 100),
                b = make_item(HEARTH_RECORD_PAGE, 256, 0, 255, 100);
    struct file file = write_file(&a, NULL, false), other = write_file(&b, NULL, false);
    memcpy(file.bytes + 32, other.bytes + 32, 16);
    fix_checksum(&file);
    assert_int_equal(read_only(file.bytes, file.len, NULL), HEARTH_FORMAT_DAMAGED);
    free(file.bytes);
    free(other.bytes);
    item_finish(&a);
    item_finish(&b);
}

static void other_keys_are_clean_misses(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 256, 512, 5000);
    struct file file = write_file(&item, key, true);
    const struct hearth_seal *const readers[] = {NULL, other_key};
    const enum hearth_format_verdict wanted[] = {HEARTH_FORMAT_GOOD, HEARTH_FORMAT_WRONG_KEY};
    for (size_t i = 0; i < 2; i++) {
        struct hearth_format_info info;
        struct hearth_buf out = {0};
        assert_int_equal(hearth_format_read(file.bytes, file.len, readers[i], &info), wanted[i]);
        assert_true(info.encrypted && info.compressed && !info.readable);
        check_record(&item.record, &info.record, false);
        assert_int_equal(info.header_bytes + info.payload_bytes, file.len);
        assert_int_equal(open_payload(&file, readers[i], &info, &out), HEARTH_FORMAT_WRONG_KEY);
        hearth_format_info_finish(&info);
    }
    free(file.bytes);
    item_finish(&item);
}

static bool holds(const struct file *file, const void *what, size_t len) {
    return memmem(file->bytes, file->len, what, len) != NULL;
}

static void sealed_files_tell_nothing(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 256, 512, 5000);
    struct hearth_digest id = hearth_seal_id(key);
    struct file clear = write_file(&item, NULL, false), sealed = write_file(&item, key, false);
    assert_true(holds(&clear, item.record.text, 8) && !holds(&sealed, item.record.text, 8));
    assert_true(holds(&clear, item.record.tokens, 16) && !holds(&sealed, item.record.tokens, 16));
    assert_true(holds(&clear, &item.record.base.lo, 8) && !holds(&sealed, &item.record.base.lo, 8));
    assert_true(holds(&clear, item.state, 32) && !holds(&sealed, item.state, 32));
    assert_false(holds(&sealed, &id.lo, 8));
    free(clear.bytes);
    free(sealed.bytes);
    item_finish(&item);
}

/* Two files of the same item under the same key: their payloads cannot change places, though both are genuine. */
static void sealed_payloads_belong_to_their_headers(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 256, 512, 5000);
    struct file a = write_file(&item, key, false), b = write_file(&item, key, false);
    assert_memory_not_equal(a.bytes + a.header_bytes, b.bytes + b.header_bytes, 5000);
    memcpy(a.bytes + a.header_bytes, b.bytes + b.header_bytes, 5000);
    memcpy(a.bytes + 88, b.bytes + 88, 8);    /* the payload's checksum, */
    memcpy(a.bytes + 156, b.bytes + 156, 28); /* nonce and tag */
    fix_checksum(&a);
    struct hearth_format_info info;
    struct hearth_buf out = {0};
    assert_int_equal(hearth_format_read(a.bytes, a.len, key, &info), HEARTH_FORMAT_GOOD);
    assert_int_equal(open_payload(&a, key, &info, &out), HEARTH_FORMAT_WRONG_PAYLOAD);
    hearth_format_info_finish(&info);
    free(a.bytes);
    free(b.bytes);
    item_finish(&item);
}

/* ---- numbers that cannot be ---- */

static void put(struct file *file, size_t at, int64_t value, size_t bytes) {
    memcpy(file->bytes + at, &value, bytes);
}

/* The name as the header's own numbers and tokens make it, and the checksum: so nothing but the numbers can be why a
 * file is refused. */
static void fix_all(struct file *file) {
    struct hearth_record record = {.kind = file->bytes[124]};
    memcpy(&record.base_pos, file->bytes + 108, 4);
    memcpy(&record.p0, file->bytes + 112, 4);
    memcpy(&record.p1, file->bytes + 116, 4);
    memcpy(&record.base.lo, file->bytes + 256, 8);
    memcpy(&record.base.hi, file->bytes + 264, 8);
    if (record.base_pos <= record.p0 && record.p0 <= record.p1 &&
        hearth_record_tokens(&record) * sizeof(hearth_token) <= file->header_bytes - 464) {
        record.tokens = (hearth_token *)(void *)(file->bytes + 464);
        record.name = hearth_record_name(&record);
        memcpy(file->bytes + 32, &record.name.lo, 8);
        memcpy(file->bytes + 40, &record.name.hi, 8);
    }
    fix_checksum(file);
}

struct lie {
    const char *what;
    struct {
        uint8_t at, bytes;
        int64_t value;
    } put[4];
    bool fine; /* it is no lie at all: the test itself can fail */
};

/* About a page of [300, 400) with pages of 512 tokens and 5000 bytes of state in the clear. */
static const struct lie lies[] = {
    {"nothing", {{0, 0, 0}}, true},
    {"fewer tokens", {{116, 4, 399}}, true},
    {"a page of nothing", {{112, 4, 400}}, false},
    {"a snapshot of a range", {{124, 1, 1}}, false},
    {"a piece of a window", {{124, 1, 1}, {16, 4, 2}}, true},
    {"a page of the version of pieces", {{16, 4, 2}}, false},
    {"another kind", {{124, 1, 2}}, false},
    {"positions out of order", {{112, 4, 401}}, false},
    {"negative positions", {{108, 4, -512}, {112, 4, -200}, {116, 4, -100}}, false},
    {"a range over the end of numbers", {{112, 4, INT32_MIN}, {116, 4, INT32_MAX}}, false},
    {"no whole blocks", {{104, 4, 511}, {108, 4, 1}}, false},
    {"a block is crossed", {{104, 4, 399}}, false},
    {"pages of nothing", {{104, 4, 0}}, false},
    {"pages of less than nothing", {{104, 4, -512}}, false},
    {"pages of too much", {{104, 4, 65537}}, false},
    {"more tokens than the header holds", {{104, 4, 65536}, {116, 4, 1400}}, false},
    {"the most tokens", {{104, 4, 65536}, {116, 4, 65536}}, false},
    {"a longer payload", {{24, 8, 5001}}, false},
    {"a shorter payload", {{24, 8, 4999}}, false},
    {"a longer state", {{80, 8, 5001}}, false},
    {"a state of nothing", {{80, 8, 0}}, false},
    {"the longest state", {{80, 8, INT64_C(32) << 30}, {24, 8, INT64_C(32) << 30}}, true},
    {"a state beyond that", {{80, 8, (INT64_C(32) << 30) + 1}, {24, 8, (INT64_C(32) << 30) + 1}}, false},
    {"a state of everything", {{80, 8, -1}, {24, 8, -1}}, false},
    {"compressed to the same", {{120, 4, 2}}, false},
    {"compressed to more", {{120, 4, 2}, {24, 8, 5001}}, false},
    {"compressed to nothing", {{120, 4, 2}, {24, 8, 0}}, false},
    {"compressed", {{120, 4, 2}, {24, 8, 4999}}, true},
    {"other flags", {{120, 4, 4}}, false},
    {"a sealed file without a mark", {{120, 4, 1}}, false},
    {"a mark in the clear", {{64, 8, 1}}, false},
};

static void lies_are_not_believed(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 512, 300, 400, 5000);
    item.record.tokens[399] = 0; /* it can be taken away, and zeros remain */
    item.record.name = hearth_record_name(&item.record);
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct file file = write_file(&item, NULL, false);
        for (size_t k = 0; k < 4 && lies[i].put[k].bytes > 0; k++) {
            put(&file, lies[i].put[k].at, lies[i].put[k].value, lies[i].put[k].bytes);
        }
        fix_all(&file);
        uint8_t *header = malloc(file.header_bytes); /* alone, so that a sanitizer sees its end */
        memcpy(header, file.bytes, file.header_bytes);
        enum hearth_format_verdict verdict = read_only(header, file.header_bytes, NULL);
        if (verdict != (lies[i].fine ? HEARTH_FORMAT_GOOD : HEARTH_FORMAT_DAMAGED)) {
            fail_msg("%s: \"%s\"", lies[i].what, hearth_format_verdict_text(verdict));
        }
        free(header);
        free(file.bytes);
    }
    item_finish(&item);
}

static void texts_are_texts(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 0, 256, 10);
    static const struct {
        const char *bytes;
        uint8_t len;
        bool fine;
    } texts[] = {{"", 1, true},          {"\xC3\xA9", 3, true}, {"\xC3", 2, false},         {"\xFF", 2, false},
                 {"\xC0\x80", 3, false}, {"a\0\xFF", 4, true},  {"\xED\xA0\x80", 4, false}, {NULL, 192, false}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct file file = write_file(&item, NULL, false);
        memset(file.bytes + 272, 'x', texts[i].bytes == NULL ? 192 : 0); /* without an end */
        memcpy(file.bytes + 272, texts[i].bytes == NULL ? "x" : texts[i].bytes,
               texts[i].bytes == NULL ? 1 : texts[i].len);
        fix_checksum(&file);
        assert_int_equal(read_only(file.bytes, file.len, NULL),
                         texts[i].fine ? HEARTH_FORMAT_GOOD : HEARTH_FORMAT_DAMAGED);
        free(file.bytes);
    }
    item_finish(&item);
}

/* A payload of another length, with the checksum that fits it. */
static void payloads_have_their_length(void **state) {
    (void)state;
    struct item item = make_item(HEARTH_RECORD_PAGE, 256, 0, 256, 5000);
    struct file file = write_file(&item, NULL, false), shorter = {file.bytes, file.len - 1, file.header_bytes};
    struct hearth_format_info info;
    struct hearth_buf out = {0};
    assert_int_equal(hearth_format_read(file.bytes, file.len, NULL, &info), HEARTH_FORMAT_GOOD);
    info.payload_checksum = hearth_checksum(file.bytes + file.header_bytes, 4999);
    assert_int_equal(open_payload(&shorter, NULL, &info, &out), HEARTH_FORMAT_WRONG_PAYLOAD);
    hearth_format_info_finish(&info);
    free(file.bytes);
    item_finish(&item);
}

/* ---- packed bytes that are none ---- */

static void useless(const void *packed, size_t packed_len, size_t len) {
    struct hearth_buf out = {0};
    assert_int_equal(hearth_unpack(packed, packed_len, len, &out), HEARTH_PACK_USELESS);
    assert_null(out.data);
}

static void packed_bytes_are_checked(void **state) {
    (void)state;
    enum { LEN = 600000, UNIT = HEARTH_PACK_UNIT_BYTES };
    struct rng rng = {3};
    uint8_t *bytes = make_state(LEN, &rng);
    struct hearth_buf packed = {0}, out = {0};
    assert_int_equal(hearth_pack(bytes, LEN, &packed), HEARTH_PACK_OK);
    assert_int_equal(hearth_unpack(packed.data, packed.len, LEN, &out), HEARTH_PACK_OK);
    assert_memory_equal(out.data, bytes, LEN);
    hearth_buf_finish(&out);
    useless(packed.data, packed.len, LEN - 1); /* units that give another length */
    useless(packed.data, packed.len, LEN + 1);
    useless(packed.data, packed.len, UNIT);
    useless(packed.data, packed.len, LEN + UNIT);
    for (size_t cut = 1; cut <= packed.len; cut += cut < 8 ? 1 : 1001) {
        uint8_t *part = malloc(packed.len - cut + 1);
        memcpy(part, packed.data, packed.len - cut);
        useless(part, packed.len - cut, LEN);
        free(part);
    }
    assert_true(hearth_buf_append(&packed, "", 1)); /* something behind */
    useless(packed.data, packed.len, LEN);
    packed.len--;
    static const uint32_t lengths[] = {0, 1, UNIT, UNIT + 1, 0x7FFFFFFF, 0xFFFFFFFF};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memcpy(packed.data, &lengths[i], 4);
        useless(packed.data, packed.len, LEN);
    }
    /* Very many units of nothing: refused by their number, not by running out of memory. */
    useless("\1\0\0\0x", 5, (size_t)1 << 45);
    /* A frame that gives ten bytes, behind one that zstd skips: more than the unit has, so it was not made here. */
    static const uint8_t longer[] = {31, 0,   0,   0,   0x50, 0x2A, 0x4D, 0x18, 4,    0,   0,    0,
                                     1,  2,   3,   4,   0x28, 0xB5, 0x2F, 0xFD, 0x20, 10,  0x51, 0,
                                     0,  '0', '1', '2', '3',  '4',  '5',  '6',  '7',  '8', '9'};
    useless(longer, sizeof longer, 10);
    hearth_buf_finish(&packed);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_matters_under_a_good_checksum),
        cmocka_unit_test(other_versions_are_left_alone),
        cmocka_unit_test(names_are_those_of_the_tokens),
        cmocka_unit_test(other_keys_are_clean_misses),
        cmocka_unit_test(sealed_files_tell_nothing),
        cmocka_unit_test(sealed_payloads_belong_to_their_headers),
        cmocka_unit_test(lies_are_not_believed),
        cmocka_unit_test(texts_are_texts),
        cmocka_unit_test(payloads_have_their_length),
        cmocka_unit_test(packed_bytes_are_checked),
    };
    return cmocka_run_group_tests(tests, make_keys, destroy_keys);
}
