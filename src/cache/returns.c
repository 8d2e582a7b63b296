/* Conversations (talks): their names, their victims, and learning from them. Design in returns.h.
 *
 * The talks that wait are learnt from every few turns, each bin of ages once.
 *
 * Invariants: a talk is in the table exactly if it is `known`; a talk that is neither known nor has items is free,
 * except the ones that always exist; where LRU decides, the talks with pages that may go are in order of their first
 * page's rank. */
#include "cache/returns.h"

#include "base/assert.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define STALE_TURNS 64  /* waiting talks are learnt from each time so many turns have ended */
#define STALE_RATES 256 /* a cached rate is computed again after so many turns */
#define RATE_PLACES 4
#define RHYTHM_WEIGHT 0.3f /* weight of the newest time between two turns */
#define BLOCK_TALKS 256
#define FORGET_OF 8
#define LEFT_MAX 3
#define TALKS_MIN 64
#define TALKS_MAX 16384

/* ---- talks ---- */

struct hearth_talk *hearth_returns_talk(const struct hearth_returns *returns, uint32_t talk) {
    HEARTH_ASSERT(talk < returns->talk_count);
    return &returns->blocks[talk / BLOCK_TALKS][talk % BLOCK_TALKS];
}

/* False: out of memory. */
static bool add_block(struct hearth_returns *returns) {
    uint32_t block = returns->talk_count / BLOCK_TALKS, most = returns->talk_count + BLOCK_TALKS;
    struct hearth_talk **blocks = realloc(returns->blocks, (block + 1) * sizeof(struct hearth_talk *));
    returns->blocks = blocks ? blocks : returns->blocks;
    uint32_t *unused = blocks ? realloc(returns->free, most * sizeof *unused) : NULL;
    returns->free = unused ? unused : returns->free;
    struct hearth_talk *talks = unused ? calloc(BLOCK_TALKS, sizeof *talks) : NULL;
    if (!talks) {
        return false;
    }
    blocks[block] = talks;
    for (uint32_t talk = most; talk-- > returns->talk_count;) {
        unused[returns->free_count++] = talk;
    }
    returns->talk_count = most;
    return true;
}

/* Takes a free talk, or returns HEARTH_TALK_NONE: out of memory. */
static uint32_t take_talk(struct hearth_returns *returns) {
    if (returns->free_count == 0 && !add_block(returns)) {
        return HEARTH_TALK_NONE;
    }
    return returns->free[--returns->free_count];
}

/* Frees a talk to which nothing belongs and of which nothing is known. */
static void give_back(struct hearth_returns *returns, uint32_t index) {
    struct hearth_talk *talk = hearth_returns_talk(returns, index);
    if (index == HEARTH_TALK_NONE || talk->known || talk->items > 0 || talk->turns == 0) {
        return;
    }
    for (int heap = 0; heap < HEARTH_TALK_HEAPS; heap++) {
        hearth_heap_finish(&talk->victims[heap]);
    }
    *talk = (struct hearth_talk){0};
    returns->free[returns->free_count++] = index;
}

static void drop_names(struct hearth_returns *returns, struct hearth_talk *talk) {
    for (int i = 0; i < HEARTH_TALK_NAMES; i++) {
        if (talk->names[i].listed) {
            hearth_table_remove(&returns->table, &talk->names[i].link);
            talk->names[i].listed = false;
        }
    }
    returns->known -= talk->known;
    talk->known = false;
}

static void take_names(struct hearth_returns *returns, uint32_t index,
                       const struct hearth_digest names[HEARTH_TALK_NAMES]) {
    struct hearth_talk *talk = hearth_returns_talk(returns, index);
    for (int i = 0; i < HEARTH_TALK_NAMES; i++) {
        struct hearth_talk_name *name = &talk->names[i];
        *name = (struct hearth_talk_name){.link.key = names[i], .talk = index};
        name->listed = !hearth_digest_is_zero(names[i]) && hearth_table_add(&returns->table, &name->link);
    }
    talk->known = talk->names[0].listed;
    returns->known += talk->known;
}

static void forget(struct hearth_returns *returns, uint32_t index) {
    hearth_rivals_forget(&returns->rivals, index);
    drop_names(returns, hearth_returns_talk(returns, index));
    give_back(returns, index);
}

/* Forgets the oldest of a few talks: in the long run, those that ended long ago. */
static void forget_one(struct hearth_returns *returns) {
    uint32_t oldest = HEARTH_TALK_NONE;
    for (uint32_t seen = 0; seen < FORGET_OF || oldest == HEARTH_TALK_NONE; returns->oldest++) {
        uint32_t index = returns->oldest % returns->talk_count;
        const struct hearth_talk *talk = hearth_returns_talk(returns, index);
        seen += talk->known;
        if (talk->known &&
            (oldest == HEARTH_TALK_NONE || talk->began_us < hearth_returns_talk(returns, oldest)->began_us)) {
            oldest = index;
        }
    }
    forget(returns, oldest);
}

struct hearth_returns *hearth_returns_create(uint32_t talks) {
    struct hearth_returns *returns = calloc(1, sizeof *returns);
    if (!returns || !add_block(returns)) {
        hearth_returns_destroy(returns);
        return NULL;
    }
    returns->known_most = talks < TALKS_MIN ? TALKS_MIN : talks > TALKS_MAX ? TALKS_MAX : talks;
    returns->free_count--; /* HEARTH_TALK_NONE lies on top */
    return returns;
}

void hearth_returns_destroy(struct hearth_returns *returns) {
    if (!returns) {
        return;
    }
    for (uint32_t index = 0; index < returns->talk_count; index++) {
        struct hearth_talk *talk = hearth_returns_talk(returns, index);
        for (int heap = 0; heap < HEARTH_TALK_HEAPS; heap++) {
            hearth_heap_finish(&talk->victims[heap]);
        }
    }
    for (uint32_t block = 0; block < returns->talk_count / BLOCK_TALKS; block++) {
        free(returns->blocks[block]);
    }
    for (int heap = 0; heap < HEARTH_TALK_HEAPS; heap++) {
        free(returns->offering[heap].talks);
        hearth_heap_finish(&returns->offering[heap].least);
    }
    hearth_rivals_finish(&returns->rivals);
    hearth_table_finish(&returns->table);
    free(returns->blocks);
    free(returns->free);
    free(returns);
}

void hearth_returns_join(struct hearth_returns *returns, uint32_t talk) {
    hearth_returns_talk(returns, talk)->items++;
}

void hearth_returns_leave(struct hearth_returns *returns, uint32_t talk) {
    HEARTH_ASSERT(hearth_returns_talk(returns, talk)->items > 0);
    hearth_returns_talk(returns, talk)->items--;
    give_back(returns, talk);
}

bool hearth_returns_learns_well(const struct hearth_returns *returns) {
    return hearth_rivals_best(&returns->rivals) == HEARTH_RIVAL_LEARNT;
}

/* Lists a talk before it gets its first victim. False: out of memory. */
static bool list(struct hearth_returns *returns, uint32_t index, enum hearth_talk_heap heap) {
    struct hearth_talk_list *list = &returns->offering[heap];
    if (!HEARTH_BUF_ROOM(list->talks, list->n, list->cap)) {
        return false;
    }
    struct hearth_talk *talk = hearth_returns_talk(returns, index);
    if (!hearth_heap_push(&list->least, &talk->least[heap], INFINITY)) {
        return false;
    }
    list->talks[list->n++] = index;
    talk->place[heap] = (uint32_t)list->n;
    return true;
}

/* Where LRU decides, moves a talk to where its next page to go belongs. */
static void order(struct hearth_returns *returns, struct hearth_talk *talk) {
    if (!hearth_returns_learns_well(returns)) {
        hearth_heap_update(&returns->offering[HEARTH_TALK_PAGES].least, &talk->least[HEARTH_TALK_PAGES],
                           talk->victims[HEARTH_TALK_PAGES].v[0].priority);
    }
}

static void unlist(struct hearth_returns *returns, struct hearth_talk *talk, enum hearth_talk_heap heap) {
    struct hearth_talk_list *list = &returns->offering[heap];
    uint32_t last = list->talks[--list->n];
    list->talks[talk->place[heap] - 1] = last;
    hearth_returns_talk(returns, last)->place[heap] = talk->place[heap];
    talk->place[heap] = 0;
    hearth_heap_remove(&list->least, &talk->least[heap]);
}

/* The talk's next victim may be another one, or there is none. */
static void relist(struct hearth_returns *returns, uint32_t index, enum hearth_talk_heap heap) {
    struct hearth_talk *talk = hearth_returns_talk(returns, index);
    if (talk->victims[heap].n > 0 && heap == HEARTH_TALK_PAGES) {
        order(returns, talk);
    } else if (talk->victims[heap].n == 0 && talk->place[heap] > 0) {
        unlist(returns, talk, heap);
    }
}

void hearth_returns_offer(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                          struct hearth_heap_node *node, double rank) {
    struct hearth_heap *victims = &hearth_returns_talk(returns, talk)->victims[heap];
    if (node->index != 0) {
        hearth_heap_update(victims, node, rank);
    } else if (victims->n > 0 || list(returns, talk, heap)) {
        returns->victims[heap] += hearth_heap_push(victims, node, rank);
    }
    relist(returns, talk, heap);
}

void hearth_returns_withdraw(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                             struct hearth_heap_node *node) {
    returns->victims[heap] -= node->index != 0;
    hearth_heap_remove(&hearth_returns_talk(returns, talk)->victims[heap], node);
    relist(returns, talk, heap);
}

void hearth_returns_valued(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap, double worth) {
    hearth_heap_update(&returns->offering[heap].least, &hearth_returns_talk(returns, talk)->least[heap], worth);
}

const struct hearth_talk *hearth_returns_least(const struct hearth_returns *returns, enum hearth_talk_heap heap) {
    const struct hearth_heap_node *node = hearth_heap_top(&returns->offering[heap].least);
    HEARTH_ASSERT(node != NULL);
    return (const struct hearth_talk *)((const char *)(node - heap) - offsetof(struct hearth_talk, least));
}

/* ---- learning ---- */

static float octaves(int64_t us) {
    return (float)log2(1 + (us > 0 ? (double)us / 1e6 : 0));
}

/* The rhythm of a talk when a turn begins at `began_us`. */
static float rhythm_at(const struct hearth_talk *talk, int64_t began_us) {
    float gap = octaves(began_us - talk->ended_us);
    return talk->turns > 1 ? talk->rhythm + (gap - talk->rhythm) * RHYTHM_WEIGHT : gap;
}

static uint8_t value(double octaves_of_it) {
    return octaves_of_it < 0                      ? 0
           : octaves_of_it < HEARTH_HAZARD_VALUES ? (uint8_t)octaves_of_it
                                                  : HEARTH_HAZARD_VALUES - 1;
}

/* The case of a talk (HEARTH_TALK_NONE: of a new one) after a turn. */
static struct hearth_hazard_case case_behind(const struct hearth_returns *returns, uint32_t index,
                                             const struct hearth_talk_turn *turn) {
    const struct hearth_talk *talk = index != HEARTH_TALK_NONE ? hearth_returns_talk(returns, index) : NULL;
    return (struct hearth_hazard_case){
        .awaits = (uint8_t)turn->awaits,
        .values = {[HEARTH_HAZARD_RHYTHM] = talk ? value(1 + (double)rhythm_at(talk, turn->began_us)) : 0,
                   [HEARTH_HAZARD_LASTED] = value((double)octaves(turn->lasted_us) / 1.5),
                   [HEARTH_HAZARD_LENGTH] = value(4 * log2((double)turn->pages + 1) - 8)}};
}

/* Learns that the talk has lived through the bins before this one. */
static void learn_lived(struct hearth_returns *returns, struct hearth_talk *talk, int bin) {
    for (; talk->lived < bin; talk->lived++) {
        hearth_hazard_learn(&returns->hazard, &talk->waits, talk->lived, false);
    }
}

void hearth_returns_learn_waiting(struct hearth_returns *returns, int64_t now_us) {
    for (uint32_t i = 0; i < returns->talk_count; i++) {
        struct hearth_talk *talk = hearth_returns_talk(returns, i);
        if (talk->known) {
            learn_lived(returns, talk, hearth_hazard_bin(now_us - talk->ended_us));
        }
    }
}

void hearth_returns_teach(struct hearth_returns *returns, const struct hearth_hazard *hazard) {
    returns->hazard = *hazard;
    for (uint32_t i = 0; i < HEARTH_RETURN_RATES; i++) {
        returns->rates[i].made = 0;
    }
}

/* The rates of a case: cached in one of a few slots; if none has it, the oldest slot is computed again. */
static const struct hearth_hazard_rates *rates_of(struct hearth_returns *returns, struct hearth_hazard_case of) {
    const uint64_t key = hearth_checksum(&of, sizeof of);
    struct hearth_return_rates *place = NULL;
    for (uint32_t i = 0; i < RATE_PLACES; i++) {
        struct hearth_return_rates *at = &returns->rates[(key + i) % HEARTH_RETURN_RATES];
        if (at->made > 0 && memcmp(&at->of, &of, sizeof of) == 0) {
            place = at;
            break;
        }
        place = !place || at->made < place->made ? at : place;
    }
    if (place->made == 0 || memcmp(&place->of, &of, sizeof of) != 0 ||
        returns->turns + 1 - place->made >= STALE_RATES) {
        place->of = of;
        place->made = returns->turns + 1;
        hearth_hazard_rates(&returns->hazard, &of, &place->rates);
    }
    return &place->rates;
}

void hearth_returns_cut(struct hearth_returns *returns, uint32_t index, int32_t at) {
    const struct hearth_talk *talk = hearth_returns_talk(returns, index);
    hearth_cut_learn(&returns->cuts, talk->waits.awaits, at < talk->end ? talk->end - at : 0);
}

double hearth_returns_reuse(const struct hearth_returns *returns, uint32_t index, int32_t pos, int32_t next) {
    const struct hearth_talk *talk = hearth_returns_talk(returns, index);
    const double here = hearth_cut_chance(&returns->cuts, talk->waits.awaits, talk->end - pos);
    return next > 0 ? here - hearth_cut_chance(&returns->cuts, talk->waits.awaits, talk->end - next) : here;
}

static double learnt_rate(struct hearth_returns *returns, uint32_t index, int64_t age_us) {
    const struct hearth_talk *talk = hearth_returns_talk(returns, index);
    return hearth_hazard_rate(rates_of(returns, talk->waits), age_us - (talk->ended_us - talk->began_us));
}

static double recent_rate(int64_t age_us) {
    return 1 / (1 + (age_us > 0 ? (double)age_us / 1e6 : 0));
}

/* When what is unused since then is worth as much as the talk, in microseconds: this changes less than a rate while
 * time passes, and not at all where age alone decides. */
static double unused_since(void *user, enum hearth_rival_order order, uint32_t index, int64_t now_us) {
    const int64_t age_us = now_us - hearth_returns_talk(user, index)->used_us;
    return order == HEARTH_RIVAL_RECENT ? (double)(now_us - age_us)
                                        : (double)now_us - 1e6 / learnt_rate(user, index, age_us);
}

double hearth_returns_rate(struct hearth_returns *returns, uint32_t talk, int64_t age_us) {
    return hearth_returns_learns_well(returns) ? learnt_rate(returns, talk, age_us) : recent_rate(age_us);
}

double hearth_returns_rate_behind(struct hearth_returns *returns, uint32_t talk, const struct hearth_talk_turn *turn,
                                  int64_t age_us) {
    return hearth_returns_learns_well(returns)
               ? hearth_hazard_rate(rates_of(returns, case_behind(returns, talk, turn)), age_us - turn->lasted_us)
               : recent_rate(age_us);
}

void hearth_returns_try(struct hearth_returns *returns, uint32_t talk, double again_tokens, double bytes,
                        double budget_bytes, int64_t now_us) {
    const struct hearth_rival_turn turn = {
        .talk = talk, .again_tokens = again_tokens, .bytes = bytes, .budget_bytes = budget_bytes, .now_us = now_us};
    const bool learnt = hearth_returns_learns_well(returns);
    (void)hearth_rivals_turn(&returns->rivals, &turn, unused_since, returns);
    const struct hearth_talk_list *list = &returns->offering[HEARTH_TALK_PAGES];
    for (size_t i = 0; i < list->n && learnt && !hearth_returns_learns_well(returns); i++) {
        order(returns, hearth_returns_talk(returns, list->talks[i]));
    }
}

void hearth_returns_left(struct hearth_returns *returns, uint32_t index, int64_t now_us) {
    struct hearth_talk *talk = hearth_returns_talk(returns, index);
    uint8_t *times = &talk->waits.values[HEARTH_HAZARD_LEFT];
    if (talk->known && *times < LEFT_MAX) {
        learn_lived(returns, talk, hearth_hazard_bin(now_us - talk->ended_us));
        ++*times;
    }
}

uint32_t hearth_returns_find(const struct hearth_returns *returns, struct hearth_digest name) {
    const struct hearth_talk_name *found = (struct hearth_talk_name *)hearth_table_find(&returns->table, name);
    return found ? found->talk : HEARTH_TALK_NONE;
}

struct hearth_digest hearth_returns_begin(struct hearth_returns *returns, uint32_t talk, int64_t now_us) {
    if (talk == HEARTH_TALK_NONE) {
        return (struct hearth_digest){0};
    }
    hearth_returns_talk(returns, talk)->used_us = now_us;
    return hearth_returns_talk(returns, talk)->names[0].link.key;
}

uint32_t hearth_returns_turn(struct hearth_returns *returns, uint32_t before,
                             const struct hearth_digest names[HEARTH_TALK_NAMES], const struct hearth_talk_turn *turn,
                             int64_t now_us) {
    const struct hearth_hazard_case waits = case_behind(returns, before, turn);
    uint32_t index = before == HEARTH_TALK_NONE ? take_talk(returns) : before;
    if (index == HEARTH_TALK_NONE) {
        return index;
    }
    struct hearth_talk *talk = hearth_returns_talk(returns, index);
    if (before != HEARTH_TALK_NONE) {
        const int bin = hearth_hazard_bin(turn->began_us - talk->ended_us);
        learn_lived(returns, talk, bin);
        if (talk->lived == bin) {
            hearth_hazard_learn(&returns->hazard, &talk->waits, bin, true);
        }
        talk->rhythm = rhythm_at(talk, turn->began_us);
        drop_names(returns, talk);
    } else if (returns->known >= returns->known_most) {
        forget_one(returns);
    }
    take_names(returns, index, names);
    talk->began_us = talk->used_us = turn->began_us;
    talk->ended_us = turn->began_us + turn->lasted_us;
    talk->turns++;
    talk->waits = waits;
    talk->lived = 0;
    if (!talk->known) {
        forget(returns, index);
        return HEARTH_TALK_NONE;
    }
    if (++returns->turns % STALE_TURNS == 0) {
        hearth_returns_learn_waiting(returns, now_us);
    }
    return index;
}
