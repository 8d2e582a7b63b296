/* The engine and the far tier of world.h: what the cache has around it, at no cost and of no size. */
#include "world.h"

#include "base/assert.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>


/* ---- engine ---- */

static void engine_destroy(struct hearth_engine *engine) {
    free(engine);
}

static void seq_clear(struct hearth_engine *engine, int32_t seq) {
    (void)engine, (void)seq;
}

static int32_t seq_rewind_floor(struct hearth_engine *engine, int32_t seq, int32_t end) {
    (void)seq;
    return hearth_caps_needs_snapshot(&engine->caps) ? end : 0;
}

static int seq_rewind(struct hearth_engine *engine, int32_t seq, int32_t n) {
    (void)engine, (void)seq, (void)n;
    return HEARTH_OK;
}

static int seq_share(struct hearth_engine *engine, int32_t src, int32_t dst, int32_t p0, int32_t p1) {
    (void)engine, (void)src, (void)dst, (void)p0, (void)p1;
    return HEARTH_OK;
}

static int page_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, struct hearth_buf *out) {
    (void)engine, (void)seq, (void)p0, (void)p1;
    return hearth_buf_append(out, "", 1) ? HEARTH_OK : HEARTH_ERR_NOMEM;
}

static int snapshot_export(struct hearth_engine *engine, int32_t seq, int32_t pos, struct hearth_buf *out) {
    return page_export(engine, seq, pos, pos, out);
}

static size_t token_text(struct hearth_engine *engine, hearth_token token, bool special, char *out, size_t cap) {
    (void)engine, (void)special;
    return (size_t)snprintf(out, cap, "%d ", token);
}

static int64_t now_us(struct hearth_engine *engine) {
    (void)engine;
    return hearth_clock_us();
}

static const struct hearth_engine_ops engine_ops = {
    .destroy = engine_destroy,
    .seq_clear = seq_clear,
    .seq_rewind_floor = seq_rewind_floor,
    .seq_rewind = seq_rewind,
    .seq_keep = seq_rewind,
    .seq_share = seq_share,
    .page_export = page_export,
    .snapshot_export = snapshot_export,
    .token_text = token_text,
    .now_us = now_us,
};

struct hearth_engine *nothing_engine(enum hearth_memory_class memory_class) {
    struct hearth_engine *engine = calloc(1, sizeof *engine);
    HEARTH_ASSERT(engine != NULL);
    engine->ops = &engine_ops;
    engine->caps = (struct hearth_caps){.memory_class = memory_class,
                                        .cache_ok = true,
                                        .seqs = 64,
                                        .ctx_tokens = 1 << 20,
                                        .snapshot_bytes = 1};
    return engine;
}

/* ---- far tier ---- */

struct far {
    struct hearth_far base;
    struct hearth_far_event *events; /* a queue in an array that is emptied before it grows long */
    size_t first, n, cap;
};

static bool tell(struct hearth_far *base, enum hearth_far_event_type type, struct hearth_digest name) {
    struct far *far = (struct far *)base;
    if (far->n == far->cap) {
        far->cap = far->cap > 0 ? 2 * far->cap : 1024;
        far->events = realloc(far->events, far->cap * sizeof *far->events);
        HEARTH_ASSERT(far->events != NULL);
    }
    far->events[far->n++] = (struct hearth_far_event){.type = type, .name = name};
    return true;
}

static void far_destroy(struct hearth_far *base) {
    free(((struct far *)base)->events);
    free(base);
}

static bool far_put(struct hearth_far *base, const struct hearth_record *record, struct hearth_blob *blob,
                    const struct hearth_digest *replaces) {
    (void)blob, (void)replaces;
    return tell(base, HEARTH_FAR_WRITTEN, record->name);
}

static bool far_get(struct hearth_far *base, struct hearth_digest name) {
    (void)base, (void)name;
    return false; /* nobody restores here */
}

static void far_touch(struct hearth_far *base, const struct hearth_far_touch *touches, size_t n) {
    (void)base, (void)touches, (void)n;
}

static void far_reject(struct hearth_far *base, struct hearth_digest name, const char *why) {
    (void)base, (void)name, (void)why;
}

static bool far_remove(struct hearth_far *base, struct hearth_digest name, enum hearth_record_kind kind) {
    (void)kind;
    return tell(base, HEARTH_FAR_REMOVED, name);
}

static bool far_poll(struct hearth_far *base, struct hearth_far_event *event) {
    struct far *far = (struct far *)base;
    if (far->first == far->n)
        return false;
    *event = far->events[far->first++];
    if (far->first == far->n)
        far->first = far->n = 0;
    return true;
}

static const struct hearth_far_ops far_ops = {
    .destroy = far_destroy,
    .put = far_put,
    .get = far_get,
    .touch = far_touch,
    .reject = far_reject,
    .remove = far_remove,
    .poll = far_poll,
};

struct hearth_far *nothing_far(void) {
    struct far *far = calloc(1, sizeof *far);
    HEARTH_ASSERT(far != NULL);
    far->base.ops = &far_ops;
    far->base.name = "nothing";
    return &far->base;
}
