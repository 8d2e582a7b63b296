/* What the commands share and what chat reads: command lines, a streamed reply, a conversation as text. */
#include "cli/banner.h"
#include "client/client.h"
#include "console/show_items.h"
#include "console/show.h"
#include "console/tool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(a) (int)(sizeof(a) / sizeof((a)[0]))

/* ---- command lines ---- */

struct chosen {
    const char *name;
    int64_t number;
    bool yes;
};

static const struct hearth_console_command commands[] = {{"one", "A [B]", "first", 1, 1, 2},
                                                         {"two", "", "second", 2, 0, 0}};
static const struct hearth_console_option options[] = {
    {"--name", "NAME", "a name", 3, HEARTH_CONSOLE_TEXT, offsetof(struct chosen, name)},
    {"--number", "N", "a number", 1, HEARTH_CONSOLE_NUMBER, offsetof(struct chosen, number)},
    {"--yes", "", "a switch", 2, HEARTH_CONSOLE_SWITCH, offsetof(struct chosen, yes)},
};
static const struct hearth_console_tool tool = {"test", "a test", commands, COUNT(commands), options, COUNT(options)};
static const struct hearth_console_tool single = {
    "single", "", (const struct hearth_console_command[]){{"", "[A]", "all", 1, 0, 9}}, 1, options, COUNT(options)};

static struct hearth_console_call parse(const struct hearth_console_tool *which, struct chosen *chosen, int argc,
                                        const char *const *argv) {
    struct hearth_console_call call;
    *chosen = (struct chosen){.number = -1};
    hearth_console_parse(which, argc, (char *const *)(uintptr_t)argv, chosen, &call);
    return call;
}

#define PARSE(which, chosen, ...) \
    parse((which), (chosen), COUNT(((const char *const[]){__VA_ARGS__})), ((const char *const[]){__VA_ARGS__}))

static void test_tool_reads_options_anywhere(void **state) {
    (void)state;
    struct chosen chosen;
    struct hearth_console_call call = PARSE(&tool, &chosen, "one", "--name=x=y", "a", "--number", "7", "-");
    assert_ptr_equal(call.command, &commands[0]);
    assert_int_equal(call.arg_count, 2);
    assert_string_equal(call.args[0], "a");
    assert_string_equal(call.args[1], "-");
    assert_null(call.args[2]);
    assert_string_equal(chosen.name, "x=y");
    assert_int_equal(chosen.number, 7);
    free(call.args);
    call = PARSE(&tool, &chosen, "one", "--", "--name");
    assert_string_equal(call.args[0], "--name");
    free(call.args);
    call = PARSE(&tool, &chosen, "two", "--yes");
    assert_ptr_equal(call.command, &commands[1]);
    assert_true(chosen.yes);
    free(call.args);
    call = PARSE(&single, &chosen, "one", "--number", "0");
    assert_non_null(call.command);
    assert_string_equal(call.args[0], "one");
    assert_int_equal(chosen.number, 0);
    free(call.args);
}

static void test_tool_refuses(void **state) {
    (void)state;
    struct chosen chosen;
    static const char *const wrong[][4] = {
        {"three"},
        {"one"},
        {"one", "a", "b", "c"},
        {"two", "a"},
        {"one", "a", "--yes"},
        {"one", "a", "--number=x"},
        {"one", "a", "--number=-1"},
        {"one", "a", "--number", "99999999999999999999"},
        {"one", "a", "--name"},
        {"one", "a", "--name="},
        {"two", "--yes=1"},
        {"two", "--nam", "x"},
    };
    for (int i = 0; i < COUNT(wrong); i++) {
        int argc = 0;
        while (argc < 4 && wrong[i][argc]) {
            argc++;
        }
        const struct hearth_console_call call = parse(&tool, &chosen, argc, wrong[i]);
        assert_null(call.command);
        assert_null(call.args);
        assert_int_equal(call.status, HEARTH_CONSOLE_USAGE);
    }
    const struct hearth_console_call call = parse(&tool, &chosen, 0, NULL);
    assert_int_equal(call.status, HEARTH_CONSOLE_USAGE);
}

/* ---- a streamed reply ---- */

static const char stream[] =
    ": a comment\r\n"
    "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\r\n\r\n"
    "data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"hm\"}}]}\n\n"
    "event: x\ndata:{\"choices\": [{\"delta\":\ndata: {\"content\": \"Gr\xc3\xbc\xc3\x9f\"}}]}\n\n"
    "data: {\"choices\": [{\"delta\": {\"content\": \"e\\u0000\"}}]}\n\n"
    "data: not json\n\n"
    "data: [1]\n\n"
    "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"length\"}], \"hearth\": {\"computed\": 1}}\n\n"
    "data: {\"choices\": [], \"hearth\": {\"reused\": {\"live\": 1000, \"ram\": 200, \"disk\": 34}, \"computed\": 56},"
    " \"timings\": {\"predicted_n\": 78, \"predicted_per_second\": 9.12}}\n\n"
    "data: [DONE]\n\n";

struct heard {
    struct hearth_buf text;
};

static void hear(void *user, enum client_text kind, const char *text) {
    struct heard *heard = user;
    assert_true(hearth_buf_printf(&heard->text, "%s%s", kind == CLIENT_REASONING ? "~" : "|", text));
}

static void check_reply(const struct client_reply *reply, const struct heard *heard) {
    assert_true(reply->done);
    assert_string_equal((const char *)reply->content.data, "Gr\xc3\xbc\xc3\x9f"
                                                           "e");
    assert_string_equal((const char *)reply->reasoning.data, "hm");
    assert_string_equal((const char *)heard->text.data, "~hm|Gr\xc3\xbc\xc3\x9f|e");
    assert_string_equal(reply->finish, "length");
    assert_int_equal(reply->error.len, 0);
}

static void test_reply_comes_in_pieces(void **state) {
    (void)state;
    for (size_t step = 1; step < sizeof stream; step++) {
        struct heard heard = {{0}};
        struct client_reply reply = {.on_text = hear, .user = &heard};
        for (size_t at = 0; at < sizeof stream - 1; at += step) {
            const size_t left = sizeof stream - 1 - at;
            assert_true(hearth_client_reply_feed(&reply, stream + at, left < step ? left : step));
        }
        check_reply(&reply, &heard);
        hearth_client_reply_finish(&reply);
        hearth_buf_finish(&heard.text);
    }
}

static void test_reply_status(void **state) {
    (void)state;
    struct client_reply reply = {0};
    struct hearth_buf out = {0};
    assert_true(hearth_client_reply_status(&reply, 0, NULL, &out));
    assert_int_equal(out.len, 0);
    assert_true(hearth_client_reply_feed(&reply, stream, sizeof stream - 1));
    assert_true(reply.first_us > 0);
    assert_true(hearth_client_reply_status(&reply, reply.first_us - 214000, "work", &out));
    assert_string_equal((const char *)out.data, "reused 1,234 · computed 56 · 78 tokens at 9.1/s · first token 0.21 s "
                                                "· cut off · session work");
    hearth_buf_finish(&out);
    hearth_client_reply_finish(&reply);
}

static void test_reply_errors(void **state) {
    (void)state;
    static const char text[] = "data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\n"
                               "data: {\"error\": {\"message\": \"no room\", \"code\": 503}}\n\n"
                               "data: {\"error\": {\"message\": \"second\"}}\n\n";
    struct client_reply reply = {0};
    struct hearth_buf out = {0};
    assert_true(hearth_client_reply_feed(&reply, text, sizeof text - 1));
    assert_false(reply.done);
    assert_string_equal((const char *)reply.error.data, "no room");
    hearth_client_reply_finish(&reply);
    assert_true(hearth_client_error_text("{\"error\": {\"message\": \"bad key\"}}", 33, 401, &out));
    assert_string_equal((const char *)out.data, "bad key");
    out.len = 0;
    assert_true(hearth_client_error_text("<html>", 6, 502, &out));
    assert_non_null(strstr((const char *)out.data, "502"));
    hearth_buf_finish(&out);
}

/* ---- a conversation as text ---- */

static char *print_items(const char *json) {
    char *text = NULL;
    size_t len = 0;
    struct hearth_show_items print = {.out = open_memstream(&text, &len)};
    json_t *items = json_loads(json, 0, NULL);
    assert_non_null(items);
    hearth_show_items(&print, items);
    hearth_show_items_finish(&print);
    assert_int_equal(fclose(print.out), 0);
    json_decref(items);
    return text;
}

static void test_items_of_responses(void **state) {
    (void)state;
    char *text = print_items("[{\"type\": \"message\", \"role\": \"user\", \"content\": [{\"type\": \"input_text\","
                             " \"text\": \"one\\ntwo\\n\"}, {\"type\": \"input_image\"}]},"
                             "{\"type\": \"reasoning\", \"summary\": [{\"type\": \"summary_text\", \"text\": \"so\"}]},"
                             "{\"type\": \"function_call\", \"call_id\": \"c1\", \"name\": \"add\", \"arguments\":"
                             " \"{}\"}, {\"type\": \"function_call_output\", \"call_id\": \"c1\", \"output\": \"3\"},"
                             "{\"type\": \"message\", \"role\": \"assistant\", \"content\": \"three\"},"
                             "{\"type\": \"new_thing\"}, 7]");
    assert_string_equal(text, "user\n  one\n  two\n\n  [input_image]\n\nassistant thinks\n  so\n\n"
                              "assistant calls add\n  {}\n\nresult of add\n  3\n\nassistant\n  three\n\nnew_thing\n\n"
                              "?\n\n");
    free(text);
}

static void test_items_of_chat(void **state) {
    (void)state;
    char *text =
        print_items("[{\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"hm\","
                    " \"tool_calls\": [{\"id\": \"c\", \"function\": {\"name\": \"f\", \"arguments\": \"1\"}}]},"
                    "{\"role\": \"tool\", \"tool_call_id\": \"c\", \"content\": \"\\u001b[2Jx\\u202e\"}]");
    assert_string_equal(text, "assistant thinks\n  hm\n\nassistant calls f\n  1\n\nresult of f\n  [2Jx\n\n");
    free(text);
}

static void test_last_text(void **state) {
    (void)state;
    json_t *items = json_loads("[{\"role\": \"user\", \"content\": \"first\"}, {\"role\": \"user\", \"content\": \"\"},"
                               "{\"type\": \"function_call_output\", \"output\": \"x\"},"
                               "{\"role\": \"assistant\", \"content\": \"reply\"}]",
                               0, NULL);
    char *text = hearth_show_last_text(items, "user");
    assert_string_equal(text, "first");
    free(text);
    assert_null(hearth_show_last_text(items, "system"));
    assert_null(hearth_show_last_text(NULL, "user"));
    json_decref(items);
}

/* ---- what the banner says of the context ---- */

static void test_banner_fit(void **state) {
    (void)state;
    static const struct {
        uint32_t ctx, train;
        const char *says;
    } cases[] = {
        {8192, 8192,
         "too small for Codex (16384), Claude Code (24576) and Hermes (64000): give -c 64k, and a model that was "
         "trained with as much (-m FILE)"},
        {8192, 131072, "too small for Codex (16384), Claude Code (24576) and Hermes (64000): give -c 64k"},
        {16384, 131072, "too small for Claude Code (24576) and Hermes (64000): give -c 64k"},
        {32768, 131072, "too small for Hermes (64000): give -c 64k"},
        {65536, 8192,
         "agents can start, but the model was trained with less than they send: give another one for useful replies "
         "(-m FILE)"},
        {64000, 65536, ""},
        {65536, 131072, ""},
        {262144, 131072, ""},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct hearth_buf text = {0};
        assert_true(hearth_banner_fit(cases[i].ctx, cases[i].train, &text));
        assert_string_equal(text.data ? (const char *)text.data : "", cases[i].says);
        hearth_buf_finish(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tool_reads_options_anywhere),
        cmocka_unit_test(test_tool_refuses),
        cmocka_unit_test(test_reply_comes_in_pieces),
        cmocka_unit_test(test_reply_status),
        cmocka_unit_test(test_reply_errors),
        cmocka_unit_test(test_items_of_responses),
        cmocka_unit_test(test_items_of_chat),
        cmocka_unit_test(test_last_text),
        cmocka_unit_test(test_banner_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
