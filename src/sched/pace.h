/* The pace: how long batches take on this machine, learned from those that were computed.
 *
 * Three figures. T(n): a batch of n tokens that decode (one per lane, and those guessed ahead), kept for sizes 1 to 8
 * one by one and for four steps per octave above. The cost of a prefill token in a batch of its own; and what one adds
 * to a batch in which lanes decode. All are moving averages, since contexts grow and machines get busy. Of them follow
 * the sizes of batches: what prefetches may have, what a prefill may have beside lanes that decode, and what one may
 * have alone, as a request that arrives waits for the batch to end.
 *
 * Threads: pure; the caller's. Units: tokens and microseconds; a time that is not known is negative. */
#ifndef HEARTH_SCHED_PACE_H
#define HEARTH_SCHED_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define HEARTH_PACE_SIZES 48

struct hearth_pace_size {
    double tokens, us; /* averages; us 0: nothing of this size was seen */
};

/* Zeroed: nothing is known. */
struct hearth_pace {
    struct hearth_pace_size decode[HEARTH_PACE_SIZES];
    double decode_us;  /* the last batches that only decoded, whatever their sizes (while there was none as large: what
                        * was left of those that also prefilled); 0: none */
    double prefill_us; /* a token, alone; 0: not known */
    double beside_us;  /* a token, beside lanes that decode; 0: not known */
    int32_t alone_tokens; /* most tokens of a batch that only prefills; 0: as many as may be */
    int slow, fast;       /* full batches of that size in a row that took too long, or little */
};

/* A batch was computed. */
void hearth_pace_learn(struct hearth_pace *pace, int32_t decode_tokens, int32_t prefill_tokens, int64_t us);

/* Expected time of a batch of so many tokens without prefill, between what is known of smaller and larger ones (one
 * that is smaller than all takes what the smallest does). Negative: there was none as large yet. */
double hearth_pace_decode_us(const struct hearth_pace *pace, int32_t tokens);

/* A batch took `us`: what of it each token that decoded cost, and each that prefilled. */
void hearth_pace_split(const struct hearth_pace *pace, int32_t decode_tokens, int32_t prefill_tokens, int64_t us,
                       double *decode_each_us, double *prefill_each_us);

/* Most prefill tokens beside `decode_tokens` when each lane is to decode `tps` times a second (0: however slowly): at
 * least a few, and what takes half as long as decoding does, so that prefills get on; at most `most`. */
int32_t hearth_pace_beside(const struct hearth_pace *pace, int32_t decode_tokens, double tps, int32_t most);
/* Most prefill tokens of a batch in which nothing decodes. */
int32_t hearth_pace_alone(const struct hearth_pace *pace, int32_t most);
/* About what a token of a prompt takes; 0: not known. */
static inline double hearth_pace_prefill_us(const struct hearth_pace *pace) {
    return pace->prefill_us > 0 ? pace->prefill_us : pace->beside_us;
}
/* Most tokens of prefetches in a batch: while lanes of others are busy, and while none is. */
int32_t hearth_pace_prefetch_beside(const struct hearth_pace *pace);
int32_t hearth_pace_prefetch_alone(const struct hearth_pace *pace, int32_t most);
/* Likewise, of what no client has asked for. */
int32_t hearth_pace_idle(const struct hearth_pace *pace, int32_t most);

#endif
