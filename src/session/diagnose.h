/* Why a prompt left what was known: which message, which field of the request, and what happened to it. */
#ifndef HEARTH_SESSION_DIAGNOSE_H
#define HEARTH_SESSION_DIAGNOSE_H

#include "session/line_change.h"
#include "session/transcript.h"

#define HEARTH_CAUSE_TABLE(X)                                                                                      \
    X(EDITED, "edited", "this message said something else before")                                                 \
    X(REPRINTED, "reprinted", "the arguments of this message's calls say the same, written in another way")        \
    X(COMPACTED, "compacted", "a summary stands where messages of the conversation stood")                         \
    X(TRUNCATED, "truncated", "messages that came next are gone from the end")                                     \
    X(DROPPED, "dropped", "messages that came next are gone")                                                      \
    X(INSERTED, "inserted", "messages have come in before one that was known")                                     \
    X(MOVED, "moved", "messages stand in another order")                                                           \
    X(TOOLS, "tools_changed", "the tools are not those of the earlier request")                                    \
    X(ARGUMENTS, "template_arguments_changed", "the template's arguments are not those of the earlier request")    \
    X(VOLATILE, "volatile_line", "one line of the system text has changed: --strip-line takes such lines out")     \
    X(RENDERED, "rendered_differently", "the messages say the same, but the template prints them differently now") \
    X(OTHER, "other_conversation", "only its beginning is shared with an earlier prompt")

enum hearth_cause {
#define X(name, text, help) HEARTH_CAUSE_##name,
    HEARTH_CAUSE_TABLE(X)
#undef X
};

const char *hearth_cause_text(enum hearth_cause cause);
const char *hearth_cause_help(enum hearth_cause cause);

struct hearth_diagnosis {
    enum hearth_cause cause;
    bool own;          /* the earlier prompt is one of the same conversation */
    int32_t message;   /* index of the first message that differs; -1: none does (tools), or unknown */
    const char *field; /* "system", "content", "tool_calls", "role", "tools", "template_arguments", "messages" */
};

/* Threads: pure. `fork` is known. */
void hearth_diagnose(const struct hearth_transcript_fork *fork, const struct hearth_transcript_prompt *prompt,
                     struct hearth_diagnosis *diagnosis);

/* The lines in which a prompt differs from the earlier one, from where it left that; 0: more than lines differ. `*then`
 * is the text into which changes point besides the prompt; the caller frees it. */
size_t hearth_diagnose_lines(const struct hearth_transcript_fork *fork, const struct hearth_transcript_prompt *prompt,
                             struct hearth_line_change changes[HEARTH_LINE_CHANGES_MAX], char **then);

#endif
