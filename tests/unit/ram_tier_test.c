/* The RAM tier: bytes are taken, not copied; counted; verified; and damage is found before an engine sees it. */
#include "base/log.h"
#include "tier/ram.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct hearth_buf filled(size_t len, uint8_t with) {
    struct hearth_buf buf = {0};
    assert_true(hearth_buf_reserve(&buf, len + 1000)); /* more than it will hold */
    memset(buf.data, with, len);
    buf.len = len;
    return buf;
}

static void keeps_and_counts(void **state) {
    (void)state;
    struct hearth_ram *ram = hearth_ram_create();
    assert_non_null(ram);
    assert_int_equal(ram->used_bytes, 0);
    struct hearth_buf a = filled(1000, 1), b = filled(1, 2), empty = {0};
    struct hearth_blob *blobs[] = {hearth_ram_put(ram, &a, NULL), hearth_ram_put(ram, &b, NULL),
                                   hearth_ram_put(ram, &empty, NULL)};
    assert_true(a.data == NULL && a.len == 0 && b.data == NULL && empty.data == NULL);
    const size_t lens[] = {1000, 1, 0};
    for (int i = 0; i < 3; i++) {
        const void *bytes;
        size_t len;
        assert_non_null(blobs[i]);
        assert_int_equal(hearth_blob_bytes(blobs[i]), lens[i] + HEARTH_BLOB_OVERHEAD_BYTES);
        assert_int_equal(hearth_ram_view(ram, blobs[i], &bytes, &len), HEARTH_OK);
        assert_int_equal(len, lens[i]);
        for (size_t k = 0; k < len; k++) {
            assert_int_equal(((const uint8_t *)bytes)[k], i + 1);
        }
    }
    assert_int_equal(ram->used_bytes, 1001 + 3 * HEARTH_BLOB_OVERHEAD_BYTES);
    hearth_ram_drop(ram, blobs[0]);
    assert_int_equal(ram->used_bytes, 1 + 2 * HEARTH_BLOB_OVERHEAD_BYTES);
    hearth_ram_drop(ram, blobs[2]);
    hearth_ram_destroy(ram); /* with one blob left in it */
}

static int lines;

static void count_line(void *user, enum hearth_log_level level, const char *line) {
    (void)user;
    (void)line;
    lines += level == HEARTH_LOG_ERROR;
}

static void finds_damage(void **state) {
    (void)state;
    struct hearth_ram *ram = hearth_ram_create();
    struct hearth_buf a = filled(300, 7), b = filled(300, 7);
    struct hearth_blob *good = hearth_ram_put(ram, &a, NULL), *bad = hearth_ram_put(ram, &b, NULL);
    const void *bytes;
    size_t len;
    assert_int_equal(hearth_ram_view(ram, bad, &bytes, &len), HEARTH_OK);
    ((uint8_t *)(uintptr_t)bytes)[299] ^= 0x10; /* one bit, as a bad memory cell would */
    hearth_log_set(count_line, NULL, HEARTH_LOG_DEBUG);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hearth_ram_view(ram, bad, &bytes, &len), HEARTH_ERR_STATE);
        assert_true(bytes == NULL && len == 0);
    }
    assert_int_equal(ram->bad_blobs, 3);
    assert_int_equal(lines, 1); /* said once, then counted */
    assert_int_equal(hearth_ram_view(ram, good, &bytes, &len), HEARTH_OK);
    hearth_log_set(NULL, NULL, HEARTH_LOG_INFO);
    hearth_ram_drop(ram, bad);
    hearth_ram_drop(ram, good);
    assert_int_equal(ram->used_bytes, 0);
    hearth_ram_destroy(ram);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_and_counts), cmocka_unit_test(finds_damage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
