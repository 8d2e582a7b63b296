/* Files of API keys: what their lines say, and the one line that a mistake gets. */
#include "api/key_hash.h"
#include "cli/keys.h"
#include "support/options_stage.h"

/* Reads keys from a flag and a file; either may be NULL. */
static int read_keys(const char *flag, const char *text, struct hearth_key_list *list, struct hearth_errmsg *msg) {
    const struct hearth_options options = {.api_key = flag, .api_key_file = text != NULL ? path : NULL};
    *list = (struct hearth_key_list){0};
    if (text != NULL) {
        write_path(text);
    }
    return hearth_key_list_read(&options, list, msg);
}

static void test_lines(void **state) {
    struct hearth_key_list list;
    struct hearth_errmsg msg;
    (void)state;
    assert_int_equal(read_keys(NULL,
                               "# who may\r\nplain\r\n\n  one name=alice weight=2.5 class=side # and why\n"
                               "#off name=x\ntwo\tclass=background\nthree class=interactive\nwith#inside weight=1",
                               &list, &msg),
                     HEARTH_OK);
    assert_int_equal(list.count, 5);
    assert_string_equal(list.keys[0].key, "plain");
    assert_true(list.keys[0].name == NULL && list.keys[0].weight == 0);
    assert_int_equal(list.keys[0].highest, HEARTH_CLASS_INTERACTIVE);
    assert_string_equal(list.keys[1].key, "one");
    assert_string_equal(list.keys[1].name, "alice");
    assert_true(list.keys[1].weight == 2.5);
    assert_int_equal(list.keys[1].highest, HEARTH_CLASS_SIDE);
    assert_int_equal(list.keys[2].highest, HEARTH_CLASS_BACKGROUND);
    assert_int_equal(list.keys[3].highest, HEARTH_CLASS_INTERACTIVE);
    assert_string_equal(list.keys[4].key, "with#inside");
    hearth_key_list_finish(&list);
    assert_int_equal(read_keys(NULL, "\xEF\xBB\xBFmarked\r\nplain\r\n", &list, &msg), HEARTH_OK);
    assert_string_equal(list.keys[0].key, "marked");
    hearth_key_list_finish(&list);
}

static void test_flags(void **state) {
    struct hearth_key_list list;
    struct hearth_errmsg msg;
    (void)state;
    assert_int_equal(read_keys(NULL, NULL, &list, &msg), HEARTH_OK);
    assert_int_equal(list.count, 0);
    assert_int_equal(read_keys("a,b,a", "b name=bob\nc", &list, &msg), HEARTH_OK);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.keys[1].name, "bob");
    assert_string_equal(list.keys[2].key, "c");
    hearth_key_list_finish(&list);
    assert_int_equal(read_keys(" a, b\t,, c d ", NULL, &list, &msg), HEARTH_OK);
    assert_int_equal(list.count, 3);
    assert_string_equal(list.keys[0].key, "a");
    assert_string_equal(list.keys[1].key, "b");
    assert_string_equal(list.keys[2].key, "c d");
    hearth_key_list_finish(&list);
    assert_int_equal(read_keys(", ,", NULL, &list, &msg), HEARTH_ERR_INVALID);
    assert_string_equal(msg.text, "--api-key holds no key");
    hearth_key_list_finish(&list);
}

/* The hash of a key is the key. */
static void test_hashes(void **state) {
    static const char line[] =
        "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b scope=infer name=bob";
    struct hearth_key_list list;
    struct hearth_errmsg msg;
    char *longest = malloc(HEARTH_KEY_BYTES_MAX + 1);
    (void)state;
    assert_int_equal(read_keys("secret", line, &list, &msg), HEARTH_OK);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.keys[0].scopes, HEARTH_SCOPE_INFER);
    assert_string_equal(list.keys[0].name, "bob");
    hearth_key_list_finish(&list);
    assert_int_equal(read_keys("sha256:abc", NULL, &list, &msg), HEARTH_ERR_INVALID);
    hearth_key_list_finish(&list);
    assert_non_null(longest);
    memset(longest, 'k', HEARTH_KEY_BYTES_MAX);
    longest[HEARTH_KEY_BYTES_MAX] = '\0';
    assert_int_equal(read_keys(NULL, longest, &list, &msg), HEARTH_ERR_INVALID);
    hearth_key_list_finish(&list);
    longest[HEARTH_KEY_BYTES_MAX - 1] = '\0';
    assert_int_equal(read_keys(NULL, longest, &list, &msg), HEARTH_OK);
    hearth_key_list_finish(&list);
    free(longest);
}

static void test_mistakes(void **state) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", " holds no key"},
        {"# nothing\n\n", " holds no key"},
        {"one\ntwo weight=heavy", ":2: weight=heavy: a weight is a number from 0.01 to 1000"},
        {"one weight=0", ":1: weight=0: a weight is a number from 0.01 to 1000"},
        {"one weight=nan", ":1: weight=nan: a weight is a number from 0.01 to 1000"},
        {"one class=warm", ":1: class=warm: a class is interactive, side or background"},
        {"one colour=red", ":1: behind the key may stand name=, weight=, class=, scope=, rpm=, tpm=, running=, "
                           "stored=, stored-bytes= and stored-sessions=, and nothing else"},
        {"alice c2VjcmV0==", ":1: behind the key may stand name=, weight=, class=, scope=, rpm=, tpm=, running=, "
                             "stored=, stored-bytes= and stored-sessions=, and nothing else"},
        {"one name=", ":1: a name is made of up to 40 letters, digits and . _ @ -"},
        {"one name=\"a\"", ":1: a name is made of up to 40 letters, digits and . _ @ -"},
        {"one\n\ntwo\none weight=2", ":4: this key is in the file twice"},
        {"a\nb scope=infer,all", ":2: scope=infer,all: scopes are infer, sessions and admin, separated by commas"},
        {"b scope=", ":1: scope=: scopes are infer, sessions and admin, separated by commas"},
        {"b rpm=0", ":1: rpm=0: a limit is a whole number from 1, such as 60, 100k, 2m or 1g"},
        {"b tpm=9999m", ":1: tpm=9999m: a limit is a whole number from 1, such as 60, 100k, 2m or 1g"},
        {"b running=-1", ":1: running=-1: a limit is a whole number from 1, such as 60, 100k, 2m or 1g"},
        {"b stored=x", ":1: stored=x: a limit is a whole number from 1, such as 60, 100k, 2m or 1g"},
        {"sha256:abc", ":1: a hashed key is sha256:SALT:HEX or sha256:HEX (hearth keys hash makes one)"},
        {"sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\nsecret",
         ":2: this key is in the file twice"},
        {"secret\nsha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
         ":2: this key is in the file twice"},
        {"sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n"
         "sha256:2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B",
         ":2: this key is in the file twice"},
        {"one scope=infer scope=admin", ":1: scope=admin: it is there twice"},
        {"one name=a rpm=1 name=a", ":1: name=a: it is there twice"},
        {"one\x01", ":1: a key has less than 4096 bytes and no control characters"},
        {"one,two", ":1: one key in a line, and no comma in it"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hearth_key_list list;
        struct hearth_errmsg msg;
        char want[256];
        assert_int_equal(read_keys(NULL, cases[i].text, &list, &msg), HEARTH_ERR_INVALID);
        (void)snprintf(want, sizeof want, "--api-key-file: %s%s", path, cases[i].says);
        assert_string_equal(msg.text, want);
        hearth_key_list_finish(&list);
    }
}

static void test_scopes_and_limits(void **state) {
    struct hearth_key_list list;
    struct hearth_errmsg msg;
    (void)state;
    assert_int_equal(read_keys("flag",
                               "a\nb scope=infer rpm=60 tpm=100k running=2 stored=3m stored-bytes=2g "
                               "stored-sessions=7\nc scope=admin,sessions\n"
                               "sha256:00ff:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
                               &list, &msg),
                     HEARTH_OK);
    assert_int_equal(list.count, 5);
    assert_int_equal(list.keys[0].scopes, 0); /* of the command line: all */
    assert_int_equal(list.keys[1].scopes, HEARTH_SCOPE_INFER | HEARTH_SCOPE_SESSIONS);
    assert_int_equal(list.keys[2].scopes, HEARTH_SCOPE_INFER);
    assert_int_equal(list.keys[2].limits.requests_per_minute, 60);
    assert_int_equal(list.keys[2].limits.tokens_per_minute, 100000);
    assert_int_equal(list.keys[2].limits.running, 2);
    assert_int_equal(list.keys[2].limits.stored.tokens, 3000000);
    assert_int_equal(list.keys[2].limits.stored.bytes, 2000000000);
    assert_int_equal(list.keys[2].limits.stored.sessions, 7);
    assert_int_equal(list.keys[3].scopes, HEARTH_SCOPE_ADMIN | HEARTH_SCOPE_SESSIONS);
    hearth_key_list_finish(&list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),  cmocka_unit_test(test_flags),    cmocka_unit_test(test_scopes_and_limits),
        cmocka_unit_test(test_hashes), cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
