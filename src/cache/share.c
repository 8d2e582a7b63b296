/* Fair shares. Design in share.h.
 *
 * Owners are never forgotten: there are as many as there are keys. An owner's `bytes` is the sum over its items of what
 * they count with in the budget, which the store keeps up to date. */
#include "cache/share.h"

#include "base/assert.h"
#include "base/buf.h"

#include <stdlib.h>

#define WANTS_US 600000000 /* how long after a request its owner still wants its state kept */

bool hearth_shares_init(struct hearth_shares *shares, double part) {
    *shares = (struct hearth_shares){.part = part > 0 && part < 1 ? part : 1, .asks = HEARTH_SHARE_NONE};
    shares->owners = calloc(1, sizeof *shares->owners);
    shares->n = shares->cap = shares->owners ? 1 : 0;
    return shares->owners != NULL;
}

void hearth_shares_finish(struct hearth_shares *shares) {
    free(shares->owners);
}

uint16_t hearth_share_find(struct hearth_shares *shares, uint64_t id) {
    for (size_t i = 0; i < shares->n; i++) {
        if (shares->owners[i].id == id) {
            return (uint16_t)i;
        }
    }
    if (shares->n >= HEARTH_SHARE_NONE || !HEARTH_BUF_ROOM(shares->owners, shares->n, shares->cap)) {
        return 0;
    }
    shares->owners[shares->n] = (struct hearth_share_owner){.id = id};
    return (uint16_t)shares->n++;
}

void hearth_share_ask(struct hearth_shares *shares, uint16_t owner, size_t budget_bytes, int64_t now_us) {
    size_t wanting = 0;
    shares->owners[owner].asked_us = now_us > 0 ? now_us : 1;
    for (size_t i = 0; i < shares->n; i++) {
        const int64_t asked_us = shares->owners[i].asked_us;
        wanting += asked_us > 0 && asked_us >= now_us - WANTS_US;
    }
    const double equal = 1 / (double)(wanting > 0 ? wanting : 1);
    shares->most_bytes = (size_t)(shares->part * (double)budget_bytes);
    shares->share_bytes = (size_t)((equal < shares->part ? equal : shares->part) * (double)budget_bytes);
}

void hearth_share_count(struct hearth_shares *shares, uint16_t owner, size_t before, size_t after) {
    HEARTH_ASSERT(shares->owners[owner].bytes >= before);
    shares->owners[owner].bytes += after - before;
}

static bool bounds(const struct hearth_shares *shares) {
    return shares->part < 1 && shares->n > 1 && shares->asks != HEARTH_SHARE_NONE;
}

bool hearth_share_may_take(const struct hearth_shares *shares, uint16_t owner, size_t bytes) {
    if (!bounds(shares) || owner == shares->asks) {
        return true;
    }
    const struct hearth_share_owner *asks = &shares->owners[shares->asks], *other = &shares->owners[owner];
    if (other->asked_us < asks->asked_us - WANTS_US) {
        return true;
    }
    return asks->bytes < shares->most_bytes && other->bytes >= shares->share_bytes + bytes;
}

bool hearth_share_is_due(const struct hearth_shares *shares, uint16_t owner) {
    return bounds(shares) && owner != shares->asks && shares->owners[shares->asks].bytes < shares->share_bytes &&
           shares->owners[owner].bytes > shares->share_bytes;
}
