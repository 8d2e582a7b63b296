/* State out and back, on every class: the logits after it are those before it, to the bit.
 *
 * Bits are only comparable where the same cells hold the same tokens and the same batches computed them. So each test
 * fills an empty context from the front, keeps the splits, and computes the compared token in a batch of its own. The
 * tests on one model share its engine and one walk over the prompt, whose state none of them changes. */
#include "models.h"

#include <stdlib.h>
#include <string.h>

#define MIDDLE 100 /* inside the second page */
#define END 180    /* the third page is a short one */
#define CONTINUED 64
/* END + CONTINUED stays below 256: llama.cpp computes attention over cells in steps of 256, and a restored window (128
 * positions in the opaque model) takes fewer cells than the original, so behind that the layouts differ. */

static const char *const names[] = {"smollm2", "tiny-window", "tiny-hybrid", "mamba",
                                    "opaque",  "gemma3-270m", "hybrid"};

/* One walk over the prompt, with everything that the restores are compared with. */
struct walk {
    const char *name;
    struct hearth_engine *engine; /* NULL: of no model */
    hearth_token prompt[END + CONTINUED];
    struct real_state state; /* of [0, END) */
    struct hearth_buf middle;
    float *at_middle, *at_end;
    bool live; /* the sequence stands behind at_end, as the walk has left it */
};
static struct walk shared;

static int walk_finish(void **state) {
    (void)state;
    if (shared.engine != NULL) {
        real_state_finish(&shared.state);
        hearth_buf_finish(&shared.middle);
        free(shared.at_middle);
        free(shared.at_end);
        real_close(shared.engine);
        shared = (struct walk){.engine = NULL};
    }
    return 0;
}

/* The walk on this model, which is taken once; then its sequence is empty. */
static struct walk *walk_live(const char *name) {
    struct walk *w = &shared;
    if (w->engine != NULL && strcmp(w->name, name) == 0) {
        return w;
    }
    walk_finish(NULL);
    w->engine = real_open(name);
    w->name = name;
    real_prompt(w->engine, 1, w->prompt, END + 1);
    real_decode(w->engine, 0, w->prompt, 0, MIDDLE);
    real_export_snapshot(w->engine, 0, MIDDLE, &w->middle);
    w->at_middle = real_logits(w->engine, 0, w->prompt[MIDDLE], MIDDLE);
    real_decode(w->engine, 0, w->prompt, MIDDLE + 1, END);
    real_export(w->engine, 0, END, &w->state);
    w->at_end = real_logits(w->engine, 0, w->prompt[END], END);
    w->live = true;
    return w;
}

static struct walk *walk(const char *name) {
    struct walk *w = walk_live(name);
    w->engine->ops->seq_clear(w->engine, 0);
    w->live = false;
    return w;
}

/* The logits of a token behind what was imported are those of the walk. */
static void assert_row(const struct walk *w, const float *want, int32_t at) {
    float *copy = malloc(w->engine->caps.vocab_tokens * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, want, w->engine->caps.vocab_tokens * sizeof *copy);
    real_assert_identical(w->engine, copy, real_logits(w->engine, 0, w->prompt[at], at));
}

static void everything_comes_back(void **state) {
    struct walk *w = walk(*state);
    real_import(w->engine, 0, &w->state, END, &w->state.snapshot);
    assert_row(w, w->at_end, END);
}

static void part_of_a_page_comes_back(void **state) {
    struct walk *w = walk(*state);
    real_import(w->engine, 0, &w->state, MIDDLE, &w->middle);
    assert_row(w, w->at_middle, MIDDLE);
}

/* A different history must give different logits, or none of the comparisons above would prove anything. */
static void history_matters(void **state) {
    struct walk *w = walk(*state);
    hearth_token other[MIDDLE];
    memcpy(other, w->prompt, sizeof other);
    for (int i = 20; i < MIDDLE - 10; i++) {
        other[i] = w->prompt[i + 7];
    }
    real_decode(w->engine, 0, other, 0, MIDDLE);
    float *row = real_logits(w->engine, 0, w->prompt[MIDDLE], MIDDLE);
    assert_true(real_difference(w->engine, row, w->at_middle) > 0.01f);
    free(row);
}

/* First of all tests on a model: the sequence goes on as the walk has left it. */
static void continuation_is_the_same(void **state) {
    struct walk *w = walk_live(*state);
    assert_true(w->live);
    float *want[CONTINUED] = {NULL};
    hearth_token token[CONTINUED + 1];
    token[0] = real_best(w->engine, w->at_end);
    for (int32_t i = 0; i < CONTINUED; i++) {
        want[i] = real_logits(w->engine, 0, token[i], END + 1 + i);
        token[i + 1] = real_best(w->engine, want[i]);
    }

    (void)walk(*state);
    real_import(w->engine, 0, &w->state, END, &w->state.snapshot);
    float *row = real_logits(w->engine, 0, w->prompt[END], END);
    hearth_token next = real_best(w->engine, row);
    free(row);
    for (int32_t i = 0; i < CONTINUED; i++) {
        assert_int_equal(next, token[i]);
        row = real_logits(w->engine, 0, next, END + 1 + i);
        next = real_best(w->engine, row);
        real_assert_identical(w->engine, want[i], row);
    }
}

/* Exports change nothing: the same bytes come out twice, and the sequence goes on as if nothing had happened. */
static void exporting_is_repeatable(void **state) {
    struct walk *w = walk(*state);
    struct real_state again = {0};
    real_import(w->engine, 0, &w->state, END, &w->state.snapshot);
    real_export(w->engine, 0, END, &again);
    for (size_t i = 0; i < REAL_PAGES_MAX; i++) {
        assert_int_equal(again.page[i].len, w->state.page[i].len);
        if (again.page[i].len > 0) {
            assert_memory_equal(again.page[i].data, w->state.page[i].data, again.page[i].len);
        }
    }
    assert_int_equal(again.snapshot.len, w->state.snapshot.len);
    assert_row(w, w->at_end, END);
    real_state_finish(&again);
}

/* What the capabilities promise about sizes is what blobs have. */
static void sizes_are_as_promised(void **state) {
    const struct walk *w = walk(*state);
    const struct hearth_caps *caps = &w->engine->caps;
    if (hearth_caps_has_pages(caps)) {
        size_t bytes = w->state.page[0].len, promised = caps->page_bytes_per_token * REAL_PAGE_TOKENS;
        assert_in_range(bytes, promised, promised + promised / 8 + 4096);
    }
    if (caps->memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT || caps->memory_class == HEARTH_ENGINE_SNAPSHOT) {
        assert_in_range(w->state.snapshot.len, 1, caps->snapshot_bytes + caps->snapshot_bytes / 50);
    }
}

static void classes_are_as_expected(void **state) {
    static const struct {
        const char *name;
        enum hearth_engine_class memory_class;
    } expected[] = {{"smollm2", HEARTH_ENGINE_PAGES},
                    {"gemma3-270m", HEARTH_ENGINE_PAGES_SNAPSHOT},
                    {"tiny-window", HEARTH_ENGINE_PAGES_SNAPSHOT},
                    {"tiny-hybrid", HEARTH_ENGINE_PAGES_SNAPSHOT},
                    {"hybrid", HEARTH_ENGINE_PAGES_SNAPSHOT},
                    {"mamba", HEARTH_ENGINE_SNAPSHOT},
                    {"opaque", HEARTH_ENGINE_OPAQUE}};
    const struct walk *w = walk(*state);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        if (strcmp(expected[i].name, *state) == 0) {
            assert_int_equal(w->engine->caps.memory_class, expected[i].memory_class);
        }
    }
}

/* A model that can do pages can also be kept as one blob; here with all cores at work. */
static void forced_opaque_comes_back(void **state) {
    struct hearth_llama_params params;
    real_params(&params, *state);
    params.force_opaque = true;
    params.threads = 0;
    struct hearth_engine *engine = real_open_with(&params);
    assert_int_equal(engine->caps.memory_class, HEARTH_ENGINE_OPAQUE);
    hearth_token prompt[MIDDLE + 1];
    real_prompt(engine, 2, prompt, MIDDLE + 1);
    real_decode(engine, 0, prompt, 0, MIDDLE);
    struct hearth_buf blob = {0};
    assert_int_equal(engine->ops->snapshot_export(engine, 0, MIDDLE, &blob), HEARTH_OK);
    float *want = real_logits(engine, 0, prompt[MIDDLE], MIDDLE);
    engine->ops->seq_clear(engine, 0);
    assert_int_equal(engine->ops->snapshot_import(engine, 0, MIDDLE, blob.data, blob.len), HEARTH_OK);
    real_assert_identical(engine, want, real_logits(engine, 0, prompt[MIDDLE], MIDDLE));
    hearth_buf_finish(&blob);
    real_close(engine);
}

#define ON(test, model) {#test " on " model, test, NULL, NULL, (void *)(uintptr_t)model}
#define ALL_ON(model)                                                                                               \
    ON(continuation_is_the_same, model), ON(classes_are_as_expected, model), ON(everything_comes_back, model),      \
        ON(part_of_a_page_comes_back, model), ON(exporting_is_repeatable, model), ON(sizes_are_as_promised, model), \
        ON(history_matters, model)

/* With "long": those that take longer. */
int main(int argc, char **argv) {
    const bool whole = argc == 2 && strcmp(argv[1], "long") == 0;
    const struct CMUnitTest tests[] = {
        ALL_ON("smollm2"),     ON(forced_opaque_comes_back, "smollm2"),
        ALL_ON("tiny-window"), ON(forced_opaque_comes_back, "tiny-window"),
        ALL_ON("tiny-hybrid"), ON(forced_opaque_comes_back, "tiny-hybrid"),
        ALL_ON("mamba"),       ALL_ON("opaque"),
    };
    const struct CMUnitTest longer[] = {
        ALL_ON("gemma3-270m"),
        ON(forced_opaque_comes_back, "gemma3-270m"),
        ALL_ON("hybrid"),
        ON(forced_opaque_comes_back, "hybrid"),
        ON(forced_opaque_comes_back, "mamba"),
        ON(forced_opaque_comes_back, "opaque"),
    };
    const int failed =
        whole ? cmocka_run_group_tests(longer, NULL, walk_finish) : cmocka_run_group_tests(tests, NULL, walk_finish);
    return real_exit(failed, names, sizeof names / sizeof names[0]);
}
