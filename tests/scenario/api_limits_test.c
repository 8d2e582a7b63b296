/* A full context, in the words and the form by which the clients of each dialect know it; the size of the context
 * wherever clients ask for it. */
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CTX 2048
#define ROOM (CTX / 16)

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    options.sim.ctx_tokens = CTX;
    stage_open(&stage, &options);
    return 0;
}

/* A body: `format` with a text of so many words in the place of its %s. Caller frees. */
static char *with_words(const char *format, size_t words) {
    struct hearth_buf text = {0};
    const char *at = strstr(format, "%s");
    assert_non_null(at);
    assert_true(hearth_buf_append(&text, format, (size_t)(at - format)));
    for (size_t i = 0; i < words; i++) {
        assert_true(hearth_buf_text(&text, "word "));
    }
    assert_true(hearth_buf_text(&text, at + 2) && hearth_buf_append(&text, "", 1));
    return (char *)hearth_buf_take(&text);
}

static json_t *call_with(const char *path, const char *format, size_t words, int want) {
    char *body = with_words(format, words);
    json_t *answer = stage_want(&stage, "POST", path, body, want);
    free(body);
    return answer;
}

/* ---- errors ---- */

static void chat_and_completions_say_what_their_clients_look_for(void **state) {
    static const struct {
        const char *path, *body, *param;
    } cases[] = {
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", "messages"},
        {"/v1/chat/completions", "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", "messages"},
        {"/v1/completions", "{\"prompt\":\"%s\"}", "prompt"},
        {"/v1/responses", "{\"input\":\"%s\"}", "input"},
    };
    /* Parts of texts by which LiteLLM, OpenHands, Hermes and Claude Code know it. */
    static const char *const known[] = {"This model's maximum context length is 2048 tokens",
                                        "exceeds the context window", "lease reduce the length of"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *answer = call_with(cases[i].path, cases[i].body, 3000, 400);
        char number[32];
        assert_string_equal(json_str(answer, "error.code"), "context_length_exceeded");
        assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
        assert_string_equal(json_str(answer, "error.param"), cases[i].param);
        assert_int_equal(json_num(answer, "error.n_ctx"), CTX);
        snprintf(number, sizeof number, " %lld tokens", (long long)json_num(answer, "error.n_prompt_tokens"));
        assert_non_null(strstr(json_str(answer, "error.message"), number));
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
            assert_non_null(strstr(json_str(answer, "error.message"), known[k]));
        }
        json_decref(answer);
    }
}

/* Clients cut the history to what just fits, and have the rest summarised into what is left. */
static void a_prompt_leaves_room_for_the_reply(void **state) {
    static const char body[] = "{\"max_tokens\":%d,\"messages\":[{\"role\":\"user\",\"content\":\"%%s\"}]}";
    (void)state;
    for (int most = 4096; most > 0; most = most > 1 ? 1 : 0) {
        char format[128];
        unsigned long long tokens = 0, maximum = 0;
        snprintf(format, sizeof format, body, most);
        json_t *answer = call_with("/v1/messages", format, 3000, 400);
        assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
        assert_int_equal(sscanf(json_str(answer, "error.message"), "prompt is too long: %llu tokens > %llu maximum",
                                &tokens, &maximum),
                         2);
        assert_int_equal(maximum, most > 1 ? CTX - ROOM : CTX - 1);
        json_decref(answer);
        answer = call_with("/v1/messages/count_tokens", format, 3000, 200);
        assert_int_equal(json_num(answer, "input_tokens"), tokens);
        json_decref(answer);
    }
}

static size_t words_that_fill(size_t tokens) {
    size_t words = tokens / 5;
    for (;; words++) {
        json_t *answer = call_with("/v1/responses/input_tokens", "{\"input\":\"%s\"}", words, 200);
        const bool enough = json_num(answer, "input_tokens") >= (json_int_t)tokens;
        json_decref(answer);
        if (enough) {
            return words;
        }
    }
}

static void responses_leave_room_only_as_they_may_need_it(void **state) {
    (void)state;
    const size_t words = words_that_fill(CTX - ROOM + 1);
    json_decref(call_with("/v1/responses", "{\"input\":\"%s\"}", words, 400));
    json_decref(call_with("/v1/responses", "{\"input\":\"%s\",\"max_output_tokens\":16}", words, 200));
    json_decref(
        call_with("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", words, 200));
}

/* ---- as an event ---- */

/* The events of a streamed response, which has status 200. */
static json_t *stream(const char *format, size_t words) {
    char *body = with_words(format, words);
    struct response response = http_call(stage.port, "POST", "/v1/responses", NULL, body);
    assert_int_equal(response.status, 200);
    assert_true(response.complete);
    assert_true(hearth_buf_append(&response.body, "", 1));
    json_t *events = json_array();
    const char *data = (const char *)response.body.data;
    while ((data = strstr(data, "\ndata: ")) != NULL) {
        data += strlen("\ndata: ");
        assert_int_equal(json_array_append_new(events, json_loads(data, JSON_DISABLE_EOF_CHECK, NULL)), 0);
    }
    response_finish(&response);
    free(body);
    return events;
}

static void a_stream_fails_by_an_event(void **state) {
    (void)state;
    json_t *events = stream("{\"stream\":true,\"input\":\"%s\"}", 3000);
    assert_int_equal(json_array_size(events), 3);
    assert_string_equal(json_str(events, "0.type"), "response.created");
    assert_string_equal(json_str(events, "1.type"), "response.in_progress");
    assert_string_equal(json_str(events, "2.type"), "response.failed");
    assert_int_equal(json_num(events, "2.sequence_number"), 2);
    assert_string_equal(json_str(events, "2.response.status"), "failed");
    assert_string_equal(json_str(events, "2.response.error.code"), "context_length_exceeded");
    json_decref(events);
    json_decref(
        call_with("/v1/responses", "{\"stream\":true,\"input\":[{\"role\":\"nobody\",\"content\":\"%s\"}]}", 1, 400));
}

/* What Codex sends of itself. */
#define CODEX(window, kind)                                                                \
    "\"client_metadata\":{\"x-codex-window-id\":\"" window "\",\"x-codex-turn-metadata\":" \
    "\"{\\\"request_kind\\\":\\\"" kind "\\\"}\"}"
#define REPLIED                                                               \
    "\"stream\":true,\"input\":[{\"role\":\"assistant\",\"content\":\"%s\"}," \
    "{\"role\":\"user\",\"content\":\"hi\"}]"

static const char *ends_with(const char *format) {
    static char type[64];
    json_t *events = stream(format, 3000);
    snprintf(type, sizeof type, "%s", json_str(json_array_get(events, json_array_size(events) - 1), "type"));
    json_decref(events);
    return type;
}

static void codex_is_told_to_compact_and_goes_on(void **state) {
    (void)state;
    json_t *events = stream("{" REPLIED "," CODEX("t:0", "turn") "}", 3000);
    json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(json_str(last, "type"), "response.completed");
    assert_true(json_is_false(json_at(last, "response.end_turn")));
    assert_int_equal(json_array_size(json_at(last, "response.output")), 0);
    assert_true(json_num(last, "response.usage.input_tokens") > CTX);
    assert_true(json_num(last, "response.usage.total_tokens") >= 272000); /* what it takes for its context */
    json_decref(events);
    /* One that did not compact, though it was told so, would ask for ever. */
    assert_string_equal(ends_with("{" REPLIED "," CODEX("t:0", "turn") "}"), "response.failed");
    assert_string_equal(ends_with("{" REPLIED "," CODEX("t:1", "turn") "}"), "response.completed");
}

static void codex_fails_where_compaction_does_not_help(void **state) {
    (void)state;
    assert_string_equal(ends_with("{\"stream\":true,\"input\":\"%s\"," CODEX("u:0", "turn") "}"), "response.failed");
    assert_string_equal(ends_with("{" REPLIED "," CODEX("u:1", "compaction") "}"), "response.failed");
    assert_string_equal(ends_with("{" REPLIED ",\"client_metadata\":{\"x-codex-window-id\":\"u:2\"}}"),
                        "response.failed");
    assert_string_equal(ends_with("{" REPLIED ",\"client_metadata\":{\"x-codex-window-id\":5,"
                                  "\"x-codex-turn-metadata\":\"no JSON\"}}"),
                        "response.failed");
}

/* ---- the size of the context ---- */

static void everybody_can_ask_for_the_size(void **state) {
    static const struct {
        const char *path, *headers, *where;
    } cases[] = {
        {"/v1/models", NULL, "data.0."},
        {"/models", NULL, "data.0."},
        {"/v1/models/Sim-1.gguf", NULL, ""},
        {"/v1/models", "anthropic-version: 2026-10-21\r\n", "data.0."},
        {"/anthropic/v1/models/Sim-1.gguf", NULL, ""},
    };
    static const char *const names[] = {"max_model_len", "context_length", "context_window", "max_context_length",
                                        "max_input_tokens"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct response response = http_call(stage.port, "GET", cases[i].path, cases[i].headers, NULL);
        assert_int_equal(response.status, 200);
        json_t *answer = json_loadb((const char *)response.body.data, response.body.len, 0, NULL);
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
            char path[64];
            snprintf(path, sizeof path, "%s%s", cases[i].where, names[k]);
            assert_int_equal(json_num(answer, path), CTX);
        }
        json_decref(answer);
        response_finish(&response);
    }
    json_t *props = stage_want(&stage, "GET", "/props", NULL, 200);
    assert_int_equal(json_num(props, "default_generation_settings.n_ctx"), CTX);
    json_decref(props);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_and_completions_say_what_their_clients_look_for),
        cmocka_unit_test(a_prompt_leaves_room_for_the_reply),
        cmocka_unit_test(responses_leave_room_only_as_they_may_need_it),
        cmocka_unit_test(a_stream_fails_by_an_event),
        cmocka_unit_test(codex_is_told_to_compact_and_goes_on),
        cmocka_unit_test(codex_fails_where_compaction_does_not_help),
        cmocka_unit_test(everybody_can_ask_for_the_size),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
