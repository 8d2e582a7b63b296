/* The text of a reply before it is sent: sampled pieces go in, text that may be sent comes out.
 *
 * Held back are the bytes of an unfinished character and text that may be the beginning of a stop string. */
#ifndef HEARTH_SCHED_REPLY_H
#define HEARTH_SCHED_REPLY_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Zeroed: without stop strings. */
struct hearth_reply {
    struct hearth_buf held;
    const char *const *stops; /* borrowed */
    size_t stop_count;
};

void hearth_reply_finish(struct hearth_reply *reply);

/* Adds a piece and appends to `out` what may be sent. If a stop string is complete, the text in front of it is the
 * last, and `*stop` is that string; else `*stop` is NULL. False: out of memory. */
bool hearth_reply_feed(struct hearth_reply *reply, const char *piece, size_t len, struct hearth_buf *out,
                       const char **stop);
/* Appends what is still held back, at the end of the reply. False: out of memory. */
bool hearth_reply_flush(struct hearth_reply *reply, struct hearth_buf *out);

#endif
