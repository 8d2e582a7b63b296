/* The state machine of thinking.h.
 *
 * Invariants: `last` holds the tokens since the phase began, so that a sequence never matches across a change of
 * phase; FORCING has a token to force. */
#include "sched/thinking.h"

#include <string.h>

static void enter(struct hearth_thinker *thinker, enum hearth_thinking_phase phase) {
    thinker->phase = phase;
    thinker->last_count = 0;
    thinker->forced = 0;
}

static bool limited(const struct hearth_thinking *thinking) {
    return thinking->budget_tokens >= 0 && thinking->forced_count > 0;
}

static void remember(struct hearth_thinker *thinker, hearth_token token) {
    if (thinker->last_count == HEARTH_THINKING_SEQUENCE_MAX) {
        memmove(thinker->last, thinker->last + 1, (HEARTH_THINKING_SEQUENCE_MAX - 1) * sizeof *thinker->last);
        thinker->last_count--;
    }
    thinker->last[thinker->last_count++] = token;
}

/* Whether the tokens since the phase began end with this sequence. */
static bool ends_with(const struct hearth_thinker *thinker, const hearth_token *sequence, size_t count) {
    if (count > HEARTH_THINKING_SEQUENCE_MAX) {
        sequence += count - HEARTH_THINKING_SEQUENCE_MAX;
        count = HEARTH_THINKING_SEQUENCE_MAX;
    }
    return count > 0 && count <= thinker->last_count &&
           memcmp(thinker->last + thinker->last_count - count, sequence, count * sizeof *sequence) == 0;
}

/* The longest end sequence that the last tokens complete. */
static struct hearth_thinking_end find_end(const struct hearth_thinker *thinker) {
    const struct hearth_thinking *thinking = thinker->thinking;
    struct hearth_thinking_end end = {0};
    for (size_t i = 0; i < thinking->end_count; i++) {
        if (thinking->end_counts[i] > end.count && ends_with(thinker, thinking->ends[i], thinking->end_counts[i])) {
            end = (struct hearth_thinking_end){thinking->ends[i], thinking->end_counts[i]};
        }
    }
    return end;
}

static void begin(struct hearth_thinker *thinker) {
    enter(thinker, HEARTH_THINKING_INSIDE);
    thinker->left = limited(thinker->thinking) ? thinker->thinking->budget_tokens : INT32_MAX;
    if (thinker->left == 0) {
        enter(thinker, HEARTH_THINKING_FORCING);
    }
}

static struct hearth_thinking_end inside(struct hearth_thinker *thinker, bool whole) {
    struct hearth_thinking_end end = find_end(thinker);
    if (end.count > 0) {
        enter(thinker, HEARTH_THINKING_DONE);
        return end;
    }
    if (thinker->left > 0 && limited(thinker->thinking)) {
        thinker->left--;
    }
    if (thinker->left == 0 && whole) {
        enter(thinker, HEARTH_THINKING_FORCING);
    }
    return end;
}

static struct hearth_thinking_end forcing(struct hearth_thinker *thinker) {
    struct hearth_thinking_end end = {0};
    if (++thinker->forced == thinker->thinking->forced_count) {
        end = find_end(thinker);
        enter(thinker, HEARTH_THINKING_DONE);
    }
    return end;
}

void hearth_thinker_init(struct hearth_thinker *thinker, const struct hearth_thinking *thinking) {
    *thinker = (struct hearth_thinker){.thinking = thinking};
    if (!thinking || thinking->start_count == 0) {
        thinker->thinking = NULL;
        return;
    }
    for (size_t i = 0; i < thinking->prefill_count; i++) {
        (void)hearth_thinker_accept(thinker, thinking->prefill[i], true);
    }
}

bool hearth_thinker_inside(const struct hearth_thinker *thinker) {
    return thinker->phase == HEARTH_THINKING_INSIDE || thinker->phase == HEARTH_THINKING_FORCING;
}

hearth_token hearth_thinker_forced(const struct hearth_thinker *thinker) {
    return thinker->phase == HEARTH_THINKING_FORCING ? thinker->thinking->forced[thinker->forced] : -1;
}

struct hearth_thinking_end hearth_thinker_accept(struct hearth_thinker *thinker, hearth_token token, bool whole) {
    struct hearth_thinking_end none = {0};
    if (!thinker->thinking) {
        return none;
    }
    remember(thinker, token);
    switch (thinker->phase) {
    case HEARTH_THINKING_INSIDE: return inside(thinker, whole);
    case HEARTH_THINKING_FORCING: return forcing(thinker);
    case HEARTH_THINKING_IDLE:
    case HEARTH_THINKING_DONE:
        if (ends_with(thinker, thinker->thinking->start, thinker->thinking->start_count)) {
            begin(thinker);
        }
    }
    return none;
}
