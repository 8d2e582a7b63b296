/* Attention whose sum does not depend on the order of its cells, for deterministic engines (llama_exact.c).
 *
 * Where a sequence's tokens stand in the cache depends on what else was in it. ggml adds up over the cells as they
 * stand, and rounds each time, so the same tokens give other numbers in other places. Here every term is first rounded
 * to a multiple of one small number: adding one large constant and taking it off again does that. Sums of such
 * multiples are exact as long as they fit in a double's 53 bits, and exact sums have no order.
 *
 *     highest   over the scores, of which each is a function of its cell alone
 *     weights   exp(score - highest), at most 1 each: multiples of 2^-31, exact for 2^21 cells
 *     values    weight / sum of weights * value: multiples of 2^-34, exact for values up to 2^17; half precision ends
 *               at 2^16
 *
 * It is also more precise than ggml's, which adds up values of half precision in half precision.
 *
 * Threads: any; nothing is shared.
 * Source: one_chunk in ops.cpp in ggml/src/ggml-cpu of the llama.cpp this builds on, for everything but the order. */
#include "engine/llama_wrapped.h"

#ifdef HEARTH_GGML_WRAPPED

#include "ggml-cpu.h"

#include <math.h>
#include <string.h>

#define HALF_MINUS_INFINITY 0xFC00
#define WIDTH_MAX 1024 /* of a key and of a value; larger ones are left to ggml */
#define WEIGHT_BITS 31
#define VALUE_BITS 34
/* What, added and taken off again, leaves a multiple of 2^-bits. */
#define ROUNDER(bits) (1.5 * 4503599627370496.0 / (double)(1ull << (bits)))

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=haswell", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

/* One head of one row. */
struct one {
    const struct ggml_tensor *k, *v;
    const uint16_t *mask;
    const char *keys, *values; /* of its group */
    ggml_vec_dot_t dot;
    ggml_to_float_t to_float; /* NULL: they are single precision, or half */
    float scale, softcap, slope;
    _Alignas(64) float query[WIDTH_MAX]; /* as the keys want it */
};

static float slope_of(int64_t head, int64_t heads, float max_bias) {
    if (max_bias <= 0) {
        return 1;
    }
    const int64_t whole = (int64_t)1 << (int)floor(log2((double)heads));
    return head < whole ? powf(powf(2, -max_bias / (float)whole), (float)(head + 1))
                        : powf(powf(2, -max_bias / 2 / (float)whole), (float)(2 * (head - whole) + 1));
}

static void init(struct one *one, const struct ggml_tensor *dst, int64_t row, int64_t head) {
    const struct ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *mask = dst->src[3];
    const struct ggml_type_traits_cpu *keys = ggml_get_type_traits_cpu(k->type);
    float max_bias;
    memcpy(&one->scale, (const float *)dst->op_params, sizeof one->scale);
    memcpy(&max_bias, (const float *)dst->op_params + 1, sizeof max_bias);
    memcpy(&one->softcap, (const float *)dst->op_params + 2, sizeof one->softcap);
    one->scale = one->softcap != 0 ? one->scale / one->softcap : one->scale;
    one->slope = slope_of(head, q->ne[2], max_bias);
    one->k = k;
    one->v = v;
    one->keys = (const char *)k->data + (size_t)(head / (q->ne[2] / k->ne[2])) * k->nb[2];
    one->values = (const char *)v->data + (size_t)(head / (q->ne[2] / v->ne[2])) * v->nb[2];
    one->mask = (const uint16_t *)((const char *)mask->data + (size_t)row * mask->nb[1]);
    one->dot = keys->vec_dot;
    one->to_float = ggml_get_type_traits(v->type)->to_float;
    const char *query = (const char *)q->data + (size_t)row * q->nb[1] + (size_t)head * q->nb[2];
    const ggml_from_float_t convert = ggml_get_type_traits_cpu(keys->vec_dot_type)->from_float;
    if (convert != NULL) {
        convert((const float *)query, one->query, k->ne[0]);
    } else {
        memcpy(one->query, query, (size_t)k->ne[0] * sizeof(float));
    }
}

/* -INFINITY: it is masked. */
static float score(const struct one *one, int64_t cell) {
    float s;
    if (one->mask[cell] == HALF_MINUS_INFINITY) {
        return -INFINITY;
    }
    one->dot((int)one->k->ne[0], &s, 0, one->keys + (size_t)cell * one->k->nb[1], 0, one->query, 0, 1);
    s *= one->scale;
    s = one->softcap != 0 ? one->softcap * tanhf(s) : s;
    return one->mask[cell] == 0 ? s : s + one->slope * ggml_fp16_to_fp32(one->mask[cell]);
}

FOR_EACH_PROCESSOR static void add(double *sum, const float *value, double weight, int64_t width) {
    for (int64_t i = 0; i < width; i++) {
        sum[i] += (weight * (double)value[i] + ROUNDER(VALUE_BITS)) - ROUNDER(VALUE_BITS);
    }
}

static void add_cell(const struct one *one, int64_t cell, double weight, double *sum) {
    _Alignas(64) float value[WIDTH_MAX];
    const char *at = one->values + (size_t)cell * one->v->nb[1];
    const int64_t width = one->v->ne[0];
    if (one->v->type == GGML_TYPE_F32) {
        add(sum, (const float *)at, weight, width);
        return;
    }
    if (one->v->type == GGML_TYPE_F16) {
        ggml_cpu_fp16_to_fp32((const ggml_fp16_t *)at, value, width);
    } else {
        one->to_float(at, value, width);
    }
    add(sum, value, weight, width);
}

/* exp(score - highest), from the scores or the weights that are kept in their place. */
static float weight(const struct one *one, const struct hearth_llama_cells *cells, int64_t cell, float highest) {
    const float s = cells->kept != NULL ? cells->kept[cell - cells->from] : score(one, cell);
    return s == -INFINITY ? 0 : expf(s - highest);
}

static void attend(const struct one *one, const struct hearth_llama_cells *cells, const float *sink, float *out) {
    _Alignas(64) double sum[WIDTH_MAX];
    const int64_t width = one->v->ne[0];
    float highest = sink != NULL ? *sink : -INFINITY;
    for (int64_t cell = cells->from; cell < cells->to; cell++) {
        const float s = score(one, cell);
        highest = s > highest ? s : highest;
        if (cells->kept != NULL) {
            cells->kept[cell - cells->from] = s;
        }
    }
    double weights = sink != NULL ? (double)expf(*sink - highest) : 0;
    for (int64_t cell = cells->from; cell < cells->to; cell++) {
        const float w = weight(one, cells, cell, highest);
        weights += ((double)w + ROUNDER(WEIGHT_BITS)) - ROUNDER(WEIGHT_BITS);
        if (cells->kept != NULL) {
            cells->kept[cell - cells->from] = w;
        }
    }
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t cell = cells->from; cell < cells->to; cell++) {
        const float w = cells->kept != NULL ? cells->kept[cell - cells->from] : weight(one, cells, cell, highest);
        if (w > 0) {
            add_cell(one, cell, (double)w / weights, sum);
        }
    }
    for (int64_t i = 0; i < width; i++) {
        out[i] = (float)sum[i];
    }
}

bool hearth_llama_is_unordered(const struct ggml_tensor *dst) {
    return hearth_llama_batch_is_deterministic() && dst->src[0]->type == GGML_TYPE_F32 &&
           dst->src[1]->ne[0] <= WIDTH_MAX && dst->src[2]->ne[0] <= WIDTH_MAX;
}

void hearth_llama_attend_unordered(const struct ggml_tensor *dst, int64_t row, int64_t head, int64_t heads,
                                   const struct hearth_llama_cells *cells) {
    const float *sinks = dst->src[4] != NULL ? (const float *)dst->src[4]->data : NULL;
    struct one one;
    for (int64_t i = head; i < head + heads; i++) {
        init(&one, dst, row, i);
        attend(&one, cells, sinks != NULL ? &sinks[i] : NULL,
               (float *)((char *)dst->data + (size_t)row * dst->nb[2] + (size_t)i * dst->nb[1]));
    }
}

#endif
