/* The API over a scripted service: what it asks the service for, and what it makes of every way a request can end. */
#include "base/clock.h"
#include "support/fake_service.h"
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CHAT "/v1/chat/completions"
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"

static const struct fake_plan quick = {.pieces = 3, .piece = "ab "};

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    options.api.http.out_bytes = 1024 * 1024;
    stage_open(&stage, &options);
    fake_set_plan(&quick);
    return 0;
}

/* Waits until as many requests have been cancelled and none is active; returns the time it took. */
static int64_t wait_cancelled(int cancelled) {
    struct fake_counts counts;
    int64_t since = hearth_clock_us();
    do {
        usleep(1000);
        fake_get_counts(&counts);
    } while ((counts.cancelled < cancelled || counts.active > 0) && hearth_clock_us() - since < 10 * 1000000ll);
    assert_int_equal(counts.cancelled, cancelled);
    assert_int_equal(counts.active, 0);
    return hearth_clock_us() - since;
}

static void wait_submitted(int submitted) {
    struct fake_counts counts;
    int64_t since = hearth_clock_us();
    do {
        usleep(1000);
        fake_get_counts(&counts);
    } while (counts.submitted < submitted && hearth_clock_us() - since < 10 * 1000000ll);
    assert_int_equal(counts.submitted, submitted);
}

static void parameters_reach_the_service(void **state) {
    (void)state;
    json_decref(
        post(CHAT,
             "{\"temperature\":0.25,\"top_p\":0.5,\"min_p\":0.1,\"typical_p\":0.9,\"top_k\":7,\"seed\":11,"
             "\"presence_penalty\":-1,\"frequency_penalty\":1.5,\"repeat_penalty\":1.25,\"repeat_last_n\":9,"
             "\"max_tokens\":5,\"max_completion_tokens\":6,\"stop\":[\"x\",\"yy\"],\"logit_bias\":{\"65\":-3.5},"
             "\"ignore_eos\":true,\"cache_prompt\":false,\"logprobs\":true,\"top_logprobs\":4," USER "}",
             200));
    const struct fake_request *last = fake_last();
    assert_true(last->sampling.temperature == 0.25f && last->sampling.top_p == 0.5f && last->sampling.min_p == 0.1f);
    assert_true(last->sampling.typical_p == 0.9f && last->sampling.top_k == 7 && last->sampling.seed == 11);
    assert_true(last->sampling.penalty_presence == -1.0f && last->sampling.penalty_frequency == 1.5f);
    assert_true(last->sampling.penalty_repeat == 1.25f && last->sampling.penalty_last_tokens == 9);
    assert_true(last->sampling.ignore_eos && last->cache_off);
    assert_int_equal(last->sampling.logprobs, 4);
    assert_int_equal(last->max_tokens, 6);
    assert_int_equal(last->stop_count, 2);
    assert_string_equal(last->stops[1], "yy");
    assert_int_equal(last->sampling.logit_biases, 1);
    assert_true(last->bias[0].token == 65 && last->bias[0].bias == -3.5f);
    json_decref(post(CHAT, "{" USER "}", 200));
    assert_true(last->sampling.seed == HEARTH_SEED_RANDOM && last->max_tokens == -1 && !last->cache_off);
    assert_int_equal(last->sampling.logprobs, -1);
}

/* Marks stand before the headers of the first and the last message, and of the reply. */
static void marks_stand_before_messages(void **state) {
    (void)state;
    json_decref(post(CHAT,
                     "{\"messages\":[{\"role\":\"system\",\"content\":\"Be a fire.\"},{\"role\":\"user\",\"content\":"
                     "\"First question\"},{\"role\":\"assistant\",\"content\":\"Yes.\"},{\"role\":\"user\",\"content\":"
                     "\"Second question\"}]}",
                     200));
    const struct fake_request *last = fake_last();
    static const char before[] = "<|im_end|>\n";
    static const char *const after[] = {"<|im_start|>user\nFirst", "<|im_start|>user\nSecond",
                                        "<|im_start|>assistant\n"};
    assert_int_equal(last->mark_count, 3);
    for (size_t i = 0; i < 3; i++) {
        struct hearth_buf head = {0}, tail = {0};
        char text[64];
        for (size_t k = 0; k < last->prompt_tokens; k++) {
            size_t len = stage.engine->ops->token_text(stage.engine, last->prompt[k], true, text, sizeof text);
            assert_true(hearth_buf_append(k < (size_t)last->marks[i] ? &head : &tail, text, len));
        }
        assert_memory_equal(head.data + head.len - strlen(before), before, strlen(before));
        assert_memory_equal(tail.data, after[i], strlen(after[i]));
        hearth_buf_finish(&head);
        hearth_buf_finish(&tail);
    }
}

/* The texts of a format reach the service as tokens: what a reply must look like, and how long it may think. */
static void formats_reach_the_service(void **state) {
    static const char thinking[] = "{%- for m in messages -%}{{- '<|im_start|>' + m.role + '\n' -}}"
                                   "{%- if m.role == 'assistant' and m.reasoning_content -%}"
                                   "{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' -}}{%- endif -%}"
                                   "{{- m.content + '<|im_end|>\n' -}}{%- endfor -%}"
                                   "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}";
    static const char tools[] =
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]";
    const struct fake_request *last = fake_last();
    struct stage other;
    struct stage_options options;
    struct hearth_buf forced = {0};
    char body[512];
    int status;
    (void)state;
    json_decref(post(CHAT, "{\"grammar\":\"root ::= \\\"x\\\"\"," USER "}", 200));
    assert_string_equal(last->grammar, "root ::= \"x\"");
    assert_false(last->lazy || last->thinks);
    snprintf(body, sizeof body, "{%s," USER "}", tools);
    json_decref(post(CHAT, body, 200));
    assert_true(last->grammar[0] != '\0' && last->lazy);
    snprintf(body, sizeof body, "{\"tool_choice\":\"required\",%s," USER "}", tools);
    json_decref(post(CHAT, body, 200));
    assert_true(last->grammar[0] != '\0' && !last->lazy);
    json_decref(post("/v1/completions", "{\"prompt\":\"x\",\"json_schema\":{\"type\":\"boolean\"}}", 200));
    assert_non_null(strstr(last->grammar, "true"));

    stage_options_default(&options);
    options.chat_template = thinking;
    options.api.reasoning_budget = 9;
    options.api.reasoning_budget_message = "Enough.";
    stage_open(&other, &options);
    json_decref(stage_call(&other, "POST", CHAT, "{" USER "}", &status));
    assert_int_equal(status, 200);
    assert_true(last->thinks && last->budget_tokens == 9);
    for (size_t i = 0; i < last->forced_count; i++) {
        char text[64];
        size_t len = other.engine->ops->token_text(other.engine, last->forced[i], true, text, sizeof text);
        assert_true(hearth_buf_append(&forced, text, len) && hearth_buf_append(&forced, "", 1));
        forced.len--;
    }
    assert_memory_equal(forced.data, "Enough.", 7);
    assert_non_null(strstr((const char *)forced.data, "</think>"));
    snprintf(body, sizeof body, "{\"thinking_budget_tokens\":3,%s," USER "}", tools);
    json_decref(stage_call(&other, "POST", CHAT, body, &status));
    assert_true(last->budget_tokens == 3);
    hearth_buf_finish(&forced);
    stage_close(&other);
}

static void several_choices_share_a_response(void **state) {
    (void)state;
    uint32_t seeds[8];
    fake_set_plan(&quick);
    json_t *answer = post(CHAT, "{\"n\":3,\"seed\":40," USER "}", 200);
    assert_int_equal(json_array_size(json_at(answer, "choices")), 3);
    assert_string_equal(json_str(answer, "choices.2.message.content"), "ab ab ab ");
    assert_int_equal(json_num(answer, "choices.2.index"), 2);
    json_int_t prompt = json_num(answer, "usage.prompt_tokens");
    assert_int_equal(json_num(answer, "usage.completion_tokens"), 9);
    assert_int_equal(json_num(answer, "usage.total_tokens"), prompt + 9);
    assert_int_equal(json_num(answer, "usage.prompt_tokens_details.cached_tokens"), 5);
    assert_int_equal(json_num(answer, "timings.cache_n"), 5);
    assert_int_equal(json_num(answer, "hearth.reused.live"), 2);
    assert_int_equal(json_num(answer, "hearth.reused.ram"), 3);
    assert_true(json_real_value(json_at(answer, "timings.prompt_ms")) == 10.0);
    assert_true(json_real_value(json_at(answer, "hearth.queue_ms")) == 1.0);
    json_decref(answer);
    assert_int_equal(fake_seeds(seeds, 8), 3);
    assert_true(seeds[0] == 40 && seeds[1] == 41 && seeds[2] == 42);
    /* Streamed: each choice has its first, last and middle chunks; usage closes. */
    struct response stream =
        http_call(stage.port, "POST", CHAT, NULL,
                  "{\"n\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true}," USER "}");
    json_t *events = sse_events((const char *)stream.body.data);
    int first[2] = {0}, middle[2] = {0}, finished[2] = {0};
    for (size_t i = 0; i + 2 < json_array_size(events); i++) {
        json_t *event = json_array_get(events, i);
        json_int_t index = json_num(event, "choices.0.index");
        assert_true(index == 0 || index == 1);
        first[index] += json_at(event, "choices.0.delta.role") != NULL;
        middle[index] += strcmp(json_str(event, "choices.0.delta.content"), "ab ") == 0;
        finished[index] += strcmp(json_str(event, "choices.0.finish_reason"), "stop") == 0;
    }
    assert_true(first[0] == 1 && first[1] == 1 && middle[0] == 3 && middle[1] == 3 && finished[0] == 1 &&
                finished[1] == 1);
    json_decref(events);
    response_finish(&stream);
}

static void logprobs_in_both_forms(void **state) {
    (void)state;
    fake_set_plan(&quick);
    json_t *answer = post(CHAT, "{\"logprobs\":true,\"top_logprobs\":2," USER "}", 200);
    assert_int_equal(json_array_size(json_at(answer, "choices.0.logprobs.content")), 3);
    assert_string_equal(json_str(answer, "choices.0.logprobs.content.1.token"), " the");
    assert_int_equal(json_num(answer, "choices.0.logprobs.content.1.bytes.0"), ' ');
    assert_true(json_real_value(json_at(answer, "choices.0.logprobs.content.1.logprob")) == -0.5);
    assert_int_equal(json_array_size(json_at(answer, "choices.0.logprobs.content.1.top_logprobs")), 2);
    json_decref(answer);
    struct response stream = http_call(stage.port, "POST", CHAT, NULL, "{\"logprobs\":true,\"stream\":true," USER "}");
    json_t *events = sse_events((const char *)stream.body.data);
    assert_int_equal(json_array_size(json_at(events, "1.choices.0.logprobs.content")), 1);
    json_decref(events);
    response_finish(&stream);
    answer = post("/v1/completions", "{\"prompt\":\"x\",\"logprobs\":2}", 200);
    assert_string_equal(json_str(answer, "choices.0.logprobs.tokens.2"), " the");
    assert_true(json_real_value(json_at(answer, "choices.0.logprobs.top_logprobs.0. of")) == -1.5);
    assert_int_equal(json_num(answer, "choices.0.logprobs.text_offset.2"), 8);
    json_decref(answer);
}

/* Before anything was sent an error is a status, streamed or not; afterwards it is the stream's last event. */
static void errors_before_and_after_the_first_token(void **state) {
    static const struct {
        struct fake_plan plan;
        int status;
        const char *type;
    } cases[] = {
        {{.submit_err = HEARTH_ERR_BUSY}, 503, "server_error"},
        {{.submit_err = HEARTH_ERR_TOO_LONG}, 400, "invalid_request_error"},
        {{.fail_err = HEARTH_ERR_ENGINE, .fail_after = -1, .pieces = 1, .piece = "x"}, 500, "server_error"},
        {{.fail_err = HEARTH_ERR_NO_CELLS, .fail_after = -1, .pieces = 1, .piece = "x"}, 503, "server_error"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_set_plan(&cases[i].plan);
        json_t *whole = post(CHAT, "{" USER "}", cases[i].status);
        assert_string_equal(json_str(whole, "error.type"), cases[i].type);
        json_decref(whole);
        json_t *streamed = post(CHAT, "{\"stream\":true,\"n\":2," USER "}", cases[i].status);
        assert_string_equal(json_str(streamed, "error.type"), cases[i].type);
        json_decref(streamed);
    }
    const struct fake_plan late = {.fail_err = HEARTH_ERR_ENGINE, .fail_after = 2, .pieces = 9, .piece = "x"};
    fake_set_plan(&late);
    json_decref(post(CHAT, "{" USER "}", 500));
    struct response stream = http_call(stage.port, "POST", CHAT, NULL, "{\"stream\":true," USER "}");
    assert_int_equal(stream.status, 200);
    assert_true(stream.complete);
    json_t *events = sse_events((const char *)stream.body.data);
    assert_int_equal(json_array_size(events), 4);
    assert_string_equal(json_str(events, "3.error.type"), "server_error");
    json_decref(events);
    response_finish(&stream);
}

/* A client that leaves cancels all its requests at once, whatever state they are in. */
static void leaving_cancels(void **state) {
    static const struct fake_plan plans[] = {
        {.hold = true}, /* before the first event */
        {.pieces = -1, .piece = "abc", .wait_ms = 1},
        {.pieces = -1, .piece = "abc", .wait_ms = 60000}, /* nothing is written while it leaves */
    };
    struct fake_counts before;
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        struct client client;
        fake_get_counts(&before);
        fake_set_plan(&plans[i % 3]);
        assert_true(client_open(&client, stage.port));
        assert_true(client_request(&client, "POST", CHAT, NULL,
                                   i < 3 ? "{\"stream\":true,\"n\":3," USER "}" : "{\"n\":3," USER "}"));
        wait_submitted(before.submitted + 3);
        usleep(20000);
        client_close(&client);
        assert_true(wait_cancelled(before.cancelled + 3) < 5 * 1000000ll);
    }
    fake_set_plan(&quick);
    json_decref(post(CHAT, "{" USER "}", 200));
}

static void a_reader_that_does_not_read_is_cancelled(void **state) {
    static char piece[32768];
    struct fake_plan flood = {.pieces = -1, .piece = piece};
    struct fake_counts before;
    struct client client;
    (void)state;
    memset(piece, 'x', sizeof piece - 1);
    fake_get_counts(&before);
    fake_set_plan(&flood);
    assert_true(client_open(&client, stage.port));
    assert_true(client_request(&client, "POST", CHAT, NULL, "{\"stream\":true," USER "}"));
    wait_submitted(before.submitted + 1);
    wait_cancelled(before.cancelled + 1);
    client_close(&client);
    fake_set_plan(&quick);
}

static void slots_show_lanes(void **state) {
    int status;
    (void)state;
    json_t *slots = stage_call(&stage, "GET", "/slots", NULL, &status);
    assert_int_equal(status, 200);
    assert_int_equal(json_array_size(slots), 2);
    assert_string_equal(json_str(slots, "1.state"), "decode");
    assert_true(json_is_true(json_at(slots, "1.is_processing")));
    assert_int_equal(json_num(slots, "1.live_tokens"), 11);
    json_decref(slots);
    json_decref(stage_call(&stage, "GET", "/slots?fail_on_no_slot=1", NULL, &status));
    assert_int_equal(status, 503);
}

/* What is still running when the grace period ends is answered, not cut off. */
static void shutdown_answers_what_it_cancels(void **state) {
    const struct fake_plan endless = {.pieces = -1, .piece = "abc", .wait_ms = 5};
    const struct fake_plan held = {.hold = true};
    struct client streamed, whole;
    struct response response;
    struct fake_counts before;
    (void)state;
    fake_get_counts(&before);
    fake_set_plan(&held);
    assert_true(client_open(&whole, stage.port) && client_open(&streamed, stage.port));
    assert_true(client_request(&whole, "POST", CHAT, NULL, "{" USER "}"));
    wait_submitted(before.submitted + 1);
    fake_set_plan(&endless);
    assert_true(client_request(&streamed, "POST", CHAT, NULL, "{\"stream\":true," USER "}"));
    assert_true(client_wait_for(&streamed, "abc"));
    int64_t since = hearth_clock_us();
    hearth_api_shutdown(stage.api, 300000);
    assert_true(hearth_clock_us() - since < 5 * 1000000ll);
    assert_true(client_response(&whole, false, &response));
    assert_int_equal(response.status, 503);
    response_finish(&response);
    assert_true(client_response(&streamed, false, &response));
    assert_true(response.complete);
    assert_non_null(strstr((const char *)response.body.data, "data: {\"error\":"));
    response_finish(&response);
    client_close(&whole);
    client_close(&streamed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_reach_the_service),
        cmocka_unit_test(marks_stand_before_messages),
        cmocka_unit_test(formats_reach_the_service),
        cmocka_unit_test(several_choices_share_a_response),
        cmocka_unit_test(logprobs_in_both_forms),
        cmocka_unit_test(errors_before_and_after_the_first_token),
        cmocka_unit_test(leaving_cancels),
        cmocka_unit_test(a_reader_that_does_not_read_is_cancelled),
        cmocka_unit_test(slots_show_lanes),
        cmocka_unit_test(shutdown_answers_what_it_cancels),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
