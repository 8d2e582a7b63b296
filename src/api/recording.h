/* The streams of GET /record: requests as a trace that `hearth replay` can read. On the loop's thread. */
#ifndef HEARTH_API_RECORDING_H
#define HEARTH_API_RECORDING_H

#include "api/internal.h"

/* Begins a stream. */
hearth_api_now_fn hearth_recording_get;
/* Tells the streams of a job that has ended, if it computed. */
void hearth_recording_add(const struct hearth_job *job);
/* Called once a second and when the server begins to stop: keeps streams open, or ends them. */
void hearth_recording_tick(struct hearth_api *api);

#endif
