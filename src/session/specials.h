/* Where text may be cut for the tokenizer, and where a reply in it may end.
 *
 * Text may be tokenised in pieces, with the same result as in one go, where the tokenizer cuts whatever stands on both
 * sides: at control tokens ("<|im_end|>"). Whether that holds for a control token (some take white space along) is
 * tried out the first time one is met. A template whose turns end in words that are no control token of the vocabulary
 * gives no such places; then text is cut between lines, if no token of the vocabulary goes on behind a line's end and
 * trying it out confirms it.
 *
 * Threads: any, after creation. */
#ifndef HEARTH_SESSION_SPECIALS_H
#define HEARTH_SESSION_SPECIALS_H

#include "engine/engine.h"

struct hearth_specials;

/* `turn_end`: what the template prints behind a message of the assistant, "" when that is unknown; copied. The engine
 * is borrowed. NULL: out of memory. */
struct hearth_specials *hearth_specials_create(struct hearth_engine *engine, const char *turn_end);
void hearth_specials_destroy(struct hearth_specials *specials);

/* The end of a piece that begins at `from` - 1: the first place from there on that the text may be cut at (pieces of
 * lines are not shorter than they need to be); `len` when there is none. */
size_t hearth_specials_next(struct hearth_specials *specials, const char *text, size_t len, size_t from);

/* True when a reply may end at `at`: a control token or the turn's end follows, or nothing. */
bool hearth_specials_ends(struct hearth_specials *specials, const char *text, size_t len, size_t at);
/* The first such place at or behind `from`. */
size_t hearth_specials_end(struct hearth_specials *specials, const char *text, size_t len, size_t from);
/* The turn's end at or behind `from`; `len` when there is none, or it is unknown. */
size_t hearth_specials_turn_end(const struct hearth_specials *specials, const char *text, size_t len, size_t from);

#endif
