/* Parameters of the llama engine: defaults, checks, and the translation into llama.cpp's structs; and the table of
 * architectures that must not be treated like the others.
 *
 * Defaults are chosen so that the same flags give the same speed as llama-server: one thread per physical core, flash
 * attention on, unified KV. Two differ on purpose: outputs are limited to what lanes generate (no logits buffer for a
 * whole batch), and windows are kept at their true size (swa_full off), because older cells come back as snapshots. */
#include "engine/llama_engine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DEFAULT_LANES 4
#define DEFAULT_BATCH_TOKENS 2048
#define DEFAULT_UBATCH_TOKENS 512
#define CPUS_MAX 1024

/* docs/models.md holds this table in prose; `make zoo` proves it. */
static const struct {
    const char *architecture;
    enum hearth_llama_support support;
    const char *reason;
} architectures[] = {
    {"deepseek4", HEARTH_LLAMA_OPAQUE, "its cache only copies whole sequences"},
    {"glm5-next", HEARTH_LLAMA_OPAQUE, "its indexer cache must mirror the attention cache cell by cell"},
    {"qwen4exp", HEARTH_LLAMA_OPAQUE, "its indexer cache must mirror the attention cache cell by cell"},
    {"clip", HEARTH_LLAMA_REFUSED, "an image encoder does not generate text"},
    {"wavtokenizer-dec", HEARTH_LLAMA_REFUSED, "an audio decoder does not generate text"},
    {"t5", HEARTH_LLAMA_REFUSED, "encoder-decoder models are not supported"},
    {"t5encoder", HEARTH_LLAMA_REFUSED, "an encoder does not generate text"},
    {"eagle3", HEARTH_LLAMA_REFUSED, "a draft model needs the context of its target"},
    {"dflash", HEARTH_LLAMA_REFUSED, "a draft model needs the context of its target"},
    {"gemma4-assistant", HEARTH_LLAMA_REFUSED, "a draft model needs the context of its target"},
};

enum hearth_llama_support hearth_llama_support(const char *architecture, const char **reason) {
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++) {
        if (strcmp(architecture, architectures[i].architecture) == 0) {
            *reason = architectures[i].reason;
            return architectures[i].support;
        }
    }
    *reason = "";
    return HEARTH_LLAMA_FULL;
}

void hearth_llama_params_default(struct hearth_llama_params *params) {
    *params = (struct hearth_llama_params){
        .lanes = DEFAULT_LANES,
        .parked_seqs = 1,
        .batch_tokens = DEFAULT_BATCH_TOKENS,
        .ubatch_tokens = DEFAULT_UBATCH_TOKENS,
        .gpu_layers = -1,
        .lora_scale = 1.0f,
        .yarn_ext_factor = -1.0f,
        .yarn_attn_factor = -1.0f,
        .yarn_beta_slow = -1.0f,
        .yarn_beta_fast = -1.0f,
    };
}

/* Physical cores among the CPUs this process may run on: hyperthreads share the units that matrix products need. */
static int32_t core_count(void) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        return n > 0 ? (int32_t)n : 1;
    }
    bool seen[CPUS_MAX] = {false};
    int32_t cores = 0;
    for (int cpu = 0; cpu < CPUS_MAX; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &allowed)) {
            continue;
        }
        /* The list names the core's threads, lowest first: that one stands for the core. */
        char path[128];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        int first = cpu;
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            int parsed;
            if (fscanf(file, "%d", &parsed) == 1 && parsed >= 0 && parsed < CPUS_MAX) {
                first = parsed;
            }
            fclose(file);
        }
        cores += !seen[first];
        seen[first] = true;
    }
    return cores > 0 ? cores : 1;
}

int hearth_llama_params_complete(struct hearth_llama_params *params, struct hearth_errmsg *msg) {
    if (params->model_path == NULL || params->model_path[0] == '\0') {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "no model file was named (-m)");
    }
    params->lanes = params->lanes > 0 ? params->lanes : DEFAULT_LANES;
    /* One sequence of llama.cpp's 256 is the engine's own. */
    const uint32_t most = (uint32_t)llama_max_parallel_sequences() - 1;
    if (params->parked_seqs >= most || params->lanes > most - params->parked_seqs) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%u lanes are too many: at most %u (-np)", params->lanes,
                           params->parked_seqs < most ? most - params->parked_seqs : 0);
    }
    params->batch_tokens = params->batch_tokens > 0 ? params->batch_tokens : DEFAULT_BATCH_TOKENS;
    params->ubatch_tokens = params->ubatch_tokens > 0 ? params->ubatch_tokens : DEFAULT_UBATCH_TOKENS;
    /* A decode step must have room for a token of every lane. */
    if (params->batch_tokens < params->lanes) {
        params->batch_tokens = params->lanes;
    }
    if (params->ubatch_tokens > params->batch_tokens) {
        params->ubatch_tokens = params->batch_tokens;
    }
    if (params->threads < 0 || params->threads_batch < 0) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "a number of threads cannot be negative (-t, -tb)");
    }
    const int32_t threads = params->threads > 0 ? params->threads : core_count();
    params->threads = threads < GGML_MAX_N_THREADS ? threads : GGML_MAX_N_THREADS;
    const int32_t batch = params->threads_batch > 0 ? params->threads_batch : params->threads;
    params->threads_batch = batch < GGML_MAX_N_THREADS ? batch : GGML_MAX_N_THREADS;
    return hearth_llama_cpus_check(params, msg);
}

static int cache_type(const char *name, const char *flag, enum ggml_type *out, struct hearth_errmsg *msg) {
    static const enum ggml_type types[] = {GGML_TYPE_F32,    GGML_TYPE_F16,  GGML_TYPE_BF16,
                                           GGML_TYPE_Q8_0,   GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                                           GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1};
    if (name == NULL) {
        *out = GGML_TYPE_F16;
        return HEARTH_OK;
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcasecmp(name, ggml_type_name(types[i])) == 0) {
            *out = types[i];
            return HEARTH_OK;
        }
    }
    return hearth_fail(msg, HEARTH_ERR_INVALID,
                       "unknown cache type \"%s\" (%s): f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0 or q5_1", name,
                       flag);
}

static int rope_scaling(const char *name, enum llama_rope_scaling_type *out, struct hearth_errmsg *msg) {
    static const struct {
        const char *name;
        enum llama_rope_scaling_type type;
    } types[] = {{"none", LLAMA_ROPE_SCALING_TYPE_NONE},
                 {"linear", LLAMA_ROPE_SCALING_TYPE_LINEAR},
                 {"yarn", LLAMA_ROPE_SCALING_TYPE_YARN}};
    if (name == NULL) {
        *out = LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED;
        return HEARTH_OK;
    }
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(name, types[i].name) == 0) {
            *out = types[i].type;
            return HEARTH_OK;
        }
    }
    return hearth_fail(msg, HEARTH_ERR_INVALID, "unknown RoPE scaling \"%s\" (--rope-scaling): none, linear or yarn",
                       name);
}

int hearth_llama_context_params(const struct hearth_llama_params *params, struct llama_context_params *out,
                                struct hearth_errmsg *msg) {
    struct llama_context_params p = llama_context_default_params();
    int err = cache_type(params->type_k, "-ctk", &p.type_k, msg);
    err = err == HEARTH_OK ? cache_type(params->type_v, "-ctv", &p.type_v, msg) : err;
    err = err == HEARTH_OK ? rope_scaling(params->rope_scaling, &p.rope_scaling_type, msg) : err;
    if (err != HEARTH_OK) {
        return err;
    }
    if (params->flash_attn_off && ggml_is_quantized(p.type_v)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "a quantised V cache (-ctv %s) needs flash attention",
                           params->type_v);
    }
    p.n_ctx = params->ctx_tokens;
    p.n_batch = params->batch_tokens;
    p.n_ubatch = params->ubatch_tokens;
    p.n_seq_max = params->lanes + params->parked_seqs;
    p.n_outputs_max = params->lanes;
    p.n_outputs_max_per_seq = 1;
    p.n_threads = params->threads;
    p.n_threads_batch = params->threads_batch;
    p.flash_attn_type = params->flash_attn_off ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_ENABLED;
    p.rope_freq_base = params->rope_freq_base;
    p.rope_freq_scale = params->rope_freq_scale;
    p.yarn_orig_ctx = params->yarn_orig_ctx;
    p.yarn_ext_factor = params->yarn_ext_factor;
    p.yarn_attn_factor = params->yarn_attn_factor;
    p.yarn_beta_slow = params->yarn_beta_slow;
    p.yarn_beta_fast = params->yarn_beta_fast;
    p.offload_kqv = !params->no_kv_offload;
    p.op_offload = !params->no_op_offload;
    p.swa_full = false;
    p.kv_unified = true;
    p.no_perf = true;
    *out = p;
    return HEARTH_OK;
}

/* A number from a file of the form "123" or "name: 123 kB". */
static bool read_number(const char *path, const char *name, uint64_t *out) {
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    bool found = false;
    char line[256];
    size_t name_len = strlen(name);
    while (!found && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, name_len) == 0) {
            char *end;
            *out = strtoull(line + name_len, &end, 10);
            found = end != line + name_len; /* "max" is no number: no limit */
        }
    }
    fclose(file);
    return found;
}

uint64_t hearth_llama_available_bytes(void) {
    uint64_t available = UINT64_MAX, kib, limit, used;
    if (read_number("/proc/meminfo", "MemAvailable:", &kib)) {
        available = kib * 1024;
    }
    /* A container's limit (cgroup v2, then v1), less what cannot be reclaimed: its files can. */
    if ((read_number("/sys/fs/cgroup/memory.max", "", &limit) &&
         read_number("/sys/fs/cgroup/memory.stat", "anon ", &used)) ||
        (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", &limit) &&
         read_number("/sys/fs/cgroup/memory/memory.stat", "total_rss ", &used))) {
        uint64_t left = limit > used ? limit - used : 0;
        available = left < available ? left : available;
    }
    return available;
}

uint64_t hearth_llama_locked_bytes(void) {
    uint64_t kib;
    return read_number("/proc/self/status", "VmLck:", &kib) ? kib * 1024 : 0;
}

void hearth_llama_recommended(const struct hearth_engine *engine, struct hearth_sampling *sampling) {
    const struct hearth_llama *llama = (const struct hearth_llama *)(const void *)engine;
    const struct {
        enum llama_model_meta_key key;
        float *real;
        int32_t *whole;
        double least, most;
    } rows[] = {
        {LLAMA_MODEL_META_KEY_SAMPLING_TEMP, &sampling->temperature, NULL, 0, 2},
        {LLAMA_MODEL_META_KEY_SAMPLING_TOP_K, NULL, &sampling->top_k, 0, INT32_MAX},
        {LLAMA_MODEL_META_KEY_SAMPLING_TOP_P, &sampling->top_p, NULL, 0, 1},
        {LLAMA_MODEL_META_KEY_SAMPLING_MIN_P, &sampling->min_p, NULL, 0, 1},
        {LLAMA_MODEL_META_KEY_SAMPLING_XTC_PROBABILITY, &sampling->xtc_probability, NULL, 0, 1},
        {LLAMA_MODEL_META_KEY_SAMPLING_XTC_THRESHOLD, &sampling->xtc_threshold, NULL, 0, 1},
        {LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_LAST_N, NULL, &sampling->penalty_last_tokens, -1, INT32_MAX},
        {LLAMA_MODEL_META_KEY_SAMPLING_PENALTY_REPEAT, &sampling->penalty_repeat, NULL, 0.01, 10},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[64], *end;
        const char *key = llama_model_meta_key_str(rows[i].key);
        if (key == NULL || llama_model_meta_val_str(llama->model, key, text, sizeof text) <= 0) {
            continue;
        }
        const double value = strtod(text, &end);
        if (end == text || *end != '\0' || !(value >= rows[i].least && value <= rows[i].most)) {
            continue;
        }
        if (rows[i].real != NULL) {
            *rows[i].real = (float)value;
        } else {
            *rows[i].whole = (int32_t)value;
        }
    }
}
