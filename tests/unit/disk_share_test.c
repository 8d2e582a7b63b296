/* The disk tier among others: its queue, several tiers at one directory, the budget, and a file system that fails. */
#include "support/disk_room.h"
#include "tier/disk_engine.h"
#include "tier/layered.h"

#include <sched.h>

/* ---- writing ---- */

static void replaces_and_knows_what_is_there(void **state) {
    const struct room *room = *state;
    struct item brief, whole;
    make_item(&brief, HEARTH_RECORD_PAGE, 1, 0, 7, 3000);
    make_item(&whole, HEARTH_RECORD_PAGE, 1, 0, PAGE, 6000);
    struct hearth_backing *backing = open_plain(room->dir);
    assert_true(put(backing, &brief, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &brief);
    assert_true(put(backing, &whole, &brief.record.name));
    expect(backing, HEARTH_BACKING_WRITTEN, &whole);
    expect(backing, HEARTH_BACKING_LOST, &brief);
    assert_true(exists(room, &whole) && !exists(room, &brief));
    char path[256];
    struct stat before, after;
    path_of(room, &whole, path, sizeof path);
    assert_int_equal(stat(path, &before), 0);
    assert_true(put(backing, &whole, NULL) && put(backing, &whole, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &whole);
    expect(backing, HEARTH_BACKING_WRITTEN, &whole);
    backing->ops->destroy(backing);
    backing = open_plain(room->dir);
    assert_true(put(backing, &whole, NULL)); /* perhaps before the scan came to it */
    expect(backing, HEARTH_BACKING_WRITTEN, &whole);
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino);
    assert_int_equal(stats(backing).written, 0);
    backing->ops->destroy(backing);
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

static bool over_half(const struct hearth_backing_stats *stats) {
    return stats->bytes > 200000;
}

/* Three conversations are put one after the other while the writer waits for room that nobody can make. */
static void a_full_queue_drops_the_oldest(void **state) {
    const struct room *room = *state;
    enum { CONVS = 3, PAGES = 8, FIT = 9 };
    struct item fill[12], large, items[CONVS][PAGES];
    struct hearth_backing *backing = open_with(room->dir, small_queue);
    (void)scanned(backing);
    const int lock = lock_directory(room);
    for (int i = 0; i < 12; i++) {
        make_item(&fill[i], HEARTH_RECORD_PAGE, 8, i, PAGE, 20000);
        assert_true(put(backing, &fill[i], NULL));
        expect(backing, HEARTH_BACKING_WRITTEN, &fill[i]);
    }
    wait_stats(backing, over_half);
    make_item(&large, HEARTH_RECORD_PAGE, 9, 0, PAGE, 110000);
    assert_true(put(backing, &large, NULL));
    (void)backing->ops->wait(backing, 1000000); /* the writer takes it and waits */
    for (int c = 0; c < CONVS; c++) {
        for (int p = 0; p < PAGES; p++) {
            make_item(&items[c][p], HEARTH_RECORD_PAGE, c, p, PAGE, 20000);
            assert_true(put(backing, &items[c][p], NULL));
        }
    }
    for (int i = 0; i < CONVS * PAGES - FIT; i++) { /* the oldest conversation, from its end */
        struct hearth_backing_event event = until(backing, HEARTH_BACKING_DROPPED, NULL);
        const struct item *item = &items[i / PAGES][PAGES - 1 - i % PAGES];
        assert_true(hearth_digest_equal(event.name, item->record.name));
    }
    assert_int_equal(stats(backing).dropped, CONVS * PAGES - FIT);
    assert_true(stats(backing).queued_bytes <= 300000);
    assert_int_equal(close(lock), 0);
    expect(backing, HEARTH_BACKING_WRITTEN, &large);
    expect(backing, HEARTH_BACKING_WRITTEN, &items[1][0]);
    for (int p = 0; p < PAGES; p++) {
        expect(backing, HEARTH_BACKING_WRITTEN, &items[2][p]);
    }
    assert_int_equal(stats(backing).queued_bytes, 0);
    assert_true(stats(backing).evicted > 0 && stats(backing).bytes <= 400000);
    backing->ops->destroy(backing);
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
    struct hearth_backing *backing[2] = {open_with(room->dir, tight_budget), open_with(room->dir, tight_budget)};
    (void)scanned(backing[0]);
    (void)scanned(backing[1]);
    assert_true(stats(backing[1]).shared);
    for (int i = 0; i < 2; i++) { /* what one writes the other finds and reads */
        make_item(&item, HEARTH_RECORD_PAGE, 90 + i, 0, PAGE, 30000);
        assert_true(put(backing[i], &item, NULL));
        expect(backing[i], HEARTH_BACKING_WRITTEN, &item);
        expect(backing[1 - i], HEARTH_BACKING_FOUND, &item);
        assert_int_equal(get(backing[1 - i], &item), HEARTH_OK);
    }
    backing[0]->ops->reject(backing[0], item.record.name, "for the test");
    expect(backing[0], HEARTH_BACKING_LOST, &item);
    expect(backing[1], HEARTH_BACKING_LOST, &item); /* and what one loses the other does */
    assert_int_equal(get(backing[1], &item), HEARTH_ERR_NOT_FOUND);
    for (int i = 0; i < N; i++) {
        make_item(&item, HEARTH_RECORD_PAGE, i, 0, PAGE, 30000);
        store(backing[i % 2], &item);
    }
    assert_int_equal(get(backing[(N - 1) % 2], &item), HEARTH_OK); /* the newest stays */
    make_item(&item, HEARTH_RECORD_PAGE, 0, 0, PAGE, 30000);
    assert_false(exists(room, &item)); /* the oldest does not */
    assert_true(stats(backing[0]).evicted + stats(backing[1]).evicted > N / 2);
    assert_int_equal(stats(backing[0]).dropped + stats(backing[1]).dropped, 0);
    backing[0]->ops->destroy(backing[0]);
    backing[1]->ops->destroy(backing[1]);
    assert_in_range(bytes_in(room), 500000, 2000000 + 2000000 / 8);
}

/* ---- what a rescan finds late ---- */

static void slow_rescans(struct hearth_disk_params *params) {
    params->rescan_us = 150000;
}

/* The shard of a file appears and goes between two looks at it. */
static void a_file_that_is_gone_at_once_is_lost(void **state) {
    const struct room *room = *state;
    struct item early, late;
    char path[256];
    make_item(&early, HEARTH_RECORD_PAGE, 0, 0, PAGE, 3000);
    late = early;
    for (int i = 1; i < 9; i++) {
        struct item item;
        make_item(&item, HEARTH_RECORD_PAGE, i, 0, PAGE, 3000);
        early = item.record.name.hi < early.record.name.hi ? item : early;
        late = item.record.name.hi > late.record.name.hi ? item : late;
    }
    early.record.tokens = early.tokens;
    late.record.tokens = late.tokens;
    struct hearth_backing *backing = open_with(room->dir, slow_rescans);
    store(backing, &late);
    path_of(room, &late, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    expect(backing, HEARTH_BACKING_LOST, &late); /* a rescan has come so far, and the shards below were not there */
    store(backing, &early);
    path_of(room, &early, path, sizeof path);
    assert_int_equal(unlink(path), 0);
    *strrchr(path, '/') = '\0';
    assert_int_equal(rmdir(path), 0);
    expect(backing, HEARTH_BACKING_LOST, &early);
    backing->ops->destroy(backing);
}

/* Of two tiers as one: as long as events are left there is nothing to wait for. */
static void what_is_left_needs_no_wait(void **state) {
    const struct room *room = *state;
    struct item item;
    char dirs[2][80];
    struct hearth_backing *tiers[2], *both;
    struct hearth_backing_event event;
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 3000);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(dirs[i], sizeof dirs[i], "%s/%d", room->dir, i);
        tiers[i] = open_plain(dirs[i]);
    }
    assert_int_equal(hearth_layered_create(tiers[0], tiers[1], &both), HEARTH_OK);
    assert_true(put(both, &item, NULL));
    for (int i = 0; i < 2; i++) { /* SCANNED and WRITTEN, of both */
        while (!stats(tiers[i]).scanned || stats(tiers[i]).written == 0) {
            usleep(500);
        }
    }
    assert_true(both->ops->poll(both, &event));
    hearth_backing_event_finish(&event);
    assert_true(both->ops->wait(both, 0));
    while (both->ops->poll(both, &event)) {
        hearth_backing_event_finish(&event);
    }
    assert_false(both->ops->wait(both, 0));
    both->ops->destroy(both);
}

/* A server that dies again and again, with little written in between, does not fill the disk. */
static void what_the_dead_have_left_goes_at_the_start(void **state) {
    const struct room *room = *state;
    struct stat st;
    char path[160];
    struct hearth_backing *backing = open_plain(room->dir);
    (void)scanned(backing);
    backing->ops->destroy(backing);
    (void)snprintf(path, sizeof path, "%s/%s/tmp/1-left", room->dir, hearth_model_id(fingerprint, PAGE).hex);
    assert_int_equal(close(open(path, O_WRONLY | O_CREAT | O_EXCL, 0600)), 0);
    backing = open_plain(room->dir);
    (void)scanned(backing);
    assert_int_equal(lstat(path, &st), -1);
    backing->ops->destroy(backing);
}

static void *wait_for_room(void *disk) {
    (void)sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}); /* other threads of this processor run first */
    return hearth_disk_make_room(disk, 40000, false) ? disk : NULL;
}

/* The writer waits for room, an eviction makes some, and before the writer runs again a rescan finds files of another
 * process, which the eviction has counted. This thread is the maintenance thread. */
static void room_is_what_the_eviction_has_left(void **state) {
    const struct room *room = *state;
    struct disk disk = {.counted = true, .stats.budget_bytes = 1000000, .stats.bytes = 990000};
    pthread_t writer;
    void *made = NULL;
    cpu_set_t all;
    assert_int_equal(hearth_directory_open(room->dir, true, &disk.directory, NULL), HEARTH_OK);
    assert_int_equal(pthread_mutex_init(&disk.lock, NULL), 0);
    hearth_clock_cond_init(&disk.gc_cond);
    hearth_clock_cond_init(&disk.maintain_cond);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof one, &one); /* the writer's, too */
    hearth_disk_lock(&disk);
    assert_int_equal(pthread_create(&writer, NULL, wait_for_room, &disk), 0);
    while (!disk.gc_wanted) {
        (void)hearth_clock_cond_wait(&disk.maintain_cond, &disk.lock, hearth_clock_us() + 100000);
    }
    hearth_disk_unlock(&disk);
    hearth_disk_evict_and_remove(&disk);
    hearth_disk_lock(&disk);
    disk.stats.bytes = 990000;
    hearth_disk_unlock(&disk);
    assert_int_equal(pthread_join(writer, &made), 0);
    assert_ptr_equal(made, &disk);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    hearth_directory_close(disk.directory);
}

static void touched_files_stay(void **state) {
    const struct room *room = *state;
    enum { N = 100 };
    struct item old, item;
    struct hearth_backing *backing = open_with(room->dir, tight_budget);
    make_item(&old, HEARTH_RECORD_PAGE, 900, 0, PAGE, 30000);
    assert_true(put(backing, &old, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &old);
    backing->ops->destroy(backing);
    backing = open_with(room->dir, tight_budget);
    assert_int_equal(scanned(backing), 1);
    for (int i = 0; i < N; i++) {
        make_item(&item, HEARTH_RECORD_PAGE, i, 0, PAGE, 30000);
        assert_true(put(backing, &item, NULL));
        expect(backing, HEARTH_BACKING_WRITTEN, &item);
        if (i == 20) {
            backing->ops->touch(backing, &(struct hearth_backing_touch){.name = old.record.name, .pos = PAGE}, 1);
            backing->ops->destroy(backing); /* tells it to the file */
            backing = open_with(room->dir, tight_budget);
            struct hearth_backing_event event = until(backing, HEARTH_BACKING_FOUND, &old.record.name);
            assert_int_equal(event.hits, 1);
            hearth_backing_event_finish(&event);
        }
        if (i == 60) { /* the first ones have gone since */
            assert_true(exists(room, &old));
        }
    }
    make_item(&item, HEARTH_RECORD_PAGE, 0, 0, PAGE, 30000);
    assert_false(exists(room, &item));
    backing->ops->destroy(backing);
}

/* ---- failure ---- */

static bool failing(const struct hearth_backing_stats *stats) {
    return stats->failing;
}

static bool well(const struct hearth_backing_stats *stats) {
    return !stats->failing;
}

static void recovers_when_files_cannot_grow(void **state) {
    const struct room *room = *state;
    struct item item;
    struct rlimit before, none;
    (void)signal(SIGXFSZ, SIG_IGN);
    struct hearth_backing *backing = open_plain(room->dir);
    (void)scanned(backing);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 5000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    for (int i = 0; i < 3; i++) {
        make_item(&item, HEARTH_RECORD_PAGE, 1, i, PAGE, 50000);
        if (put(backing, &item, NULL)) {
            expect(backing, HEARTH_BACKING_DROPPED, &item);
        }
    }
    wait_stats(backing, failing);
    assert_true(stats(backing).trouble[0] != '\0' && stats(backing).io_errors > 0 && stats(backing).dropped > 0);
    assert_false(put(backing, &item, NULL)); /* not now */
    assert_int_equal(atomic_load(&warnings), 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    wait_stats(backing, well); /* without being asked */
    assert_string_equal(stats(backing).trouble, "");
    assert_true(put(backing, &item, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &item);
    assert_int_equal(get(backing, &item), HEARTH_OK);
    backing->ops->destroy(backing);
}

/* What could not be read may never be readable: it is written again when it was computed. */
static void what_cannot_be_read_is_written_again(void **state) {
    const struct room *room = *state;
    struct item item;
    struct rlimit before, none;
    struct hearth_backing *backing = open_plain(room->dir);
    (void)scanned(backing);
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 3000);
    store(backing, &item);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0; /* no file can be opened */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const int err = get(backing, &item);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(err, HEARTH_ERR_IO);
    store(backing, &item);
    assert_int_equal(stats(backing).written, 2);
    assert_int_equal(stats(backing).files, 1);
    store(backing, &item); /* now it is there */
    assert_int_equal(stats(backing).written, 2);
    assert_int_equal(get(backing, &item), HEARTH_OK);
    backing->ops->destroy(backing);
}

static void recovers_when_the_directory_is_gone(void **state) {
    const struct room *room = *state;
    char dir[80], command[120];
    struct item a, b;
    (void)snprintf(dir, sizeof dir, "%s/kv", room->dir);
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    make_item(&a, HEARTH_RECORD_PAGE, 1, 0, PAGE, 5000);
    make_item(&b, HEARTH_RECORD_PAGE, 2, 0, PAGE, 5000);
    struct hearth_backing *backing = open_plain(dir);
    store(backing, &a);
    assert_int_equal(system(command), 0);
    expect(backing, HEARTH_BACKING_LOST, &a);
    store(backing, &b); /* it is made again */
    assert_int_equal(get(backing, &b), HEARTH_OK);
    assert_int_equal(atomic_load(&warnings), 0);
    assert_int_equal(system(command), 0);
    const int fd = open(dir, O_WRONLY | O_CREAT | O_EXCL, 0600); /* now that is in the way */
    assert_true(fd >= 0 && close(fd) == 0);
    assert_true(put(backing, &a, NULL));
    expect(backing, HEARTH_BACKING_DROPPED, &a);
    assert_true(stats(backing).failing);
    assert_int_equal(unlink(dir), 0);
    wait_stats(backing, well);
    store(backing, &a);
    assert_int_equal(get(backing, &a), HEARTH_OK);
    backing->ops->destroy(backing);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ROOM_TEST(replaces_and_knows_what_is_there),
        ROOM_TEST(a_full_queue_drops_the_oldest),
        ROOM_TEST(two_share_a_directory),
        ROOM_TEST(a_file_that_is_gone_at_once_is_lost),
        ROOM_TEST(what_is_left_needs_no_wait),
        ROOM_TEST(what_the_dead_have_left_goes_at_the_start),
        ROOM_TEST(room_is_what_the_eviction_has_left),
        ROOM_TEST(touched_files_stay),
        ROOM_TEST(recovers_when_files_cannot_grow),
        ROOM_TEST(what_cannot_be_read_is_written_again),
        ROOM_TEST(recovers_when_the_directory_is_gone),
    };
    hearth_log_set(count_warnings, NULL, HEARTH_LOG_DEBUG);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
