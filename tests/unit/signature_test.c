/* Signatures of thinking: what holds, what is refused, and what is somebody else's. */
#include "api/anthropic/anthropic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static struct hearth_api ours, theirs;

static int setup(void **state) {
    (void)state;
    memset(ours.secret, 1, sizeof ours.secret);
    memset(theirs.secret, 2, sizeof theirs.secret);
    return 0;
}

static enum hearth_signature check(const struct hearth_api *api, const char *text, const char *signature) {
    return hearth_signature_check(api, text, strlen(text), signature);
}

static void white_space_around_a_text_is_not_signed(void **state) {
    char a[HEARTH_SIGNATURE_CHARS + 1], b[HEARTH_SIGNATURE_CHARS + 1];
    (void)state;
    assert_true(hearth_signature_make(&ours, "Three and four.", 15, a));
    assert_int_equal(strlen(a), HEARTH_SIGNATURE_CHARS);
    assert_true(hearth_signature_make(&ours, "\n Three and four.\n", 18, b));
    assert_string_equal(a, b);
    assert_int_equal(check(&ours, "Three and four.  ", a), HEARTH_SIGNATURE_VALID);
    assert_int_equal(check(&ours, "Three  and four.", a), HEARTH_SIGNATURE_WRONG);
    assert_true(hearth_signature_make(&ours, "", 0, a));
    assert_int_equal(check(&ours, " \n", a), HEARTH_SIGNATURE_VALID);
    assert_int_equal(check(&ours, "x", a), HEARTH_SIGNATURE_WRONG);
}

/* Whatever single character is changed: it never holds. */
static void a_changed_one_does_not_hold(void **state) {
    char signature[HEARTH_SIGNATURE_CHARS + 1];
    (void)state;
    assert_true(hearth_signature_make(&ours, "text", 4, signature));
    for (size_t i = 0; i < HEARTH_SIGNATURE_CHARS; i++) {
        const char before = signature[i];
        signature[i] = before == 'A' ? 'B' : 'A';
        const enum hearth_signature found = check(&ours, "text", signature);
        assert_int_not_equal(found, HEARTH_SIGNATURE_VALID);
        if (i < 42) { /* within the hash */
            assert_int_equal(found, HEARTH_SIGNATURE_WRONG);
        }
        signature[i] = before;
    }
    assert_int_equal(check(&ours, "text", signature), HEARTH_SIGNATURE_VALID);
}

static void others_are_told_apart(void **state) {
    static const char *const foreign[] = {"",
                                          "x",
                                          "EqQBCgIYAhIM1gbcDa9GJwZA2b3h",
                                          "################################################",
                                          "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
                                          "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="};
    char signature[HEARTH_SIGNATURE_CHARS + 1];
    (void)state;
    assert_true(hearth_signature_make(&theirs, "text", 4, signature));
    assert_int_equal(check(&ours, "text", signature), HEARTH_SIGNATURE_FOREIGN);
    assert_int_equal(check(&theirs, "text", signature), HEARTH_SIGNATURE_VALID);
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        assert_int_equal(check(&ours, "text", foreign[i]), HEARTH_SIGNATURE_FOREIGN);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(white_space_around_a_text_is_not_signed),
        cmocka_unit_test(a_changed_one_does_not_hold),
        cmocka_unit_test(others_are_told_apart),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
