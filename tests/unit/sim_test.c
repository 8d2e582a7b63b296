/* The sim engine, one behaviour at a time: its text, its samplers, its clock; that wrong content poisons the output and
 * that misuse stops the process. Random operations stand in tests/model/engine_sim_test.c. */
#include "base/utf8.h"
#include "engine/sim.h"
#include "support/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "support/stops.h"

static struct hearth_engine *engine_make(enum hearth_engine_class memory_class, uint64_t seed) {
    struct hearth_sim_params params;
    struct hearth_engine *engine;
    hearth_sim_params_default(&params);
    params.memory_class = memory_class;
    params.ctx_tokens = 256;
    params.batch_tokens = 64;
    params.ubatch_tokens = 64;
    params.seed = seed;
    assert_int_equal(hearth_sim_create(&params, &engine, NULL), HEARTH_OK);
    return engine;
}

/* Puts tokens behind a sequence that holds `from` of them. */
static int feed(struct hearth_engine *engine, int32_t seq, int32_t from, const char *text) {
    struct hearth_batch_item items[64];
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        items[i] = (struct hearth_batch_item){
            .token = (uint8_t)text[i], .seq = seq, .pos = from + (int32_t)i, .output = i + 1 == n};
    }
    return engine->ops->decode(engine, items, n);
}

static bool holds(struct hearth_engine *engine, int32_t seq, const char *text) {
    hearth_token tokens[64];
    for (size_t i = 0; text[i] != '\0'; i++) {
        tokens[i] = (uint8_t)text[i];
    }
    return hearth_sim_intact(engine, seq, tokens, strlen(text));
}

/* ---- text ---- */

static void tokenizer_loses_nothing(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 1);
    struct rng rng = {seed_announced(1)};
    static const char *const bits[] = {" the",  "{\"",          "\": \"", "<|im_end|>", "<|",
                                       "hello", "\xF0\x9F\x98", "\x80",   "\n"};
    for (int round = 0; round < 3000; round++) {
        struct hearth_buf text = {0}, back = {0};
        struct hearth_tokens tokens = {0};
        for (uint32_t i = rng_below(&rng, 20); i > 0; i--) {
            uint8_t byte = (uint8_t)rng_next(&rng);
            const char *bit = bits[rng_below(&rng, sizeof bits / sizeof bits[0])];
            assert_true(rng_once_in(&rng, 3) ? hearth_buf_append(&text, &byte, 1)
                                             : hearth_buf_append(&text, bit, strlen(bit)));
        }
        bool special = rng_once_in(&rng, 2);
        assert_int_equal(engine->ops->tokenize(engine, (char *)text.data, text.len, true, special, &tokens), HEARTH_OK);
        for (size_t i = 0; i < tokens.n; i++) {
            char bytes[32];
            size_t len = engine->ops->token_text(engine, tokens.v[i], true, bytes, sizeof bytes);
            assert_true(tokens.v[i] >= 0 && (uint32_t)tokens.v[i] < engine->caps.vocab_tokens);
            assert_true(hearth_buf_append(&back, bytes, len));
        }
        assert_int_equal(back.len, text.len);
        assert_true(text.len == 0 || memcmp(back.data, text.data, text.len) == 0);
        hearth_buf_finish(&text);
        hearth_buf_finish(&back);
        hearth_tokens_finish(&tokens);
    }
    engine->ops->destroy(engine);
}

static void specials(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 1);
    struct hearth_tokens parsed = {0}, plain = {0};
    static const char text[] = "<|im_end|>";
    assert_int_equal(engine->ops->tokenize(engine, text, strlen(text), false, true, &parsed), HEARTH_OK);
    assert_int_equal(engine->ops->tokenize(engine, text, strlen(text), false, false, &plain), HEARTH_OK);
    assert_int_equal(parsed.n, 1);
    assert_true(plain.n > 1);
    assert_true(engine->ops->token_is_end(engine, parsed.v[0]));
    assert_false(engine->ops->token_is_end(engine, plain.v[0]));
    char out[32];
    assert_int_equal(engine->ops->token_text(engine, parsed.v[0], false, out, sizeof out), 0);
    assert_int_equal(engine->ops->token_text(engine, parsed.v[0], true, out, 2), strlen(text)); /* two bytes written */
    assert_memory_equal(out, "<|", 2);
    hearth_tokens_finish(&parsed);
    hearth_tokens_finish(&plain);
    engine->ops->destroy(engine);
}

/* Generated text is nearly UTF-8, some characters take two tokens, and it does not always tokenise as it was drawn. */
static void text_reads_as_text(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 1);
    struct hearth_tokens all = {0}, again = {0};
    struct hearth_buf text = {0};
    int held_back = 0, ends = 0;
    for (int i = 0; i < 2000; i++) {
        hearth_token token = hearth_sim_oracle(engine, all.v, all.n);
        char bytes[32];
        size_t len = engine->ops->token_text(engine, token, false, bytes, sizeof bytes);
        ends += engine->ops->token_is_end(engine, token);
        assert_true(hearth_tokens_push(&all, token) && hearth_buf_append(&text, bytes, len));
        held_back += hearth_utf8_complete((char *)text.data, text.len) < text.len;
    }
    assert_true(held_back > 20);
    assert_in_range(ends, 20, 100); /* one in 40 */
    struct hearth_buf shown = {0};
    assert_true(hearth_utf8_append(&shown, (char *)text.data, text.len));
    assert_true(shown.len < text.len + 40); /* a handful of replacement characters */
    assert_int_equal(engine->ops->tokenize(engine, (char *)text.data, text.len, false, true, &again), HEARTH_OK);
    assert_true(hearth_tokens_common(all.v, all.n, again.v, again.n) < all.n);
    hearth_buf_finish(&text);
    hearth_buf_finish(&shown);
    hearth_tokens_finish(&all);
    hearth_tokens_finish(&again);
    engine->ops->destroy(engine);
}

/* ---- sampling ---- */

static hearth_token sample_once(struct hearth_engine *engine, const struct hearth_sampling *sampling,
                                struct hearth_sample_logprobs *logprobs) {
    struct hearth_sampler *sampler = engine->ops->sampler_create(engine, sampling, NULL);
    assert_non_null(sampler);
    engine->ops->seq_clear(engine, 0);
    assert_int_equal(feed(engine, 0, 0, "once upon"), HEARTH_OK);
    hearth_token token = engine->ops->sample(engine, sampler, 8, 0, logprobs);
    engine->ops->sampler_destroy(engine, sampler);
    return token;
}

static void sampling_defaults(void **state) {
    (void)state;
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    assert_int_equal(s.top_k, 40);
    assert_true(s.seed == HEARTH_SEED_RANDOM && s.logprobs == -1 && s.logit_biases == 0);
    assert_false(hearth_sampling_penalises(&s));
    s.penalty_presence = 0.5f;
    assert_true(hearth_sampling_penalises(&s));
    s.penalty_last_tokens = 0; /* looks at nothing */
    assert_false(hearth_sampling_penalises(&s));
    assert_string_equal(hearth_engine_class_text(HEARTH_ENGINE_PAGES_SNAPSHOT), "pages + snapshot");
}

static void biases_and_logprobs(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 3);
    struct hearth_sampling s;
    struct hearth_sample_logprobs logprobs;
    hearth_sampling_default(&s);
    s.temperature = 0.0f;
    s.logprobs = 5;
    hearth_token greedy = sample_once(engine, &s, &logprobs);
    assert_int_equal(logprobs.n, 5);
    assert_int_equal(logprobs.token[0], greedy);
    assert_true(logprobs.chosen == logprobs.logprob[0] && logprobs.chosen < 0.0f);
    float sum = 0.0f;
    for (int i = 0; i < logprobs.n; i++) {
        sum += expf(logprobs.logprob[i]);
        assert_true(i == 0 || logprobs.logprob[i] < logprobs.logprob[i - 1]);
    }
    assert_true(sum < 1.0f);

    struct hearth_logit_bias bias = {.token = greedy, .bias = -100.0f};
    s.logit_bias = &bias;
    s.logit_biases = 1;
    hearth_token second = sample_once(engine, &s, &logprobs);
    assert_int_equal(second, logprobs.token[1]); /* the unmodified order still reports the banned one first */
    assert_int_equal(logprobs.token[0], greedy);
    for (hearth_token forced = 0; (uint32_t)forced < engine->caps.vocab_tokens; forced += 37) {
        bias = (struct hearth_logit_bias){.token = forced, .bias = 100.0f};
        s.temperature = forced % 2 == 0 ? 0.0f : 1.5f;
        assert_int_equal(sample_once(engine, &s, &logprobs), forced);
    }
    bias.token = (hearth_token)engine->caps.vocab_tokens;
    struct hearth_errmsg msg;
    assert_null(engine->ops->sampler_create(engine, &s, &msg));
    assert_non_null(strstr(msg.text, "logit_bias"));
    engine->ops->destroy(engine);
}

static void temperature_and_seed(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 3);
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    int different = 0;
    s.seed = 0;
    hearth_token first = sample_once(engine, &s, NULL);
    for (s.seed = 1; s.seed < 100; s.seed++) {
        hearth_token token = sample_once(engine, &s, NULL);
        assert_int_equal(sample_once(engine, &s, NULL), token);
        different += token != first;
    }
    assert_in_range(different, 20, 98);
    s.top_k = 1;
    hearth_token greedy = sample_once(engine, &s, NULL);
    s.temperature = 0.0f;
    assert_int_equal(sample_once(engine, &s, NULL), greedy);
    engine->ops->destroy(engine);
}

static void penalties_and_ends(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 3);
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    s.temperature = 0.0f;
    hearth_token greedy = sample_once(engine, &s, NULL);
    s.penalty_presence = 50.0f;
    struct hearth_sampler *sampler = engine->ops->sampler_create(engine, &s, NULL);
    engine->ops->sampler_accept(engine, sampler, greedy, 0);
    assert_int_not_equal(engine->ops->sample(engine, sampler, 8, 0, NULL), greedy);
    for (int i = 0; i < 63; i++) {
        engine->ops->sampler_accept(engine, sampler, 0,
                                    0); /* the window of 64 has moved on after this and the sample */
    }
    assert_int_equal(engine->ops->sample(engine, sampler, 8, 0, NULL), greedy);
    engine->ops->sampler_destroy(engine, sampler);

    hearth_sampling_default(&s);
    s.temperature = 0.0f;
    s.ignore_eos = true;
    sampler = engine->ops->sampler_create(engine, &s, NULL);
    int would_end = 0;
    for (hearth_token t = 0; t < 200; t++) {
        engine->ops->seq_clear(engine, 0);
        struct hearth_batch_item item = {.token = t, .seq = 0, .pos = 0, .output = true};
        assert_int_equal(engine->ops->decode(engine, &item, 1), HEARTH_OK);
        would_end += engine->ops->token_is_end(engine, hearth_sim_oracle(engine, &t, 1));
        assert_false(engine->ops->token_is_end(engine, engine->ops->sample(engine, sampler, 0, 0, NULL)));
    }
    assert_true(would_end > 0);
    engine->ops->sampler_destroy(engine, sampler);
    engine->ops->destroy(engine);
}

/* ---- wrong content poisons ---- */

static void wrong_pages(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 5), *other = engine_make(HEARTH_ENGINE_PAGES, 6);
    const struct hearth_engine_ops *ops = engine->ops;
    struct hearth_buf first = {0}, second = {0}, foreign = {0}, stranger = {0};
    assert_int_equal(feed(engine, 0, 0, "abcdefgh"), HEARTH_OK);
    assert_int_equal(feed(engine, 1, 0, "abXdefgh"), HEARTH_OK);
    assert_int_equal(feed(other, 0, 0, "abcdefgh"), HEARTH_OK);
    assert_int_equal(ops->page_export(engine, 0, 0, 4, &first), HEARTH_OK);
    assert_int_equal(ops->page_export(engine, 0, 4, 8, &second), HEARTH_OK);
    assert_int_equal(ops->page_export(engine, 1, 4, 8, &foreign), HEARTH_OK);
    assert_int_equal(other->ops->page_export(other, 0, 0, 4, &stranger), HEARTH_OK);
    assert_int_equal(first.len, 4 * engine->caps.page_bytes_per_token);

#define IMPORT(p0, p1, blob, from, to) \
    assert_int_equal(ops->page_import(engine, 2, p0, p1, (blob).data, (blob).len, from, to), HEARTH_OK)
    IMPORT(0, 4, first, 0, 4);
    IMPORT(4, 7, second, 4, 8);
    assert_true(holds(engine, 2, "abcdefg"));
    assert_int_equal(feed(engine, 2, 7, "Z"), HEARTH_OK);
    assert_true(holds(engine, 2, "abcdefgZ"));

    ops->seq_clear(engine, 2);
    IMPORT(0, 4, first, 0, 4);
    IMPORT(4, 8, foreign, 4, 8); /* right positions and tokens, another prefix */
    assert_false(holds(engine, 2, "abcdefgh"));
    assert_int_equal(feed(engine, 2, 8, "ijk"), HEARTH_OK);
    assert_false(holds(engine, 2, "abcdefghijk")); /* and it stays wrong */

    ops->seq_clear(engine, 2);
    IMPORT(0, 4, second, 0, 4); /* another position */
    assert_false(holds(engine, 2, "efgh") || holds(engine, 2, "abcd"));

    ops->seq_clear(engine, 2);
    IMPORT(0, 4, stranger, 0, 4); /* another model */
    assert_false(holds(engine, 2, "abcd"));

    ops->seq_clear(engine, 2);
    first.data[first.len - 1] ^= 1; /* damage, even where nothing is stored */
    IMPORT(0, 4, first, 0, 4);
    assert_false(holds(engine, 2, "abcd"));

    ops->seq_clear(engine, 2); /* what an engine would notice */
    assert_int_equal(ops->page_import(engine, 2, 0, 4, second.data, second.len - 1, 0, 4), HEARTH_ERR_STATE);
    assert_int_equal(ops->page_import(engine, 2, 0, 4, "rubbish", 7, 0, 4), HEARTH_ERR_STATE);
    assert_true(holds(engine, 2, ""));
#undef IMPORT
    hearth_buf_finish(&first);
    hearth_buf_finish(&second);
    hearth_buf_finish(&foreign);
    hearth_buf_finish(&stranger);
    engine->ops->destroy(engine);
    other->ops->destroy(other);
}

static void wrong_snapshots(void **state) {
    (void)state;
    static const enum hearth_engine_class classes[] = {HEARTH_ENGINE_PAGES_SNAPSHOT, HEARTH_ENGINE_SNAPSHOT,
                                                       HEARTH_ENGINE_OPAQUE};
    for (size_t c = 0; c < 3; c++) {
        struct hearth_engine *engine = engine_make(classes[c], 5);
        const struct hearth_engine_ops *ops = engine->ops;
        bool pages = hearth_caps_has_pages(&engine->caps);
        struct hearth_buf right = {0}, foreign = {0}, earlier = {0};
        assert_int_equal(feed(engine, 0, 0, "abcd"), HEARTH_OK);
        assert_int_equal(ops->snapshot_export(engine, 0, 4, &earlier), HEARTH_OK);
        assert_int_equal(feed(engine, 0, 4, "ef"), HEARTH_OK);
        assert_int_equal(ops->snapshot_export(engine, 0, 6, &right), HEARTH_OK);
        assert_int_equal(feed(engine, 1, 0, "abXdef"), HEARTH_OK);
        assert_int_equal(ops->snapshot_export(engine, 1, 6, &foreign), HEARTH_OK);
        const struct hearth_buf *blobs[] = {&right, &foreign, &earlier};
        for (int i = 0; i < 3; i++) {
            ops->seq_clear(engine, 2);
            if (pages) {
                assert_int_equal(ops->seq_share(engine, 0, 2, 0, 6), HEARTH_OK);
                assert_false(holds(engine, 2, "abcdef")); /* not complete yet */
            }
            assert_int_equal(ops->snapshot_import(engine, 2, 6, blobs[i]->data, blobs[i]->len), HEARTH_OK);
            assert_int_equal(holds(engine, 2, "abcdef"), i == 0);
            assert_int_equal(feed(engine, 2, 6, "gh"), HEARTH_OK);
            assert_int_equal(holds(engine, 2, "abcdefgh"), i == 0);
        }
        hearth_buf_finish(&right);
        hearth_buf_finish(&foreign);
        hearth_buf_finish(&earlier);
        ops->destroy(engine);
    }
}

/* "abcdefgh" with a window of four tokens, in pieces of three. */
static void pieces_of_a_window(void **state) {
    (void)state;
    struct hearth_sim_params params;
    struct hearth_engine *engine;
    hearth_sim_params_default(&params);
    params.memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT;
    params.window_tokens = 4;
    params.rewind_tokens = 8;
    assert_int_equal(hearth_sim_create(&params, &engine, NULL), HEARTH_OK);
    const struct hearth_engine_ops *ops = engine->ops;
    struct hearth_buf piece[3] = {{0}}, foreign = {0}, whole = {0};
    assert_int_equal(feed(engine, 0, 0, "abcdefgh"), HEARTH_OK);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(ops->window_export(engine, 0, 3 * i, i < 2 ? 3 * i + 3 : 8, &piece[i]), HEARTH_OK);
    }
    assert_int_equal(feed(engine, 1, 0, "aXcdefgh"), HEARTH_OK);
    assert_int_equal(ops->window_export(engine, 1, 3, 6, &foreign), HEARTH_OK);
    assert_int_equal(ops->snapshot_export(engine, 0, 8, &whole), HEARTH_OK);
    assert_in_range(whole.len, engine->caps.snapshot_bytes, engine->caps.snapshot_bytes);
#define IMPORT(p0, p1, blob, first) \
    assert_int_equal(ops->window_import(engine, 2, p0, p1, (blob).data, (blob).len, first), HEARTH_OK)
#define PAGES(n)                                                         \
    do {                                                                 \
        ops->seq_clear(engine, 2);                                       \
        assert_int_equal(ops->seq_share(engine, 0, 2, 0, n), HEARTH_OK); \
    } while (0)
    PAGES(8);
    IMPORT(3, 6, piece[1], true);
    assert_false(holds(engine, 2, "abcdefgh")); /* not complete yet */
    IMPORT(6, 8, piece[2], false);
    assert_true(holds(engine, 2, "abcdefgh"));
    assert_int_equal(ops->seq_rewind_floor(engine, 2, 8), 7); /* 3, and what a token sees before it */
    assert_int_equal(ops->seq_rewind(engine, 2, 7), HEARTH_OK);
    assert_int_equal(feed(engine, 2, 7, "X"), HEARTH_OK);
    assert_true(holds(engine, 2, "abcdefgX"));
    PAGES(5); /* a prompt that leaves inside of a piece */
    IMPORT(0, 3, piece[0], true);
    IMPORT(3, 5, piece[1], false);
    assert_true(holds(engine, 2, "abcde"));
    PAGES(8); /* fewer than a token sees */
    IMPORT(6, 8, piece[2], true);
    assert_false(holds(engine, 2, "abcdefgh"));
    PAGES(8);
    IMPORT(3, 6, foreign, true);
    IMPORT(6, 8, piece[2], false);
    assert_false(holds(engine, 2, "abcdefgh"));
    PAGES(8); /* a piece of other positions */
    IMPORT(3, 8, piece[2], true);
    assert_false(holds(engine, 2, "abcdefgh"));
    PAGES(8); /* the whole window is a piece, too */
    IMPORT(4, 8, whole, true);
    assert_true(holds(engine, 2, "abcdefgh"));
#undef PAGES
#undef IMPORT
    struct hearth_buf out = {0};
    assert_int_equal(feed(engine, 0, 8, "ijklmnop"), HEARTH_OK);
    assert_int_equal(ops->window_export(engine, 0, 3, 6, &out), HEARTH_ERR_STATE); /* it has left them behind */
    assert_int_equal(ops->window_export(engine, 0, 4, 7, &out), HEARTH_OK);
    hearth_buf_finish(&out);
    for (int i = 0; i < 3; i++) {
        hearth_buf_finish(&piece[i]);
    }
    hearth_buf_finish(&foreign);
    hearth_buf_finish(&whole);
    ops->destroy(engine);
}

/* ---- misuse stops ---- */

static void misuse(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES_SNAPSHOT, 5);
    const struct hearth_engine_ops *ops = engine->ops;
    struct hearth_buf out = {0};
    struct hearth_batch_item items[65] = {{0}};
    assert_int_equal(feed(engine, 0, 0, "abcdef"), HEARTH_OK);
    assert_stops((void)feed(engine, 0, 7, "x"));        /* a gap */
    assert_stops((void)feed(engine, 0, 5, "x"));        /* a position twice */
    assert_stops((void)ops->decode(engine, items, 65)); /* more than a batch */
    assert_stops((void)ops->decode(engine, items, 0));
    assert_stops((void)feed(engine, 4, 0, "x"));                  /* no such sequence */
    assert_stops((void)ops->seq_rewind(engine, 0, 5));            /* below its floor */
    assert_stops((void)ops->snapshot_export(engine, 0, 5, &out)); /* not where it stands */
    assert_stops((void)ops->page_export(engine, 0, 0, 7, &out));  /* more than it holds */
    assert_stops((void)ops->seq_share(engine, 0, 1, 2, 4));       /* not at the end of the other one */
    assert_int_equal(ops->seq_keep(engine, 0, 4), HEARTH_OK);
    assert_stops((void)feed(engine, 0, 4, "x")); /* incomplete */
    assert_stops((void)ops->snapshot_export(engine, 0, 4, &out));
    hearth_sim_fault(engine, HEARTH_SIM_FAULT_DECODE, 1, false);
    assert_int_equal(feed(engine, 1, 0, "abc"), HEARTH_ERR_ENGINE);
    assert_stops((void)feed(engine, 1, 0, "x")); /* to be cleared first */
    ops->seq_clear(engine, 1);
    assert_int_equal(feed(engine, 1, 0, "x"), HEARTH_OK);
    ops->destroy(engine);

    engine = engine_make(HEARTH_ENGINE_PAGES, 5);
    assert_int_equal(feed(engine, 0, 0, "abc"), HEARTH_OK);
    assert_stops((void)ops->snapshot_export(engine, 0, 3, &out)); /* it has none */
    struct hearth_sampling s;
    hearth_sampling_default(&s);
    struct hearth_sampler *sampler = ops->sampler_create(engine, &s, NULL);
    assert_stops((void)ops->sample(engine, sampler, 1, 0, NULL)); /* no output was asked for */
    ops->sampler_destroy(engine, sampler);
    ops->destroy(engine);
}

/* ---- cells, clock, faults, creation ---- */

static void shared_cells_count_once(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 5);
    const struct hearth_engine_ops *ops = engine->ops;
    struct hearth_sim_stats stats;
    assert_int_equal(feed(engine, 0, 0, "abcdefgh"), HEARTH_OK);
    assert_int_equal(ops->seq_share(engine, 0, 1, 0, 5), HEARTH_OK);
    assert_int_equal(feed(engine, 1, 5, "X"), HEARTH_OK);
    hearth_sim_stats(engine, &stats);
    assert_int_equal(stats.cells_used, 9);
    ops->seq_clear(engine, 0);
    hearth_sim_stats(engine, &stats);
    assert_int_equal(stats.cells_used, 6);
    assert_true(holds(engine, 1, "abcdeX"));
    ops->destroy(engine);
}

static void clock_adds_costs(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 5); /* 1000 tokens/s prefill, 50 decode */
    const struct hearth_engine_ops *ops = engine->ops;
    int64_t start = ops->now_us(engine);
    assert_int_equal(feed(engine, 0, 0, "a"), HEARTH_OK);
    assert_int_equal(ops->now_us(engine) - start, 20000); /* one step */
    assert_int_equal(feed(engine, 0, 1, "0123456789012345678901234567890123456789"), HEARTH_OK);
    assert_int_equal(ops->now_us(engine) - start, 60000); /* and 40 tokens of prefill */
    struct hearth_buf out = {0};
    assert_int_equal(ops->page_export(engine, 0, 0, 41, &out), HEARTH_OK);
    assert_int_equal(ops->now_us(engine) - start, 60000 + 41 * 64 / 1000); /* a byte a nanosecond */
    hearth_sim_advance_us(engine, 1000);
    assert_int_equal(ops->now_us(engine) - start, 61000 + 41 * 64 / 1000);
    hearth_buf_finish(&out);
    ops->destroy(engine);
}

static void faults_repeat(void **state) {
    (void)state;
    struct hearth_engine *engine = engine_make(HEARTH_ENGINE_PAGES, 5);
    int32_t at = 0;
    hearth_sim_fault(engine, HEARTH_SIM_FAULT_DECODE_NO_CELLS, 3, true);
    for (int i = 1; i <= 9; i++) {
        int err = feed(engine, 0, at, "x");
        assert_int_equal(err, i % 3 == 0 ? HEARTH_ERR_NO_CELLS : HEARTH_OK);
        at += err == HEARTH_OK;
    }
    hearth_sim_fault(engine, HEARTH_SIM_FAULT_DECODE_NO_CELLS, 0, false);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(feed(engine, 0, at++, "x"), HEARTH_OK);
    }
    engine->ops->destroy(engine);
}

static void creation(void **state) {
    (void)state;
    struct hearth_sim_params params;
    struct hearth_engine *a = NULL, *b = NULL;
    struct hearth_errmsg msg;
    hearth_sim_params_default(&params);
    params.page_bytes_per_token = 8;
    assert_int_equal(hearth_sim_create(&params, &a, &msg), HEARTH_ERR_INVALID);
    assert_null(a);
    assert_non_null(strstr(msg.text, "page_bytes_per_token"));
    hearth_sim_params_default(&params);
    params.decode_tokens_per_s = 0.0;
    assert_int_equal(hearth_sim_create(&params, &a, &msg), HEARTH_ERR_INVALID);
    params.decode_tokens_per_s = 1.0;
    assert_int_equal(hearth_sim_create(&params, &a, &msg), HEARTH_OK);
    params.ctx_tokens = 4096; /* another context, the same model */
    assert_int_equal(hearth_sim_create(&params, &b, &msg), HEARTH_OK);
    assert_true(hearth_digest_equal(a->caps.fingerprint, b->caps.fingerprint));
    b->ops->destroy(b);
    params.seed = 1;
    assert_int_equal(hearth_sim_create(&params, &b, &msg), HEARTH_OK);
    assert_false(hearth_digest_equal(a->caps.fingerprint, b->caps.fingerprint));
    a->ops->destroy(a);
    b->ops->destroy(b);
}

static void selftest_passes(void **state) {
    (void)state;
    for (int c = 0; c < 4; c++) {
        struct hearth_engine *engine = engine_make((enum hearth_engine_class)c, 1);
        struct hearth_errmsg msg = {""};
        bool ok = hearth_engine_selftest(engine, &msg);
        if (!ok) {
            fail_msg("%s: %s", hearth_engine_class_text((enum hearth_engine_class)c), msg.text);
        }
        assert_true(holds(engine, 0, ""));
        engine->ops->destroy(engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_loses_nothing), cmocka_unit_test(specials),
        cmocka_unit_test(text_reads_as_text),      cmocka_unit_test(sampling_defaults),
        cmocka_unit_test(biases_and_logprobs),     cmocka_unit_test(temperature_and_seed),
        cmocka_unit_test(penalties_and_ends),      cmocka_unit_test(wrong_pages),
        cmocka_unit_test(wrong_snapshots),         cmocka_unit_test(misuse),
        cmocka_unit_test(shared_cells_count_once), cmocka_unit_test(clock_adds_costs),
        cmocka_unit_test(faults_repeat),           cmocka_unit_test(creation),
        cmocka_unit_test(selftest_passes),         cmocka_unit_test(pieces_of_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
