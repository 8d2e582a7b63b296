/* An engine that computes nothing: its sequences are lengths, its blobs have a size and no bytes. The cache plans,
 * restores, captures and evicts over it as over a model; what that would have taken is counted, and the clock is the
 * caller's. */
#ifndef HEARTH_REPLAY_ENGINE_H
#define HEARTH_REPLAY_ENGINE_H

#include "engine/engine.h"

struct hearth_hollow {
    struct hearth_engine base; /* first, so that it converts */
    int64_t now_us;
    double import_us_per_byte, export_us_per_byte; /* what they take */
    int64_t rest_ns;                               /* of the clock */
    uint64_t imported_bytes, exported_bytes;
    int32_t *ends; /* per sequence */
};

/* `token_bytes` and `snapshot_bytes` as of the capabilities; 0 snapshot bytes: a model whose state is all in pages.
 * False: out of memory. */
bool hearth_hollow_init(struct hearth_hollow *hollow, uint32_t seqs, size_t token_bytes, size_t snapshot_bytes,
                        double import_us_per_byte);
void hearth_hollow_finish(struct hearth_hollow *hollow);

#endif
