/* Where and why a prompt left an earlier one: for the receipt, the log and GET /requests. No decision depends on it. */
#ifndef HEARTH_API_DIVERGENCE_H
#define HEARTH_API_DIVERGENCE_H

#include "api/job.h"
#include "report/report.h"
#include "session/diagnose.h"

/* Nothing in it has to be freed, and it stays where it is. */
struct hearth_divergence {
    struct hearth_transcript_fork fork; /* without `said`, `then` and `stretches` */
    struct hearth_diagnosis diagnosis;
    struct hearth_report_divergence report; /* what is told of it; its texts are here */
    char tool[64], tool_then[64];           /* "": none */
    struct hearth_report_line lines[HEARTH_REPORT_LINES_MAX];
};

/* Fills a divergence for a prompt that left an earlier one at `found`. */
void hearth_divergence_find(const struct hearth_job *job, const struct hearth_transcript_prompt *prompt,
                            const struct hearth_chat_prompt *rendered, const struct hearth_transcript_fork *found,
                            struct hearth_divergence *divergence);

#endif
