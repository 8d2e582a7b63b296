/* Pieces of a sliding window: they go out while the sequence is computed, and any position comes back from them.
 *
 * The engine is deterministic, so that bits do not depend on where cells are: the logits behind a prompt that leaves
 * the path at any position are those of one that was computed from nothing. */
#include "models.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"tiny-window"};
static const char *const longer[] = {"gemma3-270m"};

#define BATCH 96 /* pages end inside of batches */
#define PAGES (REAL_PAGES_MAX - 2)

struct walk {
    struct hearth_engine *engine;
    int32_t n;
    hearth_token tokens[PAGES * REAL_PAGE_TOKENS];
    struct real_state pages;
    struct hearth_buf pieces[PAGES]; /* the window of each page */
};

static void export_pieces(struct walk *w, int32_t begin, int32_t end) {
    for (int32_t page = begin / REAL_PAGE_TOKENS; (page + 1) * REAL_PAGE_TOKENS <= end; page++) {
        if (w->pieces[page].len == 0) {
            int32_t p0 = page * REAL_PAGE_TOKENS;
            assert_int_equal(w->engine->ops->window_export(w->engine, 0, p0, p0 + REAL_PAGE_TOKENS, &w->pieces[page]),
                             HEARTH_OK);
        }
    }
}

static void walk_begin(struct walk *w, const char *name) {
    struct hearth_llama_params params;
    real_params(&params, name);
    params.deterministic = true;
    params.ubatch_tokens = 128;
    params.parked_seqs = 0;
    params.lanes = 1; /* a small cache: the window twice, and what is computed at once */
    *w = (struct walk){.engine = real_open_with(&params)};
    const struct hearth_caps *caps = &w->engine->caps;
    assert_int_equal(caps->memory_class, HEARTH_ENGINE_PAGES_SNAPSHOT);
    assert_in_range(caps->window_tokens, REAL_PAGE_TOKENS, PAGES * REAL_PAGE_TOKENS / 2);
    w->n = caps->window_tokens * 3 + 40;
    assert_in_range(w->n, 1, PAGES * REAL_PAGE_TOKENS);
    real_prompt(w->engine, 11, w->tokens, (size_t)w->n);
    for (int32_t at = 0; at < w->n; at += BATCH) {
        int32_t end = at + BATCH < w->n ? at + BATCH : w->n;
        real_decode(w->engine, 0, w->tokens, at, end);
        export_pieces(w, at, end);
    }
    real_export(w->engine, 0, w->n, &w->pages);
}

static void walk_end(struct walk *w) {
    real_state_finish(&w->pages);
    for (size_t i = 0; i < PAGES; i++) {
        hearth_buf_finish(&w->pieces[i]);
    }
    real_close(w->engine);
}

/* A token behind [0, n) that the walk does not have there. */
static float *fork_logits(struct walk *w, int32_t n) {
    hearth_token other = w->tokens[n] == 100 ? 101 : 100;
    return real_logits(w->engine, 0, other, n);
}

static int import_window(struct walk *w, int32_t n) {
    int32_t page = (n - w->engine->caps.window_tokens) / REAL_PAGE_TOKENS;
    int err = HEARTH_OK;
    page = page < 0 ? 0 : page;
    for (bool first = true; err == HEARTH_OK && page * REAL_PAGE_TOKENS < n; page++, first = false) {
        int32_t p0 = page * REAL_PAGE_TOKENS, p1 = p0 + REAL_PAGE_TOKENS;
        err = w->engine->ops->window_import(w->engine, 0, p0, p1 < n ? p1 : n, w->pieces[page].data,
                                            w->pieces[page].len, first);
    }
    return err;
}

static void any_position_comes_back(void **state) {
    struct walk w;
    walk_begin(&w, *state);
    const struct hearth_engine_ops *ops = w.engine->ops;
    const int32_t window = w.engine->caps.window_tokens;
    const int32_t forks[] = {40, window - 3, window + 1, 2 * window + 70,
                             (window / REAL_PAGE_TOKENS + 2) * REAL_PAGE_TOKENS};
    for (size_t i = 0; i < sizeof forks / sizeof forks[0]; i++) {
        ops->seq_clear(w.engine, 0);
        real_decode(w.engine, 0, w.tokens, 0, forks[i]);
        float *want = fork_logits(&w, forks[i]);
        ops->seq_clear(w.engine, 0);
        for (int32_t p0 = 0, k = 0; p0 < forks[i]; p0 += REAL_PAGE_TOKENS, k++) {
            int32_t p1 = p0 + REAL_PAGE_TOKENS;
            assert_int_equal(ops->page_import(w.engine, 0, p0, p1 < forks[i] ? p1 : forks[i], w.pages.page[k].data,
                                              w.pages.page[k].len, p0, p1),
                             HEARTH_OK);
        }
        assert_int_equal(import_window(&w, forks[i]), HEARTH_OK);
        assert_int_equal(ops->seq_rewind_floor(w.engine, 0, forks[i]) <= forks[i], true);
        real_assert_identical(w.engine, want, fork_logits(&w, forks[i]));
    }
    walk_end(&w);
}

/* The pages of a sequence that went on, cut back, and the window of a position that it has left behind. */
static void a_sequence_goes_back(void **state) {
    struct walk w;
    walk_begin(&w, *state);
    const int32_t n = w.engine->caps.window_tokens + 90;
    assert_true(w.engine->ops->seq_rewind_floor(w.engine, 0, w.n) > n);
    assert_int_equal(w.engine->ops->seq_keep(w.engine, 0, n), HEARTH_OK);
    assert_int_equal(import_window(&w, n), HEARTH_OK);
    float *got = fork_logits(&w, n);
    w.engine->ops->seq_clear(w.engine, 0);
    real_decode(w.engine, 0, w.tokens, 0, n);
    real_assert_identical(w.engine, fork_logits(&w, n), got);
    walk_end(&w);
}

/* What the window's cache has overwritten is not exported, and what is no piece of these positions not imported. */
static void what_is_not_there_is_refused(void **state) {
    struct walk w;
    walk_begin(&w, *state);
    struct hearth_buf out = {0};
    assert_int_equal(w.engine->ops->window_export(w.engine, 0, 0, REAL_PAGE_TOKENS, &out), HEARTH_ERR_STATE);
    assert_int_equal(out.len, 0);
    w.engine->ops->seq_clear(w.engine, 0);
    assert_int_equal(w.engine->ops->page_import(w.engine, 0, 0, REAL_PAGE_TOKENS, w.pages.page[0].data,
                                                w.pages.page[0].len, 0, REAL_PAGE_TOKENS),
                     HEARTH_OK);
    assert_int_equal(
        w.engine->ops->window_import(w.engine, 0, 0, REAL_PAGE_TOKENS, w.pieces[1].data, w.pieces[1].len, true),
        HEARTH_ERR_STATE);
    hearth_buf_finish(&out);
    walk_end(&w);
}

static void sizes_are_as_promised(void **state) {
    struct walk w;
    walk_begin(&w, *state);
    size_t promised = w.engine->caps.window_bytes_per_token * REAL_PAGE_TOKENS;
    assert_in_range(w.pieces[1].len, promised - promised / 8, promised + promised / 8 + 4096);
    walk_end(&w);
}

int main(int argc, char **argv) {
    const bool whole = argc == 2 && strcmp(argv[1], "long") == 0;
    const char *const *models = whole ? longer : names;
    void *name = (void *)(uintptr_t)models[0];
    const struct CMUnitTest tests[] = {
        {"any position comes back", any_position_comes_back, NULL, NULL, name},
        {"a sequence goes back", a_sequence_goes_back, NULL, NULL, name},
        {"what is not there is refused", what_is_not_there_is_refused, NULL, NULL, name},
        {"sizes are as promised", sizes_are_as_promised, NULL, NULL, name},
    };
    return real_exit(cmocka_run_group_tests(tests, NULL, NULL), models, 1);
}
