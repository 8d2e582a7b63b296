/* JSON values as they first came. */
#include "session/first_values.h"

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
static char *text_of(struct hearth_first_values *first_values, struct hearth_digest of, const char *json) {
    json_t *value = json_loads(json, 0, NULL);
    assert_non_null(value);
    json_t *first = hearth_first_values_get(first_values, of, value);
    char *text = json_dumps(first, JSON_COMPACT);
    json_decref(first);
    json_decref(value);
    return text;
}

static void expect(struct hearth_first_values *first_values, struct hearth_digest of, const char *json,
                   const char *want) {
    char *text = text_of(first_values, of, json);
    assert_string_equal(text, want);
    free(text);
}

static void the_first_one_stands_for_all(void **state) {
    (void)state;
    struct hearth_first_values *first_values = hearth_first_values_create(1 << 20);
    expect(first_values, salt, "{\"b\":1,\"a\":{\"y\":[1,2],\"x\":null}}", "{\"b\":1,\"a\":{\"y\":[1,2],\"x\":null}}");
    expect(first_values, salt, "{\"a\":{\"x\":null,\"y\":[1,2]},\"b\":1}", "{\"b\":1,\"a\":{\"y\":[1,2],\"x\":null}}");
    expect(first_values, salt, "{\"a\":{\"x\":null,\"y\":[2,1]},\"b\":1}", "{\"a\":{\"x\":null,\"y\":[2,1]},\"b\":1}");
    expect(first_values, salt, "{\"a\":{\"x\":null,\"y\":[1,2]},\"b\":1.0}",
           "{\"a\":{\"x\":null,\"y\":[1,2]},\"b\":1.0}");
    hearth_first_values_destroy(first_values);
}

static void tenants_have_their_own(void **state) {
    (void)state;
    struct hearth_first_values *first_values = hearth_first_values_create(1 << 20);
    expect(first_values, salt, "{\"b\":1,\"a\":2}", "{\"b\":1,\"a\":2}");
    expect(first_values, other_salt, "{\"a\":2,\"b\":1}", "{\"a\":2,\"b\":1}");
    expect(first_values, salt, "{\"a\":2,\"b\":1}", "{\"b\":1,\"a\":2}");
    hearth_first_values_destroy(first_values);
}

/* What is used stays, what is not goes; without room nothing is remembered. */
static void memory_is_bounded(void **state) {
    (void)state;
    struct hearth_first_values *first_values = hearth_first_values_create(4000), *none = hearth_first_values_create(0);
    expect(first_values, salt, "{\"used\":1,\"a\":2}", "{\"used\":1,\"a\":2}");
    expect(first_values, salt, "{\"unused\":1,\"a\":2}", "{\"unused\":1,\"a\":2}");
    for (int i = 0; i < 100; i++) {
        char json[64];
        snprintf(json, sizeof json, "{\"i\":%d}", i);
        expect(first_values, salt, json, json);
        expect(first_values, salt, "{\"a\":2,\"used\":1}", "{\"used\":1,\"a\":2}");
    }
    expect(first_values, salt, "{\"a\":2,\"unused\":1}", "{\"a\":2,\"unused\":1}");
    expect(none, salt, "{\"b\":1,\"a\":2}", "{\"b\":1,\"a\":2}");
    expect(none, salt, "{\"a\":2,\"b\":1}", "{\"a\":2,\"b\":1}");
    hearth_first_values_destroy(none);
    hearth_first_values_destroy(first_values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_one_stands_for_all),
        cmocka_unit_test(tenants_have_their_own),
        cmocka_unit_test(memory_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
