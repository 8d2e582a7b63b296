/* Which template arguments a template looks at. */
#include "chat/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void words_of_the_template_are_read(void **state) {
    static const struct {
        const char *text, *argument;
        bool read;
    } rows[] = {
        {"{%- if false %}{{ mood }}{% endif %}", "mood", true},
        {"{{ moody }}", "mood", false},
        {"{{ my_mood }}", "mood", false},
        {"{{ moody }}{{ mood }}", "mood", true},
        {"{{ reasoning_effort }}", "reasoning_effort", true},
        {"{{ reasoning_strength }}", "reasoning_effort", true},
        {"{{ clear_thinking }}", "preserve_reasoning", true},
        {"{{ clear_thinking }}", "reasoning_effort", false},
        {"{{ mood }}", "", false},
        {NULL, "reasoning_effort", false},
        {"llama3", "messages", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct hearth_chat_params params = {.template_text = rows[i].text, .bos_text = "", .eos_text = ""};
        struct hearth_chat *chat;
        struct hearth_errmsg msg;
        assert_int_equal(hearth_chat_create(&params, &chat, &msg), HEARTH_OK);
        assert_int_equal(hearth_chat_reads(chat, rows[i].argument), rows[i].read);
        hearth_chat_destroy(chat);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(words_of_the_template_are_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
