/* Orders in which conversations could be evicted, tried out beside each other: each one's cache holds no state, but so
 * many bytes of each conversation. A conversation that comes back tells which of them would have had it, and the order
 * decides that has lost the fewest tokens lately. So what was learnt is used where it has proved to be better than
 * evicting what was unused for longest, and not elsewhere.
 *
 * 16 bytes for each conversation and order; a turn compares a bounded number of conversations. Threads: the cache's. */
#ifndef HEARTH_CACHE_RIVAL_H
#define HEARTH_CACHE_RIVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first of those that have lost the same decides. */
enum hearth_rival_order {
    HEARTH_RIVAL_RECENT, /* what was unused for longest goes first */
    HEARTH_RIVAL_LEARNT, /* what is least likely to come back soon does */
    HEARTH_RIVALS
};

struct hearth_rivals {
    struct hearth_rival {
        struct hearth_rival_stake {
            float bytes, held_bytes;
            uint32_t place; /* in the list of holders, and one; 0: nothing is held */
        } *stakes;          /* by conversation */
        uint32_t *holders;
        size_t holder_count, from; /* from: where comparing goes on */
        double used_bytes, lost_tokens;
    } v[HEARTH_RIVALS];
    uint32_t talks; /* there is room for so many conversations */
    uint32_t turns; /* since counts were halved */
};

/* What a conversation is worth by an order. */
typedef double hearth_rival_worth_fn(void *user, enum hearth_rival_order order, uint32_t talk, int64_t now_us);

/* A turn of a conversation. */
struct hearth_rival_turn {
    uint32_t talk;
    double again_tokens; /* what its last turn left that this one begins with; 0: it is the first */
    double bytes;        /* what it takes from now on */
    double budget_bytes;
    int64_t now_us;
};

/* `worth` is called for conversations that had a turn and were not forgotten. False: out of memory, and nothing is
 * counted. */
bool hearth_rivals_turn(struct hearth_rivals *rivals, const struct hearth_rival_turn *turn,
                        hearth_rival_worth_fn *worth, void *user);
void hearth_rivals_forget(struct hearth_rivals *rivals, uint32_t talk);
enum hearth_rival_order hearth_rivals_best(const struct hearth_rivals *rivals);
void hearth_rivals_finish(struct hearth_rivals *rivals);

#endif
