/* Drafts: what may come next, from the text itself. An index over the tokens of one request (its prompt and what it has
 * generated) tells where the phrase that it ends with stood before; it probably goes on as it did then. Agents repeat
 * files, tool results, lists and their own replies, so that this needs no second model.
 *
 * Units: tokens. Memory: at most 16 bytes per token indexed. Threads: the caller's. */
#ifndef HEARTH_SCHED_DRAFT_H
#define HEARTH_SCHED_DRAFT_H

#include "base/buf.h"

#define HEARTH_DRAFT_PHRASE 3     /* shorter repetitions say nothing */
#define HEARTH_DRAFT_MATCH_MAX 32 /* longer ones are not told apart */

/* Zeroed: an empty index. */
struct hearth_draft {
    uint32_t *prev; /* [i]: the phrase before position i stood before position prev[i], too; 0: no earlier */
    uint32_t *head; /* by hash of a phrase: the last position it stood before; 0: nowhere */
    size_t room;    /* positions there is room for: a power of two, and the size of `head` */
    size_t next;    /* the first position that is not indexed */
};

void hearth_draft_finish(struct hearth_draft *draft);
/* Indexes up to `limit` more positions of the n tokens, of which those seen before are unchanged. Returns whether all
 * are indexed: not so when there is more to do, or no memory. */
bool hearth_draft_index(struct hearth_draft *draft, const hearth_token *tokens, size_t n, size_t limit);
/* What followed the longest phrase that the n tokens end with and that stood before; among equals the last. All n must
 * be indexed. Writes up to `most` tokens to `out` and returns how many; `*match` is the phrase's length, at most
 * HEARTH_DRAFT_MATCH_MAX. 0: there is none. */
size_t hearth_draft_find(const struct hearth_draft *draft, const hearth_token *tokens, size_t n, hearth_token *out,
                         size_t most, int *match);

#endif
