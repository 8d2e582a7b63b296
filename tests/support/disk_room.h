/* A directory for one test, tiers over it, items to put there, and waiting for what comes of it. */
#ifndef HEARTH_TEST_DISK_ROOM_H
#define HEARTH_TEST_DISK_ROOM_H

#include "base/clock.h"
#include "base/log.h"
#include "tier/directory.h"
#include "tier/disk.h"
#include "tier/ram.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = 16, PATIENCE_S = 30 };
static const struct hearth_digest fingerprint = {11, 22};
static struct hearth_ram *ram;
static atomic_int warnings;

static inline void count_warnings(void *user, enum hearth_log_level level, const char *line) {
    (void)user;
    (void)line;
    atomic_fetch_add(&warnings, level >= HEARTH_LOG_WARN);
}

/* ---- a directory, a tier, an item ---- */

struct room {
    char dir[64];
};

static inline int enter(void **state) {
    static struct room room;
    (void)snprintf(room.dir, sizeof room.dir, "/tmp/hearth-disk-XXXXXX");
    assert_non_null(mkdtemp(room.dir));
    *state = &room;
    ram = hearth_ram_create();
    atomic_store(&warnings, 0);
    return ram ? 0 : -1;
}

static inline int leave(void **state) {
    struct room *room = *state;
    char command[96];
    (void)snprintf(command, sizeof command, "rm -rf %s", room->dir);
    hearth_ram_destroy(ram);
    return system(command);
}

static inline struct hearth_backing *open_with(const char *dir, void (*change)(struct hearth_disk_params *params)) {
    struct hearth_disk_params params = {.dir = dir,
                                        .fingerprint = fingerprint,
                                        .page_tokens = PAGE,
                                        .about = "a model",
                                        .budget_bytes = (uint64_t)1 << 30,
                                        .rescan_us = 20000};
    struct hearth_backing *backing = NULL;
    struct hearth_errmsg msg = {""};
    if (change) {
        change(&params);
    }
    if (hearth_disk_create(&params, &backing, &msg) != HEARTH_OK) {
        fail_msg("%s", msg.text);
    }
    return backing;
}

static inline struct hearth_backing *open_plain(const char *dir) {
    return open_with(dir, NULL);
}

struct item {
    struct hearth_record record;
    hearth_token tokens[PAGE];
    size_t bytes;
};

/* Page `page` of conversation `conv`, `n` tokens long; the snapshot at its end when `kind` says so. */
static inline void make_item(struct item *item, enum hearth_record_kind kind, int conv, int page, int n, size_t bytes) {
    const struct hearth_digest none = {0, 0};
    struct hearth_digest base = hearth_record_root(fingerprint, none, none);
    for (int k = 0; k <= page; k++) {
        for (int i = 0; i < PAGE; i++) {
            item->tokens[i] = conv * 1000 + k * PAGE + i;
        }
        if (k < page) {
            base = hearth_record_next(base, item->tokens, PAGE);
        }
    }
    item->bytes = bytes;
    item->record = (struct hearth_record){.kind = kind,
                                          .base = base,
                                          .base_pos = page * PAGE,
                                          .p0 = kind == HEARTH_RECORD_PAGE ? page * PAGE : page * PAGE + n,
                                          .p1 = page * PAGE + n,
                                          .tokens = item->tokens,
                                          .state_bytes = bytes,
                                          .text = "first words"};
    item->record.name = hearth_record_name(&item->record);
}

static inline uint8_t byte_of(const struct item *item, size_t i) {
    return (uint8_t)(item->record.name.lo >> (i % 8 * 8)) ^ (uint8_t)(i >> 3);
}

static inline bool put(struct hearth_backing *backing, const struct item *item, const struct hearth_digest *replaces) {
    struct hearth_buf bytes = {0};
    assert_true(hearth_buf_reserve(&bytes, item->bytes + 1));
    for (size_t i = 0; i < item->bytes; i++) {
        bytes.data[i] = byte_of(item, i);
    }
    bytes.len = item->bytes;
    struct hearth_blob *blob = item->bytes > 0 ? hearth_ram_put(ram, &bytes, NULL) : NULL;
    hearth_buf_finish(&bytes);
    const bool accepted = backing->ops->put(backing, &item->record, blob, replaces);
    if (blob) {
        hearth_ram_drop(ram, blob); /* the tier holds a reference of its own */
    }
    return accepted;
}

/* ---- events ---- */

/* The next event, whatever it is. */
static inline struct hearth_backing_event next(struct hearth_backing *backing) {
    struct hearth_backing_event event;
    const int64_t until = hearth_clock_us() + PATIENCE_S * INT64_C(1000000);
    while (!backing->ops->poll(backing, &event)) {
        if (hearth_clock_us() > until) {
            fail_msg("no event in %d s", PATIENCE_S);
        }
        (void)backing->ops->wait(backing, 100000);
    }
    return event;
}

/* Waits for an event of a type (and of a name, if not NULL); others are dropped. */
static inline struct hearth_backing_event until(struct hearth_backing *backing, enum hearth_backing_event_type type,
                                                const struct hearth_digest *name) {
    for (;;) {
        struct hearth_backing_event event = next(backing);
        if (event.type == type && (!name || hearth_digest_equal(event.name, *name))) {
            return event;
        }
        hearth_backing_event_finish(&event);
    }
}

static inline void expect(struct hearth_backing *backing, enum hearth_backing_event_type type,
                          const struct item *item) {
    struct hearth_backing_event event = until(backing, type, &item->record.name);
    hearth_backing_event_finish(&event);
}

/* Stores an item; one that is dropped, as it may be while another process removes files and folders, is put again. */
static inline void store(struct hearth_backing *backing, const struct item *item) {
    enum hearth_backing_event_type type = HEARTH_BACKING_DROPPED;
    for (int tries = 0; type != HEARTH_BACKING_WRITTEN && tries < 3; tries++) {
        assert_true(put(backing, item, NULL));
        do {
            struct hearth_backing_event event = next(backing);
            const bool own = hearth_digest_equal(event.name, item->record.name);
            type = own ? event.type : HEARTH_BACKING_FOUND;
            hearth_backing_event_finish(&event);
        } while (type != HEARTH_BACKING_WRITTEN && type != HEARTH_BACKING_DROPPED);
    }
    assert_int_equal(type, HEARTH_BACKING_WRITTEN);
}

static inline int scanned(struct hearth_backing *backing) {
    int found = 0;
    for (;;) {
        struct hearth_backing_event event = next(backing);
        const bool over = event.type == HEARTH_BACKING_SCANNED;
        found += event.type == HEARTH_BACKING_FOUND;
        hearth_backing_event_finish(&event);
        if (over) {
            return found;
        }
    }
}

/* Reads an item; the error, or OK when it is exactly what was put. */
static inline int get(struct hearth_backing *backing, const struct item *item) {
    assert_true(backing->ops->get(backing, item->record.name));
    struct hearth_backing_event event = until(backing, HEARTH_BACKING_READ, &item->record.name);
    const int err = event.err;
    if (err == HEARTH_OK) {
        assert_int_equal(event.bytes.len, item->bytes);
        for (size_t i = 0; i < item->bytes; i++) {
            assert_int_equal(event.bytes.data[i], byte_of(item, i));
        }
        assert_true(event.checksum == hearth_checksum(event.bytes.data, event.bytes.len));
    } else {
        assert_int_equal(event.bytes.len, 0);
    }
    hearth_backing_event_finish(&event);
    return err;
}

static inline struct hearth_backing_stats stats(struct hearth_backing *backing) {
    struct hearth_backing_stats stats;
    backing->ops->stats(backing, &stats);
    return stats;
}

/* Waits for a number or flag in the stats; events are dropped meanwhile. */
static inline void wait_stats(struct hearth_backing *backing, bool (*good)(const struct hearth_backing_stats *stats)) {
    const int64_t end = hearth_clock_us() + PATIENCE_S * INT64_C(1000000);
    for (struct hearth_backing_stats now = stats(backing); !good(&now); now = stats(backing)) {
        struct hearth_backing_event event;
        if (hearth_clock_us() > end) {
            fail_msg("the stats never came to what was waited for (trouble: \"%s\")", now.trouble);
        }
        while (backing->ops->poll(backing, &event)) {
            hearth_backing_event_finish(&event);
        }
        (void)backing->ops->wait(backing, 10000);
    }
}

static inline void path_of(const struct room *room, const struct item *item, char *out, size_t cap) {
    char hex[33];
    hearth_digest_hex(item->record.name, hex);
    (void)snprintf(out, cap, "%s/%s/%.2s/%s.%s", room->dir, hearth_model_id(fingerprint, PAGE).hex, hex, hex + 2,
                   item->record.kind == HEARTH_RECORD_PAGE ? "page" : "snap");
}

static inline bool exists(const struct room *room, const struct item *item) {
    char path[256];
    struct stat st;
    path_of(room, item, path, sizeof path);
    return lstat(path, &st) == 0;
}

#define ROOM_TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

#endif
