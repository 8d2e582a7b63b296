/* Tools, structured output and reasoning over the API, with sim. Replies come from a script where it matters how a
 * model writes, and from sim under a grammar where it matters that it cannot write anything else. The template is
 * chatml, which knows no tools: hearth describes them itself. */
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CHAT "/v1/chat/completions"
#define ASK(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define FUNCTION(name, properties, required)                                                                       \
    "{\"name\":\"" name "\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{" properties \
    "},\"required\":[" required "],\"additionalProperties\":false}}"
#define TOOL(name, properties, required) "{\"type\":\"function\",\"function\":" FUNCTION(name, properties, required) "}"
#define UNIT "\"unit\":{\"enum\":[\"metric\",\"imperial\"]}"
#define WEATHER TOOL("get_weather", "\"city\":{\"type\":\"string\"}," UNIT, "\"city\"")
#define SWITCH TOOL("switch", "\"on\":{\"type\":\"boolean\"}", "\"on\"")
#define UNITS TOOL("units", UNIT, "\"unit\"")
#define TOOLS "\"tools\":[" WEATHER "," SWITCH "," UNITS "]"

#define NAMED(function) "{\"type\":\"function\",\"function\":{" function "}}"
#define ALLOWED(tools) "{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\",\"tools\":[" tools "]}}"

/* Raw replies, as they stand in a JSON string. */
#define CALL(name, arguments) \
    "<tool_call>\\n{\\\"name\\\": \\\"" name "\\\", \\\"arguments\\\": " arguments "}\\n</tool_call>"
#define OSLO CALL("get_weather", "{\\\"unit\\\":  \\\"metric\\\", \\\"city\\\": \\\"Troms\\u00f8\\\"}")
#define ON CALL("switch", "{\\\"on\\\": true}")
#define LINE(last, rest) "{\"when\":{\"last\":\"" last "\"}," rest "}\n"

static const char script[] = LINE("one call", "\"times\":0,\"reply\":\"" OSLO "\"") LINE(
    "by the byte",
    "\"times\":0,\"bytes\":true,\"reply\":\"Let me see.\\n" OSLO
    "\"") LINE("two calls", "\"times\":0,\"reply\":\"" OSLO "\\n" ON
                            "\"") LINE("two bytewise", "\"times\":0,\"bytes\":true,\"reply\":\"" OSLO "\\n" ON "\"")
    LINE("plain", "\"times\":0,\"reply\":\"No tool is needed, 1 < 2.\"") LINE(
        "think", "\"times\":0,\"reply\":\"<think>\\nThree and four.\\n</think>\\n\\nSeven.\"")
        LINE("first then", "\"reply\":\"first\"") LINE(
            "first then",
            "\"reply\":\"then\"") "{\"when\":{\"last\":\"who\",\"tools\":true},\"reply\":\"with tools\",\"times\":0}\n"
                                  "\n"
                                  "{\"when\":{\"last\":\"who\",\"system\":\"royal\"},\"reply\":\"we\",\"times\":0}\n"
                                  "{\"when\":{\"last\":\"who\"},\"reply\":\"I\",\"times\":0}\n";

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    options.sim.ctx_tokens = 16384;
    options.script = script;
    stage_open(&stage, &options);
    return 0;
}

/* A streamed reply, put together as a client does. */
struct gathered {
    struct hearth_buf content, reasoning;
    struct {
        char id[64], name[64];
        struct hearth_buf arguments;
        size_t pieces;
    } calls[4];
    size_t call_count;
    char finish[32];
};

static void gather_call(struct gathered *out, json_t *call) {
    json_int_t index = json_num(call, "index");
    assert_true(index >= 0 && index < 4);
    if (json_at(call, "function.name") != NULL) {
        assert_int_equal((size_t)index, out->call_count); /* in order, each once */
        assert_string_equal(json_str(call, "type"), "function");
        assert_string_equal(json_str(call, "function.arguments"), "");
        snprintf(out->calls[index].id, sizeof out->calls[index].id, "%s", json_str(call, "id"));
        snprintf(out->calls[index].name, sizeof out->calls[index].name, "%s", json_str(call, "function.name"));
        out->call_count++;
    } else {
        assert_int_equal((size_t)index + 1, out->call_count);
        assert_null(json_at(call, "id"));
        out->calls[index].pieces++;
    }
    assert_true(hearth_buf_text(&out->calls[index].arguments, json_str(call, "function.arguments")));
}

static void gather(const char *body, struct gathered *out) {
    struct response response = http_call(stage.port, "POST", CHAT, NULL, body);
    memset(out, 0, sizeof *out);
    assert_int_equal(response.status, 200);
    assert_true(response.complete);
    json_t *events = sse_events((const char *)response.body.data);
    assert_non_null(events);
    assert_string_equal(json_str(events, "0.choices.0.delta.role"), "assistant");
    size_t i, k;
    json_t *event, *call;
    json_array_foreach(events, i, event) {
        assert_string_equal(json_str(event, "error.message"), "");
        assert_true(hearth_buf_text(&out->content, json_str(event, "choices.0.delta.content")));
        assert_true(hearth_buf_text(&out->reasoning, json_str(event, "choices.0.delta.reasoning_content")));
        json_array_foreach(json_at(event, "choices.0.delta.tool_calls"), k, call) {
            gather_call(out, call);
        }
        if (json_is_string(json_at(event, "choices.0.finish_reason"))) {
            assert_string_equal(out->finish, "");
            snprintf(out->finish, sizeof out->finish, "%s", json_str(event, "choices.0.finish_reason"));
        }
    }
    json_decref(events);
    response_finish(&response);
}

static void gathered_finish(struct gathered *out) {
    hearth_buf_finish(&out->content);
    hearth_buf_finish(&out->reasoning);
    for (size_t i = 0; i < 4; i++) {
        hearth_buf_finish(&out->calls[i].arguments);
    }
}

static void assert_json_text(const char *text, const char *want) {
    json_t *a = json_loads(text, 0, NULL);
    json_t *b = json_loads(want, 0, NULL);
    if (!json_equal(a, b)) {
        fail_msg("%s is not %s", text, want);
    }
    json_decref(a);
    json_decref(b);
}

static void calls_come_whole(void **state) {
    (void)state;
    json_t *answer = post(CHAT, "{" ASK("one call") "," TOOLS "}", 200);
    assert_string_equal(json_str(answer, "choices.0.finish_reason"), "tool_calls");
    assert_true(json_is_null(json_at(answer, "choices.0.message.content")));
    assert_int_equal(json_array_size(json_at(answer, "choices.0.message.tool_calls")), 1);
    assert_string_equal(json_str(answer, "choices.0.message.tool_calls.0.type"), "function");
    assert_true(strlen(json_str(answer, "choices.0.message.tool_calls.0.id")) > 4);
    assert_string_equal(json_str(answer, "choices.0.message.tool_calls.0.function.name"), "get_weather");
    assert_json_text(json_str(answer, "choices.0.message.tool_calls.0.function.arguments"),
                     "{\"city\":\"Troms\\u00f8\",\"unit\":\"metric\"}");
    json_decref(answer);
    answer = post(CHAT, "{\"n\":2,\"max_tokens\":4000," ASK("two calls") "," TOOLS "}", 200);
    for (int i = 0; i < 2; i++) {
        json_t *message = json_at(json_array_get(json_at(answer, "choices"), (size_t)i), "message");
        assert_int_equal(json_array_size(json_at(message, "tool_calls")), 2);
        assert_string_equal(json_str(message, "tool_calls.1.function.name"), "switch");
        assert_json_text(json_str(message, "tool_calls.1.function.arguments"), "{\"on\":true}");
        assert_string_not_equal(json_str(message, "tool_calls.0.id"), json_str(message, "tool_calls.1.id"));
    }
    json_decref(answer);
    answer = post(CHAT, "{" ASK("plain") "," TOOLS "}", 200);
    assert_string_equal(json_str(answer, "choices.0.finish_reason"), "stop");
    assert_string_equal(json_str(answer, "choices.0.message.content"), "No tool is needed, 1 < 2.");
    assert_null(json_at(answer, "choices.0.message.tool_calls"));
    json_decref(answer);
}

static void calls_come_in_pieces(void **state) {
    static const char *const asks[] = {"two calls", "two bytewise"};
    struct gathered got;
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char body[2048];
        snprintf(body, sizeof body, "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]," TOOLS "}",
                 asks[i]);
        gather(body, &got);
        assert_string_equal(got.finish, "tool_calls");
        assert_string_equal(got.content.len > 0 ? (const char *)got.content.data : "", "");
        assert_int_equal(got.call_count, 2);
        assert_string_equal(got.calls[0].name, "get_weather");
        assert_json_text((const char *)got.calls[0].arguments.data, "{\"city\":\"Troms\\u00f8\",\"unit\":\"metric\"}");
        assert_json_text((const char *)got.calls[1].arguments.data, "{\"on\":true}");
        assert_true(got.calls[0].pieces >= 1 && got.calls[0].id[0] != '\0');
        assert_string_not_equal(got.calls[0].id, got.calls[1].id);
        gathered_finish(&got);
    }
    gather("{\"stream\":true," ASK("by the byte") "," TOOLS "}", &got);
    assert_memory_equal((const char *)got.content.data, "Let me see.", 11);
    assert_null(strchr((const char *)got.content.data, '<'));
    assert_int_equal(got.call_count, 1);
    assert_true(got.calls[0].pieces >= 2);
    gathered_finish(&got);
    gather("{\"stream\":true," ASK("plain") "," TOOLS "}", &got);
    assert_string_equal((const char *)got.content.data, "No tool is needed, 1 < 2.");
    assert_string_equal(got.finish, "stop");
    gathered_finish(&got);
}

/* With log-probabilities the chunks have them all, whichever way a token's text goes. */
static void logprobs_go_with_calls(void **state) {
    (void)state;
    json_t *whole = post(CHAT, "{\"logprobs\":true," ASK("one call") "," TOOLS "}", 200);
    size_t want = json_array_size(json_at(whole, "choices.0.logprobs.content"));
    size_t count = 0, i;
    struct response response =
        http_call(stage.port, "POST", CHAT, NULL, "{\"logprobs\":true,\"stream\":true," ASK("one call") "," TOOLS "}");
    json_t *events = sse_events((const char *)response.body.data);
    json_t *event;
    json_array_foreach(events, i, event) {
        count += json_array_size(json_at(event, "choices.0.logprobs.content"));
    }
    assert_true(want > 10);
    assert_int_equal(count, want);
    json_decref(events);
    json_decref(whole);
    response_finish(&response);
}

/* Whatever sim would say, it calls what it must, with arguments that fit. */
static void calls_can_be_forced(void **state) {
    static const char *const choices[] = {
        "\"required\"",
        NAMED("\"name\":\"units\""),
        ALLOWED(NAMED("\"name\":\"switch\"") "," NAMED("\"name\":\"units\"")),
    };
    (void)state;
    for (size_t i = 0; i < 12; i++) {
        char body[2048];
        snprintf(body, sizeof body,
                 "{\"seed\":%zu,\"max_tokens\":4000,\"tools\":[" SWITCH "," UNITS
                 "],\"tool_choice\":%s," ASK("Hello") "}",
                 i, choices[i % 3]);
        json_t *answer = post(CHAT, body, 200);
        assert_string_equal(json_str(answer, "choices.0.finish_reason"), "tool_calls");
        assert_int_equal(json_array_size(json_at(answer, "choices.0.message.tool_calls")), 1);
        const char *name = json_str(answer, "choices.0.message.tool_calls.0.function.name");
        const char *text = json_str(answer, "choices.0.message.tool_calls.0.function.arguments");
        json_t *arguments = json_loads(text, 0, NULL);
        assert_int_equal(json_object_size(arguments), 1);
        if (strcmp(name, "switch") == 0) {
            assert_int_not_equal(i % 3, 1);
            assert_true(json_is_boolean(json_object_get(arguments, "on")));
        } else {
            assert_string_equal(name, "units");
            const char *unit = json_string_value(json_object_get(arguments, "unit"));
            assert_true(strcmp(unit, "metric") == 0 || strcmp(unit, "imperial") == 0);
        }
        json_decref(arguments);
        json_decref(answer);
    }
}

/* Tools of MCP servers, and classes of a framework's users, have schemas that no grammar can keep to the letter. */
static const char *const odd_members[] = {
    "\"v\":{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":2,\"items\":{\"type\":\"string\"}}",
    "\"v\":{\"type\":\"string\",\"pattern\":\"^(?!x)[a-z]{3}$\"}",
    "\"v\":{\"type\":\"integer\",\"multipleOf\":5}",
    "\"v\":{\"$ref\":\"https://example.org/v.json\"}",
};
#define ODD_COUNT (sizeof odd_members / sizeof odd_members[0])

/* A tool that is not strict is called all the same, with arguments that fit as far as they can. */
static void calls_are_forced_whatever_the_schema(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * ODD_COUNT; i++) {
        char body[2048];
        snprintf(body, sizeof body,
                 "{\"seed\":%zu,\"max_tokens\":4000,\"tool_choice\":\"required\",\"tools\":["
                 "{\"type\":\"function\",\"function\":{\"name\":\"odd\",\"strict\":%s,\"parameters\":"
                 "{\"type\":\"object\",\"properties\":{%s},\"required\":[\"v\"]}}}]," ASK("Hello") "}",
                 i, i % 2 == 0 ? "false" : "true", odd_members[i / 2]);
        json_t *answer = post(CHAT, body, i % 2 == 0 ? 200 : 400);
        if (i % 2 == 0) {
            json_t *arguments =
                json_loads(json_str(answer, "choices.0.message.tool_calls.0.function.arguments"), 0, NULL);
            assert_true(json_is_object(arguments));
            json_decref(arguments);
        } else {
            assert_string_equal(json_str(answer, "error.code"), "unsupported_schema");
        }
        json_decref(answer);
    }
}

/* So is a reply in a format that is not strict. */
static void formats_are_kept_as_far_as_they_can_be(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * ODD_COUNT; i++) {
        char body[2048];
        snprintf(body, sizeof body,
                 "{\"seed\":%zu,\"max_tokens\":4000,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
                 "{\"name\":\"odd\",%s\"schema\":{\"type\":\"object\",\"properties\":{%s},\"required\":[\"v\"]}}}," ASK(
                     "Hello") "}",
                 i, i % 2 == 0 ? "" : "\"strict\":true,", odd_members[i / 2]);
        json_t *answer = post(CHAT, body, i % 2 == 0 ? 200 : 400);
        if (i % 2 == 0) {
            json_t *said = json_loads(json_str(answer, "choices.0.message.content"), 0, NULL);
            assert_true(json_is_object(said));
            json_decref(said);
        } else {
            assert_string_equal(json_str(answer, "error.code"), "unsupported_schema");
        }
        json_decref(answer);
    }
}

/* vLLM's clients ask so. None is ignored: their parsers rely on it. */
static void constraints_have_vllms_names(void **state) {
    static const struct {
        const char *said, *param; /* of the error, or NULL */
    } cases[] = {
        {"\"structured_outputs\":{\"choice\":[\"re\\\"d\\n\\\\\",\"re\\\"d\\n\\\\\"]}", NULL},
        {"\"guided_choice\":[\"re\\\"d\\n\\\\\"]", NULL},
        {"\"structured_outputs\":{\"grammar\":\"root ::= \\\"re\\\\\\\"d\\\\n\\\\\\\\\\\"\"}", NULL},
        {"\"guided_json\":{\"const\":\"re\\\"d\\n\\\\\"}", NULL},
        {"\"structured_outputs\":{\"json\":\"{\\\"const\\\":7}\"}", NULL},
        {"\"structured_outputs\":{\"json_object\":true}", NULL}, /* any object */
        {"\"structured_outputs\":{\"json_object\":false,\"choice\":[\"a\"]}", NULL},
        {"\"structured_outputs\":{\"json\":null,\"backend\":\"auto\"}", NULL},
        {"\"structured_outputs\":{\"json_object\":1}", "structured_outputs.json_object"},
        {"\"structured_outputs\":{\"choice\":[]}", "structured_outputs.choice"},
        {"\"structured_outputs\":{\"choice\":[1]}", "structured_outputs.choice"},
        {"\"structured_outputs\":{\"regex\":\"a+\"}", "structured_outputs.regex"},
        {"\"guided_regex\":\"a+\"", "guided_regex"},
        {"\"guided_json\":{},\"guided_choice\":[\"a\"]", "grammar"},
        {"\"guided_choice\":[\"a\"],\"guided_grammar\":\"root ::= [a]\"", "guided_grammar"},
    };
    static const char *const wanted[] = {"re\"d\n\\", "re\"d\n\\", "re\"d\n\\", "\"re\\\"d\\n\\\\\"", "7"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[512];
        snprintf(body, sizeof body, "{%s," ASK("Hello") "}", cases[i].said);
        json_t *answer = post(CHAT, body, cases[i].param == NULL ? 200 : 400);
        if (i < sizeof wanted / sizeof wanted[0]) {
            assert_string_equal(json_str(answer, "choices.0.message.content"), wanted[i]);
        } else if (i == sizeof wanted / sizeof wanted[0]) {
            assert_int_equal(json_str(answer, "choices.0.message.content")[0], '{');
        } else if (cases[i].param != NULL) {
            assert_string_equal(json_str(answer, "error.param"), cases[i].param);
        }
        json_decref(answer);
    }
}

/* The prompt is the same whatever the choice, so that it costs nothing to change it. */
static void the_choice_is_not_in_the_prompt(void **state) {
    static const char *const choices[] = {"\"auto\"", "\"none\"", "\"required\"",
                                          "{\"type\":\"function\",\"function\":{\"name\":\"switch\"}}"};
    char *first = NULL;
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        char body[2048];
        snprintf(body, sizeof body, "{\"tool_choice\":%s," ASK("Hello") "," TOOLS "}", choices[i]);
        json_t *answer = post("/apply-template", body, 200);
        if (first == NULL) {
            first = strdup(json_str(answer, "prompt"));
            assert_non_null(strstr(first, "get_weather"));
        }
        assert_string_equal(json_str(answer, "prompt"), first);
        json_decref(answer);
    }
    free(first);
    json_t *answer = post(CHAT, "{\"tool_choice\":\"none\"," ASK("one call") "," TOOLS "}", 200);
    assert_null(json_at(answer, "choices.0.message.tool_calls"));
    assert_string_equal(json_str(answer, "choices.0.finish_reason"), "stop");
    json_decref(answer);
}

/* However long a reply was allowed to be, it is well-formed, and the same whether streamed or not. */
static void cut_replies_are_whole_responses(void **state) {
    size_t calls_seen[3] = {0};
    (void)state;
    for (int limit = 1; limit < 200; limit += 3) {
        char body[2048];
        struct gathered got;
        snprintf(body, sizeof body, "{\"max_tokens\":%d," ASK("two calls") "," TOOLS "}", limit);
        json_t *answer = post(CHAT, body, 200);
        const char *finish = json_str(answer, "choices.0.finish_reason");
        json_t *calls = json_at(answer, "choices.0.message.tool_calls");
        size_t count = json_array_size(calls);
        assert_true(count <= 2);
        calls_seen[count]++;
        for (size_t i = 0; i < count; i++) {
            json_t *arguments = json_loads(json_str(json_array_get(calls, i), "function.arguments"), 0, NULL);
            assert_true(json_is_object(arguments));
            json_decref(arguments);
        }
        assert_true(strcmp(finish, "length") == 0 || count == 2);
        snprintf(body, sizeof body, "{\"stream\":true,\"max_tokens\":%d," ASK("two calls") "," TOOLS "}", limit);
        gather(body, &got);
        assert_string_equal(got.finish, finish);
        assert_true(got.call_count >= count);
        gathered_finish(&got);
        json_decref(answer);
    }
    assert_true(calls_seen[0] > 0 && calls_seen[1] > 0 && calls_seen[2] > 0);
    /* A stop string within a call. */
    json_t *answer = post(CHAT, "{\"stop\":[\"Troms\"]," ASK("one call") "," TOOLS "}", 200);
    assert_string_equal(json_str(answer, "choices.0.finish_reason"), "length");
    assert_null(json_at(answer, "choices.0.message.tool_calls"));
    json_decref(answer);
}

/* A call and its result go back as a client prints them: only what is new is computed. */
static void results_go_back(void **state) {
    (void)state;
    json_t *first = post(CHAT, "{" ASK("by the byte") "," TOOLS "}", 200);
    json_t *message = json_at(first, "choices.0.message");
    json_t *calls =
        json_pack("[{s:s, s:s, s:{s:s, s:s}}]", "id", json_str(message, "tool_calls.0.id"), "type", "function",
                  "function", "name", "get_weather", "arguments", "{\"city\":\"Troms\xC3\xB8\",\"unit\":\"metric\"}");
    json_t *tools = json_loads("[" WEATHER "," SWITCH "," UNITS "]", 0, NULL);
    json_t *request = json_pack(
        "{s:[{s:s, s:s}, {s:s, s:O, s:o}, {s:s, s:s, s:s}], s:o, s:i}", "messages", "role", "user", "content",
        "by the byte", "role", "assistant", "content", json_at(message, "content"), "tool_calls", calls, "role", "tool",
        "tool_call_id", json_str(message, "tool_calls.0.id"), "content", "7 degrees", "tools", tools, "max_tokens", 1);
    char *body = json_dumps(request, 0);
    json_t *second = post(CHAT, body, 200);
    json_int_t known = json_num(first, "usage.total_tokens");
    assert_true(json_num(second, "usage.prompt_tokens") > known);
    assert_true(json_num(second, "usage.prompt_tokens_details.cached_tokens") >= known - 1);
    free(body);
    json_decref(request);
    json_decref(first);
    json_decref(second);
}

static void functions_are_tools(void **state) {
    (void)state;
    json_t *answer = post(CHAT,
                          "{" ASK("one call") ",\"function_call\":\"auto\",\"functions\":[" FUNCTION(
                              "get_weather", "\"city\":{\"type\":\"string\"}", "\"city\"") "]}",
                          200);
    assert_string_equal(json_str(answer, "choices.0.finish_reason"), "function_call");
    assert_string_equal(json_str(answer, "choices.0.message.function_call.name"), "get_weather");
    assert_null(json_at(answer, "choices.0.message.tool_calls"));
    json_decref(answer);
}

static void output_follows_a_schema(void **state) {
    static const char *const formats[] = {
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":"
        "{\"type\":\"object\",\"properties\":{" UNIT "},\"required\":[\"unit\"],\"additionalProperties\":false}}}",
        "\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"object\",\"properties\":{" UNIT
        "},\"required\":[\"unit\"],\"additionalProperties\":false}}",
        "\"response_format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\",\"properties\":{" UNIT
        "},\"required\":[\"unit\"],\"additionalProperties\":false}}",
        "\"json_schema\":{\"type\":\"object\",\"properties\":{" UNIT "},\"required\":[\"unit\"],"
        "\"additionalProperties\":false}",
    };
    (void)state;
    for (size_t i = 0; i < 16; i++) {
        char body[1024];
        bool plain = i >= 8;
        snprintf(body, sizeof body, "{\"seed\":%zu,\"max_tokens\":2000,%s,%s}", i, formats[i % 4],
                 plain ? "\"prompt\":\"Hello\"" : ASK("Hello"));
        json_t *answer = post(plain ? "/v1/completions" : CHAT, body, 200);
        const char *text = json_str(answer, plain ? "choices.0.text" : "choices.0.message.content");
        json_t *value = json_loads(text, 0, NULL);
        const char *unit = json_string_value(json_object_get(value, "unit"));
        assert_non_null(unit);
        assert_true(strcmp(unit, "metric") == 0 || strcmp(unit, "imperial") == 0);
        assert_string_equal(json_str(answer, "choices.0.finish_reason"), "stop");
        json_decref(value);
        json_decref(answer);
    }
    static const char *const grammars[][2] = {{CHAT, ASK("Hello")}, {"/v1/completions", "\"prompt\":\"Hello\""}};
    for (size_t i = 0; i < 2; i++) {
        char body[512];
        snprintf(body, sizeof body, "{\"grammar\":\"root ::= \\\"yes\\\" | \\\"no\\\"\",%s}", grammars[i][1]);
        json_t *answer = post(grammars[i][0], body, 200);
        const char *text = json_str(answer, i == 0 ? "choices.0.message.content" : "choices.0.text");
        assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
        json_decref(answer);
    }
}

static void reasoning_stands_apart(void **state) {
    static const char thinking[] = "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' -}}"
                                   "{%- if m.role == 'assistant' and m.reasoning_content -%}"
                                   "{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' -}}{%- endif -%}"
                                   "{{- m.content + '<|im_end|>\n' -}}{%- endfor -%}"
                                   "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}";
    struct stage plain = stage;
    struct stage_options options;
    struct gathered got;
    (void)state;
    stage_options_default(&options);
    options.chat_template = thinking;
    options.script = script;
    stage_open(&stage, &options);
    json_t *answer = post(CHAT, "{" ASK("think") "}", 200);
    assert_string_equal(json_str(answer, "choices.0.message.content"), "Seven.");
    assert_memory_equal(json_str(answer, "choices.0.message.reasoning_content"), "Three and four.", 15);
    json_int_t reasoning = json_num(answer, "usage.completion_tokens_details.reasoning_tokens");
    assert_true(reasoning > 5 && reasoning < json_num(answer, "usage.completion_tokens") - 3);
    json_decref(answer);
    gather("{\"stream\":true," ASK("think") "}", &got);
    assert_string_equal((const char *)got.content.data, "Seven.");
    assert_memory_equal((const char *)got.reasoning.data, "Three and four.", 15);
    gathered_finish(&got);
    answer = post(CHAT, "{\"reasoning_format\":\"none\"," ASK("think") "}", 200);
    assert_null(json_at(answer, "choices.0.message.reasoning_content"));
    assert_non_null(strstr(json_str(answer, "choices.0.message.content"), "Three and four."));
    json_decref(answer);
    stage_close(&stage);
    stage = plain;
}

static void a_script_is_followed_line_by_line(void **state) {
    static const char *const asks[][2] = {
        {"{" ASK("first then") "}", "first"},
        {"{" ASK("first then") "}", "then"},
        {"{" ASK("who") "}", "I"},
        {"{" ASK("who") "," TOOLS "}", "with tools"},
        {"{\"messages\":[{\"role\":\"system\",\"content\":\"Be royal.\"},{\"role\":\"user\",\"content\":\"who\"}]}",
         "we"},
        /* Behind what was said may stand a reminder; what stands before the last reply is over. */
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"who\"},{\"role\":\"system\",\"content\":\"Be brief.\"}]}",
         "I"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"plain\"},{\"role\":\"assistant\",\"content\":\"Well.\"},"
         "{\"role\":\"user\",\"content\":\"who\"}]}",
         "I"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        json_t *answer = post(CHAT, asks[i][0], 200);
        assert_string_equal(json_str(answer, "choices.0.message.content"), asks[i][1]);
        json_decref(answer);
    }
    json_t *answer = post(CHAT, "{\"max_tokens\":3," ASK("first then") "}", 200); /* used up: sim answers */
    assert_string_not_equal(json_str(answer, "choices.0.message.content"), "then");
    json_decref(answer);
}

#define FORMAT(format) "{" ASK("Hello") ",\"response_format\":" format "}"
#define WITH(tools, rest) "{" ASK("Hello") ",\"tools\":" tools rest "}"

static const struct {
    const char *body, *param, *code;
} refusals[] = {
    {WITH("7", ""), "tools", "invalid_type"},
    {WITH("[7]", ""), "tools[0]", "invalid_type"},
    {WITH("[" SWITCH ",{\"type\":7}]", ""), "tools[1].type", "invalid_type"},
    {WITH("[{\"function\":{\"name\":\"f\"}}]", ""), "tools[0].type", "missing_required_parameter"},
    {WITH("[{\"type\":\"web_search\"}]", ""), "tools[0].type", "unsupported_value"},
    {WITH("[{\"type\":\"function\"}]", ""), "tools[0].function", "missing_required_parameter"},
    {WITH("[{\"type\":\"function\",\"function\":[]}]", ""), "tools[0].function", "invalid_type"},
    {WITH("[" NAMED("") "]", ""), "tools[0].function.name", "missing_required_parameter"},
    {WITH("[" NAMED("\"name\":\"\"") "]", ""), "tools[0].function.name", "invalid_value"},
    {WITH("[" NAMED("\"name\":7") "]", ""), "tools[0].function.name", "invalid_type"},
    {WITH("[" NAMED("\"name\":\"f\",\"description\":7") "]", ""), "tools[0].function.description", "invalid_type"},
    {WITH("[" NAMED("\"name\":\"f\",\"parameters\":\"x\"") "]", ""), "tools[0].function.parameters", "invalid_type"},
    {WITH("[" NAMED("\"name\":\"f\",\"strict\":1") "]", ""), "tools[0].function.strict", "invalid_type"},
    {WITH("[" SWITCH "," SWITCH "]", ""), "tools[1].function.name", "invalid_value"},
    {WITH("[" SWITCH "]", ",\"tool_choice\":\"maybe\""), "tool_choice", "invalid_value"},
    {WITH("[" SWITCH "]", ",\"tool_choice\":7"), "tool_choice", "invalid_type"},
    {WITH("[" SWITCH "]", ",\"tool_choice\":{\"type\":\"custom\"}"), "tool_choice", "unsupported_value"},
    {WITH("[" SWITCH "]", ",\"tool_choice\":" NAMED("\"name\":\"other\"")), "tool_choice", "invalid_value"},
    {WITH("[" SWITCH "]", ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\"}}"),
     "tool_choice.allowed_tools", "missing_required_parameter"},
    {WITH("[" SWITCH "]", ",\"parallel_tool_calls\":\"yes\""), "parallel_tool_calls", "invalid_type"},
    {WITH("[" SWITCH "]", ",\"grammar\":\"root ::= \\\"x\\\"\""), "grammar", "invalid_value"},
    {WITH("[" SWITCH "]", ",\"functions\":[{\"name\":\"g\"}]"), "functions", "invalid_value"},
    {WITH("[]", ",\"tool_choice\":\"required\""), "tool_choice", "invalid_value"},
    {"{" ASK("Hello") ",\"tool_choice\":" NAMED("\"name\":\"f\"") "}", "tool_choice", "invalid_value"},
    {"{" ASK("Hello") ",\"functions\":[{\"name\":7}]}", "functions[0].name", "invalid_type"},
    {FORMAT("\"json_object\""), "response_format", "invalid_type"},
    {FORMAT("{}"), "response_format.type", "missing_required_parameter"},
    {FORMAT("{\"type\":\"xml\"}"), "response_format.type", "invalid_value"},
    {FORMAT("{\"type\":\"json_schema\"}"), "response_format.json_schema", "missing_required_parameter"},
    {FORMAT("{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"}}"), "response_format.json_schema.schema",
     "missing_required_parameter"},
    {FORMAT("{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":[]}}"),
     "response_format.json_schema.schema", "invalid_type"},
    {FORMAT("{\"type\":\"json_schema\",\"json_schema\":{\"name\":7,\"schema\":{}}}"), "response_format.json_schema",
     "invalid_type"},
    {"{" ASK("Hello") ",\"json_schema\":\"x\"}", "json_schema", "invalid_type"},
    {"{" ASK("Hello") ",\"json_schema\":{},\"grammar\":\"root ::= \\\"x\\\"\"}", "grammar", "invalid_value"},
    {"{" ASK("Hello") ",\"grammar\":7}", "grammar", "invalid_type"},
    {"{" ASK("Hello") ",\"grammar\":\"root ::= (\"}", "grammar", "invalid_grammar"},
};

static void refuses_what_it_cannot_keep(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        json_t *answer = post(CHAT, refusals[i].body, 400);
        assert_true(strlen(json_str(answer, "error.message")) > 0);
        assert_string_equal(json_str(answer, "error.param"), refusals[i].param);
        assert_string_equal(json_str(answer, "error.code"), refusals[i].code);
        json_decref(answer);
    }
    json_decref(
        post(CHAT, "{\"max_tokens\":1,\"tool_choice\":\"none\",\"parallel_tool_calls\":false," ASK("Hello") "}", 200));
}

/* Options that cannot be used are one clear line at the start. */
static void bad_options_stop_the_start(void **state) {
    static const struct {
        const char *script, *kwargs, *strip, *message;
    } cases[] = {
        {"{\"reply\":\"a\"}\n{\"reply\":7}\n", NULL, NULL, "line 2: \"reply\""},
        {"{\"reply\":\"\"}\n", NULL, NULL, "line 1: \"reply\""},
        {"\n{\"reply\":\"a\",\"times\":-1}\n", NULL, NULL, "line 2: \"times\""},
        {"{\"reply\":\"a\",\"when\":{\"tools\":1}}", NULL, NULL, "line 1: \"last\""},
        {"[", NULL, NULL, "line 1: "},
        {NULL, "[]", NULL, "--chat-template-kwargs: not a JSON object"},
        {NULL, "{", NULL, "--chat-template-kwargs: not a JSON object"},
        {NULL, "{\"enable_thinking\":\"yes\"}", NULL, "enable_thinking must be true or false"},
        {NULL, NULL, "(", "--strip-line '('"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[] = "/tmp/hearth-script-XXXXXX";
        struct stage_options options;
        struct hearth_errmsg msg = {{0}};
        struct hearth_api *api;
        int file = mkstemp(path);
        stage_options_default(&options);
        options.api.engine = stage.engine;
        options.api.chat = stage.chat;
        options.api.service = stage.service;
        options.api.template_kwargs = cases[i].kwargs;
        options.api.strip_lines = &cases[i].strip;
        options.api.strip_line_count = cases[i].strip != NULL;
        if (cases[i].script != NULL) {
            ssize_t len = (ssize_t)strlen(cases[i].script);
            assert_true(file >= 0 && write(file, cases[i].script, (size_t)len) == len);
            options.api.script_path = path;
        }
        assert_int_equal(hearth_api_create(&options.api, &api, &msg), HEARTH_ERR_INVALID);
        assert_null(api);
        if (strstr(msg.text, cases[i].message) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", msg.text, cases[i].message);
        }
        close(file);
        unlink(path);
    }
}

static void props_tell_what_the_template_can(void **state) {
    int status;
    (void)state;
    json_t *props = stage_call(&stage, "GET", "/props", NULL, &status);
    assert_true(json_is_false(json_at(props, "chat_template_caps.supports_tools")));
    assert_true(json_is_true(json_at(props, "chat_template_caps.generic_tools")));
    json_decref(props);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_come_whole),
        cmocka_unit_test(calls_come_in_pieces),
        cmocka_unit_test(logprobs_go_with_calls),
        cmocka_unit_test(calls_can_be_forced),
        cmocka_unit_test(calls_are_forced_whatever_the_schema),
        cmocka_unit_test(formats_are_kept_as_far_as_they_can_be),
        cmocka_unit_test(constraints_have_vllms_names),
        cmocka_unit_test(the_choice_is_not_in_the_prompt),
        cmocka_unit_test(cut_replies_are_whole_responses),
        cmocka_unit_test(results_go_back),
        cmocka_unit_test(functions_are_tools),
        cmocka_unit_test(output_follows_a_schema),
        cmocka_unit_test(reasoning_stands_apart),
        cmocka_unit_test(a_script_is_followed_line_by_line),
        cmocka_unit_test(refuses_what_it_cannot_keep),
        cmocka_unit_test(bad_options_stop_the_start),
        cmocka_unit_test(props_tell_what_the_template_can),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
