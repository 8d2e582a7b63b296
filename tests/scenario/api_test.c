/* The API over the real service and sim: every endpoint, what it answers and what it refuses. */
#include "base/clock.h"
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CHAT "/v1/chat/completions"
#define HELLO \
    "\"messages\":[{\"role\":\"system\",\"content\":\"You are a fire.\"},{\"role\":\"user\",\"content\":\"Hello\"}]"

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    options.sim.ctx_tokens = 2048;
    stage_open(&stage, &options);
    return 0;
}

static void small_endpoints(void **state) {
    (void)state;
    json_t *answer = call("GET", "/health", NULL, 200);
    assert_string_equal(json_str(answer, "status"), "ok");
    json_decref(answer);
    json_decref(call("GET", "/v1/health", NULL, 200));

    answer = call("GET", "/v1/models", NULL, 200);
    assert_string_equal(json_str(answer, "object"), "list");
    assert_string_equal(json_str(answer, "data.0.id"), "Sim-1.gguf");
    assert_string_equal(json_str(answer, "data.0.owned_by"), "hearth");
    assert_int_equal(json_num(answer, "data.0.max_model_len"), 2048);
    assert_int_equal(json_num(answer, "data.0.context_length"), 2048);
    json_decref(answer);
    answer = call("GET", "/v1/models/Sim-1.gguf", NULL, 200);
    assert_string_equal(json_str(answer, "object"), "model");
    json_decref(answer);
    answer = call("GET", "/v1/models/other%2Fmodel", NULL, 404);
    assert_string_equal(json_str(answer, "error.code"), "model_not_found");
    json_decref(answer);

    answer = call("GET", "/props", NULL, 200);
    assert_int_equal(json_num(answer, "default_generation_settings.n_ctx"), 2048);
    assert_int_equal(json_num(answer, "total_slots"), 4);
    assert_string_equal(json_str(answer, "model_path"), "/models/Sim-1.gguf");
    assert_true(json_is_string(json_at(answer, "chat_template")));
    json_decref(answer);

    answer = call("GET", "/slots", NULL, 200);
    assert_int_equal(json_array_size(answer), 4);
    assert_true(json_is_false(json_at(answer, "3.is_processing")));
    assert_string_equal(json_str(answer, "0.state"), "idle");
    json_decref(answer);

    struct response metrics = http_call(stage.port, "GET", "/metrics", NULL, NULL);
    assert_int_equal(metrics.status, 200);
    assert_non_null(strstr((char *)metrics.body.data, "# TYPE hearth_prompt_tokens_total counter\n"));
    assert_non_null(strstr((char *)metrics.body.data, "# TYPE hearth_queued gauge\nhearth_queued 0\n"));
    response_finish(&metrics);
}

static void unknown_paths_and_methods(void **state) {
    static const char *const probes[] = {"/api/v1/models", "/api/tags", "/version",   "/v1",
                                         "/v1/v1",         "/v1/v1/",   "/v1x/models"};
    (void)state;
    for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++) {
        json_t *answer = call("GET", probes[i], NULL, 404);
        assert_string_equal(json_str(answer, "error.type"), "not_found_error");
        json_decref(answer);
    }
    json_t *hinted = call("POST", "/api/chat/completions", "{}", 404);
    assert_non_null(strstr(json_str(hinted, "error.message"), "http://127.0.0.1:8080/v1"));
    json_decref(hinted);
    struct response response = http_call(stage.port, "GET", CHAT, NULL, NULL);
    char allow[64];
    assert_int_equal(response.status, 405);
    assert_true(response_header(&response, "Allow", allow, sizeof allow));
    assert_string_equal(allow, "POST, OPTIONS");
    response_finish(&response);
    json_decref(call("DELETE", "/v1/models", NULL, 405));
}

/* Base URLs come with a slash at their end, and with a /v1 that the client adds, too. */
static void base_urls_are_joined_in_many_ways(void **state) {
    static const struct {
        const char *path, *body;
    } cases[] = {
        {"/v1/models/", NULL},
        {"//v1//models", NULL},
        {"/v1/v1/models", NULL},
        {"/v1//chat/completions", "{\"max_tokens\":1," HELLO "}"},
        {"/v1/chat/completions/", "{\"max_tokens\":1," HELLO "}"},
        {"/v1/v1/chat/completions", "{\"max_tokens\":1," HELLO "}"},
        {"/v1/v1/messages?beta=true", "{\"max_tokens\":1," HELLO "}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_decref(call(cases[i].body != NULL ? "POST" : "GET", cases[i].path, cases[i].body, 200));
    }
    json_t *error = call("POST", "/v1/v1/messages", "{}", 400);
    assert_string_equal(json_str(error, "type"), "error"); /* in the shape of its API */
    json_decref(error);
    json_t *made = call("POST", "/v1/v1/responses", "{\"input\":\"x\",\"max_output_tokens\":1}", 200);
    char path[128];
    snprintf(path, sizeof path, "/v1/v1/responses/%s", json_str(made, "id"));
    json_decref(call("GET", path, NULL, 200));
    json_decref(made);
}

static void compressed_bodies_are_told_of(void **state) {
    static const char *const paths[] = {CHAT, "/v1/messages"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct response response =
            http_call(stage.port, "POST", paths[i], "Content-Encoding: gzip\r\n", "\x1f\x8b\x08");
        assert_int_equal(response.status, 415);
        assert_non_null(strstr((char *)response.body.data, "without compression"));
        response_finish(&response);
        response =
            http_call(stage.port, "POST", paths[i], "Content-Encoding: identity\r\n", "{\"max_tokens\":1," HELLO "}");
        assert_int_equal(response.status, 200);
        response_finish(&response);
    }
}

/* Clients open their connections with it, to see whether a server is there. */
static void head_is_get_without_the_body(void **state) {
    static const char *const paths[] = {"/",
                                        "/api/hello",
                                        "/health",
                                        "/v1/health",
                                        "/props",
                                        "/slots",
                                        "/queue",
                                        "/metrics",
                                        "/models",
                                        "/v1/models",
                                        "/v1/sessions",
                                        "/nowhere",
                                        "/v1/responses/resp_none",
                                        "/anthropic/v1/models",
                                        CHAT};
    struct client client;
    (void)state;
    assert_true(client_open(&client, stage.port)); /* one: a body would be read as the next answer */
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct response get, head;
        char type[64], same[64];
        assert_true(client_request(&client, "HEAD", paths[i], NULL, NULL) && client_response(&client, true, &head));
        assert_true(client_request(&client, "GET", paths[i], NULL, NULL) && client_response(&client, false, &get));
        assert_int_equal(head.status, get.status);
        assert_int_equal(head.status, i < 11 || i == 13 ? 200 : i == 14 ? 405 : 404);
        assert_true(response_header(&head, "Content-Type", type, sizeof type));
        assert_true(response_header(&get, "Content-Type", same, sizeof same));
        assert_string_equal(type, same);
        assert_true(get.body.len > 0 && head.body.len == 0);
        response_finish(&head);
        response_finish(&get);
    }
    client_close(&client);
    struct response response = http_call(stage.port, "POST", "/v1/models", NULL, "{}");
    char allow[64];
    assert_true(response_header(&response, "Allow", allow, sizeof allow));
    assert_string_equal(allow, "GET, HEAD, OPTIONS");
    response_finish(&response);
}

static void chat_whole(void **state) {
    (void)state;
    json_t *answer = call("POST", CHAT,
                          "{\"model\":\"gpt-x\",\"temperature\":0,"
                          "\"ignore_eos\":true,\"max_tokens\":12," HELLO "}",
                          200);
    assert_memory_equal(json_str(answer, "id"), "chatcmpl-", 9);
    assert_string_equal(json_str(answer, "object"), "chat.completion");
    assert_string_equal(json_str(answer, "model"), "gpt-x");
    assert_string_equal(json_str(answer, "choices.0.message.role"), "assistant");
    assert_true(strlen(json_str(answer, "choices.0.message.content")) > 0);
    assert_true(json_is_null(json_at(answer, "choices.0.logprobs")));
    json_int_t prompt = json_num(answer, "usage.prompt_tokens");
    json_int_t completion = json_num(answer, "usage.completion_tokens");
    assert_true(prompt > 0 && completion > 0 && completion <= 12);
    assert_int_equal(json_num(answer, "usage.total_tokens"), prompt + completion);
    assert_int_equal(json_num(answer, "timings.predicted_n"), completion);
    assert_int_equal(json_num(answer, "timings.cache_n") + json_num(answer, "timings.prompt_n"), prompt);
    assert_int_equal(json_num(answer, "usage.prompt_tokens_details.cached_tokens"),
                     json_num(answer, "timings.cache_n"));
    assert_int_equal(json_num(answer, "hearth.computed"), json_num(answer, "timings.prompt_n"));
    assert_true(json_is_number(json_at(answer, "hearth.prefill_ms")));
    assert_string_equal(json_str(answer, "hearth.reason"), "cold");
    json_decref(answer);
    /* Again: the prompt is known. */
    answer =
        call("POST", "/chat/completions", "{\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":12," HELLO "}", 200);
    assert_string_equal(json_str(answer, "model"), "Sim-1.gguf");
    assert_int_equal(json_num(answer, "timings.prompt_n"), 1);
    assert_int_equal(json_num(answer, "usage.prompt_tokens_details.cached_tokens"), prompt - 1);
    json_decref(answer);
}

/* A stream adds up to the whole response, chunk by chunk as the API describes it. */
static void chat_streamed(void **state) {
    (void)state;
    struct hearth_buf content = {0};
    char type[64];
    json_t *whole = call("POST", CHAT, "{\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":30," HELLO "}", 200);
    struct response response = http_call(stage.port, "POST", CHAT, NULL,
                                         "{\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":30,\"stream\":true,"
                                         "\"stream_options\":{\"include_usage\":true}," HELLO "}");
    assert_int_equal(response.status, 200);
    assert_true(response.complete && response_header(&response, "Content-Type", type, sizeof type));
    assert_memory_equal(type, "text/event-stream", 17);
    json_t *events = sse_events((const char *)response.body.data);
    size_t count = json_array_size(events);
    assert_true(count >= 5);
    assert_string_equal(json_str(events, "0.choices.0.delta.role"), "assistant");
    assert_string_equal(json_str(events, "0.object"), "chat.completion.chunk");
    for (size_t i = 0; i < count - 3; i++) {
        json_t *event = json_array_get(events, i);
        assert_true(json_is_null(json_at(event, "choices.0.finish_reason")));
        assert_string_equal(json_str(event, "id"), json_str(events, "0.id"));
        assert_true(hearth_buf_text(&content, json_str(event, "choices.0.delta.content")));
    }
    json_t *last = json_array_get(events, count - 3);
    assert_string_equal(json_str(last, "choices.0.finish_reason"), json_str(whole, "choices.0.finish_reason"));
    assert_true(json_num(last, "timings.predicted_n") > 0);
    assert_true(json_is_object(json_at(last, "hearth")));
    json_t *usage = json_array_get(events, count - 2);
    assert_int_equal(json_array_size(json_at(usage, "choices")), 0);
    assert_int_equal(json_num(usage, "usage.completion_tokens"), json_num(whole, "usage.completion_tokens"));
    assert_string_equal(json_string_value(json_array_get(events, count - 1)), "[DONE]");
    assert_string_equal((const char *)content.data, json_str(whole, "choices.0.message.content"));
    hearth_buf_finish(&content);
    json_decref(events);
    json_decref(whole);
    response_finish(&response);
}

/* What /apply-template and /tokenize say is what a chat is charged for. */
static void template_and_tokens_agree_with_chat(void **state) {
    (void)state;
    char *body;
    json_t *prompt = call("POST", "/apply-template", "{" HELLO "}", 200);
    assert_non_null(strstr(json_str(prompt, "prompt"), "You are a fire."));
    json_t *request =
        json_pack("{s:O, s:b, s:b}", "content", json_at(prompt, "prompt"), "add_special", 1, "with_pieces", 0);
    body = json_dumps(request, 0);
    json_t *tokens = call("POST", "/tokenize", body, 200);
    free(body);
    json_t *chat = call("POST", CHAT, "{\"max_tokens\":1," HELLO "}", 200);
    assert_int_equal(json_array_size(json_at(tokens, "tokens")), json_num(chat, "usage.prompt_tokens"));
    body = json_dumps(tokens, 0);
    json_t *text = call("POST", "/detokenize", body, 200);
    assert_string_equal(json_str(text, "content"), json_str(prompt, "prompt"));
    free(body);
    json_decref(request);
    json_decref(prompt);
    json_decref(tokens);
    json_decref(chat);
    json_decref(text);
}

static void tokenize_pieces(void **state) {
    (void)state;
    json_t *answer = call("POST", "/tokenize", "{\"content\":[\"a\",98,\"\\u20ac\"],\"with_pieces\":true}", 200);
    assert_string_equal(json_str(answer, "tokens.0.piece"), "a");
    assert_int_equal(json_num(answer, "tokens.1.id"), 98);
    assert_true(json_is_array(json_at(answer, "tokens.2.piece"))); /* the first byte of three */
    json_decref(answer);
    answer = call("POST", "/detokenize", "{\"tokens\":[226,130]}", 200);
    assert_string_equal(json_str(answer, "content"), "\xEF\xBF\xBD");
    json_decref(answer);
}

static void plain_completions(void **state) {
    (void)state;
    json_t *answer = call("POST", "/v1/completions",
                          "{\"prompt\":[\"Once upon\",[79,110,99,101]],\"temperature\":0,\"max_tokens\":4,\"n\":2,"
                          "\"echo\":true,\"user\":\"me\",\"best_of\":2}",
                          200);
    assert_string_equal(json_str(answer, "object"), "text_completion");
    assert_int_equal(json_array_size(json_at(answer, "choices")), 4);
    for (int i = 0; i < 4; i++) {
        char path[32];
        snprintf(path, sizeof path, "choices.%d.index", i);
        assert_int_equal(json_num(answer, path), i);
        snprintf(path, sizeof path, "choices.%d.text", i);
        assert_memory_equal(json_str(answer, path), i < 2 ? "Once upon" : "Once", i < 2 ? 9 : 4);
    }
    assert_string_equal(json_str(answer, "choices.0.text"), json_str(answer, "choices.1.text"));
    json_decref(answer);
    answer =
        call("POST", "/v1/completions", "{\"prompt\":\"a\",\"temperature\":0,\"max_tokens\":3,\"logprobs\":2}", 200);
    size_t count = json_array_size(json_at(answer, "choices.0.logprobs.tokens"));
    assert_true(count > 0 && json_array_size(json_at(answer, "choices.0.logprobs.token_logprobs")) == count);
    assert_int_equal(json_num(answer, "choices.0.logprobs.text_offset.0"), 0);
    json_decref(answer);
    struct response stream = http_call(stage.port, "POST", "/v1/completions", NULL,
                                       "{\"prompt\":\"a\",\"max_tokens\":3,\"stream\":true,\"echo\":true}");
    json_t *events = sse_events((const char *)stream.body.data);
    assert_string_equal(json_str(events, "0.choices.0.text"), "a");
    json_decref(events);
    response_finish(&stream);
    json_decref(call("POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}", 200));
}

static void stop_strings_end_a_reply(void **state) {
    (void)state;
    json_t *whole = call("POST", "/v1/completions", "{\"prompt\":\"abc\",\"temperature\":0,\"max_tokens\":20}", 200);
    const char *text = json_str(whole, "choices.0.text");
    const char *space = strchr(text + 1, ' ');
    assert_non_null(space);
    char stop[24];
    snprintf(stop, sizeof stop, "%.*s", 4, space);
    json_t *request =
        json_pack("{s:s, s:i, s:i, s:[s]}", "prompt", "abc", "temperature", 0, "max_tokens", 20, "stop", stop);
    char *body = json_dumps(request, 0);
    json_t *stopped = call("POST", "/v1/completions", body, 200);
    const char *got = json_str(stopped, "choices.0.text");
    assert_int_equal(strlen(got), strstr(text, stop) - text);
    assert_memory_equal(got, text, strlen(got));
    assert_string_equal(json_str(stopped, "choices.0.finish_reason"), "stop");
    free(body);
    json_decref(request);
    json_decref(stopped);
    json_decref(whole);
}

static void accepts_what_clients_send(void **state) {
    static const char *const bodies[] = {
        "{\"max_tokens\":65536,\"tools\":[],\"tool_choice\":\"auto\",\"response_format\":{\"type\":\"text\"},"
        "\"stop\":null,\"n\":null,\"seed\":null,\"logit_bias\":{},\"functions\":null,\"whatever\":{\"x\":[1]}," HELLO
        "}",
        "{\"max_completion_tokens\":3.0,\"max_tokens\":-1,\"seed\":-1,\"top_k\":-1,\"logit_bias\":{\"65\":-100}," HELLO
        "}",
        "{\"max_tokens\":2,\"seed\":123456789012345,\"logit_bias\":[[65,-100],[66,false]],\"prompt_cache_key\":\"k\","
        "\"metadata\":{\"a\":\"b\"},\"store\":false,\"service_tier\":\"auto\",\"parallel_tool_calls\":true," HELLO "}",
        "{\"max_tokens\":2,\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\\u0000d\"},{\"role\":\"assistant\","
        "\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"name\":\"f\",\"content\":\"42\"}]}",
        "{\"max_tokens\":2,\"chat_template_kwargs\":{\"enable_thinking\":false},\"reasoning_effort\":\"none\","
        "\"cache_prompt\":false,\"reasoning\":{\"effort\":\"high\",\"max_tokens\":5,\"enabled\":true}," HELLO "}",
        "{\"max_tokens\":2,\"chat_template_kwargs\":{\"enable_thinking\":true},\"reasoning_effort\":\"high\","
        "\"reasoning_format\":\"none\",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":9}," HELLO "}",
        "{\"max_tokens\":2,\"top_p\":0,\"top_logprobs\":0,\"logprobs\":false,\"reasoning_effort\":\"ultra\","
        "\"prediction\":{\"type\":\"content\",\"content\":\"x\"}," HELLO "}",
        /* Tools in the form of the Responses API. */
        "{\"max_tokens\":2,\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}]"
        "," HELLO "}",
        /* Text that was cut in the middle of a character. */
        "{\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"a \\ud83d\"}]}",
        /* A call that was cut short comes back, and a result without a name of its call. */
        "{\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":"
        "[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": \"}}]},"
        "{\"role\":\"tool\",\"content\":\"42\"}]}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        json_decref(call("POST", CHAT, bodies[i], 200));
    }
    json_t *flat = call("POST", "/apply-template", bodies[3], 200);
    assert_non_null(strstr(json_str(flat, "prompt"), "system\na\nb<|im_end|>"));
    json_decref(flat);
}

/* Body, status, param and code of what is refused. */
static const struct {
    const char *path, *body;
    int status;
    const char *param, *code;
} refusals[] = {
    {CHAT, "", 400, "", "invalid_json"},
    {CHAT, "{", 400, "", "invalid_json"},
    {CHAT, "[]", 400, "", "invalid_json"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xC3\x28\"}]}", 400, "", "invalid_json"},
    {CHAT, "{}", 400, "messages", "missing_required_parameter"},
    {CHAT, "{\"messages\":\"hi\"}", 400, "messages", "invalid_type"},
    {CHAT, "{\"messages\":[]}", 400, "messages", "invalid_value"},
    {CHAT, "{\"messages\":[3]}", 400, "messages[0]", "invalid_type"},
    {CHAT, "{\"messages\":[{\"role\":\"user\"}]}", 400, "messages", "invalid_value"},
    {CHAT, "{\"messages\":[{\"role\":\"king\",\"content\":\"\"}]}", 400, "messages[0]", "invalid_value"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":7}]}", 400, "messages[0]", "invalid_type"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"smell\",\"smell\":{}}]}]}", 400, "messages[0]",
     "unsupported_value"},
    {CHAT, "{\"temperature\":\"hot\"," HELLO "}", 400, "temperature", "invalid_type"},
    {CHAT, "{\"temperature\":2.5," HELLO "}", 400, "temperature", "invalid_value"},
    {CHAT, "{\"top_p\":-1," HELLO "}", 400, "top_p", "invalid_value"},
    {CHAT, "{\"top_k\":1.5," HELLO "}", 400, "top_k", "invalid_type"},
    {CHAT, "{\"n\":0," HELLO "}", 400, "n", "invalid_value"},
    {CHAT, "{\"n\":17," HELLO "}", 400, "n", "invalid_value"},
    {CHAT, "{\"stream\":\"yes\"," HELLO "}", 400, "stream", "invalid_type"},
    {CHAT, "{\"stream_options\":[]," HELLO "}", 400, "stream_options", "invalid_type"},
    {CHAT, "{\"max_tokens\":-2," HELLO "}", 400, "max_tokens", "invalid_value"},
    {CHAT, "{\"seed\":\"x\"," HELLO "}", 400, "seed", "invalid_type"},
    {CHAT, "{\"stop\":[\"\"]," HELLO "}", 400, "stop", "invalid_value"},
    {CHAT, "{\"stop\":[1]," HELLO "}", 400, "stop", "invalid_type"},
    {CHAT, "{\"logit_bias\":{\"x\":1}," HELLO "}", 400, "logit_bias", "invalid_value"},
    {CHAT, "{\"logit_bias\":{\"1\":101}," HELLO "}", 400, "logit_bias", "invalid_value"},
    {CHAT, "{\"logit_bias\":{\"99999999\":1}," HELLO "}", 400, "logit_bias", "invalid_value"},
    {CHAT, "{\"top_logprobs\":2," HELLO "}", 400, "top_logprobs", "invalid_value"},
    {CHAT, "{\"logprobs\":true,\"top_logprobs\":21," HELLO "}", 400, "top_logprobs", "invalid_value"},
    {CHAT, "{\"user\":5," HELLO "}", 400, "user", "invalid_type"},
    {CHAT, "{\"chat_template_kwargs\":5," HELLO "}", 400, "chat_template_kwargs", "invalid_type"},
    {CHAT, "{\"temperature\":9," HELLO "}", 400, "temperature", "invalid_value"},
    {CHAT, "{\"top_p\":7," HELLO "}", 400, "top_p", "invalid_value"},
    {CHAT, "{\"logprobs\":true,\"top_logprobs\":500," HELLO "}", 400, "top_logprobs", "invalid_value"},
    {CHAT, "{\"n\":100," HELLO "}", 400, "n", "invalid_value"},
    {CHAT, "{\"max_tokens\":\"many\"," HELLO "}", 400, "max_tokens", "invalid_type"},
    {CHAT, "{\"stop\":{\"a\":1}," HELLO "}", 400, "stop", "invalid_type"},
    {CHAT, "{\"logit_bias\":\"x\"," HELLO "}", 400, "logit_bias", "invalid_type"},
    {CHAT, "{\"messages\":[{\"content\":\"hi\"}]}", 400, "messages[0]", "missing_required_parameter"},
    {CHAT,
     "{\"continue_final_message\":true,"
     "\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}",
     400, "continue_final_message", "invalid_value"},
    {CHAT, "{\"continue_final_message\":true," HELLO "}", 400, "continue_final_message", "invalid_value"},
    {CHAT, "{\"continue_final_message\":\"yes\"," HELLO "}", 400, "continue_final_message", "invalid_value"},
    {CHAT, "{\"add_generation_prompt\":1," HELLO "}", 400, "add_generation_prompt", "invalid_type"},
    {CHAT, "{\"audio\":{\"voice\":\"x\"}," HELLO "}", 400, "audio", "unsupported_parameter"},
    {CHAT, "{\"chat_template_kwargs\":{\"enable_thinking\":\"true\"}," HELLO "}", 400,
     "chat_template_kwargs.enable_thinking", "invalid_type"},
    {CHAT, "{\"enable_thinking\":\"no\"," HELLO "}", 400, "enable_thinking", "invalid_type"},
    {CHAT, "{\"reasoning_effort\":\"huge\"," HELLO "}", 400, "reasoning_effort", "invalid_value"},
    {CHAT, "{\"reasoning_format\":\"loud\"," HELLO "}", 400, "reasoning_format", "invalid_value"},
    {CHAT, "{\"reasoning\":\"x\"," HELLO "}", 400, "reasoning", "invalid_type"},
    {CHAT, "{\"thinking\":{\"type\":\"maybe\"}," HELLO "}", 400, "thinking.type", "invalid_value"},
    {CHAT, "{\"thinking\":{\"budget_tokens\":1.5}," HELLO "}", 400, "thinking.budget_tokens", "invalid_type"},
    {CHAT, "{\"thinking_budget_tokens\":-2," HELLO "}", 400, "thinking_budget_tokens", "invalid_value"},
    {CHAT, "{\"reasoning_budget_message\":7," HELLO "}", 400, "reasoning_budget_message", "invalid_type"},
    {"/v1/completions", "{\"prompt\":\"a\",\"tools\":[{\"type\":\"function\"}]}", 400, "tools",
     "unsupported_parameter"},
    {"/v1/completions", "{}", 400, "prompt", "missing_required_parameter"},
    {"/v1/completions", "{\"prompt\":\"\"}", 400, "prompt", "invalid_value"},
    {"/v1/completions", "{\"prompt\":[1,true]}", 400, "prompt", "invalid_value"},
    {"/v1/completions", "{\"prompt\":[99999999]}", 400, "prompt", "invalid_value"},
    {"/v1/completions", "{\"prompt\":true}", 400, "prompt", "invalid_type"},
    {"/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"b\"}", 400, "suffix", "unsupported_parameter"},
    {"/v1/completions", "{\"prompt\":\"a\",\"best_of\":2}", 400, "best_of", "unsupported_parameter"},
    {"/v1/completions", "{\"prompt\":\"a\",\"logprobs\":6}", 400, "logprobs", "invalid_value"},
    {"/tokenize", "{}", 400, "content", "missing_required_parameter"},
    {"/tokenize", "{\"content\":{}}", 400, "content", "invalid_type"},
    {"/detokenize", "{\"tokens\":[-1]}", 400, "tokens", "invalid_value"},
    {"/apply-template", "{\"messages\":[]}", 400, "messages", "invalid_value"},
};

static void refuses_with_the_error_object(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        json_t *answer = call("POST", refusals[i].path, refusals[i].body, refusals[i].status);
        assert_true(strlen(json_str(answer, "error.message")) > 0);
        assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
        assert_string_equal(json_str(answer, "error.param"), refusals[i].param);
        assert_string_equal(json_str(answer, "error.code"), refusals[i].code);
        json_decref(answer);
    }
}

static void refuses_nesting_without_end(void **state) {
    (void)state;
    struct hearth_buf body = {0};
    assert_true(hearth_buf_text(&body, "{\"x\":"));
    for (int i = 0; i < 100000; i++) {
        assert_true(hearth_buf_text(&body, "["));
    }
    json_decref(call("POST", CHAT, (const char *)body.data, 400));
    hearth_buf_finish(&body);
}

static void names_both_numbers_when_a_prompt_is_too_long(void **state) {
    (void)state;
    struct hearth_buf body = {0};
    assert_true(hearth_buf_text(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\""));
    for (int i = 0; i < 3000; i++) {
        assert_true(hearth_buf_text(&body, "x"));
    }
    assert_true(hearth_buf_text(&body, "\"}]}"));
    json_t *answer = call("POST", CHAT, (const char *)body.data, 400);
    assert_string_equal(json_str(answer, "error.code"), "context_length_exceeded");
    assert_string_equal(json_str(answer, "error.param"), "messages");
    char number[24];
    snprintf(number, sizeof number, " %lld ", (long long)json_num(answer, "error.n_prompt_tokens"));
    assert_non_null(strstr(json_str(answer, "error.message"), number));
    assert_non_null(strstr(json_str(answer, "error.message"), " 2048 tokens,"));
    assert_int_equal(json_num(answer, "error.n_ctx"), 2048);
    json_decref(answer);
    hearth_buf_finish(&body);
}

static void keys_are_asked_for(void **state) {
    static const struct hearth_api_key keys[] = {{.key = "first"}, {.key = "second-key"}};
    struct stage other;
    struct stage_options options;
    int status;
    (void)state;
    stage_options_default(&options);
    options.api.keys = keys;
    options.api.key_count = 2;
    options.api.alias = "ali";
    options.api.metrics = false;
    options.api.slots = false;
    stage_open(&other, &options);
    json_t *answer = stage_call(&other, "POST", CHAT, "{" HELLO "}", &status);
    assert_int_equal(status, 401);
    assert_string_equal(json_str(answer, "error.type"), "authentication_error");
    json_decref(answer);
    json_decref(stage_call(&other, "GET", "/health", NULL, &status));
    assert_int_equal(status, 200);
    json_decref(stage_call(&other, "GET", "/nowhere", NULL, &status));
    assert_int_equal(status, 401);
    const struct {
        const char *header;
        int status;
    } cases[] = {
        {"Authorization: Bearer first\r\n", 200},
        {"authorization: bearer second-key\r\n", 200},
        {"X-Api-Key: second-key\r\n", 200},
        {"Authorization: Bearer firs\r\n", 401},
        {"Authorization: Bearer firstfirst\r\n", 401},
        {"Authorization: Bearer \r\n", 401},
        {"X-Api-Key:\r\n", 401},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct response response = http_call(other.port, "GET", "/v1/models/ali", cases[i].header, NULL);
        assert_int_equal(response.status, cases[i].status);
        response_finish(&response);
    }
    struct response off = http_call(other.port, "GET", "/metrics", "X-Api-Key: first\r\n", NULL);
    assert_int_equal(off.status, 501);
    response_finish(&off);
    stage_close(&other);
}

static json_int_t metric(const struct stage *at, const char *name) {
    struct response response = http_call(at->port, "GET", "/metrics", NULL, NULL);
    char line[96];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *found = strstr((const char *)response.body.data, line);
    json_int_t value = found != NULL ? strtoll(found + strlen(line), NULL, 10) : -1;
    response_finish(&response);
    return value;
}

/* A hundred clients leave, some while their prompt is computed, some in mid-stream: all lanes are free at once. */
static void disconnects_leave_nothing_behind(void **state) {
    struct stage slow;
    struct stage_options options;
    struct hearth_buf body = {0};
    (void)state;
    stage_options_default(&options);
    options.sim.real_time = true;
    options.sim.decode_tokens_per_s = 500;
    options.sim.prefill_tokens_per_s = 5000;
    stage_open(&slow, &options);
    assert_true(hearth_buf_text(&body, "{\"stream\":true,\"ignore_eos\":true,"
                                       "\"messages\":[{\"role\":\"user\",\"content\":\""));
    for (int i = 0; i < 2000; i++) {
        assert_true(hearth_buf_printf(&body, "%c", 'a' + i % 7));
    }
    for (int i = 0; i < 100; i++) {
        struct client client;
        struct hearth_buf request = {0};
        assert_true(hearth_buf_printf(&request, "%s%d\"}]}", (const char *)body.data, i));
        assert_true(client_open(&client, slow.port));
        assert_true(client_request(&client, "POST", CHAT, NULL, (const char *)request.data));
        if (i % 2 == 0) {
            assert_true(client_wait_for(&client, "\"delta\":{\"content\""));
        } else {
            usleep((useconds_t)(i % 10) * 3000);
        }
        client_close(&client);
        hearth_buf_finish(&request);
    }
    int64_t until = hearth_clock_us() + 20 * 1000000ll;
    while ((metric(&slow, "hearth_lanes_busy") + metric(&slow, "hearth_queued") > 0 ||
            metric(&slow, "hearth_requests_total") != metric(&slow, "hearth_requests_cancelled_total")) &&
           hearth_clock_us() < until) {
        usleep(20000);
    }
    assert_int_equal(metric(&slow, "hearth_lanes_busy"), 0);
    assert_int_equal(metric(&slow, "hearth_queued"), 0);
    assert_int_equal(metric(&slow, "hearth_requests_total"), metric(&slow, "hearth_requests_cancelled_total"));
    int status;
    json_t *answer = stage_call(&slow, "POST", CHAT, "{\"max_tokens\":2," HELLO "}", &status);
    assert_int_equal(status, 200);
    json_decref(answer);
    hearth_buf_finish(&body);
    stage_close(&slow);
}

/* Stopping lets a running stream end, and refuses new work. */
static void shutdown_lets_running_requests_end(void **state) {
    struct stage slow;
    struct stage_options options;
    struct client client;
    struct response response;
    (void)state;
    stage_options_default(&options);
    options.sim.real_time = true;
    options.sim.decode_tokens_per_s = 200;
    stage_open(&slow, &options);
    assert_true(client_open(&client, slow.port));
    assert_true(client_request(&client, "POST", CHAT, NULL,
                               "{\"stream\":true,\"ignore_eos\":true,\"max_tokens\":60," HELLO "}"));
    assert_true(client_wait_for(&client, "\"delta\":{\"content\""));
    hearth_api_shutdown(slow.api, 10 * 1000000ll);
    assert_true(client_response(&client, false, &response));
    assert_true(response.complete);
    assert_non_null(strstr((const char *)response.body.data, "\"finish_reason\":\"length\""));
    assert_non_null(strstr((const char *)response.body.data, "[DONE]"));
    assert_true(client_at_end(&client));
    response_finish(&response);
    client_close(&client);
    stage_close(&slow);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_endpoints),
        cmocka_unit_test(unknown_paths_and_methods),
        cmocka_unit_test(head_is_get_without_the_body),
        cmocka_unit_test(chat_whole),
        cmocka_unit_test(chat_streamed),
        cmocka_unit_test(template_and_tokens_agree_with_chat),
        cmocka_unit_test(tokenize_pieces),
        cmocka_unit_test(plain_completions),
        cmocka_unit_test(stop_strings_end_a_reply),
        cmocka_unit_test(base_urls_are_joined_in_many_ways),
        cmocka_unit_test(compressed_bodies_are_told_of),
        cmocka_unit_test(accepts_what_clients_send),
        cmocka_unit_test(refuses_with_the_error_object),
        cmocka_unit_test(refuses_nesting_without_end),
        cmocka_unit_test(names_both_numbers_when_a_prompt_is_too_long),
        cmocka_unit_test(keys_are_asked_for),
        cmocka_unit_test(disconnects_leave_nothing_behind),
        cmocka_unit_test(shutdown_lets_running_requests_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
