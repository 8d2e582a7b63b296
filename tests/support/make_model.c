/* Makes a small model with random weights and a real tokenizer.
 *
 *   make_model BASE.gguf hybrid|mamba|opaque|tiny|tiny-hybrid|tiny-window OUT.gguf
 *
 * The tokenizer and the chat template are those of the first file, so that text can be tokenised and conversations be
 * templated; the architecture and its sizes come from the tables below. llama.cpp itself lists the tensors that an
 * architecture needs: llama_model_init_from_user() calls back for each, which is where the weights are drawn and
 * written into the new file. Large matrices are stored as Q8_0.
 *
 * Weights are scaled so that greedy output varies: every matrix keeps the size of its input (standard deviation
 * 1 / sqrt(inputs)), embeddings and output are separate (tied ones would repeat the last token), decay rates reach over
 * dozens of tokens. The same arguments give the same bytes. */
#include <llama.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- architectures ---- */

enum value_type { END, U32, F32, BOOL, U32_ARRAY };

struct value {
    const char *key; /* behind "<architecture>." */
    enum value_type type;
    double number;
    uint32_t array[4];
};

struct kind {
    const char *name;
    const char *architecture;
    const struct value *values;
};

/* Shaped like Qwen3.5: three gated delta-net layers to one of attention. 3 KiB of pages per token (3 layers x K and V x
 * 2 heads x 128 x 2 bytes), about 2.4 MiB of recurrent state. */
static const struct value hybrid[] = {
    {"block_count", U32, 12, {0}},
    {"context_length", U32, 65536, {0}},
    {"embedding_length", U32, 384, {0}},
    {"feed_forward_length", U32, 1024, {0}},
    {"attention.head_count", U32, 4, {0}},
    {"attention.head_count_kv", U32, 2, {0}},
    {"attention.key_length", U32, 128, {0}},
    {"attention.value_length", U32, 128, {0}},
    {"attention.layer_norm_rms_epsilon", F32, 1e-6, {0}},
    {"rope.dimension_count", U32, 64, {0}},
    {"rope.dimension_sections", U32_ARRAY, 4, {11, 11, 10, 0}},
    {"rope.freq_base", F32, 1e7, {0}},
    {"full_attention_interval", U32, 4, {0}},
    {"ssm.conv_kernel", U32, 4, {0}},
    {"ssm.inner_size", U32, 512, {0}},
    {"ssm.state_size", U32, 128, {0}},
    {"ssm.time_step_rank", U32, 4, {0}},
    {"ssm.group_count", U32, 2, {0}},
    {NULL, END, 0, {0}},
};

static const struct value mamba[] = {
    {"block_count", U32, 12, {0}},
    {"context_length", U32, 65536, {0}},
    {"embedding_length", U32, 384, {0}},
    {"feed_forward_length", U32, 0, {0}},
    {"attention.head_count", U32, 0, {0}},
    {"attention.layer_norm_rms_epsilon", F32, 1e-5, {0}},
    {"ssm.conv_kernel", U32, 4, {0}},
    {"ssm.inner_size", U32, 768, {0}},
    {"ssm.state_size", U32, 16, {0}},
    {"ssm.time_step_rank", U32, 24, {0}},
    {NULL, END, 0, {0}},
};

/* DeepSeek V4: a cache that only copies whole sequences. */
static const struct value opaque[] = {
    {"block_count", U32, 4, {0}},
    {"context_length", U32, 32768, {0}},
    {"embedding_length", U32, 256, {0}},
    {"feed_forward_length", U32, 512, {0}},
    {"attention.head_count", U32, 4, {0}},
    {"attention.head_count_kv", U32, 1, {0}},
    {"attention.key_length", U32, 64, {0}},
    {"attention.value_length", U32, 64, {0}},
    {"attention.layer_norm_rms_epsilon", F32, 1e-6, {0}},
    {"attention.q_lora_rank", U32, 64, {0}},
    {"attention.sliding_window", U32, 128, {0}},
    {"attention.output_group_count", U32, 4, {0}},
    {"attention.output_lora_rank", U32, 32, {0}},
    {"attention.compress_ratios", U32_ARRAY, 4, {0, 0, 4, 128}},
    {"attention.compress_rope_freq_base", F32, 160000, {0}},
    {"attention.indexer.head_count", U32, 64, {0}},
    {"attention.indexer.key_length", U32, 128, {0}},
    {"attention.indexer.top_k", U32, 512, {0}},
    {"rope.dimension_count", U32, 32, {0}},
    {"rope.freq_base", F32, 1e4, {0}},
    {"expert_count", U32, 4, {0}},
    {"expert_used_count", U32, 2, {0}},
    {"expert_shared_count", U32, 1, {0}},
    {"expert_feed_forward_length", U32, 256, {0}},
    {"expert_gating_func", U32, 4, {0}},
    {"expert_weights_scale", F32, 1, {0}},
    {"expert_weights_norm", BOOL, 1, {0}},
    {"swiglu_clamp_exp", F32, 10, {0}},
    {"hash_layer_count", U32, 0, {0}},
    {"hyper_connection.count", U32, 4, {0}},
    {"hyper_connection.sinkhorn_iterations", U32, 2, {0}},
    {"hyper_connection.epsilon", F32, 1e-6, {0}},
    {NULL, END, 0, {0}},
};

/* Plain attention with a very long context: one layer with one small head, so that a prompt of 32k tokens takes seconds
 * and one of 150k is bearable. 128 bytes of pages per token. */
static const struct value tiny[] = {
    {"block_count", U32, 1, {0}},
    {"context_length", U32, 262144, {0}},
    {"embedding_length", U32, 64, {0}},
    {"feed_forward_length", U32, 128, {0}},
    {"attention.head_count", U32, 1, {0}},
    {"attention.head_count_kv", U32, 1, {0}},
    {"attention.key_length", U32, 32, {0}},
    {"attention.value_length", U32, 32, {0}},
    {"attention.layer_norm_rms_epsilon", F32, 1e-5, {0}},
    {"rope.dimension_count", U32, 32, {0}},
    {"rope.freq_base", F32, 1e6, {0}},
    {NULL, END, 0, {0}},
};

/* The same for models whose state needs snapshots: the hybrid, and one with a sliding window in five of its six
 * layers, as Gemma 3. */
static const struct value tiny_hybrid[] = {
    {"block_count", U32, 4, {0}},
    {"context_length", U32, 262144, {0}},
    {"embedding_length", U32, 64, {0}},
    {"feed_forward_length", U32, 128, {0}},
    {"attention.head_count", U32, 1, {0}},
    {"attention.head_count_kv", U32, 1, {0}},
    {"attention.key_length", U32, 32, {0}},
    {"attention.value_length", U32, 32, {0}},
    {"attention.layer_norm_rms_epsilon", F32, 1e-6, {0}},
    {"rope.dimension_count", U32, 32, {0}},
    {"rope.dimension_sections", U32_ARRAY, 4, {6, 5, 5, 0}},
    {"rope.freq_base", F32, 1e7, {0}},
    {"full_attention_interval", U32, 4, {0}},
    {"ssm.conv_kernel", U32, 4, {0}},
    {"ssm.inner_size", U32, 64, {0}},
    {"ssm.state_size", U32, 32, {0}},
    {"ssm.time_step_rank", U32, 2, {0}},
    {"ssm.group_count", U32, 1, {0}},
    {NULL, END, 0, {0}},
};

static const struct value tiny_window[] = {
    {"block_count", U32, 6, {0}},
    {"context_length", U32, 262144, {0}},
    {"embedding_length", U32, 64, {0}},
    {"feed_forward_length", U32, 128, {0}},
    {"attention.head_count", U32, 1, {0}},
    {"attention.head_count_kv", U32, 1, {0}},
    {"attention.key_length", U32, 32, {0}},
    {"attention.value_length", U32, 32, {0}},
    {"attention.layer_norm_rms_epsilon", F32, 1e-6, {0}},
    {"attention.sliding_window", U32, 512, {0}},
    {"rope.dimension_count", U32, 32, {0}},
    {"rope.freq_base", F32, 1e6, {0}},
    {NULL, END, 0, {0}},
};

static const struct kind kinds[] = {
    {"hybrid", "qwen35", hybrid},           {"mamba", "mamba", mamba},
    {"opaque", "deepseek4", opaque},        {"tiny", "llama", tiny},
    {"tiny-hybrid", "qwen35", tiny_hybrid}, {"tiny-window", "gemma3", tiny_window},
};

/* ---- random numbers ---- */

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Mean 0, standard deviation 1: the sum of four 16-bit uniforms, which is normal enough. */
static float next_normal(uint64_t *state) {
    uint64_t r = next_random(state);
    double sum = 0.0;
    for (int i = 0; i < 4; i++) {
        sum += (double)((r >> (16 * i)) & 0xffff) / 65536.0 - 0.5;
    }
    return (float)(sum * 1.7320508075688772);
}

static float next_between(uint64_t *state, double low, double high) {
    return (float)(low + (high - low) * (double)(next_random(state) >> 11) / 9007199254740992.0);
}

static uint64_t seed_of(const char *name) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    }
    return hash;
}

/* ---- weights ---- */

struct output {
    struct gguf_context *gguf;
    void *data[4096]; /* of the tensors, until the file is written */
    size_t n;
};

static bool contains(const char *name, const char *part) {
    return strstr(name, part) != NULL;
}

static float draw(const char *name, float scale, uint64_t *state) {
    if (contains(name, "norm") || contains(name, "_scale") || contains(name, "ssm_d.") ||
        strcmp(name + strlen(name) - 2, "_d") == 0) {
        return 1.0f;
    }
    if (contains(name, "ssm_a")) { /* decay, always negative */
        return -next_between(state, 0.5, 4.0);
    }
    if (contains(name, "ssm_dt.bias")) { /* softplus of it is the step: 0.01 to 0.1 */
        return logf(expm1f(next_between(state, 0.01, 0.1)));
    }
    if (contains(name, ".bias") || contains(name, "_base") || contains(name, "sinks")) {
        return 0.0f;
    }
    return scale * next_normal(state);
}

static void add_tensor(struct ggml_tensor *tensor, void *user) {
    struct output *out = user;
    if (gguf_find_tensor(out->gguf, tensor->name) >= 0) {
        return;
    }
    int64_t n = ggml_nelements(tensor), row = tensor->ne[0];
    float *values = malloc((size_t)n * sizeof *values);
    if (values == NULL || out->n == sizeof out->data / sizeof out->data[0]) {
        fprintf(stderr, "make_model: out of memory\n");
        exit(1);
    }
    uint64_t state = seed_of(tensor->name);
    /* Embeddings are looked up, not multiplied: unit size. */
    float scale = contains(tensor->name, "token_embd") ? 1.0f : 1.0f / sqrtf((float)row);
    for (int64_t i = 0; i < n; i++) {
        values[i] = draw(tensor->name, scale, &state);
    }

    struct ggml_tensor stored = *tensor;
    stored.buffer = NULL;
    stored.data = values;
    if (tensor->ne[1] >= 64 && row >= 64 && row % 32 == 0 && !contains(tensor->name, "ape") &&
        !contains(tensor->name, "hc_")) {
        stored.type = GGML_TYPE_Q8_0;
        stored.nb[0] = ggml_type_size(stored.type);
        stored.nb[1] = ggml_row_size(stored.type, row);
        stored.nb[2] = stored.nb[1] * (size_t)stored.ne[1];
        stored.nb[3] = stored.nb[2] * (size_t)stored.ne[2];
        stored.data = malloc(ggml_row_size(stored.type, row) * (size_t)(n / row));
        if (stored.data == NULL) {
            fprintf(stderr, "make_model: out of memory\n");
            exit(1);
        }
        ggml_quantize_chunk(stored.type, values, stored.data, 0, n / row, row, NULL);
        free(values);
    }
    gguf_add_tensor(out->gguf, &stored);
    out->data[out->n++] = stored.data;
}

/* ---- metadata ---- */

static bool belongs_to_tokenizer(const char *key) {
    return strncmp(key, "tokenizer.", strlen("tokenizer.")) == 0;
}

/* A context with the tokenizer of `path` and the sizes of `kind`. */
static struct gguf_context *make_metadata(const char *path, const struct kind *kind) {
    struct gguf_context *source = gguf_init_from_file(path, (struct gguf_init_params){.no_alloc = true, .ctx = NULL});
    if (source == NULL) {
        return NULL;
    }
    struct gguf_context *gguf = gguf_init_empty();
    gguf_set_kv(gguf, source);
    for (int64_t i = gguf_get_n_kv(source); i-- > 0;) {
        const char *key = gguf_get_key(source, i);
        if (!belongs_to_tokenizer(key)) {
            gguf_remove_key(gguf, key);
        }
    }
    int64_t tokens = gguf_find_key(source, "tokenizer.ggml.tokens");
    char key[128];
    snprintf(key, sizeof key, "%s.vocab_size", kind->architecture);
    gguf_set_val_u32(gguf, key, tokens >= 0 ? (uint32_t)gguf_get_arr_n(source, tokens) : 0);
    gguf_free(source);

    gguf_set_val_str(gguf, "general.architecture", kind->architecture);
    gguf_set_val_str(gguf, "general.name", kind->name);
    gguf_set_val_u32(gguf, "general.file_type", LLAMA_FTYPE_MOSTLY_Q8_0);
    for (const struct value *v = kind->values; v->type != END; v++) {
        snprintf(key, sizeof key, "%s.%s", kind->architecture, v->key);
        switch (v->type) {
        case U32: gguf_set_val_u32(gguf, key, (uint32_t)v->number); break;
        case F32: gguf_set_val_f32(gguf, key, (float)v->number); break;
        case BOOL: gguf_set_val_bool(gguf, key, v->number > 0.0); break;
        case U32_ARRAY: gguf_set_arr_data(gguf, key, GGUF_TYPE_UINT32, v->array, (size_t)v->number); break;
        case END: break;
        }
    }
    return gguf;
}

static void log_errors(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static bool report_nothing(float fraction, void *user) {
    (void)fraction;
    (void)user;
    return true;
}

int main(int argc, char **argv) {
    const struct kind *kind = NULL;
    for (size_t i = 0; argc == 4 && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(argv[2], kinds[i].name) == 0) {
            kind = &kinds[i];
        }
    }
    if (kind == NULL) {
        fprintf(stderr, "usage: make_model SMOLLM2.gguf hybrid|mamba|opaque OUT.gguf\n");
        return 2;
    }
    llama_log_set(log_errors, NULL);
    static struct output out;
    struct gguf_context *metadata = make_metadata(argv[1], kind);
    out.gguf = make_metadata(argv[1], kind);
    if (metadata == NULL || out.gguf == NULL) {
        fprintf(stderr, "make_model: cannot read %s\n", argv[1]);
        return 1;
    }
    struct llama_model_params params = llama_model_default_params();
    params.progress_callback = report_nothing;
    params.n_gpu_layers = 0;
    struct llama_model *model = llama_model_init_from_user(metadata, add_tensor, &out, params);
    int status = 1;
    if (model == NULL) {
        fprintf(stderr, "make_model: llama.cpp cannot make a %s model\n", kind->architecture);
    } else if (!gguf_write_to_file(out.gguf, argv[3], false)) {
        fprintf(stderr, "make_model: cannot write %s\n", argv[3]);
    } else {
        status = 0;
    }
    for (size_t i = 0; i < out.n; i++) {
        free(out.data[i]);
    }
    llama_model_free(model);
    gguf_free(out.gguf);
    gguf_free(metadata);
    return status;
}
