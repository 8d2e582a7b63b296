/* Lines of the system text that change from request to request, and how to have them taken out; the line in which
 * another message changed. */
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

/* The same for --strip-paragraph: of a list below a heading, which has changed; what is left of the text is the same,
 * then and now. `text` begins the prompt that the change points into. */
bool hearth_volatile_paragraph(const char *text, const struct hearth_line_change *change,
                               const struct hearth_chat_request *request, char *out, size_t cap);

/* Whether two lines differ only in their numbers. */
bool hearth_volatile_only_numbers(const char *then, const char *now);

/* The lines that differ where a prompt left an earlier one, as far as they stand in the system text. Returns how many;
 * `*fixed_bytes`: of the prompt, that would have been known without them. */
size_t hearth_volatile_find(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                            const struct hearth_chat_request *request,
                            struct hearth_report_line lines[HEARTH_REPORT_LINES_MAX], size_t *fixed_bytes);

/* Whether hardly anything of a message is unchanged: another text stands in its place. */
bool hearth_volatile_all(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                         const struct hearth_message *message, const struct hearth_specials *specials);

/* Whether lines stand in another order: where the texts part, each has a line that the other one has further on. */
bool hearth_volatile_moved(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork);

/* Fills `line` with the line in which a message has changed, without a number where the message has no other line.
 * Returns 1; 0: the change is not in the message's text. */
size_t hearth_volatile_edited(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                              const struct hearth_message *message, const struct hearth_specials *specials,
                              struct hearth_report_line *line);

/* Text around the place where a prompt left an earlier one, then and now: some words in front of it, and on to the end
 * of a JSON string or a line. */
void hearth_volatile_around(const struct hearth_transcript_prompt *prompt, const struct hearth_transcript_fork *fork,
                            struct hearth_report_line *line);

#endif
