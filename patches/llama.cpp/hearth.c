/* Rows computed one by one, attention over the cells that a row sees, and threads that do not spin while they wait.
 * ggml_hearth_set() chooses a mode for the graphs that follow; each mode adds to the one before it.
 *
 * STOCK: ggml's own kernels. The default.
 *
 * In every mode but STOCK, threads meet at the barrier of this file; a graph has hundreds of them. OpenMP's spins for
 * milliseconds before a thread sleeps. Where another program uses the cores, say a compiler that the agent has started,
 * the thread that is waited for is not running, and those that spin take the time that it needs. Here a thread spins
 * for some microseconds. A long sleep halves the time that the next one spins, a short one doubles it: on a machine
 * that does nothing else, threads hardly ever sleep. bench/cases/busy.py measures both.
 *
 * BLOCKS: attention passes over cells that a row does not see. All sequences share one cache, and each row has the
 * cells of others masked. ggml's kernels go through them all the same: row by row they look at every mask, and tiles of
 * 64 rows turn every mask to single precision for each head, and are computed whole where rows of two sequences meet.
 * Here a batch is cut into blocks of rows of one sequence, and ggml's kernels compute each block over its cells alone.
 * The mask tells the cells of a row, so nothing depends on how batches are made. A tile costs about as much as eight
 * rows one by one, but ggml takes it only from 64 rows on. A block of fewer rows is computed as a tile where that is
 * cheaper: with other rows around it, or with rows that see nothing where the batch has no more. Where cells of other
 * sequences lie between those of a block, as lanes that decode take cells in turn, its cells are copied beside each
 * other first.
 *
 * APART: batches of at most GGML_HEARTH_APART_MAX rows are computed as their rows would be one by one, to the bit.
 * ggml's kernels round differently by the number of rows, in four places, and each has a form that takes rows one at a
 * time and reads the weights as often as before, or from the cache:
 *
 *   attention         One row divides the cells among the threads, several divide the rows. Here: row by row, over the
 *                     cells that the row sees, in steps of 256 as llama.cpp pads the cache, so that cells of other
 *                     sequences do not move the division.
 *   repacked weights  From four rows on a kernel computes four at a time. Here: a plane for each row, for which there
 *                     is only the kernel of one row.
 *   tiled products    From eight rows on, for K-quants. Here: refused; the product of single rows is used.
 *   float weights     From two rows on llamafile's tiled product. Here: refused likewise. Its quantised forms round
 *                     like one row's and stay.
 *
 * UNORDERED: every batch is computed so, however large, and attention is a sum without an order: neither other rows nor
 * the places of the cells move a row's numbers. Each term is rounded to a multiple of one small number, by adding a
 * large constant and taking it off again. Sums of such multiples are exact while they fit into the 53 bits of a double,
 * and exact sums have no order.
 *
 *   highest  Over the scores; each is a function of its cell alone.
 *   weights  exp(score - highest), at most 1 each: multiples of 2^-31, exact for 2^21 cells.
 *   values   weight / sum of weights * value: multiples of 2^-34, exact for values up to 2^17; half precision ends at
 *            2^16.
 *
 * Threads: one graph at a time. `ranges` has room before the graph begins; each thread fills a part of it, and of
 * `masks`, and all read them behind a barrier. A unit of work is one head of a tiled block, or the heads of a row that
 * share keys; `claimed` counts the units that were taken, and the last thread to find none left resets it for the next
 * operation, which begins when all threads have ended this one. ggml's kernel waits at a barrier inside; in a unit it
 * gets a pool of one thread, which does not wait. */
#include "hearth.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ops.h"
#include "traits.h"

#include <stdatomic.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#endif

#define CELLS_STEP 256
#define HALF_MINUS_INFINITY 0xFC00
#define TILE_ROWS 64       /* of ggml's tiled attention */
#define TILE_COST 8        /* rows one by one that take as long as a tile does */
#define MASKED_COST 16     /* masked cells that are passed in the time of one that is seen */
#define TILE_MIN_CELLS 256 /* that a block sees before rows are added to it: below, a tile gains little */
#define SAMPLES 128        /* of a row's masks, to estimate how many cells it sees */
#define GAPS_SHARE 4       /* cells are copied where more than this part of those that a block sees lies between them */
#define COPIED_MAX 16384   /* cells that a block sees and that are copied: a thread's memory for it is bounded */
#define WIDTH_MAX 1024     /* of a key and of a value in an unordered sum; wider ones are left to ggml */
#define SPINS_MIN 16       /* turns of the loop at a barrier before a thread sleeps */
#define SPINS_MAX 2048     /* about 50 microseconds: longer than threads of one operation end apart */
#define SHORT_SLEEP_NS 100000
#define WEIGHT_BITS 31
#define VALUE_BITS 34
/* Added and taken off again, it leaves a multiple of 2^-bits. */
#define ROUNDER(bits) (1.5 * 4503599627370496.0 / (double)(1ull << (bits)))

/* The cells that a row may see: those before `from`, and from `to` on, are masked; of those between, about `seen` are
 * not. */
struct range {
    int64_t from, to, seen;
};

/* Rows [row, row + count) of one sequence, all their cells, and the most that one of them sees. */
struct block {
    int64_t row, count;
    struct range cells;
    bool tiled, copied; /* copied: a tile over copies of its cells */
};

/* A thread's memory for tiles and scores, used again. */
struct scratch {
    float *out, *q; /* TILE_ROWS results, and TILE_ROWS queries */
    float *scores;  /* of a row's cells */
    /* Of the block that begins with `row`, -1: none: its cells, 0 of them where its rows are computed one by one, and
     * their masks for TILE_ROWS rows. */
    int64_t row, cell_count;
    int32_t *cells;
    uint16_t *masks;
    char *kv; /* copies of one head's keys, then of its values */
    size_t out_cap, q_cap, scores_cap, cells_cap, masks_cap, kv_cap;
};

static _Atomic int mode;
static struct {
    struct range *v;
    size_t cap;
} ranges;
/* The masks of a batch that is smaller than a tile, followed by TILE_ROWS rows that see nothing. */
static struct {
    uint16_t *v;
    size_t cap;
} masks;
static struct scratch scratches[GGML_MAX_N_THREADS];
static _Atomic int64_t claimed;
static _Atomic int done;

void ggml_hearth_set(int64_t rows, enum ggml_hearth_mode to) {
    atomic_store_explicit(&mode, to, memory_order_relaxed);
    if (to != GGML_HEARTH_STOCK && (size_t)rows > ranges.cap) {
        free(ranges.v);
        ranges.v = malloc((size_t)rows * sizeof *ranges.v);
        ranges.cap = ranges.v != NULL ? (size_t)rows : 0; /* without memory ggml computes */
    }
}

static bool mode_is(enum ggml_hearth_mode m) {
    return (enum ggml_hearth_mode)atomic_load_explicit(&mode, memory_order_relaxed) == m;
}

/* ---- threads that wait for each other ---- */

#ifdef __linux__

/* How many threads sleep at the barrier, and for how many turns a thread spins before; written without a lock. */
static atomic_int sleeping, spins = SPINS_MAX;

/* Whether `passed` has moved on after at most `turns`. */
static bool spin(atomic_int *passed, int before, int turns) {
    for (int i = 0; i < turns; i++) {
        if (atomic_load_explicit(passed, memory_order_relaxed) != before) {
            return true;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield" ::: "memory");
#endif
    }
    return false;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Sleeps until `passed` has moved on. After a short sleep spinning would have been cheaper; after a long one it was
 * wasted. */
static void sleep_until_passed(atomic_int *passed, int before, int turns) {
    const int64_t from = now_ns();
    atomic_fetch_add(&sleeping, 1);
    while (atomic_load(passed) == before) {
        syscall(SYS_futex, passed, FUTEX_WAIT_PRIVATE, before, NULL, NULL, 0);
    }
    atomic_fetch_sub(&sleeping, 1);
    const int other = now_ns() - from < SHORT_SLEEP_NS ? 2 * turns : turns / 2;
    atomic_store_explicit(&spins,
                          other < SPINS_MIN   ? SPINS_MIN
                          : other > SPINS_MAX ? SPINS_MAX
                                              : other,
                          memory_order_relaxed);
}

bool ggml_hearth_barrier(atomic_int *arrived, atomic_int *passed, int threads) {
    if (mode_is(GGML_HEARTH_STOCK)) {
        return false;
    }
    const int before = atomic_load_explicit(passed, memory_order_relaxed);
    if (atomic_fetch_add(arrived, 1) == threads - 1) {
        atomic_store_explicit(arrived, 0, memory_order_relaxed);
        /* Either this thread sees a sleeper, or the sleeper, which counts itself first, sees `passed` moved. */
        atomic_fetch_add(passed, 1);
        if (atomic_load(&sleeping) > 0) {
            syscall(SYS_futex, passed, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
        }
        return true;
    }
    const int turns = atomic_load_explicit(&spins, memory_order_relaxed);
    if (!spin(passed, before, turns)) {
        sleep_until_passed(passed, before, turns);
    }
    atomic_thread_fence(memory_order_seq_cst);
    return true;
}

#else

bool ggml_hearth_barrier(atomic_int *arrived, atomic_int *passed, int threads) {
    (void)arrived;
    (void)passed;
    (void)threads;
    return false;
}

#endif

/* ---- products ---- */

bool ggml_hearth_apart(int64_t rows) {
    return mode_is(GGML_HEARTH_UNORDERED) || (mode_is(GGML_HEARTH_APART) && rows <= GGML_HEARTH_APART_MAX);
}

static bool repacked(const struct ggml_tensor *weights) {
    return weights->buffer != NULL && weights->extra != NULL &&
           strstr(ggml_backend_buft_name(ggml_backend_buffer_get_type(weights->buffer)), "REPACK") != NULL;
}

struct ggml_tensor *ggml_hearth_planes(struct ggml_tensor *op, struct ggml_tensor room[2]) {
    const struct ggml_tensor *rows = op->src[1];
    if (op->op != GGML_OP_MUL_MAT || rows->ne[1] < 2 || rows->ne[2] != 1 || rows->ne[3] != 1 ||
        !ggml_hearth_apart(rows->ne[1]) || !repacked(op->src[0])) {
        return op;
    }
    struct ggml_tensor *out = &room[0], *planes = &room[1];
    *out = *op;
    *planes = *rows;
    planes->ne[2] = out->ne[2] = rows->ne[1];
    planes->ne[1] = out->ne[1] = 1;
    planes->nb[2] = rows->nb[1];
    out->nb[2] = op->nb[1];
    planes->nb[3] = planes->nb[2] * (size_t)planes->ne[2];
    out->nb[3] = out->nb[2] * (size_t)out->ne[2];
    out->src[1] = planes;
    return out;
}

/* ---- the cells of a row ---- */

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
    while (range.to - range.from > 4 && masked4(cells + range.from)) {
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
    /* A sample of long ranges, in odd steps, as lanes that decode take cells in turn. */
    int64_t step = (range.to - range.from) / SAMPLES | 1;
    for (int64_t i = range.from; i < range.to; i += step) {
        range.seen += cells[i] != HALF_MINUS_INFINITY;
    }
    range.seen *= step;
    return range;
}

/* What a row takes, in cells that are seen. */
static int64_t cost(struct range range) {
    return range.seen + (range.to - range.from - range.seen) / MASKED_COST;
}

/* Whether a row is of the same sequence as the row before it: it sees the last cell of the other one, which sees its
 * first. Rows of several sequences may begin or end with the same cells, a head that they share. */
static bool goes_on(const struct ggml_tensor *mask, int64_t row) {
    return mask_row(mask, row)[ranges.v[row - 1].to - 1] != HALF_MINUS_INFINITY &&
           mask_row(mask, row - 1)[ranges.v[row].from] != HALF_MINUS_INFINITY;
}

/* The block that begins with a row, of a batch of `rows`. */
static struct block block_at(const struct ggml_tensor *dst, int64_t row, int64_t rows) {
    const struct ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    struct block block = {.row = row, .count = 1, .cells = ranges.v[row]};
    int64_t one_by_one = cost(block.cells);
    while (block.count < TILE_ROWS && row + block.count < rows) {
        struct range next = ranges.v[row + block.count];
        if (!goes_on(dst->src[3], row + block.count)) {
            break;
        }
        block.cells.from = next.from < block.cells.from ? next.from : block.cells.from;
        block.cells.to = next.to > block.cells.to ? next.to : block.cells.to;
        block.cells.seen = next.seen > block.cells.seen ? next.seen : block.cells.seen;
        one_by_one += cost(next);
        block.count++;
    }
    bool can = q->type == GGML_TYPE_F32 && k->type == v->type && (k->type == GGML_TYPE_F16 || k->type == GGML_TYPE_F32);
    const int64_t seen = block.cells.seen, gaps = block.cells.to - block.cells.from - seen;
    block.copied = seen <= COPIED_MAX && gaps > seen / GAPS_SHARE;
    block.tiled = can && !mode_is(GGML_HEARTH_UNORDERED) &&
                  one_by_one >= TILE_COST * (block.copied ? seen : cost(block.cells)) &&
                  (rows >= TILE_ROWS || seen >= TILE_MIN_CELLS);
    return block;
}

/* ---- views: some rows, some cells, perhaps some heads ---- */

struct view {
    struct ggml_tensor out, q, k, v, mask, sinks;
};

static void view_init(struct view *view, const struct ggml_tensor *dst, int64_t row, int64_t count,
                      struct range cells) {
    *view = (struct view){*dst, *dst->src[0], *dst->src[1], *dst->src[2], *dst->src[3], {0}};
    view->q.data = (char *)view->q.data + (size_t)row * view->q.nb[1];
    view->out.data = (char *)view->out.data + (size_t)row * view->out.nb[2];
    view->k.data = (char *)view->k.data + (size_t)cells.from * view->k.nb[1];
    view->v.data = (char *)view->v.data + (size_t)cells.from * view->v.nb[1];
    view->mask.data = (char *)view->mask.data + (size_t)row * view->mask.nb[1] + (size_t)cells.from * view->mask.nb[0];
    view->q.ne[1] = view->mask.ne[1] = view->out.ne[2] = count;
    view->k.ne[1] = view->v.ne[1] = view->mask.ne[0] = cells.to - cells.from;
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

/* ---- row by row, by all threads ---- */

static void attend_rows(const struct ggml_compute_params *params, const struct ggml_tensor *dst) {
    int64_t cells = dst->src[3]->ne[0];
    for (int64_t row = 0; row < dst->src[0]->ne[1]; row++) {
        struct range range = range_of(dst->src[3], row);
        range.from = range.from / CELLS_STEP * CELLS_STEP;
        range.to = (range.to + CELLS_STEP - 1) / CELLS_STEP * CELLS_STEP;
        range.to = range.to < cells ? range.to : cells;
        if (row > 0) {
            ggml_barrier(params->threadpool); /* the row before may still be read from the work buffer */
        }
        struct view view;
        view_init(&view, dst, row, 1, range);
        ggml_compute_forward_flash_attn_ext(params, &view.out);
    }
}

/* ---- unordered: some heads of a row, by one thread ---- */

/* One head of one row. */
struct head {
    const struct ggml_tensor *k, *v;
    const uint16_t *mask;
    const char *keys, *values; /* of its group */
    ggml_vec_dot_t dot;
    ggml_to_float_t to_float; /* NULL: the values are of single precision, or half */
    float scale, softcap, slope;
    struct range cells;
    float *scores;                                   /* room for one per cell; NULL: each is computed three times */
    __attribute__((aligned(64))) float q[WIDTH_MAX]; /* in the keys' type of dot product */
};

static bool is_unordered(const struct ggml_tensor *dst) {
    return mode_is(GGML_HEARTH_UNORDERED) && dst->src[0]->type == GGML_TYPE_F32 && dst->src[1]->ne[0] <= WIDTH_MAX &&
           dst->src[2]->ne[0] <= WIDTH_MAX;
}

static float slope_of(int64_t head, int64_t heads, float max_bias) {
    if (max_bias <= 0) {
        return 1;
    }
    const int64_t whole = (int64_t)1 << (int)floor(log2((double)heads));
    return head < whole ? powf(powf(2, -max_bias / (float)whole), (float)(head + 1))
                        : powf(powf(2, -max_bias / 2 / (float)whole), (float)(2 * (head - whole) + 1));
}

static void head_init(struct head *head, const struct ggml_tensor *dst, int64_t row, int64_t i) {
    const struct ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    const struct ggml_type_traits_cpu *keys = ggml_get_type_traits_cpu(k->type);
    float max_bias;
    memcpy(&head->scale, (const float *)dst->op_params, sizeof head->scale);
    memcpy(&max_bias, (const float *)dst->op_params + 1, sizeof max_bias);
    memcpy(&head->softcap, (const float *)dst->op_params + 2, sizeof head->softcap);
    head->scale = head->softcap != 0 ? head->scale / head->softcap : head->scale;
    head->slope = slope_of(i, q->ne[2], max_bias);
    head->k = k;
    head->v = v;
    head->keys = (const char *)k->data + (size_t)(i / (q->ne[2] / k->ne[2])) * k->nb[2];
    head->values = (const char *)v->data + (size_t)(i / (q->ne[2] / v->ne[2])) * v->nb[2];
    head->mask = mask_row(dst->src[3], row);
    head->dot = keys->vec_dot;
    head->to_float = ggml_get_type_traits(v->type)->to_float;
    const char *query = (const char *)q->data + (size_t)row * q->nb[1] + (size_t)i * q->nb[2];
    const ggml_from_float_t convert = ggml_get_type_traits_cpu(keys->vec_dot_type)->from_float;
    if (convert != NULL) {
        convert((const float *)query, head->q, k->ne[0]);
    } else {
        memcpy(head->q, query, (size_t)k->ne[0] * sizeof(float));
    }
}

/* -INFINITY: it is masked. */
static float score(const struct head *head, int64_t cell) {
    float s;
    if (head->mask[cell] == HALF_MINUS_INFINITY) {
        return -INFINITY;
    }
    head->dot((int)head->k->ne[0], &s, 0, head->keys + (size_t)cell * head->k->nb[1], 0, head->q, 0, 1);
    s *= head->scale;
    s = head->softcap != 0 ? head->softcap * tanhf(s) : s;
    return head->mask[cell] == 0 ? s : s + head->slope * ggml_fp16_to_fp32(head->mask[cell]);
}

static void add(double *sum, const float *value, double weight, int64_t width) {
    for (int64_t i = 0; i < width; i++) {
        sum[i] += (weight * (double)value[i] + ROUNDER(VALUE_BITS)) - ROUNDER(VALUE_BITS);
    }
}

static void add_cell(const struct head *head, int64_t cell, double weight, double *sum) {
    __attribute__((aligned(64))) float value[WIDTH_MAX];
    const char *at = head->values + (size_t)cell * head->v->nb[1];
    const int64_t width = head->v->ne[0];
    if (head->v->type == GGML_TYPE_F32) {
        add(sum, (const float *)at, weight, width);
        return;
    }
    if (head->v->type == GGML_TYPE_F16) {
        ggml_cpu_fp16_to_fp32((const ggml_fp16_t *)at, value, width);
    } else {
        head->to_float(at, value, width);
    }
    add(sum, value, weight, width);
}

/* exp(score - highest), from the scores or the weights that are stored in their place. */
static float weight(const struct head *head, int64_t cell, float highest) {
    const float s = head->scores != NULL ? head->scores[cell - head->cells.from] : score(head, cell);
    return s == -INFINITY ? 0 : expf(s - highest);
}

static void head_attend(const struct head *head, const float *sink, float *out) {
    __attribute__((aligned(64))) double sum[WIDTH_MAX];
    const int64_t width = head->v->ne[0], from = head->cells.from, to = head->cells.to;
    float highest = sink != NULL ? *sink : -INFINITY;
    for (int64_t cell = from; cell < to; cell++) {
        const float s = score(head, cell);
        highest = s > highest ? s : highest;
        if (head->scores != NULL) {
            head->scores[cell - from] = s;
        }
    }
    double weights = sink != NULL ? (double)expf(*sink - highest) : 0;
    for (int64_t cell = from; cell < to; cell++) {
        const float w = weight(head, cell, highest);
        weights += ((double)w + ROUNDER(WEIGHT_BITS)) - ROUNDER(WEIGHT_BITS);
        if (head->scores != NULL) {
            head->scores[cell - from] = w;
        }
    }
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t cell = from; cell < to; cell++) {
        const float w = head->scores != NULL ? head->scores[cell - from] : weight(head, cell, highest);
        if (w > 0) {
            add_cell(head, cell, (double)w / weights, sum);
        }
    }
    for (int64_t i = 0; i < width; i++) {
        out[i] = (float)sum[i];
    }
}

/* ---- units: by one thread ---- */

/* ggml's kernel without other threads, in this one's part of the work buffer. */
static void attend_alone(const struct ggml_compute_params *params, struct view *view) {
    struct ggml_compute_params own = *params;
    own.wsize = params->wsize / (size_t)params->nth / 64 * 64;
    own.wdata = (char *)params->wdata + own.wsize * (size_t)params->ith;
    own.ith = 0;
    own.nth = 1;
    own.threadpool = ggml_hearth_pool_of_one();
    ggml_compute_forward_flash_attn_ext(&own, &view->out);
}

/* Memory for so many bytes in place of some that is too small; its contents are lost. NULL: there is none. */
static void *grow(void *v, size_t *cap, size_t bytes) {
    if (bytes > *cap) {
        free(v);
        v = malloc(bytes);
        *cap = v != NULL ? bytes : 0;
    }
    return v;
}

static void attend_row(const struct ggml_compute_params *params, const struct ggml_tensor *dst, int64_t row,
                       int64_t first, int64_t heads) {
    const struct range range = ranges.v[row];
    if (!is_unordered(dst)) {
        struct view view;
        view_init(&view, dst, row, 1, range);
        view_heads(&view, dst, first, heads);
        attend_alone(params, &view);
        return;
    }
    struct scratch *scratch = &scratches[params->ith];
    scratch->scores = grow(scratch->scores, &scratch->scores_cap, (size_t)(range.to - range.from) * sizeof(float));
    const float *sinks = dst->src[4] != NULL ? (const float *)dst->src[4]->data : NULL;
    struct head head = {.cells = range, .scores = scratch->scores};
    for (int64_t i = first; i < first + heads; i++) {
        head_init(&head, dst, row, i);
        head_attend(&head, sinks != NULL ? &sinks[i] : NULL,
                    (float *)((char *)dst->data + (size_t)row * dst->nb[2] + (size_t)i * dst->nb[1]));
    }
}

/* All threads: makes the masks of a small batch, unless there is no memory. */
static void fill_masks(const struct ggml_compute_params *params, const struct ggml_tensor *mask) {
    size_t cells = (size_t)mask->ne[0], rows = (size_t)mask->ne[1] + TILE_ROWS;
    if (params->ith == 0) {
        masks.v = grow(masks.v, &masks.cap, rows * cells * sizeof *masks.v);
    }
    ggml_barrier(params->threadpool);
    for (size_t row = (size_t)params->ith; row < rows && masks.v != NULL; row += (size_t)params->nth) {
        uint16_t *to = masks.v + row * cells;
        if (row < (size_t)mask->ne[1]) {
            memcpy(to, mask_row(mask, (int64_t)row), cells * sizeof *to);
            continue;
        }
        for (size_t i = 0; i < cells; i++) {
            to[i] = HALF_MINUS_INFINITY;
        }
    }
    ggml_barrier(params->threadpool);
}

/* A tile of the block's queries, with zeros behind them. */
static bool fill_queries(struct scratch *scratch, const struct block *block, struct view *view) {
    size_t bytes = (size_t)view->q.ne[0] * sizeof(float);
    scratch->q = grow(scratch->q, &scratch->q_cap, bytes * TILE_ROWS);
    if (scratch->q == NULL) {
        return false;
    }
    for (int64_t row = 0; row < block->count; row++) {
        memcpy(scratch->q + row * view->q.ne[0], (const char *)view->q.data + (size_t)row * view->q.nb[1], bytes);
    }
    memset(scratch->q + block->count * view->q.ne[0], 0, bytes * (size_t)(TILE_ROWS - block->count));
    view->q.data = scratch->q;
    view->q.nb[1] = bytes;
    view->q.nb[2] = view->q.nb[3] = bytes * TILE_ROWS;
    view->q.ne[1] = view->mask.ne[1] = view->out.ne[2] = TILE_ROWS;
    return true;
}

/* Masks of so many cells in a row, for a tile. */
static void view_masks(struct view *view, uint16_t *of, int64_t cells) {
    view->mask.data = of;
    view->mask.nb[1] = (size_t)cells * sizeof *of;
    view->mask.nb[2] = view->mask.nb[3] = view->mask.nb[1] * TILE_ROWS;
}

/* Finds the cells that rows of the block see, and copies their masks. False: no memory, or far more cells than one row
 * sees, since the rows are of several sequences after all. */
static bool find_cells(struct scratch *scratch, const struct ggml_tensor *mask, const struct block *block) {
    const int64_t width = block->cells.to - block->cells.from;
    if (scratch->row == block->row) {
        return scratch->cell_count > 0;
    }
    scratch->row = block->row;
    scratch->cell_count = 0;
    scratch->cells = grow(scratch->cells, &scratch->cells_cap, (size_t)width * sizeof *scratch->cells);
    if (scratch->cells == NULL) {
        return false;
    }
    memset(scratch->cells, 0, (size_t)width * sizeof *scratch->cells);
    for (int64_t row = block->row; row < block->row + block->count; row++) {
        const uint16_t *cells = mask_row(mask, row) + block->cells.from;
        for (int64_t i = 0; i < width; i++) {
            scratch->cells[i] |= cells[i] != HALF_MINUS_INFINITY;
        }
    }
    const uint16_t *last = mask_row(mask, block->row + block->count - 1) + block->cells.from;
    int64_t n = 0, seen = 0;
    for (int64_t i = 0; i < width; i++) {
        if (scratch->cells[i] != 0) {
            seen += last[i] != HALF_MINUS_INFINITY;
            scratch->cells[n++] = (int32_t)(block->cells.from + i);
        }
    }
    if (n > 2 * seen + TILE_ROWS) {
        return false;
    }
    scratch->masks = grow(scratch->masks, &scratch->masks_cap, (size_t)(TILE_ROWS * n) * sizeof *scratch->masks);
    if (scratch->masks == NULL) {
        return false;
    }
    for (int64_t row = 0; row < TILE_ROWS; row++) {
        const uint16_t *cells = row < block->count ? mask_row(mask, block->row + row) : NULL;
        for (int64_t i = 0; i < n; i++) {
            scratch->masks[row * n + i] = cells != NULL ? cells[scratch->cells[i]] : HALF_MINUS_INFINITY;
        }
    }
    scratch->cell_count = n;
    return n > 0;
}

/* One head's keys or values of the cells that were found, copied to `to`. */
static void copy_cells(const struct scratch *scratch, struct ggml_tensor *view, const char *all, char *to) {
    const size_t bytes = ggml_row_size(view->type, view->ne[0]);
    for (int64_t i = 0; i < scratch->cell_count; i++) {
        memcpy(to + (size_t)i * bytes, all + (size_t)scratch->cells[i] * view->nb[1], bytes);
    }
    view->data = to;
    view->ne[1] = scratch->cell_count;
    view->nb[1] = bytes;
    view->nb[2] = view->nb[3] = bytes * (size_t)scratch->cell_count;
}

/* A tile over copies of the block's cells. False: the rows are to be computed one by one. */
static bool copy_tile(struct scratch *scratch, const struct ggml_tensor *dst, const struct block *block,
                      struct view *view) {
    if (!find_cells(scratch, dst->src[3], block)) {
        return false;
    }
    const size_t keys = ggml_row_size(view->k.type, view->k.ne[0]) * (size_t)scratch->cell_count;
    const size_t values = ggml_row_size(view->v.type, view->v.ne[0]) * (size_t)scratch->cell_count;
    scratch->kv = grow(scratch->kv, &scratch->kv_cap, keys + values);
    if (scratch->kv == NULL || !fill_queries(scratch, block, view)) {
        return false;
    }
    const size_t from = (size_t)block->cells.from; /* where the view begins */
    copy_cells(scratch, &view->k, (const char *)view->k.data - from * view->k.nb[1], scratch->kv);
    copy_cells(scratch, &view->v, (const char *)view->v.data - from * view->v.nb[1], scratch->kv + keys);
    view->mask.ne[0] = scratch->cell_count;
    view_masks(view, scratch->masks, scratch->cell_count);
    return true;
}

/* A tile without other rows around the block. False: the rows are to be computed one by one. */
static bool fill_tile(struct scratch *scratch, const struct ggml_tensor *dst, const struct block *block,
                      struct view *view) {
    if (block->copied) {
        return copy_tile(scratch, dst, block, view);
    }
    if (masks.v == NULL || !fill_queries(scratch, block, view)) {
        return false;
    }
    const int64_t cells = dst->src[3]->ne[0];
    view_masks(view, masks.v + block->row * cells + block->cells.from, cells);
    return true;
}

/* One head of a block, as a tile. False: its rows are to be computed one by one. */
static bool attend_tile(const struct ggml_compute_params *params, const struct ggml_tensor *dst,
                        const struct block *block, int64_t head) {
    struct scratch *scratch = &scratches[params->ith];
    const int64_t rows = dst->src[0]->ne[1];
    const bool others = !block->copied && rows >= TILE_ROWS; /* the tile takes other rows along */
    const int64_t first = others && block->row > rows - TILE_ROWS ? rows - TILE_ROWS : block->row;
    const size_t bytes = (size_t)dst->ne[0] * sizeof(float);
    struct view view;
    view_init(&view, dst, first, others ? TILE_ROWS : block->count, block->cells);
    view_heads(&view, dst, head, 1);
    scratch->out = grow(scratch->out, &scratch->out_cap, bytes * TILE_ROWS);
    if (scratch->out == NULL || (!others && !fill_tile(scratch, dst, block, &view))) {
        return false;
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
    } else if (!attend_tile(params, dst, block, unit)) {
        for (int64_t row = block->row; row < block->row + block->count; row++) {
            attend_row(params, dst, row, unit, 1);
        }
    }
}

/* ---- blocks ---- */

/* Whether a block is a tile over cells in place for which the batch has too few rows; the same for all threads. */
static bool needs_masks(const struct ggml_tensor *dst, int64_t rows) {
    for (int64_t row = 0; row < rows && rows < TILE_ROWS;) {
        struct block block = block_at(dst, row, rows);
        if (block.tiled && !block.copied) {
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
    ggml_barrier(params->threadpool);
    if (needs_masks(dst, rows)) {
        fill_masks(params, dst->src[3]);
    }
    int64_t before = 0, unit = claim();
    scratches[params->ith].row = -1;
    for (int64_t row = 0; row < rows;) {
        struct block block = block_at(dst, row, rows);
        int64_t units = block.tiled ? heads : block.count * groups;
        for (; unit < before + units; unit = claim()) {
            attend_unit(params, dst, &block, unit - before);
        }
        before += units;
        row += block.count;
    }
    if (atomic_fetch_add(&done, 1) + 1 == params->nth) {
        atomic_store(&done, 0);
        atomic_store(&claimed, 0);
    }
}

bool ggml_hearth_attend(const struct ggml_compute_params *params, struct ggml_tensor *dst) {
    const struct ggml_tensor *q = dst->src[0], *mask = dst->src[3];
    float max_bias;
    memcpy(&max_bias, (const float *)dst->op_params + 1, sizeof max_bias);
    const bool plain = q->ne[3] == 1 && dst->src[1]->ne[3] == 1 && mask != NULL && mask->type == GGML_TYPE_F16 &&
                       mask->ne[2] == 1 && mask->ne[3] == 1;
    if (mode_is(GGML_HEARTH_STOCK) || !plain) {
        return false;
    }
    if (!mode_is(GGML_HEARTH_UNORDERED) && (q->ne[1] == 1 || ggml_hearth_apart(q->ne[1]))) {
        attend_rows(params, dst);
        return true;
    }
    if ((max_bias == 0 || is_unordered(dst)) && (size_t)q->ne[1] <= ranges.cap && params->nth <= GGML_MAX_N_THREADS) {
        attend_blocks(params, dst);
        return true;
    }
    return false;
}
