/* The live tier: sequences inside the engine, as the cache sees them. Each lane owns one. */
#ifndef HEARTH_CACHE_LIVE_H
#define HEARTH_CACHE_LIVE_H

#include "base/buf.h"
#include "base/digest.h"
#include "cache/pin.h"
#include "cache/policy.h"

#include <stdbool.h>
#include <stdint.h>

struct hearth_blob;

/* A snapshot taken while a prefill ran, not yet attached to the tree (that happens at capture). */
struct hearth_live_snapshot {
    int32_t pos;
    struct hearth_blob *blob; /* in the cache's tier; owned by the live sequence */
    enum hearth_snapshot_kind kind;
};

#define HEARTH_LIVE_SNAPSHOTS_MAX 64

/* Where a prompt went on from, and so where the next one of its conversation is likely to: behind the reply, or before
 * it, where templates rewrite replies. It decides which of a turn's snapshots outlasts RAM. */
enum hearth_came_from { HEARTH_FROM_NOTHING, HEARTH_FROM_REPLY, HEARTH_FROM_PROMPT };

/* What a conversation waits for when a turn has ended. */
enum hearth_awaits { HEARTH_AWAITS_UNKNOWN, HEARTH_AWAITS_USER, HEARTH_AWAITS_TOOL, HEARTH_AWAITS_COUNT };

struct hearth_live {
    int32_t seq;
    struct hearth_digest salt;   /* of the tokens: state is shared within a salt only */
    struct hearth_tokens tokens; /* the sequence holds exactly the state of [0, tokens.n) */
    enum hearth_came_from came_from;
    int32_t came_at;               /* the position it went on from: what is behind it is this turn's */
    uint64_t version;              /* another one whenever tokens were dropped or replaced, and for every sequence; 0:
                                      hearth_live_init() did not make it */
    int64_t began_us;              /* when its last prompt was restored */
    size_t prompt_tokens;          /* of it */
    int64_t lasted_us;             /* how long it was computed and its reply generated; 0: it is not over */
    enum hearth_awaits awaits;     /* what its conversation waits for since */
    uint32_t talk;                 /* that the prompt belongs to (cache/returns.h) … */
    struct hearth_digest talk_end; /* … and where its last turn ended */
    int32_t talk_shared;           /* what other talks began with, too, when it began */
    bool dirty;                    /* the tree may lack something of it: set by hearth_live_append() */
    bool busy;                     /* a request runs on it: may be shared from, not overwritten */
    int64_t used_us;               /* when it was last used, for choosing a victim */
    struct hearth_live_snapshot snapshots[HEARTH_LIVE_SNAPSHOTS_MAX];
    int snapshot_count;                      /* ascending by pos */
    int32_t windowed;                        /* what was computed before is stored with its window, or was refused */
    struct hearth_pin pins[HEARTH_PINS_MAX]; /* of what is not stored yet */
    int pin_count;
    bool prefetched;           /* it ends with a prompt that was computed ahead, or with a part of it */
    int64_t expected_until_us; /* its conversation is about to come back; 0: nothing is known */
};

/* Whether `a` is a better victim than `b`: one that is not expected back, else the one that was unused for longer. */
static inline bool hearth_live_better_victim(const struct hearth_live *a, const struct hearth_live *b, int64_t now_us) {
    bool a_expected = a->expected_until_us > now_us, b_expected = b->expected_until_us > now_us;
    return a_expected != b_expected ? b_expected : a->used_us < b->used_us;
}

/* The victim: a sequence that is empty, else the best one; never a busy one. -1: all are. */
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
