/* Which bytes of a reply are the syntax of a call. Each case is a reply and, below it, a line that says S for syntax
 * and . for the rest. The line is what hearth_syntax_next() says before the byte. Cut anywhere, the answer is the
 * same. */
#include "sched/syntax.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *const hermes[] = {"<tool_call>"}, *const mistral[] = {"[TOOL_CALLS]"},
                         *const coder[] = {"<function="}, *const llama[] = {"<|python_tag|>", "{\"name\":"};

struct call_case {
    struct hearth_call_syntax calls;
    const char *reply, *wanted;
};

/* clang-format off */
static const struct call_case cases[] = {
    /* JSON behind a tag */
    {{hermes, 1, "", ""},
     "Well. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\", \"days\": [1, 22]}}\n</tool_call> Done",
     ".................SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS.......SSSSSSSSS........SSSSSSSSSSSSSSSSS..."},
    /* two calls; nested objects: keys are syntax, values are not; escapes */
    {{hermes, 1, "", ""},
     "<tool_call>{\"arguments\":{\"a\":{\"b\":\"x\\\"}y\",\"c\":true}},\"name\":\"g\"}</tool_call><tool_call>{",
     "...........SSSSSSSSSSSSSSSSSS.SSSS.......SSSSS.....SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS"},
    /* an array of calls, and arguments in a string */
    {{mistral, 1, "", ""},
     "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":\"{}\"}, {\"name\":\"g\",\"parameters\":{\"n\":7}}] ok",
     "............SSSSSSSSSSSSSSSSSSSSSSSSSS...SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS..SSSS."},
    /* the name stands before the object, which is the arguments: even when its first key is "name" */
    {{mistral, 1, "", ""},
     "[TOOL_CALLS]add_user[ARGS]{\"name\": \"Bo\", \"tags\": [\"x\"]}",
     "............SSSSSSSSSSSSSSSSSSSSSS.....SSSSSSSSS.....SS"},
    /* the object's first key is none of a call's: it is the arguments */
    {{mistral, 1, "", ""},
     "[TOOL_CALLS]{\"city\":\"Rome\"}",
     "............SSSSSSSS......S"},
    /* what begins the call is the beginning of the object */
    {{llama, 2, "", ""},
     "{\"name\": \"f\", \"parameters\": {\"x\": 1}}",
     "........SSSSSSSSSSSSSSSSSSSSSSSSS...S"},
    /* the reply is a call from its first byte */
    {{NULL, 0, "", ""},
     "{\"tool_call\": {\"name\": \"f\", \"arguments\": {\"q\": \"a b\"}}}",
     "SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS......SSS"},
    /* a reply that is no call */
    {{NULL, 0, "", ""},
     "{\"response\": \"no\"}",
     "SSSSSSSSSSSS.....S"},
    /* tagged values, with a prefix that every tag ends with */
    {{coder, 1, ">\n", "\n</parameter>"},
     "a <function=f>\n<parameter=p>\nab\nc\n</parameter>\n</function> bye",
     "............SSSSSSSSSSSSSSSSS.................SSSSSSSSSSSSSS.."},
    /* tagged values between tags of their own */
    {{hermes, 1, "<arg_value>", "</arg_value>"},
     "<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v w</arg_value>\n</tool_call> So",
     "...........SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS...............SSSSSSSSSSSSSSS."},
    /* text that looks nearly like a call */
    {{hermes, 1, "", ""},
     "<tool_cal> {\"name\": 1}",
     "......................"},
};
/* clang-format on */

/* Feeds the reply in pieces of `cut` bytes, asking before each byte where a piece ends. */
static void follow(const struct call_case *c, size_t cut, char *said) {
    struct hearth_syntax syntax;
    hearth_syntax_init(&syntax, &c->calls);
    size_t len = strlen(c->reply);
    for (size_t at = 0; at < len; at += cut) {
        said[at] = hearth_syntax_next(&syntax) ? 'S' : '.';
        hearth_syntax_feed(&syntax, c->reply + at, len - at < cut ? len - at : cut);
    }
}

static void formats(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char said[256] = "";
        size_t len = strlen(cases[i].reply);
        follow(&cases[i], 1, said);
        assert_string_equal(said, cases[i].wanted);
        for (size_t cut = 2; cut < 9; cut++) {
            char cut_said[256] = "";
            follow(&cases[i], cut, cut_said);
            for (size_t at = 0; at < len; at += cut) {
                assert_int_equal(cut_said[at], said[at]);
            }
        }
    }
}

static void nothing_is_asked_for(void **state) {
    (void)state;
    struct hearth_syntax syntax;
    hearth_syntax_init(&syntax, NULL);
    hearth_syntax_feed(&syntax, "{\"name\"", 7);
    assert_false(hearth_syntax_next(&syntax));
}

/* Odd replies end in text, not in greedy sampling for ever, and never out of bounds. */
static void odd_replies(void **state) {
    (void)state;
    struct hearth_call_syntax json = {hermes, 1, "", ""}, tags = {coder, 1, "<v>", "</v>"};
    struct hearth_syntax syntax;
    hearth_syntax_init(&syntax, &json);
    hearth_syntax_feed(&syntax, "<tool_call>", 11);
    for (int i = 0; i < 2048; i++) {
        assert_true(hearth_syntax_next(&syntax));
        hearth_syntax_feed(&syntax, "x", 1);
    }
    hearth_syntax_feed(&syntax, "x", 1);
    assert_false(hearth_syntax_next(&syntax));
    hearth_syntax_init(&syntax, &tags);
    hearth_syntax_feed(&syntax, "<function=f>", 12);
    for (int i = 0; i < 4096; i++) {
        hearth_syntax_feed(&syntax, "x", 1);
    }
    assert_false(hearth_syntax_next(&syntax));
    hearth_syntax_init(&syntax, &json);
    hearth_syntax_feed(&syntax, "<tool_call>", 11);
    for (int i = 0; i < 500; i++) {
        hearth_syntax_feed(&syntax, i % 2 ? "[" : "{\"k\":", i % 2 ? 1 : 5);
    }
    for (int i = 0; i < 600; i++) {
        hearth_syntax_feed(&syntax, "]}", 2);
    }
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 200000; i++) {
        static const char bytes[] = "{}[]\":,\\ab1 <>/\n";
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        hearth_syntax_feed(&syntax, bytes + x % (sizeof bytes - 1), 1);
        if (x % 97 == 0) {
            hearth_syntax_feed(&syntax, "<tool_call>", 11);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats),
        cmocka_unit_test(nothing_is_asked_for),
        cmocka_unit_test(odd_replies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
