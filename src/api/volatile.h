/* Lines of the system text that change from request to request, and how to have them taken out. */
#ifndef HEARTH_API_VOLATILE_H
#define HEARTH_API_VOLATILE_H

#include "chat/chat.h"
#include "report/report.h"
#include "session/diagnose.h"
#include "session/line_change.h"

/* A regular expression for --strip-line (POSIX, extended) that matches a line, then and now, and no other line of the
 * request's system text; it can stand in single quotes. False: there is none that says enough. Threads: pure. */
bool hearth_volatile_pattern(const struct hearth_line_change *change, const struct hearth_chat_request *request,
                             char *out, size_t cap);

/* The lines that differ where a prompt left an earlier one, as far as they stand in the system text. Returns how many;
 * `*fixed_bytes`: of the prompt, that would have been known without them. */
size_t hearth_volatile_find(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                            const struct hearth_chat_request *request,
                            struct hearth_report_line lines[HEARTH_REPORT_LINES_MAX], size_t *fixed_bytes);

#endif
