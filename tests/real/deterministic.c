/* --deterministic on real models: the logits behind a prompt are the same to the bit, however the prompt was split,
 * with another sequence computed in the same batches, wherever its cells are, and behind state that was taken out and
 * brought back. */
#include "models.h"

#include "base/buf.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"smollm2", "tiny-window", "tiny-hybrid", "mamba"};
static const char *const longer[] = {"gemma3-270m", "hybrid"};

#define PROMPT 130

/* [begin, end) of a sequence in batches of at most `most`, each with a few tokens of another sequence in front. */
static void compute(struct hearth_engine *engine, const hearth_token *tokens, int32_t begin, int32_t end, int32_t most,
                    int32_t beside, int32_t *other) {
    struct hearth_batch_item items[PROMPT] = {{0}};
    for (int32_t at = begin; at < end;) {
        size_t n = 0;
        for (int32_t i = 0; i < beside; i++, ++*other) {
            items[n++] = (struct hearth_batch_item){.token = tokens[(*other * 7) % PROMPT], .seq = 1, .pos = *other};
        }
        for (int32_t i = 0; i < most && at < end; i++, at++) {
            items[n++] = (struct hearth_batch_item){.token = tokens[at], .seq = 0, .pos = at};
        }
        assert_int_equal(engine->ops->decode(engine, items, n), HEARTH_OK);
    }
}

static float *last_logits(struct hearth_engine *engine, const hearth_token *tokens) {
    return real_logits(engine, 0, tokens[PROMPT - 1], PROMPT - 1);
}

static float *copy_row(struct hearth_engine *engine, const float *row) {
    const size_t bytes = engine->caps.vocab_tokens * sizeof *row;
    float *copy = malloc(bytes);
    assert_non_null(copy);
    return memcpy(copy, row, bytes);
}

static void splits_are_one(void **state) {
    static const struct {
        int32_t most, beside;
    } splits[] = {{37, 0}, {64, 3}};
    struct hearth_engine *engine = real_open_deterministic(*state);
    hearth_token tokens[PROMPT];
    int32_t other = 0;
    real_prompt(engine, 5, tokens, PROMPT);
    compute(engine, tokens, 0, PROMPT - 1, 100, 0, &other);
    float *want = last_logits(engine, tokens);
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        engine->ops->seq_clear(engine, 0);
        engine->ops->seq_clear(engine, 1);
        other = 0;
        compute(engine, tokens, 0, PROMPT - 1, splits[i].most, splits[i].beside, &other);
        real_assert_identical(engine, copy_row(engine, want), last_logits(engine, tokens));
    }
    free(want);
    real_close(engine);
}

/* Its first tokens stand behind another sequence's, which then leaves, so that the next ones stand in front. */
static void places_are_one(void **state) {
    enum { FIRST = 20, OTHER = 100 };
    struct hearth_engine *engine = real_open_deterministic(*state);
    hearth_token tokens[PROMPT];
    int32_t other = 0;
    real_prompt(engine, 7, tokens, PROMPT);
    compute(engine, tokens, 0, PROMPT - 1, 100, 0, &other);
    float *want = last_logits(engine, tokens);
    engine->ops->seq_clear(engine, 0);
    while (other < OTHER) {
        const struct hearth_batch_item item = {.token = tokens[other * 3 % PROMPT], .seq = 1, .pos = other};
        assert_int_equal(engine->ops->decode(engine, &item, 1), HEARTH_OK);
        other++;
    }
    compute(engine, tokens, 0, FIRST, 10, 1, &other);
    engine->ops->seq_clear(engine, 1);
    other = 0;
    compute(engine, tokens, FIRST, PROMPT - 1, 15, 1, &other);
    real_assert_identical(engine, want, last_logits(engine, tokens));
    real_close(engine);
}

/* State of another split, brought back behind cells that another sequence holds. */
static void state_is_the_same(void **state) {
    enum { KEPT = 64 };
    struct hearth_engine *engine = real_open_deterministic(*state);
    struct real_state kept = {0};
    hearth_token tokens[PROMPT];
    int32_t other = 0;
    real_prompt(engine, 6, tokens, PROMPT);
    compute(engine, tokens, 0, PROMPT - 1, 100, 0, &other);
    float *want = last_logits(engine, tokens);
    engine->ops->seq_clear(engine, 0);
    compute(engine, tokens, 0, KEPT, 50, 2, &other);
    real_export(engine, 0, KEPT, &kept);
    engine->ops->seq_clear(engine, 0);
    real_import(engine, 0, &kept, KEPT, &kept.snapshot);
    compute(engine, tokens, KEPT, PROMPT - 1, 90, 1, &other);
    real_assert_identical(engine, want, last_logits(engine, tokens));
    real_state_finish(&kept);
    real_close(engine);
}

/* With "long": on the models that take longer. */
int main(int argc, char **argv) {
    const bool whole = argc == 2 && strcmp(argv[1], "long") == 0;
    const char *const *models = whole ? longer : names;
    const size_t n = whole ? sizeof longer / sizeof longer[0] : sizeof names / sizeof names[0];
    struct CMUnitTest tests[3 * sizeof names / sizeof names[0]];
    for (size_t i = 0; i < n; i++) {
        void *name = (void *)(uintptr_t)models[i];
        tests[3 * i] = (struct CMUnitTest){.name = models[i], .test_func = splits_are_one, .initial_state = name};
        tests[3 * i + 1] = (struct CMUnitTest){.name = models[i], .test_func = places_are_one, .initial_state = name};
        tests[3 * i + 2] =
            (struct CMUnitTest){.name = models[i], .test_func = state_is_the_same, .initial_state = name};
    }
    return real_exit(_cmocka_run_group_tests("deterministic", tests, 3 * n, NULL, NULL), models, n);
}
