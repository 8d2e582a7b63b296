/* Learning how conversations come back. Design in returns.h.
 *
 * The chance to come back within a bin of ages, for those that have reached it, is the share of them that did (the
 * estimate of Kaplan and Meier: a conversation that is younger than a bin says nothing about it). Those that wait are
 * counted when the rates are made. A class with few turns leans on all classes that wait for the same, and these on a
 * guess that is the same for all ages and classes: with it, what was unused for longest goes first.
 *
 * Invariants: a talk is in the table exactly when it is `known`; one that is neither known nor has items is free, but
 * for those that are always there. */
#include "cache/returns.h"

#include "base/assert.h"

#include <math.h>
#include <stdlib.h>

#define STALE_TURNS 64     /* rates are made anew after so many */
#define TURNS_MAX 8192.0f  /* then a histogram is halved: what was long ago counts less */
#define RHYTHM_WEIGHT 0.3f /* of the last time between turns */
#define GUESS 0.06         /* chance to come back within a bin, before anything is known */
#define GUESS_TURNS 16.0   /* what it counts for */
#define PARENT_TURNS 16.0  /* what the classes that wait for the same count for in one */
#define BLOCK_TALKS 256
#define FORGET_OF 8
#define TALKS_MIN 64
#define TALKS_MAX 16384

/* ---- bins ---- */

static double bin_start_s(int bin) {
    return bin == 0 ? 0 : exp2((bin - 1) / 4.0);
}

static int bin_of(int64_t age_us) {
    if (age_us < 1000000) {
        return 0;
    }
    int bin = 1 + (int)(4 * log2((double)age_us / 1e6));
    return bin < HEARTH_RETURN_BINS ? bin : HEARTH_RETURN_BINS - 1;
}

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

/* A talk of which nothing is known, or HEARTH_TALK_NONE: out of memory. */
static uint32_t take_talk(struct hearth_returns *returns) {
    if (returns->free_count == 0 && !add_block(returns)) {
        return HEARTH_TALK_NONE;
    }
    return returns->free[--returns->free_count];
}

/* Gives a talk back that nothing belongs to and nothing is known of. */
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

static void make_rates(struct hearth_returns *returns, int64_t now_us);

struct hearth_returns *hearth_returns_create(uint32_t talks) {
    struct hearth_returns *returns = calloc(1, sizeof *returns);
    if (!returns || !add_block(returns)) {
        hearth_returns_destroy(returns);
        return NULL;
    }
    returns->known_most = talks < TALKS_MIN ? TALKS_MIN : talks > TALKS_MAX ? TALKS_MAX : talks;
    returns->free_count--; /* HEARTH_TALK_NONE is on top */
    make_rates(returns, 0);
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
    }
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

/* Lists a talk that is about to have victims. False: out of memory. */
static bool list(struct hearth_returns *returns, uint32_t index, enum hearth_talk_heap heap) {
    struct hearth_talk_list *list = &returns->offering[heap];
    if (!HEARTH_BUF_ROOM(list->talks, list->n, list->cap)) {
        return false;
    }
    list->talks[list->n++] = index;
    hearth_returns_talk(returns, index)->place[heap] = (uint32_t)list->n;
    return true;
}

/* Takes a talk off the list that has no victims. */
static void unlist(struct hearth_returns *returns, uint32_t index, enum hearth_talk_heap heap) {
    struct hearth_talk_list *list = &returns->offering[heap];
    struct hearth_talk *talk = hearth_returns_talk(returns, index);
    if (talk->victims[heap].n > 0 || talk->place[heap] == 0) {
        return;
    }
    uint32_t last = list->talks[--list->n];
    list->talks[talk->place[heap] - 1] = last;
    hearth_returns_talk(returns, last)->place[heap] = talk->place[heap];
    talk->place[heap] = 0;
}

void hearth_returns_offer(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                          struct hearth_heap_node *node, double rank) {
    struct hearth_heap *victims = &hearth_returns_talk(returns, talk)->victims[heap];
    if (node->index != 0) {
        hearth_heap_update(victims, node, rank);
    } else if (victims->n > 0 || list(returns, talk, heap)) {
        returns->victims[heap] += hearth_heap_push(victims, node, rank);
        unlist(returns, talk, heap);
    }
}

void hearth_returns_withdraw(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                             struct hearth_heap_node *node) {
    returns->victims[heap] -= node->index != 0;
    hearth_heap_remove(&hearth_returns_talk(returns, talk)->victims[heap], node);
    unlist(returns, talk, heap);
}

/* ---- rates ---- */

/* How many conversations of each class wait, by the bin that their age is in. */
struct waiting {
    float n[HEARTH_RETURN_CLASSES][HEARTH_RETURN_BINS];
};

/* Of those that reached a bin, how many came back within it. */
struct chances {
    double reached[HEARTH_RETURN_BINS], back[HEARTH_RETURN_BINS];
};

static void add_chances(const struct hearth_return_ages *histogram, const float waiting[HEARTH_RETURN_BINS],
                        struct chances *chances) {
    double reached = histogram->turns;
    for (int bin = 0; bin < HEARTH_RETURN_BINS; bin++) {
        reached -= waiting[bin];
        chances->reached[bin] += reached > 0 ? reached : 0;
        chances->back[bin] += histogram->back[bin];
        reached -= histogram->back[bin];
    }
}

/* The chance within a bin, leaning on another one. */
static double chance(const struct chances *chances, int bin, double other, double weight) {
    double p = (chances->back[bin] + weight * other) / (chances->reached[bin] + weight);
    return p < 0.999 ? p : 0.999;
}

/* Gittins' index at the start of each bin: the best ratio of returns to time over all bins to hold on to. */
static void index_of(const double p[HEARTH_RETURN_BINS], double rate[HEARTH_RETURN_BINS]) {
    for (int from = 0; from < HEARTH_RETURN_BINS; from++) {
        double left = 1, back = 0, held_s = 0;
        rate[from] = 0;
        for (int bin = from; bin < HEARTH_RETURN_BINS; bin++) {
            back += left * p[bin];
            held_s += left * (bin_start_s(bin + 1) - bin_start_s(bin)) * (1 - p[bin] / 2);
            left *= 1 - p[bin];
            rate[from] = back / held_s > rate[from] ? back / held_s : rate[from];
        }
    }
    int top = 0;
    for (int bin = 1; bin < HEARTH_RETURN_BINS; bin++) {
        top = rate[bin] > rate[top] ? bin : top;
    }
    for (int bin = top + 1; bin < HEARTH_RETURN_BINS; bin++) {
        rate[bin] = rate[bin] < rate[bin - 1] ? rate[bin] : rate[bin - 1];
    }
}

static void make_rates(struct hearth_returns *returns, int64_t now_us) {
    struct waiting waiting = {0};
    for (uint32_t i = 0; i < returns->talk_count; i++) {
        const struct hearth_talk *talk = hearth_returns_talk(returns, i);
        if (talk->known) {
            waiting.n[talk->class][bin_of(now_us - talk->began_us)]++;
        }
    }
    const int per_awaits = HEARTH_RETURN_RHYTHMS * HEARTH_RETURN_LENGTHS;
    struct chances parents[HEARTH_AWAITS_COUNT] = {0};
    double p[HEARTH_AWAITS_COUNT][HEARTH_RETURN_BINS];
    for (int class = 0; class < HEARTH_RETURN_CLASSES; class ++) {
        add_chances(&returns->classes[class], waiting.n[class], &parents[class / per_awaits]);
    }
    for (int awaits = 0; awaits < HEARTH_AWAITS_COUNT; awaits++) {
        for (int bin = 0; bin < HEARTH_RETURN_BINS; bin++) {
            p[awaits][bin] = chance(&parents[awaits], bin, GUESS, GUESS_TURNS);
        }
        index_of(p[awaits], returns->common[awaits]);
    }
    for (int class = 0; class < HEARTH_RETURN_CLASSES; class ++) {
        struct chances own = {0};
        double with_parent[HEARTH_RETURN_BINS];
        if (returns->classes[class].turns > 0) {
            add_chances(&returns->classes[class], waiting.n[class], &own);
            for (int bin = 0; bin < HEARTH_RETURN_BINS; bin++) {
                with_parent[bin] = chance(&own, bin, p[class / per_awaits][bin], PARENT_TURNS);
            }
            index_of(with_parent, returns->classes[class].rate);
        }
    }
    returns->stale = 0;
}

double hearth_returns_rate(const struct hearth_returns *returns, uint8_t class, int64_t age_us) {
    const struct hearth_return_ages *own = &returns->classes[class];
    const int per_awaits = HEARTH_RETURN_RHYTHMS * HEARTH_RETURN_LENGTHS;
    return own->turns > 0 && own->rate[0] > 0 ? own->rate[bin_of(age_us)]
                                              : returns->common[class / per_awaits][bin_of(age_us)];
}

/* ---- learning ---- */

static float octaves(int64_t us) {
    return (float)log2(1 + (us > 0 ? (double)us / 1e6 : 0));
}

static int within(int value, int count) {
    return value < count ? value : count - 1;
}

/* The rhythm of a talk that a turn begins of. */
static float rhythm_at(const struct hearth_talk *talk, int64_t began_us) {
    float gap = octaves(began_us - talk->began_us);
    return talk->turns > 1 ? talk->rhythm + (gap - talk->rhythm) * RHYTHM_WEIGHT : gap;
}

uint8_t hearth_returns_class(const struct hearth_returns *returns, uint32_t talk, const struct hearth_talk_turn *turn) {
    bool first = talk == HEARTH_TALK_NONE;
    int slow = first ? 0 : 1 + (int)rhythm_at(hearth_returns_talk(returns, talk), turn->began_us);
    int length = (int)(octaves(turn->lasted_us) / 1.5f);
    return (uint8_t)(((int)turn->awaits * HEARTH_RETURN_RHYTHMS + within(slow, HEARTH_RETURN_RHYTHMS)) *
                         HEARTH_RETURN_LENGTHS +
                     within(length, HEARTH_RETURN_LENGTHS));
}

static void learn(struct hearth_return_ages *histogram, int64_t age_us) {
    histogram->back[bin_of(age_us)]++;
}

static void count_turn(struct hearth_return_ages *histogram) {
    if (++histogram->turns > TURNS_MAX) {
        histogram->turns /= 2;
        for (int bin = 0; bin < HEARTH_RETURN_BINS; bin++) {
            histogram->back[bin] /= 2;
        }
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
    uint8_t class = hearth_returns_class(returns, before, turn);
    uint32_t index = before == HEARTH_TALK_NONE ? take_talk(returns) : before;
    if (index == HEARTH_TALK_NONE) {
        return index;
    }
    struct hearth_talk *talk = hearth_returns_talk(returns, index);
    if (before != HEARTH_TALK_NONE) {
        learn(&returns->classes[talk->class], turn->began_us - talk->began_us);
        talk->rhythm = rhythm_at(talk, turn->began_us);
        drop_names(returns, talk);
    } else if (returns->known >= returns->known_most) {
        forget_one(returns);
    }
    take_names(returns, index, names);
    talk->began_us = talk->used_us = turn->began_us;
    talk->turns++;
    talk->class = class;
    if (!talk->known) {
        forget(returns, index);
        return HEARTH_TALK_NONE;
    }
    count_turn(&returns->classes[class]);
    if (++returns->stale >= STALE_TURNS) {
        make_rates(returns, now_us);
    }
    return index;
}
