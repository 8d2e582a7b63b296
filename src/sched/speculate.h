/* Speculation: which tokens to guess, how many to compute, and which guesses were right. Included by
 * service_internal.h.
 *
 * Every generating lane has a guess, made from its own text (draft.h). The number of guessed tokens in the next batch
 * is decided for all lanes together. Guesses that are not computed cost nothing, and still show how good guesses are.
 */
#ifndef HEARTH_SCHED_SPECULATE_H
#define HEARTH_SCHED_SPECULATE_H

#include "engine/checkpoint.h"
#include "sched/draft.h"

#include <stdbool.h>
#include <stdint.h>

struct hearth_service;
struct hearth_task;

/* How often the next token of a guess was right, by the length of the phrase before it (which grows with each right
 * token). Counts decay. */
#define HEARTH_GUESS_GRADES 7
struct hearth_guess_rates {
    float right[HEARTH_GUESS_GRADES], asked[HEARTH_GUESS_GRADES];
};

/* A task's part. */
struct hearth_speculation {
    struct hearth_draft index;
    struct hearth_guess_rates rates;
    uint32_t drafted, accepted; /* guessed tokens that were computed, and that were kept */
};

/* A lane's part. */
struct hearth_guess {
    hearth_token tokens[HEARTH_DRAFT_MAX];
    int count; /* guessed tokens */
    int ahead; /* of these, the ones to be computed with the next batch; 0 unless the lane decodes */
    int match; /* length of the phrase before the first one */
    struct hearth_checkpoint checkpoint;
};

/* The service's part. */
struct hearth_speculator {
    struct hearth_guess guesses[64]; /* by lane: HEARTH_LANES_MAX */
    struct hearth_guess_rates rates; /* of all tasks together */
    double take_us, return_us;       /* the cost of taking a checkpoint, and of going back to it; 0: unknown */
    uint32_t since_probe;            /* batches since the last probe */
};

void hearth_speculate_init(struct hearth_service *service);
/* Decides the guesses of every generating lane, and tells the step how many tokens are due. After each batch. */
void hearth_speculate_plan(struct hearth_service *service);
/* Makes it possible to cut a lane back behind a guess that is about to be computed; drops the guess if that fails. */
void hearth_speculate_prepare(struct hearth_service *service, int lane);
/* Removes all guesses from the next batch. Returns whether there were any. */
bool hearth_speculate_drop(struct hearth_service *service);
/* The lane's next token came, the `at`-th since its guess. Returns whether the guess had it right. */
bool hearth_speculate_observe(struct hearth_service *service, struct hearth_task *task, int lane, int at,
                              hearth_token token);
/* Cuts a lane that computed up to `end` back to n, as far as the engine can. Returns the position where it stands,
 * which may be less than n, or a negative error: the lane is empty. */
int32_t hearth_speculate_return(struct hearth_service *service, int lane, int32_t end, int32_t n);
void hearth_speculate_finish(struct hearth_service *service);

#endif
