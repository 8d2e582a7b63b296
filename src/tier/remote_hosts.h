/* The hosts in a cluster's URL, and which slot of a cluster a block is in. */
#ifndef HEARTH_TIER_REMOTE_HOSTS_H
#define HEARTH_TIER_REMOTE_HOSTS_H

#include "base/digest.h"
#include "base/err.h"

#define HEARTH_REMOTE_SLOTS 16384
#define HEARTH_REMOTE_NODES_MAX 64
#define HEARTH_REMOTE_WHERE_BYTES 192 /* host:port, with brackets around an IPv6 address */

struct hearth_remote_hosts {
    char *prefix; /* of a host's URL: scheme://user:password@ */
    char **hosts; /* host:port */
    size_t n;
};

/* Whether a URL names several hosts. */
bool hearth_remote_hosts_several(const char *url);
/* Whether it names one that may be of a cluster: no file, and no database. */
bool hearth_remote_hosts_seed(const char *url);
/* The numeric address of a host, of several the one whose turn it is. How many there are; 0: the name is not known. */
unsigned hearth_remote_numeric(const char *host, unsigned turn, char out[HEARTH_REMOTE_WHERE_BYTES]);
/* Errors: INVALID, NOMEM, with one line in `msg` that does not show a password. */
int hearth_remote_hosts_parse(const char *url, struct hearth_remote_hosts *out, struct hearth_errmsg *msg);
void hearth_remote_hosts_finish(struct hearth_remote_hosts *hosts); /* wipes the password */
/* The URL of one host, in the list or not; the caller frees it. NULL: out of memory. */
char *hearth_remote_hosts_url(const struct hearth_remote_hosts *hosts, const char *where);

/* Prints host:port of a node as another node names it; an empty host means the host of `asked`, the node that says so.
 */
void hearth_remote_where(const char *host, int port, const char *asked, char where[HEARTH_REMOTE_WHERE_BYTES]);
/* The slot of all values of a block. */
int hearth_remote_slot(struct hearth_digest base);

#endif
