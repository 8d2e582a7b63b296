/* Byte planes and zstd.
 *
 * State is mostly 16-bit floats. Their high bytes (sign, exponent, first bits of the fraction) repeat, their low bytes
 * are close to noise, and zstd sees neither while they alternate. So each unit is split: first all bytes at even
 * offsets, then all at odd ones. Half a unit is one zstd block (128 KiB), so that each plane has its own statistics.
 *
 *     packed = unit ...     unit = length n (32-bit, little-endian) | n bytes
 *
 * n equal to the unit's plain length: the bytes as they are. n smaller: a zstd frame of the split bytes. Units are
 * independent: nothing is ever longer than a unit but the state itself, and there is no window to keep.
 *
 * The lengths are checked for all units before anything is allocated. */
#include "tier/pack.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#include <zstd.h>

enum { LEVEL = 1, LENGTH_BYTES = 4 };

static size_t unit_at(size_t len, size_t at) {
    return len - at < HEARTH_PACK_UNIT_BYTES ? len - at : HEARTH_PACK_UNIT_BYTES;
}

static void split(const uint8_t *restrict in, size_t len, uint8_t *restrict out) {
    size_t half = len / 2, even = len - half;
    for (size_t i = 0; i < half; i++) {
        out[i] = in[2 * i];
        out[even + i] = in[2 * i + 1];
    }
    if (even > half) {
        out[half] = in[len - 1];
    }
}

static void join(const uint8_t *restrict in, size_t len, uint8_t *restrict out) {
    size_t half = len / 2, even = len - half;
    for (size_t i = 0; i < half; i++) {
        out[2 * i] = in[i];
        out[2 * i + 1] = in[even + i];
    }
    if (even > half) {
        out[len - 1] = in[half];
    }
}

static void put_length(uint8_t *out, size_t n) {
    for (unsigned i = 0; i < LENGTH_BYTES; i++) {
        out[i] = (uint8_t)(n >> 8 * i);
    }
}

static size_t get_length(const uint8_t *in) {
    return (size_t)in[0] | (size_t)in[1] << 8 | (size_t)in[2] << 16 | (size_t)in[3] << 24;
}

enum hearth_pack_result hearth_pack(const void *bytes, size_t len, struct hearth_buf *out) {
    HEARTH_ASSERT(len > 0 && out->data == NULL);
    const uint8_t *in = bytes;
    enum hearth_pack_result result = HEARTH_PACK_NOMEM;
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    uint8_t *planes = malloc(unit_at(len, 0));
    if (ctx == NULL || planes == NULL || !hearth_buf_reserve(out, len)) {
        goto done;
    }
    result = HEARTH_PACK_USELESS;
    for (size_t at = 0, n; at < len; at += n) {
        n = unit_at(len, at);
        /* Room for what pays: less than there was. zstd stops where it ends. */
        size_t room = len - out->len;
        if (room <= LENGTH_BYTES) {
            goto done;
        }
        uint8_t *head = out->data + out->len;
        split(in + at, n, planes);
        room -= LENGTH_BYTES;
        size_t packed = ZSTD_compressCCtx(ctx, head + LENGTH_BYTES, room < n - 1 ? room : n - 1, planes, n, LEVEL);
        if (ZSTD_isError(packed)) {
            if (room < n) {
                goto done;
            }
            memcpy(head + LENGTH_BYTES, in + at, n);
            packed = n;
        }
        put_length(head, packed);
        out->len += LENGTH_BYTES + packed;
    }
    result = out->len < len ? HEARTH_PACK_OK : HEARTH_PACK_USELESS;
done:
    ZSTD_freeCCtx(ctx);
    free(planes);
    if (result != HEARTH_PACK_OK) {
        hearth_buf_finish(out);
    }
    return result;
}

/* Whether the lengths of the units fill `packed` exactly, and are as many as `len` bytes need. */
static bool framed(const uint8_t *packed, size_t packed_len, size_t len) {
    size_t from = 0;
    for (size_t at = 0, n; at < len; at += n) {
        n = unit_at(len, at);
        if (packed_len - from < LENGTH_BYTES) {
            return false;
        }
        size_t unit = get_length(packed + from);
        from += LENGTH_BYTES;
        if (unit == 0 || unit > n || unit > packed_len - from) {
            return false;
        }
        from += unit;
    }
    return from == packed_len;
}

enum hearth_pack_result hearth_unpack(const void *packed, size_t packed_len, size_t len, struct hearth_buf *out) {
    HEARTH_ASSERT(len > 0 && out->data == NULL);
    const uint8_t *in = packed;
    if (!framed(in, packed_len, len)) {
        return HEARTH_PACK_USELESS;
    }
    enum hearth_pack_result result = HEARTH_PACK_NOMEM;
    ZSTD_DCtx *ctx = ZSTD_createDCtx();
    uint8_t *planes = malloc(unit_at(len, 0));
    if (ctx == NULL || planes == NULL || !hearth_buf_reserve(out, len)) {
        goto done;
    }
    result = HEARTH_PACK_USELESS;
    for (size_t n; out->len < len; out->len += n) {
        size_t unit = get_length(in);
        in += LENGTH_BYTES;
        n = unit_at(len, out->len);
        if (unit == n) {
            memcpy(out->data + out->len, in, n);
        } else {
            size_t got = ZSTD_decompressDCtx(ctx, planes, n, in, unit);
            if (ZSTD_isError(got) || got != n) {
                goto done;
            }
            join(planes, n, out->data + out->len);
        }
        in += unit;
    }
    result = HEARTH_PACK_OK;
done:
    ZSTD_freeDCtx(ctx);
    free(planes);
    if (result != HEARTH_PACK_OK) {
        hearth_buf_finish(out);
    }
    return result;
}
