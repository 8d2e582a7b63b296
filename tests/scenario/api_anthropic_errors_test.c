/* Errors of Anthropic's Messages, and its smaller endpoints, with sim. */
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MESSAGES "/v1/messages"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASK(text) "\"max_tokens\":40,\"messages\":[" USER(text) "]"
#define TOOL(name) "{\"name\":\"" name "\",\"input_schema\":{\"type\":\"object\"}}"
#define TOOLS "\"tools\":[" TOOL("look") "," TOOL("lend") "]"

static void open_stage(bool strict) {
    struct stage_options options;
    stage_options_default(&options);
    options.sim.ctx_tokens = 8192;
    options.api.strict_content = strict;
    stage_open(&stage, &options);
}

static int setup(void **state) {
    (void)state;
    open_stage(false);
    return 0;
}

#define FIELDS(fields) "{\"max_tokens\":8,\"messages\":[" USER("x") "]," fields "}"
#define SAID(blocks) \
    "{\"max_tokens\":8,\"messages\":[" USER("x") ",{\"role\":\"assistant\",\"content\":[" blocks "]}," USER("x") "]}"
#define HEARD(blocks) "{\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":[" blocks "]}]}"
#define MARK ",\"cache_control\":{\"type\":\"ephemeral\"}"
#define MARKED "{\"type\":\"text\",\"text\":\"x\"" MARK "}"

static const char *const refused[][2] = {
    {"{\"messages\":[" USER("x") "]}", "max_tokens: Field required"},
    {"{\"max_tokens\":-1,\"messages\":[" USER("x") "]}", "max_tokens: Input should be greater"},
    {"{\"max_tokens\":\"1\",\"messages\":[" USER("x") "]}", "max_tokens: Input should be a valid integer"},
    {"{\"max_tokens\":8}", "messages: Field required"},
    {"{\"max_tokens\":8,\"messages\":{}}", "messages: Input should be a list"},
    {"{\"max_tokens\":8,\"messages\":[]}", "messages: at least one message is required"},
    {"{\"max_tokens\":8,\"messages\":[7]}", "messages.0: Input should be an object"},
    {"{\"max_tokens\":8,\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "messages.0: Unexpected role \"tool\""},
    {"{\"max_tokens\":8,\"messages\":[{\"content\":\"x\"}]}", "messages.0: role: Field required"},
    {"{\"max_tokens\":8,\"messages\":[{\"role\":\"user\"}]}",
     "messages: at least one message with content is required"},
    {"{\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages.0: content: Input should be"},
    {"{\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":[]}]}",
     "messages: at least one message with content is required"},
    {HEARD("7"), "messages.0.content.0: Input should be an object"},
    {HEARD("{\"type\":\"poem\"}"), "messages.0.content.0: Input tag 'poem' found"},
    {HEARD("{\"type\":\"text\"}"), "messages.0.content.0: text.text:"},
    {HEARD("{\"type\":\"tool_result\",\"tool_use_id\":\"gone\"}"),
     "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: gone."},
    {SAID("{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"look\",\"input\":[]}"),
     "messages.1.content.0: tool_use.input: Input should be an object"},
    {SAID("{\"type\":\"tool_use\",\"name\":\"look\",\"input\":{}}"),
     "messages.1.content.0: tool_use.id: Field required"},
    {SAID("{\"type\":\"thinking\"}"), "messages.1.content.0: thinking.thinking: Field required"},
    {"{\"max_tokens\":8,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\","
     "\"name\":"
     "\"look\",\"input\":{}}]}]}",
     "messages: `tool_use` blocks were found without `tool_result` blocks"},
    {HEARD(MARKED "," MARKED "," MARKED "," MARKED "," MARKED),
     "A maximum of 4 blocks with cache_control may be provided. Found 5."},
    {HEARD("{\"type\":\"text\",\"text\":\"x\",\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"2d\"}}"),
     "messages.0.content.0: cache_control.ttl: Input should be '5m' or '1h'"},
    {FIELDS("\"cache_control\":{\"type\":\"forever\"}"), "cache_control.type: Input should be 'ephemeral'"},
    {FIELDS("\"system\":7"), "system: Input should be a string or a list of blocks"},
    {FIELDS("\"system\":[{\"type\":\"image\"}]"), "system.0: Input tag 'image' found"},
    {FIELDS("\"tools\":{}"), "tools: Input should be a list"},
    {FIELDS("\"tools\":[7]"), "tools.0: Input should be an object"},
    {FIELDS("\"tools\":[{\"input_schema\":{}}]"), "tools.0: custom.name: Field required"},
    {FIELDS("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}]"), "tools.0: a tool of OpenAI's form"},
    {FIELDS("\"tools\":[{\"name\":\"a\"}]"), "tools.0: custom.input_schema: Field required"},
    {FIELDS("\"tools\":[{\"type\":\"bash_1\",\"name\":\"bash\"}," TOOL("a") "," TOOL("a") "]"),
     "tools.2: custom.name: another tool has this name"},
    {FIELDS("\"tools\":[{\"type\":\"bash_1\",\"name\":\"bash\"},{\"name\":\"a\",\"strict\":true,\"input_schema\":"
            "{\"type\":\"object\",\"not\":{\"required\":[\"a\"]}}}]"),
     "tools.1: custom.input_schema:"},
    {FIELDS(TOOLS ",\"tool_choice\":\"any\""), "tool_choice: Input should be an object"},
    {FIELDS(TOOLS ",\"tool_choice\":{\"type\":\"some\"}"), "tool_choice.type: Input should be 'auto'"},
    {FIELDS(TOOLS ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"gone\"}"), "tool_choice: Tool 'gone' not found"},
    {FIELDS("\"tool_choice\":{\"type\":\"any\"}"), "tool_choice: may only be specified while providing tools"},
    {FIELDS("\"stop_sequences\":\"x\""), "stop_sequences: Input should be a list"},
    {FIELDS("\"stop_sequences\":[\"x\",\"\"]"), "stop_sequences.1: Input should be a string"},
    {FIELDS("\"temperature\":3"), "temperature must be"},
    {FIELDS("\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":5}"), "thinking.enabled.budget_tokens:"},
    {FIELDS("\"thinking\":{}"), "thinking.type: Field required"},
    {FIELDS("\"output_config\":{\"format\":{\"type\":\"xml\"}}"), "output_config.format:"},
    {FIELDS("\"output_config\":{\"effort\":\"huge\"}"), "output_config.effort: Input should be 'low'"},
    {FIELDS("\"thread\":\"create\""), "thread.type: Input should be 'create' or 'continue'"},
    {FIELDS("\"thread\":{\"type\":\"fork\"}"), "thread.type: Input should be 'create' or 'continue'"},
    {FIELDS("\"thread\":{\"type\":\"continue\"}"), "thread.previous_message_id: Field required"},
    {FIELDS("\"session_id\":7"), "session_id must be a string"},
    {"[]", "the body must be a JSON object"},
    {"{", "the body is not valid JSON"},
};

/* With --strict-content. */
static const char *const refused_strictly[][2] = {
    {HEARD("{\"type\":\"image\",\"source\":{}}"), "messages.0.content.0: image: this model has no vision"},
    {HEARD("{\"type\":\"document\",\"source\":{\"type\":\"base64\",\"data\":\"\"}}"),
     "messages.0.content.0: document: this model reads no files"},
    {SAID("{\"type\":\"poem\"}"), "messages.1.content.0: Input tag 'poem' found"},
};

static void refuse(const char *const *row) {
    json_t *answer = post(MESSAGES, row[0], 400);
    assert_string_equal(json_str(answer, "type"), "error");
    assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
    assert_true(json_str(answer, "request_id")[0] != '\0');
    if (strncmp(json_str(answer, "error.message"), row[1], strlen(row[1])) != 0) {
        fail_msg("%s: %s", row[0], json_str(answer, "error.message"));
    }
    json_decref(answer);
}

static void errors_name_the_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        refuse(refused[i]);
    }
}

static void strict_content_refuses_what_cannot_be_seen(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused_strictly / sizeof refused_strictly[0]; i++) {
        json_decref(post(MESSAGES, refused_strictly[i][0], 200));
    }
    stage_close(&stage);
    open_stage(true);
    for (size_t i = 0; i < sizeof refused_strictly / sizeof refused_strictly[0]; i++) {
        refuse(refused_strictly[i]);
    }
}

/* Also where the server's HTTP has found it. */
static void errors_before_the_body_have_an_id(void **state) {
    struct client client;
    struct response response;
    char id[64];
    (void)state;
    assert_true(client_open(&client, stage.port));
    assert_true(client_text(&client, "POST " MESSAGES " HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n"));
    assert_true(client_response(&client, false, &response));
    assert_int_equal(response.status, 413);
    assert_true(response_header(&response, "request-id", id, sizeof id));
    json_t *answer = json_loadb((const char *)response.body.data, response.body.len, 0, NULL);
    assert_string_equal(json_str(answer, "error.type"), "request_too_large");
    assert_string_equal(json_str(answer, "request_id"), id);
    json_decref(answer);
    response_finish(&response);
    client_close(&client);
}

static void too_long_prompts_say_how_long(void **state) {
    struct hearth_buf body = {0};
    int tokens = 0, most = 0;
    (void)state;
    assert_true(hearth_buf_text(&body, "{\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\""));
    for (int i = 0; i < 9000; i++) {
        assert_true(hearth_buf_text(&body, " z"));
    }
    assert_true(hearth_buf_text(&body, "\"}]}"));
    json_t *answer = post(MESSAGES, (const char *)body.data, 400);
    assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
    assert_int_equal(
        sscanf(json_str(answer, "error.message"), "prompt is too long: %d tokens > %d maximum", &tokens, &most), 2);
    assert_true(tokens > most && most == 8192 - 8);
    json_decref(answer);
    answer = post("/v1/messages/count_tokens", (const char *)body.data, 200);
    assert_int_equal(json_num(answer, "input_tokens"), tokens);
    json_decref(answer);
    hearth_buf_finish(&body);
}

static void other_paths_answer(void **state) {
    int status;
    char header[128];
    (void)state;
    json_decref(post("/anthropic/v1/messages", "{" ASK("Hello") "}", 200));
    json_decref(post("/v1/messages?beta=true", "{" ASK("Hello") "}", 200));
    json_t *answer = stage_call(&stage, "GET", "/anthropic/v1/models", NULL, &status);
    assert_int_equal(status, 200);
    assert_string_equal(json_str(answer, "data.0.type"), "model");
    assert_string_equal(json_str(answer, "data.0.id"), json_str(answer, "first_id"));
    assert_int_equal(strlen(json_str(answer, "data.0.created_at")), strlen("2026-01-01T00:00:00Z"));
    assert_true(json_is_false(json_at(answer, "has_more")));
    json_decref(answer);
    answer = stage_call(&stage, "GET", "/v1/models", NULL, &status);
    assert_string_equal(json_str(answer, "object"), "list");
    json_decref(answer);
    struct response response =
        http_call(stage.port, "GET", "/v1/models/none-such", "anthropic-version: 2023-06-01\r\n", NULL);
    assert_int_equal(response.status, 404);
    assert_non_null(strstr((const char *)response.body.data, "\"not_found_error\""));
    response_finish(&response);
    answer = post("/v1/messages/batches", "{}", 404);
    assert_string_equal(json_str(answer, "error.type"), "not_found_error");
    json_decref(answer);
    response = http_call(stage.port, "POST", MESSAGES, NULL, "{" ASK("Hello") "}");
    assert_true(response_header(&response, "request-id", header, sizeof header) && header[0] != '\0');
    response_finish(&response);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_name_the_place),
        cmocka_unit_test(errors_before_the_body_have_an_id),
        cmocka_unit_test(too_long_prompts_say_how_long),
        cmocka_unit_test(other_paths_answer),
        cmocka_unit_test(strict_content_refuses_what_cannot_be_seen),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
