/* Two texts that differ in some lines: which lines these are, and how far both go on alike between and behind them. */
#ifndef HEARTH_SESSION_LINE_CHANGE_H
#define HEARTH_SESSION_LINE_CHANGE_H

#include <stdbool.h>
#include <stddef.h>

#define HEARTH_LINE_CHANGES_MAX 8
#define HEARTH_LINE_ALIKE 16     /* bytes that both have behind a line, or it is not the line that differs */
#define HEARTH_LINE_ROW 24       /* lines in a row that may differ, of both texts together */
#define HEARTH_LINE_ROW_ALIKE 64 /* bytes that both have behind these */

/* A line in either text, or some in a row, without the end; NULL: not in that one (it came in, or was taken out). */
struct hearth_line_change {
    const char *then, *now;
    size_t then_len, now_len;
    const char *behind; /* in the newer text, what follows it */
    size_t alike;       /* bytes behind it that both have, to the next line that differs or the end */
};

/* Both texts begin at the beginning of a line, and differ in it. Fills the first changes and returns how many they are;
 * 0: more differs than a line. Threads: pure. */
size_t hearth_line_changes(const char *then, size_t then_len, const char *now, size_t now_len,
                           struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX]);

#endif
