/* A model with a sliding window, on sim: a prompt that leaves a known path goes on from there, wherever that is; also
 * while the path is still computed, behind a restart, and where a window is shorter or longer than pages (of 32 tokens)
 * are. */
#include "support/service_stage.h"

#include <ftw.h>
#include <stdio.h>

enum { PROMPT = 1500 };

static void fill(struct hearth_tokens *prompt) {
    for (size_t i = 0; i < PROMPT; i++) {
        assert_true(hearth_tokens_push(prompt, (hearth_token)(97 + i * i % 26)));
    }
}

/* Sends the first `fork` tokens of a prompt and nine others; returns how many were computed. The reply is the one that
 * a run without a cache gives. */
static uint32_t ask_behind(struct stage *stage, const struct hearth_tokens *prompt, size_t fork, hearth_token other) {
    struct hearth_tokens asked = {0};
    assert_true(hearth_tokens_append(&asked, prompt->v, fork));
    for (int i = 0; i < 9; i++) {
        assert_true(hearth_tokens_push(&asked, other));
    }
    struct hearth_request request = request_of(&asked);
    request.max_tokens = 3;
    request.sampling.ignore_eos = true;
    struct reply reply;
    run(stage, &request, &reply);
    assert_int_equal(reply.err, 0);
    for (size_t i = 0; i < reply.tokens.n; i++) {
        hearth_token due = hearth_sim_oracle(stage->engine, asked.v, asked.n);
        assert_true(reply.tokens.v[i] == due || due == stage->engine->caps.end_token);
        assert_true(hearth_tokens_push(&asked, reply.tokens.v[i]));
    }
    uint32_t computed = reply.receipt.computed_tokens;
    reply_finish(&reply);
    hearth_tokens_finish(&asked);
    return computed;
}

static void a_fork_goes_on_where_it_is(void **state) {
    (void)state;
    static const uint32_t windows[] = {5, 31, 32, 100, 700};
    static const size_t forks[] = {1121, 1120, 40, 731, 1490, 5, 1000};
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        const struct stage_options options = {.memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT,
                                              .ctx_tokens = 16384,
                                              .lanes = 2,
                                              .window_tokens = windows[w],
                                              .prefill_tokens_per_s = 100};
        struct stage stage;
        struct hearth_tokens prompt = {0};
        open_stage_with(&stage, &options);
        fill(&prompt);
        assert_int_equal(ask_behind(&stage, &prompt, PROMPT, 'A'), PROMPT + 9);
        for (size_t i = 0; i < sizeof forks / sizeof forks[0]; i++) {
            assert_int_equal(ask_behind(&stage, &prompt, forks[i], (hearth_token)('B' + i)), 9);
        }
        hearth_tokens_finish(&prompt);
        close_stage(&stage);
    }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void a_restart_changes_nothing(void **state) {
    (void)state;
    char dir[] = "/tmp/hearth-window-XXXXXX";
    assert_non_null(mkdtemp(dir));
    const struct stage_options options = {.memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT,
                                          .ctx_tokens = 16384,
                                          .window_tokens = 100,
                                          .prefill_tokens_per_s = 100,
                                          .dir = dir};
    struct stage stage;
    struct hearth_tokens prompt = {0};
    open_stage_with(&stage, &options);
    fill(&prompt);
    assert_int_equal(ask_behind(&stage, &prompt, PROMPT, 'A'), PROMPT + 9);
    close_stage(&stage);
    open_stage_with(&stage, &options);
    assert_int_equal(ask_behind(&stage, &prompt, 1121, 'B'), 9);
    assert_int_equal(ask_behind(&stage, &prompt, PROMPT, 'C'), 9);
    close_stage(&stage);
    hearth_tokens_finish(&prompt);
    (void)nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_goes_on_where_it_is),
        cmocka_unit_test(a_restart_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
