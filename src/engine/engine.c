/* What all engines share: names of the memory classes, defaults and checks of sampling parameters, and tokens in the
 * form that grammars need.
 *
 * The defaults are those of llama-server, so that a client that sets no parameters gets the same kind of text. */
#include "engine/engine.h"

#include "base/assert.h"

#include <math.h>
#include <stdlib.h>

const char *hearth_engine_class_text(enum hearth_engine_class memory_class) {
    static const char *const texts[] = {
#define X(name, text) [HEARTH_ENGINE_##name] = (text),
        HEARTH_ENGINE_CLASS_TABLE(X)
#undef X
    };
    HEARTH_ASSERT((size_t)memory_class < sizeof texts / sizeof texts[0]);
    return texts[memory_class];
}

void hearth_sampling_default(struct hearth_sampling *sampling) {
    *sampling = (struct hearth_sampling){
        .temperature = 0.8f,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 1.0f,
        .top_k = 40,
        .seed = HEARTH_SEED_RANDOM,
        .penalty_last_tokens = 64,
        .penalty_repeat = 1.0f,
        .top_n_sigma = -1.0f,
        .xtc_threshold = 0.1f,
        .dynatemp_exponent = 1.0f,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
        .dry_last_tokens = 64,
        .logprobs = -1,
    };
}

/* Whether the penalty on sequences (DRY) is on. */
static bool is_dry(const struct hearth_sampling *sampling) {
    return sampling->dry_multiplier > 0.0f && sampling->dry_base >= 1.0f && sampling->dry_last_tokens != 0;
}

/* Whether a penalty on single tokens is on. */
static bool is_penalised(const struct hearth_sampling *sampling) {
    /* Exact comparisons: the neutral values are exactly representable, and anything else is on. */
    return sampling->penalty_last_tokens != 0 &&
           (sampling->penalty_repeat < 1.0f || sampling->penalty_repeat > 1.0f || sampling->penalty_frequency < 0.0f ||
            sampling->penalty_frequency > 0.0f || sampling->penalty_presence < 0.0f ||
            sampling->penalty_presence > 0.0f);
}

bool hearth_sampling_penalises(const struct hearth_sampling *sampling) {
    return is_penalised(sampling) || is_dry(sampling);
}

int32_t hearth_sampling_lookback(const struct hearth_sampling *sampling) {
    const int32_t tokens = is_penalised(sampling) ? sampling->penalty_last_tokens : 0;
    const int32_t sequences = is_dry(sampling) ? sampling->dry_last_tokens : 0;
    return tokens < 0 || sequences < 0 ? -1 : tokens > sequences ? tokens : sequences;
}

int hearth_sampling_check(const struct hearth_sampling *s, const struct hearth_caps *caps, struct hearth_errmsg *msg) {
    const float finite[] = {
        s->temperature,      s->top_p,    s->min_p,       s->typical_p,       s->penalty_frequency, s->penalty_presence,
        s->dry_multiplier,   s->dry_base, s->top_n_sigma, s->xtc_probability, s->xtc_threshold,     s->dynatemp_range,
        s->dynatemp_exponent};
    for (size_t i = 0; i < sizeof finite / sizeof finite[0]; i++) {
        if (!isfinite(finite[i])) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "a sampling parameter is not a finite number");
        }
    }
    if (!isfinite(s->penalty_repeat) || s->penalty_repeat <= 0.0f || !isfinite(1.0f / s->penalty_repeat)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "repeat_penalty must be greater than 0");
    }
    if (s->penalty_last_tokens < -1 || s->dry_last_tokens < -1) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "repeat_last_n and dry_penalty_last_n must be at least -1");
    }
    if (s->logprobs > HEARTH_LOGPROBS_MAX) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "at most %d logprobs per token", HEARTH_LOGPROBS_MAX);
    }
    for (size_t i = 0; i < s->logit_biases; i++) {
        if (s->logit_bias[i].token < 0 || (uint32_t)s->logit_bias[i].token >= caps->vocab_tokens) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "logit_bias: there is no token %d",
                               (int)s->logit_bias[i].token);
        }
        if (isnan(s->logit_bias[i].bias)) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "logit_bias of token %d is not a number",
                               (int)s->logit_bias[i].token);
        }
    }
    return HEARTH_OK;
}

size_t hearth_engine_longest_token(struct hearth_engine *engine) {
    size_t longest = 0;
    for (uint32_t token = 0; token < engine->caps.vocab_tokens; token++) {
        const size_t len = engine->ops->token_text(engine, (hearth_token)token, true, NULL, 0);
        longest = len > longest ? len : longest;
    }
    return longest;
}

bool hearth_engine_append_text(struct hearth_engine *engine, hearth_token token, bool special, struct hearth_buf *out) {
    char text[256];
    size_t len = engine->ops->token_text(engine, token, special, text, sizeof text);
    if (len <= sizeof text) {
        return hearth_buf_append(out, text, len);
    }
    if (!hearth_buf_reserve(out, len)) {
        return false;
    }
    out->len += engine->ops->token_text(engine, token, special, (char *)out->data + out->len, len);
    return true;
}

/* ---- tokens for grammars ---- */

static size_t grammar_text(void *user, hearth_token token, char *out, size_t cap) {
    struct hearth_engine *engine = user;
    return engine->ops->token_text(engine, token, true, out, cap);
}

static bool grammar_ends(void *user, hearth_token token) {
    struct hearth_engine *engine = user;
    return engine->ops->token_is_end(engine, token);
}

static hearth_token grammar_named(void *user, const char *text, size_t len) {
    struct hearth_engine *engine = user;
    struct hearth_tokens tokens = {0};
    hearth_token token = -1;
    if (engine->ops->tokenize(engine, text, len, false, true, &tokens) == HEARTH_OK && tokens.n == 1) {
        token = tokens.v[0];
    }
    hearth_tokens_finish(&tokens);
    return token;
}

struct hearth_grammar_tokens hearth_engine_grammar_tokens(struct hearth_engine *engine) {
    return (struct hearth_grammar_tokens){
        .count = engine->caps.vocab_tokens,
        .text = grammar_text,
        .ends = grammar_ends,
        .named = grammar_named,
        .user = engine,
    };
}

int hearth_engine_grammar_check(struct hearth_engine *engine, const char *text, struct hearth_errmsg *msg) {
    const struct hearth_grammar_tokens tokens = hearth_engine_grammar_tokens(engine);
    return hearth_grammar_check(&tokens, text, msg);
}

int hearth_engine_constrain(struct hearth_engine *engine, const struct hearth_grammar *grammar,
                            struct hearth_sampler *sampler, struct hearth_errmsg *msg) {
    if (engine->vocabulary == NULL) {
        const struct hearth_grammar_tokens tokens = hearth_engine_grammar_tokens(engine);
        engine->vocabulary = hearth_grammar_vocabulary_create(&tokens);
    }
    if (engine->allowed == NULL) {
        engine->allowed = malloc(engine->caps.vocab_tokens);
    }
    if (engine->vocabulary == NULL || engine->allowed == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
    }
    return hearth_grammar_constraint_create(engine->vocabulary, grammar, &sampler->constraint, msg);
}

void hearth_engine_finish(struct hearth_engine *engine) {
    hearth_grammar_vocabulary_destroy(engine->vocabulary);
    free(engine->allowed);
}
