/* What the service makes of the speeds that it measures, on sim: how many tokens it guesses ahead, and how much of a
 * prompt it computes beside replies. */
#include "support/load_stage.h"

#include <math.h>

/* A reply, with what it has of the engine's time. */
struct timed {
    struct gate gate; /* the first: deliver_through() takes it */
    struct hearth_engine *engine;
    int64_t each_us, last_us; /* what a token takes alone; when the last came */
    int64_t longest_us;       /* that one has taken */
    int longer;               /* how many have taken longer than alone */
    uint32_t drafted;
};

static void deliver_timed(void *user, struct hearth_event *event) {
    struct timed *timed = user;
    const int64_t now_us = timed->engine->ops->now_us(timed->engine);
    if (event->sampled_count > 0) {
        const int64_t us = timed->last_us > 0 ? now_us - timed->last_us : 0;
        timed->longest_us = us > timed->longest_us ? us : timed->longest_us;
        timed->longer += us > timed->each_us;
        timed->last_us = now_us;
    }
    timed->drafted = event->drafted_tokens;
    deliver_through(user, event);
}

/* It stops at its `events`-th event, or (0) never. */
static void launch_timed(struct stage *stage, struct hearth_request *request, struct timed *timed, int events) {
    *timed = (struct timed){.gate.events_left = events, .engine = stage->engine, .each_us = timed->each_us};
    request->deliver = deliver_timed;
    request->user = timed;
    assert_true(hearth_service_submit(stage->service, request, NULL) > 0);
}

/* ---- guesses ---- */

/* A stage where a batch of n tokens takes n / `gain` times as long as one of a token: with guesses that are all right,
 * decoding is `gain` times as fast. */
static void open_gain(struct stage *stage, double gain) {
    const struct stage_options options = {
        .ctx_tokens = 16384, .lanes = 1, .decode_tokens_per_s = 100, .prefill_tokens_per_s = 100 * gain};
    open_load(stage, &options);
}

/* How many tokens are guessed ahead in a reply of so many tokens, which is the letter a again and again, but for so
 * many in a hundred, by chance, which are b. */
static uint32_t drafted(struct stage *stage, int32_t tokens, int others) {
    const float bias = 1000 - logf((float)(100 - others) / (float)(others > 0 ? others : 1));
    const struct hearth_logit_bias letters[] = {{.token = 'a', .bias = 1000}, {.token = 'b', .bias = bias}};
    struct hearth_tokens prompt = tokens_like(1, 64);
    struct hearth_request request = request_for(&prompt, tokens);
    request.sampling.temperature = 1;
    request.sampling.seed = 1;
    request.sampling.logit_bias = letters;
    request.sampling.logit_biases = others > 0 ? 2 : 1;
    struct timed timed = {0};
    launch_timed(stage, &request, &timed, 0);
    await(&timed.gate.reply);
    assert_int_equal(timed.gate.reply.err, 0);
    assert_int_equal(timed.gate.reply.tokens.n, tokens);
    reply_finish(&timed.gate.reply);
    hearth_tokens_finish(&prompt);
    return timed.drafted;
}

/* Times are noisy: what promises a few percent is not worth it. */
static void guesses_have_to_pay(void **state) {
    (void)state;
    static const double gains[] = {1.07, 1.3, 4};
    for (int i = 0; i < 3; i++) {
        struct stage stage;
        open_gain(&stage, gains[i]);
        const uint32_t n = drafted(&stage, 300, 0);
        assert_true(i == 0 ? n == 0 : n > 100);
        close_stage(&stage);
    }
}

/* What does not pay is tried again all the same, as the times may be old; seldom, as it costs some. */
static void guesses_are_tried_now_and_then(void **state) {
    (void)state;
    struct stage stage;
    open_gain(&stage, 1.07);
    assert_in_range(drafted(&stage, 3000, 0), 4 * 8, 10 * 8);
    close_stage(&stage);
}

/* Guesses follow the text: four replies of which most is one letter, four by chance, and again. With a longer memory it
 * would take several replies to find out, with a shorter one each piece of good luck would be followed. */
static void rates_follow_the_text(void **state) {
    (void)state;
    struct stage stage;
    uint32_t n[10];
    open_gain(&stage, 1.3);
    for (int i = 0; i < 10; i++) {
        n[i] = drafted(&stage, 300, i / 4 % 2 == 0 ? 4 : 50);
    }
    assert_true(n[0] > 30 && n[4] < 10 && n[7] < 10);
    assert_in_range(n[9], 30, 70);
    close_stage(&stage);
}

/* ---- prompts beside replies ---- */

/* However slow the machine is, a reader sees the reply go on; and the prompt beside it does not take for ever. */
static void a_reply_goes_on_beside_a_prompt(void **state) {
    (void)state;
    struct stage stage;
    const struct stage_options options = {
        .ctx_tokens = 16384, .lanes = 2, .decode_tokens_per_s = 20, .prefill_tokens_per_s = 250};
    open_load(&stage, &options);
    struct hearth_tokens brief = tokens_like(1, 64), longer = tokens_like(2, 4000);
    struct hearth_request first = request_for(&brief, 100), second = request_for(&longer, 1);
    struct timed timed = {.each_us = 50000};
    struct reply reply;
    first.speculate_off = true;
    launch_timed(&stage, &first, &timed, 3);
    await_gate(&timed.gate);
    (void)launch(&stage, &second, &reply);
    open_gate(&timed.gate, 0);
    await(&reply);
    await(&timed.gate.reply);
    assert_true(reply.place < timed.gate.reply.place);
    assert_in_range(timed.longest_us, 50000, 500000);
    assert_in_range(timed.longer, 1, 60);
    reply_finish(&reply);
    reply_finish(&timed.gate.reply);
    hearth_tokens_finish(&brief);
    hearth_tokens_finish(&longer);
    close_stage(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_have_to_pay),
        cmocka_unit_test(guesses_are_tried_now_and_then),
        cmocka_unit_test(rates_follow_the_text),
        cmocka_unit_test(a_reply_goes_on_beside_a_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
