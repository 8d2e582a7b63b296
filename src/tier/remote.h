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

#endif
