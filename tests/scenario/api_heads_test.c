/* Prompts of one client that share only what stands in front: a title, a sub-agent, a compaction have the system text
 * of the main conversation, and other tools or none. On every memory class they find it, the first time already. */
#include "support/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOOLS(word)                                                                                                 \
    "[{\"type\":\"function\",\"function\":{\"name\":\"" word "\",\"description\":\"Looks for things that somebody " \
    "has put somewhere, in boxes and behind doors, and says "                                                       \
    "where.\",\"parameters\":{\"type\":\"object\",\"properties\""                                                   \
    ":{\"q\":{\"type\":\"integer\"},\"in\":{\"type\":\"string\"}}}}},"                                              \
    "{\"type\":\"function\",\"function\":{\"name\":\"patch_" word                                                   \
    "\",\"description\":\"Patches a file with lines that "                                                          \
    "are given in full.\",\"parameters\":{\"type\":\"object\",\"properties\":{\"file\":{\"type\":\"string\"}}}}}]"

#define TOOL_TEXT                                                                                               \
    "{%- if tools -%}{{- '\\n\\n# Tools\\n<tools>' -}}{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}" \
    "{%- endfor -%}{{- '\\n</tools>' -}}{%- endif -%}"
#define CALLS                                                                                               \
    "{%- for call in message.tool_calls or [] -%}{{- '<tool_call>\\n{\"name\": \"' + call.function.name + " \
    "'\", \"arguments\": ' -}}{{- call.function.arguments | tojson -}}{{- '}\\n</tool_call>' -}}{%- endfor -%}"
#define REST                                                                                                      \
    "{{- '<|im_end|>\\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- " \
    "endif -%}"

/* Tools behind the first system text, in front of it, and in the question. */
static const char behind[] = "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' -}}"
                             "{{- message.content -}}" CALLS "{%- if loop.first -%}" TOOL_TEXT "{%- endif -%}" REST;
static const char front[] =
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role -}}{%- if loop.first -%}" TOOL_TEXT
    "{%- endif -%}{{- '\\n\\n' + message.content -}}" CALLS REST;
static const char question[] = "{%- set ns = namespace(asked=false) -%}{%- for message in messages -%}{{- "
                               "'<|im_start|>' + message.role + '\\n' -}}"
                               "{%- if message.role == 'user' and not ns.asked -%}{%- set ns.asked = true -%}" TOOL_TEXT
                               "{{- '\\n\\n' -}}{%- endif "
                               "-%}{{- message.content -}}" CALLS REST;

static const char *const texts[] = {
    "You are a helper who looks for things. You look in every box and behind every door, you say what you have found "
    "and "
    "where, and you never say that something is there when it is not. You write in short sentences.",
    "Permissions: what may be read may be read without asking. What is to be written is shown first, as a patch, and "
    "it "
    "is written when somebody has said yes. Nothing is ever deleted, and nothing is sent anywhere.",
    "The environment is a house with nine rooms. It is night, the lamps are on, and all the doors but one are shut. "
    "Nobody is at home, and the keys hang on the board beside the door.",
};

static json_t *messages_of(size_t systems, const char *role, const char *asked) {
    json_t *messages = json_array();
    for (size_t i = 0; i < systems; i++) {
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", i == 0 ? "system" : role, "content", texts[i]));
    }
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", asked));
    return messages;
}

/* Computes a prompt; returns how many tokens of it were computed. */
static json_int_t compute(const struct stage *stage, size_t systems, const char *tools, const char *asked) {
    json_t *body = json_pack("{s:o, s:i}", "messages", messages_of(systems, "developer", asked), "max_tokens", 4);
    if (tools != NULL) {
        json_object_set_new(body, "tools", json_loads(tools, 0, NULL));
    }
    char *text = json_dumps(body, 0);
    json_t *answer = stage_want(stage, "POST", "/v1/chat/completions", text, 200);
    const json_int_t computed = json_num(answer, "hearth.computed");
    json_decref(answer);
    free(text);
    json_decref(body);
    return computed;
}

#define HEADER_TOKENS 6 /* the end of a text's last word, and what stands between two messages, in sim's tokens */

static const struct side {
    size_t systems;
    const char *tools;
    bool all_tools; /* what is shared of a prompt with tools; else at the most what is shared of one without */
} sides[] = {
    {1, NULL, true},           /* a title: the system text alone */
    {1, TOOLS("seek"), false}, /* a sub-agent with tools of its own: they begin alike, as a template's words do */
    {2, TOOLS("look"), true},  /* one with the same tools and other instructions behind them */
    {3, TOOLS("look"), true},  /* another conversation */
    {3, NULL, true},           /* a compaction */
};
enum { SIDES = sizeof sides / sizeof sides[0] };

/* What a side prompt computes beside a main conversation, in a server of its own: the first one that shares so much. */
static json_int_t compute_side(enum hearth_memory_class memory_class, const char *chat_template, size_t side,
                               bool tools) {
    struct stage_options options;
    struct stage stage;
    stage_options_default(&options);
    options.sim.memory_class = memory_class;
    options.chat_template = chat_template;
    stage_open(&stage, &options);
    (void)compute(&stage, 3, tools ? TOOLS("look") : NULL, "Where are the spoons?");
    const json_int_t computed = compute(&stage, sides[side].systems, sides[side].tools, "What is it about, in a word?");
    stage_close(&stage);
    return computed;
}

/* Any position can be resumed where state is in pages: what is computed there is what is new. */
static void what_stands_in_front_is_found(void **state) {
    static const char *const templates[] = {behind, front, question, NULL};
    (void)state;
    for (size_t t = 0; t < sizeof templates / sizeof templates[0]; t++) {
        for (size_t i = 0; i < SIDES; i++) {
            const json_int_t new_tokens = compute_side(HEARTH_MEMORY_PAGES, templates[t], i, sides[i].all_tools);
            for (enum hearth_memory_class each = HEARTH_MEMORY_PAGES_SNAPSHOT; each <= HEARTH_MEMORY_OPAQUE; each++) {
                const json_int_t computed = compute_side(each, templates[t], i, true);
                assert_in_range(computed, 1, new_tokens + HEADER_TOKENS);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_stands_in_front_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
