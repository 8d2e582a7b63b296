/* Where a tokenizer cuts, whatever stands on both sides: at control tokens ("<|im_end|>") in the text.
 *
 * Text may be tokenised in pieces that begin at such a place, with the same result as in one go. Whether that holds for
 * a control token (some take white space along) is tried out the first time one is met.
 *
 * Threads: any, after creation. */
#ifndef HEARTH_SESSION_SPECIALS_H
#define HEARTH_SESSION_SPECIALS_H

#include "engine/engine.h"

struct hearth_specials;

/* NULL: out of memory. The engine is borrowed. */
struct hearth_specials *hearth_specials_create(struct hearth_engine *engine);
void hearth_specials_destroy(struct hearth_specials *specials);

/* Offset of the first control token at or behind `from` that the text may be cut at; `len` when there is none. */
size_t hearth_specials_next(struct hearth_specials *specials, const char *text, size_t len, size_t from);

/* True when the text may be cut at `at`: a control token begins there, or the text ends. */
bool hearth_specials_at(struct hearth_specials *specials, const char *text, size_t len, size_t at);

#endif
