/* What the files of the matcher share. Nobody else includes this.
 *
 *   matcher.c        following a text: closures, moves, bytes
 *   matcher_state.c  nodes and states: one number for equal ones, and forgetting */
#ifndef HEARTH_GRAMMAR_MATCHER_PARTS_H
#define HEARTH_GRAMMAR_MATCHER_PARTS_H

#include "grammar/matcher.h"

#define MATCHER_NONE UINT32_MAX
/* Looking at a head or a link is one unit of work, visiting a symbol this many. */
#define MATCHER_VISIT_WORK 64
/* Nodes that are kept before settling begins to forget. */
#define MATCHER_SETTLE_NODES 65536

struct matcher_node {
    uint32_t symbol, closure, links;
};

struct matcher_link {
    uint32_t below, next;
};

struct matcher_state {
    uint32_t first, count; /* heads */
    uint32_t lo, hi;       /* no head matches a code point outside */
    bool accepts, names_tokens;
};

struct matcher_move {
    uint64_t key; /* state << 32 | code point or token; 0 = free (nothing leaves DEAD) */
    uint32_t state;
};

struct matcher_visit {
    uint64_t head;
    uint32_t closure;
};

struct hearth_grammar_matcher {
    struct hearth_grammar_gbnf *gbnf;
    struct matcher_node *nodes;
    struct matcher_link *links;
    uint64_t *heads; /* symbol << 32 | node */
    struct matcher_state *states;
    uint32_t *state_slots; /* open addressing: indices of states, 0 = free */
    uint32_t *node_slots;  /* the same for nodes */
    uint32_t *renamed;     /* for the nodes of one closure: what they are replaced by */
    struct matcher_move *moves;
    struct matcher_visit *visits;
    uint64_t *todo, *found;
    uint32_t *node_of, *node_of_closure; /* by symbol: the node that returns to it, if it is of this closure */
    uint32_t node_count, link_count, head_count, state_count, move_count, todo_count, found_count, visit_count;
    uint32_t node_cap, link_cap, head_cap, state_cap, move_cap, todo_cap, found_cap, visit_cap, slot_cap, node_slot_cap,
        renamed_cap, node_slots_used;
    uint32_t closure;
    uint32_t closure_nodes, closure_links; /* how many there were when it began */
    uint32_t start;
    uint32_t settle_nodes;
    bool accepts; /* what closure() found beside the heads */
    bool overflowed;
    uint64_t work;
};

static inline uint64_t hearth_grammar_matcher_mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}

/* Room for one more element; false, and the matcher has overflowed, when there is no memory. */
bool hearth_grammar_matcher_grow(struct hearth_grammar_matcher *matcher, void **array, uint32_t *cap, uint32_t count,
                                 size_t size);
/* Counts work; false, and the matcher has overflowed, when it has become too much. */
bool hearth_grammar_matcher_spend(struct hearth_grammar_matcher *matcher, uint64_t work);
/* The state of what the last closure found. */
uint32_t hearth_grammar_matcher_intern(struct hearth_grammar_matcher *matcher);

#endif
