/* Tools that a conversation has had before: more of them, the same in another order, or none. What was printed stays as
 * it was, on every memory class, and calls are read that may not be made any more. */
#include "tools_stage.h"

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

static void grow(size_t template, enum hearth_engine_class memory_class) {
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
        grow(i, HEARTH_ENGINE_PAGES);
        grow(i, HEARTH_ENGINE_PAGES_SNAPSHOT);
        grow(i, HEARTH_ENGINE_SNAPSHOT);
    }
}

static void shrink(size_t template, enum hearth_engine_class memory_class) {
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
    open_stage(template, HEARTH_ENGINE_PAGES_SNAPSHOT, searches, sizeof searches / sizeof searches[0]);
    talk_begin(&talk);
    json_array_remove(talk.tools, 3); /* nothing is deferred */
    talk_say(&talk, "I want two");
    json_t *call = json_at(json_array_get(talk.messages, 1), "content.0");
    assert_string_equal(json_str(call, "type"), "tool_use");
    json_array_append_new(talk.messages,
                          json_pack("{s:s, s:[{s:s, s:O, s:s}]}", "role", "user", "content", "type", "tool_result",
                                    "tool_use_id", json_at(call, "id"), "content", "nothing"));
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
        shrink(i, HEARTH_ENGINE_PAGES);
        shrink(i, HEARTH_ENGINE_PAGES_SNAPSHOT);
        shrink(i, HEARTH_ENGINE_SNAPSHOT);
    }
}

/* Sends a request in another dialect; *state: tokens of the last prompt and its reply. */
static json_t *ask_on(const char *path, json_t *body, const char *name, const char *output, json_int_t *state) {
    char *text = json_dumps(body, 0);
    json_t *answer = stage_want(&stage, "POST", path, text, 200);
    const json_int_t prompt = json_num(answer, name);
    if (*state > 0) {
        assert_int_equal(json_num(answer, "hearth.computed"), prompt - *state);
    }
    *state = prompt + json_num(answer, output) - 1;
    free(text);
    json_decref(body);
    return answer;
}

#define ASKED "{\"role\":\"user\",\"content\":\"I want two\"}"
#define CHAT_TOOL "{\"type\":\"function\",\"function\":{\"name\":\"ToolSearch\",\"parameters\":{\"type\":\"object\"}}}"
#define RESPONSES_TOOL "{\"type\":\"function\",\"name\":\"ToolSearch\",\"parameters\":{\"type\":\"object\"}}"

static void chats_without_tools(void) {
    json_int_t state = 0;
    json_t *messages = json_loads("[" ASKED "]", 0, NULL), *tools = json_loads("[" CHAT_TOOL "]", 0, NULL);
    json_t *answer = ask_on("/v1/chat/completions", json_pack("{s:O, s:o}", "messages", messages, "tools", tools),
                            "usage.prompt_tokens", "usage.completion_tokens", &state);
    assert_null(json_at(answer, "hearth.tools_kept"));
    json_array_append(messages, json_at(answer, "choices.0.message"));
    json_array_append_new(messages,
                          json_pack("{s:s, s:O, s:s}", "role", "tool", "tool_call_id",
                                    json_at(answer, "choices.0.message.tool_calls.0.id"), "content", "I want none"));
    json_decref(answer);
    answer = ask_on("/v1/chat/completions", json_pack("{s:O}", "messages", messages), "usage.prompt_tokens",
                    "usage.completion_tokens", &state);
    assert_int_equal(json_num(answer, "hearth.tools_kept"), 1);
    json_decref(answer);
    json_decref(messages);
}

/* As Codex compacts. */
static void responses_without_tools(void) {
    json_int_t state = 0;
    json_t *items = json_loads("[" ASKED "]", 0, NULL), *tools = json_loads("[" RESPONSES_TOOL "]", 0, NULL);
    json_t *answer = ask_on("/v1/responses", json_pack("{s:O, s:o, s:b}", "input", items, "tools", tools, "store", 0),
                            "usage.input_tokens", "usage.output_tokens", &state);
    json_array_extend(items, json_at(answer, "output"));
    json_array_append_new(items, json_pack("{s:s, s:O, s:s}", "type", "function_call_output", "call_id",
                                           json_at(answer, "output.0.call_id"), "output", "nothing"));
    json_array_append_new(items, json_pack("{s:s, s:s}", "role", "user", "content", "I want none, but a summary"));
    json_decref(answer);
    answer = ask_on("/v1/responses",
                    json_pack("{s:O, s:[], s:s, s:b, s:b}", "input", items, "tools", "tool_choice", "auto",
                              "parallel_tool_calls", 0, "store", 0),
                    "usage.input_tokens", "usage.output_tokens", &state);
    assert_int_equal(json_num(answer, "hearth.tools_kept"), 1);
    json_decref(answer);
    json_decref(items);
}

static void other_dialects_keep_them_too(void **state) {
    (void)state;
    for (size_t i = 0; i < TEMPLATES; i++) {
        open_stage(i, HEARTH_ENGINE_PAGES_SNAPSHOT, searches, sizeof searches / sizeof searches[0]);
        chats_without_tools();
        stage_close(&stage);
        open_stage(i, HEARTH_ENGINE_PAGES_SNAPSHOT, searches, sizeof searches / sizeof searches[0]);
        responses_without_tools();
        stage_close(&stage);
    }
}

/* A search finds what the request has as well; items bring others. */
static void items_bring_tools(void **state) {
    (void)state;
    open_stage(0, HEARTH_ENGINE_PAGES, NULL, 0);
    json_t *answer = stage_want(
        &stage, "POST", "/v1/responses",
        "{\"tools\":[" RESPONSES_TOOL "],\"tool_choice\":{\"type\":\"function\",\"name\":\"found\"},\"input\":[" ASKED
        ",{\"type\":\"tool_search_output\",\"call_id\":\"c\",\"tools\":[" RESPONSES_TOOL
        ",{\"type\":\"function\",\"name\":\"found\",\"parameters\":{\"type\":\"object\",\"properties\":{},"
        "\"additionalProperties\":false}}]}]}",
        200);
    assert_string_equal(json_str(answer, "output.0.name"), "found");
    json_decref(answer);
    stage_close(&stage);
}

/* What is printed for a conversation whose tools are not those that it began with, and for an unknown conversation. */
static void what_has_changed_is_printed_as_it_is_sent(void **state) {
    (void)state;
    for (size_t i = 0; i < TEMPLATES; i++) {
        struct talk talk;
        open_stage(i, HEARTH_ENGINE_PAGES, searches, sizeof searches / sizeof searches[0]);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tools_that_come_later_leave_the_head_alone),
        cmocka_unit_test(without_tools_the_known_ones_stay_described),
        cmocka_unit_test(a_call_is_read_when_it_may_not_be_made),
        cmocka_unit_test(other_dialects_keep_them_too),
        cmocka_unit_test(items_bring_tools),
        cmocka_unit_test(what_has_changed_is_printed_as_it_is_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
