/* Fair shares. Design in share.h.
 *
 * Owners are never forgotten: there are as many as there are keys. An owner's `bytes` is the sum over its items of what
 * they count with in the budget, which the caller keeps up to date. */
#include "tier/share.h"

#include "base/assert.h"
#include "base/buf.h"

#include <stdlib.h>

bool hearth_shares_init(struct hearth_shares *shares, double part, int64_t lasts_us) {
    *shares = (struct hearth_shares){
        .part = part > 0 && part < 1 ? part : 1, .lasts_us = lasts_us, .asks = HEARTH_SHARE_NONE};
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

void hearth_share_used(struct hearth_shares *shares, uint16_t owner, int64_t at_us) {
    int64_t *asked_us = &shares->owners[owner].asked_us;
    at_us = at_us > 0 ? at_us : 1;
    *asked_us = at_us > *asked_us ? at_us : *asked_us;
}

static bool wants(const struct hearth_shares *shares, const struct hearth_share_owner *owner) {
    return owner->asked_us > 0 && owner->asked_us >= shares->now_us - shares->lasts_us;
}

void hearth_share_divide(struct hearth_shares *shares, size_t budget_bytes, int64_t now_us) {
    shares->now_us = now_us;
    shares->wanting = 0;
    for (size_t i = 0; i < shares->n; i++) {
        shares->wanting += wants(shares, &shares->owners[i]);
    }
    const double equal = 1 / (double)(shares->wanting > 0 ? shares->wanting : 1);
    shares->most_bytes = (size_t)(shares->part * (double)budget_bytes);
    shares->share_bytes = (size_t)((equal < shares->part ? equal : shares->part) * (double)budget_bytes);
}

void hearth_share_ask(struct hearth_shares *shares, uint16_t owner, size_t budget_bytes, int64_t now_us) {
    hearth_share_used(shares, owner, now_us);
    hearth_share_divide(shares, budget_bytes, now_us);
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
    if (other->asked_us < asks->asked_us - shares->lasts_us) {
        return true;
    }
    return asks->bytes < shares->most_bytes && other->bytes >= shares->share_bytes + bytes;
}

bool hearth_share_is_due(const struct hearth_shares *shares, uint16_t owner) {
    return bounds(shares) && owner != shares->asks && shares->owners[shares->asks].bytes < shares->share_bytes &&
           shares->owners[owner].bytes > shares->share_bytes;
}

bool hearth_share_gives(const struct hearth_shares *shares, uint16_t owner, int pass) {
    const struct hearth_share_owner *gives = &shares->owners[owner];
    if (shares->part >= 1 || shares->wanting < 2 || pass == HEARTH_SHARE_PASSES - 1 || !wants(shares, gives)) {
        return true;
    }
    return gives->bytes > (pass == 0 ? shares->most_bytes : shares->share_bytes);
}
