/* Nodes and states of the matcher: equal ones get one number, and those that nothing leads to are forgotten.
 *
 * When a closure is over, each node it made is replaced by an older one with the same symbol and links, if there is
 * one. So equal stacks are equal numbers, and going round in a repetition comes back to the same state.
 *
 * Invariants: node 0 is the bottom of all stacks, state 0 is DEAD; the links of a node that has a name ascend; nothing
 * is removed but by settle(), which keeps what one state can reach. */
#include "grammar/matcher_parts.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { SETTLE_STATES = 1 << 14, SETTLE_MOVES = 1 << 18 };

#define WORK_MAX ((uint64_t)500000 * MATCHER_VISIT_WORK)

/* ---- memory ---- */

bool hearth_grammar_matcher_grow(struct hearth_grammar_matcher *m, void **array, uint32_t *cap, uint32_t count,
                                 size_t size) {
    if (count < *cap) {
        return true;
    }
    uint32_t more = *cap > 0 ? *cap * 2 : 64;
    void *moved = hearth_memory_realloc(*array, more * size);
    if (moved == NULL) {
        m->overflowed = true;
        return false;
    }
    *array = moved;
    *cap = more;
    return true;
}

bool hearth_grammar_matcher_spend(struct hearth_grammar_matcher *m, uint64_t work) {
    m->work += work;
    if (m->work > WORK_MAX) {
        m->overflowed = true;
    }
    return !m->overflowed;
}

/* ---- one node for equal stacks ---- */

static uint64_t hash_node(const struct hearth_grammar_matcher *m, uint32_t node) {
    uint64_t h = hearth_grammar_matcher_mix(m->nodes[node].symbol);
    for (uint32_t l = m->nodes[node].links; l != MATCHER_NONE; l = m->links[l].next) {
        h = hearth_grammar_matcher_mix(h + m->links[l].below + 1);
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
        for (uint32_t l = m->nodes[node].links;
             m->links[l].next != MATCHER_NONE && hearth_grammar_matcher_spend(m, 1);) {
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
        if (!hearth_grammar_matcher_grow(m, (void **)&m->renamed, &m->renamed_cap, m->renamed_cap,
                                         sizeof *m->renamed)) {
            return false;
        }
    }
    memset(m->renamed, 0xFF, count * sizeof *m->renamed);
    bool fresh = false;
    bool down = m->closure_nodes == 1; /* settled: callers behind callees */
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
        h = hearth_grammar_matcher_mix(h ^ heads[i]) + heads[i];
    }
    return hearth_grammar_matcher_mix(h);
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
    if (!hearth_grammar_matcher_grow(m, (void **)&m->states, &m->state_cap, m->state_count, sizeof *m->states)) {
        return HEARTH_GRAMMAR_MATCHER_DEAD;
    }
    struct matcher_state state = {
        .first = m->head_count, .count = m->found_count, .lo = UINT32_MAX, .accepts = m->accepts};
    for (uint32_t i = 0; i < m->found_count; i++) {
        if (!hearth_grammar_matcher_grow(m, (void **)&m->heads, &m->head_cap, m->head_count, sizeof *m->heads)) {
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

uint32_t hearth_grammar_matcher_intern(struct hearth_grammar_matcher *m) {
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

/* ---- settling ---- */

/* What one state can reach, in new arrays. */
struct kept {
    uint32_t *names; /* old node → new, MATCHER_NONE: not reached */
    uint32_t *order; /* new node → old */
    struct matcher_node *nodes;
    struct matcher_link *links;
    uint64_t *heads;
    uint32_t node_count, link_count;
};

static uint32_t keep_node(const struct hearth_grammar_matcher *m, struct kept *kept, uint32_t old) {
    if (kept->names[old] == MATCHER_NONE) {
        kept->names[old] = kept->node_count;
        kept->order[kept->node_count] = old;
        kept->nodes[kept->node_count] = m->nodes[old];
        kept->nodes[kept->node_count++].links = MATCHER_NONE;
    }
    return kept->names[old];
}

static void keep_reachable(const struct hearth_grammar_matcher *m, const struct matcher_state *state,
                           struct kept *kept) {
    memset(kept->names, 0xFF, m->node_count * sizeof *kept->names);
    keep_node(m, kept, 0);
    for (uint32_t i = 0; i < state->count; i++) {
        uint64_t head = m->heads[state->first + i];
        kept->heads[i] = (head & ~(uint64_t)UINT32_MAX) | keep_node(m, kept, (uint32_t)head);
    }
    for (uint32_t n = 0; n < kept->node_count; n++) {
        for (uint32_t l = m->nodes[kept->order[n]].links; l != MATCHER_NONE; l = m->links[l].next) {
            uint32_t below = keep_node(m, kept, m->links[l].below);
            kept->links[kept->link_count] = (struct matcher_link){below, kept->nodes[n].links};
            kept->nodes[n].links = kept->link_count++;
        }
    }
}

static void settle_on(struct hearth_grammar_matcher *m, uint32_t state_index, struct kept *kept) {
    struct matcher_state state = m->states[state_index];
    keep_reachable(m, &state, kept);
    memcpy(m->nodes, kept->nodes, kept->node_count * sizeof *m->nodes);
    if (kept->link_count > 0) {
        memcpy(m->links, kept->links, kept->link_count * sizeof *m->links);
    }
    m->node_count = kept->node_count;
    m->link_count = kept->link_count;
    if (m->node_slot_cap > 0) {
        memset(m->node_slots, 0, m->node_slot_cap * sizeof *m->node_slots);
    }
    m->node_slots_used = 0;
    m->closure_nodes = 1; /* the kept nodes are named like those of a closure */
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
        m->found[m->found_count++] = kept->heads[i];
    }
}

void hearth_grammar_matcher_settle(struct hearth_grammar_matcher *m, struct hearth_grammar_matcher_point *point) {
    m->work = 0;
    m->overflowed = false;
    if (m->node_count < m->settle_nodes && m->state_count < SETTLE_STATES && m->move_count < SETTLE_MOVES) {
        return;
    }
    struct kept kept = {
        .names = hearth_memory_malloc(m->node_count * sizeof *kept.names),
        .order = hearth_memory_malloc(m->node_count * sizeof *kept.order),
        .nodes = hearth_memory_malloc(m->node_count * sizeof *kept.nodes),
        .links = hearth_memory_malloc((m->link_count + 1u) * sizeof *kept.links),
        .heads = hearth_memory_malloc((m->states[point->state].count + 1u) * sizeof *kept.heads),
    };
    if (kept.names != NULL && kept.order != NULL && kept.nodes != NULL && kept.links != NULL && kept.heads != NULL) {
        settle_on(m, point->state, &kept);
        point->state = hearth_grammar_matcher_intern(m);
        m->settle_nodes = m->node_count > MATCHER_SETTLE_NODES / 2 ? m->node_count * 2 : MATCHER_SETTLE_NODES;
    }
    free(kept.names);
    free(kept.order);
    free(kept.nodes);
    free(kept.links);
    free(kept.heads);
}
