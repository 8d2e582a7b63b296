/* A stage that is slow or narrow, and prompts for it. cmocka's. */
#ifndef HEARTH_TESTS_SUPPORT_LOAD_STAGE_H
#define HEARTH_TESTS_SUPPORT_LOAD_STAGE_H

#include "support/service_stage.h"

#define SECOND_US 1000000

struct load_options {
    enum hearth_memory_class memory_class;
    uint32_t ctx_tokens, lanes, spare, queue;
    double prefill_tokens_per_s, decode_tokens_per_s, import_bytes_per_s; /* 0: the default */
    size_t cache_bytes;
};

static inline void open_load(struct stage *stage, const struct load_options *options) {
    struct hearth_sim_params sim;
    struct hearth_service_params params;
    hearth_sim_params_default(&sim);
    hearth_service_params_default(&params);
    *stage = (struct stage){0};
    sim.memory_class = options->memory_class;
    sim.ctx_tokens = options->ctx_tokens;
    sim.lanes = options->lanes;
    sim.spare_seqs = options->spare;
    sim.snapshot_bytes = 256;
    const double per_s[] = {options->prefill_tokens_per_s, options->decode_tokens_per_s, options->import_bytes_per_s};
    double *const speeds[] = {&sim.prefill_tokens_per_s, &sim.decode_tokens_per_s, &sim.import_bytes_per_s};
    for (int i = 0; i < 3; i++) {
        if (per_s[i] > 0) {
            *speeds[i] = per_s[i];
        }
    }
    params.page_tokens = 32;
    params.queue = options->queue;
    params.cache_bytes = options->cache_bytes > 0 ? options->cache_bytes : params.cache_bytes;
    assert_int_equal(hearth_sim_create(&sim, &stage->engine, NULL), HEARTH_OK);
    assert_int_equal(hearth_service_create(stage->engine, &params, &stage->service, NULL), HEARTH_OK);
}

static inline struct hearth_tokens tokens_like(int who, size_t n) {
    struct hearth_tokens tokens = {0};
    for (size_t i = 0; i < n; i++) {
        size_t token = 33 + (i * i + (31 * i + 1) * (size_t)who) % 80;
        assert_true(hearth_tokens_push(&tokens, (hearth_token)token));
    }
    return tokens;
}

static inline struct hearth_request request_for(const struct hearth_tokens *prompt, int32_t max_tokens) {
    struct hearth_request request = request_of(prompt);
    request.max_tokens = max_tokens;
    request.sampling.ignore_eos = max_tokens > 0;
    return request;
}

/* The reply is what a run without cache and company would have been. */
static inline void check_reply(struct stage *stage, const struct hearth_tokens *prompt, const struct reply *reply) {
    struct hearth_tokens all = {0};
    assert_true(hearth_tokens_assign(&all, prompt->v, prompt->n));
    for (size_t i = 0; i < reply->tokens.n; i++) {
        hearth_token token = hearth_sim_oracle(stage->engine, all.v, all.n);
        if (stage->engine->ops->token_is_end(stage->engine, token)) {
            break; /* which was ignored: the rest is not the oracle's to say */
        }
        assert_int_equal(reply->tokens.v[i], token);
        assert_true(hearth_tokens_push(&all, token));
    }
    hearth_tokens_finish(&all);
}

#endif
