/* Fair shares: how much of a tier (RAM, the disk) an owner of state (an API key) keeps while other ones want it.
 *
 *     most   = part * budget                     what one owner may hold while another wants room
 *     share  = min(part, 1 / wanting) * budget   what the others leave it; `wanting`: owners with a request lately
 *
 * Room for an owner is made of what others hold above their share, and of its own state; an owner that holds `most`
 * makes room of its own state only. An owner below its share takes room from one above its share, whatever the state
 * there is worth (cache/policy.h); in all other cases worth decides. While there is room none of this matters: one
 * owner may hold all that no other owner wants.
 *
 * A disk makes room now and then, for all that comes: first files above `most` go, and those that no owner wants any
 * more, then files above the shares, then any.
 *
 * Threads: the caller's. */
#ifndef HEARTH_TIER_SHARE_H
#define HEARTH_TIER_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTH_SHARE_NONE UINT16_MAX

/* How long after a request its owner still wants its state kept, in RAM and on disk. */
#define HEARTH_SHARE_RAM_US INT64_C(600000000)
#define HEARTH_SHARE_DISK_US INT64_C(604800000000)

struct hearth_shares {
    struct hearth_share_owner {
        uint64_t id;
        size_t bytes;     /* bytes of its state in the tier */
        int64_t asked_us; /* its last request */
    } *owners;            /* the first one has the state of unknown owners */
    size_t n, cap;
    double part;      /* of the budget; 1: no owner is bounded */
    int64_t lasts_us; /* how long after a request an owner wants its state */
    uint16_t asks;    /* the owner for whom room is made; HEARTH_SHARE_NONE: none */
    /* as of the last division: */
    int64_t now_us;
    size_t wanting, share_bytes, most_bytes;
};

/* `lasts_us`: HEARTH_SHARE_RAM_US or HEARTH_SHARE_DISK_US. False: out of memory. */
bool hearth_shares_init(struct hearth_shares *shares, double part, int64_t lasts_us);
void hearth_shares_finish(struct hearth_shares *shares);

/* The owner with this id; 0, which no key has, when out of memory or when there are very many. */
uint16_t hearth_share_find(struct hearth_shares *shares, uint64_t id);
/* A request of the owner comes: divides the budget again. */
void hearth_share_ask(struct hearth_shares *shares, uint16_t owner, size_t budget_bytes, int64_t now_us);
/* The owner had a request at `at_us`, which counts if it is the owner's last one. */
void hearth_share_used(struct hearth_shares *shares, uint16_t owner, int64_t at_us);
/* Divides the budget again. */
void hearth_share_divide(struct hearth_shares *shares, size_t budget_bytes, int64_t now_us);
/* An item of the owner counted for `before` bytes and counts for `after` now. */
void hearth_share_count(struct hearth_shares *shares, uint16_t owner, size_t before, size_t after);
/* Whether the owner for whom room is made may take the room of an item of `owner` (may_take), and whether it may do so
 * whatever the item is worth (is_due). */
bool hearth_share_may_take(const struct hearth_shares *shares, uint16_t owner, size_t bytes);
bool hearth_share_is_due(const struct hearth_shares *shares, uint16_t owner);
/* Whether an item of the owner may go where room is made for all: in passes, 0 to HEARTH_SHARE_PASSES - 1, each of
 * which takes what it may have, the oldest first, until there is enough room. */
#define HEARTH_SHARE_PASSES 3
bool hearth_share_gives(const struct hearth_shares *shares, uint16_t owner, int pass);

#endif
