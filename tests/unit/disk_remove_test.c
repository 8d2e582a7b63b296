/* The disk tier removes what is to be forgotten: what is there, what is still to be written, and what the file system
 * does not want to remove at first. */
#include "support/disk_room.h"

#include <errno.h>
#include <sys/syscall.h>

static atomic_int failing; /* calls of unlinkat() that fail; below 0: all */

static atomic_int publishing;                    /* whether a file that is written waits for its name */
static _Atomic(struct hearth_backing *) between; /* the first removal lets it have its name */
enum { GOES_ON, WAITS, WAITING };

/* The C library's, which waits on demand. */
int renameat(int from_fd, const char *from, int to_fd, const char *to) {
    int waits = WAITS;
    if (atomic_compare_exchange_strong(&publishing, &waits, WAITING)) {
        while (atomic_load(&publishing) == WAITING) {
            usleep(500);
        }
    }
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

/* The C library's, which fails on demand. */
int unlinkat(int fd, const char *path, int flags) {
    struct hearth_backing *backing = strstr(path, ".page") ? atomic_exchange(&between, NULL) : NULL;
    if (backing) {
        const uint64_t written = stats(backing).written;
        atomic_store(&publishing, GOES_ON);
        while (stats(backing).written == written) {
            usleep(500);
        }
    }
    if (strstr(path, "/tmp/") == NULL && atomic_load(&failing) != 0) {
        if (atomic_load(&failing) > 0) {
            atomic_fetch_sub(&failing, 1);
        }
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_unlinkat, fd, path, flags);
}

static int removed(struct hearth_backing *backing, const struct item *item) {
    struct hearth_backing_event event = until(backing, HEARTH_BACKING_REMOVED, &item->record.name);
    return event.err;
}

static void remove_it(struct hearth_backing *backing, const struct item *item) {
    assert_true(backing->ops->remove(backing, item->record.name, item->record.kind));
}

static void what_is_there_goes(void **state) {
    const struct room *room = *state;
    struct item page, snapshot, other;
    make_item(&page, HEARTH_RECORD_PAGE, 1, 0, PAGE, 3000);
    make_item(&snapshot, HEARTH_RECORD_SNAPSHOT, 1, 0, PAGE, 5000);
    make_item(&other, HEARTH_RECORD_PAGE, 2, 0, PAGE, 3000);
    struct hearth_backing *backing = open_plain(room->dir);
    (void)scanned(backing);
    assert_true(put(backing, &page, NULL) && put(backing, &snapshot, NULL) && put(backing, &other, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &page);
    expect(backing, HEARTH_BACKING_WRITTEN, &snapshot);
    expect(backing, HEARTH_BACKING_WRITTEN, &other);
    remove_it(backing, &page);
    assert_int_equal(removed(backing, &page), HEARTH_OK);
    assert_true(!exists(room, &page) && exists(room, &snapshot) && exists(room, &other));
    remove_it(backing, &snapshot);
    assert_int_equal(removed(backing, &snapshot), HEARTH_OK);
    assert_false(exists(room, &snapshot));
    assert_int_equal(stats(backing).files, 1);
    assert_int_equal(get(backing, &page), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(get(backing, &other), HEARTH_OK);
    remove_it(backing, &page); /* gone already */
    assert_int_equal(removed(backing, &page), HEARTH_OK);
    assert_true(put(backing, &page, NULL)); /* and it may come back */
    expect(backing, HEARTH_BACKING_WRITTEN, &page);
    assert_int_equal(get(backing, &page), HEARTH_OK);
    assert_int_equal(stats(backing).bad, 0);
    backing->ops->destroy(backing);
}

/* Every put is answered before its removal is, and nothing is left, whatever the writer was about to do. */
static void what_is_to_be_written_goes(void **state) {
    const struct room *room = *state;
    enum { ITEMS = 60 };
    static struct item items[ITEMS];
    struct hearth_backing *backing = open_plain(room->dir);
    (void)scanned(backing);
    for (int i = 0; i < ITEMS; i++) {
        make_item(&items[i], HEARTH_RECORD_PAGE, i, 0, PAGE, 20000);
        assert_true(put(backing, &items[i], NULL));
        if (i % 3 == 0) {
            (void)usleep(300);
        }
    }
    for (int i = 0; i < ITEMS; i++) {
        remove_it(backing, &items[i]);
    }
    bool answered[ITEMS] = {false};
    for (int left = ITEMS; left > 0;) {
        struct hearth_backing_event event = next(backing);
        int i = 0;
        while (i < ITEMS && !hearth_digest_equal(event.name, items[i].record.name)) {
            i++;
        }
        assert_true(i < ITEMS);
        if (event.type == HEARTH_BACKING_REMOVED) {
            assert_true(answered[i] && event.err == HEARTH_OK && !exists(room, &items[i]));
            left--;
        } else {
            assert_true(event.type == HEARTH_BACKING_WRITTEN || event.type == HEARTH_BACKING_DROPPED);
            answered[i] = true;
        }
        hearth_backing_event_finish(&event);
    }
    backing->ops->destroy(backing);
    backing = open_plain(room->dir);
    assert_int_equal(scanned(backing), 0);
    backing->ops->destroy(backing);
}

static void it_is_tried_again(void **state) {
    const struct room *room = *state;
    struct item page;
    make_item(&page, HEARTH_RECORD_PAGE, 1, 0, PAGE, 3000);
    struct hearth_backing *backing = open_plain(room->dir);
    (void)scanned(backing);
    assert_true(put(backing, &page, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &page);
    atomic_store(&failing, 1);
    remove_it(backing, &page);
    assert_int_equal(removed(backing, &page), HEARTH_OK);
    assert_false(exists(room, &page));
    assert_true(put(backing, &page, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &page);
    atomic_store(&failing, -1);
    remove_it(backing, &page);
    assert_int_equal(removed(backing, &page), HEARTH_ERR_IO);
    atomic_store(&failing, 0);
    assert_true(exists(room, &page));
    remove_it(backing, &page);
    assert_int_equal(removed(backing, &page), HEARTH_OK);
    assert_false(exists(room, &page));
    backing->ops->destroy(backing);
}

static void own_rescans(struct hearth_disk_params *params) {
    params->rescan_us = INT64_C(3600) * 1000000;
}

/* A removal that finds its file being written is carried out after that, also if the file is written while the removal
 * waits for another one. */
static void what_is_being_written_goes(void **state) {
    const struct room *room = *state;
    struct item first, second;
    make_item(&first, HEARTH_RECORD_PAGE, 1, 0, PAGE, 3000);
    make_item(&second, HEARTH_RECORD_PAGE, 2, 0, PAGE, 3000);
    struct hearth_backing *backing = open_with(room->dir, own_rescans);
    (void)scanned(backing);
    assert_true(put(backing, &second, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &second);
    atomic_store(&publishing, WAITS);
    assert_true(put(backing, &first, NULL));
    while (atomic_load(&publishing) != WAITING) {
        usleep(500);
    }
    atomic_store(&between, backing);
    remove_it(backing, &first);
    remove_it(backing, &second);
    assert_int_equal(removed(backing, &second), HEARTH_OK);
    assert_int_equal(removed(backing, &first), HEARTH_OK);
    assert_true(!exists(room, &first) && !exists(room, &second));
    backing->ops->destroy(backing);
}

/* A tier that ends carries out what it was asked for. */
static void the_end_does_not_keep_it(void **state) {
    const struct room *room = *state;
    struct item page;
    make_item(&page, HEARTH_RECORD_PAGE, 1, 0, PAGE, 3000);
    struct hearth_backing *backing = open_plain(room->dir);
    assert_true(put(backing, &page, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &page);
    remove_it(backing, &page);
    backing->ops->destroy(backing);
    assert_false(exists(room, &page));
}

int main(void) {
    hearth_log_set(count_warnings, NULL, HEARTH_LOG_WARN);
    const struct CMUnitTest tests[] = {
        ROOM_TEST(what_is_there_goes),         ROOM_TEST(what_is_to_be_written_goes), ROOM_TEST(it_is_tried_again),
        ROOM_TEST(what_is_being_written_goes), ROOM_TEST(the_end_does_not_keep_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
