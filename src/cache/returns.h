/* How conversations come back: what the policy knows of the future.
 *
 * After a turn a conversation is in a class, by what it waits for, how quickly its turns followed each other and
 * whether there were many. What is learnt is a histogram per class: how long it took until the next turn came, if it
 * came. From it follows what a place in RAM is worth that a conversation of this class holds, so long after its last
 * turn:
 *
 *     rate(class, age) = the most, over all times t, of P(it comes back within t) / E(time that its place is held)
 *
 * which is Gittins' index of holding on to it: the best returns per second that can still be had of it. Histograms of
 * rare classes lean on those of all that wait for the same.
 *
 * It needs no names of sessions: a conversation (a *talk*) is known by the digest of the whole blocks of its last turn.
 * Pages and snapshots belong to the talk that used them last, and stand among its victims while they may be evicted.
 *
 * Memory: about 200 bytes for each of the last talks, of which there are at most as many as were asked for, and for
 * each other one that has something stored. Threads: the cache's. Source: J. Gittins, "Bandit Processes and Dynamic
 * Allocation Indices", J. R. Statist. Soc. B 41 (1979); N. Beckmann, H. Chen, A. Cidon, "LHD: Improving Cache Hit Rate
 * by Maximizing Hit Density", NSDI 2018. */
#ifndef HEARTH_CACHE_RETURNS_H
#define HEARTH_CACHE_RETURNS_H

#include "base/table.h"
#include "cache/heap.h"
#include "cache/live.h"

enum {
    HEARTH_RETURN_RHYTHMS = 12, /* by the time between turns: an octave each */
    HEARTH_RETURN_LENGTHS = 6,  /* by how long the turn took: an octave and a half each */
    HEARTH_RETURN_CLASSES = HEARTH_AWAITS_COUNT * HEARTH_RETURN_RHYTHMS * HEARTH_RETURN_LENGTHS,
    HEARTH_RETURN_BINS = 80, /* of ages: four to an octave, from a second on */
};

/* The talk of what belongs to none; it is always there. */
enum { HEARTH_TALK_NONE };

enum hearth_talk_heap { HEARTH_TALK_PAGES, HEARTH_TALK_SNAPSHOTS, HEARTH_TALK_HEAPS };

/* Digests of what a talk's last turn consists of: up to its last whole block, and up to one before its reply, as
 * templates may print the reply in another way. */
enum { HEARTH_TALK_NAMES = 2 };

struct hearth_talk {
    struct hearth_talk_name {
        struct hearth_link link; /* first, so that it converts */
        uint32_t talk;
        bool listed;
    } names[HEARTH_TALK_NAMES];
    struct hearth_heap victims[HEARTH_TALK_HEAPS];
    uint32_t place[HEARTH_TALK_HEAPS]; /* in the list of those with victims, and one */
    int64_t began_us;                  /* its last turn that has ended */
    int64_t used_us;                   /* likewise, or the one that goes on */

    uint32_t items; /* pages and snapshots that belong to it */
    uint32_t turns; /* 0: nothing is known of it, or it is not used */
    float rhythm;   /* log2 of the seconds between turns, the last ones most */
    uint8_t class;
    bool known; /* it is found by its first name */
};

/* What is known of a turn. */
struct hearth_talk_turn {
    int64_t began_us, lasted_us;
    enum hearth_awaits awaits;
};

struct hearth_returns {
    struct hearth_talk **blocks; /* of talks, which never move */
    uint32_t talk_count;         /* in use or free */
    uint32_t *free;              /* those that are free; room for all */
    uint32_t free_count;
    uint32_t known, known_most;
    uint32_t oldest; /* where the search for a talk to forget goes on */
    struct hearth_table table;
    size_t victims[HEARTH_TALK_HEAPS]; /* of all talks */
    struct hearth_talk_list {
        uint32_t *talks;
        size_t n, cap;
    } offering[HEARTH_TALK_HEAPS]; /* those with victims */
    struct hearth_return_ages {
        float turns;                     /* how many there were */
        float back[HEARTH_RETURN_BINS];  /* after how long the next one came */
        double rate[HEARTH_RETURN_BINS]; /* what follows from it; per second */
    } classes[HEARTH_RETURN_CLASSES];
    double common[HEARTH_AWAITS_COUNT][HEARTH_RETURN_BINS]; /* likewise, of all classes that wait for the same */
    uint32_t stale;                                         /* turns since the rates were made */
};

/* `talks`: how many may be known. NULL: out of memory. */
struct hearth_returns *hearth_returns_create(uint32_t talks);
void hearth_returns_destroy(struct hearth_returns *returns);

struct hearth_talk *hearth_returns_talk(const struct hearth_returns *returns, uint32_t talk);
/* The talk with this name, or HEARTH_TALK_NONE. */
uint32_t hearth_returns_find(const struct hearth_returns *returns, struct hearth_digest name);
/* A turn of the talk begins (HEARTH_TALK_NONE is allowed). Returns its first name. */
struct hearth_digest hearth_returns_begin(struct hearth_returns *returns, uint32_t talk, int64_t now_us);
/* The class of a talk (HEARTH_TALK_NONE: a new one) behind this turn. */
uint8_t hearth_returns_class(const struct hearth_returns *returns, uint32_t talk, const struct hearth_talk_turn *turn);
/* The turn has ended, and gives the talk its names (zero: none). Returns the talk, or HEARTH_TALK_NONE when memory is
 * short. */
uint32_t hearth_returns_turn(struct hearth_returns *returns, uint32_t talk,
                             const struct hearth_digest names[HEARTH_TALK_NAMES], const struct hearth_talk_turn *turn,
                             int64_t now_us);

/* An item joins a talk, or leaves it. */
void hearth_returns_join(struct hearth_returns *returns, uint32_t talk);
void hearth_returns_leave(struct hearth_returns *returns, uint32_t talk);

/* Puts a node among the victims of its talk, or moves it there; without memory it is left out. */
void hearth_returns_offer(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                          struct hearth_heap_node *node, double rank);
/* Takes it out; one that is not there is left alone. */
void hearth_returns_withdraw(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                             struct hearth_heap_node *node);

/* Returns per second to be had of what was used so long ago. Pure. */
double hearth_returns_rate(const struct hearth_returns *returns, uint8_t class, int64_t age_us);

#endif
