/* How urgent a request is, and until when. */
#ifndef HEARTH_API_URGENCY_H
#define HEARTH_API_URGENCY_H

#include "api/job.h"

/* On the loop: stores the headers that hearth_urgency_read() will read. */
void hearth_urgency_take_headers(struct hearth_job *job, const struct hearth_http_exchange *exchange);
/* On a worker, before the rest of the body is read: reads priority, service_tier, deadline_ms, speculate,
 * return_progress and the headers. */
bool hearth_urgency_read(struct hearth_job *job, const json_t *body);
/* The time left until the request's or the server's deadline; 0: there is none. False: it has passed. */
bool hearth_urgency_left(struct hearth_job *job, int64_t *left_us, struct hearth_api_error *error);
/* Fills the error of a deadline that has passed. Returns false. */
bool hearth_urgency_fail_late(const struct hearth_job *job, struct hearth_api_error *error);

#endif
