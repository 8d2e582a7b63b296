/* A grammar applied to tokens: which may come next, and where the tokens that came have led.
 *
 *     WAITING   lazy: anything goes, the text is watched for a trigger
 *     ACTIVE    the reply follows the grammar
 *     OFF       it was shown a token that does not follow: the grammar says no more
 *
 * An end token may come where the grammar is complete, and nowhere else. Texts of tokens are those with control tokens
 * printed, as llama.cpp's grammars see them. */
#ifndef HEARTH_ENGINE_CONSTRAINT_H
#define HEARTH_ENGINE_CONSTRAINT_H

#include "engine/engine.h"

/* The texts of an engine's tokens, in the order of their bytes, so that texts that begin alike are looked at once. */
struct hearth_vocabulary;

/* Asks the engine for every token; a tenth of a second for 262,144 of them. NULL: out of memory. */
struct hearth_vocabulary *hearth_vocabulary_create(struct hearth_engine *engine);
void hearth_vocabulary_destroy(struct hearth_vocabulary *vocabulary); /* NULL is allowed */

struct hearth_constraint;

/* Whether hearth_constraint_create() would take this text. Any thread. Errors: INVALID, NOMEM. */
int hearth_constraint_check(struct hearth_engine *engine, const char *text, struct hearth_errmsg *msg);

/* Copies what it needs of the grammar; the vocabulary must live as long. Shown the grammar's prefill at once.
 * Errors: INVALID (grammar, a trigger, a lazy grammar without triggers, a prefill that does not follow), NOMEM. */
int hearth_constraint_create(struct hearth_engine *engine, const struct hearth_vocabulary *vocabulary,
                             const struct hearth_grammar *grammar, struct hearth_constraint **out,
                             struct hearth_errmsg *msg);
void hearth_constraint_destroy(struct hearth_constraint *constraint); /* NULL is allowed */

/* False: anything goes (WAITING, OFF). */
bool hearth_constraint_active(const struct hearth_constraint *constraint);
/* Whether a token may come next. Only while active. */
bool hearth_constraint_allows(struct hearth_constraint *constraint, hearth_token token);
/* The same for every token: allowed[caps.vocab_tokens]; returns how many may come. Only while active. */
size_t hearth_constraint_mask(struct hearth_constraint *constraint, uint8_t *allowed);
/* A token came. */
void hearth_constraint_accept(struct hearth_constraint *constraint, hearth_token token);

#endif
