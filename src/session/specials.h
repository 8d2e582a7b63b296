/* Where text may be cut for the tokenizer, and where a reply in it may end.
 *
 * Text may be tokenised in pieces, with the same result as in one go, where the tokenizer cuts whatever stands on both
 * sides: at control tokens ("<|im_end|>"). Whether that holds for a control token (some take white space along) is
 * tried out the first time that one occurs. A template with turns that end in words, not in a control token, gives no
 * such places; then text is cut between lines, if no token of the vocabulary goes on behind a line's end and
 * trying it out confirms it.
 *
 * Text of a client must not become control tokens. A guard, a byte that occurs in no UTF-8, stands within each text of
 * a special token that is a client's; there the tokenizer finds none, nor is text cut there, and what was said with
 * such a text has another place in the transcripts than what the template said. Guards stand for no text.
 *
 * Threads: any, after creation. */
#ifndef HEARTH_SESSION_SPECIALS_H
#define HEARTH_SESSION_SPECIALS_H

#include <stdbool.h>
#include <stddef.h>

struct hearth_engine;
struct hearth_tokens;
struct hearth_specials;

#define HEARTH_GUARD 0xFF

/* `turn_end`: what the template prints behind a message of the assistant, "" when that is unknown; copied.
 * `template_text`: user-defined tokens with their text in it are markup ("<tool_call>"); NULL: none is. The engine is
 * borrowed. NULL: out of memory. */
struct hearth_specials *hearth_specials_create(struct hearth_engine *engine, const char *turn_end,
                                               const char *template_text);
void hearth_specials_destroy(struct hearth_specials *specials);

/* The end of a piece that begins at `from` - 1: the first place from there on that the text may be cut at (pieces of
 * lines are not shorter than they need to be); `len` when there is none. */
size_t hearth_specials_next(struct hearth_specials *specials, const char *text, size_t len, size_t from);
/* The last place before `end` that the text may be cut at, between any lines if it is cut between lines; 0: none. */
size_t hearth_specials_last(struct hearth_specials *specials, const char *text, size_t len, size_t end);

/* True when a reply may end at `at`: a control token or the turn's end follows, or nothing. */
bool hearth_specials_ends(struct hearth_specials *specials, const char *text, size_t len, size_t at);
/* The first such place at or behind `from`. */
size_t hearth_specials_end(struct hearth_specials *specials, const char *text, size_t len, size_t from);
/* The turn's end at or behind `from`; `len` when there is none, or it is unknown. */
size_t hearth_specials_turn_end(const struct hearth_specials *specials, const char *text, size_t len, size_t from);

/* ---- guards ---- */

/* The first place at or behind `from` where the text of a control token (with `markup`: or of markup) begins, in
 * capital or small letters, or one that may go on behind the text, or with `any` where the first byte of one stands;
 * `len` when there is none. `*matched`: its length; 0: it is not complete. The text has no guards. */
size_t hearth_specials_find(const struct hearth_specials *specials, bool markup, bool any, const char *text, size_t len,
                            size_t from, size_t *matched);
/* True when a text begins as such a token goes on behind its first brackets ("|im_end|"): printed behind these it would
 * be one. With `name` it may also be a word that the token consists of but for brackets ("im_end"). */
bool hearth_specials_continues(const struct hearth_specials *specials, bool name, const char *text, size_t len);
/* True when the text of a control token, or of markup, stands on both sides of `at`. The text has no guards. */
bool hearth_specials_spans(const struct hearth_specials *specials, const char *text, size_t len, size_t at);

/* Tokenises text that may have guards, control tokens parsed where there are none. Errors: those of tokenize, NOMEM. */
int hearth_specials_tokenize(const struct hearth_specials *specials, const char *text, size_t len, bool add_special,
                             struct hearth_tokens *out);

/* Guards in a text; and takes them out, which returns the new length. */
size_t hearth_guards_count(const char *text, size_t len);
size_t hearth_guards_strip(char *text, size_t len);

#endif
