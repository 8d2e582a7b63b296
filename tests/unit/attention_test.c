/* Attention in blocks, in tiles, by rows and without an order (patches/llama.cpp/hearth.c), against the sum itself. */
#include "support/random.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <math.h>
#include <setjmp.h> /* cmocka needs these four before it */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static struct rng rng = {.state = 1};

struct shape {
    int64_t head, value; /* elements of a key and of a value */
    int64_t heads, kv_heads, rows, cells;
    float softcap;
    bool sinks, f32;
    int threads;
    int64_t sequences; /* 0: one */
    int64_t alone;     /* rows in front, each of a sequence of its own, as when lanes decode beside a prompt */
    int64_t shared;    /* cells in front that all sequences see */
    bool in_turn;      /* sequences have taken the other cells one after the other, as lanes that decode do */
    int64_t ending;    /* cells at the end that all sequences see, as when lanes fill a hole before those they share */
};

static float number(void) {
    return (float)rng_below(&rng, 2001) / 1000.0F - 1.0F;
}

static void fill_tensor(struct ggml_tensor *tensor) {
    for (int64_t i = 0; i < ggml_nelements(tensor); i++) {
        if (tensor->type == GGML_TYPE_F16) {
            ((ggml_fp16_t *)tensor->data)[i] = ggml_fp32_to_fp16(number());
        } else {
            ((float *)tensor->data)[i] = number();
        }
    }
}

static float at(const struct ggml_tensor *tensor, int64_t i, int64_t j, int64_t k) {
    const char *place =
        (const char *)tensor->data + (size_t)i * tensor->nb[0] + (size_t)j * tensor->nb[1] + (size_t)k * tensor->nb[2];
    return tensor->type == GGML_TYPE_F16 ? ggml_fp16_to_fp32(*(const ggml_fp16_t *)place) : *(const float *)place;
}

/* The sequence of a row, and how many rows of it are behind that one. */
static int64_t sequence_of(const struct shape *shape, int64_t row, int64_t *behind) {
    int64_t several = shape->sequences > 0 ? shape->sequences : 1, prompts = several - shape->alone;
    int64_t rows = shape->rows - shape->alone, prompt = (row - shape->alone) * prompts / (rows > 0 ? rows : 1);
    *behind = 0;
    if (row < shape->alone) {
        return row;
    }
    while (row + *behind + 1 < shape->rows && (row + *behind + 1 - shape->alone) * prompts / rows == prompt) {
        ++*behind;
    }
    return shape->alone + prompt;
}

/* Between the shared cells each sequence has equally many. A row sees those up to its own, but for some of the others
 * in the first half. */
static void fill_mask(struct ggml_tensor *mask, const struct shape *shape) {
    int64_t several = shape->sequences > 0 ? shape->sequences : 1, ending = shape->cells - shape->ending;
    int64_t each = (ending - shape->shared) / several;
    for (int64_t row = 0; row < shape->rows; row++) {
        int64_t behind, sequence = sequence_of(shape, row, &behind);
        for (int64_t cell = 0; cell < shape->cells; cell++) {
            int64_t other = cell - shape->shared, of = shape->in_turn ? other % several : other / each;
            int64_t nth = shape->in_turn ? other / several : other % each;
            bool own = other < 0 || cell >= ending || (of == sequence && nth < each - behind);
            bool seen = own && (cell == 0 || nth == 0 || nth > each / 2 || !rng_once_in(&rng, 9));
            ((ggml_fp16_t *)mask->data)[row * shape->cells + cell] = ggml_fp32_to_fp16(seen ? 0.0F : -INFINITY);
        }
    }
}

/* The score of a cell that the row sees. */
static double score(const struct ggml_tensor *out, const struct shape *shape, int64_t row, int64_t head, int64_t cell) {
    const struct ggml_tensor *q = out->src[0], *k = out->src[1];
    double sum = 0;
    for (int64_t i = 0; i < shape->head; i++) {
        sum += (double)at(q, i, row, head) * (double)at(k, i, cell, head / (shape->heads / shape->kv_heads));
    }
    sum /= sqrt((double)shape->head);
    if (shape->softcap > 0) {
        sum = (double)shape->softcap * tanh(sum / (double)shape->softcap);
    }
    return sum;
}

#define MODES 3

/* What each mode has computed for this row and head. */
static void check_row(struct ggml_tensor *const *out, const struct shape *shape, int64_t row, int64_t head) {
    const struct ggml_tensor *v = out[0]->src[2], *mask = out[0]->src[3], *sinks = out[0]->src[4];
    double weights = sinks != NULL ? exp((double)at(sinks, head, 0, 0)) : 0;
    double *sums = calloc((size_t)shape->value, sizeof *sums);
    for (int64_t cell = 0; cell < shape->cells; cell++) {
        if (at(mask, cell, row, 0) < 0) {
            continue;
        }
        double weight = exp(score(out[0], shape, row, head, cell));
        weights += weight;
        for (int64_t i = 0; i < shape->value; i++) {
            sums[i] += weight * (double)at(v, i, cell, head / (shape->heads / shape->kv_heads));
        }
    }
    for (int64_t i = 0; i < shape->value * MODES; i++) {
        const int64_t mode = i / shape->value, element = i % shape->value;
        double got = (double)at(out[mode], element, head, row), want = sums[element] / weights;
        if (!(fabs(got - want) < 2e-3)) {
            fail_msg("mode %d, row %d, head %d, element %d: %f instead of %f", (int)mode, (int)row, (int)head,
                     (int)element, got, want);
        }
    }
    free(sums);
}

/* Attention by so many threads, in a mode. */
static struct ggml_tensor *attend(struct ggml_context *ctx, const struct shape *shape, struct ggml_tensor *const in[5],
                                  enum ggml_hearth_mode mode, int threads) {
    float scale = 1.0F / sqrtf((float)shape->head);
    struct ggml_tensor *out = ggml_flash_attn_ext(ctx, in[0], in[1], in[2], in[3], scale, 0, shape->softcap);
    if (in[4] != NULL) {
        ggml_flash_attn_ext_add_sinks(out, in[4]);
    }
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    ggml_hearth_set(shape->rows, mode);
    assert_int_equal(ggml_graph_compute_with_ctx(ctx, graph, threads), GGML_STATUS_SUCCESS);
    return out;
}

/* Rows of several sequences are no tile, which would pass over the cells of all: each is what it is without others. */
static void check_alone(struct ggml_context *ctx, const struct ggml_tensor *out, const struct shape *shape) {
    struct ggml_tensor *q = out->src[0], *mask = out->src[3];
    for (int64_t row = 0; row < shape->alone; row++) {
        struct ggml_tensor *in[] = {
            ggml_view_3d(ctx, q, q->ne[0], 1, q->ne[2], q->nb[1], q->nb[2], (size_t)row * q->nb[1]), out->src[1],
            out->src[2], ggml_view_2d(ctx, mask, mask->ne[0], 1, mask->nb[1], (size_t)row * mask->nb[1]), out->src[4]};
        const struct ggml_tensor *one = attend(ctx, shape, in, GGML_HEARTH_BLOCKS, 1);
        assert_memory_equal((const char *)out->data + (size_t)row * out->nb[2], one->data, ggml_nbytes(one));
    }
}

static void check_shape(const struct shape *shape) {
    const enum ggml_hearth_mode modes[MODES] = {
        GGML_HEARTH_STOCK, shape->sequences > 1 ? GGML_HEARTH_BLOCKS : GGML_HEARTH_APART, GGML_HEARTH_UNORDERED};
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = (size_t)128 << 20});
    assert_non_null(ctx);
    enum ggml_type type = shape->f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    /* As llama.cpp has them: heads beside each other, so that rows are strided. */
    struct ggml_tensor *q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, shape->head, shape->heads, shape->rows);
    struct ggml_tensor *k = ggml_new_tensor_3d(ctx, type, shape->head, shape->kv_heads, shape->cells);
    struct ggml_tensor *v = ggml_new_tensor_3d(ctx, type, shape->value, shape->kv_heads, shape->cells);
    struct ggml_tensor *mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, shape->cells, shape->rows);
    struct ggml_tensor *sinks = shape->sinks ? ggml_new_tensor_1d(ctx, GGML_TYPE_F32, shape->heads) : NULL;
    fill_tensor(q);
    fill_tensor(k);
    fill_tensor(v);
    fill_mask(mask, shape);
    if (sinks != NULL) {
        fill_tensor(sinks);
    }
    struct ggml_tensor *out[MODES];
    for (int i = 0; i < MODES; i++) {
        struct ggml_tensor *in[] = {ggml_permute(ctx, q, 0, 2, 1, 3), ggml_permute(ctx, k, 0, 2, 1, 3),
                                    ggml_permute(ctx, v, 0, 2, 1, 3), mask, sinks};
        out[i] = attend(ctx, shape, in, modes[i], shape->threads);
    }
    check_alone(ctx, out[1], shape);
    for (int64_t row = 0; row < shape->rows; row++) {
        for (int64_t head = 0; head < shape->heads; head++) {
            check_row(out, shape, row, head);
        }
    }
    ggml_free(ctx);
}

static void attention_is_what_it_is_by_definition(void **state) {
    static const struct shape shapes[] = {
        {64, 64, 9, 3, 57, 600, 0, false, false, 2, 0, 0, 0, false, 0}, /* filled up */
        {64, 64, 9, 3, 18, 400, 0, false, false, 1, 0, 0, 0, false, 0},
        {64, 64, 4, 4, 63, 513, 0, false, false, 3, 0, 0, 0, false, 0},    /* units that threads share unevenly */
        {128, 128, 8, 2, 40, 356, 20, false, false, 2, 0, 0, 0, false, 0}, /* capped */
        {256, 128, 2, 1, 33, 370, 0, true, false, 2, 0, 0, 0, false, 0},   /* with sinks */
        {32, 32, 3, 1, 20, 320, 0, false, true, 2, 0, 0, 0, false, 0},     /* single precision */
        {320, 320, 2, 1, 30, 256, 0, false, false, 2, 0, 0, 0, false, 0},  /* wide */
        {64, 64, 2, 1, 5, 300, 0, false, false, 2, 0, 0, 0, false, 0},     /* row by row, exactly */
        {64, 64, 2, 1, 1, 700, 0, true, false, 3, 0, 0, 0, false, 0},
        {64, 64, 2, 1, 30, 100, 0, false, false, 2, 0, 0, 0, false, 0},    /* too few cells */
        {64, 64, 2, 1, 64, 300, 0, false, false, 2, 0, 0, 0, false, 0},    /* a tile of itself */
        {64, 64, 9, 3, 16, 4096, 0, false, false, 2, 16, 16, 0, false, 0}, /* sixteen lanes decode */
        {64, 64, 9, 3, 16, 9600, 0, true, false, 4, 16, 16, 0, false, 0},
        {64, 64, 4, 2, 240, 1024, 0, false, false, 2, 4, 0, 0, false, 0}, /* four prompts of no whole tiles */
        {64, 64, 4, 2, 200, 2048, 0, true, false, 3, 2, 0, 0, false, 0},
        {64, 32, 4, 2, 128, 1500, 20, false, true, 2, 4, 3, 0, false, 0}, /* a prompt beside three lanes that decode */
        {64, 64, 4, 4, 40, 1280, 0, false, false, 2, 2, 0, 0, false, 0},  /* two prompts of few rows */
        {64, 64, 4, 1, 63, 1290, 0, false, false, 2, 3, 2, 0, false, 0},
        {64, 64, 9, 3, 16, 3000, 0, false, false, 2, 16, 16, 100, true, 0}, /* lanes that decode share a head */
        {64, 64, 9, 3, 47, 3000, 0, false, false, 2, 16, 15, 100, true, 0}, /* and a prompt beside them */
        {64, 64, 9, 3, 140, 4000, 0, true, false, 3, 9, 6, 300, true, 0},   /* and three of more than a tile */
        {64, 32, 4, 2, 130, 2600, 20, false, true, 2, 4, 2, 40, true, 0},
        {64, 64, 4, 4, 12, 2600, 0, false, false, 2, 2, 0, 1000, true, 0},    /* guesses of two lanes */
        {64, 64, 9, 3, 16, 3000, 0, false, false, 2, 16, 16, 0, true, 600},   /* lanes share cells behind their own */
        {64, 64, 9, 3, 47, 3000, 0, false, false, 2, 16, 15, 0, true, 600},   /* and a prompt beside them */
        {64, 64, 9, 3, 16, 3000, 0, false, false, 2, 16, 16, 100, true, 600}, /* around their own */
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_shape(&shapes[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_what_it_is_by_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
