/* Drafts: guesses of the next tokens, taken from the text itself. An index over the tokens of one request (its prompt
 * and what it has generated) finds an earlier place with the phrase that the text ends with; what followed there
 * probably follows again. Agents repeat files, tool results, lists and their own replies, so this needs no second
 * model.
 *
 * Units: tokens. Memory: at most 16 bytes per indexed token. Threads: the caller's. */
#ifndef HEARTH_SCHED_DRAFT_H
#define HEARTH_SCHED_DRAFT_H

#include "base/buf.h"

#define HEARTH_DRAFT_PHRASE 3     /* tokens of a phrase; a shorter one repeats by chance */
#define HEARTH_DRAFT_MATCH_MAX 32 /* a longer match counts as this long */

/* Zeroed: an empty index. */
struct hearth_draft {
    uint32_t *prev; /* [i]: the phrase before position i also stood before position prev[i]; 0: nowhere earlier */
    uint32_t *head; /* by hash of a phrase: the last position that it stood before; 0: none */
    size_t room;    /* positions that fit; a power of two, and the size of `head` */
    size_t next;    /* first position that is not indexed */
};

void hearth_draft_finish(struct hearth_draft *draft);
/* Indexes up to `limit` more positions of the n tokens. Tokens of earlier calls must be unchanged. True: all n are
 * indexed; false: there is more to do, or no memory. */
bool hearth_draft_index(struct hearth_draft *draft, const hearth_token *tokens, size_t n, size_t limit);
/* Finds the longest phrase that the n tokens end with and that also stood earlier (of equally long ones the last), and
 * writes up to `most` of the tokens that followed it to `out`. All n must be indexed. Returns how many were written, 0
 * if there is no such phrase; `*match`: the phrase's length, at most HEARTH_DRAFT_MATCH_MAX. */
size_t hearth_draft_find(const struct hearth_draft *draft, const hearth_token *tokens, size_t n, hearth_token *out,
                         size_t most, int *match);

#endif
