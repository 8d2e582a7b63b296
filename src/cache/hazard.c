/* Learning how conversations come back. The model stands in hazard.h.
 *
 * A factor's ratio is learnt against what all the others expect, one bin of one conversation at a time: those that wait
 * are counted as far as they have waited (the estimate of Kaplan and Meier, with factors). Counts are halved when there
 * are many: what was long ago counts less.
 *
 * The guess is the same for all ages, so that at first what was unused for longest goes first. */
#include "cache/hazard.h"

#include "base/assert.h"

#include <math.h>

#define GUESS 0.06        /* chance to come back within a bin, before anything is known */
#define GUESS_CASES 16.0f /* what it counts for */
#define RATIO_CASES 2.0f  /* returns that a factor counts as expected and seen at first */
#define CASES_MAX 8192.0f
#define CHANCE_MAX 0.95

static double bin_start_s(int bin) {
    return bin == 0 ? 0 : exp2((bin - 1) / 4.0);
}

/* Where an age stands, in bins. */
static double place_of(int64_t age_us) {
    const double age_s = (double)age_us / 1e6;
    return age_s < 0 ? 0 : age_s < 1 ? age_s : 1 + 4 * log2(age_s);
}

int hearth_hazard_bin(int64_t age_us) {
    const int bin = (int)place_of(age_us);
    return bin < HEARTH_HAZARD_BINS ? bin : HEARTH_HAZARD_BINS - 1;
}

/* Up to 16 seconds, two minutes, 17 minutes, and from there on. */
static int span_of(int bin) {
    return bin < 17 ? 0 : bin < 29 ? 1 : bin < 41 ? 2 : 3;
}

static double ratio_of(const struct hearth_hazard_ratio *ratio) {
    return ((double)ratio->back + RATIO_CASES) / ((double)ratio->expected + RATIO_CASES);
}

static const struct hearth_hazard_ratio *ratio_at(const struct hearth_hazard *hazard,
                                                  const struct hearth_hazard_case *of, int factor, int bin) {
    HEARTH_ASSERT(of->awaits < HEARTH_AWAITS_COUNT && of->values[factor] < HEARTH_HAZARD_VALUES);
    return &hazard->ratios[factor][of->awaits][of->values[factor]][span_of(bin)];
}

static double base_chance(const struct hearth_hazard_bin *bin) {
    return ((double)bin->back + GUESS_CASES * GUESS) / ((double)bin->reached + GUESS_CASES);
}

static double odds_of(const struct hearth_hazard *hazard, const struct hearth_hazard_case *of, int bin) {
    const double p = base_chance(&hazard->bins[of->awaits][bin]);
    double odds = p / (1 - p);
    for (int factor = 0; factor < HEARTH_HAZARD_FACTORS; factor++) {
        odds *= ratio_of(ratio_at(hazard, of, factor, bin));
    }
    return odds;
}

static double chance_of(double odds) {
    const double p = odds / (1 + odds);
    return p < CHANCE_MAX ? p : CHANCE_MAX;
}

void hearth_hazard_learn(struct hearth_hazard *hazard, const struct hearth_hazard_case *of, int bin, bool back) {
    const double odds = odds_of(hazard, of, bin);
    for (int factor = 0; factor < HEARTH_HAZARD_FACTORS; factor++) {
        struct hearth_hazard_ratio *ratio = &hazard->ratios[factor][of->awaits][of->values[factor]][span_of(bin)];
        const double without = chance_of(odds / ratio_of(ratio));
        ratio->back += back;
        ratio->expected += (float)without;
        if (ratio->expected + ratio->back > CASES_MAX) {
            ratio->expected /= 2;
            ratio->back /= 2;
        }
    }
    struct hearth_hazard_bin *base = &hazard->bins[of->awaits][bin];
    base->reached++;
    base->back += back;
    if (base->reached > CASES_MAX) {
        base->reached /= 2;
        base->back /= 2;
    }
}

/* The chance within each bin, and how long it is. */
struct chances {
    double p[HEARTH_HAZARD_BINS], width_s[HEARTH_HAZARD_BINS];
};

static struct chances chances_of(const struct hearth_hazard *hazard, const struct hearth_hazard_case *of) {
    struct chances chances;
    double start_s = bin_start_s(0);
    for (int bin = 0; bin < HEARTH_HAZARD_BINS; bin++) {
        const double end_s = bin_start_s(bin + 1);
        chances.p[bin] = chance_of(odds_of(hazard, of, bin));
        chances.width_s[bin] = end_s - start_s;
        start_s = end_s;
    }
    return chances;
}

/* The best ratio of returns to time over all bins to hold on to, when no return can come for so long. What is left
 * comes back at most, and the time only grows: where that is no better, nothing behind is. */
static double best_from(const struct chances *chances, int from, double wait_s) {
    double left = 1, back = 0, held_s = wait_s, best = 0;
    for (int bin = from; bin < HEARTH_HAZARD_BINS && back + left > best * held_s; bin++) {
        back += left * chances->p[bin];
        held_s += left * chances->width_s[bin] * (1 - chances->p[bin] / 2);
        left *= 1 - chances->p[bin];
        best = back > best * held_s ? back / held_s : best;
    }
    return best;
}

void hearth_hazard_rates(const struct hearth_hazard *hazard, const struct hearth_hazard_case *of,
                         struct hearth_hazard_rates *rates) {
    const struct chances chances = chances_of(hazard, of);
    float *at = rates->at;
    int top = 0;
    for (int bin = 0; bin < HEARTH_HAZARD_BINS; bin++) {
        at[bin] = (float)best_from(&chances, bin, 0);
        top = at[bin] > at[top] ? bin : top;
    }
    for (int bin = top + 1; bin < HEARTH_HAZARD_BINS; bin++) {
        at[bin] = at[bin] < at[bin - 1] ? at[bin] : at[bin - 1];
    }
    for (int i = 0; i < HEARTH_HAZARD_BEFORES; i++) {
        rates->before[i] = (float)best_from(&chances, 0, exp2(i) - 1);
    }
}

/* A value between those of a list. */
static double between(const float *list, int count, double place) {
    const int i = (int)place;
    return i >= count - 1 ? (double)list[count - 1] : (double)list[i] + (place - i) * (double)(list[i + 1] - list[i]);
}

double hearth_hazard_rate(const struct hearth_hazard_rates *rates, int64_t age_us) {
    return age_us < 0 ? between(rates->before, HEARTH_HAZARD_BEFORES, log2(1 - (double)age_us / 1e6))
                      : between(rates->at, HEARTH_HAZARD_BINS, place_of(age_us));
}
