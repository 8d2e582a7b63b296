/* Lines that a user types: editing and a history on a terminal, plain lines elsewhere. hearth_interrupt_catch() comes
 * first. */
#ifndef HEARTH_CONSOLE_INPUT_H
#define HEARTH_CONSOLE_INPUT_H

#include "base/buf.h"

struct hearth_input;

/* NULL: stdin is no terminal, or the terminal cannot be used. */
struct hearth_input *hearth_input_create(void);
void hearth_input_destroy(struct hearth_input *input);

enum hearth_input_line { HEARTH_INPUT_LINE, HEARTH_INPUT_DROPPED /* Ctrl-C */, HEARTH_INPUT_END };

/* The next line in place of what `out` holds, without its end, valid UTF-8. A line that ends with a backslash goes on
 * in the next one. `input` may be NULL: plain lines from stdin. */
enum hearth_input_line hearth_input_read(struct hearth_input *input, struct hearth_buf *out);

#endif
