/* Who may wait. */
#include "sched/seats.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void one_tenant_has_all_seats(void **state) {
    (void)state;
    struct hearth_seats seats = {0};
    for (int i = 0; i < 5; i++) {
        assert_false(hearth_seats_full(&seats, 0, 4, 1)); /* the fifth takes the free lane's */
        hearth_seats_take(&seats, 0);
    }
    assert_true(hearth_seats_full(&seats, 0, 4, 1));
    assert_false(hearth_seats_full(&seats, 0, 4, 2));
    assert_false(hearth_seats_full(&seats, 0, 5, 1));
    hearth_seats_leave(&seats, 0);
    assert_false(hearth_seats_full(&seats, 0, 4, 1));
}

static void who_fills_them_keeps_nobody_out(void **state) {
    (void)state;
    struct hearth_seats seats = {0};
    for (int i = 0; i < 12; i++) {
        hearth_seats_take(&seats, 1);
    }
    assert_true(hearth_seats_full(&seats, 1, 12, 0));
    for (int i = 0; i < 6; i++) { /* a half is the second's */
        assert_false(hearth_seats_full(&seats, 2, 12, 0));
        hearth_seats_take(&seats, 2);
    }
    assert_true(hearth_seats_full(&seats, 2, 12, 0));
    for (int i = 0; i < 4; i++) { /* a third the third's */
        assert_false(hearth_seats_full(&seats, 3, 12, 0));
        hearth_seats_take(&seats, 3);
    }
    assert_true(hearth_seats_full(&seats, 3, 12, 0));
    assert_int_equal(seats.taken, 22);
    for (int i = 0; i < 12; i++) { /* the first has gone: no more are there than may be */
        hearth_seats_leave(&seats, 1);
    }
    assert_false(hearth_seats_full(&seats, 3, 12, 0));
    assert_int_equal(seats.taken, 10);
}

/* More tenants than are told apart: the seats are all there is for those who are not. */
static void more_tenants_than_places(void **state) {
    (void)state;
    struct hearth_seats seats = {0};
    for (uint64_t tenant = 0; tenant < HEARTH_SEATS_TENANTS + 10; tenant++) {
        hearth_seats_take(&seats, tenant);
    }
    assert_int_equal(seats.taken, HEARTH_SEATS_TENANTS + 10);
    assert_int_equal(seats.count, HEARTH_SEATS_TENANTS);
    assert_true(hearth_seats_full(&seats, 1000, 64, 0));
    assert_false(hearth_seats_full(&seats, 1000, 1000, 0));
    hearth_seats_leave(&seats, 5); /* its place is free for another */
    assert_false(hearth_seats_full(&seats, 1000, 64, 0));
    hearth_seats_take(&seats, 1000);
    assert_int_equal(seats.count, HEARTH_SEATS_TENANTS);
    for (uint64_t tenant = 0; tenant < HEARTH_SEATS_TENANTS + 10; tenant++) {
        if (tenant != 5) {
            hearth_seats_leave(&seats, tenant);
        }
    }
    hearth_seats_leave(&seats, 1000);
    assert_int_equal(seats.taken, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tenant_has_all_seats),
        cmocka_unit_test(who_fills_them_keeps_nobody_out),
        cmocka_unit_test(more_tenants_than_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
