/* What the policy has learnt, as bytes (cache/learnt.h): it comes back as it was, and nothing else is taken for it. */
#include "cache/learnt.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TURNS = 5000, HEADER_BYTES = 40 };

/* One of conversations that come back and some that do not. */
static void teach(struct hearth_hazard *hazard) {
    for (int i = 0; i < TURNS; i++) {
        const struct hearth_hazard_case of = {.awaits = (uint8_t)(i % HEARTH_AWAITS_COUNT),
                                              .values = {(uint8_t)(i % 7), (uint8_t)(i % 5), (uint8_t)(i % 11), 0}};
        for (int bin = 0; bin <= i % 40; bin++) {
            hearth_hazard_learn(hazard, &of, bin, bin == i % 40 && i % 3 != 0);
        }
    }
}

static const char *parse(const struct hearth_buf *bytes, size_t len, struct hearth_hazard *hazard, uint64_t *turns) {
    void *exact = malloc(len > 0 ? len : 1); /* so that what reads behind it is noticed */
    assert_non_null(exact);
    memcpy(exact, bytes->data, len);
    const char *why = hearth_learnt_parse(exact, len, hazard, turns);
    free(exact);
    return why;
}

static struct hearth_buf print(struct hearth_hazard *hazard) {
    struct hearth_buf bytes = {0};
    teach(hazard);
    assert_true(hearth_learnt_print(hazard, TURNS, &bytes));
    return bytes;
}

static void it_comes_back_as_it_was(void **state) {
    (void)state;
    static struct hearth_hazard hazard, read;
    uint64_t turns = 0;
    struct hearth_buf bytes = print(&hazard);
    assert_null(parse(&bytes, bytes.len, &read, &turns));
    assert_int_equal(turns, TURNS);
    assert_memory_equal(&read, &hazard, sizeof hazard);
    assert_true(bytes.len <= HEARTH_LEARNT_BYTES_MAX);
    hearth_buf_finish(&bytes);
}

static void nothing_that_is_cut_short_is_read(void **state) {
    (void)state;
    static struct hearth_hazard hazard, read, zero;
    uint64_t turns = 0;
    struct hearth_buf bytes = print(&hazard);
    for (size_t len = 0; len < bytes.len; len++) {
        assert_non_null(parse(&bytes, len, &read, &turns));
    }
    assert_true(hearth_buf_append(&bytes, "", 1));
    assert_non_null(parse(&bytes, bytes.len, &read, &turns));
    assert_memory_equal(&read, &zero, sizeof zero);
    assert_int_equal(turns, 0);
    hearth_buf_finish(&bytes);
}

/* Each byte of the header but those of the number of turns. */
static void nothing_of_another_version_is_read(void **state) {
    (void)state;
    static struct hearth_hazard hazard, read;
    uint64_t turns = 0;
    struct hearth_buf bytes = print(&hazard);
    for (size_t i = 0; i < HEADER_BYTES - sizeof turns; i++) {
        bytes.data[i] ^= 1;
        assert_non_null(parse(&bytes, bytes.len, &read, &turns));
        bytes.data[i] ^= 1;
    }
    assert_null(parse(&bytes, bytes.len, &read, &turns));
    hearth_buf_finish(&bytes);
}

static void numbers_that_are_no_counts_are_not_read(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, -1, 1e30f};
    static struct hearth_hazard hazard, read;
    uint64_t turns = 0;
    struct hearth_buf bytes = print(&hazard);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const size_t last = bytes.len - sizeof *bad, places[] = {HEADER_BYTES, bytes.len / 2 / 4 * 4, last};
        for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
            float was;
            memcpy(&was, bytes.data + places[place], sizeof was);
            memcpy(bytes.data + places[place], &bad[i], sizeof was);
            assert_non_null(parse(&bytes, bytes.len, &read, &turns));
            memcpy(bytes.data + places[place], &was, sizeof was);
        }
    }
    hearth_buf_finish(&bytes);
}

/* What it holds is what its size in memory is: no conversation adds to it. */
static void it_stays_as_large_as_it_is(void **state) {
    (void)state;
    static struct hearth_hazard hazard;
    struct hearth_buf few = print(&hazard);
    for (int i = 0; i < 20; i++) {
        teach(&hazard);
    }
    struct hearth_buf many = print(&hazard);
    assert_int_equal(many.len, few.len);
    hearth_buf_finish(&few);
    hearth_buf_finish(&many);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_comes_back_as_it_was),
        cmocka_unit_test(nothing_that_is_cut_short_is_read),
        cmocka_unit_test(nothing_of_another_version_is_read),
        cmocka_unit_test(numbers_that_are_no_counts_are_not_read),
        cmocka_unit_test(it_stays_as_large_as_it_is),
    };
    return cmocka_run_group_tests_name("learnt", tests, NULL, NULL);
}
