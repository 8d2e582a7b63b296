/* What the files of the sim engine share. Nothing outside src/engine/sim*.c includes this.
 *
 *   sim.c         creation, decode, the vtable
 *   sim_clock.c   the clock, faults
 *   sim_state.c   sequences, cells, pages, snapshots
 *   sim_sample.c  what the next token is; samplers
 *   sim_text.c    tokenizer */
#ifndef HEARTH_ENGINE_SIM_PARTS_H
#define HEARTH_ENGINE_SIM_PARTS_H

#include "base/assert.h"
#include "base/trie.h"
#include "engine/sim.h"

/* A state digest: 56 bits that depend on every token before it, and a low byte whose first bit says whether the last of
 * them left a character unfinished (so that text drawn from digests can be UTF-8). */
typedef uint64_t sim_state;

enum { SIM_STATE_LOW = 0xFF, SIM_STATE_UNFINISHED = 1 };

/* Where text repeats itself (params.repeats), the low byte has this bit, and of the other bits the upper 32 are the
 * digest of all tokens and the rest a few bits of the last one. */
enum { SIM_STATE_REPEATS = 0x80, SIM_REPEATS_LAST = 0x1F };

/* Stirs two words into one. */
static inline uint64_t sim_mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u)) * 0xBF58476D1CE4E5B9u;
    x ^= x >> 29;
    x = (x + b) * 0x94D049BB133111EBu;
    return x ^ x >> 32;
}

/* The digest that stands for damage: never the digest of a real prefix but by chance of 2^-56, and, through the
 * chain, damage to everything computed on top of it. */
static inline sim_state sim_poison(uint64_t a, uint64_t b) {
    return sim_mix(sim_mix(a, b), 0x5EEDBAD5EEDBADu) & ~(uint64_t)SIM_STATE_LOW;
}

/* ---- text ---- */

enum { SIM_BYTE_TOKENS = 256, SIM_LEADS = 3 };

/* Fills a trie with all texts but those of specials. False: out of memory. */
bool hearth_sim_text_init(struct hearth_trie *trie);
uint32_t hearth_sim_text_vocab(void);
/* The bytes of a token; specials too. */
const char *hearth_sim_text_bytes(hearth_token token, size_t *len);
bool hearth_sim_text_is_special(hearth_token token);
hearth_token hearth_sim_text_end(void);  /* <|im_end|> */
hearth_token hearth_sim_text_stop(void); /* <|endoftext|> */
/* The tokens that read as text, [first, last). */
void hearth_sim_text_words(hearth_token *first, hearth_token *last);
/* Leads are tokens that end one byte before the end of a character; any continuation byte completes it. */
hearth_token hearth_sim_text_lead(size_t k); /* k < SIM_LEADS */
bool hearth_sim_text_is_lead(hearth_token token);
int hearth_sim_text_tokenize(const struct hearth_trie *trie, const char *bytes, size_t len, bool parse_special,
                             struct hearth_tokens *out);

/* ---- state ---- */

/* Addressable state of one position. `after` is what the position's output was computed to be. */
struct sim_cell {
    sim_state before, after;
    int32_t pos;
    hearth_token token;
    uint32_t refs; /* sequences that hold it */
};

/* A sequence holds [0, n). Arrays have ctx_tokens + 1 entries. */
struct sim_seq {
    int32_t n;
    bool broken;                  /* a decode failed half way: nothing but clearing is allowed */
    bool complete;                /* the non-addressable state is that of n (always so without one) */
    int32_t since;                /* the non-addressable state was computed here from this position on … */
    int32_t high;                 /* … up to here at the most */
    int32_t window_p0, window_p1; /* positions of a window whose import is under way */
    uint64_t window_taint;        /* what is wrong with it */
    uint32_t *cells;              /* [i]: the cell of position i */
    sim_state *attn;              /* [i]: digest of cells [0, i) as attention sees them */
    sim_state *rec; /* [i]: non-addressable state at i; entries in [floor, n] are what a window still holds */
};

/* Set by tests from any thread. */
struct sim_fault {
    _Atomic uint32_t nth, left; /* 0: off */
    _Atomic bool every;
};

struct sim {
    struct hearth_engine base;
    struct hearth_sim_params params;
    struct hearth_trie text; /* the vocabulary's texts */
    sim_state origin;        /* state of the empty sequence */

    struct sim_cell *cells;
    uint32_t *free_cells;        /* stack */
    _Atomic uint32_t free_count; /* read by any thread, as `counted` is */
    struct sim_seq *seqs;

    sim_state *outputs; /* by batch index, of the last decode */
    bool *output_wanted;
    size_t output_count; /* size of the last batch that was computed */

    _Atomic int64_t now_ns; /* read by any thread, moved by the engine's */
    uint64_t seeds_drawn;   /* a "random" seed is the next one of a fixed series */
    struct sim_fault faults[HEARTH_SIM_FAULTS];
    struct {
        _Atomic uint64_t decoded_tokens, page_exports, page_imports, snapshot_exports, snapshot_imports, shared_tokens;
    } counted;
    char description[48];
};

static inline struct sim *hearth_sim_of(struct hearth_engine *engine) {
    return (struct sim *)engine;
}

/* The state after one more token. */
sim_state hearth_sim_state_step(sim_state state, hearth_token token);

int hearth_sim_state_init(struct sim *sim);
void hearth_sim_state_finish(struct sim *sim);
/* Computes one token at the end of a sequence that is complete; there is a free cell. Returns the new state. */
sim_state hearth_sim_state_extend(struct sim *sim, struct sim_seq *seq, hearth_token token);
/* Cells that a token takes (0 for a purely recurrent state). */
uint32_t hearth_sim_state_cells(const struct sim *sim, uint32_t tokens);
struct sim_seq *hearth_sim_state_seq(struct sim *sim, int32_t seq);

void hearth_sim_seq_clear(struct hearth_engine *engine, int32_t seq);
int32_t hearth_sim_seq_rewind_floor(struct hearth_engine *engine, int32_t seq, int32_t end);
int hearth_sim_seq_rewind(struct hearth_engine *engine, int32_t seq, int32_t n);
int hearth_sim_seq_keep(struct hearth_engine *engine, int32_t seq, int32_t n);
int hearth_sim_seq_share(struct hearth_engine *engine, int32_t src, int32_t dst, int32_t p0, int32_t p1);
int hearth_sim_page_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, struct hearth_buf *out);
int hearth_sim_page_import(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob,
                           size_t len, int32_t page_p0, int32_t page_p1);
int hearth_sim_snapshot_export(struct hearth_engine *engine, int32_t seq, int32_t pos, struct hearth_buf *out);
int hearth_sim_snapshot_import(struct hearth_engine *engine, int32_t seq, int32_t pos, const void *blob, size_t len);
int hearth_sim_window_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, struct hearth_buf *out);
int hearth_sim_window_import(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob,
                             size_t len, bool first);
/* Bytes of a piece of a window with so many positions. */
size_t hearth_sim_window_bytes(const struct sim *sim, int32_t tokens);

/* ---- sampling ---- */

struct hearth_sampler *hearth_sim_sampler_create(struct hearth_engine *engine, const struct hearth_sampling *sampling,
                                                 struct hearth_errmsg *msg);
void hearth_sim_sampler_destroy(struct hearth_engine *engine, struct hearth_sampler *sampler);
void hearth_sim_sampler_accept(struct hearth_engine *engine, struct hearth_sampler *sampler, hearth_token token,
                               unsigned flags);
hearth_token hearth_sim_sample(struct hearth_engine *engine, struct hearth_sampler *sampler, size_t index,
                               unsigned flags, struct hearth_sample_logprobs *logprobs);
void hearth_sim_token_logprobs(struct hearth_engine *engine, struct hearth_sampler *sampler, size_t index,
                               hearth_token token, struct hearth_sample_logprobs *logprobs);

/* ---- clock and faults ---- */

int64_t hearth_sim_now_us(struct hearth_engine *engine);
void hearth_sim_spend_ns(struct sim *sim, double ns);
/* True when this call of an operation is to fail. */
bool hearth_sim_fails(struct sim *sim, enum hearth_sim_fault fault);

#endif
