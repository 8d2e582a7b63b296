/* A stage for OpenAI's Responses and Conversations: sim with a template that knows thinking and tools, and replies from
 * a script. Included by one test each. */
#ifndef HEARTH_TESTS_SCENARIO_RESPONSES_STAGE_H
#define HEARTH_TESTS_SCENARIO_RESPONSES_STAGE_H

#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RESPONSES "/v1/responses"
#define LOOK                                                                                             \
    "{\"type\":\"function\",\"name\":\"look\",\"description\":null,\"parameters\":{\"type\":\"object\"," \
    "\"properties\":{\"q\":{\"type\":\"integer\"}}},\"strict\":false}"
#define PATCH "{\"type\":\"custom\",\"name\":\"patch\",\"description\":\"p\"}"
#define TOOLS "\"tools\":[{\"type\":\"web_search\"}," LOOK "," PATCH "]"
#define LINE(last, reply) "{\"when\":{\"last\":\"" last "\"},\"times\":0,\"reply\":\"" reply "\"}\n"

/* Thinking that is longer, in sim's tokens, than a summary may be. */
#define THOUGHT "qzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqzqz"
#define THOUGHTS THOUGHT THOUGHT THOUGHT THOUGHT THOUGHT THOUGHT THOUGHT THOUGHT
#define THINKER                                                  \
    "{\"when\":{\"last\":\"summary of our\",\"system\":\"Think " \
    "long\"},\"times\":0,\"reply\":\"<think>\\n" THOUGHTS THOUGHTS "\"}\n"

static const char script[] = THINKER LINE("think", "<think>\\nThree and four.\\n</think>\\n\\nSeven.")
    LINE("work",
         "<think>\\nhm\\n</think>\\n\\nLet me.\\n<tool_call>\\n{\\\"name\\\": \\\"patch\\\", \\\"arguments\\\": "
         "{\\\"input\\\": \\\"a\\\\nb\\\"}}\\n</tool_call>\\n<tool_call>\\n{\\\"name\\\": \\\"look\\\", "
         "\\\"arguments\\\": {\\\"q\\\": 1}}\\n</tool_call>") LINE("summary of our", "Ada likes tea.")
        LINE("say", "Well said.");

/* Enough of a template with thinking and tools. */
static const char template_text[] =
    "{%- if tools -%}{{- '<|im_start|>system\\n<tools>' -}}{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}"
    "{%- endfor -%}{{- '\\n</tools><|im_end|>\\n' -}}{%- endif -%}"
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.reasoning_content -%}{{- '<think>\\n' + message.reasoning_content.strip('\\n') + "
    "'\\n</think>\\n\\n' -}}"
    "{%- endif -%}{%- if message.content -%}{{- message.content -}}{%- endif -%}"
    "{%- for call in message.tool_calls or [] -%}{%- if not loop.first or message.content -%}{{- '\\n' -}}{%- endif -%}"
    "{{- '<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' -}}"
    "{{- call.function.arguments if call.function.arguments is string else (call.function.arguments | tojson) -}}"
    "{{- '}\\n</tool_call>' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif "
    "-%}"
    "{%- endif -%}";

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    options.sim.ctx_tokens = 4096;
    options.script = script;
    options.chat_template = template_text;
    stage_open(&stage, &options);
    return 0;
}

static json_t *get(const char *format, const char *id, int want) {
    char path[256];
    snprintf(path, sizeof path, format, id);
    return call("GET", path, NULL, want);
}

/* A body with an id in it. */
static const char *with(const char *format, const char *id) {
    static char body[4096];
    const int len = snprintf(body, sizeof body, format, id);
    assert_true(len > 0 && (size_t)len < sizeof body);
    return body;
}

#endif
