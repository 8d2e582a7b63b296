/* Sequences: sharing, truncating, rewinding inside a sliding window, lanes that decode together.
 *
 * Where the layout of cells is the same as in the run compared with, logits must be equal to the bit. Where it cannot
 * be (a full window, interleaved lanes), they must differ by no more than a few times what another split of the same
 * prompt into batches changes: the model's own noise. */
#include "models.h"

#include <stdlib.h>
#include <string.h>

#define PROMPT 160

static const char *const names[] = {"tiny",  "smollm2", "gemma3-270m", "hybrid",
                                    "mamba", "opaque",  "tiny-window", "tiny-hybrid"};

/* The model's noise: the same token behind the same prompt, computed from two splits. The second ends with single
 * tokens, which other kernels compute than batches. */
static float noise(struct hearth_engine *engine, const hearth_token *prompt, int32_t n) {
    float *row[2];
    for (int32_t run = 0; run < 2; run++) {
        engine->ops->seq_clear(engine, 0);
        for (int32_t p = 0; p < n;) {
            int32_t step = run == 0 ? 100 : p < n - 24 ? 37 : 1;
            int32_t end = p + step < n ? p + step : n;
            real_decode(engine, 0, prompt, p, end);
            p = end;
        }
        row[run] = real_logits(engine, 0, prompt[n], n);
    }
    engine->ops->seq_clear(engine, 0);
    float difference = real_difference(engine, row[0], row[1]);
    free(row[0]);
    free(row[1]);
    return difference;
}

static void assert_close(struct hearth_engine *engine, float *want, float *got, float allowed) {
    float difference = real_difference(engine, want, got);
    free(want);
    free(got);
    if (difference > allowed) {
        fail_msg("logits differ by up to %g, %g is noise", (double)difference, (double)allowed);
    }
}

/* A fork of a live sequence goes on like the original, and neither disturbs the other. */
static void shared_state_is_the_same_state(void **state) {
    struct hearth_engine *engine = real_open(*state);
    hearth_token prompt[PROMPT + 2];
    real_prompt(engine, 3, prompt, PROMPT + 2);
    const hearth_token other = prompt[PROMPT / 2];
    struct hearth_buf snapshot = {0};
    real_decode(engine, 0, prompt, 0, PROMPT);
    real_export_snapshot(engine, 0, PROMPT, &snapshot);
    float *want = real_logits(engine, 0, prompt[PROMPT], PROMPT);
    /* Truncated and completed, the original can go another way. */
    assert_int_equal(engine->ops->seq_keep(engine, 0, PROMPT), HEARTH_OK);
    if (hearth_caps_needs_snapshot(&engine->caps)) {
        assert_int_equal(engine->ops->snapshot_import(engine, 0, PROMPT, snapshot.data, snapshot.len), HEARTH_OK);
    }
    float *want_other = real_logits(engine, 0, other, PROMPT);
    assert_true(real_difference(engine, want, want_other) > 0.01f);

    /* The fork, while the original holds one token more. */
    assert_int_equal(engine->ops->seq_share(engine, 0, 1, 0, PROMPT), HEARTH_OK);
    if (hearth_caps_needs_snapshot(&engine->caps)) {
        assert_int_equal(engine->ops->snapshot_import(engine, 1, PROMPT, snapshot.data, snapshot.len), HEARTH_OK);
    }
    float *got = real_logits(engine, 1, prompt[PROMPT], PROMPT);
    hearth_buf_finish(&snapshot);

    /* The original goes on as if there were no fork. */
    float *next = real_logits(engine, 0, prompt[PROMPT + 1], PROMPT + 1);
    engine->ops->seq_clear(engine, 1);
    float *fresh;
    float allowed = 4 * noise(engine, prompt, PROMPT) + 1e-4f;
    real_decode(engine, 0, prompt, 0, PROMPT);
    free(real_logits(engine, 0, other, PROMPT));
    fresh = real_logits(engine, 0, prompt[PROMPT + 1], PROMPT + 1);
    assert_close(engine, fresh, next, allowed);
    assert_close(engine, want, got, allowed);
    free(want_other);
    real_close(engine);
}

/* Sharing costs no cells: two sequences of 200 tokens in a context of 256. */
static void sharing_costs_no_cells(void **state) {
    struct hearth_llama_params params;
    real_params(&params, *state);
    params.ctx_tokens = 256;
    struct hearth_engine *engine = real_open_with(&params);
    hearth_token prompt[200 + 20];
    real_prompt(engine, 4, prompt, 220);
    struct hearth_buf snapshot = {0};
    real_decode(engine, 0, prompt, 0, 200);
    real_export_snapshot(engine, 0, 200, &snapshot);
    assert_int_equal(engine->ops->seq_share(engine, 0, 1, 0, 200), HEARTH_OK);
    if (hearth_caps_needs_snapshot(&engine->caps)) {
        assert_int_equal(engine->ops->snapshot_import(engine, 1, 200, snapshot.data, snapshot.len), HEARTH_OK);
    }
    for (int32_t p = 200; p < 220; p++) {
        real_decode(engine, 0, prompt, p, p + 1);
        real_decode(engine, 1, prompt, p, p + 1);
    }
    hearth_buf_finish(&snapshot);
    real_close(engine);
}

/* A range behind what the target already holds. */
static void sharing_a_middle_range(void **state) {
    struct hearth_engine *engine = real_open(*state);
    hearth_token prompt[PROMPT + 1];
    real_prompt(engine, 5, prompt, PROMPT + 1);
    struct real_state whole = {0};
    real_decode(engine, 0, prompt, 0, PROMPT);
    real_export(engine, 0, PROMPT, &whole);
    float allowed = 4 * noise(engine, prompt, PROMPT) + 1e-4f;
    real_decode(engine, 0, prompt, 0, PROMPT);
    float *want = real_logits(engine, 0, prompt[PROMPT], PROMPT);
    /* The first page from its blob, the rest from the neighbour. */
    assert_int_equal(engine->ops->page_import(engine, 1, 0, REAL_PAGE_TOKENS, whole.page[0].data, whole.page[0].len, 0,
                                              REAL_PAGE_TOKENS),
                     HEARTH_OK);
    assert_int_equal(engine->ops->seq_share(engine, 0, 1, REAL_PAGE_TOKENS, PROMPT), HEARTH_OK);
    if (hearth_caps_needs_snapshot(&engine->caps)) {
        assert_int_equal(engine->ops->snapshot_import(engine, 1, PROMPT, whole.snapshot.data, whole.snapshot.len),
                         HEARTH_OK);
    }
    assert_close(engine, want, real_logits(engine, 1, prompt[PROMPT], PROMPT), allowed);
    real_state_finish(&whole);
    real_close(engine);
}

/* PAGES can go back anywhere, to the bit. */
static void rewinding_pages(void **state) {
    struct hearth_engine *engine = real_open(*state);
    hearth_token prompt[PROMPT + 1];
    real_prompt(engine, 6, prompt, PROMPT + 1);
    real_decode(engine, 0, prompt, 0, 100);
    float *want = real_logits(engine, 0, prompt[100], 100);
    real_decode(engine, 0, prompt, 101, PROMPT);
    assert_int_equal(engine->ops->seq_rewind_floor(engine, 0, PROMPT), 0);
    assert_int_equal(engine->ops->seq_rewind(engine, 0, 100), HEARTH_OK);
    real_assert_identical(engine, want, real_logits(engine, 0, prompt[100], 100));
    assert_int_equal(engine->ops->seq_rewind(engine, 0, 0), HEARTH_OK);
    real_close(engine);
}

/* Recurrent and opaque state stands at its end and nowhere else. */
static void rewinding_where_nothing_can_be_rewound(void **state) {
    struct hearth_engine *engine = real_open(*state);
    hearth_token prompt[PROMPT + 1];
    real_prompt(engine, 7, prompt, PROMPT + 1);
    real_decode(engine, 0, prompt, 0, PROMPT);
    assert_int_equal(engine->ops->seq_rewind_floor(engine, 0, PROMPT), PROMPT);
    float *want = real_logits(engine, 0, prompt[PROMPT], PROMPT);
    engine->ops->seq_clear(engine, 0);
    real_decode(engine, 0, prompt, 0, PROMPT);
    assert_int_equal(engine->ops->seq_rewind(engine, 0, PROMPT), HEARTH_OK); /* changes nothing */
    real_assert_identical(engine, want, real_logits(engine, 0, prompt[PROMPT], PROMPT));
    assert_int_equal(engine->ops->seq_rewind(engine, 0, PROMPT / 2), HEARTH_ERR_STATE);
    real_decode(engine, 0, prompt, 0, PROMPT); /* empty and usable */
    real_close(engine);
}

#define LONG 1500
#define LONG_STEP 100

/* A window whose oldest cells are gone: down to the floor a rewound sequence is complete, below it rewinding is
 * refused. */
static void rewinding_in_a_window(void **state) {
    struct hearth_llama_params params;
    real_params(&params, *state);
    params.lanes = 1;
    params.parked_seqs = 0;
    params.ubatch_tokens = 128; /* a small window cache: 2 x 512 + 128 cells */
    struct hearth_engine *engine = real_open_with(&params);
    hearth_token *prompt = calloc(LONG + 1, sizeof *prompt);
    assert_non_null(prompt);
    real_prompt(engine, 8, prompt, LONG + 1);
    for (int32_t p = 0; p < LONG; p += LONG_STEP) {
        real_decode(engine, 0, prompt, p, p + LONG_STEP);
    }
    int32_t floor = engine->ops->seq_rewind_floor(engine, 0, LONG);
    assert_in_range(floor, 512, LONG - 1);
    assert_int_equal(engine->ops->seq_rewind(engine, 0, floor), HEARTH_OK);
    assert_in_range(engine->ops->seq_rewind_floor(engine, 0, floor), floor, floor); /* not an inch further */
    float *got = real_logits(engine, 0, prompt[floor], floor);

    /* The same token behind a freshly computed prompt. */
    float allowed = 4 * noise(engine, prompt, floor) + 1e-3f;
    for (int32_t p = 0; p < floor; p += LONG_STEP) {
        real_decode(engine, 0, prompt, p, p + LONG_STEP < floor ? p + LONG_STEP : floor);
    }
    assert_close(engine, real_logits(engine, 0, prompt[floor], floor), got, allowed);
    engine->ops->seq_clear(engine, 0);
    for (int32_t p = 0; p < LONG; p += LONG_STEP) {
        real_decode(engine, 0, prompt, p, p + LONG_STEP);
    }
    assert_int_equal(engine->ops->seq_rewind(engine, 0, engine->ops->seq_rewind_floor(engine, 0, LONG) - 1),
                     HEARTH_ERR_STATE);
    real_decode(engine, 0, prompt, 0, LONG_STEP);
    free(prompt);
    real_close(engine);
}

/* A sequence longer than its window comes back as well as another split would compute it. */
static void a_full_window_comes_back(void **state) {
    struct hearth_engine *engine = real_open(*state);
    enum { N = 800 };
    hearth_token prompt[N + 1];
    real_prompt(engine, 9, prompt, N + 1);
    float allowed = 4 * noise(engine, prompt, N) + 1e-3f;
    struct real_state whole = {0};
    real_decode(engine, 0, prompt, 0, N);
    real_export(engine, 0, N, &whole);
    float *want = real_logits(engine, 0, prompt[N], N);
    engine->ops->seq_clear(engine, 0);
    real_import(engine, 0, &whole, N, &whole.snapshot);
    assert_in_range(engine->ops->seq_rewind_floor(engine, 0, N), N - 1, N);
    assert_close(engine, want, real_logits(engine, 0, prompt[N], N), allowed);
    real_state_finish(&whole);
    real_close(engine);
}

/* Lanes in one batch compute what each computes alone, and the state of one of them, its cells scattered among the
 * others', goes out and comes back. */
static void lanes_decode_together(void **state) {
    enum { LANES = 3, START = 40, TOKENS = 40 };
    struct hearth_llama_params params;
    real_params(&params, *state);
    params.lanes = LANES;
    struct hearth_engine *engine = real_open_with(&params);
    hearth_token prompt[LANES][START + TOKENS + 1];
    float *alone[LANES], allowed[LANES];
    for (int32_t lane = 0; lane < LANES; lane++) {
        real_prompt(engine, 10 + (uint32_t)lane, prompt[lane], START + TOKENS + 1);
        allowed[lane] = 4 * noise(engine, prompt[lane], START + TOKENS) + 1e-3f;
        real_decode(engine, 0, prompt[lane], 0, START); /* the splits that it will have beside the others */
        for (int32_t p = START; p < START + TOKENS; p++) {
            real_decode(engine, 0, prompt[lane], p, p + 1);
        }
        alone[lane] = real_logits(engine, 0, prompt[lane][START + TOKENS], START + TOKENS);
        engine->ops->seq_clear(engine, 0);
    }
    for (int32_t lane = 0; lane < LANES; lane++) {
        real_decode(engine, lane, prompt[lane], 0, START);
    }
    struct hearth_batch_item items[LANES];
    for (int32_t p = START; p < START + TOKENS; p++) {
        for (int32_t lane = 0; lane < LANES; lane++) {
            items[lane] = (struct hearth_batch_item){prompt[lane][p], lane, p, true};
        }
        assert_int_equal(engine->ops->decode(engine, items, LANES), HEARTH_OK);
    }
    struct real_state scattered = {0};
    real_export(engine, 1, START + TOKENS, &scattered);
    for (int32_t lane = 0; lane < LANES; lane++) {
        int32_t at = START + TOKENS;
        float *together = real_logits(engine, lane, prompt[lane][at], at);
        float *copy = malloc(engine->caps.vocab_tokens * sizeof *copy);
        assert_non_null(copy);
        memcpy(copy, alone[lane], engine->caps.vocab_tokens * sizeof *copy);
        assert_close(engine, copy, together, allowed[lane]);
    }
    engine->ops->seq_clear(engine, 1);
    real_import(engine, 1, &scattered, START + TOKENS, &scattered.snapshot);
    assert_close(engine, alone[1], real_logits(engine, 1, prompt[1][START + TOKENS], START + TOKENS), allowed[1]);
    free(alone[0]);
    free(alone[2]);
    real_state_finish(&scattered);
    real_close(engine);
}

#define ON(test, model) {#test " on " model, test, NULL, NULL, (void *)(uintptr_t)model}

/* With "long": those that take longer. */
int main(int argc, char **argv) {
    const bool whole = argc == 2 && strcmp(argv[1], "long") == 0;
    const struct CMUnitTest tests[] = {
        ON(shared_state_is_the_same_state, "tiny"),
        ON(rewinding_pages, "tiny"),
        ON(sharing_costs_no_cells, "tiny"),
        ON(sharing_a_middle_range, "smollm2"), /* the tiny model's noise is none, as its state has one layer */
        ON(shared_state_is_the_same_state, "tiny-hybrid"),
        ON(sharing_a_middle_range, "tiny-hybrid"),
        ON(rewinding_where_nothing_can_be_rewound, "tiny-hybrid"),
        ON(sharing_costs_no_cells, "tiny-hybrid"),
        ON(lanes_decode_together, "tiny-hybrid"),
        ON(shared_state_is_the_same_state, "mamba"),
        ON(rewinding_where_nothing_can_be_rewound, "mamba"),
        ON(rewinding_where_nothing_can_be_rewound, "opaque"),
        ON(shared_state_is_the_same_state, "tiny-window"),
        ON(a_full_window_comes_back, "tiny-window"),
        ON(rewinding_in_a_window, "tiny-window"),
        ON(lanes_decode_together, "tiny-window"),
    };
    const struct CMUnitTest longer[] = {
        ON(shared_state_is_the_same_state, "smollm2"),
        ON(rewinding_pages, "smollm2"),
        ON(sharing_costs_no_cells, "smollm2"),
        ON(lanes_decode_together, "smollm2"),
        ON(shared_state_is_the_same_state, "gemma3-270m"),
        ON(sharing_a_middle_range, "gemma3-270m"),
        ON(a_full_window_comes_back, "gemma3-270m"),
        ON(rewinding_in_a_window, "gemma3-270m"),
        ON(lanes_decode_together, "gemma3-270m"),
        ON(shared_state_is_the_same_state, "hybrid"),
        ON(sharing_a_middle_range, "hybrid"),
        ON(rewinding_where_nothing_can_be_rewound, "hybrid"),
        ON(sharing_costs_no_cells, "hybrid"),
        ON(lanes_decode_together, "hybrid"),
        ON(lanes_decode_together, "mamba"),
    };
    const int failed = whole ? cmocka_run_group_tests(longer, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
    return real_exit(failed, names, sizeof names / sizeof names[0]);
}
