/* Keys and what is told of who uses them: weights and classes, other keys while the server runs, /slots, /queue, and
 * the log's line of every request; over a service that does what it is told. */
#include "api/internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "session/message_cache.h"
#include "support/fake_service.h"
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

#define CHAT "/v1/chat/completions"
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"SECRET words\"}]"

static const struct hearth_api_key alice = {.key = "a-key", .name = "alice", .weight = 3};
static const struct hearth_api_key bob = {.key = "b-key", .highest = HEARTH_CLASS_SIDE};
static const struct hearth_api_key carol = {.key = "c-key", .name = "carol", .highest = HEARTH_CLASS_BACKGROUND};

/* Two that see what is their owner's only; and one that may have one request at once. */
static const struct hearth_api_key dora = {
    .key = "d-key", .name = "dora", .scopes = HEARTH_SCOPE_INFER, .limits = {.running = 1}};
static const struct hearth_api_key eve = {
    .key = "e-key", .name = "eve", .scopes = HEARTH_SCOPE_INFER | HEARTH_SCOPE_SESSIONS};

static const struct fake_plan quick = {.pieces = 3, .piece = "ab "};
static struct stage stage;

/* ---- the log ---- */

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct hearth_buf log_text;

static void remember_line(void *user, enum hearth_log_level level, const char *line) {
    static const char letters[] = "DIWE";
    (void)user;
    pthread_mutex_lock(&log_mutex);
    assert_true(hearth_buf_printf(&log_text, "%c %s\n", letters[level], line));
    pthread_mutex_unlock(&log_mutex);
}

/* The line that holds both texts; waits for it, as it is written after the answer. To be freed. */
static char *log_line(const char *text, const char *other) {
    const int64_t until = hearth_clock_us() + 10 * 1000000ll;
    char *found = NULL;
    while (found == NULL && hearth_clock_us() < until) {
        pthread_mutex_lock(&log_mutex);
        for (const char *line = (const char *)log_text.data; line != NULL && *line != '\0' && found == NULL;) {
            const size_t len = strcspn(line, "\n");
            char *copy = strndup(line, len);
            found = strstr(copy, text) != NULL && strstr(copy, other) != NULL ? copy : NULL;
            if (found == NULL) {
                free(copy);
            }
            line += len + 1;
        }
        pthread_mutex_unlock(&log_mutex);
        usleep(1000);
    }
    if (found == NULL) {
        print_error("no line with '%s' and '%s' in:\n%s", text, other, (const char *)log_text.data);
    }
    assert_non_null(found);
    return found;
}

static void logged(const char *text, const char *other) {
    free(log_line(text, other));
}

static int setup(void **state) {
    const struct hearth_api_key keys[] = {alice, bob, carol};
    struct stage_options options;
    (void)state;
    hearth_log_set(remember_line, NULL, HEARTH_LOG_DEBUG);
    stage_options_default(&options);
    options.api.keys = keys;
    options.api.key_count = 3;
    options.api.speculates = true;
    options.api.lora_path = "/adapters/polite.gguf";
    stage_open(&stage, &options);
    fake_set_plan(&quick);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    stage_close(&stage);
    hearth_log_set(NULL, NULL, HEARTH_LOG_INFO);
    hearth_buf_finish(&log_text);
    return 0;
}

static struct response ask(const char *key, const char *more) {
    char headers[96], body[512];
    snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\n", key);
    snprintf(body, sizeof body, "{" USER "%s}", more);
    return http_call(stage.port, "POST", CHAT, headers, body);
}

static int status_of(const char *key, const char *more) {
    struct response response = ask(key, more);
    const int status = response.status;
    response_finish(&response);
    return status;
}

static json_t *look(const char *path, int want) {
    struct response response = http_call(stage.port, "GET", path, "Authorization: Bearer a-key\r\n", NULL);
    json_t *answer = json_loadb((const char *)response.body.data, response.body.len, 0, NULL);
    assert_int_equal(response.status, want);
    assert_null(strstr((const char *)response.body.data, "SECRET"));
    response_finish(&response);
    return answer;
}

/* A key bounds the class from above; below it requests choose. */
static void keys_have_classes_and_weights(void **state) {
    static const struct {
        const char *key, *more;
        enum hearth_class want;
    } cases[] = {
        {"a-key", "", HEARTH_CLASS_INTERACTIVE},
        {"a-key", ",\"priority\":\"background\"", HEARTH_CLASS_BACKGROUND},
        {"b-key", "", HEARTH_CLASS_SIDE},
        {"b-key", ",\"priority\":\"interactive\"", HEARTH_CLASS_SIDE},
        {"b-key", ",\"priority\":\"side\"", HEARTH_CLASS_SIDE},
        {"b-key", ",\"priority\":2", HEARTH_CLASS_BACKGROUND},
        {"c-key", ",\"service_tier\":\"priority\"", HEARTH_CLASS_BACKGROUND},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(status_of(cases[i].key, cases[i].more), 200);
        assert_int_equal(fake_last()->priority, cases[i].want);
        assert_true(fake_last()->tenant.id != 0);
        assert_true(fake_last()->tenant.weight == (cases[i].key[0] == 'a' ? 3.0 : 0.0));
    }
}

/* Who a request is from does not depend on what other keys there are, or in which order, and a name has its owner's
 * state whatever its key is; the first key that is alone has what there was without keys, and keeps it. */
static void keys_are_the_same_in_any_order(void **state) {
    const struct hearth_api_key turned[] = {carol, alice, bob}, fewer[] = {bob, alice};
    (void)state;
    assert_int_equal(status_of("a-key", ""), 200);
    const struct hearth_digest salt = fake_last()->salt;
    const uint64_t tenant = fake_last()->tenant.id;
    assert_true(salt.lo != 0 || salt.hi != 0);
    assert_int_equal(status_of("b-key", ""), 200);
    assert_false(hearth_digest_equal(fake_last()->salt, salt));
    assert_true(fake_last()->tenant.id != tenant);
    assert_int_equal(hearth_api_set_keys(stage.api, turned, 3), HEARTH_OK);
    assert_int_equal(status_of("a-key", ""), 200);
    assert_true(hearth_digest_equal(fake_last()->salt, salt) && fake_last()->tenant.id == tenant);
    assert_int_equal(hearth_api_set_keys(stage.api, fewer, 2), HEARTH_OK);
    assert_int_equal(status_of("a-key", ""), 200);
    assert_true(hearth_digest_equal(fake_last()->salt, salt) && fake_last()->tenant.id == tenant);
    assert_int_equal(hearth_api_set_keys(stage.api, &alice, 1), HEARTH_OK);
    assert_int_equal(status_of("a-key", ""), 200);
    assert_true(hearth_digest_equal(fake_last()->salt, salt) && fake_last()->tenant.id == tenant);
    const struct hearth_api_key rotated[] = {{.key = "a-new-key", .name = "alice"}, bob};
    assert_int_equal(hearth_api_set_keys(stage.api, rotated, 2), HEARTH_OK);
    assert_int_equal(status_of("a-key", ""), 401);
    assert_int_equal(status_of("a-new-key", ""), 200);
    assert_true(hearth_digest_equal(fake_last()->salt, salt) && fake_last()->tenant.id == tenant);
    assert_int_equal(hearth_api_set_keys(stage.api, turned, 3), HEARTH_OK);
    assert_int_equal(hearth_api_set_keys(stage.api, &bob, 1), HEARTH_OK);
    assert_int_equal(status_of("b-key", ""), 200);
    assert_true(fake_last()->salt.lo == 0 && fake_last()->salt.hi == 0 && fake_last()->tenant.id != 0);
    /* It keeps that beside others, and none of them has it later. */
    assert_int_equal(hearth_api_set_keys(stage.api, turned, 3), HEARTH_OK);
    assert_int_equal(status_of("b-key", ""), 200);
    assert_true(fake_last()->salt.lo == 0 && fake_last()->salt.hi == 0);
    const struct hearth_api_key other = {.key = "other-key"}, named = {.key = "last-key", .name = "lea"};
    assert_int_equal(hearth_api_set_keys(stage.api, &other, 1), HEARTH_OK);
    assert_int_equal(status_of("other-key", ""), 200);
    assert_true(fake_last()->salt.lo != 0 || fake_last()->salt.hi != 0);
    assert_int_equal(hearth_api_set_keys(stage.api, &named, 1), HEARTH_OK);
    assert_int_equal(status_of("last-key", ""), 200);
    assert_true(fake_last()->salt.lo != 0 || fake_last()->salt.hi != 0);
    /* A name takes what its key has, and keeps it. */
    const struct hearth_api_key bob_named = {.key = "b-key", .name = "bob"},
                                bob_again = {.key = "b2-key", .name = "bob"};
    assert_int_equal(hearth_api_set_keys(stage.api, &bob_named, 1), HEARTH_OK);
    assert_int_equal(status_of("b-key", ""), 200);
    assert_true(fake_last()->salt.lo == 0 && fake_last()->salt.hi == 0);
    assert_int_equal(hearth_api_set_keys(stage.api, &bob_again, 1), HEARTH_OK);
    assert_int_equal(status_of("b2-key", ""), 200);
    assert_true(fake_last()->salt.lo == 0 && fake_last()->salt.hi == 0);
    assert_int_equal(hearth_api_set_keys(stage.api, &bob, 1), HEARTH_OK);
    assert_int_equal(status_of("b-key", ""), 200);
    assert_true(fake_last()->salt.lo != 0 || fake_last()->salt.hi != 0);
    assert_int_equal(hearth_api_set_keys(stage.api, turned, 3), HEARTH_OK);
}

/* A message that one has sent is read anew for another: how soon it is read tells nothing. */
static void what_was_read_is_known_to_its_owner(void **state) {
    static const char body[] = "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"of alice\"}]}";
    static const char message[] = "{\"role\":\"user\",\"content\":\"of alice\"}";
    (void)state;
    struct response response = http_call(stage.port, "POST", CHAT, "Authorization: Bearer a-key\r\n", body);
    assert_int_equal(response.status, 200);
    response_finish(&response);
    const struct hearth_digest hers = fake_last()->salt;
    assert_int_equal(status_of("b-key", ""), 200);
    assert_null(hearth_message_cache_get(stage.api->message_cache, fake_last()->salt, message, strlen(message)));
    struct hearth_message *known = hearth_message_cache_get(stage.api->message_cache, hers, message, strlen(message));
    assert_non_null(known);
    hearth_message_unref(known);
}

static int status_with(const char *key, const char *method, const char *path, const char *body, json_t **answer) {
    char headers[96], text[8];
    snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\n", key);
    struct response response = http_call(stage.port, method, path, headers, body);
    const int status = response.status;
    if (status == 429) { /* repeating it makes it no better */
        assert_true(response_header(&response, "X-Should-Retry", text, sizeof text));
        assert_string_equal(text, "false");
        assert_non_null(strstr((const char *)response.body.data, "this key keeps"));
    }
    if (answer != NULL) {
        *answer = json_loadb((const char *)response.body.data, response.body.len, 0, NULL);
        assert_non_null(*answer);
    }
    response_finish(&response);
    return status;
}

static void set_bounds(const struct hearth_session_quota *stored) {
    const struct hearth_api_key keys[] = {
        {.key = "s-key", .name = "sue", .limits = {.stored = *stored}}, alice, {.key = "s2-key", .name = "sue"}};
    assert_int_equal(hearth_api_set_keys(stage.api, keys, 3), HEARTH_OK);
}

/* Tokens, bytes and conversations, in every API, for all keys of a name, and by what the key file says now. */
static void what_is_stored_has_bounds(void **state) {
    static const struct {
        const char *path, *body;
        bool named; /* makes a conversation */
    } stored[] = {
        {"/v1/sessions", "{}", true},
        {"/v1/conversations", "{\"items\":[{\"role\":\"user\",\"content\":\"some words\"}]}", true},
        {"/v1/responses", "{\"input\":\"some words\"}", false},
        {CHAT, "{\"session_id\":\"one\"," USER "}", true},
        {"/v1/messages", "{\"session_id\":\"two\",\"max_tokens\":5," USER "}", true},
    };
    static const struct hearth_session_quota bounds[] = {{.tokens = 1}, {.bytes = 1}, {.sessions = 4}}, none = {0};
    const struct hearth_api_key before[] = {alice, bob, carol};
    const size_t count = sizeof stored / sizeof stored[0];
    json_t *answer;
    (void)state;
    set_bounds(&none);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(status_with("s-key", "POST", stored[i].path, stored[i].body, NULL), 200);
    }
    for (size_t bound = 0; bound < 3; bound++) {
        set_bounds(&bounds[bound]);
        for (size_t i = 0; i < count; i++) {
            char body[200];
            snprintf(body, sizeof body, "%s", stored[i].body);
            char *name = strstr(body, "_id\":\"");
            if (name != NULL) {
                name[6] = 'x'; /* another one */
            }
            const int want = bound < 2 || stored[i].named ? 429 : 200;
            assert_int_equal(status_with(i % 2 != 0 ? "s-key" : "s2-key", "POST", stored[i].path, body, &answer), want);
            json_t *error = json_object_get(answer, "error");
            if (want == 429 && strcmp(stored[i].path, "/v1/messages") == 0) {
                assert_string_equal(json_string_value(json_object_get(error, "type")), "rate_limit_error");
            } else if (want == 429) {
                assert_string_equal(json_string_value(json_object_get(error, "code")), "storage_limit_exceeded");
            }
            json_decref(answer);
            assert_int_equal(status_with("a-key", "POST", stored[i].path, body, NULL), 200); /* another's */
        }
        assert_int_equal(status_with("s-key", "POST", CHAT, "{" USER "}", NULL), 200); /* stores nothing */
    }
    assert_int_equal(status_with("s2-key", "GET", "/v1/sessions", NULL, &answer), 200);
    json_t *has = json_object_get(answer, "stored");
    assert_int_equal(json_integer_value(json_object_get(has, "sessions")), 4);
    assert_int_equal(json_integer_value(json_object_get(has, "sessions_limit")), 4);
    assert_true(json_integer_value(json_object_get(has, "tokens")) > 0);
    assert_true(json_integer_value(json_object_get(has, "bytes")) > 0);
    assert_null(json_object_get(has, "bytes_limit"));
    json_decref(answer);
    assert_int_equal(status_with("s-key", "DELETE", "/v1/sessions/one", NULL, NULL), 200);
    assert_int_equal(status_with("s-key", "POST", "/v1/sessions", "{}", NULL), 200);
    assert_int_equal(status_with("s-key", "POST", "/v1/sessions", "{}", NULL), 429);
    set_bounds(&none);
    assert_int_equal(status_with("s-key", "POST", "/v1/sessions", "{}", NULL), 200);
    assert_int_equal(hearth_api_set_keys(stage.api, before, 3), HEARTH_OK);
}

/* A key that is taken away is good for what it has begun. */
static void keys_change_while_requests_run(void **state) {
    static const struct fake_plan slow = {.pieces = 3, .piece = "ab ", .wait_ms = 200};
    const struct hearth_api_key before[] = {alice, bob, carol}, after[] = {bob, carol, {.key = "new-key"}};
    struct client client;
    struct response response;
    (void)state;
    fake_set_plan(&slow);
    assert_int_equal(status_of("new-key", ""), 401);
    assert_true(client_open(&client, stage.port));
    assert_true(client_request(&client, "POST", CHAT, "Authorization: Bearer a-key\r\n", "{\"stream\":true," USER "}"));
    assert_true(client_wait_for(&client, "\"content\":\"ab"));
    assert_int_equal(hearth_api_set_keys(stage.api, after, 3), HEARTH_OK);
    fake_set_plan(&quick);
    assert_int_equal(status_of("a-key", ""), 401);
    assert_int_equal(status_of("new-key", ""), 200);
    assert_true(client_response(&client, false, &response));
    assert_true(response.complete && strstr((const char *)response.body.data, "[DONE]") != NULL);
    response_finish(&response);
    client_close(&client);
    assert_int_equal(hearth_api_set_keys(stage.api, before, 3), HEARTH_OK);
}

/* Who has no key is told so before there is a body. */
static void strangers_send_no_body(void **state) {
    static const char *const heads[] = {
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 60000000\r\n\r\n",
        ("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer b-ke\r\nTransfer-Encoding: "
         "chunked\r\n\r\n"),
        "POST /v1/nowhere HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer b-key\r\nContent-Length: 60000000\r\n\r\n",
        "POST /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer b-key\r\nContent-Length: 60000000\r\n\r\n",
    };
    static const int statuses[] = {401, 401, 404, 405};
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct client client;
        struct response response;
        assert_true(client_open(&client, stage.port));
        assert_true(client_text(&client, heads[i]));
        assert_true(client_response(&client, false, &response));
        assert_int_equal(response.status, statuses[i]);
        response_finish(&response);
        client_close(&client);
    }
}

static void slots_say_what_runs_and_for_whom(void **state) {
    static const struct fake_plan hold = {.hold = true};
    struct client client;
    (void)state;
    fake_set_plan(&hold);
    assert_true(client_open(&client, stage.port));
    assert_true(client_request(&client, "POST", CHAT, "Authorization: Bearer b-key\r\nX-Session-Id: trip\r\n",
                               "{\"stream\":true,\"temperature\":0.5,\"max_tokens\":40,\"deadline_ms\":600000," USER
                               "}"));
    json_t *slots = NULL;
    for (int i = 0; i < 1000; i++) { /* until the request is there */
        json_decref(slots);
        slots = look("/slots", 200);
        if (strcmp(json_str(slots, "1.state"), "prefill") == 0) {
            break;
        }
        usleep(10000);
    }
    assert_int_equal(json_array_size(slots), 2);
    json_t *slot = json_array_get(slots, 1);
    assert_int_equal(json_num(slot, "id"), 1);
    assert_true(json_num(slot, "n_ctx") > 0);
    assert_true(json_is_true(json_at(slot, "is_processing")) && json_is_true(json_at(slot, "speculative")));
    assert_int_equal(json_num(slot, "n_prompt_tokens"), 100);
    assert_int_equal(json_num(slot, "n_prompt_tokens_processed"), 30);
    assert_int_equal(json_num(slot, "n_prompt_tokens_cache"), 20);
    assert_int_equal(json_num(slot, "next_token.0.n_decoded"), 0);
    assert_int_equal(json_num(slot, "next_token.0.n_remain"), 40);
    assert_true(json_number_value(json_at(slot, "params.temperature")) == 0.5);
    assert_string_equal(json_str(slot, "hearth.class"), "side");
    assert_memory_equal(json_str(slot, "hearth.key"), "key-", 4);
    assert_memory_equal(json_str(slot, "hearth.request_id"), "req_", 4);
    char id[13]; /* no count of the requests of all: random, like the id in the answer */
    snprintf(id, sizeof id, "%012llx", (unsigned long long)json_integer_value(json_at(slot, "id_task")));
    assert_memory_equal(json_str(slot, "hearth.request_id") + 4, id, 12);
    assert_int_equal(json_num(slots, "0.id_task"), -1);
    assert_string_equal(json_str(slot, "hearth.session"), "trip");
    assert_true(json_number_value(json_at(slot, "hearth.progress")) == 0.5);
    assert_true(json_number_value(json_at(slot, "hearth.tokens_per_second")) == 60);
    assert_int_equal(json_num(slot, "hearth.preemptions"), 2);
    assert_true(json_number_value(json_at(slot, "hearth.deadline_in_ms")) > 0);
    json_decref(slots);
    json_t *answer = look("/slots?fail_on_no_slot=1", 503);
    assert_string_equal(json_str(answer, "error.code"), "no_slot");
    json_decref(answer);
    logged("I req_", "GET /slots 503 end=failed");

    json_t *queue = look("/queue", 200);
    assert_int_equal(json_array_size(json_at(queue, "requests")), 2);
    assert_string_equal(json_str(queue, "requests.0.state"), "queued");
    assert_string_equal(json_str(queue, "requests.1.state"), "preempted");
    assert_true(json_number_value(json_at(queue, "requests.0.waited_ms")) == 1500);
    assert_true(json_is_false(json_at(queue, "full")) && json_is_null(json_at(queue, "retry_after")));
    json_decref(queue);

    struct response metrics = http_call(stage.port, "GET", "/metrics", "X-Api-Key: a-key\r\n", NULL);
    assert_non_null(strstr((const char *)metrics.body.data, "hearth_requests_running{class=\"side\",key=\"key-"));
    assert_non_null(strstr((const char *)metrics.body.data, "\nhearth_requests_waiting{class=\"interactive\""));
    assert_non_null(strstr((const char *)metrics.body.data, "\nllamacpp:requests_processing "));
    response_finish(&metrics);
    client_close(&client);
    fake_set_plan(&quick);
}

static json_t *look_as(const char *key, const char *path) {
    char header[64];
    snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", key);
    struct response response = http_call(stage.port, "GET", path, header, NULL);
    assert_int_equal(response.status, 200);
    assert_null(strstr((const char *)response.body.data, strcmp(key, "d-key") == 0 ? "eve" : "dora"));
    json_t *answer = json_loadb((const char *)response.body.data, response.body.len, 0, NULL);
    response_finish(&response);
    return answer;
}

/* What runs for another is a busy lane and no more; what runs for oneself may be all that may run. */
static void keys_see_their_own(void **state) {
    static const struct fake_plan hold = {.hold = true};
    const struct hearth_api_key keys[] = {alice, dora, eve}, before[] = {alice, bob, carol};
    struct client client;
    (void)state;
    assert_int_equal(hearth_api_set_keys(stage.api, keys, 3), HEARTH_OK);
    fake_set_plan(&hold);
    assert_true(client_open(&client, stage.port));
    assert_true(client_request(&client, "POST", CHAT, "Authorization: Bearer d-key\r\n",
                               "{\"stream\":true,\"max_tokens\":40," USER "}"));
    json_t *slots = NULL;
    for (int i = 0; i < 1000 && (slots == NULL || strcmp(json_str(slots, "1.state"), "prefill") != 0); i++) {
        json_decref(slots);
        usleep(10000);
        slots = look_as("d-key", "/slots");
    }
    assert_string_equal(json_str(slots, "1.hearth.key"), "dora");
    assert_int_equal(json_num(slots, "1.n_prompt_tokens"), 100);
    json_decref(slots);
    slots = look_as("e-key", "/slots");
    assert_true(json_is_true(json_at(slots, "1.is_processing")));
    assert_string_equal(json_str(slots, "1.state"), "busy");
    assert_true(json_is_null(json_at(slots, "1.hearth.key")));
    static const char *const hidden[] = {"1.n_prompt_tokens", "1.n_prompt_tokens_processed", "1.n_prompt_tokens_cache",
                                         "1.n_decoded", "1.live_tokens"};
    for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
        assert_int_equal(json_num(slots, hidden[i]), 0);
    }
    assert_int_equal(json_num(slots, "1.id_task"), -1);
    assert_null(json_at(slots, "1.params"));
    json_decref(slots);
    json_t *adapters = look_as("e-key", "/lora-adapters");
    assert_string_equal(json_str(adapters, "0.path"), "polite.gguf");
    json_decref(adapters);
    adapters = look_as("a-key", "/lora-adapters");
    assert_string_equal(json_str(adapters, "0.path"), "/adapters/polite.gguf");
    json_decref(adapters);
    json_t *queue = look_as("e-key", "/queue");
    assert_int_equal(json_array_size(json_at(queue, "requests")), 0);
    assert_true(json_num(queue, "waiting") >= 0);
    json_decref(queue);
    struct response second = ask("d-key", "");
    assert_int_equal(second.status, 429);
    assert_non_null(strstr((const char *)second.body.data, "1 requests at once"));
    response_finish(&second);
    client_close(&client);
    fake_set_plan(&quick);
    int status = 429;
    for (int i = 0; i < 1000 && status == 429; i++) { /* until the first one has ended */
        usleep(10000);
        status = status_of("d-key", "");
    }
    assert_int_equal(status, 200);
    assert_int_equal(hearth_api_set_keys(stage.api, before, 3), HEARTH_OK);
}

/* A request that goes as planned is answered with a status, and logged. */
static struct hearth_engine_ops counting;
static atomic_int checks;

static int count_check(struct hearth_engine *engine, const char *text, struct hearth_errmsg *msg) {
    (void)engine, (void)text, (void)msg;
    checks++;
    return HEARTH_OK;
}

/* What is made of a request is kept for its owner alone: the time it takes would tell others that it was there. */
static void what_is_prepared_is_the_owners(void **state) {
    static const char grammar[] = ",\"grammar\":\"root ::= \\\"yes\\\"\"";
    const struct hearth_api_key before[] = {alice, bob, carol};
    const struct hearth_engine_ops *own = stage.engine->ops;
    (void)state;
    counting = *own;
    counting.grammar_check = count_check;
    assert_int_equal(hearth_api_set_keys(stage.api, before, 3), HEARTH_OK);
    stage.engine->ops = &counting;
    const char *const keys[] = {"a-key", "a-key", "b-key", "a-key", "b-key"};
    const int expected[] = {1, 1, 2, 2, 2};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        assert_int_equal(status_of(keys[i], grammar), 200);
        assert_int_equal(checks, expected[i]);
    }
    stage.engine->ops = own;
}

static void planned_and_logged(const struct fake_plan *plan, const char *more, int status, const char *text,
                               const char *other) {
    fake_set_plan(plan);
    assert_int_equal(status_of("a-key", more), status);
    logged(text, other);
}

/* Every request has one line that says how it ended, and why. */
static void the_log_has_a_line_of_every_request(void **state) {
    static const struct fake_plan breaks = {.fail_err = HEARTH_ERR_ENGINE, .fail_after = 1, .pieces = 5, .piece = "a"};
    static const struct fake_plan preempted = {.pieces = 2, .piece = "a", .preemptions = 3};
    static const struct fake_plan late = {.fail_err = HEARTH_ERR_DEADLINE, .fail_after = -1};
    static const struct fake_plan cut = {.pieces = 2, .piece = "a", .finish = HEARTH_FINISH_LENGTH, .late = true};
    char id[64];
    (void)state;
    fake_set_plan(&quick);
    struct response response = ask("a-key", ",\"priority\":\"side\"");
    assert_true(response_header(&response, "X-Request-Id", id, sizeof id));
    response_finish(&response);
    char *line = log_line(id, "POST /v1/chat/completions 200 key=alice class=side prompt=");
    assert_int_equal(line[0], 'I');
    assert_non_null(strstr(line, " reused=5 computed="));
    assert_non_null(strstr(line, " generated=3 queue_ms=")); /* and what it has waited for a worker */
    assert_non_null(strstr(line, " prefill_ms=10.0 decode_ms=20.0 reason="));
    assert_non_null(strstr(line, " end=stop"));
    assert_null(strstr(line, " error="));
    free(line);
    planned_and_logged(&preempted, "", 200, "preemptions=3", "end=stop");
    planned_and_logged(&late, ",\"deadline_ms\":4321", 504, "I req_", " 504 key=alice class=interactive");
    logged("end=deadline error=\"", "4321 ms");
    planned_and_logged(&cut, ",\"deadline_ms\":5432", 200,
                       "end=deadline error=\"the deadline of 5432 ms cut the reply off\"", " 200 ");
    planned_and_logged(&breaks, ",\"stream\":true", 200, "W req_", " 500 key=alice");
    logged("(the stream had begun)", "end=failed error=\"");
    assert_int_equal(status_of("a-key", ",\"temperature\":9"), 400);
    logged(" 400 key=alice", "end=failed error=\"temperature must be");
    assert_int_equal(status_of("wrong", ""), 401);
    logged(" 401 end=failed", "a valid API key is needed");
    fake_set_overloaded(1);
    assert_int_equal(status_of("a-key", ""), 429);
    fake_set_overloaded(0);
    logged(" 429 end=failed", "too many requests wait");
    pthread_mutex_lock(&log_mutex);
    assert_null(strstr((const char *)log_text.data, "SECRET"));
    assert_null(strstr((const char *)log_text.data, "a-key"));
    pthread_mutex_unlock(&log_mutex);
}

/* Of the 503s the server is to blame for its memory, and not for its own end or for those who wait. */
static void the_log_warns_of_what_is_the_servers_fault(void **state) {
    static const struct fake_plan no_memory = {.fail_err = HEARTH_ERR_NOMEM, .fail_after = -1};
    static const struct fake_plan no_cells = {.fail_err = HEARTH_ERR_NO_CELLS, .fail_after = -1};
    static const struct fake_plan ending = {.fail_err = HEARTH_ERR_BUSY, .fail_after = -1};
    static const struct fake_plan full = {.submit_err = HEARTH_ERR_OVERLOADED};
    (void)state;
    planned_and_logged(&no_memory, "", 503, "W req_", "end=failed error=\"out of memory\"");
    planned_and_logged(&no_cells, "", 503, "W req_", "end=failed error=\"no free cells");
    planned_and_logged(&ending, "", 503, "I req_", "end=failed error=\"the server is shutting down\"");
    planned_and_logged(&full, "", 429, "I req_", " 429 key=alice");
    fake_set_plan(&quick);
}

/* What a client writes can neither pass for another line nor command a terminal. */
static void the_log_is_not_the_clients(void **state) {
    struct response response;
    (void)state;
    response = http_call(stage.port, "GET", "/v1/a%0AI%20req_forged%1B", "X-Api-Key: a-key\r\n", NULL);
    assert_int_equal(response.status, 404);
    response_finish(&response);
    logged("GET /v1/a?I?req_forged? 404", "there is no GET /v1/a?I req_forged? here");
    /* Controls of 8 bits, as bytes and as UTF-8; letters that hold such bytes are left alone. */
    response = http_call(stage.port, "GET", "/v1/b%9B2J%C2%9B2J%7F%C2%A0%C3%A9%E2%9B%84%F0%9F%94%A5%C3",
                         "X-Api-Key: a-key\r\n", NULL);
    assert_int_equal(response.status, 404);
    response_finish(&response);
    logged("GET /v1/b?2J?2J?\xC2\xA0\xC3\xA9\xE2\x9B\x84\xF0\x9F\x94\xA5\xC3 404",
           "there is no GET /v1/b?2J?2J?\xC2\xA0\xC3\xA9\xE2\x9B\x84\xF0\x9F\x94\xA5\xC3 here\"");
}

/* What a reply has cost is told, though nobody waits for it any more. */
static void the_log_has_the_cost_of_what_nobody_waits_for(void **state) {
    static const struct fake_plan endless = {.pieces = -1, .piece = "a", .wait_ms = 1};
    struct client client;
    (void)state;
    fake_set_plan(&endless);
    assert_true(client_open(&client, stage.port));
    assert_true(client_request(&client, "POST", CHAT, "X-Api-Key: c-key\r\n", "{\"stream\":true," USER "}"));
    assert_true(client_wait_for(&client, "\"content\":\"a"));
    client_close(&client);
    char *line = log_line(" 499 key=carol class=background", "end=gone error=\"the client went away");
    const char *generated = strstr(line, " generated=");
    assert_true(generated != NULL && atoi(generated + strlen(" generated=")) > 0);
    assert_non_null(strstr(line, " queue_ms="));
    assert_non_null(strstr(line, " prefill_ms=10.0 "));
    assert_non_null(strstr(line, " decode_ms=20.0 "));
    free(line);
    fake_set_plan(&quick);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_have_classes_and_weights),
        cmocka_unit_test(keys_are_the_same_in_any_order),
        cmocka_unit_test(what_was_read_is_known_to_its_owner),
        cmocka_unit_test(what_is_stored_has_bounds),
        cmocka_unit_test(keys_change_while_requests_run),
        cmocka_unit_test(strangers_send_no_body),
        cmocka_unit_test(slots_say_what_runs_and_for_whom),
        cmocka_unit_test(keys_see_their_own),
        cmocka_unit_test(what_is_prepared_is_the_owners),
        cmocka_unit_test(the_log_has_a_line_of_every_request),
        cmocka_unit_test(the_log_warns_of_what_is_the_servers_fault),
        cmocka_unit_test(the_log_is_not_the_clients),
        cmocka_unit_test(the_log_has_the_cost_of_what_nobody_waits_for),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
