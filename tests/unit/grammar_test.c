/* Grammars without a model: the notation, following a text through rules, trigger patterns, and constraints on the
 * tokens of sim's vocabulary. That the same tokens are allowed as by llama.cpp is tested on real models. */
#include "base/clock.h"
#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "engine/sim.h"
#include "grammar/trigger.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct hearth_grammar_matcher *matcher_of(const char *text) {
    struct hearth_errmsg msg = {""};
    struct hearth_grammar_gbnf *gbnf;
    struct hearth_grammar_matcher *matcher = NULL;
    if (hearth_grammar_gbnf_parse(text, NULL, NULL, &gbnf, &msg) == HEARTH_OK) {
        (void)hearth_grammar_matcher_create(gbnf, &matcher, &msg);
    }
    if (matcher == NULL) {
        fail_msg("%s\n%s", msg.text, text);
    }
    return matcher;
}

/* 'y': the text follows the grammar; '-': it could be the beginning of one that does; 'n': neither. */
static char follows(struct hearth_grammar_matcher *matcher, struct hearth_grammar_matcher_point start,
                    const char *text) {
    struct hearth_grammar_matcher_point point = start;
    for (; *text != '\0'; text++) {
        if (!hearth_grammar_matcher_byte(matcher, &point, (uint8_t)*text)) {
            assert_int_equal(point.state, HEARTH_GRAMMAR_MATCHER_DEAD);
            return 'n';
        }
    }
    return hearth_grammar_matcher_complete(matcher, &point) ? 'y' : '-';
}

/* ---- texts ---- */

struct text_case {
    const char *grammar;
    struct {
        char answer;
        const char *text;
    } texts[12];
};

static const struct text_case text_cases[] = {
    {"root ::= \"ab\" | \"a\" [c-e] # comment\n",
     {{'-', "a"}, {'y', "ab"}, {'y', "ad"}, {'n', "af"}, {'n', "abb"}, {'-', ""}}},
    {"root ::= x{2,3} y?\nx ::= \"a\"\ny ::= \"b\" root | \"\"", /* */
     {{'-', "a"}, {'y', "aa"}, {'y', "aaa"}, {'n', "aaaa"}, {'-', "aab"}, {'y', "aabaa"}, {'n', "aabb"}}},
    {"root ::= (\"ab\")* [^a-z\\n]+",
     {{'-', ""}, {'-', "abab"}, {'y', "ab1"}, {'n', "aba1"}, {'y', "ab12é"}, {'n', "1\n"}}},
    {"root ::= \"a\"{3}", {{'-', "aa"}, {'y', "aaa"}, {'n', "aaaa"}}},
    {"root ::= \"a\"{0,0} \"b\"", {{'n', "a"}, {'y', "b"}}},
    {"root ::= \"a\"{2,} \"b\"{ 1 , 2 }", {{'n', "ab"}, {'y', "aaab"}, {'y', "aabb"}, {'n', "aabbb"}}},
    {"root ::= \"\\x41\\u00e9\\U0001F600\\t\\\"\\\\\"",
     {{'y', "A\u00e9\U0001F600\t\"\\"}, {'-', "A\xC3"}, {'n', "A\xC2"}}},
    {"root ::= [\\[\\]a-]+", {{'y', "[a-]"}, {'n', "b"}}},
    {"root ::= . .",
     {{'-', "\n"},
      {'y', "\nx"},
      {'y', "\U0001F600\u00e9"},
      {'n', "abc"},
      {'n', "\xFF"},
      {'n', "\x80"},
      {'n', "\xC0\x80"},
      {'n', "\xED\xFF"}}},
    {"root ::=\n  \"a\" |\n  (\n \"b\"\n | \"c\" )\n\n\nunused ::= \"x\"\n", {{'y', "a"}, {'y', "b"}, {'y', "c"}}},
    {"root ::= \"x\"\nroot ::= \"y\"", {{'n', "x"}, {'y', "y"}}}, /* the last definition counts, as in llama.cpp */
    /* left recursion, open and hidden, and rules that are empty in several ways */
    {"root ::= root \"+\" n | n\nn ::= [0-9]", {{'y', "1"}, {'y', "1+2+3"}, {'n', "1+2+3+4++"}, {'-', "1+"}}},
    {"root ::= e root \"x\" | \"y\"\ne ::= f\nf ::= \"\"", {{'y', "y"}, {'y', "yxxx"}, {'n', "x"}}},
    {"root ::= (\"a\"* | (\"b\"?)*)* \"!\"", {{'y', "!"}, {'y', "abba!"}, {'n', "c"}}},
    {"root ::= a a a\na ::= b b | \"\"\nb ::= \"x\" | a", {{'y', ""}, {'y', "x"}, {'y', "xxxxx"}, {'y', "xxxxxxxx"}}},
    /* a grammar that is ambiguous at every step, and one that has to remember every step */
    {"root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\"",
     {{'y', "a"}, {'y', "aab"}, {'-', "aaa"}, {'y', "aaabc"}, {'n', "aabb"}}},
    {"root ::= \"(\" root? \")\" root?", {{'y', "()"}, {'y', "(()())()"}, {'-', "(()"}, {'n', "())"}}},
    /* parts of characters */
    {"root ::= [é-ü]", {{'-', "\xC3"}, {'y', "\u00e9"}, {'n', "\u00e8"}, {'n', "\xC4"}}},
    {"root ::= [^\\u0000-\\u07FF]",
     {{'n', "a"}, {'n', "\xC3"}, {'-', "\xE2"}, {'-', "\xE2\x82"}, {'y', "\u20AC"}, {'n', "\xE0\x80"}}},
};

static void texts(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(text_cases); i++) {
        struct hearth_grammar_matcher *matcher = matcher_of(text_cases[i].grammar);
        struct hearth_grammar_matcher_point start = hearth_grammar_matcher_start(matcher);
        for (size_t k = 0; k < COUNT(text_cases[i].texts) && text_cases[i].texts[k].answer != 0; k++) {
            char answer = follows(matcher, start, text_cases[i].texts[k].text);
            if (answer != text_cases[i].texts[k].answer) {
                fail_msg("%s\n\"%s\" is %c", text_cases[i].grammar, text_cases[i].texts[k].text, answer);
            }
        }
        hearth_grammar_matcher_destroy(matcher);
    }
}

/* A text of many brackets; settling on the way forgets and keeps the right things. */
static void deep_texts(void **state) {
    (void)state;
    enum { DEPTH = 100000 };
    struct hearth_grammar_matcher *matcher = matcher_of("root ::= \"[\" (root (\",\" root)*)? \"]\"");
    struct hearth_grammar_matcher_point point = hearth_grammar_matcher_start(matcher);
    for (int i = 0; i < DEPTH; i++) {
        assert_true(hearth_grammar_matcher_byte(matcher, &point, '['));
        hearth_grammar_matcher_compact(matcher, &point);
    }
    for (int i = 0; i < DEPTH; i++) {
        struct hearth_grammar_matcher_point other = point;
        assert_false(hearth_grammar_matcher_complete(matcher, &point));
        assert_false(hearth_grammar_matcher_byte(matcher, &other, 'x'));
        assert_true(hearth_grammar_matcher_byte(matcher, &point, ']'));
        hearth_grammar_matcher_compact(matcher, &point);
    }
    assert_true(hearth_grammar_matcher_complete(matcher, &point));
    assert_false(hearth_grammar_matcher_byte(matcher, &point, ']'));
    hearth_grammar_matcher_destroy(matcher);
}

/* Going round in a repetition comes back to the same state: what keeps large vocabularies cheap. */
static void repetitions_add_no_states(void **state) {
    (void)state;
    struct hearth_grammar_matcher *matcher = matcher_of("root ::= \"\\\"\" ( [^\"\\\\] | \"\\\\\" [\"n] )* \"\\\"\"");
    struct hearth_grammar_matcher_point point = hearth_grammar_matcher_start(matcher), inside;
    assert_true(hearth_grammar_matcher_byte(matcher, &point, '"'));
    inside = point;
    for (const char *c = "some text \\n and more é"; *c != '\0'; c++) {
        assert_true(hearth_grammar_matcher_byte(matcher, &point, (uint8_t)*c));
    }
    assert_int_equal(point.state, inside.state);
    hearth_grammar_matcher_destroy(matcher);
}

/* ---- grammars that are refused, and hostile ones ---- */

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *grammar, *message;
    } bad[] = {
        {"", "no rule \"root\""},
        {"x ::= \"a\"", "no rule \"root\""},
        {"root ::= y", "a rule \"y\" that it does not define"},
        {"root ::= \"a", "line 1: unexpected end"},
        {"root ::= \"a\"\n\nroot := b", "line 3: \"::=\" is missing"},
        {"root ::= [a", "unexpected end"},
        {"root ::= []", "character class is empty"},
        {"root ::= (\"a\"", "\")\" is missing"},
        {"root ::= \"a\")", "the end of the line is missing"},
        {"root ::= *", "nothing to repeat"},
        {"root ::= \"\"+", "nothing to repeat"},
        {"root ::= \"a\"{5,2}", "in the wrong order"},
        {"root ::= \"a\"{,2}", "a number is missing"},
        {"root ::= \"a\"{2", "\"}\" is missing"},
        {"root ::= \"a\"{99999999999999999999}", "too large"},
        {"root ::= \"a\"{0,100000}{0,100000}{0,100000}{0,100000}{0,100000}{0,100000}", "the grammar is too large"},
        {"root ::= \"\\q\"", "unknown escape"},
        {"root ::= \"\\xg0\"", "hexadecimal digit is missing"},
        {"root ::= \"\\UFFFFFFFF\"", "no such code point"},
        {"root ::= \"\xFF\"", "not UTF-8"},
        {"root ::= \"\xE2\x82", "not UTF-8"},
        {"root ::= <think>", "not one token"},
        {"root ::= <[5]", "\"]>\" is missing"},
        {"root ::= !x", "a token is missing"},
        {"root ::= root", "no text follows"},
        {"root ::= \"a\" b\nb ::= c\nc ::= b", NULL}, /* can begin, but never end: allowed */
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct hearth_errmsg msg = {""};
        struct hearth_grammar_gbnf *gbnf;
        struct hearth_grammar_matcher *matcher = NULL;
        int err = hearth_grammar_gbnf_parse(bad[i].grammar, NULL, NULL, &gbnf, &msg);
        if (err == HEARTH_OK) {
            err = hearth_grammar_matcher_create(gbnf, &matcher, &msg);
        }
        assert_int_equal(err, bad[i].message != NULL ? HEARTH_ERR_INVALID : HEARTH_OK);
        if (bad[i].message != NULL && strstr(msg.text, bad[i].message) == NULL) {
            fail_msg("%s: %s", bad[i].grammar, msg.text);
        }
        hearth_grammar_matcher_destroy(matcher);
    }
}

/* `count` rules, each `format` with its own number and twice the next one's. */
static char *chain(int count, const char *format) {
    size_t room = (size_t)count * 64 + 64, len = 0;
    char *text = malloc(room);
    assert_non_null(text);
    len += (size_t)snprintf(text, room, "root ::= r0\n");
    for (int i = 0; i < count; i++) {
        len += (size_t)snprintf(text + len, room - len, format, i, i + 1, i + 1);
    }
    snprintf(text + len, room - len, "r%d ::= \"x\"\n", count);
    return text;
}

static char *nested(int depth, const char *open, const char *inside, const char *close) {
    struct hearth_buf text = {0};
    assert_true(hearth_buf_text(&text, "root ::= "));
    for (int i = 0; i < depth; i++) {
        assert_true(hearth_buf_text(&text, open));
    }
    assert_true(hearth_buf_text(&text, inside));
    for (int i = 0; i < depth; i++) {
        assert_true(hearth_buf_text(&text, close));
    }
    char *copy = strdup((const char *)text.data);
    hearth_buf_finish(&text);
    assert_non_null(copy);
    return copy;
}

/* Whatever a grammar is, reading it and following a text takes bounded time and memory. */
static void hostile(void **state) {
    (void)state;
    char *grammars[] = {
        chain(40, "r%d ::= r%d \"a\" | r%d \"b\"\n"),
        chain(60, "r%d ::= r%d r%d | \"\"\n"),
        chain(5000, "r%d ::= r%d | r%d\n"),
        nested(10000, "(", "\"a\"", ")"),
        nested(200, "(", "\"x\"", ")*"),
        nested(200, "(\"x\" | ", "\"x\"", ")+"),
        strdup("root ::= root root | \"x\" | \"\""),
        strdup("root ::= (.{0,1000}){0,1000}"),
        strdup("root ::= (\"xx\"{1000}){1000}"),
        strdup("root ::= \"x\"{0,100000} \"y\""),
        strdup("root ::= \"x\" root \"b\" | \"x\" root \"c\" | \"x\""),
    };
    for (size_t i = 0; i < COUNT(grammars); i++) {
        struct hearth_grammar_gbnf *gbnf;
        struct hearth_grammar_matcher *matcher = NULL;
        int64_t start_us = hearth_clock_us();
        if (hearth_grammar_gbnf_parse(grammars[i], NULL, NULL, &gbnf, NULL) == HEARTH_OK &&
            hearth_grammar_matcher_create(gbnf, &matcher, NULL) == HEARTH_OK) {
            struct hearth_grammar_matcher_point point = hearth_grammar_matcher_start(matcher);
            for (int k = 0; k < 40 && hearth_grammar_matcher_byte(matcher, &point, 'x'); k++) {
                hearth_grammar_matcher_compact(matcher, &point);
            }
        }
        hearth_grammar_matcher_destroy(matcher);
        int64_t us = hearth_clock_us() - start_us;
        if (us > 20000000) { /* a minute and more where it goes wrong; sanitizers and busy machines have their time */
            fail_msg("%.60s took %lld us", grammars[i], (long long)us);
        }
        free(grammars[i]);
    }
}

static void random_grammars(void **state) {
    (void)state;
    static const char *const parts[] = {"root", "a", "b",  "::=",      "|",     "(",         ")",       "*",
                                        "+",    "?", "{",  "}",        "{1,3}", "\"x\"",     "\"y\"",   "[x-z]",
                                        "[^x]", ".", "\n", "\nb ::= ", "\\",    "<",         ">",       "!",
                                        "5",    ",", "\"", "[",        "]",     "root ::= ", "\na ::= "};
    uint64_t x = 88172645463325252u;
    for (int round = 0; round < 20000; round++) {
        struct hearth_buf text = {0};
        assert_true(hearth_buf_text(&text, "root ::= "));
        for (int i = 0; i < 24; i++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            assert_true(hearth_buf_text(&text, parts[x % (i < 20 ? COUNT(parts) : 21)]));
            assert_true(hearth_buf_text(&text, " "));
        }
        struct hearth_grammar_gbnf *gbnf;
        struct hearth_grammar_matcher *matcher = NULL;
        if (hearth_grammar_gbnf_parse((const char *)text.data, NULL, NULL, &gbnf, NULL) == HEARTH_OK) {
            (void)hearth_grammar_matcher_create(gbnf, &matcher, NULL);
        }
        struct hearth_grammar_matcher_point point = {0};
        if (matcher != NULL) {
            point = hearth_grammar_matcher_start(matcher);
        }
        for (int i = 0; i < 20 && matcher != NULL; i++) {
            struct hearth_grammar_matcher_point next = point;
            if (hearth_grammar_matcher_byte(matcher, &next, (uint8_t)"xyzx"[(x >> i) % 4])) {
                point = next;
                hearth_grammar_matcher_compact(matcher, &point);
            }
        }
        hearth_grammar_matcher_destroy(matcher);
        hearth_buf_finish(&text);
    }
}

/* ---- triggers ---- */

static void triggers(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        int start; /* -1: no match */
    } cases[] = {
        {"<tool_call>", "so <tool_call>", 3},
        {"<tool_call>", "so <tool_cal", -1},
        {"\\[TOOL_CALLS\\]", "[TOOL_CALLS]", 0},
        {"\\{\"name\"", "a {\"name\"", 2},
        {">>>(?!all)", "x>>>all\nhi", -1},
        {">>>(?!all)", "x>>>all\n>>>f", 8},
        {"a(?=b)", "ac ab", 3},
        {"^\\s+to$", "  to", 0},
        {"^\\s+to$", "  to ", -1},
        {"^\\s+to$", "x to", -1},
        {"<\\|start\\|>assistant(\\s+to)", "<|start|>assistant to", 18},
        {"<c>(?:commentary|analysis)\\s+to=functions", "<c>analysis  to=functions", 0},
        {"[\\s\\S]*?(<f>|<g>)[\\s\\S]*", "some\ntext <g> more", 10},
        {"(x)?(y)", "zy", 1},
        {"(?:^|<s>)( to=(?!self<m>)(?!user<m>)[^<]*?<m>)", " to=self<m><s> to=f<m>", 14},
        {"(?:^|<s>)( to=(?!self<m>)(?!user<m>)[^<]*?<m>)", " to=f<m>", 0},
        {"a|b|", "c", 0},
        {"[^\\d,]{2,3}$", "1abc", 1},
        {"[a-c]+?d", "xabcd", 1},
        {"\\x41\\.\\/", "A./", 0},
        {"(a*)*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", -1},
        {"(((a)))", "ba", 1},
        {".", "\n", -1},
        {"a{2}", "aba", -1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct hearth_errmsg msg = {""};
        struct hearth_grammar_trigger *trigger;
        if (hearth_grammar_trigger_create(cases[i].pattern, &trigger, &msg) != HEARTH_OK) {
            fail_msg("%s", msg.text);
        }
        size_t start = 999;
        bool found = hearth_grammar_trigger_find(trigger, cases[i].text, strlen(cases[i].text), 0, true, &start);
        if (found != (cases[i].start >= 0) || (found && start != (size_t)cases[i].start)) {
            fail_msg("%s in %s: %d at %zu", cases[i].pattern, cases[i].text, found, start);
        }
        hearth_grammar_trigger_destroy(trigger);
    }
    static const char *const bad[] = {"(",   ")",   "a)",      "[",      "[a", "[z-a", "*",      "a**b(", "\\",   "(\\",
                                      "[\\", "\\q", "(?<a>b)", "a{2,1}", "a{", "a{x}", "(a{2,1", "[\\q",  "([\\q"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct hearth_errmsg msg = {""};
        struct hearth_grammar_trigger *trigger;
        assert_int_equal(hearth_grammar_trigger_create(bad[i], &trigger, &msg), HEARTH_ERR_INVALID);
        assert_null(trigger);
        assert_true(strlen(msg.text) > 0);
    }
}

/* ---- constraints ---- */

struct bench {
    struct hearth_engine *engine;
    struct hearth_grammar_vocabulary *vocabulary;
    uint8_t *allowed;
};

static int bench_open(void **state) {
    struct bench *b = calloc(1, sizeof *b);
    struct hearth_sim_params params;
    hearth_sim_params_default(&params);
    assert_true(b != NULL && hearth_sim_create(&params, &b->engine, NULL) == HEARTH_OK);
    const struct hearth_grammar_tokens tokens = hearth_engine_grammar_tokens(b->engine);
    b->vocabulary = hearth_grammar_vocabulary_create(&tokens);
    b->allowed = malloc(b->engine->caps.vocab_tokens);
    assert_true(b->vocabulary != NULL && b->allowed != NULL);
    *state = b;
    return 0;
}

static int bench_close(void **state) {
    struct bench *b = *state;
    hearth_grammar_vocabulary_destroy(b->vocabulary);
    b->engine->ops->destroy(b->engine);
    free(b->allowed);
    free(b);
    return 0;
}

static struct hearth_grammar_constraint *constrain(struct bench *b, const struct hearth_grammar *grammar) {
    struct hearth_errmsg msg = {""};
    struct hearth_grammar_constraint *c;
    if (hearth_grammar_constraint_create(b->vocabulary, grammar, &c, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    return c;
}

/* Shows a text, token by token. */
static void say(struct bench *b, struct hearth_grammar_constraint *c, const char *text) {
    struct hearth_tokens tokens = {0};
    assert_int_equal(b->engine->ops->tokenize(b->engine, text, strlen(text), false, true, &tokens), HEARTH_OK);
    for (size_t i = 0; i < tokens.n; i++) {
        hearth_grammar_constraint_accept(c, tokens.v[i]);
    }
    hearth_tokens_finish(&tokens);
}

/* The mask says the same as asking for each token. */
static size_t mask(struct bench *b, struct hearth_grammar_constraint *c) {
    size_t count = hearth_grammar_constraint_mask(c, b->allowed), counted = 0;
    for (uint32_t t = 0; t < b->engine->caps.vocab_tokens; t++) {
        assert_int_equal(hearth_grammar_constraint_allows(c, (hearth_token)t), b->allowed[t]);
        counted += b->allowed[t];
    }
    assert_int_equal(count, counted);
    return count;
}

static void tokens_follow(void **state) {
    struct bench *b = *state;
    struct hearth_grammar grammar = {.text = "root ::= \"the\" (\" \" [a-z]+)* \".\""};
    struct hearth_grammar_constraint *c = constrain(b, &grammar);
    hearth_token end = b->engine->caps.end_token;
    assert_true(hearth_grammar_constraint_active(c));
    assert_true(mask(b, c) > 0);
    assert_true(b->allowed['t']);
    assert_false(b->allowed['x'] || b->allowed[end]);
    say(b, c, "the cat");
    (void)mask(b, c);
    assert_true(b->allowed['x'] && b->allowed['.'] && b->allowed[' ']);
    assert_false(b->allowed['!'] || b->allowed[end] || b->allowed[0xC3]);
    say(b, c, ".");
    size_t ends = mask(b, c);
    assert_true(ends > 0 && b->allowed[end] && !b->allowed['.']);
    for (uint32_t t = 0; t < b->engine->caps.vocab_tokens; t++) {
        assert_int_equal(b->allowed[t], b->engine->ops->token_is_end(b->engine, (hearth_token)t));
    }
    hearth_grammar_constraint_accept(c, end);
    assert_true(hearth_grammar_constraint_active(c));
    /* A token that does not follow ends the grammar's rule. */
    hearth_grammar_constraint_accept(c, 'x');
    assert_false(hearth_grammar_constraint_active(c));
    hearth_grammar_constraint_accept(c, 'y');
    hearth_grammar_constraint_destroy(c);
}

static void named_tokens(void **state) {
    struct bench *b = *state;
    struct hearth_grammar grammar = {.text = "root ::= \"a\" !<[98]> <|im_start|> \"z\""};
    struct hearth_grammar_constraint *c = constrain(b, &grammar);
    say(b, c, "a");
    (void)mask(b, c);
    assert_true(b->allowed['a'] && b->allowed['\n'] && !b->allowed['b'] && !b->allowed[b->engine->caps.end_token]);
    hearth_grammar_constraint_accept(c, 'q');
    assert_int_equal(mask(b, c), 1);
    say(b, c, "<|im_start|>");
    assert_int_equal(mask(b, c), 1);
    assert_true(b->allowed['z']);
    hearth_grammar_constraint_destroy(c);
}

static void prefill(void **state) {
    struct bench *b = *state;
    hearth_token begin[] = {'a', 'b'};
    struct hearth_grammar grammar = {.text = "root ::= \"abc\"", .prefill = begin, .prefill_count = 2};
    struct hearth_grammar_constraint *c = constrain(b, &grammar);
    assert_int_equal(mask(b, c), 1);
    assert_true(b->allowed['c']);
    hearth_grammar_constraint_destroy(c);
    struct hearth_errmsg msg = {""};
    begin[1] = 'x';
    assert_int_equal(hearth_grammar_constraint_create(b->vocabulary, &grammar, &c, &msg), HEARTH_ERR_INVALID);
    assert_null(c);
    assert_true(strlen(msg.text) > 0);
}

static void lazy_grammars(void **state) {
    struct bench *b = *state;
    static const char *const patterns[] = {"<call>", "see(:f)"};
    hearth_token start;
    struct hearth_tokens tokens = {0};
    assert_int_equal(b->engine->ops->tokenize(b->engine, "<|im_start|>", 12, false, true, &tokens), HEARTH_OK);
    start = tokens.v[0];
    struct hearth_grammar grammar = {.text = "root ::= (\"<call>\" | \":f\" | \"<|im_start|>\") \"(\" [0-9]+ \")\"",
                                     .lazy = true,
                                     .patterns = patterns,
                                     .pattern_count = 2,
                                     .tokens = &start,
                                     .token_count = 1};
    static const char *const said[] = {"some text, < and <cal> <call>", "hm see:f", "x<|im_start|>", "<call>",
                                       "<call>(4"};
    for (size_t i = 0; i < COUNT(said); i++) {
        struct hearth_grammar_constraint *c = constrain(b, &grammar);
        assert_false(hearth_grammar_constraint_active(c));
        say(b, c, said[i]);
        assert_true(hearth_grammar_constraint_active(c));
        (void)mask(b, c);
        assert_int_equal(b->allowed['('], i < 4);
        assert_int_equal(b->allowed[')'], i == 4);
        hearth_grammar_constraint_destroy(c);
    }
    /* It still waits after much text, and costs the same. */
    struct hearth_grammar_constraint *c = constrain(b, &grammar);
    for (int i = 0; i < 20000; i++) {
        say(b, c, "see and <cal ");
    }
    assert_false(hearth_grammar_constraint_active(c));
    say(b, c, "<call>");
    assert_true(hearth_grammar_constraint_active(c));
    hearth_grammar_constraint_destroy(c);
    /* A trigger whose text is not what the grammar begins with turns it off. */
    grammar.text = "root ::= \"x\"";
    c = constrain(b, &grammar);
    say(b, c, "<call>");
    assert_false(hearth_grammar_constraint_active(c));
    hearth_grammar_constraint_destroy(c);
    struct hearth_errmsg msg = {""};
    grammar.pattern_count = grammar.token_count = 0;
    assert_int_equal(hearth_grammar_constraint_create(b->vocabulary, &grammar, &c, &msg), HEARTH_ERR_INVALID);
    static const char *const broken[] = {"ok", "("};
    grammar.patterns = broken;
    grammar.pattern_count = 2;
    assert_int_equal(hearth_grammar_constraint_create(b->vocabulary, &grammar, &c, &msg), HEARTH_ERR_INVALID);
    assert_int_equal(hearth_engine_grammar_check(b->engine, "root ::= <|im_end|>", &msg), HEARTH_OK);
    assert_int_equal(hearth_engine_grammar_check(b->engine, "root ::= <nothing>", &msg), HEARTH_ERR_INVALID);
    hearth_tokens_finish(&tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(deep_texts),
        cmocka_unit_test(repetitions_add_no_states),
        cmocka_unit_test(refused),
        cmocka_unit_test(hostile),
        cmocka_unit_test(random_grammars),
        cmocka_unit_test(triggers),
        cmocka_unit_test_setup_teardown(tokens_follow, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(named_tokens, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(prefill, bench_open, bench_close),
        cmocka_unit_test_setup_teardown(lazy_grammars, bench_open, bench_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
