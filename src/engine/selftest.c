/* The self-test at load: a short sequence goes out and comes back through every mechanism its class has, and what the
 * model then computes must be what it computed before, to the bit.
 *
 * Bit-identity holds only for the same cells in the same order and the same batch splits, so every comparison computes
 * one token in a batch of its own, on a sequence whose cells were filled from the front of an empty context. The
 * sequence is kept shorter than any sliding window for the same reason: behind a full window the cells of a restored
 * one stand in another order.
 *
 *   tokens   0 … PAGE … PROMPT … PROMPT + 1
 *            page 0   page 1  ^ the token that is computed and compared
 *
 * Works on any engine through its vtable: by logits where the engine has some, by sampled tokens and their
 * log-probabilities otherwise. */
#include "base/assert.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_TOKENS 8
#define PROMPT_TOKENS 13 /* the second page is a short one */

/* The result of a computation: the next token and everything that the engine tells about it. */
struct outcome {
    hearth_token token;
    struct hearth_sample_logprobs logprobs;
    float *logits; /* vocab_tokens, or NULL */
};

struct selftest {
    struct hearth_engine *engine;
    struct hearth_errmsg *msg;
    struct hearth_sampler *sampler;
    hearth_token prompt[PROMPT_TOKENS + 1];
    struct hearth_buf page[2], snapshot, window[2];
    struct outcome want, got;
};

/* Token ids spread over the vocabulary, the same ones every time. */
static void fill_prompt(struct selftest *t) {
    uint64_t vocab = t->engine->caps.vocab_tokens;
    for (uint64_t i = 0; i <= PROMPT_TOKENS; i++) {
        t->prompt[i] = (hearth_token)((i * 2654435761u + 17) % vocab);
    }
}

static int decode(struct selftest *t, int32_t begin, int32_t end) {
    struct hearth_batch_item items[PROMPT_TOKENS + 1];
    for (int32_t i = begin; i < end; i++) {
        items[i - begin] =
            (struct hearth_batch_item){.token = t->prompt[i], .seq = 0, .pos = i, .output = i + 1 == end};
    }
    int err = t->engine->ops->decode(t->engine, items, (size_t)(end - begin));
    return err == HEARTH_OK ? err : hearth_fail(t->msg, err, "decoding [%d, %d): %s", begin, end, hearth_err_text(err));
}

/* Computes the token at PROMPT on top of what the sequence holds. */
static int compute(struct selftest *t, struct outcome *out) {
    int err = decode(t, PROMPT_TOKENS, PROMPT_TOKENS + 1);
    if (err != HEARTH_OK) {
        return err;
    }
    memset(&out->logprobs, 0, sizeof out->logprobs);
    if (t->engine->ops->logits != NULL) {
        const float *logits = t->engine->ops->logits(t->engine, 0);
        if (logits == NULL) {
            return hearth_fail(t->msg, HEARTH_ERR_ENGINE, "no logits");
        }
        memcpy(out->logits, logits, t->engine->caps.vocab_tokens * sizeof *logits);
    }
    out->token = t->engine->ops->sample(t->engine, t->sampler, 0, 0, &out->logprobs);
    return HEARTH_OK;
}

static int compare(struct selftest *t, const char *what) {
    bool same =
        t->want.token == t->got.token && memcmp(&t->want.logprobs, &t->got.logprobs, sizeof t->want.logprobs) == 0;
    if (same && t->want.logits != NULL) {
        same = memcmp(t->want.logits, t->got.logits, t->engine->caps.vocab_tokens * sizeof *t->want.logits) == 0;
    }
    return same ? HEARTH_OK : hearth_fail(t->msg, HEARTH_ERR_STATE, "%s: other logits than before", what);
}

static int fail_step(struct selftest *t, int err, const char *step) {
    return hearth_fail(t->msg, err, "%s: %s", step, hearth_err_text(err));
}

static int export_all(struct selftest *t) {
    const struct hearth_engine_ops *ops = t->engine->ops;
    int err = HEARTH_OK;
    if (hearth_caps_has_pages(&t->engine->caps)) {
        err = ops->page_export(t->engine, 0, 0, PAGE_TOKENS, &t->page[0]);
        if (err == HEARTH_OK) {
            err = ops->page_export(t->engine, 0, PAGE_TOKENS, PROMPT_TOKENS, &t->page[1]);
        }
        if (err != HEARTH_OK) {
            return fail_step(t, err, "exporting a page");
        }
    }
    if (hearth_caps_needs_snapshot(&t->engine->caps)) {
        err = ops->snapshot_export(t->engine, 0, PROMPT_TOKENS, &t->snapshot);
    }
    return err == HEARTH_OK ? err : fail_step(t, err, "exporting a snapshot");
}

static int import_snapshot(struct selftest *t) {
    if (!hearth_caps_needs_snapshot(&t->engine->caps)) {
        return HEARTH_OK;
    }
    int err = t->engine->ops->snapshot_import(t->engine, 0, PROMPT_TOKENS, t->snapshot.data, t->snapshot.len);
    return err == HEARTH_OK ? err : fail_step(t, err, "importing a snapshot");
}

/* Imports pages [0, end) into sequence 0, in up to two calls. */
static int import_pages(struct selftest *t, int32_t end) {
    const struct hearth_engine_ops *ops = t->engine->ops;
    if (!hearth_caps_has_pages(&t->engine->caps)) {
        return HEARTH_OK;
    }
    int32_t first = end < PAGE_TOKENS ? end : PAGE_TOKENS;
    int err = ops->page_import(t->engine, 0, 0, first, t->page[0].data, t->page[0].len, 0, PAGE_TOKENS);
    if (err == HEARTH_OK && end > PAGE_TOKENS) {
        err = ops->page_import(t->engine, 0, PAGE_TOKENS, end, t->page[1].data, t->page[1].len, PAGE_TOKENS,
                               PROMPT_TOKENS);
    }
    return err == HEARTH_OK ? err : fail_step(t, err, "importing a page");
}

static int run(struct selftest *t) {
    const struct hearth_engine_ops *ops = t->engine->ops;
    int err = decode(t, 0, PROMPT_TOKENS);
    if (err == HEARTH_OK) {
        err = export_all(t);
    }
    if (err == HEARTH_OK) {
        err = compute(t, &t->want);
    }

    /* Export everything, clear, import. */
    ops->seq_clear(t->engine, 0);
    if (err == HEARTH_OK) {
        err = import_pages(t, PROMPT_TOKENS);
    }
    if (err == HEARTH_OK) {
        err = import_snapshot(t);
    }
    if (err == HEARTH_OK) {
        err = compute(t, &t->got);
    }
    if (err == HEARTH_OK) {
        err = compare(t, "after export and import");
    }

    /* Truncate and complete: the addressable state stays, the rest is imported. */
    if (err == HEARTH_OK && hearth_caps_has_pages(&t->engine->caps)) {
        err = ops->seq_keep(t->engine, 0, PROMPT_TOKENS);
        if (err != HEARTH_OK) {
            return fail_step(t, err, "truncating");
        }
        err = import_snapshot(t);
        if (err == HEARTH_OK) {
            err = compute(t, &t->got);
        }
        if (err == HEARTH_OK) {
            err = compare(t, "after truncating");
        }
    }

    /* Part of a page: for PAGES the rest can be computed, which takes the same splits to compare, so compute the
     * reference that way too. */
    if (err == HEARTH_OK && t->engine->caps.memory_class == HEARTH_ENGINE_PAGES) {
        const int32_t part = PAGE_TOKENS - 3;
        ops->seq_clear(t->engine, 0);
        err = decode(t, 0, PROMPT_TOKENS);
        if (err == HEARTH_OK && (err = ops->seq_rewind(t->engine, 0, part)) != HEARTH_OK) {
            return fail_step(t, err, "rewinding");
        }
        err = err == HEARTH_OK ? decode(t, part, PROMPT_TOKENS) : err;
        err = err == HEARTH_OK ? compute(t, &t->want) : err;
        ops->seq_clear(t->engine, 0);
        err = err == HEARTH_OK ? import_pages(t, part) : err;
        err = err == HEARTH_OK ? decode(t, part, PROMPT_TOKENS) : err;
        err = err == HEARTH_OK ? compute(t, &t->got) : err;
        err = err == HEARTH_OK ? compare(t, "after importing part of a page") : err;
    }
    return err;
}

/* Imports a window in two pieces behind the pages. */
static int run_window(struct selftest *t) {
    const struct hearth_engine_ops *ops = t->engine->ops;
    const int32_t window = t->engine->caps.window_tokens;
    const int32_t p0 = window < PROMPT_TOKENS ? PROMPT_TOKENS - window : 0, middle = p0 + (PROMPT_TOKENS - p0) / 2;
    if (middle == p0) {
        return HEARTH_ERR_UNSUPPORTED;
    }
    ops->seq_clear(t->engine, 0);
    int err = decode(t, 0, PROMPT_TOKENS);
    err = err == HEARTH_OK ? ops->window_export(t->engine, 0, p0, middle, &t->window[0]) : err;
    err = err == HEARTH_OK ? ops->window_export(t->engine, 0, middle, PROMPT_TOKENS, &t->window[1]) : err;
    err = err == HEARTH_OK ? compute(t, &t->want) : err;
    ops->seq_clear(t->engine, 0);
    err = err == HEARTH_OK ? import_pages(t, PROMPT_TOKENS) : err;
    for (int i = 0; i < 2 && err == HEARTH_OK; i++) {
        err = ops->window_import(t->engine, 0, i == 0 ? p0 : middle, i == 0 ? middle : PROMPT_TOKENS, t->window[i].data,
                                 t->window[i].len, i == 0);
    }
    err = err == HEARTH_OK ? compute(t, &t->got) : err;
    return err == HEARTH_OK ? compare(t, "after importing a window in pieces") : err;
}

bool hearth_engine_selftest(struct hearth_engine *engine, struct hearth_errmsg *msg) {
    struct selftest t = {.engine = engine, .msg = msg};
    int err = HEARTH_ERR_NOMEM;
    if (engine->caps.batch_tokens <= PROMPT_TOKENS || engine->caps.ctx_tokens <= 2 * PROMPT_TOKENS) {
        hearth_fail(msg, HEARTH_ERR_UNSUPPORTED, "a context of %u and a batch of %u tokens are too small to test",
                    engine->caps.ctx_tokens, engine->caps.batch_tokens);
        return false;
    }
    fill_prompt(&t);
    struct hearth_sampling greedy;
    hearth_sampling_default(&greedy);
    greedy.temperature = 0.0f;
    greedy.logprobs = 5;
    t.sampler = engine->ops->sampler_create(engine, &greedy, msg);
    if (t.sampler == NULL) {
        return false;
    }
    if (engine->ops->logits != NULL) {
        t.want.logits = malloc(engine->caps.vocab_tokens * sizeof *t.want.logits);
        t.got.logits = malloc(engine->caps.vocab_tokens * sizeof *t.got.logits);
    }
    if (engine->ops->logits == NULL || (t.want.logits != NULL && t.got.logits != NULL)) {
        err = run(&t);
        if (err == HEARTH_OK && engine->caps.window_tokens > 0 && run_window(&t) != HEARTH_OK) {
            engine->caps.window_tokens = 0; /* snapshots of it work all the same */
        }
    } else {
        hearth_fail(msg, err, "out of memory");
    }
    engine->ops->seq_clear(engine, 0);
    engine->ops->sampler_destroy(engine, t.sampler);
    for (size_t i = 0; i < 2; i++) {
        hearth_buf_finish(&t.page[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        hearth_buf_finish(&t.window[i]);
    }
    hearth_buf_finish(&t.snapshot);
    free(t.want.logits);
    free(t.got.logits);
    return err == HEARTH_OK;
}

#define EXACT_TOKENS 9 /* one more than kernels take at once */

/* Computes the last of a few tokens behind the first: all together, or one by one. */
static bool compute_last(struct hearth_engine *engine, const hearth_token *tokens, bool together, float *out) {
    struct hearth_batch_item items[1 + EXACT_TOKENS];
    int err = HEARTH_OK;
    for (int32_t i = 0; i <= EXACT_TOKENS; i++) {
        items[i] = (struct hearth_batch_item){.token = tokens[i], .seq = 0, .pos = i, .output = i > 0};
    }
    engine->ops->seq_clear(engine, 0);
    err = engine->ops->decode(engine, items, 1);
    if (err == HEARTH_OK && together) {
        err = engine->ops->decode(engine, items + 1, EXACT_TOKENS);
    }
    for (size_t i = 1; i <= EXACT_TOKENS && err == HEARTH_OK && !together; i++) {
        err = engine->ops->decode(engine, items + i, 1);
    }
    const float *logits = err == HEARTH_OK ? engine->ops->logits(engine, together ? EXACT_TOKENS - 1 : 0) : NULL;
    if (logits != NULL) {
        memcpy(out, logits, engine->caps.vocab_tokens * sizeof *out);
    }
    return logits != NULL;
}

bool hearth_engine_batch_exact(struct hearth_engine *engine) {
    size_t vocab = engine->caps.vocab_tokens;
    float *logits = engine->ops->logits != NULL ? malloc(2 * vocab * sizeof *logits) : NULL;
    if (logits == NULL || engine->caps.batch_tokens < EXACT_TOKENS || engine->caps.ctx_tokens <= EXACT_TOKENS ||
        engine->caps.outputs < EXACT_TOKENS) {
        free(logits);
        return false;
    }
    hearth_token tokens[1 + EXACT_TOKENS];
    for (uint64_t i = 0; i <= EXACT_TOKENS; i++) {
        tokens[i] = (hearth_token)((i * 2654435761u + 17) % vocab);
    }
    bool same = compute_last(engine, tokens, true, logits) && compute_last(engine, tokens, false, logits + vocab) &&
                memcmp(logits, logits + vocab, vocab * sizeof *logits) == 0;
    engine->ops->seq_clear(engine, 0);
    free(logits);
    return same;
}

#define SPLIT_TOKENS 66 /* more than attention takes in a tile */

struct split {
    int32_t most, beside; /* tokens per batch; tokens of another sequence beside them */
    int32_t moved; /* after so many tokens the other sequence leaves, so that the next tokens get its cells, in front */
};

/* Computes the last of SPLIT_TOKENS tokens. */
static bool compute_split(struct hearth_engine *engine, const hearth_token *tokens, const struct split *split,
                          float *out) {
    struct hearth_batch_item items[2 * SPLIT_TOKENS];
    int32_t other = 0, last = 0, beside = split->beside;
    int err = HEARTH_OK;
    for (int32_t at = 0; at < SPLIT_TOKENS && err == HEARTH_OK;) {
        size_t n = 0;
        if (beside > 0 && split->moved > 0 && at >= split->moved) {
            engine->ops->seq_clear(engine, 1);
            beside = 0;
        }
        for (int32_t i = 0; i < beside && other < SPLIT_TOKENS; i++, other++) {
            items[n++] = (struct hearth_batch_item){
                .token = tokens[SPLIT_TOKENS - 1 - other], .seq = 1, .pos = other, .output = false};
        }
        for (int32_t i = 0; i < split->most && at < SPLIT_TOKENS; i++, at++) {
            last = (int32_t)n;
            items[n++] =
                (struct hearth_batch_item){.token = tokens[at], .seq = 0, .pos = at, .output = at == SPLIT_TOKENS - 1};
        }
        err = engine->ops->decode(engine, items, n);
    }
    const float *logits = err == HEARTH_OK ? engine->ops->logits(engine, (size_t)last) : NULL;
    if (logits != NULL) {
        memcpy(out, logits, engine->caps.vocab_tokens * sizeof *out);
    }
    engine->ops->seq_clear(engine, 0);
    if (split->beside > 0) {
        engine->ops->seq_clear(engine, 1);
    }
    return logits != NULL;
}

bool hearth_engine_splits_exact(struct hearth_engine *engine) {
    static const struct split splits[] = {{1, 0, 0}, {24, 5, 0}, {4, 60, 4}};
    const struct hearth_caps *caps = &engine->caps;
    const size_t vocab = caps->vocab_tokens;
    float *logits = engine->ops->logits != NULL ? malloc(2 * vocab * sizeof *logits) : NULL;
    hearth_token tokens[SPLIT_TOKENS];
    for (uint64_t i = 0; i < SPLIT_TOKENS; i++) {
        tokens[i] = (hearth_token)((i * 2654435761u + 17) % vocab);
    }
    const int32_t whole = caps->batch_tokens < SPLIT_TOKENS ? (int32_t)caps->batch_tokens : SPLIT_TOKENS;
    bool same = logits != NULL && caps->ctx_tokens > 2 * SPLIT_TOKENS &&
                compute_split(engine, tokens, &(struct split){.most = whole}, logits);
    for (size_t i = 0; i < sizeof splits / sizeof splits[0] && same; i++) {
        struct split split = splits[i];
        split.beside = caps->seqs > 1 && split.beside < whole ? split.beside : 0;
        split.most = split.most < whole - split.beside ? split.most : whole - split.beside;
        same = compute_split(engine, tokens, &split, logits + vocab) &&
               memcmp(logits, logits + vocab, vocab * sizeof *logits) == 0;
    }
    free(logits);
    return same;
}
