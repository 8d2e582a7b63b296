/* What the files of `hearth top` share; nobody else includes it.
 *
 *     top.c         the command line, and one frame after the other
 *     top_read.c    asks the server
 *     top_show.c    a frame, as text and as JSON */
#ifndef HEARTH_CLI_TOP_INTERNAL_H
#define HEARTH_CLI_TOP_INTERNAL_H

#include "cli/chat_internal.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* What the server said at one moment. Another version of it, or another server, may say less: every part may be NULL,
 * and every member of a part may be missing. Owned. */
struct top_sample {
    int64_t at_us;   /* hearth_clock_us() */
    json_t *props;   /* object */
    json_t *health;  /* object */
    json_t *slots;   /* array */
    json_t *queue;   /* object */
    json_t *metrics; /* object: samples without labels, name to number */
};

void hearth_top_sample_finish(struct top_sample *sample);
/* DONE, STOPPED by Ctrl-C, or FAILED after one line on stderr: the server is not there, does not let us in, or is none
 * of ours. */
enum chat_outcome hearth_top_read(struct chat_client *client, struct top_sample *out);

/* A frame. `before`: an earlier sample, from which what has happened since then is told; NULL: there is none. */
void hearth_top_print(FILE *out, const char *url, const struct top_sample *before, const struct top_sample *now);
/* The same for programs. NULL: out of memory. The caller's reference. */
json_t *hearth_top_json(const char *url, const struct top_sample *before, const struct top_sample *now);

#endif
