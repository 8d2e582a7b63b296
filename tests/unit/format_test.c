/* Formats: which grammar, triggers and tags a request gets, and what is refused. Grammars are tried on texts. */
#include "chat/chat.h"
#include "grammar/matcher.h"
#include "support/messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Tools and reasoning, as Qwen3's. */
static const char *const thinking_tools =
    "{% if tools %}[TOOLS]{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}[/TOOLS]{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.reasoning_content %}{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ message.content }}"
    "{% if message.tool_calls %}{% for call in message.tool_calls %}"
    "{{ '\n<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}"
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}";

/* Tagged arguments, as GLM's. */
static const char *const tagged_tools =
    "{% if tools %}[TOOLS]{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}[/TOOLS]{% endif %}"
    "{% for message in messages %}"
    "{{ '<|' + message.role + '|>\n' + message.content }}"
    "{% if message.tool_calls %}{% for call in message.tool_calls %}"
    "{{ '\n<tool_call>' + call.function.name }}"
    "{% for name, value in call.function.arguments.items() %}"
    "{{ '\n<arg_key>' + name + '</arg_key>\n<arg_value>' }}"
    "{{ value if value is string else value | tojson }}{{ '</arg_value>' }}{% endfor %}"
    "{{ '\n</tool_call>' }}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}";

#define TOOLS                                                                                          \
    "[{'type':'function','function':{'name':'ls','description':'Lists','parameters':{'type':'object'," \
    "'properties':{'path':{'type':'string'}},'required':['path']}}},"                                  \
    "{'type':'function','function':{'name':'now'}}]"

#define LS "<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \"/tmp\"}}\n</tool_call>"
#define NOW "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"

struct bench {
    struct hearth_chat *chat;
    struct messages list;
    json_t *tools;
    struct hearth_chat_request request;
};

static struct bench bench_make(const char *template_text, const char *messages) {
    struct bench bench = {.list = messages_load(messages), .tools = messages_json(TOOLS)};
    const struct hearth_chat_params params = {.template_text = template_text, .bos_text = "", .eos_text = ""};
    struct hearth_errmsg msg = {""};
    if (hearth_chat_create(&params, &bench.chat, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    bench.request = (struct hearth_chat_request){
        .message_count = bench.list.n, .thinking = true, .tool_choice = HEARTH_TOOLS_AUTO, .parallel_calls = true};
    return bench;
}

static void bench_finish(struct bench *bench) {
    hearth_chat_destroy(bench->chat);
    messages_finish(&bench->list);
    json_decref(bench->tools);
}

static struct hearth_chat_format *get(struct bench *bench) {
    struct hearth_chat_format *format = NULL;
    struct hearth_errmsg msg = {""};
    bench->request.messages = bench->list.v;
    if (hearth_chat_format_get(bench->chat, &bench->request, &format, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    return format;
}

/* Whether the whole text follows the grammar (`prefix`: begins a text that does), behind the generation prompt where
 * the grammar begins with that. */
static bool follows(const struct hearth_chat_format *format, const char *text, bool prefix) {
    const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
    struct hearth_grammar_gbnf *gbnf = NULL;
    struct hearth_grammar_matcher *matcher = NULL;
    struct hearth_errmsg msg = {""};
    assert_non_null(info->grammar);
    if (hearth_grammar_gbnf_parse(info->grammar, NULL, NULL, &gbnf, &msg) != HEARTH_OK ||
        hearth_grammar_matcher_create(gbnf, &matcher, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    struct hearth_grammar_matcher_point point = hearth_grammar_matcher_start(matcher);
    bool alive = true;
    for (const char *c = info->grammar_prefill ? info->generation_prompt : ""; *c; c++) {
        assert_true(hearth_grammar_matcher_byte(matcher, &point, (uint8_t)*c));
    }
    for (const char *c = text; *c && alive; c++) {
        alive = hearth_grammar_matcher_byte(matcher, &point, (uint8_t)*c);
    }
    alive = alive && (prefix || hearth_grammar_matcher_complete(matcher, &point));
    hearth_grammar_matcher_destroy(matcher);
    return alive;
}

static void expect_refused(struct bench *bench, int code, const char *words) {
    struct hearth_chat_format *format = (struct hearth_chat_format *)bench;
    struct hearth_errmsg msg = {""};
    bench->request.messages = bench->list.v;
    assert_int_equal(hearth_chat_format_get(bench->chat, &bench->request, &format, &msg), code);
    assert_null(format);
    assert_null(strchr(msg.text, '\n'));
    if (strstr(msg.text, words) == NULL) {
        fail_msg("'%s' does not say '%s'", msg.text, words);
    }
}

/* ---- without tools ---- */

static void test_plain(void **state) {
    (void)state;
    struct bench bench = bench_make(NULL, "[{'role':'user','content':'Hi'}]");
    struct hearth_chat_format *format = get(&bench);
    const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
    assert_true(info->plain);
    assert_null(info->grammar);
    assert_false(info->grammar_lazy || info->grammar_prefill || info->generic_tools || info->call_begin);
    assert_int_equal(info->trigger_count, 0);
    assert_string_equal(info->thinking_start, "");
    assert_string_equal(info->generation_prompt, "<|im_start|>assistant\n");
    hearth_chat_format_unref(format);
    bench_finish(&bench);
}

static void test_thinking(void **state) {
    (void)state;
    struct bench bench = bench_make(thinking_tools, "[{'role':'user','content':'Hi'}]");
    assert_true(hearth_chat_abilities(bench.chat)->thinking);
    struct hearth_chat_format *format = get(&bench);
    const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
    assert_false(info->plain);
    assert_string_equal(info->thinking_start, "<think>");
    assert_int_equal(info->thinking_end_count, 1);
    assert_string_equal(info->thinking_ends[0], "</think>");
    hearth_chat_format_unref(format);
    /* Without thinking the template closes it itself; the switch can be an argument of the template. */
    bench.request.kwargs = messages_json("{'enable_thinking':false}");
    format = get(&bench);
    assert_string_equal(hearth_chat_format_info(format)->generation_prompt,
                        "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    hearth_chat_format_unref(format);
    json_decref((json_t *)(uintptr_t)bench.request.kwargs);
    bench_finish(&bench);
}

static void test_schema(void **state) {
    (void)state;
    static const char *const templates[] = {NULL, thinking_tools, "llama3"};
    json_t *schema = messages_json("{'type':'object','properties':{'n':{'type':'integer'}},'required':['n']}");
    json_t *any = json_object();
    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++) {
        struct bench bench = bench_make(templates[i], "[{'role':'user','content':'Hi'}]");
        bench.request.json_schema = schema;
        struct hearth_chat_format *format = get(&bench);
        assert_false(hearth_chat_format_info(format)->grammar_lazy);
        assert_true(follows(format, "{\"n\": 5}", false));
        assert_false(follows(format, "{\"n\": \"5\"}", false));
        assert_false(follows(format, "Hello", true));
        hearth_chat_format_unref(format);
        /* An empty schema means any object. */
        bench.request.json_schema = any;
        format = get(&bench);
        assert_true(follows(format, "{\"a\": [1, null]}", false));
        assert_false(follows(format, "[1]", false));
        hearth_chat_format_unref(format);
        bench_finish(&bench);
    }
    json_decref(schema);
    json_decref(any);
}

static void test_own_grammar(void **state) {
    (void)state;
    struct bench bench = bench_make(thinking_tools, "[{'role':'user','content':'Hi'}]");
    bench.request.grammar = "root ::= \"yes\" | \"no\"";
    struct hearth_chat_format *format = get(&bench);
    const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
    assert_string_equal(info->grammar, bench.request.grammar);
    assert_false(info->grammar_lazy || info->grammar_prefill);
    hearth_chat_format_unref(format);
    /* Names of tokens are for the engine to find out. */
    bench.request.grammar = "root ::= <think> [a-z]+ </think> \"yes\"";
    hearth_chat_format_unref(get(&bench));
    bench.request.grammar = "root ::= (\"yes\"";
    expect_refused(&bench, HEARTH_ERR_INVALID, "grammar");
    bench.request.grammar = "start ::= \"yes\"";
    expect_refused(&bench, HEARTH_ERR_INVALID, "grammar");
    bench_finish(&bench);
}

/* ---- tools ---- */

static void test_generic(void **state) {
    (void)state;
    static const char *const templates[] = {NULL, "llama3"};
    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++) {
        struct bench bench = bench_make(templates[i], "[{'role':'user','content':'Hi'}]");
        bench.request.tools = bench.tools;
        struct hearth_chat_format *format = get(&bench);
        const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
        assert_true(info->generic_tools && info->grammar_lazy && !info->plain);
        assert_int_equal(info->trigger_count, 1);
        assert_true(info->triggers[0].token);
        assert_string_equal(info->triggers[0].text, "<tool_call>");
        assert_string_equal(info->call_begin, "<tool_call>");
        assert_true(follows(format, LS, false));
        assert_true(follows(format, LS "\n" NOW, false));
        assert_true(follows(format, "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>", false));
        assert_false(follows(format, "<tool_call>\n{\"name\": \"rm\"", true));
        assert_false(follows(format, LS " Done.", true));
        hearth_chat_format_unref(format);
        bench.request.parallel_calls = false;
        format = get(&bench);
        assert_true(follows(format, LS, false));
        assert_false(follows(format, LS "\n<", true));
        hearth_chat_format_unref(format);
        bench_finish(&bench);
    }
}

/* A call that is required is the first thing that is said. */
static void test_generic_required(void **state) {
    (void)state;
    static const char *const templates[] = {NULL, "llama3"};
    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++) {
        struct bench bench = bench_make(templates[i], "[{'role':'user','content':'Hi'}]");
        bench.request.tools = bench.tools;
        bench.request.tool_choice = HEARTH_TOOLS_REQUIRED;
        struct hearth_chat_format *format = get(&bench);
        assert_false(hearth_chat_format_info(format)->grammar_lazy);
        assert_true(follows(format, LS, false));
        assert_true(follows(format, LS "\n" NOW, false));
        assert_false(follows(format, "", false));
        assert_false(follows(format, "I", true));
        hearth_chat_format_unref(format);
        bench.request.parallel_calls = false;
        format = get(&bench);
        assert_true(follows(format, LS, false));
        assert_false(follows(format, LS "\n<", true));
        hearth_chat_format_unref(format);
        /* A schema has nothing to say about calls. */
        json_t *schema = messages_json("{'type':'integer'}");
        bench.request.json_schema = schema;
        format = get(&bench);
        assert_true(follows(format, LS, false));
        assert_false(follows(format, "5", true));
        hearth_chat_format_unref(format);
        json_decref(schema);
        bench_finish(&bench);
    }
}

static void test_native(void **state) {
    (void)state;
    struct bench bench = bench_make(thinking_tools, "[{'role':'user','content':'Hi'}]");
    assert_true(hearth_chat_abilities(bench.chat)->tools);
    bench.request.tools = bench.tools;
    struct hearth_chat_format *format = get(&bench);
    const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
    assert_true(info->grammar_lazy && !info->generic_tools && info->call_begin);
    assert_true(info->trigger_count > 0);
    assert_true(follows(format, LS, false));
    assert_false(follows(format, "<tool_call>\n{\"name\": \"rm\"", true));
    hearth_chat_format_unref(format);
    bench.request.tool_choice = HEARTH_TOOLS_REQUIRED;
    format = get(&bench);
    info = hearth_chat_format_info(format);
    assert_true(info->grammar_prefill && !info->grammar_lazy);
    assert_true(follows(format, "<think>\nHm.\n</think>\n\n" LS, false));
    assert_false(follows(format, "Done.", false));
    hearth_chat_format_unref(format);
    bench_finish(&bench);
}

static void expect_message(struct hearth_chat_format *format, const char *text, const char *content, size_t calls) {
    struct hearth_chat_stream *stream = hearth_chat_stream_create(format, false);
    struct hearth_message *message = NULL;
    bool repaired = true;
    assert_non_null(stream);
    assert_int_equal(hearth_chat_stream_feed(stream, text, strlen(text), NULL, NULL), HEARTH_OK);
    assert_int_equal(hearth_chat_stream_end(stream, false, NULL, NULL, &message, &repaired), HEARTH_OK);
    assert_false(repaired);
    assert_int_equal(message->call_count, calls);
    assert_string_equal(message->content != NULL ? message->content : "", content);
    hearth_message_unref(message);
    hearth_chat_stream_destroy(stream);
}

/* An agent that wants its last words in a form still calls its tools before. */
static void test_schema_beside_tools(void **state) {
    (void)state;
    static const char *const templates[] = {NULL, "llama3", thinking_tools};
    json_t *schema = /* with a rule that is called as one of the calls' might be */
        messages_json("{'type':'object','properties':{'n':{'type':'integer','minimum':3},"
                      "'calls':{'type':'object','properties':{'string':{'enum':['a','b']}}}},'required':['n']}");
    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++) {
        struct bench bench = bench_make(templates[i], "[{'role':'user','content':'Hi'}]");
        bench.request.tools = bench.tools;
        bench.request.json_schema = schema;
        struct hearth_chat_format *format = get(&bench);
        const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
        assert_true(!info->grammar_lazy && info->trigger_count == 0 && info->call_begin);
        assert_true(follows(format, "{\"n\": 5}", false));
        assert_true(follows(format, LS, false));
        assert_true(follows(format, LS "\n" NOW, false));
        assert_false(follows(format, "{\"n\": 2}", false));
        assert_true(follows(format, "{\"n\": 5, \"calls\": {\"string\": \"b\"}}", false));
        assert_false(follows(format, "{\"n\": 5, \"calls\": {\"string\": \"c\"}}", false));
        assert_false(follows(format, "Hello", true));
        assert_false(follows(format, "```", true));
        assert_false(follows(format, "", false));
        assert_false(follows(format, "\n\n\n\n\n\n\n\n\n\n", true));
        assert_false(follows(format, LS "\n{", true));
        assert_false(follows(format, "<tool_call>\n{\"name\": \"rm\"", true));
        expect_message(format, "{\"n\": 5}", "{\"n\": 5}", 0);
        expect_message(format, LS "\n" NOW, "", 2);
        if (templates[i] == thinking_tools) {
            assert_true(follows(format, "<think>\nHm.\n</think>\n\n" LS, false));
            assert_true(follows(format, "<think>\nHm.\n</think>\n\n{\"n\": 5}", false));
            expect_message(format, "<think>\nHm.\n</think>\n\n{\"n\": 5}", "{\"n\": 5}", 0);
        }
        hearth_chat_format_unref(format);
        bench.request.parallel_calls = false;
        format = get(&bench);
        assert_true(follows(format, LS, false));
        assert_true(follows(format, "{\"n\": 5}", false));
        hearth_chat_format_unref(format);
        bench.request.tool_choice = HEARTH_TOOLS_NONE;
        format = get(&bench);
        assert_true(follows(format, "{\"n\": 5}", false));
        assert_false(follows(format, "<to", true));
        hearth_chat_format_unref(format);
        bench_finish(&bench);
    }
    json_decref(schema);
}

static void test_schema_beside_tagged_tools(void **state) {
    (void)state;
    struct bench bench = bench_make(tagged_tools, "[{'role':'user','content':'Hi'}]");
    json_t *schema = messages_json("{'type':'object','properties':{'n':{'type':'integer'}},'required':['n']}");
    bench.request.tools = bench.tools;
    bench.request.json_schema = schema;
    struct hearth_chat_format *format = get(&bench);
    static const char call[] = "<tool_call>ls\n<arg_key>path</arg_key>\n<arg_value>/tmp</arg_value>\n</tool_call>";
    assert_true(follows(format, "{\"n\": 5}", false));
    assert_true(follows(format, call, false));
    assert_false(follows(format, "", false));
    assert_false(follows(format, "Hello", true));
    expect_message(format, "{\"n\": 5}", "{\"n\": 5}", 0);
    expect_message(format, call, "", 1);
    hearth_chat_format_unref(format);
    bench_finish(&bench);
    json_decref(schema);
}

static void test_tagged(void **state) {
    (void)state;
    struct bench bench = bench_make(tagged_tools, "[{'role':'user','content':'Hi'}]");
    assert_true(hearth_chat_abilities(bench.chat)->tools);
    bench.request.tools = bench.tools;
    struct hearth_chat_format *format = get(&bench);
    const struct hearth_chat_format_info *info = hearth_chat_format_info(format);
    assert_non_null(info->call_begin);
    hearth_chat_format_unref(format);
    bench_finish(&bench);
}

/* tool_choice none: no calls are read, none are forced. */
static void test_none(void **state) {
    (void)state;
    static const char *const templates[] = {NULL, thinking_tools};
    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++) {
        struct bench bench = bench_make(templates[i], "[{'role':'user','content':'Hi'}]");
        bench.request.tools = bench.tools;
        bench.request.tool_choice = HEARTH_TOOLS_NONE;
        struct hearth_chat_format *format = get(&bench);
        assert_null(hearth_chat_format_info(format)->grammar);
        assert_null(hearth_chat_format_info(format)->call_begin);
        hearth_chat_format_unref(format);
        bench_finish(&bench);
    }
}

/* ---- kept ones ---- */

static void test_kept(void **state) {
    (void)state;
    struct bench bench = bench_make(thinking_tools, "[{'role':'user','content':'Hi'},{'role':'user','content':'Ho'}]");
    bench.request.tools = bench.tools;
    struct hearth_chat_format *first = get(&bench);
    /* Other messages, and the same tools read again. */
    bench.request.message_count = 1;
    json_t *again = json_deep_copy(bench.tools);
    bench.request.tools = again;
    struct hearth_chat_format *second = get(&bench);
    assert_ptr_equal(first, second);
    bench.request.salt = (struct hearth_digest){1, 2}; /* another tenant makes its own */
    struct hearth_chat_format *theirs = get(&bench);
    assert_ptr_not_equal(theirs, first);
    hearth_chat_format_unref(theirs);
    bench.request.salt = (struct hearth_digest){0, 0};
    hearth_chat_format_unref(second);
    bench.request.tool_choice = HEARTH_TOOLS_REQUIRED;
    second = get(&bench);
    assert_ptr_not_equal(first, second);
    hearth_chat_format_unref(second);
    bench.request.tool_choice = HEARTH_TOOLS_AUTO;
    json_array_remove(again, 1);
    second = get(&bench);
    assert_ptr_not_equal(first, second);
    hearth_chat_format_unref(second);
    json_decref(again);
    /* Forgotten at last, and alive as long as somebody holds it. */
    bench.request.tools = NULL;
    for (int i = 0; i < 40; i++) {
        json_t *kwargs = json_pack("{s:i}", "n", i);
        bench.request.kwargs = kwargs;
        hearth_chat_format_unref(get(&bench));
        json_decref(kwargs);
    }
    bench.request.kwargs = NULL;
    bench.request.tools = bench.tools;
    second = get(&bench);
    assert_ptr_not_equal(first, second);
    assert_true(hearth_chat_format_info(first)->grammar_lazy);
    bench_finish(&bench);
    assert_string_equal(hearth_chat_format_info(first)->grammar, hearth_chat_format_info(second)->grammar);
    hearth_chat_format_unref(first);
    hearth_chat_format_unref(second);
}

static void test_continued(void **state) {
    (void)state;
    struct bench bench = bench_make(NULL, "[{'role':'user','content':'Hi'},{'role':'assistant','content':'Let me '}]");
    bench.request.continues = true;
    struct hearth_chat_format *first = get(&bench);
    assert_string_equal(hearth_chat_format_info(first)->generation_prompt, "<|im_start|>assistant\nLet me ");
    struct hearth_chat_format *second = get(&bench);
    assert_ptr_not_equal(first, second);
    hearth_chat_format_unref(second);
    hearth_chat_format_unref(first);
    bench.request.tools = bench.tools;
    bench.request.tool_choice = HEARTH_TOOLS_REQUIRED;
    first = get(&bench);
    assert_true(follows(first, "see.\n" LS, false));
    hearth_chat_format_unref(first);
    bench_finish(&bench);
}

/* ---- refusals ---- */

static void test_contradictions(void **state) {
    (void)state;
    struct bench bench = bench_make(NULL, "[{'role':'user','content':'Hi'}]");
    json_t *schema = messages_json("{'type':'integer'}");
    bench.request.grammar = "root ::= \"a\"";
    bench.request.tools = bench.tools;
    expect_refused(&bench, HEARTH_ERR_INVALID, "tools");
    bench.request.tool_choice = HEARTH_TOOLS_NONE;
    hearth_chat_format_unref(get(&bench));
    bench.request.json_schema = schema;
    expect_refused(&bench, HEARTH_ERR_INVALID, "schema");
    json_decref(schema);
    bench_finish(&bench);
}

static json_t *nested_schema(int depth) {
    json_t *schema = json_pack("{s:s}", "type", "string");
    for (int i = 0; i < depth; i++) {
        schema = json_pack("{s:s,s:{s:o}}", "type", "object", "properties", "a", schema);
    }
    return schema;
}

/* What would bring down or hold up the builder of grammars, as a schema and as the parameters of a tool. */
static void test_bad_schemas(void **state) {
    (void)state;
    static const struct {
        const char *schema, *words;
    } bad[] = {
        {"{'type':'weird'}", "weird"},
        {"{'type':5}", "type"},
        {"{'type':'string','maxLength':100000}", NULL}, /* a shorter one can be kept */
        {"{'type':'array','items':{'type':'integer'},'maxItems':100000}", NULL},
        {"{'type':'array','items':{'type':'integer'},'minItems':-1}", "minItems"},
        {"{'type':'integer','maximum':1e300}", "maximum"},
        {"{'$ref':'#/nowhere'}", "nowhere"},
        {"{'$ref':'http://x/y'}", "x/y"},
        {"{'$ref':'#/x/01','x':[{'type':'null'},{'type':'weird'}]}", "x/01"},
        {"{'$ref':'#/$defs/a','$defs':{'a':{'$ref':'#/$defs/a'}}}", "circle"},
        {"{'allOf':[{'$ref':'#/$defs/a'}],'$defs':{'a':{'$ref':'#/$defs/b'},'b':{'$ref':'#/$defs/a'}}}", "circle"},
        {"{'type':'object','properties':{'a':5}}", "schema must be an object"},
        {"{'enum':[]}", "enum"},
        {"{'type':'string','pattern':'^(a$'}", "pattern"},
    };
    struct bench bench = bench_make(thinking_tools, "[{'role':'user','content':'Hi'}]");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        json_t *schema = messages_json(bad[i].schema);
        bench.request.json_schema = schema;
        if (bad[i].words != NULL) {
            expect_refused(&bench, HEARTH_ERR_INVALID, bad[i].words);
        } else {
            hearth_chat_format_unref(get(&bench));
        }
        bench.request.json_schema = NULL;
        json_t *tools =
            json_pack("[{s:s,s:{s:s,s:O}}]", "type", "function", "function", "name", "broken", "parameters", schema);
        bench.request.tools = tools; /* some object, then */
        hearth_chat_format_unref(get(&bench));
        bench.request.tools = NULL;
        json_decref(tools);
        json_decref(schema);
    }
    bench_finish(&bench);
}

static void test_large_schemas(void **state) {
    (void)state;
    struct bench bench = bench_make(NULL, "[{'role':'user','content':'Hi'}]");
    json_t *deep = nested_schema(1000);
    bench.request.json_schema = deep;
    expect_refused(&bench, HEARTH_ERR_INVALID, "nested");
    json_decref(deep);
    deep = nested_schema(20);
    bench.request.json_schema = deep;
    hearth_chat_format_unref(get(&bench));
    json_decref(deep);
    /* Types in a list are copies, and copies of copies. */
    json_t *wide = json_pack("{s:s}", "type", "string");
    for (int i = 0; i < 30; i++) {
        wide = json_pack("{s:[s,s],s:{s:o}}", "type", "object", "null", "properties", "a", wide);
    }
    bench.request.json_schema = wide;
    expect_refused(&bench, HEARTH_ERR_INVALID, "large");
    json_decref(wide);
    wide = json_pack("{s:s,s:{}}", "type", "object", "properties");
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof(name), "p%d", i);
        json_object_set_new(json_object_get(wide, "properties"), name, json_pack("{s:s}", "type", "string"));
    }
    bench.request.json_schema = wide;
    expect_refused(&bench, HEARTH_ERR_INVALID, "properties");
    json_decref(wide);
    /* Names of a grammar's rules are made of those of properties. */
    char long_name[5001];
    memset(long_name, '_', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    wide = json_pack("{s:s,s:{s:{s:s}}}", "type", "object", "properties", long_name, "type", "string");
    bench.request.json_schema = wide;
    expect_refused(&bench, HEARTH_ERR_INVALID, "a name of more than 4096 bytes");
    json_decref(wide);
    bench_finish(&bench);
}

/* Each stands for two of the one before: parsers of calls would look for the types of the last in 2^60 places. */
static void test_doubling_choices(void **state) {
    (void)state;
    struct bench bench = bench_make(tagged_tools, "[{'role':'user','content':'Hi'}]");
    json_t *definitions = json_pack("{s:{s:s}}", "a0", "type", "integer");
    for (int i = 1; i <= 60; i++) {
        char name[16], ref[32];
        snprintf(name, sizeof(name), "a%d", i);
        snprintf(ref, sizeof(ref), "#/$defs/a%d", i - 1);
        json_object_set_new(definitions, name, json_pack("{s:[{s:s},{s:s}]}", "anyOf", "$ref", ref, "$ref", ref));
    }
    json_t *tools =
        json_pack("[{s:s,s:{s:s,s:{s:s,s:{s:{s:s}},s:o}}}]", "type", "function", "function", "name", "ls", "parameters",
                  "type", "object", "properties", "n", "$ref", "#/$defs/a60", "$defs", definitions);
    assert_non_null(tools);
    bench.request.tools = tools; /* its arguments are some object, then */
    struct hearth_chat_format *format = get(&bench);
    assert_non_null(hearth_chat_format_info(format)->call_begin);
    hearth_chat_format_unref(format);
    json_decref(tools);
    bench_finish(&bench);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_own_grammar),
        cmocka_unit_test(test_generic),
        cmocka_unit_test(test_generic_required),
        cmocka_unit_test(test_native),
        cmocka_unit_test(test_tagged),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_continued),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_bad_schemas),
        cmocka_unit_test(test_large_schemas),
        cmocka_unit_test(test_doubling_choices),
        cmocka_unit_test(test_schema_beside_tools),
        cmocka_unit_test(test_schema_beside_tagged_tools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
