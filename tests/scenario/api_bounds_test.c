/* What a request may ask for before a reply: each limit of api/limits.h through each dialect that it is for. One more
 * than is allowed is refused in the dialect's own form by an error that names the limit and the number; as much as is
 * allowed is not. */
#include "api/limits.h"
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const limit_names[] = {
#define X(constant, name, most, what) #name,
    HEARTH_LIMIT_TABLE(X)
#undef X
};

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    stage_open(&stage, &options);
    return 0;
}

/* head, so many times unit with commas between, tail. A '#' in the unit is its number. Caller frees. */
static char *body_of(const char *head, const char *unit, size_t count, const char *tail) {
    struct hearth_buf body = {0};
    const char *number = strchr(unit, '#');
    assert_true(hearth_buf_text(&body, head));
    for (size_t i = 0; i < count; i++) {
        assert_true(i == 0 || hearth_buf_text(&body, ","));
        if (number == NULL) {
            assert_true(hearth_buf_text(&body, unit));
        } else {
            assert_true(hearth_buf_printf(&body, "%.*s%zu%s", (int)(number - unit), unit, i, number + 1));
        }
    }
    assert_true(hearth_buf_text(&body, tail) && hearth_buf_append(&body, "", 1));
    return (char *)hearth_buf_take(&body);
}

#define CHAT "/v1/chat/completions"
#define HI "{\"role\":\"user\",\"content\":\"hi\"}"
#define ASK "\"max_tokens\":1,\"messages\":[" HI "]"
#define EMPTY "{\"role\":\"user\",\"content\":\"\"}"
#define TEXT "{\"type\":\"text\",\"text\":\"\"}"
#define CALL "{\"id\":\"c#\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"
#define SCHEMA_HEAD "{" ASK ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":"
#define TOOL_HEAD "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
#define KWARGS_HEAD "{" ASK ",\"chat_template_kwargs\":"
#define DEFINITION_HEAD                                                                                               \
    "{\"max_tokens\":1,\"messages\":[" HI ",{\"role\":\"system\",\"content\":[{\"type\":\"tool_addition\",\"tool\":{" \
    "\"type\":\"tool_definition\",\"definition\":{\"name\":\"f\",\"input_schema\":"
#define IN_MESSAGE "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":["

/* Bodies: what comes around the units, and how many of the limit's number come with it. */
static const struct {
    enum hearth_limit limit;
    const char *path, *head, *unit, *tail;
    size_t beside;
} cases[] = {
    {HEARTH_LIMIT_MESSAGES, CHAT, "{\"max_tokens\":1,\"messages\":[" HI ",", EMPTY, "]}", 1},
    {HEARTH_LIMIT_MESSAGES, CHAT, "{\"max_tokens\":1,\"mess\\u0061ges\":[" HI ",", EMPTY, "]}", 1},
    {HEARTH_LIMIT_MESSAGES, "/apply-template", "{\"messages\":[" HI ",", EMPTY, "]}", 1},
    {HEARTH_LIMIT_MESSAGES, "/v1/messages", "{\"max_tokens\":1,\"messages\":[" HI ",", EMPTY, "]}", 1},
    {HEARTH_LIMIT_MESSAGES, "/v1/messages/count_tokens", "{\"messages\":[" HI ",", EMPTY, "]}", 1},
    {HEARTH_LIMIT_MESSAGES, "/v1/responses", "{\"max_output_tokens\":1,\"input\":[" HI ",", EMPTY, "]}", 1},
    {HEARTH_LIMIT_MESSAGES, "/v1/conversations", "{\"items\":[", "{\"role\":\"user\",\"content\":\"a\"}", "]}", 0},
    {HEARTH_LIMIT_PARTS, CHAT, IN_MESSAGE, TEXT, "]}]}", 0},
    {HEARTH_LIMIT_PARTS, "/v1/messages", IN_MESSAGE, TEXT, "]}]}", 0},
    {HEARTH_LIMIT_PARTS, "/v1/messages", "{\"max_tokens\":1,\"messages\":[" HI "],\"system\":[", TEXT, "]}", 0},
    {HEARTH_LIMIT_PARTS, "/v1/messages", IN_MESSAGE "{\"type\":\"tool_result\",\"tool_use_id\":\"x\",\"content\":[",
     TEXT, "]}]}]}", 1},
    {HEARTH_LIMIT_PARTS, "/v1/responses", "{\"max_output_tokens\":1,\"input\":[{\"role\":\"user\",\"content\":[",
     "{\"type\":\"input_text\",\"text\":\"\"}", "]}]}", 0},
    {HEARTH_LIMIT_CALLS, CHAT, "{\"max_tokens\":1,\"messages\":[" HI ",{\"role\":\"assistant\",\"tool_calls\":[", CALL,
     "]}," HI "]}", 0},
    {HEARTH_LIMIT_TOOLS, CHAT, "{" ASK ",\"tools\":[",
     "{\"type\":\"function\",\"function\":{\"name\":\"f#\",\"parameters\":{\"type\":\"object\"}}}", "]}", 0},
    {HEARTH_LIMIT_TOOLS, "/v1/messages", "{" ASK ",\"tools\":[",
     "{\"name\":\"f#\",\"input_schema\":{\"type\":\"object\"}}", "]}", 0},
    {HEARTH_LIMIT_TOOLS, CHAT,
     TOOL_HEAD "{\"type\":\"object\"}}}],\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{"
               "\"mode\":\"auto\",\"tools\":[",
     "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "]}}}", 0},
    {HEARTH_LIMIT_MEMBERS, CHAT, KWARGS_HEAD "{", "\"k#\":1", "}}", 0},
    {HEARTH_LIMIT_MEMBERS, CHAT, KWARGS_HEAD "{\"enable_\\u0074hinking\":false,", "\"k#\":1", "}}", 1},
    {HEARTH_LIMIT_MEMBERS, CHAT, TOOL_HEAD "{\"type\":\"object\",\"x\":{", "\"k#\":1", "}}}}]}", 0},
    {HEARTH_LIMIT_MEMBERS, "/v1/messages", "{" ASK ",\"tools\":[{\"name\":\"f\",\"input_schema\":{\"x\":{", "\"k#\":1",
     "}}}]}", 0},
    {HEARTH_LIMIT_MEMBERS, "/v1/responses",
     "{\"input\":\"hi\",\"max_output_tokens\":1,\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\","
     "\"schema\":{\"type\":\"object\",\"x\":{",
     "\"k#\":1", "}}}}}", 0},
    {HEARTH_LIMIT_TEMPLATE_VALUES, CHAT, KWARGS_HEAD "{\"a\":[", "1", "]}}", 2},
    {HEARTH_LIMIT_ENUM_VALUES, CHAT, SCHEMA_HEAD "{\"enum\":[", "\"v#\"", "]}}}}", 0},
    {HEARTH_LIMIT_ENUM_VALUES, CHAT, SCHEMA_HEAD "{\"\\u0065num\":[", "#", "]}}}}", 0},
    {HEARTH_LIMIT_ENUM_VALUES, CHAT, TOOL_HEAD "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[", "\"v#\"",
     "]}}}}}]}", 0},
    {HEARTH_LIMIT_ENUM_VALUES, CHAT, TOOL_HEAD "{\"type\":\"object\",\"properties\":{\"tools\":{\"enum\":[", "\"v#\"",
     "]}}}}}]}", 0},
    {HEARTH_LIMIT_ENUM_VALUES, "/v1/messages", DEFINITION_HEAD "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[",
     "\"v#\"", "]}}}}}}]}]}", 0},
    {HEARTH_LIMIT_ENUM_VALUES, CHAT, "{" ASK ",\"guided_json\":{\"enum\":[", "#", "]}}", 0},
    {HEARTH_LIMIT_ENUM_VALUES, CHAT, "{" ASK ",\"structured_outputs\":{\"json\":{\"enum\":[", "#", "]}}}", 0},
    {HEARTH_LIMIT_SCHEMA_VALUES, CHAT, TOOL_HEAD "{\"x\":[", "true", "]}}}]}", 6},
    {HEARTH_LIMIT_LEVELS, CHAT, "{" ASK ",\"x\":", "[", "1", 1},
};

#undef CALL

/* One body of a case with so many units more than the limit's number. LEVELS is closed, and has no commas. */
static char *case_body(size_t i, size_t more) {
    const size_t count = hearth_limit_most(cases[i].limit) - cases[i].beside + more;
    if (cases[i].limit != HEARTH_LIMIT_LEVELS) {
        return body_of(cases[i].head, cases[i].unit, count, cases[i].tail);
    }
    struct hearth_buf body = {0};
    assert_true(hearth_buf_text(&body, cases[i].head));
    for (size_t k = 0; k < 2 * count; k++) {
        assert_true(hearth_buf_text(&body, k < count ? "[" : "]"));
    }
    assert_true(hearth_buf_text(&body, "}") && hearth_buf_append(&body, "", 1));
    return (char *)hearth_buf_take(&body);
}

static void one_more_than_a_limit_is_refused_by_its_name(void **state) {
    bool tried[HEARTH_LIMITS] = {false};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const enum hearth_limit limit = cases[i].limit;
        char name[64], most[64], found[64], *body = case_body(i, 1);
        json_t *answer = stage_want(&stage, "POST", cases[i].path, body, 400);
        const char *message = json_str(answer, "error.message");
        snprintf(name, sizeof name, "(limit: %s)", limit_names[limit]);
        snprintf(most, sizeof most, "at most %zu ", hearth_limit_most(limit));
        snprintf(found, sizeof found, " %zu ", hearth_limit_most(limit) + 1);
        if (strstr(message, name) == NULL || strstr(message, most) == NULL || strstr(message, found) == NULL) {
            fail_msg("case %zu: \"%s\" does not say %s, %s and %s", i, message, name, most, found);
        }
        assert_string_equal(json_str(answer, "error.type"), "invalid_request_error");
        assert_string_equal(json_str(answer, "type"), strncmp(cases[i].path, "/v1/messages", 12) == 0 ? "error" : "");
        json_decref(answer);
        free(body);
        tried[limit] = true;
    }
    for (size_t limit = 0; limit < HEARTH_LIMITS; limit++) {
        assert_true(tried[limit]);
    }
}

static void as_much_as_a_limit_is_no_matter_of_it(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status;
        char *body = case_body(i, 0);
        json_t *answer = stage_call(&stage, "POST", cases[i].path, body, &status);
        assert_non_null(answer);
        if (strstr(json_str(answer, "error.message"), "(limit: ") != NULL &&
            strstr(json_str(answer, "error.message"), "(limit: memory)") == NULL) {
            fail_msg("case %zu: %s", i, json_str(answer, "error.message"));
        }
        json_decref(answer);
        free(body);
    }
}

/* ---- memory ---- */

#define UNKNOWN(rest) "{" ASK ",\"x\":" rest

static void a_body_that_becomes_many_times_its_size_is_refused(void **state) {
    enum { MANY = 4000000 };
    static const struct {
        const char *path, *head, *unit, *tail;
    } bodies[] = {
        {CHAT, UNKNOWN("["), "[]", "]}"},
        {CHAT, UNKNOWN("["), "{}", "]}"},
        {CHAT, UNKNOWN("["), "\"\"", "]}"},
        {CHAT, UNKNOWN("["), "1", "]}"},
        {CHAT, UNKNOWN("{"), "\"#\":1", "}}"},
        {CHAT, "{" ASK ",", "\"x\":1", "}"},
        {CHAT,
         "{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"a\\\":[",
         "[]", "]}\"}}]}]}"},
        {CHAT, "{" ASK ",\"guided_json\":\"[", "[]", "]\"}"},
        {"/v1/messages", "{" ASK ",\"x\":[", "[]", "]}"},
        {"/v1/responses", "{\"input\":\"hi\",\"x\":[", "{}", "]}"},
        {"/v1/completions", "{\"prompt\":\"hi\",\"x\":[", "{}", "]}"},
        {"/detokenize", "{\"tokens\":[", "1", "]}"},
        {"/v1/sessions", "{\"x\":[", "1", "]}"},
        {"/lora-adapters", "[", "1", "]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        char *body = body_of(bodies[i].head, bodies[i].unit, MANY, bodies[i].tail);
        json_t *answer = stage_want(&stage, "POST", bodies[i].path, body, 413);
        assert_non_null(strstr(json_str(answer, "error.message"), "(limit: memory)"));
        json_decref(answer);
        free(body);
        /* The same in small is read. */
        int status;
        body = body_of(bodies[i].head, bodies[i].unit, 100, bodies[i].tail);
        answer = stage_call(&stage, "POST", bodies[i].path, body, &status);
        assert_non_null(answer);
        assert_int_not_equal(status, 413);
        json_decref(answer);
        free(body);
    }
}

/* Brackets and commas of a text are text: of arguments they are what the call's JSON has, its strings left out. */
static void a_text_is_no_matter_of_it(void **state) {
    enum { MANY = 1000000 };
    static const struct {
        const char *path, *head, *unit, *tail;
    } bodies[] = {
        {"/tokenize", "{\"content\":\"", "[]{}\\\"", "\"}"},
        {CHAT, UNKNOWN("\""), "[]{}", "\"}"},
        {CHAT,
         "{\"max_tokens\":1,\"messages\":[" HI ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
         "\"f\",\"arguments\":\"{\\\"a\\\":\\\"",
         "[]\\\\\\\"{}\\\\", "\\\"}\"}}]}]}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        int status;
        char *body = body_of(bodies[i].head, bodies[i].unit, MANY, bodies[i].tail);
        json_t *answer = stage_call(&stage, "POST", bodies[i].path, body, &status);
        assert_non_null(answer);
        if (status == 413) {
            fail_msg("body %zu: %s", i, json_str(answer, "error.message"));
        }
        json_decref(answer);
        free(body);
    }
}

/* The arguments of a call take as much memory as an object as they do as text. */
static void arguments_that_are_an_object_count(void **state) {
    enum { MANY = 400000 };
    char *body = body_of("{\"messages\":[" HI ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{"
                         "\"name\":\"f\",\"arguments\":{\"a\":[",
                         "[]", MANY, "]}}}]}]}");
    (void)state;
    json_t *answer = stage_want(&stage, "POST", CHAT, body, 413);
    assert_non_null(strstr(json_str(answer, "error.message"), "(limit: memory)"));
    json_decref(answer);
    free(body);
}

/* Nor does a call have fewer members in one form than in another. */
static void a_call_has_any_number_of_members(void **state) {
    char *body = body_of("{\"messages\":[" HI ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\","
                         "\"id\":\"c\",\"name\":\"f\",\"input\":{",
                         "\"k#\":1", hearth_limit_most(HEARTH_LIMIT_MEMBERS) + 1,
                         "}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c\"}]}]}");
    (void)state;
    json_decref(stage_want(&stage, "POST", "/v1/messages/count_tokens", body, 200));
    free(body);
}

/* What stands behind the last tool that is allowed is not looked at. */
static void tools_of_messages_are_counted_as_they_are_read(void **state) {
    static const char definition[] = "{\"type\":\"tool_addition\",\"tool\":{\"type\":\"tool_definition\","
                                     "\"definition\":{\"name\":\"f#\",\"input_schema\":{\"type\":\"object\"}}}}";
    static const char without_name[] =
        ",{\"type\":\"tool_addition\",\"tool\":{\"type\":\"tool_definition\",\"definition\":{}}}]}]}";
    (void)state;
    for (size_t more = 0; more < 2; more++) {
        char *body = body_of("{\"max_tokens\":1,\"messages\":[" HI ",{\"role\":\"system\",\"content\":[", definition,
                             hearth_limit_most(HEARTH_LIMIT_TOOLS) + more, without_name);
        json_t *answer = stage_want(&stage, "POST", "/v1/messages", body, 400);
        const char *said = more > 0 ? "(limit: tools)" : "custom.name: Field required";
        assert_non_null(strstr(json_str(answer, "error.message"), said));
        json_decref(answer);
        free(body);
    }
}

/* ---- documentation ---- */

static void the_page_has_every_limit(void **state) {
    const char *path = getenv("HEARTH_PAGE");
    static char page[1 << 17];
    char row[96];
    (void)state;
    assert_non_null(path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    page[fread(page, 1, sizeof page - 1, file)] = '\0';
    (void)fclose(file);
    for (enum hearth_limit limit = 0; limit < HEARTH_LIMITS; limit++) {
        snprintf(row, sizeof row, "\n| `%s` | %zu |", limit_names[limit], hearth_limit_most(limit));
        if (strstr(page, row) == NULL) {
            fail_msg("%s has no row%s", path, row);
        }
    }
    snprintf(row, sizeof row, "and %zu MiB more", HEARTH_LIMIT_MEMORY_EXTRA >> 20);
    assert_non_null(strstr(page, row));
}

/* Each byte of this is a token, whose number and piece take more than twenty. */
static void an_answer_that_becomes_many_times_the_body_is_refused(void **state) {
    enum { MANY = 2500000 };
    static const char head[] = "{\"with_pieces\":true,\"content\":\"", tail[] = "\"}";
    char *body = malloc(sizeof head + MANY + sizeof tail);
    (void)state;
    assert_non_null(body);
    strcpy(body, head);
    memset(body + sizeof head - 1, '~', MANY);
    strcpy(body + sizeof head - 1 + MANY, tail);
    json_t *answer = stage_want(&stage, "POST", "/tokenize", body, 413);
    assert_non_null(strstr(json_str(answer, "error.message"), "its answer would take more memory"));
    json_decref(answer);
    free(body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_more_than_a_limit_is_refused_by_its_name),
        cmocka_unit_test(as_much_as_a_limit_is_no_matter_of_it),
        cmocka_unit_test(a_body_that_becomes_many_times_its_size_is_refused),
        cmocka_unit_test(an_answer_that_becomes_many_times_the_body_is_refused),
        cmocka_unit_test(a_text_is_no_matter_of_it),
        cmocka_unit_test(arguments_that_are_an_object_count),
        cmocka_unit_test(a_call_has_any_number_of_members),
        cmocka_unit_test(tools_of_messages_are_counted_as_they_are_read),
        cmocka_unit_test(the_page_has_every_limit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
