/* Which requests may wait. */
#include "sched/admission.h"

#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void one_tenant_has_all_seats(void **state) {
    (void)state;
    struct hearth_admission admission = {0};
    for (int i = 0; i < 5; i++) {
        assert_false(hearth_admission_full(&admission, 0, 4, 1)); /* the fifth takes the free lane's */
        hearth_admission_take(&admission, 0);
    }
    assert_true(hearth_admission_full(&admission, 0, 4, 1));
    assert_false(hearth_admission_full(&admission, 0, 4, 2));
    assert_false(hearth_admission_full(&admission, 0, 5, 1));
    hearth_admission_leave(&admission, 0);
    assert_false(hearth_admission_full(&admission, 0, 4, 1));
}

static void who_fills_them_keeps_nobody_out(void **state) {
    (void)state;
    struct hearth_admission admission = {0};
    for (int i = 0; i < 12; i++) {
        hearth_admission_take(&admission, 1);
    }
    assert_true(hearth_admission_full(&admission, 1, 12, 0));
    for (int i = 0; i < 6; i++) { /* a half is the second's */
        assert_false(hearth_admission_full(&admission, 2, 12, 0));
        hearth_admission_take(&admission, 2);
    }
    assert_true(hearth_admission_full(&admission, 2, 12, 0));
    for (int i = 0; i < 4; i++) { /* a third the third's */
        assert_false(hearth_admission_full(&admission, 3, 12, 0));
        hearth_admission_take(&admission, 3);
    }
    assert_true(hearth_admission_full(&admission, 3, 12, 0));
    assert_int_equal(admission.taken, 22);
    for (int i = 0; i < 12; i++) { /* the first has gone: no more are there than may be */
        hearth_admission_leave(&admission, 1);
    }
    assert_false(hearth_admission_full(&admission, 3, 12, 0));
    assert_int_equal(admission.taken, 10);
}

/* More tenants than are told apart: the slots are all there is for the others. */
static void more_tenants_than_places(void **state) {
    (void)state;
    struct hearth_admission admission = {0};
    for (uint64_t tenant = 0; tenant < HEARTH_ADMISSION_TENANTS + 10; tenant++) {
        hearth_admission_take(&admission, tenant);
    }
    assert_int_equal(admission.taken, HEARTH_ADMISSION_TENANTS + 10);
    assert_int_equal(admission.count, HEARTH_ADMISSION_TENANTS);
    assert_true(hearth_admission_full(&admission, 1000, 64, 0));
    assert_false(hearth_admission_full(&admission, 1000, 1000, 0));
    hearth_admission_leave(&admission, 5); /* its place is free for another */
    assert_false(hearth_admission_full(&admission, 1000, 64, 0));
    hearth_admission_take(&admission, 1000);
    assert_int_equal(admission.count, HEARTH_ADMISSION_TENANTS);
    for (uint64_t tenant = 0; tenant < HEARTH_ADMISSION_TENANTS + 10; tenant++) {
        if (tenant != 5) {
            hearth_admission_leave(&admission, tenant);
        }
    }
    hearth_admission_leave(&admission, 1000);
    assert_int_equal(admission.taken, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tenant_has_all_seats),
        cmocka_unit_test(who_fills_them_keeps_nobody_out),
        cmocka_unit_test(more_tenants_than_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
