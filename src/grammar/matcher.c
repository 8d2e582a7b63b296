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
 * is to collect them. What becomes of nodes and states then: matcher_state.c. */
#include "grammar/matcher_parts.h"

#include "base/memory.h"

#include <stdlib.h>

#define TOKEN_KEY 0x80000000u /* in a move's key: a token, not a code point */

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
            uint32_t at = (uint32_t)hearth_grammar_matcher_mix(m->visits[i].head) & (cap - 1);
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
    uint32_t at = (uint32_t)hearth_grammar_matcher_mix(head) & (m->visit_cap - 1);
    for (; m->visits[at].closure == m->closure; at = (at + 1) & (m->visit_cap - 1)) {
        if (m->visits[at].head == head) {
            return true;
        }
    }
    if (!hearth_grammar_matcher_spend(m, MATCHER_VISIT_WORK) ||
        !hearth_grammar_matcher_grow(m, (void **)&m->todo, &m->todo_cap, m->todo_count, sizeof *m->todo)) {
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
        if (!hearth_grammar_matcher_grow(m, (void **)&m->nodes, &m->node_cap, m->node_count, sizeof *m->nodes)) {
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
        if (!hearth_grammar_matcher_spend(m, 1)) {
            return MATCHER_NONE;
        }
    }
    if (!hearth_grammar_matcher_grow(m, (void **)&m->links, &m->link_cap, m->link_count, sizeof *m->links)) {
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
            ok = hearth_grammar_matcher_grow(m, (void **)&m->found, &m->found_cap, m->found_count, sizeof *m->found);
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
            uint32_t at = (uint32_t)hearth_grammar_matcher_mix(m->moves[i].key) & (cap - 1);
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
    uint32_t at = (uint32_t)hearth_grammar_matcher_mix(key) & (m->move_cap - 1);
    for (; m->moves[at].key != 0; at = (at + 1) & (m->move_cap - 1)) {
        if (m->moves[at].key == key) {
            return m->moves[at].state;
        }
    }
    closure_begin(m);
    bool ok = hearth_grammar_matcher_spend(m, state.count);
    for (uint32_t i = 0; ok && i < state.count; i++) {
        uint64_t head = m->heads[state.first + i];
        if (matches(m->gbnf, (uint32_t)(head >> 32), what)) {
            ok = reach(m, (uint32_t)(head >> 32) + 1, (uint32_t)head);
        }
    }
    ok = ok && closure(m);
    uint32_t to = ok ? hearth_grammar_matcher_intern(m) : HEARTH_GRAMMAR_MATCHER_DEAD;
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
    if (!hearth_grammar_matcher_spend(m, state->count)) {
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
    return ok && closure(m) ? hearth_grammar_matcher_intern(m) : HEARTH_GRAMMAR_MATCHER_DEAD;
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
    m->settle_nodes = MATCHER_SETTLE_NODES;
    m->node_of = hearth_memory_calloc(gbnf->symbol_count, sizeof *m->node_of);
    m->node_of_closure = hearth_memory_calloc(gbnf->symbol_count, sizeof *m->node_of_closure);
    bool ok = m->node_of != NULL && m->node_of_closure != NULL &&
              hearth_grammar_matcher_grow(m, (void **)&m->nodes, &m->node_cap, 0, sizeof *m->nodes) &&
              hearth_grammar_matcher_grow(m, (void **)&m->states, &m->state_cap, 0, sizeof *m->states);
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
    m->start = ok ? hearth_grammar_matcher_intern(m) : HEARTH_GRAMMAR_MATCHER_DEAD;
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
