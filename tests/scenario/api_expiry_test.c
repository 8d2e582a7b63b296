/* What was not used for too long, over the API: out of lists, back when it is named within a week, and then gone. */
#include "session/store.h"
#include "support/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HOUR ((int64_t)3600 * 1000000)
#define DAY (24 * HOUR)
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"

static _Atomic int64_t now;
static struct hearth_session_store *store;
static struct stage stage;

static int64_t wall_us(void) {
    return (int64_t)1800000000 * 1000000 + atomic_load(&now);
}

static int64_t elapsed_us(void) {
    return atomic_load(&now);
}

static void pass(int64_t us) {
    for (; us > 0; us -= HOUR) {
        atomic_fetch_add(&now, HOUR);
        while (hearth_session_store_sweep(store, 64) > 0) {
        }
    }
}

static int setup(void **state) {
    static const struct hearth_session_clock clock = {.unix_us = wall_us, .elapsed_us = elapsed_us};
    const struct hearth_session_store_params params = {.ttl_us = 30 * DAY, .grace_us = 7 * DAY, .clock = &clock};
    struct stage_options options;
    struct hearth_errmsg msg;
    (void)state;
    atomic_store(&now, 5 * DAY);
    assert_int_equal(hearth_session_store_create(&params, &store, &msg), HEARTH_OK);
    stage_options_default(&options);
    options.api.store = store;
    stage_open(&stage, &options);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    stage_close(&stage);
    hearth_session_store_destroy(store);
    return 0;
}

static json_t *call(const char *method, const char *path, const char *body, int want) {
    return stage_want(&stage, method, path, body, want);
}

/* A stored response; its path. */
static void respond(char *path, size_t size, const char *text) {
    char body[256];
    snprintf(body, sizeof body, "{\"input\":\"%s\",\"max_output_tokens\":16}", text);
    json_t *made = call("POST", "/v1/responses", body, 200);
    snprintf(path, size, "/v1/responses/%s", json_str(made, "id"));
    json_decref(made);
}

static size_t listed(void) {
    json_t *list = call("GET", "/v1/sessions", NULL, 200);
    const size_t count = json_array_size(json_at(list, "data"));
    json_decref(list);
    return count;
}

static void what_has_expired_is_not_there(void **state) {
    char used[128], unused[128], body[256];
    (void)state;
    respond(used, sizeof used, "One.");
    respond(unused, sizeof unused, "Two.");
    json_decref(call("POST", "/v1/chat/completions",
                     "{\"session_id\":\"diary\",\"max_tokens\":8,\"messages\":[" USER("Dear diary.") "]}", 200));
    json_decref(call("POST", "/v1/sessions", "{\"name\":\"plans\"}", 200));
    assert_int_equal(listed(), 2);
    pass(30 * DAY + 2 * HOUR);
    assert_int_equal(listed(), 0);
    json_decref(call("GET", used, NULL, 200)); /* whoever names it wants it */
    json_decref(call("GET", "/v1/sessions/plans", NULL, 200));
    pass(HOUR);
    assert_int_equal(listed(), 1);
    pass(8 * DAY);
    json_decref(call("GET", used, NULL, 200));
    json_decref(call("GET", unused, NULL, 404));
    json_decref(call("DELETE", unused, NULL, 404));
    snprintf(body, sizeof body, "{\"input\":\"Go on.\",\"previous_response_id\":\"%s\"}", strrchr(unused, '/') + 1);
    json_decref(call("POST", "/v1/responses", body, 400));
    json_decref(call("GET", "/v1/sessions/diary", NULL, 404));
    json_decref(call("GET", "/v1/conversations/diary/items", NULL, 404));
    json_t *anew = call("POST", "/v1/chat/completions",
                        "{\"session_id\":\"diary\",\"max_tokens\":8,\"messages\":[" USER("Hello.") "]}", 200);
    json_decref(anew);
    json_t *session = call("GET", "/v1/sessions/diary", NULL, 200);
    assert_int_equal(json_num(session, "turns"), 1);
    json_decref(session);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_has_expired_is_not_there)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
