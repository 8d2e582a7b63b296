/* Design. Items in an array. Questions (puts and gets) wait in another one until poll() or wait() answers one of them,
 * drawn at random; answers are a queue of events.
 *
 * Invariant: what a put is answered with, and only that, decides whether the item is there. */
#include "support/memory_far.h"

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

struct memory_far {
    struct hearth_far base;
    struct rng *rng;
    uint32_t once_in;
    struct item *items;
    size_t item_count, item_cap;
    struct question *questions;
    size_t question_count, question_cap;
    struct hearth_far_event *events;
    size_t event_count, event_cap;
    struct hearth_digest *unseen; /* items that the scan has not told of yet */
    size_t unseen_count;
    bool scanning;
};

static struct memory_far *far_of(struct hearth_far *far) {
    return (struct memory_far *)far;
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

static bool fails(const struct memory_far *far) {
    return far->once_in > 0 && rng_once_in(far->rng, far->once_in);
}

static struct item *find(struct memory_far *far, struct hearth_digest name) {
    for (size_t i = 0; i < far->item_count; i++) {
        if (hearth_digest_equal(far->items[i].record->name, name)) {
            return &far->items[i];
        }
    }
    return NULL;
}

static void remove_item(struct memory_far *far, struct item *item) {
    hearth_record_destroy(item->record);
    hearth_buf_finish(&item->bytes);
    *item = far->items[--far->item_count];
}

static struct hearth_far_event *tell(struct memory_far *far, enum hearth_far_event_type type,
                                     struct hearth_digest name) {
    far->events = room(far->events, far->event_count, &far->event_cap, sizeof *far->events);
    struct hearth_far_event *event = &far->events[far->event_count++];
    *event = (struct hearth_far_event){.type = type, .name = name};
    return event;
}

/* ---- answers ---- */

static void answer_get(struct memory_far *far, struct hearth_digest name) {
    struct item *item = find(far, name);
    bool lost = item != NULL && fails(far);
    struct hearth_far_event *event = tell(far, HEARTH_FAR_READ, name);
    if (item == NULL || lost) {
        event->err = lost && rng_once_in(far->rng, 2) ? HEARTH_ERR_IO : HEARTH_ERR_NOT_FOUND;
        if (lost && event->err == HEARTH_ERR_NOT_FOUND) {
            remove_item(far, item);
        }
        return;
    }
    HEARTH_ASSERT(hearth_buf_append(&event->bytes, item->bytes.data, item->bytes.len));
    event->checksum = hearth_checksum(event->bytes.data, event->bytes.len);
}

static void answer_put(struct memory_far *far, struct question *question);

/* What replaces an item comes behind it. */
static void answer_put_of(struct memory_far *far, struct hearth_digest name) {
    for (size_t i = 0; i < far->question_count; i++) {
        struct question question = far->questions[i];
        if (question.record != NULL && hearth_digest_equal(question.name, name)) {
            far->questions[i] = far->questions[--far->question_count];
            answer_put(far, &question);
            return;
        }
    }
}

static void answer_put(struct memory_far *far, struct question *question) {
    if (question->replaces) {
        answer_put_of(far, question->old);
    }
    if (fails(far)) {
        (void)tell(far, HEARTH_FAR_DROPPED, question->name);
        hearth_record_destroy(question->record);
    } else {
        if (find(far, question->name) == NULL) {
            far->items = room(far->items, far->item_count, &far->item_cap, sizeof *far->items);
            struct item *item = &far->items[far->item_count++];
            *item = (struct item){.record = question->record};
            size_t len = 0;
            const void *bytes = question->blob != NULL ? hearth_blob_data(question->blob, &len) : NULL;
            HEARTH_ASSERT(len == question->record->state_bytes && hearth_buf_append(&item->bytes, bytes, len));
        } else {
            hearth_record_destroy(question->record);
        }
        struct item *old = question->replaces ? find(far, question->old) : NULL;
        if (old != NULL) {
            remove_item(far, old);
        }
        (void)tell(far, HEARTH_FAR_WRITTEN, question->name);
    }
    if (question->blob != NULL) {
        hearth_blob_unref(question->blob);
    }
}

/* A failure is tried again, and told when it goes on. */
static void answer_remove(struct memory_far *far, struct hearth_digest name) {
    int err = fails(far) && fails(far) ? HEARTH_ERR_IO : HEARTH_OK;
    struct item *item = err == HEARTH_OK ? find(far, name) : NULL;
    if (item != NULL) {
        remove_item(far, item);
    }
    tell(far, HEARTH_FAR_REMOVED, name)->err = err;
}

/* Tells of one thing that the scan comes across. */
static void scan_one(struct memory_far *far) {
    if (far->unseen_count == 0) {
        far->scanning = false;
        (void)tell(far, HEARTH_FAR_SCANNED, (struct hearth_digest){0});
        return;
    }
    size_t i = rng_below(far->rng, (uint32_t)far->unseen_count);
    struct hearth_digest name = far->unseen[i];
    far->unseen[i] = far->unseen[--far->unseen_count];
    struct item *item = find(far, name);
    if (item != NULL) {
        struct hearth_record *copy = hearth_record_copy(item->record);
        HEARTH_ASSERT(copy != NULL);
        tell(far, HEARTH_FAR_FOUND, name)->record = copy;
    }
}

/* Does something that is due. False: there is nothing. */
static bool work(struct memory_far *far) {
    if (far->scanning && (far->question_count == 0 || rng_once_in(far->rng, 2))) {
        scan_one(far);
        return true;
    }
    if (far->item_count > 0 && fails(far)) { /* another process evicts */
        struct item *item = &far->items[rng_below(far->rng, (uint32_t)far->item_count)];
        (void)tell(far, HEARTH_FAR_LOST, item->record->name);
        remove_item(far, item);
        return true;
    }
    if (far->question_count == 0) {
        return false;
    }
    size_t i = rng_below(far->rng, (uint32_t)far->question_count);
    struct question question = far->questions[i];
    far->questions[i] = far->questions[--far->question_count];
    if (question.remove) {
        answer_remove(far, question.name);
    } else if (question.record != NULL) {
        answer_put(far, &question);
    } else {
        answer_get(far, question.name);
    }
    return true;
}

/* ---- the tier ---- */

static bool ask(struct memory_far *far, struct question question) {
    far->questions = room(far->questions, far->question_count, &far->question_cap, sizeof *far->questions);
    far->questions[far->question_count++] = question;
    return true;
}

static bool memory_put(struct hearth_far *tier, const struct hearth_record *record, struct hearth_blob *blob,
                       const struct hearth_digest *replaces) {
    struct memory_far *far = far_of(tier);
    HEARTH_ASSERT(hearth_digest_equal(record->name, hearth_record_name(record)));
    if (fails(far)) {
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
    return ask(far, question);
}

static bool memory_get(struct hearth_far *tier, struct hearth_digest name) {
    return ask(far_of(tier), (struct question){.name = name});
}

static void memory_touch(struct hearth_far *tier, const struct hearth_far_touch *touches, size_t n) {
    (void)tier;
    for (size_t i = 0; i < n; i++) {
        HEARTH_ASSERT(touches[i].pos > 0 && (i == 0 || touches[i].pos >= touches[i - 1].pos));
    }
}

static void memory_reject(struct hearth_far *tier, struct hearth_digest name, const char *why) {
    struct memory_far *far = far_of(tier);
    struct item *item = find(far, name);
    HEARTH_ASSERT(why[0] != '\0');
    if (item != NULL) {
        remove_item(far, item);
    }
}

static bool memory_remove(struct hearth_far *tier, struct hearth_digest name, enum hearth_record_kind kind) {
    struct memory_far *far = far_of(tier);
    struct item *item = find(far, name);
    HEARTH_ASSERT(item == NULL || item->record->kind == kind);
    for (size_t i = 0; i < far->question_count; i++) {
        struct question *question = &far->questions[i];
        if (question->record == NULL || !hearth_digest_equal(question->name, name)) {
            continue;
        }
        (void)tell(far, HEARTH_FAR_DROPPED, name);
        hearth_record_destroy(question->record);
        if (question->blob != NULL) {
            hearth_blob_unref(question->blob);
        }
        *question = far->questions[--far->question_count];
        i--;
    }
    return ask(far, (struct question){.remove = true, .name = name});
}

static bool memory_poll(struct hearth_far *tier, struct hearth_far_event *event) {
    struct memory_far *far = far_of(tier);
    if (rng_once_in(far->rng, 2)) {
        (void)work(far);
    }
    if (far->event_count == 0) {
        return false;
    }
    *event = far->events[0];
    memmove(far->events, far->events + 1, --far->event_count * sizeof *far->events);
    return true;
}

static bool memory_wait(struct hearth_far *tier, int64_t timeout_us) {
    struct memory_far *far = far_of(tier);
    (void)timeout_us;
    while (far->event_count == 0 && work(far)) {
    }
    return far->event_count > 0;
}

/* Who uses it polls. */
static void memory_set_wake(struct hearth_far *tier, void (*wake)(void *user), void *user) {
    (void)tier;
    (void)wake;
    (void)user;
}

static const struct hearth_far_ops memory_ops = {
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

struct memory_far *memory_far_create(struct rng *rng) {
    struct memory_far *far = calloc(1, sizeof *far);
    HEARTH_ASSERT(far != NULL);
    far->base.ops = &memory_ops;
    far->base.name = "memory";
    far->rng = rng;
    far->scanning = true;
    return far;
}

struct hearth_far *memory_far_tier(struct memory_far *far) {
    return &far->base;
}

void memory_far_faults(struct memory_far *far, uint32_t n) {
    far->once_in = n;
}

size_t memory_far_items(const struct memory_far *far) {
    return far->item_count;
}

size_t memory_far_on_path(const struct memory_far *far, struct hearth_digest root, int32_t page_tokens,
                          const struct hearth_tokens *path, int32_t from) {
    size_t found = 0;
    struct hearth_digest base = root;
    for (size_t pos = 0; pos < path->n; pos += (size_t)page_tokens) {
        for (size_t i = 0; i < far->item_count; i++) {
            const struct hearth_record *record = far->items[i].record;
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

static void forget(struct memory_far *far) {
    for (size_t i = 0; i < far->question_count; i++) {
        hearth_record_destroy(far->questions[i].record);
        if (far->questions[i].blob != NULL) {
            hearth_blob_unref(far->questions[i].blob);
        }
    }
    for (size_t i = 0; i < far->event_count; i++) {
        hearth_far_event_finish(&far->events[i]);
    }
    far->question_count = far->event_count = 0;
    free(far->unseen);
    far->unseen = NULL;
    far->unseen_count = 0;
}

void memory_far_restart(struct memory_far *far) {
    forget(far);
    while (far->item_count > 0 && fails(far)) {
        remove_item(far, &far->items[rng_below(far->rng, (uint32_t)far->item_count)]);
    }
    far->unseen = calloc(far->item_count + 1, sizeof *far->unseen);
    HEARTH_ASSERT(far->unseen != NULL);
    for (size_t i = 0; i < far->item_count; i++) {
        far->unseen[far->unseen_count++] = far->items[i].record->name;
    }
    far->scanning = true;
}

void memory_far_destroy(struct memory_far *far) {
    if (far == NULL) {
        return;
    }
    forget(far);
    while (far->item_count > 0) {
        remove_item(far, &far->items[0]);
    }
    free(far->items);
    free(far->questions);
    free(far->events);
    free(far);
}
