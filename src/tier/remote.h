/* The remote tier: a backing tier on Redis or Valkey, which several boxes share. Layout and failures: docs/cluster.md.
 *
 * Nothing is scanned. What a prompt may resume from is asked for when the prompt comes (seek): the digests of its
 * blocks go out in one round trip, and what hangs on them arrives as FOUND. The store may lose any value at any time
 * (its maxmemory policy, an expiry, another box): that is a miss. It is not trusted: a value is the bytes of a file of
 * the disk tier (tier/format.h), verified and, with a key, opened before it is used. */
#ifndef HEARTH_TIER_REMOTE_H
#define HEARTH_TIER_REMOTE_H

#include "tier/backing.h"

struct remote_op;

/* Another node of a cluster that has a value, as the asked node says. */
struct hearth_remote_moved {
    int slot;
    const char *host; /* empty: the asked node's own host */
    int port;
    bool asks; /* the slot is moving there: what the asked node lacks is asked for there, with ASKING */
};

/* What a node's tier needs of its cluster. Any thread; these functions must not call the tier. */
struct hearth_remote_cluster {
    void *user;
    /* The map is old: a value is elsewhere, or (NULL) the node fails, or works again; what that does to /health is the
     * cluster's. `asked`: the host of the node that says so. */
    void (*changed)(void *user, const struct hearth_remote_moved *moved, const char *asked);
    /* Whether ASKING must precede commands on the block. */
    bool (*asks)(void *user, struct hearth_digest base);
    /* Gives an operation on a block to the node that has it now, with hearth_remote_take_over(). False: no other one
     * is known to have it. */
    bool (*pass)(void *user, struct remote_op *op, struct hearth_digest base, const struct hearth_backing *from);
};

struct hearth_remote_params {
    const char *url; /* redis://[[user]:password@]host[:port][/db], rediss://… (TLS), unix://PATH[?db=N] */
    struct hearth_digest fingerprint; /* of the engine: with page_tokens it begins every name in the store */
    int32_t page_tokens;
    const char *key_file; /* what is stored is sealed with it; NULL: in the clear */
    const char *ca_file;  /* rediss://: certificates to trust; NULL: the system's */
    bool compress;        /* zstd */
    int64_t ttl_s;        /* a value expires so many seconds after its last use */
    int64_t timeout_us;   /* a store that owes an answer for so long is treated as gone */
    uint64_t state_bytes; /* no item's state is longer: a larger length is not believed; 0: unknown */
    uint64_t queue_bytes; /* most bytes that wait to be written; 0: 512 MiB */
    size_t known_bytes;   /* most memory for names of what the store has; 0: 64 MiB */
    const struct hearth_remote_cluster *cluster; /* the cluster that this node belongs to; borrowed. NULL: none */
};

/* Checks the parameters and starts the threads; waits for the first connection, or its failure, for at most the
 * timeout. A store that cannot be reached is no error: it is tried again by itself, and /health says so. Strings are
 * copied. Errors: INVALID (the URL, the key file, the certificates), IO (the key file cannot be read), NOMEM; one clear
 * line in `msg`, which never shows a password. */
int hearth_remote_create(const struct hearth_remote_params *params, struct hearth_backing **out,
                         struct hearth_errmsg *msg);

/* Continues an operation of another node of the cluster, from its beginning. Any thread. */
void hearth_remote_take_over(struct hearth_backing *backing, struct remote_op *op);

/* Where a URL leads. */
struct hearth_remote_address {
    char *host, *path;     /* one of them is set */
    char *user, *password; /* NULL: none */
    char label[128];       /* to show people: without the password */
    int port, db;
    bool tls;
};
/* Errors: INVALID, NOMEM, with one line in `msg` that does not show a password. */
int hearth_remote_address_parse(const char *url, struct hearth_remote_address *out, struct hearth_errmsg *msg);
void hearth_remote_address_finish(struct hearth_remote_address *address); /* wipes the password */

/* ---- the hosts of a cluster ---- */

#define HEARTH_REMOTE_SLOTS 16384
#define HEARTH_REMOTE_NODES_MAX 64
#define HEARTH_REMOTE_HOPS_MAX 3 /* how often an operation, or a place of a seek, may be passed on to another node */
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

/* ---- the tier over them ---- */

/* Whether a URL is that of a cluster: it names several hosts, or one that says so now. */
bool hearth_remote_cluster_at(const struct hearth_remote_params *params);
/* As hearth_remote_create(), with `url` redis://[[user]:password@]host[:port],host[:port],… (or rediss://): some of the
 * cluster's nodes, which name the others; one is enough. Each node is a tier of its own with two threads. */
int hearth_remote_cluster_create(const struct hearth_remote_params *params, struct hearth_backing **out,
                                 struct hearth_errmsg *msg);

/* Adds the ports of the hosts in the URL to `ports`, which has `*n` of at most `most`. Errors: INVALID, NOMEM. */
int hearth_remote_cluster_ports(const char *url, uint16_t *ports, size_t most, size_t *n, struct hearth_errmsg *msg);

#endif
