/* Checkpoints, made of the vtable's own operations: the non-addressable state is exported as a snapshot and imported
 * again; the addressable state stays in the sequence. So they work on every engine and class with snapshots, and
 * need no sequence of their own.
 *
 * Invariant: a checkpoint's blob is that of its position, or its position is 0. */
#include "engine/checkpoint.h"

#include "base/assert.h"

void hearth_checkpoint_finish(struct hearth_checkpoint *checkpoint) {
    hearth_buf_finish(&checkpoint->blob);
    checkpoint->pos = 0;
}

int hearth_checkpoint_take(struct hearth_checkpoint *checkpoint, struct hearth_engine *engine, int32_t seq,
                           int32_t pos) {
    HEARTH_ASSERT(pos > 0 && hearth_caps_needs_snapshot(&engine->caps));
    checkpoint->pos = 0;
    checkpoint->blob.len = 0;
    int err = engine->ops->snapshot_export(engine, seq, pos, &checkpoint->blob);
    if (err == HEARTH_OK) {
        checkpoint->pos = pos;
    }
    return err;
}

int32_t hearth_checkpoint_return(const struct hearth_checkpoint *checkpoint, struct hearth_engine *engine, int32_t seq,
                                 int32_t end, int32_t n) {
    HEARTH_ASSERT(n > 0 && n <= end);
    if (n == end) {
        return n;
    }
    int err;
    if (n >= engine->ops->seq_rewind_floor(engine, seq, end)) {
        err = engine->ops->seq_rewind(engine, seq, n);
        return err ? err : n;
    }
    int32_t pos = checkpoint->pos;
    if (pos <= 0 || pos > n) { /* the engine holds less than it should */
        engine->ops->seq_clear(engine, seq);
        return HEARTH_ERR_STATE;
    }
    err = engine->ops->seq_keep(engine, seq, pos);
    if (!err) {
        err = engine->ops->snapshot_import(engine, seq, pos, checkpoint->blob.data, checkpoint->blob.len);
    }
    return err ? err : pos;
}
