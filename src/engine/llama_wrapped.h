/* Where hearth stands in the way of ggml's CPU functions: by the linker (--wrap, in meson.build), where ggml is a
 * static library. Elsewhere, and on other backends, nothing changes.
 *
 * Threads: hearth_llama_exact_batch() is called before a graph is computed, one graph at a time; the rest is ggml's
 * threads'.
 * Source: ggml-cpu-impl.h in ggml/src/ggml-cpu of the llama.cpp this builds on. */
#ifndef HEARTH_ENGINE_LLAMA_WRAPPED_H
#define HEARTH_ENGINE_LLAMA_WRAPPED_H

#include "engine/llama_internal.h"

#ifdef HEARTH_GGML_WRAPPED

#define HEARTH_SMALL_ROWS_MAX (1 + HEARTH_DRAFT_MAX)

/* What ggml hands to each thread of an operation. */
struct ggml_compute_params {
    int ith, nth;
    size_t wsize;
    void *wdata;
    struct ggml_threadpool *threadpool;
    bool use_ref;
};

/* llama_exact.c: whether the batch is one sequence's and has at most HEARTH_SMALL_ROWS_MAX rows. */
bool hearth_llama_batch_is_small(void);
/* Likewise: whether every row is computed as it would be alone, however many there are. */
bool hearth_llama_batch_is_deterministic(void);
/* llama_attention.c: makes room for a batch's rows. Without memory ggml goes its own way. */
void hearth_llama_attention_reserve(size_t rows);

/* The cells of a row; those that are masked are passed. */
struct hearth_llama_cells {
    int64_t from, to;
    float *kept; /* room for as many; NULL: there is none, which takes longer */
};

/* llama_unordered.c: whether the batch is deterministic, and its heads are not too large. */
bool hearth_llama_is_unordered(const struct ggml_tensor *dst);
/* Some heads of a row, by this thread alone; the same wherever the cells are. */
void hearth_llama_attend_unordered(const struct ggml_tensor *dst, int64_t row, int64_t head, int64_t heads,
                                   const struct hearth_llama_cells *cells);

#endif

#endif
