/* What the files of the remote tier share (tier/remote.h).
 *
 * Two threads with a connection each: the reader seeks and gets, the writer puts, removes and touches, so that what is
 * written never delays what a prompt waits for. From the bottom up:
 *
 *     remote_address.c   URLs, the hosts of a cluster and its slots
 *     remote_known.c     what is known to be in the store: name, base, size
 *     remote_link.c      a connection: handshake, deadlines, failure, trying again; inboxes
 *     remote_header.c    what headers say
 *     remote_seek.c      what there is at the places of a prompt
 *     remote_open.c      opens what came, on a third thread
 *     remote_read.c      seek, get
 *     remote_write.c     put, remove, touch
 *     remote.c           the threads, the calls of the cache
 *     remote_cluster.c   above them: a tier for each node of a cluster
 *     remote_list.c      beside them, for `hearth kv`: connections that scan
 *
 * Names in the store (hex digits; MODEL is the name of the disk tier's directory for the model):
 *
 *     hearth:MODEL:i:{BASE}           a hash: name of an item -> its header (tier/format.h) without the padding
 *     hearth:MODEL:e:{BASE}           a set: where these items begin and end in their block (hearth_remote_end())
 *     hearth:MODEL:c:{BASE}           a hash: name of an item -> name of what it stands on (remote_seek.c)
 *     hearth:MODEL:s:{BASE}:NAME:K    bytes [K, K + 1) * REMOTE_CHUNK of the item's payload
 *
 * The header is written last, so an item is in the index when it is whole. The braces keep a block's values on one node
 * of a cluster. */
#ifndef HEARTH_TIER_REMOTE_ENGINE_H
#define HEARTH_TIER_REMOTE_ENGINE_H

#include "base/lru.h"
#include "base/seal.h"
#include "tier/directory.h"
#include "tier/events.h"
#include "tier/format.h"
#include "tier/remote.h"

#include <hiredis.h>

#include <async.h>
#include <hiredis_ssl.h>

/* A store answers one command at a time; one of this size keeps it from others for about a millisecond. */
#define REMOTE_CHUNK ((size_t)1 << 20)
#define REMOTE_KEY_BYTES 160
#define REMOTE_LINE_END 2 /* bytes behind a string, which are read with it */
/* How much of what is being read is asked for at a time: enough to keep the store and the line busy, and little enough
 * that the store holds little for one reader and soon serves another. */
#define REMOTE_AHEAD_BYTES ((size_t)4 << 20)
/* The longest reply is the index of a block. */
#define REMOTE_REPLY_BYTES ((size_t)256 << 20)
#define REMOTE_REPLY_ELEMENTS (1 << 20)

struct remote;
struct remote_link;
struct remote_op;
TAILQ_HEAD(remote_ops, remote_op);

/* The number of chunks of a payload. */
static inline size_t hearth_remote_chunks(uint64_t payload_bytes) {
    return (size_t)((payload_bytes + REMOTE_CHUNK - 1) / REMOTE_CHUNK);
}

/* What TLS to the address needs: the certificate has to be that of its host. Errors: INVALID. */
int hearth_remote_tls(const struct hearth_remote_address *address, const char *ca_file, redisSSLContext **out,
                      struct hearth_errmsg *msg);

/* ---- links ---- */

enum remote_link_state { REMOTE_DOWN, REMOTE_CONNECTING, REMOTE_UP };

/* The functions of an operation, called on its link's thread. */
struct remote_task {
    /* Begins the operation, which ends with hearth_remote_op_end(). */
    void (*begin)(struct remote_op *op);
    /* A reply came; NULL: the connection ended first. */
    void (*replied)(struct remote_op *op, const redisReply *reply);
    /* A buffer for the next reply, a string of `bytes`, with room for two more bytes that belong to the protocol; the
     * reply is then an empty string. NULL: none. May be NULL. */
    struct hearth_buf *(*into)(struct remote_op *op, size_t bytes);
    /* Called after replies and when the connection is lost; sends what waits for its turn. May be NULL. */
    void (*go_on)(struct remote_link *link);
};

/* A string that is being read to where it belongs. */
struct remote_direct {
    struct hearth_buf *to;
    size_t bytes, left; /* of the string; still to be read, with the end of its line */
};

/* A connection and the thread that drives it. */
struct remote_link {
    struct remote *remote;
    const struct remote_task *task;
    pthread_t thread;
    bool has_thread;
    int wake_fd; /* an eventfd: something is in the inbox, or the thread is to end */
    /* under remote->lock */
    struct remote_ops inbox;
    bool stop;
    bool tried; /* the first attempt to connect is over */
    enum remote_link_state state;
    /* the thread's own */
    redisAsyncContext *context; /* NULL: none */
    redisContextFuncs funcs;    /* hiredis' own, but for reading, which is counted */
    ssize_t (*read)(redisContext *context, char *bytes, size_t size);
    size_t reply_bytes; /* bytes of the reply that is coming in */
    struct remote_direct direct;
    bool more; /* with TLS: the buffer may hold more, which poll() does not see */
    bool want_read, want_write;
    struct remote_ops ops;    /* under way, in the order in which they began */
    struct remote_op *unsent; /* the reader's: the first GET that has not asked for all of its chunks */
    size_t ahead_bytes;       /* the reader's: bytes that were asked for and have not come */
    size_t owed;              /* replies that the store owes */
    int64_t deadline_us;      /* of the handshake */
    int64_t heard_us;         /* when the store last sent something */
    int64_t retry_us, backoff_us;
    unsigned attempts; /* to connect: the name's addresses take turns */
};

/* ---- operations ---- */

/* DISCARD removes a value that does not verify; no request waits for it. */
enum remote_op_kind { REMOTE_SEEK, REMOTE_GET, REMOTE_PUT, REMOTE_REMOVE, REMOTE_DISCARD, REMOTE_TOUCH };

struct remote_op {
    struct hearth_events_entry answer; /* first: it becomes the event */
    TAILQ_ENTRY(remote_op) list;       /* its link's inbox, then its link's ops */
    enum remote_op_kind kind;
    struct remote_link *link;
    struct hearth_digest name, base;
    size_t chunks;                         /* of the payload */
    size_t asked;                          /* GET: chunks that were asked for */
    uint64_t payload_bytes;                /* GET: 0 as long as it is unknown */
    bool placed;                           /* GET: the reply's bytes are in `body` already */
    struct hearth_buf header;              /* PUT: to be written */
    struct hearth_buf body;                /* the payload, likewise. GET: as far as it came, and was opened */
    struct hearth_format_opening *opening; /* GET: of the payload; NULL: the header has not come, or is not good */
    struct hearth_format_info info;        /* GET: what the header says */
    size_t header_len;                     /* GET */
    bool bad;                              /* GET: it does not verify */
    /* GET, of remote_open.c, under remote->lock */
    TAILQ_ENTRY(remote_op) opening_list;
    size_t arrived_bytes, opened_bytes; /* of the body */
    bool opens, came;                   /* it is in the list; its last reply has come */
    struct hearth_record *record;       /* PUT */
    struct hearth_blob *blob;           /* PUT; NULL: the item has no state */
    bool replaces;
    struct hearth_digest replaced;
    struct remote_seek *seek;    /* SEEK */
    struct hearth_digest *names; /* TOUCH */
    size_t n;                    /* of these */
    /* replies */
    size_t sent, answered;
    int step;
    bool lost;    /* the connection ended, or the store answered with an error */
    bool missing; /* some of the item is not there */
    bool moved;   /* another node of the cluster has it */
    bool asks;    /* another node is getting it: the slot is moving */
    int hops;     /* how often it was passed on */
};

/* ---- the tier ---- */

struct remote {
    struct hearth_backing backing; /* first */
    struct hearth_remote_params params;
    struct hearth_remote_address address;
    struct hearth_model_id model;
    struct hearth_seal *seal;
    redisSSLContext *ssl;
    struct hearth_events events;
    struct remote_link reader, writer;
    pthread_mutex_t lock; /* of the inboxes, the table and the figures */
    pthread_cond_t tried_cond;
    struct hearth_lru known;      /* by name */
    struct hearth_table known_at; /* the same by base */
    size_t page_bytes;            /* of a page's payload; 0: not known */
    struct hearth_backing_stats stats;
    bool write_failing;                       /* the store refuses writes: full, or a read-only replica */
    unsigned read_failing;                    /* kinds of operations (bits of 1 << remote_op_kind) that it refuses */
    int64_t write_retry_us, write_backoff_us; /* when a put tries it again, and how long that was put off */
    uint64_t ticket;                          /* of the newest seek */
    /* of remote_open.c, under the lock */
    pthread_t opener;
    bool has_opener, opening_stop;
    pthread_cond_t opening_cond, opened_cond; /* there is something to open; something was opened */
    struct remote_ops opening;
};

/* ---- remote_known.c: under remote->lock ---- */

struct remote_known {
    struct hearth_lru_entry entry; /* first; its key is the name */
    struct hearth_link at;         /* its key is the base */
    uint64_t payload_bytes;
    uint64_t end;       /* hearth_remote_end() */
    int64_t touched_us; /* when this box last gave it its time to live; 0: it has not */
    uint64_t seen;      /* the ticket of the seek that saw it last */
};

struct remote_known *hearth_remote_known_find(struct remote *remote, struct hearth_digest name);
/* Adds an item, or notes that it is still there. Out of memory, it stays unknown: a miss. */
struct remote_known *hearth_remote_known_add(struct remote *remote, struct hearth_digest name,
                                             struct hearth_digest base, uint64_t payload_bytes);
void hearth_remote_known_remove(struct remote *remote, struct remote_known *known);
/* Notes how long a whole page's payload is, for memory that is made ready. */
void hearth_remote_note_page(struct remote *remote, const struct hearth_record *record, uint64_t payload_bytes);
void hearth_remote_known_finish(struct remote *remote);

/* ---- remote_link.c: of the link's thread ---- */

/* Connects if necessary, waits for the store, the inbox or `until_us`, and handles what came. */
void hearth_remote_link_turn(struct remote_link *link, int64_t until_us);
void hearth_remote_link_close(struct remote_link *link);
/* Sends a command of the operation. Replies come in the order of the calls, and never before this returns. `lens`:
 * lengths of the arguments; NULL: they are strings. False: the link is down, and op->lost is set. */
bool hearth_remote_send(struct remote_op *op, int argc, const char **argv, const size_t *lens);
/* Makes an operation for the link's inbox. NULL: out of memory, or with `only_up` the link has no connection. Any
 * thread. */
struct remote_op *hearth_remote_op_make(enum remote_op_kind kind, enum hearth_backing_event_type type,
                                        struct hearth_digest name);
bool hearth_remote_submit(struct remote_link *link, struct remote_op *op, bool only_up);
/* Frees header and payload. */
void hearth_remote_op_drop(struct remote_op *op);
/* Takes the operation from its link's list. */
void hearth_remote_op_leave(struct remote_op *op);
/* Delivers the answer to the cache and frees the rest of the operation. */
void hearth_remote_op_end(struct remote_op *op);

/* Whether an error comes from a cluster: the value is on another node, or will soon be. Tells the cluster; `moved` and
 * `asks` of the operation say what can be done. */
bool hearth_remote_moved(struct remote_op *op, const char *error);
/* Passes an operation that has moved, and is in no list, on to the node that has its block. False: it was not passed
 * on. */
bool hearth_remote_pass(struct remote_op *op);

/* Notes that the store answers but refuses an operation: /health says so until such an operation succeeds. A refused
 * write is tried again with a later put. Any thread, without the lock. */
void hearth_remote_refused(struct remote *remote, enum remote_op_kind kind, const char *error);
void hearth_remote_works(struct remote *remote, enum remote_op_kind kind);

/* Removes a value that does not verify from the store, so that it is written again. Any thread, without the lock. */
void hearth_remote_discard(struct remote *remote, struct hearth_digest name, struct hearth_digest base, size_t chunks);

/* The names of a block's values, and of a chunk of an item's payload. */
enum remote_key { REMOTE_INDEX = 'i', REMOTE_ENDS = 'e', REMOTE_COVERS = 'c' };
void hearth_remote_key_block(const struct hearth_model_id *model, enum remote_key kind, struct hearth_digest base,
                             char key[REMOTE_KEY_BYTES]);
void hearth_remote_key_chunk(const struct hearth_model_id *model, struct hearth_digest base, struct hearth_digest name,
                             size_t chunk, char key[REMOTE_KEY_BYTES]);

/* ---- remote_header.c ---- */

/* Where an item begins and ends in its block, as one number. */
uint64_t hearth_remote_end(const struct hearth_record *record);
/* Reads a name as it stands in the store. False: it is no name. */
bool hearth_remote_read_name(const redisReply *reply, struct hearth_digest *name);
/* Copies a header as it is stored and adds its padding. False: out of memory. */
bool hearth_remote_pad_header(const redisReply *reply, struct hearth_buf *padded);
/* Reads a header as it is stored. GOOD: it belongs to this model. */
enum hearth_format_verdict hearth_remote_read_header(const struct remote *remote, const redisReply *reply,
                                                     struct hearth_format_info *info);
/* Reports a header that a seek has found as FOUND, if it verifies. `name`: where it was found; NULL: under something
 * that is no name. */
void hearth_remote_see(struct remote_op *op, struct hearth_digest base, const struct hearth_digest *name,
                       const redisReply *header);
void hearth_remote_post_lost(struct remote *remote, struct hearth_digest name);
/* Counts a value that does not verify. Takes remote->lock. */
void hearth_remote_count_bad(struct remote *remote);

/* ---- remote_open.c ---- */

bool hearth_remote_open_start(struct remote *remote); /* false: no thread can be started */
void hearth_remote_open_stop(struct remote *remote);  /* what was given has ended */
/* More of the body is there. The reader's thread, as the next three. */
void hearth_remote_open_tell(struct remote_op *op);
/* Waits until all that was told of is opened: the body may move. */
void hearth_remote_open_wait(struct remote_op *op);
/* The operation is the reader's alone again. */
void hearth_remote_open_take_back(struct remote_op *op);
/* The operation, whose last reply has come, ends. */
void hearth_remote_open_give(struct remote_op *op);

/* ---- remote_seek.c ---- */

/* Stands in the place of a name among a block's covers. */
#define REMOTE_FIRST "first"

/* Copies the places. NULL: out of memory. */
struct remote_seek *hearth_remote_seek_make(const struct hearth_backing_place *places, size_t n);
void hearth_remote_seek_destroy(struct remote_seek *seek); /* NULL is allowed */
void hearth_remote_seek_begin(struct remote_op *op);
void hearth_remote_seek_reply(struct remote_op *op, const redisReply *reply);
/* ---- remote_read.c, remote_write.c ---- */

extern const struct remote_task hearth_remote_reading, hearth_remote_writing;

#endif
