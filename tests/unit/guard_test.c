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

static void no_content_becomes_control(void **state) {
    (void)state;
    struct templates all = templates_load();
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
    print_message("%zu templates, %zu places: %zu open, %zu without guards, %zu other texts, %zu refused\n", all.n,
                  places, open, without, changed, refused);
    assert_int_equal(open, 0);
    assert_true(without > 0 && places > 0);
    templates_finish(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_content_becomes_control)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
