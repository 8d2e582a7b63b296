/* A request's own copy of everything it points to. */
#ifndef HEARTH_SCHED_COPY_H
#define HEARTH_SCHED_COPY_H

#include "sched/service.h"

/* Copies a request into `*copy`. Its pointers lead into one block, which is returned: the caller frees that with
 * free(). Prompt, marks, pins and stop strings are left out (NULL in the copy). NULL: out of memory. */
void *hearth_request_copy(const struct hearth_request *request, struct hearth_request *copy);

#endif
