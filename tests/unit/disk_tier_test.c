/* The disk tier: what is put is there, also for the next one who opens it; what is damaged is a miss; and the rest of
 * the backing tier's contract. */
#include "support/disk_room.h"

/* ---- there and back ---- */

static void no_uring(struct hearth_disk_params *params) {
    params->no_uring = true;
}

static void compressed(struct hearth_disk_params *params) {
    params->compress = true;
}

static void round_trip_with(const struct room *room, void (*change)(struct hearth_disk_params *params)) {
    const size_t sizes[] = {0, 1, 4095, 4096, 100000, 5 << 20};
    enum { N = 12 };
    struct item items[N];
    struct hearth_backing *backing = open_with(room->dir, change);
    assert_int_equal(scanned(backing), 0);
    for (int i = 0; i < N; i++) {
        make_item(&items[i], i % 2 ? HEARTH_RECORD_SNAPSHOT : HEARTH_RECORD_PAGE, 1, i / 2, i == 10 ? 5 : PAGE,
                  sizes[i / 2]);
        assert_int_equal(get(backing, &items[i]), HEARTH_ERR_NOT_FOUND);
    }
    for (int i = 0; i < N; i++) {
        assert_true(put(backing, &items[i], NULL));
    }
    for (int i = 0; i < N; i++) {
        expect(backing, HEARTH_BACKING_WRITTEN, &items[i]);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(get(backing, &items[i]), HEARTH_OK);
    }
    assert_int_equal(stats(backing).files, N);
    assert_int_equal(stats(backing).written, N);
    assert_int_equal(stats(backing).queued_bytes, 0);
    backing->ops->destroy(backing);

    backing = open_with(room->dir, change); /* and after a restart */
    int found = 0;
    for (bool over = false; !over;) {
        struct hearth_backing_event event = next(backing);
        over = event.type == HEARTH_BACKING_SCANNED;
        for (int i = 0; event.type == HEARTH_BACKING_FOUND && i < N; i++) {
            if (!hearth_digest_equal(event.name, items[i].record.name)) {
                continue;
            }
            assert_int_equal(event.record->kind, items[i].record.kind);
            assert_int_equal(event.record->p1, items[i].record.p1);
            assert_int_equal(event.record->state_bytes, items[i].bytes);
            assert_memory_equal(event.record->tokens, items[i].tokens,
                                hearth_record_tokens(event.record) * sizeof(hearth_token));
            assert_string_equal(event.record->text, "first words");
            found++;
        }
        hearth_backing_event_finish(&event);
    }
    assert_int_equal(found, N);
    for (int i = 0; i < N; i++) {
        assert_true(backing->ops->get(backing, items[i].record.name));
    }
    for (int i = 0; i < N; i++) { /* in the order of the calls */
        struct hearth_backing_event event = until(backing, HEARTH_BACKING_READ, NULL);
        assert_true(hearth_digest_equal(event.name, items[i].record.name));
        assert_int_equal(event.err, HEARTH_OK);
        assert_int_equal(event.bytes.len, items[i].bytes);
        hearth_backing_event_finish(&event);
    }
    assert_int_equal(stats(backing).files, N);
    assert_int_equal(stats(backing).bad, 0);
    assert_true(stats(backing).scanned && !stats(backing).failing);
    backing->ops->destroy(backing);
}

static void round_trip(void **state) {
    round_trip_with(*state, NULL);
}

static void round_trip_without_uring(void **state) {
    round_trip_with(*state, no_uring);
}

static void round_trip_compressed(void **state) {
    round_trip_with(*state, compressed);
}

static char key_path[96];

static void with_key(struct hearth_disk_params *params) {
    params->key_file = key_path;
}

static void write_key(const char *text) {
    FILE *file = fopen(key_path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0 && chmod(key_path, 0600) == 0);
}

static void other_key_is_a_miss(void **state) {
    const struct room *room = *state;
    (void)snprintf(key_path, sizeof key_path, "%s/key", room->dir);
    char dir[80];
    (void)snprintf(dir, sizeof dir, "%s/kv", room->dir);
    struct item item;
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 5000);
    write_key("one key that is long enough");
    struct hearth_backing *backing = open_with(dir, with_key);
    assert_true(backing->key.lo != 0 || backing->key.hi != 0);
    assert_true(put(backing, &item, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &item);
    assert_int_equal(get(backing, &item), HEARTH_OK);
    backing->ops->destroy(backing);
    for (int i = 0; i < 2; i++) { /* another key, no key */
        write_key("another key, just as long");
        backing = open_with(dir, i == 0 ? with_key : NULL);
        assert_int_equal(scanned(backing), 0);
        assert_int_equal(get(backing, &item), HEARTH_ERR_NOT_FOUND);
        assert_int_equal(stats(backing).bad, 0); /* left alone */
        backing->ops->destroy(backing);
    }
    write_key("one key that is long enough");
    backing = open_with(dir, with_key);
    assert_int_equal(scanned(backing), 1);
    assert_int_equal(get(backing, &item), HEARTH_OK);
    backing->ops->destroy(backing);
}

/* ---- damage ---- */

enum { REPLACED = 5, DAMAGES = 8 }; /* from REPLACED on by what is no file */

static void damage(const char *path, int how) {
    char other[300];
    (void)snprintf(other, sizeof other, "%s.other", path);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    int fd = how < REPLACED ? open(path, O_RDWR) : -1;
    const off_t at = how == 0 ? 100 : how == 1 ? st.st_size - 100 : 0;
    switch (how) {
    case 0: /* a bit of the header, a bit of the payload */
    case 1: {
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        break;
    }
    case 2: assert_int_equal(ftruncate(fd, 8192), 0); break;
    case 3: assert_int_equal(ftruncate(fd, 0), 0); break;
    case 4: /* blown up */ assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0); break;
    case 5: assert_true(unlink(path) == 0 && mkdir(path, 0700) == 0); break;
    case 6: assert_true(rename(path, other) == 0 && symlink(other, path) == 0); break;
    default: assert_true(unlink(path) == 0 && mkfifo(path, 0600) == 0); break;
    }
    if (fd >= 0) {
        assert_int_equal(close(fd), 0);
    }
}

static bool all_quarantined(const struct hearth_backing_stats *stats) {
    return stats->bad == DAMAGES;
}

static void damaged_files_are_misses(void **state) {
    const struct room *room = *state;
    for (int restart = 0; restart < 2; restart++) {
        struct item items[DAMAGES + 1];
        struct hearth_backing *backing = open_plain(room->dir);
        assert_int_equal(scanned(backing), restart); /* the one that stayed good */
        for (int i = 0; i <= DAMAGES; i++) {
            make_item(&items[i], HEARTH_RECORD_PAGE, 5 + (i < DAMAGES ? restart : 0), i, PAGE, 20000);
            assert_true(put(backing, &items[i], NULL));
        }
        for (int i = 0; i <= DAMAGES; i++) {
            expect(backing, HEARTH_BACKING_WRITTEN, &items[i]);
        }
        if (restart) {
            backing->ops->destroy(backing);
        }
        for (int i = 0; i < DAMAGES; i++) {
            char path[256];
            path_of(room, &items[i], path, sizeof path);
            damage(path, i);
        }
        if (restart) {
            backing = open_plain(room->dir);
            assert_int_equal(scanned(backing), 2); /* what only the payload tells is found out by reading */
        }
        for (int i = 0; i <= DAMAGES; i++) {
            const int err = get(backing, &items[i]);
            /* Not found: at the start, or a look has seen the gap between a file and what takes its place. */
            const bool gone = err == HEARTH_ERR_NOT_FOUND && (restart || i >= REPLACED);
            assert_true(i == DAMAGES ? err == HEARTH_OK : err == HEARTH_ERR_STATE || gone);
        }
        wait_stats(backing, all_quarantined);
        for (int i = 0; i < DAMAGES; i++) {
            assert_false(exists(room, &items[i]));
            assert_true(put(backing, &items[i], NULL)); /* not taken for written */
            expect(backing, HEARTH_BACKING_WRITTEN, &items[i]);
            assert_int_equal(get(backing, &items[i]), HEARTH_OK);
            backing->ops->reject(backing, items[i].record.name, "the engine refused it");
            expect(backing, HEARTH_BACKING_LOST, &items[i]);
            assert_int_equal(get(backing, &items[i]), HEARTH_ERR_NOT_FOUND);
        }
        backing->ops->destroy(backing);
    }
}

static void swapped_files_are_misses(void **state) {
    const struct room *room = *state;
    struct item a, b;
    char path_a[256], path_b[256];
    make_item(&a, HEARTH_RECORD_PAGE, 1, 0, PAGE, 9000);
    make_item(&b, HEARTH_RECORD_PAGE, 2, 0, PAGE, 9000);
    struct hearth_backing *backing = open_plain(room->dir);
    assert_true(put(backing, &a, NULL) && put(backing, &b, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &b);
    path_of(room, &a, path_a, sizeof path_a);
    path_of(room, &b, path_b, sizeof path_b);
    assert_int_equal(rename(path_a, path_b), 0);
    assert_int_equal(get(backing, &b), HEARTH_ERR_STATE);
    assert_int_equal(get(backing, &a), HEARTH_ERR_NOT_FOUND);
    assert_int_equal(stats(backing).bad, 1);
    backing->ops->destroy(backing);
}

/* ---- the rest of the contract ---- */

static void writes_what_is_queued_at_the_end(void **state) {
    const struct room *room = *state;
    enum { N = 30 };
    struct item items[N];
    struct hearth_backing *backing = open_plain(room->dir);
    for (int i = 0; i < N; i++) {
        make_item(&items[i], HEARTH_RECORD_PAGE, 1, i, PAGE, 200000);
        assert_true(put(backing, &items[i], NULL));
    }
    for (int i = 0; i < N; i++) {
        assert_true(backing->ops->get(backing, items[i].record.name));
    }
    backing->ops->destroy(backing); /* with answers that nobody polls */
    for (int i = 0; i < N; i++) {
        assert_true(exists(room, &items[i]));
    }
    backing = open_plain(room->dir);
    for (int i = 0; i < N; i++) {
        assert_true(backing->ops->get(backing, items[i].record.name));
    }
    backing->ops->destroy(backing); /* in the middle of the scan and of reading */
    backing = open_plain(room->dir);
    assert_int_equal(scanned(backing), N);
    backing->ops->destroy(backing);
}

static void count_wakes(void *user) {
    atomic_fetch_add((atomic_int *)user, 1);
}

/* Awake for each event that came to an empty queue, and not for those behind it. */
static void wakes_once_per_empty_queue(void **state) {
    const struct room *room = *state;
    atomic_int wakes = 0;
    struct item items[3];
    struct hearth_backing_event event;
    struct hearth_backing *backing = open_plain(room->dir);
    backing->ops->set_wake(backing, count_wakes, &wakes);
    assert_false(backing->ops->wait(backing, 0) && backing->ops->poll(backing, &event) &&
                 event.type != HEARTH_BACKING_SCANNED);
    while (!stats(backing).scanned) {
        (void)usleep(1000);
    }
    while (backing->ops->poll(backing, &event)) {
        hearth_backing_event_finish(&event);
    }
    const int before = atomic_load(&wakes);
    for (int i = 0; i < 3; i++) {
        make_item(&items[i], HEARTH_RECORD_PAGE, 1, i, PAGE, 10);
        assert_true(put(backing, &items[i], NULL));
    }
    while (stats(backing).queued_bytes > 0 || atomic_load(&wakes) == before) {
        (void)usleep(1000);
    }
    assert_in_range(atomic_load(&wakes), before + 1, before + 2); /* one may still have been on its way */
    for (int i = 0; i < 3; i++) {
        expect(backing, HEARTH_BACKING_WRITTEN, &items[i]);
    }
    assert_false(backing->ops->poll(backing, &event));
    assert_false(backing->ops->wait(backing, 0));
    backing->ops->destroy(backing);
}

static void tiny_budget(struct hearth_disk_params *params) {
    params->budget_bytes = 30000;
}

static void refuses_what_cannot_fit(void **state) {
    const struct room *room = *state;
    struct item item;
    struct hearth_backing *backing = open_with(room->dir, tiny_budget);
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 40000);
    assert_false(put(backing, &item, NULL));
    make_item(&item, HEARTH_RECORD_PAGE, 1, 0, PAGE, 10000);
    assert_true(put(backing, &item, NULL));
    expect(backing, HEARTH_BACKING_WRITTEN, &item);
    backing->ops->destroy(backing);
    struct hearth_backing *none;
    struct hearth_errmsg msg;
    const struct hearth_disk_params nowhere = {.dir = "/proc/nothing/here", .page_tokens = PAGE};
    assert_int_equal(hearth_disk_create(&nowhere, &none, &msg), HEARTH_ERR_IO);
    assert_true(none == NULL && msg.text[0] != '\0');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ROOM_TEST(round_trip),
        ROOM_TEST(round_trip_without_uring),
        ROOM_TEST(round_trip_compressed),
        ROOM_TEST(other_key_is_a_miss),
        ROOM_TEST(damaged_files_are_misses),
        ROOM_TEST(swapped_files_are_misses),
        ROOM_TEST(writes_what_is_queued_at_the_end),
        ROOM_TEST(wakes_once_per_empty_queue),
        ROOM_TEST(refuses_what_cannot_fit),
    };
    hearth_log_set(count_warnings, NULL, HEARTH_LOG_DEBUG);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
