/* Two texts that differ in some lines: which lines, and how far the texts agree between and behind them. */
#ifndef HEARTH_SESSION_LINE_CHANGE_H
#define HEARTH_SESSION_LINE_CHANGE_H

#include <stdbool.h>
#include <stddef.h>

#define HEARTH_LINE_CHANGES_MAX 8
#define HEARTH_LINE_ALIKE 16     /* so many bytes must agree behind a differing line */
#define HEARTH_LINE_ROW 24       /* most differing lines in a row, of both texts together */
#define HEARTH_LINE_ROW_ALIKE 64 /* so many bytes must agree behind such a row */

/* A line, or some in a row, in either text, without the line's end; NULL: that text does not have it. */
struct hearth_line_change {
    const char *then, *now;
    size_t then_len, now_len;
    const char *behind; /* the text behind it, in the newer text */
    size_t alike;       /* bytes behind it that agree, up to the next difference or the end */
};

/* Both texts begin at the beginning of a line, and differ in it. Fills the first changes and returns how many they are;
 * 0: more differs than a line. Threads: pure. */
size_t hearth_line_changes(const char *then, size_t then_len, const char *now, size_t now_len,
                           struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX]);

#endif
