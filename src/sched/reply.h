/* The text of a reply on its way out: pieces go in as they are sampled, what may be sent comes out.
 *
 * Held back: the bytes of an unfinished character, and text that may turn out to be the beginning of a stop string. */
#ifndef HEARTH_SCHED_REPLY_H
#define HEARTH_SCHED_REPLY_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

struct hearth_reply {
    struct hearth_buf held;
    char **stops;
    size_t stop_count;
};

/* Copies the stop strings. False: out of memory (finish it all the same). */
bool hearth_reply_init(struct hearth_reply *reply, const char *const *stops, size_t stop_count);
void hearth_reply_finish(struct hearth_reply *reply);

/* Adds a piece and appends what may be sent to `out`. When a stop string is complete the text before it is all there
 * is: `*stop` is set to it (owned by the reply), else to NULL. False: out of memory. */
bool hearth_reply_feed(struct hearth_reply *reply, const char *piece, size_t len, struct hearth_buf *out,
                       const char **stop);
/* The end: appends what was held back. False: out of memory. */
bool hearth_reply_flush(struct hearth_reply *reply, struct hearth_buf *out);

#endif
