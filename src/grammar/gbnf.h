/* GBNF, llama.cpp's notation for grammars, parsed into rules.
 *
 * hearth reads and follows grammars itself (gbnf.c, matcher.c, grammar.c): a grammar comes out of a request, and
 * what llama.cpp does with some of them cannot be caught from C. `!<[5]>` behind a character throws while a token is
 * accepted, `x{5,2}` allocates until memory ends, hidden left recursion does so too, and an ambiguous rule such as
 * root ::= "a" root "b" | "a" root "c" | "a" takes time exponential in the text.
 *
 * A rule is a list of alternatives, an alternative is a run of symbols that ends with HEARTH_GRAMMAR_GBNF_END.
 * Repetitions are rewritten: x* is a rule r ::= x r | (nothing), x{2,4} is x x r2 with r2 ::= x r1 | and r1 ::= x |.
 *
 * Source: llama.cpp, grammars/README.md and src/llama-grammar.cpp. */
#ifndef HEARTH_GRAMMAR_GBNF_H
#define HEARTH_GRAMMAR_GBNF_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hearth_grammar_gbnf_kind {
    HEARTH_GRAMMAR_GBNF_END,
    HEARTH_GRAMMAR_GBNF_RULE,      /* value: a rule */
    HEARTH_GRAMMAR_GBNF_CHAR,      /* value: a code point */
    HEARTH_GRAMMAR_GBNF_SET,       /* value: a set of code points */
    HEARTH_GRAMMAR_GBNF_NOT_SET,   /* any code point outside of the set */
    HEARTH_GRAMMAR_GBNF_ANY,       /* any code point */
    HEARTH_GRAMMAR_GBNF_TOKEN,     /* value: a token */
    HEARTH_GRAMMAR_GBNF_NOT_TOKEN, /* any other token */
};

struct hearth_grammar_gbnf_symbol {
    uint32_t kind, value;
};

/* Both ends belong to it. Ranges of a set ascend and neither overlap nor touch. */
struct hearth_grammar_gbnf_range {
    uint32_t lo, hi;
};

struct hearth_grammar_gbnf_set {
    uint32_t first, count; /* ranges */
};

struct hearth_grammar_gbnf_rule {
    uint32_t first, count; /* alternatives */
    bool nullable;         /* the empty text follows it */
};

struct hearth_grammar_gbnf {
    struct hearth_grammar_gbnf_symbol *symbols;
    struct hearth_grammar_gbnf_range *ranges;
    struct hearth_grammar_gbnf_set *sets;
    struct hearth_grammar_gbnf_rule *rules;
    uint32_t *alternatives; /* index of the first symbol of each */
    uint32_t symbol_count, range_count, set_count, rule_count, alternative_count;
    uint32_t root;
};

/* The token that `text` ("<think>") is, or -1 when it is not exactly one. */
typedef hearth_token hearth_grammar_gbnf_token_fn(void *user, const char *text, size_t len);

/* Parses a grammar whose start rule is "root". `token` may be NULL: then tokens can only be named by number.
 * Any thread, when `token` may be called on any. Errors: INVALID (the message names the line), NOMEM. */
int hearth_grammar_gbnf_parse(const char *text, hearth_grammar_gbnf_token_fn *token, void *user,
                              struct hearth_grammar_gbnf **out, struct hearth_errmsg *msg);
void hearth_grammar_gbnf_destroy(struct hearth_grammar_gbnf *gbnf); /* NULL is allowed */

#endif
