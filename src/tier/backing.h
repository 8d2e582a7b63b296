/* A backing tier: where state lives that outlasts RAM (`disk`, `remote`, or both), behind one vtable.
 *
 * Everything is asynchronous. The cache asks, the tier works on threads of its own, and what came of it is an event
 * that the cache polls for. A disk finds its own content: what was there before, or what another process puts there,
 * arrives as FOUND; what it evicts or loses, as LOST. A store that is too large for that is asked what it has of a
 * prompt (seek). Nothing here ever blocks but wait() and destroy().
 *
 * Loading never consumes. State that does not verify is never handed out: it is quarantined, counted, logged, and the
 * read is a miss.
 *
 * Threads: the one thread that drives the engine, unless a declaration says otherwise. */
#ifndef HEARTH_TIER_BACKING_H
#define HEARTH_TIER_BACKING_H

#include "base/err.h"
#include "tier/record.h"
#include "tier/ram.h"

struct hearth_backing;

/* How long an answer is awaited: a tier that takes longer is as good as none, and computing goes on without it. */
#define HEARTH_BACKING_WAIT_US 30000000

enum hearth_backing_event_type {
    HEARTH_BACKING_FOUND,   /* an item is there; `record` is filled. Parents may come after what hangs on them */
    HEARTH_BACKING_LOST,    /* an item is no longer there */
    HEARTH_BACKING_WRITTEN, /* what was put is there and will be after a crash */
    HEARTH_BACKING_DROPPED, /* what was put is not written: the queue was full, or the tier failed */
    HEARTH_BACKING_READ,    /* the answer to get(): `err` is 0 and `bytes` hold the state, or it is a miss */
    HEARTH_BACKING_REMOVED, /* the answer to remove(): `err` is 0, or it failed */
    HEARTH_BACKING_SCANNED, /* everything that was there at the start has been told */
    HEARTH_BACKING_SOUGHT,  /* the answer to seek(): what there is has been told as FOUND */
    HEARTH_BACKING_MOVED,   /* an item that was told of would be read from elsewhere now: `remote` */
};

struct hearth_backing_event {
    enum hearth_backing_event_type type;
    struct hearth_digest name;    /* of all but SCANNED and SOUGHT */
    uint64_t ticket;              /* SOUGHT: what seek() returned; in the order of the calls */
    struct hearth_record *record; /* FOUND */
    uint32_t hits;                /* FOUND: how often it was used, as far as that is known */
    bool superseded;              /* FOUND: as hearth_backing_touch has it */
    bool remote;                  /* FOUND, WRITTEN, READ, MOVED: in a store that boxes share, and not on disk */
    struct hearth_buf bytes;      /* READ: verified, decoded state */
    uint64_t checksum;            /* READ: hearth_checksum() of bytes */
    int err;        /* READ: NOT_FOUND (gone), STATE (damaged: it is not there any more), IO (not now), NOMEM.
                       REMOVED: IO (it may still be there) */
    bool elsewhere; /* SOUGHT of a node of a cluster: another node has some of it (remote_cluster.c) */
};

/* Frees what an event holds (what was taken out of it is zeroed by the taker). */
void hearth_backing_event_finish(struct hearth_backing_event *event);

/* A use of an item. */
struct hearth_backing_touch {
    struct hearth_digest name;
    int32_t pos;     /* how far the use went into it: what is deeper counts as older, so that leaves go first */
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
    bool failing;      /* writing is suspended after errors; it is tried again by itself */
    bool shared;       /* another process uses the same files */
    char trouble[160]; /* why, one line; "" while all is well */
};

/* A place in a prompt: what hangs on `base` is asked for as far as it fits the tokens behind it. */
struct hearth_backing_place {
    struct hearth_digest base;  /* record->base */
    int32_t base_pos;           /* likewise */
    const hearth_token *tokens; /* [base_pos, base_pos + n) of the prompt; NULL: whatever hangs there */
    size_t n;                   /* at most page_tokens */
};

/* A copy of places and their tokens, in one piece. NULL: out of memory. */
struct hearth_backing_place *hearth_backing_places_copy(const struct hearth_backing_place *places, size_t n);

struct hearth_backing_ops {
    /* Writes what is queued (for at most a few seconds), ends the threads, frees. */
    void (*destroy)(struct hearth_backing *backing);
    /* Queues an item for writing. Takes a reference of the blob (NULL for an item without state); copies the record.
     * `replaces`, if not NULL, is removed when the item is there. Every accepted put is answered by WRITTEN or DROPPED,
     * also when the item is already there. False: not accepted (the tier is failing, out of memory, or the item alone
     * exceeds the budget). */
    bool (*put)(struct hearth_backing *backing, const struct hearth_record *record, struct hearth_blob *blob,
                const struct hearth_digest *replaces);
    /* Reads an item; answered by READ, in the order of the calls as far as the tier can. False: out of memory. */
    bool (*get)(struct hearth_backing *backing, struct hearth_digest name);
    /* Asks what is at these places; copies the tokens. A tier may tell of more. NULL: everything there is comes as
     * FOUND by itself. Returns a ticket, which grows and which SOUGHT brings back in a bounded time, whatever happens;
     * 0: nothing can be asked now. */
    uint64_t (*seek)(struct hearth_backing *backing, const struct hearth_backing_place *places, size_t n);
    /* Items were used, deepest last. Names that are not there are ignored. */
    void (*touch)(struct hearth_backing *backing, const struct hearth_backing_touch *touches, size_t n);
    /* The engine refused what was read: it is quarantined, as if it had not verified. */
    void (*reject)(struct hearth_backing *backing, struct hearth_digest name, const char *why);
    /* An item is to be forgotten, wherever it is: also one that is still to be written (its put is answered before).
     * Answered by REMOVED. False: out of memory. */
    bool (*remove)(struct hearth_backing *backing, struct hearth_digest name, enum hearth_record_kind kind);
    /* The next event, false when there is none. The caller owns what is in it. */
    bool (*poll)(struct hearth_backing *backing, struct hearth_backing_event *event);
    /* Waits until there is an event; false when there is none after `timeout_us`. */
    bool (*wait)(struct hearth_backing *backing, int64_t timeout_us);
    /* Any thread. */
    void (*stats)(struct hearth_backing *backing, struct hearth_backing_stats *stats);
    /* `wake` is called when an event has come to an empty queue, on any thread, and at once if there are events; NULL:
     * nothing is. After the return the one before is not called any more. It must not call the tier. */
    void (*set_wake)(struct hearth_backing *backing, void (*wake)(void *user), void *user);
};

struct hearth_backing {
    const struct hearth_backing_ops *ops;
    const char *name;         /* "disk" */
    struct hearth_digest key; /* for hearth_record_root(); zero without encryption */
};

#endif
