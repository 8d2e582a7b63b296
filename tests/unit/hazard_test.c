/* What is learnt of returns (cache/hazard.h): each factor alone, and what follows for the worth of a place in RAM. */
#include "cache/hazard.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { TURNS = 400, BACK_BIN = 20, GIVEN_UP_BIN = 60 };

static struct hearth_hazard *start(void) {
    struct hearth_hazard *hazard = calloc(1, sizeof *hazard);
    assert_non_null(hazard);
    return hazard;
}

/* A turn after which the conversation comes back in a bin, or does not come. */
static void turn(struct hearth_hazard *hazard, const struct hearth_hazard_case *of, bool back) {
    const int end = back ? BACK_BIN : GIVEN_UP_BIN;
    for (int bin = 0; bin < end; bin++) {
        hearth_hazard_learn(hazard, of, bin, false);
    }
    if (back) {
        hearth_hazard_learn(hazard, of, end, true);
    }
}

static double rate_at(const struct hearth_hazard *hazard, const struct hearth_hazard_case *of, int bin) {
    struct hearth_hazard_rates rates;
    hearth_hazard_rates(hazard, of, &rates);
    return (double)rates.at[bin];
}

static void at_first_the_oldest_is_worth_the_least(void **state) {
    (void)state;
    struct hearth_hazard *hazard = start();
    const struct hearth_hazard_case of = {.awaits = HEARTH_AWAITS_TOOL};
    for (int bin = 2; bin < HEARTH_HAZARD_BINS; bin++) { /* the first is a second, and longer than the one behind it */
        assert_true(rate_at(hazard, &of, bin) < rate_at(hazard, &of, bin - 1));
    }
    free(hazard);
}

/* Of every factor: conversations with one value come back, those with another do not. */
static void each_factor_tells_them_apart(void **state) {
    (void)state;
    for (int factor = 0; factor < HEARTH_HAZARD_FACTORS; factor++) {
        struct hearth_hazard *hazard = start();
        struct hearth_hazard_case comes = {.awaits = HEARTH_AWAITS_USER}, goes = comes;
        comes.values[factor] = 1;
        goes.values[factor] = 2;
        for (int i = 0; i < TURNS; i++) {
            turn(hazard, &comes, true);
            turn(hazard, &goes, false);
        }
        assert_true(rate_at(hazard, &comes, 0) > 10 * rate_at(hazard, &goes, 0));
        free(hazard);
    }
}

/* The chance of what waits for a tool is not that of what waits for a user. */
static void what_is_awaited_is_learnt_apart(void **state) {
    (void)state;
    struct hearth_hazard *hazard = start();
    const struct hearth_hazard_case tool = {.awaits = HEARTH_AWAITS_TOOL}, user = {.awaits = HEARTH_AWAITS_USER};
    for (int i = 0; i < TURNS; i++) {
        turn(hazard, &tool, true);
        turn(hazard, &user, false);
    }
    assert_true(rate_at(hazard, &tool, 0) > 10 * rate_at(hazard, &user, 0));
    free(hazard);
}

/* What is due soon is worth more than what has just begun to wait, and what did not come when it was due, little. */
static void a_place_is_worth_most_when_its_return_is_due(void **state) {
    (void)state;
    struct hearth_hazard *hazard = start();
    const struct hearth_hazard_case of = {.awaits = HEARTH_AWAITS_TOOL};
    for (int i = 0; i < TURNS; i++) {
        turn(hazard, &of, i % 10 != 0);
    }
    assert_true(rate_at(hazard, &of, BACK_BIN) > 2 * rate_at(hazard, &of, 0));
    assert_true(rate_at(hazard, &of, BACK_BIN + 1) * 10 < rate_at(hazard, &of, BACK_BIN));
    free(hazard);
}

/* A turn that goes on cannot be followed by another one: the longer it still takes, the less its place is worth. */
static void a_turn_that_goes_on_is_worth_less(void **state) {
    (void)state;
    struct hearth_hazard *hazard = start();
    const struct hearth_hazard_case of = {.awaits = HEARTH_AWAITS_TOOL};
    for (int i = 0; i < TURNS; i++) {
        turn(hazard, &of, true);
    }
    struct hearth_hazard_rates rates;
    hearth_hazard_rates(hazard, &of, &rates);
    assert_true(fabs(hearth_hazard_rate(&rates, -1) / hearth_hazard_rate(&rates, 0) - 1) < 1e-3);
    assert_true(hearth_hazard_rate(&rates, -60000000) * 2 < hearth_hazard_rate(&rates, 0));
    assert_true(hearth_hazard_rate(&rates, -60000000) < hearth_hazard_rate(&rates, -50000000));
    assert_true(hearth_hazard_rate(&rates, INT64_MIN / 2) >= 0 && hearth_hazard_rate(&rates, INT64_MAX) >= 0);
    free(hazard);
}

/* What was long ago counts less: conversations that begin to stay away are believed. */
static void what_changes_is_learnt_anew(void **state) {
    (void)state;
    struct hearth_hazard *hazard = start();
    const struct hearth_hazard_case of = {.awaits = HEARTH_AWAITS_USER, .values = {3, 3, 3, 0}};
    for (int i = 0; i < 100000; i++) {
        turn(hazard, &of, true);
    }
    const double before = rate_at(hazard, &of, 0);
    for (int i = 0; i < 40000; i++) {
        turn(hazard, &of, false);
    }
    assert_true(rate_at(hazard, &of, 0) * 10 < before);
    free(hazard);
}

/* The rates of one bin after another are those of trying every end. */
static void a_rate_is_the_best_of_all_ends(void **state) {
    (void)state;
    struct hearth_hazard *hazard = start();
    const struct hearth_hazard_case of = {.awaits = HEARTH_AWAITS_TOOL};
    struct hearth_hazard_rates rates;
    uint32_t seed = 1;
    double chances[HEARTH_HAZARD_BINS], width_s[HEARTH_HAZARD_BINS];
    for (int bin = 0; bin < HEARTH_HAZARD_BINS; bin++) {
        seed = seed * 1664525 + 1013904223;
        hazard->bins[of.awaits][bin] = (struct hearth_hazard_bin){.reached = 1e6f, .back = (float)(seed >> 14) * 3};
        chances[bin] = ((double)hazard->bins[of.awaits][bin].back + 16 * 0.06) / (1e6 + 16); /* the guess */
        width_s[bin] = bin == 0 ? 1 : exp2(bin / 4.0) - exp2((bin - 1) / 4.0);
    }
    hearth_hazard_rates(hazard, &of, &rates);
    for (int before = 0; before < HEARTH_HAZARD_BEFORES; before++) {
        double left = 1, back = 0, held_s = exp2(before) - 1, best = 0;
        for (int bin = 0; bin < HEARTH_HAZARD_BINS; bin++) {
            back += left * chances[bin];
            held_s += left * width_s[bin] * (1 - chances[bin] / 2);
            left *= 1 - chances[bin];
            best = back / held_s > best ? back / held_s : best;
        }
        assert_true(fabs((double)rates.before[before] / best - 1) < 1e-5);
    }
    free(hazard);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_first_the_oldest_is_worth_the_least),
        cmocka_unit_test(each_factor_tells_them_apart),
        cmocka_unit_test(what_is_awaited_is_learnt_apart),
        cmocka_unit_test(a_place_is_worth_most_when_its_return_is_due),
        cmocka_unit_test(a_turn_that_goes_on_is_worth_less),
        cmocka_unit_test(what_changes_is_learnt_anew),
        cmocka_unit_test(a_rate_is_the_best_of_all_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
