/* The disk tier's times, on a clock that the test moves. */
#include "support/clock.h"
#include "support/disk_room.h"
#include "tier/disk_engine.h"

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

static void compressed(struct hearth_disk_params *params) {
    own_rescans(params);
    params->compress = true;
}

/* Between two looks another process may evict a file and write it again, compressed: a good file of another length. */
static void what_others_write_anew_is_good(void **state) {
    const struct room *room = *state;
    struct item item;
    char path[256];
    struct hearth_backing *backing = open_with(room->dir, own_rescans), *other;
    (void)scanned(backing);
    (void)sleep_us(); /* it sleeps before the clock moves */
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 200000);
    store(backing, &item);
    path_of(room, &item, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    other = open_with(room->dir, compressed);
    (void)scanned(other);
    store(other, &item);
    clock_advance_us(4 * SECOND_US);
    expect(backing, HEARTH_BACKING_LOST, &item);
    expect(backing, HEARTH_BACKING_FOUND, &item);
    assert_int_equal(get(backing, &item), HEARTH_OK);
    assert_int_equal(stats(backing).bad, 0);
    backing->ops->destroy(backing);
    other->ops->destroy(other);
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

/* ---- eviction ---- */

static void small_budget(struct hearth_disk_params *params) {
    own_rescans(params);
    params->budget_bytes = 400000;
}

static size_t events_of(struct disk *disk) {
    hearth_disk_lock(disk);
    const size_t events = disk->events.count;
    hearth_disk_unlock(disk);
    return events;
}

/* Waits, without a look at the events, until so many puts were answered. */
static void wait_answered(struct hearth_backing *backing, uint64_t written, uint64_t dropped) {
    for (int ms = 0; stats(backing).written + stats(backing).dropped < written + dropped && ms < PATIENCE_S * 1000;
         ms++) {
        usleep(1000);
    }
    assert_int_equal(stats(backing).written, written);
    assert_int_equal(stats(backing).dropped, dropped);
}

/* A cache that reads no events for long holds up what is found, but not the evictions that the writer waits for. */
static void evicts_while_the_cache_is_busy(void **state) {
    enum { PUTS = 12 };
    const struct room *room = *state;
    struct item item;
    struct hearth_backing *backing = open_with(room->dir, small_budget), *other = open_with(room->dir, own_rescans);
    (void)scanned(other);
    (void)scanned(backing);
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 3000);
    for (int i = 0; i <= DISK_EVENTS_WAITING; i++) { /* it is not there */
        assert_true(backing->ops->remove(backing, item.record.name, item.record.kind));
    }
    while (events_of((struct disk *)backing) <= DISK_EVENTS_WAITING) {
        usleep(500);
    }
    store(other, &item);
    clock_advance_us(4 * SECOND_US); /* the next rescan finds it */
    for (int i = 0; i < PUTS; i++) { /* each takes more than half of the budget */
        make_item(&item, HEARTH_RECORD_PAGE, 2 + i, 0, PAGE, 250000);
        assert_true(put(backing, &item, NULL));
        wait_answered(backing, (uint64_t)i + 1, 0);
    }
    backing->ops->destroy(backing);
    other->ops->destroy(other);
}

static atomic_bool gc_fails;

int __real_hearth_directory_gc(struct hearth_directory *directory, struct hearth_gc *gc);
int __wrap_hearth_directory_gc(struct hearth_directory *directory, struct hearth_gc *gc);

int __wrap_hearth_directory_gc(struct hearth_directory *directory, struct hearth_gc *gc) {
    const int err = __real_hearth_directory_gc(directory, gc);
    return atomic_load(&gc_fails) ? HEARTH_ERR_IO : err;
}

/* A folder that cannot be read, of whatever model, is no reason to write nothing more: what was evicted made room. */
static void an_eviction_that_fails_in_part_makes_room(void **state) {
    const struct room *room = *state;
    struct item item;
    struct hearth_backing *backing = open_with(room->dir, small_budget);
    (void)scanned(backing);
    atomic_store(&gc_fails, true);
    for (int i = 0; i < 3; i++) { /* each takes more than half of the budget */
        make_item(&item, HEARTH_RECORD_PAGE, 1 + i, 0, PAGE, 250000);
        store(backing, &item);
    }
    assert_true(stats(backing).io_errors > 0 && stats(backing).evicted == 2);
    assert_true(stats(backing).files == 1 && stats(backing).bytes <= 400000);
    atomic_store(&gc_fails, false);
    backing->ops->destroy(backing);
}

static void *destroy(void *backing) {
    ((struct hearth_backing *)backing)->ops->destroy(backing);
    return NULL;
}

static bool ends(struct disk *disk) {
    hearth_disk_lock(disk);
    const bool ends = disk->stop_writer;
    hearth_disk_unlock(disk);
    return ends;
}

/* At the end the writer waits for room until the deadline, not for as long as it does otherwise. */
static void the_end_waits_for_no_room(void **state) {
    const struct room *room = *state;
    struct item item;
    char path[96];
    pthread_t thread;
    struct hearth_backing *backing = open_with(room->dir, small_budget);
    (void)scanned(backing);
    (void)snprintf(path, sizeof path, "%s/lock", room->dir);
    const int lock = open(path, O_RDWR | O_CLOEXEC); /* as another process that evicts */
    assert_true(lock >= 0 && flock(lock, LOCK_EX) == 0);
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 250000);
    store(backing, &item);
    make_item(&item, HEARTH_RECORD_PAGE, 2, 0, PAGE, 250000);
    assert_true(put(backing, &item, NULL));
    while (sleep_us() != HEARTH_BACKING_WAIT_US) { /* the writer waits, and nobody else */
        usleep(500);
    }
    assert_int_equal(pthread_create(&thread, NULL, destroy, backing), 0);
    while (!ends((struct disk *)backing)) {
        usleep(500);
    }
    clock_advance_us(HEARTH_BACKING_END_US);
    wait_answered(backing, 1, 1);
    (void)close(lock);
    assert_int_equal(pthread_join(thread, NULL), 0);
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
        ROOM_TEST(what_others_write_anew_is_good),
        ROOM_TEST(uses_are_told_in_a_minute),
        ROOM_TEST(evicts_while_the_cache_is_busy),
        ROOM_TEST(an_eviction_that_fails_in_part_makes_room),
        ROOM_TEST(the_end_waits_for_no_room),
        cmocka_unit_test(what_fails_is_tried_less_and_less),
    };
    hearth_log_set(count_warnings, NULL, HEARTH_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
