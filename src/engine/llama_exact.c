/* Small batches: of one sequence, computed exactly as their tokens would be one by one.
 *
 * Tokens that were guessed ahead are verified in one batch, and replies have to be the same with and without. But
 * ggml's CPU kernels round differently by the number of rows, in four places; activations are quantised in between, so
 * that the last bit of one row becomes tenths of a logit further on, and now and then another token. Each of the four
 * has a form that takes rows one at a time and reads the weights as often as before, or from the cache; it is chosen
 * here, for batches of one sequence with at most 1 + HEARTH_DRAFT_MAX tokens.
 *
 *   attention          with one row the cells are divided among the threads, with more the rows are. Row by row, in
 *                      llama_attention.c.
 *   repacked weights   from four rows on another kernel computes four at a time. Here: rows as planes, for which it
 *                      has only the kernel of one.
 *   tiled products     from eight rows on, for K-quants. Here: refused, so that the product that takes row by row is
 *                      used.
 *   float weights      from two rows on the tiled product of llamafile. Here: refused, likewise. Its quantised forms
 *                      round like one row's and stay.
 *
 * Whether a model computes exactly is found out at load (selftest), never assumed.
 *
 * A deterministic engine has every batch computed so, whatever is in it, and attention without an order
 * (llama_unordered.c): each token's numbers are then a function of the tokens before it alone, not of how a prompt was
 * split, of what is beside it, or of where its cells are.
 * Weights are used a row at a time, which is slow for prompts.
 *
 * Threads: `small` is set for one graph at a time (llama.c sees to that); ggml's threads read it.
 * Source: repack.cpp, tiled/tiled.cpp and llamafile/sgemm.cpp in ggml/src/ggml-cpu of the llama.cpp this builds on. */
#include "engine/llama_wrapped.h"

#include <stdatomic.h>
#include <string.h>

#ifdef HEARTH_GGML_WRAPPED

typedef bool extra_fn(struct ggml_compute_params *params, struct ggml_tensor *op);
typedef bool tiled_fn(const struct ggml_compute_params *params, struct ggml_tensor *dst);
typedef bool tiled_id_fn(const struct ggml_compute_params *params, struct ggml_tensor *dst, int64_t expert,
                         int64_t rows, const int32_t *map, char *scratch);
typedef bool sgemm_fn(const struct ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *a,
                      int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc, int a_type, int b_type,
                      int c_type);

/* ggml's own. */
extra_fn __real_ggml_cpu_extra_compute_forward;
sgemm_fn __real_llamafile_sgemm;
tiled_fn __real_ggml_compute_forward_mul_mat_tiled;
tiled_id_fn __real_ggml_compute_forward_mul_mat_id_tiled;

extra_fn __wrap_ggml_cpu_extra_compute_forward;
sgemm_fn __wrap_llamafile_sgemm;
tiled_fn __wrap_ggml_compute_forward_mul_mat_tiled;
tiled_id_fn __wrap_ggml_compute_forward_mul_mat_id_tiled;

static _Atomic bool small, every;

bool hearth_llama_exact_linked(void) {
    return true;
}

void hearth_llama_exact_batch(const struct hearth_batch_item *items, size_t n, bool deterministic) {
    bool one = n <= HEARTH_SMALL_ROWS_MAX;
    atomic_store_explicit(&every, deterministic, memory_order_relaxed);
    for (size_t i = 1; i < n && one; i++) {
        one = items[i].seq == items[0].seq;
    }
    atomic_store_explicit(&small, one, memory_order_relaxed);
    hearth_llama_attention_reserve(n);
}

bool hearth_llama_batch_is_small(void) {
    return atomic_load_explicit(&small, memory_order_relaxed);
}

bool hearth_llama_batch_is_deterministic(void) {
    return atomic_load_explicit(&every, memory_order_relaxed);
}

/* Whether so many rows are to be computed as they would be one by one. */
static bool rows_apart(int64_t rows) {
    return hearth_llama_batch_is_deterministic() || (rows <= HEARTH_SMALL_ROWS_MAX && hearth_llama_batch_is_small());
}

/* ---- products ---- */

static bool repacked(const struct ggml_tensor *weights) {
    return weights->buffer != NULL && weights->extra != NULL &&
           strstr(ggml_backend_buft_name(ggml_backend_buffer_get_type(weights->buffer)), "REPACK") != NULL;
}

bool __wrap_ggml_cpu_extra_compute_forward(struct ggml_compute_params *params, struct ggml_tensor *op) {
    const struct ggml_tensor *weights = op->src[0], *rows = op->src[1];
    if (op->op != GGML_OP_MUL_MAT || rows->ne[1] < 2 || rows->ne[2] != 1 || rows->ne[3] != 1 ||
        !rows_apart(rows->ne[1]) || !repacked(weights)) {
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
    return !rows_apart(0) && __real_ggml_compute_forward_mul_mat_tiled(params, dst);
}

bool __wrap_ggml_compute_forward_mul_mat_id_tiled(const struct ggml_compute_params *params, struct ggml_tensor *dst,
                                                  int64_t expert, int64_t rows, const int32_t *map, char *scratch) {
    return !rows_apart(0) && __real_ggml_compute_forward_mul_mat_id_tiled(params, dst, expert, rows, map, scratch);
}

bool __wrap_llamafile_sgemm(const struct ggml_compute_params *params, int64_t m, int64_t n, int64_t k, const void *a,
                            int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc, int a_type, int b_type,
                            int c_type) {
    if (!ggml_is_quantized((enum ggml_type)a_type) && rows_apart(n)) {
        return false;
    }
    return __real_llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type, c_type);
}

#else

bool hearth_llama_exact_linked(void) {
    return false;
}

void hearth_llama_exact_batch(const struct hearth_batch_item *items, size_t n, bool deterministic) {
    (void)items;
    (void)n;
    (void)deterministic;
}

#endif
