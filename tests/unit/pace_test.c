/* What is learned of batches, and the sizes that follow. */
#include "sched/pace.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void learn_many(struct hearth_pace *pace, int32_t decode_tokens, int32_t prefill_tokens, int64_t us) {
    for (int i = 0; i < 60; i++) {
        hearth_pace_learn(pace, decode_tokens, prefill_tokens, us);
    }
}

static void times_lie_between_what_was_seen(void **state) {
    (void)state;
    struct hearth_pace pace = {0};
    assert_true(hearth_pace_decode_us(&pace, 1) < 0);
    hearth_pace_learn(&pace, 1, 0, 20000);
    assert_float_equal(hearth_pace_decode_us(&pace, 1), 20000, 1);
    assert_true(hearth_pace_decode_us(&pace, 2) < 0);
    hearth_pace_learn(&pace, 5, 0, 28000);
    assert_float_equal(hearth_pace_decode_us(&pace, 3), 24000, 1);
    assert_float_equal(hearth_pace_decode_us(&pace, 5), 28000, 1);
    /* Larger sizes share a slot, where their average counts. */
    learn_many(&pace, 20, 0, 60000);
    assert_float_equal(hearth_pace_decode_us(&pace, 20), 60000, 1);
    assert_true(hearth_pace_decode_us(&pace, 21) < 0);
    assert_float_equal(hearth_pace_decode_us(&pace, 12), 28000 + 32000 * 7 / 15.0f, 20);
    learn_many(&pace, 1000, 0, 900000);
    assert_true(hearth_pace_decode_us(&pace, 1000) > 0);
    for (int32_t n = 1; n < 1000; n++) {
        assert_true(hearth_pace_decode_us(&pace, n) <= hearth_pace_decode_us(&pace, n + 1));
    }
    /* A batch that was held up says little; what becomes slower is noticed. */
    hearth_pace_learn(&pace, 1, 0, 200000);
    assert_true(hearth_pace_decode_us(&pace, 1) < 80000);
    learn_many(&pace, 1, 0, 40000);
    assert_float_equal(hearth_pace_decode_us(&pace, 1), 40000, 10);
}

static void a_batch_is_split(void **state) {
    (void)state;
    struct hearth_pace pace = {0};
    double decode_us, prefill_us;
    hearth_pace_split(&pace, 2, 8, 1000, &decode_us, &prefill_us);
    assert_float_equal(decode_us, 100, 0.01);
    assert_float_equal(prefill_us, 100, 0.01);
    hearth_pace_learn(&pace, 2, 0, 20000);
    hearth_pace_split(&pace, 2, 100, 120000, &decode_us, &prefill_us);
    assert_float_equal(decode_us, 10000, 1);
    assert_float_equal(prefill_us, 1000, 1);
    hearth_pace_split(&pace, 0, 100, 50000, &decode_us, &prefill_us);
    assert_float_equal(prefill_us, 500, 0.01);
    hearth_pace_split(&pace, 2, 10, 1000, &decode_us, &prefill_us); /* never below nothing */
    assert_true(decode_us == 500 && prefill_us == 0);
}

static void a_prefill_leaves_decoding_lanes_their_rate(void **state) {
    (void)state;
    struct hearth_pace pace = {0};
    assert_int_equal(hearth_pace_beside(&pace, 1, 0, 512), 512);
    assert_int_equal(hearth_pace_beside(&pace, 0, 10, 512), 512);
    assert_int_equal(hearth_pace_beside(&pace, 1, 10, 512), 64); /* while nothing is known */
    assert_int_equal(hearth_pace_beside(&pace, 1, 10, 32), 32);
    hearth_pace_learn(&pace, 1, 0, 10000);
    hearth_pace_learn(&pace, 0, 512, 512000);
    /* A quarter of a second less a tenth, less 10 ms: 215 tokens, in whole steps. */
    assert_int_equal(hearth_pace_beside(&pace, 1, 4, 512), 192);
    assert_int_equal(hearth_pace_beside(&pace, 1, 1, 512), 512);
    /* What tokens cost beside decoding ones is another matter, and is learned. */
    learn_many(&pace, 1, 100, 10000 + 100 * 2000);
    assert_int_equal(hearth_pace_beside(&pace, 1, 4, 512), 96);
    assert_int_equal(hearth_pace_beside(&pace, 1, 30, 512), 10);
    /* Where some lane prefills all the time, decoding is told from the rest of such batches. */
    struct hearth_pace cold = {0};
    hearth_pace_learn(&cold, 0, 512, 512000);
    hearth_pace_learn(&cold, 1, 64, 64000 + 10000);
    assert_int_equal(hearth_pace_beside(&cold, 1, 4, 512), 192);
    /* A rate that cannot be reached costs prefills no more than this. */
    assert_int_equal(hearth_pace_beside(&pace, 1, 1000, 512), 8);
    learn_many(&pace, 16, 0, 800000);
    assert_int_equal(hearth_pace_beside(&pace, 16, 10, 512), 192);
    /* The rate holds: what is allowed takes no longer than it may. */
    for (int32_t tps = 1; tps < 40; tps++) {
        int32_t tokens = hearth_pace_beside(&pace, 1, tps, 4096);
        assert_true(10000 + tokens * 2000 <= 1000000 / tps || tokens == 8);
    }
}

static void slow_batches_become_smaller(void **state) {
    (void)state;
    struct hearth_pace pace = {0};
    assert_int_equal(hearth_pace_alone(&pace, 512), 512);
    hearth_pace_learn(&pace, 0, 512, 1700000);
    hearth_pace_learn(&pace, 0, 512, 200000); /* a hiccup is none */
    hearth_pace_learn(&pace, 0, 512, 1700000);
    assert_int_equal(hearth_pace_alone(&pace, 512), 512);
    hearth_pace_learn(&pace, 0, 512, 1700000);
    assert_int_equal(hearth_pace_alone(&pace, 512), 256);
    learn_many(&pace, 0, 200, 5000000); /* not full: it says nothing */
    assert_int_equal(hearth_pace_alone(&pace, 512), 256);
    learn_many(&pace, 0, 256, 850000);
    assert_int_equal(hearth_pace_alone(&pace, 512), 128);
    learn_many(&pace, 0, 128, 850000); /* no smaller than that */
    assert_int_equal(hearth_pace_alone(&pace, 512), 128);
    assert_int_equal(hearth_pace_alone(&pace, 2048), 128);
    learn_many(&pace, 0, 128, 300000); /* two of these would take too long */
    assert_int_equal(hearth_pace_alone(&pace, 512), 128);
    for (int i = 0; i < 16; i++) { /* seldom: the same prompt is split likewise from one time to the next */
        assert_int_equal(hearth_pace_alone(&pace, 512), 128);
        hearth_pace_learn(&pace, 0, 128, 100000);
    }
    assert_int_equal(hearth_pace_alone(&pace, 512), 512);
    assert_int_equal(hearth_pace_alone(&pace, 100), 100);
}

static void warm_requests_get_little(void **state) {
    (void)state;
    struct hearth_pace pace = {0};
    assert_int_equal(hearth_pace_prefetch_beside(&pace), 8);
    assert_int_equal(hearth_pace_prefetch_alone(&pace, 512), 512);
    hearth_pace_learn(&pace, 1, 0, 20000);
    hearth_pace_learn(&pace, 0, 512, 512000);
    assert_int_equal(hearth_pace_prefetch_beside(&pace), 4); /* a fifth of a batch */
    assert_int_equal(hearth_pace_prefetch_alone(&pace, 512), 200);
    assert_int_equal(hearth_pace_idle(&pace, 512), 50);
    learn_many(&pace, 0, 8, 80000); /* a small batch says nothing of a prefill's speed */
    assert_int_equal(hearth_pace_prefetch_alone(&pace, 512), 200);
    learn_many(&pace, 0, 512, 51200000);
    assert_int_equal(hearth_pace_prefetch_beside(&pace), 1);
    assert_int_equal(hearth_pace_prefetch_alone(&pace, 512), 32);
    assert_int_equal(hearth_pace_prefetch_alone(&pace, 16), 16);
    assert_int_equal(hearth_pace_idle(&pace, 512), 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_lie_between_what_was_seen),
        cmocka_unit_test(a_batch_is_split),
        cmocka_unit_test(a_prefill_leaves_decoding_lanes_their_rate),
        cmocka_unit_test(slow_batches_become_smaller),
        cmocka_unit_test(warm_requests_get_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
