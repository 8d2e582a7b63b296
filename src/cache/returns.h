/* Conversations, and what a place in RAM is worth that one of them holds (cache/hazard.h).
 *
 * It needs no names of sessions: a conversation (a *talk*) is known by the digest of the whole blocks of its last turn.
 * Pages and snapshots belong to the talk that used them last, and stand among its victims while they may be evicted.
 *
 * Memory: about 250 bytes for each of the last talks, of which there are at most as many as were asked for, and for
 * each other one that has something stored; and about 450 KiB. Threads: the cache's. */
#ifndef HEARTH_CACHE_RETURNS_H
#define HEARTH_CACHE_RETURNS_H

#include "base/table.h"
#include "cache/cut.h"
#include "cache/hazard.h"
#include "cache/heap.h"
#include "cache/rival.h"

/* The talk of what belongs to none; it is always there. */
enum { HEARTH_TALK_NONE };

enum hearth_talk_heap { HEARTH_TALK_PAGES, HEARTH_TALK_SNAPSHOTS, HEARTH_TALK_HEAPS };

/* Digests of what a talk's last turn consists of: up to its last whole block, and up to one before its reply, as
 * templates may print the reply in another way. */
enum { HEARTH_TALK_NAMES = 2 };

enum { HEARTH_RETURN_RATES = 1024 };

struct hearth_talk {
    struct hearth_talk_name {
        struct hearth_link link; /* first, so that it converts */
        uint32_t talk;
        bool listed;
    } names[HEARTH_TALK_NAMES];
    struct hearth_heap victims[HEARTH_TALK_HEAPS];
    uint32_t place[HEARTH_TALK_HEAPS];                /* in the list of those with victims, and one */
    struct hearth_heap_node least[HEARTH_TALK_HEAPS]; /* in the heap of those */
    int64_t began_us, ended_us;                       /* its last turn that has ended */
    int64_t used_us;                                  /* when that one began, or the one that goes on */

    uint32_t items; /* pages and snapshots that belong to it */
    int32_t end;    /* tokens of its last turn that has ended */
    int32_t shared; /* tokens that others began with, too, when it began */
    uint32_t turns; /* 0: nothing is known of it, or it is not used */
    float rhythm;   /* log2 of the seconds between turns, the last ones most */
    bool known;     /* it is found by its first name */
    uint8_t lived;  /* bins of ages that were learnt from, since its last turn */
    struct hearth_hazard_case waits;
};

/* What is known of a turn. */
struct hearth_talk_turn {
    int64_t began_us, lasted_us;
    enum hearth_awaits awaits;
    size_t pages; /* of its prompt */
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
        struct hearth_heap least;  /* by what their next victim was worth when that was last asked; at first INFINITY */
    } offering[HEARTH_TALK_HEAPS]; /* those with victims */
    struct hearth_hazard hazard;
    struct hearth_cuts cuts;
    struct hearth_rivals rivals; /* whether that is better than nothing */
    uint32_t turns;              /* so far */
    /* Rates of some cases, made anew after a while: conversations are many, cases few. */
    struct hearth_return_rates {
        struct hearth_hazard_case of;
        uint32_t made; /* after so many turns; 0: it is empty */
        struct hearth_hazard_rates rates;
    } rates[HEARTH_RETURN_RATES];
};

/* `talks`: how many may be known. NULL: out of memory. */
struct hearth_returns *hearth_returns_create(uint32_t talks);
void hearth_returns_destroy(struct hearth_returns *returns);

struct hearth_talk *hearth_returns_talk(const struct hearth_returns *returns, uint32_t talk);
/* The talk with this name, or HEARTH_TALK_NONE. */
uint32_t hearth_returns_find(const struct hearth_returns *returns, struct hearth_digest name);
/* A turn of the talk begins (HEARTH_TALK_NONE is allowed). Returns its first name. */
struct hearth_digest hearth_returns_begin(struct hearth_returns *returns, uint32_t talk, int64_t now_us);
/* What a talk (HEARTH_TALK_NONE: a new one) will be worth behind this turn: returns per second at that age. */
double hearth_returns_rate_behind(struct hearth_returns *returns, uint32_t talk, const struct hearth_talk_turn *turn,
                                  int64_t age_us);
/* Another conversation begins from inside of the talk. */
void hearth_returns_left(struct hearth_returns *returns, uint32_t talk, int64_t now_us);
/* The turn has ended, and gives the talk its names (zero: none). Returns the talk, or HEARTH_TALK_NONE when memory is
 * short. */
uint32_t hearth_returns_turn(struct hearth_returns *returns, uint32_t talk,
                             const struct hearth_digest names[HEARTH_TALK_NAMES], const struct hearth_talk_turn *turn,
                             int64_t now_us);

/* Learns how far those that wait have waited. */
void hearth_returns_learn_waiting(struct hearth_returns *returns, int64_t now_us);
/* What was learnt elsewhere is known from now on, and what was learnt here is not. */
void hearth_returns_teach(struct hearth_returns *returns, const struct hearth_hazard *hazard);
/* A turn of the talk leaves the path of its last one at `at`, or goes on behind it. */
void hearth_returns_cut(struct hearth_returns *returns, uint32_t talk, int32_t at);
/* The chance that the talk's next turn leaves the path of its last one at `pos` or behind it, and before `next` (0: or
 * anywhere behind). */
double hearth_returns_reuse(const struct hearth_returns *returns, uint32_t talk, int32_t pos, int32_t next);

/* The talk's turn that has ended takes so many bytes, of such a budget; `again_tokens` of its last one came back. */
void hearth_returns_try(struct hearth_returns *returns, uint32_t talk, double again_tokens, double bytes,
                        double budget_bytes, int64_t now_us);

/* An item joins a talk, or leaves it. */
void hearth_returns_join(struct hearth_returns *returns, uint32_t talk);
void hearth_returns_leave(struct hearth_returns *returns, uint32_t talk);

/* Puts a node among the victims of its talk, or moves it there; without memory it is left out. */
void hearth_returns_offer(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                          struct hearth_heap_node *node, double rank);
/* Takes it out; one that is not there is left alone. */
void hearth_returns_withdraw(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap,
                             struct hearth_heap_node *node);

/* What the talk's next victim is worth now: it is remembered. */
void hearth_returns_valued(struct hearth_returns *returns, uint32_t talk, enum hearth_talk_heap heap, double worth);
/* The first of those with victims to be asked again: the one that was worth the least. There is one. */
const struct hearth_talk *hearth_returns_least(const struct hearth_returns *returns, enum hearth_talk_heap heap);

/* Returns per second to be had of the talk's state when its turn began so long ago. Where what was learnt has not
 * proved to be better (cache/rival.h), what was unused for longest is worth the least. */
double hearth_returns_rate(struct hearth_returns *returns, uint32_t talk, int64_t age_us);

#endif
