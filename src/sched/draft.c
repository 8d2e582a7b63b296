/* Drafts. Positions are chained by the hash of the three tokens before them, the latest first, as in an LZ77
 * compressor:
 *
 *     head[h] → i → prev[i] → prev[prev[i]] → … → 0
 *
 * A look-up follows one chain for a bounded number of steps and compares backwards, so that its cost does not grow with
 * the text. When the text outgrows the tables they are made anew, twice as large, and filled again in slices: a token
 * is indexed twice on average.
 *
 * Invariant: prev[i] < i; positions below `next` are indexed, and no others. */
#include "sched/draft.h"

#include "base/assert.h"

#include <stdlib.h>

#define ROOM_MIN 1024
#define STEPS_MAX 24

void hearth_draft_finish(struct hearth_draft *draft) {
    free(draft->prev);
    free(draft->head);
    *draft = (struct hearth_draft){0};
}

static size_t phrase_hash(const hearth_token *end, size_t room) {
    uint64_t h = (uint64_t)(uint32_t)end[-1] * 0x9E3779B97F4A7C15u;
    h = (h ^ (uint64_t)(uint32_t)end[-2]) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (uint64_t)(uint32_t)end[-3]) * 0x94D049BB133111EBu;
    return (size_t)(h >> 32) & (room - 1);
}

static bool grow(struct hearth_draft *draft, size_t n) {
    size_t room = draft->room ? draft->room : ROOM_MIN;
    while (room <= n) {
        room *= 2;
    }
    uint32_t *prev = malloc(room * sizeof *prev), *head = calloc(room, sizeof *head);
    if (!prev || !head) {
        free(prev);
        free(head);
        return false;
    }
    hearth_draft_finish(draft);
    *draft = (struct hearth_draft){.prev = prev, .head = head, .room = room, .next = HEARTH_DRAFT_PHRASE};
    return true;
}

bool hearth_draft_index(struct hearth_draft *draft, const hearth_token *tokens, size_t n, size_t limit) {
    if (n > UINT32_MAX || (n >= draft->room && !grow(draft, n))) {
        return false;
    }
    for (; draft->next < n && limit > 0; draft->next++, limit--) {
        uint32_t *head = &draft->head[phrase_hash(tokens + draft->next, draft->room)];
        draft->prev[draft->next] = *head;
        *head = (uint32_t)draft->next;
    }
    return draft->next >= n;
}

static int match_length(const hearth_token *a, const hearth_token *b, size_t most) {
    size_t n = 0;
    while (n < most && a[-1 - (ptrdiff_t)n] == b[-1 - (ptrdiff_t)n]) {
        n++;
    }
    return (int)n;
}

size_t hearth_draft_find(const struct hearth_draft *draft, const hearth_token *tokens, size_t n, hearth_token *out,
                         size_t most, int *match) {
    *match = 0;
    if (n <= HEARTH_DRAFT_PHRASE || !draft->head) {
        return 0;
    }
    HEARTH_ASSERT(draft->next >= n && n <= draft->room);
    size_t best = 0;
    size_t at = draft->head[phrase_hash(tokens + n, draft->room)];
    for (int step = 0; step < STEPS_MAX && at > 0 && *match < HEARTH_DRAFT_MATCH_MAX; step++, at = draft->prev[at]) {
        int length = match_length(tokens + n, tokens + at, at < HEARTH_DRAFT_MATCH_MAX ? at : HEARTH_DRAFT_MATCH_MAX);
        if (length < HEARTH_DRAFT_PHRASE || length <= *match) {
            continue;
        }
        *match = length;
        best = at;
    }
    /* A draft that reaches the end of the text continues with its own beginning, since such a text is periodic. */
    for (size_t i = 0; best > 0 && i < most; i++) {
        out[i] = best + i < n ? tokens[best + i] : out[best + i - n];
    }
    return best > 0 ? most : 0;
}
