/* Parses replies that a template has printed again, with the formats in which the history's replies were given,
 * whatever tools the present request offers and whatever form its own reply has. */
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

/* Borrows both; their `chat` is ready. Makes the most frequent format now, outside of the transcripts' lock. */
void hearth_rereading_init(struct hearth_rereading *rereading, const struct hearth_job *job,
                           const struct hearth_chat_request *request);
void hearth_rereading_finish(struct hearth_rereading *rereading);

/* A hearth_transcript_reads_fn; `user` is a struct hearth_rereading. */
bool hearth_rereading_reads(void *user, const struct hearth_transcript_print *print,
                            const struct hearth_message *message);

#endif
