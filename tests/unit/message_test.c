/* Messages: values beyond 64 bits, what is equal by value, and what is a print of a message. */
#include "support/messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A reply with one call; NULL: without. */
static struct hearth_message *said(const char *thoughts, const char *words, const char *arguments) {
    struct hearth_message *message = hearth_message_create(HEARTH_ROLE_ASSISTANT);
    assert_non_null(message);
    message->reasoning = thoughts != NULL ? strdup(thoughts) : NULL;
    message->content = strdup(words);
    message->content_len = strlen(words);
    if (arguments != NULL) {
        assert_true(hearth_message_alloc_calls(message, 1));
        message->calls[0].name = strdup("f");
        message->calls[0].arguments = strdup(arguments);
    }
    assert_true(hearth_message_seal(message));
    return message;
}

static struct hearth_message *call(const char *arguments) {
    return said(NULL, "", arguments);
}

/* JSON.stringify writes half of a pair as it stands, where a text was cut in the middle of a character. */
static void halves_of_surrogate_pairs_are_replaced(void **state) {
    static const char text[] =
        "[\"\\ud83d\\ude00\", \"\\uD83D\", \"\\ude00x\", \"\\ud83d\\u0041\", \"\\ud83d\\ud83d\\ude00\","
        " \"\\\\ud83d\", 99999999999999999999]";
    static const char *const want[] = {
        "\xF0\x9F\x98\x80", "\xEF\xBF\xBD", "\xEF\xBF\xBDx", "\xEF\xBF\xBD\x41", "\xEF\xBF\xBD\xF0\x9F\x98\x80",
        "\\ud83d"};
    json_error_t error;
    (void)state;
    json_t *value = hearth_json_parse(text, strlen(text), 0, &error);
    assert_int_equal(json_array_size(value), 7);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        assert_string_equal(json_string_value(json_array_get(value, i)), want[i]);
    }
    assert_true(json_is_real(json_array_get(value, 6)));
    json_decref(value);
    assert_null(hearth_json_parse("[\"\\ud83d\",]", 11, 0, &error));
    assert_null(hearth_json_parse("[\"\\ud83", 7, 0, &error));
    assert_null(hearth_json_parse("[\"\\udzzz\"]", 10, 0, &error));
}

static void large_integers_are_values(void **state) {
    (void)state;
    static const char text[] = "{\"n\": 12345678901234567890123, \"small\": 7, \"text\": \"x\"}";
    json_error_t error;
    json_t *value = hearth_json_parse(text, strlen(text), 0, &error);
    assert_non_null(value);
    assert_true(json_is_real(json_object_get(value, "n")));
    assert_int_equal(json_integer_value(json_object_get(value, "small")), 7);
    json_decref(value);
    static const char beside[] = "[\"\\\"-99999999999999999999\", -99999999999999999999,9223372036854775807,1e2,"
                                 "9223372036854775808 ,-9223372036854775808, 12345678901234567890.5]";
    value = hearth_json_parse(beside, strlen(beside), 0, &error);
    assert_non_null(value);
    assert_string_equal(json_string_value(json_array_get(value, 0)), "\"-99999999999999999999");
    assert_true(json_real_value(json_array_get(value, 1)) == -1e20);
    assert_true(json_integer_value(json_array_get(value, 2)) == INT64_MAX); /* no digit is lost beside a large one */
    assert_true(json_is_real(json_array_get(value, 3)));
    assert_true(json_real_value(json_array_get(value, 4)) == 9223372036854775808.0);
    assert_true(json_integer_value(json_array_get(value, 5)) == INT64_MIN);
    assert_true(json_is_real(json_array_get(value, 6)));
    json_decref(value);
    assert_null(hearth_json_parse("99999999999999999999", 20, 0, &error)); /* neither an array nor an object */
    assert_null(hearth_json_parse("[99999999999999999999,]", 23, 0, &error));
    assert_int_equal(json_error_code(&error), json_error_invalid_syntax);
    assert_null(hearth_json_parse("{\"n\": 1,}", 9, 0, &error));
    assert_int_equal(json_error_code(&error), json_error_invalid_syntax);
    assert_null(hearth_json_parse("1e999", 5, JSON_DECODE_ANY, &error));
    struct hearth_message *message = call(text);
    assert_non_null(message->calls[0].parsed);
    assert_string_equal(message->calls[0].arguments, text); /* the digits stay */
    hearth_message_unref(message);
}

static void equal_by_value(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        bool equal;
    } cases[] = {{"{\"a\": 1, \"b\": 0.1}", "{\"b\":0.1,\"a\":1.0}", true},
                 {"{\"a\": 12345678901234567890123}", "{\"a\":1.23456789012346e22}", true},
                 {"{\"a\": 123456789012345.8}", "{\"a\": 123456789012346}", true}, /* as it is printed */
                 {"{\"a\": 9007199254740993.0}", "{\"a\": 9007199254740990}", true},
                 {"{\"a\": 0.1234567890123}", "{\"a\": 0.1234567890124}", false},
                 {"{\"a\": \"1\"}", "{\"a\": 1}", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hearth_message *a = call(cases[i].a), *b = call(cases[i].b);
        assert_int_equal(hearth_message_equal(a, b), cases[i].equal);
        hearth_message_unref(a);
        hearth_message_unref(b);
    }
}

/* What was read from a template's print may hold texts where the reply has other values. */
static void prints(void **state) {
    (void)state;
    static const struct {
        const char *print, *message;
        bool is_print;
    } cases[] = {
        {"{\"a\": \"True\", \"b\": \"None\", \"c\": \"False\"}", "{\"a\": true, \"b\": null, \"c\": false}", true},
        {"{\"a\": \"3\", \"b\": \"[1, {}]\"}", "{\"a\": 3, \"b\": [1, {}]}", true},
        {"{\"a\": \"12345678901234567890123\"}", "{\"a\": 12345678901234567890123}", true},
        {"{\"a\": \"True\"}", "{\"a\": \"True\"}", true},
        {"{\"a\": \"True\"}", "{\"a\": false}", false},
        {"{\"a\": \"None\"}", "{\"a\": \"\"}", false},
        {"{\"a\": true}", "{\"a\": \"True\"}", false},
        {"{\"a\": \"no value\"}", "{\"a\": 3}", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hearth_message *print = call(cases[i].print), *message = call(cases[i].message);
        assert_int_equal(hearth_message_is_print(print, message), cases[i].is_print);
        hearth_message_unref(print);
        hearth_message_unref(message);
    }
}

/* Words in front of a call may be printed as thoughts, but not words alone, nor in the place of other thoughts. */
static void words_printed_as_thoughts(void **state) {
    (void)state;
    static const struct {
        const char *thoughts, *words, *printed_thoughts, *printed_words;
        bool calls, is_print;
    } cases[] = {{NULL, "I look.", "I look.", "", true, true},
                 {NULL, "I look.", "I look.", "", false, false},
                 {NULL, "I look.", "Other.", "", true, false},
                 {"Hm.", "I look.", "I look.", "", true, false},
                 {"Hm.", "I look.", "Hm.", "", true, false},
                 {NULL, "", NULL, "", true, true},
                 {"Hm.", "", NULL, "", true, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hearth_message *message = said(cases[i].thoughts, cases[i].words, cases[i].calls ? "{\"a\": 1}" : NULL);
        struct hearth_message *print =
            said(cases[i].printed_thoughts, cases[i].printed_words, cases[i].calls ? "{\"a\": 1}" : NULL);
        assert_int_equal(hearth_message_is_print(print, message), cases[i].is_print);
        hearth_message_unref(print);
        hearth_message_unref(message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(halves_of_surrogate_pairs_are_replaced),
                                       cmocka_unit_test(large_integers_are_values), cmocka_unit_test(equal_by_value),
                                       cmocka_unit_test(prints), cmocka_unit_test(words_printed_as_thoughts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
