/* What sim says next, and samplers.
 *
 * The greedy token is one draw from a state digest: the end of the reply once in `reply_tokens`, else mostly words,
 * some single letters and some characters that take two tokens. It needs no list of alternatives, so that greedy
 * generation costs a few multiplications.
 *
 * Everything else works on *candidates*: the greedy token and CANDIDATES-1 further draws from the same state, with
 * falling logits. Biases and penalties change those logits; top-k, top-p, min-p and the temperature choose among them.
 * Under a grammar a token that it refuses is drawn again from all that it allows, closing brackets and quotes more
 * often than others, so that what was begun ends soon. All of it is a function of (state, sampler's seed, number of the
 * draw): equal runs give equal text. */
#include "engine/sim_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 24, CANDIDATES_MAX = 2 * CANDIDATES, TRIES = 4 * CANDIDATES };
_Static_assert(CANDIDATES > HEARTH_LOGPROBS_MAX, "as many alternatives as can be asked for");

struct sim_sampler {
    struct hearth_sampler head;      /* first: the functions of the vtable cast */
    struct hearth_sampling sampling; /* logit_bias: a copy of its own */
    struct hearth_logit_bias *biases;
    struct hearth_tokens history; /* ring of the last tokens accepted, when a penalty is on */
    size_t history_next, history_most;
    uint64_t seed, draws;
};

struct sim_candidate {
    hearth_token token;
    double raw, logit; /* before and after biases and penalties */
};

struct candidates {
    struct sim_candidate v[CANDIDATES_MAX]; /* v[0 … drawn-1] as drawn, then biased tokens that were not drawn */
    size_t n, drawn;
};

/* ---- drawing ---- */

/* The greedy token at a state. */
static hearth_token draw(const struct sim *sim, sim_state state) {
    uint64_t whole = sim_mix(state, 0xD4A3), h = whole;
    if ((state & SIM_STATE_REPEATS) != 0 && whole % 8 != 0) {
        h = sim_mix(state >> 8 & SIM_REPEATS_LAST, sim->params.seed);
    }
    uint32_t kind = (uint32_t)(h >> 57); /* 0 … 127 */
    uint32_t pick = (uint32_t)(h >> 16);
    if ((state & SIM_STATE_UNFINISHED) != 0) {
        /* Finish the character; once in 128 leave it unfinished, as models do. */
        return kind == 0 ? (hearth_token)'~' : (hearth_token)(0x80 + pick % 64);
    }
    if (sim_mix(whole, 0xE0D) % sim->params.reply_tokens == 0) {
        return hearth_sim_text_end();
    }
    if (kind < 96) {
        hearth_token first, last;
        hearth_sim_text_words(&first, &last);
        return first + (hearth_token)(pick % (uint32_t)(last - first));
    }
    if (kind < 112) {
        return (hearth_token)('a' + pick % 26);
    }
    if (kind < 120) {
        return " .,\nth e"[pick % 8];
    }
    return hearth_sim_text_lead(pick % SIM_LEADS);
}

hearth_token hearth_sim_oracle(const struct hearth_engine *engine, const hearth_token *tokens, size_t n) {
    const struct sim *sim = (const struct sim *)engine;
    sim_state state = sim->origin;
    for (size_t i = 0; i < n; i++) {
        state = hearth_sim_state_step(state, tokens[i]);
    }
    return draw(sim, state);
}

static double unit(uint64_t h) {
    return (double)(h >> 11) * 0x1p-53;
}

static struct sim_candidate *candidate_find(struct candidates *all, hearth_token token) {
    for (size_t i = 0; i < all->n; i++) {
        if (all->v[i].token == token) {
            return &all->v[i];
        }
    }
    return NULL;
}

static void candidates_draw(const struct sim *sim, sim_state state, struct candidates *all) {
    double logit = 12.0;
    all->n = 0;
    for (uint64_t k = 0; k < TRIES && all->n < CANDIDATES; k++) {
        uint64_t unfinished = state & SIM_STATE_LOW;
        sim_state at = k == 0 ? state : (sim_mix(state, k) & ~(uint64_t)SIM_STATE_LOW) | unfinished;
        hearth_token token = draw(sim, at);
        if (candidate_find(all, token) == NULL) {
            all->v[all->n++] = (struct sim_candidate){.token = token, .raw = logit, .logit = logit};
            logit -= 0.2 + unit(sim_mix(at, 0x10617));
        }
    }
    all->drawn = all->n;
}

/* ---- samplers ---- */

struct hearth_sampler *hearth_sim_sampler_create(struct hearth_engine *engine, const struct hearth_sampling *sampling,
                                                 struct hearth_errmsg *msg) {
    struct sim *sim = hearth_sim_of(engine);
    if (hearth_sampling_check(sampling, &engine->caps, msg) != HEARTH_OK) {
        return NULL;
    }
    struct sim_sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler == NULL) {
        goto nomem;
    }
    sampler->sampling = *sampling;
    sampler->sampling.logit_bias = NULL;
    if (sampling->logit_biases > 0) {
        sampler->biases = calloc(sampling->logit_biases, sizeof sampler->biases[0]);
        if (sampler->biases == NULL) {
            goto nomem;
        }
        memcpy(sampler->biases, sampling->logit_bias, sampling->logit_biases * sizeof sampler->biases[0]);
        sampler->sampling.logit_bias = sampler->biases;
    }
    if (hearth_sampling_penalises(sampling)) {
        sampler->history_most =
            sampling->penalty_last_tokens < 0 ? engine->caps.ctx_tokens : (size_t)sampling->penalty_last_tokens;
        if (!hearth_tokens_reserve(&sampler->history, sampler->history_most)) {
            goto nomem;
        }
    }
    if (sampling->grammar != NULL &&
        hearth_engine_constrain(engine, sampling->grammar, &sampler->head, msg) != HEARTH_OK) {
        hearth_sim_sampler_destroy(engine, &sampler->head);
        return NULL;
    }
    sampler->seed = sampling->seed != HEARTH_SEED_RANDOM ? sampling->seed : sim_mix(++sim->seeds_drawn, 0x5EED);
    return &sampler->head;

nomem:
    (void)hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for a sampler");
    hearth_sim_sampler_destroy(engine, &sampler->head);
    return NULL;
}

void hearth_sim_sampler_destroy(struct hearth_engine *engine, struct hearth_sampler *head) {
    struct sim_sampler *sampler = (struct sim_sampler *)head;
    (void)engine;
    if (sampler != NULL) {
        hearth_grammar_constraint_destroy(sampler->head.constraint);
        hearth_tokens_finish(&sampler->history);
        free(sampler->biases);
        free(sampler);
    }
}

void hearth_sim_sampler_accept(struct hearth_engine *engine, struct hearth_sampler *head, hearth_token token,
                               unsigned flags) {
    struct sim_sampler *sampler = (struct sim_sampler *)head;
    (void)engine;
    if (hearth_sampler_constrains(head, flags)) {
        hearth_grammar_constraint_accept(sampler->head.constraint, token);
    }
    if (sampler->history_most == 0 || (flags & HEARTH_SAMPLE_GRAMMAR) != 0) {
        return;
    }
    if (sampler->history.n < sampler->history_most) {
        bool ok = hearth_tokens_push(&sampler->history, token);
        HEARTH_ASSERT(ok); /* reserved at creation */
    } else {
        sampler->history.v[sampler->history_next] = token;
        sampler->history_next = (sampler->history_next + 1) % sampler->history_most;
    }
}

/* ---- choosing ---- */

/* Biases; a biased token that was not drawn joins in far below those that were. */
static void apply_biases(const struct sim_sampler *sampler, struct candidates *all) {
    double unlikely = all->v[all->drawn - 1].raw - 4.0;
    for (size_t i = 0; i < sampler->sampling.logit_biases; i++) {
        const struct hearth_logit_bias *bias = &sampler->biases[i];
        struct sim_candidate *c = candidate_find(all, bias->token);
        if (c == NULL && bias->bias > 0.0f && all->n < CANDIDATES_MAX) {
            c = &all->v[all->n++];
            *c = (struct sim_candidate){.token = bias->token, .raw = unlikely, .logit = unlikely};
        }
        if (c != NULL) {
            c->logit += (double)bias->bias;
        }
    }
    for (size_t i = 0; sampler->sampling.ignore_eos && i < all->n; i++) {
        if (all->v[i].token == hearth_sim_text_end() || all->v[i].token == hearth_sim_text_stop()) {
            all->v[i].logit = -HUGE_VAL;
        }
    }
}

static void apply_penalties(const struct sim_sampler *sampler, struct candidates *all) {
    const struct hearth_sampling *s = &sampler->sampling;
    for (size_t i = 0; i < all->n; i++) {
        struct sim_candidate *c = &all->v[i];
        size_t count = 0;
        for (size_t k = 0; k < sampler->history.n; k++) {
            count += sampler->history.v[k] == c->token;
        }
        if (count > 0) {
            c->logit = c->logit > 0.0 ? c->logit / (double)s->penalty_repeat : c->logit * (double)s->penalty_repeat;
            c->logit -= (double)count * (double)s->penalty_frequency + (double)s->penalty_presence;
        }
    }
}

static int by_logit(const void *a, const void *b) {
    const struct sim_candidate *x = a, *y = b;
    if (x->logit > y->logit || x->logit < y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }
    return (x->token > y->token) - (x->token < y->token);
}

/* Chooses by temperature among the candidates, best first, that the limits leave. */
static hearth_token choose(const struct sim_sampler *sampler, sim_state state, const struct candidates *all) {
    const struct hearth_sampling *s = &sampler->sampling;
    size_t n = s->top_k > 0 && (size_t)s->top_k < all->n ? (size_t)s->top_k : all->n;
    double p[CANDIDATES_MAX], sum = 0.0, cut = 0.0;
    for (size_t i = 0; i < n; i++) {
        p[i] = exp(all->v[i].logit - all->v[0].logit);
        sum += p[i];
    }
    size_t kept = 0;
    while (kept < n && (kept == 0 || (cut < (double)s->top_p * sum && p[kept] >= (double)s->min_p))) {
        cut += p[kept++];
    }
    sum = 0.0;
    for (size_t i = 0; i < kept; i++) {
        p[i] = exp((all->v[i].logit - all->v[0].logit) / (double)s->temperature);
        sum += p[i];
    }
    double left = unit(sim_mix(sim_mix(state, sampler->seed), sampler->draws)) * sum;
    size_t i = 0;
    while (i + 1 < kept && left >= p[i]) {
        left -= p[i++];
    }
    return all->v[i].token;
}

/* Log-probabilities from the logits as drawn; whatever was not drawn shares one part in a thousand. */
static void report(const struct sim_sampler *sampler, hearth_token chosen, const struct candidates *drawn,
                   struct hearth_sample_logprobs *out) {
    int32_t want = sampler->sampling.logprobs;
    double sum = 0.0;
    for (size_t i = 0; i < drawn->n; i++) {
        sum += exp(drawn->v[i].raw - drawn->v[0].raw);
    }
    double log_sum = log(sum * 1.001) + drawn->v[0].raw;
    *out = (struct hearth_sample_logprobs){.chosen = (float)(drawn->v[drawn->n - 1].raw - 4.0 - log_sum)};
    for (size_t i = 0; i < drawn->n; i++) {
        float logprob = (float)(drawn->v[i].raw - log_sum);
        if (drawn->v[i].token == chosen) {
            out->chosen = logprob;
        }
        if (out->n < want && out->n < HEARTH_LOGPROBS_MAX) {
            out->token[out->n] = drawn->v[i].token;
            out->logprob[out->n++] = logprob;
        }
    }
}

static bool closes(const struct hearth_engine *engine, hearth_token token) {
    size_t len;
    const char *text = hearth_sim_text_bytes(token, &len);
    return token == engine->caps.end_token || (len == 1 && strchr("\"}]", *text) != NULL && *text != '\0');
}

/* A token that the grammar allows; `token` where it allows none, which ends its rule. */
static hearth_token choose_allowed(const struct hearth_engine *engine, struct sim_sampler *sampler, sim_state state,
                                   hearth_token token) {
    uint64_t h = sim_mix(sim_mix(state, sampler->seed), sampler->draws);
    size_t n = hearth_grammar_constraint_mask(sampler->head.constraint, engine->allowed), closing = 0;
    for (uint32_t i = 0; i < engine->caps.vocab_tokens; i++) {
        closing += engine->allowed[i] && closes(engine, (hearth_token)i);
    }
    bool close = closing > 0 && h % 3 != 0;
    size_t left = (size_t)(h >> 8) % (close ? closing : n > 0 ? n : 1);
    for (uint32_t i = 0; n > 0 && i < engine->caps.vocab_tokens; i++) {
        if (engine->allowed[i] && (!close || closes(engine, (hearth_token)i)) && left-- == 0) {
            return (hearth_token)i;
        }
    }
    return token;
}

hearth_token hearth_sim_sample(struct hearth_engine *engine, struct hearth_sampler *head, size_t index, unsigned flags,
                               struct hearth_sample_logprobs *logprobs) {
    struct sim_sampler *sampler = (struct sim_sampler *)head;
    const struct sim *sim = hearth_sim_of(engine);
    HEARTH_ASSERT(index < sim->output_count && sim->output_wanted[index]);
    const struct hearth_sampling *s = &sampler->sampling;
    sim_state state = sim->outputs[index];
    bool greedy = s->temperature <= 0.0f;
    bool changed = s->logit_biases > 0 || s->ignore_eos || sampler->history.n > 0;
    hearth_token token = draw(sim, state);
    struct candidates drawn;
    if (!greedy || changed || logprobs != NULL) {
        candidates_draw(sim, state, &drawn);
    }
    if (!greedy || changed) {
        struct candidates all = drawn;
        apply_biases(sampler, &all);
        apply_penalties(sampler, &all);
        qsort(all.v, all.n, sizeof all.v[0], by_logit);
        token = greedy ? all.v[0].token : choose(sampler, state, &all);
    }
    if (hearth_sampler_constrains(head, flags) && hearth_grammar_constraint_active(sampler->head.constraint) &&
        !hearth_grammar_constraint_allows(sampler->head.constraint, token)) {
        token = choose_allowed(engine, sampler, state, token);
    }
    if (logprobs != NULL) {
        report(sampler, token, &drawn, logprobs);
    }
    sampler->draws++;
    hearth_sim_sampler_accept(engine, head, token, flags);
    return token;
}

void hearth_sim_token_logprobs(struct hearth_engine *engine, struct hearth_sampler *head, size_t index,
                               hearth_token token, struct hearth_sample_logprobs *logprobs) {
    struct sim_sampler *sampler = (struct sim_sampler *)head;
    const struct sim *sim = hearth_sim_of(engine);
    HEARTH_ASSERT(index < sim->output_count && sim->output_wanted[index]);
    struct candidates drawn;
    candidates_draw(sim, sim->outputs[index], &drawn);
    report(sampler, token, &drawn, logprobs);
}
