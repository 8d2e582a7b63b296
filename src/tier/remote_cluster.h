/* The remote tier over the hosts of a Redis or Valkey cluster. */
#ifndef HEARTH_TIER_REMOTE_CLUSTER_H
#define HEARTH_TIER_REMOTE_CLUSTER_H

#include "tier/remote.h"

/* Whether a URL is that of a cluster: it names several hosts, or one that says so now. */
bool hearth_remote_cluster_at(const struct hearth_remote_params *params);
/* As hearth_remote_create(), with `url` redis://[[user]:password@]host[:port],host[:port],… (or rediss://): some of the
 * cluster's nodes, which name the others; one is enough. Each node is a tier of its own with two threads. */
int hearth_remote_cluster_create(const struct hearth_remote_params *params, struct hearth_backing **out,
                                 struct hearth_errmsg *msg);

/* Adds the ports of the hosts in the URL to `ports`, which has `*n` of at most `most`. Errors: INVALID, NOMEM. */
int hearth_remote_cluster_ports(const char *url, uint16_t *ports, size_t most, size_t *n, struct hearth_errmsg *msg);

#endif
