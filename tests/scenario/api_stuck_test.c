/* A worker that passes no cancel point: /health says so while others are answered, and no longer than that. */
#include "base/health.h"
#include "support/stage.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct hearth_engine_ops ops;
static const struct hearth_engine_ops *own;
static atomic_bool spins;

/* Takes CPU time, and asks nobody whether it may. */
static int tokenize(struct hearth_engine *engine, const char *text, size_t len, bool add_special, bool parse_special,
                    struct hearth_tokens *out) {
    while (len >= 5 && memcmp(text, "stuck", 5) == 0 && atomic_load(&spins)) {
    }
    return own->tokenize(engine, text, len, add_special, parse_special, out);
}

static void make_stuck(struct hearth_engine *engine, const char *template_text) {
    (void)template_text;
    own = engine->ops;
    ops = *own;
    ops.tokenize = tokenize;
    engine->ops = &ops;
}

static void *ask(void *user) {
    return stage_want(user, "POST", "/tokenize", "{\"content\":\"stuck here\"}", 400);
}

/* Until /health has this status. */
static json_t *wait_for(struct stage *stage, const char *status) {
    json_t *answer = stage_want(stage, "GET", "/health", NULL, 200);
    while (strcmp(json_str(answer, "status"), status) != 0) {
        json_decref(answer);
        usleep(20000);
        answer = stage_want(stage, "GET", "/health", NULL, 200);
    }
    return answer;
}

static void health_tells_of_a_stuck_worker(void **state) {
    struct stage_options options;
    struct stage stage;
    pthread_t thread;
    void *refusal;
    (void)state;
    stage_options_default(&options);
    options.markers = make_stuck;
    options.api.prepare_timeout_us = 1000;
    stage_open(&stage, &options);
    json_decref(stage_want(&stage, "POST", "/tokenize", "{\"content\":\"free\"}", 200));
    json_decref(wait_for(&stage, "ok"));
    atomic_store(&spins, true);
    assert_int_equal(pthread_create(&thread, NULL, ask, &stage), 0);
    json_t *told = wait_for(&stage, "degraded");
    assert_int_equal(json_array_size(json_at(told, "reasons")), 1);
    assert_string_equal(json_str(told, "reasons.0.condition"), "preparation");
    assert_non_null(strstr(json_str(told, "reasons.0.message"), "1 of "));
    json_decref(told);
    json_decref(stage_want(&stage, "POST", "/tokenize", "{\"content\":\"free\"}", 200));
    atomic_store(&spins, false);
    json_decref(wait_for(&stage, "ok"));
    assert_int_equal(pthread_join(thread, &refusal), 0);
    assert_string_equal(json_str(refusal, "error.code"), "preparation_timeout");
    json_decref(refusal);
    stage_close(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(health_tells_of_a_stuck_worker)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
