/* A template that rewrites history: thinking is printed for the replies since the last question, and taken out of those
 * before. On every memory class that costs the text of the reply in question at the most, and with --keep-thinking or
 * in a session nothing at all. */
#include "support/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TURNS 6
#define HEADER_TOKENS 24 /* "<|im_start|>assistant\n" in sim's tokens, and a little */

static const char forgets[] =
    "{%- set ns = namespace(last=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}"
    "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{- m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

/* The last message ends otherwise than those before it, as results of calls do in Hermes-2-Pro's template. */
static const char ends_otherwise[] =
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{%- for c in m.tool_calls or [] %}{{- c.function.name }}{%- endfor %}"
    "{%- if not loop.last and m.role != 'assistant' %}{{- '\\n' }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

static void write_script(char *out, size_t cap) {
    size_t len = 0;
    for (int i = 0; i < TURNS; i++) {
        len += (size_t)snprintf(out + len, cap - len,
                                "{\"when\": {\"last\": \"#%d#\"}, \"bytes\": true, \"reply\": \"<think>\\nThe question "
                                "was number %d, and it takes some thought to say so.\\n</think>\\n\\nThis was question "
                                "%d.\"}\n",
                                i, i, i);
        assert_true(len < cap);
    }
}

enum manner {
    REWRITTEN,       /* answers are sent back as they came */
    KEPT,            /* likewise, with --keep-thinking */
    NAMED,           /* in a session, only what is new is sent */
    NAMED_WHOLE,     /* in a session, everything is sent */
    NAMED_FORGOTTEN, /* as NAMED, and the transcripts remember nothing: the store's tokens stand alone */
};

/* Questions and answers. */
static void converse(enum hearth_engine_class memory_class, enum manner manner) {
    char script[4096];
    struct stage_options options;
    struct stage stage;
    write_script(script, sizeof script);
    stage_options_default(&options);
    options.sim.memory_class = memory_class;
    options.script = script;
    options.api.keep_thinking = manner == KEPT;
    options.api.transcript_bytes = manner == NAMED_FORGOTTEN ? 0 : options.api.transcript_bytes;
    options.chat_template = forgets;
    stage_open(&stage, &options);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "system", "content", "You count questions.");
    json_int_t prompt_before = 0, state_before = 0;
    for (int i = 0; i < TURNS; i++) {
        char question[160];
        int status;
        snprintf(question, sizeof question, "Here is a question of some length, and it is number #%d#", i);
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", question));
        json_t *body = json_pack("{s:O, s:s?}", "messages", messages, "session_id", manner >= NAMED ? "s" : NULL);
        char *text = json_dumps(body, 0);
        json_t *answer = stage_call(&stage, "POST", "/v1/chat/completions", text, &status);
        assert_int_equal(status, 200);
        assert_true(strlen(json_str(answer, "choices.0.message.reasoning_content")) > 20);
        json_int_t prompt = json_num(answer, "usage.prompt_tokens"), computed = json_num(answer, "hearth.computed");
        if (manner != REWRITTEN) {
            assert_true(computed <= prompt - state_before);
        } else if (i > 0) {
            assert_true(computed <= prompt - prompt_before + HEADER_TOKENS);
            assert_string_equal(json_str(answer, "hearth.divergence.cause"), "rendered_differently");
        }
        prompt_before = prompt;
        state_before = prompt + json_num(answer, "usage.completion_tokens") - 1;
        if (manner == NAMED || manner == NAMED_FORGOTTEN) {
            json_array_clear(messages);
        } else {
            json_array_append(messages, json_at(answer, "choices.0.message"));
        }
        json_decref(answer);
        json_decref(body);
        free(text);
    }
    json_decref(messages);
    stage_close(&stage);
}

static void converse_on_all(enum manner manner) {
    converse(HEARTH_ENGINE_PAGES, manner);
    converse(HEARTH_ENGINE_PAGES_SNAPSHOT, manner);
    converse(HEARTH_ENGINE_SNAPSHOT, manner);
    converse(HEARTH_ENGINE_OPAQUE, manner);
}

static void the_template_wins(void **state) {
    (void)state;
    converse_on_all(REWRITTEN);
}

static void thinking_can_be_kept(void **state) {
    (void)state;
    converse_on_all(KEPT);
}

static void a_session_knows_its_tokens(void **state) {
    (void)state;
    converse_on_all(NAMED);
    converse_on_all(NAMED_WHOLE);
    converse_on_all(NAMED_FORGOTTEN);
}

/* Turns whose prompts end in what the next one prints otherwise; `calls`: with calls and their results, or questions
 * and answers that the client has made up. What was computed before that end is there still. */
static void converse_otherwise(enum hearth_engine_class memory_class, bool calls) {
    struct stage_options options;
    struct stage stage;
    stage_options_default(&options);
    options.sim.memory_class = memory_class;
    options.chat_template = ends_otherwise;
    stage_open(&stage, &options);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "Here is a question of some length.");
    json_int_t prompt_before = 0;
    for (int i = 0; i < TURNS; i++) {
        int status;
        json_t *body = json_pack("{s:O, s:i}", "messages", messages, "max_tokens", 4);
        char *text = json_dumps(body, 0);
        json_t *answer = stage_call(&stage, "POST", "/v1/chat/completions", text, &status);
        assert_int_equal(status, 200);
        json_int_t prompt = json_num(answer, "usage.prompt_tokens"), computed = json_num(answer, "hearth.computed");
        assert_true(i == 0 || computed <= prompt - prompt_before + HEADER_TOKENS);
        prompt_before = prompt;
        if (calls) {
            json_array_append_new(messages, json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:s}}]}", "role", "assistant",
                                                      "content", "", "tool_calls", "id", "c", "type", "function",
                                                      "function", "name", "look", "arguments", "{}"));
            json_array_append_new(messages, json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", "c", "content",
                                                      "There is nothing to be seen here, however long one looks."));
        } else {
            json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant", "content", "So it is."));
            json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content",
                                                      "And here is another one, which asks for nothing either."));
        }
        json_decref(answer);
        json_decref(body);
        free(text);
    }
    json_decref(messages);
    stage_close(&stage);
}

static void ends_may_change(void **state) {
    (void)state;
    for (int calls = 0; calls < 2; calls++) {
        converse_otherwise(HEARTH_ENGINE_PAGES, calls);
        converse_otherwise(HEARTH_ENGINE_PAGES_SNAPSHOT, calls);
        converse_otherwise(HEARTH_ENGINE_SNAPSHOT, calls);
        converse_otherwise(HEARTH_ENGINE_OPAQUE, calls);
    }
}

/* Lines that change with every request are named, and can be taken out. */
static void lines_can_be_stripped(void **state) {
    (void)state;
    for (int strip = 0; strip < 2; strip++) {
        const char *lines[] = {"^x-billing-header: .*"};
        struct stage_options options;
        struct stage stage;
        stage_options_default(&options);
        options.api.strip_lines = lines;
        options.api.strip_line_count = (size_t)strip;
        stage_open(&stage, &options);
        for (int i = 0; i < 2; i++) {
            char body[512];
            int status;
            snprintf(
                body, sizeof body,
                "{\"max_tokens\":4,\"messages\":[{\"role\":\"system\",\"content\":\"x-billing-header: v=%d; q=7\\nYou "
                "are a careful agent, and this text is the same in every request.\"},"
                "{\"role\":\"user\",\"content\":\"Hello\"}]}",
                1000 + i * 37);
            json_t *answer = stage_call(&stage, "POST", "/v1/chat/completions", body, &status);
            assert_int_equal(status, 200);
            if (i == 1 && strip) {
                assert_int_equal(json_num(answer, "hearth.computed"), 1);
            } else if (i == 1) {
                assert_string_equal(json_str(answer, "hearth.divergence.cause"), "volatile_line");
                assert_string_equal(json_str(answer, "hearth.divergence.line"), "x-billing-header: v=1037; q=7");
                assert_string_equal(json_str(answer, "hearth.divergence.field"), "system");
            }
            json_decref(answer);
        }
        stage_close(&stage);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_template_wins), cmocka_unit_test(thinking_can_be_kept),
                                       cmocka_unit_test(a_session_knows_its_tokens), cmocka_unit_test(ends_may_change),
                                       cmocka_unit_test(lines_can_be_stripped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
