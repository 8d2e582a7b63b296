/* Design. Items in an array. Questions (puts and gets) wait in another one until poll() or wait() answers one of them,
 * drawn at random; answers are a queue of events.
 *
 * Invariant: what a put is answered with, and only that, decides whether the item is there. */
#include "support/memory_backing.h"

#include "base/assert.h"

#include <string.h>

struct item {
    struct hearth_record *record;
    struct hearth_buf bytes;
};

struct question {
    bool remove;                  /* neither put nor get */
    struct hearth_record *record; /* of a put; NULL: a get */
    struct hearth_blob *blob;
    bool replaces;
    struct hearth_digest old, name;
};

struct memory_backing {
    struct hearth_backing base;
    struct rng *rng;
    uint32_t once_in;
    struct item *items;
    size_t item_count, item_cap;
    struct question *questions;
    size_t question_count, question_cap;
    struct hearth_backing_event *events;
    size_t event_count, event_cap;
    struct hearth_digest *unseen; /* items that the scan has not told of yet */
    size_t unseen_count;
    bool scanning;
};

static struct memory_backing *backing_of(struct hearth_backing *backing) {
    return (struct memory_backing *)backing;
}

static void *room(void *array, size_t count, size_t *cap, size_t size) {
    if (count < *cap) {
        return array;
    }
    *cap = *cap > 0 ? 2 * *cap : 16;
    array = realloc(array, *cap * size);
    HEARTH_ASSERT(array != NULL);
    return array;
}

static bool fails(const struct memory_backing *backing) {
    return backing->once_in > 0 && rng_once_in(backing->rng, backing->once_in);
}

static struct item *find(struct memory_backing *backing, struct hearth_digest name) {
    for (size_t i = 0; i < backing->item_count; i++) {
        if (hearth_digest_equal(backing->items[i].record->name, name)) {
            return &backing->items[i];
        }
    }
    return NULL;
}

static void remove_item(struct memory_backing *backing, struct item *item) {
    hearth_record_destroy(item->record);
    hearth_buf_finish(&item->bytes);
    *item = backing->items[--backing->item_count];
}

static struct hearth_backing_event *tell(struct memory_backing *backing, enum hearth_backing_event_type type,
                                         struct hearth_digest name) {
    backing->events = room(backing->events, backing->event_count, &backing->event_cap, sizeof *backing->events);
    struct hearth_backing_event *event = &backing->events[backing->event_count++];
    *event = (struct hearth_backing_event){.type = type, .name = name};
    return event;
}

/* ---- answers ---- */

static void answer_get(struct memory_backing *backing, struct hearth_digest name) {
    struct item *item = find(backing, name);
    bool lost = item != NULL && fails(backing);
    struct hearth_backing_event *event = tell(backing, HEARTH_BACKING_READ, name);
    if (item == NULL || lost) {
        event->err = lost && rng_once_in(backing->rng, 2) ? HEARTH_ERR_IO : HEARTH_ERR_NOT_FOUND;
        if (lost && event->err == HEARTH_ERR_NOT_FOUND) {
            remove_item(backing, item);
        }
        return;
    }
    event->remote = name.lo % 2 == 0;
    HEARTH_ASSERT(hearth_buf_append(&event->bytes, item->bytes.data, item->bytes.len));
    event->checksum = hearth_checksum(event->bytes.data, event->bytes.len);
}

static void answer_put(struct memory_backing *backing, struct question *question);

/* What replaces an item comes behind it. */
static void answer_put_of(struct memory_backing *backing, struct hearth_digest name) {
    for (size_t i = 0; i < backing->question_count; i++) {
        struct question question = backing->questions[i];
        if (question.record != NULL && hearth_digest_equal(question.name, name)) {
            backing->questions[i] = backing->questions[--backing->question_count];
            answer_put(backing, &question);
            return;
        }
    }
}

static void answer_put(struct memory_backing *backing, struct question *question) {
    if (question->replaces) {
        answer_put_of(backing, question->old);
    }
    if (fails(backing)) {
        (void)tell(backing, HEARTH_BACKING_DROPPED, question->name);
        hearth_record_destroy(question->record);
    } else {
        if (find(backing, question->name) == NULL) {
            backing->items = room(backing->items, backing->item_count, &backing->item_cap, sizeof *backing->items);
            struct item *item = &backing->items[backing->item_count++];
            *item = (struct item){.record = question->record};
            size_t len = 0;
            const void *bytes = question->blob != NULL ? hearth_blob_data(question->blob, &len) : NULL;
            HEARTH_ASSERT(len == question->record->state_bytes && hearth_buf_append(&item->bytes, bytes, len));
        } else {
            hearth_record_destroy(question->record);
        }
        struct item *old = question->replaces ? find(backing, question->old) : NULL;
        if (old != NULL) {
            remove_item(backing, old);
        }
        (void)tell(backing, HEARTH_BACKING_WRITTEN, question->name);
    }
    if (question->blob != NULL) {
        hearth_blob_unref(question->blob);
    }
}

/* A failure is tried again, and told when it goes on. */
static void answer_remove(struct memory_backing *backing, struct hearth_digest name) {
    int err = fails(backing) && fails(backing) ? HEARTH_ERR_IO : HEARTH_OK;
    struct item *item = err == HEARTH_OK ? find(backing, name) : NULL;
    if (item != NULL) {
        remove_item(backing, item);
    }
    tell(backing, HEARTH_BACKING_REMOVED, name)->err = err;
}

/* Tells of one thing that the scan comes across. */
static void scan_one(struct memory_backing *backing) {
    if (backing->unseen_count == 0) {
        backing->scanning = false;
        (void)tell(backing, HEARTH_BACKING_SCANNED, (struct hearth_digest){0});
        return;
    }
    size_t i = rng_below(backing->rng, (uint32_t)backing->unseen_count);
    struct hearth_digest name = backing->unseen[i];
    backing->unseen[i] = backing->unseen[--backing->unseen_count];
    struct item *item = find(backing, name);
    if (item != NULL) {
        struct hearth_record *copy = hearth_record_copy(item->record);
        HEARTH_ASSERT(copy != NULL);
        tell(backing, HEARTH_BACKING_FOUND, name)->record = copy;
    }
}

/* Does something that is due. False: there is nothing. */
static bool work(struct memory_backing *backing) {
    if (backing->scanning && (backing->question_count == 0 || rng_once_in(backing->rng, 2))) {
        scan_one(backing);
        return true;
    }
    if (backing->item_count > 0 && fails(backing)) { /* another process evicts */
        struct item *item = &backing->items[rng_below(backing->rng, (uint32_t)backing->item_count)];
        (void)tell(backing, HEARTH_BACKING_LOST, item->record->name);
        remove_item(backing, item);
        return true;
    }
    if (backing->question_count == 0) {
        return false;
    }
    size_t i = rng_below(backing->rng, (uint32_t)backing->question_count);
    struct question question = backing->questions[i];
    backing->questions[i] = backing->questions[--backing->question_count];
    if (question.remove) {
        answer_remove(backing, question.name);
    } else if (question.record != NULL) {
        answer_put(backing, &question);
    } else {
        answer_get(backing, question.name);
    }
    return true;
}

/* ---- the tier ---- */

static bool ask(struct memory_backing *backing, struct question question) {
    backing->questions =
        room(backing->questions, backing->question_count, &backing->question_cap, sizeof *backing->questions);
    backing->questions[backing->question_count++] = question;
    return true;
}

static bool memory_put(struct hearth_backing *tier, const struct hearth_record *record, struct hearth_blob *blob,
                       const struct hearth_digest *replaces) {
    struct memory_backing *backing = backing_of(tier);
    HEARTH_ASSERT(hearth_digest_equal(record->name, hearth_record_name(record)));
    if (fails(backing)) {
        return false;
    }
    struct question question = {.record = hearth_record_copy(record), .blob = blob, .name = record->name};
    HEARTH_ASSERT(question.record != NULL);
    if (replaces != NULL) {
        question.replaces = true;
        question.old = *replaces;
    }
    if (blob != NULL) {
        hearth_blob_ref(blob);
    }
    return ask(backing, question);
}

static bool memory_get(struct hearth_backing *tier, struct hearth_digest name) {
    return ask(backing_of(tier), (struct question){.name = name});
}

static void memory_touch(struct hearth_backing *tier, const struct hearth_backing_touch *touches, size_t n) {
    (void)tier;
    for (size_t i = 0; i < n; i++) {
        HEARTH_ASSERT(touches[i].pos > 0 && (i == 0 || touches[i].pos >= touches[i - 1].pos));
    }
}

static void memory_reject(struct hearth_backing *tier, struct hearth_digest name, const char *why) {
    struct memory_backing *backing = backing_of(tier);
    struct item *item = find(backing, name);
    HEARTH_ASSERT(why[0] != '\0');
    if (item != NULL) {
        remove_item(backing, item);
    }
}

static bool memory_remove(struct hearth_backing *tier, struct hearth_digest name, enum hearth_record_kind kind) {
    struct memory_backing *backing = backing_of(tier);
    struct item *item = find(backing, name);
    HEARTH_ASSERT(item == NULL || item->record->kind == kind);
    for (size_t i = 0; i < backing->question_count; i++) {
        struct question *question = &backing->questions[i];
        if (question->record == NULL || !hearth_digest_equal(question->name, name)) {
            continue;
        }
        (void)tell(backing, HEARTH_BACKING_DROPPED, name);
        hearth_record_destroy(question->record);
        if (question->blob != NULL) {
            hearth_blob_unref(question->blob);
        }
        *question = backing->questions[--backing->question_count];
        i--;
    }
    return ask(backing, (struct question){.remove = true, .name = name});
}

static bool memory_poll(struct hearth_backing *tier, struct hearth_backing_event *event) {
    struct memory_backing *backing = backing_of(tier);
    if (rng_once_in(backing->rng, 2)) {
        (void)work(backing);
    }
    if (backing->event_count == 0) {
        return false;
    }
    *event = backing->events[0];
    memmove(backing->events, backing->events + 1, --backing->event_count * sizeof *backing->events);
    return true;
}

static bool memory_wait(struct hearth_backing *tier, int64_t timeout_us) {
    struct memory_backing *backing = backing_of(tier);
    (void)timeout_us;
    while (backing->event_count == 0 && work(backing)) {
    }
    return backing->event_count > 0;
}

/* Who uses it polls. */
static void memory_set_wake(struct hearth_backing *tier, void (*wake)(void *user), void *user) {
    (void)tier;
    (void)wake;
    (void)user;
}

/* It stays its maker's. */
static void memory_leave(struct hearth_backing *tier) {
    (void)tier;
}

static const struct hearth_backing_ops memory_ops = {
    .destroy = memory_leave,
    .put = memory_put,
    .get = memory_get,
    .touch = memory_touch,
    .reject = memory_reject,
    .remove = memory_remove,
    .poll = memory_poll,
    .wait = memory_wait,
    .set_wake = memory_set_wake,
};

/* ---- life ---- */

struct memory_backing *memory_backing_create(struct rng *rng) {
    struct memory_backing *backing = calloc(1, sizeof *backing);
    HEARTH_ASSERT(backing != NULL);
    backing->base.ops = &memory_ops;
    backing->base.name = "memory";
    backing->rng = rng;
    backing->scanning = true;
    return backing;
}

struct hearth_backing *memory_backing_tier(struct memory_backing *backing) {
    return &backing->base;
}

void memory_backing_faults(struct memory_backing *backing, uint32_t n) {
    backing->once_in = n;
}

size_t memory_backing_on_path(const struct memory_backing *backing, struct hearth_digest root, int32_t page_tokens,
                              const struct hearth_tokens *path, int32_t from) {
    size_t found = 0;
    struct hearth_digest base = root;
    for (size_t pos = 0; pos < path->n; pos += (size_t)page_tokens) {
        for (size_t i = 0; i < backing->item_count; i++) {
            const struct hearth_record *record = backing->items[i].record;
            size_t n = hearth_record_tokens(record);
            found += hearth_digest_equal(record->base, base) && record->base_pos == (int32_t)pos &&
                     record->p0 >= from && record->p1 > from && (size_t)record->p1 <= path->n &&
                     memcmp(record->tokens, path->v + pos, n * sizeof *record->tokens) == 0;
        }
        if (path->n - pos >= (size_t)page_tokens) {
            base = hearth_record_next(base, path->v + pos, (size_t)page_tokens);
        }
    }
    return found;
}

static void forget(struct memory_backing *backing) {
    for (size_t i = 0; i < backing->question_count; i++) {
        hearth_record_destroy(backing->questions[i].record);
        if (backing->questions[i].blob != NULL) {
            hearth_blob_unref(backing->questions[i].blob);
        }
    }
    for (size_t i = 0; i < backing->event_count; i++) {
        hearth_backing_event_finish(&backing->events[i]);
    }
    backing->question_count = backing->event_count = 0;
    free(backing->unseen);
    backing->unseen = NULL;
    backing->unseen_count = 0;
}

void memory_backing_restart(struct memory_backing *backing) {
    forget(backing);
    while (backing->item_count > 0 && fails(backing)) {
        remove_item(backing, &backing->items[rng_below(backing->rng, (uint32_t)backing->item_count)]);
    }
    backing->unseen = calloc(backing->item_count + 1, sizeof *backing->unseen);
    HEARTH_ASSERT(backing->unseen != NULL);
    for (size_t i = 0; i < backing->item_count; i++) {
        backing->unseen[backing->unseen_count++] = backing->items[i].record->name;
    }
    backing->scanning = true;
}

bool memory_backing_scanning(const struct memory_backing *backing) {
    return backing->scanning;
}

void memory_backing_destroy(struct memory_backing *backing) {
    if (backing == NULL) {
        return;
    }
    forget(backing);
    while (backing->item_count > 0) {
        remove_item(backing, &backing->items[0]);
    }
    free(backing->items);
    free(backing->questions);
    free(backing->events);
    free(backing);
}
