/* What a store holds, for `hearth kv`: the only place that scans it. One connection (of a cluster: one to each node
 * that has slots), which waits for each answer; SCAN goes through the names in parts, so that a server that shares the
 * store is never held up for long. */
#ifndef HEARTH_TIER_REMOTE_LIST_H
#define HEARTH_TIER_REMOTE_LIST_H

#include "base/buf.h"
#include "tier/directory.h"

struct hearth_remote_list;

/* Connects, to all nodes where the URL names a cluster, or one of its hosts. `ca_file` as in hearth_remote_params.
 * Errors: INVALID, IO, NOMEM, with one line in `msg` without a password. */
int hearth_remote_list_open(const char *url, const char *ca_file, struct hearth_remote_list **out,
                            struct hearth_errmsg *msg);
/* The same of one host, whatever it is; each of its answers is waited for so long, 0: ten seconds. */
int hearth_remote_list_open_one(const char *url, const char *ca_file, int64_t timeout_us,
                                struct hearth_remote_list **out, struct hearth_errmsg *msg);
void hearth_remote_list_close(struct hearth_remote_list *list); /* NULL is allowed */
/* Whether one host is a node of a cluster. */
bool hearth_remote_list_is_node(struct hearth_remote_list *list);
/* The address without its password. */
const char *hearth_remote_list_label(const struct hearth_remote_list *list);
/* Why the last call failed, for people. */
const char *hearth_remote_list_trouble(struct hearth_remote_list *list);

struct hearth_remote_listed {
    struct hearth_model_id model;
    struct hearth_digest base, name;
    const uint8_t *header; /* tier/format.h, with its padding */
    size_t header_bytes;   /* as it is stored: without the padding */
    size_t padded_bytes;
};
/* Visits every item that has a header, in no order; an item that is written meanwhile may be missing or come twice.
 * Stops when `visit` returns false. Errors: IO, NOMEM. */
int hearth_remote_list_walk(struct hearth_remote_list *list,
                            bool (*visit)(void *user, const struct hearth_remote_listed *listed), void *user);

/* Where an item is. */
struct hearth_remote_place {
    struct hearth_model_id model;
    struct hearth_digest base, name;
    uint64_t payload_bytes;
};
/* Seconds since the payload was last used; -1: it is missing or not whole; -2: the store does not count that. */
int64_t hearth_remote_list_idle_s(struct hearth_remote_list *list, const struct hearth_remote_place *place);
/* Errors: NOT_FOUND (some of it is gone), IO, NOMEM. */
int hearth_remote_list_read(struct hearth_remote_list *list, const struct hearth_remote_place *place,
                            struct hearth_buf *payload);
/* Removes an item. Errors: IO. */
int hearth_remote_list_remove(struct hearth_remote_list *list, const struct hearth_remote_place *place);
/* Removes everything of a model, whatever it is. Errors: IO. */
int hearth_remote_list_remove_model(struct hearth_remote_list *list, struct hearth_model_id model);
/* Removes parts of payloads of items that `known` does not know, and the rest of a block if its index is gone. Values
 * used in the last minutes stay: an item that is being written has no header yet. Counts what it removes, and the bytes
 * of payloads. Errors: IO. */
int hearth_remote_list_sweep(struct hearth_remote_list *list,
                             bool (*known)(void *user, struct hearth_model_id model, struct hearth_digest name),
                             void *user, uint64_t *removed, uint64_t *removed_bytes);

/* Calls `take` for each range of slots of a cluster, with its node; `host` is empty for the node that was asked.
 * Errors: IO (for example, it is no cluster). */
int hearth_remote_list_slots(struct hearth_remote_list *list,
                             void (*take)(void *user, int first, int last, const char *host, int port), void *user);

/* The store's memory; for a cluster the sums, and the policy of one node. */
struct hearth_remote_memory {
    uint64_t used_bytes, most_bytes; /* most: 0 for no limit */
    char policy[32];
};
int hearth_remote_list_memory(struct hearth_remote_list *list, struct hearth_remote_memory *memory);

#endif
