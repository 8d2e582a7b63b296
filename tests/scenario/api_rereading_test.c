/* Replies of this server come back in a request that wants something else of its own reply: another tool choice, a
 * schema, no thinking, other template arguments. What such a request computes is what is new in it and what it changes
 * in the prompt's text. */
#include "support/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOOLS                                                                                                        \
    "[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"description\":\"Looks.\",\"parameters\":{\"type\":"   \
    "\"object\",\"properties\":{\"q\":{\"type\":\"integer\"},\"in\":{\"type\":\"string\"}}}}},"                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"patch\",\"description\":\"Patches.\",\"parameters\":{\"type\":" \
    "\"object\",\"properties\":{\"file\":{\"type\":\"string\"}}}}}]"

#define OTHER_TOOLS                                                                                                 \
    "[{\"type\":\"function\",\"function\":{\"name\":\"look\",\"description\":\"Looks elsewhere.\",\"parameters\":{" \
    "\"type\":\"object\",\"properties\":{\"q\":{\"type\":\"integer\"},\"in\":{\"type\":\"string\"}}}}}]"

/* An argument and the tools in front; calls print their arguments again, and thinking where there is some, or what
 * stands for it; the switch shows at the end. */
#define TEMPLATE(without_thinking)                                                                                   \
    "{{- mood -}}"                                                                                                   \
    "{%- if tools -%}{{- '<|im_start|>system\\n<tools>' -}}{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}" \
    "{%- endfor -%}{{- '\\n</tools><|im_end|>\\n' -}}{%- endif -%}"                                                  \
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' -}}"                                   \
    "{%- if message.reasoning_content -%}{{- '<think>\\n' + message.reasoning_content.strip('\\n') + "               \
    "'\\n</think>\\n\\n' -}}{%- elif message.role == 'assistant' -%}{{- '" without_thinking "' -}}{%- endif -%}"     \
    "{%- if message.content -%}{{- message.content -}}{%- endif -%}"                                                 \
    "{%- for call in message.tool_calls or [] -%}"                                                                   \
    "{%- if not loop.first or message.content -%}{{- '\\n' -}}{%- endif -%}"                                         \
    "{{- '<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' -}}"                             \
    "{{- call.function.arguments | tojson -}}"                                                                       \
    "{{- '}\\n</tool_call>' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endfor -%}"                                  \
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"                                             \
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}"        \
    "{%- endif -%}{%- endif -%}"
static const char native[] = TEMPLATE(""), switched[] = TEMPLATE("<think>\\n\\n</think>\\n\\n");

/* Calls, spaced as no template prints them. */
#define CALL                                                                                       \
    "<tool_call>\\n{\\\"name\\\":\\\"look\\\",\\\"arguments\\\":{\\\"q\\\":1,   \\\"in\\\":\\\"a " \
    "box\\\"}}\\n</tool_call>"
static const char script[] =
    "{\"when\":{\"last\":\"Look\"},\"times\":0,\"bytes\":true,\"reply\":\"" CALL "\"}\n"
    "{\"when\":{\"last\":\"Think\"},\"times\":0,\"bytes\":true,\"reply\":\""
    "<think>\\nWhere is it?\\n</think>\\n\\n" CALL "\"}\n"
    "{\"when\":{\"last\":\"Tell\"},\"times\":0,\"bytes\":true,\"reply\":\"<think>Where is it?</think>It is there.\"}\n"
    "{\"when\":{\"last\":\"It is in the\"},\"times\":0,\"bytes\":true,\"reply\":\" attic.\"}\n"
    "{\"when\":{\"last\":\"it is there\"},\"times\":0,\"bytes\":true,\"reply\":\"Good.\"}\n";

static json_t *ask(const struct stage *stage, json_t *messages, const char *tools, const char *more) {
    char *said = json_dumps(messages, JSON_COMPACT);
    const size_t cap = strlen(said) + strlen(tools) + strlen(more) + 100;
    char *body = malloc(cap);
    assert_non_null(body);
    snprintf(body, cap, "{\"messages\":%s,\"tools\":%s,\"max_tokens\":150%s}", said, tools, more);
    json_t *answer = stage_want(stage, "POST", "/v1/chat/completions", body, 200);
    free(body);
    free(said);
    return answer;
}

static json_t *begin(size_t i, const char *question) {
    char system[80];
    snprintf(system, sizeof system, "%c: This is conversation number %zu.", (char)('a' + i), 100 + i);
    return json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "system", "content", system, "role", "user", "content",
                     question);
}

/* As agents send it: without the thinking, arguments printed anew. */
static void go_on(json_t *messages, json_t *answer) {
    const char *id = json_str(answer, "choices.0.message.tool_calls.0.id");
    const char *content = json_str(answer, "choices.0.message.content");
    if (content[0] != '\0') {
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant", "content", content));
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", "No, it is there"));
        return;
    }
    assert_string_equal(json_str(answer, "choices.0.message.tool_calls.0.function.name"), "look");
    json_array_append_new(messages, json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:s}}]}", "role", "assistant",
                                              "content", "", "tool_calls", "id", id, "type", "function", "function",
                                              "name", "look", "arguments", "{\"in\": \"a box\", \"q\": 1}"));
    json_array_append_new(messages,
                          json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", id, "content", "it is there"));
}

/* Tokens whose state is there when a reply has ended: its last one has never been computed. */
static json_int_t state_behind(json_t *answer) {
    return json_num(answer, "usage.prompt_tokens") + json_num(answer, "usage.completion_tokens") - 1;
}

static void assert_only_new(json_t *answer, json_int_t before) {
    assert_int_equal(json_num(answer, "hearth.computed"), json_num(answer, "usage.prompt_tokens") - before);
}

static void open_with(struct stage *stage, enum hearth_engine_class memory_class, const char *chat_template,
                      bool keep_thinking) {
    struct stage_options options;
    stage_options_default(&options);
    options.sim.memory_class = memory_class;
    options.script = script;
    options.chat_template = chat_template;
    options.api.keep_thinking = keep_thinking;
    stage_open(stage, &options);
}

static void on_all_classes(void (*test)(enum hearth_engine_class memory_class)) {
    for (enum hearth_engine_class each = HEARTH_ENGINE_PAGES; each <= HEARTH_ENGINE_OPAQUE; each++) {
        test(each);
    }
}

/* ---- what a request wants of its own reply ---- */

static const char *const wishes[] = {
    "",
    ",\"tool_choice\":\"required\"",
    ",\"tool_choice\":\"none\"",
    ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"patch\"}}",
    ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{\"type\":"
    "\"function\","
    "\"function\":{\"name\":\"patch\"}}]}}",
    ",\"parallel_tool_calls\":false",
    ",\"response_format\":{\"type\":\"json_object\"}",
    ",\"tool_choice\":\"none\",\"response_format\":{\"type\":\"json_object\"}",
    ",\"tool_choice\":\"none\",\"grammar\":\"root ::= \\\"x\\\"\"",
    ",\"reasoning_format\":\"none\"",
    ",\"reasoning_format\":\"deepseek-legacy\"",
    ",\"reasoning_effort\":\"high\"",
    ",\"chat_template_kwargs\":{\"colour\":\"red\"}",
    ",\"enable_thinking\":false",
    ",\"n\":2",
    ",\"max_tokens\":1",
};

/* `first`: how the reply that comes back was asked for. */
static void vary(enum hearth_engine_class memory_class, const char *chat_template, const char *question,
                 const char *first) {
    struct stage stage;
    open_with(&stage, memory_class, chat_template, false);
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        json_t *messages = begin(i, question);
        json_t *before = ask(&stage, messages, TOOLS, first);
        go_on(messages, before);
        json_t *after = ask(&stage, messages, TOOLS, wishes[i]);
        assert_only_new(after, state_behind(before));
        json_decref(after);
        json_decref(before);
        json_decref(messages);
    }
    stage_close(&stage);
}

static void vary_all(enum hearth_engine_class memory_class) {
    vary(memory_class, native, "Think about it.", "");
    vary(memory_class, native, "Tell me.", "");
    vary(memory_class, native, "Look for it.", ",\"tool_choice\":\"required\"");
    vary(memory_class, switched, "Look for it.", ",\"enable_thinking\":false");
    vary(memory_class, NULL, "Look for it.", "");
}

static void earlier_replies_are_known(void **state) {
    (void)state;
    on_all_classes(vary_all);
}

/* A reply that is begun by the client: what it goes on from is known, and so is the whole of it afterwards. */
static void begin_a_reply(enum hearth_engine_class memory_class) {
    struct stage stage;
    open_with(&stage, memory_class, switched, false);
    json_t *messages = begin(0, "Think about it.");
    json_t *first = ask(&stage, messages, TOOLS, "");
    go_on(messages, first);
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant", "content", "It is in the"));
    json_t *begun = ask(&stage, messages, TOOLS, "");
    assert_only_new(begun, state_behind(first));
    char whole[600];
    snprintf(whole, sizeof whole, "It is in the%s", json_str(begun, "choices.0.message.content"));
    json_object_set_new(json_array_get(messages, json_array_size(messages) - 1), "content", json_string(whole));
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", "And where is that?"));
    json_t *after = ask(&stage, messages, TOOLS, ",\"tool_choice\":\"none\"");
    assert_only_new(after, state_behind(begun));
    json_decref(after);
    json_decref(begun);
    json_decref(first);
    json_decref(messages);
    stage_close(&stage);
}

static void a_reply_that_was_begun_is_known(void **state) {
    (void)state;
    on_all_classes(begin_a_reply);
}

/* ---- arguments that are printed ---- */

/* What stands behind the argument is computed, for it is another prompt; back under the first one, the reply is there
 * as it was sampled. */
static void change_an_argument(enum hearth_engine_class memory_class) {
    struct stage stage;
    open_with(&stage, memory_class, native, false);
    json_t *messages = begin(0, "Think about it.");
    json_t *first = ask(&stage, messages, TOOLS, ",\"chat_template_kwargs\":{\"mood\":\"glad\"}");
    go_on(messages, first);
    json_t *other = ask(&stage, messages, TOOLS, ",\"chat_template_kwargs\":{\"mood\":\"wild\"}");
    assert_int_equal(json_num(other, "hearth.computed"), json_num(other, "usage.prompt_tokens"));
    assert_string_equal(json_str(other, "hearth.divergence.cause"), "template_arguments_changed");
    json_t *back = ask(&stage, messages, TOOLS, ",\"chat_template_kwargs\":{\"mood\":\"glad\"}");
    assert_only_new(back, state_behind(first));
    json_decref(back);
    json_decref(other);
    json_decref(first);
    json_decref(messages);
    stage_close(&stage);
}

static void a_printed_argument_costs_what_it_changes(void **state) {
    (void)state;
    on_all_classes(change_an_argument);
}

/* An argument that the template does not look at is no part of the request: what has changed is the question. */
static void an_argument_that_nobody_reads_is_no_change(void **state) {
    struct stage stage;
    (void)state;
    open_with(&stage, HEARTH_ENGINE_PAGES, native, false);
    json_t *one = begin(0, "Look for it."), *two = begin(0, "Look for that.");
    json_decref(ask(&stage, one, TOOLS, ",\"reasoning_effort\":\"low\""));
    json_t *edited = ask(&stage, two, TOOLS, ",\"reasoning_effort\":\"high\"");
    assert_string_equal(json_str(edited, "hearth.divergence.field"), "content");
    assert_string_equal(json_str(edited, "hearth.divergence.cause"), "other_conversation");
    json_decref(edited);
    json_decref(two);
    json_decref(one);
    stage_close(&stage);
}

/* The same tools, their members in another order, as a client may write them after a restart of its own. */
static void turn_around(enum hearth_engine_class memory_class) {
    static const char turned[] =
        "[{\"function\":{\"parameters\":{\"properties\":{\"in\":{\"type\":\"string\"},\"q\":{\"type\":\"integer\"}},"
        "\"type\":\"object\"},\"description\":\"Looks.\",\"name\":\"look\"},\"type\":\"function\"},"
        "{\"type\":\"function\",\"function\":{\"description\":\"Patches.\",\"name\":\"patch\",\"parameters\":{"
        "\"properties\":{\"file\":{\"type\":\"string\"}},\"type\":\"object\"}}}]";
    static const char *const templates[] = {native, NULL};
    for (size_t i = 0; i < 2; i++) {
        struct stage stage;
        open_with(&stage, memory_class, templates[i], false);
        json_t *messages = begin(i, "Look for it.");
        json_t *first = ask(&stage, messages, TOOLS, "");
        go_on(messages, first);
        json_t *second =
            ask(&stage, messages, turned, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"look\"}}");
        assert_only_new(second, state_behind(first));
        json_decref(second);
        json_decref(first);
        json_decref(messages);
        stage_close(&stage);
    }
}

static void equal_tools_are_printed_as_before(void **state) {
    (void)state;
    on_all_classes(turn_around);
}

/* A path that is kept as it was sampled has the tools of its time: not under others. */
static void change_tools(enum hearth_engine_class memory_class) {
    struct stage stage;
    open_with(&stage, memory_class, native, true);
    json_t *messages = begin(0, "Think about it.");
    json_t *first = ask(&stage, messages, TOOLS, "");
    go_on(messages, first);
    json_t *kept = ask(&stage, messages, TOOLS, ",\"reasoning_effort\":\"low\",\"tool_choice\":\"none\"");
    assert_only_new(kept, state_behind(first));
    json_t *other = ask(&stage, messages, OTHER_TOOLS, "");
    assert_true(json_num(other, "usage.prompt_tokens") < json_num(kept, "usage.prompt_tokens") - 50);
    assert_string_equal(json_str(other, "hearth.divergence.cause"), "tools_changed");
    assert_non_null(strstr(json_str(other, "hearth.divergence.after"), "elsewhere"));
    json_decref(other);
    json_decref(kept);
    json_decref(first);
    json_decref(messages);
    stage_close(&stage);
}

static void kept_thinking_keeps_no_other_tools(void **state) {
    (void)state;
    on_all_classes(change_tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(earlier_replies_are_known),
        cmocka_unit_test(a_reply_that_was_begun_is_known),
        cmocka_unit_test(a_printed_argument_costs_what_it_changes),
        cmocka_unit_test(an_argument_that_nobody_reads_is_no_change),
        cmocka_unit_test(equal_tools_are_printed_as_before),
        cmocka_unit_test(kept_thinking_keeps_no_other_tools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
