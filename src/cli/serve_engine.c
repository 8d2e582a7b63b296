/* Copies options into the parameters of an engine, one by one. No decision is made here. */
#include "cli/serve_internal.h"

#include "cli/banner.h"
#include "engine/llama.h"
#include "engine/sim.h"

#include <string.h>

static uint32_t u32(int64_t n) {
    return n < 0 ? 0 : (uint32_t)n;
}

static int create_sim(const struct hearth_options *options, struct hearth_engine **out, struct hearth_errmsg *msg) {
    struct hearth_sim_params params;
    hearth_sim_params_default(&params);
    params.ctx_tokens = options->ctx_size ? u32(options->ctx_size) : params.ctx_tokens;
    params.lanes = options->parallel > 0 ? u32(options->parallel) : 4;
    params.parked_seqs = 1;
    params.batch_tokens = u32(options->batch_size);
    params.ubatch_tokens = u32(options->ubatch_size);
    params.real_time = strcmp(options->sim_clock, "virtual") != 0;
    params.prefill_tokens_per_s *= options->sim_speed;
    params.decode_tokens_per_s *= options->sim_speed;
    params.import_bytes_per_s *= options->sim_speed;
    params.export_bytes_per_s *= options->sim_speed;
    return hearth_sim_create(&params, out, msg);
}

static void fill_rope(const struct hearth_options *options, struct hearth_llama_params *params) {
    params->rope_freq_base = (float)options->rope_freq_base;
    params->rope_freq_scale = (float)(options->rope_scale > 0 ? 1 / options->rope_scale : options->rope_freq_scale);
    params->rope_scaling = strcmp(options->rope_scaling, "model") == 0 ? NULL : options->rope_scaling;
    params->yarn_orig_ctx = u32(options->yarn_orig_ctx);
    params->yarn_ext_factor = (float)options->yarn_ext_factor;
    params->yarn_attn_factor = (float)options->yarn_attn_factor;
    params->yarn_beta_slow = (float)options->yarn_beta_slow;
    params->yarn_beta_fast = (float)options->yarn_beta_fast;
}

static void fill_model(const struct hearth_options *options, struct hearth_llama_params *params) {
    params->model_path = options->model;
    params->lora_path = options->lora;
    params->lora_scale = (float)options->lora_scale;
    params->no_mmap = !options->mmap;
    params->mlock = options->mlock;
    params->load_mode = options->load_mode;
    params->lazy_mode = options->lazy_mode;
    params->check_tensors = options->check_tensors;
    params->override_kv = options->override_kv.v;
    params->override_kvs = options->override_kv.n;
}

static void fill_processors(const struct hearth_options *options, struct hearth_llama_params *params) {
    params->gpu_layers = (int32_t)options->gpu_layers;
    params->device = options->device;
    params->split_mode = options->split_mode;
    params->tensor_split = options->tensor_split;
    params->main_gpu = (int32_t)options->main_gpu;
    params->override_tensor = options->override_tensor.v;
    params->override_tensors = options->override_tensor.n;
    params->cpu_moe = options->cpu_moe;
    params->cpu_moe_layers = (int32_t)options->n_cpu_moe;
    params->cpu_ffn_layers = (int32_t)options->n_cpu_ffn;
    params->no_kv_offload = !options->kv_offload;
    params->no_op_offload = !options->op_offload;
    params->no_repack = !options->repack;
    params->deterministic = options->deterministic;
    params->numa = options->numa;
    params->threads = (int32_t)u32(options->threads);
    params->threads_batch = (int32_t)u32(options->threads_batch);
    params->cpu_mask = options->cpu_mask;
    params->cpu_range = options->cpu_range;
    params->cpu_strict = options->cpu_strict == 1;
    params->priority = (int32_t)options->prio;
}

static int create_llama(const struct hearth_options *options, struct hearth_engine **out, struct hearth_errmsg *msg) {
    if (!options->model) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "no model: name one with -m FILE, or try --engine sim");
    }
    struct hearth_progress progress = {0};
    struct hearth_llama_params params;
    hearth_llama_params_default(&params);
    fill_model(options, &params);
    fill_processors(options, &params);
    fill_rope(options, &params);
    params.ctx_tokens = u32(options->ctx_size);
    params.lanes = u32(options->parallel);
    params.batch_tokens = u32(options->batch_size);
    params.ubatch_tokens = u32(options->ubatch_size);
    params.type_k = options->cache_type_k;
    params.type_v = options->cache_type_v;
    params.flash_attn_off = strcmp(options->flash_attn, "off") == 0;
    params.progress = hearth_progress_show;
    params.progress_user = &progress;
    const int err = hearth_llama_create(&params, out, msg);
    hearth_progress_end(&progress);
    return err;
}

int hearth_serve_engine_create(const struct hearth_options *options, struct hearth_engine **out,
                               struct hearth_errmsg *msg) {
    const bool sim = strcmp(options->engine, "sim") == 0;
    return sim ? create_sim(options, out, msg) : create_llama(options, out, msg);
}
