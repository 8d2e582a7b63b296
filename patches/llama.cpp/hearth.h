/* Rows computed one by one, attention over the cells that a row sees, and a barrier: hearth's additions to ggml's CPU
 * backend. ggml-cpu.c asks these functions in six places (rows.patch); ggml_hearth_set() in ggml-cpu.h switches them.
 *
 * Threads: ggml's, inside of one operation. */
#pragma once

#include "ggml-cpu-impl.h"

#include <stdatomic.h>

/* Whether a product of so many rows is to be computed row by row; 0 rows: whether any product is. */
bool ggml_hearth_apart(int64_t rows);

/* A product with repacked weights as one with a plane for each row, built in `room`; other operations as they are. */
struct ggml_tensor *ggml_hearth_planes(struct ggml_tensor *op, struct ggml_tensor room[2]);

/* Attention. False: ggml is to compute it. */
bool ggml_hearth_attend(const struct ggml_compute_params *params, struct ggml_tensor *dst);

/* ggml-cpu.c: a pool of one thread, at whose barrier a thread does not wait. */
struct ggml_threadpool *ggml_hearth_pool_of_one(void);

/* A barrier for so many threads of one graph: `arrived` counts those that are there, `passed` how often all were.
 * False, for all of them: ggml's barrier is to be used. */
bool ggml_hearth_barrier(atomic_int *arrived, atomic_int *passed, int threads);
