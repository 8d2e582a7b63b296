/* The streams of GET /events. On the loop's thread. */
#ifndef HEARTH_API_FEED_H
#define HEARTH_API_FEED_H

#include "api/internal.h"

/* Begins a stream. */
hearth_api_now_fn hearth_feed_get;
/* Called once a second and when the server begins to stop: tells what has changed, or ends the streams. */
void hearth_feed_tick(struct hearth_api *api);

/* Called once a second: adds what counters have gained to the present minute. */
void hearth_feed_count(struct hearth_api *api);
/* GET /trends: the last hour, minute by minute. */
hearth_api_get_fn hearth_feed_trends_get;

#endif
