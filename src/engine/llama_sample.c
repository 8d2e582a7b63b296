/* Sampling: choosing a token from a row of logits.
 *
 * The order is llama-server's: logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature,
 * draw. Filters that are off are not in the chain. Three paths, fastest first:
 *
 *   greedy        the largest logit; no candidates at all
 *   top-k first   the k best are picked from the logits in one pass, so the chain sees k candidates, not the vocabulary
 *   general       a candidate for every token (penalties change the order before top-k; or top-k is off)
 *
 * Under a grammar the choice is made without it first and stands when the grammar allows it, which is the usual case
 * and costs one look. Only when it is refused, the choice is made again among what is allowed: for a greedy choice or a
 * small top-k among the most likely tokens, when enough of those are; else the whole vocabulary is asked.
 *
 * Biases are written into the logits row for the time of the choice and taken back in reverse order afterwards: the row
 * is this engine's until the next decode, log-probabilities are those of the unmodified row, and nothing is allocated
 * per token. */
#include "engine/llama_engine.h"

#include "base/assert.h"
#include "base/log.h"

#include <math.h>
#include <stdlib.h>

#define PICK_MAX 256 /* the largest top-k that is picked directly */

struct bias {
    llama_token token;
    float bias;
    float before; /* the logit before the bias */
};

struct hearth_llama_sampler {
    struct hearth_sampler head;  /* first: the functions of the vtable cast */
    struct llama_sampler *chain; /* NULL when greedy without penalties */
    bool greedy;
    bool penalises;
    int32_t pick;     /* top-k picked directly; 0 = general path */
    int32_t logprobs; /* -1 = none */
    struct bias *biases;
    size_t biases_n;
    llama_token_data *candidates; /* room for PICK_MAX or for the vocabulary */
};

/* ---- creation ---- */

static bool add_biases(struct hearth_llama *llama, struct hearth_llama_sampler *sampler,
                       const struct hearth_sampling *s) {
    int32_t suppressed_n = 0;
    const llama_token *suppressed = llama_vocab_get_suppress_tokens(llama->vocab, &suppressed_n);
    size_t ends_n = s->ignore_eos ? llama->ends.n : 0;
    size_t n = s->logit_biases + ends_n + (size_t)suppressed_n;
    sampler->biases = calloc(n + 1, sizeof *sampler->biases);
    if (sampler->biases == NULL) {
        return false;
    }
    for (size_t i = 0; i < s->logit_biases; i++) {
        sampler->biases[sampler->biases_n++] =
            (struct bias){.token = s->logit_bias[i].token, .bias = s->logit_bias[i].bias};
    }
    for (size_t i = 0; i < ends_n; i++) {
        sampler->biases[sampler->biases_n++] = (struct bias){.token = llama->ends.v[i], .bias = -INFINITY};
    }
    for (int32_t i = 0; i < suppressed_n; i++) {
        sampler->biases[sampler->biases_n++] = (struct bias){.token = suppressed[i], .bias = -INFINITY};
    }
    return true;
}

static bool add_filter(struct llama_sampler *chain, struct llama_sampler *filter) {
    if (filter == NULL) {
        return false;
    }
    llama_sampler_chain_add(chain, filter);
    return true;
}

/* A window of tokens, cut to the context: so much is allocated. */
static int32_t at_most_context(const struct hearth_llama *llama, int32_t tokens) {
    const int32_t context = (int32_t)llama->head.caps.ctx_tokens;
    return tokens < 0 || tokens > context ? context : tokens;
}

static bool add_penalties(struct hearth_llama *llama, struct hearth_llama_sampler *sampler,
                          const struct hearth_sampling *s) {
    static const char *breakers[] = {"\n", ":", "\"", "*"}; /* llama-server's */
    return add_filter(sampler->chain,
                      llama_sampler_init_penalties((int32_t)llama->head.caps.vocab_tokens,
                                                   at_most_context(llama, s->penalty_last_tokens), s->penalty_repeat,
                                                   s->penalty_frequency, s->penalty_presence)) &&
           (s->dry_multiplier <= 0.0f ||
            add_filter(sampler->chain,
                       llama_sampler_init_dry(llama->vocab, s->dry_multiplier, s->dry_base, s->dry_allowed_length,
                                              at_most_context(llama, s->dry_last_tokens), breakers,
                                              sizeof breakers / sizeof breakers[0])));
}

static bool make_chain(struct hearth_llama *llama, struct hearth_llama_sampler *sampler,
                       const struct hearth_sampling *s) {
    struct llama_sampler_chain_params params = llama_sampler_chain_default_params();
    params.no_perf = true;
    sampler->chain = llama_sampler_chain_init(params);
    bool ok = sampler->chain != NULL && (!sampler->penalises || add_penalties(llama, sampler, s));
    if (sampler->greedy) {
        return ok && add_filter(sampler->chain, llama_sampler_init_greedy());
    }
    struct llama_sampler *chain = sampler->chain;
    ok = ok && (s->top_n_sigma <= 0.0f || add_filter(chain, llama_sampler_init_top_n_sigma(s->top_n_sigma))) &&
         (s->top_k <= 0 || sampler->pick > 0 || add_filter(chain, llama_sampler_init_top_k(s->top_k))) &&
         (s->typical_p >= 1.0f || add_filter(chain, llama_sampler_init_typical(s->typical_p, 1))) &&
         (s->top_p >= 1.0f || add_filter(chain, llama_sampler_init_top_p(s->top_p, 1))) &&
         (s->min_p <= 0.0f || add_filter(chain, llama_sampler_init_min_p(s->min_p, 1))) &&
         (s->xtc_probability <= 0.0f ||
          add_filter(chain, llama_sampler_init_xtc(s->xtc_probability, s->xtc_threshold, 1, s->seed)));
    /* A range of 0 is the plain temperature. */
    return ok &&
           add_filter(sampler->chain,
                      llama_sampler_init_temp_ext(s->temperature, s->dynatemp_range, s->dynatemp_exponent)) &&
           add_filter(sampler->chain, llama_sampler_init_dist(s->seed));
}

struct hearth_sampler *hearth_llama_sampler_create(struct hearth_engine *engine, const struct hearth_sampling *s,
                                                   struct hearth_errmsg *msg) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    if (hearth_sampling_check(s, &engine->caps, msg) != HEARTH_OK) {
        return NULL;
    }
    struct hearth_llama_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler == NULL) {
        hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a sampler");
        return NULL;
    }
    sampler->greedy = s->temperature <= 0.0f;
    sampler->penalises = hearth_sampling_penalises(s);
    sampler->logprobs = s->logprobs;
    if (!sampler->greedy && !sampler->penalises && s->top_n_sigma <= 0.0f && s->top_k > 0 && s->top_k <= PICK_MAX) {
        sampler->pick = s->top_k;
    }
    bool plain = sampler->greedy && !sampler->penalises;
    bool ok = add_biases(llama, sampler, s);
    if (ok && !plain) {
        size_t room = sampler->pick > 0 ? (size_t)sampler->pick : engine->caps.vocab_tokens;
        sampler->candidates = malloc(room * sizeof *sampler->candidates);
        ok = sampler->candidates != NULL && make_chain(llama, sampler, s);
    }
    if (!ok) {
        hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a sampler");
        hearth_llama_sampler_destroy(engine, &sampler->head);
        return NULL;
    }
    if (s->grammar != NULL && hearth_engine_constrain(engine, s->grammar, &sampler->head, msg) != HEARTH_OK) {
        hearth_llama_sampler_destroy(engine, &sampler->head);
        return NULL;
    }
    return &sampler->head;
}

void hearth_llama_sampler_destroy(struct hearth_engine *engine, struct hearth_sampler *head) {
    struct hearth_llama_sampler *sampler = (struct hearth_llama_sampler *)head;
    (void)engine;
    if (sampler == NULL) {
        return;
    }
    if (sampler->chain != NULL) {
        llama_sampler_free(sampler->chain);
    }
    hearth_grammar_constraint_destroy(sampler->head.constraint);
    free(sampler->biases);
    free(sampler->candidates);
    free(sampler);
}

void hearth_llama_sampler_accept(struct hearth_engine *engine, struct hearth_sampler *head, hearth_token token,
                                 unsigned flags) {
    struct hearth_llama_sampler *sampler = (struct hearth_llama_sampler *)head;
    (void)engine;
    if (sampler->chain != NULL && (flags & HEARTH_SAMPLE_GRAMMAR) == 0) {
        llama_sampler_accept(sampler->chain, token);
    }
    if (hearth_sampler_constrains(head, flags)) {
        hearth_grammar_constraint_accept(sampler->head.constraint, token);
    }
}

/* ---- the choice ---- */

static void biases_apply(struct hearth_llama_sampler *sampler, float *logits) {
    for (size_t i = 0; i < sampler->biases_n; i++) {
        struct bias *b = &sampler->biases[i];
        b->before = logits[b->token];
        logits[b->token] += b->bias;
    }
}

static void biases_undo(struct hearth_llama_sampler *sampler, float *logits) {
    for (size_t i = sampler->biases_n; i-- > 0;) {
        logits[sampler->biases[i].token] = sampler->biases[i].before;
    }
}

static llama_token largest(const float *logits, int32_t n) {
    /* Blocks of a fixed size let the compiler compute their maximum with vectors; only a block that beats the best so
     * far is searched for the place. The first of equal logits wins. */
    enum { BLOCK = 64 };
    llama_token best = 0;
    float best_logit = logits[0];
    for (int32_t begin = 0; begin < n; begin += BLOCK) {
        int32_t end = n - begin < BLOCK ? n : begin + BLOCK;
        float block = logits[begin];
        for (int32_t i = begin; i < end; i++) {
            block = logits[i] > block ? logits[i] : block;
        }
        if (block > best_logit) {
            best_logit = block;
            for (best = begin; logits[best] < block; best++) {
            }
        }
    }
    return best;
}

/* Puts the k largest logits (of the tokens that are allowed, unless that is NULL) into `out`, largest first; returns
 * how many. A binary min-heap holds the best so far: after the first few hundred tokens nearly every logit fails
 * against its root. */
static size_t pick_largest(const float *logits, int32_t n, const uint8_t *allowed, size_t k, llama_token_data *out) {
    size_t size = 0;
    for (int32_t token = 0; token < n; token++) {
        if ((size == k && !(logits[token] > out[0].logit)) || (allowed != NULL && !allowed[token])) {
            continue;
        }
        llama_token_data item = {token, logits[token], 0.0f};
        size_t i;
        if (size < k) { /* grow: sift up */
            for (i = size++; i > 0 && out[(i - 1) / 2].logit > item.logit; i = (i - 1) / 2) {
                out[i] = out[(i - 1) / 2];
            }
        } else { /* replace the root: sift down */
            size_t child;
            for (i = 0; (child = 2 * i + 1) < size; i = child) {
                child += child + 1 < size && out[child + 1].logit < out[child].logit;
                if (!(out[child].logit < item.logit)) {
                    break;
                }
                out[i] = out[child];
            }
        }
        out[i] = item;
    }
    /* Heap to descending order: the smallest goes to the end. */
    for (size_t left = size; left > 1; left--) {
        llama_token_data smallest = out[0], item = out[left - 1];
        size_t i, child;
        for (i = 0; (child = 2 * i + 1) < left - 1; i = child) {
            child += child + 1 < left - 1 && out[child + 1].logit < out[child].logit;
            if (!(out[child].logit < item.logit)) {
                break;
            }
            out[i] = out[child];
        }
        out[i] = item;
        out[left - 1] = smallest;
    }
    return size;
}

static llama_token choose(struct hearth_llama_sampler *sampler, const float *logits, int32_t n) {
    if (sampler->chain == NULL) {
        return largest(logits, n);
    }
    llama_token_data_array candidates = {sampler->candidates, (size_t)n, -1, false};
    if (sampler->pick > 0) {
        candidates.size = pick_largest(logits, n, NULL, (size_t)sampler->pick, sampler->candidates);
        candidates.sorted = true;
    } else {
        for (llama_token token = 0; token < n; token++) {
            sampler->candidates[token] = (llama_token_data){token, logits[token], 0.0f};
        }
    }
    llama_sampler_apply(sampler->chain, &candidates);
    /* Every chain ends with a choice; -1 would mean that the logits were not numbers. */
    return candidates.selected >= 0 && (size_t)candidates.selected < candidates.size
               ? candidates.data[candidates.selected].id
               : largest(logits, n);
}

/* Picks the tokens that the grammar allows: the most likely ones, at most `wanted` (0: all, into the sampler's
 * candidates). Returns how many. */
static size_t pick_allowed(struct hearth_llama *llama, struct hearth_llama_sampler *sampler, const float *logits,
                           int32_t n, size_t wanted, llama_token_data *out) {
    if (wanted > 0) {
        llama_token_data likely[PICK_MAX];
        size_t count = pick_largest(logits, n, NULL, PICK_MAX, likely), kept = 0;
        for (size_t i = 0; i < count && kept < wanted; i++) {
            if (hearth_grammar_constraint_allows(sampler->head.constraint, likely[i].id)) {
                out[kept++] = likely[i];
            }
        }
        if (kept == wanted) {
            return kept;
        }
    }
    if (hearth_grammar_constraint_mask(sampler->head.constraint, llama->head.allowed) == 0) {
        return 0;
    }
    if (wanted > 0) {
        return pick_largest(logits, n, llama->head.allowed, wanted, out);
    }
    size_t kept = 0;
    for (llama_token token = 0; token < n; token++) {
        if (llama->head.allowed[token]) {
            out[kept++] = (llama_token_data){token, logits[token], 0.0f};
        }
    }
    return kept;
}

/* The choice among what the grammar allows. */
static llama_token choose_allowed(struct hearth_llama *llama, struct hearth_llama_sampler *sampler, const float *logits,
                                  int32_t n) {
    llama_token_data best[1];
    bool greedy = sampler->chain == NULL;
    size_t wanted = greedy ? 1 : (size_t)sampler->pick;
    llama_token_data_array candidates = {greedy ? best : sampler->candidates, 0, -1, sampler->pick > 0};
    candidates.size = pick_allowed(llama, sampler, logits, n, wanted, candidates.data);
    if (candidates.size == 0) {
        hearth_log(HEARTH_LOG_DEBUG, "no token can go on with the grammar: the reply ends");
        return llama->head.caps.end_token >= 0 ? llama->head.caps.end_token : largest(logits, n);
    }
    size_t likeliest = 0;
    for (size_t i = 1; i < candidates.size; i++) {
        likeliest = candidates.data[i].logit > candidates.data[likeliest].logit ? i : likeliest;
    }
    llama_token_data fallback = candidates.data[likeliest];
    if (greedy || !isfinite(fallback.logit)) { /* biases exclude all of them: allowed all the same */
        return fallback.id;
    }
    llama_sampler_apply(sampler->chain, &candidates);
    return candidates.selected >= 0 && (size_t)candidates.selected < candidates.size
               ? candidates.data[candidates.selected].id
               : fallback.id;
}

static void fill_logprobs(const float *logits, int32_t n, llama_token chosen, int32_t alternatives,
                          struct hearth_sample_logprobs *out) {
    float max = logits[largest(logits, n)];
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += (double)expf(logits[i] - max);
    }
    float log_sum = max + (float)log(sum);
    out->chosen = logits[chosen] - log_sum;
    llama_token_data best[HEARTH_LOGPROBS_MAX];
    size_t k = alternatives > 0 ? pick_largest(logits, n, NULL, (size_t)alternatives, best) : 0;
    out->n = (int32_t)k;
    for (size_t i = 0; i < k; i++) {
        out->token[i] = best[i].id;
        out->logprob[i] = best[i].logit - log_sum;
    }
}

hearth_token hearth_llama_sample(struct hearth_engine *engine, struct hearth_sampler *head, size_t index,
                                 unsigned flags, struct hearth_sample_logprobs *logprobs) {
    struct hearth_llama_sampler *sampler = (struct hearth_llama_sampler *)head;
    struct hearth_llama *llama = hearth_llama_of(engine);
    float *logits = llama_get_logits_ith(llama->ctx, (int32_t)index);
    HEARTH_ASSERT(logits != NULL);
    int32_t n = (int32_t)engine->caps.vocab_tokens;
    biases_apply(sampler, logits);
    bool ruled = hearth_sampler_constrains(head, flags) && hearth_grammar_constraint_active(sampler->head.constraint);
    llama_token token = choose(sampler, logits, n);
    if (ruled && !hearth_grammar_constraint_allows(sampler->head.constraint, token)) {
        token = choose_allowed(llama, sampler, logits, n);
    }
    biases_undo(sampler, logits);
    hearth_llama_sampler_accept(engine, head, token, flags);
    if (logprobs != NULL) {
        fill_logprobs(logits, n, token, sampler->logprobs, logprobs);
    }
    return token;
}

void hearth_llama_token_logprobs(struct hearth_engine *engine, struct hearth_sampler *head, size_t index,
                                 hearth_token token, struct hearth_sample_logprobs *logprobs) {
    struct hearth_llama_sampler *sampler = (struct hearth_llama_sampler *)head;
    const float *logits = llama_get_logits_ith(hearth_llama_of(engine)->ctx, (int32_t)index);
    HEARTH_ASSERT(logits != NULL);
    fill_logprobs(logits, (int32_t)engine->caps.vocab_tokens, token, sampler->logprobs, logprobs);
}
