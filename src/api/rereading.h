/* Reading replies that a template has printed again: the formats that a history's replies were given in, whatever the
 * request that brings the history back may call, and however its own reply has to look. */
#ifndef HEARTH_API_REREADING_H
#define HEARTH_API_REREADING_H

#include "api/job.h"
#include "session/transcript.h"

/* With thinking or not, behind a result or not, three places for the reasoning, values as they are or as texts. */
#define HEARTH_REREADING_FORMATS 24

struct hearth_rereading {
    const struct hearth_job *job;
    const struct hearth_chat_request *request;
    struct hearth_chat_format *formats[HEARTH_REREADING_FORMATS]; /* NULL: not made yet, or it cannot be */
    bool tried[HEARTH_REREADING_FORMATS];
};

/* Borrows both, whose `chat` is ready. Makes the format that most replies were given in, so that this is done outside
 * of the transcripts' lock. */
void hearth_rereading_init(struct hearth_rereading *rereading, const struct hearth_job *job,
                           const struct hearth_chat_request *request);
void hearth_rereading_finish(struct hearth_rereading *rereading);

/* A hearth_transcript_reads_fn; `user` is a struct hearth_rereading. */
bool hearth_rereading_reads(void *user, const struct hearth_transcript_print *print,
                            const struct hearth_message *message);

#endif
