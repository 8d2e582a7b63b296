/* The policy: what is evicted first when the budget is full. Functions without I/O. docs/policy.md has the
 * measurements. */
#ifndef HEARTH_CACHE_POLICY_H
#define HEARTH_CACHE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a snapshot was taken, and so how likely a later prompt comes back to it. */
#define HEARTH_SNAPSHOT_KIND_TABLE(X)                                                                           \
    X(REPLY_END, "reply_end")   /* after the last token of a reply */                                           \
    X(PROMPT_END, "prompt_end") /* just before a reply */                                                       \
    X(MARK, "mark")             /* end of the system prompt, start of the last user or tool message */          \
    X(DIVERGENCE, "divergence") /* where a prompt left a known path */                                          \
    X(INTERVAL, "interval")     /* every so often in a long prefill */                                          \
    X(HEAD, "head")             /* in front of the end of the system prompt: between its texts, or its tools */ \
    X(WINDOW, "window")         /* a page's part of a sliding window */

enum hearth_snapshot_kind {
#define X(name, text) HEARTH_SNAPSHOT_##name,
    HEARTH_SNAPSHOT_KIND_TABLE(X)
#undef X
};
#define X(name, text) +1
enum { HEARTH_SNAPSHOT_KINDS = 0 HEARTH_SNAPSHOT_KIND_TABLE(X) };
#undef X

/* Speeds measured on this machine, continuously. */
struct hearth_costs {
    double prefill_us_per_token;
    double import_us_per_byte;
    double import_us;           /* per page or snapshot */
    double backing_us_per_byte; /* reading from the backing tier, which overlaps with importing */
    double backing_us;          /* likewise, per page or snapshot */
    double remote_us_per_byte;  /* like backing_us_per_byte, from a shared store */
};

/* What a policy may know about an item. */
struct hearth_policy_item {
    bool is_snapshot;
    enum hearth_snapshot_kind kind; /* of a snapshot */
    bool superseded;                /* a snapshot that a later reply of the same conversation has replaced */
    double reuse;                   /* of a snapshot: the chance that the next turn needs it; negative: unknown */
    uint32_t hits;                  /* prompts that used it, and one */
    int32_t saved_tokens;           /* tokens that would have to be computed without it */
    size_t bytes;
    int64_t used_us; /* when it was last used, by the engine's clock */
    int32_t pos;     /* the position where it ends */
    bool copied;     /* the backing tier has a copy: keeping it in RAM saves only the reading */
    bool remote;     /* the copy is in a shared store */
};

/* A number for an item, from what is known of it and from `x`. Pure. */
typedef double hearth_policy_fn(const struct hearth_policy_item *item, const struct hearth_costs *costs, double x);

/* Victims are grouped in classes (conversations). Within a class the lowest rank goes first; of the first victims of
 * all classes, the one with the least worth. */
struct hearth_policy {
    const char *name;
    hearth_policy_fn *rank; /* `x`: the rank of the last item that was evicted */
    hearth_policy_fn
        *worth; /* `x`: returns per second (cache/returns.h). NULL: there is one class, and nothing is learnt */
};

/* The server's policy: the seconds that keeping an item is expected to save, per second and byte. */
extern const struct hearth_policy hearth_policy_returns;
/* Least recently used: what was unused for longest goes first; of one path, the deepest. */
extern const struct hearth_policy hearth_policy_lru;
/* Greedy-Dual-Size-Frequency: an inflation term, which ages what is not used, plus what keeping the item saves per
 * byte, times its uses. Source: L. Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency
 * Caching Policy", HP Labs HPL-98-69R1, 1998. */
extern const struct hearth_policy hearth_policy_gdsf;

/* Microseconds to restore `bytes` in `pieces` blobs from RAM, and to compute `tokens`. Pure. */
static inline double hearth_costs_restore_us(const struct hearth_costs *costs, size_t bytes, size_t pieces) {
    return (double)bytes * costs->import_us_per_byte + (double)pieces * costs->import_us;
}
/* The same for state in the backing tier. */
static inline double hearth_costs_backing_us(const struct hearth_costs *costs, bool remote, size_t bytes,
                                             size_t pieces) {
    double us_per_byte = remote ? costs->remote_us_per_byte : costs->backing_us_per_byte;
    double read_us = (double)bytes * us_per_byte + (double)pieces * costs->backing_us;
    double import_us = hearth_costs_restore_us(costs, bytes, pieces);
    return read_us > import_us ? read_us : import_us;
}
static inline double hearth_costs_compute_us(const struct hearth_costs *costs, int32_t tokens) {
    return (double)tokens * costs->prefill_us_per_token;
}

/* Initial costs: a slow prefill and imports at the speed of memory, so that the first reuse happens and is measured. */
void hearth_costs_init(struct hearth_costs *costs);
/* Moves a measured cost towards a new sample (exponential average). */
void hearth_costs_learn(double *cost, double sample);
/* The same for the cost of a byte, of which so many took so long. A small read is mostly the way there and back, and
 * whatever else the machine did: it counts by its bytes. */
void hearth_costs_learn_bytes(double *us_per_byte, int64_t us, uint64_t bytes);

#endif
