/* Live sequences: the engine's sequences, as the cache sees them. Each lane owns one.
 *
 * The caller reads `seq` and `tokens`, sets `busy` while it decodes on the sequence, and after a reply sets `used_us`,
 * `lasted_us` and `awaits`, from which the policy learns. It may set `prefetched` and `expected_until_us`. All other
 * members are the cache's. */
#ifndef HEARTH_CACHE_LIVE_H
#define HEARTH_CACHE_LIVE_H

#include "base/buf.h"
#include "base/digest.h"
#include "cache/pin.h"
#include "cache/policy.h"

#include <stdbool.h>
#include <stdint.h>

struct hearth_blob;

/* A snapshot that was taken during a prefill and is attached to the tree at the next capture. */
struct hearth_live_snapshot {
    int32_t pos;
    struct hearth_blob *blob; /* in the cache's tier; owned by the live sequence */
    enum hearth_snapshot_kind kind;
};

#define HEARTH_LIVE_SNAPSHOTS_MAX 64

/* Where a prompt went on from, and so where the next prompt of its conversation probably goes on from: behind the
 * reply, or in front of it if the template rewrites replies. It decides which of a turn's snapshots are written to the
 * backing tier. */
enum hearth_came_from { HEARTH_FROM_NOTHING, HEARTH_FROM_REPLY, HEARTH_FROM_PROMPT };

/* What a conversation waits for after a turn. */
enum hearth_awaits { HEARTH_AWAITS_UNKNOWN, HEARTH_AWAITS_USER, HEARTH_AWAITS_TOOL, HEARTH_AWAITS_COUNT };

struct hearth_live {
    int32_t seq;                 /* of the engine */
    struct hearth_digest salt;   /* of the tokens: state is shared within a salt only */
    struct hearth_tokens tokens; /* the sequence holds exactly the state of [0, tokens.n) */
    enum hearth_came_from came_from;
    int32_t came_at;           /* the position that the turn began at */
    uint64_t version;          /* changes when tokens are dropped or replaced, and differs between sequences; 0:
                                  hearth_live_init() was not called */
    int64_t began_us;          /* when its last prompt was restored */
    size_t prompt_tokens;      /* length of that prompt */
    int64_t lasted_us;         /* how long the turn took, from restoring to the end of the reply; 0: it is not over */
    enum hearth_awaits awaits; /* what its conversation waits for since then */
    uint32_t talk;             /* the talk that the prompt belongs to (cache/returns.h) … */
    struct hearth_digest talk_end; /* … and where its last turn ended */
    int32_t talk_shared;           /* tokens that other talks had in common with it when it began */
    bool dirty;                    /* the tree may lack some of its state: set by hearth_live_append() */
    bool busy;                     /* a request runs on it: it may be shared from, but not overwritten */
    int64_t used_us;               /* when its last reply ended, by the engine's clock */
    struct hearth_live_snapshot snapshots[HEARTH_LIVE_SNAPSHOTS_MAX];
    int snapshot_count;                      /* ascending by pos */
    int32_t windowed;                        /* state up to here is stored with its window, or was refused */
    struct hearth_pin pins[HEARTH_PINS_MAX]; /* pins of tokens that are not stored yet */
    int pin_count;
    bool prefetched;           /* it ends with a prompt, or a part of one, that was computed ahead */
    int64_t expected_until_us; /* until then its conversation is expected back; 0: unknown */
};

/* Whether sequence `a` is a better victim than `b`: not expected back rather than expected, else unused for longer. */
static inline bool hearth_live_better_victim(const struct hearth_live *a, const struct hearth_live *b, int64_t now_us) {
    bool a_expected = a->expected_until_us > now_us, b_expected = b->expected_until_us > now_us;
    return a_expected != b_expected ? b_expected : a->used_us < b->used_us;
}

/* The sequence to overwrite: an empty one, else the best victim; never a busy one. -1: all are busy. */
static inline int hearth_live_victim(const struct hearth_live *const *lives, size_t count, int64_t now_us) {
    int first = -1;
    for (size_t i = 0; i < count; i++) {
        if (lives[i]->busy) {
            continue;
        }
        if (lives[i]->tokens.n == 0) {
            return (int)i;
        }
        if (first < 0 || hearth_live_better_victim(lives[i], lives[first], now_us)) {
            first = (int)i;
        }
    }
    return first;
}

#endif
