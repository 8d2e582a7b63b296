/* Anthropic's Messages over the API, with sim. Replies come from a script where it matters what a model says. */
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MESSAGES "/v1/messages"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASK(text) "\"max_tokens\":4000,\"messages\":[" USER(text) "]"
#define TOOL(name, more)                                                                                        \
    "{\"name\":\"" name "\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"n\":" \
    "{\"type\":\"integer\"}},\"required\":[\"n\"],\"additionalProperties\":false}" more "}"
#define TOOLS "\"tools\":[" TOOL("look", "") "," TOOL("lend", ",\"type\":\"custom\"") "]"
#define CALL(name, arguments) \
    "<tool_call>\\n{\\\"name\\\": \\\"" name "\\\", \\\"arguments\\\": " arguments "}\\n</tool_call>"
#define LINE(last, reply) "{\"when\":{\"last\":\"" last "\"},\"times\":0,\"bytes\":true,\"reply\":\"" reply "\"}\n"
#define LOOK_4 CALL("look", "{\\\"n\\\": 4}")

static const char script[] = LINE("look it up", "<think>\\nNumber 4.\\n</think>\\n\\nI look.\\n" LOOK_4
                                                "\\n" CALL("lend", "{\\\"n\\\": 5}")) LINE("just call", LOOK_4)
    LINE("think", "<think>\\nThree and four.\\n</think>\\n\\nSeven.") LINE("plain", "All is well.")
        LINE("say nothing", "\\n\\n") LINE("a vase of 4", "It is a vase.") LINE("Result of a call", "Thank you.") LINE(
            "afterwards",
            "The text was last.") "{\"when\":{\"last\":\"who\",\"system\":\"royal\\nplural\"},\"reply\":\"We.\","
                                  "\"times\":0}\n"
                                  "{\"when\":{\"last\":\"who\",\"tools\":true},\"reply\":\"With tools.\",\"times\":0}\n"
                                  "{\"when\":{\"last\":\"who\"},\"reply\":\"I.\",\"times\":0}\n"
                                  "{\"when\":{\"last\":\"one\\ntwo\\n\\nthree\"},\"reply\":\"Joined.\",\"times\":0}\n";

/* Prints thinking, and knows no tools: hearth describes them itself. */
static const char thinks[] = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
                             "{%- if m.role == 'assistant' and m.reasoning_content %}"
                             "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
                             "{{- m.content + '<|im_end|>\\n' }}{%- endfor %}"
                             "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    options.sim.ctx_tokens = 8192;
    options.script = script;
    options.chat_template = thinks;
    stage_open(&stage, &options);
    return 0;
}

static json_t *send_json(json_t *body, int want) {
    char *text = json_dumps(body, 0);
    json_t *answer = post(MESSAGES, text, want);
    free(text);
    json_decref(body);
    return answer;
}

static json_int_t prompt_tokens(json_t *answer) {
    return json_num(answer, "usage.input_tokens") + json_num(answer, "usage.cache_creation_input_tokens") +
           json_num(answer, "usage.cache_read_input_tokens");
}

/* ---- whole ---- */

static void a_message_has_its_members(void **state) {
    (void)state;
    json_t *answer = post(MESSAGES, "{\"model\":\"claude-any\"," ASK("plain") "}", 200);
    assert_string_equal(json_str(answer, "type"), "message");
    assert_string_equal(json_str(answer, "role"), "assistant");
    assert_string_equal(json_str(answer, "model"), "claude-any");
    assert_int_equal(strlen(json_str(answer, "id")), 4 + 32);
    assert_memory_equal(json_str(answer, "id"), "msg_", 4);
    assert_int_equal(json_array_size(json_at(answer, "content")), 1);
    assert_string_equal(json_str(answer, "content.0.type"), "text");
    assert_string_equal(json_str(answer, "content.0.text"), "All is well.");
    assert_string_equal(json_str(answer, "stop_reason"), "end_turn");
    assert_true(json_is_null(json_at(answer, "stop_sequence")));
    assert_string_equal(json_str(answer, "usage.service_tier"), "standard");
    assert_true(json_num(answer, "usage.output_tokens") > 0);
    assert_int_equal(json_num(answer, "usage.cache_creation_input_tokens"), 0);
    assert_non_null(json_at(answer, "hearth.reason"));
    json_t *count = post("/v1/messages/count_tokens", "{" ASK("plain") "}", 200);
    assert_int_equal(json_num(count, "input_tokens"), prompt_tokens(answer));
    json_decref(count);
    json_decref(answer);
    answer = post(MESSAGES, "{" ASK("say nothing") "}", 200);
    assert_int_equal(json_array_size(json_at(answer, "content")), 0);
    json_decref(answer);
}

static void calls_and_thinking_are_blocks(void **state) {
    (void)state;
    json_t *answer = post(MESSAGES, "{" TOOLS "," ASK("look it up") "}", 200);
    assert_string_equal(json_str(answer, "stop_reason"), "tool_use");
    assert_int_equal(json_array_size(json_at(answer, "content")), 4);
    assert_string_equal(json_str(answer, "content.0.type"), "thinking");
    assert_memory_equal(json_str(answer, "content.0.thinking"), "Number 4.", 9);
    assert_int_equal(strlen(json_str(answer, "content.0.signature")), 48);
    assert_memory_equal(json_str(answer, "content.1.text"), "I look.", 7);
    assert_string_equal(json_str(answer, "content.2.type"), "tool_use");
    assert_string_equal(json_str(answer, "content.2.name"), "look");
    assert_memory_equal(json_str(answer, "content.2.id"), "toolu_", 6);
    assert_int_equal(json_num(answer, "content.2.input.n"), 4);
    assert_int_equal(json_num(answer, "content.3.input.n"), 5);
    assert_string_not_equal(json_str(answer, "content.2.id"), json_str(answer, "content.3.id"));
    assert_true(json_num(answer, "usage.output_tokens_details.thinking_tokens") > 0);
    json_decref(answer);
}

/* ---- streamed ---- */

/* The events of a stream, each of the type that its line says. */
static json_t *stream(const char *body) {
    struct response response = http_call(stage.port, "POST", MESSAGES, NULL, body);
    assert_int_equal(response.status, 200);
    assert_true(response.complete);
    json_t *events = json_array();
    for (const char *at = (const char *)response.body.data; *at != '\0';) {
        char name[64];
        const char *data = strstr(at, "\ndata: "), *end = strstr(at, "\n\n");
        assert_int_equal(sscanf(at, "event: %63[a-z_]", name), 1);
        assert_true(data != NULL && end != NULL && data < end);
        json_t *event = json_loadb(data + 7, (size_t)(end - data) - 7, 0, NULL);
        assert_string_equal(json_str(event, "type"), name);
        json_array_append_new(events, event);
        at = end + 2;
    }
    response_finish(&response);
    return events;
}

/* Puts the blocks of a stream together, and checks that they come one after the other. */
static json_t *gather(json_t *events) {
    json_t *content = json_array(), *event, *block = NULL;
    char arguments[512] = "";
    size_t i;
    json_array_foreach(events, i, event) {
        const char *type = json_str(event, "type");
        if (strcmp(type, "content_block_start") == 0) {
            assert_null(block);
            assert_int_equal((size_t)json_num(event, "index"), json_array_size(content));
            block = json_deep_copy(json_at(event, "content_block"));
            json_array_append_new(content, block);
            arguments[0] = '\0';
            continue;
        }
        if (strncmp(type, "content_block", 13) != 0) {
            continue;
        }
        assert_non_null(block);
        assert_int_equal((size_t)json_num(event, "index") + 1, json_array_size(content));
        if (strcmp(type, "content_block_stop") == 0) {
            if (arguments[0] != '\0') {
                json_object_set_new(block, "input", json_loads(arguments, 0, NULL));
            }
            block = NULL;
            continue;
        }
        static const char *const members[][2] = {
            {"text_delta", "text"}, {"thinking_delta", "thinking"}, {"signature_delta", "signature"}};
        for (size_t k = 0; k < 3; k++) {
            if (strcmp(json_str(event, "delta.type"), members[k][0]) == 0) {
                char text[512], path[32];
                snprintf(path, sizeof path, "delta.%s", members[k][1]);
                snprintf(text, sizeof text, "%s%s", json_str(block, members[k][1]), json_str(event, path));
                json_object_set_new(block, members[k][1], json_string(text));
            }
        }
        if (strcmp(json_str(event, "delta.type"), "input_json_delta") == 0) {
            strncat(arguments, json_str(event, "delta.partial_json"), sizeof arguments - strlen(arguments) - 1);
        }
    }
    assert_null(block);
    return content;
}

/* The ids of calls are made anew each time. */
static void drop_ids(json_t *content) {
    size_t i;
    json_t *block;
    json_array_foreach(content, i, block) {
        json_object_del(block, "id");
    }
}

static void a_stream_says_the_same(void **state) {
    static const char *const asks[] = {"look it up", "just call", "think", "plain", "say nothing"};
    (void)state;
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        char body[2048];
        snprintf(body, sizeof body,
                 "{" TOOLS ",\"stream\":%s,\"max_tokens\":4000,\"messages\":[{\"role\":\"user\","
                 "\"content\":\"%s\"}]}",
                 "true", asks[i]);
        json_t *events = stream(body);
        size_t last = json_array_size(events) - 1;
        json_t *content = gather(events), *start = json_array_get(events, 0);
        snprintf(body, sizeof body,
                 "{" TOOLS ",\"stream\":%s,\"max_tokens\":4000,\"messages\":[{\"role\":\"user\","
                 "\"content\":\"%s\"}]}",
                 "false", asks[i]);
        json_t *whole = post(MESSAGES, body, 200);
        drop_ids(content);
        drop_ids(json_at(whole, "content"));
        if (!json_equal(content, json_at(whole, "content"))) {
            fail_msg("%s: %s", asks[i], json_dumps(content, 0));
        }
        assert_string_equal(json_str(start, "type"), "message_start");
        assert_int_equal(json_array_size(json_at(start, "message.content")), 0);
        assert_true(json_is_null(json_at(start, "message.stop_reason")));
        assert_int_equal(prompt_tokens(json_at(start, "message")), prompt_tokens(whole));
        assert_string_equal(json_str(json_array_get(events, 1), "type"), "ping");
        json_t *delta = json_array_get(events, last - 1);
        assert_string_equal(json_str(delta, "type"), "message_delta");
        assert_string_equal(json_str(delta, "delta.stop_reason"), json_str(whole, "stop_reason"));
        assert_int_equal(prompt_tokens(delta), prompt_tokens(whole));
        assert_int_equal(json_num(delta, "usage.output_tokens"), json_num(whole, "usage.output_tokens"));
        assert_string_equal(json_str(json_array_get(events, last), "type"), "message_stop");
        json_decref(content);
        json_decref(whole);
        json_decref(events);
    }
}

static void stop_sequences_are_named(void **state) {
    (void)state;
    json_t *answer = post(MESSAGES, "{\"stop_sequences\":[\"zzz\",\" is\"]," ASK("plain") "}", 200);
    assert_string_equal(json_str(answer, "stop_reason"), "stop_sequence");
    assert_string_equal(json_str(answer, "stop_sequence"), " is");
    assert_string_equal(json_str(answer, "content.0.text"), "All");
    json_decref(answer);
    json_t *events = stream("{\"stream\":true,\"stop_sequences\":[\" is\"]," ASK("plain") "}");
    json_t *delta = json_array_get(events, json_array_size(events) - 2);
    assert_string_equal(json_str(delta, "delta.stop_reason"), "stop_sequence");
    assert_string_equal(json_str(delta, "delta.stop_sequence"), " is");
    json_decref(events);
    answer = post(MESSAGES, "{\"max_tokens\":2,\"messages\":[" USER("Hello") "]}", 200);
    assert_string_equal(json_str(answer, "stop_reason"), "max_tokens");
    json_decref(answer);
}

/* ---- what comes back ---- */

static void blocks_become_messages(void **state) {
    static const char *const cases[][2] = {
        /* Blocks of one message, and messages of one role in a row. */
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"one\"},{\"type\":\"text\",\"text\":\"two\"}]}"
         "," USER("three") "]",
         "Joined."},
        /* Results are messages, in the order of the blocks. */
        {"[" USER("x") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"look\","
                       "\"input\":{}},{\"type\":\"tool_use\",\"id\":\"b\",\"name\":\"look\",\"input\":{}}]},{\"role\":"
                       "\"user\","
                       "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"b\",\"content\":\"no\"},{\"type\":"
                       "\"tool_result\","
                       "\"tool_use_id\":\"a\",\"is_error\":true,\"content\":[{\"type\":\"text\",\"text\":\"a "
                       "vase\"},{\"type\":"
                       "\"text\",\"text\":\"of 4\"}]}]}]",
         NULL},
        {"[" USER("x") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"look\","
                       "\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
                       "\"a\",\"content\":"
                       "\"Result of a call\"}]}]",
         "Thank you."},
        {"[" USER("x") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"look\","
                       "\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
                       "\"a\"},{\"type\":"
                       "\"text\",\"text\":\"afterwards\"}]}]",
         "The text was last."},
        /* A text document is text; what hosted tools left behind is nothing. */
        {"[" USER("x") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"server_tool_use\",\"id\":\"s\",\"name\":"
                       "\"web_search\",\"input\":{}},{\"type\":\"web_search_tool_result\",\"tool_use_id\":\"s\","
                       "\"content\":[]},"
                       "{\"type\":\"redacted_thinking\",\"data\":\"AAAA\"},{\"type\":\"thinking\",\"thinking\":\"x\","
                       "\"signature\":"
                       "\"c29tZXdoZXJlIGVsc2U=\"},{\"type\":\"text\",\"text\":\"Yes.\"}]},{\"role\":\"user\","
                       "\"content\":[{\"type\":"
                       "\"document\",\"title\":\"t\",\"source\":{\"type\":\"text\",\"media_type\":\"text/"
                       "plain\",\"data\":\"plain\"}}]"
                       "}]",
         "All is well."},
        {"[" USER("x") ",{\"role\":\"assistant\",\"content\":\"Yes.\"},{\"role\":\"system\",\"content\":\"royal\\n"
                       "plural\"}," USER("who") "]",
         "We."},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[2048];
        snprintf(body, sizeof body, "{\"max_tokens\":40,\"messages\":%s}", cases[i][0]);
        json_t *answer = post(MESSAGES, body, 200);
        if (cases[i][1] != NULL) {
            assert_string_equal(json_str(answer, "content.0.text"), cases[i][1]);
        }
        json_decref(answer);
    }
    json_t *answer = post(MESSAGES,
                          "{\"system\":[{\"type\":\"text\",\"text\":\"royal\"},{\"type\":\"text\",\"text\":"
                          "\"plural\"}]," ASK("who") "}",
                          200);
    assert_string_equal(json_str(answer, "content.0.text"), "We.");
    json_decref(answer);
}

/* A list of one block and a plain string are the same message: nothing but the new one is computed. */
static void strings_and_blocks_alternate(void **state) {
    json_t *messages = json_array();
    json_int_t before = 0;
    (void)state;
    for (int turn = 0; turn < 5; turn++) {
        char text[512];
        int len = snprintf(text, sizeof text, "Turn %d of a talk in which blocks and strings take turns. ", turn);
        while (len < 300) {
            len += snprintf(text + len, sizeof text - (size_t)len, "word%d ", len);
        }
        snprintf(text + len, sizeof text - (size_t)len, "plain");
        size_t i;
        json_t *message;
        json_array_foreach(messages, i, message) { /* all but the last are strings now */
            json_t *block = json_at(message, "content.0");
            if (json_is_object(block) && strcmp(json_str(block, "type"), "text") == 0) {
                json_object_set(message, "content", json_at(block, "text"));
            }
        }
        json_array_append_new(messages, json_pack("{s:s, s:[{s:s, s:s, s:{s:s}}]}", "role", "user", "content", "type",
                                                  "text", "text", text, "cache_control", "type", "ephemeral"));
        json_t *answer = send_json(json_pack("{s:i, s:O}", "max_tokens", 4000, "messages", messages), 200);
        const json_int_t all = prompt_tokens(answer), read = json_num(answer, "usage.cache_read_input_tokens");
        assert_true(read >= before - 1);
        before = all + json_num(answer, "usage.output_tokens") - 1;
        json_array_append_new(messages,
                              json_pack("{s:s, s:O}", "role", "assistant", "content", json_at(answer, "content")));
        json_decref(answer);
    }
    json_decref(messages);
}

/* Thinking that comes back counts when its signature holds, is refused when it was changed, and is left out when it was
 * signed elsewhere. */
static void signatures_are_checked(void **state) {
    (void)state;
    json_t *answer = post(MESSAGES, "{" ASK("think") "}", 200);
    json_t *history = json_pack("[{s:s, s:s}, {s:s, s:O}, {s:s, s:s}]", "role", "user", "content", "think", "role",
                                "assistant", "content", json_at(answer, "content"), "role", "user", "content", "plain");
    json_decref(send_json(json_pack("{s:i, s:O}", "max_tokens", 40, "messages", history), 200));
    json_t *block = json_at(history, "1.content.0");
    char *signature = strdup(json_str(block, "signature"));
    json_object_set_new(block, "thinking", json_string("Three and five."));
    json_t *refused = send_json(json_pack("{s:i, s:O}", "max_tokens", 40, "messages", history), 400);
    assert_string_equal(json_str(refused, "error.message"),
                        "messages.1.content.0: Invalid `signature` in `thinking` block");
    json_decref(refused);
    json_object_set_new(block, "thinking", json_string("\n Three and four.  "));
    json_decref(send_json(json_pack("{s:i, s:O}", "max_tokens", 40, "messages", history), 200));
    json_object_set_new(block, "signature", json_string("RXJyb3I="));
    json_decref(send_json(json_pack("{s:i, s:O}", "max_tokens", 40, "messages", history), 200));
    json_object_del(block, "signature");
    json_decref(send_json(json_pack("{s:i, s:O}", "max_tokens", 40, "messages", history), 200));
    signature[0] = signature[0] == 'A' ? 'B' : 'A';
    json_object_set_new(block, "signature", json_string(signature));
    json_decref(send_json(json_pack("{s:i, s:O}", "max_tokens", 40, "messages", history), 400));
    free(signature);
    json_decref(history);
    json_decref(answer);
}

static void thinking_can_be_left_out(void **state) {
    (void)state;
    json_t *answer =
        post(MESSAGES, "{\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"}," ASK("think") "}", 200);
    assert_string_equal(json_str(answer, "content.0.type"), "thinking");
    assert_string_equal(json_str(answer, "content.0.thinking"), "");
    assert_string_equal(json_str(answer, "content.1.text"), "Seven.");
    json_t *body = json_pack("{s:i, s:[{s:s, s:s}, {s:s, s:O}, {s:s, s:s}]}", "max_tokens", 40, "messages", "role",
                             "user", "content", "think", "role", "assistant", "content", json_at(answer, "content"),
                             "role", "user", "content", "plain");
    json_decref(send_json(body, 200));
    json_decref(answer);
    json_t *events =
        stream("{\"stream\":true,\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"}," ASK("think") "}");
    json_t *content = gather(events);
    assert_string_equal(json_str(content, "0.thinking"), "");
    assert_int_equal(strlen(json_str(content, "0.signature")), 48);
    assert_string_equal(json_str(content, "1.text"), "Seven.");
    json_decref(content);
    json_decref(events);
}

static void a_last_reply_goes_on(void **state) {
    (void)state;
    json_t *count = post("/v1/messages/count_tokens",
                         "{\"messages\":[" USER("x") ",{\"role\":\"assistant\",\"content\":\"The answer\"}]}", 200);
    json_t *ended = post("/v1/messages/count_tokens",
                         "{\"messages\":[" USER("x") ",{\"role\":\"assistant\",\"content\":\"\"}]}", 200);
    json_t *asked = post("/v1/messages/count_tokens", "{\"messages\":[" USER("x") "]}", 200);
    assert_int_equal(json_num(ended, "input_tokens"), json_num(asked, "input_tokens"));
    assert_true(json_num(count, "input_tokens") > json_num(asked, "input_tokens"));
    assert_true(json_num(count, "input_tokens") < json_num(asked, "input_tokens") + 20); /* thinking has ended */
    json_decref(count);
    json_decref(ended);
    json_decref(asked);
    json_t *answer =
        post(MESSAGES,
             "{\"max_tokens\":4,\"messages\":[" USER("x") ",{\"role\":\"assistant\",\"content\":"
                                                          "[{\"type\":\"text\",\"text\":\"The answer\"}]}]}",
             200);
    json_decref(answer);
    answer = post(MESSAGES, "{\"max_tokens\":0,\"messages\":[" USER("Warm this") "]}", 200);
    assert_string_equal(json_str(answer, "stop_reason"), "max_tokens");
    assert_int_equal(json_array_size(json_at(answer, "content")), 0);
    json_decref(answer);
}

/* ---- tools ---- */

static void tools_are_chosen(void **state) {
    static const char *const choices[][2] = {
        {"{\"type\":\"any\"}", NULL},
        {"{\"type\":\"tool\",\"name\":\"lend\"}", "lend"},
        {"{\"type\":\"any\",\"disable_parallel_tool_use\":true}", NULL},
    };
    const struct stage thinking = stage;
    struct stage_options options;
    (void)state;
    stage_options_default(&options); /* sim thinks for as long as it may: here it may not */
    options.sim.ctx_tokens = 8192;
    stage_open(&stage, &options);
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        char body[2048];
        snprintf(body, sizeof body, "{\"seed\":%zu," TOOLS ",\"tool_choice\":%s," ASK("Hello") "}", i, choices[i][0]);
        json_t *answer = post(MESSAGES, body, 200);
        json_t *content = json_at(answer, "content");
        json_t *block = json_array_get(content, json_array_size(content) - 1);
        assert_string_equal(json_str(block, "type"), "tool_use");
        assert_true(json_is_integer(json_at(block, "input.n")));
        if (choices[i][1] != NULL) {
            assert_string_equal(json_str(block, "name"), choices[i][1]);
        }
        assert_string_equal(json_str(answer, "stop_reason"), "tool_use");
        json_decref(answer);
    }
    stage_close(&stage);
    stage = thinking;
    /* Tools without a schema are left out, and may not be alone in being chosen. */
    json_t *answer = post(MESSAGES,
                          "{\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"},{\"type\":"
                          "\"web_search_20250305\",\"name\":\"web_search\"}]," ASK("who") "}",
                          200);
    assert_string_equal(json_str(answer, "content.0.text"), "I.");
    json_decref(answer);
    answer = post(MESSAGES,
                  "{\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}," TOOL(
                      "look", ",\"eager_input_streaming\":true,\"input_examples\":[{\"n\":1}]") "]," ASK("who") "}",
                  200);
    assert_string_equal(json_str(answer, "content.0.text"), "With tools.");
    json_decref(answer);
}

static void replies_keep_to_a_schema(void **state) {
    static const char *const forms[] = {
        "\"output_config\":{\"effort\":\"low\",\"format\":{\"type\":\"json_schema\",\"schema\":{\"enum\":[\"red\"]}}}",
        "\"output_format\":{\"type\":\"json_schema\",\"schema\":{\"enum\":[\"red\"]}}"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char body[1024];
        snprintf(body, sizeof body, "{%s," ASK("Hello") "}", forms[i]);
        json_t *answer = post(MESSAGES, body, 200);
        assert_string_equal(json_str(answer, "content.0.text"), "\"red\"");
        json_decref(answer);
    }
}

/* ---- sessions ---- */

static void a_session_goes_on(void **state) {
    (void)state;
    json_t *answer = post(MESSAGES, "{\"session_id\":\"talk\"," TOOLS "," ASK("look it up") "}", 200);
    assert_string_equal(json_str(answer, "hearth.session"), "talk");
    json_t *body = json_pack("{s:s, s:i, s:[{s:s, s:[{s:s, s:O, s:s}, {s:s, s:O, s:s}]}]}", "session_id", "talk",
                             "max_tokens", 400, "messages", "role", "user", "content", "type", "tool_result",
                             "tool_use_id", json_at(answer, "content.2.id"), "content", "x", "type", "tool_result",
                             "tool_use_id", json_at(answer, "content.3.id"), "content", "a vase of 4");
    json_t *next = send_json(body, 200);
    assert_string_equal(json_str(next, "content.0.text"), "It is a vase.");
    const json_int_t before = prompt_tokens(answer) + json_num(answer, "usage.output_tokens");
    assert_true(prompt_tokens(next) > before);
    assert_true(json_num(next, "usage.cache_read_input_tokens") >= before - 2);
    json_decref(next);
    /* Warming says nothing that is to be remembered. */
    json_decref(post(MESSAGES, "{\"session_id\":\"talk\",\"max_tokens\":0,\"messages\":[" USER("plain") "]}", 200));
    next = post(MESSAGES, "{\"session_id\":\"talk\",\"max_tokens\":40,\"messages\":[" USER("plain") "]}", 200);
    assert_string_equal(json_str(next, "content.0.text"), "All is well.");
    json_decref(next);
    json_decref(answer);
}

/* A thread is kept under the ids of its messages, with its system text and tools; any of them can be gone on from, more
 * than once. */
static void a_thread_goes_on(void **state) {
    (void)state;
    json_t *first =
        post(MESSAGES,
             "{\"thread\":{\"type\":\"create\"},\"system\":\"royal\\nplural\"," TOOLS "," ASK("just call") "}", 200);
    const json_int_t before = prompt_tokens(first) + json_num(first, "usage.output_tokens");
    for (int i = 0; i < 2; i++) {
        json_t *next =
            send_json(json_pack("{s:{s:s, s:O}, s:i, s:[{s:s, s:[{s:s, s:O, s:s}, {s:s, s:s}]}]}", "thread", "type",
                                "continue", "previous_message_id", json_at(first, "id"), "max_tokens", 40, "messages",
                                "role", "user", "content", "type", "tool_result", "tool_use_id",
                                json_at(first, "content.0.id"), "content", "x", "type", "text", "text", "who"),
                      200);
        assert_string_equal(json_str(next, "content.0.text"), "We.");
        assert_true(json_num(next, "usage.cache_read_input_tokens") >= before - 2);
        json_decref(next);
    }
    static const struct {
        const char *more;
        int status;
        const char *code;
    } refused[] = {
        {"\"system\":\"Other.\"", 400, "thread_fingerprint_mismatch"},
        {"\"tools\":[]", 400, "thread_fingerprint_mismatch"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "{\"thread\":{\"type\":\"continue\",\"previous_message_id\":\"%s\"},%s," ASK("who") "}",
                 json_str(first, "id"), refused[i].more);
        json_t *answer = post(MESSAGES, body, refused[i].status);
        assert_string_equal(json_str(answer, "error.details.error_code"), refused[i].code);
        json_decref(answer);
    }
    static const char *const gone[] = {"msg_00000000000000000000000000000000", "msg_", ""};
    for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "{\"thread\":{\"type\":\"continue\",\"previous_message_id\":\"%s\"}," ASK("who") "}", gone[i]);
        json_t *answer = post(MESSAGES, body, 404);
        assert_string_equal(json_str(answer, "error.type"), "not_found_error");
        assert_string_equal(json_str(answer, "error.details.error_code"), "thread_not_found");
        json_decref(answer);
    }
    json_decref(first);
}

/* A line that changes with every request and is not meant for the model. */
static void the_billing_line_is_no_prompt(void **state) {
    static const char *const forms[] = {
        "\"system\":\"x-anthropic-billing-header: cch=1;\\nroyal\\nplural\"",
        ("\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=22;\"},{\"type\":\"text\",\"text\":"
         "\"royal\"},{\"type\":\"text\",\"text\":\"plural\"}]"),
        "\"system\":\"royal\\nplural\"",
    };
    json_int_t counted = -1;
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        char body[512];
        snprintf(body, sizeof body, "{%s," ASK("who") "}", forms[i]);
        json_t *count = post("/v1/messages/count_tokens", body, 200);
        counted = counted < 0 ? json_num(count, "input_tokens") : counted;
        assert_int_equal(json_num(count, "input_tokens"), counted);
        json_decref(count);
    }
    json_decref(post(MESSAGES, "{\"system\":\"x-anthropic-billing-header:\"," ASK("who") "}", 200));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_has_its_members), cmocka_unit_test(calls_and_thinking_are_blocks),
        cmocka_unit_test(a_stream_says_the_same),    cmocka_unit_test(stop_sequences_are_named),
        cmocka_unit_test(blocks_become_messages),    cmocka_unit_test(strings_and_blocks_alternate),
        cmocka_unit_test(signatures_are_checked),    cmocka_unit_test(thinking_can_be_left_out),
        cmocka_unit_test(a_last_reply_goes_on),      cmocka_unit_test(tools_are_chosen),
        cmocka_unit_test(replies_keep_to_a_schema),  cmocka_unit_test(a_session_goes_on),
        cmocka_unit_test(a_thread_goes_on),          cmocka_unit_test(the_billing_line_is_no_prompt),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
