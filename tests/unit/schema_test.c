/* Which JSON schemas are kept, in which form, and what is said of the others. The forms are those of which
 * json_schema_to_grammar() is known to make a grammar that keeps them; the last test makes one of each. */
#include "chat/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Any character of a JSON text between quotes, in a pattern, in JSON, in C. */
#define ANY_CHAR                                                                                                     \
    "([\\\\U00000020-\\\\U00000021\\\\U00000023-\\\\U0000005B\\\\U0000005D-\\\\U0000007E\\\\U00000080-\\\\U0000D7FF" \
    "\\\\U0000E000-\\\\U0010FFFF]|\\\\\\\\[\\\\U00000022\\\\U0000005Cbtnfr])"

/* In `strong`, single quotes stand for double ones; NULL: only that there is one. */
static const struct kept {
    const char *schema, *strong;
} kept[] = {
    /* As they are. */
    {"{'type':'string'}", "{'type':'string'}"},
    {"{'type':'boolean','title':'T','default':true,'x-anything':1}", "{'type':'boolean'}"},
    {"{'type':'integer'}", "{'type':'integer'}"},
    {"{'enum':['a',1,null]}", "{'enum':['a',1,null]}"},
    {"{}", "{'type':'object'}"},
    {"{'type':['string','null']}", "{'anyOf':[{'type':'string'},{'type':'null'}]}"},
    {"{'type':'string','format':'email'}", "{'type':'string'}"},
    {"{'type':'string','format':'uuid'}", "{'type':'string','format':'uuid'}"},
    {"{'type':'string','maxLength':9}", "{'type':'string','maxLength':9}"},
    {"{'type':'array','items':{'type':'null'},'minItems':1,'maxItems':2}",
     "{'type':'array','items':{'type':'null'},'minItems':1,'maxItems':2}"},
    {"{'type':'object','additionalProperties':{'type':'integer'}}",
     "{'type':'object','additionalProperties':{'type':'integer'}}"},
    /* Closed, and without what cannot be there. */
    {"{'type':'object','properties':{'a':true,'b':false},'required':['a'],'additionalProperties':true}",
     "{'type':'object','properties':{'a':{}},'required':['a'],'additionalProperties':false}"},
    {"{'properties':{'a':{'type':'null'}},'required':['b'],'additionalProperties':{'type':'string'}}",
     "{'type':'object','properties':{'a':{'type':'null'},'b':{'type':'string'}},'required':['b'],"
     "'additionalProperties':false}"},
    {"{'properties':{'a':{'type':'null'},'b':{'type':'null'}},'minProperties':1,'maxProperties':1}",
     "{'type':'object','properties':{'a':{'type':'null'}},'required':['a'],'additionalProperties':false}"},
    {"{'type':'object','propertyNames':{'enum':['x']},'additionalProperties':{'type':'null'}}",
     "{'type':'object','properties':{'x':{'type':'null'}},'additionalProperties':false}"},
    {"{'type':'object','propertyNames':false}", "{'type':'object','additionalProperties':false}"},
    {"{'properties':{'a':{'type':'null'},'b':{'type':'null'}},'dependentRequired':{'a':['b'],'b':['z']}}", NULL},
    /* What stands beside anyOf, allOf, $ref, enum. */
    {"{'type':'object','properties':{'a':{'type':'null'},'b':{'type':'null'}},'anyOf':[{'required':['a']},"
     "{'required':['b']}]}",
     "{'anyOf':[{'type':'object','properties':{'a':{'type':'null'},'b':{'type':'null'}},'required':['a'],"
     "'additionalProperties':false},{'type':'object','properties':{'a':{'type':'null'},'b':{'type':'null'}},"
     "'required':['b'],'additionalProperties':false}]}"},
    {"{'allOf':[{'properties':{'a':{'type':'number'}}},{'properties':{'a':{'type':'integer'}},'required':['a']}]}",
     "{'type':'object','properties':{'a':{'type':'integer'}},'required':['a'],'additionalProperties':false}"},
    {"{'$ref':'#/definitions/s','maxLength':3,'definitions':{'s':{'type':'string'}}}",
     "{'type':'string','maxLength':3}"},
    {"{'enum':['a','bcd',7],'type':'string','maxLength':2}", "{'enum':['a']}"},
    {"{'enum':[true,'abc'],'minLength':4}", "{'enum':[true]}"},
    {"{'enum':[{'a':1},{'b':2},'a'],'not':{'required':['a']}}", "{'enum':[{'b':2}]}"},
    /* Exactly one. */
    {"{'oneOf':[{'type':'string'},{'type':'null'}]}", "{'anyOf':[{'type':'string'},{'type':'null'}]}"},
    {"{'oneOf':[{'properties':{'k':{'const':'a'}},'required':['k']},{'properties':{'k':{'const':'b'}},'required':"
     "['k']}]}",
     NULL},
    {"{'discriminator':{'propertyName':'k'},"
     "'oneOf':[{'properties':{'k':{'const':'a'}}},{'properties':{'k':{'const':'b'}}}]}",
     "{'anyOf':[{'type':'object','properties':{'k':{'enum':['a']}},'required':['k'],'additionalProperties':false},"
     "{'type':'object','properties':{'k':{'enum':['b']}},'required':['k'],'additionalProperties':false}]}"},
    {"{'discriminator':{'propertyName':'k'},"
     "'oneOf':[{'type':'object','properties':{'k':{'const':'a','default':'a'}}},{'type':'null'}]}",
     "{'anyOf':[{'type':'object','properties':{'k':{'enum':['a']}},'required':['k'],'additionalProperties':false},"
     "{'type':'null'}]}"},
    {"{'not':{'type':['string','null','array','object','boolean']}}", "{'type':'number'}"},
    /* Recursive. */
    {"{'$ref':'#/$defs/n','$defs':{'n':{'type':'object','properties':{'next':{'$ref':'#/$defs/n'}}}}}",
     "{'$ref':'#/$defs/hearth-0','$defs':{'hearth-0':{'type':'object','properties':{'next':{'$ref':"
     "'#/$defs/hearth-0'}},'additionalProperties':false}}}"},
    /* Tuples and lists without doubles. */
    {"{'type':'array','prefixItems':[{'type':'null'}],'items':{'type':'boolean'},'minItems':2}",
     "{'type':'array','items':[{'type':'null'},{'type':'boolean'}]}"},
    {"{'type':'array','prefixItems':[{'type':'null'},false]}", "{'type':'array','items':[{'type':'null'}]}"},
    {"{'type':'array','items':{'enum':['a','b']},'uniqueItems':true}", "{'enum':[[],['a'],['b'],['a','b']]}"},
    /* Numbers. */
    {"{'type':'integer','minimum':-1,'exclusiveMaximum':3}", NULL},
    {"{'type':'integer','minimum':3,'maximum':10,'multipleOf':5}", "{'enum':[5,10]}"},
    {"{'type':'number','minimum':0}", NULL},
    {"{'type':'number','exclusiveMinimum':0,'maximum':0.25}", NULL},
    {"{'type':'number','multipleOf':1}", "{'type':'integer'}"},
    /* Strings. */
    {"{'type':'string','minLength':2}", "{'type':'string','pattern':'^" ANY_CHAR "{2}" ANY_CHAR "*$'}"},
    {"{'type':'string','pattern':'^[a-c]+$','maxLength':4}", "{'type':'string','pattern':'^(([a-c]){1,4})$'}"},
    {"{'type':'string','pattern':'^\\\\d$'}", "{'type':'string','pattern':'^(([0-9]))$'}"},
    {"{'type':'string','pattern':'a|^b$'}", "{'type':'string','pattern':'^(" ANY_CHAR "*([a])" ANY_CHAR "*|([b]))$'}"},
    {"{'type':'string','pattern':'x','maxLength':1}", "{'type':'string','pattern':'^(([x]))$'}"},
};

static const struct refused {
    const char *schema, *why; /* how the message begins */
} refused[] = {
    {"[]", "a schema must be an object"},
    {"{'type':'any'}", "type: \"any\" is no type of JSON"},
    {"{'type':'object','properties':{'tags':{'type':'array','items':{'type':'string'},'uniqueItems':true}}}",
     "properties.tags.uniqueItems: only for items from a list of values"},
    {"{'type':'object','properties':{'':{}}}", "properties: must be an object of schemas"},
    {"{'type':'object','required':'a'}", "required: must be a list of names"},
    {"{'type':'string','minLength':-1}", "minLength: must be a whole number, not negative"},
    {"{'type':'string','minLength':4000}", "minLength: more than"},
    {"{'type':'integer','minimum':'1'}", "minimum: must be a number"},
    {"{'type':'integer','exclusiveMinimum':true}", "exclusiveMinimum: must be a number"},
    {"{'type':'integer','multipleOf':3}", "multipleOf: without a minimum and a maximum"},
    {"{'type':'number','multipleOf':0.01}", "multipleOf: only whole numbers"},
    {"{'type':'object','patternProperties':{'^x':{}}}", "patternProperties: cannot be kept"},
    {"{'type':'object','minProperties':1}", "minProperties: not for free names"},
    {"{'type':'array','contains':{'type':'null'}}", "contains: cannot be kept"},
    {"{'if':{},'then':{}}", "if: cannot be kept"},
    {"{'type':'object','not':{'properties':{}}}", "not: cannot be kept"},
    {"{'properties':{'p':{'not':{'required':['a']}}},'required':['p']}", "properties.p.not: not for free names"},
    {"{'type':'string','not':{'required':['a']}}", "no value is valid by this schema"},
    {"{'oneOf':[{'type':'integer'},{'type':'number'}]}", "oneOf.0: a value may be valid by number 1 too"},
    {"{'discriminator':{'propertyName':'k'},'oneOf':[{'properties':{'k':{'const':'a'}}},{'properties':{'k':{}}}]}",
     "oneOf.0: a value may be valid by number 1 too"},
    {"{'anyOf':[]}", "anyOf: must be a list of schemas"},
    {"{'enum':[]}", "enum: must be a list of values"},
    {"{'enum':['a','b'],'pattern':'^a'}", "enum: not beside other keywords"},
    {"{'const':{'hearth:gbnf':'x'}}", "enum: \"hearth:gbnf\" is a reserved name"},
    {"{'$ref':'#/$defs/x'}", "$ref: \"#/$defs/x\" leads nowhere"},
    {"{'$ref':'https://example.com/s'}", "$ref: \"https://example.com/s\" does not lead into this schema"},
    {"{'$ref':'#/$defs/a','$defs':{'a':{'anyOf':[{'type':'null'},{'$ref':'#/$defs/a'}]}}}", "$ref: it leads to itself"},
    {"{'$ref':'#/$defs/a','$defs':{'a':{'allOf':[{'$ref':'#/$defs/a'},{}]}}}", "#/$defs/a.$ref: it leads to itself"},
    {"{'type':'object','properties':{'a':{'$ref':'#'}},'required':['a']}", "$ref: its values never end"},
    {"{'$dynamicRef':'#x'}", "$dynamicRef: only $ref"},
    {"{'type':'string','const':1}", "no value is valid by this schema"},
    {"{'type':'object','properties':{},'required':['a'],'additionalProperties':false}", "no value is valid"},
    {"{'type':'integer','minimum':3,'maximum':2}", "no value is valid"},
    {"{'type':'string','pattern':'^(?=a)'}", "pattern: a group that looks around"},
    {"{'type':'string','pattern':'\\\\bx'}", "pattern: an escape that a grammar cannot follow"},
    {"{'type':'string','pattern':'^(a'}", "pattern: a group that does not end"},
    {"{'type':'string','pattern':'a)'}", "pattern: unbalanced parentheses"},
    {"{'type':'string','pattern':'[a'}", "pattern: a set of characters that does not end"},
    {"{'type':'string','pattern':'^a{5}$','maxLength':4}", "pattern: it does not go with the length"},
};

/* Double quotes for single ones. Caller frees. */
static char *quoted(const char *text) {
    char *out = strdup(text);
    assert_non_null(out);
    for (char *c = out; *c != '\0'; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    return out;
}

static json_t *parsed(const char *text) {
    char *json = quoted(text);
    json_error_t error;
    json_t *value = json_loads(json, 0, &error);
    if (value == NULL) {
        print_error("%s: %s\n", json, error.text);
    }
    assert_non_null(value);
    free(json);
    return value;
}

static json_t *strengthened(const char *text, struct hearth_errmsg *msg) {
    json_t *schema = parsed(text);
    json_t *strong = hearth_chat_schema_strengthen(schema, msg);
    struct hearth_errmsg unused;
    assert_int_equal(hearth_chat_schema_check(schema, &unused), strong != NULL);
    json_decref(schema);
    return strong;
}

static void kept_in_a_stronger_form(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        struct hearth_errmsg msg = {""};
        json_t *strong = strengthened(kept[i].schema, &msg);
        if (strong == NULL) {
            print_error("%s: %s\n", kept[i].schema, msg.text);
        }
        assert_non_null(strong);
        if (kept[i].strong != NULL) {
            json_t *expected = parsed(kept[i].strong);
            if (!json_equal(strong, expected)) {
                char *text = json_dumps(strong, JSON_COMPACT);
                print_error("%s\n  became %s\n", kept[i].schema, text);
                free(text);
                fail();
            }
            json_decref(expected);
        }
        json_decref(strong);
    }
}

static void refused_with_the_keyword(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct hearth_errmsg msg = {""};
        assert_null(strengthened(refused[i].schema, &msg));
        if (strncmp(msg.text, refused[i].why, strlen(refused[i].why)) != 0) {
            print_error("%s: %s\n", refused[i].schema, msg.text);
        }
        assert_memory_equal(msg.text, refused[i].why, strlen(refused[i].why));
    }
}

/* Nesting and size have limits, in the schema and in what it stands for. */
static void large_schemas_are_refused(void **state) {
    (void)state;
    json_t *deep = json_pack("{s:s}", "type", "string"), *wide = json_object(), *doubled = json_object();
    struct hearth_errmsg msg;
    for (int i = 0; i < 100; i++) {
        deep = json_pack("{s:s, s:o}", "type", "array", "items", deep);
    }
    assert_false(hearth_chat_schema_check(deep, &msg));
    assert_non_null(strstr(msg.text, "nested too deeply"));
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(wide, name, json_true());
    }
    wide = json_pack("{s:o}", "properties", wide);
    assert_false(hearth_chat_schema_check(wide, &msg));
    assert_string_equal(msg.text, "properties: more than 256");
    /* Thirty choices of two, all at once. */
    json_t *all = json_array();
    for (int i = 0; i < 30; i++) {
        json_array_append_new(all, json_pack("{s:[{s:i},{s:i}]}", "anyOf", "minLength", i, "maxLength", 100 + i));
    }
    json_object_set_new(doubled, "allOf", all);
    assert_false(hearth_chat_schema_check(doubled, &msg));
    assert_non_null(strstr(msg.text, "the schema is too large"));
    json_decref(deep);
    json_decref(wide);
    json_decref(doubled);
    /* Each stands for two of the one before, and none leads to itself. */
    json_t *twice = json_pack("{s:{s:s}}", "a0", "type", "string");
    for (int i = 1; i < 20; i++) {
        char name[16], ref[32];
        snprintf(name, sizeof name, "a%d", i);
        snprintf(ref, sizeof ref, "#/$defs/a%d", i - 1);
        json_object_set_new(twice, name, json_pack("{s:[{s:s},{s:s}]}", "allOf", "$ref", ref, "$ref", ref));
    }
    json_t *schema = json_pack("{s:[{s:s},{}], s:o}", "allOf", "$ref", "#/$defs/a19", "$defs", twice);
    assert_false(hearth_chat_schema_check(schema, &msg));
    assert_string_equal(msg.text, "$ref: too large when written out: more than 64 references stand for one schema");
    json_decref(schema);
    /* Each stands for the one before, twice, as a choice: a property would have a million. */
    json_t *choices = json_pack("{s:{s:s}}", "a0", "type", "integer");
    for (int i = 1; i <= 20; i++) {
        char name[16], ref[32];
        snprintf(name, sizeof name, "a%d", i);
        snprintf(ref, sizeof ref, "#/$defs/a%d", i - 1);
        json_object_set_new(choices, name, json_pack("{s:[{s:s},{s:s}]}", "anyOf", "$ref", ref, "$ref", ref));
    }
    schema = json_pack("{s:{s:{s:s}}, s:o}", "properties", "n", "$ref", "#/$defs/a20", "$defs", choices);
    assert_false(hearth_chat_schema_check(schema, &msg));
    assert_string_equal(msg.text, "$ref: it leads to too many choices");
    json_decref(schema);
}

/* A set of as many characters as one may have, none beside another: what must be escaped in JSON stays escaped, and no
 * other character comes in. */
static void large_sets_of_characters(void **state) {
    (void)state;
    char pattern[512] = "^[\"";
    size_t len = strlen(pattern);
    for (unsigned c = 0x101; c <= 0x1FD; c += 2) {
        pattern[len++] = (char)(0xC0 | c >> 6);
        pattern[len++] = (char)(0x80 | (c & 0x3F));
    }
    memcpy(pattern + len, "]$", 3);
    json_t *schema = json_pack("{s:s, s:s}", "type", "string", "pattern", pattern);
    struct hearth_errmsg msg = {""};
    json_t *strong = hearth_chat_schema_strengthen(schema, &msg);
    const char *made = json_string_value(json_object_get(strong, "pattern"));
    static const char begin[] = "^(([\\U00000101\\U00000103", end[] = "\\U000001FB\\U000001FD]|\\\\[\\U00000022]))$";
    assert_non_null(made);
    assert_memory_equal(made, begin, strlen(begin));
    assert_string_equal(made + strlen(made) - strlen(end), end);
    json_decref(strong);
    json_decref(schema);
    /* One more is refused. */
    memcpy(pattern + len, "x]$", 4);
    schema = json_pack("{s:s, s:s}", "type", "string", "pattern", pattern);
    assert_false(hearth_chat_schema_check(schema, &msg));
    assert_string_equal(msg.text, "pattern: too large a set of characters");
    json_decref(schema);
}

/* Names of a grammar's rules are made of those of properties. */
static void long_names_are_refused(void **state) {
    (void)state;
    struct hearth_errmsg msg;
    char name[5001], last[16];
    memset(name, '_', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    json_t *schema = json_pack("{s:{s:{}}}", "properties", name);
    assert_false(hearth_chat_schema_check(schema, &msg));
    assert_string_equal(msg.text, "properties: a name of more than 4096 bytes");
    json_decref(schema);
    /* Nine megabytes, all together, in front of the last ones. */
    json_t *properties = json_object();
    for (int i = 0; i < 250; i++) {
        snprintf(last, sizeof last, "p%d", i);
        json_object_set_new(properties, last, json_pack("{s:s}", "type", "null"));
    }
    name[4000] = '\0';
    schema = json_pack("{s:o}", "properties", properties);
    for (int i = 0; i < 9; i++) {
        schema = json_pack("{s:{s:o}}", "properties", name, schema);
    }
    assert_false(hearth_chat_schema_check(schema, &msg));
    assert_non_null(strstr(msg.text, "the names of its properties are too long"));
    json_decref(schema);
}

static char *grammar_of(const char *text) {
    struct hearth_buf grammar = {0};
    struct hearth_errmsg msg = {""};
    json_t *schema = parsed(text);
    if (hearth_chat_schema_grammar(schema, &grammar, &msg) != HEARTH_OK) {
        print_error("%s: %s\n", text, msg.text);
        fail();
    }
    json_decref(schema);
    return (char *)grammar.data;
}

/* Where the converter has no words, its grammar has a constant; behind hearth_chat_schema_fill() it has the range. */
static void ranges_are_filled_in(void **state) {
    (void)state;
    static const struct {
        const char *schema, *rule;
    } ranges[] = {
        {"{'type':'integer','minimum':-1,'exclusiveMaximum':3}", "root ::= (\"-\" ( ([1])) | ( ([0-2])))\n"},
        {"{'type':'integer','minimum':105,'maximum':110}", "root ::= (( ([1] ([0] ([5-9]) | [1] ([0])))))\n"},
        {"{'type':'number','minimum':0,'maximum':1}", "root ::= ((\"1\" | ( ([0])) (\".\" [0-9]{1,6})?))\n"},
        {"{'type':'array','items':{'type':'number','minimum':9,'maximum':9}}", "item ::= ((\"9\"))\n"},
        /* A bound that no six decimals can tell from 0. */
        {"{'type':'number','minimum':1e-12,'maximum':0.000001}",
         "root ::= ((\"0\" (\".\" ([0] ([0] ([0] ([0] ([0] ([1])))))))))\n"},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        char *grammar = grammar_of(ranges[i].schema);
        if (strstr(grammar, ranges[i].rule) == NULL || strstr(grammar, "hearth:gbnf") != NULL) {
            print_error("%s:\n%s", ranges[i].schema, grammar);
            fail();
        }
        free(grammar);
    }
}

static void every_form_becomes_a_grammar(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        char *grammar = grammar_of(kept[i].schema);
        assert_non_null(strstr(grammar, "root ::="));
        free(grammar);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_in_a_stronger_form),   cmocka_unit_test(refused_with_the_keyword),
        cmocka_unit_test(large_schemas_are_refused), cmocka_unit_test(long_names_are_refused),
        cmocka_unit_test(ranges_are_filled_in),      cmocka_unit_test(every_form_becomes_a_grammar),
        cmocka_unit_test(large_sets_of_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
