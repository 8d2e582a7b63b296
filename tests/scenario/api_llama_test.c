/* What clients of llama-server find here: its routes, its native shape, and a line for each route that is not there. */
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHAT_BODY "{\"messages\":[{\"role\":\"user\",\"content\":\"one two three\"}],\"max_tokens\":4}"

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    options.sim.ctx_tokens = 2048;
    options.sim.infills = true;
    options.api.lora_path = "/adapters/polite.gguf";
    options.api.lora_scale = 0.5;
    stage_open(&stage, &options);
    return 0;
}

static void what_is_not_there_says_what_to_do(void **state) {
    static const struct {
        const char *method, *path;
        int status;
    } cases[] = {
        {"POST", "/embedding", 501},    {"POST", "/v1/embeddings", 501}, {"POST", "/v1/rerank", 501},
        {"POST", "/reranking", 501},    {"POST", "/models/load", 501},   {"DELETE", "/models", 501},
        {"POST", "/props", 501},        {"GET", "/models/sse", 501},     {"POST", "/v1/audio/transcriptions", 501},
        {"GET", "/v1/stream", 501},     {"GET", "/tools", 501},          {"POST", "/v1/chat/completions/control", 501},
        {"GET", "/api/v1/models", 404}, /* a 200 would be another server's */
        {"DELETE", "/props", 405},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct response response = http_call(stage.port, cases[i].method, cases[i].path, NULL, "{}");
        char retry[16] = "";
        assert_int_equal(response.status, cases[i].status);
        (void)response_header(&response, "X-Should-Retry", retry, sizeof retry);
        assert_string_equal(retry, cases[i].status == 501 ? "false" : ""); /* or SDKs would ask three times */
        json_t *answer = json_loadb((const char *)response.body.data, response.body.len, 0, NULL);
        if (cases[i].status == 501) {
            assert_string_equal(json_str(answer, "error.type"), "not_supported_error");
            assert_non_null(strstr(json_str(answer, "error.message"), ": "));
        }
        json_decref(answer);
        response_finish(&response);
    }
}

static void tokens_are_counted_alike(void **state) {
    static const char *const paths[] = {"/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"};
    (void)state;
    json_t *answer = call("POST", "/v1/chat/completions", CHAT_BODY, 200);
    const json_int_t tokens = json_num(answer, "usage.prompt_tokens");
    json_decref(answer);
    for (size_t i = 0; i < 2; i++) {
        answer = call("POST", paths[i], CHAT_BODY, 200);
        assert_int_equal(json_num(answer, "input_tokens"), tokens);
        assert_string_equal(json_str(answer, "object"), "response.input_tokens");
        json_decref(answer);
    }
    answer = call("POST", "/responses/input_tokens", "{\"input\":\"one two three\"}", 200);
    assert_int_equal(json_num(answer, "input_tokens"), tokens);
    json_decref(answer);
    struct hearth_buf far = {0}; /* more than the context holds is counted all the same */
    assert_true(hearth_buf_text(&far, "{\"messages\":[{\"role\":\"user\",\"content\":\""));
    for (int i = 0; i < 3000; i++) {
        assert_true(hearth_buf_text(&far, " word"));
    }
    assert_true(hearth_buf_text(&far, "\"}]}") && hearth_buf_append(&far, "", 1));
    answer = call("POST", paths[0], (const char *)far.data, 200);
    assert_true(json_num(answer, "input_tokens") > 3000);
    json_decref(answer);
    hearth_buf_finish(&far);
    answer = call("POST", "/responses", "{\"input\":\"one\",\"max_output_tokens\":4}", 200);
    assert_string_equal(json_str(answer, "object"), "response");
    json_decref(answer);
}

static void slots_have_nothing_to_save(void **state) {
    (void)state;
    json_t *answer = call("POST", "/slots/0?action=save", "{\"filename\":\"a.bin\"}", 200);
    assert_string_equal(json_str(answer, "filename"), "a.bin");
    assert_int_equal(json_num(answer, "n_saved"), 0);
    assert_int_equal(json_num(answer, "n_written"), 0);
    assert_int_equal(json_num(answer, "timings.save_ms"), 0);
    assert_non_null(strstr(json_str(answer, "message"), "--kv-dir"));
    json_decref(answer);
    answer = call("POST", "/slots/3?action=restore", "{\"filename\":\"a.bin\"}", 200);
    assert_int_equal(json_num(answer, "id_slot"), 3);
    assert_int_equal(json_num(answer, "n_restored"), 0);
    json_decref(answer);
    answer = call("POST", "/slots/1?action=erase", NULL, 200);
    assert_int_equal(json_num(answer, "n_erased"), 0);
    json_decref(answer);
    json_decref(call("POST", "/slots/4?action=erase", NULL, 400));
    json_decref(call("POST", "/slots/x?action=erase", NULL, 400));
    json_decref(call("POST", "/slots/0?action=paint", NULL, 400));
    json_decref(call("POST", "/slots/0", NULL, 400));
}

static void an_adapter_keeps_its_scale(void **state) {
    (void)state;
    json_t *answer = call("GET", "/lora-adapters", NULL, 200);
    assert_int_equal(json_array_size(answer), 1);
    assert_string_equal(json_str(answer, "0.path"), "/adapters/polite.gguf");
    json_decref(answer);
    answer = call("POST", "/lora-adapters", "[{\"id\":0,\"scale\":0.5}]", 200);
    assert_true(json_is_true(json_at(answer, "success")));
    json_decref(answer);
    answer = call("POST", "/lora-adapters", "[{\"id\":0,\"scale\":0.75}]", 400);
    assert_non_null(strstr(json_str(answer, "error.message"), "--lora-scale 0.75"));
    json_decref(answer);
    json_decref(call("POST", "/lora-adapters", "[]", 400)); /* turned off */
    json_decref(call("POST", "/lora-adapters", "[{\"id\":1,\"scale\":0.5}]", 400));
    json_decref(call("POST", "/lora-adapters", "[{\"id\":0}]", 400));
    json_decref(call("POST", "/lora-adapters", "{}", 400));
    json_decref(call("POST", "/v1/completions",
                     "{\"prompt\":\"a\",\"max_tokens\":1,\"lora\":[{\"id\":0,\"scale\":0.5}]}", 200));
    json_decref(
        call("POST", "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1,\"lora\":[{\"id\":0,\"scale\":1}]}", 400));
}

/* ---- the native shape ---- */

static void completions_have_the_native_shape(void **state) {
    (void)state;
    json_t *answer = call("POST", "/completion",
                          "{\"prompt\":\"Once upon\",\"n_predict\":6,\"temperature\":0,\"n_probs\":2,"
                          "\"return_tokens\":true,\"ignore_eos\":true}",
                          200);
    assert_true(json_is_true(json_at(answer, "stop")));
    assert_string_equal(json_str(answer, "stop_type"), "limit");
    assert_string_equal(json_str(answer, "stopping_word"), "");
    assert_string_equal(json_str(answer, "prompt"), "Once upon");
    assert_int_equal(json_num(answer, "tokens_predicted"), 6);
    assert_int_equal(json_array_size(json_at(answer, "tokens")), 6);
    assert_int_equal(json_array_size(json_at(answer, "completion_probabilities")), 6);
    assert_int_equal(json_array_size(json_at(answer, "completion_probabilities.0.top_logprobs")), 2);
    assert_int_equal(json_num(answer, "completion_probabilities.0.id"), json_num(answer, "tokens.0"));
    assert_int_equal(json_num(answer, "generation_settings.n_predict"), 6);
    assert_true(json_is_false(json_at(answer, "truncated")));
    assert_int_equal(json_num(answer, "timings.predicted_n"), 6);
    char *content = strdup(json_str(answer, "content"));
    json_decref(answer);

    json_t *other = call("POST", "/v1/completions",
                         "{\"prompt\":\"Once upon\",\"max_tokens\":6,\"temperature\":0,\"ignore_eos\":true}", 200);
    assert_string_equal(json_str(other, "choices.0.text"), content);
    json_decref(other);
    answer = call("POST", "/completions", /* llama-server's, not OpenAI's */
                  "{\"prompt\":\"Once upon\",\"n_predict\":6,\"temperature\":0,\"ignore_eos\":true}", 200);
    assert_string_equal(json_str(answer, "content"), content);
    assert_int_equal(json_array_size(json_at(answer, "tokens")), 0);
    assert_int_equal(json_num(answer, "tokens_cached"), json_num(answer, "tokens_evaluated") - 1);
    json_decref(answer);
    free(content);
}

static void prompts_mix_text_and_ids(void **state) {
    (void)state;
    static const char *const alike[] = {"\"ab\"", "[97,98]", "[97,\"b\"]", "[\"a\",98]", "{\"prompt_string\":\"ab\"}"};
    char body[128], content[256] = "";
    for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
        snprintf(body, sizeof body, "{\"prompt\":%s,\"n_predict\":4,\"temperature\":0}", alike[i]);
        json_t *answer = call("POST", "/completion", body, 200);
        assert_string_equal(json_str(answer, "prompt"), "ab");
        if (i == 0) {
            snprintf(content, sizeof content, "%s", json_str(answer, "content"));
        }
        assert_string_equal(json_str(answer, "content"), content);
        json_decref(answer);
    }
    json_t *several = call("POST", "/completion", "{\"prompt\":[\"a\",[98,\"c\"]],\"n_predict\":2,\"n_cmpl\":2}", 200);
    assert_int_equal(json_array_size(several), 4);
    assert_string_equal(json_str(several, "3.prompt"), "bc");
    assert_int_equal(json_num(several, "3.index"), 3);
    json_decref(several);
    json_decref(call("POST", "/completion", "{\"prompt\":{\"prompt_string\":\"a\",\"multimodal_data\":[\"x\"]}}", 400));
    json_decref(call("POST", "/completion", "{\"prompt\":[1,true]}", 400));
    json_decref(call("POST", "/completion", "{\"n_predict\":2}", 400));
}

static void streams_have_the_native_shape(void **state) {
    (void)state;
    struct hearth_buf text = {0};
    struct response stream = http_call(stage.port, "POST", "/completion", NULL,
                                       "{\"prompt\":\"Once upon\",\"n_predict\":40,\"temperature\":0,\"stream\":true,"
                                       "\"return_tokens\":true,\"ignore_eos\":true,\"return_progress\":true}");
    json_t *whole = call("POST", "/completion",
                         "{\"prompt\":\"Once upon\",\"n_predict\":40,\"temperature\":0,\"ignore_eos\":true}", 200);
    json_t *events = sse_events((const char *)stream.body.data), *event;
    size_t i, tokens = 0;
    bool progress = false;
    json_array_foreach(events, i, event) { /* no [DONE] here */
        const bool last = i + 1 == json_array_size(events);
        assert_true(json_is_boolean(json_at(event, "stop")));
        assert_int_equal(json_is_true(json_at(event, "stop")), last);
        assert_true(hearth_buf_text(&text, json_str(event, "content")));
        tokens += json_array_size(json_at(event, "tokens"));
        progress = progress || json_at(event, "prompt_progress") != NULL;
    }
    assert_true(progress && hearth_buf_append(&text, "", 1));
    assert_int_equal(tokens, 40);
    assert_string_equal((const char *)text.data, json_str(whole, "content"));
    assert_string_equal(json_str(json_array_get(events, i - 1), "content"), "");
    assert_string_equal(json_str(json_array_get(events, i - 1), "stop_type"), "limit");
    hearth_buf_finish(&text);
    json_decref(whole);
    json_decref(events);
    response_finish(&stream);
}

static void a_reply_says_what_ended_it(void **state) {
    (void)state;
    json_t *answer = call("POST", "/completion", "{\"prompt\":\"Once upon\",\"temperature\":0,\"n_predict\":200}", 200);
    assert_string_equal(json_str(answer, "stop_type"), "eos");
    const char *content = json_str(answer, "content");
    assert_true(strlen(content) > 2);
    char body[160];
    json_t *word = json_stringn(content + 1, 1);
    char *quoted = json_dumps(word, JSON_ENCODE_ANY);
    snprintf(body, sizeof body, "{\"prompt\":\"Once upon\",\"temperature\":0,\"n_predict\":200,\"stop\":[%s]}", quoted);
    json_t *cut = call("POST", "/completion", body, 200);
    assert_string_equal(json_str(cut, "stop_type"), "word");
    assert_string_equal(json_str(cut, "stopping_word"), json_string_value(word));
    free(quoted);
    json_decref(word);
    json_decref(cut);
    json_decref(answer);
    answer = call("POST", "/completion", "{\"prompt\":\"a\",\"ignore_eos\":true}", 200); /* until the context ends */
    assert_true(json_is_true(json_at(answer, "truncated")));
    json_decref(answer);
}

static void errors_have_the_native_shape(void **state) {
    (void)state;
    struct hearth_buf far = {0};
    assert_true(hearth_buf_text(&far, "{\"prompt\":\""));
    for (int i = 0; i < 3000; i++) {
        assert_true(hearth_buf_text(&far, " word"));
    }
    assert_true(hearth_buf_text(&far, "\"}") && hearth_buf_append(&far, "", 1));
    json_t *answer = call("POST", "/completion", (const char *)far.data, 400);
    assert_string_equal(json_str(answer, "error.type"), "exceed_context_size_error");
    assert_int_equal(json_num(answer, "error.code"), 400);
    assert_int_equal(json_num(answer, "error.n_prompt_tokens"), 3000);
    assert_int_equal(json_num(answer, "error.n_ctx"), 2048);
    assert_non_null(strstr(json_str(answer, "error.message"), "exceeds the available context size"));
    json_decref(answer);
    hearth_buf_finish(&far);
    answer = call("POST", "/infill", "[", 400);
    assert_int_equal(json_num(answer, "error.code"), 400);
    assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
    json_decref(answer);
}

static const struct hearth_engine_ops *own_ops;
static struct hearth_engine_ops counting_ops;
static atomic_size_t texts;      /* of tokens that were asked for */
static atomic_size_t long_bytes; /* of each of them; 0: its own */

static size_t counted_text(struct hearth_engine *engine, hearth_token token, bool special, char *out, size_t cap) {
    const size_t len = atomic_load(&long_bytes);
    atomic_fetch_add(&texts, 1);
    if (len == 0) {
        return own_ops->token_text(engine, token, special, out, cap);
    }
    if (cap > 0) {
        memset(out, 'x', cap < len ? cap : len);
    }
    return len;
}

static void count_texts(struct hearth_engine *engine, const char *template_text) {
    (void)template_text;
    own_ops = engine->ops;
    counting_ops = *own_ops;
    counting_ops.token_text = counted_text;
    engine->ops = &counting_ops;
}

/* The texts of some ids are many times as long as the ids: a prompt that is refused does not get them all. */
static void ids_that_do_not_fit_are_not_made_text(void **state) {
    enum { FIT = 2048 };
    struct hearth_buf body = {0};
    struct stage_options options;
    struct stage counted;
    (void)state;
    stage_options_default(&options);
    options.sim.ctx_tokens = FIT;
    options.markers = count_texts;
    stage_open(&counted, &options);
    assert_true(hearth_buf_text(&body, "{\"prompt\":[97"));
    for (int i = 1; i < 3 * FIT; i++) {
        assert_true(hearth_buf_text(&body, ",97"));
    }
    assert_true(hearth_buf_text(&body, "]}"));
    atomic_store(&texts, 0);
    json_t *answer = stage_want(&counted, "POST", "/completion", (const char *)body.data, 400);
    assert_int_equal(json_num(answer, "error.n_prompt_tokens"), 3 * FIT);
    assert_true(atomic_load(&texts) <= FIT);
    json_decref(answer);
    hearth_buf_finish(&body);
    stage_close(&counted);
}

/* Nor are they made for an answer that would repeat far more text than there are ids. */
static void long_texts_of_several_prompts_are_refused(void **state) {
    enum { PROMPTS = 3, IDS = 1000, LONG = 8192 };
    struct hearth_buf body = {0};
    struct stage_options options;
    struct stage counted;
    (void)state;
    stage_options_default(&options);
    options.markers = count_texts;
    stage_open(&counted, &options);
    assert_true(hearth_buf_text(&body, "{\"n_predict\":1,\"prompt\":["));
    for (int i = 0; i < PROMPTS * IDS; i++) {
        assert_true(hearth_buf_text(&body, i == 0 ? "[97" : i % IDS == 0 ? "],[97" : ",97"));
    }
    assert_true(hearth_buf_text(&body, "]]}"));
    atomic_store(&long_bytes, LONG);
    json_t *answer = stage_want(&counted, "POST", "/completion", (const char *)body.data, 413);
    atomic_store(&long_bytes, 0);
    assert_non_null(strstr(json_str(answer, "error.message"), "its answer would take more memory"));
    json_decref(answer);
    hearth_buf_finish(&body);
    stage_close(&counted);
}

/* ---- infill ---- */

static void gaps_are_marked(void **state) {
    (void)state;
    json_t *answer = call("POST", "/infill",
                          "{\"input_prefix\":\"int a = \",\"input_suffix\":\";\\n\",\"prompt\":\"4\","
                          "\"n_predict\":4}",
                          200);
    assert_string_equal(json_str(answer, "prompt"), "\x01int a = 4\x02;\n\x03");
    json_decref(answer);
    answer = call("POST", "/infill",
                  "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"n_predict\":4,\"input_extra\":["
                  "{\"filename\":\"x.c\",\"text\":\"int x;\"},{\"text\":\"y\"}]}",
                  200);
    assert_string_equal(json_str(answer, "prompt"), "\x04x.c\nint x;\x04tmp\ny\x04"
                                                    "filename\n\x01"
                                                    "a\x02"
                                                    "b\x03");
    json_decref(answer);
    json_decref(call("POST", "/infill", "{\"input_prefix\":\"a\"}", 400));
    json_decref(call("POST", "/infill", "{\"input_prefix\":\"a\",\"input_suffix\":1}", 400));
    json_decref(call("POST", "/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"input_extra\":{}}", 400));
    json_decref(call("POST", "/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"input_extra\":[1]}", 400));
}

/* As in a chat, a format that is not strict is kept as far as a grammar can. */
static void formats_are_kept_without_a_chat(void **state) {
    static const struct {
        const char *path, *asked, *text;
    } ways[] = {
        {"/v1/completions", "\"prompt\":\"a\",\"max_tokens\":1000", "choices.0.text"},
        {"/completion", "\"prompt\":\"a\",\"n_predict\":1000", "content"},
        {"/infill", "\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"n_predict\":1000", "content"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "{%s,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":"
                 "{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\",\"multipleOf\":5}},"
                 "\"required\":[\"v\"]}}}}",
                 ways[i].asked);
        json_t *answer = call("POST", ways[i].path, body, 200);
        json_t *said = json_loads(json_str(answer, ways[i].text), 0, NULL);
        assert_true(json_is_integer(json_object_get(said, "v")));
        json_decref(said);
        json_decref(answer);
    }
}

static void the_oldest_files_make_room(void **state) {
    (void)state;
    struct hearth_buf body = {0};
    assert_true(hearth_buf_text(&body, "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"n_predict\":4,"
                                       "\"input_extra\":["));
    for (int k = 0; k < 4; k++) {
        assert_true(hearth_buf_printf(&body, "%s{\"filename\":\"%d\",\"text\":\"", k == 0 ? "" : ",", k));
        for (int i = 0; i < 900; i++) {
            assert_true(hearth_buf_text(&body, " word"));
        }
        assert_true(hearth_buf_text(&body, "\"}"));
    }
    assert_true(hearth_buf_text(&body, "]}") && hearth_buf_append(&body, "", 1));
    json_t *answer = call("POST", "/infill", (const char *)body.data, 200);
    assert_memory_equal(json_str(answer, "prompt"),
                        "\x04"
                        "2\n",
                        3); /* two of four fit, whole */
    assert_non_null(strstr(json_str(answer, "prompt"), "\x04"
                                                       "3\n"));
    json_decref(answer);
    hearth_buf_finish(&body);
}

static void a_model_without_marks_cannot_infill(void **state) {
    (void)state;
    struct stage_options options;
    struct stage plain;
    stage_options_default(&options);
    stage_open(&plain, &options);
    json_t *answer = stage_want(&plain, "POST", "/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\"}", 501);
    assert_string_equal(json_str(answer, "error.type"), "not_supported_error");
    json_decref(answer);
    answer = stage_want(&plain, "GET", "/lora-adapters", NULL, 200);
    assert_int_equal(json_array_size(answer), 0);
    json_decref(answer);
    json_decref(stage_want(&plain, "POST", "/lora-adapters", "[]", 200));
    stage_close(&plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_there_says_what_to_do),
        cmocka_unit_test(tokens_are_counted_alike),
        cmocka_unit_test(slots_have_nothing_to_save),
        cmocka_unit_test(an_adapter_keeps_its_scale),
        cmocka_unit_test(completions_have_the_native_shape),
        cmocka_unit_test(prompts_mix_text_and_ids),
        cmocka_unit_test(streams_have_the_native_shape),
        cmocka_unit_test(a_reply_says_what_ended_it),
        cmocka_unit_test(errors_have_the_native_shape),
        cmocka_unit_test(gaps_are_marked),
        cmocka_unit_test(formats_are_kept_without_a_chat),
        cmocka_unit_test(the_oldest_files_make_room),
        cmocka_unit_test(a_model_without_marks_cannot_infill),
        cmocka_unit_test(ids_that_do_not_fit_are_not_made_text),
        cmocka_unit_test(long_texts_of_several_prompts_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
