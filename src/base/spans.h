/* Spans: what took from when to when, written into a file that Perfetto and chrome://tracing open (--trace).
 *
 * One file serves the process. Putting a span copies it into a ring of a fixed size under a mutex that is held for that
 * copy alone; a thread formats and writes. When the ring is full spans are dropped, counted, and that is said in the
 * file and in the log. Times are those of hearth_clock_us(). With no file everything here costs one load.
 *
 * A track is a row of the viewer. Spans of one track lie inside each other or beside each other. What overlaps is put
 * with an id (`id`): spans of one id have rows of their own.
 *
 * Threads: any, but start and stop, which are the main thread's.
 * Source: "Trace Event Format" of Chrome's tracing; the form is the JSON array. */
#ifndef HEARTH_BASE_SPANS_H
#define HEARTH_BASE_SPANS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define HEARTH_SPAN_ARGS 4

/* Tracks that are always there; lane i has HEARTH_TRACK_LANES + i. */
enum hearth_track { HEARTH_TRACK_SERVICE = 1, HEARTH_TRACK_DISK = 2, HEARTH_TRACK_LANES = 16 };

struct hearth_span {
    int track;
    const char *name;     /* static, letters and blanks */
    const char *category; /* likewise; with an id only */
    char id[32];          /* letters, digits, '_'; "": the span belongs to its track */
    int64_t begun_us, ended_us;
    struct {
        const char *name; /* static; NULL: there are no more */
        int64_t value;
    } args[HEARTH_SPAN_ARGS];
    char *json; /* more members of args, as JSON without braces; owned, malloc'ed; NULL: none */
};

/* Begins an empty file, which is taken over, with names for the tracks of so many lanes. A file that would become
 * larger than `limit_bytes` is emptied and begun again; a pipe is not. Errors: IO (it cannot be written), NOMEM, with a
 * line. */
int hearth_spans_start(int fd, uint32_t lanes, uint64_t limit_bytes, struct hearth_errmsg *msg);
/* Writes what is left and ends the file. */
void hearth_spans_stop(void);
/* Whether there is a file: what is only for spans need not be found out otherwise. */
bool hearth_spans_on(void);
/* Takes a copy, and `json`. */
void hearth_span_put(const struct hearth_span *span);

#endif
