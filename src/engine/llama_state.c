/* State: sequences, pages and snapshots, on llama.cpp's sequence functions.
 *
 * A blob of llama.cpp is `header | A | P`: A the addressable part, P the part that the partial flag gives alone
 * (`header | P`). For plain attention the partial flag is ignored and there is no P.
 *
 *   page      header | A of [p0, p1) | P of an empty sequence     as set_data takes it: importing needs no copy
 *   snapshot  header | P                                          PAGES_SNAPSHOT
 *             header | everything                                 SNAPSHOT, OPAQUE
 *   window    header | P of [p0, p1)                              sliding windows: a snapshot of fewer positions
 *
 * A range goes out by sharing its cells with the scratch sequence (metadata only), emptying scratch's non-addressable
 * part, and exporting scratch. It comes in through scratch too, because set_data clears its destination: cells are
 * then shared with the target, range by range, and scratch is cleared. So part of a page is used by copying a shorter
 * range than the page holds.
 *
 * Invariants: scratch is empty between calls (window cells are only reusable while one sequence owns them). After a
 * failed import the target is empty. The recurrent part of a sequence is emptied by importing the partial blob of an
 * empty sequence: the only way that leaves the attention cells alone.
 *
 * What a blob says about itself is checked before libllama acts on it, as far as a wrong value would abort the process
 * (recurrent cell counts) or would import the wrong range silently (page cell counts). Bytes are verified elsewhere: a
 * blob that reaches this file has passed a checksum. */
#include "engine/llama_engine.h"

#include "base/assert.h"

#include <string.h>

#define HEADER_BYTES 8 /* u32 magic, i32 sequence */
#define PARTIAL LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
#define PROBE_SHORT_TOKENS 4
#define PROBE_LONG_TOKENS 12

static uint32_t u32_at(const void *blob, size_t offset) {
    uint32_t value;
    memcpy(&value, (const uint8_t *)blob + offset, sizeof value);
    return value;
}

static void clear(struct hearth_llama *llama, llama_seq_id seq) {
    llama_memory_seq_rm(llama->mem, seq, -1, -1);
}

/* Empties the recurrent part of a sequence and nothing else. */
static bool drop_recurrent(struct hearth_llama *llama, llama_seq_id seq) {
    if (!llama->hybrid) {
        return true;
    }
    const struct hearth_buf *empty = &llama->empty_partial;
    return llama_state_seq_set_data_ext(llama->ctx, empty->data, empty->len, seq, PARTIAL) == empty->len;
}

/* Appends a blob of a sequence. */
static int get_blob(struct hearth_llama *llama, llama_seq_id seq, llama_state_seq_flags flags, struct hearth_buf *out) {
    size_t size = llama_state_seq_get_size_ext(llama->ctx, seq, flags);
    if (size < HEADER_BYTES) {
        return HEARTH_ERR_STATE;
    }
    if (!hearth_buf_reserve(out, size)) {
        return HEARTH_ERR_NOMEM;
    }
    if (llama_state_seq_get_data_ext(llama->ctx, out->data + out->len, size, seq, flags) != size) {
        return HEARTH_ERR_STATE;
    }
    out->len += size;
    return HEARTH_OK;
}

/* Takes a blob into a sequence. */
static int set_blob(struct hearth_llama *llama, const void *blob, size_t len, llama_seq_id seq,
                    llama_state_seq_flags flags) {
    hearth_llama_log_reset();
    if (llama_state_seq_set_data_ext(llama->ctx, blob, len, seq, flags) == len) {
        return HEARTH_OK;
    }
    return hearth_llama_log_no_cells() ? HEARTH_ERR_NO_CELLS : HEARTH_ERR_STATE;
}

static llama_state_seq_flags snapshot_flags(const struct hearth_llama *llama) {
    return llama->head.caps.memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT ? PARTIAL : 0;
}

/* ---- class and sizes ---- */

static int probe_decode(struct hearth_llama *llama, int32_t begin, int32_t end, struct hearth_errmsg *msg) {
    llama_token token[PROBE_LONG_TOKENS];
    llama_pos pos[PROBE_LONG_TOKENS];
    int32_t n_seq_id[PROBE_LONG_TOKENS];
    llama_seq_id seq = 0;
    llama_seq_id *seq_id[PROBE_LONG_TOKENS + 1] = {NULL};
    int8_t output[PROBE_LONG_TOKENS] = {0};
    int32_t vocab = llama_vocab_n_tokens(llama->vocab);
    for (int32_t i = 0; i < end - begin; i++) {
        token[i] = (begin + i + 1) % vocab;
        pos[i] = begin + i;
        n_seq_id[i] = 1;
        seq_id[i] = &seq;
    }
    output[end - begin - 1] = 1;
    hearth_llama_log_reset();
    struct llama_batch batch = {end - begin, token, NULL, pos, n_seq_id, seq_id, output};
    if (llama_decode(llama->ctx, batch) != 0) {
        return hearth_fail(msg, HEARTH_ERR_ENGINE, "the model cannot compute its first tokens: %s",
                           hearth_llama_log_error());
    }
    return HEARTH_OK;
}

struct probe_sizes {
    size_t full, partial;
};

static struct probe_sizes probe_sizes(struct hearth_llama *llama, bool opaque) {
    size_t full = llama_state_seq_get_size_ext(llama->ctx, 0, 0);
    return (struct probe_sizes){full, opaque ? full : llama_state_seq_get_size_ext(llama->ctx, 0, PARTIAL)};
}

/* How far back a sequence can be rewound at its live end. A window's cells are reused only if no new token could see
 * them, judged before an ubatch is computed, so tokens of the last ubatch can always be taken back. */
static int32_t rewind_tokens(const struct hearth_llama *llama) {
    if (llama->head.caps.memory_class == HEARTH_ENGINE_PAGES) {
        return INT32_MAX;
    }
    bool window = llama->head.caps.memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT && !llama->hybrid && llama->n_swa > 0;
    const int32_t at_once = (int32_t)llama_n_ubatch(llama->ctx) - 1;
    return window ? (at_once < HEARTH_DRAFT_MAX ? at_once : HEARTH_DRAFT_MAX) : 0;
}

/* A chunked window ends where a chunk does; what a snapshot holds of it depends on where it was taken. */
static bool is_chunked(const struct hearth_llama *llama) {
    char architecture[32];
    return llama_model_meta_val_str(llama->model, "general.architecture", architecture, sizeof architecture) < 0 ||
           strcmp(architecture, "llama4") == 0;
}

static void fill_class(struct hearth_llama *llama, bool opaque, struct probe_sizes a, struct probe_sizes b) {
    struct hearth_caps *caps = &llama->head.caps;
    size_t steps = PROBE_LONG_TOKENS - PROBE_SHORT_TOKENS;
    size_t full_step = (b.full - a.full) / steps, partial_step = (b.partial - a.partial) / steps;
    if (opaque) {
        /* One blob that grows with the sequence. Its average length is not known: an eighth of the context is assumed.
         */
        caps->memory_class = HEARTH_ENGINE_OPAQUE;
        caps->snapshot_bytes = b.full + full_step * (llama_n_ctx(llama->ctx) / 8);
    } else if (llama->recurrent) {
        caps->memory_class = HEARTH_ENGINE_SNAPSHOT;
        caps->snapshot_bytes = b.full;
    } else if (b.full == b.partial) {
        caps->memory_class = HEARTH_ENGINE_PAGES;
        caps->page_bytes_per_token = full_step;
    } else {
        /* A window's snapshot grows until the window is full. */
        size_t window = llama->n_swa > PROBE_LONG_TOKENS ? (size_t)(llama->n_swa - PROBE_LONG_TOKENS) : 0;
        caps->memory_class = HEARTH_ENGINE_PAGES_SNAPSHOT;
        caps->page_bytes_per_token = full_step - partial_step;
        caps->snapshot_bytes = b.partial + partial_step * window;
        if (!llama->hybrid && llama->n_swa > 1 && !is_chunked(llama)) {
            caps->window_tokens = llama->n_swa - 1;
            caps->window_bytes_per_token = partial_step;
        }
    }
    caps->rewind_tokens = rewind_tokens(llama);
}

int hearth_llama_probe(struct hearth_llama *llama, bool opaque, struct hearth_errmsg *msg) {
    const bool partial = !opaque && !llama->recurrent, window = partial && llama->n_swa > 0 && !llama->hybrid;
    struct probe_sizes a = {0};
    llama->empty_partial.len = llama->tiny_partial.len = 0;
    int err = partial ? get_blob(llama, 0, PARTIAL, &llama->empty_partial) : HEARTH_OK;
    err = err == HEARTH_OK ? probe_decode(llama, 0, 1, msg) : err;
    err = err == HEARTH_OK && window ? get_blob(llama, 0, PARTIAL, &llama->tiny_partial) : err;
    err = err == HEARTH_OK ? probe_decode(llama, 1, PROBE_SHORT_TOKENS, msg) : err;
    if (err == HEARTH_OK) {
        a = probe_sizes(llama, opaque);
        err = probe_decode(llama, PROBE_SHORT_TOKENS, PROBE_LONG_TOKENS, msg);
    }
    if (err == HEARTH_OK) {
        fill_class(llama, opaque, a, probe_sizes(llama, opaque));
    }
    clear(llama, 0);
    return err;
}

/* ---- sequences ---- */

static bool valid(const struct hearth_llama *llama, int32_t seq) {
    return seq >= 0 && (uint32_t)seq < llama->head.caps.seqs;
}

void hearth_llama_seq_clear(struct hearth_engine *engine, int32_t seq) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(valid(llama, seq));
    clear(llama, seq);
}

int32_t hearth_llama_seq_rewind_floor(struct hearth_engine *engine, int32_t seq, int32_t end) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(valid(llama, seq));
    if (engine->caps.memory_class == HEARTH_ENGINE_PAGES) {
        return 0;
    }
    if (engine->caps.memory_class != HEARTH_ENGINE_PAGES_SNAPSHOT || llama->hybrid || llama->n_swa == 0) {
        return end;
    }
    /* The token at n attends to (n - n_swa, n) of a window: all of it is there when the oldest window cell is no later
     * than n - n_swa + 1. Chunked windows need less. */
    int32_t oldest = llama_memory_seq_pos_min(llama->mem, seq);
    if (oldest <= 0) {
        return oldest < 0 ? end : 0;
    }
    int32_t floor = oldest + llama->n_swa - 1;
    return floor < end ? floor : end;
}

int hearth_llama_seq_rewind(struct hearth_engine *engine, int32_t seq, int32_t n) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(valid(llama, seq) && n >= 0);
    if (n == 0) {
        clear(llama, seq);
        return HEARTH_OK;
    }
    llama_pos end = llama_memory_seq_pos_max(llama->mem, seq) + 1;
    if (n == end) {
        return HEARTH_OK;
    }
    if (n > end || n < hearth_llama_seq_rewind_floor(engine, seq, end) ||
        !llama_memory_seq_rm(llama->mem, seq, n, -1)) {
        clear(llama, seq);
        return HEARTH_ERR_STATE;
    }
    return HEARTH_OK;
}

int hearth_llama_seq_keep(struct hearth_engine *engine, int32_t seq, int32_t n) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(valid(llama, seq) && n >= 0);
    if (!hearth_caps_has_pages(&engine->caps) || n == 0) {
        clear(llama, seq);
        return HEARTH_OK;
    }
    if (!drop_recurrent(llama, seq) || !llama_memory_seq_rm(llama->mem, seq, n, -1)) {
        clear(llama, seq);
        return HEARTH_ERR_STATE;
    }
    return HEARTH_OK;
}

int hearth_llama_seq_share(struct hearth_engine *engine, int32_t src, int32_t dst, int32_t p0, int32_t p1) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(valid(llama, src) && valid(llama, dst) && src != dst && p0 >= 0 && p0 <= p1);
    if (!hearth_caps_has_pages(&engine->caps)) {
        clear(llama, dst);
        return HEARTH_OK;
    }
    if (p0 == p1) {
        return HEARTH_OK;
    }
    llama_memory_seq_cp(llama->mem, src, dst, p0, p1);
    /* A recurrent state shared by two sequences would be that of src's end; window cells stay shared until the
     * snapshot that completes dst replaces them. */
    if (!drop_recurrent(llama, dst)) {
        clear(llama, dst);
        return HEARTH_ERR_STATE;
    }
    return HEARTH_OK;
}

/* ---- pages ---- */

/* The cell count of a page: every memory with pages begins with an attention cache of one stream. */
static bool page_holds(const void *blob, size_t len, int32_t tokens) {
    return len >= HEADER_BYTES + 8 && u32_at(blob, HEADER_BYTES) == 1 &&
           u32_at(blob, HEADER_BYTES + 4) == (uint32_t)tokens;
}

int hearth_llama_page_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1,
                             struct hearth_buf *out) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(hearth_caps_has_pages(&engine->caps) && valid(llama, seq) && p0 >= 0 && p0 < p1);
    const bool rest = engine->caps.memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT;
    const struct hearth_buf *tiny = &llama->tiny_partial, *empty = &llama->empty_partial;
    const size_t begin = out->len;
    size_t partial = HEADER_BYTES;

    llama_memory_seq_cp(llama->mem, seq, llama->scratch, p0, p1);
    int err = drop_recurrent(llama, llama->scratch) ? HEARTH_OK : HEARTH_ERR_STATE;
    if (err == HEARTH_OK && rest) {
        /* The window can have more bytes than the page, and would be copied only to be cut off: replace it by a tiny
         * one. If that fails it is merely slow. */
        if (tiny->len > 0) {
            llama_state_seq_set_data_ext(llama->ctx, tiny->data, tiny->len, llama->scratch, PARTIAL);
        }
        partial = llama_state_seq_get_size_ext(llama->ctx, llama->scratch, PARTIAL);
    }
    err = err == HEARTH_OK ? get_blob(llama, llama->scratch, 0, out) : err;
    clear(llama, llama->scratch);
    if (err == HEARTH_OK && (partial < HEADER_BYTES || out->len - begin < partial ||
                             !page_holds(out->data + begin, out->len - begin, p1 - p0))) {
        err = HEARTH_ERR_STATE;
    }
    if (err == HEARTH_OK && rest) {
        out->len -= partial - HEADER_BYTES;
        err = hearth_buf_append(out, empty->data + HEADER_BYTES, empty->len - HEADER_BYTES) ? HEARTH_OK
                                                                                            : HEARTH_ERR_NOMEM;
    }
    out->len = err == HEARTH_OK ? out->len : begin;
    return err;
}

int hearth_llama_page_import(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob,
                             size_t len, int32_t page_p0, int32_t page_p1) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(hearth_caps_has_pages(&engine->caps) && valid(llama, seq));
    HEARTH_ASSERT(page_p0 >= 0 && page_p0 <= p0 && p0 < p1 && p1 <= page_p1);
    int err = HEARTH_ERR_STATE;
    if (page_holds(blob, len, page_p1 - page_p0)) {
        err = set_blob(llama, blob, len, llama->scratch, 0);
        if (err == HEARTH_OK) {
            llama_memory_seq_cp(llama->mem, llama->scratch, seq, p0, p1);
        }
        clear(llama, llama->scratch);
    }
    if (err != HEARTH_OK) {
        clear(llama, seq);
    }
    return err;
}

/* ---- snapshots ---- */

int hearth_llama_snapshot_export(struct hearth_engine *engine, int32_t seq, int32_t pos, struct hearth_buf *out) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(hearth_caps_needs_snapshot(&engine->caps) && valid(llama, seq) && pos > 0);
    if (llama_memory_seq_pos_max(llama->mem, seq) + 1 != pos) {
        return HEARTH_ERR_STATE;
    }
    return get_blob(llama, seq, snapshot_flags(llama), out);
}

int hearth_llama_snapshot_import(struct hearth_engine *engine, int32_t seq, int32_t pos, const void *blob, size_t len) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(hearth_caps_needs_snapshot(&engine->caps) && valid(llama, seq) && pos > 0);
    int err = HEARTH_ERR_STATE;
    /* A recurrent memory with a cell count other than 1 aborts. Behind a window it stands further in. */
    bool counted = llama->recurrent || (llama->hybrid && llama->n_swa == 0 && snapshot_flags(llama) == PARTIAL);
    if (len >= HEADER_BYTES + 4 && (!counted || u32_at(blob, HEADER_BYTES) == 1)) {
        err = set_blob(llama, blob, len, seq, snapshot_flags(llama));
    }
    if (err == HEARTH_OK && llama_memory_seq_pos_max(llama->mem, seq) + 1 != pos) {
        err = HEARTH_ERR_STATE;
    }
    if (err != HEARTH_OK) {
        clear(llama, seq);
    }
    return err;
}

/* ---- windows ---- */

/* Positions that a piece of a window holds; the window's cache has one stream, too. */
static uint32_t window_holds(const void *blob, size_t len) {
    return len >= HEADER_BYTES + 8 && u32_at(blob, HEADER_BYTES) == 1 ? u32_at(blob, HEADER_BYTES + 4) : 0;
}

int hearth_llama_window_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1,
                               struct hearth_buf *out) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(valid(llama, seq) && p0 >= 0 && p0 < p1 && p1 - p0 <= engine->caps.window_tokens + 1);
    if (llama_memory_seq_pos_min(llama->mem, seq) > p0 || llama_memory_seq_pos_max(llama->mem, seq) + 1 < p1) {
        return HEARTH_ERR_STATE;
    }
    /* llama.cpp exports only cells that a token at the end of the sequence sees. So the piece is exported from scratch,
     * which ends where the piece does. */
    size_t begin = out->len;
    llama_memory_seq_cp(llama->mem, seq, llama->scratch, p0, p1);
    int err = get_blob(llama, llama->scratch, PARTIAL, out);
    if (err == HEARTH_OK && window_holds(out->data + begin, out->len - begin) != (uint32_t)(p1 - p0)) {
        err = HEARTH_ERR_STATE;
    }
    clear(llama, llama->scratch);
    if (err != HEARTH_OK) {
        out->len = begin;
    }
    return err;
}

/* The first piece goes into the sequence itself, because that drops its window and leaves the pages alone. */
int hearth_llama_window_import(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob,
                               size_t len, bool first) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(valid(llama, seq) && engine->caps.window_tokens > 0 && p0 >= 0 && p0 < p1);
    const llama_seq_id to = first ? seq : llama->scratch;
    int err =
        window_holds(blob, len) >= (uint32_t)(p1 - p0) ? set_blob(llama, blob, len, to, PARTIAL) : HEARTH_ERR_STATE;
    if (!first) {
        if (err == HEARTH_OK) {
            llama_memory_seq_cp(llama->mem, llama->scratch, seq, p0, p1);
        }
        clear(llama, llama->scratch);
    } else if (err == HEARTH_OK && llama_memory_seq_pos_max(llama->mem, seq) >= p1) {
        llama_memory_seq_rm(llama->mem, seq, p1, -1); /* the last one, too: there are no pages behind it */
    }
    if (err == HEARTH_OK && (llama_memory_seq_pos_max(llama->mem, seq) + 1 != p1 ||
                             (first && llama_memory_seq_pos_min(llama->mem, seq) > p0))) {
        err = HEARTH_ERR_STATE;
    }
    if (err != HEARTH_OK) {
        clear(llama, seq);
    }
    return err;
}
