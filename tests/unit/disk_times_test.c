/* The disk tier's times, on a clock that the test moves. */
#include "support/clock.h"
#include "support/disk_room.h"

#define SECOND_US INT64_C(1000000)

static void own_rescans(struct hearth_disk_params *params) {
    params->rescan_us = 0;
}

/* Waits until a maintenance thread has nothing to do. Returns for how long it sleeps; of several, the first. */
static int64_t sleep_us(void) {
    while (clock_next_us() == INT64_MAX) {
        usleep(500);
    }
    return clock_next_us() - hearth_clock_us();
}

/* A prompt may miss what another process has just written, but not for long; each look costs a call for each shard. */
static void what_others_write_is_found_in_seconds(void **state) {
    const struct room *room = *state;
    struct item item;
    struct hearth_backing *backing[2] = {NULL, open_with(room->dir, own_rescans)};
    (void)scanned(backing[1]);
    (void)sleep_us(); /* it sleeps before the clock moves */
    backing[0] = open_with(room->dir, own_rescans);
    (void)scanned(backing[0]);
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 3000);
    store(backing[0], &item);
    assert_in_range(sleep_us(), SECOND_US, 4 * SECOND_US);
    clock_advance_us(4 * SECOND_US);
    expect(backing[1], HEARTH_BACKING_FOUND, &item);
    backing[0]->ops->destroy(backing[0]);
    backing[1]->ops->destroy(backing[1]);
}

static int64_t changed_ns(const struct room *room, const struct item *item) {
    char path[256];
    struct stat st;
    path_of(room, item, path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    return (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

/* Moves the clock on by so many seconds; the maintenance thread has its turn in each. */
static void pass_s(int seconds) {
    for (int i = 0; i < seconds; i++) {
        (void)sleep_us();
        clock_advance_us(SECOND_US);
    }
    (void)sleep_us();
}

/* Uses are told to a file when some have gathered, but soon enough that other processes do not evict it as unused. */
static void uses_are_told_in_a_minute(void **state) {
    const struct room *room = *state;
    struct item item;
    struct hearth_backing *backing = open_with(room->dir, own_rescans);
    (void)scanned(backing);
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 3000);
    store(backing, &item);
    const int64_t before_ns = changed_ns(room, &item);
    pass_s(1);
    backing->ops->touch(backing, &(struct hearth_backing_touch){.name = item.record.name, .pos = PAGE}, 1);
    pass_s(11);
    assert_int_equal(changed_ns(room, &item), before_ns);
    pass_s(60);
    assert_true(changed_ns(room, &item) > before_ns);
    backing->ops->destroy(backing);
}

/* A short failure costs few turns their state; a long one, little time. */
static void what_fails_is_tried_less_and_less(void **state) {
    (void)state;
    int64_t wait_us = hearth_backing_backoff_us(0);
    assert_in_range(wait_us, SECOND_US / 2, 2 * SECOND_US);
    assert_int_equal(hearth_backing_backoff_us(wait_us), 2 * wait_us);
    for (int i = 0; i < 20; i++) {
        wait_us = hearth_backing_backoff_us(wait_us);
    }
    assert_in_range(wait_us, 15 * SECOND_US, 60 * SECOND_US);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ROOM_TEST(what_others_write_is_found_in_seconds),
        ROOM_TEST(uses_are_told_in_a_minute),
        cmocka_unit_test(what_fails_is_tried_less_and_less),
    };
    hearth_log_set(count_warnings, NULL, HEARTH_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
