/* Anthropic's Messages over a scripted service: what becomes of cache_control, what usage says of a receipt, and how a
 * stream ends that fails. */
#include "support/fake_service.h"
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MESSAGES "/v1/messages"
#define MINUTES(n) ((int64_t)(n) * 60 * 1000000)
#define MARK ",\"cache_control\":{\"type\":\"ephemeral\"}"
#define MARK_1H ",\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"}"
#define TEXT(text, mark) "{\"type\":\"text\",\"text\":\"" text "\"" mark "}"
#define TALK(system_mark, first_mark, reply_mark, last_mark)                                                           \
    "\"system\":[" TEXT("Be a fire that burns for long", system_mark) "," TEXT(                                        \
        "And be warm.", "") "],\"messages\":["                                                                         \
                            "{\"role\":\"user\",\"content\":[" TEXT(                                                   \
                                "First question", first_mark) "]},"                                                    \
                                                              "{\"role\":\"assistant\",\"content\":[" TEXT(            \
                                                                  "Yes, it is.",                                       \
                                                                  reply_mark) "]},"                                    \
                                                                              "{\"role\":\"user\",\"content\":[" TEXT( \
                                                                                  "Second question", last_mark) "]}]"

static const struct fake_plan quick = {.pieces = 3, .piece = "ab "};

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    stage_open(&stage, &options);
    fake_set_plan(&quick);
    return 0;
}

static json_t *ask(const char *body, int want) {
    return stage_want(&stage, "POST", MESSAGES, body, want);
}

/* The text in front of a position of the last prompt ends with this, the turn's end aside: marks stand on either side
 * of it. */
static void assert_behind(int32_t position, const char *ending) {
    static const char turn_end[] = "<|im_end|>\n";
    const struct fake_request *last = fake_last();
    struct hearth_buf text = {0};
    assert_true(position > 0 && (size_t)position <= last->prompt_tokens);
    for (int32_t i = 0; i < position; i++) {
        assert_true(hearth_engine_append_text(stage.engine, last->prompt[i], true, &text));
    }
    size_t end = sizeof turn_end - 1, len = strlen(ending);
    if (text.len > end && memcmp(text.data + text.len - end, turn_end, end) == 0) {
        text.len -= end;
    }
    if (text.len < len || memcmp(text.data + text.len - len, ending, len) != 0) {
        fail_msg("'%.*s' does not end with '%s'", (int)text.len, (const char *)text.data, ending);
    }
    hearth_buf_finish(&text);
}

static bool is_marked(int32_t position) {
    const struct fake_request *last = fake_last();
    for (size_t i = 0; i < last->mark_count; i++) {
        if (last->marks[i] == position) {
            return true;
        }
    }
    return false;
}

static void breakpoints_become_pins(void **state) {
    const struct fake_request *last = fake_last();
    (void)state;
    json_decref(ask("{\"max_tokens\":9," TALK(MARK_1H, MARK, MARK, MARK) "}", 200));
    assert_int_equal(last->pin_count, 4);
    assert_behind(last->pins[0].position, "Be a fire that burns for long");
    assert_behind(last->pins[1].position, "First question");
    assert_behind(last->pins[2].position, "Yes, it is.");
    assert_behind(last->pins[3].position, "Second question");
    for (size_t i = 0; i < 4; i++) {
        assert_true(last->pins[i].ttl_us == (i == 0 ? MINUTES(60) : MINUTES(5)));
        assert_true(is_marked(last->pins[i].position));
    }
    for (size_t i = 1; i < last->mark_count; i++) {
        assert_true(last->marks[i] > last->marks[i - 1]);
    }
    /* None, one at the top, one on the tools. */
    json_decref(ask("{\"max_tokens\":9," TALK("", "", "", "") "}", 200));
    assert_int_equal(last->pin_count, 0);
    json_decref(ask(
        "{\"max_tokens\":9,\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"}," TALK("", "", "", "") "}", 200));
    assert_int_equal(last->pin_count, 1);
    assert_behind(last->pins[0].position, "Second question");
    assert_true(last->pins[0].ttl_us == MINUTES(60));
    json_decref(ask(
        "{\"max_tokens\":9,\"tools\":[{\"name\":\"t\",\"input_schema\":{}" MARK "}]," TALK("", "", "", "") "}", 200));
    assert_int_equal(last->pin_count, 1);
    assert_behind(last->pins[0].position, "answer in plain text.");
    assert_true(is_marked(last->pins[0].position));
    /* Two in one place are one, for as long as either wants. */
    json_decref(
        ask("{\"max_tokens\":9,\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"}," TALK("", "", "", MARK) "}",
            200));
    assert_int_equal(last->pin_count, 1);
    assert_true(last->pins[0].ttl_us == MINUTES(60));
}

static void breakpoints_follow_results_and_prefills(void **state) {
    const struct fake_request *last = fake_last();
    (void)state;
    json_decref(ask("{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
                    "\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"t\",\"input\":{}" MARK "}]},{\"role\":"
                    "\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":\"found\"" MARK
                    "}," TEXT("Well?", "") "]}]}",
                    200));
    assert_int_equal(last->pin_count, 2);
    assert_behind(last->pins[0].position, "</tool_call>");
    assert_true(last->pins[1].position > last->pins[0].position);
    json_decref(ask("{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
                    "\"content\":[" TEXT("It is", MARK) "]}]}",
                    200));
    assert_int_equal(last->pin_count, 1);
    assert_behind(last->pins[0].position, "It is");
    assert_int_equal((size_t)last->pins[0].position, last->prompt_tokens);
}

/* Read, written up to the last breakpoint, and the rest: together the prompt. */
static void usage_tells_three_parts(void **state) {
    const struct fake_request *last = fake_last();
    struct fake_plan plan = quick;
    (void)state;
    json_decref(ask("{\"max_tokens\":9," TALK(MARK_1H, MARK, "", "") "}", 200));
    const uint32_t prompt = (uint32_t)last->prompt_tokens;
    const int32_t hour = last->pins[0].position, minutes = last->pins[1].position;
    const struct {
        const char *body;
        uint32_t cached;
        int32_t rest, created, created_1h;
    } cases[] = {
        {"{\"max_tokens\":9," TALK(MARK_1H, MARK, "", "") "}", 3, (int32_t)prompt - minutes, minutes - 3, hour - 3},
        {"{\"max_tokens\":9," TALK(MARK_1H, MARK, "", "") "}", (uint32_t)hour + 2, (int32_t)prompt - minutes,
         minutes - hour - 2, 0},
        {"{\"max_tokens\":9," TALK(MARK_1H, MARK, "", "") "}", prompt - 1, 1, 0, 0},
        {"{\"max_tokens\":9," TALK("", "", "", "") "}", 3, (int32_t)prompt - 3, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        plan.receipt = (struct hearth_receipt){.prompt_tokens = prompt,
                                               .reused_ram_tokens = 1,
                                               .reused_disk_tokens = 1,
                                               .reused_live_tokens = cases[i].cached - 2,
                                               .computed_tokens = prompt - cases[i].cached};
        fake_set_plan(&plan);
        json_t *answer = ask(cases[i].body, 200);
        assert_int_equal(json_num(answer, "usage.cache_read_input_tokens"), cases[i].cached);
        assert_int_equal(json_num(answer, "usage.input_tokens"), cases[i].rest);
        assert_int_equal(json_num(answer, "usage.cache_creation_input_tokens"), cases[i].created);
        assert_int_equal(json_num(answer, "usage.cache_creation.ephemeral_1h_input_tokens"), cases[i].created_1h);
        assert_int_equal(json_num(answer, "usage.cache_creation.ephemeral_5m_input_tokens"),
                         cases[i].created - cases[i].created_1h);
        json_decref(answer);
    }
    fake_set_plan(&quick);
}

static void failures_have_their_form(void **state) {
    static const char body[] =
        "{\"stream\":true,\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    const struct fake_plan late = {.pieces = 3, .piece = "ab ", .fail_err = HEARTH_ERR_ENGINE, .fail_after = 2};
    const struct fake_plan early = {.fail_err = HEARTH_ERR_BUSY, .fail_after = -1};
    (void)state;
    fake_set_plan(&late);
    struct response response = http_call(stage.port, "POST", MESSAGES, NULL, body);
    const char *text = (const char *)response.body.data;
    assert_int_equal(response.status, 200);
    assert_true(response.complete);
    const char *event = strstr(text, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"");
    assert_non_null(event);
    assert_null(strstr(text, "message_stop"));
    json_t *error = json_loads(event + strlen("event: error\ndata: "), JSON_DISABLE_EOF_CHECK, NULL);
    assert_true(json_str(error, "error.message")[0] != '\0' && json_str(error, "request_id")[0] != '\0');
    json_decref(error);
    response_finish(&response);
    fake_set_plan(&early);
    error = ask(body, 503);
    assert_string_equal(json_str(error, "error.type"), "overloaded_error");
    json_decref(error);
    fake_set_plan(&quick);
}

/* What there is of each parameter reaches the service. */
static void parameters_reach_the_service(void **state) {
    const struct fake_request *last = fake_last();
    (void)state;
    json_decref(ask("{\"model\":\"m\",\"max_tokens\":128000,\"temperature\":0.25,\"top_p\":0.5,\"top_k\":7,"
                    "\"stop_sequences\":[\"x\",\"yy\"],\"metadata\":{\"user_id\":\"u\"},\"service_tier\":\"auto\","
                    "\"container\":\"c\",\"mcp_servers\":[],\"context_management\":{\"edits\":[]},\"betas\":[\"b\"],"
                    "\"inference_geo\":\"eu\",\"speed\":\"fast\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
                    200));
    assert_true(last->sampling.temperature == 0.25f && last->sampling.top_p == 0.5f && last->sampling.top_k == 7);
    assert_int_equal(last->max_tokens, 128000);
    assert_int_equal(last->stop_count, 2);
    assert_string_equal(last->stops[1], "yy");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(breakpoints_become_pins),      cmocka_unit_test(breakpoints_follow_results_and_prefills),
        cmocka_unit_test(usage_tells_three_parts),      cmocka_unit_test(failures_have_their_form),
        cmocka_unit_test(parameters_reach_the_service),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
