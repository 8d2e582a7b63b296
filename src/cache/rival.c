/* Simulates what each order of eviction would hold. Design in rival.h.
 *
 * Invariants: `used_bytes` is the sum of what is held; `holders` are the conversations of which something is held. */
#include "cache/rival.h"

#include <stdlib.h>
#include <string.h>

#define COMPARED 64       /* most holders compared for a choice */
#define HALVED_TURNS 4096 /* losses are halved after so many turns, so that old turns count less */

/* Makes room for a talk. False: out of memory. */
static bool make_room(struct hearth_rivals *rivals, uint32_t talk) {
    const uint32_t room = rivals->talks * 2 > talk ? rivals->talks * 2 : talk + 256;
    if (talk < rivals->talks) {
        return true;
    }
    for (int order = 0; order < HEARTH_RIVALS; order++) {
        struct hearth_rival *rival = &rivals->v[order];
        struct hearth_rival_stake *stakes = realloc(rival->stakes, room * sizeof *stakes);
        rival->stakes = stakes ? stakes : rival->stakes;
        uint32_t *holders = stakes ? realloc(rival->holders, room * sizeof *holders) : NULL;
        rival->holders = holders ? holders : rival->holders;
        if (!holders) {
            return false;
        }
        memset(stakes + rivals->talks, 0, (room - rivals->talks) * sizeof *stakes);
    }
    rivals->talks = room;
    return true;
}

static void hold(struct hearth_rival *rival, uint32_t talk, float bytes) {
    struct hearth_rival_stake *stake = &rival->stakes[talk];
    rival->used_bytes += (double)bytes - (double)stake->held_bytes;
    stake->held_bytes = bytes;
    if (bytes > 0 && stake->place == 0) {
        rival->holders[rival->holder_count++] = talk;
        stake->place = (uint32_t)rival->holder_count;
    } else if (bytes <= 0 && stake->place > 0) {
        const uint32_t last = rival->holders[--rival->holder_count];
        rival->holders[stake->place - 1] = last;
        rival->stakes[last].place = stake->place;
        stake->place = 0;
    }
}

void hearth_rivals_forget(struct hearth_rivals *rivals, uint32_t talk) {
    for (int order = 0; talk < rivals->talks && order < HEARTH_RIVALS; order++) {
        hold(&rivals->v[order], talk, 0);
        rivals->v[order].stakes[talk] = (struct hearth_rival_stake){.place = 0};
    }
}

/* Evicts down to the budget. */
static void shrink(struct hearth_rival *rival, enum hearth_rival_order order, const struct hearth_rival_turn *turn,
                   hearth_rival_worth_fn *worth, void *user) {
    while (rival->used_bytes > turn->budget_bytes && rival->holder_count > 0) {
        uint32_t least = 0;
        double least_worth = 0;
        const size_t n = rival->holder_count < COMPARED ? rival->holder_count : COMPARED;
        for (size_t i = 0; i < n; i++) {
            const uint32_t talk = rival->holders[rival->from++ % rival->holder_count];
            const double its = worth(user, order, talk, turn->now_us);
            if (i == 0 || its < least_worth) {
                least = talk;
                least_worth = its;
            }
        }
        const double held = (double)rival->stakes[least].held_bytes, over = rival->used_bytes - turn->budget_bytes;
        hold(rival, least, held > over ? (float)(held - over) : 0);
        if (rival->stakes[least].held_bytes > 0) {
            return;
        }
    }
}

bool hearth_rivals_turn(struct hearth_rivals *rivals, const struct hearth_rival_turn *turn,
                        hearth_rival_worth_fn *worth, void *user) {
    if (!make_room(rivals, turn->talk)) {
        return false;
    }
    const bool halve = ++rivals->turns % HALVED_TURNS == 0;
    for (int order = 0; order < HEARTH_RIVALS; order++) {
        struct hearth_rival *rival = &rivals->v[order];
        struct hearth_rival_stake *stake = &rival->stakes[turn->talk];
        if (stake->bytes > 0 && turn->again_tokens > 0) {
            rival->lost_tokens += turn->again_tokens * (1 - (double)stake->held_bytes / (double)stake->bytes);
        }
        rival->lost_tokens *= halve ? 0.5 : 1;
        stake->bytes = (float)turn->bytes;
        hold(rival, turn->talk, stake->bytes);
        shrink(rival, (enum hearth_rival_order)order, turn, worth, user);
    }
    return true;
}

enum hearth_rival_order hearth_rivals_best(const struct hearth_rivals *rivals) {
    int best = 0;
    for (int order = 1; order < HEARTH_RIVALS; order++) {
        best = rivals->v[order].lost_tokens < rivals->v[best].lost_tokens ? order : best;
    }
    return (enum hearth_rival_order)best;
}

void hearth_rivals_finish(struct hearth_rivals *rivals) {
    for (int order = 0; order < HEARTH_RIVALS; order++) {
        free(rivals->v[order].stakes);
        free(rivals->v[order].holders);
    }
}
