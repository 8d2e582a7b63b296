/* What only a reader of the whole trace knows: which of a prompt was there before, and when it comes back. */
#ifndef HEARTH_REPLAY_ORACLE_H
#define HEARTH_REPLAY_ORACLE_H

#include "replay/trace.h"

/* The blocks up to `end`, behind those of the step before it, come back next with request `next`. */
struct hearth_oracle_step {
    uint32_t next;
    int32_t end;
};

struct hearth_oracle {
    int32_t *seen;                    /* per request: its leading blocks that an earlier prompt began with */
    uint32_t *first;                  /* per request: its first step; one more at the end */
    struct hearth_oracle_step *steps; /* ascending in both; what is behind the last one never comes back */
    uint64_t new_tokens;              /* what an infinite cache computes */
};

/* Errors: NOMEM. */
int hearth_oracle_make(const struct hearth_trace *trace, struct hearth_oracle *out, struct hearth_errmsg *msg);
void hearth_oracle_finish(struct hearth_oracle *oracle);

/* Belady's choice: of a cache of `blocks`, what comes back last goes first. Of every request the leading blocks that
 * were kept are not computed. `snapshot_blocks`: what each path takes besides, so that it can be resumed where it is
 * needed (models with snapshots). Returns the tokens that are computed: no policy computes fewer, but for snapshots,
 * where items differ in size and the choice is good but not proved. Errors: UINT64_MAX, out of memory. */
uint64_t hearth_oracle_belady(const struct hearth_trace *trace, const struct hearth_oracle *oracle, uint64_t blocks,
                              uint64_t snapshot_blocks);

#endif
