/* What is computed of a prompt when a client changes a line of it, leaves empty messages in it, or sends a picture
 * again: by value, with sim, in every dialect. */
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHAT "/v1/chat/completions"
#define RESPONSES "/v1/responses"
#define MESSAGES "/v1/messages"

static const char script[] = "{\"when\":{\"last\":\"say nothing\"},\"times\":0,\"bytes\":true,\"reply\":\"\\n\\n\"}\n"
                             "{\"times\":0,\"bytes\":true,\"reply\":\"Well said.\"}\n";

static const struct dialect {
    const char *path, *list, *more, *text;
} dialects[] = {
    {CHAT, "messages", "\"max_tokens\":40", "text"},
    {RESPONSES, "input", "\"max_output_tokens\":40", "input_text"},
    {MESSAGES, "messages", "\"max_tokens\":40", "text"},
};

#define DIALECTS (sizeof dialects / sizeof dialects[0])

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    options.sim.ctx_tokens = 8192;
    options.script = script;
    stage_open(&stage, &options);
    return 0;
}

/* One request; single quotes in `messages` stand for double ones. */
static json_t *ask(const struct dialect *dialect, const char *messages) {
    struct hearth_buf body = {0};
    assert_true(hearth_buf_printf(&body, "{%s,\"%s\":[%s]}", dialect->more, dialect->list, messages));
    for (char *at = (char *)body.data; *at != '\0'; at++) {
        *at = *at == '\'' ? '"' : *at;
    }
    json_t *answer = stage_want(&stage, "POST", dialect->path, (const char *)body.data, 200);
    hearth_buf_finish(&body);
    return answer;
}

static json_int_t computed(json_t *answer) {
    return json_num(answer, "hearth.computed");
}

static json_int_t prompt_tokens(json_t *answer) {
    return computed(answer) + json_num(answer, "hearth.reused.live") + json_num(answer, "hearth.reused.ram");
}

static json_int_t reply_tokens(json_t *answer) {
    const char *const names[] = {"usage.completion_tokens", "usage.output_tokens"};
    return json_num(answer, json_at(answer, names[0]) != NULL ? names[0] : names[1]);
}

#define SAID(role, content) "{'role':'" role "','content':" content "}"
#define USER(text) SAID("user", "'" text "'")

/* The billing line differs in every request. */
static void billing_lines_cost_nothing(void **state) {
    static const char *const around[][3] = {
        {CHAT, "{\"max_tokens\":4,\"messages\":[{\"role\":\"system\",\"content\":\"",
         "In a chat, be brief.\"},{\"role\":\"user\",\"content\":\"Go.\"}]}"},
        {RESPONSES, "{\"max_output_tokens\":4,\"instructions\":\"", "In a response, be brief.\",\"input\":\"Go.\"}"},
        {MESSAGES, "{\"max_tokens\":4,\"system\":\"",
         "In a message, be brief.\",\"messages\":[{\"role\":\"user\",\"content\":\"Go.\"}]}"},
    };
    static const char *const lines[] = {"x-anthropic-billing-header: cch=1;\\n",
                                        "x-anthropic-billing-header: cch=2;\\n", ""};
    char body[512];
    (void)state;
    for (size_t i = 0; i < sizeof around / sizeof around[0]; i++) {
        json_int_t first = 0;
        for (size_t k = 0; k < 3; k++) {
            snprintf(body, sizeof body, "%s%s%s", around[i][1], lines[k], around[i][2]);
            json_t *answer = stage_want(&stage, "POST", around[i][0], body, 200);
            if (k == 0) {
                first = prompt_tokens(answer);
                assert_true(computed(answer) > 1);
            } else {
                assert_int_equal(prompt_tokens(answer), first);
                assert_int_equal(computed(answer), 1);
            }
            json_decref(answer);
        }
    }
}

#define NOTED(left, last)                                          \
    SAID("system", "'Be brief.'")                                  \
    "," USER("A long question, of many words.") "," SAID("system", \
                                                         "'" left " tokens left'") "," USER("The next question.") last

/* Tokens of a chat's prompt. */
static json_t *tokens_of(const char *messages) {
    struct hearth_buf body = {0};
    assert_true(hearth_buf_printf(&body, "{\"messages\":[%s]}", messages));
    for (char *at = (char *)body.data; *at != '\0'; at++) {
        *at = *at == '\'' ? '"' : *at;
    }
    json_t *text = stage_want(&stage, "POST", "/apply-template", (const char *)body.data, 200);
    json_t *asked = json_pack("{s:O, s:b}", "content", json_at(text, "prompt"), "add_special", 1);
    char *content = json_dumps(asked, 0);
    json_t *tokens = stage_want(&stage, "POST", "/tokenize", content, 200);
    free(content);
    json_decref(asked);
    json_decref(text);
    hearth_buf_finish(&body);
    return tokens;
}

static json_int_t common(const char *a, const char *b) {
    json_t *x = tokens_of(a), *y = tokens_of(b);
    const json_t *v = json_at(x, "tokens"), *w = json_at(y, "tokens");
    size_t n = 0;
    while (n < json_array_size(v) && n < json_array_size(w) &&
           json_integer_value(json_array_get(v, n)) == json_integer_value(json_array_get(w, n))) {
        n++;
    }
    json_decref(x);
    json_decref(y);
    return (json_int_t)n;
}

/* A note that changes in the middle of a conversation costs what stands behind it, and nothing before. */
static void changing_notes_cost_what_is_behind_them(void **state) {
    const json_int_t same = common(NOTED("900", ""), NOTED("800", ""));
    (void)state;
    for (size_t i = 0; i < DIALECTS; i++) {
        struct dialect dialect = dialects[i];
        char more[128];
        snprintf(more, sizeof more, "%s,\"cache_salt\":\"notes %zu\"", dialects[i].more, i);
        dialect.more = more;
        json_t *first = ask(&dialect, NOTED("900", ""));
        json_t *second = ask(&dialect, NOTED("800", ""));
        assert_int_equal(computed(first), prompt_tokens(first));
        assert_true(same > 20 && same < prompt_tokens(second));
        assert_int_equal(computed(second), prompt_tokens(second) - same);
        json_decref(first);
        json_decref(second);
    }
}

/* The next turn computes what is new: what stands behind the last prompt and its reply, the last token of which was
 * sampled and not computed. */
static void assert_turn_costs_its_news(const struct dialect *dialect, const char *before, const char *after) {
    json_t *first = ask(dialect, before), *second = ask(dialect, after);
    const json_int_t known = prompt_tokens(first) + reply_tokens(first);
    if (computed(second) > prompt_tokens(second) - known + 1) {
        fail_msg("%s: %d computed of %d, %d known", after, (int)computed(second), (int)prompt_tokens(second),
                 (int)known);
    }
    json_decref(first);
    json_decref(second);
}

#define EMPTY SAID("system", "[]") ",{'role':'user'},{'role':'system','content':[],'output_config':{'effort':'low'}}"
#define REPLIED SAID("assistant", "'Well said.'")

static void empty_messages_cost_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < DIALECTS; i++) {
        assert_turn_costs_its_news(&dialects[i], USER("One."),
                                   USER("One.") "," EMPTY "," REPLIED "," EMPTY "," USER("Two."));
        assert_turn_costs_its_news(&dialects[i], EMPTY "," USER("Three."),
                                   USER("Three.") "," REPLIED "," USER("Four."));
    }
}

/* A reply that said nothing is put back as it was sampled, whatever its form in the history. */
static void empty_replies_cost_nothing(void **state) {
    static const char *const forms[] = {"''", "[]", "null"};
    char before[256], after[512];
    (void)state;
    for (size_t i = 0; i < DIALECTS; i++) {
        for (size_t k = 0; k < sizeof forms / sizeof forms[0]; k++) {
            snprintf(before, sizeof before, USER("Now say nothing, %zu %zu."), i, k);
            snprintf(after, sizeof after, "%s," SAID("assistant", "%s") "," USER("Go on."), before, forms[k]);
            assert_turn_costs_its_news(&dialects[i], before, after);
        }
    }
}

static void pictures_cost_their_note_once(void **state) {
    static const char *const pictures[] = {
        "{'type':'image_url','image_url':{'url':'data:image/png;base64,iVBORw0KGgo='}}",
        "{'type':'input_image','image_url':'data:image/png;base64,iVBORw0KGgo='}",
        "{'type':'image','source':{'type':'base64','media_type':'image/png','data':'iVBORw0KGgo='}}",
    };
    char before[512], after[1024];
    (void)state;
    for (size_t i = 0; i < DIALECTS; i++) {
        snprintf(before, sizeof before, SAID("user", "[{'type':'%s','text':'Picture %zu'},%s]"), dialects[i].text, i,
                 pictures[i]);
        snprintf(after, sizeof after, "%s," REPLIED "," USER("Go on."), before);
        assert_turn_costs_its_news(&dialects[i], before, after);
    }
}

/* Where the server keeps the conversation, it keeps the note. */
static void kept_conversations_skip_and_tell_alike(void **state) {
    static const char picture[] =
        "{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":"
        "\"image/png\",\"data\":\"iVBORw0KGgo=\"}}]}";
    static const char nothing[] = "{\"role\":\"system\",\"content\":[]}",
                      go[] = "{\"role\":\"user\",\"content\":\"Go.\"}";
    static const char *const paths[] = {CHAT, MESSAGES};
    char body[512];
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const char *path = paths[i < 2 ? i : 1];
        char where[128] = "\"thread\":{\"type\":\"create\"}";
        if (i < 2) {
            snprintf(where, sizeof where, "\"session_id\":\"picture %zu\"", i);
        }
        snprintf(body, sizeof body, "{\"max_tokens\":40,\"cache_salt\":\"kept %zu\",%s,\"messages\":[%s]}", i, where,
                 picture);
        json_t *first = stage_want(&stage, "POST", path, body, 200);
        if (i == 2) {
            snprintf(where, sizeof where, "\"thread\":{\"type\":\"continue\",\"previous_message_id\":\"%s\"}",
                     json_str(first, "id"));
        }
        snprintf(body, sizeof body, "{\"max_tokens\":40,\"cache_salt\":\"kept %zu\",%s,\"messages\":[%s,%s]}", i, where,
                 nothing, nothing);
        json_decref(stage_want(&stage, "POST", path, body, 400));
        snprintf(body, sizeof body, "{\"max_tokens\":40,\"cache_salt\":\"kept %zu\",%s,\"messages\":[%s,%s]}", i, where,
                 nothing, go);
        json_t *second = stage_want(&stage, "POST", path, body, 200);
        const json_int_t known = prompt_tokens(first) + reply_tokens(first);
        assert_true(prompt_tokens(second) > known);
        assert_int_equal(computed(second), prompt_tokens(second) - known + 1);
        json_decref(first);
        json_decref(second);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(billing_lines_cost_nothing),    cmocka_unit_test(changing_notes_cost_what_is_behind_them),
        cmocka_unit_test(empty_messages_cost_nothing),   cmocka_unit_test(empty_replies_cost_nothing),
        cmocka_unit_test(pictures_cost_their_note_once), cmocka_unit_test(kept_conversations_skip_and_tell_alike),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
