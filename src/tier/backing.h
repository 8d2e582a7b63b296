/* A backing tier: where state outlasts RAM (`disk`, `remote`, or both), behind one vtable.
 *
 * Everything is asynchronous. The cache asks, the tier works on threads of its own, and each outcome is an event that
 * the cache polls for. A disk reports its content by itself: FOUND for what was there before or what another process
 * has put there, LOST for what was evicted or is gone. A store that is too large for that is asked what it has of a
 * prompt (seek). Only wait() and destroy() block.
 *
 * Reading leaves an item in place. State that does not verify is never handed out: it is quarantined, counted and
 * logged, and the read is a miss.
 *
 * Threads: the one thread that drives the engine, unless a declaration says otherwise. */
#ifndef HEARTH_TIER_BACKING_H
#define HEARTH_TIER_BACKING_H

#include "base/err.h"
#include "tier/record.h"
#include "tier/ram.h"

struct hearth_backing;

/* How long to wait for an answer (a tier that takes longer is treated as absent, and the prompt is computed), for room
 * on disk, and at most between two tries of what fails. */
#define HEARTH_BACKING_WAIT_US 30000000
/* How long destroy() of one tier, or of one node, goes on writing what is queued. With less, a large turn is not all
 * there after a restart; with more, what stops the server would kill it. */
#define HEARTH_BACKING_END_US 10000000
/* Bytes that may be queued for writing where nothing is said. */
#define HEARTH_BACKING_QUEUE_BYTES ((uint64_t)512 << 20)

enum hearth_backing_event_type {
    HEARTH_BACKING_FOUND,   /* an item is there; `record` is filled. A parent may be reported after its children */
    HEARTH_BACKING_LOST,    /* an item is no longer there */
    HEARTH_BACKING_WRITTEN, /* a put item is there, and will be after a crash */
    HEARTH_BACKING_DROPPED, /* a put item was not written: the queue was full, or the tier failed */
    HEARTH_BACKING_READ,    /* the answer to get(): `err` is 0 and `bytes` hold the state, or it is a miss */
    HEARTH_BACKING_REMOVED, /* the answer to remove(): `err` is 0, or it failed */
    HEARTH_BACKING_SCANNED, /* everything that was there at the start has been reported */
    HEARTH_BACKING_SOUGHT,  /* the answer to seek(): what is there has been reported as FOUND */
    HEARTH_BACKING_MOVED,   /* a reported item would now be read from elsewhere: `remote` */
};

struct hearth_backing_event {
    enum hearth_backing_event_type type;
    struct hearth_digest name;    /* in all events but SCANNED and SOUGHT */
    uint64_t ticket;              /* SOUGHT: what seek() returned; answers come in the order of the calls */
    struct hearth_record *record; /* FOUND */
    uint32_t hits;                /* FOUND: how often it was used, if that is known */
    bool superseded;              /* FOUND: as in hearth_backing_touch */
    bool remote;                  /* FOUND, WRITTEN, READ, MOVED: it is in a shared store and not on disk */
    struct hearth_buf bytes;      /* READ: the state, verified and decoded */
    uint64_t checksum;            /* READ: hearth_checksum() of bytes */
    int err; /* READ: NOT_FOUND (gone), STATE (damaged, and no longer there), IO (unreadable now), NOMEM. REMOVED: IO
                (it may still be there) */
    bool elsewhere; /* SOUGHT by a node of a cluster: another node has a part (remote_cluster.c) */
};

/* Frees what an event holds. A receiver that takes something out of it zeroes that member. */
void hearth_backing_event_finish(struct hearth_backing_event *event);

/* A use of an item. */
struct hearth_backing_touch {
    struct hearth_digest name;
    int32_t pos;     /* how far the use went into it: deeper state counts as older, so that leaves are evicted first */
    bool superseded; /* a snapshot that a later reply of its conversation has replaced: counts as much older */
};

/* Numbers that /metrics prints too, counters with the suffix _total; name, kind, help. */
#define HEARTH_BACKING_STATS_TABLE(X)                                                           \
    X(files, gauge, "Files in the directory, all models")                                       \
    X(bytes, gauge, "Bytes that they take on disk")                                             \
    X(budget_bytes, gauge, "Bytes that they may take")                                          \
    X(written, counter, "Pages and snapshots written")                                          \
    X(written_bytes, counter, "Bytes written")                                                  \
    X(read, counter, "Pages and snapshots read")                                                \
    X(read_bytes, counter, "Bytes read")                                                        \
    X(queued_bytes, gauge, "Bytes that wait to be written")                                     \
    X(deduplicated, counter, "Pages and snapshots not written because they were there already") \
    X(dropped, counter, "Pages and snapshots not written because of a full queue or a failure") \
    X(evicted, counter, "Files removed to keep the budget")                                     \
    X(bad, counter, "Files quarantined because they did not verify")                            \
    X(io_errors, counter, "Calls of the file system that failed")

struct hearth_backing_stats {
#define X(name, kind, help) uint64_t name;
    HEARTH_BACKING_STATS_TABLE(X)
#undef X
    bool scanned;      /* the first scan has ended */
    bool failing;      /* writing is suspended after errors, and tried again by itself */
    bool shared;       /* another process uses the same files */
    char trouble[160]; /* the reason, one line; "" if there is none */
};

/* A place in a prompt: asks for the items that hang on `base` and fit the tokens behind it. */
struct hearth_backing_place {
    struct hearth_digest base;  /* as in a record */
    int32_t base_pos;           /* as in a record */
    const hearth_token *tokens; /* [base_pos, base_pos + n) of the prompt; NULL: any tokens fit */
    size_t n;                   /* at most page_tokens */
};

/* How long to leave a file system or store alone that has failed: a second, and each time that it fails again twice as
 * long as the last time (`last_us`; 0: it worked), up to HEARTH_BACKING_WAIT_US. */
int64_t hearth_backing_backoff_us(int64_t last_us);

/* A copy of places and their tokens, in one piece. NULL: out of memory. */
struct hearth_backing_place *hearth_backing_places_copy(const struct hearth_backing_place *places, size_t n);

struct hearth_backing_ops {
    /* Writes what is queued (for at most a few seconds), ends the threads, and frees the tier. */
    void (*destroy)(struct hearth_backing *backing);
    /* Queues an item for writing. Takes a reference of the blob (NULL for an item without state); copies the record.
     * `replaces`, if not NULL, is removed when the item is there. Every accepted put is answered by WRITTEN or DROPPED,
     * also when the item is already there. False: not accepted (the tier is failing, out of memory, or the item alone
     * exceeds the budget). */
    bool (*put)(struct hearth_backing *backing, const struct hearth_record *record, struct hearth_blob *blob,
                const struct hearth_digest *replaces);
    /* Reads an item. READ answers, in the order of the calls as far as the tier can. False: out of memory. */
    bool (*get)(struct hearth_backing *backing, struct hearth_digest name);
    /* Asks what is at these places; copies the tokens. The tier may report more. NULL: the tier reports everything by
     * itself. Returns a ticket; tickets grow, and SOUGHT brings each one back within a bounded time, whatever happens.
     * 0: nothing can be asked now. */
    uint64_t (*seek)(struct hearth_backing *backing, const struct hearth_backing_place *places, size_t n);
    /* Says that items were used, the deepest last. Unknown names are ignored. */
    void (*touch)(struct hearth_backing *backing, const struct hearth_backing_touch *touches, size_t n);
    /* The engine refused state that was read: quarantines it, as if it had not verified. */
    void (*reject)(struct hearth_backing *backing, struct hearth_digest name, const char *why);
    /* Forgets an item, wherever it is, also one that is still to be written (its put is answered before). REMOVED
     * answers. False: out of memory. */
    bool (*remove)(struct hearth_backing *backing, struct hearth_digest name, enum hearth_record_kind kind);
    /* Takes the next event; false: there is none. The caller owns what is in it. */
    bool (*poll)(struct hearth_backing *backing, struct hearth_backing_event *event);
    /* Waits until there is an event; false when there is none after `timeout_us`. */
    bool (*wait)(struct hearth_backing *backing, int64_t timeout_us);
    /* Any thread. */
    void (*stats)(struct hearth_backing *backing, struct hearth_backing_stats *stats);
    /* `wake` is called on any thread when an event comes into an empty queue, and at once if there are events; NULL: no
     * call. When this returns, the earlier `wake` is no longer called. `wake` must not call the tier. */
    void (*set_wake)(struct hearth_backing *backing, void (*wake)(void *user), void *user);
};

struct hearth_backing {
    const struct hearth_backing_ops *ops;
    const char *name;         /* "disk" */
    struct hearth_digest key; /* for hearth_record_root(); zero without encryption */
};

#endif
