/* The engine: the part that computes, behind one vtable.
 *
 * There are two engines: `llama` (llama.cpp's C API; besides src/chat the only place that includes llama.h) and `sim`
 * (deterministic, with a virtual clock; for tests and for work on policies).
 *
 * State comes in two kinds. *Addressable* state (attention K/V) belongs to positions: a range of it can be shared,
 * exported and imported. *Non-addressable* state (recurrent state, sliding window) belongs to a sequence at exactly
 * one position. The memory class says which of them a model has:
 *
 *   class            addressable  non-addressable   position n can be resumed when
 *   PAGES            all          -                 pages cover [0, n)
 *   PAGES_SNAPSHOT   part         rest              pages cover [0, n) and a snapshot exists at n
 *   SNAPSHOT         -            all               a snapshot exists at n
 *   OPAQUE           -            all, as one blob  a snapshot exists at n
 *
 * The rest of a PAGES_SNAPSHOT model may be a sliding window (caps.window_tokens): it belongs to positions, too, but a
 * sequence holds only the last ones. While it holds them, pieces of it go out, and position n can also be resumed when
 * pieces cover [n - window_tokens, n).
 *
 * Threads: unless a declaration says otherwise, everything here belongs to the one thread that drives the engine.
 * Positions are 0-based token indices of a sequence; ranges are half-open. Sequences are 0 … caps.seqs-1; whatever
 * scratch sequences an engine needs are its own. */
#ifndef HEARTH_ENGINE_ENGINE_H
#define HEARTH_ENGINE_ENGINE_H

#include "base/buf.h"
#include "base/digest.h"
#include "base/err.h"
#include "grammar/grammar.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Most guessed tokens that are computed behind the due one. */
#define HEARTH_DRAFT_MAX 16

#define HEARTH_ENGINE_CLASS_TABLE(X)      \
    X(PAGES, "pages")                     \
    X(PAGES_SNAPSHOT, "pages + snapshot") \
    X(SNAPSHOT, "snapshot")               \
    X(OPAQUE, "opaque")

enum hearth_engine_class {
#define X(name, text) HEARTH_ENGINE_##name,
    HEARTH_ENGINE_CLASS_TABLE(X)
#undef X
};

const char *hearth_engine_class_text(enum hearth_engine_class memory_class);

/* Tokens for filling in the middle: they mark the code around a gap, and other files; -1: the vocabulary has none. */
struct hearth_fim {
    hearth_token prefix, suffix, middle, repo, file;
};

/* What an engine is and can do. Filled at creation and constant afterwards (any thread may read it); the engine owns
 * the strings. */
struct hearth_caps {
    enum hearth_engine_class memory_class;
    bool cache_ok;             /* the self-test at load passed; false: state must not be reused */
    uint32_t lanes;            /* most sequences in one batch; any sequences may be chosen */
    uint32_t seqs;             /* all sequences: as many as lanes, and parked ones, on which nothing is computed */
    uint32_t ctx_tokens;       /* cells, and also the length of the longest sequence */
    uint32_t train_ctx_tokens; /* context size the model was trained with */
    uint32_t batch_tokens;     /* most tokens in one decode */
    uint32_t ubatch_tokens;    /* tokens that decode computes at once: the natural prefill chunk */
    uint32_t outputs;          /* most outputs of one batch; at least one for each sequence */
    int32_t rewind_tokens;     /* seq_rewind() can always take back so many tokens of the last decode */
    bool batch_exact;          /* a token's logits and state are the same, to the bit, whether it is decoded alone or
                                * together with up to HEARTH_DRAFT_MAX others of its sequence; while nothing else is
                                * in the batch */
    uint32_t vocab_tokens;
    size_t token_bytes;            /* longest text of one token, in bytes; 0: unknown */
    size_t page_bytes_per_token;   /* addressable state, about */
    size_t snapshot_bytes;         /* non-addressable state of a sequence, about (OPAQUE: of an average one) */
    int32_t window_tokens;         /* > 0: the non-addressable state is a sliding window, in which a token sees so many
                                      positions before its own; 0: it is not */
    size_t window_bytes_per_token; /* of a window: its state at one position, about */
    uint64_t model_bytes;          /* size of the weights */
    uint64_t model_params;
    struct hearth_digest fingerprint; /* engines with equal fingerprints can exchange state; see engine/fingerprint.h */
    hearth_token end_token;           /* a token that ends generation; -1: the vocabulary has none */
    struct hearth_fim fim;
    bool add_bos;                    /* the tokenizer puts a BOS token in front if add_special is set */
    const char *description;         /* for example "llama 135M Q4_1" */
    const char *chat_template;       /* Jinja text from the model, or NULL */
    const char *bos_text, *eos_text; /* "" when the vocabulary has none */
};

/* One token of a batch. Tokens of one sequence stand in order and continue the sequence at its end. */
struct hearth_batch_item {
    hearth_token token;
    int32_t seq;
    int32_t pos;
    bool output; /* logits are wanted: the item's index can be sampled from until the next decode. At most caps.outputs
                    per batch, for which memory is reserved */
};

struct hearth_logit_bias {
    hearth_token token;
    float bias;
};

/* How to choose the next token. temperature <= 0 is greedy. Filled by hearth_sampling_default(). */
struct hearth_sampling {
    float temperature;           /* 0.8 */
    float top_p;                 /* 0.95; 1 = off */
    float min_p;                 /* 0.05; 0 = off */
    float typical_p;             /* 1 = off */
    int32_t top_k;               /* 40; 0 = off */
    uint32_t seed;               /* HEARTH_SEED_RANDOM: a random one */
    int32_t penalty_last_tokens; /* 64 */
    float penalty_repeat;        /* 1 = off */
    float penalty_frequency;     /* 0 = off */
    float penalty_presence;      /* 0 = off */
    float top_n_sigma;           /* -1; 0 and less = off */
    float xtc_probability;       /* 0 = off */
    float xtc_threshold;         /* 0.1; above 0.5 = off */
    float dynatemp_range;        /* 0 = off: the temperature is constant */
    float dynatemp_exponent;     /* 1 */
    float dry_multiplier;        /* 0 = off: a penalty on sequences that have occurred */
    float dry_base;              /* 1.75 */
    int32_t dry_allowed_length;  /* 2 */
    int32_t dry_last_tokens;     /* 64 */
    int32_t logprobs;            /* alternatives to report per token; -1: no logprobs */
    bool ignore_eos;
    const struct hearth_logit_bias *logit_bias; /* borrowed until the sampler is created */
    size_t logit_biases;
    const struct hearth_grammar *grammar; /* borrowed until the sampler is created; NULL: none */
};

/* How one token is chosen, or shown to a sampler. */
enum hearth_sample_flags {
    HEARTH_SAMPLE_FREE = 1,    /* not under the grammar, which does not see the token (reasoning) */
    HEARTH_SAMPLE_PROMPT = 2,  /* accept only: a token of the prompt: penalties see it, the grammar does not */
    HEARTH_SAMPLE_GRAMMAR = 4, /* accept only: the grammar sees it, penalties do not */
};

#define HEARTH_SEED_RANDOM 0xFFFFFFFFu
#define HEARTH_LOGPROBS_MAX 20

void hearth_sampling_default(struct hearth_sampling *sampling);
/* Whether every number is valid for sampling. Errors: INVALID, with a message. */
int hearth_sampling_check(const struct hearth_sampling *sampling, const struct hearth_caps *caps,
                          struct hearth_errmsg *msg);
/* Whether a penalty is on, and how many of the prompt's last tokens the sampler must be shown for it (lookback; -1:
 * all). */
bool hearth_sampling_penalises(const struct hearth_sampling *sampling);
int32_t hearth_sampling_lookback(const struct hearth_sampling *sampling);

/* Log-probabilities of a sampled token and of the best alternatives, from the unmodified logits. */
struct hearth_sample_logprobs {
    float chosen;
    int32_t n;
    hearth_token token[HEARTH_LOGPROBS_MAX];
    float logprob[HEARTH_LOGPROBS_MAX];
};

/* The head of every sampler. A sampler belongs to the engine that made it. */
struct hearth_sampler {
    struct hearth_grammar_constraint *constraint; /* the grammar, or NULL */
};

/* Whether the sampler's grammar applies to a token that is sampled or accepted with these flags. */
static inline bool hearth_sampler_constrains(const struct hearth_sampler *sampler, unsigned flags) {
    return sampler->constraint != NULL && (flags & (HEARTH_SAMPLE_FREE | HEARTH_SAMPLE_PROMPT)) == 0;
}

struct hearth_engine;

struct hearth_engine_ops {
    void (*destroy)(struct hearth_engine *engine);

    /* Computes a batch. Errors: NO_CELLS (nothing was computed: free cells and try again), ENGINE (clear all sequences
     * of the batch), CANCELLED. */
    int (*decode)(struct hearth_engine *engine, const struct hearth_batch_item *items, size_t n);

    /* Samplers. `sample` chooses from the logits of batch item `index` of the last decode and accepts the token;
     * `logprobs` may be NULL. `accept` shows the sampler a token it did not choose. `flags` are of enum
     * hearth_sample_flags. `sampler_create` returns NULL with a message in `msg` (a grammar that does not parse, too).
     *
     * Under a grammar `sample` never returns a token that the grammar refuses; an end token comes only where the
     * grammar is complete, or where no token of the vocabulary can go on. A token that was accepted without being
     * sampled and that the grammar refuses ends the grammar's rule over the reply. */
    struct hearth_sampler *(*sampler_create)(struct hearth_engine *engine, const struct hearth_sampling *sampling,
                                             struct hearth_errmsg *msg);
    void (*sampler_destroy)(struct hearth_engine *engine, struct hearth_sampler *sampler);
    void (*sampler_accept)(struct hearth_engine *engine, struct hearth_sampler *sampler, hearth_token token,
                           unsigned flags);
    hearth_token (*sample)(struct hearth_engine *engine, struct hearth_sampler *sampler, size_t index, unsigned flags,
                           struct hearth_sample_logprobs *logprobs);
    /* Reports what `sample` would have reported if it had chosen this token, from the logits of batch item `index`. */
    void (*token_logprobs)(struct hearth_engine *engine, struct hearth_sampler *sampler, size_t index,
                           hearth_token token, struct hearth_sample_logprobs *logprobs);
    /* Whether sampler_create() would accept this grammar: INVALID with a message, or OK. Any thread. The member is NULL
     * in engines that ignore grammars. */
    int (*grammar_check)(struct hearth_engine *engine, const char *text, struct hearth_errmsg *msg);

    /* Sequences. */
    /* Empties a sequence. Never fails. */
    void (*seq_clear)(struct hearth_engine *engine, int32_t seq);
    /* The lowest n to which `seq`, which holds [0, end), can be rewound without a snapshot: 0 for PAGES, `end` if it
     * cannot be rewound, in between for a sliding window that still holds older cells. */
    int32_t (*seq_rewind_floor)(struct hearth_engine *engine, int32_t seq, int32_t end);
    /* Keeps [0, n) of a sequence, n >= its rewind floor; the sequence is then complete at n. Errors: STATE (the
     * sequence is empty afterwards). */
    int (*seq_rewind)(struct hearth_engine *engine, int32_t seq, int32_t n);
    /* Keeps the addressable state [0, n); the sequence is incomplete until a snapshot is imported at n (which PAGES
     * does not need). For classes without addressable state the same as seq_clear. */
    int (*seq_keep)(struct hearth_engine *engine, int32_t seq, int32_t n);
    /* Shares the addressable state [p0, p1) of `src` with `dst`, which ends at p0. Costs no cells. `dst` is
     * incomplete as after seq_keep. */
    int (*seq_share)(struct hearth_engine *engine, int32_t src, int32_t dst, int32_t p0, int32_t p1);

    /* State out and in. Blobs are only meaningful to an engine with the same fingerprint. `out` is appended to.
     * `import` of a page puts its positions [p0, p1) behind `seq`, which ends at p0, where the blob was exported as
     * [page_p0, page_p1) and page_p0 <= p0 < p1 <= page_p1; it needs page_p1 - page_p0 free cells for a moment.
     * `snapshot_import` completes a sequence whose addressable state is [0, pos).
     * Errors: STATE, NO_CELLS, NOMEM; after an error of an import the sequence is empty. */
    int (*page_export)(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, struct hearth_buf *out);
    int (*page_import)(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob, size_t len,
                       int32_t page_p0, int32_t page_p1);
    int (*snapshot_export)(struct hearth_engine *engine, int32_t seq, int32_t pos, struct hearth_buf *out);
    int (*snapshot_import)(struct hearth_engine *engine, int32_t seq, int32_t pos, const void *blob, size_t len);
    /* Pieces of a sliding window (caps.window_tokens > 0). Of a sequence that ends at n and has a rewind floor f, all
     * positions from f - window_tokens on can be exported, 1 to window_tokens + 1 of them in a piece; the window's
     * snapshot at n is the piece [n - window_tokens, n) as well. A window is imported behind all pages, piece by piece
     * in ascending order without gaps. The `first` drops what the sequence held of its window; all of a piece is taken
     * but of the last one, which may be cut: its p1 is where the sequence ends, which is complete then when the pieces
     * cover as much as a token sees. Errors: as above; of an export STATE: it is not held. */
    int (*window_export)(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, struct hearth_buf *out);
    int (*window_import)(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob,
                         size_t len, bool first);

    /* Text; any thread. `tokenize` appends to `out`. `token_text` writes at most `cap` bytes and returns the length
     * the text has (bytes may be part of a character); `special` prints control tokens too. */
    int (*tokenize)(struct hearth_engine *engine, const char *text, size_t len, bool add_special, bool parse_special,
                    struct hearth_tokens *out);
    size_t (*token_text)(struct hearth_engine *engine, hearth_token token, bool special, char *out, size_t cap);
    bool (*token_is_end)(struct hearth_engine *engine, hearth_token token);
    /* Whether a token is user-defined: such tokens are recognised in text even where control tokens are not. */
    bool (*token_is_user_defined)(struct hearth_engine *engine, hearth_token token);

    /* Time as the engine sees it: the monotonic clock, or sim's virtual one. Units: microseconds. Any thread. */
    int64_t (*now_us)(struct hearth_engine *engine);

    /* For tests: the raw logits of batch item `index` of the last decode, caps.vocab_tokens floats. The engine owns
     * them; they are valid until the next decode. The member is NULL in engines without logits. */
    const float *(*logits)(struct hearth_engine *engine, size_t index);
};

/* The head of every engine. */
struct hearth_engine {
    const struct hearth_engine_ops *ops;
    struct hearth_caps caps;
    /* For grammars; made when the first one comes. It has room for one answer per token. */
    struct hearth_grammar_vocabulary *vocabulary;
    uint8_t *allowed;
};

static inline bool hearth_caps_has_pages(const struct hearth_caps *caps) {
    return caps->memory_class == HEARTH_ENGINE_PAGES || caps->memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT;
}
static inline bool hearth_caps_needs_snapshot(const struct hearth_caps *caps) {
    return caps->memory_class != HEARTH_ENGINE_PAGES;
}

/* Appends the text of a token of any length; `special`: also that of control tokens. False: out of memory. Any thread.
 */
bool hearth_engine_append_text(struct hearth_engine *engine, hearth_token token, bool special, struct hearth_buf *out);

/* The engine's tokens in the form that grammars need; valid as long as the engine. */
struct hearth_grammar_tokens hearth_engine_grammar_tokens(struct hearth_engine *engine);
/* Puts a sampler under a grammar. Errors: INVALID (the grammar), NOMEM. */
int hearth_engine_constrain(struct hearth_engine *engine, const struct hearth_grammar *grammar,
                            struct hearth_sampler *sampler, struct hearth_errmsg *msg);
/* Frees what the head of an engine owns. */
void hearth_engine_finish(struct hearth_engine *engine);
/* hearth_grammar_check() with an engine's tokens: the member grammar_check of engines that follow grammars. */
int hearth_engine_grammar_check(struct hearth_engine *engine, const char *text, struct hearth_errmsg *msg);

/* The longest text of a token in bytes, control tokens included. It is caps.token_bytes if tokens are pieces of the
 * unchanged text. */
size_t hearth_engine_longest_token(struct hearth_engine *engine);

/* Takes a short sequence out and back in by every mechanism of the class, and compares logits. Uses sequence 0, which
 * must be empty before and is empty afterwards. True: every comparison is exact; otherwise `msg` says what differed. If
 * only pieces of a window fail, caps.window_tokens becomes 0. hearth_llama_create() calls it. */
bool hearth_engine_selftest(struct hearth_engine *engine, struct hearth_errmsg *msg);

/* Whether a few tokens give the same logits, to the bit, together and one by one. Uses sequence 0 as above. False if
 * the engine has no logits. */
bool hearth_engine_batch_exact(struct hearth_engine *engine);

/* Whether a prompt gives the same logits, to the bit, in one batch and in several, beside another sequence with cells
 * among its own. Uses sequences 0 and 1 as above. */
bool hearth_engine_splits_exact(struct hearth_engine *engine);

#endif
