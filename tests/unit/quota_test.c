/* Limits of keys: what passes, what waits and how long, on a clock of the test's own; and keys that are hashed. */
#include "api/key_hash.h"
#include "api/quota.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define SECOND 1000000ll

static enum hearth_quota_verdict begin(struct hearth_quota *quota, int64_t now_us, int64_t *wait_us) {
    return hearth_quota_ask(quota, now_us, true, true, wait_us);
}

static void requests_a_minute(void **state) {
    const struct hearth_api_limits limits = {.requests_per_minute = 2};
    struct hearth_quota *quota = hearth_quota_create();
    struct hearth_quota_state now;
    int64_t wait_us, at = 1000 * SECOND;
    (void)state;
    assert_non_null(quota);
    hearth_quota_set(quota, &limits);
    assert_int_equal(hearth_quota_ask(quota, at, true, false, &wait_us), HEARTH_QUOTA_FREE); /* only asked */
    assert_int_equal(begin(quota, at, &wait_us), HEARTH_QUOTA_FREE);
    assert_int_equal(begin(quota, at, &wait_us), HEARTH_QUOTA_FREE);
    assert_int_equal(begin(quota, at, &wait_us), HEARTH_QUOTA_REQUESTS);
    assert_in_range(wait_us, 30 * SECOND, 30 * SECOND + 2);
    assert_int_equal(begin(quota, at + wait_us, &wait_us), HEARTH_QUOTA_FREE);
    hearth_quota_read(quota, at + 60 * SECOND, &now);
    assert_int_equal(now.requests.limit, 2);
    assert_int_equal(now.requests.remaining, 1);
    assert_in_range(now.requests.reset_us, 29 * SECOND, 31 * SECOND);
    assert_int_equal(now.requests_total, 3);
    assert_int_equal(now.refused_total, 1);
    assert_int_equal(now.tokens.limit, 0);
    /* Other limits take effect, and what has been used stays used. */
    hearth_quota_set(quota, &(struct hearth_api_limits){.requests_per_minute = 1});
    assert_int_equal(begin(quota, at + 60 * SECOND, &wait_us), HEARTH_QUOTA_FREE);
    assert_int_equal(begin(quota, at + 60 * SECOND, &wait_us), HEARTH_QUOTA_REQUESTS);
    hearth_quota_set(quota, &(struct hearth_api_limits){0});
    assert_int_equal(begin(quota, at + 60 * SECOND, &wait_us), HEARTH_QUOTA_FREE);
    hearth_quota_destroy(quota);
}

/* One that is larger than a minute's worth passes, and the next ones wait until it is paid for. */
static void tokens_a_minute(void **state) {
    const struct hearth_api_limits limits = {.tokens_per_minute = 600};
    struct hearth_quota *quota = hearth_quota_create();
    int64_t wait_us;
    (void)state;
    assert_non_null(quota);
    hearth_quota_set(quota, &limits);
    assert_int_equal(begin(quota, SECOND, &wait_us), HEARTH_QUOTA_FREE);
    assert_int_equal(begin(quota, SECOND, &wait_us), HEARTH_QUOTA_FREE); /* the first has not cost anything yet */
    hearth_quota_end(quota, SECOND, 700);
    hearth_quota_end(quota, SECOND, 0);
    assert_int_equal(begin(quota, SECOND, &wait_us), HEARTH_QUOTA_TOKENS);
    assert_in_range(wait_us, 10 * SECOND, 11 * SECOND);
    const int64_t then_us = SECOND + wait_us;
    assert_int_equal(hearth_quota_ask(quota, SECOND, false, true, &wait_us), HEARTH_QUOTA_FREE); /* takes no turn */
    assert_int_equal(begin(quota, then_us, &wait_us), HEARTH_QUOTA_FREE);
    hearth_quota_destroy(quota);
}

static void requests_at_once(void **state) {
    const struct hearth_api_limits limits = {.running = 1};
    struct hearth_quota *quota = hearth_quota_create();
    int64_t wait_us;
    (void)state;
    assert_non_null(quota);
    hearth_quota_set(quota, &limits);
    assert_int_equal(begin(quota, 1, &wait_us), HEARTH_QUOTA_FREE);
    assert_int_equal(begin(quota, 1, &wait_us), HEARTH_QUOTA_RUNNING);
    assert_true(wait_us > 0);
    hearth_quota_end(quota, 2, 5);
    assert_int_equal(begin(quota, 2, &wait_us), HEARTH_QUOTA_FREE);
    hearth_quota_destroy(quota);
}

static void hashes(void **state) {
    static const char *const bad[] = {"",
                                      "sha256:",
                                      "sha256:00",
                                      "sha256::2bb80d53",
                                      "sha1:00",
                                      "sha256:a:b:c",
                                      "sha256:salt:zz8b0d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"};
    struct hearth_key_hash made, read;
    char text[HEARTH_KEY_HASH_TEXT_MAX];
    (void)state;
    /* What `printf %s saltsecret | sha256sum` says. */
    assert_true(hearth_key_hash_make("salt", "secret", &made));
    hearth_key_hash_print(&made, text);
    assert_string_equal(text, "sha256:salt:bede90386d450cea8b77b822f8887065e4e5abf132c2f9dccfcc7fbd4cba5e35");
    assert_true(hearth_key_hash_read(text, &read));
    assert_string_equal(read.salt, "salt");
    assert_true(hearth_key_hash_equal(&made, &read));
    assert_true(hearth_key_hash_make("salt", "secreT", &made));
    assert_false(hearth_key_hash_equal(&made, &read));
    assert_true(hearth_key_hash_read("sha256:2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B", &read));
    assert_true(hearth_key_hash_make("", "secret", &made));
    assert_true(hearth_key_hash_equal(&made, &read));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(hearth_key_hash_read(bad[i], &read));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_a_minute),
        cmocka_unit_test(tokens_a_minute),
        cmocka_unit_test(requests_at_once),
        cmocka_unit_test(hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
