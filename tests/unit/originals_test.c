/* JSON values as they first came. */
#include "session/originals.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct hearth_digest salt = {1, 2}, other_salt = {3, 4};

/* What stands for a value, as text. */
static char *text_of(struct hearth_originals *originals, struct hearth_digest of, const char *json) {
    json_t *value = json_loads(json, 0, NULL);
    assert_non_null(value);
    json_t *first = hearth_originals_of(originals, of, value);
    char *text = json_dumps(first, JSON_COMPACT);
    json_decref(first);
    json_decref(value);
    return text;
}

static void expect(struct hearth_originals *originals, struct hearth_digest of, const char *json, const char *want) {
    char *text = text_of(originals, of, json);
    assert_string_equal(text, want);
    free(text);
}

static void the_first_one_stands_for_all(void **state) {
    (void)state;
    struct hearth_originals *originals = hearth_originals_create(1 << 20);
    expect(originals, salt, "{\"b\":1,\"a\":{\"y\":[1,2],\"x\":null}}", "{\"b\":1,\"a\":{\"y\":[1,2],\"x\":null}}");
    expect(originals, salt, "{\"a\":{\"x\":null,\"y\":[1,2]},\"b\":1}", "{\"b\":1,\"a\":{\"y\":[1,2],\"x\":null}}");
    expect(originals, salt, "{\"a\":{\"x\":null,\"y\":[2,1]},\"b\":1}", "{\"a\":{\"x\":null,\"y\":[2,1]},\"b\":1}");
    expect(originals, salt, "{\"a\":{\"x\":null,\"y\":[1,2]},\"b\":1.0}", "{\"a\":{\"x\":null,\"y\":[1,2]},\"b\":1.0}");
    hearth_originals_destroy(originals);
}

static void tenants_have_their_own(void **state) {
    (void)state;
    struct hearth_originals *originals = hearth_originals_create(1 << 20);
    expect(originals, salt, "{\"b\":1,\"a\":2}", "{\"b\":1,\"a\":2}");
    expect(originals, other_salt, "{\"a\":2,\"b\":1}", "{\"a\":2,\"b\":1}");
    expect(originals, salt, "{\"a\":2,\"b\":1}", "{\"b\":1,\"a\":2}");
    hearth_originals_destroy(originals);
}

/* What is used stays, what is not goes; without room nothing is remembered. */
static void memory_is_bounded(void **state) {
    (void)state;
    struct hearth_originals *originals = hearth_originals_create(4000), *none = hearth_originals_create(0);
    expect(originals, salt, "{\"used\":1,\"a\":2}", "{\"used\":1,\"a\":2}");
    expect(originals, salt, "{\"unused\":1,\"a\":2}", "{\"unused\":1,\"a\":2}");
    for (int i = 0; i < 100; i++) {
        char json[64];
        snprintf(json, sizeof json, "{\"i\":%d}", i);
        expect(originals, salt, json, json);
        expect(originals, salt, "{\"a\":2,\"used\":1}", "{\"used\":1,\"a\":2}");
    }
    expect(originals, salt, "{\"a\":2,\"unused\":1}", "{\"a\":2,\"unused\":1}");
    expect(none, salt, "{\"b\":1,\"a\":2}", "{\"b\":1,\"a\":2}");
    expect(none, salt, "{\"a\":2,\"b\":1}", "{\"a\":2,\"b\":1}");
    hearth_originals_destroy(none);
    hearth_originals_destroy(originals);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_one_stands_for_all),
        cmocka_unit_test(tenants_have_their_own),
        cmocka_unit_test(memory_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
