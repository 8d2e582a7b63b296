/* Where a conversation goes on: how much of the end of its last turn the next one leaves out. Most begin with all of
 * it; some rewrite its last message, or a reply as the template prints it later; few go back farther.
 *
 * The tokens that are cut are counted by octaves, apart for what a conversation waits for. From that follows how likely
 * each place on its path is the one to resume at, and so what a snapshot there is worth beside its neighbours. Counts
 * lean on a guess, so that little that was seen says little. Threads: none of its own. */
#ifndef HEARTH_CACHE_CUT_H
#define HEARTH_CACHE_CUT_H

#include "cache/live.h"

enum { HEARTH_CUT_OCTAVES = 24 };

struct hearth_cuts {
    float seen[HEARTH_AWAITS_COUNT][HEARTH_CUT_OCTAVES]; /* none, 1, 2 to 3, 4 to 7 … tokens */
};

void hearth_cut_learn(struct hearth_cuts *cuts, enum hearth_awaits awaits, int32_t tokens);
/* The chance that no more than `most` tokens are cut; none of less than 0. Pure. */
double hearth_cut_chance(const struct hearth_cuts *cuts, enum hearth_awaits awaits, int32_t most);

#endif
