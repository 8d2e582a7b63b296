/* How likely a conversation comes back, by how long ago its last turn ended: what the policy learns.
 *
 * Ages are divided into bins. For state that has reached a bin, the chance to come back within it is
 *
 *     odds(bin) = odds of all that wait for the same, in this bin
 *               * for each factor: how often what has its value came back, over how often it should have
 *
 * Factors are what is known of a conversation; each is counted by what the conversation waits for and by spans of ages.
 * All counts start from a guess, so that a few returns do not decide. From the chances follows what a place in RAM is
 * worth:
 *
 *     rate(age) = the most, over all times t, of P(it comes back within t) / E(time that its place is held)
 *
 * which is Gittins' index of holding on to it: the best returns per second that can still be had of it.
 *
 * A few ten kilobytes without pointers. Threads: none of its own. Source: J. Gittins, "Bandit Processes and Dynamic
 * Allocation Indices", J. R. Statist. Soc. B 41 (1979); D. Cox, "Regression Models and Life-Tables", J. R. Statist.
 * Soc. B 34 (1972). */
#ifndef HEARTH_CACHE_HAZARD_H
#define HEARTH_CACHE_HAZARD_H

#include "cache/live.h"

enum {
    HEARTH_HAZARD_BINS = 80,   /* of ages: four to an octave, from a second on */
    HEARTH_HAZARD_VALUES = 48, /* of each factor */
    HEARTH_HAZARD_SPANS = 4,   /* of ages */
    HEARTH_HAZARD_BEFORES = 12,
};

enum hearth_hazard_factor {
    HEARTH_HAZARD_RHYTHM, /* how quickly its turns followed each other: an octave each; 0: there was only one */
    HEARTH_HAZARD_LASTED, /* how long its last turn took: an octave and a half each */
    HEARTH_HAZARD_LENGTH, /* its pages: four to an octave. What comes near a model's context is soon summed up */
    HEARTH_HAZARD_LEFT,   /* how many conversations began from inside of it since its last turn */
    HEARTH_HAZARD_FACTORS
};

/* A conversation that waits, as far as it is known. */
struct hearth_hazard_case {
    uint8_t awaits; /* enum hearth_awaits */
    uint8_t values[HEARTH_HAZARD_FACTORS];
};

struct hearth_hazard {
    struct hearth_hazard_bin {
        float reached, back;
    } bins[HEARTH_AWAITS_COUNT][HEARTH_HAZARD_BINS];
    struct hearth_hazard_ratio {
        float back, expected;
    } ratios[HEARTH_HAZARD_FACTORS][HEARTH_AWAITS_COUNT][HEARTH_HAZARD_VALUES][HEARTH_HAZARD_SPANS];
};

/* Expected returns per second. */
struct hearth_hazard_rates {
    float at[HEARTH_HAZARD_BINS];        /* from the start of each bin */
    float before[HEARTH_HAZARD_BEFORES]; /* 0, 1, 3, 7 … seconds before the turn is over */
};

int hearth_hazard_bin(int64_t age_us);
/* Learns that the case lived through the bin, and whether it came back in it. */
void hearth_hazard_learn(struct hearth_hazard *hazard, const struct hearth_hazard_case *of, int bin, bool back);
/* Computes the rates. Pure. */
void hearth_hazard_rates(const struct hearth_hazard *hazard, const struct hearth_hazard_case *of,
                         struct hearth_hazard_rates *rates);
/* The rate at an age; a negative age means that the turn goes on, and the longer it still takes the less a place is
 * worth. The rate changes between bins, so that of two that waited nearly as long the older one is worth less. Pure. */
double hearth_hazard_rate(const struct hearth_hazard_rates *rates, int64_t age_us);

#endif
