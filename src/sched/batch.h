/* What a batch holds: a pure function of the step's lanes and the time. */
#ifndef HEARTH_SCHED_BATCH_H
#define HEARTH_SCHED_BATCH_H

#include "sched/step.h"

/* Fills shares[lane] with the tokens that each lane has of the next batch, for as many lanes as there are; returns how
 * many these are together, at most batch_tokens. `*passed`: a long prefill was left out for a shorter one. */
int32_t hearth_batch_fill(const struct hearth_step *step, int64_t now_us, int32_t *shares, bool *passed);

#endif
