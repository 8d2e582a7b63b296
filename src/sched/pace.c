/* The pace. Design in pace.h.
 *
 * Invariant: the average number of tokens of a size lies within its slot, so slots ascend by it. */
#include "sched/pace.h"

#include "base/assert.h"

#include <stddef.h>

#define SHARE_NEW 0.2 /* weight of a new sample */
#define EXACT_SIZES 8
#define PREFILL_MIN_TOKENS 32 /* a smaller batch has too much overhead to measure the prefill speed */

#define BESIDE_MIN_TOKENS 8 /* so that a prefill always advances */
#define BESIDE_SHARE 0.9    /* of the time that is left; captures and sampling come between batches */
#define BESIDE_LEAST 0.5    /* of what decoding takes: also where decoding alone would miss the wanted rate */
#define BESIDE_UNKNOWN 64   /* the first batch beside lanes that decode, when a rate is wanted */
#define BESIDE_STEP 32      /* kernels compute so many at a time; a size in between costs as much as the next */

#define PREFETCH_SHARE 5 /* of the time of a batch that decodes: what a prefetch may add */
#define PREFETCH_ALONE_US 200000.0
#define IDLE_US 50000.0 /* a request that arrives waits for half of this on average */

/* A batch that only prefills is halved if it takes longer than half a second, and doubled again if four of them would
 * take less. A request that arrives waits for the batch: on two cores that takes seconds, on a large machine it never
 * matters. Several batches in a row must agree, so that one hiccup changes nothing, and sizes change rarely, so that
 * equal prompts are split equally. Batches of 128 tokens are as fast per token as those of 512 (measured on two cores
 * with models of 30 to 270 million parameters, within 2 %); those of 64 are 5 % slower, those of 32 half as fast. */
#define ALONE_SLOW_US 500000
#define ALONE_FAST_US 125000
#define ALONE_SLOW_COUNT 2
#define ALONE_FAST_COUNT 16
#define ALONE_MIN_TOKENS 128

static int slot_of(int32_t tokens) {
    if (tokens <= EXACT_SIZES) {
        return tokens - 1;
    }
    int octave = 31 - __builtin_clz((unsigned)tokens);
    int slot = EXACT_SIZES + (octave - 3) * 4 + ((tokens >> (octave - 2)) & 3);
    return slot < HEARTH_PACE_SIZES ? slot : HEARTH_PACE_SIZES - 1;
}

static void average(double *value, double sample) {
    *value = *value > 0 ? *value + SHARE_NEW * (sample - *value) : sample;
}

static int32_t between(double value, int32_t low, int32_t high) {
    if (high < low) {
        high = low;
    }
    return value < low ? low : value > high ? high : (int32_t)value;
}

/* Learns from a batch that was at least as large as the present limit. */
static void learn_alone(struct hearth_pace *pace, int32_t tokens, int64_t us) {
    pace->slow = us > ALONE_SLOW_US ? pace->slow + 1 : 0;
    pace->fast = us < ALONE_FAST_US ? pace->fast + 1 : 0;
    int32_t size = pace->alone_tokens, half = tokens / 2 > ALONE_MIN_TOKENS ? tokens / 2 : ALONE_MIN_TOKENS;
    if (pace->slow >= ALONE_SLOW_COUNT && (size == 0 || half < size)) {
        size = half;
    } else if (pace->fast >= ALONE_FAST_COUNT && size > 0) {
        size = 0;
    }
    if (size == pace->alone_tokens) {
        return;
    }
    pace->alone_tokens = size;
    pace->slow = pace->fast = 0;
}

void hearth_pace_learn(struct hearth_pace *pace, int32_t decode_tokens, int32_t prefill_tokens, int64_t us) {
    HEARTH_ASSERT(decode_tokens >= 0 && prefill_tokens >= 0 && decode_tokens + prefill_tokens > 0);
    if (us <= 0) {
        return;
    }
    if (prefill_tokens == 0) {
        struct hearth_pace_size *size = &pace->decode[slot_of(decode_tokens)];
        average(&size->tokens, decode_tokens);
        average(&size->us, (double)us);
        average(&pace->decode_us, (double)us);
        return;
    }
    if (decode_tokens == 0) {
        if (prefill_tokens >= PREFILL_MIN_TOKENS) {
            average(&pace->prefill_us, (double)us / prefill_tokens);
        }
        if (prefill_tokens >= ALONE_MIN_TOKENS && prefill_tokens >= pace->alone_tokens) {
            learn_alone(pace, prefill_tokens, us);
        }
        return;
    }
    double decode_us = hearth_pace_decode_us(pace, decode_tokens), rest_us = (double)us - decode_us;
    if (decode_us >= 0) {
        average(&pace->beside_us, rest_us > 1 ? rest_us / prefill_tokens : 1.0 / prefill_tokens);
    } else if (pace->prefill_us > 0 && (double)us > pace->prefill_us * prefill_tokens) { /* until there is better */
        average(&pace->decode_us, (double)us - pace->prefill_us * prefill_tokens);
    }
}

double hearth_pace_decode_us(const struct hearth_pace *pace, int32_t tokens) {
    const struct hearth_pace_size *below = NULL, *above = NULL;
    for (int slot = 0; slot < HEARTH_PACE_SIZES && !above; slot++) {
        const struct hearth_pace_size *size = &pace->decode[slot];
        if (size->us <= 0) {
            continue;
        }
        if (size->tokens <= tokens) {
            below = size;
        }
        if (size->tokens >= tokens) {
            above = size;
        }
    }
    if (!above) {
        return -1;
    }
    if (!below || below == above) {
        return above->us;
    }
    return below->us + (above->us - below->us) * (tokens - below->tokens) / (above->tokens - below->tokens);
}

/* The best estimate for decoding so many tokens, also from smaller batches alone. Negative: none was measured. */
static double about_us(const struct hearth_pace *pace, int32_t tokens) {
    double us = tokens > 0 ? hearth_pace_decode_us(pace, tokens) : 0;
    return us < 0 && pace->decode_us > 0 ? pace->decode_us : us;
}

void hearth_pace_split(const struct hearth_pace *pace, int32_t decode_tokens, int32_t prefill_tokens, int64_t us,
                       double *decode_each_us, double *prefill_each_us) {
    *decode_each_us = *prefill_each_us = (double)us / (decode_tokens + prefill_tokens);
    double decode_us = about_us(pace, decode_tokens);
    if (decode_tokens == 0 || prefill_tokens == 0 || decode_us < 0) {
        return;
    }
    decode_us = decode_us < (double)us ? decode_us : (double)us;
    *decode_each_us = decode_us / decode_tokens;
    *prefill_each_us = ((double)us - decode_us) / prefill_tokens;
}

int32_t hearth_pace_beside(const struct hearth_pace *pace, int32_t decode_tokens, double tps, int32_t most) {
    double decode_us = about_us(pace, decode_tokens);
    double each_us = pace->beside_us > 0 ? pace->beside_us : pace->prefill_us;
    if (tps <= 0 || decode_tokens == 0) {
        return most;
    }
    if (decode_us < 0 || each_us <= 0) {
        return most < BESIDE_UNKNOWN ? most : BESIDE_UNKNOWN;
    }
    double room_us = BESIDE_SHARE * 1e6 / tps - decode_us;
    if (room_us < BESIDE_LEAST * decode_us) {
        room_us = BESIDE_LEAST * decode_us;
    }
    int32_t tokens = between(room_us / each_us, most < BESIDE_MIN_TOKENS ? most : BESIDE_MIN_TOKENS, most);
    return tokens > BESIDE_STEP && tokens < most ? tokens / BESIDE_STEP * BESIDE_STEP : tokens;
}

int32_t hearth_pace_alone(const struct hearth_pace *pace, int32_t most) {
    return pace->alone_tokens > 0 && pace->alone_tokens < most ? pace->alone_tokens : most;
}

int32_t hearth_pace_prefetch_beside(const struct hearth_pace *pace) {
    if (pace->decode_us <= 0 || pace->prefill_us <= 0) {
        return BESIDE_MIN_TOKENS;
    }
    return between(pace->decode_us / PREFETCH_SHARE / pace->prefill_us, 1, INT32_MAX);
}

/* The tokens that a prefill computes in `us`, but no fewer than are computed at a good speed, and at most `most`. */
static int32_t alone(const struct hearth_pace *pace, double us, int32_t most) {
    int32_t least = most < PREFILL_MIN_TOKENS ? most : PREFILL_MIN_TOKENS;
    return pace->prefill_us > 0 ? between(us / pace->prefill_us, least, most) : most;
}

int32_t hearth_pace_prefetch_alone(const struct hearth_pace *pace, int32_t most) {
    return alone(pace, PREFETCH_ALONE_US, most);
}

int32_t hearth_pace_idle(const struct hearth_pace *pace, int32_t most) {
    return alone(pace, IDLE_US, most);
}
