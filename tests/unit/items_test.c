/* Items of OpenAI's Responses API: to messages and back, what is refused, and what only this server can read. */
#include "api/responses/responses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TURN_A "00000000000000000000000000000aaa"
#define TURN_B "00000000000000000000000000000bbb"

static struct hearth_api api = {.secret = {1, 2, 3}}, strict = {.secret = {1, 2, 3}, .params.strict_content = true};

static json_t *parse(const char *text) {
    json_error_t at;
    json_t *value = json_loads(text, 0, &at);
    if (value == NULL) {
        print_error("%s: %s\n", at.text, text);
    }
    assert_non_null(value);
    return value;
}

static struct hearth_history history; /* what was read last */

static bool read(struct hearth_job *job, json_t *items, bool trusted) {
    static const struct hearth_history none;
    json_t *unanswered = trusted ? NULL : json_array();
    const bool ok = hearth_api_items_read(job, items, "input", unanswered, &history, &job->error) &&
                    hearth_api_items_check(unanswered, &none, "input", &job->error);
    json_decref(unanswered);
    json_decref(items);
    return ok;
}

static void clear(void) {
    hearth_history_finish(&history);
}

/* Messages as a line each: role, reasoning in brackets, content, calls, the id of a result's call. */
static void print(char *out, size_t cap) {
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = 0; i < history.count; i++) {
        const struct hearth_message *message = history.messages[i];
        len += (size_t)snprintf(out + len, cap - len, "%s:", hearth_role_text(message->role));
        if (message->reasoning != NULL) {
            len += (size_t)snprintf(out + len, cap - len, "[%s]", message->reasoning);
        }
        len += (size_t)snprintf(out + len, cap - len, "%s", message->content);
        for (size_t c = 0; c < message->call_count; c++) {
            const struct hearth_call *call = &message->calls[c];
            len += (size_t)snprintf(out + len, cap - len, " %s=%s%s", call->id != NULL ? call->id : "-", call->name,
                                    call->arguments);
        }
        if (message->tool_call_id != NULL) {
            len += (size_t)snprintf(out + len, cap - len, "<-%s", message->tool_call_id);
        }
        len += (size_t)snprintf(out + len, cap - len, "|");
    }
    assert_true(len < cap);
}

#define TEXT(text) \
    "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"" text "\"}]}"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define THOUGHT(text) \
    "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"" text "\"}]}"
#define CALL(id, name) "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"" name "\",\"arguments\":\"{}\"}"
#define RESULT(id, text) "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"" text "\"}"

struct reading {
    const char *items, *messages;
};

static void assert_read_as(const struct reading *cases, size_t count) {
    char text[512], items[1024];
    for (size_t i = 0; i < count; i++) {
        struct hearth_job job = {.api = &api};
        snprintf(items, sizeof items, "[%s]", cases[i].items);
        assert_true(read(&job, parse(items), false));
        print(text, sizeof text);
        assert_string_equal(text, cases[i].messages);
        clear();
    }
}

static void items_become_messages(void **state) {
    static const struct reading cases[] = {
        {USER("hi"), "user:hi|"},
        /* a reply's items are one message, */
        {THOUGHT("hm") "," TEXT("so") "," CALL("c1", "f") "," CALL("c2", "g"), "assistant:[hm]so c1=f{} c2=g{}|"},
        {THOUGHT("a") "," THOUGHT("b") "," TEXT("so"), "assistant:[a\nb]so|"},
        {CALL("c1", "f") "," RESULT("c1", "r") "," TEXT("so"), "assistant: c1=f{}|tool:r<-c1|assistant:so|"},
        /* and what can be none are two. */
        {TEXT("a") "," TEXT("b"), "assistant:a|assistant:b|"},
        {CALL("c1", "f") "," TEXT("b"), "assistant: c1=f{}|assistant:b|"},
        {TEXT("a") "," THOUGHT("b") "," TEXT("c"), "assistant:a|assistant:[b]c|"},
        {CALL("c1", "f") "," RESULT("c1", "r") "," CALL("c2", "f") "," RESULT("c2", "r"),
         "assistant: c1=f{}|tool:r<-c1|assistant: c2=f{}|tool:r<-c2|"},
        /* Ids tell replies apart. */
        {"{\"type\":\"message\",\"id\":\"msg_" TURN_A "0001\",\"role\":\"assistant\",\"content\":\"a\"},"
         "{\"type\":\"function_call\",\"id\":\"fc_" TURN_B
         "0001\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}",
         "assistant:a|assistant: c=f{}|"},
        {"{\"type\":\"message\",\"id\":\"msg_" TURN_A "0001\",\"role\":\"assistant\",\"content\":\"a\"},"
         "{\"type\":\"function_call\",\"id\":\"fc_" TURN_A
         "0002\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}",
         "assistant:a c=f{}|"},
        /* Texts in every form. */
        {"{\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":"
         "\"b\"}]}",
         "developer:a\nb|"},
        {"{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}", "assistant:no|"},
        {CALL("c", "f") ",{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[{\"type\":\"input_text\","
                        "\"text\":\"a\"},{\"type\":\"input_text\",\"text\":\"b\"}]}",
         "assistant: c=f{}|tool:a\nb<-c|"},
        {CALL("c", "f") ",{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[{\"type\":\"input_image\","
                        "\"image_url\":\"data:,\"}]}",
         "assistant: c=f{}|tool:[image, 0 bytes; this model cannot see it]<-c|"},
        {"{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"p\",\"input\":\"x\\ny\"},"
         "{\"type\":\"custom_tool_call_output\",\"call_id\":\"c\",\"output\":\"ok\"}",
         "assistant: c=p{\"input\":\"x\\ny\"}|tool:ok<-c|"},
        {"{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":{\"a\":1}}",
         "assistant: c=f{\"a\":1}|"},
        /* What thinking comes back as: a summary, or nothing at all. */
        {"{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"s\"}]}," TEXT("a"),
         "assistant:[s]a|"},
        {"{\"type\":\"reasoning\",\"summary\":[]}," TEXT("a"), "assistant:a|"},
        {"{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"gAAAA\"}," TEXT("a"), "assistant:a|"},
        {"{\"type\":\"reasoning\",\"summary\":[]}," USER("x"), "user:x|"},
        /* Tools of somebody else's. */
        {"{\"type\":\"web_search_call\",\"id\":\"w\",\"status\":\"completed\"}," USER("x"), "user:x|"},
        {"{\"type\":\"compaction_trigger\"}," USER("x"), "user:x|"},
        /* Codex' own shell: its result is a function's. */
        {"{\"type\":\"local_shell_call\",\"call_id\":\"c\",\"action\":{\"type\":\"exec\"}}," RESULT("c",
                                                                                                    "r") "," USER("x"),
         "user:x|"},
        /* Types that nothing is known of, between the items of a reply and elsewhere. */
        {THOUGHT("hm") ",{\"type\":\"zork_call\",\"call_id\":\"z\"}," TEXT("so") "," CALL("c", "f") "," RESULT(
             "z", "r") "," RESULT("c", "r") ",{\"type\":\"zork\"}",
         "assistant:[hm]so c=f{}|tool:r<-c|"},
    };
    (void)state;
    assert_read_as(cases, sizeof cases / sizeof cases[0]);
}

static void what_clients_leave_ends_no_session(void **state) {
    static const struct reading cases[] = {
        /* Messages that say nothing; a reply that said nothing, and a result, are there. */
        {USER("") ",{\"role\":\"user\"},{\"role\":\"system\",\"content\":[]},{\"role\":\"developer\",\"content\":null},"
                  "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"\"}]}," USER("x"),
         "user:x|"},
        {USER("x") "," TEXT("") "," USER("y"), "user:x|assistant:|user:y|"},
        {CALL("c", "f") "," USER("") "," RESULT("c", ""), "assistant: c=f{}|tool:<-c|"},
        /* What another server has left: a part of a reply, and a summary that it alone can read. */
        {"{\"role\":\"assistant\",\"content\":[{\"type\":\"zork\"},{\"type\":\"output_text\",\"text\":\"a\"}]}",
         "assistant:a|"},
        {CALL("c", "f") ",{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[{\"type\":\"zork\"}]}",
         "assistant: c=f{}|tool:[content; this model cannot read it]<-c|"},
        {"{\"type\":\"compaction\",\"encrypted_content\":\"AAAA\"}," USER("x"),
         "user:" HEARTH_SUMMARY_HEAD "[a summary; this model cannot read it]|user:x|"},
        {"{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"see\"},"
         "{\"type\":\"input_file\",\"filename\":\"a.pdf\",\"file_data\":\"JVBERi0xLjQK\"}]}",
         "user:see\n[file, application/pdf, 9 bytes, a.pdf; this model cannot read it]|"},
    };
    (void)state;
    assert_read_as(cases, sizeof cases / sizeof cases[0]);
}

static void what_is_wrong_is_named(void **state) {
    static const struct {
        const char *items, *param;
    } cases[] = {
        {"[5]", "input[0]"},
        {"[{}]", "input[0].role"},
        {"[{\"type\":7}]", "input[0].type"},
        {"[{\"role\":\"robot\",\"content\":\"x\"}]", "input[0].role"},
        {"[{\"role\":\"tool\",\"content\":\"x\"}]", "input[0].role"},
        {"[{\"role\":\"user\",\"content\":7}]", "input[0].content"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"zork\"}]}]", "input[0].content"},
        {"[{\"role\":\"user\",\"content\":[7]}]", "input[0].content"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}]", "input[0].content"},
        {"[{\"type\":\"function_call\",\"call_id\":\"c\"}]", "input[0].name"},
        {"[{\"type\":\"function_call\",\"name\":\"f\"}]", "input[0].call_id"},
        {"[{\"type\":\"function_call\",\"name\":\"f\",\"call_id\":\"c\",\"arguments\":7}]", "input[0].arguments"},
        {"[{\"type\":\"custom_tool_call\",\"name\":\"f\",\"call_id\":\"c\",\"input\":{}}]", "input[0].input"},
        {"[{\"type\":\"function_call_output\",\"output\":\"x\"}]", "input[0].call_id"},
        {"[" RESULT("c", "x") "]", "input[0].call_id"},
        {"[{\"type\":\"reasoning\",\"content\":[7]}]", "input[0].content"},
        {"[{\"type\":\"compaction\"}]", "input[0].encrypted_content"},
        {"[null]", "input[0]"},
        /* Only with --strict-content: */
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"x\"}]}]", "input[0].content"},
        {"[{\"type\":\"compaction\",\"encrypted_content\":\"AAAA\"}]", "input[0].encrypted_content"},
        {"[" USER("x") ",{\"type\":\"zork\"}]", "input[1].type"},
    };
    const size_t count = sizeof cases / sizeof cases[0], strict_from = count - 3;
    (void)state;
    for (size_t i = 0; i < 2 * count; i++) {
        const bool is_strict = i >= count, allowed = i < count && i >= strict_from;
        struct hearth_job job = {.api = is_strict ? &strict : &api};
        if (read(&job, parse(cases[i % count].items), false) != allowed) {
            fail_msg("%s", cases[i % count].items);
        }
        assert_int_equal(job.error.status, allowed ? 0 : 400);
        assert_string_equal(job.error.param, allowed ? "" : cases[i % count].param);
        clear();
    }
}

/* What stands in the store was checked when it came: a result without a call, an item that was deleted. */
static void the_store_is_trusted(void **state) {
    struct hearth_job job = {.api = &api};
    char text[128];
    (void)state;
    assert_true(read(&job, parse("[null," RESULT("", "r") "," RESULT("c", "r") "]"), true));
    print(text, sizeof text);
    assert_string_equal(text, "tool:r|tool:r<-c|");
    clear();
}

static char *copy(const char *text) {
    char *out = strdup(text);
    assert_non_null(out);
    return out;
}

/* Every message that any dialect can have made goes through its items unchanged. */
static void messages_survive_their_items(void **state) {
    (void)state;
    for (unsigned bits = 0; bits < 64; bits++) {
        struct hearth_job job = {.api = &api};
        struct hearth_message *message = hearth_message_create(HEARTH_ROLE_ASSISTANT);
        assert_non_null(message);
        message->content = copy(bits & 1 ? " said\xc3\xb8 \n" : "");
        message->content_len = strlen(message->content);
        message->reasoning = bits & 2 ? copy("thought\n") : NULL;
        assert_true(hearth_message_alloc_calls(message, bits >> 2 & 3));
        for (size_t c = 0; c < message->call_count; c++) {
            message->calls[c].id = bits & 16 ? copy(c == 0 ? "a" : "b") : NULL;
            message->calls[c].name = copy("f");
            message->calls[c].arguments = copy(bits & 32 ? "{\"x\":  1.50}" : "{\"x\": [");
        }
        assert_true(hearth_message_seal(message));
        json_t *items = hearth_api_items_of_message(message);
        assert_non_null(items);
        assert_true(read(&job, items, true));
        assert_int_equal(history.count, 1);
        const struct hearth_message *back = history.messages[0];
        assert_true(hearth_message_equal(back, message));
        assert_int_equal(back->reasoning != NULL, message->reasoning != NULL);
        assert_string_equal(back->content, message->content);
        for (size_t c = 0; c < message->call_count; c++) {
            assert_string_equal(back->calls[c].arguments, message->calls[c].arguments);
            assert_int_equal(back->calls[c].id != NULL, message->calls[c].id != NULL);
        }
        hearth_message_unref(message);
        clear();
    }
    static const enum hearth_role roles[] = {HEARTH_ROLE_USER, HEARTH_ROLE_SYSTEM, HEARTH_ROLE_DEVELOPER,
                                             HEARTH_ROLE_TOOL};
    for (size_t i = 0; i < 4; i++) {
        struct hearth_job job = {.api = &api};
        struct hearth_message *message = hearth_message_create(roles[i]);
        message->content = copy("text");
        message->content_len = 4;
        message->name = copy("ada");
        message->tool_call_id = roles[i] == HEARTH_ROLE_TOOL ? copy("c7") : NULL;
        assert_true(hearth_message_seal(message));
        assert_true(read(&job, hearth_api_items_of_message(message), true));
        assert_true(hearth_message_equal(history.messages[0], message));
        assert_string_equal(history.messages[0]->name, "ada");
        if (roles[i] == HEARTH_ROLE_TOOL) {
            assert_string_equal(history.messages[0]->tool_call_id, "c7");
        }
        hearth_message_unref(message);
        clear();
    }
}

static void sealed_text_comes_back(void **state) {
    static const struct hearth_api other = {.secret = {9}};
    char text[300] = "";
    (void)state;
    for (size_t len = 0; len < sizeof text; len += 13) {
        memset(text, 'x', len);
        char *sealed = hearth_api_sealed_close(&api, HEARTH_SEALED_REASONING, text, len);
        assert_non_null(sealed);
        char *opened = hearth_api_sealed_open(&api, HEARTH_SEALED_REASONING, sealed);
        assert_non_null(opened);
        assert_int_equal(strlen(opened), len);
        assert_memory_equal(opened, text, len);
        free(opened);
        assert_null(hearth_api_sealed_open(&api, HEARTH_SEALED_SUMMARY, sealed));
        assert_null(hearth_api_sealed_open(&other, HEARTH_SEALED_REASONING, sealed));
        for (size_t i = 0, end = strlen(sealed); i < end; i += 5) { /* any change, and any end, is noticed */
            const char was = sealed[i];
            sealed[i] = was == 'B' ? 'C' : 'B';
            assert_null(hearth_api_sealed_open(&api, HEARTH_SEALED_REASONING, sealed));
            sealed[i] = '\0';
            assert_null(hearth_api_sealed_open(&api, HEARTH_SEALED_REASONING, sealed));
            sealed[i] = was;
        }
        free(sealed);
    }
}

static void sealed_items_are_read(void **state) {
    struct hearth_job job = {.api = &api};
    char text[256];
    char *thought = hearth_api_sealed_close(&api, HEARTH_SEALED_REASONING, "deep\n", 5);
    char *summary = hearth_api_sealed_close(&api, HEARTH_SEALED_SUMMARY, "all of it", 9);
    (void)state;
    assert_true(read(&job,
                     json_pack("[{s:s, s:s}, {s:s, s:[], s:s}, {s:s, s:s}]", "type", "compaction", "encrypted_content",
                               summary, "type", "reasoning", "summary", "encrypted_content", thought, "role",
                               "assistant", "content", "so"),
                     false));
    print(text, sizeof text);
    assert_string_equal(text, "user:" HEARTH_SUMMARY_HEAD "all of it|assistant:[deep\n]so|");
    clear();
    free(thought);
    free(summary);
}

static void clean(const char *given, const char *want) {
    json_t *items = parse(given), *expected = parse(want);
    json_t *once = hearth_inputs_clean(items), *twice = hearth_inputs_clean(once);
    char *text = json_dumps(once, JSON_COMPACT);
    if (json_equal(once, expected) != 1) {
        print_error("%s\n", text);
    }
    assert_true(json_equal(once, expected) == 1);
    assert_true(json_equal(twice, once) == 1);
    free(text);
    json_decref(items);
    json_decref(expected);
    json_decref(once);
    json_decref(twice);
}

static void items_are_stored_in_one_form(void **state) {
    (void)state;
    clean("[" USER("x") "]", "[{\"type\":\"message\",\"role\":\"user\",\"status\":\"completed\",\"content\":"
                             "[{\"type\":\"input_text\",\"text\":\"x\"}]}]");
    clean("[{\"role\":\"assistant\",\"content\":\"x\",\"id\":\"mine\",\"phase\":null}]",
          "[{\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"content\":"
          "[{\"type\":\"output_text\",\"text\":\"x\",\"annotations\":[],\"logprobs\":[]}]}]");
    clean("[{\"type\":\"function_call\",\"id\":\"fc_" TURN_A
          "0001\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}]",
          "[{\"type\":\"function_call\",\"id\":\"fc_" TURN_A
          "0001\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\","
          "\"status\":\"completed\"}]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_become_messages),        cmocka_unit_test(what_clients_leave_ends_no_session),
        cmocka_unit_test(what_is_wrong_is_named),       cmocka_unit_test(the_store_is_trusted),
        cmocka_unit_test(messages_survive_their_items), cmocka_unit_test(sealed_text_comes_back),
        cmocka_unit_test(sealed_items_are_read),        cmocka_unit_test(items_are_stored_in_one_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
