/* Warm memory: what is kept is taken again, sizes do not mix, and the limit holds. */
#include "base/prefault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static void a_block_comes_back(void **state) {
    (void)state;
    hearth_prefault_limit(64 * MIB);
    void *block = hearth_prefault_take(12 * MIB + 12345);
    assert_non_null(block);
    memset(block, 7, 12 * MIB + 12345);
    hearth_prefault_give(block);
    void *other = hearth_prefault_take(40 * MIB); /* much larger, and much smaller: not that block */
    void *small = hearth_prefault_take(MIB);
    assert_ptr_not_equal(other, block);
    assert_ptr_not_equal(small, block);
    assert_ptr_equal(hearth_prefault_take(12 * MIB + 12000), block);
    free(block); /* memory like any other */
    free(other);
    free(small);
    hearth_prefault_limit(0);
}

static void blocks_are_made_up_to_the_limit(void **state) {
    (void)state;
    const size_t len = 5902056; /* a page of a small model */
    int made = 0;
    hearth_prefault_limit(32 * MIB);
    while (made < 100 && hearth_prefault_make(len)) {
        made++;
    }
    assert_in_range(made, 3, 8); /* how much of a block counts depends on where it came to lie */
    void *blocks[8];
    for (int i = 0; i < made; i++) {
        blocks[i] = hearth_prefault_take(len);
        assert_non_null(blocks[i]);
        for (int k = 0; k < i; k++) {
            assert_ptr_not_equal(blocks[i], blocks[k]);
        }
    }
    assert_true(hearth_prefault_make(len)); /* what was taken makes room */
    for (int i = 0; i < made; i++) {
        hearth_prefault_give(blocks[i]);
    }
    hearth_prefault_limit(0);
}

static void without_a_limit_nothing_is_kept(void **state) {
    (void)state;
    assert_false(hearth_prefault_make(4 * MIB));
    hearth_prefault_give(hearth_prefault_take(4 * MIB));
    hearth_prefault_give(hearth_prefault_take(0));
    hearth_prefault_give(NULL);
    assert_false(hearth_prefault_make(4 * MIB));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_comes_back),
        cmocka_unit_test(blocks_are_made_up_to_the_limit),
        cmocka_unit_test(without_a_limit_nothing_is_kept),
    };
    return cmocka_run_group_tests_name("warm memory", tests, NULL, NULL);
}
