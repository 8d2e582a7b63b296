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

/* The longest start or end that is looked for; of longer ones the last tokens count. */
#define HEARTH_THINKING_SEQUENCE_MAX 32

struct hearth_thinker {
    const struct hearth_thinking *thinking; /* borrowed; NULL: the reply cannot think */
    enum hearth_thinking_phase phase;
    int32_t left;  /* tokens of the budget; INSIDE with none left waits for the end of a character */
    size_t forced; /* tokens of `thinking->forced` that were put in */
    hearth_token last[HEARTH_THINKING_SEQUENCE_MAX]; /* since the phase began */
    size_t last_count;
};

/* The end that was reached: `count` is 0 when none was, or when what was forced does not end with one. */
struct hearth_thinking_end {
    const hearth_token *tokens;
    size_t count;
};

/* `thinking` may be NULL, and lives as long. A budget without anything to force is no budget. */
void hearth_thinker_init(struct hearth_thinker *thinker, const struct hearth_thinking *thinking);
/* INSIDE or FORCING: a lazy grammar is not to see what comes. */
bool hearth_thinker_inside(const struct hearth_thinker *thinker);
/* The token that has to come next, or -1. */
hearth_token hearth_thinker_forced(const struct hearth_thinker *thinker);
/* A token came; `whole`: the text ends with a whole character. Returns the end that it completed. */
struct hearth_thinking_end hearth_thinker_accept(struct hearth_thinker *thinker, hearth_token token, bool whole);

#endif
