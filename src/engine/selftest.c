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

/* Token ids spread over the vocabulary, the same ones every time. */
static void spread_tokens(const struct hearth_engine *engine, hearth_token *tokens, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        tokens[i] = (hearth_token)((i * 2654435761u + 17) % engine->caps.vocab_tokens);
    }
}

/* Copies the logits of a batch item; false: there are none. */
static bool copy_logits(struct hearth_engine *engine, size_t index, float *out) {
    const float *logits = engine->ops->logits(engine, index);
    if (logits != NULL) {
        memcpy(out, logits, engine->caps.vocab_tokens * sizeof *out);
    }
    return logits != NULL;
}

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

/* Every step is false, and has said why, when it fails. */
static bool done(struct selftest *t, int err, const char *step) {
    if (err != HEARTH_OK) {
        hearth_fail(t->msg, err, "%s: %s", step, hearth_err_text(err));
    }
    return err == HEARTH_OK;
}

static bool decode(struct selftest *t, int32_t begin, int32_t end) {
    struct hearth_batch_item items[PROMPT_TOKENS + 1];
    for (int32_t i = begin; i < end; i++) {
        items[i - begin] =
            (struct hearth_batch_item){.token = t->prompt[i], .seq = 0, .pos = i, .output = i + 1 == end};
    }
    return done(t, t->engine->ops->decode(t->engine, items, (size_t)(end - begin)), "decoding");
}

/* Computes the token at PROMPT on top of what the sequence holds. */
static bool compute(struct selftest *t, struct outcome *out) {
    if (!decode(t, PROMPT_TOKENS, PROMPT_TOKENS + 1)) {
        return false;
    }
    memset(&out->logprobs, 0, sizeof out->logprobs);
    if (out->logits != NULL && !copy_logits(t->engine, 0, out->logits)) {
        return done(t, HEARTH_ERR_ENGINE, "no logits");
    }
    out->token = t->engine->ops->sample(t->engine, t->sampler, 0, 0, &out->logprobs);
    return true;
}

static bool compare(struct selftest *t, const char *what) {
    const bool same =
        t->want.token == t->got.token && memcmp(&t->want.logprobs, &t->got.logprobs, sizeof t->want.logprobs) == 0 &&
        (t->want.logits == NULL ||
         memcmp(t->want.logits, t->got.logits, t->engine->caps.vocab_tokens * sizeof *t->want.logits) == 0);
    if (!same) {
        hearth_fail(t->msg, HEARTH_ERR_STATE, "%s: other logits than before", what);
    }
    return same;
}

static bool export_all(struct selftest *t) {
    const struct hearth_engine_ops *ops = t->engine->ops;
    const bool pages = hearth_caps_has_pages(&t->engine->caps);
    static const char page[] = "exporting a page";
    return (!pages || (done(t, ops->page_export(t->engine, 0, 0, PAGE_TOKENS, &t->page[0]), page) &&
                       done(t, ops->page_export(t->engine, 0, PAGE_TOKENS, PROMPT_TOKENS, &t->page[1]), page))) &&
           (!hearth_caps_needs_snapshot(&t->engine->caps) ||
            done(t, ops->snapshot_export(t->engine, 0, PROMPT_TOKENS, &t->snapshot), "exporting a snapshot"));
}

static bool import_snapshot(struct selftest *t) {
    const struct hearth_buf *blob = &t->snapshot;
    return !hearth_caps_needs_snapshot(&t->engine->caps) ||
           done(t, t->engine->ops->snapshot_import(t->engine, 0, PROMPT_TOKENS, blob->data, blob->len),
                "importing a snapshot");
}

/* Imports pages [0, end) into sequence 0, in up to two calls. */
static bool import_pages(struct selftest *t, int32_t end) {
    const int32_t bounds[] = {0, PAGE_TOKENS, PROMPT_TOKENS};
    bool ok = true;
    for (int i = 0; i < 2 && ok && bounds[i] < end && hearth_caps_has_pages(&t->engine->caps); i++) {
        const int32_t p1 = end < bounds[i + 1] ? end : bounds[i + 1];
        ok = done(t,
                  t->engine->ops->page_import(t->engine, 0, bounds[i], p1, t->page[i].data, t->page[i].len, bounds[i],
                                              bounds[i + 1]),
                  "importing a page");
    }
    return ok;
}

static bool run(struct selftest *t) {
    const struct hearth_engine_ops *ops = t->engine->ops;
    bool ok = decode(t, 0, PROMPT_TOKENS) && export_all(t) && compute(t, &t->want);

    /* Export everything, clear, import. */
    ops->seq_clear(t->engine, 0);
    ok = ok && import_pages(t, PROMPT_TOKENS) && import_snapshot(t) && compute(t, &t->got) &&
         compare(t, "after export and import");

    /* Truncate and complete: the addressable state stays, the rest is imported. */
    if (ok && hearth_caps_has_pages(&t->engine->caps)) {
        ok = done(t, ops->seq_keep(t->engine, 0, PROMPT_TOKENS), "truncating") && import_snapshot(t) &&
             compute(t, &t->got) && compare(t, "after truncating");
    }

    /* Part of a page: for PAGES the rest can be computed, which takes the same splits to compare, so compute the
     * reference that way too. */
    if (ok && t->engine->caps.memory_class == HEARTH_ENGINE_PAGES) {
        const int32_t part = PAGE_TOKENS - 3;
        ops->seq_clear(t->engine, 0);
        ok = decode(t, 0, PROMPT_TOKENS) && done(t, ops->seq_rewind(t->engine, 0, part), "rewinding") &&
             decode(t, part, PROMPT_TOKENS) && compute(t, &t->want);
        ops->seq_clear(t->engine, 0);
        ok = ok && import_pages(t, part) && decode(t, part, PROMPT_TOKENS) && compute(t, &t->got) &&
             compare(t, "after importing part of a page");
    }
    return ok;
}

/* Imports a window in two pieces behind the pages. */
static bool run_window(struct selftest *t) {
    const struct hearth_engine_ops *ops = t->engine->ops;
    const int32_t window = t->engine->caps.window_tokens, p0 = window < PROMPT_TOKENS ? PROMPT_TOKENS - window : 0;
    const int32_t bounds[] = {p0, p0 + (PROMPT_TOKENS - p0) / 2, PROMPT_TOKENS};
    ops->seq_clear(t->engine, 0);
    bool ok = bounds[1] > p0 && decode(t, 0, PROMPT_TOKENS);
    for (int i = 0; i < 2 && ok; i++) {
        ok = done(t, ops->window_export(t->engine, 0, bounds[i], bounds[i + 1], &t->window[i]), "exporting a window");
    }
    ok = ok && compute(t, &t->want);
    ops->seq_clear(t->engine, 0);
    ok = ok && import_pages(t, PROMPT_TOKENS);
    for (int i = 0; i < 2 && ok; i++) {
        const struct hearth_buf *blob = &t->window[i];
        ok = done(t, ops->window_import(t->engine, 0, bounds[i], bounds[i + 1], blob->data, blob->len, i == 0),
                  "importing a window");
    }
    return ok && compute(t, &t->got) && compare(t, "after importing a window in pieces");
}

bool hearth_engine_selftest(struct hearth_engine *engine, struct hearth_errmsg *msg) {
    struct selftest t = {.engine = engine, .msg = msg};
    if (engine->caps.batch_tokens <= PROMPT_TOKENS || engine->caps.ctx_tokens <= 2 * PROMPT_TOKENS) {
        hearth_fail(msg, HEARTH_ERR_UNSUPPORTED, "a context of %u and a batch of %u tokens are too small to test",
                    engine->caps.ctx_tokens, engine->caps.batch_tokens);
        return false;
    }
    spread_tokens(engine, t.prompt, PROMPT_TOKENS + 1);
    struct hearth_sampling greedy;
    hearth_sampling_default(&greedy);
    greedy.temperature = 0.0f;
    greedy.logprobs = 5;
    t.sampler = engine->ops->sampler_create(engine, &greedy, msg);
    if (t.sampler == NULL) {
        return false;
    }
    bool ok = true;
    if (engine->ops->logits != NULL) {
        t.want.logits = malloc(engine->caps.vocab_tokens * sizeof *t.want.logits);
        t.got.logits = malloc(engine->caps.vocab_tokens * sizeof *t.got.logits);
        ok = done(&t, t.want.logits != NULL && t.got.logits != NULL ? HEARTH_OK : HEARTH_ERR_NOMEM, "logits");
    }
    ok = ok && run(&t);
    struct hearth_errmsg unused;
    t.msg = &unused;
    if (ok && engine->caps.window_tokens > 0 && !run_window(&t)) {
        engine->caps.window_tokens = 0; /* snapshots of it work all the same */
    }
    engine->ops->seq_clear(engine, 0);
    engine->ops->sampler_destroy(engine, t.sampler);
    for (size_t i = 0; i < 2; i++) {
        hearth_buf_finish(&t.page[i]);
        hearth_buf_finish(&t.window[i]);
    }
    hearth_buf_finish(&t.snapshot);
    free(t.want.logits);
    free(t.got.logits);
    return ok;
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
    return err == HEARTH_OK && copy_logits(engine, together ? EXACT_TOKENS - 1 : 0, out);
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
    spread_tokens(engine, tokens, 1 + EXACT_TOKENS);
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
    const bool ok = err == HEARTH_OK && copy_logits(engine, (size_t)last, out);
    engine->ops->seq_clear(engine, 0);
    if (split->beside > 0) {
        engine->ops->seq_clear(engine, 1);
    }
    return ok;
}

bool hearth_engine_splits_exact(struct hearth_engine *engine) {
    static const struct split splits[] = {{1, 0, 0}, {24, 5, 0}, {4, 60, 4}};
    const struct hearth_caps *caps = &engine->caps;
    const size_t vocab = caps->vocab_tokens;
    float *logits = engine->ops->logits != NULL ? malloc(2 * vocab * sizeof *logits) : NULL;
    hearth_token tokens[SPLIT_TOKENS];
    spread_tokens(engine, tokens, SPLIT_TOKENS);
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
