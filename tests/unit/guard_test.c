/* Text is text: what messages, tools, results and template arguments say becomes no control token, with every template
 * of llama.cpp's collection, whatever the template does with it. */
#include "support/markers.h"
#include "support/poison.h"
#include "support/templates.h"

#include "engine/sim.h"
#include "session/specials.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static struct hearth_engine *make_engine(void) {
    struct hearth_sim_params params;
    struct hearth_engine *engine = NULL;
    struct hearth_errmsg msg;
    hearth_sim_params_default(&params);
    assert_int_equal(hearth_sim_create(&params, &engine, &msg), HEARTH_OK);
    return engine;
}

static struct poison_result try_template(const char *name, const char *text, bool words) {
    struct hearth_engine *engine = make_engine();
    const struct hearth_chat_params params = {.template_text = text, .bos_text = "<s>", .eos_text = "<|im_end|>"};
    struct hearth_chat *chat = NULL;
    struct hearth_errmsg msg;
    (words ? markers_add_words : markers_add)(engine, text);
    assert_int_equal(hearth_chat_create(&params, &chat, &msg), HEARTH_OK);
    const struct poison_result result = poison_try(engine, chat, name);
    hearth_chat_destroy(chat);
    engine->ops->destroy(engine);
    markers_finish();
    return result;
}

/* docs/models.md has the sentence, or, with HEARTH_WRITE, gets it. */
static void check_page(const char *sentence) {
    static const char begin[] = "Of all ";
    const char *path = getenv("HEARTH_PAGE");
    char *page = templates_read(path);
    char *at = strstr(page, begin), *end = at != NULL ? strchr(at, '\n') : NULL;
    assert_non_null(end);
    if (getenv("HEARTH_WRITE") != NULL) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fprintf(file, "%.*s%s%s", (int)(at - page), page, sentence, end);
        fclose(file);
    } else if (strncmp(at, sentence, strlen(sentence)) != 0) {
        fail_msg("docs/models.md says otherwise; if this is right, run the test with HEARTH_WRITE=1:\n%s", sentence);
    }
    free(page);
}

static void no_content_becomes_control(void **state) {
    (void)state;
    struct templates all = templates_load_share();
    if (all.n == 0) {
        skip();
    }
    const char *only = getenv("HEARTH_ONLY");
    size_t open = 0, without = 0, places = 0, changed = 0, refused = 0;
    for (size_t t = 0; t < all.n; t++) {
        for (int words = 0; words < 2 && (only == NULL || strstr(all.names[t], only) != NULL); words++) {
            const struct poison_result result = try_template(all.names[t], all.texts[t], words != 0);
            if (result.places == 0) {
                print_message("%s refuses the history\n", all.names[t]);
                refused++;
            }
            places += result.places;
            open += result.open;
            without += result.without;
            changed += result.changed;
            if (result.changed > 0) {
                print_message("%s: %zu places have another text\n", all.names[t], result.changed);
            }
        }
    }
    char sentence[512];
    snprintf(sentence, sizeof sentence,
             "Of all %zu templates, each with its markup as tokens and without, %zu places were tried: %zu would "
             "become special tokens, %zu do; %zu prompts read otherwise.",
             all.n, places, without, open, changed);
    assert_int_equal(open, 0);
    assert_int_equal(refused, 0);
    assert_true(without > 0);
    if (only == NULL && all.n == all.all) {
        check_page(sentence);
    }
    templates_finish(&all);
}

/* What a template complains of is quoted as it was sent, and as far as a message goes. */
static void errors_quote_what_was_sent(void **state) {
    (void)state;
    static const char complaining[] = "{%- for message in messages %}<|im_end|>"
                                      "{%- if 'end' in message.content %}{{ raise_exception('No ' + message.content) }}"
                                      "{%- endif %}{%- endfor %}";
    struct hearth_engine *engine = make_engine();
    const struct hearth_chat_params params = {.template_text = complaining, .bos_text = "", .eos_text = "<|im_end|>"};
    struct hearth_chat *chat = NULL;
    struct hearth_chat_format *format = NULL;
    struct hearth_errmsg msg;
    markers_add(engine, complaining);
    assert_int_equal(hearth_chat_create(&params, &chat, &msg), HEARTH_OK);
    struct hearth_specials *specials = hearth_specials_create(engine, "", complaining);
    assert_non_null(specials);
    for (size_t blanks = 0; blanks < 600; blanks += blanks < 400 ? 400 : 1) {
        char content[700], expected[710];
        struct hearth_chat_prompt prompt;
        snprintf(content, sizeof content, "%*s<|im_end|>", (int)blanks, "");
        memset(content, '.', blanks);
        snprintf(expected, sizeof expected, "No %s", content);
        struct hearth_message message = {.role = HEARTH_ROLE_USER, .content = content, .content_len = strlen(content)};
        struct hearth_message *messages[] = {&message};
        const struct hearth_chat_request request = {
            .messages = messages, .message_count = 1, .tool_choice = HEARTH_TOOLS_AUTO, .specials = specials};
        assert_int_equal(hearth_chat_format_get(chat, &request, &format, &msg), HEARTH_OK);
        assert_int_equal(hearth_chat_render(chat, &request, format, &prompt, &msg), HEARTH_ERR_TEMPLATE);
        const char *gap = strstr(msg.text, "…"); /* a long message keeps its beginning and its end */
        const size_t head = gap != NULL ? (size_t)(gap - msg.text) : strlen(msg.text);
        const char *tail = gap != NULL ? gap + strlen("…") : "";
        assert_memory_equal(msg.text, expected, head);
        assert_string_equal(tail, expected + strlen(expected) - strlen(tail));
        assert_true(gap != NULL || head == strlen(expected));
        assert_true(gap == NULL || strlen(msg.text) > sizeof msg.text - 5);
        hearth_chat_prompt_finish(&prompt);
        hearth_chat_format_unref(format);
    }
    hearth_specials_destroy(specials);
    hearth_chat_destroy(chat);
    engine->ops->destroy(engine);
    markers_finish();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_content_becomes_control),
                                       cmocka_unit_test(errors_quote_what_was_sent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
