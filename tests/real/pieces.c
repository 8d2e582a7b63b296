/* Text tokenised in pieces, as the transcripts do, gives the tokens of the whole text: on real tokenizers, with
 * templates whose marks are control tokens and with one whose marks are not. */
#include "models.h"

#include "session/specials.h"
#include "support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"tiny", "tiny-gemma"};

static const char *const bits[] = {
    "The quick brown fox",
    " jumps",
    "\n",
    "\n\n",
    "    return x;\n",
    "{\"path\": \"a/b.c\", \"n\": 12}",
    "```python\n",
    "def f(a, b):\n",
    "\t",
    "  ",
    ".",
    "<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
    "<start_of_turn>user\n",
    "<end_of_turn>\n",
    "caf\xC3\xA9 ",
    "\xE6\x96\x87\xE5\xAD\x97",
    "\xF0\x9F\x98\x80",
    "'s",
    " 1,234.56",
    "# Heading\n",
    "- item\n",
    "<div class=\"x\">\n",
    "</tool_call>",
    "\r\n",
    "https://example.com/a?b=c#d",
    "\n \n",
    "\n}",
    "== != <= >=",
    "\"\"\"",
    "\\n\\t",
    "a\nb\nc",
    "|---|---|\n",
    "[1]: x\n",
};

#define ROUNDS 150

static void append_random(struct rng *rng, struct hearth_buf *text) {
    size_t pieces = 20 + rng_below(rng, 400);
    text->len = 0;
    for (size_t i = 0; i < pieces; i++) {
        assert_true(hearth_buf_text(text, bits[rng_below(rng, sizeof bits / sizeof bits[0])]));
    }
}

static size_t tokens_in_pieces(struct hearth_engine *engine, struct hearth_specials *specials, const char *text,
                               size_t len, struct hearth_tokens *out) {
    size_t pieces = 0;
    for (size_t pos = 0, end; pos < len; pos = end, pieces++) {
        end = hearth_specials_next(specials, text, len, pos + 1);
        assert_int_equal(engine->ops->tokenize(engine, text + pos, end - pos, pos == 0, true, out), HEARTH_OK);
    }
    return pieces;
}

static void pieces_are_the_whole(struct hearth_engine *engine, const char *turn_end) {
    /* With HEARTH_SHARE=N an Nth of the rounds. */
    const char *text_of_share = getenv("HEARTH_SHARE");
    const size_t share = text_of_share != NULL ? (size_t)atoi(text_of_share) : 1;
    struct rng rng = {seed_announced(11)};
    struct hearth_specials *specials = hearth_specials_create(engine, turn_end, NULL);
    struct hearth_buf text = {0};
    struct hearth_tokens whole = {0}, parts = {0};
    size_t pieces = 0;
    assert_non_null(specials);
    for (size_t i = 0; i < ROUNDS / share; i++) {
        append_random(&rng, &text);
        whole.n = parts.n = 0;
        assert_int_equal(engine->ops->tokenize(engine, (const char *)text.data, text.len, true, true, &whole),
                         HEARTH_OK);
        pieces += tokens_in_pieces(engine, specials, (const char *)text.data, text.len, &parts);
        assert_int_equal(parts.n, whole.n);
        assert_memory_equal(parts.v, whole.v, whole.n * sizeof *whole.v);
    }
    assert_true(pieces > ROUNDS / share); /* text was really cut */
    hearth_tokens_finish(&whole);
    hearth_tokens_finish(&parts);
    hearth_buf_finish(&text);
    hearth_specials_destroy(specials);
}

static void on_chatml(void **state) {
    struct hearth_engine *engine = real_open(*state);
    pieces_are_the_whole(engine, "<|im_end|>\n");
    real_close(engine);
}

static void on_gemma(void **state) {
    struct hearth_engine *engine = real_open(*state);
    pieces_are_the_whole(engine, "<end_of_turn>\n");
    real_close(engine);
}

#define ON(test, model) {#test " with " model, test, NULL, NULL, (void *)(uintptr_t)model}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON(on_chatml, "tiny"),
        ON(on_gemma, "tiny"),
        ON(on_chatml, "tiny-gemma"), /* no control tokens of its vocabulary: between lines */
        ON(on_gemma, "tiny-gemma"),
    };
    return real_exit(cmocka_run_group_tests(tests, NULL, NULL), names, sizeof names / sizeof names[0]);
}
