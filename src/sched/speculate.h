/* Speculation: which tokens to guess ahead, how many, and what became of them. Included by service_internal.h.
 *
 * A guess is made for every lane that generates, from its own text (draft.h). How many of its tokens are computed with
 * the next batch is decided for all lanes together; the others cost nothing, and tell all the same how good guesses
 * are. */
#ifndef HEARTH_SCHED_SPECULATE_H
#define HEARTH_SCHED_SPECULATE_H

#include "engine/checkpoint.h"
#include "sched/draft.h"

#include <stdbool.h>
#include <stdint.h>

struct hearth_service;
struct hearth_task;

/* How often the next token of a guess was right, by the length of the phrase that came before it (which grows with each
 * token that was right). Decaying counts. */
#define HEARTH_GUESS_GRADES 7
struct hearth_guess_rates {
    float right[HEARTH_GUESS_GRADES], asked[HEARTH_GUESS_GRADES];
};

/* What a task keeps. */
struct hearth_speculation {
    struct hearth_draft index;
    struct hearth_guess_rates rates;
    uint32_t drafted, accepted; /* tokens computed ahead, and kept */
};

/* What a lane keeps. */
struct hearth_guess {
    hearth_token tokens[HEARTH_DRAFT_MAX];
    int count; /* tokens guessed */
    int ahead; /* of these, to be computed with the next batch; 0 unless the lane decodes */
    int match; /* length of the phrase before the first */
    struct hearth_checkpoint checkpoint;
};

/* What the service keeps. */
struct hearth_speculator {
    struct hearth_guess guesses[64]; /* by lane: HEARTH_LANES_MAX */
    struct hearth_guess_rates rates; /* of all tasks */
    double take_us, return_us;       /* what a checkpoint costs, and going back to one; 0: not known */
    uint32_t since_probe;            /* batches since one was larger than seemed worth it */
};

void hearth_speculate_init(struct hearth_service *service);
/* Decides what every lane that generates guesses, and tells the step what is due. After each batch. */
void hearth_speculate_plan(struct hearth_service *service);
/* Prepares a lane to be cut back behind its guess, which is about to be computed; where that fails, drops the guess. */
void hearth_speculate_prepare(struct hearth_service *service, int lane);
/* Nothing is computed ahead in the next batch. Returns whether something would have been. */
bool hearth_speculate_drop(struct hearth_service *service);
/* The lane's next token came, as the `at`-th since its guess. Returns whether the guess was right. */
bool hearth_speculate_observe(struct hearth_service *service, struct hearth_task *task, int lane, int at,
                              hearth_token token);
/* The lane computed up to `end` and keeps n of it: takes it back as far as necessary. Returns the position it stands
 * at, which may be less than n, or a negative error: it is empty. */
int32_t hearth_speculate_return(struct hearth_service *service, int lane, int32_t end, int32_t n);
void hearth_speculate_finish(struct hearth_service *service);

#endif
