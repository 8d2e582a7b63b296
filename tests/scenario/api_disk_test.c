/* What the API says of state on disk (receipt, /health, /metrics), and which keys share state, over a scripted
 * service and a backing tier that has nothing but numbers. */
#include "base/health.h"
#include "support/fake_service.h"
#include "support/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHAT "/v1/chat/completions"
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"

static struct hearth_backing_stats numbers;

static void give_numbers(struct hearth_backing *backing, struct hearth_backing_stats *stats) {
    (void)backing;
    *stats = numbers;
}

static const struct hearth_backing_ops ops = {.stats = give_numbers};
static struct hearth_backing backing = {.ops = &ops, .name = "disk"};
static const struct fake_plan quick = {.pieces = 3, .piece = "ab "};

static void open_stage(struct stage *stage, struct hearth_backing *tier, const struct hearth_api_key *keys,
                       size_t key_count) {
    struct stage_options options;
    stage_options_default(&options);
    options.api.disk = tier;
    options.api.keys = keys;
    options.api.key_count = key_count;
    stage_open(stage, &options);
    fake_set_plan(&quick);
}

static json_t *health(const struct stage *stage) {
    int status;
    json_t *answer = stage_call(stage, "GET", "/health", NULL, &status);
    assert_int_equal(status, 200);
    return answer;
}

static bool metrics_hold(const struct stage *stage, const char *text) {
    struct response response = http_call(stage->port, "GET", "/metrics", NULL, NULL);
    assert_int_equal(response.status, 200);
    const bool found = strstr((const char *)response.body.data, text) != NULL;
    response_finish(&response);
    return found;
}

static void without_a_disk(void **state) {
    struct stage stage;
    (void)state;
    open_stage(&stage, NULL, NULL, 0);
    json_t *answer = health(&stage);
    assert_string_equal(json_str(answer, "disk.state"), "off");
    assert_int_equal(json_object_size(json_at(answer, "disk")), 1);
    json_decref(answer);
    assert_false(metrics_hold(&stage, "hearth_disk_"));
    stage_close(&stage);
}

static void the_disk_says_how_it_is(void **state) {
    struct stage stage;
    (void)state;
    open_stage(&stage, &backing, NULL, 0);
    numbers = (struct hearth_backing_stats){.files = 3, .bytes = 12288, .budget_bytes = 1 << 20, .written_bytes = 4096};
    json_t *answer = health(&stage);
    assert_string_equal(json_str(answer, "disk.state"), "scanning");
    assert_true(json_is_null(json_at(answer, "disk.trouble")));
    assert_int_equal(json_num(answer, "disk.files"), 3);
    assert_int_equal(json_num(answer, "disk.bytes"), 12288);
    assert_int_equal(json_num(answer, "disk.budget_bytes"), 1 << 20);
    json_decref(answer);
    assert_true(metrics_hold(&stage, "# TYPE hearth_disk_written_bytes_total counter\n"
                                     "hearth_disk_written_bytes_total 4096\n"));
    assert_true(metrics_hold(&stage, "# TYPE hearth_disk_budget_bytes gauge\nhearth_disk_budget_bytes 1048576\n"));
    assert_true(metrics_hold(&stage, "\nhearth_disk_scanned 0\n"));
    assert_true(metrics_hold(&stage, "\nhearth_disk_failing 0\n"));
    numbers.scanned = true;
    answer = health(&stage);
    assert_string_equal(json_str(answer, "disk.state"), "ok");
    json_decref(answer);
    assert_true(metrics_hold(&stage, "\nhearth_disk_scanned 1\n"));

    /* Serving goes on: the status stays 200 and ok. */
    numbers.failing = true;
    (void)snprintf(numbers.trouble, sizeof numbers.trouble, "writing to %s: No space left on device", "/kv\xff");
    answer = health(&stage);
    assert_string_equal(json_str(answer, "status"), "ok");
    assert_string_equal(json_str(answer, "disk.state"), "failing");
    assert_string_equal(json_str(answer, "disk.trouble"), "writing to /kv\xef\xbf\xbd: No space left on device");
    json_decref(answer);
    assert_true(metrics_hold(&stage, "\nhearth_disk_failing 1\n"));
    numbers = (struct hearth_backing_stats){0};
    stage_close(&stage);
}

static void health_names_what_does_not_work(void **state) {
    struct stage stage;
    (void)state;
    open_stage(&stage, NULL, NULL, 0);
    json_t *answer = health(&stage);
    assert_string_equal(json_str(answer, "status"), "ok");
    assert_int_equal(json_array_size(json_at(answer, "reasons")), 0);
    json_decref(answer);
    assert_true(metrics_hold(&stage, "\nhearth_degraded{condition=\"session_db\"} 0\n"));
    hearth_health_raise(HEARTH_HEALTH_SESSION_DB, "no database");
    answer = health(&stage);
    assert_string_equal(json_str(answer, "status"), "degraded");
    assert_int_equal(json_array_size(json_at(answer, "reasons")), 1);
    assert_string_equal(json_str(answer, "reasons.0.condition"), "session_db");
    assert_string_equal(json_str(answer, "reasons.0.message"), "no database");
    json_decref(answer);
    assert_true(metrics_hold(&stage, "\nhearth_degraded{condition=\"session_db\"} 1\n"));
    hearth_health_clear(HEARTH_HEALTH_SESSION_DB);
    stage_close(&stage);
}

static json_t *post(const struct stage *stage, const char *path, const char *headers, const char *body, int want) {
    struct response response = http_call(stage->port, "POST", path, headers, body);
    assert_int_equal(response.status, want);
    json_t *answer = json_loadb((const char *)response.body.data, response.body.len, 0, NULL);
    assert_non_null(answer);
    response_finish(&response);
    return answer;
}

/* Tokens from disk count as cached in every place that counts them, and add up over several prompts. */
static void the_receipt_counts_the_disk(void **state) {
    struct stage stage;
    struct fake_plan plan = quick;
    (void)state;
    open_stage(&stage, &backing, NULL, 0);
    plan.receipt = (struct hearth_receipt){.prompt_tokens = 60,
                                           .reused_live_tokens = 1,
                                           .reused_ram_tokens = 10,
                                           .reused_disk_tokens = 40,
                                           .computed_tokens = 9};
    fake_set_plan(&plan);
    json_t *answer = post(&stage, CHAT, NULL, "{" USER "}", 200);
    assert_int_equal(json_num(answer, "hearth.reused.live"), 1);
    assert_int_equal(json_num(answer, "hearth.reused.ram"), 10);
    assert_int_equal(json_num(answer, "hearth.reused.disk"), 40);
    assert_int_equal(json_num(answer, "hearth.computed"), 9);
    assert_int_equal(json_num(answer, "usage.prompt_tokens_details.cached_tokens"), 51);
    assert_int_equal(json_num(answer, "timings.cache_n"), 51);
    json_decref(answer);
    answer = post(&stage, "/v1/completions", NULL, "{\"prompt\":[\"one\",\"two\"]}", 200);
    assert_int_equal(json_num(answer, "hearth.reused.disk"), 80);
    assert_int_equal(json_num(answer, "usage.prompt_tokens_details.cached_tokens"), 102);
    assert_int_equal(json_num(answer, "timings.cache_n"), 102);
    json_decref(answer);
    stage_close(&stage);
}

/* ---- salts ---- */

static struct hearth_digest salt_of(const struct stage *stage, const char *path, const char *headers,
                                    const char *body) {
    json_decref(post(stage, path, headers, body, 200));
    return fake_last()->salt;
}

static void cache_salt_is_a_text(void **state) {
    static const char *const paths[] = {CHAT, "/chat/completions", "/v1/completions"};
    static const struct {
        const char *value, *code;
    } wrong[] = {{"7", "invalid_type"},
                 {"true", "invalid_type"},
                 {"{}", "invalid_type"},
                 {"[\"a\"]", "invalid_type"},
                 {"\"\"", "invalid_value"}};
    struct stage stage;
    char body[256];
    (void)state;
    open_stage(&stage, NULL, NULL, 0);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
            (void)snprintf(body, sizeof body, "{\"cache_salt\":%s,\"prompt\":\"Hello\"," USER "}", wrong[k].value);
            json_t *answer = post(&stage, paths[i], NULL, body, 400);
            assert_string_equal(json_str(answer, "error.param"), "cache_salt");
            assert_string_equal(json_str(answer, "error.code"), wrong[k].code);
            assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
            json_decref(answer);
        }
        struct hearth_digest none =
            salt_of(&stage, paths[i], NULL, "{\"prompt\":\"Hello\",\"cache_salt\":null," USER "}");
        assert_true(hearth_digest_equal(none, (struct hearth_digest){0, 0}));
        struct hearth_digest first =
            salt_of(&stage, paths[i], NULL, "{\"prompt\":\"Hello\",\"cache_salt\":\"a\"," USER "}");
        struct hearth_digest other =
            salt_of(&stage, paths[i], NULL, "{\"prompt\":\"Hello\",\"cache_salt\":\"b\"," USER "}");
        assert_false(hearth_digest_equal(first, none));
        assert_false(hearth_digest_equal(first, other));
        other = salt_of(&stage, CHAT, NULL, "{\"cache_salt\":\"a\"," USER "}"); /* whatever the endpoint */
        assert_true(hearth_digest_equal(first, other));
    }
    stage_close(&stage);
}

/* One key: nobody is kept apart. Two: each has a salt, which a cache_salt does not undo. */
static void keys_have_salts(void **state) {
    static const struct hearth_api_key keys[] = {{.key = "first"}, {.key = "second"}};
    static const char *const headers[] = {"Authorization: Bearer first\r\n", "X-Api-Key: second\r\n"};
    struct hearth_digest plain[2], salted[2];
    struct stage stage;
    (void)state;
    open_stage(&stage, NULL, keys, 1);
    plain[0] = salt_of(&stage, CHAT, headers[0], "{" USER "}");
    assert_true(hearth_digest_equal(plain[0], (struct hearth_digest){0, 0}));
    stage_close(&stage);
    for (size_t twice = 0; twice < 2; twice++) { /* a restart changes nothing */
        open_stage(&stage, NULL, keys, 2);
        for (size_t i = 0; i < 2; i++) {
            plain[i] = salt_of(&stage, CHAT, headers[i], "{" USER "}");
            salted[i] = salt_of(&stage, CHAT, headers[i], "{\"cache_salt\":\"first\"," USER "}");
        }
        const struct hearth_digest all[] = {{0, 0}, plain[0], plain[1], salted[0], salted[1]};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            for (size_t k = 0; k < i; k++) {
                assert_false(hearth_digest_equal(all[i], all[k]));
            }
        }
        const struct hearth_digest before = plain[0];
        plain[0] = salt_of(&stage, CHAT, "X-Api-Key: first\r\n", "{" USER "}"); /* by the other header */
        assert_true(hearth_digest_equal(plain[0], before));
        stage_close(&stage);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_disk),
        cmocka_unit_test(the_disk_says_how_it_is),
        cmocka_unit_test(health_names_what_does_not_work),
        cmocka_unit_test(the_receipt_counts_the_disk),
        cmocka_unit_test(cache_salt_is_a_text),
        cmocka_unit_test(keys_have_salts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
