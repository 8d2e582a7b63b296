/* A stage for tools that come and go: sim under templates that print tools before or behind the system text or not at
 * all, and a conversation as Claude Code has it, which counts what was computed. Included by one test each. */
#ifndef HEARTH_TESTS_SCENARIO_TOOLS_STAGE_H
#define HEARTH_TESTS_SCENARIO_TOOLS_STAGE_H

#include "support/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MESSAGES "/v1/messages"
#define REST                                                                                                          \
    "{%- for m in messages %}{%- if not (loop.first and m.role == 'system') %}"                                       \
    "{%- if m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + (m.content or '') }}"                            \
    "{%- for c in m.tool_calls or [] %}{{- '\\n<tool_call>\\n{\"name\": \"' + c.function.name + '\", \"arguments\": " \
    "' "                                                                                                              \
    "}}{{- c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"              \
    "{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"                                                    \
    "{%- elif m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + "                          \
    "'\\n</tool_response><|im_end|>\\n' }}"                                                                           \
    "{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endif %}"         \
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
#define SYSTEM "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}"
#define PRINT_TOOLS                                                                                           \
    "{%- if tools %}{{- '# Tools\\n<tools>\\n' }}{%- for t in tools %}{{- t | tojson + '\\n' }}{%- endfor %}" \
    "{{- '</tools>\\n' }}{%- endif %}"
#define BEGIN "{{- '<|im_start|>system\\n' }}"
#define END "{{- '<|im_end|>\\n' }}"

static const struct {
    const char *text; /* NULL: chatml, which knows no tools */
    bool native;
} templates[] = {{NULL, false}, {BEGIN PRINT_TOOLS SYSTEM END REST, true}, {BEGIN SYSTEM PRINT_TOOLS END REST, true}};

#define TEMPLATES (sizeof templates / sizeof templates[0])

static struct stage stage;

/* The script, a JSON line each: `last` part of the last message, the reply's text. */
struct answer {
    const char *last, *reply;
};

static void open_stage(size_t template, enum hearth_engine_class memory_class, const struct answer *answers,
                       size_t count) {
    struct stage_options options;
    struct hearth_buf script = {0};
    for (size_t i = 0; i < count; i++) {
        json_t *line = json_pack("{s:{s:s}, s:s, s:i, s:b}", "when", "last", answers[i].last, "reply", answers[i].reply,
                                 "times", 0, "bytes", 1);
        char *text = json_dumps(line, 0);
        assert_true(hearth_buf_text(&script, text) && hearth_buf_text(&script, "\n"));
        free(text);
        json_decref(line);
    }
    stage_options_default(&options);
    options.sim.ctx_tokens = 16384;
    options.sim.memory_class = memory_class;
    options.script = count > 0 ? (const char *)script.data : NULL;
    options.chat_template = templates[template].text;
    stage_open(&stage, &options);
    hearth_buf_finish(&script);
    json_t *props = stage_want(&stage, "GET", "/props", NULL, 200);
    assert_int_equal(json_is_true(json_at(props, "chat_template_caps.supports_tools")), templates[template].native);
    json_decref(props);
}

/* ---- a conversation as Claude Code has it ---- */

struct talk {
    json_t *tools, *messages;
    json_int_t state;           /* tokens whose state is there: of the last prompt and its reply */
    json_int_t prompt;          /* of the last one */
    json_int_t computed, fresh; /* sums over all prompts but the first */
};

static json_t *tool(const char *name, bool deferred) {
    char description[400];
    snprintf(description, sizeof description,
             "%s does what its name says. It was described with so many words that to compute them twice is dear, and "
             "with words that no other tool has: %s %s %s.",
             name, name, name, name);
    json_t *made = json_pack("{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s], s:b}}", "name", name, "description",
                             description, "input_schema", "type", "object", "properties", name, "type", "string",
                             "description", "What it is done to", "required", name, "additionalProperties", 0);
    if (deferred) {
        json_object_set_new(made, "defer_loading", json_true());
    }
    return made;
}

static void talk_begin(struct talk *talk) {
    *talk = (struct talk){.tools = json_array(), .messages = json_array()};
    json_array_append_new(talk->tools, tool("Bash", false));
    json_array_append_new(talk->tools, tool("Edit", false));
    json_array_append_new(talk->tools, tool("ToolSearch", false));
    json_array_append_new(talk->tools, tool("DeferredToolPlaceholder", true));
    json_array_append_new(talk->tools, tool("Write", false));
}

static void talk_end(struct talk *talk) {
    json_decref(talk->tools);
    json_decref(talk->messages);
}

static json_t *talk_body(const struct talk *talk) {
    return json_pack("{s:i, s:s, s:O, s:O}", "max_tokens", 300, "system", "You work with tools, and say so at length.",
                     "tools", talk->tools, "messages", talk->messages);
}

static json_t *send(json_t *body, int want) {
    char *text = json_dumps(body, 0);
    json_t *answer = stage_want(&stage, "POST", MESSAGES, text, want);
    free(text);
    json_decref(body);
    return answer;
}

/* Sends the conversation, adds the reply to it and counts. */
static json_t *talk_on(struct talk *talk) {
    json_t *answer = send(talk_body(talk), 200);
    const json_int_t cached = json_num(answer, "usage.cache_read_input_tokens");
    const json_int_t prompt =
        cached + json_num(answer, "usage.input_tokens") + json_num(answer, "usage.cache_creation_input_tokens");
    if (talk->state > 0) {
        talk->computed += prompt - cached;
        talk->fresh += prompt - talk->state;
    }
    talk->prompt = prompt;
    talk->state = prompt + json_num(answer, "usage.output_tokens") - 1;
    json_array_append_new(talk->messages,
                          json_pack("{s:s, s:O}", "role", "assistant", "content", json_at(answer, "content")));
    return answer;
}

static void talk_say(struct talk *talk, const char *text) {
    json_array_append_new(talk->messages, json_pack("{s:s, s:s}", "role", "user", "content", text));
    json_decref(talk_on(talk));
}

static const struct answer searches[] = {
    {"I want one", "I look for it.\n<tool_call>\n{\"name\": \"ToolSearch\", \"arguments\": {\"ToolSearch\": \"one\"}}"
                   "\n</tool_call>"},
    {"I want two", "<tool_call>\n{\"name\": \"ToolSearch\", \"arguments\": {\"ToolSearch\":   \"two\"}}\n</tool_call>"},
    {"I want none", "It is done."},
    {"<functions>\n<function>{\"description\":\"WebFetch does",
     "<tool_call>\n{\"name\": \"WebFetch\", \"arguments\": {\"WebFetch\":  \"a page\"}}\n</tool_call>"},
    {"NotebookEdit\":{\"description\":\"What it is done to\",\"type\":\"string\"}},\"required\":[\"NotebookEdit\"],"
     "\"type\":\"object\"}}</function>\n<function>{\"description\":\"Cron does",
     "I have them."},
    {"It says so", "<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"Bash\": \"ls\"}}\n</tool_call>"},
    {"came later", "<tool_call>\n{\"name\": \"Late\", \"arguments\": {\"Late\": \"x\"}}\n</tool_call>"},
};

static json_int_t count(json_t *body) {
    char *text = json_dumps(body, 0);
    json_t *answer = stage_want(&stage, "POST", "/v1/messages/count_tokens", text, 200);
    const json_int_t tokens = json_num(answer, "input_tokens");
    json_decref(answer);
    json_decref(body);
    free(text);
    assert_true(tokens > 0);
    return tokens;
}

#define CHANGE(kind, tool) "{\"role\":\"system\",\"content\":[{\"type\":\"tool_" kind "\",\"tool\":" tool "}]}"
#define REFERENCE(name) "{\"type\":\"tool_reference\",\"name\":\"" name "\"}"

#endif
