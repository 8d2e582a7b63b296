/* Trigger patterns of lazy grammars: where in a growing text a regular expression matches.
 *
 * The patterns are those of llama.cpp's templates, ECMAScript: literals, . [classes] \s \S \d \D \w \W escapes,
 * ( ) (?: ) (?= ) (?! ), |, * + ? {m,n} and their lazy forms, ^ and $ for the ends of the whole text. Bytes, not
 * characters. std::regex, which llama.cpp uses, looks at the whole text for every token and recurses with its length;
 * here the caller chooses where to look from. */
#ifndef HEARTH_GRAMMAR_TRIGGER_H
#define HEARTH_GRAMMAR_TRIGGER_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct hearth_grammar_trigger;

/* Errors: INVALID (the message shows the pattern), NOMEM. */
int hearth_grammar_trigger_create(const char *pattern, struct hearth_grammar_trigger **out, struct hearth_errmsg *msg);
void hearth_grammar_trigger_destroy(struct hearth_grammar_trigger *trigger); /* NULL is allowed */

/* The first match in `text` that begins at `from` or later. `whole`: the text begins at its true beginning, so that ^
 * can match at 0. `*start` is where the first group that is not empty begins, else where the match begins. A search
 * that takes too much work finds nothing. */
bool hearth_grammar_trigger_find(const struct hearth_grammar_trigger *trigger, const char *text, size_t len,
                                 size_t from, bool whole, size_t *start);

#endif
