/* Small batches: of one sequence, computed exactly as their tokens would be one by one; and short prompts, computed as
 * fast per token as long ones.
 *
 * Tokens that were guessed ahead are verified in one batch, and replies have to be the same with and without. But
 * ggml's CPU kernels round differently by the number of rows, in four places; activations are quantised in between, so
 * that the last bit of one row becomes tenths of a logit further on, and now and then another token. Each of the four
 * has a form that takes rows one at a time and reads the weights as often as before, or from the cache; it is chosen
 * here, for batches of one sequence with at most 1 + HEARTH_DRAFT_MAX tokens.
 *
 *   attention          with one row the cells are divided among the threads, with more the rows are. Here: row by row,
 *                      and only over the cells up to the last that the row sees (in steps of 256, as llama.cpp's
 *                      own), so that cells of tokens behind it do not move the division. A single row likewise.
 *   repacked weights   from four rows on another kernel computes four at a time. Here: rows as planes, for which it
 *                      has only the kernel of one.
 *   tiled products     from eight rows on, for K-quants. Here: refused, so that the product that takes row by row is
 *                      used.
 *   float weights      from two rows on the tiled product of llamafile. Here: refused, likewise. Its quantised forms
 *                      round like one row's and stay.
 *
 * A prompt behind a long context is mostly attention, and ggml has a tiled kernel for that, but takes it only from 64
 * rows on: 60 tokens behind a thousand took SmolLM2 three times as long as 70. Batches that are too large to be small
 * and too few for the tiles are filled up with rows that see nothing.
 *
 * The functions are put in the way of ggml's own by the linker (--wrap, in meson.build), where ggml is a static
 * library. Elsewhere, and on other backends, nothing changes; whether a model computes exactly is found out at load
 * (selftest), never assumed.
 *
 * Threads: `small` and `filled` are set, and `fill` is made, for one graph at a time (llama.c sees to that) by the
 * thread that computes it; ggml's threads read them.
 * Source: ops.cpp, repack.cpp, tiled/tiled.cpp, llamafile/sgemm.cpp and ggml-cpu-impl.h in ggml/src/ggml-cpu of the
 * llama.cpp this builds on. */
#include "engine/llama_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifdef HEARTH_GGML_WRAPPED

#define CELLS_STEP 256
#define ROWS_MAX (1 + HEARTH_DRAFT_MAX)
#define HALF_MINUS_INFINITY 0xFC00
#define TILE_ROWS 64       /* of ggml's tiled attention */
#define FILL_MIN_ROWS 8    /* per sequence: a tile of 64 rows costs about as much as eight rows one by one */
#define FILL_MIN_CELLS 256 /* seen by a row: with fewer there is little to gain, and row by row the sum does not depend
                              on where the cells are */
#define FILL_HEAD_MAX 256  /* elements of a head, so that a tile fits a thread's buffer */

/* What ggml hands to each thread of an operation. */
struct ggml_compute_params {
    int ith, nth;
    size_t wsize;
    void *wdata;
    struct ggml_threadpool *threadpool;
    bool use_ref;
};

typedef void attention_fn(const struct ggml_compute_params *params, struct ggml_tensor *dst);
typedef bool extra_fn(struct ggml_compute_params *params, struct ggml_tensor *op);
typedef bool tiled_fn(const struct ggml_compute_params *params, struct ggml_tensor *dst);
typedef bool tiled_id_fn(const struct ggml_compute_params *params, struct ggml_tensor *dst, int64_t expert,
                         int64_t rows, const int32_t *map, char *scratch);
typedef bool sgemm_fn(const struct ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *a,
                      int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc, int a_type, int b_type,
                      int c_type);

/* ggml's own. */
attention_fn __real_ggml_compute_forward_flash_attn_ext;
extra_fn __real_ggml_cpu_extra_compute_forward;
sgemm_fn __real_llamafile_sgemm;
tiled_fn __real_ggml_compute_forward_mul_mat_tiled;
tiled_id_fn __real_ggml_compute_forward_mul_mat_id_tiled;
void ggml_barrier(struct ggml_threadpool *pool);

attention_fn __wrap_ggml_compute_forward_flash_attn_ext;
extra_fn __wrap_ggml_cpu_extra_compute_forward;
sgemm_fn __wrap_llamafile_sgemm;
tiled_fn __wrap_ggml_compute_forward_mul_mat_tiled;
tiled_id_fn __wrap_ggml_compute_forward_mul_mat_id_tiled;

static _Atomic bool small;  /* the batch is one sequence's, and small */
static _Atomic bool filled; /* its attention is filled up to a tile */

bool hearth_llama_exact_linked(void) {
    return true;
}

void hearth_llama_exact_batch(const struct hearth_batch_item *items, size_t n) {
    bool one = n <= ROWS_MAX;
    for (size_t i = 1; i < n && one; i++) {
        one = items[i].seq == items[0].seq;
    }
    atomic_store_explicit(&small, one, memory_order_relaxed);
    size_t sequences = 1; /* or more: what is counted are changes from one to the next */
    for (size_t i = 1; i < n; i++) {
        sequences += items[i].seq != items[i - 1].seq;
    }
    atomic_store_explicit(&filled, !one && n < TILE_ROWS && n >= FILL_MIN_ROWS * sequences, memory_order_relaxed);
}

/* ---- attention ---- */

/* How many cells a row looks at, up to the last it sees. */
static int64_t cells_seen(const struct ggml_tensor *mask, int64_t row, int64_t cells) {
    const uint16_t *seen = (const uint16_t *)((const char *)mask->data + (size_t)row * mask->nb[1]);
    int64_t last = cells;
    while (last > 0 && seen[last - 1] == HALF_MINUS_INFINITY) {
        last--;
    }
    int64_t steps = (last + CELLS_STEP - 1) / CELLS_STEP;
    int64_t rounded = (steps > 0 ? steps : 1) * CELLS_STEP;
    return rounded < cells ? rounded : cells;
}

/* One row of an attention: views on the stack of everything that depends on it. */
static void attend_row(const struct ggml_compute_params *params, const struct ggml_tensor *dst, int64_t row) {
    struct ggml_tensor out = *dst, q = *dst->src[0], k = *dst->src[1], v = *dst->src[2], mask = *dst->src[3];
    int64_t cells = cells_seen(&mask, row, k.ne[1]);
    q.data = (char *)q.data + (size_t)row * q.nb[1];
    q.ne[1] = 1;
    mask.data = (char *)mask.data + (size_t)row * mask.nb[1];
    mask.ne[0] = cells;
    mask.ne[1] = 1;
    k.ne[1] = v.ne[1] = cells;
    out.data = (char *)out.data + (size_t)row * out.nb[2];
    out.ne[2] = 1;
    out.src[0] = &q;
    out.src[1] = &k;
    out.src[2] = &v;
    out.src[3] = &mask;
    __real_ggml_compute_forward_flash_attn_ext(params, &out);
}

/* One head's rows, filled up, on one thread. */
struct tile {
    float q[TILE_ROWS * FILL_HEAD_MAX], out[TILE_ROWS * FILL_HEAD_MAX];
};

/* What the threads of an operation share; the first one makes it before the others go on, and it is used again. */
static struct {
    struct tile *tiles; /* one for each thread */
    size_t threads;
    uint16_t *mask; /* TILE_ROWS rows of cells */
    size_t mask_cap;
} fill;

static bool sees_many(const struct ggml_tensor *mask, int64_t row) {
    const uint16_t *seen = (const uint16_t *)((const char *)mask->data + (size_t)row * mask->nb[1]);
    int64_t many = 0;
    for (int64_t i = 0; i < mask->ne[0]; i++) {
        many += seen[i] != HALF_MINUS_INFINITY;
    }
    return many >= FILL_MIN_CELLS;
}

/* Tiles, and a mask with rows that see nothing below those that there are. False: not worth it, or not to be had. */
static bool fill_begin(const struct ggml_tensor *mask, size_t threads) {
    size_t cells = (size_t)mask->ne[0], wanted = cells * TILE_ROWS;
    if (!sees_many(mask, 0) && !sees_many(mask, mask->ne[1] - 1)) {
        return false;
    }
    if (threads > fill.threads) {
        free(fill.tiles);
        fill.tiles = malloc(threads * sizeof *fill.tiles);
        fill.threads = fill.tiles != NULL ? threads : 0;
    }
    if (wanted > fill.mask_cap) {
        free(fill.mask);
        fill.mask = malloc(wanted * sizeof *fill.mask);
        fill.mask_cap = fill.mask != NULL ? wanted : 0;
    }
    if (fill.tiles == NULL || fill.mask == NULL) {
        return false;
    }
    for (size_t row = 0; row < TILE_ROWS; row++) {
        uint16_t *to = fill.mask + row * cells;
        if (row < (size_t)mask->ne[1]) {
            memcpy(to, (const char *)mask->data + row * mask->nb[1], cells * sizeof *to);
        } else {
            for (size_t i = 0; i < cells; i++) {
                to[i] = HALF_MINUS_INFINITY;
            }
        }
    }
    return true;
}

/* One head's attention, on one thread: ggml's own for a tile of rows, and back what there is of them. */
static void attend_head(const struct ggml_compute_params *params, const struct ggml_tensor *dst, int64_t head) {
    struct ggml_tensor out = *dst, q = *dst->src[0], k = *dst->src[1], v = *dst->src[2], mask = *dst->src[3], sinks;
    struct tile *tile = &fill.tiles[params->ith];
    size_t rows = (size_t)q.ne[1], q_bytes = (size_t)q.ne[0] * sizeof(float), bytes = (size_t)v.ne[0] * sizeof(float);
    for (size_t row = 0; row < TILE_ROWS; row++) {
        float *to = tile->q + row * (size_t)q.ne[0];
        if (row < rows) {
            memcpy(to, (const char *)q.data + row * q.nb[1] + (size_t)head * q.nb[2], q_bytes);
        } else {
            memset(to, 0, q_bytes);
        }
    }
    k.data = (char *)k.data + (size_t)(head / (q.ne[2] / k.ne[2])) * k.nb[2];
    v.data = (char *)v.data + (size_t)(head / (q.ne[2] / v.ne[2])) * v.nb[2];
    k.ne[2] = v.ne[2] = 1;
    q.data = tile->q;
    q.ne[1] = mask.ne[1] = out.ne[2] = TILE_ROWS;
    q.ne[2] = out.ne[1] = 1;
    q.nb[1] = q_bytes;
    q.nb[2] = q.nb[3] = q_bytes * TILE_ROWS;
    mask.data = fill.mask;
    mask.nb[1] = (size_t)mask.ne[0] * sizeof *fill.mask;
    mask.nb[2] = mask.nb[3] = mask.nb[1] * TILE_ROWS;
    out.data = tile->out;
    out.nb[1] = out.nb[2] = bytes;
    out.nb[3] = bytes * TILE_ROWS;
    out.src[0] = &q;
    out.src[1] = &k;
    out.src[2] = &v;
    out.src[3] = &mask;
    if (dst->src[4] != NULL) {
        sinks = *dst->src[4];
        sinks.data = (char *)sinks.data + (size_t)head * sizeof(float);
        out.src[4] = &sinks;
    }
    struct ggml_compute_params alone = *params;
    size_t part = params->wsize / (size_t)params->nth;
    alone.ith = 0;
    alone.nth = 1;
    alone.wsize = part;
    alone.wdata = (char *)params->wdata + part / 64 * 64 * (size_t)params->ith;
    __real_ggml_compute_forward_flash_attn_ext(&alone, &out);
    for (size_t row = 0; row < rows; row++) {
        memcpy((char *)dst->data + row * dst->nb[2] + (size_t)head * dst->nb[1], (const char *)out.data + row * bytes,
               bytes);
    }
}

static bool fits_tile(const struct ggml_tensor *dst) {
    const struct ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    float max_bias;
    memcpy(&max_bias, (const float *)dst->op_params + 1, sizeof max_bias);
    return atomic_load_explicit(&filled, memory_order_relaxed) && q->ne[1] >= FILL_MIN_ROWS && q->ne[1] < TILE_ROWS &&
           q->ne[0] <= FILL_HEAD_MAX && v->ne[0] <= FILL_HEAD_MAX && q->type == GGML_TYPE_F32 && k->type == v->type &&
           (k->type == GGML_TYPE_F16 || k->type == GGML_TYPE_F32) && k->ne[3] == 1 && max_bias == 0;
}

/* Each thread takes some of the heads; ggml's own waits for all threads once in each call, so they make as many. The
 * first thread's answer whether to begin stands in the work buffer, which is written to only behind that wait. */
static bool attend_filled(const struct ggml_compute_params *params, const struct ggml_tensor *dst) {
    const struct ggml_tensor *q = dst->src[0], *mask = dst->src[3];
    volatile bool *begun = params->wdata;
    if (params->ith == 0) {
        *begun = fill_begin(mask, (size_t)params->nth);
    }
    ggml_barrier(params->threadpool);
    if (!*begun) {
        return false;
    }
    for (int64_t first = 0; first < q->ne[2]; first += params->nth) {
        if (first + params->ith < q->ne[2]) {
            attend_head(params, dst, first + params->ith);
        } else {
            ggml_barrier(params->threadpool);
        }
    }
    return true;
}

void __wrap_ggml_compute_forward_flash_attn_ext(const struct ggml_compute_params *params, struct ggml_tensor *dst) {
    const struct ggml_tensor *q = dst->src[0], *mask = dst->src[3];
    bool by_row = q->ne[1] == 1 || (q->ne[1] <= ROWS_MAX && atomic_load_explicit(&small, memory_order_relaxed));
    bool plain = q->ne[3] == 1 && mask != NULL && mask->type == GGML_TYPE_F16 && mask->ne[2] == 1 && mask->ne[3] == 1;
    if (plain && !by_row && fits_tile(dst) && attend_filled(params, dst)) {
        return;
    }
    if (!by_row || !plain) {
        __real_ggml_compute_forward_flash_attn_ext(params, dst);
        return;
    }
    for (int64_t row = 0; row < q->ne[1]; row++) {
        if (row > 0) {
            ggml_barrier(params->threadpool); /* the row before may still be read from the work buffer */
        }
        attend_row(params, dst, row);
    }
}

/* ---- products ---- */

static bool repacked(const struct ggml_tensor *weights) {
    return weights->buffer != NULL && weights->extra != NULL &&
           strstr(ggml_backend_buft_name(ggml_backend_buffer_get_type(weights->buffer)), "REPACK") != NULL;
}

bool __wrap_ggml_cpu_extra_compute_forward(struct ggml_compute_params *params, struct ggml_tensor *op) {
    const struct ggml_tensor *weights = op->src[0], *rows = op->src[1];
    if (op->op != GGML_OP_MUL_MAT || rows->ne[1] < 2 || rows->ne[1] > ROWS_MAX || rows->ne[2] != 1 ||
        rows->ne[3] != 1 || !atomic_load_explicit(&small, memory_order_relaxed) || !repacked(weights)) {
        return __real_ggml_cpu_extra_compute_forward(params, op);
    }
    struct ggml_tensor out = *op, planes = *rows;
    planes.ne[2] = out.ne[2] = rows->ne[1];
    planes.ne[1] = out.ne[1] = 1;
    planes.nb[2] = rows->nb[1];
    out.nb[2] = op->nb[1];
    planes.nb[3] = planes.nb[2] * (size_t)planes.ne[2];
    out.nb[3] = out.nb[2] * (size_t)out.ne[2];
    out.src[1] = &planes;
    return __real_ggml_cpu_extra_compute_forward(params, &out);
}

bool __wrap_ggml_compute_forward_mul_mat_tiled(const struct ggml_compute_params *params, struct ggml_tensor *dst) {
    return !atomic_load_explicit(&small, memory_order_relaxed) &&
           __real_ggml_compute_forward_mul_mat_tiled(params, dst);
}

bool __wrap_ggml_compute_forward_mul_mat_id_tiled(const struct ggml_compute_params *params, struct ggml_tensor *dst,
                                                  int64_t expert, int64_t rows, const int32_t *map, char *scratch) {
    return !atomic_load_explicit(&small, memory_order_relaxed) &&
           __real_ggml_compute_forward_mul_mat_id_tiled(params, dst, expert, rows, map, scratch);
}

bool __wrap_llamafile_sgemm(const struct ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *a,
                            int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc, int a_type, int b_type,
                            int c_type) {
    if (n <= ROWS_MAX && !ggml_is_quantized((enum ggml_type)a_type) &&
        atomic_load_explicit(&small, memory_order_relaxed)) {
        return false;
    }
    return __real_llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type, c_type);
}

#else

bool hearth_llama_exact_linked(void) {
    return false;
}

void hearth_llama_exact_batch(const struct hearth_batch_item *items, size_t n) {
    (void)items;
    (void)n;
}

#endif
