/* Taking back what was computed last, on every memory class.
 *
 * Tokens that were guessed are computed behind a sequence's end and may turn out to be wrong. Where the engine can
 * rewind so far (caps.rewind_tokens) nothing has to be prepared. Elsewhere the state is copied before, which costs
 * about caps.snapshot_bytes each way, and the way back leads to that copy: the tokens between it and the one that was
 * asked for have to be computed again. */
#ifndef HEARTH_ENGINE_CHECKPOINT_H
#define HEARTH_ENGINE_CHECKPOINT_H

#include "engine/engine.h"

/* A copy of a sequence's non-addressable state. Zeroed: none. */
struct hearth_checkpoint {
    int32_t pos; /* where it was taken; 0: there is none */
    struct hearth_buf blob;
};

void hearth_checkpoint_finish(struct hearth_checkpoint *checkpoint);
/* Whether one is needed before `tokens` are computed that may have to be taken back. */
static inline bool hearth_checkpoint_needed(const struct hearth_caps *caps, int32_t tokens) {
    return tokens > caps->rewind_tokens;
}
/* Copies the state of a sequence that ends at `pos`, in place of an older copy. Errors: STATE, NOMEM: there is none
 * then, and the sequence is as it was. */
int hearth_checkpoint_take(struct hearth_checkpoint *checkpoint, struct hearth_engine *engine, int32_t seq,
                           int32_t pos);
/* Takes a sequence, which ends at `end`, back to n <= end; or, where it cannot be rewound so far, to the checkpoint
 * before n, which stays valid. Returns the position it stands at; the state is exactly that of the tokens before it.
 * Errors: STATE, NO_CELLS: the sequence is empty. */
int32_t hearth_checkpoint_return(const struct hearth_checkpoint *checkpoint, struct hearth_engine *engine, int32_t seq,
                                 int32_t end, int32_t n);

#endif
