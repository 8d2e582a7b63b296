/* Replies as they grow: whatever pieces a reply comes in, its deltas add up to the message at its end, and that is the
 * message of the whole text. Replies that are cut, that are no replies of their format, or that are made to hurt the
 * parser become the best message there is. */
#include "chat/chat.h"
#include "support/messages.h"
#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ------------------------------------------------------------------------------------------- templates */

#define TURNS(calls)                                                                                                  \
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif " \
    "%}"                                                                                                              \
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"                                         \
    "{% if message.role == 'assistant' and message.reasoning_content %}"                                              \
    "{{ '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ message.content }}"                \
    "{% for call in message.tool_calls or [] %}" calls "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"                 \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

/* Calls as JSON between tags (Hermes, Qwen). */
static const char json_calls[] =
    TURNS("{{ '\n<tool_call>\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}"
          "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}");

/* Every argument between tags of its own (Qwen3 Coder). */
static const char tagged_calls[] =
    TURNS("{{ '\n<tool_call>\n<function=' + call.function.name + '>\n' }}"
          "{% for name, value in call.function.arguments | items %}{{ '<parameter=' + name + '>\n' }}"
          "{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}{% endfor %}"
          "{{ '</function>\n</tool_call>' }}");

static const char no_calls[] =
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

static const char tools_json[] =
    "[{'type':'function','function':{'name':'look','description':'looks','parameters':{'type':'object','properties':"
    "{'place':{'type':'string'},'days':{'type':'integer'},'more':{'type':'object','properties':{}}},"
    "'required':['place']}}},{'type':'function','function':{'name':'write','description':'writes','parameters':"
    "{'type':'object','properties':{'path':{'type':'string'},'text':{'type':'string'}},"
    "'required':['path','text']}}}]";

enum shape { JSON_CALLS, TAGGED_CALLS, NO_TOOLS, SHAPES };

static struct {
    struct hearth_chat *chat;
    struct hearth_chat_format *format;
} shapes[SHAPES];

static json_t *tools;
static struct rng rng = {7};

static int make_shapes(void **state) {
    (void)state;
    static const char *const texts[SHAPES] = {json_calls, tagged_calls, no_calls};
    struct messages messages = messages_load("[{'role':'user','content':'hi'}]");
    tools = messages_json(tools_json);
    for (size_t i = 0; i < SHAPES; i++) {
        struct hearth_errmsg msg = {""};
        const struct hearth_chat_params params = {.template_text = texts[i], .bos_text = "", .eos_text = "<|im_end|>"};
        struct hearth_chat_request request = {.messages = messages.v,
                                              .message_count = messages.n,
                                              .tools = i == NO_TOOLS ? NULL : tools,
                                              .tool_choice = i == NO_TOOLS ? HEARTH_TOOLS_NONE : HEARTH_TOOLS_AUTO,
                                              .parallel_calls = true,
                                              .thinking = true};
        if (hearth_chat_create(&params, &shapes[i].chat, &msg) != HEARTH_OK ||
            hearth_chat_format_get(shapes[i].chat, &request, &shapes[i].format, &msg) != HEARTH_OK) {
            print_error("template %zu: %s\n", i, msg.text);
            return -1;
        }
    }
    messages_finish(&messages);
    return 0;
}

static int free_shapes(void **state) {
    (void)state;
    for (size_t i = 0; i < SHAPES; i++) {
        hearth_chat_format_unref(shapes[i].format);
        hearth_chat_destroy(shapes[i].chat);
    }
    json_decref(tools);
    return 0;
}

/* ------------------------------------------------------------------------------------------- a client */

enum { CALLS_MOST = 8 };

/* What has come in, as text: "R[reasoning] C[content] look{...} write{...}". */
struct client {
    struct hearth_buf reasoning, content, arguments[CALLS_MOST];
    char names[CALLS_MOST][32], ids[CALLS_MOST][64];
    size_t calls, deltas;
};

static void take(void *user, const struct hearth_chat_delta *delta) {
    struct client *c = user;
    c->deltas++;
    assert_true((delta->reasoning != NULL) + (delta->content != NULL) + (delta->call != HEARTH_CHAT_NO_CALL) == 1);
    if (delta->reasoning != NULL) {
        hearth_buf_append(&c->reasoning, delta->reasoning, delta->reasoning_len);
    }
    if (delta->content != NULL) {
        hearth_buf_append(&c->content, delta->content, delta->content_len);
    }
    if (delta->call == HEARTH_CHAT_NO_CALL) {
        return;
    }
    if (delta->call_id != NULL) {
        assert_int_equal(delta->call, c->calls);
        assert_true(c->calls < CALLS_MOST && delta->call_name != NULL && delta->arguments == NULL);
        assert_int_equal(strlen(delta->call_id), strlen("call_") + 24);
        snprintf(c->names[c->calls], sizeof c->names[0], "%s", delta->call_name);
        snprintf(c->ids[c->calls++], sizeof c->ids[0], "%s", delta->call_id);
    } else {
        assert_true(delta->call < c->calls && delta->arguments != NULL && delta->arguments_len > 0);
        hearth_buf_append(&c->arguments[delta->call], delta->arguments, delta->arguments_len);
    }
}

static void add_parts(struct hearth_buf *out, const struct hearth_buf *reasoning, const struct hearth_buf *content) {
    assert_true(hearth_buf_text(out, "R[") && hearth_buf_append(out, reasoning->data, reasoning->len) &&
                hearth_buf_text(out, "] C[") && hearth_buf_append(out, content->data, content->len) &&
                hearth_buf_text(out, "]"));
}

static char *client_text(const struct client *c) {
    struct hearth_buf out = {0};
    add_parts(&out, &c->reasoning, &c->content);
    for (size_t i = 0; i < c->calls; i++) {
        assert_true(hearth_buf_printf(&out, " %s", c->names[i]) &&
                    hearth_buf_append(&out, c->arguments[i].data, c->arguments[i].len) && hearth_buf_text(&out, ""));
    }
    return (char *)out.data;
}

static char *message_text(const struct hearth_message *m) {
    char *reasoning = m->reasoning != NULL ? m->reasoning : m->content;
    const struct hearth_buf parts[] = {
        {.data = (uint8_t *)reasoning, .len = m->reasoning != NULL ? strlen(m->reasoning) : 0},
        {.data = (uint8_t *)m->content, .len = m->content_len},
    };
    struct hearth_buf out = {0};
    add_parts(&out, &parts[0], &parts[1]);
    for (size_t i = 0; i < m->call_count; i++) {
        assert_true(hearth_buf_printf(&out, " %s%s", m->calls[i].name, m->calls[i].arguments));
    }
    return (char *)out.data;
}

static void client_finish(struct client *c) {
    hearth_buf_finish(&c->reasoning);
    hearth_buf_finish(&c->content);
    for (size_t i = 0; i < CALLS_MOST; i++) {
        hearth_buf_finish(&c->arguments[i]);
    }
}

static size_t step(const char *text, size_t at, size_t want, size_t len) {
    size_t end = at + want < len ? at + want : len;
    while (end < len && (text[end] & 0xC0) == 0x80) {
        end++;
    }
    return end;
}

/* Feeds a reply in pieces of up to `most` bytes and returns the message as text; with deltas they must add up to it. */
static char *stream(enum shape shape, const char *text, size_t len, size_t most, bool deltas, bool cut,
                    bool *repaired) {
    struct client client = {.calls = 0};
    struct hearth_message *message = NULL;
    struct hearth_chat_stream *s = hearth_chat_stream_create(shapes[shape].format, deltas);
    assert_non_null(s);
    for (size_t at = 0; at < len;) {
        size_t end = step(text, at, 1 + rng_below(&rng, (uint32_t)most), len);
        assert_int_equal(hearth_chat_stream_feed(s, text + at, end - at, take, &client), HEARTH_OK);
        at = end;
    }
    assert_true(deltas || client.deltas == 0);
    assert_int_equal(hearth_chat_stream_end(s, cut, take, &client, &message, repaired), HEARTH_OK);
    char *of_message = message_text(message), *of_client = client_text(&client);
    assert_string_equal(of_client, of_message);
    for (size_t i = 0; i < message->call_count; i++) {
        assert_string_equal(message->calls[i].id, client.ids[i]);
    }
    hearth_message_unref(message);
    hearth_chat_stream_destroy(s);
    client_finish(&client);
    free(of_client);
    return of_message;
}

/* ------------------------------------------------------------------------------------------- replies */

#define CALL(arguments) "<tool_call>\n{\"name\": \"look\", \"arguments\": " arguments "}\n</tool_call>"

static const struct reply {
    enum shape shape;
    const char *text, *message;
} replies[] = {
    {NO_TOOLS, "just <text> {with} [things] w\xc3\xb6rld", "R[] C[just <text> {with} [things] w\xc3\xb6rld]"},
    {NO_TOOLS, "", "R[] C[]"},
    {JSON_CALLS, "plain, a < b", "R[] C[plain, a < b]"},
    {JSON_CALLS, "ends in <", "R[] C[ends in <]"},
    {JSON_CALLS, "ends in <tool_", "R[] C[ends in <tool_]"},
    {JSON_CALLS, "<think>\nhm, <b>\n</think>\n\nyes", "R[hm, <b>\n] C[yes]"},
    {JSON_CALLS, CALL("{\"place\": \"B\xc3\xa4rn \\\"x\\\" \\u00e9\", \"days\": 12, \"more\": {\"a\": [1, -2.5e3]}}"),
     "R[] C[] look{\"place\": \"B\xc3\xa4rn \\\"x\\\" \\u00e9\", \"days\": 12, \"more\": {\"a\": [1, -2.5e3]}}"},
    {JSON_CALLS, "Let me see.\n" CALL("{\"place\":\"a\"}") "\n" CALL("{\"place\":\"[[{{\\\\\"}"),
     "R[] C[Let me see.\n] look{\"place\":\"a\"} look{\"place\":\"[[{{\\\\\"}"},
    {JSON_CALLS, "<think>\nlook twice\n</think>\n\nSo:\n" CALL("{\"place\": \"</tool_call>\"}"),
     "R[look twice\n] C[So:\n] look{\"place\": \"</tool_call>\"}"},
    {TAGGED_CALLS,
     "Now.\n<tool_call>\n<function=write>\n<parameter=path>\n/a/b\n</parameter>\n<parameter=text>\nif (a < b) "
     "{\n\t\"x\\n\""
     "\n</para\n}\n</parameter>\n</function>\n</tool_call>",
     "R[] C[Now.\n] write{\"path\":\"/a/b\",\"text\":\"if (a < b) {\\n\\t\\\"x\\\\n\\\"\\n</para\\n}\"}"},
    {TAGGED_CALLS,
     "<tool_call>\n<function=look>\n<parameter=place>\nhere\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
     "<parameter=more>\n{\"a\": [true, null]}\n</parameter>\n</function>\n</tool_call>",
     "R[] C[] look{\"place\":\"here\",\"days\":3,\"more\":{\"a\": [true, null]}}"},
};

static void deltas_add_up_for_any_pieces(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof replies / sizeof replies[0]; i++) {
        const struct reply *r = &replies[i];
        for (size_t round = 0; round < 40; round++) {
            bool repaired, deltas = round > 0;
            char *got = stream(r->shape, r->text, strlen(r->text), round < 10 ? 1 : round, deltas, false, &repaired);
            assert_string_equal(got, r->message);
            assert_false(repaired);
            free(got);
        }
    }
}

/* A whole text is read to the same message, without ids; what the template printed is, too. */
static void whole_texts_are_read(void **state) {
    (void)state;
    struct hearth_errmsg msg;
    for (size_t i = 0; i < sizeof replies / sizeof replies[0]; i++) {
        struct hearth_message *message;
        const struct reply *r = &replies[i];
        assert_int_equal(hearth_chat_parse(shapes[r->shape].format, r->text, strlen(r->text), &message, &msg),
                         HEARTH_OK);
        char *got = message_text(message);
        assert_string_equal(got, r->message);
        for (size_t k = 0; k < message->call_count; k++) {
            assert_null(message->calls[k].id);
            assert_non_null(message->calls[k].parsed);
        }
        free(got);
        hearth_message_unref(message);
    }
    static const char *const no_replies[] = {"<tool_call>\n{\"name\": \"look\"", "<tool_call>\n{\"name\": \"none\"}",
                                             CALL("{\"place\":\"a\"}") " and more"};
    for (size_t i = 0; i < sizeof no_replies / sizeof no_replies[0]; i++) {
        struct hearth_message *message;
        int rc = hearth_chat_parse(shapes[JSON_CALLS].format, no_replies[i], strlen(no_replies[i]), &message, &msg);
        assert_true(i == 2 || rc == HEARTH_ERR_TEMPLATE);
        hearth_message_unref(message);
    }
}

/* Cut at every character: no text is lost when nothing of a call has been sent, and calls are whole or content. */
static void cut_replies_lose_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof replies / sizeof replies[0]; i++) {
        const struct reply *r = &replies[i];
        for (size_t at = 0; at < strlen(r->text); at = step(r->text, at, 1, strlen(r->text))) {
            bool repaired;
            char *streamed = stream(r->shape, r->text, at, 3, true, true, &repaired);
            free(streamed);
            char *whole = stream(r->shape, r->text, at, 1000, false, true, &repaired);
            const char *call = strstr(whole, "] look{");
            json_t *arguments = call != NULL ? json_loads(call + strlen("] look"), JSON_DISABLE_EOF_CHECK, NULL) : NULL;
            assert_true(call == NULL || arguments != NULL);
            json_decref(arguments);
            free(whole);
        }
    }
    static const struct {
        const char *text, *message;
        bool deltas, repaired;
    } cuts[] = {
        {"Well <tool_", "R[] C[Well <tool_]", true, false},
        {"<think>\nhm </th", "R[hm </th] C[]", true, false},
        {"Well\n<tool_call>\n{\"name\": \"lo", "R[] C[Well\n<tool_call>\n{\"name\": \"lo]", true, true},
        {"Well\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"a",
         "R[] C[Well\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"a]", false, true},
        {"Well\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"a", "R[] C[Well\n] look{\"place\": \"a",
         true, true},
        {CALL("{\"place\":\"a\"}") "\n<tool_call>\n{\"name\": \"look\", \"argu",
         "R[] C[<tool_call>\n{\"name\": \"look\", \"argu] look{\"place\":\"a\"}", false, true},
        {"<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\":\"a\"}", "R[] C[] look{\"place\":\"a\"}", false,
         false},
        {CALL("{\"place\":\"a\"}") "\n<tool", "R[] C[<tool] look{\"place\":\"a\"}", true, false},
        {"<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\":\"a\"}}\n</tool", "R[] C[] look{\"place\":\"a\"}",
         true, false},
    };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        bool repaired;
        char *got = stream(JSON_CALLS, cuts[i].text, strlen(cuts[i].text), 2, cuts[i].deltas, true, &repaired);
        assert_string_equal(got, cuts[i].message);
        assert_int_equal(repaired, cuts[i].repaired);
        free(got);
    }
}

static void what_is_no_reply_becomes_content(void **state) {
    (void)state;
    static const struct {
        enum shape shape;
        const char *text, *message;
        bool deltas;
    } broken[] = {
        {JSON_CALLS, "<tool_call>\n{\"name\": \"none\", \"arguments\": {}}\n</tool_call> and so on",
         "R[] C[<tool_call>\n{\"name\": \"none\", \"arguments\": {}}\n</tool_call> and so on]", true},
        {JSON_CALLS, "Hm\n" CALL("{\"place\":\"a\"}") " What else?", "R[] C[Hm\nWhat else?] look{\"place\":\"a\"}",
         false},
        {JSON_CALLS, "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": oops}}",
         "R[] C[<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": oops}}]", false},
        {TAGGED_CALLS, "<tool_call>\n<function=look>\n<parameter=nothing>\n1", NULL, true},
    };
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        bool repaired;
        char *got =
            stream(broken[i].shape, broken[i].text, strlen(broken[i].text), 3, broken[i].deltas, false, &repaired);
        if (broken[i].message != NULL) {
            assert_string_equal(got, broken[i].message);
        }
        if (!repaired) {
            print_error("%s: %s\n", broken[i].text, got);
        }
        assert_true(repaired);
        free(got);
    }
}

/* ------------------------------------------------------------------------------------------- size and depth */

static char *repeated(const char *before, const char *what, size_t bytes, const char *behind, size_t *len) {
    struct hearth_buf out = {0};
    hearth_buf_text(&out, before);
    while (out.len < bytes) {
        hearth_buf_text(&out, what);
    }
    hearth_buf_text(&out, behind);
    *len = out.len;
    return (char *)out.data;
}

/* A quarter of a megabyte in pieces of a token takes some hundredths of a second; a parse for each token took minutes.
 */
static void long_replies_take_linear_time(void **state) {
    (void)state;
    static const struct {
        enum shape shape;
        const char *before, *what, *behind;
        const char *end; /* of the message */
    } texts[] = {
        {JSON_CALLS, "", "some words, a < b, and {x} ", "", "{x} ]"},
        {JSON_CALLS, "<think>\n", "thinking <about> it \n", "\n</think>\n\ndone", "C[done]"},
        {JSON_CALLS, "<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\": \"p\", \"text\": \"",
         "a \\\"b\\\" c\\n \\\\ {[ ", "\"}}\n</tool_call>", "{[ \"}"},
        {TAGGED_CALLS, "<tool_call>\n<function=write>\n<parameter=path>\np\n</parameter>\n<parameter=text>\n",
         "a \"b\" </c>\n", "\n</parameter>\n</function>\n</tool_call>", "</c>\\n\"}"},
        {JSON_CALLS, "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"p\", \"more\": {\"a\": [0",
         ", 1.5, [true], {\"b\": null}", "]}}}\n</tool_call>", "null}]}}"},
        {JSON_CALLS, "", "<tool_cal ", "", "<tool_cal ]"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        bool repaired;
        size_t len;
        char *text = repeated(texts[i].before, texts[i].what, 256 * 1024, texts[i].behind, &len);
        clock_t start = clock();
        char *got = stream(texts[i].shape, text, len, 7, true, false, &repaired);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds > 3) {
            print_error("%zu bytes, text %zu: %.3f s\n", len, i, seconds);
            fail();
        }
        assert_false(repaired);
        assert_string_equal(got + strlen(got) - strlen(texts[i].end), texts[i].end);
        free(got);
        free(text);
    }
}

static void deep_nesting_is_content(void **state) {
    (void)state;
    static const char *const before[] = {"", "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": "};
    static const char *const what[] = {"[", "{\"a\":", "[{\"]\":"};
    for (size_t i = 0; i < 6; i++) {
        bool repaired;
        size_t len;
        char *text = repeated(before[i % 2], what[i / 2], 100000, "", &len);
        for (int deltas = 0; deltas < 2; deltas++) {
            char *got = stream(JSON_CALLS, text, len, 50, deltas != 0, false, &repaired);
            const size_t marks = 100; /* of the call, at most */
            if (!repaired || strlen(got) + marks < len) {
                print_error("text %zu: %zu bytes became %zu, %.80s\n", i, len, strlen(got), got);
            }
            assert_true(repaired && strlen(got) + marks >= len);
            free(got);
        }
        free(text);
    }
    /* Brackets in prose are not nested values. */
    bool repaired;
    size_t len;
    char *text = repeated("", "\x1b[31m(:[ ", 10000, "\n" CALL("{\"place\": \"a\"}"), &len);
    char *got = stream(JSON_CALLS, text, len, 50, true, false, &repaired);
    assert_false(repaired);
    assert_non_null(strstr(got, "] look{\"place\": \"a\"}"));
    free(got);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deltas_add_up_for_any_pieces),  cmocka_unit_test(whole_texts_are_read),
        cmocka_unit_test(cut_replies_lose_nothing),      cmocka_unit_test(what_is_no_reply_becomes_content),
        cmocka_unit_test(long_replies_take_linear_time), cmocka_unit_test(deep_nesting_is_content),
    };
    return cmocka_run_group_tests(tests, make_shapes, free_shapes);
}
