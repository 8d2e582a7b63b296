/* The streams of GET /record: what was asked for, as a trace that `hearth replay` can read. The loop's thread. */
#ifndef HEARTH_API_RECORDING_H
#define HEARTH_API_RECORDING_H

#include "api/internal.h"

/* Begins a stream. */
void hearth_recording_get(struct hearth_api *api, struct hearth_http_exchange *exchange);
/* A job is over: tells the streams, if it computed. */
void hearth_recording_add(const struct hearth_job *job);
/* Once a second, and when the server begins to end: keeps streams open, or ends them. */
void hearth_recording_tick(struct hearth_api *api);

#endif
