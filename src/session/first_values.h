/* JSON values as they first came. A client may write an equal value with its keys in another order, after a restart of
 * its own for example; a template would print another text. The first one stands for all of them. Kept apart by salt:
 * an order of keys tells no tenant what another one has sent. Bounded by bytes; what was unused for longest goes first.
 * Threads: any; what was handed out is shared and must not be changed. */
#ifndef HEARTH_SESSION_FIRST_VALUES_H
#define HEARTH_SESSION_FIRST_VALUES_H

#include "base/digest.h"

#include <jansson.h>
#include <stddef.h>

struct hearth_first_values;

/* NULL: out of memory. */
struct hearth_first_values *hearth_first_values_create(size_t budget_bytes);
void hearth_first_values_destroy(struct hearth_first_values *values); /* NULL is allowed */

/* A new reference to the first value that was equal to this one, which is remembered if there was none. */
json_t *hearth_first_values_get(struct hearth_first_values *values, struct hearth_digest salt, json_t *value);

#endif
