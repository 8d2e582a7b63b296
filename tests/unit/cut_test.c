/* What is learnt of where conversations go on (cache/cut.h). */
#include "cache/cut.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static double between(const struct hearth_cuts *cuts, int32_t least, int32_t most) {
    return hearth_cut_chance(cuts, HEARTH_AWAITS_TOOL, most) - hearth_cut_chance(cuts, HEARTH_AWAITS_TOOL, least - 1);
}

static void chances_grow_with_what_is_cut_and_end_at_one(void **state) {
    (void)state;
    const struct hearth_cuts cuts = {0};
    double before = 0;
    assert_true(hearth_cut_chance(&cuts, HEARTH_AWAITS_TOOL, -1) <= 0);
    for (int32_t most = 0; most < 5000; most++) {
        const double chance = hearth_cut_chance(&cuts, HEARTH_AWAITS_TOOL, most);
        assert_true(chance > before);
        before = chance;
    }
    assert_true(hearth_cut_chance(&cuts, HEARTH_AWAITS_TOOL, INT32_MAX) > 0.999999);
}

/* At first most go on at the end; a template that rewrites replies of 200 tokens is learnt, of its kind alone. */
static void what_is_rewritten_is_learnt(void **state) {
    (void)state;
    struct hearth_cuts cuts = {0};
    assert_true(between(&cuts, 0, 0) > 0.5);
    for (int i = 0; i < 100; i++) {
        hearth_cut_learn(&cuts, HEARTH_AWAITS_TOOL, 200);
    }
    assert_true(between(&cuts, 128, 255) > 0.8 && between(&cuts, 0, 0) < 0.2);
    assert_true(hearth_cut_chance(&cuts, HEARTH_AWAITS_USER, 0) > 0.5);
    for (int i = 0; i < 100000; i++) {
        hearth_cut_learn(&cuts, HEARTH_AWAITS_TOOL, 0);
    }
    assert_true(between(&cuts, 0, 0) > 0.8); /* what was long ago counts less */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chances_grow_with_what_is_cut_and_end_at_one),
        cmocka_unit_test(what_is_rewritten_is_learnt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
