/* A grammar applied to tokens: which may come next, and where the tokens that came have led. The way into this room.
 *
 *     WAITING   lazy: anything goes, the text is watched for a trigger
 *     ACTIVE    the reply follows the grammar
 *     OFF       it was shown a token that does not follow: the grammar says no more
 *
 * An end token may come where the grammar is complete, and nowhere else. Texts of tokens are those with control tokens
 * printed, as llama.cpp's grammars see them.
 *
 *     grammar.h   tokens: masks, triggers, what came          over
 *     trigger.h   regular expressions in a growing text
 *     matcher.h   a text through the rules, byte by byte      over
 *     gbnf.h      llama.cpp's notation, read into rules
 *
 * The room knows `base` and nothing else: no engine, no JSON, no schemas. */
#ifndef HEARTH_GRAMMAR_GRAMMAR_H
#define HEARTH_GRAMMAR_GRAMMAR_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A grammar that what is sampled must follow. */
struct hearth_grammar {
    const char *text;            /* GBNF, its start rule is "root" */
    bool lazy;                   /* applies from a trigger on; until then anything goes */
    const char *const *patterns; /* triggers: regular expressions, matched against the text sampled so far; the
                                    grammar takes over at the first group, else at the start of the match */
    size_t pattern_count;
    const hearth_token *tokens; /* triggers: tokens */
    size_t token_count;
    const hearth_token *prefill; /* tokens at the end of the prompt that the grammar begins with */
    size_t prefill_count;
};

/* The tokens of a model. Any thread. */
struct hearth_grammar_tokens {
    uint32_t count;
    /* The text of a token, control tokens printed; returns its length, of which `cap` bytes are written. */
    size_t (*text)(void *user, hearth_token token, char *out, size_t cap);
    bool (*ends)(void *user, hearth_token token); /* the token ends generation */
    /* The token that `text` ("<think>") is, or -1 when it is not exactly one. */
    hearth_token (*named)(void *user, const char *text, size_t len);
    void *user;
};

/* The texts of a model's tokens, in the order of their bytes, so that texts that begin alike are looked at once. */
struct hearth_grammar_vocabulary;

/* Asks for every token; a tenth of a second for 262,144 of them. NULL: out of memory. */
struct hearth_grammar_vocabulary *hearth_grammar_vocabulary_create(const struct hearth_grammar_tokens *tokens);
void hearth_grammar_vocabulary_destroy(struct hearth_grammar_vocabulary *vocabulary); /* NULL is allowed */

/* Whether hearth_grammar_constraint_create() would take this text. Any thread. Errors: INVALID, NOMEM. */
int hearth_grammar_check(const struct hearth_grammar_tokens *tokens, const char *text, struct hearth_errmsg *msg);

struct hearth_grammar_constraint;

/* Copies what it needs of the grammar; the vocabulary must live as long. Shown the grammar's prefill at once.
 * Errors: INVALID (grammar, a trigger, a lazy grammar without triggers, a prefill that does not follow), NOMEM. */
int hearth_grammar_constraint_create(const struct hearth_grammar_vocabulary *vocabulary,
                                     const struct hearth_grammar *grammar, struct hearth_grammar_constraint **out,
                                     struct hearth_errmsg *msg);
void hearth_grammar_constraint_destroy(struct hearth_grammar_constraint *constraint); /* NULL is allowed */

/* False: anything goes (WAITING, OFF). */
bool hearth_grammar_constraint_active(const struct hearth_grammar_constraint *constraint);
/* Whether a token may come next. Only while active. */
bool hearth_grammar_constraint_allows(struct hearth_grammar_constraint *constraint, hearth_token token);
/* The same for every token: allowed[tokens.count]; returns how many may come. Only while active. */
size_t hearth_grammar_constraint_mask(struct hearth_grammar_constraint *constraint, uint8_t *allowed);
/* A token came. */
void hearth_grammar_constraint_accept(struct hearth_grammar_constraint *constraint, hearth_token token);

#endif
