/* Chat templates: the text, the marks, and what a template's refusal looks like. The templates here have the shapes
 * of those that models carry: a default system text (SmolLM2), a system text merged into the first turn (Gemma), one
 * that refuses system messages, and contents printed as JSON. */
#include "chat/chat.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Prints the role from the message and adds a system text of its own when there is none. */
static const char *const default_system =
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are SmolLM<|im_end|>\n' }}{% "
    "endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* Puts the system text in front of the first turn, trims, and wants alternating roles. */
static const char *const merged_system =
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}{% set turns = "
    "messages[1:] %}"
    "{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}{{ message['content'] | trim }}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";

static const char *const no_system =
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}";

static const char *const as_json =
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] | tojson }}\n{% endfor %}";

static struct hearth_chat *make(const char *template_text, const char *bos, bool add_bos) {
    const struct hearth_chat_params params = {
        .template_text = template_text, .bos_text = bos, .eos_text = "</s>", .add_bos = add_bos};
    struct hearth_chat *chat = NULL;
    struct hearth_errmsg msg = {""};
    if (hearth_chat_create(&params, &chat, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    return chat;
}

/* What stands behind a mark; "-" for none. */
static const char *behind(const struct hearth_chat_prompt *prompt, size_t mark) {
    if (mark == HEARTH_CHAT_NO_MARK) {
        return "-";
    }
    assert_true(mark <= prompt->text.len);
    return (const char *)prompt->text.data + mark;
}

/* Renders and compares the text and what stands behind the marks (its beginning is enough). */
static void expect(struct hearth_chat *chat, const char *messages, const char *text, const char *system_end,
                   const char *last_input) {
    struct hearth_chat_prompt prompt;
    struct hearth_errmsg msg = {""};
    if (hearth_chat_render(chat, messages, NULL, true, &prompt, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    if (text) {
        assert_string_equal((const char *)prompt.text.data, text);
    }
    assert_int_equal(strlen((const char *)prompt.text.data), prompt.text.len);
    assert_memory_equal(behind(&prompt, prompt.system_end), system_end, strlen(system_end));
    assert_memory_equal(behind(&prompt, prompt.last_input_start), last_input, strlen(last_input));
    hearth_chat_prompt_finish(&prompt);
}

static void test_chatml(void **state) {
    (void)state;
    static const char *const messages =
        "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hi\"},"
        "{\"role\":\"assistant\",\"content\":\"Hello\"},{\"role\":\"user\",\"content\":\"Bye\"}]";
    static const char *const text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                                    "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
                                    "<|im_start|>assistant\n";
    static const char *const names[] = {NULL, "", "chatml"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct hearth_chat *chat = make(names[i], "", false);
        expect(chat, messages, text, "Hi<|im_end|>", "Bye<|im_end|>");
        assert_non_null(strstr(hearth_chat_template(chat), "<|im_start|>"));
        hearth_chat_destroy(chat);
    }
}

static void test_builtin_format(void **state) {
    (void)state;
    struct hearth_chat *chat = make("llama3", "", false);
    expect(chat, "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"Question?\"}]",
           "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
           "Question?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
           "Question?", "Question?");
    assert_string_equal(hearth_chat_template(chat), "llama3");
    hearth_chat_destroy(chat);
}

static void test_default_system(void **state) {
    (void)state;
    struct hearth_chat *chat = make(default_system, "", false);
    expect(chat, "[{\"role\":\"user\",\"content\":\"Hi\"}]",
           "<|im_start|>system\nYou are SmolLM<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
           "Hi<|im_end|>", "Hi<|im_end|>");
    /* The template's own words are no messages. */
    expect(chat, "[{\"role\":\"user\",\"content\":\"You are SmolLM\"}]", NULL,
           "You are SmolLM<|im_end|>\n<|im_start|>assistant", "You are SmolLM<|im_end|>\n<|im_start|>assistant");
    expect(chat,
           "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"user\","
           "\"content\":\"assistant\"}]",
           NULL, "Hi<|im_end|>", "assistant<|im_end|>\n<|im_start|>assistant\n");
    hearth_chat_destroy(chat);
}

static void test_merged_system(void **state) {
    (void)state;
    struct hearth_chat *chat = make(merged_system, "<bos>", false);
    expect(chat, "[{\"role\":\"system\",\"content\":\"Hi is a greeting.\"},{\"role\":\"user\",\"content\":\"  Hi \"}]",
           "<bos><start_of_turn>user\nHi is a greeting.\n\nHi<end_of_turn>\n<start_of_turn>model\n", "Hi<end_of_turn>",
           "Hi<end_of_turn>");
    hearth_chat_destroy(chat);
    /* A BOS that the tokenizer adds is removed, and the marks move with the text. */
    chat = make(merged_system, "<bos>", true);
    expect(chat,
           "[{\"role\":\"user\",\"content\":\"A\"},{\"role\":\"assistant\",\"content\":\"B\"},{\"role\":\"user\","
           "\"content\":\"C\"}]",
           "<start_of_turn>user\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\nC<end_of_"
           "turn>\n"
           "<start_of_turn>model\n",
           "A<end_of_turn>", "C<end_of_turn>");
    hearth_chat_destroy(chat);
}

static void test_without_system_role(void **state) {
    (void)state;
    struct hearth_chat *chat = make(no_system, "", false);
    expect(chat,
           "[{\"role\":\"system\",\"content\":\"One\"},{\"role\":\"developer\",\"content\":\"Two\"},{\"role\":\"user\","
           "\"content\":\"Three\"}]",
           "[user]One\nTwo\nThree", "Three", "Three");
    expect(chat, "[{\"role\":\"system\",\"content\":\"Alone\"}]", "[user]Alone", "-", "-");
    hearth_chat_destroy(chat);
}

static void test_marks(void **state) {
    (void)state;
    struct hearth_chat *chat = make(NULL, "", false);
    /* Contents that stand in earlier messages; a tool message; parts; an empty one. */
    expect(chat,
           "[{\"role\":\"system\",\"content\":\"go, go on\"},{\"role\":\"user\",\"content\":\"go\"},"
           "{\"role\":\"assistant\",\"content\":\"go "
           "on\"},{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"assistant\",\"content\":\"go\"}]",
           NULL, "go<|im_end|>\n<|im_start|>assistant\ngo on", "go<|im_end|>\n<|im_start|>assistant\ngo<|im_end|>");
    expect(chat,
           "[{\"role\":\"user\",\"content\":\"list\"},{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"tool\","
           "\"content\":\"a.c b.c\"}]",
           NULL, "list<|im_end|>", "a.c b.c<|im_end|>");
    expect(
        chat,
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"one\"},{\"type\":\"text\",\"text\":\"two\"}]}]",
        "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n", "one\ntwo", "one\ntwo");
    expect(chat, "[{\"role\":\"user\",\"content\":\"\\n lead\"}]", NULL, "\n lead", "\n lead");
    expect(chat, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\" \"}]", NULL, "x", "-");
    hearth_chat_destroy(chat);
    chat = make(as_json, "", false);
    expect(chat,
           "[{\"role\":\"user\",\"content\":\"plain\"},{\"role\":\"tool\",\"content\":\"a \\\"quoted\\\" word\"}]",
           "user: \"plain\"\ntool: \"a \\\"quoted\\\" word\"\n", "-", "-");
    hearth_chat_destroy(chat);
}

static void test_kwargs(void **state) {
    (void)state;
    struct hearth_chat *chat =
        make("{{ mood }} {{ enable_thinking }} {{ n + 1 }}{% if add_generation_prompt %}!{% endif %}", "", false);
    struct hearth_chat_prompt prompt;
    static const char *const messages = "[{\"role\":\"user\",\"content\":\"x\"}]";
    assert_int_equal(hearth_chat_render(chat, messages, "{\"mood\":\"calm\",\"enable_thinking\":false,\"n\":2}", false,
                                        &prompt, NULL),
                     HEARTH_OK);
    assert_string_equal((const char *)prompt.text.data, "calm False 3");
    hearth_chat_prompt_finish(&prompt);
    struct hearth_errmsg msg = {""};
    assert_int_equal(hearth_chat_render(chat, messages, "[]", false, &prompt, &msg), HEARTH_ERR_TEMPLATE);
    assert_string_equal(msg.text, "template arguments must be an object");
    hearth_chat_prompt_finish(&prompt);
    hearth_chat_destroy(chat);
}

static void test_nul_in_content(void **state) {
    (void)state;
    struct hearth_chat *chat = make(NULL, "", false);
    struct hearth_chat_prompt prompt;
    assert_int_equal(
        hearth_chat_render(chat, "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]", NULL, false, &prompt, NULL),
        HEARTH_OK);
    assert_int_equal(prompt.text.len, strlen("<|im_start|>user\n") + 3 + strlen("<|im_end|>\n"));
    assert_int_equal(prompt.text.data[prompt.text.len], 0);
    hearth_chat_prompt_finish(&prompt);
    hearth_chat_destroy(chat);
}

struct renderer {
    struct hearth_chat *chat;
    unsigned bad;
};

static void *render_many(void *arg) {
    struct renderer *renderer = arg;
    for (int i = 0; i < 50; i++) {
        struct hearth_chat_prompt prompt;
        const int err = hearth_chat_render(renderer->chat, "[{\"role\":\"user\",\"content\":\"Hi\"}]", "{\"n\":1}",
                                           true, &prompt, NULL);
        renderer->bad += err != HEARTH_OK || strstr((const char *)prompt.text.data, "user\nHi<|im_end|>") == NULL;
        hearth_chat_prompt_finish(&prompt);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct renderer renderers[4];
    pthread_t threads[4];
    struct hearth_chat *chat = make(default_system, "", false);
    for (size_t i = 0; i < 4; i++) {
        renderers[i] = (struct renderer){.chat = chat};
        assert_int_equal(pthread_create(&threads[i], NULL, render_many, &renderers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(renderers[i].bad, 0);
    }
    hearth_chat_destroy(chat);
}

/* A refusal in the template's own words, in one line. */
static void test_refusals(void **state) {
    (void)state;
    struct hearth_chat *chat = make(merged_system, "<bos>", false);
    struct hearth_chat_prompt prompt;
    struct hearth_errmsg msg = {""};
    assert_int_equal(
        hearth_chat_render(chat, "[{\"role\":\"assistant\",\"content\":\"A\"}]", NULL, true, &prompt, &msg),
        HEARTH_ERR_TEMPLATE);
    assert_string_equal(msg.text, "Conversation roles must alternate user/assistant");
    assert_int_equal(prompt.text.len, 0);
    hearth_chat_prompt_finish(&prompt);
    static const char *const bad[] = {"",
                                      "{",
                                      "{}",
                                      "[1]",
                                      "[{\"content\":\"x\"}]",
                                      "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
                                      "[{\"role\":\"user\",\"content\":5}]"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memset(&msg, 0, sizeof(msg));
        assert_int_equal(hearth_chat_render(chat, bad[i], NULL, true, &prompt, &msg), HEARTH_ERR_TEMPLATE);
        assert_true(msg.text[0] != '\0');
        assert_null(strchr(msg.text, '\n'));
        hearth_chat_prompt_finish(&prompt);
    }
    hearth_chat_destroy(chat);
}

static void test_bad_templates(void **state) {
    (void)state;
    static const char *const bad[] = {"no-such-template", "{% for x in %}", "{{ 'open", "{% if true %}{{ 1 }}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct hearth_chat_params params = {.template_text = bad[i], .bos_text = "", .eos_text = ""};
        struct hearth_chat *chat = (struct hearth_chat *)&params;
        struct hearth_errmsg msg = {""};
        assert_int_equal(hearth_chat_create(&params, &chat, &msg), HEARTH_ERR_TEMPLATE);
        assert_null(chat);
        assert_true(msg.text[0] != '\0');
        assert_null(strchr(msg.text, '\n'));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chatml),
        cmocka_unit_test(test_builtin_format),
        cmocka_unit_test(test_default_system),
        cmocka_unit_test(test_merged_system),
        cmocka_unit_test(test_without_system_role),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_kwargs),
        cmocka_unit_test(test_nul_in_content),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_templates),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
