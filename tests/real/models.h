/* What the tests on real models share: finding and opening models, prompts, and computing logits through the vtable.
 *
 * HEARTH_MODELS names the directory with smollm2.gguf, gemma3-270m.gguf, hybrid.gguf, mamba.gguf and opaque.gguf. A
 * test whose model is missing is skipped; a program all of whose models are missing exits with 77. */
#ifndef HEARTH_TESTS_REAL_MODELS_H
#define HEARTH_TESTS_REAL_MODELS_H

#include "engine/llama.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* The path of a model, or NULL when it is not there. The text is valid until the next call. */
const char *real_path(const char *name);

/* Small defaults for tests: 2 lanes, 2,048 tokens. */
void real_params(struct hearth_llama_params *params, const char *name);
/* Opens a model or skips the calling test. The engine is the one that the test before had, if that was of this model:
 * tests of one model stand behind one another. All its sequences are empty. */
struct hearth_engine *real_open(const char *name);
struct hearth_engine *real_open_deterministic(const char *name);
struct hearth_engine *real_open_with(const struct hearth_llama_params *params);
void real_close(struct hearth_engine *engine);

/* The first `n` tokens of a text of plain sentences (BOS in front where the model wants one). `variant` makes
 * another text of it. */
void real_prompt(struct hearth_engine *engine, uint32_t variant, hearth_token *out, size_t n);

/* Decodes tokens[begin, end) at their positions in one batch; the last one's logits can be read. */
void real_decode(struct hearth_engine *engine, int32_t seq, const hearth_token *tokens, int32_t begin, int32_t end);
/* Decodes one token and copies its row of logits (caps.vocab_tokens floats; allocated, the caller frees it). */
float *real_logits(struct hearth_engine *engine, int32_t seq, hearth_token token, int32_t pos);
hearth_token real_best(struct hearth_engine *engine, const float *logits);
float real_difference(struct hearth_engine *engine, const float *a, const float *b);
/* Fails unless two rows are equal to the bit. Frees both. */
void real_assert_identical(struct hearth_engine *engine, float *want, float *got);

/* The state of [0, n): pages of PAGE tokens and, where the class needs one, a snapshot at n. */
#define REAL_PAGE_TOKENS 64
#define REAL_PAGES_MAX 32
struct real_state {
    int32_t n;
    struct hearth_buf page[REAL_PAGES_MAX];
    struct hearth_buf snapshot;
};
void real_export(struct hearth_engine *engine, int32_t seq, int32_t n, struct real_state *out);
/* A snapshot alone, for the state of another one's pages. */
void real_export_snapshot(struct hearth_engine *engine, int32_t seq, int32_t n, struct hearth_buf *out);
/* Pages [0, n) of a state into an empty sequence (n may end inside a page), then `snapshot`, which is of n. */
void real_import(struct hearth_engine *engine, int32_t seq, const struct real_state *state, int32_t n,
                 const struct hearth_buf *snapshot);
void real_state_finish(struct real_state *state);

/* The end of main(): 77 when none of the named models is there, else what the tests returned. */
int real_exit(int failed, const char *const *names, size_t n);

#endif
