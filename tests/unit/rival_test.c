/* Which order of eviction decides (cache/rival.h). */
#include "cache/rival.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { TALKS = 18, ROOM = 16, ROUNDS = 50 };

/* When each conversation had its last turn, and how much one is worth by what "was learnt". */
struct known {
    int64_t used_us[1000];
    double learnt[1000];
};

static double value(void *user, enum hearth_rival_order order, uint32_t talk, int64_t now_us) {
    const struct known *known = user;
    (void)now_us;
    return order == HEARTH_RIVAL_RECENT ? (double)known->used_us[talk] : known->learnt[talk];
}

/* A turn, with room for so many conversations. */
static void turn_in(struct hearth_rivals *rivals, struct known *known, double room, uint32_t talk, int64_t now_us) {
    const struct hearth_rival_turn one = {
        .talk = talk, .again_tokens = 1000, .bytes = 1e6, .budget_bytes = room * 1e6, .now_us = now_us};
    known->used_us[talk] = now_us;
    assert_true(hearth_rivals_turn(rivals, &one, value, known));
}

static void turn(struct hearth_rivals *rivals, struct known *known, uint32_t talk, int64_t now_us) {
    turn_in(rivals, known, ROOM, talk, now_us);
}

/* A loop over a few more than there is room for: the oldest is the one that comes next. */
static void loop(struct hearth_rivals *rivals, struct known *known) {
    for (int64_t i = 0; i < TALKS * ROUNDS; i++) {
        turn(rivals, known, (uint32_t)(i % TALKS), i);
    }
}

static void what_was_learnt_decides_where_it_loses_less(void **state) {
    (void)state;
    struct hearth_rivals rivals = {0};
    struct known known = {.learnt = {0}};
    assert_int_equal(hearth_rivals_best(&rivals), HEARTH_RIVAL_RECENT);
    for (uint32_t talk = 0; talk < TALKS; talk++) {
        known.learnt[talk] = talk;
    }
    loop(&rivals, &known);
    assert_int_equal(hearth_rivals_best(&rivals), HEARTH_RIVAL_LEARNT);
    hearth_rivals_finish(&rivals);
}

/* One conversation that comes back at once, beside many that never do, and are taken for better. */
static void what_is_wrong_does_not_decide(void **state) {
    (void)state;
    struct hearth_rivals rivals = {0};
    struct known known = {.learnt = {0}};
    for (uint32_t talk = 1; talk < 1000; talk++) {
        known.learnt[talk] = 1;
        turn(&rivals, &known, talk, 2 * (int64_t)talk);
        turn(&rivals, &known, 0, 2 * (int64_t)talk + 1);
    }
    assert_int_equal(hearth_rivals_best(&rivals), HEARTH_RIVAL_RECENT);
    assert_true(rivals.v[HEARTH_RIVAL_LEARNT].lost_tokens > rivals.v[HEARTH_RIVAL_RECENT].lost_tokens);
    hearth_rivals_finish(&rivals);
}

/* Of very many conversations exactly those go that were unused for longest; and what is learnt to be worth less, while
 * it waits, is found before long: where a tenth never comes back, and the others in a loop, these lose nothing then. */
static void of_very_many_the_least_goes(void **state) {
    (void)state;
    enum { MANY = 1000, LEFT = 100, LIVE = MANY - LEFT };
    struct hearth_rivals rivals = {0};
    struct known known = {.learnt = {0}};
    for (uint32_t talk = 0; talk < MANY; talk++) {
        known.learnt[talk] = 2;
        turn_in(&rivals, &known, MANY, talk, talk);
    }
    for (uint32_t talk = 0; talk < LEFT; talk++) {
        known.learnt[talk] = 1;
    }
    double before = 0;
    for (int64_t i = 0; i < 4 * LIVE; i++) {
        const double room = i < LIVE ? MANY - (double)i * LEFT / LIVE : LIVE;
        turn_in(&rivals, &known, room, LEFT + (uint32_t)(i % LIVE), MANY + i);
        before = i < 3 * LIVE ? rivals.v[HEARTH_RIVAL_LEARNT].lost_tokens : before;
    }
    assert_true(rivals.v[HEARTH_RIVAL_RECENT].lost_tokens <= 0);
    assert_true(rivals.v[HEARTH_RIVAL_LEARNT].lost_tokens <= before);
    assert_true(before < 1000 * LEFT);
    hearth_rivals_finish(&rivals);
}

/* What is forgotten takes no room; within the budget nothing is lost. */
static void forgotten_conversations_take_no_room(void **state) {
    (void)state;
    struct hearth_rivals rivals = {0};
    struct known known = {.learnt = {0}};
    for (uint32_t talk = 0; talk < 1000; talk++) {
        turn(&rivals, &known, talk, talk);
        hearth_rivals_forget(&rivals, talk);
    }
    for (int i = 0; i < ROUNDS; i++) {
        for (uint32_t talk = 0; talk < ROOM; talk++) {
            turn(&rivals, &known, talk, 1000 + i);
        }
    }
    for (int order = 0; order < HEARTH_RIVALS; order++) {
        assert_true(rivals.v[order].lost_tokens <= 0 && rivals.v[order].holder_count == ROOM);
    }
    hearth_rivals_finish(&rivals);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_learnt_decides_where_it_loses_less),
        cmocka_unit_test(what_is_wrong_does_not_decide),
        cmocka_unit_test(of_very_many_the_least_goes),
        cmocka_unit_test(forgotten_conversations_take_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
