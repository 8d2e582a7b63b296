/* Sessions over chat completions, with sim: what the client has to send, what is new, forks, side questions, warming,
 * deletion. Sim's replies are made of every token before them, so two clients that get the same reply have had the same
 * prompt. */
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHAT "/v1/chat/completions"
#define SESSIONS "/v1/sessions"

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    options.sim.ctx_tokens = 16384;
    options.sim.lanes = 1;
    stage_open(&stage, &options);
    return 0;
}

/* A chat with those messages (JSON, without brackets); NULL session: none. */
static json_t *chat(const char *session, const char *messages) {
    char body[8192], name[64] = "";
    if (session != NULL) {
        snprintf(name, sizeof name, "\"session_id\":\"%s\",", session);
    }
    snprintf(body, sizeof body, "{%s\"temperature\":0,\"max_tokens\":24,\"messages\":[%s]}", name, messages);
    return call("POST", CHAT, body, 200);
}

static const char *reply_of(json_t *answer) {
    return json_str(answer, "choices.0.message.content");
}

#define SYSTEM "{\"role\":\"system\",\"content\":\"You are a careful helper who answers with few words.\"}"
#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"

/* An assistant's message with this text, which has nothing to escape but newlines and quotes. */
static const char *said(const char *text) {
    static char out[4][1024];
    static int next;
    char *line = out[next++ % 4];
    json_t *message = json_pack("{s:s, s:s}", "role", "assistant", "content", text);
    char *dump = json_dumps(message, JSON_COMPACT);
    snprintf(line, sizeof out[0], "%s", dump);
    free(dump);
    json_decref(message);
    return line;
}

static json_int_t turns_of(const char *session) {
    char path[128];
    snprintf(path, sizeof path, SESSIONS "/%s", session);
    json_t *answer = call("GET", path, NULL, 200);
    const json_int_t turns = json_num(answer, "turns");
    json_decref(answer);
    return turns;
}

static void only_what_is_new_is_sent(void **state) {
    (void)state;
    char history[4096];
    json_t *first = chat("new", SYSTEM "," USER("What is a hearth?"));
    assert_string_equal(json_str(first, "hearth.session"), "new");
    assert_true(strncmp(json_str(first, "hearth.turn"), "turn_", 5) == 0);
    json_t *second = chat("new", USER("And a stove?"));
    /* A client without a session that sends everything gets the same. */
    snprintf(history, sizeof history, SYSTEM "," USER("What is a hearth?") ",%s," USER("And a stove?"),
             said(reply_of(first)));
    json_t *whole = chat(NULL, history);
    assert_string_equal(reply_of(second), reply_of(whole));
    assert_int_equal(json_num(second, "usage.prompt_tokens"), json_num(whole, "usage.prompt_tokens"));
    /* What was computed is what came on top: the question with its frame. */
    const json_int_t grown = json_num(second, "usage.prompt_tokens") - json_num(first, "usage.total_tokens");
    assert_true(json_num(second, "hearth.computed") <= grown + 2);
    assert_int_equal(turns_of("new"), 2);
    json_decref(first);
    json_decref(second);
    json_decref(whole);
}

static void the_whole_history_may_be_sent(void **state) {
    (void)state;
    char history[4096];
    json_t *first = chat("whole", SYSTEM "," USER("Name a tree."));
    snprintf(history, sizeof history, SYSTEM "," USER("Name a tree.") ",%s," USER("Another one."),
             said(reply_of(first)));
    json_t *second = chat("whole", history);
    assert_int_equal(turns_of("whole"), 2);
    json_t *third = chat("whole", USER("A third one."));
    assert_int_equal(turns_of("whole"), 3);
    /* Some send the last reply along with what is new. */
    snprintf(history, sizeof history, "%s," USER("A fourth one."), said(reply_of(third)));
    json_t *fourth = chat("whole", history);
    assert_int_equal(turns_of("whole"), 4);
    const json_int_t grown = json_num(fourth, "usage.prompt_tokens") - json_num(third, "usage.total_tokens");
    assert_true(grown > 0 && json_num(fourth, "hearth.computed") <= grown + 2);
    json_decref(first);
    json_decref(second);
    json_decref(third);
    json_decref(fourth);
}

static void an_edit_is_a_fork(void **state) {
    (void)state;
    char history[4096];
    json_t *first = chat("edit", USER("One."));
    json_t *second = chat("edit", USER("Two."));
    snprintf(history, sizeof history, USER("One.") ",%s," USER("Two, differently."), said(reply_of(first)));
    json_t *other = chat("edit", history);
    assert_int_equal(turns_of("edit"), 2);
    json_t *third = chat("edit", USER("Three."));
    snprintf(history, sizeof history, USER("One.") ",%s," USER("Two, differently.") ",%s," USER("Three."),
             said(reply_of(first)), said(reply_of(other)));
    json_t *whole = chat(NULL, history);
    assert_string_equal(reply_of(third), reply_of(whole));
    /* The request that began the session, once more: as if its answer had been lost. */
    json_t *lost = chat("again", USER("Hello."));
    json_t *again = chat("again", USER("Hello."));
    assert_string_equal(reply_of(lost), reply_of(again));
    assert_int_equal(turns_of("again"), 1);
    json_decref(first);
    json_decref(second);
    json_decref(other);
    json_decref(third);
    json_decref(whole);
    json_decref(lost);
    json_decref(again);
}

static void side_questions_leave_the_session_alone(void **state) {
    (void)state;
    char history[4096];
    json_t *first = chat("main", SYSTEM "," USER("Plan a trip."));
    json_t *title = chat(
        "main", "{\"role\":\"system\",\"content\":\"You write titles.\"}," USER("Plan a trip. What is its title?"));
    assert_string_equal(json_str(title, "hearth.session"), "");
    assert_int_equal(turns_of("main"), 1);
    /* A history that has nothing of the session: it was summed up, and the session goes on from there. */
    snprintf(history, sizeof history, SYSTEM "," USER("Summary: a trip is planned.") ",%s," USER("Go on."),
             said("I see."));
    json_t *summed = chat("main", history);
    assert_int_equal(turns_of("main"), 1);
    json_t *next = chat("main", USER("And then?"));
    snprintf(history, sizeof history,
             SYSTEM "," USER("Summary: a trip is planned.") ",%s," USER("Go on.") ",%s," USER("And then?"),
             said("I see."), said(reply_of(summed)));
    json_t *whole = chat(NULL, history);
    assert_string_equal(reply_of(next), reply_of(whole));
    json_decref(first);
    json_decref(title);
    json_decref(summed);
    json_decref(next);
    json_decref(whole);
}

static void a_fork_shares_what_was(void **state) {
    (void)state;
    json_t *first = chat("trunk", SYSTEM "," USER("Begin a story about a lighthouse keeper and her three dogs."));
    json_t *fork = call("POST", SESSIONS "/trunk/fork", "{\"name\":\"branch\"}", 200);
    assert_string_equal(json_str(fork, "id"), "branch");
    assert_int_equal(json_num(fork, "turns"), 1);
    json_t *left = chat("trunk", USER("It storms."));
    json_t *right = chat("branch", USER("It snows."));
    const json_int_t grown = json_num(right, "usage.prompt_tokens") - json_num(first, "usage.total_tokens");
    assert_true(json_num(right, "hearth.computed") <= grown + 2);
    assert_int_equal(turns_of("trunk"), 2);
    assert_int_equal(turns_of("branch"), 2);
    json_decref(call("POST", SESSIONS "/trunk/fork", "{\"name\":\"branch\"}", 409));
    json_decref(call("POST", SESSIONS "/nowhere/fork", "{\"name\":\"x\"}", 404));
    /* Without a name it gets one; and it may begin at an earlier turn. */
    char body[256];
    snprintf(body, sizeof body, "{\"turn\":\"%s\"}", json_str(first, "hearth.turn"));
    json_t *early = call("POST", SESSIONS "/trunk/fork", body, 200);
    assert_true(strncmp(json_str(early, "id"), "conv_", 5) == 0);
    assert_int_equal(json_num(early, "turns"), 1);
    snprintf(body, sizeof body, "{\"turn\":\"%s\"}", json_str(right, "hearth.turn"));
    json_decref(call("POST", SESSIONS "/trunk/fork", body, 404)); /* not of this session */
    json_decref(first);
    json_decref(fork);
    json_decref(left);
    json_decref(right);
    json_decref(early);
}

static void warming_computes_before_it_is_asked(void **state) {
    (void)state;
    json_t *first = chat("warm", SYSTEM "," USER("Count to twenty, slowly, in words, and mind the commas."));
    json_decref(chat(NULL, USER("Somebody else takes the lane, with a long question about nothing at all.")));
    json_t *warm = call("POST", SESSIONS "/warm/warm", NULL, 200);
    assert_string_equal(json_str(warm, "object"), "session.warm");
    assert_int_equal(json_num(warm, "tokens"), json_num(first, "usage.total_tokens"));
    json_t *next = chat("warm", USER("Go on."));
    const json_int_t grown = json_num(next, "usage.prompt_tokens") - json_num(first, "usage.total_tokens");
    assert_true(json_num(next, "hearth.computed") <= grown + 2);
    json_decref(call("POST", SESSIONS "/nobody/warm", NULL, 404));
    json_decref(first);
    json_decref(warm);
    json_decref(next);
    /* A request that asks for no tokens is the same by another name. */
    json_t *silent = call("POST", CHAT, "{\"max_tokens\":0,\"messages\":[" USER("Soon I will ask this.") "]}", 200);
    assert_string_equal(reply_of(silent), "");
    json_decref(silent);
}

static void sessions_are_listed_and_deleted(void **state) {
    (void)state;
    json_decref(call("POST", SESSIONS, "{\"name\":\"empty\",\"metadata\":{\"a\":\"b\"}}", 200));
    json_decref(call("POST", SESSIONS, "{\"name\":\"empty\"}", 409));
    json_t *made = call("POST", SESSIONS, NULL, 200);
    assert_true(strncmp(json_str(made, "id"), "conv_", 5) == 0);
    json_t *list = call("GET", SESSIONS "?limit=1000", NULL, 200);
    bool seen = false;
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(list, "data"), i, entry) {
        seen = seen || strcmp(json_str(entry, "id"), "empty") == 0;
    }
    assert_true(seen);
    json_t *first = chat("empty", USER("The first words."));
    assert_int_equal(turns_of("empty"), 1);
    json_t *gone = call("DELETE", SESSIONS "/empty", NULL, 200);
    assert_true(json_is_true(json_at(gone, "deleted")));
    json_decref(call("GET", SESSIONS "/empty", NULL, 404));
    json_decref(call("DELETE", SESSIONS "/empty", NULL, 404));
    json_decref(made);
    json_decref(list);
    json_decref(first);
    json_decref(gone);
}

/* A session with metadata of that many pairs, with keys and values of these lengths. */
static json_t *create(const char *name, size_t pairs, size_t key_len, size_t value_len, int want) {
    json_t *body = json_pack("{s:s, s:{}}", "name", name, "metadata");
    char key[80], value[600];
    memset(value, 'v', sizeof value);
    value[value_len] = '\0';
    for (size_t i = 0; i < pairs; i++) {
        snprintf(key, sizeof key, "%0*zu", (int)key_len, i);
        json_object_set_new(json_object_get(body, "metadata"), key, json_string(value));
    }
    char *text = json_dumps(body, JSON_COMPACT);
    json_t *answer = call("POST", SESSIONS, text, want);
    free(text);
    json_decref(body);
    return answer;
}

static void metadata_has_bounds(void **state) {
    (void)state;
    json_t *most = create("bounded", 16, 64, 512, 200);
    assert_int_equal(json_object_size(json_at(most, "metadata")), 16);
    json_decref(most);
    const size_t worse[][3] = {{17, 8, 8}, {1, 65, 8}, {1, 8, 513}};
    for (size_t i = 0; i < 3; i++) {
        json_t *error = create("unbounded", worse[i][0], worse[i][1], worse[i][2], 400);
        assert_string_equal(json_str(error, "error.param"), "metadata");
        json_decref(error);
    }
    json_decref(call("POST", SESSIONS, "{\"name\":\"unbounded\",\"metadata\":{\"a\":[]}}", 400));
    json_decref(call("GET", SESSIONS "/unbounded", NULL, 404));
    json_decref(call("DELETE", SESSIONS "/bounded", NULL, 200));
}

/* Pages are as long as was asked for, or as their metadata allows; together they are everything, once. */
static void lists_come_in_pages(void **state) {
    enum { SESSIONS_MADE = 150, BYTES = 16 * (64 + 512) };
    bool seen[SESSIONS_MADE] = {false};
    char name[32], path[128] = SESSIONS "?limit=1000";
    size_t found = 0, pages = 0;
    bool more = true;
    (void)state;
    for (int i = 0; i < SESSIONS_MADE; i++) {
        snprintf(name, sizeof name, "page-%d", i);
        json_decref(create(name, 16, 64, 512, 200));
    }
    for (; more; pages++) {
        json_t *list = call("GET", path, NULL, 200), *entry;
        size_t i;
        json_array_foreach(json_at(list, "data"), i, entry) {
            int number;
            if (sscanf(json_str(entry, "id"), "page-%d", &number) == 1) {
                assert_false(seen[number]);
                seen[number] = true;
                found++;
            }
        }
        assert_true(json_array_size(json_at(list, "data")) <= (1 << 20) / BYTES + 2);
        more = json_is_true(json_at(list, "has_more"));
        snprintf(path, sizeof path, SESSIONS "?limit=1000&after=%s", json_str(list, "last_id"));
        json_decref(list);
    }
    assert_true(pages > 1);
    assert_int_equal(found, SESSIONS_MADE);
    json_t *two = call("GET", SESSIONS "?limit=2", NULL, 200);
    assert_int_equal(json_array_size(json_at(two, "data")), 2);
    assert_true(json_is_true(json_at(two, "has_more")));
    assert_string_equal(json_str(two, "first_id"), json_str(two, "data.0.id"));
    assert_string_equal(json_str(two, "last_id"), json_str(two, "data.1.id"));
    json_decref(two);
    static const char *const wrong[] = {"limit=0", "limit=1001", "limit=two", "limit=2x", "after=nobody"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        snprintf(path, sizeof path, SESSIONS "?%s", wrong[i]);
        json_decref(call("GET", path, NULL, 400));
    }
}

static void the_header_names_it_too(void **state) {
    (void)state;
    struct response response =
        http_call(stage.port, "POST", CHAT, "x-session-id: by header\r\n",
                  "{\"temperature\":0,\"max_tokens\":8,\"messages\":[" USER("Hello there.") "]}");
    assert_int_equal(response.status, 200);
    json_t *answer = json_loads((const char *)response.body.data, 0, NULL);
    assert_string_equal(json_str(answer, "hearth.session"), "by header");
    json_decref(answer);
    response_finish(&response);
    assert_int_equal(turns_of("by%20header"), 1);
}

static void names_may_hold_anything(void **state) {
    (void)state;
    json_decref(chat("a/b fork/c", USER("Hello there.")));
    assert_int_equal(turns_of("a%2Fb%20fork%2Fc"), 1);
    json_t *fork = call("POST", SESSIONS "/a%2Fb%20fork%2Fc/fork", "{\"name\":\"a/b/fork\"}", 200);
    assert_string_equal(json_str(fork, "id"), "a/b/fork");
    json_decref(call("POST", SESSIONS "/a%2Fb%2Ffork/warm", NULL, 200));
    json_decref(call("DELETE", SESSIONS "/a%2Fb%2Ffork", NULL, 200));
    json_decref(call("DELETE", SESSIONS "/a/b/fork", NULL, 404));
    json_decref(fork);
}

static void streams_end_when_the_turn_is_kept(void **state) {
    (void)state;
    struct response response =
        http_call(stage.port, "POST", CHAT, NULL,
                  "{\"session_id\":\"stream\",\"stream\":true,\"max_tokens\":8,\"stream_options\":{"
                  "\"include_usage\":true},\"messages\":[" USER("Stream it.") "]}");
    json_t *events = sse_events((const char *)response.body.data);
    const size_t count = json_array_size(events);
    assert_true(count >= 4);
    assert_string_equal(json_string_value(json_array_get(events, count - 1)), "[DONE]");
    json_t *last = json_array_get(events, count - 3);
    assert_true(json_str(last, "choices.0.finish_reason")[0] != '\0');
    assert_string_equal(json_str(last, "hearth.session"), "stream");
    assert_true(json_str(last, "hearth.turn")[0] != '\0');
    assert_int_equal(turns_of("stream"), 1);
    json_decref(events);
    response_finish(&response);
}

static void what_is_wrong_is_said(void **state) {
    (void)state;
    json_t *error = call("POST", CHAT, "{\"session_id\":7,\"messages\":[" USER("x") "]}", 400);
    assert_string_equal(json_str(error, "error.param"), "session_id");
    json_decref(error);
    json_decref(call("POST", CHAT, "{\"session_id\":\"\",\"messages\":[" USER("x") "]}", 400));
    json_decref(call("POST", CHAT, "{\"session_id\":\"a\\u0007b\",\"messages\":[" USER("x") "]}", 400));
    json_decref(call("POST", CHAT, "{\"session_id\":\"a\\u0085b\",\"messages\":[" USER("x") "]}", 400));
    struct response response = http_call(stage.port, "POST", CHAT, "x-session-id: \xFF\r\n",
                                         "{\"max_tokens\":2,\"messages\":[" USER("x") "]}");
    assert_int_equal(response.status, 400);
    response_finish(&response);
    json_decref(call("POST", CHAT, "{\"session_id\":\"two\",\"n\":2,\"messages\":[" USER("x") "]}", 400));
    json_decref(call("POST", SESSIONS, "{\"name\":[]}", 400));
    json_decref(call("GET", SESSIONS "/two", NULL, 404));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_new_is_sent),
        cmocka_unit_test(the_whole_history_may_be_sent),
        cmocka_unit_test(an_edit_is_a_fork),
        cmocka_unit_test(side_questions_leave_the_session_alone),
        cmocka_unit_test(a_fork_shares_what_was),
        cmocka_unit_test(warming_computes_before_it_is_asked),
        cmocka_unit_test(sessions_are_listed_and_deleted),
        cmocka_unit_test(metadata_has_bounds),
        cmocka_unit_test(lists_come_in_pages),
        cmocka_unit_test(the_header_names_it_too),
        cmocka_unit_test(names_may_hold_anything),
        cmocka_unit_test(streams_end_when_the_turn_is_kept),
        cmocka_unit_test(what_is_wrong_is_said),
    };
    return cmocka_run_group_tests_name("sessions", tests, setup, teardown);
}
