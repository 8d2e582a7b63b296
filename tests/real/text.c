/* Text and sampling on a real vocabulary: tokens out of text and back, and the choice of the next token. */
#include "base/cancel.h"
#include "models.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"tiny", "tiny-gemma"};

/* ---- text ---- */

static void tokenize(struct hearth_engine *engine, const char *text, bool special, struct hearth_tokens *out) {
    assert_int_equal(engine->ops->tokenize(engine, text, strlen(text), special, special, out), HEARTH_OK);
}

static void text_comes_back(void **state) {
    static const char *const texts[] = {
        "Hello, world!",        "", "a", "naïve café — 東京 🏠", "int main(void) { return 0; }\n\n\tx",
        "0123456789 0123456789"};
    struct hearth_engine *engine = real_open(*state);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct hearth_tokens tokens = {0};
        tokenize(engine, texts[i], false, &tokens);
        char text[512];
        size_t len = 0;
        for (size_t k = 0; k < tokens.n; k++) {
            len += engine->ops->token_text(engine, tokens.v[k], false, text + len, sizeof text - len);
        }
        text[len] = '\0';
        assert_string_equal(text, texts[i]);
        hearth_tokens_finish(&tokens);
    }
    real_close(engine);
}

/* Text of one-byte tokens needs more room than the first guess; what stands in the array before stays. */
static void dense_text(void **state) {
    struct hearth_engine *engine = real_open(*state);
    char text[3001];
    for (size_t i = 0; i < sizeof text - 1; i++) {
        text[i] = "q7#Z~x"[(i * i / 3) % 6];
    }
    text[sizeof text - 1] = '\0';
    struct hearth_tokens tokens = {0};
    assert_true(hearth_tokens_push(&tokens, 5));
    tokenize(engine, text, false, &tokens);
    assert_int_equal(tokens.v[0], 5);
    assert_true(tokens.n > sizeof text / 3 + 16);
    hearth_tokens_finish(&tokens);
    real_close(engine);
}

static void special_tokens(void **state) {
    struct hearth_engine *engine = real_open(*state);
    struct hearth_tokens tokens = {0};
    const char *eos = engine->caps.eos_text;
    assert_true(strlen(eos) > 0);
    tokenize(engine, eos, true, &tokens);
    assert_int_equal(tokens.n, engine->caps.add_bos ? 2 : 1);
    hearth_token end = tokens.v[tokens.n - 1];
    assert_true(engine->ops->token_is_end(engine, end));
    assert_false(engine->ops->token_is_end(engine, -1));
    assert_false(engine->ops->token_is_end(engine, (hearth_token)engine->caps.vocab_tokens));
    /* Control tokens are silent unless asked for. A buffer that is too short gets what fits. */
    char text[32] = "????????";
    assert_int_equal(engine->ops->token_text(engine, end, false, text, sizeof text), 0);
    assert_int_equal(engine->ops->token_text(engine, end, true, text, 3), strlen(eos));
    assert_memory_equal(text, eos, 3);
    assert_int_equal(text[3], '?');
    assert_int_equal(engine->ops->token_text(engine, -1, true, text, sizeof text), 0);
    assert_int_equal(engine->ops->token_text(engine, (hearth_token)engine->caps.vocab_tokens, true, text, sizeof text),
                     0);
    /* As plain text the same characters are no control token. */
    tokens.n = 0;
    assert_int_equal(engine->ops->tokenize(engine, eos, strlen(eos), false, false, &tokens), HEARTH_OK);
    assert_true(tokens.n > 1);
    hearth_tokens_finish(&tokens);
    real_close(engine);
}

/* A long text is tokenised in parts, which no token tells: many turns are the tokens of one, so many times. Behind the
 * first bytes, which are no whole turn, parts end somewhere else. */
static void many_control_tokens(void **state) {
    enum { TURNS = 3000 };
    struct hearth_engine *engine = real_open(*state);
    struct hearth_tokens one = {0}, lead = {0}, many = {0};
    struct hearth_buf turn = {0}, text = {0};
    assert_true(hearth_buf_printf(&turn, "%suser\n  say 42 things, caf\xC3\xA9%s\n", engine->caps.eos_text,
                                  engine->caps.eos_text));
    assert_int_equal(engine->ops->tokenize(engine, (char *)turn.data, turn.len, false, true, &one), HEARTH_OK);
    assert_int_equal(engine->ops->tokenize(engine, "Well, ", 6, false, true, &lead), HEARTH_OK);
    assert_true(hearth_buf_text(&text, "Well, "));
    for (size_t i = 0; i < TURNS; i++) {
        assert_true(hearth_buf_append(&text, turn.data, turn.len));
    }
    assert_int_equal(engine->ops->tokenize(engine, (char *)text.data, text.len, false, true, &many), HEARTH_OK);
    assert_int_equal(many.n, lead.n + TURNS * one.n);
    assert_memory_equal(many.v, lead.v, lead.n * sizeof *lead.v);
    for (size_t i = 0; i < TURNS; i++) {
        assert_memory_equal(many.v + lead.n + i * one.n, one.v, one.n * sizeof *one.v);
    }
    hearth_tokens_finish(&one);
    hearth_tokens_finish(&lead);
    hearth_tokens_finish(&many);
    hearth_buf_finish(&turn);
    hearth_buf_finish(&text);
    real_close(engine);
}

static struct hearth_engine *open_as(const char *name, const char *const *metadata) {
    struct hearth_llama_params params;
    real_params(&params, name);
    params.override_kv = metadata;
    params.override_kvs = 1;
    return real_open_with(&params);
}

static int not_wanted(void *user) {
    (void)user;
    return HEARTH_ERR_CANCELLED;
}

/* A vocabulary that looks from every digit to the end of the number takes hours for a long one. */
static void a_long_number_can_be_cancelled(void **state) {
    static const char *const metadata[] = {"tokenizer.ggml.pre=str:superbpe"};
    struct hearth_engine *engine = open_as(*state, metadata);
    struct hearth_cancel cancel = {.wanted = not_wanted};
    struct hearth_tokens tokens = {0};
    char digits[7000];
    memset(digits, '7', sizeof digits);
    assert_int_equal(engine->ops->tokenize(engine, "a", 1, false, false, &tokens), HEARTH_OK);
    hearth_cancel_enter(&cancel);
    (void)hearth_cancel_poll(); /* the next one passes it */
    cancel.verdict = HEARTH_OK;
    assert_int_equal(engine->ops->tokenize(engine, digits, sizeof digits, false, false, &tokens), HEARTH_ERR_CANCELLED);
    hearth_cancel_leave();
    assert_int_equal(tokens.n, 1);
    /* Its parts end where the groups of three do. */
    struct hearth_tokens whole = {0}, part = {0};
    assert_int_equal(engine->ops->tokenize(engine, digits, 2304, false, false, &whole), HEARTH_OK);
    assert_int_equal(engine->ops->tokenize(engine, digits, 768, false, false, &part), HEARTH_OK);
    assert_int_equal(whole.n, 3 * part.n);
    hearth_tokens_finish(&whole);
    hearth_tokens_finish(&part);
    hearth_tokens_finish(&tokens);
    real_close(engine);
}

struct run {
    struct hearth_engine *engine;
    const char *unit;
};

static void *tokenize_run(void *user) {
    enum { BYTES = 1 << 18 };
    const struct run *run = user;
    struct hearth_tokens tokens = {0};
    struct hearth_buf text = {0}, back = {0};
    while (text.len < BYTES) {
        assert_true(hearth_buf_text(&text, run->unit));
    }
    assert_int_equal(run->engine->ops->tokenize(run->engine, (char *)text.data, text.len, false, false, &tokens),
                     HEARTH_OK);
    for (size_t i = 0; i < tokens.n; i++) {
        char piece[512];
        const size_t len = run->engine->ops->token_text(run->engine, tokens.v[i], false, piece, sizeof piece);
        assert_true(len <= sizeof piece && hearth_buf_append(&back, piece, len));
    }
    assert_int_equal(back.len, text.len);
    assert_memory_equal(back.data, text.data, text.len);
    hearth_tokens_finish(&tokens);
    hearth_buf_finish(&text);
    hearth_buf_finish(&back);
    return NULL;
}

/* A vocabulary that is split by std::regex goes a level deeper for each letter of a run. */
static void a_long_run_takes_a_shallow_stack(void **state) {
    static const char *const metadata[] = {"tokenizer.ggml.pre=str:tekken"};
    struct hearth_engine *engine = open_as(*state, metadata);
    static const char *const units[] = {"a", " ", " \n", "\xC3\xA9", "\xE4\xB8\xAD", "."};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        struct run run = {engine, units[i]};
        pthread_attr_t attr;
        pthread_t thread;
        assert_int_equal(pthread_attr_init(&attr), 0);
        assert_int_equal(pthread_attr_setstacksize(&attr, (size_t)32 << 20), 0);
        assert_int_equal(pthread_create(&thread, &attr, tokenize_run, &run), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        pthread_attr_destroy(&attr);
    }
    real_close(engine);
}

/* ---- sampling ---- */

/* Computes a prompt; sampling then reads its last item. */
static size_t prepare(struct hearth_engine *engine) {
    hearth_token prompt[30];
    real_prompt(engine, 40, prompt, 30);
    engine->ops->seq_clear(engine, 0);
    real_decode(engine, 0, prompt, 0, 30);
    return 29;
}

static hearth_token sample_once(struct hearth_engine *engine, size_t index, const struct hearth_sampling *sampling,
                                struct hearth_sample_logprobs *logprobs) {
    struct hearth_errmsg msg = {""};
    struct hearth_sampler *sampler = engine->ops->sampler_create(engine, sampling, &msg);
    if (sampler == NULL) {
        fail_msg("%s", msg.text);
    }
    hearth_token token = engine->ops->sample(engine, sampler, index, 0, logprobs);
    engine->ops->sampler_destroy(engine, sampler);
    return token;
}

static void greedy_takes_the_largest(void **state) {
    struct hearth_engine *engine = real_open(*state);
    size_t index = prepare(engine);
    hearth_token best = real_best(engine, engine->ops->logits(engine, index));
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    s.temperature = 0.0f;
    assert_int_equal(sample_once(engine, index, &s, NULL), best);
    s.temperature = 1.0f;
    s.top_k = 1;
    assert_int_equal(sample_once(engine, index, &s, NULL), best);
    /* Penalties take the general path; neutral but for a token that never occurred, the choice stays. */
    s.temperature = 0.0f;
    s.penalty_presence = 0.5f;
    assert_int_equal(sample_once(engine, index, &s, NULL), best);
    /* A token that was accepted is penalised. */
    s.penalty_presence = 1000.0f;
    struct hearth_sampler *sampler = engine->ops->sampler_create(engine, &s, NULL);
    assert_non_null(sampler);
    engine->ops->sampler_accept(engine, sampler, best, 0);
    assert_int_not_equal(engine->ops->sample(engine, sampler, index, 0, NULL), best);
    engine->ops->sampler_destroy(engine, sampler);
    real_close(engine);
}

/* Each of the rarer filters, with a value under which it must decide: off, each of these chooses the likeliest. */
static void rare_filters(void **state) {
    struct hearth_engine *engine = real_open(*state);
    const size_t index = prepare(engine);
    const hearth_token best = real_best(engine, engine->ops->logits(engine, index));
    struct hearth_sampling base, s;
    hearth_sampling_default(&base);
    base.seed = 1;
    /* Only what is as likely as the likeliest, at a temperature at which anything goes. */
    s = base;
    s.temperature = 2.0f;
    s.top_k = 0;
    s.top_p = 1.0f;
    s.min_p = 0.0f;
    bool varies = false;
    for (s.seed = 1; s.seed < 33; s.seed++) {
        s.top_n_sigma = -1.0f;
        varies = varies || sample_once(engine, index, &s, NULL) != best;
        s.top_n_sigma = 1e-6f;
        assert_int_equal(sample_once(engine, index, &s, NULL), best);
    }
    assert_true(varies);
    /* All but the least likely of those above the threshold go. */
    s = base;
    s.top_k = 2;
    s.top_p = 1.0f;
    s.min_p = 0.0f;
    s.temperature = 0.01f;
    assert_int_equal(sample_once(engine, index, &s, NULL), best);
    s.xtc_probability = 1.0f;
    s.xtc_threshold = 1e-9f;
    assert_int_not_equal(sample_once(engine, index, &s, NULL), best);
    /* The temperature rises with the entropy; under the exponent 0 it is the highest of the range. */
    s.xtc_probability = 0.0f;
    s.dynatemp_range = 100.0f;
    s.dynatemp_exponent = 0.0f;
    varies = false;
    for (s.seed = 1; s.seed < 33; s.seed++) {
        varies = varies || sample_once(engine, index, &s, NULL) != best;
    }
    assert_true(varies);
    real_close(engine);
}

/* The token that would repeat a sequence is penalised, the longer the more; other tokens are not. */
static void repeated_sequences(void **state) {
    struct hearth_engine *engine = real_open(*state);
    const size_t index = prepare(engine);
    const hearth_token best = real_best(engine, engine->ops->logits(engine, index));
    const hearth_token repeated[] = {1000, 1001, best, 1000, 1001}, other[] = {1000, 1001, best, 1002, 1003};
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    s.temperature = 0.0f;
    assert_int_equal(hearth_sampling_lookback(&s), 0);
    s.dry_multiplier = 1000.0f;
    s.dry_last_tokens = 5;
    assert_true(hearth_sampling_penalises(&s));
    assert_int_equal(hearth_sampling_lookback(&s), 5);
    for (int i = 0; i < 2; i++) {
        struct hearth_sampler *sampler = engine->ops->sampler_create(engine, &s, NULL);
        assert_non_null(sampler);
        for (int k = 0; k < 5; k++) {
            engine->ops->sampler_accept(engine, sampler, i == 0 ? repeated[k] : other[k], HEARTH_SAMPLE_PROMPT);
        }
        const hearth_token token = engine->ops->sample(engine, sampler, index, 0, NULL);
        assert_true((token != best) == (i == 0));
        engine->ops->sampler_destroy(engine, sampler);
    }
    s.dry_last_tokens = -1;
    assert_int_equal(hearth_sampling_lookback(&s), -1);
    real_close(engine);
}

static void biases(void **state) {
    struct hearth_engine *engine = real_open(*state);
    size_t index = prepare(engine);
    float before = engine->ops->logits(engine, index)[1234];
    hearth_token best = real_best(engine, engine->ops->logits(engine, index));
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    for (int greedy = 0; greedy < 2; greedy++) {
        s.temperature = greedy ? 0.0f : 0.7f;
        const struct hearth_logit_bias up[] = {{1234, 500.0f}, {1234, 500.0f}}, down[] = {{best, -INFINITY}};
        s.logit_bias = up;
        s.logit_biases = 2;
        assert_int_equal(sample_once(engine, index, &s, NULL), 1234);
        s.logit_bias = down;
        s.logit_biases = 1;
        assert_int_not_equal(sample_once(engine, index, &s, NULL), best);
    }
    /* The logits are as they were, to the bit. */
    assert_memory_equal(&before, &engine->ops->logits(engine, index)[1234], sizeof before);
    struct hearth_errmsg msg = {""};
    const struct hearth_logit_bias stranger = {(hearth_token)engine->caps.vocab_tokens, 1.0f};
    s.logit_bias = &stranger;
    assert_null(engine->ops->sampler_create(engine, &s, &msg));
    assert_non_null(strstr(msg.text, "logit_bias"));
    real_close(engine);
}

static void ends_can_be_ignored(void **state) {
    struct hearth_engine *engine = real_open(*state);
    size_t index = prepare(engine);
    struct hearth_tokens eos = {0};
    tokenize(engine, engine->caps.eos_text, true, &eos);
    const struct hearth_logit_bias up = {eos.v[eos.n - 1], 500.0f};
    hearth_tokens_finish(&eos);
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    s.temperature = 0.0f;
    s.logit_bias = &up;
    s.logit_biases = 1;
    assert_true(engine->ops->token_is_end(engine, sample_once(engine, index, &s, NULL)));
    s.ignore_eos = true;
    assert_false(engine->ops->token_is_end(engine, sample_once(engine, index, &s, NULL)));
    real_close(engine);
}

/* The two ways to cut to the k best draw the same token from the same seed. */
static void direct_pick_equals_the_chain(void **state) {
    struct hearth_engine *engine = real_open(*state);
    size_t index = prepare(engine);
    struct hearth_sampling direct, chain;
    hearth_sampling_default(&direct);
    direct.temperature = 1.5f;
    direct.top_p = 0.98f;
    direct.min_p = 0.0f;
    chain = direct;
    chain.penalty_presence = 1e-6f; /* nothing was accepted, so nothing is penalised: only the path changes */
    int different = 0;
    hearth_token first = -1;
    for (uint32_t seed = 1; seed <= 200; seed++) {
        direct.seed = chain.seed = seed;
        hearth_token a = sample_once(engine, index, &direct, NULL);
        assert_int_equal(a, sample_once(engine, index, &chain, NULL));
        assert_int_equal(a, sample_once(engine, index, &direct, NULL)); /* a seed is a promise */
        different += first >= 0 && a != first;
        first = first >= 0 ? first : a;
    }
    assert_true(different > 0);
    real_close(engine);
}

static void logprobs_are_of_the_model(void **state) {
    struct hearth_engine *engine = real_open(*state);
    size_t index = prepare(engine);
    const float *logits = engine->ops->logits(engine, index);
    double sum = 0.0, max = (double)logits[real_best(engine, logits)];
    for (uint32_t i = 0; i < engine->caps.vocab_tokens; i++) {
        sum += exp((double)logits[i] - max);
    }
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    s.seed = 7;
    s.logprobs = 5;
    const struct hearth_logit_bias bias = {real_best(engine, logits), -3.0f}; /* does not show in log-probabilities */
    s.logit_bias = &bias;
    s.logit_biases = 1;
    struct hearth_sample_logprobs got;
    hearth_token token = sample_once(engine, index, &s, &got);
    assert_true(fabs((double)logits[token] - max - log(sum) - (double)got.chosen) < 1e-4);
    assert_int_equal(got.n, 5);
    assert_int_equal(got.token[0], real_best(engine, logits));
    for (int i = 0; i < got.n; i++) {
        assert_true(fabs((double)logits[got.token[i]] - max - log(sum) - (double)got.logprob[i]) < 1e-4);
        assert_true(i == 0 || got.logprob[i] <= got.logprob[i - 1]);
    }
    /* Nothing larger was left out. */
    for (uint32_t i = 0; i < engine->caps.vocab_tokens; i++) {
        bool listed = false;
        for (int k = 0; k < got.n; k++) {
            listed = listed || got.token[k] == (hearth_token)i;
        }
        assert_true(listed || logits[i] <= logits[got.token[4]]);
    }
    s.logprobs = 0;
    sample_once(engine, index, &s, &got);
    assert_int_equal(got.n, 0);
    real_close(engine);
}

static void parameters_are_checked(void **state) {
    struct hearth_engine *engine = real_open(*state);
    struct hearth_errmsg msg = {""};
    struct hearth_sampling s;
#define REFUSED(statement)                                          \
    do {                                                            \
        hearth_sampling_default(&s);                                \
        statement;                                                  \
        assert_null(engine->ops->sampler_create(engine, &s, &msg)); \
        assert_true(strlen(msg.text) > 0);                          \
    } while (0)
    REFUSED(s.temperature = NAN);
    REFUSED(s.top_p = INFINITY);
    REFUSED(s.penalty_repeat = 0.0f);
    REFUSED(s.penalty_repeat = -1.0f);
    REFUSED(s.penalty_frequency = NAN);
    REFUSED(s.penalty_last_tokens = -2);
    REFUSED(s.dry_last_tokens = -2);
    REFUSED(s.dry_multiplier = NAN);
    REFUSED(s.top_n_sigma = INFINITY);
    REFUSED(s.xtc_threshold = NAN);
    REFUSED(s.dynatemp_range = NAN);
    REFUSED(s.logprobs = HEARTH_LOGPROBS_MAX + 1);
#undef REFUSED
    real_close(engine);
}

#define ON(test, model) {#test " on " model, test, NULL, NULL, (void *)(uintptr_t)model}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON(text_comes_back, "tiny"),
        ON(dense_text, "tiny"),
        ON(special_tokens, "tiny"),
        ON(many_control_tokens, "tiny"),
        ON(a_long_number_can_be_cancelled, "tiny"),
        ON(a_long_run_takes_a_shallow_stack, "tiny"),
        ON(greedy_takes_the_largest, "tiny"),
        ON(rare_filters, "tiny"),
        ON(repeated_sequences, "tiny"),
        ON(biases, "tiny"),
        ON(ends_can_be_ignored, "tiny"),
        ON(direct_pick_equals_the_chain, "tiny"),
        ON(logprobs_are_of_the_model, "tiny"),
        ON(parameters_are_checked, "tiny"),
        ON(text_comes_back, "tiny-gemma"),
        ON(special_tokens, "tiny-gemma"),
        ON(many_control_tokens, "tiny-gemma"),
        ON(greedy_takes_the_largest, "tiny-gemma"),
        ON(direct_pick_equals_the_chain, "tiny-gemma"),
    };
    return real_exit(cmocka_run_group_tests(tests, NULL, NULL), names, sizeof names / sizeof names[0]);
}
