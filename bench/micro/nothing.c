/* The engine and the backing tier of world.h: what the cache has around it, at no cost and of no size. */
#include "world.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- engine ---- */

struct nothing {
    struct hearth_engine base;
    int64_t now_us;
};

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
    return ((struct nothing *)engine)->now_us;
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

struct hearth_engine *nothing_engine(enum hearth_engine_class memory_class) {
    struct nothing *nothing = calloc(1, sizeof *nothing);
    HEARTH_ASSERT(nothing != NULL);
    struct hearth_engine *engine = &nothing->base;
    nothing->now_us = 1;
    engine->ops = &engine_ops;
    engine->caps = (struct hearth_caps){
        .memory_class = memory_class, .cache_ok = true, .seqs = 64, .ctx_tokens = 1 << 20, .snapshot_bytes = 1};
    return engine;
}

void nothing_pass(struct hearth_engine *engine, int64_t us) {
    ((struct nothing *)engine)->now_us += us;
}

/* ---- backing tier ---- */

struct backing {
    struct hearth_backing base;
    struct hearth_backing_event *events; /* a queue in an array that is emptied before it grows long */
    size_t first, n, cap;
};

static bool tell(struct hearth_backing *base, enum hearth_backing_event_type type, struct hearth_digest name) {
    struct backing *backing = (struct backing *)base;
    if (backing->n == backing->cap) {
        backing->cap = backing->cap > 0 ? 2 * backing->cap : 1024;
        backing->events = realloc(backing->events, backing->cap * sizeof *backing->events);
        HEARTH_ASSERT(backing->events != NULL);
    }
    backing->events[backing->n++] = (struct hearth_backing_event){.type = type, .name = name};
    return true;
}

static void backing_destroy(struct hearth_backing *base) {
    free(((struct backing *)base)->events);
    free(base);
}

static bool backing_put(struct hearth_backing *base, const struct hearth_record *record, struct hearth_blob *blob,
                        const struct hearth_digest *replaces) {
    (void)blob, (void)replaces;
    return tell(base, HEARTH_BACKING_WRITTEN, record->name);
}

static bool backing_get(struct hearth_backing *base, struct hearth_digest name) {
    (void)base, (void)name;
    return false; /* nobody restores here */
}

static void backing_touch(struct hearth_backing *base, const struct hearth_backing_touch *touches, size_t n) {
    (void)base, (void)touches, (void)n;
}

static void backing_reject(struct hearth_backing *base, struct hearth_digest name, const char *why) {
    (void)base, (void)name, (void)why;
}

static bool backing_remove(struct hearth_backing *base, struct hearth_digest name, enum hearth_record_kind kind) {
    (void)kind;
    return tell(base, HEARTH_BACKING_REMOVED, name);
}

static bool backing_poll(struct hearth_backing *base, struct hearth_backing_event *event) {
    struct backing *backing = (struct backing *)base;
    if (backing->first == backing->n) {
        return false;
    }
    *event = backing->events[backing->first++];
    if (backing->first == backing->n) {
        backing->first = backing->n = 0;
    }
    return true;
}

static const struct hearth_backing_ops backing_ops = {
    .destroy = backing_destroy,
    .put = backing_put,
    .get = backing_get,
    .touch = backing_touch,
    .reject = backing_reject,
    .remove = backing_remove,
    .poll = backing_poll,
};

struct hearth_backing *nothing_backing(void) {
    struct backing *backing = calloc(1, sizeof *backing);
    HEARTH_ASSERT(backing != NULL);
    backing->base.ops = &backing_ops;
    backing->base.name = "nothing";
    return &backing->base;
}
