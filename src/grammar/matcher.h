/* Following a grammar through a text, code point by code point.
 *
 * Where a text stands in a grammar is a set of (symbol, stack) pairs. Stacks share their lower parts (a graph of return
 * addresses), and two ways that lead to the same return address meet in one node, so that an ambiguous grammar costs
 * polynomial time and memory where separate stacks would cost exponential. Left recursion is a cycle in that graph.
 *
 * Such a set is a *state*: a number, the same for the same set. States and the transitions between them are kept as
 * they are met; most of a JSON text runs through a few dozen of them, which is what makes looking at every token of a
 * vocabulary cheap.
 *
 * Source: the graph-structured stack of generalised LR and LL parsing (Tomita 1985; Scott and Johnstone, "GLL
 * Parsing", 2010). */
#ifndef HEARTH_GRAMMAR_MATCHER_H
#define HEARTH_GRAMMAR_MATCHER_H

#include "grammar/gbnf.h"

struct hearth_grammar_matcher;

#define HEARTH_GRAMMAR_MATCHER_DEAD 0u /* the state of a text that does not follow the grammar */

/* A place in a text, as bytes: a state, and the bytes of a character that is not whole yet. */
struct hearth_grammar_matcher_point {
    uint32_t state;
    uint32_t code;        /* the bits so far */
    uint8_t left, length; /* bytes missing, bytes of the whole character */
};

/* Takes the grammar, in every case. One thread at a time. Errors: INVALID (no text follows the grammar), NOMEM. */
int hearth_grammar_matcher_create(struct hearth_grammar_gbnf *gbnf, struct hearth_grammar_matcher **out,
                                  struct hearth_errmsg *msg);
void hearth_grammar_matcher_destroy(struct hearth_grammar_matcher *matcher); /* NULL is allowed */

/* The place before the text; to be taken before the first hearth_grammar_matcher_compact(). */
struct hearth_grammar_matcher_point hearth_grammar_matcher_start(const struct hearth_grammar_matcher *matcher);

/* One more byte; false (and the point is dead) when the grammar has no such text. Also false when the work since the
 * last hearth_grammar_matcher_compact() has become too much, or memory ran out: see
 * hearth_grammar_matcher_overflowed().
 */
bool hearth_grammar_matcher_byte(struct hearth_grammar_matcher *matcher, struct hearth_grammar_matcher_point *point,
                                 uint8_t byte);
/* The state behind a token that the grammar names as a token, or DEAD. */
uint32_t hearth_grammar_matcher_token(struct hearth_grammar_matcher *matcher, uint32_t state, hearth_token token);
/* The union of two states. */
uint32_t hearth_grammar_matcher_union(struct hearth_grammar_matcher *matcher, uint32_t a, uint32_t b);
/* Whether the text may end here. */
bool hearth_grammar_matcher_complete(const struct hearth_grammar_matcher *matcher,
                                     const struct hearth_grammar_matcher_point *point);
/* Whether the grammar names tokens here. */
bool hearth_grammar_matcher_names_tokens(const struct hearth_grammar_matcher *matcher, uint32_t state);

/* Forgets states when there are many; `point` is the one to keep, and is renamed. Restores the allowance of work. */
void hearth_grammar_matcher_compact(struct hearth_grammar_matcher *matcher, struct hearth_grammar_matcher_point *point);
bool hearth_grammar_matcher_overflowed(const struct hearth_grammar_matcher *matcher);

#endif
