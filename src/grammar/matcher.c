/* The matcher of matcher.h.
 *
 *   node    a return address: the symbol to go on with, and the nodes below it in the stacks it belongs to (`links`)
 *   head    (symbol, node): a terminal symbol that the next code point may match, and the stack below it
 *   state   an ordered set of heads, and whether the text may end here
 *
 * closure() goes from the symbols behind a matched one down to the terminals: a rule's name pushes a return address
 * and goes on with every alternative of the rule; an alternative's end pops. Three things make it right and finite:
 *
 *   - Within one closure a return address gets one node, whoever calls; every (symbol, node) is visited once.
 *   - A name at the end of an alternative pushes nothing (a tail call), so repetitions leave no trace in the stacks.
 *   - A pop of a node that was made in this closure is skipped: the callee matched nothing, and what follows a
 *     nullable name has been visited already. So nodes may get more links after they were reached.
 *
 * Invariants: a node's links are complete once the closure that made it is over, and all that is done with them before
 * is to collect them. Then each node that the closure made is replaced by an older one with the same symbol and links,
 * if there is one: equal stacks are equal numbers, and going round in a repetition comes back to the same state. Node 0
 * is the bottom of all stacks, state 0 is DEAD; the links of a node that has a name ascend; nothing is removed but by
 * compacting, which keeps what one state can reach. */
#include "grammar/matcher.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define TOKEN_KEY 0x80000000u /* in a move's key: a token, not a code point */
#define MATCHER_NONE UINT32_MAX
/* Looking at a head or a link is one unit of work, visiting a symbol this many. */
#define MATCHER_VISIT_WORK 64
/* Nodes that are kept before compacting begins to forget. */
#define MATCHER_COMPACT_NODES 65536

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
    size_t node_cap, link_cap, head_cap, state_cap, todo_cap, found_cap, renamed_cap;
    uint32_t move_cap, visit_cap, slot_cap, node_slot_cap, node_slots_used;
    uint32_t closure;
    uint32_t closure_nodes, closure_links; /* how many there were when it began */
    uint32_t start;
    uint32_t compact_nodes;
    bool accepts; /* what closure() found beside the heads */
    bool overflowed;
    uint64_t work;
};

enum { COMPACT_STATES = 1 << 14, COMPACT_MOVES = 1 << 18 };

#define WORK_MAX ((uint64_t)500000 * MATCHER_VISIT_WORK)

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}

/* ---- memory ---- */

#define GROW(m, array, cap, count) (HEARTH_BUF_ROOM((m)->array, count, (m)->cap) || !((m)->overflowed = true))

static bool spend(struct hearth_grammar_matcher *m, uint64_t work) {
    m->work += work;
    if (m->work > WORK_MAX) {
        m->overflowed = true;
    }
    return !m->overflowed;
}

/* ---- one node for equal stacks ---- */

static uint64_t hash_node(const struct hearth_grammar_matcher *m, uint32_t node) {
    uint64_t h = mix(m->nodes[node].symbol);
    for (uint32_t l = m->nodes[node].links; l != MATCHER_NONE; l = m->links[l].next) {
        h = mix(h + m->links[l].below + 1);
    }
    return h;
}

/* Links in the same order. */
static bool same_node(const struct hearth_grammar_matcher *m, uint32_t a, uint32_t b) {
    uint32_t x = m->nodes[a].links, y = m->nodes[b].links;
    while (x != MATCHER_NONE && y != MATCHER_NONE && m->links[x].below == m->links[y].below) {
        x = m->links[x].next;
        y = m->links[y].next;
    }
    return x == MATCHER_NONE && y == MATCHER_NONE && m->nodes[a].symbol == m->nodes[b].symbol;
}

/* The slot of an equal node, or the free one where it belongs. */
static uint32_t *node_slot(const struct hearth_grammar_matcher *m, uint32_t *slots, uint32_t cap, uint32_t node) {
    uint32_t at = (uint32_t)hash_node(m, node) & (cap - 1);
    while (slots[at] != 0 && !same_node(m, slots[at], node)) {
        at = (at + 1) & (cap - 1);
    }
    return &slots[at];
}

static bool node_slots_grow(struct hearth_grammar_matcher *m) {
    uint32_t cap = m->node_slot_cap > 0 ? m->node_slot_cap * 2 : 256;
    uint32_t *slots = hearth_memory_calloc(cap, sizeof *slots);
    if (slots == NULL) {
        m->overflowed = true;
        return false;
    }
    for (uint32_t i = 0; i < m->node_slot_cap; i++) {
        if (m->node_slots[i] != 0) {
            *node_slot(m, slots, cap, m->node_slots[i]) = m->node_slots[i];
        }
    }
    free(m->node_slots);
    m->node_slots = slots;
    m->node_slot_cap = cap;
    return true;
}

/* Puts the links of a node in order, each once; they are few, usually one. */
static bool sort_links(struct hearth_grammar_matcher *m, uint32_t node) {
    for (bool sorted = false; !sorted;) {
        sorted = true;
        for (uint32_t l = m->nodes[node].links; m->links[l].next != MATCHER_NONE && spend(m, 1);) {
            struct matcher_link *here = &m->links[l], *next = &m->links[here->next];
            if (here->below == next->below) {
                here->next = next->next;
                continue;
            }
            if (here->below > next->below) {
                uint32_t below = here->below;
                here->below = next->below;
                next->below = below;
                sorted = false;
            }
            l = here->next;
        }
    }
    return !m->overflowed;
}

/* Renames the links of a node and puts them in order; false when one leads to a node that has no name yet. */
static bool rename_links(struct hearth_grammar_matcher *m, uint32_t node, const uint32_t *renamed) {
    for (uint32_t l = m->nodes[node].links; l != MATCHER_NONE; l = m->links[l].next) {
        uint32_t below = m->links[l].below;
        if (below >= m->closure_nodes && renamed[below - m->closure_nodes] == MATCHER_NONE) {
            return false;
        }
    }
    for (uint32_t l = m->nodes[node].links; l != MATCHER_NONE; l = m->links[l].next) {
        uint32_t below = m->links[l].below;
        m->links[l].below = below >= m->closure_nodes ? renamed[below - m->closure_nodes] : below;
    }
    return sort_links(m, node);
}

/* Finds the names of the closure's nodes. Nodes of a cycle (left recursion) keep their own. */
static bool rename_nodes(struct hearth_grammar_matcher *m) {
    uint32_t count = m->node_count - m->closure_nodes, left = count;
    while (m->renamed_cap < count) {
        if (!GROW(m, renamed, renamed_cap, m->renamed_cap)) {
            return false;
        }
    }
    memset(m->renamed, 0xFF, count * sizeof *m->renamed);
    bool fresh = false;
    bool down = m->closure_nodes == 1; /* after compacting: callers behind callees */
    for (uint32_t before = left + 1; left > 0 && left < before; down = !down) {
        before = left;
        for (uint32_t k = 0; k < count; k++) {
            uint32_t i = down ? count - 1 - k : k, node = m->closure_nodes + i;
            if (m->renamed[i] != MATCHER_NONE || !rename_links(m, node, m->renamed)) {
                continue;
            }
            if ((m->node_slots_used + 1) * 2 > m->node_slot_cap && !node_slots_grow(m)) {
                return false;
            }
            uint32_t *slot = node_slot(m, m->node_slots, m->node_slot_cap, node);
            if (*slot == 0) {
                *slot = node;
                m->node_slots_used++;
                fresh = true;
            }
            m->renamed[i] = *slot;
            left--;
        }
    }
    for (uint32_t i = 0; i < m->found_count; i++) {
        uint32_t node = (uint32_t)m->found[i];
        if (node >= m->closure_nodes && m->renamed[node - m->closure_nodes] != MATCHER_NONE) {
            m->found[i] = (m->found[i] & ~(uint64_t)UINT32_MAX) | m->renamed[node - m->closure_nodes];
        }
    }
    if (!fresh && left == 0) {
        m->node_count = m->closure_nodes;
        m->link_count = m->closure_links;
    }
    return true;
}

/* ---- states ---- */

static void bounds(const struct hearth_grammar_gbnf *g, uint32_t symbol, uint32_t *lo, uint32_t *hi) {
    const struct hearth_grammar_gbnf_symbol *s = &g->symbols[symbol];
    *lo = 0;
    *hi = UINT32_MAX;
    if (s->kind == HEARTH_GRAMMAR_GBNF_CHAR) {
        *lo = *hi = s->value;
    } else if (s->kind == HEARTH_GRAMMAR_GBNF_SET) {
        const struct hearth_grammar_gbnf_set *set = &g->sets[s->value];
        *lo = set->count > 0 ? g->ranges[set->first].lo : 1;
        *hi = set->count > 0 ? g->ranges[set->first + set->count - 1].hi : 0;
    } else if (s->kind == HEARTH_GRAMMAR_GBNF_TOKEN || s->kind == HEARTH_GRAMMAR_GBNF_NOT_TOKEN) {
        *lo = UINT32_MAX;
        *hi = 0;
    }
}

static uint64_t hash_heads(const uint64_t *heads, uint32_t count, bool accepts) {
    uint64_t h = count * 2u + accepts;
    for (uint32_t i = 0; i < count; i++) {
        h = mix(h ^ heads[i]) + heads[i];
    }
    return mix(h);
}

static bool slots_grow(struct hearth_grammar_matcher *m) {
    uint32_t cap = m->slot_cap > 0 ? m->slot_cap * 2 : 256;
    uint32_t *slots = hearth_memory_calloc(cap, sizeof *slots);
    if (slots == NULL) {
        m->overflowed = true;
        return false;
    }
    for (uint32_t s = 1; s < m->state_count; s++) {
        const struct matcher_state *state = &m->states[s];
        uint32_t at = (uint32_t)hash_heads(m->heads + state->first, state->count, state->accepts) & (cap - 1);
        while (slots[at] != 0) {
            at = (at + 1) & (cap - 1);
        }
        slots[at] = s;
    }
    free(m->state_slots);
    m->state_slots = slots;
    m->slot_cap = cap;
    return true;
}

static int by_value(const void *a, const void *b) {
    return (*(const uint64_t *)a > *(const uint64_t *)b) - (*(const uint64_t *)a < *(const uint64_t *)b);
}

static uint32_t state_add(struct hearth_grammar_matcher *m) {
    if (!GROW(m, states, state_cap, m->state_count)) {
        return HEARTH_GRAMMAR_MATCHER_DEAD;
    }
    struct matcher_state state = {
        .first = m->head_count, .count = m->found_count, .lo = UINT32_MAX, .accepts = m->accepts};
    for (uint32_t i = 0; i < m->found_count; i++) {
        if (!GROW(m, heads, head_cap, m->head_count)) {
            m->head_count = state.first;
            return HEARTH_GRAMMAR_MATCHER_DEAD;
        }
        uint32_t lo, hi, symbol = (uint32_t)(m->found[i] >> 32), kind = m->gbnf->symbols[symbol].kind;
        bounds(m->gbnf, symbol, &lo, &hi);
        state.lo = lo < state.lo ? lo : state.lo;
        state.hi = hi > state.hi ? hi : state.hi;
        state.names_tokens =
            state.names_tokens || kind == HEARTH_GRAMMAR_GBNF_TOKEN || kind == HEARTH_GRAMMAR_GBNF_NOT_TOKEN;
        m->heads[m->head_count++] = m->found[i];
    }
    m->states[m->state_count] = state;
    return m->state_count++;
}

static uint32_t intern(struct hearth_grammar_matcher *m) {
    if ((m->found_count == 0 && !m->accepts) || (m->node_count > m->closure_nodes && !rename_nodes(m))) {
        return HEARTH_GRAMMAR_MATCHER_DEAD;
    }
    if (m->found_count > 1) {
        qsort(m->found, m->found_count, sizeof *m->found, by_value);
    }
    if ((m->state_count + 1) * 2 > m->slot_cap && !slots_grow(m)) {
        return HEARTH_GRAMMAR_MATCHER_DEAD;
    }
    uint32_t at = (uint32_t)hash_heads(m->found, m->found_count, m->accepts) & (m->slot_cap - 1);
    for (; m->state_slots[at] != 0; at = (at + 1) & (m->slot_cap - 1)) {
        const struct matcher_state *state = &m->states[m->state_slots[at]];
        if (state->count == m->found_count && state->accepts == m->accepts &&
            (state->count == 0 || memcmp(m->heads + state->first, m->found, state->count * sizeof *m->found) == 0)) {
            return m->state_slots[at];
        }
    }
    uint32_t state = state_add(m);
    m->state_slots[at] = state;
    return state;
}

/* ---- compacting ---- */

/* What one state can reach, in new arrays. */
struct compacted {
    uint32_t *names; /* old node → new, MATCHER_NONE: not reached */
    uint32_t *order; /* new node → old */
    struct matcher_node *nodes;
    struct matcher_link *links;
    uint64_t *heads;
    uint32_t node_count, link_count;
};

static uint32_t copy_node(const struct hearth_grammar_matcher *m, struct compacted *to, uint32_t old) {
    if (to->names[old] == MATCHER_NONE) {
        to->names[old] = to->node_count;
        to->order[to->node_count] = old;
        to->nodes[to->node_count] = m->nodes[old];
        to->nodes[to->node_count++].links = MATCHER_NONE;
    }
    return to->names[old];
}

static void copy_reachable(const struct hearth_grammar_matcher *m, const struct matcher_state *state,
                           struct compacted *to) {
    memset(to->names, 0xFF, m->node_count * sizeof *to->names);
    copy_node(m, to, 0);
    for (uint32_t i = 0; i < state->count; i++) {
        uint64_t head = m->heads[state->first + i];
        to->heads[i] = (head & ~(uint64_t)UINT32_MAX) | copy_node(m, to, (uint32_t)head);
    }
    for (uint32_t n = 0; n < to->node_count; n++) {
        for (uint32_t l = m->nodes[to->order[n]].links; l != MATCHER_NONE; l = m->links[l].next) {
            uint32_t below = copy_node(m, to, m->links[l].below);
            to->links[to->link_count] = (struct matcher_link){below, to->nodes[n].links};
            to->nodes[n].links = to->link_count++;
        }
    }
}

static void replace_graph(struct hearth_grammar_matcher *m, uint32_t state_index, struct compacted *to) {
    struct matcher_state state = m->states[state_index];
    copy_reachable(m, &state, to);
    memcpy(m->nodes, to->nodes, to->node_count * sizeof *m->nodes);
    if (to->link_count > 0) {
        memcpy(m->links, to->links, to->link_count * sizeof *m->links);
    }
    m->node_count = to->node_count;
    m->link_count = to->link_count;
    if (m->node_slot_cap > 0) {
        memset(m->node_slots, 0, m->node_slot_cap * sizeof *m->node_slots);
    }
    m->node_slots_used = 0;
    m->closure_nodes = 1; /* the nodes that are left are named like those of a closure */
    m->closure_links = 0;
    m->head_count = 0;
    m->state_count = 1;
    memset(m->state_slots, 0, m->slot_cap * sizeof *m->state_slots);
    if (m->move_cap > 0) {
        memset(m->moves, 0, m->move_cap * sizeof *m->moves);
    }
    m->move_count = 0;
    m->accepts = state.accepts;
    m->found_count = 0;
    for (uint32_t i = 0; i < state.count; i++) { /* `found` has held as many before */
        m->found[m->found_count++] = to->heads[i];
    }
}

void hearth_grammar_matcher_compact(struct hearth_grammar_matcher *m, struct hearth_grammar_matcher_point *point) {
    m->work = 0;
    m->overflowed = false;
    if (m->node_count < m->compact_nodes && m->state_count < COMPACT_STATES && m->move_count < COMPACT_MOVES) {
        return;
    }
    struct compacted to = {
        .names = hearth_memory_malloc(m->node_count * sizeof *to.names),
        .order = hearth_memory_malloc(m->node_count * sizeof *to.order),
        .nodes = hearth_memory_malloc(m->node_count * sizeof *to.nodes),
        .links = hearth_memory_malloc((m->link_count + 1u) * sizeof *to.links),
        .heads = hearth_memory_malloc((m->states[point->state].count + 1u) * sizeof *to.heads),
    };
    if (to.names != NULL && to.order != NULL && to.nodes != NULL && to.links != NULL && to.heads != NULL) {
        replace_graph(m, point->state, &to);
        point->state = intern(m);
        m->compact_nodes = m->node_count > MATCHER_COMPACT_NODES / 2 ? m->node_count * 2 : MATCHER_COMPACT_NODES;
    }
    free(to.names);
    free(to.order);
    free(to.nodes);
    free(to.links);
    free(to.heads);
}

/* ---- closure ---- */

static bool visits_grow(struct hearth_grammar_matcher *m) {
    uint32_t cap = m->visit_cap > 0 ? m->visit_cap * 2 : 256;
    struct matcher_visit *visits = hearth_memory_calloc(cap, sizeof *visits);
    if (visits == NULL) {
        m->overflowed = true;
        return false;
    }
    for (uint32_t i = 0; i < m->visit_cap; i++) {
        if (m->visits[i].closure == m->closure) {
            uint32_t at = (uint32_t)mix(m->visits[i].head) & (cap - 1);
            while (visits[at].closure == m->closure) {
                at = (at + 1) & (cap - 1);
            }
            visits[at] = m->visits[i];
        }
    }
    free(m->visits);
    m->visits = visits;
    m->visit_cap = cap;
    return true;
}

/* (symbol, node) is to be visited, unless it was. */
static bool reach(struct hearth_grammar_matcher *m, uint32_t symbol, uint32_t node) {
    uint64_t head = (uint64_t)symbol << 32 | node;
    if ((m->visit_count + 1) * 2 > m->visit_cap && !visits_grow(m)) {
        return false;
    }
    uint32_t at = (uint32_t)mix(head) & (m->visit_cap - 1);
    for (; m->visits[at].closure == m->closure; at = (at + 1) & (m->visit_cap - 1)) {
        if (m->visits[at].head == head) {
            return true;
        }
    }
    if (!spend(m, MATCHER_VISIT_WORK) || !GROW(m, todo, todo_cap, m->todo_count)) {
        return false;
    }
    m->visits[at] = (struct matcher_visit){head, m->closure};
    m->visit_count++;
    m->todo[m->todo_count++] = head;
    return true;
}

/* The node of this closure that returns to `symbol`, with `below` among its links; MATCHER_NONE: overflow. */
static uint32_t call(struct hearth_grammar_matcher *m, uint32_t symbol, uint32_t below) {
    uint32_t node = m->node_of[symbol];
    if (m->node_of_closure[symbol] != m->closure) {
        if (!GROW(m, nodes, node_cap, m->node_count)) {
            return MATCHER_NONE;
        }
        node = m->node_count++;
        m->nodes[node] = (struct matcher_node){symbol, m->closure, MATCHER_NONE};
        m->node_of[symbol] = node;
        m->node_of_closure[symbol] = m->closure;
    }
    for (uint32_t l = m->nodes[node].links; l != MATCHER_NONE; l = m->links[l].next) {
        if (m->links[l].below == below) {
            return node;
        }
        if (!spend(m, 1)) {
            return MATCHER_NONE;
        }
    }
    if (!GROW(m, links, link_cap, m->link_count)) {
        return MATCHER_NONE;
    }
    m->links[m->link_count] = (struct matcher_link){below, m->nodes[node].links};
    m->nodes[node].links = m->link_count++;
    return node;
}

static bool pop(struct hearth_grammar_matcher *m, uint32_t node) {
    if (node == 0) {
        m->accepts = true;
        return true;
    }
    if (m->nodes[node].closure == m->closure) {
        return true;
    }
    for (uint32_t l = m->nodes[node].links; l != MATCHER_NONE; l = m->links[l].next) {
        if (!reach(m, m->nodes[node].symbol, m->links[l].below)) {
            return false;
        }
    }
    return true;
}

static bool enter(struct hearth_grammar_matcher *m, uint32_t symbol, uint32_t node) {
    const struct hearth_grammar_gbnf *g = m->gbnf;
    const struct hearth_grammar_gbnf_rule *rule = &g->rules[g->symbols[symbol].value];
    uint32_t under = node;
    if (g->symbols[symbol + 1].kind != HEARTH_GRAMMAR_GBNF_END) {
        under = call(m, symbol + 1, node);
        if (under == MATCHER_NONE || (rule->nullable && !reach(m, symbol + 1, node))) {
            return false;
        }
    }
    for (uint32_t a = rule->first; a < rule->first + rule->count; a++) {
        if (!reach(m, g->alternatives[a], under)) {
            return false;
        }
    }
    return true;
}

/* Visits everything in `todo` and what it leads to; the terminals are in `found` then. */
static bool closure(struct hearth_grammar_matcher *m) {
    while (m->todo_count > 0) {
        uint64_t head = m->todo[--m->todo_count];
        uint32_t symbol = (uint32_t)(head >> 32), node = (uint32_t)head;
        bool ok = true;
        switch (m->gbnf->symbols[symbol].kind) {
        case HEARTH_GRAMMAR_GBNF_END: ok = pop(m, node); break;
        case HEARTH_GRAMMAR_GBNF_RULE: ok = enter(m, symbol, node); break;
        default:
            ok = GROW(m, found, found_cap, m->found_count);
            if (ok) {
                m->found[m->found_count++] = head;
            }
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

static void closure_begin(struct hearth_grammar_matcher *m) {
    m->closure++;
    m->closure_nodes = m->node_count;
    m->closure_links = m->link_count;
    m->visit_count = m->todo_count = m->found_count = 0;
    m->accepts = false;
}

/* ---- moves ---- */

static bool moves_grow(struct hearth_grammar_matcher *m) {
    uint32_t cap = m->move_cap > 0 ? m->move_cap * 2 : 1024;
    struct matcher_move *moves = hearth_memory_calloc(cap, sizeof *moves);
    if (moves == NULL) {
        m->overflowed = true;
        return false;
    }
    for (uint32_t i = 0; i < m->move_cap; i++) {
        if (m->moves[i].key != 0) {
            uint32_t at = (uint32_t)mix(m->moves[i].key) & (cap - 1);
            while (moves[at].key != 0) {
                at = (at + 1) & (cap - 1);
            }
            moves[at] = m->moves[i];
        }
    }
    free(m->moves);
    m->moves = moves;
    m->move_cap = cap;
    return true;
}

static bool set_holds(const struct hearth_grammar_gbnf *g, uint32_t set, uint32_t code) {
    uint32_t lo = g->sets[set].first, hi = lo + g->sets[set].count;
    while (lo < hi) {
        uint32_t middle = lo + (hi - lo) / 2;
        if (code < g->ranges[middle].lo) {
            hi = middle;
        } else if (code > g->ranges[middle].hi) {
            lo = middle + 1;
        } else {
            return true;
        }
    }
    return false;
}

/* `what`: a code point, or TOKEN_KEY and a token. */
static bool matches(const struct hearth_grammar_gbnf *g, uint32_t symbol, uint32_t what) {
    const struct hearth_grammar_gbnf_symbol *s = &g->symbols[symbol];
    bool token = (what & TOKEN_KEY) != 0;
    switch (s->kind) {
    case HEARTH_GRAMMAR_GBNF_CHAR: return !token && s->value == what;
    case HEARTH_GRAMMAR_GBNF_SET: return !token && set_holds(g, s->value, what);
    case HEARTH_GRAMMAR_GBNF_NOT_SET: return !token && !set_holds(g, s->value, what);
    case HEARTH_GRAMMAR_GBNF_ANY: return !token;
    case HEARTH_GRAMMAR_GBNF_TOKEN: return token && s->value == (what & ~TOKEN_KEY);
    default: return token && s->value != (what & ~TOKEN_KEY);
    }
}

static uint32_t move(struct hearth_grammar_matcher *m, uint32_t from, uint32_t what) {
    if (from == HEARTH_GRAMMAR_MATCHER_DEAD || m->overflowed ||
        ((m->move_count + 1) * 2 > m->move_cap && !moves_grow(m))) {
        return HEARTH_GRAMMAR_MATCHER_DEAD;
    }
    struct matcher_state state = m->states[from];
    if ((what & TOKEN_KEY) != 0 ? !state.names_tokens : what < state.lo || what > state.hi) {
        return HEARTH_GRAMMAR_MATCHER_DEAD;
    }
    uint64_t key = (uint64_t)from << 32 | what;
    uint32_t at = (uint32_t)mix(key) & (m->move_cap - 1);
    for (; m->moves[at].key != 0; at = (at + 1) & (m->move_cap - 1)) {
        if (m->moves[at].key == key) {
            return m->moves[at].state;
        }
    }
    closure_begin(m);
    bool ok = spend(m, state.count);
    for (uint32_t i = 0; ok && i < state.count; i++) {
        uint64_t head = m->heads[state.first + i];
        if (matches(m->gbnf, (uint32_t)(head >> 32), what)) {
            ok = reach(m, (uint32_t)(head >> 32) + 1, (uint32_t)head);
        }
    }
    ok = ok && closure(m);
    uint32_t to = ok ? intern(m) : HEARTH_GRAMMAR_MATCHER_DEAD;
    if (!m->overflowed) {
        m->moves[at] = (struct matcher_move){key, to};
        m->move_count++;
    }
    return to;
}

/* ---- bytes ---- */

/* Whether a head matches some code point of [lo, hi]. */
static bool feasible(struct hearth_grammar_matcher *m, uint32_t state_index, uint32_t lo, uint32_t hi) {
    const struct hearth_grammar_gbnf *g = m->gbnf;
    const struct matcher_state *state = &m->states[state_index];
    if (!spend(m, state->count)) {
        return false;
    }
    for (uint32_t i = 0; i < state->count; i++) {
        const struct hearth_grammar_gbnf_symbol *s = &g->symbols[m->heads[state->first + i] >> 32];
        bool negated = s->kind == HEARTH_GRAMMAR_GBNF_NOT_SET;
        if (s->kind == HEARTH_GRAMMAR_GBNF_ANY ||
            (s->kind == HEARTH_GRAMMAR_GBNF_CHAR && lo <= s->value && s->value <= hi)) {
            return true;
        }
        if (!negated && s->kind != HEARTH_GRAMMAR_GBNF_SET) {
            continue;
        }
        const struct hearth_grammar_gbnf_set *set = &g->sets[s->value];
        bool touched = false, covered = false;
        for (uint32_t r = set->first; r < set->first + set->count; r++) {
            touched = touched || (g->ranges[r].lo <= hi && lo <= g->ranges[r].hi);
            covered = covered || (g->ranges[r].lo <= lo && hi <= g->ranges[r].hi);
        }
        if (negated ? !covered : touched) {
            return true;
        }
    }
    return false;
}

static bool first_byte(struct hearth_grammar_matcher_point *point, uint8_t byte) {
    point->length = byte >= 0xC2 && byte <= 0xDF ? 2 : byte >= 0xE0 && byte <= 0xEF ? 3 : 4;
    point->left = (uint8_t)(point->length - 1);
    point->code = byte & (0xFFu >> (point->length + 1));
    return byte >= 0xC2 && byte <= 0xF4;
}

bool hearth_grammar_matcher_byte(struct hearth_grammar_matcher *m, struct hearth_grammar_matcher_point *point,
                                 uint8_t byte) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* by length: shorter ones are written shorter */
    bool ok = point->state != HEARTH_GRAMMAR_MATCHER_DEAD;
    if (ok && point->left == 0 && byte < 0x80) {
        point->state = move(m, point->state, byte);
        return point->state != HEARTH_GRAMMAR_MATCHER_DEAD;
    }
    if (ok && point->left == 0) {
        ok = first_byte(point, byte);
    } else if (ok) {
        ok = (byte & 0xC0) == 0x80;
        point->code = point->code << 6 | (byte & 0x3Fu);
        point->left--;
    }
    if (ok && point->left == 0) {
        ok = point->code >= least[point->length] && point->code <= 0x10FFFF;
        point->state = ok ? move(m, point->state, point->code) : HEARTH_GRAMMAR_MATCHER_DEAD;
        return point->state != HEARTH_GRAMMAR_MATCHER_DEAD;
    }
    if (ok) {
        uint32_t lo = point->code << (6 * point->left), hi = lo | ((1u << (6 * point->left)) - 1);
        lo = lo < least[point->length] ? least[point->length] : lo;
        hi = hi > 0x10FFFF ? 0x10FFFF : hi;
        ok = lo <= hi && feasible(m, point->state, lo, hi);
    }
    if (!ok) {
        *point = (struct hearth_grammar_matcher_point){.state = HEARTH_GRAMMAR_MATCHER_DEAD};
    }
    return ok;
}

uint32_t hearth_grammar_matcher_token(struct hearth_grammar_matcher *m, uint32_t state, hearth_token token) {
    return move(m, state, TOKEN_KEY | (uint32_t)token);
}

uint32_t hearth_grammar_matcher_union(struct hearth_grammar_matcher *m, uint32_t a, uint32_t b) {
    if (a == b || b == HEARTH_GRAMMAR_MATCHER_DEAD) {
        return a;
    }
    if (a == HEARTH_GRAMMAR_MATCHER_DEAD) {
        return b;
    }
    closure_begin(m);
    bool ok = true;
    for (int k = 0; k < 2; k++) {
        struct matcher_state state = m->states[k == 0 ? a : b];
        for (uint32_t i = 0; ok && i < state.count; i++) {
            uint64_t head = m->heads[state.first + i];
            ok = reach(m, (uint32_t)(head >> 32), (uint32_t)head);
        }
        m->accepts = m->accepts || state.accepts;
    }
    return ok && closure(m) ? intern(m) : HEARTH_GRAMMAR_MATCHER_DEAD;
}

bool hearth_grammar_matcher_complete(const struct hearth_grammar_matcher *m,
                                     const struct hearth_grammar_matcher_point *point) {
    return point->left == 0 && m->states[point->state].accepts;
}

bool hearth_grammar_matcher_names_tokens(const struct hearth_grammar_matcher *m, uint32_t state) {
    return m->states[state].names_tokens;
}

bool hearth_grammar_matcher_overflowed(const struct hearth_grammar_matcher *m) {
    return m->overflowed;
}

/* ---- life ---- */

int hearth_grammar_matcher_create(struct hearth_grammar_gbnf *gbnf, struct hearth_grammar_matcher **out,
                                  struct hearth_errmsg *msg) {
    *out = NULL;
    struct hearth_grammar_matcher *m = hearth_memory_calloc(1, sizeof *m);
    if (m == NULL) {
        hearth_grammar_gbnf_destroy(gbnf);
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
    }
    m->gbnf = gbnf;
    m->compact_nodes = MATCHER_COMPACT_NODES;
    m->node_of = hearth_memory_calloc(gbnf->symbol_count, sizeof *m->node_of);
    m->node_of_closure = hearth_memory_calloc(gbnf->symbol_count, sizeof *m->node_of_closure);
    bool ok = m->node_of != NULL && m->node_of_closure != NULL && GROW(m, nodes, node_cap, 0) &&
              GROW(m, states, state_cap, 0);
    if (ok) {
        m->nodes[m->node_count++] = (struct matcher_node){.links = MATCHER_NONE};
        m->states[m->state_count++] = (struct matcher_state){.lo = UINT32_MAX};
        closure_begin(m);
        const struct hearth_grammar_gbnf_rule *root = &gbnf->rules[gbnf->root];
        for (uint32_t a = root->first; ok && a < root->first + root->count; a++) {
            ok = reach(m, gbnf->alternatives[a], 0);
        }
        ok = ok && closure(m);
    }
    m->start = ok ? intern(m) : HEARTH_GRAMMAR_MATCHER_DEAD;
    if (m->start == HEARTH_GRAMMAR_MATCHER_DEAD) {
        bool work = m->overflowed && m->node_of_closure != NULL;
        hearth_grammar_matcher_destroy(m);
        return ok     ? hearth_fail(msg, HEARTH_ERR_INVALID, "no text follows the grammar")
               : work ? hearth_fail(msg, HEARTH_ERR_INVALID, "the grammar is too large")
                      : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory for a grammar");
    }
    *out = m;
    return HEARTH_OK;
}

void hearth_grammar_matcher_destroy(struct hearth_grammar_matcher *m) {
    if (m == NULL) {
        return;
    }
    hearth_grammar_gbnf_destroy(m->gbnf);
    free(m->nodes);
    free(m->links);
    free(m->heads);
    free(m->states);
    free(m->state_slots);
    free(m->moves);
    free(m->visits);
    free(m->todo);
    free(m->found);
    free(m->node_slots);
    free(m->renamed);
    free(m->node_of);
    free(m->node_of_closure);
    free(m);
}

struct hearth_grammar_matcher_point hearth_grammar_matcher_start(const struct hearth_grammar_matcher *m) {
    return (struct hearth_grammar_matcher_point){.state = m->start};
}
