/* Counts how much turns leave out. Design in cut.h.
 *
 * Within an octave all cuts are equally likely. Counts are halved when they become large, so that old turns count less.
 */
#include "cache/cut.h"

#define GUESS_CASES 16.0 /* number of turns that the guess counts as … */
#define GUESS_NONE 0.9   /* … of which this part cuts nothing; the octaves share the rest equally */
#define CASES_MAX 4096.0f

static int octave_of(int32_t tokens) {
    int octave = 0;
    for (; tokens > 0 && octave < HEARTH_CUT_OCTAVES - 1; tokens /= 2) {
        octave++;
    }
    return octave;
}

void hearth_cut_learn(struct hearth_cuts *cuts, enum hearth_awaits awaits, int32_t tokens) {
    float *seen = cuts->seen[awaits], all = 0;
    seen[octave_of(tokens)]++;
    for (int i = 0; i < HEARTH_CUT_OCTAVES; i++) {
        all += seen[i];
    }
    for (int i = 0; all > CASES_MAX && i < HEARTH_CUT_OCTAVES; i++) {
        seen[i] /= 2;
    }
}

double hearth_cut_chance(const struct hearth_cuts *cuts, enum hearth_awaits awaits, int32_t most) {
    if (most < 0) {
        return 0;
    }
    const int last = octave_of(most);
    const double from = last > 0 ? (double)(1 << (last - 1)) : 0; /* the octave holds [from, 2 * from) */
    const double part = last > 0 ? ((double)most - from + 1) / from : 1;
    double upto = 0, all = 0;
    for (int i = 0; i < HEARTH_CUT_OCTAVES; i++) {
        const double guess = i == 0 ? GUESS_NONE : (1 - GUESS_NONE) / (HEARTH_CUT_OCTAVES - 1);
        const double n = (double)cuts->seen[awaits][i] + GUESS_CASES * guess;
        all += n;
        upto += i < last ? n : i == last ? n * (part < 1 ? part : 1) : 0;
    }
    return upto / all;
}
