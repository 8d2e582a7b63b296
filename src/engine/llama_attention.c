/* Attention on the CPU: each row over its own cells, and small batches as exactly as their rows one by one.
 *
 * All lanes share one cache, so that they can share cells; each row of a batch sees those of its sequence and has the
 * others masked. ggml's kernels go through them all the same: row by row they look at every mask, and tiles of 64 rows
 * turn every mask to single precision for each head, and are computed whole where rows of two sequences meet. Here, a
 * batch is cut into blocks of rows that see about the same cells, and each block is computed by ggml's kernels over
 * these cells alone. What a row's cells are is read from the mask, so that nothing depends on how batches are made.
 *
 * A tile costs about as much as eight rows one by one, but ggml takes it only from 64 rows on: 60 tokens behind a
 * thousand took SmolLM2 three times as long as 70. A block of fewer rows is computed as a tile where that is cheaper,
 * with other rows around it, or with rows that see nothing where the batch has no more. Where ggml divides the rows of
 * all heads evenly among threads, tiles begin and end within a head; here they do not: a prompt of 2,600 tokens in
 * batches of 128 took SmolLM2 11 s instead of 18.
 *
 * Small batches (llama_exact.c says what they are for): with one row ggml divides the cells among the threads, with
 * more the rows. Here it is row by row in any case, and over the cells that the row may see, in steps of 256 as
 * llama.cpp's own, so that cells of other sequences and of tokens behind it do not move the division.
 *
 * Deterministic (llama_exact.c): every row by itself, and by one thread, in a sum that has no order
 * (llama_unordered.c): neither where its cells are nor the number of threads moves it.
 *
 * Threads: ggml's, in one operation at a time (llama.c computes one graph at a time). `ranges` has room before the
 * graph begins; each thread fills some of it, and of `filled`, and all read them behind a barrier. A head of a block,
 * or a group of a row's heads, is a unit of work; `claimed` counts those that were taken, and the last thread to find
 * none left puts it back for the next operation, which begins when all have ended this one. ggml's own function waits
 * for the other threads inside: within a unit, which one thread computes, that wait is left out.
 * Source: ops.cpp, ggml-cpu.c and ggml-cpu-impl.h in ggml/src/ggml-cpu of the llama.cpp this builds on. */
#include "engine/llama_wrapped.h"

#ifdef HEARTH_GGML_WRAPPED

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CELLS_STEP 256
#define HALF_MINUS_INFINITY 0xFC00
#define TILE_ROWS 64   /* of ggml's tiled attention */
#define TILE_COST 8    /* rows one by one that take as long as a tile does */
#define MASKED_COST 16 /* masked cells that are passed while one is taken in */
#define TILE_MIN_CELLS                                                                                             \
    256               /* of a block for which rows are added that see nothing: with fewer there is little to gain, \
                         and row by row the sum does not depend on where the cells are */
#define SAMPLES 128   /* of a row's masks, to tell how many it sees */
#define NEAR_CELLS 16 /* rows whose cells begin and end so near to each other's are one sequence's, or might be */

typedef void attention_fn(const struct ggml_compute_params *params, struct ggml_tensor *dst);

/* ggml's own. */
attention_fn __real_ggml_compute_forward_flash_attn_ext;
void __real_ggml_barrier(struct ggml_threadpool *pool);

attention_fn __wrap_ggml_compute_forward_flash_attn_ext;
void __wrap_ggml_barrier(struct ggml_threadpool *pool);

/* The cells that a row may see: those before `from`, and from `to` on, are masked; of those between, about `seen` are
 * not. */
struct range {
    int64_t from, to, seen;
};

/* Rows [row, row + count), all their cells, and the most that one of them sees. */
struct block {
    int64_t row, count;
    struct range cells;
    bool tiled;
};

/* What a thread needs for tiles; its own, and used again. */
struct scratch {
    float *out, *q; /* TILE_ROWS values, and TILE_ROWS queries */
    float *scores;  /* of a row's cells */
    size_t out_cap, q_cap, scores_cap;
};

static struct {
    struct range *v;
    size_t cap;
} ranges;
/* The masks of a batch that is smaller than a tile, and behind them TILE_ROWS rows that see nothing. */
static struct {
    uint16_t *v;
    size_t cap;
} filled;
static struct scratch scratches[GGML_MAX_N_THREADS];
static _Atomic int64_t claimed;
static _Atomic int left;
static _Thread_local bool alone; /* inside of a unit */

void hearth_llama_attention_reserve(size_t rows) {
    if (rows > ranges.cap) {
        free(ranges.v);
        ranges.v = malloc(rows * sizeof *ranges.v);
        ranges.cap = ranges.v != NULL ? rows : 0; /* without, ggml goes its own way */
    }
}

void __wrap_ggml_barrier(struct ggml_threadpool *pool) {
    if (!alone) {
        __real_ggml_barrier(pool);
    }
}

/* ---- which cells ---- */

static const uint16_t *mask_row(const struct ggml_tensor *mask, int64_t row) {
    return (const uint16_t *)((const char *)mask->data + (size_t)row * mask->nb[1]);
}

/* Four cells at a time, as most of a mask is masked. */
static bool masked4(const uint16_t *cells) {
    static const uint16_t all[4] = {HALF_MINUS_INFINITY, HALF_MINUS_INFINITY, HALF_MINUS_INFINITY, HALF_MINUS_INFINITY};
    return memcmp(cells, all, sizeof all) == 0;
}

/* A row that sees nothing has one cell, which is masked. */
static struct range range_of(const struct ggml_tensor *mask, int64_t row) {
    const uint16_t *cells = mask_row(mask, row);
    struct range range = {0, mask->ne[0], 0};
    while (range.to - range.from >= 4 && masked4(cells + range.from)) {
        range.from += 4;
    }
    while (range.from < range.to - 1 && cells[range.from] == HALF_MINUS_INFINITY) {
        range.from++;
    }
    while (range.to - range.from > 4 && masked4(cells + range.to - 4)) {
        range.to -= 4;
    }
    while (range.to - 1 > range.from && cells[range.to - 1] == HALF_MINUS_INFINITY) {
        range.to--;
    }
    /* Of long ranges a sample, in odd steps, as lanes that decode take cells in turn. */
    int64_t step = (range.to - range.from) / SAMPLES | 1;
    for (int64_t i = range.from; i < range.to; i += step) {
        range.seen += cells[i] != HALF_MINUS_INFINITY;
    }
    range.seen *= step;
    return range;
}

/* What a row takes, in cells that are not masked. */
static int64_t cost(struct range range) {
    return range.seen + (range.to - range.from - range.seen) / MASKED_COST;
}

static bool near(int64_t a, int64_t b) {
    return a <= b + NEAR_CELLS && b <= a + NEAR_CELLS;
}

/* The block that begins with a row, of a batch of `rows`. */
static struct block block_at(const struct ggml_tensor *dst, int64_t row, int64_t rows) {
    const struct ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    struct block block = {.row = row, .count = 1, .cells = ranges.v[row]};
    int64_t one_by_one = cost(block.cells);
    while (block.count < TILE_ROWS && row + block.count < rows) {
        struct range before = ranges.v[row + block.count - 1], next = ranges.v[row + block.count];
        if (!near(before.from, next.from) || !near(before.to, next.to)) {
            break;
        }
        block.cells.from = next.from < block.cells.from ? next.from : block.cells.from;
        block.cells.to = next.to > block.cells.to ? next.to : block.cells.to;
        block.cells.seen = next.seen > block.cells.seen ? next.seen : block.cells.seen;
        one_by_one += cost(next);
        block.count++;
    }
    bool can = q->type == GGML_TYPE_F32 && k->type == v->type && (k->type == GGML_TYPE_F16 || k->type == GGML_TYPE_F32);
    block.tiled = can && !hearth_llama_batch_is_deterministic() && one_by_one >= TILE_COST * cost(block.cells) &&
                  (rows >= TILE_ROWS || block.cells.seen >= TILE_MIN_CELLS);
    return block;
}

/* Keys, values and masks of these cells alone. */
static void narrow(struct ggml_tensor *k, struct ggml_tensor *v, struct ggml_tensor *mask, struct range cells) {
    k->data = (char *)k->data + (size_t)cells.from * k->nb[1];
    v->data = (char *)v->data + (size_t)cells.from * v->nb[1];
    mask->data = (char *)mask->data + (size_t)cells.from * mask->nb[0];
    k->ne[1] = v->ne[1] = mask->ne[0] = cells.to - cells.from;
}

/* ---- rows ---- */

/* Some rows, some cells, perhaps some heads: views of everything that depends on them. */
struct view {
    struct ggml_tensor out, q, k, v, mask, sinks;
};

static void view_init(struct view *view, const struct ggml_tensor *dst, int64_t row, int64_t count,
                      struct range cells) {
    *view = (struct view){*dst, *dst->src[0], *dst->src[1], *dst->src[2], *dst->src[3], {0}};
    view->q.data = (char *)view->q.data + (size_t)row * view->q.nb[1];
    view->mask.data = (char *)view->mask.data + (size_t)row * view->mask.nb[1];
    view->out.data = (char *)view->out.data + (size_t)row * view->out.nb[2];
    view->q.ne[1] = view->mask.ne[1] = view->out.ne[2] = count;
    narrow(&view->k, &view->v, &view->mask, cells);
    view->out.src[0] = &view->q;
    view->out.src[1] = &view->k;
    view->out.src[2] = &view->v;
    view->out.src[3] = &view->mask;
}

/* Only `count` heads, which share keys and values. */
static void view_heads(struct view *view, const struct ggml_tensor *dst, int64_t head, int64_t count) {
    int64_t shared = view->q.ne[2] / view->k.ne[2];
    view->q.data = (char *)view->q.data + (size_t)head * view->q.nb[2];
    view->k.data = (char *)view->k.data + (size_t)(head / shared) * view->k.nb[2];
    view->v.data = (char *)view->v.data + (size_t)(head / shared) * view->v.nb[2];
    view->out.data = (char *)view->out.data + (size_t)head * view->out.nb[1];
    view->q.ne[2] = view->out.ne[1] = count;
    view->k.ne[2] = view->v.ne[2] = 1;
    if (dst->src[4] != NULL) {
        view->sinks = *dst->src[4];
        view->sinks.data = (char *)view->sinks.data + (size_t)head * sizeof(float);
        view->out.src[4] = &view->sinks;
    }
}

/* All threads, one row after the other. */
static void attend_exactly(const struct ggml_compute_params *params, const struct ggml_tensor *dst) {
    int64_t cells = dst->src[3]->ne[0];
    for (int64_t row = 0; row < dst->src[0]->ne[1]; row++) {
        struct range range = range_of(dst->src[3], row);
        range.from = range.from / CELLS_STEP * CELLS_STEP;
        range.to = (range.to + CELLS_STEP - 1) / CELLS_STEP * CELLS_STEP;
        range.to = range.to < cells ? range.to : cells;
        if (row > 0) {
            __real_ggml_barrier(params->threadpool); /* the row before may still be read from the work buffer */
        }
        struct view view;
        view_init(&view, dst, row, 1, range);
        __real_ggml_compute_forward_flash_attn_ext(params, &view.out);
    }
}

/* ---- units: by one thread ---- */

/* ggml's own, as if there were no other thread, in this one's part of the work buffer. */
static void attend_alone(const struct ggml_compute_params *params, struct view *view) {
    struct ggml_compute_params own = *params;
    own.wsize = params->wsize / (size_t)params->nth / 64 * 64;
    own.wdata = (char *)params->wdata + own.wsize * (size_t)params->ith;
    own.ith = 0;
    own.nth = 1;
    alone = true;
    __real_ggml_compute_forward_flash_attn_ext(&own, &view->out);
    alone = false;
}

/* Memory for so many bytes in place of some that is too small; what was in it is lost. NULL: there is none. */
static void *room(void *v, size_t *cap, size_t bytes) {
    if (bytes > *cap) {
        free(v);
        v = malloc(bytes);
        *cap = v != NULL ? bytes : 0;
    }
    return v;
}

static void attend_row(const struct ggml_compute_params *params, const struct ggml_tensor *dst, int64_t row,
                       int64_t head, int64_t heads) {
    const struct range range = ranges.v[row];
    if (hearth_llama_is_unordered(dst)) {
        struct scratch *scratch = &scratches[params->ith];
        scratch->scores = room(scratch->scores, &scratch->scores_cap, (size_t)(range.to - range.from) * sizeof(float));
        const struct hearth_llama_cells cells = {range.from, range.to, scratch->scores};
        hearth_llama_attend_unordered(dst, row, head, heads, &cells);
        return;
    }
    struct view view;
    view_init(&view, dst, row, 1, range);
    view_heads(&view, dst, head, heads);
    attend_alone(params, &view);
}

/* All threads: makes the masks of a small batch, unless there is no memory. */
static void fill_masks(const struct ggml_compute_params *params, const struct ggml_tensor *mask) {
    size_t cells = (size_t)mask->ne[0], rows = (size_t)mask->ne[1] + TILE_ROWS;
    if (params->ith == 0) {
        filled.v = room(filled.v, &filled.cap, rows * cells * sizeof *filled.v);
    }
    __real_ggml_barrier(params->threadpool);
    for (size_t row = (size_t)params->ith; row < rows && filled.v != NULL; row += (size_t)params->nth) {
        uint16_t *to = filled.v + row * cells;
        if (row < (size_t)mask->ne[1]) {
            memcpy(to, mask_row(mask, (int64_t)row), cells * sizeof *to);
            continue;
        }
        for (size_t i = 0; i < cells; i++) {
            to[i] = HALF_MINUS_INFINITY;
        }
    }
    __real_ggml_barrier(params->threadpool);
}

/* A tile that the batch has too few rows for: copies of the block's queries, and none behind them. */
static bool fill_tile(struct scratch *scratch, const struct ggml_tensor *dst, const struct block *block,
                      struct view *view) {
    size_t bytes = (size_t)view->q.ne[0] * sizeof(float), cells = (size_t)dst->src[3]->ne[0];
    scratch->q = room(scratch->q, &scratch->q_cap, bytes * TILE_ROWS);
    if (filled.v == NULL || scratch->q == NULL) {
        return false;
    }
    for (int64_t row = 0; row < TILE_ROWS; row++) {
        float *to = scratch->q + (size_t)(row * view->q.ne[0]);
        if (row < block->count) {
            memcpy(to, (const char *)view->q.data + (size_t)row * view->q.nb[1], bytes);
        } else {
            memset(to, 0, bytes);
        }
    }
    view->q.data = scratch->q;
    view->q.nb[1] = bytes;
    view->q.nb[2] = view->q.nb[3] = bytes * TILE_ROWS;
    view->mask.data = filled.v + (size_t)block->row * cells + block->cells.from;
    view->mask.nb[1] = cells * sizeof *filled.v;
    view->mask.nb[2] = view->mask.nb[3] = view->mask.nb[1] * TILE_ROWS;
    view->q.ne[1] = view->mask.ne[1] = view->out.ne[2] = TILE_ROWS;
    return true;
}

/* One head of a block, as a tile. False: no memory. */
static bool attend_tile(const struct ggml_compute_params *params, const struct ggml_tensor *dst,
                        const struct block *block, int64_t head) {
    struct scratch *scratch = &scratches[params->ith];
    int64_t rows = dst->src[0]->ne[1], first = block->row; /* of the tile, which takes other rows along */
    size_t bytes = (size_t)dst->ne[0] * sizeof(float);
    struct view view;
    scratch->out = room(scratch->out, &scratch->out_cap, bytes * TILE_ROWS);
    if (scratch->out == NULL) {
        return false;
    }
    if (rows >= TILE_ROWS) {
        first = block->row < rows - TILE_ROWS ? block->row : rows - TILE_ROWS;
        view_init(&view, dst, first, TILE_ROWS, block->cells);
        view_heads(&view, dst, head, 1);
    } else {
        view_init(&view, dst, first, block->count, block->cells);
        view_heads(&view, dst, head, 1);
        if (!fill_tile(scratch, dst, block, &view)) {
            return false;
        }
    }
    view.out.data = scratch->out;
    view.out.nb[1] = view.out.nb[2] = bytes;
    view.out.nb[3] = bytes * TILE_ROWS;
    attend_alone(params, &view);
    for (int64_t row = block->row; row < block->row + block->count; row++) {
        memcpy((char *)dst->data + (size_t)row * dst->nb[2] + (size_t)head * dst->nb[1],
               scratch->out + (row - first) * dst->ne[0], bytes);
    }
    return true;
}

static void attend_unit(const struct ggml_compute_params *params, const struct ggml_tensor *dst,
                        const struct block *block, int64_t unit) {
    int64_t shared = dst->src[0]->ne[2] / dst->src[1]->ne[2], groups = dst->src[1]->ne[2];
    if (!block->tiled) {
        attend_row(params, dst, block->row + unit / groups, unit % groups * shared, shared);
        return;
    }
    if (!attend_tile(params, dst, block, unit)) {
        for (int64_t row = block->row; row < block->row + block->count; row++) {
            attend_row(params, dst, row, unit, 1);
        }
    }
}

/* The same for all threads. */
static bool needs_filling(const struct ggml_tensor *dst, int64_t rows) {
    for (int64_t row = 0; row < rows && rows < TILE_ROWS;) {
        struct block block = block_at(dst, row, rows);
        if (block.tiled) {
            return true;
        }
        row += block.count;
    }
    return false;
}

static int64_t claim(void) {
    return atomic_fetch_add_explicit(&claimed, 1, memory_order_relaxed);
}

static void attend_blocks(const struct ggml_compute_params *params, const struct ggml_tensor *dst) {
    int64_t rows = dst->src[0]->ne[1], heads = dst->src[0]->ne[2], groups = dst->src[1]->ne[2];
    for (int64_t row = params->ith; row < rows; row += params->nth) {
        ranges.v[row] = range_of(dst->src[3], row);
    }
    __real_ggml_barrier(params->threadpool);
    if (needs_filling(dst, rows)) {
        fill_masks(params, dst->src[3]);
    }
    int64_t before = 0, unit = claim();
    for (int64_t row = 0; row < rows;) {
        struct block block = block_at(dst, row, rows);
        int64_t units = block.tiled ? heads : block.count * groups;
        for (; unit < before + units; unit = claim()) {
            attend_unit(params, dst, &block, unit - before);
        }
        before += units;
        row += block.count;
    }
    if (atomic_fetch_add(&left, 1) + 1 == params->nth) {
        atomic_store(&left, 0);
        atomic_store(&claimed, 0);
    }
}

/* ---- ggml's function ---- */

void __wrap_ggml_compute_forward_flash_attn_ext(const struct ggml_compute_params *params, struct ggml_tensor *dst) {
    const struct ggml_tensor *q = dst->src[0], *mask = dst->src[3];
    float max_bias;
    memcpy(&max_bias, (const float *)dst->op_params + 1, sizeof max_bias);
    bool plain = q->ne[3] == 1 && dst->src[1]->ne[3] == 1 && mask != NULL && mask->type == GGML_TYPE_F16 &&
                 mask->ne[2] == 1 && mask->ne[3] == 1;
    bool small = (q->ne[1] == 1 || (q->ne[1] <= HEARTH_SMALL_ROWS_MAX && hearth_llama_batch_is_small())) &&
                 !hearth_llama_is_unordered(dst) && !(hearth_llama_batch_is_deterministic() && max_bias == 0);
    if (plain && small) {
        attend_exactly(params, dst);
    } else if (plain && (max_bias == 0 || hearth_llama_is_unordered(dst)) && (size_t)q->ne[1] <= ranges.cap &&
               params->nth <= GGML_MAX_N_THREADS) {
        attend_blocks(params, dst);
    } else {
        __real_ggml_compute_forward_flash_attn_ext(params, dst);
    }
}

#endif
