/* Checkpoints: going back behind tokens that were computed last, on every memory class.
 *
 * Guessed tokens are computed behind a sequence's end and may turn out to be wrong. If the engine can rewind that far
 * (caps.rewind_tokens), nothing has to be prepared. Otherwise the non-addressable state is copied before, which costs
 * about caps.snapshot_bytes each way. Going back leads to that copy, and the tokens between it and the wanted position
 * have to be computed again. */
#ifndef HEARTH_ENGINE_CHECKPOINT_H
#define HEARTH_ENGINE_CHECKPOINT_H

#include "engine/engine.h"

/* A copy of a sequence's non-addressable state. Zeroed: none. */
struct hearth_checkpoint {
    int32_t pos; /* where it was taken; 0: there is no checkpoint */
    struct hearth_buf blob;
};

void hearth_checkpoint_finish(struct hearth_checkpoint *checkpoint);
/* Whether a checkpoint is needed before computing `tokens` tokens that may be taken back. */
static inline bool hearth_checkpoint_needed(const struct hearth_caps *caps, int32_t tokens) {
    return tokens > caps->rewind_tokens;
}
/* Copies the state of a sequence that ends at `pos`; replaces an older copy. Errors: STATE, NOMEM: there is no
 * checkpoint then, and the sequence is unchanged. */
int hearth_checkpoint_take(struct hearth_checkpoint *checkpoint, struct hearth_engine *engine, int32_t seq,
                           int32_t pos);
/* Takes a sequence, which ends at `end`, back to n <= end; if it cannot be rewound that far, to the checkpoint before
 * n, which stays valid. Returns the position where the sequence stands; its state is exactly that of the tokens before.
 * Errors: STATE, NO_CELLS: the sequence is empty. */
int32_t hearth_checkpoint_return(const struct hearth_checkpoint *checkpoint, struct hearth_engine *engine, int32_t seq,
                                 int32_t end, int32_t n);

#endif
