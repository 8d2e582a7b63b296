/* The sim engine: deterministic, without a model.
 *
 * Its state at a position is a digest of every token before it, and the next token is drawn from that digest: any
 * wrong reuse changes the output. A virtual clock advances by a cost model, so that traces of a whole server can be
 * compared to the letter. */
#ifndef HEARTH_ENGINE_SIM_H
#define HEARTH_ENGINE_SIM_H

#include "engine/engine.h"

struct hearth_sim_params {
    enum hearth_engine_class memory_class;
    uint32_t ctx_tokens;    /* cells; default 8192 */
    uint32_t lanes;         /* default 4 */
    uint32_t parked_seqs;   /* default 0: caps.seqs - caps.lanes */
    uint32_t batch_tokens;  /* default 2048 */
    uint32_t ubatch_tokens; /* default 512 */
    /* Positions behind the end that a PAGES_SNAPSHOT sequence can be rewound without a snapshot (as a sliding
     * window that still holds older cells). Default 0, as a hybrid. */
    uint32_t rewind_tokens;
    /* A PAGES_SNAPSHOT sequence has a sliding window: a token sees so many positions before its own, and pieces of it
     * go out and in (caps.window_tokens). snapshot_bytes are those of a whole one. Default 0: none. */
    uint32_t window_tokens;
    /* Cost model. */
    double prefill_tokens_per_s; /* default 1000 */
    double decode_tokens_per_s;  /* one lane; default 50 */
    size_t page_bytes_per_token; /* default 64: blobs really have this size */
    size_t snapshot_bytes;       /* default 4096 */
    double import_bytes_per_s;   /* default 1e9 */
    double export_bytes_per_s;   /* default 1e9 */
    /* Real time: sleep what the clock advances (for trying the server without a model). */
    bool real_time;
    uint64_t seed; /* part of the fingerprint: another seed is another model */
    /* Mean length of a reply before the end token is drawn; default 40. */
    uint32_t reply_tokens;
    /* The bytes 1, 2, 3 mark the code before a gap, behind it, and the gap; 4 marks a file. Default off: no marks. */
    bool infills;
    /* Seven tokens of eight follow from the one before them alone, so that text repeats itself. Default off. */
    bool repeats;
};

/* Blobs carry their content, so page_bytes_per_token and snapshot_bytes cannot be smaller. Opaque state is a blob of
 * snapshot_bytes and page_bytes_per_token for each position. */
#define HEARTH_SIM_BYTES_MIN 64

void hearth_sim_params_default(struct hearth_sim_params *params);
int hearth_sim_create(const struct hearth_sim_params *params, struct hearth_engine **out, struct hearth_errmsg *msg);

/* Fault injection for tests: the n-th call (1 = the next) of an operation fails with the error its declaration
 * allows and, for imports, leaves the sequence empty; 0 turns it off. `every` repeats it. Any
 * thread. */
enum hearth_sim_fault {
    HEARTH_SIM_FAULT_PAGE_EXPORT,
    HEARTH_SIM_FAULT_PAGE_IMPORT,
    HEARTH_SIM_FAULT_SNAPSHOT_EXPORT,
    HEARTH_SIM_FAULT_SNAPSHOT_IMPORT,
    HEARTH_SIM_FAULT_DECODE_NO_CELLS,
    HEARTH_SIM_FAULT_DECODE,
    HEARTH_SIM_FAULT_SEQ_REWIND,
    HEARTH_SIM_FAULTS
};
void hearth_sim_fault(struct hearth_engine *engine, enum hearth_sim_fault fault, uint32_t nth, bool every);

/* What a cache-less run would generate: the greedy token after `tokens`. Any thread. */
hearth_token hearth_sim_oracle(const struct hearth_engine *engine, const hearth_token *tokens, size_t n);

/* True when `seq` is complete and holds exactly the state of these tokens. Tests ask this after each step: sharper than
 * waiting for a wrong token. */
bool hearth_sim_intact(struct hearth_engine *engine, int32_t seq, const hearth_token *tokens, size_t n);

/* Counters for tests. Any thread. */
struct hearth_sim_stats {
    uint64_t decoded_tokens, page_exports, page_imports, snapshot_exports, snapshot_imports, shared_tokens;
    uint32_t cells_used;
};
void hearth_sim_stats(const struct hearth_engine *engine, struct hearth_sim_stats *stats);
/* Moves the virtual clock. */
void hearth_sim_advance_us(struct hearth_engine *engine, int64_t us);

#endif
