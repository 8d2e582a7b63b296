/* The pace: how long batches take on this machine, learned from batches that were computed.
 *
 * It holds three figures: T(n), the time of a batch with n decoding tokens (one per lane, and guesses), kept for the
 * sizes 1 to 8 and for four sizes per octave above; the cost of a prefill token in a batch without decoding; and the
 * cost that a prefill token adds to a batch with decoding. All are moving averages, because contexts grow and machines
 * get busy. From them follow the sizes of batches: how many tokens prefetches may have, how many a prefill may have
 * beside decoding lanes, and how many it may have alone, while a request that arrives would wait for the batch.
 *
 * Threads: pure; the caller's. Units: tokens and microseconds; a negative time is unknown. */
#ifndef HEARTH_SCHED_PACE_H
#define HEARTH_SCHED_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define HEARTH_PACE_SIZES 48

struct hearth_pace_size {
    double tokens, us; /* averages; us 0: no batch of this size was measured */
};

/* Zeroed: nothing was measured. */
struct hearth_pace {
    struct hearth_pace_size decode[HEARTH_PACE_SIZES];
    double decode_us; /* of the last batches that only decoded, of any size; before the first one as large: the decoding
                         part of those that also prefilled; 0: none */
    double prefill_us;    /* of one prefill token, alone; 0: unknown */
    double beside_us;     /* of one prefill token, beside lanes that decode; 0: unknown */
    int32_t alone_tokens; /* most tokens of a batch that only prefills; 0: no limit */
    int slow, fast;       /* how many full batches in a row took too long, or little time */
};

/* Learns from a batch that took `us`. */
void hearth_pace_learn(struct hearth_pace *pace, int32_t decode_tokens, int32_t prefill_tokens, int64_t us);

/* Expected time of a batch that decodes so many tokens and prefills none, interpolated between measured sizes; below
 * the smallest one, that one's time. Negative: none as large was measured. */
double hearth_pace_decode_us(const struct hearth_pace *pace, int32_t tokens);

/* Splits the `us` of a batch among its tokens: what each decoding token cost, and each prefill token. */
void hearth_pace_split(const struct hearth_pace *pace, int32_t decode_tokens, int32_t prefill_tokens, int64_t us,
                       double *decode_each_us, double *prefill_each_us);

/* Most prefill tokens beside `decode_tokens` if each lane is to decode `tps` times a second (0: no rate is wanted). At
 * least a few tokens, and as many as take half the time of the decoding, so that prefills advance; at most `most`. */
int32_t hearth_pace_beside(const struct hearth_pace *pace, int32_t decode_tokens, double tps, int32_t most);
/* Most prefill tokens of a batch without decoding. */
int32_t hearth_pace_alone(const struct hearth_pace *pace, int32_t most);
/* About how long a prompt token takes; 0: unknown. */
static inline double hearth_pace_prefill_us(const struct hearth_pace *pace) {
    return pace->prefill_us > 0 ? pace->prefill_us : pace->beside_us;
}
/* Most tokens of prefetches in a batch, while lanes of other requests are busy (beside) and while none is (alone). */
int32_t hearth_pace_prefetch_beside(const struct hearth_pace *pace);
int32_t hearth_pace_prefetch_alone(const struct hearth_pace *pace, int32_t most);
/* The same for prefetches of idle time, which no client has asked for. */
int32_t hearth_pace_idle(const struct hearth_pace *pace, int32_t most);

#endif
