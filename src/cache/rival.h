/* Rivals: orders of eviction that are tried out beside each other. Each has a pretended cache, which holds only a
 * number of bytes for each conversation. When a conversation comes back, each order has kept its bytes or lost them;
 * the order that has lost the fewest tokens lately decides. So what was learnt is used only where it has proved better
 * than evicting what was unused for longest.
 *
 * Memory: 28 bytes for each conversation and order; a turn values a bounded number of conversations. Threads: the
 * cache's. */
#ifndef HEARTH_CACHE_RIVAL_H
#define HEARTH_CACHE_RIVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* On a tie the first one decides. */
enum hearth_rival_order {
    HEARTH_RIVAL_RECENT, /* what was unused for longest goes first */
    HEARTH_RIVAL_LEARNT, /* what is least likely to come back soon goes first */
    HEARTH_RIVALS
};

struct hearth_rivals {
    struct hearth_rival {
        struct hearth_rival_stake {
            float bytes, held_bytes;
            uint32_t place; /* place in the heap of holders, plus one; 0: nothing is held */
        } *stakes;          /* by conversation */
        struct hearth_rival_holder {
            double value;
            uint32_t talk;
        } *holders;
        size_t holder_count, from; /* from: where valuing continues */
        double used_bytes, lost_tokens;
    } v[HEARTH_RIVALS];
    uint32_t talks; /* conversations that fit */
    uint32_t turns; /* since losses were last halved */
};

/* The value of a conversation in an order: of two, the one with the smaller value goes first. */
typedef double hearth_rival_value_fn(void *user, enum hearth_rival_order order, uint32_t talk, int64_t now_us);

/* A turn of a conversation. */
struct hearth_rival_turn {
    uint32_t talk;
    double again_tokens; /* tokens of its last turn that this one begins with; 0: it is the first turn */
    double bytes;        /* bytes that it takes from now on */
    double budget_bytes;
    int64_t now_us;
};

/* Counts a turn in each order. `value` is called for conversations that had a turn and were not forgotten. False: out
 * of memory; nothing is counted. */
bool hearth_rivals_turn(struct hearth_rivals *rivals, const struct hearth_rival_turn *turn,
                        hearth_rival_value_fn *value, void *user);
void hearth_rivals_forget(struct hearth_rivals *rivals, uint32_t talk);
enum hearth_rival_order hearth_rivals_best(const struct hearth_rivals *rivals);
void hearth_rivals_finish(struct hearth_rivals *rivals);

#endif
