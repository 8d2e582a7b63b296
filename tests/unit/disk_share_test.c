/* The disk tier among others: its queue, several tiers at one directory, the budget, and a file system that fails. */
#include "support/disk_room.h"

/* ---- writing ---- */

static void replaces_and_knows_what_is_there(void **state) {
    const struct room *room = *state;
    struct item brief, whole;
    make_item(&brief, HEARTH_RECORD_PAGE, 1, 0, 7, 3000);
    make_item(&whole, HEARTH_RECORD_PAGE, 1, 0, PAGE, 6000);
    struct hearth_far *far = open_plain(room->dir);
    assert_true(put(far, &brief, NULL));
    expect(far, HEARTH_FAR_WRITTEN, &brief);
    assert_true(put(far, &whole, &brief.record.name));
    expect(far, HEARTH_FAR_WRITTEN, &whole);
    expect(far, HEARTH_FAR_LOST, &brief);
    assert_true(exists(room, &whole) && !exists(room, &brief));
    char path[256];
    struct stat before, after;
    path_of(room, &whole, path, sizeof path);
    assert_int_equal(stat(path, &before), 0);
    assert_true(put(far, &whole, NULL) && put(far, &whole, NULL));
    expect(far, HEARTH_FAR_WRITTEN, &whole);
    expect(far, HEARTH_FAR_WRITTEN, &whole);
    far->ops->destroy(far);
    far = open_plain(room->dir);
    assert_true(put(far, &whole, NULL)); /* perhaps before the scan came to it */
    expect(far, HEARTH_FAR_WRITTEN, &whole);
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino);
    assert_int_equal(stats(far).written, 0);
    far->ops->destroy(far);
}

static void small_queue(struct hearth_disk_params *params) {
    params->queue_bytes = 300000;
    params->budget_bytes = 400000;
}

/* Takes the lock of evictions, as another process that evicts would. */
static int lock_directory(const struct room *room) {
    char path[96];
    (void)snprintf(path, sizeof path, "%s/lock", room->dir);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    return fd;
}

static bool over_half(const struct hearth_far_stats *stats) {
    return stats->bytes > 200000;
}

/* Three conversations are put one after the other while the writer waits for room that nobody can make. */
static void a_full_queue_drops_the_oldest(void **state) {
    const struct room *room = *state;
    enum { CONVS = 3, PAGES = 8, FIT = 9 };
    struct item fill[12], large, items[CONVS][PAGES];
    struct hearth_far *far = open_with(room->dir, small_queue);
    (void)scanned(far);
    const int lock = lock_directory(room);
    for (int i = 0; i < 12; i++) {
        make_item(&fill[i], HEARTH_RECORD_PAGE, 8, i, PAGE, 20000);
        assert_true(put(far, &fill[i], NULL));
        expect(far, HEARTH_FAR_WRITTEN, &fill[i]);
    }
    wait_stats(far, over_half);
    make_item(&large, HEARTH_RECORD_PAGE, 9, 0, PAGE, 110000);
    assert_true(put(far, &large, NULL));
    (void)far->ops->wait(far, 1000000); /* the writer takes it and waits */
    for (int c = 0; c < CONVS; c++) {
        for (int p = 0; p < PAGES; p++) {
            make_item(&items[c][p], HEARTH_RECORD_PAGE, c, p, PAGE, 20000);
            assert_true(put(far, &items[c][p], NULL));
        }
    }
    for (int i = 0; i < CONVS * PAGES - FIT; i++) { /* the oldest conversation, from its end */
        struct hearth_far_event event = until(far, HEARTH_FAR_DROPPED, NULL);
        const struct item *item = &items[i / PAGES][PAGES - 1 - i % PAGES];
        assert_true(hearth_digest_equal(event.name, item->record.name));
    }
    assert_int_equal(stats(far).dropped, CONVS * PAGES - FIT);
    assert_true(stats(far).queued_bytes <= 300000);
    assert_int_equal(close(lock), 0);
    expect(far, HEARTH_FAR_WRITTEN, &large);
    expect(far, HEARTH_FAR_WRITTEN, &items[1][0]);
    for (int p = 0; p < PAGES; p++) {
        expect(far, HEARTH_FAR_WRITTEN, &items[2][p]);
    }
    assert_int_equal(stats(far).queued_bytes, 0);
    assert_true(stats(far).evicted > 0 && stats(far).bytes <= 400000);
    far->ops->destroy(far);
}

/* ---- several at one directory ---- */

static void tight_budget(struct hearth_disk_params *params) {
    params->budget_bytes = 2000000;
}

static uint64_t bytes_in(const struct room *room) {
    char command[192];
    unsigned long long bytes = 0;
    (void)snprintf(command, sizeof command,
                   "find %s -mindepth 3 -type f -printf '%%s\\n' | awk '{ n += $1 } END { print n + 0 }'", room->dir);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%llu", &bytes), 1);
    (void)pclose(pipe);
    return bytes;
}

static void two_share_a_directory(void **state) {
    const struct room *room = *state;
    enum { N = 200 };
    struct item item;
    struct hearth_far *far[2] = {open_with(room->dir, tight_budget), open_with(room->dir, tight_budget)};
    (void)scanned(far[0]);
    (void)scanned(far[1]);
    assert_true(stats(far[1]).shared);
    for (int i = 0; i < 2; i++) { /* what one writes the other finds and reads */
        make_item(&item, HEARTH_RECORD_PAGE, 90 + i, 0, PAGE, 30000);
        assert_true(put(far[i], &item, NULL));
        expect(far[i], HEARTH_FAR_WRITTEN, &item);
        expect(far[1 - i], HEARTH_FAR_FOUND, &item);
        assert_int_equal(get(far[1 - i], &item), HEARTH_OK);
    }
    far[0]->ops->reject(far[0], item.record.name, "for the test");
    expect(far[0], HEARTH_FAR_LOST, &item);
    expect(far[1], HEARTH_FAR_LOST, &item); /* and what one loses the other does */
    assert_int_equal(get(far[1], &item), HEARTH_ERR_NOT_FOUND);
    for (int i = 0; i < N; i++) {
        make_item(&item, HEARTH_RECORD_PAGE, i, 0, PAGE, 30000);
        assert_true(put(far[i % 2], &item, NULL));
        expect(far[i % 2], HEARTH_FAR_WRITTEN, &item);
    }
    assert_int_equal(get(far[(N - 1) % 2], &item), HEARTH_OK); /* the newest stays */
    make_item(&item, HEARTH_RECORD_PAGE, 0, 0, PAGE, 30000);
    assert_false(exists(room, &item)); /* the oldest does not */
    assert_true(stats(far[0]).evicted + stats(far[1]).evicted > N / 2);
    far[0]->ops->destroy(far[0]);
    far[1]->ops->destroy(far[1]);
    assert_in_range(bytes_in(room), 500000, 2000000 + 2000000 / 8);
}

static void touched_files_stay(void **state) {
    const struct room *room = *state;
    enum { N = 100 };
    struct item old, item;
    struct hearth_far *far = open_with(room->dir, tight_budget);
    make_item(&old, HEARTH_RECORD_PAGE, 900, 0, PAGE, 30000);
    assert_true(put(far, &old, NULL));
    expect(far, HEARTH_FAR_WRITTEN, &old);
    far->ops->destroy(far);
    far = open_with(room->dir, tight_budget);
    assert_int_equal(scanned(far), 1);
    for (int i = 0; i < N; i++) {
        make_item(&item, HEARTH_RECORD_PAGE, i, 0, PAGE, 30000);
        assert_true(put(far, &item, NULL));
        expect(far, HEARTH_FAR_WRITTEN, &item);
        if (i == 20) {
            far->ops->touch(far, &(struct hearth_far_touch){.name = old.record.name, .pos = PAGE}, 1);
            far->ops->destroy(far); /* tells it to the file */
            far = open_with(room->dir, tight_budget);
            struct hearth_far_event event = until(far, HEARTH_FAR_FOUND, &old.record.name);
            assert_int_equal(event.hits, 1);
            hearth_far_event_finish(&event);
        }
        if (i == 60) { /* the first ones have gone since */
            assert_true(exists(room, &old));
        }
    }
    make_item(&item, HEARTH_RECORD_PAGE, 0, 0, PAGE, 30000);
    assert_false(exists(room, &item));
    far->ops->destroy(far);
}

/* ---- failure ---- */

static bool failing(const struct hearth_far_stats *stats) {
    return stats->failing;
}

static bool well(const struct hearth_far_stats *stats) {
    return !stats->failing;
}

static void recovers_when_files_cannot_grow(void **state) {
    const struct room *room = *state;
    struct item item;
    struct rlimit before, none;
    (void)signal(SIGXFSZ, SIG_IGN);
    struct hearth_far *far = open_plain(room->dir);
    (void)scanned(far);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 5000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    for (int i = 0; i < 3; i++) {
        make_item(&item, HEARTH_RECORD_PAGE, 1, i, PAGE, 50000);
        if (put(far, &item, NULL)) {
            expect(far, HEARTH_FAR_DROPPED, &item);
        }
    }
    wait_stats(far, failing);
    assert_true(stats(far).trouble[0] != '\0' && stats(far).io_errors > 0 && stats(far).dropped > 0);
    assert_false(put(far, &item, NULL)); /* not now */
    assert_int_equal(atomic_load(&warnings), 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    wait_stats(far, well); /* without being asked */
    assert_string_equal(stats(far).trouble, "");
    assert_true(put(far, &item, NULL));
    expect(far, HEARTH_FAR_WRITTEN, &item);
    assert_int_equal(get(far, &item), HEARTH_OK);
    far->ops->destroy(far);
}

static void recovers_when_the_directory_is_gone(void **state) {
    const struct room *room = *state;
    char dir[80], command[120];
    struct item a, b;
    (void)snprintf(dir, sizeof dir, "%s/kv", room->dir);
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    make_item(&a, HEARTH_RECORD_PAGE, 1, 0, PAGE, 5000);
    make_item(&b, HEARTH_RECORD_PAGE, 2, 0, PAGE, 5000);
    struct hearth_far *far = open_plain(dir);
    assert_true(put(far, &a, NULL));
    expect(far, HEARTH_FAR_WRITTEN, &a);
    assert_int_equal(system(command), 0);
    expect(far, HEARTH_FAR_LOST, &a);
    assert_true(put(far, &b, NULL)); /* it is made again */
    expect(far, HEARTH_FAR_WRITTEN, &b);
    assert_int_equal(get(far, &b), HEARTH_OK);
    assert_int_equal(atomic_load(&warnings), 0);
    assert_int_equal(system(command), 0);
    const int fd = open(dir, O_WRONLY | O_CREAT | O_EXCL, 0600); /* now that is in the way */
    assert_true(fd >= 0 && close(fd) == 0);
    assert_true(put(far, &a, NULL));
    expect(far, HEARTH_FAR_DROPPED, &a);
    assert_true(stats(far).failing);
    assert_int_equal(unlink(dir), 0);
    wait_stats(far, well);
    assert_true(put(far, &a, NULL));
    expect(far, HEARTH_FAR_WRITTEN, &a);
    assert_int_equal(get(far, &a), HEARTH_OK);
    far->ops->destroy(far);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ROOM_TEST(replaces_and_knows_what_is_there),
        ROOM_TEST(a_full_queue_drops_the_oldest),
        ROOM_TEST(two_share_a_directory),
        ROOM_TEST(touched_files_stay),
        ROOM_TEST(recovers_when_files_cannot_grow),
        ROOM_TEST(recovers_when_the_directory_is_gone),
    };
    hearth_log_set(count_warnings, NULL, HEARTH_LOG_DEBUG);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
