/* jansson under want of memory: whatever is refused, a text is parsed and printed whole or not at all, the refusal is
 * noted, and nothing is left allocated. */
#include "base/memory.h"
#include "session/json_memory.h"
#include "support/faulty_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Tokens of every kind that outgrow the lexer's buffer at each of its sizes, and what is written with escapes. */
static const char text[] =
    "{\"a name of more than sixteen bytes\":[12345678901234567,1.2345678901234567890123e10,true,false,null,[],{}],"
    "\"\\u00e5\\ud83d\\ude00 and so on, until it is longer than one hundred and twenty-eight bytes of text, which "
    "takes a while to write and to read\":{\"b\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"c\":[[[[\"d\"]]]],"
    "\"e\":-0.0,\"f\":1234567890123456,\"g\":{\"h\":1,\"i\":2,\"j\":3,\"k\":4,\"l\":5,\"m\":6,\"n\":7,\"o\":8,\"p\":9}"
    "}}";

static void a_text_is_parsed_whole_or_not_at_all(void **state) {
    json_t *want = hearth_json_load(text, sizeof text - 1, 0, NULL);
    long seen = 0, refused = 0;
    (void)state;
    assert_non_null(want);
    for (long n = 1; n <= seen + 1; n++) { /* the first refusal is the last allocation */
        json_error_t error;
        hearth_memory_begin();
        faulty_alloc_arm(n, 1);
        const long live = atomic_load(&faulty_alloc_state()->live);
        json_t *value = hearth_json_load(text, sizeof text - 1, 0, &error);
        seen = faulty_alloc_disarm();
        if (value == NULL) {
            assert_true(hearth_memory_refused());
            assert_int_equal(json_error_code(&error), json_error_out_of_memory);
            refused++;
        } else {
            assert_true(json_equal(value, want));
            json_decref(value);
        }
        assert_int_equal(atomic_load(&faulty_alloc_state()->live), live);
    }
    assert_true(refused > 40);
    json_decref(want);
}

static void a_value_is_printed_whole_or_not_at_all(void **state) {
    json_t *value = hearth_json_load(text, sizeof text - 1, 0, NULL);
    char *want = hearth_json_dumps(value, JSON_COMPACT);
    long seen = 0, refused = 0;
    (void)state;
    assert_non_null(want);
    for (long n = 1; n <= seen + 1; n++) { /* the first refusal is the last allocation */
        hearth_memory_begin();
        faulty_alloc_arm(n, 1);
        char *got = hearth_json_dumps(value, JSON_COMPACT);
        seen = faulty_alloc_disarm();
        if (got == NULL) {
            assert_true(hearth_memory_refused());
            refused++;
        } else {
            assert_string_equal(got, want);
        }
        free(got);
    }
    assert_true(refused > 0);
    free(want);
    json_decref(value);
}

/* Many blocks: the set of them grows, and shrinks again, while the text is read. */
static void a_long_text_is_parsed(void **state) {
    struct hearth_buf long_text = {0};
    (void)state;
    assert_true(hearth_buf_text(&long_text, "["));
    for (int i = 0; i < 5000; i++) {
        assert_true(hearth_buf_printf(&long_text, "%s{\"key %d\":[\"value %d\",%d]}", i > 0 ? "," : "", i, i, i));
    }
    assert_true(hearth_buf_text(&long_text, "]"));
    json_t *value = hearth_json_load((const char *)long_text.data, long_text.len, 0, NULL);
    assert_int_equal(json_array_size(value), 5000);
    json_decref(value);
    for (long n = 1; n < 40000; n += 997) {
        faulty_alloc_arm(n, 1);
        value = hearth_json_load((const char *)long_text.data, long_text.len, 0, NULL);
        const bool fails = n <= faulty_alloc_disarm();
        assert_true(fails == (value == NULL));
        json_decref(value);
    }
    hearth_buf_finish(&long_text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_parsed_whole_or_not_at_all),
        cmocka_unit_test(a_value_is_printed_whole_or_not_at_all),
        cmocka_unit_test(a_long_text_is_parsed),
    };
    json_object_seed(1);
    hearth_json_watch_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
