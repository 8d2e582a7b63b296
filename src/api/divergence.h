/* Where and why a prompt left an earlier one: for the receipt, the log and GET /requests. Nothing is decided by it. */
#ifndef HEARTH_API_DIVERGENCE_H
#define HEARTH_API_DIVERGENCE_H

#include "api/job.h"
#include "report/report.h"
#include "session/diagnose.h"

/* Zeroed: the prompt left none. Nothing in it has to be freed. */
struct hearth_divergence {
    bool known;
    struct hearth_transcript_fork fork; /* without `said`, `then` and `stretches` */
    struct hearth_diagnosis diagnosis;
    const char *role;   /* of the message in which it differs, or NULL */
    char tool[64];      /* TOOLS: the one in which it differs, or "" */
    char tool_then[64]; /* the one that stood there, or "" */
    enum hearth_report_tools tools;
    struct hearth_report_line lines[HEARTH_REPORT_LINES_MAX]; /* VOLATILE, EDITED */
    size_t line_count;
    bool all;              /* EDITED: next to nothing of the message is as it was */
    bool moved;            /* EDITED: its lines stand in another order */
    uint32_t fixed_tokens; /* of the prompt, that would be known without these lines */
    uint32_t saved_tokens; /* of the prompt behind the fork, that would be known but for the difference */
};

/* Fills a divergence for a prompt that left an earlier one at `found`. */
void hearth_divergence_find(const struct hearth_job *job, const struct hearth_transcript_prompt *prompt,
                            const struct hearth_chat_prompt *rendered, const struct hearth_transcript_fork *found,
                            struct hearth_divergence *divergence);
/* What a report says of it; false: the prompt left none. Texts stay the divergence's. */
bool hearth_divergence_report(const struct hearth_divergence *divergence, struct hearth_report_divergence *out);

#endif
