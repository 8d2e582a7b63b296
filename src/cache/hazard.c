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
#define QUARTER_OCTAVE 1.189207115002721 /* bins behind the first second: each starts so many times as late */

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

/* Returns to what stays away, without the factors. */
static double base_odds(const struct hearth_hazard_bin *bin) {
    return ((double)bin->back + GUESS_CASES * GUESS) /
           ((double)bin->reached - (double)bin->back + GUESS_CASES * (1 - GUESS));
}

/* The product of the factors' ratios. */
static double factors_of(const struct hearth_hazard *hazard, const struct hearth_hazard_case *of, int bin) {
    double product = 1;
    for (int factor = 0; factor < HEARTH_HAZARD_FACTORS; factor++) {
        product *= ratio_of(ratio_at(hazard, of, factor, bin));
    }
    return product;
}

static double chance_of(double odds) {
    const double p = odds / (1 + odds);
    return p < CHANCE_MAX ? p : CHANCE_MAX;
}

void hearth_hazard_learn(struct hearth_hazard *hazard, const struct hearth_hazard_case *of, int bin, bool back) {
    const double odds = base_odds(&hazard->bins[of->awaits][bin]) * factors_of(hazard, of, bin);
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

/* Bins that are held on to together, as what has reached the first of them sees them. */
struct stretch {
    double back, held_s, left; /* returns, time that a place is held, and what has not come back behind it */
};

/* Each bin as a stretch. The product of the factors is the same in all of a span. */
static void stretches_of(const struct hearth_hazard *hazard, const struct hearth_hazard_case *of,
                         struct stretch stretches[HEARTH_HAZARD_BINS]) {
    double factors = 1, width_s = 1;
    for (int bin = 0; bin < HEARTH_HAZARD_BINS; bin++) {
        if (bin == 0 || span_of(bin) != span_of(bin - 1)) {
            factors = factors_of(hazard, of, bin);
        }
        const double chance = chance_of(base_odds(&hazard->bins[of->awaits][bin]) * factors);
        stretches[bin] = (struct stretch){.back = chance, .held_s = width_s * (1 - chance / 2), .left = 1 - chance};
        width_s = bin == 0 ? QUARTER_OCTAVE - 1 : width_s * QUARTER_OCTAVE;
    }
}

/* The best ratio of returns to time over all bins to hold on to, from each bin on. What is behind a bin stands at the
 * end of the array as stretches, each with a better ratio than the next one; those that are better than the bin become
 * one with it. So each bin is met twice at most. Returns how many stretches there are in the end. */
static int merge(struct stretch stretches[HEARTH_HAZARD_BINS], float at[HEARTH_HAZARD_BINS]) {
    int n = 0;
    for (int bin = HEARTH_HAZARD_BINS - 1; bin >= 0; bin--) {
        struct stretch stretch = stretches[bin];
        struct stretch *behind = &stretches[HEARTH_HAZARD_BINS - n];
        for (; n > 0 && behind->back * stretch.held_s > stretch.back * behind->held_s; n--, behind++) {
            stretch.back += stretch.left * behind->back;
            stretch.held_s += stretch.left * behind->held_s;
            stretch.left *= behind->left;
        }
        at[bin] = (float)(stretch.back / stretch.held_s);
        stretches[HEARTH_HAZARD_BINS - ++n] = stretch;
    }
    return n;
}

/* The same from the first bin on, when no return can come for so long: it ends where a stretch does. */
static double best_behind(const struct stretch *first, int n, double wait_s) {
    double left = 1, back = 0, held_s = wait_s;
    for (int i = 0; i == 0 || (i < n && first[i].back * held_s > back * first[i].held_s); i++) {
        back += left * first[i].back;
        held_s += left * first[i].held_s;
        left *= first[i].left;
    }
    return back / held_s;
}

void hearth_hazard_rates(const struct hearth_hazard *hazard, const struct hearth_hazard_case *of,
                         struct hearth_hazard_rates *rates) {
    struct stretch stretches[HEARTH_HAZARD_BINS];
    stretches_of(hazard, of, stretches);
    float *at = rates->at;
    const int n = merge(stretches, at);
    int top = 0;
    for (int bin = 0; bin < HEARTH_HAZARD_BINS; bin++) {
        top = at[bin] > at[top] ? bin : top;
    }
    for (int bin = top + 1; bin < HEARTH_HAZARD_BINS; bin++) {
        at[bin] = at[bin] < at[bin - 1] ? at[bin] : at[bin - 1];
    }
    for (int i = 0; i < HEARTH_HAZARD_BEFORES; i++) {
        rates->before[i] = (float)best_behind(&stretches[HEARTH_HAZARD_BINS - n], n, (double)((1 << i) - 1));
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
