/* Tools that come to a conversation late, over Messages: found by a search (tool_reference), added and removed by
 * system messages. What comes costs its own text, under templates that print tools before or behind the system text or
 * not at all, on every memory class; and a reply may call it from there on. */
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

static void open_stage(size_t template, enum hearth_memory_class memory_class, const struct answer *answers,
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

/* The result of the last reply's call: references to tools, which are from now on in the list, in its alphabet. */
static void add_references(struct talk *talk, const char *const *names, bool sorted) {
    json_t *last = json_array_get(talk->messages, json_array_size(talk->messages) - 1);
    json_t *blocks = json_at(last, "content"), *references = json_array();
    json_t *call = json_array_get(blocks, json_array_size(blocks) - 1);
    assert_string_equal(json_str(call, "type"), "tool_use");
    for (size_t i = 0; names[i] != NULL; i++) {
        size_t at = 0;
        while (sorted && at < json_array_size(talk->tools) &&
               strcmp(json_str(json_array_get(talk->tools, at), "name"), names[i]) < 0) {
            at++;
        }
        json_array_insert_new(talk->tools, at, tool(names[i], true));
        json_array_append_new(references, json_pack("{s:s, s:s}", "type", "tool_reference", "tool_name", names[i]));
    }
    json_array_append_new(talk->messages,
                          json_pack("{s:s, s:[{s:s, s:O, s:o}]}", "role", "user", "content", "type", "tool_result",
                                    "tool_use_id", json_at(call, "id"), "content", references));
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

static void load_and_call(size_t template, enum hearth_memory_class memory_class) {
    static const char *const fetch[] = {"WebFetch", NULL}, *const two[] = {"NotebookEdit", "Cron", NULL};
    struct talk talk;
    open_stage(template, memory_class, searches, sizeof searches / sizeof searches[0]);
    talk_begin(&talk);
    talk_say(&talk, "I want one of them");
    const json_int_t head = talk.prompt;
    add_references(&talk, fetch, true);
    json_t *answer = talk_on(&talk);
    assert_string_equal(json_str(answer, "content.0.name"), "WebFetch"); /* which it now knows */
    json_decref(answer);
    json_t *result = json_pack("[{s:s, s:O, s:s}]", "type", "tool_result", "tool_use_id",
                               json_at(json_array_get(talk.messages, 3), "content.0.id"), "content", "It says so");
    json_array_append_new(talk.messages, json_pack("{s:s, s:o}", "role", "user", "content", result));
    json_decref(talk_on(&talk));
    result = json_pack("[{s:s, s:O, s:s}, {s:s, s:s}]", "type", "tool_result", "tool_use_id",
                       json_at(json_array_get(talk.messages, 5), "content.0.id"), "content", "files", "type", "text",
                       "text", "I want two more");
    json_array_append_new(talk.messages, json_pack("{s:s, s:o}", "role", "user", "content", result));
    json_decref(talk_on(&talk));
    add_references(&talk, two, true);
    json_decref(talk_on(&talk));
    talk_say(&talk, "I want none");
    assert_int_equal(talk.computed, talk.fresh);
    assert_true(talk.fresh > 3 * 80 && head > 4 * 80); /* three definitions, and four in front */
    talk_end(&talk);
    stage_close(&stage);
}

static void a_load_computes_what_it_brings(void **state) {
    (void)state;
    for (size_t i = 0; i < TEMPLATES; i++) {
        load_and_call(i, HEARTH_MEMORY_PAGES);
        load_and_call(i, HEARTH_MEMORY_PAGES_SNAPSHOT);
        load_and_call(i, HEARTH_MEMORY_SNAPSHOT);
    }
}

/* ---- what may be called ---- */

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

static json_t *asking(json_t *tools, const char *messages, const char *choice) {
    json_t *parsed = json_loads(messages, 0, NULL), *body;
    assert_non_null(parsed);
    body = json_pack("{s:i, s:o, s:o}", "max_tokens", 400, "tools", tools, "messages", parsed);
    if (choice != NULL) {
        json_object_set_new(body, "tool_choice", json_loads(choice, 0, NULL));
    }
    return body;
}

#define QUESTION "{\"role\":\"user\",\"content\":\"Do something\"}"
#define LOADED(name)                                                                                            \
    "{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"toolu_1\",\"name\":\"ToolSearch\","   \
    "\"input\":"                                                                                                \
    "{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"toolu_1\",\"content\":[" \
    "{\"type\":\"tool_reference\",\"tool_name\":\"" name "\"}]}]}"
#define CHANGE(kind, tool) "{\"role\":\"system\",\"content\":[{\"type\":\"tool_" kind "\",\"tool\":" tool "}]}"
#define REFERENCE(name) "{\"type\":\"tool_reference\",\"name\":\"" name "\"}"
#define DEFINED(name)                                                                                           \
    "{\"type\":\"tool_definition\",\"definition\":{\"name\":\"" name "\",\"description\":\"New here\","         \
    "\"input_schema\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]," \
    "\"additionalProperties\":false}}}"
#define ANY "{\"type\":\"any\",\"disable_parallel_tool_use\":true}"
#define ONE(name) "{\"type\":\"tool\",\"name\":\"" name "\"}"

static json_t *bash_and_deferred(void) {
    return json_pack("[o, o]", tool("Bash", false), tool("WebFetch", true));
}

/* sim writes what the grammar lets it write: with the generic format, where a call must come first, a call. */
static void a_forced_call_is_to_what_is_known(void **state) {
    static const struct {
        const char *messages, *choice, *wants; /* wants: NULL: either */
    } cases[] = {
        {"[" QUESTION "]", ANY, "Bash"},
        {"[" QUESTION "]", ONE("WebFetch"), "WebFetch"},
        {"[" QUESTION "," LOADED("WebFetch") "]", ONE("WebFetch"), "WebFetch"},
        {"[" QUESTION "," LOADED("WebFetch") "]", ONE("Bash"), "Bash"},
        {"[" QUESTION "," LOADED("WebFetch") "," CHANGE("removal", REFERENCE("Bash")) "]", ANY, "WebFetch"},
        {"[" QUESTION "," LOADED("WebFetch") "," CHANGE("removal", REFERENCE("WebFetch")) "]", ANY, "Bash"},
        {"[" QUESTION "," CHANGE("removal", REFERENCE("Bash")) "," CHANGE("addition", REFERENCE("WebFetch")) "]", ANY,
         "WebFetch"},
        {"[" QUESTION "," CHANGE("removal", REFERENCE("Bash")) "," CHANGE("addition", DEFINED("Late")) "]", ANY,
         "Late"},
        {"[" QUESTION "," CHANGE("addition", DEFINED("Late")) "]", ONE("Late"), "Late"},
        {"[" QUESTION "," CHANGE("removal", REFERENCE("Bash")) "," QUESTION
                                                               "," CHANGE("addition", REFERENCE("Bash")) "]",
         ANY, "Bash"},
        {"[" QUESTION "," LOADED("WebFetch") "]", ANY, NULL},
    };
    (void)state;
    open_stage(0, HEARTH_MEMORY_PAGES, NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *answer = send(asking(bash_and_deferred(), cases[i].messages, cases[i].choice), 200);
        json_t *content = json_at(answer, "content");
        const char *name = json_str(json_array_get(content, json_array_size(content) - 1), "name");
        if (strcmp(name, cases[i].wants != NULL ? cases[i].wants : name) != 0 || *name == '\0') {
            fail_msg("case %zu: a call of '%s'", i, name);
        }
        json_decref(answer);
    }
    stage_close(&stage);
}

static void what_is_deferred_is_not_printed(void **state) {
    (void)state;
    for (size_t i = 0; i < TEMPLATES; i++) {
        open_stage(i, HEARTH_MEMORY_PAGES, NULL, 0);
        json_t *bash = json_pack("[o]", tool("Bash", false));
        json_t *hosted = bash_and_deferred();
        json_array_append_new(hosted, json_pack("{s:s, s:s}", "type", "tool_search_tool_bm25_20251119", "name", "x"));
        const json_int_t without = count(asking(bash, "[" QUESTION "]", NULL));
        assert_int_equal(count(asking(bash_and_deferred(), "[" QUESTION "]", NULL)), without);
        /* Nor because it may be called. */
        assert_int_equal(count(asking(bash_and_deferred(), "[" QUESTION "]", ONE("WebFetch"))), without);
        /* Where Anthropic would search, nobody can refer to it. */
        assert_true(count(asking(hosted, "[" QUESTION "]", NULL)) > without + 80);
        stage_close(&stage);
    }
}

/* ---- tools that the conversation had before ---- */

/* One more, at the front, and what was there in another order, their members too. */
static void shuffle_in(struct talk *talk, const char *name) {
    json_t *other = json_array(), *each;
    size_t i;
    json_array_append_new(other, tool(name, false));
    json_array_foreach(talk->tools, i, each) {
        json_t *turned = json_object(), *member;
        const char *key;
        json_object_foreach(each, key, member) {
            json_t *first = json_pack("{s:O}", key, member);
            json_object_update(first, turned);
            json_decref(turned);
            turned = first;
        }
        json_array_insert_new(other, 0, turned);
    }
    json_decref(talk->tools);
    talk->tools = other;
}

static void grow(size_t template, enum hearth_memory_class memory_class) {
    struct talk talk, before;
    open_stage(template, memory_class, searches, sizeof searches / sizeof searches[0]);
    talk_begin(&talk);
    talk_say(&talk, "I want none of them");
    shuffle_in(&talk, "Late");
    talk_say(&talk, "One came later");
    assert_string_equal(json_str(json_array_get(talk.messages, 3), "content.0.name"), "Late");
    shuffle_in(&talk, "Later");
    before = talk;
    before.messages = json_copy(talk.messages);
    before.tools = json_copy(talk.tools);
    json_t *result = json_pack("[{s:s, s:O, s:s}]", "type", "tool_result", "tool_use_id",
                               json_at(json_array_get(talk.messages, 3), "content.0.id"), "content", "Fine");
    json_array_append_new(talk.messages, json_pack("{s:s, s:O}", "role", "user", "content", result));
    json_decref(talk_on(&talk));
    talk_say(&talk, "I want none any more");
    talk_say(&talk, "I want none, really");
    assert_int_equal(talk.computed, talk.fresh);
    assert_true(talk.fresh > 2 * 80);
    /* From an earlier reply on, with another tool. */
    shuffle_in(&before, "Other");
    json_array_append_new(before.messages, json_pack("{s:s, s:o}", "role", "user", "content", result));
    json_decref(talk_on(&before));
    talk_say(&before, "I want none of these");
    assert_true(before.computed <= before.fresh); /* the result and the first definition are shared */
    talk_end(&before);
    talk_end(&talk);
    stage_close(&stage);
}

static void tools_that_come_later_leave_the_head_alone(void **state) {
    (void)state;
    for (size_t i = 0; i < TEMPLATES; i++) {
        grow(i, HEARTH_MEMORY_PAGES);
        grow(i, HEARTH_MEMORY_PAGES_SNAPSHOT);
        grow(i, HEARTH_MEMORY_SNAPSHOT);
    }
}

static void shrink(size_t template, enum hearth_memory_class memory_class) {
    struct talk talk, compaction;
    open_stage(template, memory_class, searches, sizeof searches / sizeof searches[0]);
    talk_begin(&talk);
    talk_say(&talk, "I want one, and that");
    json_t *call = json_array_get(json_at(json_array_get(talk.messages, 1), "content"), 1);
    json_array_append_new(talk.messages,
                          json_pack("{s:s, s:[{s:s, s:O, s:s}]}", "role", "user", "content", "type", "tool_result",
                                    "tool_use_id", json_at(call, "id"), "content", "nothing"));
    json_decref(talk_on(&talk));
    compaction = talk;
    compaction.messages = json_copy(talk.messages);
    compaction.tools = json_array();
    talk_say(&compaction, "It says so: I want two lines of summary");
    /* What looks like a call is text: nothing was offered. */
    json_t *summary = json_array_get(compaction.messages, 5);
    assert_string_equal(json_str(summary, "content.0.type"), "text");
    talk_say(&compaction, "I want none of this");
    assert_int_equal(compaction.computed, compaction.fresh);
    talk_say(&talk, "I want none");
    assert_true(talk.computed <= talk.fresh); /* how the question begins is shared */
    talk_end(&compaction);
    talk_end(&talk);
    stage_close(&stage);
}

/* A call that no prompt has printed yet, read when it may not be made any more. */
static void call_and_lose(size_t template, bool removed) {
    struct talk talk;
    open_stage(template, HEARTH_MEMORY_PAGES_SNAPSHOT, searches, sizeof searches / sizeof searches[0]);
    talk_begin(&talk);
    json_array_remove(talk.tools, 3); /* nothing is deferred */
    talk_say(&talk, "I want two");
    json_t *call = json_at(json_array_get(talk.messages, 1), "content.0");
    assert_string_equal(json_str(call, "type"), "tool_use");
    json_array_append_new(talk.messages, json_pack("{s:s, s:[{s:s, s:O, s:s}]}", "role", "user", "content", "type",
                                                   "tool_result", "tool_use_id", json_at(call, "id"), "content",
                                                   "nothing"));
    if (removed) {
        json_array_append_new(talk.messages, json_loads(CHANGE("removal", REFERENCE("ToolSearch")), 0, NULL));
    } else {
        json_array_clear(talk.tools);
    }
    json_decref(talk_on(&talk));
    assert_int_equal(talk.computed, talk.fresh);
    talk_end(&talk);
    stage_close(&stage);
}

static void a_call_is_read_when_it_may_not_be_made(void **state) {
    (void)state;
    for (size_t i = 0; i < TEMPLATES; i++) {
        call_and_lose(i, true);
        call_and_lose(i, false);
    }
}

static void without_tools_the_known_ones_stay_described(void **state) {
    (void)state;
    for (size_t i = 0; i < TEMPLATES; i++) {
        shrink(i, HEARTH_MEMORY_PAGES);
        shrink(i, HEARTH_MEMORY_PAGES_SNAPSHOT);
        shrink(i, HEARTH_MEMORY_SNAPSHOT);
    }
}

/* What is printed for a conversation whose tools are not those that it began with, and for one that nobody knows. */
static void what_has_changed_is_printed_as_it_is_sent(void **state) {
    (void)state;
    for (size_t i = 0; i < TEMPLATES; i++) {
        struct talk talk;
        open_stage(i, HEARTH_MEMORY_PAGES, searches, sizeof searches / sizeof searches[0]);
        talk_begin(&talk);
        talk_say(&talk, "I want none of them");
        json_array_append_new(talk.messages, json_pack("{s:s, s:s}", "role", "user", "content", "And now?"));
        json_t *none = json_array(), *kept = talk.tools;
        const json_int_t whole = count(talk_body(&talk));
        talk.tools = none;
        assert_int_equal(count(talk_body(&talk)), whole);
        json_t *elsewhere = talk_body(&talk);
        json_object_set_new(elsewhere, "cache_salt", json_string("another's"));
        const json_int_t bare = count(elsewhere);
        assert_true(bare < whole - 4 * 80);
        talk.tools = json_array();
        json_array_append(talk.tools, json_array_get(kept, 0));
        const json_int_t fewer = count(talk_body(&talk));
        assert_true(fewer < whole - 3 * 80 && fewer > bare + 80);
        json_decref(kept);
        json_decref(none);
        talk_end(&talk);
        stage_close(&stage);
    }
}

/* ---- additions and removals ---- */

static const struct answer changes[] = {
    {"<functions>\n<function>{\"description\":\"New here\",\"name\":\"Late\"",
     "<tool_call>\n{\"name\": \"Late\", \"arguments\": {\"x\":   1}}\n</tool_call>"},
    {"The tool Late can no longer be called.", "So be it."},
    {"", "Well."},
};

static void change(struct talk *talk, const char *message) {
    json_array_append_new(talk->messages, json_loads(message, 0, NULL));
    json_decref(talk_on(talk));
}

static void system_messages_add_and_remove(void **state) {
    (void)state;
    for (size_t i = 0; i < TEMPLATES; i++) {
        struct talk talk;
        open_stage(i, HEARTH_MEMORY_PAGES_SNAPSHOT, changes, sizeof changes / sizeof changes[0]);
        talk_begin(&talk);
        talk_say(&talk, "Hello");
        change(&talk, CHANGE("addition", DEFINED("Late")));
        assert_string_equal(json_str(json_array_get(talk.messages, 3), "content.0.name"), "Late");
        json_t *result = json_pack("[{s:s, s:O, s:s}]", "type", "tool_result", "tool_use_id",
                                   json_at(json_array_get(talk.messages, 3), "content.0.id"), "content", "one");
        json_array_append_new(talk.messages, json_pack("{s:s, s:o}", "role", "user", "content", result));
        json_decref(talk_on(&talk));
        change(&talk, CHANGE("removal", REFERENCE("Late")));
        assert_string_equal(json_str(json_array_get(talk.messages, 7), "content.0.text"), "So be it.");
        talk_say(&talk, "Hello again");
        assert_int_equal(talk.computed, talk.fresh);
        talk_end(&talk);
        stage_close(&stage);
    }
}

static void a_thread_remembers_its_tools(void **state) {
    (void)state;
    open_stage(0, HEARTH_MEMORY_PAGES, NULL, 0);
    json_t *body = asking(
        bash_and_deferred(),
        "[" QUESTION "," CHANGE("addition", DEFINED("Late")) "," CHANGE("removal", REFERENCE("Bash")) "]", ONE("Late"));
    json_object_set_new(body, "thread", json_pack("{s:s}", "type", "create"));
    json_t *answer = send(body, 200);
    body = json_pack("{s:i, s:{s:s, s:O}, s:o, s:[{s:s, s:[{s:s, s:O, s:s}]}]}", "max_tokens", 400, "thread", "type",
                     "continue", "previous_message_id", json_at(answer, "id"), "tool_choice", json_loads(ANY, 0, NULL),
                     "messages", "role", "user", "content", "type", "tool_result", "tool_use_id",
                     json_at(answer, "content.0.id"), "content", "done");
    json_t *next = send(body, 200);
    assert_string_equal(json_str(next, "content.0.name"), "Late");
    json_decref(next);
    json_decref(answer);
    stage_close(&stage);
}

static void bad_changes_are_told(void **state) {
    static const char *const cases[][2] = {
        {CHANGE("addition", "{\"type\":\"tool_reference\"}"), "messages.1.content.0: tool_addition.tool: "},
        {CHANGE("removal", "{}"), "messages.1.content.0: tool_removal.tool: "},
        {CHANGE("addition", "{\"type\":\"tool_definition\",\"definition\":{\"name\":\"x\"}}"),
         "messages.1.content.0.tool.definition: custom.input_schema: Field required"},
        {CHANGE("addition", "{\"type\":\"tool_definition\",\"definition\":{\"input_schema\":{}}}"),
         "messages.1.content.0.tool.definition: custom.name: Field required"},
        {CHANGE("change", REFERENCE("x")), "messages.1.content.0: Input tag 'tool_change'"},
    };
    (void)state;
    open_stage(0, HEARTH_MEMORY_PAGES, NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char messages[512];
        snprintf(messages, sizeof messages, "[" QUESTION ",%s]", cases[i][0]);
        json_t *answer = send(asking(bash_and_deferred(), messages, NULL), 400);
        assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
        assert_non_null(strstr(json_str(answer, "error.message"), cases[i][1]));
        json_decref(answer);
    }
    stage_close(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_load_computes_what_it_brings),
        cmocka_unit_test(a_forced_call_is_to_what_is_known),
        cmocka_unit_test(what_is_deferred_is_not_printed),
        cmocka_unit_test(tools_that_come_later_leave_the_head_alone),
        cmocka_unit_test(without_tools_the_known_ones_stay_described),
        cmocka_unit_test(a_call_is_read_when_it_may_not_be_made),
        cmocka_unit_test(what_has_changed_is_printed_as_it_is_sent),
        cmocka_unit_test(system_messages_add_and_remove),
        cmocka_unit_test(a_thread_remembers_its_tools),
        cmocka_unit_test(bad_changes_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
