/* Lines and paragraphs of system text that change without meaning anything to the model: they are taken out before
 * anything else sees them. */
#ifndef HEARTH_API_STRIP_H
#define HEARTH_API_STRIP_H

#include "base/err.h"

#include <regex.h>
#include <stddef.h>

struct hearth_strip {
    regex_t *patterns; /* of lines, and behind these of first lines of paragraphs */
    size_t line_count, count;
};

/* Regular expressions are POSIX, extended. Owns: finish frees what is in it, also after a failure. Errors: INVALID,
 * NOMEM. */
int hearth_strip_init(struct hearth_strip *strip, const char *const *lines, size_t line_count,
                      const char *const *paragraphs, size_t paragraph_count, struct hearth_errmsg *msg);
void hearth_strip_finish(struct hearth_strip *strip);

/* Takes out of a text of `*len` bytes and a NUL, with their newlines: the lines that match; what begins with a line
 * that matches, up to the next empty line, which stays; and the billing line that Claude Code writes. Of a line with a
 * NUL in it only what stands before that is matched. Threads: pure. */
void hearth_strip_text(const struct hearth_strip *strip, char *text, size_t *len);

#endif
