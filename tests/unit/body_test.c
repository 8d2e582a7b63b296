/* Bodies of chats: told apart, read as far as they are new, the same as parsing everything. */
#include "api/job.h"
#include "api/limits.h"
#include "session/message_cache.h"
#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct row {
    const char *text;
    size_t items; /* 0: parsed as a whole */
};

static const struct row rows[] = {
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 1},
    {" { \"model\" : \"m\" , \"messages\" : [ {\"a\":[1,2,{}]} , {\"b\":\"]}\\\\\\\"\"} ] , \"n\" : 1 } ", 2},
    {"{\"x\":{\"messages\":[1]},\"messages\":[1,\"two\",null,[3]]}", 4},
    {"{\"a\\\"messages\":1,\"messages\":[{\"k\":\"\\\\\"}]}", 1},
    {"{\"messages\":[]}", 0},
    {"{\"messages\":\"none\"}", 0},
    {"{\"messages\":[1],\"messages\":[2]}", 0},
    {"{\"messages\":[1],\"mess\\u0061ges\":[2]}", 0},
    {"{\"messages\":[1],\"mess\\u0061ges\":[]}", 0},
    {"{\"messages\":[1],\"mess\\u0061ges\":null}", 0},
    {"{\"prompt\":\"messages\"}", 0},
    {"[\"messages\",[1]]", 0},
    {"{\"messages\":[1,]}", 0},
    {"{\"messages\":[1,,2]}", 0},
    {"{\"messages\":[1 2]}", 0},
    {"{\"messages\":[{\"a\":1]}]}", 0},
    {"{\"messages\":[\"open]}", 0},
    {"{\"messages\":[1]} x", 0},
    {"{\"messages\":[1]", 0},
    {"{\"messages\":[1]\"n\":1}", 0},
    {"{\"messages\"[1]}", 0},
    {"", 0},
    {"{", 0},
    {"{\"messages\":[\"\\ud800\"]}", 1},
};

static const struct hearth_digest salt = {1, 2};

static json_t *parse_new(struct hearth_message_cache *message_cache, const char *text, size_t len,
                         struct hearth_body *body) {
    struct hearth_api_error error;
    assert_true(hearth_limits_check(text, len, body, &error));
    return hearth_body_parse_new(message_cache, salt, text, len, body);
}

static void assert_same(const char *text, size_t items) {
    struct hearth_message_cache *message_cache = hearth_message_cache_create(1 << 20);
    struct hearth_body body = {0};
    json_t *rest = parse_new(message_cache, text, strlen(text), &body);
    json_t *whole = hearth_json_parse(text, strlen(text), JSON_ALLOW_NUL, NULL);
    assert_true(rest == NULL || whole != NULL); /* what is told apart is JSON */
    assert_int_equal(body.count, items);
    if (rest != NULL) {
        json_t *messages = json_array();
        for (size_t i = 0; i < body.count; i++) {
            json_array_append(messages, body.items[i].value);
        }
        json_object_set_new(rest, "messages", messages);
        assert_true(json_equal(rest, whole));
    }
    json_decref(rest);
    json_decref(whole);
    hearth_body_finish(&body);
    hearth_message_cache_destroy(message_cache);
}

static void bodies_are_told_apart(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_same(rows[i].text, rows[i].items);
    }
}

/* Damaged bodies: told apart or not, the result is that of the parser. */
static void damage_is_the_parsers(void **state) {
    struct rng rng = {seed_announced(7)};
    (void)state;
    for (int i = 0; i < 20000; i++) {
        char text[200];
        const struct row *row = &rows[rng_below(&rng, 4)];
        size_t len = strlen(row->text);
        memcpy(text, row->text, len + 1);
        for (uint32_t n = rng_below(&rng, 3); n > 0; n--) {
            text[rng_below(&rng, (uint32_t)len)] = "{}[]\",:\\ a1"[rng_below(&rng, 11)];
        }
        struct hearth_message_cache *message_cache = hearth_message_cache_create(1 << 20);
        struct hearth_body body = {0};
        json_t *rest = parse_new(message_cache, text, len, &body);
        json_t *whole = hearth_json_parse(text, strlen(text), JSON_ALLOW_NUL, NULL);
        if (rest != NULL && whole == NULL) {
            fail_msg("%s", text);
        }
        if (rest != NULL && body.count > 0) {
            assert_int_equal(json_array_size(json_object_get(whole, "messages")), body.count);
            for (size_t k = 0; k < body.count; k++) {
                assert_true(json_equal(body.items[k].value, json_array_get(json_object_get(whole, "messages"), k)));
            }
        }
        json_decref(rest);
        json_decref(whole);
        hearth_body_finish(&body);
        hearth_message_cache_destroy(message_cache);
    }
}

/* Commas without end, which are no messages and count towards no limit, and messages without end, which do. */
static void no_more_is_noted_than_may_be_sent(void **state) {
    static const struct {
        const char *unit;
        bool allowed;
    } bodies[] = {{",", true}, {"0,", false}};
    const size_t most = hearth_limit_most(HEARTH_LIMIT_MESSAGES);
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct hearth_api_error error;
        struct hearth_body body = {0};
        struct hearth_buf text = {0};
        assert_true(hearth_buf_text(&text, "{\"messages\":["));
        for (size_t n = 0; n < 2 * most; n++) {
            assert_true(hearth_buf_text(&text, bodies[i].unit));
        }
        assert_int_equal(hearth_limits_check((const char *)text.data, text.len, &body, &error), bodies[i].allowed);
        assert_int_equal(body.count, most);
        assert_int_equal(body.end, 0); /* the whole body is parsed, which gives the error */
        hearth_body_finish(&body);
        hearth_buf_finish(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bodies_are_told_apart), cmocka_unit_test(damage_is_the_parsers),
                                       cmocka_unit_test(no_more_is_noted_than_may_be_sent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
