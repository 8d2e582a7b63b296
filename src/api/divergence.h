/* Where and why a prompt left an earlier one: for the receipt, the log and GET /requests. No decision depends on it. */
#ifndef HEARTH_API_DIVERGENCE_H
#define HEARTH_API_DIVERGENCE_H

#include "api/job.h"
#include "report/report.h"
#include "session/diagnose.h"

/* Zeroed: the prompt left no earlier one. Nothing in it has to be freed. */
struct hearth_divergence {
    bool known;
    struct hearth_transcript_fork fork; /* without `said`, `then` and `stretches` */
    struct hearth_diagnosis diagnosis;
    const char *role;   /* of the message in which it differs, or NULL */
    char tool[64];      /* TOOLS: the tool that differs, or "" */
    char tool_then[64]; /* the tool that stood there before, or "" */
    enum hearth_report_tools tools;
    struct hearth_report_line lines[HEARTH_REPORT_LINES_MAX]; /* VOLATILE, EDITED */
    size_t line_count;
    bool all;              /* EDITED: hardly anything of the message is unchanged */
    bool moved;            /* EDITED: its lines are in another order */
    uint32_t fixed_tokens; /* tokens of the prompt that would be known without these lines */
    uint32_t saved_tokens; /* tokens of the prompt behind the fork that would be known without the difference */
};

/* Fills a divergence for a prompt that left an earlier one at `found`. */
void hearth_divergence_find(const struct hearth_job *job, const struct hearth_transcript_prompt *prompt,
                            const struct hearth_chat_prompt *rendered, const struct hearth_transcript_fork *found,
                            struct hearth_divergence *divergence);
/* Fills what a report says of it; false: the prompt left no earlier one. The texts belong to the divergence. */
bool hearth_divergence_report(const struct hearth_divergence *divergence, struct hearth_report_divergence *out);

#endif
