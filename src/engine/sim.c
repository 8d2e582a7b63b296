/* The sim engine: creation, the virtual clock, faults, decode, and the vtable.
 *
 * Time is a sum of costs. A decode costs what its tokens cost as prefill, but never less than one step of decoding,
 * which reads all weights once whatever the batch holds: max(tokens / prefill speed, 1 / decode speed). Moving state
 * costs its bytes. Everything else is free. With `real_time` the same costs are slept and the clock is the real one.
 *
 * Invariants: a decode that returns NO_CELLS has changed nothing; one that returns ENGINE has left each of its
 * sequences broken, so that only clearing it is possible; outputs belong to the last decode that succeeded. */
#include "engine/sim_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LANES_MAX = 256, CTX_TOKENS_MAX = 1 << 24 };

static const char chat_template[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* ---- decode ---- */

/* Misuse stops the process before anything is changed. `at[seq]` is where each sequence's next token belongs. */
static void batch_check(struct sim *sim, const struct hearth_batch_item *items, size_t n) {
    int32_t at[LANES_MAX];
    uint32_t outputs = 0;
    HEARTH_ASSERT(n > 0 && n <= sim->params.batch_tokens);
    for (uint32_t i = 0; i < sim->base.caps.seqs; i++) {
        at[i] = sim->seqs[i].n;
    }
    for (size_t i = 0; i < n; i++) {
        const struct sim_seq *seq = hearth_sim_state_seq(sim, items[i].seq);
        HEARTH_ASSERT(!seq->broken && seq->complete);
        HEARTH_ASSERT(items[i].pos == at[items[i].seq]);
        HEARTH_ASSERT(items[i].token >= 0 && (uint32_t)items[i].token < sim->base.caps.vocab_tokens);
        at[items[i].seq]++;
        outputs += items[i].output;
    }
    HEARTH_ASSERT(outputs <= sim->base.caps.outputs);
}

static bool batch_fits(const struct sim *sim, const struct hearth_batch_item *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((uint32_t)items[i].pos >= sim->params.ctx_tokens) {
            return false;
        }
    }
    return hearth_sim_state_cells(sim, (uint32_t)n) <= sim->free_count;
}

static int sim_decode(struct hearth_engine *engine, const struct hearth_batch_item *items, size_t n) {
    struct sim *sim = hearth_sim_of(engine);
    batch_check(sim, items, n);
    sim->output_count = 0;
    if (hearth_sim_fails(sim, HEARTH_SIM_FAULT_DECODE_NO_CELLS) || !batch_fits(sim, items, n)) {
        return HEARTH_ERR_NO_CELLS;
    }
    bool fails = hearth_sim_fails(sim, HEARTH_SIM_FAULT_DECODE);
    for (size_t i = 0; i < (fails ? n / 2 : n); i++) {
        sim->outputs[i] = hearth_sim_state_extend(sim, &sim->seqs[items[i].seq], items[i].token);
        sim->output_wanted[i] = items[i].output;
    }
    hearth_sim_spend_ns(
        sim, 1e9 * fmax((double)n / sim->params.prefill_tokens_per_s, 1.0 / sim->params.decode_tokens_per_s));
    if (fails) {
        for (size_t i = 0; i < n; i++) {
            sim->seqs[items[i].seq].broken = true;
        }
        return HEARTH_ERR_ENGINE;
    }
    sim->output_count = n;
    sim->counted.decoded_tokens += n;
    return HEARTH_OK;
}

/* ---- text ---- */

static int sim_tokenize(struct hearth_engine *engine, const char *text, size_t len, bool add_special,
                        bool parse_special, struct hearth_tokens *out) {
    (void)add_special; /* caps.add_bos is false: there is nothing to add */
    return hearth_sim_text_tokenize(&hearth_sim_of(engine)->text, text, len, parse_special, out);
}

static size_t sim_token_text(struct hearth_engine *engine, hearth_token token, bool special, char *out, size_t cap) {
    (void)engine;
    size_t len;
    const char *bytes = hearth_sim_text_bytes(token, &len);
    if (hearth_sim_text_is_special(token) && !special) {
        return 0;
    }
    size_t copied = len < cap ? len : cap;
    if (copied > 0) {
        memcpy(out, bytes, copied);
    }
    return len;
}

static bool sim_token_is_end(struct hearth_engine *engine, hearth_token token) {
    (void)engine;
    return token == hearth_sim_text_end() || token == hearth_sim_text_stop();
}

static bool sim_token_is_user_defined(struct hearth_engine *engine, hearth_token token) {
    (void)engine;
    (void)token;
    return false;
}

/* ---- creation ---- */

static void sim_destroy(struct hearth_engine *engine) {
    struct sim *sim = hearth_sim_of(engine);
    hearth_sim_state_finish(sim);
    hearth_engine_finish(engine);
    hearth_trie_finish(&sim->text);
    free(sim->outputs);
    free(sim->output_wanted);
    free(sim);
}

static const struct hearth_engine_ops sim_ops = {
    .destroy = sim_destroy,
    .decode = sim_decode,
    .sampler_create = hearth_sim_sampler_create,
    .sampler_destroy = hearth_sim_sampler_destroy,
    .sampler_accept = hearth_sim_sampler_accept,
    .sample = hearth_sim_sample,
    .token_logprobs = hearth_sim_token_logprobs,
    .seq_clear = hearth_sim_seq_clear,
    .seq_rewind_floor = hearth_sim_seq_rewind_floor,
    .seq_rewind = hearth_sim_seq_rewind,
    .seq_keep = hearth_sim_seq_keep,
    .seq_share = hearth_sim_seq_share,
    .page_export = hearth_sim_page_export,
    .page_import = hearth_sim_page_import,
    .snapshot_export = hearth_sim_snapshot_export,
    .snapshot_import = hearth_sim_snapshot_import,
    .window_export = hearth_sim_window_export,
    .window_import = hearth_sim_window_import,
    .tokenize = sim_tokenize,
    .token_text = sim_token_text,
    .token_is_end = sim_token_is_end,
    .token_is_user_defined = sim_token_is_user_defined,
    .grammar_check = hearth_engine_grammar_check,
    .now_us = hearth_sim_now_us,
};

void hearth_sim_params_default(struct hearth_sim_params *params) {
    *params = (struct hearth_sim_params){
        .memory_class = HEARTH_ENGINE_PAGES,
        .ctx_tokens = 8192,
        .lanes = 4,
        .batch_tokens = 2048,
        .ubatch_tokens = 512,
        .prefill_tokens_per_s = 1000.0,
        .decode_tokens_per_s = 50.0,
        .page_bytes_per_token = 64,
        .snapshot_bytes = 4096,
        .import_bytes_per_s = 1e9,
        .export_bytes_per_s = 1e9,
        .reply_tokens = 40,
    };
}

static int params_check(const struct hearth_sim_params *p, struct hearth_errmsg *msg) {
    const struct {
        const char *name;
        uint64_t value, least, most;
    } sizes[] = {
        {"lanes", p->lanes, 1, LANES_MAX},
        {"parked_seqs", p->parked_seqs, 0, LANES_MAX - p->lanes},
        {"ctx_tokens", p->ctx_tokens, 1, CTX_TOKENS_MAX},
        {"batch_tokens", p->batch_tokens, 1, CTX_TOKENS_MAX},
        {"ubatch_tokens", p->ubatch_tokens, 1, p->batch_tokens},
        {"reply_tokens", p->reply_tokens, 1, UINT32_MAX},
        {"page_bytes_per_token", p->page_bytes_per_token, HEARTH_SIM_BYTES_MIN, 1u << 24},
        {"snapshot_bytes", p->snapshot_bytes, HEARTH_SIM_BYTES_MIN, 1u << 30},
        {"window_tokens", p->window_tokens, 0, p->memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT ? CTX_TOKENS_MAX : 0},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "sim: %s is %llu, not between %llu and %llu", sizes[i].name,
                               (unsigned long long)sizes[i].value, (unsigned long long)sizes[i].least,
                               (unsigned long long)sizes[i].most);
        }
    }
    const double speeds[] = {p->prefill_tokens_per_s, p->decode_tokens_per_s, p->import_bytes_per_s,
                             p->export_bytes_per_s};
    for (size_t i = 0; i < sizeof speeds / sizeof speeds[0]; i++) {
        if (!(speeds[i] > 0.0)) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "sim: a speed is %g", speeds[i]);
        }
    }
    return HEARTH_OK;
}

/* Everything that state and output depend on; not the size of the context. */
static struct hearth_digest fingerprint(const struct hearth_sim_params *p) {
    char text[160], window[24] = "";
    if (p->window_tokens > 0) {
        (void)snprintf(window, sizeof window, "; window %u", (unsigned)p->window_tokens);
    }
    int len = snprintf(text, sizeof text, "hearth sim 1; class %d; seed %llu; page %zu; snapshot %zu; reply %u%s%s",
                       (int)p->memory_class, (unsigned long long)p->seed, p->page_bytes_per_token, p->snapshot_bytes,
                       (unsigned)p->reply_tokens, p->repeats ? "; repeats" : "", window);
    HEARTH_ASSERT(len > 0 && (size_t)len < sizeof text);
    return hearth_digest_bytes(text, (size_t)len);
}

static void caps_fill(struct sim *sim) {
    const struct hearth_sim_params *p = &sim->params;
    struct hearth_caps *caps = &sim->base.caps;
    (void)snprintf(sim->description, sizeof sim->description, "sim (%s)", hearth_engine_class_text(p->memory_class));
    *caps = (struct hearth_caps){
        .memory_class = p->memory_class,
        .cache_ok = true,
        .lanes = p->lanes,
        .seqs = p->lanes + p->parked_seqs,
        .ctx_tokens = p->ctx_tokens,
        .train_ctx_tokens = p->ctx_tokens > 32768 ? p->ctx_tokens : 32768,
        .batch_tokens = p->batch_tokens,
        .ubatch_tokens = p->ubatch_tokens,
        .outputs = p->lanes * (1 + HEARTH_DRAFT_MAX),
        .batch_exact = true,
        .vocab_tokens = hearth_sim_text_vocab(),
        .model_bytes = 90000000,
        .model_params = 135000000,
        .fingerprint = fingerprint(p),
        .end_token = hearth_sim_text_end(),
        .fim = p->infills ? (struct hearth_fim){1, 2, 3, -1, 4} : (struct hearth_fim){-1, -1, -1, -1, -1},
        .add_bos = false,
        .description = sim->description,
        .chat_template = chat_template,
        .bos_text = "",
        .eos_text = "<|im_end|>",
    };
    caps->token_bytes = hearth_engine_longest_token(&sim->base);
    caps->rewind_tokens = p->memory_class == HEARTH_ENGINE_PAGES            ? INT32_MAX
                          : p->memory_class == HEARTH_ENGINE_PAGES_SNAPSHOT ? (int32_t)p->rewind_tokens
                                                                            : 0;
    caps->page_bytes_per_token = hearth_caps_has_pages(caps) ? p->page_bytes_per_token : 0;
    caps->snapshot_bytes = hearth_caps_needs_snapshot(caps) ? p->snapshot_bytes : 0;
    caps->window_tokens = (int32_t)p->window_tokens;
    if (p->window_tokens > 0) {
        caps->snapshot_bytes = hearth_sim_window_bytes(sim, caps->window_tokens);
        caps->window_bytes_per_token = caps->snapshot_bytes / p->window_tokens;
    }
    if (p->memory_class == HEARTH_ENGINE_OPAQUE) {
        caps->snapshot_bytes += p->page_bytes_per_token * (p->ctx_tokens / 4);
    }
}

int hearth_sim_create(const struct hearth_sim_params *params, struct hearth_engine **out, struct hearth_errmsg *msg) {
    *out = NULL;
    int err = params_check(params, msg);
    if (err != HEARTH_OK) {
        return err;
    }
    struct sim *sim = calloc(1, sizeof *sim);
    if (sim == NULL) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for the sim engine");
    }
    sim->base.ops = &sim_ops;
    sim->params = *params;
    sim->origin =
        (sim_mix(params->seed, 0x0121611) & ~(uint64_t)SIM_STATE_LOW) | (params->repeats ? SIM_STATE_REPEATS : 0);
    caps_fill(sim);
    sim->outputs = calloc(params->batch_tokens, sizeof sim->outputs[0]);
    sim->output_wanted = calloc(params->batch_tokens, sizeof sim->output_wanted[0]);
    if (sim->outputs == NULL || sim->output_wanted == NULL || !hearth_sim_text_init(&sim->text) ||
        hearth_sim_state_init(sim) != HEARTH_OK) {
        sim_destroy(&sim->base);
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "no memory for %u cells of the sim engine", params->ctx_tokens);
    }
    *out = &sim->base;
    return HEARTH_OK;
}

void hearth_sim_stats(const struct hearth_engine *engine, struct hearth_sim_stats *stats) {
    const struct sim *sim = (const struct sim *)engine;
    *stats = (struct hearth_sim_stats){.decoded_tokens = sim->counted.decoded_tokens,
                                       .page_exports = sim->counted.page_exports,
                                       .page_imports = sim->counted.page_imports,
                                       .snapshot_exports = sim->counted.snapshot_exports,
                                       .snapshot_imports = sim->counted.snapshot_imports,
                                       .shared_tokens = sim->counted.shared_tokens,
                                       .cells_used = sim->params.ctx_tokens - sim->free_count};
}
