/* Support for the tests on real models; see models.h. Everything here asserts: a helper that fails fails the test. */
#include "models.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *real_path(const char *name) {
    static char path[4096];
    const char *dir = getenv("HEARTH_MODELS");
    if (dir == NULL || dir[0] == '\0') {
        return NULL;
    }
    snprintf(path, sizeof path, "%s/%s.gguf", dir, name);
    return access(path, R_OK) == 0 ? path : NULL;
}

void real_params(struct hearth_llama_params *params, const char *name) {
    hearth_llama_params_default(params);
    params->model_path = real_path(name);
    params->ctx_tokens = 2048;
    params->lanes = 2;
    params->threads = 1; /* tests run side by side, and threads that share a core wait for each other */
    if (params->model_path == NULL) {
        printf("SKIP: there is no %s.gguf in HEARTH_MODELS\n", name);
        skip();
    }
}

struct hearth_engine *real_open_with(const struct hearth_llama_params *params) {
    struct hearth_engine *engine;
    struct hearth_errmsg msg = {""};
    if (hearth_llama_create(params, &engine, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    assert_true(engine->caps.cache_ok);
    return engine;
}

/* The last engine that open_shared() has made. A start proves that state goes out and comes back, which takes a while.
 */
static struct {
    struct hearth_engine *engine;
    const char *name;
    bool deterministic;
    bool busy; /* a test has it, or had it when it failed */
} shared;

static void shared_end(void) {
    if (shared.engine != NULL) {
        shared.engine->ops->destroy(shared.engine);
        shared.engine = NULL;
    }
}

static struct hearth_engine *open_shared(const char *name, bool deterministic) {
    if (shared.engine == NULL || shared.busy || shared.deterministic != deterministic ||
        strcmp(shared.name, name) != 0) {
        struct hearth_llama_params params;
        shared_end();
        real_params(&params, name);
        params.deterministic = deterministic;
        shared.engine = real_open_with(&params);
        shared.name = name;
        shared.deterministic = deterministic;
    }
    shared.busy = true;
    return shared.engine;
}

struct hearth_engine *real_open(const char *name) {
    return open_shared(name, false);
}

struct hearth_engine *real_open_deterministic(const char *name) {
    return open_shared(name, true);
}

void real_close(struct hearth_engine *engine) {
    if (engine != shared.engine) {
        engine->ops->destroy(engine);
        return;
    }
    for (uint32_t seq = 0; seq < engine->caps.seqs; seq++) {
        engine->ops->seq_clear(engine, (int32_t)seq);
    }
    shared.busy = false;
}

void real_prompt(struct hearth_engine *engine, uint32_t variant, hearth_token *out, size_t n) {
    static const char *const subjects[] = {"The keeper",    "A grey heron", "My sister",
                                           "The old clock", "Nobody",       "This river"};
    static const char *const verbs[] = {"remembers", "counts", "follows", "carries", "repairs", "describes"};
    static const char *const objects[] = {"the lamp.",       "seven boats.",  "a long road home.",
                                          "the first snow.", "every letter.", "bread and salt."};
    struct hearth_buf text = {0};
    struct hearth_tokens tokens = {0};
    uint32_t state = variant * 2654435761u + 1;
    while (tokens.n < n) {
        for (int i = 0; i < 64; i++) {
            state = state * 1664525u + 1013904223u;
            assert_true(hearth_buf_printf(&text, "%s %s %s ", subjects[(state >> 8) % 6], verbs[(state >> 14) % 6],
                                          objects[(state >> 20) % 6]));
        }
        tokens.n = 0;
        assert_int_equal(engine->ops->tokenize(engine, (const char *)text.data, text.len, true, false, &tokens),
                         HEARTH_OK);
    }
    memcpy(out, tokens.v, n * sizeof *out);
    hearth_tokens_finish(&tokens);
    hearth_buf_finish(&text);
}

void real_decode(struct hearth_engine *engine, int32_t seq, const hearth_token *tokens, int32_t begin, int32_t end) {
    struct hearth_batch_item *items = calloc((size_t)(end - begin), sizeof *items);
    assert_non_null(items);
    for (int32_t i = begin; i < end; i++) {
        items[i - begin] = (struct hearth_batch_item){tokens[i], seq, i, i + 1 == end};
    }
    int err = engine->ops->decode(engine, items, (size_t)(end - begin));
    free(items);
    assert_int_equal(err, HEARTH_OK);
}

float *real_logits(struct hearth_engine *engine, int32_t seq, hearth_token token, int32_t pos) {
    struct hearth_batch_item item = {token, seq, pos, true};
    assert_int_equal(engine->ops->decode(engine, &item, 1), HEARTH_OK);
    float *row = malloc(engine->caps.vocab_tokens * sizeof *row);
    assert_non_null(row);
    memcpy(row, engine->ops->logits(engine, 0), engine->caps.vocab_tokens * sizeof *row);
    return row;
}

hearth_token real_best(struct hearth_engine *engine, const float *logits) {
    hearth_token best = 0;
    for (uint32_t i = 1; i < engine->caps.vocab_tokens; i++) {
        best = logits[i] > logits[best] ? (hearth_token)i : best;
    }
    return best;
}

float real_difference(struct hearth_engine *engine, const float *a, const float *b) {
    float most = 0.0f;
    for (uint32_t i = 0; i < engine->caps.vocab_tokens; i++) {
        most = fmaxf(most, fabsf(a[i] - b[i]));
    }
    return most;
}

void real_assert_identical(struct hearth_engine *engine, float *want, float *got) {
    float difference = real_difference(engine, want, got);
    bool same = memcmp(want, got, engine->caps.vocab_tokens * sizeof *want) == 0;
    free(want);
    free(got);
    if (!same) {
        fail_msg("logits differ by up to %g", (double)difference);
    }
}

void real_export_snapshot(struct hearth_engine *engine, int32_t seq, int32_t n, struct hearth_buf *out) {
    if (hearth_caps_needs_snapshot(&engine->caps)) {
        assert_int_equal(engine->ops->snapshot_export(engine, seq, n, out), HEARTH_OK);
    }
}

void real_export(struct hearth_engine *engine, int32_t seq, int32_t n, struct real_state *out) {
    out->n = n;
    for (int32_t p0 = 0, i = 0; hearth_caps_has_pages(&engine->caps) && p0 < n; p0 += REAL_PAGE_TOKENS, i++) {
        int32_t p1 = p0 + REAL_PAGE_TOKENS < n ? p0 + REAL_PAGE_TOKENS : n;
        assert_in_range(i, 0, REAL_PAGES_MAX - 1);
        assert_int_equal(engine->ops->page_export(engine, seq, p0, p1, &out->page[i]), HEARTH_OK);
    }
    real_export_snapshot(engine, seq, n, &out->snapshot);
}

void real_import(struct hearth_engine *engine, int32_t seq, const struct real_state *state, int32_t n,
                 const struct hearth_buf *snapshot) {
    for (int32_t p0 = 0, i = 0; hearth_caps_has_pages(&engine->caps) && p0 < n; p0 += REAL_PAGE_TOKENS, i++) {
        int32_t page_p1 = p0 + REAL_PAGE_TOKENS < state->n ? p0 + REAL_PAGE_TOKENS : state->n;
        int32_t p1 = page_p1 < n ? page_p1 : n;
        assert_int_equal(
            engine->ops->page_import(engine, seq, p0, p1, state->page[i].data, state->page[i].len, p0, page_p1),
            HEARTH_OK);
    }
    if (hearth_caps_needs_snapshot(&engine->caps)) {
        assert_int_equal(engine->ops->snapshot_import(engine, seq, n, snapshot->data, snapshot->len), HEARTH_OK);
    }
}

void real_state_finish(struct real_state *state) {
    for (size_t i = 0; i < REAL_PAGES_MAX; i++) {
        hearth_buf_finish(&state->page[i]);
    }
    hearth_buf_finish(&state->snapshot);
}

int real_exit(int failed, const char *const *names, size_t n) {
    shared_end();
    for (size_t i = 0; i < n; i++) {
        if (real_path(names[i]) != NULL) {
            return failed;
        }
    }
    printf("SKIP: none of the models is there\n");
    return failed != 0 ? failed : 77;
}
