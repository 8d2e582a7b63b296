/* The reasoning state machine, token by token. */
#include "sched/thinking.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const hearth_token start[] = {10, 11}, end_short[] = {20}, end_long[] = {19, 20}, forced[] = {30, 31, 19, 20};
static const hearth_token *const ends[] = {end_short, end_long};
static const size_t end_counts[] = {1, 2};

static struct hearth_thinking thinking(int32_t budget) {
    return (struct hearth_thinking){.start = start,
                                    .start_count = 2,
                                    .ends = ends,
                                    .end_counts = end_counts,
                                    .end_count = 2,
                                    .budget_tokens = budget,
                                    .forced = forced,
                                    .forced_count = 4};
}

/* Shows tokens until one that is negative. */
static void show(struct hearth_thinker *t, const hearth_token *tokens) {
    for (; *tokens >= 0; tokens++) {
        assert_int_equal(hearth_thinker_accept(t, *tokens, true).count, 0);
    }
}

#define SHOW(t, ...) show(t, (const hearth_token[]){__VA_ARGS__, -1})

static void a_reply_that_cannot_think(void **state) {
    (void)state;
    struct hearth_thinking none = {.end_count = 2, .ends = ends, .end_counts = end_counts};
    struct hearth_thinker t;
    hearth_thinker_init(&t, NULL);
    SHOW(&t, 10, 11, 20);
    assert_false(hearth_thinker_inside(&t));
    hearth_thinker_init(&t, &none);
    SHOW(&t, 10, 11, 20);
    assert_false(hearth_thinker_inside(&t));
    assert_int_equal(hearth_thinker_forced(&t), -1);
}

static void it_begins_and_ends(void **state) {
    (void)state;
    struct hearth_thinking all = thinking(-1);
    struct hearth_thinker t;
    hearth_thinker_init(&t, &all);
    SHOW(&t, 10, 12, 11, 10, 10);
    assert_false(hearth_thinker_inside(&t));
    SHOW(&t, 11);
    assert_true(hearth_thinker_inside(&t));
    SHOW(&t, 1, 2, 3);
    /* The longest end that was reached is the one that is told. */
    assert_int_equal(hearth_thinker_accept(&t, 19, true).count, 0);
    struct hearth_thinking_end end = hearth_thinker_accept(&t, 20, true);
    assert_int_equal(end.count, 2);
    assert_ptr_equal(end.tokens, end_long);
    assert_false(hearth_thinker_inside(&t));
    assert_int_equal(t.phase, HEARTH_THINKING_DONE);
    /* And again. */
    SHOW(&t, 20, 5, 10, 11);
    assert_true(hearth_thinker_inside(&t));
    end = hearth_thinker_accept(&t, 20, true);
    assert_ptr_equal(end.tokens, end_short);
}

static void a_sequence_does_not_cross_a_change(void **state) {
    (void)state;
    static const hearth_token same[] = {7, 7};
    static const hearth_token *const same_ends[] = {same};
    static const size_t two[] = {2};
    struct hearth_thinking all = {
        .start = same, .start_count = 2, .ends = same_ends, .end_counts = two, .end_count = 1, .budget_tokens = -1};
    struct hearth_thinker t;
    hearth_thinker_init(&t, &all);
    SHOW(&t, 7, 7);
    assert_true(hearth_thinker_inside(&t));
    SHOW(&t, 7);
    assert_true(hearth_thinker_inside(&t));
    assert_int_equal(hearth_thinker_accept(&t, 7, true).count, 2);
    SHOW(&t, 7);
    assert_false(hearth_thinker_inside(&t));
}

static void the_generation_prompt_may_begin_it(void **state) {
    (void)state;
    static const hearth_token prefill[] = {1, 10, 11, 2};
    struct hearth_thinking all = thinking(3);
    all.prefill = prefill;
    all.prefill_count = 4;
    struct hearth_thinker t;
    hearth_thinker_init(&t, &all);
    assert_true(hearth_thinker_inside(&t));
    SHOW(&t, 3);
    assert_int_equal(hearth_thinker_forced(&t), -1);
    SHOW(&t, 4);
    assert_int_equal(hearth_thinker_forced(&t), 30); /* the token of the prompt counted */
}

static void the_budget_is_kept(void **state) {
    (void)state;
    struct hearth_thinking all = thinking(2);
    struct hearth_thinker t;
    hearth_thinker_init(&t, &all);
    for (int round = 0; round < 2; round++) {
        SHOW(&t, 10, 11, 1);
        assert_int_equal(hearth_thinker_forced(&t), -1);
        SHOW(&t, 2);
        for (size_t i = 0; i < 4; i++) {
            assert_true(hearth_thinker_inside(&t));
            assert_int_equal(hearth_thinker_forced(&t), forced[i]);
            struct hearth_thinking_end end = hearth_thinker_accept(&t, forced[i], true);
            assert_int_equal(end.count, i == 3 ? 2 : 0);
        }
        assert_false(hearth_thinker_inside(&t));
        assert_int_equal(hearth_thinker_forced(&t), -1);
        SHOW(&t, 1, 2, 3, 4, 5);
        assert_int_equal(hearth_thinker_forced(&t), -1);
    }
}

static void no_budget_ends_at_once(void **state) {
    (void)state;
    struct hearth_thinking all = thinking(0);
    struct hearth_thinker t;
    hearth_thinker_init(&t, &all);
    SHOW(&t, 10, 11);
    assert_int_equal(hearth_thinker_forced(&t), 30);
    /* With nothing to say at its end there is no limit either. */
    all.forced_count = 0;
    hearth_thinker_init(&t, &all);
    SHOW(&t, 10, 11, 1, 2, 3, 4, 5, 6);
    assert_true(hearth_thinker_inside(&t));
    assert_int_equal(hearth_thinker_forced(&t), -1);
}

static void a_character_is_finished_first(void **state) {
    (void)state;
    struct hearth_thinking all = thinking(1);
    struct hearth_thinker t;
    hearth_thinker_init(&t, &all);
    SHOW(&t, 10, 11);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hearth_thinker_accept(&t, 1, false).count, 0);
        assert_int_equal(hearth_thinker_forced(&t), -1);
    }
    SHOW(&t, 2);
    assert_int_equal(hearth_thinker_forced(&t), 30);
    /* An end that comes instead of the rest of the character counts. */
    hearth_thinker_init(&t, &all);
    SHOW(&t, 10, 11);
    (void)hearth_thinker_accept(&t, 1, false);
    assert_int_equal(hearth_thinker_accept(&t, 20, true).count, 1);
    assert_int_equal(hearth_thinker_forced(&t), -1);
}

static void what_is_forced_may_lack_an_end(void **state) {
    (void)state;
    static const hearth_token words[] = {40, 41};
    struct hearth_thinking all = thinking(0);
    all.forced = words;
    all.forced_count = 2;
    struct hearth_thinker t;
    hearth_thinker_init(&t, &all);
    SHOW(&t, 10, 11, 40, 41);
    assert_int_equal(t.phase, HEARTH_THINKING_DONE);
}

static void long_sequences(void **state) {
    (void)state;
    hearth_token longest[40];
    for (int i = 0; i < 40; i++) {
        longest[i] = 100 + i;
    }
    struct hearth_thinking all = thinking(-1);
    all.start = longest;
    all.start_count = 40;
    struct hearth_thinker t;
    hearth_thinker_init(&t, &all);
    for (int i = 0; i < 39; i++) {
        SHOW(&t, longest[i]);
        assert_false(hearth_thinker_inside(&t));
    }
    SHOW(&t, longest[39]);
    assert_true(hearth_thinker_inside(&t));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply_that_cannot_think),
        cmocka_unit_test(it_begins_and_ends),
        cmocka_unit_test(a_sequence_does_not_cross_a_change),
        cmocka_unit_test(the_generation_prompt_may_begin_it),
        cmocka_unit_test(the_budget_is_kept),
        cmocka_unit_test(no_budget_ends_at_once),
        cmocka_unit_test(a_character_is_finished_first),
        cmocka_unit_test(what_is_forced_may_lack_an_end),
        cmocka_unit_test(long_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
