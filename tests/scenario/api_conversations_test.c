/* Conversations that live in the server, over OpenAI's API: too long ones, shortened ones, responses in the background,
 * what is deleted, and Conversations with their items. */
#include "api/stored_turns.h"
#include "responses_stage.h"
#include "session/transcript.h"

#include <unistd.h>

static char *long_input(size_t turns, const char *more) {
    struct hearth_buf text = {0};
    assert_true(hearth_buf_text(&text, "{\"input\":["));
    for (size_t i = 0; i < turns; i++) {
        assert_true(hearth_buf_printf(&text, "{\"role\":\"user\",\"content\":\"question %zu", i));
        for (int k = 0; k < 60; k++) {
            assert_true(hearth_buf_text(&text, " word"));
        }
        assert_true(hearth_buf_text(&text, "\"},{\"role\":\"assistant\",\"content\":\"answer\"},"));
    }
    assert_true(hearth_buf_printf(&text, "{\"role\":\"user\",\"content\":\"say\"}]%s}", more) &&
                hearth_buf_append(&text, "", 1));
    return (char *)hearth_buf_take(&text);
}

static void long_conversations_are_truncated(void **state) {
    json_int_t gone = 0;
    (void)state;
    char *body = long_input(60, "");
    json_t *answer = call("POST", RESPONSES, body, 400);
    assert_string_equal(json_str(answer, "error.code"), "context_length_exceeded");
    assert_string_equal(json_str(answer, "error.param"), "input");
    json_decref(answer);
    free(body);
    for (size_t turns = 60; turns < 64; turns++) { /* the same goes again and again, and so the rest is known */
        body = long_input(turns, ",\"truncation\":\"auto\",\"instructions\":\"Be kind.\"");
        answer = call("POST", RESPONSES, body, 200);
        assert_true(json_num(answer, "hearth.truncated.messages") > 0);
        assert_int_equal(json_num(answer, "hearth.truncated.messages") % 2, 0); /* up to a user's message */
        if (turns > 60) {
            assert_int_equal(json_num(answer, "hearth.truncated.messages"), gone);
            assert_true(json_num(answer, "hearth.computed") < 200);
        }
        gone = json_num(answer, "hearth.truncated.messages");
        assert_true(json_num(answer, "usage.input_tokens") < 4096);
        json_decref(answer);
        free(body);
    }
    body = long_input(0, ",\"truncation\":\"auto\"");
    answer = call("POST", RESPONSES, body, 200);
    assert_null(json_at(answer, "hearth.truncated"));
    json_decref(answer);
    free(body);
}

static void conversations_are_compacted(void **state) {
    (void)state;
    json_t *made = call("POST", RESPONSES, "{\"input\":\"say that I am Ada\",\"instructions\":\"Be kind.\"}", 200);
    json_t *window = call("POST", RESPONSES "/compact",
                          with("{\"model\":\"m\",\"previous_response_id\":\"%s\"}", json_str(made, "id")), 200);
    assert_string_equal(json_str(window, "object"), "response.compaction");
    assert_string_equal(json_str(window, "output.0.content.0.text"), "say that I am Ada");
    assert_string_equal(json_str(window, "output.1.type"), "compaction");
    assert_int_equal(json_array_size(json_at(window, "output")), 2);
    assert_true(json_num(window, "usage.input_tokens_details.cached_tokens") > 0);
    json_t *items = json_deep_copy(json_at(window, "output"));
    json_array_append_new(items, json_pack("{s:s, s:s}", "role", "user", "content", "say"));
    json_t *body = json_pack("{s:o}", "input", items);
    char *text = json_dumps(body, 0);
    json_t *next = call("POST", RESPONSES, text, 200);
    assert_string_equal(json_str(next, "output.0.content.0.text"), "Well said.");
    free(text);
    json_object_set_new(json_array_get(items, 1), "encrypted_content", json_string("AAAA"));
    text = json_dumps(body, 0);
    json_t *wrong = call("POST", RESPONSES, text, 200); /* not ours: the conversation goes on */
    assert_non_null(strstr(json_str(wrong, "hearth.warnings.0"), "a summary that another server has encrypted"));
    free(text);
    json_decref(wrong);
    json_decref(next);
    json_decref(body);
    json_decref(window);
    json_decref(made);
    json_decref(call("POST", RESPONSES "/compact", "{\"model\":\"m\"}", 400));
}

/* A model may think until its limit ends it: what it has thought is the summary then, since there is no other. */
static void a_summary_is_not_empty(void **state) {
    (void)state;
    json_t *window = call("POST", RESPONSES "/compact",
                          "{\"model\":\"m\",\"instructions\":\"Think long.\",\"input\":\"say that I am Ada\"}", 200);
    assert_string_equal(json_str(window, "output.1.type"), "compaction");
    assert_true(strlen(json_str(window, "output.1.encrypted_content")) > 200);
    json_decref(window);
}

/* A reply is stored also while another one's turn waits to be: each may wait seconds for a database server. */
static void replies_are_stored_side_by_side(void **state) {
    (void)state;
    pthread_mutex_lock(&stage.api->ends_mutex);
    json_t *made = call("POST", RESPONSES, "{\"input\":\"say it\"}", 200);
    pthread_mutex_unlock(&stage.api->ends_mutex);
    json_decref(get(RESPONSES "/%s", json_str(made, "id"), 200));
    json_decref(made);
}

/* ---- what goes on alone ---- */

static json_t *wait_for(const char *id) {
    for (int i = 0; i < 3000; i++) {
        json_t *now = get(RESPONSES "/%s", id, 200);
        if (strcmp(json_str(now, "status"), "in_progress") != 0) {
            return now;
        }
        json_decref(now);
        usleep(10000);
    }
    fail_msg("%s goes on for ever", id);
    return NULL;
}

static void background_responses_are_polled(void **state) {
    (void)state;
    json_t *made = call("POST", RESPONSES, "{\"input\":\"say it\",\"background\":true}", 200);
    assert_string_equal(json_str(made, "status"), "queued");
    assert_int_equal(json_array_size(json_at(made, "output")), 0);
    json_t *done = wait_for(json_str(made, "id"));
    assert_string_equal(json_str(done, "status"), "completed");
    assert_string_equal(json_str(done, "output.0.content.0.text"), "Well said.");
    assert_true(json_num(done, "usage.output_tokens") > 0);
    json_decref(done);
    json_decref(made);
}

static void background_responses_are_cancelled(void **state) {
    char path[128];
    (void)state;
    json_t *made = call("POST", RESPONSES, "{\"input\":\"go on\",\"background\":true,\"ignore_eos\":true}", 200);
    snprintf(path, sizeof path, RESPONSES "/%s/cancel", json_str(made, "id"));
    json_t *cancelled = call("POST", path, NULL, 200);
    json_t *now = get(RESPONSES "/%s", json_str(made, "id"), 200);
    assert_string_equal(json_str(now, "status"), json_str(cancelled, "status")); /* never behind what was said */
    json_decref(now);
    json_decref(cancelled);
    json_decref(made);
    made = call("POST", RESPONSES, "{\"input\":\"say\"}", 200);
    snprintf(path, sizeof path, RESPONSES "/%s/cancel", json_str(made, "id"));
    json_decref(call("POST", path, NULL, 400)); /* one that was waited for */
    json_decref(made);
}

/* Nobody waits for it, so the server's loop has ended before it has. */
static void what_runs_alone_is_kept_at_the_end(void **state) {
    const struct hearth_session_store_params memory = {.path = NULL};
    struct stage_options options;
    struct stage other;
    struct hearth_errmsg msg;
    struct hearth_turn turn = {0};
    struct hearth_digest id;
    int status, index;
    (void)state;
    stage_options_default(&options);
    options.chat_template = template_text;
    options.sim.real_time = true; /* the reply would take minutes */
    assert_int_equal(hearth_session_store_create(&memory, &options.api.store, &msg), HEARTH_OK);
    stage_open(&other, &options);
    json_t *made =
        stage_call(&other, "POST", RESPONSES, "{\"input\":\"go on\",\"background\":true,\"ignore_eos\":true}", &status);
    assert_int_equal(status, 200);
    assert_true(hearth_api_id_parse(json_str(made, "id"), &id, &index));
    stage_close(&other);
    assert_int_equal(hearth_turn_get(options.api.store, (struct hearth_digest){0, 0}, id, &turn), HEARTH_OK);
    assert_int_equal(turn.status, HEARTH_TURN_FAILED);
    hearth_turn_finish(&turn);
    hearth_session_store_destroy(options.api.store);
    json_decref(made);
}

/* Its last word comes after the client has heard that it is cancelled, and deleted it. */
static void a_deleted_response_stays_away(void **state) {
    char path[128];
    (void)state;
    for (int i = 0; i < 20; i++) {
        json_t *made = call("POST", RESPONSES, "{\"input\":\"go on\",\"background\":true,\"ignore_eos\":true}", 200);
        snprintf(path, sizeof path, RESPONSES "/%s/cancel", json_str(made, "id"));
        json_decref(call("POST", path, NULL, 200));
        *strrchr(path, '/') = '\0';
        json_decref(call("DELETE", path, NULL, 200));
        usleep(i % 4 == 0 ? 50000 : 0);
        json_decref(call("GET", path, NULL, 404));
        json_decref(made);
    }
    json_decref(call("POST", RESPONSES, "{\"input\":\"go\",\"background\":true,\"max_output_tokens\":0}", 400));
}

static void responses_are_deleted(void **state) {
    char path[128];
    (void)state;
    json_t *made = call("POST", RESPONSES, "{\"input\":\"say it\"}", 200);
    json_t *next =
        call("POST", RESPONSES, with("{\"input\":\"say\",\"previous_response_id\":\"%s\"}", json_str(made, "id")), 200);
    snprintf(path, sizeof path, RESPONSES "/%s", json_str(made, "id"));
    json_t *gone = call("DELETE", path, NULL, 200);
    assert_true(json_is_true(json_at(gone, "deleted")));
    json_decref(gone);
    json_decref(call("DELETE", path, NULL, 404));
    json_decref(call("GET", path, NULL, 404));
    json_decref(call("POST", RESPONSES,
                     with("{\"input\":\"say\",\"previous_response_id\":\"%s\"}", json_str(made, "id")), 400));
    /* what went on from it still knows it */
    gone =
        call("POST", RESPONSES, with("{\"input\":\"say\",\"previous_response_id\":\"%s\"}", json_str(next, "id")), 200);
    assert_true(json_num(gone, "usage.input_tokens") > json_num(next, "usage.input_tokens"));
    json_decref(gone);
    json_decref(next);
    json_decref(made);
}

/* A crash behind the end of a forget brings no text back. */
static void texts_are_gone_before_their_forget(void **state) {
    char directory[] = "/tmp/hearth-texts-XXXXXX", path[128], command[64];
    struct hearth_session_store_stats stats = {.forgets = 1};
    struct hearth_transcripts_stats texts;
    struct stage_options options;
    struct stage other;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/transcripts.db", directory);
    stage_options_default(&options);
    options.chat_template = template_text;
    options.script = script;
    options.api.transcripts_path = path;
    stage_open(&other, &options);
    json_t *made = stage_want(&other, "POST", RESPONSES, "{\"input\":\"say it\"}", 200);
    assert_true(hearth_transcripts_flush(other.api->transcripts, 60000000));
    snprintf(path, sizeof path, RESPONSES "/%s", json_str(made, "id"));
    json_decref(stage_want(&other, "DELETE", path, NULL, 200));
    for (int i = 0; i < 30000 && stats.forgets > 0; i++) {
        usleep(1000);
        assert_int_equal(hearth_session_store_stats(other.api->store, &stats), HEARTH_OK);
    }
    assert_int_equal(stats.forgets, 0);
    hearth_transcripts_stats(other.api->transcripts, &texts);
    assert_int_equal(texts.archive.queued_bytes, 0);
    stage_close(&other);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
    json_decref(made);
}

/* ---- conversations ---- */

static void conversations_hold_items(void **state) {
    char path[256];
    (void)state;
    json_t *made = call("POST", "/v1/conversations",
                        "{\"items\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}],"
                        "\"metadata\":{\"k\":\"v\"}}",
                        200);
    const char *id = json_str(made, "id");
    json_t *reply = call("POST", RESPONSES, with("{\"input\":\"say\",\"conversation\":\"%s\"}", id), 200);
    assert_string_equal(json_str(reply, "conversation.id"), id);
    json_t *all = get("/v1/conversations/%s/items?order=asc", id, 200);
    assert_int_equal(json_array_size(json_at(all, "data")), 4);
    assert_string_equal(json_str(all, "data.3.id"), json_str(reply, "output.0.id"));
    /* pages of one are the same list */
    struct hearth_buf after = {0};
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "/v1/conversations/%s/items?limit=1%s%s", id, i > 0 ? "&after=" : "",
                 i > 0 ? (const char *)after.data : "");
        json_t *page = call("GET", path, NULL, 200);
        assert_string_equal(json_str(page, "data.0.id"), json_str(json_array_get(json_at(all, "data"), 3 - i), "id"));
        assert_int_equal(json_is_true(json_at(page, "has_more")), i < 3);
        after.len = 0;
        assert_true(hearth_buf_text(&after, json_str(page, "last_id")));
        json_decref(page);
    }
    hearth_buf_finish(&after);
    /* one that is deleted is gone from the list, the others keep their ids, and the model sees it no more */
    snprintf(path, sizeof path, "/v1/conversations/%s/items/%s", id, json_str(all, "data.0.id"));
    json_decref(call("GET", path, NULL, 200));
    json_decref(call("DELETE", path, NULL, 200));
    json_decref(call("GET", path, NULL, 404));
    json_decref(call("DELETE", path, NULL, 404));
    json_t *less = get("/v1/conversations/%s/items?order=asc", id, 200);
    assert_int_equal(json_array_size(json_at(less, "data")), 3);
    assert_string_equal(json_str(less, "data.0.id"), json_str(all, "data.1.id"));
    json_t *with_b =
        call("POST", RESPONSES "/input_tokens", with("{\"input\":\"say\",\"conversation\":\"%s\"}", id), 200);
    json_t *plain =
        call("POST", RESPONSES "/input_tokens",
             "{\"input\":[{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"say\"},"
             "{\"role\":\"assistant\",\"content\":\"Well said.\"},{\"role\":\"user\",\"content\":\"say\"}]}",
             200);
    assert_int_equal(json_num(with_b, "input_tokens"), json_num(plain, "input_tokens"));
    json_decref(with_b);
    json_decref(plain);
    json_decref(less);
    json_decref(all);
    json_decref(reply);
    json_decref(made);
}

/* A response that is deleted stays as a part of the conversation that went on from it: its tokens of an item go with
 * that item, and its own items can be deleted. */
static void items_go_from_what_is_hidden(void **state) {
    char path[256];
    (void)state;
    json_t *made =
        call("POST", "/v1/conversations",
             "{\"items\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]}", 200);
    const char *id = json_str(made, "id");
    json_t *reply = call("POST", RESPONSES, with("{\"input\":\"say\",\"conversation\":\"%s\"}", id), 200);
    json_decref(call("POST", RESPONSES, with("{\"input\":\"say\",\"conversation\":\"%s\"}", id), 200));
    json_t *all = get("/v1/conversations/%s/items?order=asc", id, 200);
    assert_int_equal(json_array_size(json_at(all, "data")), 6);
    snprintf(path, sizeof path, RESPONSES "/%s", json_str(reply, "id"));
    json_decref(call("DELETE", path, NULL, 200));
    snprintf(path, sizeof path, "/v1/conversations/%s/items/%s", id, json_str(all, "data.0.id"));
    json_decref(call("DELETE", path, NULL, 200));
    json_t *less =
        call("POST", RESPONSES "/input_tokens", with("{\"input\":\"say\",\"conversation\":\"%s\"}", id), 200);
    json_t *plain =
        call("POST", RESPONSES "/input_tokens",
             "{\"input\":[{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"say\"},"
             "{\"role\":\"assistant\",\"content\":\"Well said.\"},{\"role\":\"user\",\"content\":\"say\"},"
             "{\"role\":\"assistant\",\"content\":\"Well said.\"},{\"role\":\"user\",\"content\":\"say\"}]}",
             200);
    assert_int_equal(json_num(less, "input_tokens"), json_num(plain, "input_tokens"));
    snprintf(path, sizeof path, "/v1/conversations/%s/items/%s", id, json_str(all, "data.2.id"));
    json_decref(call("DELETE", path, NULL, 200)); /* of the hidden one */
    json_decref(call("GET", path, NULL, 404));
    json_decref(plain);
    json_decref(less);
    json_decref(all);
    json_decref(reply);
    json_decref(made);
}

static void conversations_are_looked_after(void **state) {
    char path[256];
    (void)state;
    json_t *made = call("POST", "/v1/conversations", NULL, 200);
    snprintf(path, sizeof path, "/v1/conversations/%s", json_str(made, "id"));
    assert_int_equal(json_object_size(json_at(made, "metadata")), 0);
    json_t *changed = call("POST", path, "{\"metadata\":{\"a\":\"b\"}}", 200);
    assert_string_equal(json_str(changed, "metadata.a"), "b");
    json_decref(changed);
    json_decref(call("POST", path, "{\"metadata\":{\"a\":7}}", 400));
    json_decref(call("POST", path, "{}", 400));
    snprintf(path, sizeof path, "/v1/conversations/%s/items", json_str(made, "id"));
    json_t *empty = call("GET", path, NULL, 200);
    assert_int_equal(json_array_size(json_at(empty, "data")), 0);
    json_decref(empty);
    json_decref(call("POST", path, "{}", 400));
    json_decref(call("POST", path, "{\"items\":[{\"type\":7}]}", 400));
    json_decref(
        call("POST", path, "{\"items\":[{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"\"}]}", 400));
    json_t *added = call("POST", path,
                         "{\"items\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":"
                         "\"{}\"}]}",
                         200);
    assert_string_equal(json_str(added, "first_id"), json_str(added, "data.0.id"));
    json_decref(added); /* and its result may come later */
    json_decref(
        call("POST", path, "{\"items\":[{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"\"}]}", 200));
    snprintf(path, sizeof path, "/v1/conversations/%s/items?limit=101", json_str(made, "id"));
    json_decref(call("GET", path, NULL, 400));
    snprintf(path, sizeof path, "/v1/conversations/%s/items?after=msg_1", json_str(made, "id"));
    json_decref(call("GET", path, NULL, 400));
    snprintf(path, sizeof path, "/v1/conversations/%s", json_str(made, "id"));
    json_decref(call("DELETE", path, NULL, 200));
    json_decref(call("DELETE", path, NULL, 404));
    json_decref(call("GET", path, NULL, 404));
    json_decref(made);
}

/* A short request must not become one of any length. */
static void references_have_a_limit(void **state) {
    struct hearth_buf text = {0};
    const size_t item_bytes = 1 << 20;
    (void)state;
    assert_true(hearth_buf_text(&text, "{\"items\":[{\"role\":\"user\",\"content\":\""));
    for (size_t i = 0; i < item_bytes / 8; i++) {
        assert_true(hearth_buf_text(&text, "eight by"));
    }
    assert_true(hearth_buf_text(&text, "\"}]}") && hearth_buf_append(&text, "", 1));
    json_t *made = call("POST", "/v1/conversations", (const char *)text.data, 200);
    json_t *items = get("/v1/conversations/%s/items", json_str(made, "id"), 200);
    text.len = 0;
    assert_true(hearth_buf_text(&text, "{\"input\":["));
    for (size_t i = 0; i < 70; i++) {
        assert_true(hearth_buf_printf(&text, "%s{\"type\":\"item_reference\",\"id\":\"%s\"}", i > 0 ? "," : "",
                                      json_str(items, "data.0.id")));
    }
    assert_true(hearth_buf_text(&text, "]}") && hearth_buf_append(&text, "", 1));
    json_t *error = call("POST", RESPONSES, (const char *)text.data, 400);
    assert_string_equal(json_str(error, "error.param"), "input");
    assert_string_equal(json_str(error, "error.code"), "invalid_value");
    json_decref(error);
    json_decref(items);
    json_decref(made);
    hearth_buf_finish(&text);
}

/* What may be in a database that cannot be used now is not told to be gone. */
static void what_is_away_is_not_missing(void **state) {
    const struct hearth_session_store_params memory = {.path = NULL, .is_fallback = true};
    struct stage_options options;
    struct stage other;
    struct hearth_errmsg msg;
    (void)state;
    stage_options_default(&options);
    options.chat_template = template_text;
    assert_int_equal(hearth_session_store_create(&memory, &options.api.store, &msg), HEARTH_OK);
    stage_open(&other, &options);
    json_t *error =
        stage_want(&other, "POST", RESPONSES,
                   "{\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_000000000000000000000000000000010000\"},"
                   "{\"role\":\"user\",\"content\":\"say\"}]}",
                   503);
    assert_string_equal(json_str(error, "error.code"), "session_store_unavailable");
    assert_string_equal(json_str(error, "error.param"), "input[0].id");
    json_decref(error);
    stage_close(&other);
    hearth_session_store_destroy(options.api.store);
}

static void what_was_stored_can_be_read_again(void **state) {
    char path[128], body[8192];
    size_t len = 0;
    (void)state;
    json_t *made = call("POST", "/v1/conversations", "{\"metadata\":{\"a\":\"b\\u0000c\"}}", 200);
    assert_int_equal(json_string_length(json_at(made, "metadata.a")), 3);
    json_decref(get("/v1/sessions/%s", json_str(made, "id"), 200));
    json_decref(made);
    /* As deep as it may be, and deeper: what is stored is in an object more. */
    static const struct {
        size_t levels;
        int status;
    } tries[] = {{1000, 200}, {1500, 400}, {2040, 400}};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        len = (size_t)snprintf(body, sizeof body, "{\"input\":\"say\",\"prompt_cache_options\":{\"x\":");
        memset(body + len, '[', tries[i].levels);
        memset(body + len + tries[i].levels, ']', tries[i].levels);
        snprintf(body + len + 2 * tries[i].levels, sizeof body - len - 2 * tries[i].levels, "}}");
        made = call("POST", RESPONSES, body, tries[i].status);
        if (tries[i].status == 200) {
            snprintf(path, sizeof path, RESPONSES "/%s", json_str(made, "id"));
            json_t *again = call("GET", path, NULL, 200);
            assert_true(json_equal(again, made));
            json_decref(again);
        }
        json_decref(made);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_conversations_are_truncated),
        cmocka_unit_test(conversations_are_compacted),
        cmocka_unit_test(a_summary_is_not_empty),
        cmocka_unit_test(replies_are_stored_side_by_side), /* before responses in the background, which would wait */
        cmocka_unit_test(background_responses_are_polled),
        cmocka_unit_test(background_responses_are_cancelled),
        cmocka_unit_test(what_runs_alone_is_kept_at_the_end),
        cmocka_unit_test(a_deleted_response_stays_away),
        cmocka_unit_test(responses_are_deleted),
        cmocka_unit_test(texts_are_gone_before_their_forget),
        cmocka_unit_test(conversations_hold_items),
        cmocka_unit_test(items_go_from_what_is_hidden),
        cmocka_unit_test(conversations_are_looked_after),
        cmocka_unit_test(references_have_a_limit),
        cmocka_unit_test(what_is_away_is_not_missing),
        cmocka_unit_test(what_was_stored_can_be_read_again),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
