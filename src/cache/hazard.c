/* Learns how conversations come back. Design in hazard.h.
 *
 * The ratio of a factor is learnt against what all other factors expect, one bin of one conversation at a time. A
 * conversation that still waits counts up to the age that it has reached (the Kaplan-Meier estimate, with factors).
 * Counts are halved when they become large, so that old turns count less.
 *
 * The initial guess is the same for all ages, so that at first state that was unused for longest is evicted first. */
#include "cache/hazard.h"

#include "base/assert.h"

#include <math.h>

#define GUESS 0.06        /* chance to come back within a bin, before anything is known */
#define GUESS_CASES 16.0f /* the number of cases that the guess counts as */
#define RATIO_CASES 2.0f  /* the number of returns, expected and seen, with which a factor begins */
#define CASES_MAX 8192.0f
#define CHANCE_MAX 0.95
#define QUARTER_OCTAVE 1.189207115002721 /* behind the first second each bin starts this many times as late */

/* The place of an age on the scale of bins. */
static double place_of(int64_t age_us) {
    const double age_s = (double)age_us / 1e6;
    return age_s < 0 ? 0 : age_s < 1 ? age_s : 1 + 4 * log2(age_s);
}

int hearth_hazard_bin(int64_t age_us) {
    const int bin = (int)place_of(age_us);
    return bin < HEARTH_HAZARD_BINS ? bin : HEARTH_HAZARD_BINS - 1;
}

/* The span of a bin: up to 16 seconds, two minutes, 17 minutes, and beyond. */
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

/* The odds of a return within the bin, without factors. */
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

/* Bins that are held through together: state that reaches the first of them is worth holding to the end. */
struct stretch {
    double back, held_s, left; /* returns; time that places are held; what has not come back at the end */
};

/* Makes a stretch of each bin. The product of the factors is the same within a span. */
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

/* Finds, from each bin on, the best ratio of returns to time over all lengths of holding on. Stretches behind the bin
 * stand at the end of the array, each with a better ratio than the next one; a bin merges with the stretches that are
 * better than itself. Each bin is visited at most twice. Returns the number of stretches left. */
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

/* The same from the first bin on, when no return can come for `wait_s`; it ends where a stretch does. */
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

/* A value interpolated between entries of a list. */
static double between(const float *list, int count, double place) {
    const int i = (int)place;
    return i >= count - 1 ? (double)list[count - 1] : (double)list[i] + (place - i) * (double)(list[i + 1] - list[i]);
}

double hearth_hazard_rate(const struct hearth_hazard_rates *rates, int64_t age_us) {
    return age_us < 0 ? between(rates->before, HEARTH_HAZARD_BEFORES, log2(1 - (double)age_us / 1e6))
                      : between(rates->at, HEARTH_HAZARD_BINS, place_of(age_us));
}
