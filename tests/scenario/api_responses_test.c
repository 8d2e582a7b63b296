/* OpenAI's Responses over the API: what SDKs do not look at (numbers and order of events, what is printed again), what
 * they do not send, and what must be refused. */
#include "responses_stage.h"

/* The events of a stream. Every one has its name twice and the next number. */
static json_t *stream(const char *body) {
    struct response response = http_call(stage.port, "POST", RESPONSES, NULL, body);
    json_t *events = json_array();
    assert_int_equal(response.status, 200);
    assert_true(response.complete);
    assert_true(hearth_buf_append(&response.body, "", 1));
    for (const char *at = (const char *)response.body.data; *at != '\0';) {
        const char *line = strchr(at, '\n'), *end = strstr(at, "\n\n");
        assert_true(strncmp(at, "event: ", 7) == 0 && line != NULL && end != NULL && strncmp(line, "\ndata: ", 7) == 0);
        json_t *event = json_loadb(line + 7, (size_t)(end - line) - 7, JSON_ALLOW_NUL, NULL);
        assert_non_null(event);
        assert_int_equal(strlen(json_str(event, "type")), (size_t)(line - at) - 7);
        assert_memory_equal(json_str(event, "type"), at + 7, (size_t)(line - at) - 7);
        assert_int_equal(json_num(event, "sequence_number"), (json_int_t)json_array_size(events));
        json_array_append_new(events, event);
        at = end + 2;
    }
    response_finish(&response);
    return events;
}

/* The names of events, in order, several deltas of a kind as one. */
static void order_of(json_t *events, char *out, size_t cap) {
    size_t i, len = 0;
    json_t *event;
    const char *last = "";
    out[0] = '\0';
    json_array_foreach(events, i, event) {
        const char *type = json_str(event, "type") + strlen("response.");
        if (strstr(type, "delta") == NULL || strcmp(type, last) != 0) {
            len += (size_t)snprintf(out + len, cap - len, "%s\n", type);
        }
        last = type;
    }
    assert_true(len < cap);
}

static void whole_responses_are_printed_again(void **state) {
    static const char *const bodies[] = {
        "{\"model\":\"m\",\"input\":\"say it\",\"instructions\":\"Be kind.\",\"metadata\":{\"a\":\"b\"},\"user\":\"u\","
        "\"temperature\":0.5,\"prompt_cache_key\":\"k\",\"text\":{\"verbosity\":\"low\"},\"max_output_tokens\":99}",
        "{\"model\":\"m\",\"input\":\"think\",\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},"
        "\"include\":[\"reasoning.encrypted_content\",\"message.output_text.logprobs\"],\"top_logprobs\":2}",
        "{\"input\":[{\"role\":\"user\",\"content\":\"work\"}]," TOOLS ",\"parallel_tool_calls\":true,"
        "\"tool_choice\":\"auto\",\"prompt_cache_retention\":\"24h\"}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        json_t *sent = json_loads(bodies[i], 0, NULL), *value;
        json_t *made = call("POST", RESPONSES, bodies[i], 200);
        json_t *again = get(RESPONSES "/%s", json_str(made, "id"), 200);
        const char *key;
        if (json_equal(made, again) != 1) {
            print_error("%s\n%s\n", json_dumps(made, 0), json_dumps(again, 0));
        }
        assert_true(json_equal(made, again) == 1);
        json_object_foreach(sent, key, value) { /* what was asked for is said again */
            if (strcmp(key, "input") != 0 && strcmp(key, "include") != 0 && strcmp(key, "text") != 0) {
                assert_true(json_equal(json_object_get(made, key), value) == 1);
            }
        }
        assert_string_equal(json_str(made, "status"), "completed");
        assert_int_equal(json_num(made, "usage.total_tokens"),
                         json_num(made, "usage.input_tokens") + json_num(made, "usage.output_tokens"));
        assert_true(json_num(made, "usage.input_tokens_details.cache_write_tokens") >= 0);
        json_decref(sent);
        json_decref(made);
        json_decref(again);
    }
}

static void streams_have_their_order(void **state) {
    static const char want[] =
        "created\nin_progress\noutput_item.added\ncontent_part.added\nreasoning_text.delta\nreasoning_text.done\n"
        "content_part.done\noutput_item.done\noutput_item.added\ncontent_part.added\noutput_text.delta\noutput_text."
        "done\n"
        "content_part.done\noutput_item.done\noutput_item.added\ncustom_tool_call_input.delta\n"
        "custom_tool_call_input.done\noutput_item.done\noutput_item.added\nfunction_call_arguments.delta\n"
        "function_call_arguments.done\noutput_item.done\ncompleted\n";
    char order[1024];
    (void)state;
    json_t *events = stream("{\"stream\":true,\"input\":\"work\"," TOOLS "}"), *event;
    order_of(events, order, sizeof order);
    assert_string_equal(order, want);
    /* What was told of each item is what the last event says, and what the store says later. */
    json_t *last = json_at(json_array_get(events, json_array_size(events) - 1), "response");
    size_t i, items = 0;
    json_array_foreach(events, i, event) {
        if (strcmp(json_str(event, "type"), "response.output_item.done") == 0) {
            assert_int_equal(json_num(event, "output_index"), (json_int_t)items);
            assert_true(json_equal(json_at(event, "item"), json_array_get(json_at(last, "output"), items)) == 1);
            items++;
        }
    }
    assert_int_equal(items, 4);
    assert_int_equal(json_array_size(json_at(last, "output")), 4);
    assert_string_equal(json_str(last, "output.2.type"), "custom_tool_call");
    assert_string_equal(json_str(last, "output.2.input"), "a\nb");
    assert_string_equal(json_str(last, "output.3.arguments"), "{\"q\": 1}");
    json_t *again = get(RESPONSES "/%s", json_str(last, "id"), 200);
    assert_true(json_equal(last, again) == 1);
    json_decref(again);
    json_decref(events);
}

static void summaries_are_streamed(void **state) {
    static const char want[] =
        "created\nin_progress\noutput_item.added\ncontent_part.added\nreasoning_summary_part.added\n";
    char order[4096];
    struct hearth_buf text = {0};
    json_t *event;
    size_t i;
    (void)state;
    json_t *events = stream("{\"stream\":true,\"input\":\"think\",\"reasoning\":{\"summary\":\"auto\"}}");
    order_of(events, order, sizeof order);
    assert_memory_equal(order, want, sizeof want - 1);
    json_array_foreach(events, i, event) {
        if (strcmp(json_str(event, "type"), "response.reasoning_summary_text.delta") == 0) {
            assert_true(hearth_buf_text(&text, json_str(event, "delta")));
        }
    }
    json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(json_str(last, "response.output.0.summary.0.text"), (const char *)text.data);
    assert_string_equal(json_str(last, "response.output.0.content.0.text"), (const char *)text.data);
    hearth_buf_finish(&text);
    json_decref(events);
}

/* The limit is told, by the response, by the item that it cut, and by the name of the last event. */
static void what_is_cut_is_incomplete(void **state) {
    (void)state;
    json_t *made = call("POST", RESPONSES, "{\"input\":\"say it\",\"max_output_tokens\":2}", 200);
    assert_string_equal(json_str(made, "status"), "incomplete");
    assert_string_equal(json_str(made, "incomplete_details.reason"), "max_output_tokens");
    assert_string_equal(json_str(made, "output.0.status"), "incomplete");
    assert_true(json_is_null(json_at(made, "completed_at")));
    json_decref(made);
    made = stream("{\"input\":\"say it\",\"max_output_tokens\":2,\"stream\":true}");
    json_t *last = json_array_get(made, json_array_size(made) - 1);
    assert_string_equal(json_str(last, "type"), "response.incomplete");
    assert_string_equal(json_str(last, "response.output.0.status"), "incomplete");
    json_decref(made);
}

/* Only what is new is computed, however often a response is gone on from. */
static void responses_are_gone_on_from(void **state) {
    (void)state;
    json_t *first =
        call("POST", RESPONSES, "{\"input\":\"say it, at some length, so that it is worth keeping\"," TOOLS "}", 200);
    const json_int_t known = json_num(first, "usage.total_tokens");
    for (int i = 0; i < 3; i++) {
        json_t *next = call(
            "POST", RESPONSES,
            with("{\"input\":\"say more\"," TOOLS ",\"previous_response_id\":\"%s\"}", json_str(first, "id")), 200);
        assert_string_equal(json_str(next, "previous_response_id"), json_str(first, "id"));
        assert_true(json_num(next, "usage.input_tokens") > known);
        assert_true(json_num(next, "hearth.computed") <= json_num(next, "usage.input_tokens") - known + 1);
        json_t *items = get(RESPONSES "/%s/input_items?order=asc", json_str(next, "id"), 200);
        assert_int_equal(json_array_size(json_at(items, "data")), 3);
        assert_string_equal(json_str(items, "data.2.content.0.text"), "say more");
        assert_string_equal(json_str(items, "data.1.id"), json_str(first, "output.0.id"));
        json_decref(items);
        json_decref(next);
    }
    json_decref(first);
}

static void results_need_their_calls(void **state) {
    (void)state;
    json_t *made = call("POST", RESPONSES, "{\"input\":\"work\"," TOOLS "}", 200);
    json_t *wrong = call("POST", RESPONSES,
                         with("{\"previous_response_id\":\"%s\",\"input\":[{\"type\":\"function_call_output\","
                              "\"call_id\":\"call_zork\",\"output\":\"x\"}]}",
                              json_str(made, "id")),
                         400);
    assert_string_equal(json_str(wrong, "error.param"), "input[0].call_id");
    assert_non_null(strstr(json_str(wrong, "error.message"), "No tool call found"));
    json_decref(wrong);
    char body[1024];
    snprintf(body, sizeof body,
             "{\"previous_response_id\":\"%s\"," TOOLS
             ",\"input\":[{\"type\":\"custom_tool_call_output\",\"call_id\":\"%s\","
             "\"output\":\"done\"},{\"type\":\"function_call_output\",\"call_id\":\"%s\",\"output\":[{\"type\":\"input_"
             "text\","
             "\"text\":\"say\"}]}]}",
             json_str(made, "id"), json_str(made, "output.2.call_id"), json_str(made, "output.3.call_id"));
    json_t *next = call("POST", RESPONSES, body, 200);
    assert_string_equal(json_str(next, "output.0.content.0.text"), "Well said.");
    json_t *items = get(RESPONSES "/%s/input_items", json_str(next, "id"), 200);
    assert_string_equal(json_str(items, "data.0.type"), "function_call_output"); /* the newest first */
    assert_string_equal(json_str(items, "data.3.type"), "custom_tool_call");
    json_decref(items);
    json_decref(next);
    json_decref(made);
}

/* Thinking that only this server can read is what it was when it comes back; changed, it is as good as none. */
static void sealed_reasoning_comes_back(void **state) {
    json_int_t tokens[3];
    (void)state;
    json_t *made = call("POST", RESPONSES,
                        "{\"input\":\"think\",\"store\":false,\"include\":[\"reasoning.encrypted_content\"]}", 200);
    const char *sealed = json_str(made, "output.0.encrypted_content");
    assert_true(strlen(sealed) > 40);
    for (int i = 0; i < 3; i++) {
        char *text = strdup(sealed);
        text[20] = (char)(i == 1 ? (text[20] == 'A' ? 'B' : 'A') : text[20]);
        json_t *body =
            json_pack("{s:[{s:s, s:s}, {s:s, s:[], s:s*}, {s:s, s:s}, {s:s, s:s}]}", "input", "role", "user", "content",
                      "another", "type", "reasoning", "summary", "encrypted_content", i < 2 ? text : NULL, "role",
                      "assistant", "content", "Seven!", "role", "user", "content", "say");
        char *dumped = json_dumps(body, 0);
        json_t *count = call("POST", RESPONSES "/input_tokens", dumped, 200);
        tokens[i] = json_num(count, "input_tokens");
        json_decref(count);
        json_decref(body);
        free(dumped);
        free(text);
    }
    assert_true(tokens[0] > tokens[2]);
    assert_int_equal(tokens[1], tokens[2]);
    json_decref(get(RESPONSES "/%s", json_str(made, "id"), 404)); /* it was not to be stored */
    json_decref(made);
}

static void what_is_wrong_is_named(void **state) {
    static const struct {
        const char *body, *param;
        int status;
    } cases[] = {
        {"{}", "input", 400},
        {"{\"input\":7}", "input", 400},
        {"{\"input\":[]}", "input", 400},
        {"{\"input\":[{\"type\":\"zork\"}]}", "input", 400}, /* what is left out says nothing */
        {"{\"input\":[{\"id\":\"msg_1\"}]}", "input[0].id", 404},
        {"{\"input\":[{\"type\":\"item_reference\"}]}", "input[0].id", 400},
        {"{\"input\":\"x\",\"instructions\":7}", "instructions", 400},
        {"{\"input\":\"x\",\"tools\":7}", "tools", 400},
        {"{\"input\":\"x\",\"tools\":[7]}", "tools[0]", 400},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"zork\"}],\"tool_choice\":\"required\"}", "tool_choice", 400},
        {"{\"input\":\"x\",\"tools\":[{}]}", "tools[0]", 400},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"mcp\"},{\"type\":\"function\"}]}", "tools[1].name", 400},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"mcp\"}," LOOK "," LOOK "]}", "tools[2].name", 400},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":7}]}", "tools[0].parameters",
         400},
        {"{\"input\":\"x\",\"tools\":[{\"type\":\"namespace\"}]}", "tools[0]", 400},
        {"{\"input\":\"x\",\"tool_choice\":\"zork\"," TOOLS "}", "tool_choice", 400},
        {"{\"input\":\"x\",\"tool_choice\":{\"type\":\"function\",\"name\":\"zork\"}," TOOLS "}", "tool_choice", 400},
        {"{\"input\":\"x\",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\"}," TOOLS "}", "tool_choice",
         400},
        {"{\"input\":\"x\",\"text\":7}", "text", 400},
        {"{\"input\":\"x\",\"text\":{\"format\":{}}}", "text.format.type", 400},
        {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"zork\"}}}", "text.format.type", 400},
        {"{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}", "text.format.schema", 400},
        {"{\"input\":\"x\",\"reasoning\":{\"effort\":\"zork\"}}", "reasoning.effort", 400},
        {"{\"input\":\"x\",\"reasoning\":{\"summary\":7}}", "reasoning.summary", 400},
        {"{\"input\":\"x\",\"max_output_tokens\":-1}", "max_output_tokens", 400},
        {"{\"input\":\"x\",\"temperature\":7}", "temperature", 400},
        {"{\"input\":\"x\",\"prompt\":{\"id\":\"pmpt_1\"}}", "prompt", 400},
        {"{\"input\":\"x\",\"truncation\":\"zork\"}", "truncation", 400},
        {"{\"input\":\"x\",\"store\":7}", "store", 400},
        {"{\"input\":\"x\",\"background\":true,\"store\":false}", "background", 400},
        {"{\"input\":\"x\",\"include\":7}", "include", 400},
        {"{\"input\":\"x\",\"top_logprobs\":99}", "top_logprobs", 400},
        {"{\"input\":\"x\",\"metadata\":{\"a\":7}}", "metadata", 400},
        {"{\"input\":\"x\",\"prompt_cache_retention\":\"zork\"}", "prompt_cache_retention", 400},
        {"{\"input\":\"x\",\"previous_response_id\":7}", "previous_response_id", 400},
        {"{\"input\":\"x\",\"previous_response_id\":\"resp_1\"}", "previous_response_id", 400},
        {"{\"input\":\"x\",\"previous_response_id\":\"resp_00000000000000000000000000000001\"}", "previous_response_id",
         400},
        {"{\"input\":\"x\",\"previous_response_id\":\"a\",\"conversation\":\"b\"}", "previous_response_id", 400},
        {"{\"input\":\"x\",\"conversation\":\"conv_1\"}", "conversation", 404},
        {"{\"input\":\"x\",\"conversation\":{}}", "conversation", 400},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *answer = call("POST", RESPONSES, cases[i].body, cases[i].status);
        if (strcmp(json_str(answer, "error.param"), cases[i].param) != 0) {
            print_error("%s: %s\n", cases[i].body, json_str(answer, "error.message"));
        }
        assert_string_equal(json_str(answer, "error.param"), cases[i].param);
        json_decref(answer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_responses_are_printed_again),
        cmocka_unit_test(streams_have_their_order),
        cmocka_unit_test(summaries_are_streamed),
        cmocka_unit_test(what_is_cut_is_incomplete),
        cmocka_unit_test(responses_are_gone_on_from),
        cmocka_unit_test(results_need_their_calls),
        cmocka_unit_test(sealed_reasoning_comes_back),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
