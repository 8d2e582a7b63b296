/* Where a reply is in its reasoning, told from its tokens; pure.
 *
 *     IDLE ──start──▶ INSIDE ──end──▶ DONE ──start──▶ INSIDE …
 *                       │ budget used up
 *                       ▼
 *                     FORCING: forced tokens, one after the other ──▶ DONE
 *
 * The budget may run out in the middle of a character: then INSIDE lasts until it is whole. A new start after an end
 * begins a new budget. The rules are those of llama.cpp (common/reasoning-budget.cpp). */
#ifndef HEARTH_SCHED_THINKING_H
#define HEARTH_SCHED_THINKING_H

#include "sched/service.h"

#include <stdbool.h>

enum hearth_thinking_phase {
    HEARTH_THINKING_IDLE,
    HEARTH_THINKING_INSIDE,
    HEARTH_THINKING_FORCING,
    HEARTH_THINKING_DONE
};

/* Most tokens of a start or end that are compared; of a longer one the last ones count. */
#define HEARTH_THINKING_SEQUENCE_MAX 32

struct hearth_thinker {
    const struct hearth_thinking *thinking; /* borrowed; NULL: the reply cannot think */
    enum hearth_thinking_phase phase;
    int32_t left;  /* tokens left of the budget; INSIDE with none left waits for the end of a character */
    size_t forced; /* tokens of `thinking->forced` that were put in */
    hearth_token last[HEARTH_THINKING_SEQUENCE_MAX]; /* tokens since the phase began */
    size_t last_count;
};

/* The end that was reached; `count` 0: none was, or the forced tokens do not end with one. */
struct hearth_thinking_end {
    const hearth_token *tokens;
    size_t count;
};

/* `thinking` may be NULL and must live as long as the thinker. A budget with nothing to force is ignored. */
void hearth_thinker_init(struct hearth_thinker *thinker, const struct hearth_thinking *thinking);
/* INSIDE or FORCING: a lazy grammar must not see the next token. */
bool hearth_thinker_inside(const struct hearth_thinker *thinker);
/* The token that has to come next, or -1. */
hearth_token hearth_thinker_forced(const struct hearth_thinker *thinker);
/* Takes a token; `whole`: the text ends with a complete character. Returns the end that the token completed. */
struct hearth_thinking_end hearth_thinker_accept(struct hearth_thinker *thinker, hearth_token token, bool whole);

#endif
