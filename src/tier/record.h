/* A record: what a stored item says about itself, wherever its bytes are.
 *
 * Items are named by content. A sequence of tokens is cut into blocks of page_tokens; `base` is the digest of the whole
 * blocks before the item, chained from the root, and with the tokens from there on it names the item. So the name does
 * not depend on how a prefix tree happens to be cut, and two processes give the same state the same name:
 *
 *     root = H(fingerprint, salt)     base(k) = H(base(k-1), tokens [k-1, k) * page_tokens)
 *     name = H(base, kind, p0, p1, tokens [base_pos, p1))
 *
 * A digest only finds an item. What it is for is decided by its tokens, which are compared. */
#ifndef HEARTH_TIER_RECORD_H
#define HEARTH_TIER_RECORD_H

#include "base/buf.h"
#include "base/digest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hearth_record_kind {
    HEARTH_RECORD_PAGE,     /* state of the positions [p0, p1) */
    HEARTH_RECORD_SNAPSHOT, /* state of a sequence at p1; p0 < p1: of its sliding window, only the positions [p0, p1) */
};

#define HEARTH_RECORD_TEXT_BYTES 192
/* The label of a snapshot that is no state of a prompt, but a note of the cache's (cache/heads.c). */
#define HEARTH_RECORD_NOTE 255
/* Pages are no longer than this. */
#define HEARTH_RECORD_TOKENS_MAX 65536

struct hearth_record {
    enum hearth_record_kind kind;
    uint8_t label;              /* of a snapshot: why it was taken (cache/tree.h); not part of the name */
    struct hearth_digest base;  /* digest of the tokens [0, base_pos) */
    int32_t base_pos, p0, p1;   /* base_pos <= p0 <= p1, p1 - base_pos <= page_tokens; a block is never crossed */
    hearth_token *tokens;       /* [base_pos, p1) */
    size_t state_bytes;         /* as the engine exported it; 0: the item has only tokens */
    uint64_t owner;             /* the owner of the state (tier/share.h); 0: unknown. Not part of the name */
    struct hearth_digest cover; /* the item with the state before p0 in this block; zero: unknown. For tiers that look
                                   for what an item hangs on; not stored in it */
    char text[HEARTH_RECORD_TEXT_BYTES]; /* first words of [p0, p1), for people who list items: UTF-8, NUL-terminated */
    struct hearth_digest name;           /* hearth_record_name() of the members above */
};

/* The root of all chains of one engine, cache salt and, when what is stored is encrypted, key (`key` is zero
 * otherwise). */
struct hearth_digest hearth_record_root(struct hearth_digest fingerprint, struct hearth_digest key,
                                        struct hearth_digest salt);
/* The digest of one more whole block. */
struct hearth_digest hearth_record_next(struct hearth_digest base, const hearth_token *block, size_t page_tokens);
struct hearth_digest hearth_record_name(const struct hearth_record *record);

/* Number of tokens a record holds. */
static inline size_t hearth_record_tokens(const struct hearth_record *record) {
    return (size_t)(record->p1 - record->base_pos);
}

/* A copy with tokens of its own. NULL: out of memory. */
struct hearth_record *hearth_record_copy(const struct hearth_record *record);
void hearth_record_destroy(struct hearth_record *record); /* NULL is allowed */

#endif
