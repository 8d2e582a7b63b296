/* Conversations, and what a place in RAM is worth for each of them (cache/hazard.h).
 *
 * The cache needs no names of sessions: a conversation (a *talk*) is known by the digest of the whole blocks of its
 * last turn. Pages and snapshots belong to the talk that used them last, and are among its victims while they may be
 * evicted.
 *
 * Memory: about 250 bytes for each known talk, of which there are at most as many as the creator asks for, and for each
 * other talk with stored state; and about 450 KiB. Threads: the cache's. */
#ifndef HEARTH_CACHE_RETURNS_H
#define HEARTH_CACHE_RETURNS_H

#include "base/table.h"
#include "cache/cut.h"
#include "cache/hazard.h"
#include "cache/heap.h"
#include "cache/rival.h"

/* Stands for no talk; it always exists. */
enum { HEARTH_TALK_NONE };

enum hearth_talk_heap { HEARTH_TALK_PAGES, HEARTH_TALK_SNAPSHOTS, HEARTH_TALK_HEAPS };

/* A talk's last turn has two names: the digest up to its last whole block, and the digest up to a block before its
 * reply, because templates may print the reply differently. */
enum { HEARTH_TALK_NAMES = 2 };

enum { HEARTH_RETURN_RATES = 1024 };

struct hearth_talk {
    struct hearth_talk_name {
        struct hearth_link link; /* first, so that it converts */
        uint32_t talk;
        bool listed;
    } names[HEARTH_TALK_NAMES];
    struct hearth_heap victims[HEARTH_TALK_HEAPS];
    uint32_t place[HEARTH_TALK_HEAPS];                /* place in the list of talks with victims, plus one */
    struct hearth_heap_node least[HEARTH_TALK_HEAPS]; /* node in the heap of these talks */
    int64_t began_us, ended_us;                       /* of its last turn that has ended */
    int64_t used_us;                                  /* when its last turn began, also one that goes on */

    uint32_t items; /* pages and snapshots that belong to the talk */
    int32_t end;    /* tokens of its last ended turn */
    int32_t shared; /* tokens that other talks had in common with it when it began */
    uint32_t turns; /* 0: nothing is known of it, or the entry is free */
    float rhythm;   /* log2 of the seconds between its turns, a moving average */
    bool known;     /* it can be found by its first name */
    uint8_t lived;  /* bins of ages that were learnt from since its last turn */
    struct hearth_hazard_case waits;
};

/* A turn, as far as it is known. */
struct hearth_talk_turn {
    int64_t began_us, lasted_us;
    enum hearth_awaits awaits;
    size_t pages; /* of the turn's prompt */
};

struct hearth_returns {
    struct hearth_talk **blocks; /* arrays of talks; a talk never moves */
    uint32_t talk_count;         /* used and free ones */
    uint32_t *free;              /* the free ones; room for all */
    uint32_t free_count;
    uint32_t known, known_most;
    uint32_t oldest; /* where the search for a talk to forget continues */
    struct hearth_table table;
    size_t victims[HEARTH_TALK_HEAPS]; /* of all talks */
    struct hearth_talk_list {
        uint32_t *talks;
        size_t n, cap;
        struct hearth_heap least;  /* by the worth of their next victim when it was last valued, at first INFINITY; of
                                      pages, where LRU decides, by its rank */
    } offering[HEARTH_TALK_HEAPS]; /* talks with victims */
    struct hearth_hazard hazard;
    struct hearth_cuts cuts;
    struct hearth_rivals rivals; /* whether learning does better than LRU */
    uint32_t turns;              /* turns so far */
    /* Cached rates: conversations are many, cases few. Each is computed again after a while. */
    struct hearth_return_rates {
        struct hearth_hazard_case of;
        uint32_t made; /* number of turns when it was computed; 0: empty */
        struct hearth_hazard_rates rates;
    } rates[HEARTH_RETURN_RATES];
};

/* `talks`: how many can be known. NULL: out of memory. */
struct hearth_returns *hearth_returns_create(uint32_t talks);
void hearth_returns_destroy(struct hearth_returns *returns);

struct hearth_talk *hearth_returns_talk(const struct hearth_returns *returns, uint32_t talk);
/* The talk with this name, or HEARTH_TALK_NONE. */
uint32_t hearth_returns_find(const struct hearth_returns *returns, struct hearth_digest name);
/* A turn of the talk (or of HEARTH_TALK_NONE) begins. Returns the talk's first name. */
struct hearth_digest hearth_returns_begin(struct hearth_returns *returns, uint32_t talk, int64_t now_us);
/* What a talk (HEARTH_TALK_NONE: a new one) will be worth after this turn: returns per second at that age. */
double hearth_returns_rate_behind(struct hearth_returns *returns, uint32_t talk, const struct hearth_talk_turn *turn,
                                  int64_t age_us);
/* Another conversation begins from inside of the talk. */
void hearth_returns_left(struct hearth_returns *returns, uint32_t talk, int64_t now_us);
/* The turn has ended and gives the talk its names (zero: none). Returns the talk; HEARTH_TALK_NONE: out of memory. */
uint32_t hearth_returns_turn(struct hearth_returns *returns, uint32_t talk,
                             const struct hearth_digest names[HEARTH_TALK_NAMES], const struct hearth_talk_turn *turn,
                             int64_t now_us);

/* Learns how long the waiting talks have waited. */
void hearth_returns_learn_waiting(struct hearth_returns *returns, int64_t now_us);
/* Replaces what was learnt here by what was learnt elsewhere. */
void hearth_returns_teach(struct hearth_returns *returns, const struct hearth_hazard *hazard);
/* A turn of the talk leaves the path of its last turn at `at`, or goes on behind it. */
void hearth_returns_cut(struct hearth_returns *returns, uint32_t talk, int32_t at);
/* The chance that the talk's next turn leaves the path of its last one at `pos` or behind, and before `next` (0: no
 * limit). */
double hearth_returns_reuse(const struct hearth_returns *returns, uint32_t talk, int32_t pos, int32_t next);

/* Plays an ended turn against the orders of eviction (cache/rival.h): it takes `bytes` of `budget`, and `again_tokens`
 * of its last turn came back. */
void hearth_returns_try(struct hearth_returns *returns, uint32_t talk, double again_tokens, double bytes,
                        double budget_bytes, int64_t now_us);

/* Counts an item that joins a talk (join) or leaves it. */
void hearth_returns_join(struct hearth_returns *returns, uint32_t talk);
void hearth_returns_leave(struct hearth_returns *returns, uint32_t talk);

/* Puts a node among the victims of its talk, or moves it there. Out of memory, it is left out. */
void hearth_returns_offer(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                          struct hearth_heap_node *node, double rank);
/* Takes a node out of the victims, if it is there. */
void hearth_returns_withdraw(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                             struct hearth_heap_node *node);

/* Notes what the talk's next victim is worth now. */
void hearth_returns_valued(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap, double worth);
/* Of the talks with victims, the one whose next victim was worth the least when it was last valued. Of pages, where LRU
 * decides: the one whose next victim has the lowest rank. There is one. */
const struct hearth_talk *hearth_returns_least(const struct hearth_returns *returns, enum hearth_talk_heap heap);

/* Whether learning has proved better than LRU (cache/rival.h). */
bool hearth_returns_learns_well(const struct hearth_returns *returns);
/* Expected returns per second of the talk's state if its turn began so long ago. Unless learning has proved better than
 * LRU (cache/rival.h), state that was unused for longest is worth the least. */
double hearth_returns_rate(struct hearth_returns *returns, uint32_t talk, int64_t age_us);

#endif
