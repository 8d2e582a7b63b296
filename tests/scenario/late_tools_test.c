/* Tools that come to a conversation late, over Messages: found by a search (tool_reference), added and
 * removed by system messages. What comes costs its own text, under templates that print tools before or behind the
 * system text or not at all, on every memory class; and a reply may call it from there on. */
#include "tools_stage.h"

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

static void load_and_call(size_t template, enum hearth_engine_class memory_class) {
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
        load_and_call(i, HEARTH_ENGINE_PAGES);
        load_and_call(i, HEARTH_ENGINE_PAGES_SNAPSHOT);
        load_and_call(i, HEARTH_ENGINE_SNAPSHOT);
    }
}

/* ---- what may be called ---- */

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
    open_stage(0, HEARTH_ENGINE_PAGES, NULL, 0);
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
        open_stage(i, HEARTH_ENGINE_PAGES, NULL, 0);
        json_t *bash = json_pack("[o]", tool("Bash", false));
        json_t *hosted = bash_and_deferred();
        json_array_append_new(hosted, json_pack("{s:s, s:s}", "type", "tool_search_tool_bm25_20251119", "name", "x"));
        const json_int_t without = count(asking(bash, "[" QUESTION "]", NULL));
        assert_int_equal(count(asking(bash_and_deferred(), "[" QUESTION "]", NULL)), without);
        /* Nor because it may be called. */
        assert_int_equal(count(asking(bash_and_deferred(), "[" QUESTION "]", ONE("WebFetch"))), without);
        /* Where Anthropic would search, no result refers to it. */
        assert_true(count(asking(hosted, "[" QUESTION "]", NULL)) > without + 80);
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
        open_stage(i, HEARTH_ENGINE_PAGES_SNAPSHOT, changes, sizeof changes / sizeof changes[0]);
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
    open_stage(0, HEARTH_ENGINE_PAGES, NULL, 0);
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
    open_stage(0, HEARTH_ENGINE_PAGES, NULL, 0);
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
        cmocka_unit_test(a_load_computes_what_it_brings),  cmocka_unit_test(a_forced_call_is_to_what_is_known),
        cmocka_unit_test(what_is_deferred_is_not_printed), cmocka_unit_test(system_messages_add_and_remove),
        cmocka_unit_test(a_thread_remembers_its_tools),    cmocka_unit_test(bad_changes_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
