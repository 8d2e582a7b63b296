/* The llama engine: loading a model, making its context, and the decode step.
 *
 * llama.cpp answers some faults of a file with an abort, so faults are found before llama.cpp sees the file: the
 * GGUF is inspected first, architectures that are known to abort are refused by name, and a context that cannot fit
 * is refused by arithmetic (the kernel would promise the memory and kill the process later).
 *
 * One context serves all lanes: unified KV, one sequence per lane, parked ones, and one through which pages travel
 * (llama_state.c). The thread that drives the engine owns the context; tokenising needs only the vocabulary and may
 * happen on any thread. */
#include "engine/llama_engine.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"

#include <ggml-cpu.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)
#define OUTPUT_BYTES_MAX ((uint64_t)32 << 20)

const char *hearth_llama_version(void) {
    return llama_version();
}

/* ---- decode ---- */

/* Selects how ggml computes the rows of a batch, if llama.cpp was built with patches/llama.cpp. The batch of one
 * sequence is its due token and the guesses behind it. Guesses are exact if each of their rows is what it would be
 * alone. */
#ifdef HEARTH_GGML_PATCHED

static const bool patched = true;
_Static_assert(1 + HEARTH_DRAFT_MAX <= GGML_HEARTH_APART_MAX, "a guess is computed row by row");

static enum ggml_hearth_mode row_mode(const struct hearth_llama *llama, const struct hearth_batch_item *items,
                                      size_t n) {
    bool one = n <= GGML_HEARTH_APART_MAX;
    for (size_t i = 1; i < n && one; i++) {
        one = items[i].seq == items[0].seq;
    }
    return llama->deterministic ? GGML_HEARTH_UNORDERED : one ? GGML_HEARTH_APART : GGML_HEARTH_BLOCKS;
}

/* Computes a batch. The mode belongs to the process, so only one engine computes at a time. */
static int32_t decode_batch(struct hearth_llama *llama, const struct hearth_batch_item *items, size_t n) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&one);
    ggml_hearth_set((int64_t)n, row_mode(llama, items, n));
    int32_t rc = llama_decode(llama->ctx, llama->batch);
    pthread_mutex_unlock(&one);
    return rc;
}

#else

static const bool patched = false;

static int32_t decode_batch(struct hearth_llama *llama, const struct hearth_batch_item *items, size_t n) {
    (void)items;
    (void)n;
    return llama_decode(llama->ctx, llama->batch);
}

#endif

static int llama_decode_items(struct hearth_engine *engine, const struct hearth_batch_item *items, size_t n) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    HEARTH_ASSERT(n > 0 && n <= engine->caps.batch_tokens);
    struct llama_batch *batch = &llama->batch;
    size_t outputs = 0;
    for (size_t i = 0; i < n; i++) {
        HEARTH_ASSERT(items[i].seq >= 0 && (uint32_t)items[i].seq < engine->caps.seqs);
        batch->token[i] = items[i].token;
        batch->pos[i] = items[i].pos;
        llama->seq[i] = items[i].seq;
        batch->logits[i] = items[i].output;
        outputs += items[i].output;
    }
    HEARTH_ASSERT(outputs <= engine->caps.outputs); /* llama.cpp reserved room for no more and would abort */
    batch->n_tokens = (int32_t)n;
    switch (decode_batch(llama, items, n)) {
    case 0: return HEARTH_OK;
    case 1: return HEARTH_ERR_NO_CELLS;
    case 2: return HEARTH_ERR_CANCELLED;
    default: return HEARTH_ERR_ENGINE;
    }
}

static const float *llama_logits(struct hearth_engine *engine, size_t index) {
    return llama_get_logits_ith(hearth_llama_of(engine)->ctx, (int32_t)index);
}

static int64_t llama_now_us(struct hearth_engine *engine) {
    (void)engine;
    return hearth_clock_us();
}

/* ---- destroy ---- */

static void batch_finish(struct hearth_llama *llama) {
    free(llama->batch.token);
    free(llama->batch.pos);
    free(llama->batch.n_seq_id);
    free(llama->batch.seq_id);
    free(llama->batch.logits);
    free(llama->seq);
}

static void llama_destroy(struct hearth_engine *engine) {
    struct hearth_llama *llama = hearth_llama_of(engine);
    if (llama->ctx != NULL) {
        llama_detach_threadpool(llama->ctx);
        llama_free(llama->ctx);
    }
    if (llama->pool_free != NULL) {
        llama->pool_free(llama->pool);
        llama->pool_free(llama->pool_batch);
    }
    if (llama->model != NULL) {
        llama_model_free(llama->model); /* frees the adapter, too */
    }
    batch_finish(llama);
    hearth_buf_finish(&llama->empty_partial);
    hearth_buf_finish(&llama->tiny_partial);
    hearth_engine_finish(engine);
    hearth_tokens_finish(&llama->ends);
    hearth_llama_cuts_destroy(llama->cuts);
    free(llama->description);
    free(llama->bos_text);
    free(llama->eos_text);
    free(llama);
}

static const struct hearth_engine_ops ops = {
    .destroy = llama_destroy,
    .decode = llama_decode_items,
    .sampler_create = hearth_llama_sampler_create,
    .sampler_destroy = hearth_llama_sampler_destroy,
    .sampler_accept = hearth_llama_sampler_accept,
    .sample = hearth_llama_sample,
    .token_logprobs = hearth_llama_token_logprobs,
    .grammar_check = hearth_engine_grammar_check,
    .seq_clear = hearth_llama_seq_clear,
    .seq_rewind_floor = hearth_llama_seq_rewind_floor,
    .seq_rewind = hearth_llama_seq_rewind,
    .seq_keep = hearth_llama_seq_keep,
    .seq_share = hearth_llama_seq_share,
    .page_export = hearth_llama_page_export,
    .page_import = hearth_llama_page_import,
    .snapshot_export = hearth_llama_snapshot_export,
    .snapshot_import = hearth_llama_snapshot_import,
    .window_export = hearth_llama_window_export,
    .window_import = hearth_llama_window_import,
    .tokenize = hearth_llama_tokenize,
    .token_text = hearth_llama_token_text,
    .token_is_end = hearth_llama_token_is_end,
    .token_is_user_defined = hearth_llama_token_is_user_defined,
    .now_us = llama_now_us,
    .logits = llama_logits,
};

/* ---- create, step by step ---- */

static void backend_init(void) {
    hearth_llama_log_install();
    ggml_backend_load_all();
    llama_backend_init();
}

/* Sets NUMA for the whole process; the first setting stays. */
static void set_numa(const char *name) {
    static const struct {
        const char *name;
        enum ggml_numa_strategy strategy;
    } strategies[] = {{"distribute", GGML_NUMA_STRATEGY_DISTRIBUTE},
                      {"isolate", GGML_NUMA_STRATEGY_ISOLATE},
                      {"numactl", GGML_NUMA_STRATEGY_NUMACTL}};
    for (size_t i = 0; name != NULL && i < sizeof strategies / sizeof strategies[0]; i++) {
        if (strcmp(name, strategies[i].name) == 0) {
            llama_numa_init(strategies[i].strategy);
        }
    }
}

/* Fills `msg` with `what` and, if llama.cpp gave one, the reason. */
static int fail_with_reason(struct hearth_errmsg *msg, int err, const char *what, const char *path) {
    const char *reason = hearth_llama_log_error();
    return reason[0] != '\0' ? hearth_fail(msg, err, "%s %s: %s", what, path, reason)
                             : hearth_fail(msg, err, "%s %s", what, path);
}

struct load_progress {
    void (*callback)(void *user, float fraction);
    void *user;
};

static bool report_progress(float fraction, void *user) {
    struct load_progress *progress = user;
    if (progress->callback != NULL) {
        progress->callback(progress->user, fraction);
    }
    return true;
}

static int load_model(struct hearth_llama *llama, const struct hearth_llama_params *params, struct hearth_errmsg *msg) {
    struct hearth_llama_placement place;
    struct llama_model_params p;
    struct load_progress progress = {params->progress, params->progress_user};
    int err = hearth_llama_place(params, &place, &p, msg);
    if (err == HEARTH_OK) {
        p.progress_callback = report_progress; /* never NULL: llama.cpp would print dots */
        p.progress_callback_user_data = &progress;
        hearth_llama_log_reset();
        llama->model = llama_model_load_from_file(params->model_path, p);
        err = llama->model != NULL ? HEARTH_OK
                                   : fail_with_reason(msg, HEARTH_ERR_INVALID, "cannot load", params->model_path);
    }
    hearth_llama_place_finish(&place);
    if (err != HEARTH_OK) {
        return err;
    }
    if (hearth_llama_wants_lock(params) && hearth_llama_locked_bytes() < llama_model_size(llama->model) / 2) {
        hearth_log(HEARTH_LOG_WARN, "the system does not let the model be locked into RAM (see ulimit -l)");
    }
    llama->vocab = llama_model_get_vocab(llama->model);
    llama->deterministic = params->deterministic;
    llama->recurrent = llama_model_is_recurrent(llama->model);
    llama->hybrid = llama_model_is_hybrid(llama->model);
    llama->n_swa = llama_model_n_swa(llama->model);

    const char *refusal = NULL;
    if (llama_model_has_encoder(llama->model) || !llama_model_has_decoder(llama->model)) {
        refusal = "encoder and encoder-decoder models are not supported";
    } else if (llama_model_is_diffusion(llama->model)) {
        refusal = "a diffusion model does not generate text from left to right";
    } else if (llama_vocab_type(llama->vocab) == LLAMA_VOCAB_TYPE_NONE) {
        refusal = "it has no tokenizer";
    }
    return refusal == NULL
               ? HEARTH_OK
               : hearth_fail(msg, HEARTH_ERR_UNSUPPORTED, "%s cannot be served: %s", params->model_path, refusal);
}

static int load_lora(struct hearth_llama *llama, const struct hearth_llama_params *params, struct hearth_errmsg *msg) {
    if (params->lora_path == NULL) {
        return HEARTH_OK;
    }
    hearth_llama_log_reset();
    llama->lora = llama_adapter_lora_init(llama->model, params->lora_path);
    if (llama->lora == NULL) {
        return fail_with_reason(msg, HEARTH_ERR_INVALID, "cannot load the LoRA adapter", params->lora_path);
    }
    /* An activated LoRA changes the state from a token of the prompt on: its state is not a function of the
     * tokens and the fingerprint. */
    if (llama_adapter_get_alora_n_invocation_tokens(llama->lora) > 0) {
        return hearth_fail(msg, HEARTH_ERR_UNSUPPORTED, "%s is an activated LoRA, which is not supported",
                           params->lora_path);
    }
    return HEARTH_OK;
}

/* Makes the context that `p` describes. `p` returns the values that were used (llama.cpp may decide on flash
 * attention). */
static int make_context(struct hearth_llama *llama, const struct hearth_llama_params *params,
                        struct llama_context_params *p, struct hearth_errmsg *msg) {
    hearth_llama_log_reset();
    llama->ctx = llama_init_from_model(llama->model, *p);
    if (llama->ctx == NULL && p->flash_attn_type == LLAMA_FLASH_ATTN_TYPE_ENABLED) {
        p->flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
        llama->ctx = llama_init_from_model(llama->model, *p);
    }
    if (llama->ctx == NULL) {
        bool memory = strstr(hearth_llama_log_error(), "alloc") != NULL;
        return fail_with_reason(msg, memory ? HEARTH_ERR_NOMEM : HEARTH_ERR_ENGINE,
                                memory ? "not enough memory for a context of" : "cannot make a context for",
                                params->model_path);
    }
    llama->mem = llama_get_memory(llama->ctx);
    if (llama->mem == NULL || !llama_get_causal_attn(llama->ctx)) {
        return hearth_fail(msg, HEARTH_ERR_UNSUPPORTED,
                           "%s cannot be served: an embedding model does not generate text", params->model_path);
    }
    if (llama->lora != NULL) {
        float scale = params->lora_scale;
        if (llama_set_adapters_lora(llama->ctx, &llama->lora, 1, &scale) != 0) {
            return fail_with_reason(msg, HEARTH_ERR_INVALID, "cannot apply the LoRA adapter", params->lora_path);
        }
    }
    return HEARTH_OK;
}

static bool batch_init(struct hearth_llama *llama, size_t n) {
    llama->batch = (struct llama_batch){
        .token = calloc(n, sizeof *llama->batch.token),
        .pos = calloc(n, sizeof *llama->batch.pos),
        .n_seq_id = calloc(n, sizeof *llama->batch.n_seq_id),
        .seq_id = calloc(n + 1, sizeof *llama->batch.seq_id),
        .logits = calloc(n, sizeof *llama->batch.logits),
    };
    llama->seq = calloc(n, sizeof *llama->seq);
    if (llama->batch.token == NULL || llama->batch.pos == NULL || llama->batch.n_seq_id == NULL ||
        llama->batch.seq_id == NULL || llama->batch.logits == NULL || llama->seq == NULL) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        llama->batch.n_seq_id[i] = 1;
        llama->batch.seq_id[i] = &llama->seq[i];
    }
    return true;
}

/* Refuses a context whose KV cache and attention mask cannot fit into memory: allocating them would succeed (the kernel
 * overcommits) and touching them would kill the process, or fail after a minute. Only a context that could come near
 * the limit is worth an exact measurement, which takes a small context of its own. */
static int check_memory(struct hearth_llama *llama, const struct hearth_llama_params *params,
                        const struct llama_context_params *full, bool opaque, struct hearth_errmsg *msg) {
    uint64_t available = hearth_llama_available_bytes();
    uint64_t ctx_tokens = full->n_ctx != 0 ? full->n_ctx : (uint64_t)llama_model_n_ctx_train(llama->model);
    /* The mask has, for each position, a value for each token that is computed at once. */
    uint64_t mask_bytes = (full->n_ubatch < ctx_tokens ? full->n_ubatch : ctx_tokens) * sizeof(uint16_t);
    uint64_t most_bytes = ctx_tokens * ((uint64_t)llama_model_n_layer(llama->model) *
                                            (uint64_t)llama_model_n_embd(llama->model) * 2 * sizeof(float) +
                                        mask_bytes);
    if (most_bytes < available / 2 || llama_supports_gpu_offload()) {
        return HEARTH_OK;
    }
    struct llama_context_params small = *full;
    small.n_ctx = 256;
    small.n_batch = small.n_ubatch = 32;
    small.n_seq_max = small.n_outputs_max = 1;
    int err = make_context(llama, params, &small, msg);
    err = err == HEARTH_OK ? hearth_llama_probe(llama, opaque, msg) : err;
    if (llama->ctx != NULL) {
        llama_free(llama->ctx);
        llama->ctx = NULL;
    }
    const uint64_t page_bytes = llama->head.caps.page_bytes_per_token, token_bytes = page_bytes + mask_bytes;
    if (err == HEARTH_OK && page_bytes > 0 && ctx_tokens > available / token_bytes) {
        err = hearth_fail(msg, HEARTH_ERR_NOMEM,
                          "not enough memory: a context of %llu tokens needs %.0f MiB and %.0f MiB are free; "
                          "at most -c %llu fits",
                          (unsigned long long)ctx_tokens, (double)ctx_tokens * (double)token_bytes / MIB,
                          (double)available / MIB, (unsigned long long)(available / token_bytes / 10 * 9 / 256 * 256));
    }
    return err;
}

/* Collects the tokens that end generation, and those at which texts are cut. */
static int collect_tokens(struct hearth_llama *llama) {
    for (llama_token token = 0; token < llama_vocab_n_tokens(llama->vocab); token++) {
        if (llama_vocab_is_eog(llama->vocab, token) && !hearth_tokens_push(&llama->ends, token)) {
            return HEARTH_ERR_NOMEM;
        }
    }
    llama->cuts = hearth_llama_cuts_create(llama->vocab);
    return llama->cuts != NULL ? HEARTH_OK : HEARTH_ERR_NOMEM;
}

/* Fills the capabilities except the memory class and its sizes. */
static int fill_caps(struct hearth_llama *llama, const struct hearth_llama_params *params) {
    struct hearth_caps *caps = &llama->head.caps;
    caps->lanes = params->lanes;
    caps->seqs = params->lanes + params->parked_seqs;
    caps->ctx_tokens = llama_n_ctx(llama->ctx);
    caps->train_ctx_tokens = (uint32_t)llama_model_n_ctx_train(llama->model);
    caps->batch_tokens = llama_n_batch(llama->ctx);
    caps->ubatch_tokens = llama_n_ubatch(llama->ctx);
    caps->vocab_tokens = (uint32_t)llama_vocab_n_tokens(llama->vocab);
    const enum llama_vocab_type type = llama_vocab_type(llama->vocab);
    if (type == LLAMA_VOCAB_TYPE_SPM || type == LLAMA_VOCAB_TYPE_BPE) { /* other types may shorten the text before */
        caps->token_bytes = hearth_engine_longest_token(&llama->head);
    }
    caps->model_bytes = llama_model_size(llama->model);
    caps->model_params = llama_model_n_params(llama->model);
    caps->add_bos = llama_vocab_get_add_bos(llama->vocab);
    caps->chat_template = llama_model_chat_template(llama->model, NULL);

    char text[256];
    llama_model_desc(llama->model, text, sizeof text);
    llama->description = strdup(text);
    llama->bos_text = hearth_llama_token_string(llama, llama_vocab_bos(llama->vocab));
    llama->eos_text = hearth_llama_token_string(llama, llama_vocab_eos(llama->vocab));
    if (llama->description == NULL || llama->bos_text == NULL || llama->eos_text == NULL) {
        return HEARTH_ERR_NOMEM;
    }
    caps->description = llama->description;
    caps->bos_text = llama->bos_text;
    caps->eos_text = llama->eos_text;
    int err = collect_tokens(llama);
    llama_token eos = llama_vocab_eos(llama->vocab);
    caps->end_token = eos >= 0 && llama_vocab_is_eog(llama->vocab, eos) ? eos
                      : llama->ends.n > 0                               ? llama->ends.v[0]
                                                                        : -1;
    caps->fim = (struct hearth_fim){.prefix = llama_vocab_fim_pre(llama->vocab),
                                    .suffix = llama_vocab_fim_suf(llama->vocab),
                                    .middle = llama_vocab_fim_mid(llama->vocab),
                                    .repo = llama_vocab_fim_rep(llama->vocab),
                                    .file = llama_vocab_fim_sep(llama->vocab)};
    return err;
}

static struct hearth_digest fingerprint(const struct hearth_llama *llama, const struct hearth_llama_params *params,
                                        const struct llama_context_params *p, const struct hearth_gguf_info *model,
                                        const struct hearth_gguf_info *lora) {
    char build[256];
    snprintf(build, sizeof build, "llama.cpp %s ggml %s %s", llama_version(), ggml_version(), ggml_commit());
    return hearth_fingerprint(&(struct hearth_fingerprint_parts){
        .model = model,
        .lora = params->lora_path != NULL ? lora : NULL,
        .lora_scale = params->lora_scale,
        .rope_freq_base = p->rope_freq_base,
        .rope_freq_scale = p->rope_freq_scale,
        .rope_scaling = (int32_t)p->rope_scaling_type,
        .type_k = (int32_t)p->type_k,
        .type_v = (int32_t)p->type_v,
        .flash_attn = (int32_t)p->flash_attn_type,
        .yarn = {p->yarn_ext_factor, p->yarn_attn_factor, p->yarn_beta_slow, p->yarn_beta_fast},
        .yarn_orig_ctx = p->yarn_orig_ctx,
        .override_kv = params->override_kv,
        .override_kvs = params->override_kvs,
        .memory_class = hearth_engine_class_text(llama->head.caps.memory_class),
        .engine_build = build,
    });
}

static void run_selftest(struct hearth_llama *llama, const char *path) {
    struct hearth_errmsg why = {""};
    llama->head.caps.cache_ok = hearth_engine_selftest(&llama->head, &why);
    if (!llama->head.caps.cache_ok) {
        hearth_log(HEARTH_LOG_ERROR, "%s failed the self-test of its state (%s): the cache is OFF for this model", path,
                   why.text);
    }
}

/* Outputs per batch: enough for every lane with all its guesses, but bounded, since the memory is reserved twice (in
 * the graph and behind it). In any case enough for one lane with guesses beside all others without. */
static uint32_t output_rows(const struct hearth_llama *llama, uint32_t lanes) {
    uint64_t row_bytes = (uint64_t)llama_vocab_n_tokens(llama->vocab) * sizeof(float);
    uint64_t most = OUTPUT_BYTES_MAX / row_bytes, wanted = (uint64_t)lanes * (1 + HEARTH_DRAFT_MAX);
    uint64_t least = (uint64_t)lanes + HEARTH_DRAFT_MAX;
    return (uint32_t)(wanted < most ? wanted : most > least ? most : least);
}

/* Sets up everything that follows loading the model. */
static int set_up(struct hearth_llama *llama, struct hearth_llama_params *params, bool opaque,
                  const struct hearth_gguf_info *model, const struct hearth_gguf_info *lora,
                  struct hearth_errmsg *msg) {
    struct llama_context_params p;
    bool pages = !opaque && !llama->recurrent;
    /* Without pages there is no parked sequence: state is small, or each sequence has memory of its own, and purely
     * recurrent memory computes only sequences together that follow one another. */
    params->parked_seqs = pages ? params->parked_seqs : 0;
    int err = hearth_llama_context_params(params, &p, msg);
    err = err == HEARTH_OK ? load_lora(llama, params, msg) : err;
    err = err == HEARTH_OK ? check_memory(llama, params, &p, opaque, msg) : err;
    if (err != HEARTH_OK) {
        return err;
    }
    llama->scratch = -1;
    if (pages) {
        llama->scratch = (llama_seq_id)p.n_seq_max;
        p.n_seq_max++;
    }
    p.n_outputs_max = output_rows(llama, params->lanes);
    llama->head.caps.outputs = p.n_outputs_max;
    p.n_outputs_max = p.n_outputs_max > p.n_seq_max ? p.n_outputs_max : p.n_seq_max;
    err = make_context(llama, params, &p, msg);
    if (err != HEARTH_OK) {
        return err;
    }
    hearth_llama_attach_threads(llama, params);
    err = fill_caps(llama, params);
    if (err == HEARTH_OK && !batch_init(llama, llama->head.caps.batch_tokens)) {
        err = HEARTH_ERR_NOMEM;
    }
    if (err != HEARTH_OK) {
        return hearth_fail(msg, err, "cannot load %s: %s", params->model_path, hearth_err_text(err));
    }
    err = hearth_llama_probe(llama, opaque, msg);
    if (err == HEARTH_OK) {
        llama->head.caps.fingerprint = fingerprint(llama, params, &p, model, lora);
        run_selftest(llama, params->model_path);
        if (params->deterministic) {
            const struct hearth_digest other = llama->head.caps.fingerprint; /* same tokens, other numbers */
            llama->head.caps.fingerprint = hearth_digest_chain(other, "unordered", strlen("unordered"));
        }
        const bool cpu = params->gpu_layers == 0 || !llama_supports_gpu_offload();
        /* A token alone has -t threads, several have -tb, and attention is divided among them. */
        llama->head.caps.batch_exact = cpu && patched && params->threads == params->threads_batch &&
                                       p.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_DISABLED &&
                                       hearth_engine_batch_exact(&llama->head);
        if (params->deterministic && !(cpu && patched && hearth_engine_splits_exact(&llama->head))) {
            return hearth_fail(msg, HEARTH_ERR_UNSUPPORTED,
                               "--deterministic: %s does not give the same numbers however it is computed%s",
                               params->model_path, cpu ? "" : " on a GPU");
        }
    }
    return err;
}

struct loading {
    struct hearth_llama *llama;
    struct hearth_llama_params *params;
    bool opaque;
    const struct hearth_gguf_info *model, *lora;
    struct hearth_errmsg *msg;
    int err;
};

static void *load_and_set_up(void *user) {
    struct loading *l = user;
    l->err = load_model(l->llama, l->params, l->msg);
    if (l->err == HEARTH_OK) {
        l->err = set_up(l->llama, l->params, l->opaque, l->model, l->lora, l->msg);
    }
    return NULL;
}

/* Loads on a thread that ends afterwards. libgomp keeps a team for every thread that ever computed, and with more team
 * threads than cores its barriers sleep instead of spinning, which halves the decode speed on two cores: the team that
 * the self-test needed must be gone before the thread that drives the engine makes its own. */
static int load_apart(struct loading *loading) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, load_and_set_up, loading) != 0) {
        return hearth_fail(loading->msg, HEARTH_ERR_NOMEM, "cannot start a thread to load the model");
    }
    pthread_join(thread, NULL);
    return loading->err;
}

int hearth_llama_create(const struct hearth_llama_params *given, struct hearth_engine **out,
                        struct hearth_errmsg *msg) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    *out = NULL;
    struct hearth_llama_params params = *given;
    int err = hearth_llama_params_complete(&params, msg);
    if (err != HEARTH_OK) {
        return err;
    }
    pthread_once(&once, backend_init);
    set_numa(params.numa);

    struct hearth_gguf_info model, lora = {0};
    err = hearth_gguf_inspect(params.model_path, &model, msg);
    if (err == HEARTH_OK && params.lora_path != NULL) {
        err = hearth_gguf_inspect(params.lora_path, &lora, msg);
    }
    if (err != HEARTH_OK) {
        return err;
    }
    const char *reason;
    enum hearth_llama_support support = hearth_llama_support(model.architecture, &reason);
    if (support == HEARTH_LLAMA_REFUSED) {
        return hearth_fail(msg, HEARTH_ERR_UNSUPPORTED, "%s cannot be served (architecture %s): %s", params.model_path,
                           model.architecture, reason);
    }

    struct hearth_llama *llama = calloc(1, sizeof *llama);
    if (llama == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "cannot load %s: out of memory", params.model_path);
    }
    llama->head.ops = &ops;
    struct loading loading = {.llama = llama,
                              .params = &params,
                              .opaque = support == HEARTH_LLAMA_OPAQUE || params.force_opaque,
                              .model = &model,
                              .lora = &lora,
                              .msg = msg};
    err = load_apart(&loading);
    if (err != HEARTH_OK) {
        llama_destroy(&llama->head);
        return err;
    }
    *out = &llama->head;
    return HEARTH_OK;
}
