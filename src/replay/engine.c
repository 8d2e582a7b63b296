/* The hollow engine.
 *
 * Invariant: what the cache asks of it is legal for the class, as far as lengths tell: a page is exported from what the
 * sequence holds, imported behind its end, and a snapshot completes a sequence of exactly its length. */
#include "replay/engine.h"

#include "base/assert.h"

#include <math.h>
#include <stdlib.h>

static struct hearth_hollow *hollow_of(struct hearth_engine *engine) {
    return (struct hearth_hollow *)engine;
}

static int32_t *end_of(struct hearth_engine *engine, int32_t seq) {
    HEARTH_ASSERT(seq >= 0 && (uint32_t)seq < engine->caps.seqs);
    return &hollow_of(engine)->ends[seq];
}

/* ---- sequences ---- */

static void seq_clear(struct hearth_engine *engine, int32_t seq) {
    *end_of(engine, seq) = 0;
}

static int32_t seq_rewind_floor(struct hearth_engine *engine, int32_t seq, int32_t end) {
    (void)seq;
    return hearth_caps_needs_snapshot(&engine->caps) ? end : 0;
}

static int seq_keep(struct hearth_engine *engine, int32_t seq, int32_t n) {
    *end_of(engine, seq) = n;
    return HEARTH_OK;
}

static int seq_share(struct hearth_engine *engine, int32_t src, int32_t dst, int32_t p0, int32_t p1) {
    HEARTH_ASSERT(*end_of(engine, dst) == p0 && (p1 == p0 || src != dst));
    *end_of(engine, dst) = p1;
    return HEARTH_OK;
}

/* ---- state ---- */

/* As the simulated engine counts (engine/sim_clock.c). */
static void spend(struct hearth_hollow *hollow, double us) {
    hollow->rest_ns += llround(us * 1e3);
    hollow->now_us += hollow->rest_ns / 1000;
    hollow->rest_ns %= 1000;
}

/* A blob of so many bytes, without any. */
static int export_bytes(struct hearth_engine *engine, size_t bytes, struct hearth_buf *out) {
    struct hearth_hollow *hollow = hollow_of(engine);
    hollow->exported_bytes += bytes;
    out->len += bytes;
    spend(hollow, (double)bytes * hollow->export_us_per_byte);
    return HEARTH_OK;
}

static int import_bytes(struct hearth_engine *engine, size_t bytes) {
    struct hearth_hollow *hollow = hollow_of(engine);
    hollow->imported_bytes += bytes;
    spend(hollow, (double)bytes * hollow->import_us_per_byte);
    return HEARTH_OK;
}

static int page_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, struct hearth_buf *out) {
    HEARTH_ASSERT(p0 < p1 && p1 <= *end_of(engine, seq));
    return export_bytes(engine, (size_t)(p1 - p0) * engine->caps.page_bytes_per_token, out);
}

static int page_import(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob, size_t len,
                       int32_t page_p0, int32_t page_p1) {
    (void)blob;
    HEARTH_ASSERT(page_p0 <= p0 && p0 < p1 && p1 <= page_p1 && *end_of(engine, seq) == p0);
    *end_of(engine, seq) = p1;
    return import_bytes(engine, len);
}

static int snapshot_export(struct hearth_engine *engine, int32_t seq, int32_t pos, struct hearth_buf *out) {
    HEARTH_ASSERT(pos == *end_of(engine, seq));
    return export_bytes(engine, engine->caps.snapshot_bytes, out);
}

static int snapshot_import(struct hearth_engine *engine, int32_t seq, int32_t pos, const void *blob, size_t len) {
    (void)blob;
    HEARTH_ASSERT(pos == *end_of(engine, seq));
    return import_bytes(engine, len);
}

static int64_t now_us(struct hearth_engine *engine) {
    return hollow_of(engine)->now_us;
}

static size_t token_text(struct hearth_engine *engine, hearth_token token, bool special, char *out, size_t cap) {
    (void)engine, (void)token, (void)special, (void)out, (void)cap;
    return 0;
}

static const struct hearth_engine_ops ops = {
    .seq_clear = seq_clear,
    .seq_rewind_floor = seq_rewind_floor,
    .seq_rewind = seq_keep,
    .seq_keep = seq_keep,
    .seq_share = seq_share,
    .page_export = page_export,
    .page_import = page_import,
    .snapshot_export = snapshot_export,
    .snapshot_import = snapshot_import,
    .token_text = token_text,
    .now_us = now_us,
};

bool hearth_hollow_init(struct hearth_hollow *hollow, uint32_t seqs, size_t token_bytes, size_t snapshot_bytes,
                        double import_us_per_byte) {
    *hollow = (struct hearth_hollow){
        .base = {.ops = &ops,
                 .caps = {.memory_class = snapshot_bytes > 0 ? HEARTH_ENGINE_PAGES_SNAPSHOT : HEARTH_ENGINE_PAGES,
                          .cache_ok = true,
                          .lanes = seqs,
                          .seqs = seqs,
                          .page_bytes_per_token = token_bytes,
                          .snapshot_bytes = snapshot_bytes}},
        .import_us_per_byte = import_us_per_byte,
        .ends = calloc(seqs, sizeof(int32_t)),
    };
    return hollow->ends != NULL;
}

void hearth_hollow_finish(struct hearth_hollow *hollow) {
    free(hollow->ends);
    *hollow = (struct hearth_hollow){0};
}
