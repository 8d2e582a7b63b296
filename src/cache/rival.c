/* Simulates what each order of eviction would hold. Design in rival.h.
 *
 * The holders are a heap by the value that each had when it was last valued. A value changes slowly if at all, so only
 * a few holders are valued again for a choice: some in turn, and those that seem to be worth the least.
 *
 * Invariants: `used_bytes` is the sum of what is held; `holders` are the conversations of which something is held; no
 * value is below that of the holder above it in the heap. */
#include "cache/rival.h"

#include <stdlib.h>
#include <string.h>

#define REVALUED 16       /* holders valued again before a choice, in turn … */
#define LEAST_TRIES 8     /* … and of the least valuable ones: until one does not rise, at most so many */
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
        struct hearth_rival_holder *holders = stakes ? realloc(rival->holders, room * sizeof *holders) : NULL;
        rival->holders = holders ? holders : rival->holders;
        if (!holders) {
            return false;
        }
        memset(stakes + rivals->talks, 0, (room - rivals->talks) * sizeof *stakes);
    }
    rivals->talks = room;
    return true;
}

/* ---- holders ---- */

static void place(struct hearth_rival *rival, size_t i, struct hearth_rival_holder holder) {
    rival->holders[i] = holder;
    rival->stakes[holder.talk].place = (uint32_t)i + 1;
}

/* Moves the holder at a place to where its value belongs. */
static void sift(struct hearth_rival *rival, size_t i) {
    const struct hearth_rival_holder *holders = rival->holders;
    const struct hearth_rival_holder holder = holders[i];
    for (; i > 0 && holder.value < holders[(i - 1) / 2].value; i = (i - 1) / 2) {
        place(rival, i, holders[(i - 1) / 2]);
    }
    for (size_t down; (down = 2 * i + 1) < rival->holder_count; i = down) {
        down += down + 1 < rival->holder_count && holders[down + 1].value < holders[down].value;
        if (holder.value <= holders[down].value) {
            break;
        }
        place(rival, i, holders[down]);
    }
    place(rival, i, holder);
}

static void hold(struct hearth_rival *rival, uint32_t talk, float bytes) {
    struct hearth_rival_stake *stake = &rival->stakes[talk];
    rival->used_bytes += (double)bytes - (double)stake->held_bytes;
    stake->held_bytes = bytes;
    if (bytes > 0 && stake->place == 0) {
        place(rival, rival->holder_count++, (struct hearth_rival_holder){.talk = talk});
        sift(rival, stake->place - 1);
    } else if (bytes <= 0 && stake->place > 0) {
        const size_t i = stake->place - 1;
        const struct hearth_rival_holder last = rival->holders[--rival->holder_count];
        stake->place = 0;
        if (i < rival->holder_count) {
            place(rival, i, last);
            sift(rival, i);
        }
    }
}

void hearth_rivals_forget(struct hearth_rivals *rivals, uint32_t talk) {
    for (int order = 0; talk < rivals->talks && order < HEARTH_RIVALS; order++) {
        hold(&rivals->v[order], talk, 0);
        rivals->v[order].stakes[talk] = (struct hearth_rival_stake){.place = 0};
    }
}

/* ---- turns ---- */

struct valuing {
    struct hearth_rival *rival;
    enum hearth_rival_order order;
    const struct hearth_rival_turn *turn;
    hearth_rival_value_fn *value;
    void *user;
};

static void revalue(const struct valuing *v, size_t i) {
    struct hearth_rival_holder *holder = &v->rival->holders[i];
    holder->value = v->value(v->user, v->order, holder->talk, v->turn->now_us);
    sift(v->rival, i);
}

/* The holder that is worth the least. */
static uint32_t least(const struct valuing *v) {
    const struct hearth_rival_holder *holders = v->rival->holders;
    uint32_t talk;
    int tries = 0;
    do {
        talk = holders[0].talk;
        revalue(v, 0);
    } while (holders[0].talk != talk && ++tries < LEAST_TRIES);
    return holders[0].talk;
}

/* Evicts down to the budget. */
static void shrink(const struct valuing *v) {
    struct hearth_rival *rival = v->rival;
    for (int i = 0; i < REVALUED && rival->used_bytes > v->turn->budget_bytes; i++) {
        revalue(v, rival->from++ % rival->holder_count);
    }
    while (rival->used_bytes > v->turn->budget_bytes && rival->holder_count > 0) {
        const uint32_t talk = least(v);
        const double held = (double)rival->stakes[talk].held_bytes, over = rival->used_bytes - v->turn->budget_bytes;
        hold(rival, talk, held > over ? (float)(held - over) : 0);
        if (rival->stakes[talk].held_bytes > 0) {
            return;
        }
    }
}

bool hearth_rivals_turn(struct hearth_rivals *rivals, const struct hearth_rival_turn *turn,
                        hearth_rival_value_fn *value, void *user) {
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
        const struct valuing v = {
            .rival = rival, .order = (enum hearth_rival_order)order, .turn = turn, .value = value, .user = user};
        if (stake->place > 0) {
            revalue(&v, stake->place - 1);
        }
        shrink(&v);
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
