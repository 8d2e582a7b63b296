/* Text that two prompts share: found behind a changed line, around what was dropped or inserted, and in another order.
 */
#include "session/shared_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Lines that are all different; `skip`: one that is left out. */
static size_t lines(char *out, size_t cap, int from, int to, int skip) {
    size_t len = 0;
    for (int i = from; i < to; i++) {
        if (i != skip) {
            len += (size_t)snprintf(out + len, cap - len, "Rule %d: of %d files none is touched without asking.\n", i,
                                    i * 7919);
        }
    }
    return len;
}

static double weigh_bytes(void *user, size_t offset) {
    (void)user;
    return (double)offset;
}

static size_t shared_bytes(const char *then, size_t then_len, const char *now, size_t now_len) {
    return (size_t)hearth_shared_text_weighed(then, then_len, now, now_len, weigh_bytes, NULL);
}

/* Within two windows of what it is, and what happens to stand before it. */
static void assert_about(size_t shared, size_t wanted) {
    if (shared > wanted + 16 || shared + 2 * 48 < wanted) {
        fail_msg("%zu bytes are shared, %zu were found", wanted, shared);
    }
}

static void behind_a_changed_line_all_is_shared(void **state) {
    char then[8192], now[8192];
    (void)state;
    const size_t a = (size_t)sprintf(then, "Monday\n"), b = (size_t)sprintf(now, "Tuesday, the 25th\n");
    const size_t n = lines(then + a, sizeof then - a, 0, 100, -1), m = lines(now + b, sizeof now - b, 0, 100, -1);
    assert_int_equal(n, m);
    assert_about(shared_bytes(then, a + n, now, b + m), n);
    assert_about(shared_bytes(now, b + m, then, a + n), n);
}

static void what_was_dropped_or_moved_is_found(void **state) {
    char then[8192], now[8192];
    (void)state;
    const size_t n = lines(then, sizeof then, 0, 100, -1);
    size_t m = lines(now, sizeof now, 0, 100, 50);
    assert_about(shared_bytes(then, n, now, m), m);
    m = lines(now, sizeof now, 50, 100, -1);
    m += lines(now + m, sizeof now - m, 0, 50, -1);
    assert_int_equal(n, m);
    assert_about(shared_bytes(then, n, now, m), n);
}

static void other_text_shares_nothing(void **state) {
    char then[8192], now[8192];
    (void)state;
    const size_t n = lines(then, sizeof then, 0, 100, -1);
    memset(now, 'x', sizeof now);
    assert_int_equal(shared_bytes(then, n, now, sizeof now), 0);
    assert_int_equal(shared_bytes(then, n, then, 47), 0);
    assert_int_equal(shared_bytes(then, 0, then, n), 0);
}

/* A megabyte of one letter fills no table and takes no time worth a word; the time limit of the test says so. */
static void a_text_that_repeats_itself_ends(void **state) {
    const size_t len = (size_t)1 << 20;
    char *then = malloc(len), *now = malloc(len);
    (void)state;
    memset(then, 'x', len);
    memset(now, 'x', len);
    now[len / 2] = 'y';
    assert_true(shared_bytes(then, len, now, len) >= len / 2);
    free(then);
    free(now);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behind_a_changed_line_all_is_shared),
        cmocka_unit_test(what_was_dropped_or_moved_is_found),
        cmocka_unit_test(other_text_shares_nothing),
        cmocka_unit_test(a_text_that_repeats_itself_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
