/* A stage that is slow or narrow, and prompts for it. cmocka's. */
#ifndef HEARTH_TESTS_SUPPORT_LOAD_STAGE_H
#define HEARTH_TESTS_SUPPORT_LOAD_STAGE_H

#include "support/service_stage.h"

#define SECOND_US 1000000

/* With small snapshots: RAM has room for those of many. */
static inline void open_load(struct stage *stage, const struct stage_options *options) {
    struct stage_options small = *options;
    small.snapshot_bytes = 256;
    open_stage_with(stage, &small);
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
