/* What the files of the llama engine share; no other file includes it. */
#ifndef HEARTH_ENGINE_LLAMA_ENGINE_H
#define HEARTH_ENGINE_LLAMA_ENGINE_H

#include "engine/fingerprint.h"
#include "engine/llama.h"

#include <llama.h>

struct hearth_llama {
    struct hearth_engine head; /* first: the vtable's functions cast */

    struct llama_model *model;
    struct llama_context *ctx;
    llama_memory_t mem;
    const struct llama_vocab *vocab;
    struct llama_adapter_lora *lora; /* freed with the model */
    struct ggml_threadpool *pool, *pool_batch;
    void (*pool_free)(struct ggml_threadpool *pool);

    /* The batch handed to llama_decode(), room for head.caps.batch_tokens. `seq` is what the batch's seq_id pointers
     * point at, so that filling in a sequence is one store. */
    struct llama_batch batch;
    llama_seq_id *seq;

    /* The sequence behind the lanes' through which pages go out and in; empty between calls. -1 for classes without
     * pages. */
    llama_seq_id scratch;
    bool deterministic; /* hearth_llama_params.deterministic */
    bool recurrent;     /* purely */
    bool hybrid;        /* attention and recurrent layers */
    int32_t n_swa;      /* sliding window, 0 = none */
    /* The partial blob (header and P) of an empty sequence. Importing it into a sequence empties the recurrent part;
     * its P ends every page. */
    struct hearth_buf empty_partial;
    /* With sliding windows only: the partial blob of a one-token sequence. Importing it into scratch replaces a window
     * that is about to be thrown away. */
    struct hearth_buf tiny_partial;

    struct hearth_llama_cuts *cuts; /* finds where long texts can be cut */
    struct hearth_tokens ends;      /* every token that ends generation */

    char *description;
    char *bos_text, *eos_text;
};

static inline struct hearth_llama *hearth_llama_of(struct hearth_engine *engine) {
    return (struct hearth_llama *)engine;
}

/* llama_log.c */
/* Sends llama.cpp's log to hearth's. Any thread; once per process is enough. */
void hearth_llama_log_install(void);
/* The last error that llama.cpp logged on this thread since the last reset, "" when none. */
const char *hearth_llama_log_error(void);
void hearth_llama_log_reset(void);
/* Whether that error says that no free cells were found. */
bool hearth_llama_log_no_cells(void);

/* llama_cuts.c */
struct hearth_llama_cuts;
/* NULL: out of memory. Borrows texts from the vocabulary. */
struct hearth_llama_cuts *hearth_llama_cuts_create(const struct llama_vocab *vocab);
void hearth_llama_cuts_destroy(struct hearth_llama_cuts *cuts); /* NULL is allowed */
/* The first place at or behind `from` where a text can be cut; `len`: there is none. `parse_special`: as it will be
 * tokenised. Any thread. */
size_t hearth_llama_cuts_next(const struct hearth_llama_cuts *cuts, const char *text, size_t len, size_t from,
                              bool parse_special);

/* llama_params.c */
enum hearth_llama_support { HEARTH_LLAMA_FULL, HEARTH_LLAMA_OPAQUE, HEARTH_LLAMA_REFUSED };
/* What an architecture supports; `*reason` (static text) says why not everything. */
enum hearth_llama_support hearth_llama_support(const char *architecture, const char **reason);
/* Replaces zeros by defaults and checks the rest. Errors: INVALID. */
int hearth_llama_params_complete(struct hearth_llama_params *params, struct hearth_errmsg *msg);
int hearth_llama_context_params(const struct hearth_llama_params *params, struct llama_context_params *out,
                                struct hearth_errmsg *msg);
/* Memory that can still be used without swapping; UINT64_MAX when unknown. Units: bytes. */
uint64_t hearth_llama_available_bytes(void);

/* How much memory of the process cannot be swapped out. Units: bytes. */
uint64_t hearth_llama_locked_bytes(void);

/* llama_place.c */
struct hearth_llama_placement {
    ggml_backend_dev_t *devices; /* ends with NULL; NULL: all */
    float *split;
    struct llama_model_tensor_buft_override *overrides; /* ends with a pattern NULL */
    struct llama_model_kv_override *metadata;           /* ends with an empty key */
    size_t overrides_n, metadata_n;
    char **texts; /* the strings that all of these point at */
    size_t texts_n;
};
/* Decides where the model goes and how it is read. `out` points into `place`; finish `place` also after an error.
 * Errors: INVALID, NOMEM. */
int hearth_llama_place(const struct hearth_llama_params *params, struct hearth_llama_placement *place,
                       struct llama_model_params *out, struct hearth_errmsg *msg);
void hearth_llama_place_finish(struct hearth_llama_placement *place);
/* Whether the model is locked into RAM. */
bool hearth_llama_wants_lock(const struct hearth_llama_params *params);

/* llama_threads.c */
/* Checks --cpu-mask and --cpu-range. Errors: INVALID. */
int hearth_llama_cpus_check(const struct hearth_llama_params *params, struct hearth_errmsg *msg);
/* Attaches threads that live as long as the context. A failure only costs speed. */
void hearth_llama_attach_threads(struct hearth_llama *llama, const struct hearth_llama_params *params);

/* llama_state.c */
/* Finds the class and measures sizes with a few decoded tokens; fills the class, page_bytes_per_token and
 * snapshot_bytes of the capabilities. Errors: ENGINE, NOMEM. */
int hearth_llama_probe(struct hearth_llama *llama, bool opaque, struct hearth_errmsg *msg);
void hearth_llama_seq_clear(struct hearth_engine *engine, int32_t seq);
int32_t hearth_llama_seq_rewind_floor(struct hearth_engine *engine, int32_t seq, int32_t end);
int hearth_llama_seq_rewind(struct hearth_engine *engine, int32_t seq, int32_t n);
int hearth_llama_seq_keep(struct hearth_engine *engine, int32_t seq, int32_t n);
int hearth_llama_seq_share(struct hearth_engine *engine, int32_t src, int32_t dst, int32_t p0, int32_t p1);
int hearth_llama_page_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, struct hearth_buf *out);
int hearth_llama_page_import(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob,
                             size_t len, int32_t page_p0, int32_t page_p1);
int hearth_llama_snapshot_export(struct hearth_engine *engine, int32_t seq, int32_t pos, struct hearth_buf *out);
int hearth_llama_snapshot_import(struct hearth_engine *engine, int32_t seq, int32_t pos, const void *blob, size_t len);
int hearth_llama_window_export(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1,
                               struct hearth_buf *out);
int hearth_llama_window_import(struct hearth_engine *engine, int32_t seq, int32_t p0, int32_t p1, const void *blob,
                               size_t len, bool first);

/* llama_sample.c */
struct hearth_sampler *hearth_llama_sampler_create(struct hearth_engine *engine, const struct hearth_sampling *sampling,
                                                   struct hearth_errmsg *msg);
void hearth_llama_sampler_destroy(struct hearth_engine *engine, struct hearth_sampler *sampler);
void hearth_llama_sampler_accept(struct hearth_engine *engine, struct hearth_sampler *sampler, hearth_token token,
                                 unsigned flags);
hearth_token hearth_llama_sample(struct hearth_engine *engine, struct hearth_sampler *sampler, size_t index,
                                 unsigned flags, struct hearth_sample_logprobs *logprobs);
void hearth_llama_token_logprobs(struct hearth_engine *engine, struct hearth_sampler *sampler, size_t index,
                                 hearth_token token, struct hearth_sample_logprobs *logprobs);

/* llama_text.c */
int hearth_llama_tokenize(struct hearth_engine *engine, const char *text, size_t len, bool add_special,
                          bool parse_special, struct hearth_tokens *out);
size_t hearth_llama_token_text(struct hearth_engine *engine, hearth_token token, bool special, char *out, size_t cap);
bool hearth_llama_token_is_end(struct hearth_engine *engine, hearth_token token);
bool hearth_llama_token_is_user_defined(struct hearth_engine *engine, hearth_token token);
/* The text of a token as a new string, "" for LLAMA_TOKEN_NULL; NULL when out of memory. */
char *hearth_llama_token_string(struct hearth_llama *llama, hearth_token token);

#endif
