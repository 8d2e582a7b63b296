/* Where a conversation goes on: how much of the end of its last turn the next turn leaves out. Most turns begin with
 * all of the last one; some rewrite its last message, or print a reply as the template does later; few go back farther.
 *
 * Cut tokens are counted by octaves, separately for what a conversation waits for. From the counts follows how likely
 * the next turn resumes at each place of the path, and so what a snapshot there is worth beside its neighbours. Counts
 * start from a guess, so that a few turns do not decide. Threads: none of its own. */
#ifndef HEARTH_CACHE_CUT_H
#define HEARTH_CACHE_CUT_H

#include "cache/live.h"

enum { HEARTH_CUT_OCTAVES = 24 };

struct hearth_cuts {
    float seen[HEARTH_AWAITS_COUNT][HEARTH_CUT_OCTAVES]; /* none, 1, 2 to 3, 4 to 7 … tokens */
};

void hearth_cut_learn(struct hearth_cuts *cuts, enum hearth_awaits awaits, int32_t tokens);
/* The chance that at most `most` tokens are cut; 0 for a negative `most`. Pure. */
double hearth_cut_chance(const struct hearth_cuts *cuts, enum hearth_awaits awaits, int32_t most);

#endif
