/* Many clients, over a service that does what it is told: what a request may say of its class and its deadline, what is
 * answered when too many wait, and what a client hears while it waits; in every dialect. */
#include "support/fake_service.h"
#include "scenario/own_stage.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"

/* A request of each dialect, open at its end. */
static const struct dialect {
    const char *path, *body;
    bool anthropic;
} dialects[] = {
    {"/v1/chat/completions", "{" USER, false},
    {"/v1/completions", "{\"prompt\":\"Hello there, how are all of you today?\"", false},
    {"/v1/responses", "{\"store\":false,\"input\":\"Hello\"", false},
    {"/v1/messages", "{\"max_tokens\":50," USER, true},
};

#define DIALECTS (sizeof dialects / sizeof dialects[0])

static const struct fake_plan quick = {.pieces = 3, .piece = "ab "};

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    stage_open(&stage, &options);
    fake_set_plan(&quick);
    return 0;
}

/* `more`: what the body has besides, with a comma in front; `headers` may be NULL. */
static struct response ask_at(uint16_t port, const struct dialect *dialect, const char *headers, const char *more) {
    char body[1024];
    snprintf(body, sizeof body, "%s%s}", dialect->body, more);
    struct response response = http_call(port, "POST", dialect->path, headers, body);
    assert_true(response.complete);
    return response;
}

static struct response ask(const struct dialect *dialect, const char *headers, const char *more) {
    return ask_at(stage.port, dialect, headers, more);
}

static json_t *json_of(const struct response *response) {
    json_t *value = json_loadb((const char *)response->body.data, response->body.len, 0, NULL);
    assert_non_null(value);
    return value;
}

static bool holds(const struct response *response, const char *text) {
    return strstr((const char *)response->body.data, text) != NULL;
}

static void asks_for(const struct dialect *dialect, const char *headers, const char *more, enum hearth_class want) {
    fake_set_plan(&quick);
    struct response response = ask(dialect, headers, more);
    if (response.status != 200 || fake_last()->priority != want) {
        print_error("%s %s%s: %d, class %d\n", dialect->path, headers ? headers : "", more, response.status,
                    fake_last()->priority);
    }
    assert_int_equal(response.status, 200);
    assert_int_equal(fake_last()->priority, want);
    response_finish(&response);
}

static void requests_name_their_class(void **state) {
    static const struct {
        const char *headers, *more;
        enum hearth_class want;
    } cases[] = {
        {NULL, "", HEARTH_CLASS_INTERACTIVE},
        {NULL, ",\"priority\":\"interactive\"", HEARTH_CLASS_INTERACTIVE},
        {NULL, ",\"priority\":\"side\"", HEARTH_CLASS_SIDE},
        {NULL, ",\"priority\":\"background\"", HEARTH_CLASS_BACKGROUND},
        {NULL, ",\"priority\":null", HEARTH_CLASS_INTERACTIVE},
        {NULL, ",\"priority\":-5", HEARTH_CLASS_INTERACTIVE},
        {NULL, ",\"priority\":0", HEARTH_CLASS_INTERACTIVE},
        {NULL, ",\"priority\":1", HEARTH_CLASS_SIDE},
        {NULL, ",\"priority\":1.0", HEARTH_CLASS_SIDE},
        {NULL, ",\"priority\":900", HEARTH_CLASS_BACKGROUND},
        {NULL, ",\"service_tier\":\"auto\"", HEARTH_CLASS_INTERACTIVE},
        {NULL, ",\"service_tier\":\"flex\"", HEARTH_CLASS_BACKGROUND},
        {NULL, ",\"service_tier\":\"flex\",\"priority\":\"side\"", HEARTH_CLASS_SIDE},
        {"X-Hearth-Priority: side\r\n", "", HEARTH_CLASS_SIDE},
        {"x-hearth-priority: 2\r\n", "", HEARTH_CLASS_BACKGROUND},
        {"X-Hearth-Priority: side\r\n", ",\"priority\":0", HEARTH_CLASS_INTERACTIVE},
        {"X-Hearth-Priority: side\r\n", ",\"service_tier\":\"flex\"", HEARTH_CLASS_SIDE},
    };
    (void)state;
    for (size_t i = 0; i < DIALECTS; i++) {
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            asks_for(&dialects[i], cases[k].headers, cases[k].more, cases[k].want);
        }
    }
    /* A response in the background is for nobody who waits, unless it says so. */
    static const struct dialect stored = {"/v1/responses", "{\"input\":\"Hello\",\"background\":true", false};
    asks_for(&stored, NULL, "", HEARTH_CLASS_BACKGROUND);
    asks_for(&stored, NULL, ",\"service_tier\":\"auto\"", HEARTH_CLASS_BACKGROUND);
    asks_for(&stored, NULL, ",\"service_tier\":\"priority\"", HEARTH_CLASS_INTERACTIVE);
    asks_for(&stored, NULL, ",\"priority\":\"side\"", HEARTH_CLASS_SIDE);
}

static void wrong_wishes_are_named(void **state) {
    static const struct {
        const char *headers, *more, *param;
    } cases[] = {
        {NULL, ",\"priority\":\"urgent\"", "priority"},
        {NULL, ",\"priority\":\"warm\"", "priority"},
        {NULL, ",\"priority\":true", "priority"},
        {NULL, ",\"priority\":1.5", "priority"},
        {"X-Hearth-Priority: high\r\n", "", "X-Hearth-Priority"},
        {"X-Hearth-Priority: background-and-then-some-more\r\n", "", "X-Hearth-Priority"},
        {NULL, ",\"service_tier\":\"gold\"", "service_tier"},
        {NULL, ",\"service_tier\":1", "service_tier"},
        {NULL, ",\"deadline_ms\":0", "deadline_ms"},
        {NULL, ",\"deadline_ms\":-1", "deadline_ms"},
        {NULL, ",\"deadline_ms\":\"soon\"", "deadline_ms"},
        {"X-Request-Deadline-Ms: soon\r\n", "", "X-Request-Deadline-Ms"},
        {"X-Request-Deadline-Ms: -3\r\n", "", "X-Request-Deadline-Ms"},
        {"X-Request-Deadline-Ms: nan\r\n", "", "X-Request-Deadline-Ms"},
        {NULL, ",\"speculate\":1", "speculate"},
        {NULL, ",\"return_progress\":\"yes\"", "return_progress"},
    };
    (void)state;
    for (size_t i = 0; i < DIALECTS; i++) {
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            struct response response = ask(&dialects[i], cases[k].headers, cases[k].more);
            json_t *answer = json_of(&response);
            assert_int_equal(response.status, 400);
            assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
            assert_non_null(strstr(json_str(answer, "error.message"), cases[k].param));
            if (!dialects[i].anthropic) {
                assert_string_equal(json_str(answer, "error.param"), cases[k].param);
            }
            json_decref(answer);
            response_finish(&response);
        }
    }
}

static void tiers_are_echoed(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct response response = ask(&dialects[i], NULL, ",\"service_tier\":\"flex\"");
        json_t *answer = json_of(&response);
        assert_string_equal(json_str(answer, "service_tier"), "flex");
        assert_string_equal(json_str(answer, "hearth.class"), "background");
        json_decref(answer);
        response_finish(&response);
        response = ask(&dialects[i], NULL, ",\"service_tier\":\"auto\"");
        answer = json_of(&response);
        assert_string_equal(json_str(answer, "service_tier"), "default");
        json_decref(answer);
        response_finish(&response);
    }
    struct response response = ask(&dialects[0], NULL, "");
    assert_false(holds(&response, "service_tier"));
    response_finish(&response);
    response = ask(&dialects[0], NULL, ",\"stream\":true,\"service_tier\":\"priority\"");
    json_t *events = sse_events((const char *)response.body.data);
    assert_string_equal(json_str(events, "0.service_tier"), "priority");
    json_decref(events);
    response_finish(&response);
}

static void deadline_is(const char *headers, const char *more, int64_t most_us) {
    struct response response = ask(&dialects[0], headers, more);
    const int64_t left_us = fake_last()->deadline_us;
    assert_int_equal(response.status, 200);
    assert_true(most_us == 0 ? left_us == 0 : left_us > 0 && left_us <= most_us && left_us > most_us / 2);
    response_finish(&response);
}

/* Of several deadlines the shortest counts, from the request's arrival. */
static void deadlines_reach_the_service(void **state) {
    (void)state;
    deadline_is(NULL, "", 0);
    deadline_is(NULL, ",\"deadline_ms\":60000", 60000000);
    deadline_is(NULL, ",\"deadline_ms\":60000.5", 60000500);
    deadline_is("X-Request-Deadline-Ms: 50000\r\n", "", 50000000);
    deadline_is("X-Request-Deadline-Ms: 50000\r\n", ",\"deadline_ms\":90000", 50000000);
    deadline_is("X-Envoy-Expected-Rq-Timeout-Ms: 40000\r\n", "", 40000000);
    deadline_is("X-Stainless-Read-Timeout: 3\r\n", "", 0);
    hearth_api_set_request_timeout(stage.api, 100000000);
    deadline_is(NULL, "", 100000000);
    deadline_is(NULL, ",\"deadline_ms\":60000", 60000000);
    deadline_is(NULL, ",\"deadline_ms\":600000000", 100000000);
    hearth_api_set_request_timeout(stage.api, 0);
    struct response response = ask(&dialects[0], NULL, ",\"deadline_ms\":0.001"); /* gone before it could be read */
    assert_int_equal(response.status, 504);
    response_finish(&response);
}

static void missed_deadlines_are_errors(void **state) {
    static const struct fake_plan late = {.fail_err = HEARTH_ERR_DEADLINE, .fail_after = -1};
    static const struct fake_plan later = {.fail_err = HEARTH_ERR_DEADLINE, .fail_after = 1, .pieces = 5, .piece = "a"};
    static const char *const events[] = {"\"code\":\"deadline_exceeded\"", "\"code\":\"deadline_exceeded\"",
                                         "response.failed", "\"type\":\"timeout_error\""};
    (void)state;
    for (size_t i = 0; i < DIALECTS; i++) {
        char retry[16];
        fake_set_plan(&late);
        struct response response = ask(&dialects[i], NULL, ",\"deadline_ms\":5000");
        json_t *answer = json_of(&response);
        assert_int_equal(response.status, 504);
        assert_string_equal(json_str(answer, "error.type"), "timeout_error");
        assert_non_null(strstr(json_str(answer, "error.message"), "5000 ms"));
        assert_true(response_header(&response, "X-Should-Retry", retry, sizeof retry));
        assert_string_equal(retry, "false");
        json_decref(answer);
        response_finish(&response);
        fake_set_plan(&later);
        response = ask(&dialects[i], NULL, ",\"stream\":true");
        assert_int_equal(response.status, 200);
        assert_true(holds(&response, events[i]));
        response_finish(&response);
    }
}

/* A reply that its deadline has cut off is one that is too short, and says why. */
static void late_replies_are_cut_off(void **state) {
    static const struct fake_plan late = {.pieces = 2, .piece = "a", .finish = HEARTH_FINISH_LENGTH, .late = true};
    static const struct {
        const char *at, *word;
    } reasons[] = {{"choices.0.finish_reason", "length"},
                   {"choices.0.finish_reason", "length"},
                   {"incomplete_details.reason", "max_output_tokens"},
                   {"stop_reason", "max_tokens"}};
    (void)state;
    fake_set_plan(&late);
    for (size_t i = 0; i < DIALECTS; i++) {
        struct response response = ask(&dialects[i], NULL, ",\"deadline_ms\":50000");
        json_t *answer = json_of(&response);
        assert_int_equal(response.status, 200);
        assert_string_equal(json_str(answer, reasons[i].at), reasons[i].word);
        assert_true(json_is_true(json_at(answer, "hearth.deadline")));
        json_decref(answer);
        response_finish(&response);
        response = ask(&dialects[i], NULL, ",\"stream\":true");
        assert_true(holds(&response, "\"deadline\":true"));
        assert_true(holds(&response, reasons[i].word));
        response_finish(&response);
    }
}

/* What others have come to is not lost with the choice that had no turn in time, whichever ends first. */
static void choices_that_never_began_end_empty(void **state) {
    static const char *const texts[] = {"choices.0.message.content", "choices.0.text"};
    (void)state;
    for (int dialect = 0; dialect < 2; dialect++) {
        for (int late = 1; late <= 2; late++) {
            const struct fake_plan plan = {.fail_err = HEARTH_ERR_DEADLINE,
                                           .fail_after = -1,
                                           .fail_only = late,
                                           .pieces = 3,
                                           .piece = "a",
                                           .finish = HEARTH_FINISH_STOP};
            char text[32], finish[32], other[32];
            snprintf(text, sizeof text, "%.8s%d%s", texts[dialect], 2 - late, texts[dialect] + 9);
            snprintf(finish, sizeof finish, "choices.%d.finish_reason", late - 1);
            snprintf(other, sizeof other, "choices.%d.finish_reason", 2 - late);
            fake_set_plan(&plan);
            struct response response = ask(&dialects[dialect], NULL, ",\"n\":2,\"deadline_ms\":50000");
            json_t *answer = json_of(&response);
            assert_int_equal(response.status, 200);
            assert_string_equal(json_str(answer, text), "aaa");
            assert_string_equal(json_str(answer, other), "stop");
            assert_string_equal(json_str(answer, finish), "length");
            assert_true(json_is_true(json_at(answer, "hearth.deadline")));
            json_decref(answer);
            response_finish(&response);
            fake_set_plan(&plan);
            response = ask(&dialects[dialect], NULL, ",\"n\":2,\"stream\":true,\"deadline_ms\":50000");
            assert_int_equal(response.status, 200);
            assert_true(holds(&response, "\"finish_reason\":\"length\""));
            assert_true(holds(&response, "\"finish_reason\":\"stop\""));
            assert_true(holds(&response, "data: [DONE]") && !holds(&response, "deadline_exceeded"));
            response_finish(&response);
        }
    }
    static const struct fake_plan all = {.fail_err = HEARTH_ERR_DEADLINE, .fail_after = -1};
    fake_set_plan(&all);
    struct response response = ask(&dialects[0], NULL, ",\"n\":2,\"stream\":true,\"deadline_ms\":50000");
    assert_int_equal(response.status, 504);
    response_finish(&response);
}

static void wants_429(const struct dialect *dialect, const char *headers, const char *more, const char *retry_after) {
    char seconds[16], id[64];
    struct response response = ask(dialect, headers, more);
    json_t *answer = json_of(&response);
    assert_int_equal(response.status, 429);
    assert_true(response_header(&response, "Retry-After", seconds, sizeof seconds));
    assert_string_equal(seconds, retry_after);
    assert_string_equal(json_str(answer, "error.type"), "rate_limit_error");
    if (dialect->anthropic) {
        assert_string_equal(json_str(answer, "type"), "error");
        assert_true(response_header(&response, "request-id", id, sizeof id));
    } else {
        assert_string_equal(json_str(answer, "error.code"), "rate_limit_exceeded");
    }
    json_decref(answer);
    response_finish(&response);
}

static void too_many_are_told_when_to_come_back(void **state) {
    static const struct fake_plan refuses = {.submit_err = HEARTH_ERR_OVERLOADED};
    struct fake_counts before, after;
    int status;
    (void)state;
    fake_set_plan(&quick);
    fake_get_counts(&before);
    fake_set_overloaded(7);
    for (size_t i = 0; i < DIALECTS; i++) {
        wants_429(&dialects[i], NULL, "", "7");
        wants_429(&dialects[i], NULL, ",\"stream\":true", "7");
    }
    /* Whatever needs no turn of the model is served. */
    json_decref(stage_want(&stage, "POST", "/tokenize", "{\"content\":\"a\"}", 200));
    json_decref(stage_want(&stage, "GET", "/v1/models", NULL, 200));
    json_t *queue = stage_want(&stage, "GET", "/queue", NULL, 200);
    assert_true(json_is_true(json_at(queue, "full")));
    assert_int_equal(json_num(queue, "retry_after"), 7);
    json_decref(queue);
    struct response metrics = http_call(stage.port, "GET", "/metrics", NULL, NULL);
    assert_true(holds(&metrics, "\nhearth_requests_refused_total 8\n"));
    response_finish(&metrics);
    fake_get_counts(&after);
    assert_int_equal(after.submitted, before.submitted);
    fake_set_overloaded(0);
    /* A request that the service itself refuses. */
    fake_set_plan(&refuses);
    for (size_t i = 0; i < DIALECTS; i++) {
        wants_429(&dialects[i], NULL, "", "1");
        wants_429(&dialects[i], NULL, ",\"stream\":true", "1");
    }
    fake_set_plan(&quick);
    json_decref(stage_call(&stage, "POST", dialects[0].path, "{" USER "}", &status));
    assert_int_equal(status, 200);
    fake_get_counts(&after); /* every admission slot is free again */
    assert_int_equal(after.reserved, 0);
}

/* A refusal needs no body, however large it would have been; nor does what anybody may ask. */
static void refusals_do_not_wait_for_the_body(void **state) {
    static const struct {
        const char *request;
        int status;
    } cases[] = {{"POST /v1/messages", 429}, {"GET /health", 200}, {"OPTIONS /v1/messages", 204}};
    struct client client;
    struct response response;
    (void)state;
    fake_set_overloaded(3);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char head[96];
        snprintf(head, sizeof head, "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n",
                 cases[i].request);
        assert_true(client_open(&client, stage.port));
        assert_true(client_text(&client, head));
        assert_true(client_response(&client, false, &response));
        assert_int_equal(response.status, cases[i].status);
        response_finish(&response);
        client_close(&client);
    }
    fake_set_overloaded(0);
}

static void progress_is_told_to_those_who_ask(void **state) {
    static const struct fake_plan plan = {.pieces = 2, .piece = "ab ", .progress = 3};
    (void)state;
    fake_set_plan(&plan);
    for (size_t i = 0; i < 2; i++) {
        struct response response = ask(&dialects[i], NULL, ",\"stream\":true,\"return_progress\":true");
        json_t *events = sse_events((const char *)response.body.data), *event;
        json_int_t last = -1, total = 0;
        size_t k, told = 0;
        json_array_foreach(events, k, event) {
            json_t *progress = json_at(event, "prompt_progress");
            if (progress == NULL) {
                continue;
            }
            told++;
            assert_int_equal(json_num(progress, "cache"), 5);
            assert_true(json_num(progress, "processed") > last && json_num(progress, "time_ms") >= 0);
            last = json_num(progress, "processed");
            total = json_num(progress, "total");
            assert_int_equal(json_array_size(json_at(event, "choices")), 1);
            assert_true(json_is_null(json_at(event, "choices.0.finish_reason")));
        }
        assert_int_equal(told, 4);
        assert_int_equal(last, total);
        json_decref(events);
        response_finish(&response);
    }
    for (size_t i = 2; i < DIALECTS; i++) {
        struct response response = ask(&dialects[i], NULL, ",\"stream\":true,\"return_progress\":true");
        assert_true(holds(&response, "\n: progress "));
        response_finish(&response);
    }
    for (size_t i = 0; i < DIALECTS; i++) {
        struct response response = ask(&dialects[i], NULL, ",\"stream\":true");
        assert_false(fake_last()->progress || holds(&response, "progress "));
        assert_false(holds(&response, "prompt_progress"));
        response_finish(&response);
        response = ask(&dialects[i], NULL, ",\"return_progress\":true"); /* nowhere to tell it */
        assert_int_equal(response.status, 200);
        assert_false(fake_last()->progress || holds(&response, "progress"));
        response_finish(&response);
    }
}

static void guessing_can_be_switched_off(void **state) {
    static const struct fake_plan guesses = {.pieces = 2, .piece = "a", .drafted_tokens = 6, .accepted_tokens = 4};
    (void)state;
    fake_set_plan(&guesses);
    struct response response = ask(&dialects[0], NULL, ",\"speculate\":false");
    json_t *answer = json_of(&response);
    assert_true(fake_last()->speculate_off);
    assert_int_equal(json_num(answer, "timings.draft_n"), 6);
    assert_int_equal(json_num(answer, "timings.draft_n_accepted"), 4);
    json_decref(answer);
    response_finish(&response);
    fake_set_plan(&quick);
    response = ask(&dialects[0], NULL, "");
    assert_false(fake_last()->speculate_off);
    assert_false(holds(&response, "draft_n"));
    response_finish(&response);
}

/* Streams that wait in the queue say that they are alive, and stop saying so with the reply. */
static void waiting_streams_are_kept_alive(void **state) {
    static const struct fake_plan hold = {.hold = true};
    static const char *const signs[] = {": ping", ": ping", "event: keepalive", "event: ping"};
    static const char *const ends[] = {"[DONE]", "[DONE]", "response.completed", "message_stop"};
    struct client clients[DIALECTS];
    struct stage_options options;
    struct stage other;
    (void)state;
    stage_options_default(&options);
    options.api.ping_us = 1; /* at every tick, once a second */
    stage_open(&other, &options);
    fake_set_plan(&hold);
    for (size_t i = 0; i < DIALECTS; i++) {
        char body[512];
        snprintf(body, sizeof body, "%s,\"stream\":true}", dialects[i].body);
        assert_true(client_open(&clients[i], other.port));
        assert_true(client_request(&clients[i], "POST", dialects[i].path, NULL, body));
    }
    for (size_t i = 0; i < DIALECTS; i++) {
        assert_true(client_wait_for(&clients[i], signs[i]));
        clients[i].in.len = 0;
        assert_true(client_wait_for(&clients[i], signs[i])); /* and again */
        client_close(&clients[i]);
    }
    fake_set_plan(&quick);
    for (size_t i = 0; i < DIALECTS; i++) {
        struct response response = ask_at(other.port, &dialects[i], NULL, ",\"stream\":true");
        const char *end = strstr((const char *)response.body.data, ends[i]);
        assert_non_null(end);
        assert_null(strstr(end, signs[i]));
        response_finish(&response);
    }
    stage_close(&other);
}

static void *shut_down(void *user) {
    (void)user;
    hearth_api_shutdown(stage.api, 20 * 1000000ll);
    return NULL;
}

/* Asks on a connection that is kept; the status, and in `connection` what is to become of it. */
static int health_of(struct client *client, char connection[16]) {
    struct response response;
    assert_true(client_request(client, "GET", "/health", NULL, NULL));
    assert_true(client_response(client, false, &response));
    assert_true(response_header(&response, "Connection", connection, 16));
    const int status = response.status;
    response_finish(&response);
    return status;
}

/* The last test: the stage is shut down. */
static void draining_turns_new_requests_away(void **state) {
    static const struct fake_plan slow = {.pieces = 10, .piece = "ab ", .wait_ms = 500};
    struct client running, kept;
    struct response response;
    pthread_t thread;
    char connection[16];
    int status = 200;
    (void)state;
    assert_true(client_open(&kept, stage.port));
    assert_int_equal(health_of(&kept, connection), 200);
    assert_string_equal(connection, "keep-alive");
    fake_set_plan(&slow);
    assert_true(client_open(&running, stage.port));
    assert_true(client_request(&running, "POST", dialects[0].path, NULL, "{\"stream\":true," USER "}"));
    assert_true(client_wait_for(&running, "\"content\":\"ab"));
    assert_int_equal(pthread_create(&thread, NULL, shut_down, NULL), 0);
    while (status == 200) {
        json_t *health = stage_call(&stage, "GET", "/health", NULL, &status);
        if (status == 503) {
            assert_string_equal(json_str(health, "status"), "draining");
            assert_string_equal(json_str(health, "error.type"), "unavailable_error");
        }
        json_decref(health);
    }
    assert_int_equal(status, 503);
    assert_int_equal(health_of(&kept, connection), 503);
    assert_string_equal(connection, "close"); /* who asks again on a connection is told that it ends */
    assert_true(client_at_end(&kept));
    client_close(&kept);
    for (size_t i = 0; i < DIALECTS; i++) {
        char seconds[16];
        response = ask(&dialects[i], NULL, "");
        json_t *answer = json_of(&response);
        assert_int_equal(response.status, 503);
        assert_true(response_header(&response, "Retry-After", seconds, sizeof seconds) && atoi(seconds) > 0);
        assert_true(response_header(&response, "Connection", connection, sizeof connection));
        assert_string_equal(connection, "close");
        assert_string_equal(json_str(answer, "error.type"),
                            dialects[i].anthropic ? "overloaded_error" : "server_error");
        json_decref(answer);
        response_finish(&response);
    }
    assert_true(client_response(&running, false, &response));
    assert_true(response.complete && holds(&response, "[DONE]"));
    response_finish(&response);
    client_close(&running);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_name_their_class),
        cmocka_unit_test(wrong_wishes_are_named),
        cmocka_unit_test(tiers_are_echoed),
        cmocka_unit_test(deadlines_reach_the_service),
        cmocka_unit_test(missed_deadlines_are_errors),
        cmocka_unit_test(late_replies_are_cut_off),
        cmocka_unit_test(choices_that_never_began_end_empty),
        cmocka_unit_test(too_many_are_told_when_to_come_back),
        cmocka_unit_test(refusals_do_not_wait_for_the_body),
        cmocka_unit_test(progress_is_told_to_those_who_ask),
        cmocka_unit_test(guessing_can_be_switched_off),
        cmocka_unit_test(waiting_streams_are_kept_alive),
        cmocka_unit_test(draining_turns_new_requests_away),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
