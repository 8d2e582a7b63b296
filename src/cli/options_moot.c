/* One table: an option, when it is without effect, and the reason. Defaults of requests are not in it: a request that
 * sets what they depend on makes them count. Rows of one option stand together: it is told once. */
#include "cli/options_moot.h"

#include "cli/options_internal.h"

#include <stddef.h>
#include <string.h>

#define OPTIONS const struct hearth_options *o
#define FACTS const struct hearth_option_facts *f

static bool is(const char *text, const char *word) {
    return text && strcmp(text, word) == 0;
}

static bool simulated(OPTIONS, FACTS) {
    (void)o;
    return !f->computes;
}

static bool no_gpu(OPTIONS, FACTS) {
    return f->computes && f->gpus == 0 && o->gpu_layers > 0;
}

static bool no_gpus(OPTIONS, FACTS) {
    (void)o;
    return f->computes && f->gpus == 0;
}

static bool few_gpus(OPTIONS, FACTS) {
    (void)o;
    return f->computes && f->gpus < 2;
}

static bool load_mode(OPTIONS, FACTS) {
    (void)f;
    return !is(o->load_mode, "auto");
}

static bool no_lora(OPTIONS, FACTS) {
    (void)f;
    return !o->lora;
}

static bool no_guesses(OPTIONS, FACTS) {
    (void)f;
    return is(o->speculate, "off");
}

static bool no_snapshots(OPTIONS, FACTS) {
    (void)o;
    return !f->snapshots;
}

static bool no_pages(OPTIONS, FACTS) {
    (void)o;
    return !f->pages;
}

static bool no_cache(OPTIONS, FACTS) {
    (void)f;
    return o->cache_ram == 0;
}

static bool no_room(OPTIONS, FACTS) {
    (void)f;
    return o->kv_disk == 0 || o->cache_ram == 0;
}

static bool no_disk(OPTIONS, FACTS) {
    (void)o;
    return !f->disk;
}

static bool nothing_written(OPTIONS, FACTS) {
    (void)o;
    return !f->disk && !f->sessions;
}

static bool no_sessions(OPTIONS, FACTS) {
    (void)o;
    return !f->sessions;
}

static bool template_file(OPTIONS, FACTS) {
    (void)f;
    return o->chat_template_file != NULL;
}

static bool no_reasoning_budget(OPTIONS, FACTS) {
    (void)f;
    return o->reasoning_budget < 0;
}

static bool rope_scale(OPTIONS, FACTS) {
    (void)f;
    return o->rope_scale > 0;
}

static bool no_rope_scaling(OPTIONS, FACTS) {
    (void)f;
    return is(o->rope_scaling, "none");
}

static bool no_cpus(OPTIONS, FACTS) {
    (void)f;
    return !o->cpu_mask && !o->cpu_range;
}

static bool local(OPTIONS, FACTS) {
    (void)o;
    return f->local;
}

static bool no_yarn(OPTIONS, FACTS) {
    (void)f;
    return is(o->rope_scaling, "none") || is(o->rope_scaling, "linear");
}

static bool no_socket(OPTIONS, FACTS) {
    (void)f;
    return strncmp(o->host, "unix:", 5) != 0;
}

static bool no_port(OPTIONS, FACTS) {
    return !no_socket(o, f);
}

static bool any_key(OPTIONS, FACTS) {
    (void)f;
    return o->api_key != NULL || o->api_key_file != NULL;
}

#define ROW(field, when, reason) {offsetof(struct hearth_options, field), (when), (reason)}

static const struct {
    size_t offset;
    bool (*when)(OPTIONS, FACTS);
    const char *reason;
} rows[] = {
    ROW(lora, simulated, "the simulated engine computes nothing"),
    ROW(lora_scale, simulated, "the simulated engine computes nothing"),
    ROW(lora_scale, no_lora, "there is no --lora"),
    ROW(mmap, simulated, "the simulated engine computes nothing"),
    ROW(mmap, load_mode, "--load-mode says how the model is read"),
    ROW(mlock, simulated, "the simulated engine computes nothing"),
    ROW(mlock, load_mode, "--load-mode says how the model is read"),
    ROW(load_mode, simulated, "the simulated engine computes nothing"),
    ROW(lazy_mode, simulated, "the simulated engine computes nothing"),
    ROW(check_tensors, simulated, "the simulated engine computes nothing"),
    ROW(override_kv, simulated, "the simulated engine computes nothing"),
    ROW(gpu_layers, no_gpu, "there is no GPU that this build can use, all layers are on the CPU"),
    ROW(gpu_layers, simulated, "the simulated engine computes nothing"),
    ROW(device, simulated, "the simulated engine computes nothing"),
    ROW(split_mode, simulated, "the simulated engine computes nothing"),
    ROW(split_mode, few_gpus, "there are not several GPUs"),
    ROW(tensor_split, simulated, "the simulated engine computes nothing"),
    ROW(tensor_split, few_gpus, "there are not several GPUs"),
    ROW(main_gpu, simulated, "the simulated engine computes nothing"),
    ROW(main_gpu, few_gpus, "there are not several GPUs"),
    ROW(kv_offload, simulated, "the simulated engine computes nothing"),
    ROW(kv_offload, no_gpus, "there is no GPU that this build can use"),
    ROW(op_offload, simulated, "the simulated engine computes nothing"),
    ROW(op_offload, no_gpus, "there is no GPU that this build can use"),
    ROW(override_tensor, simulated, "the simulated engine computes nothing"),
    ROW(cpu_moe, simulated, "the simulated engine computes nothing"),
    ROW(cpu_moe, no_gpus, "there is no GPU that this build can use, all layers are on the CPU"),
    ROW(n_cpu_moe, simulated, "the simulated engine computes nothing"),
    ROW(n_cpu_moe, no_gpus, "there is no GPU that this build can use, all layers are on the CPU"),
    ROW(n_cpu_ffn, simulated, "the simulated engine computes nothing"),
    ROW(n_cpu_ffn, no_gpus, "there is no GPU that this build can use, all layers are on the CPU"),
    ROW(repack, simulated, "the simulated engine computes nothing"),
    ROW(deterministic, simulated, "the simulated engine always is"),
    ROW(numa, simulated, "the simulated engine computes nothing"),
    ROW(cpu_mask, simulated, "the simulated engine computes nothing"),
    ROW(cpu_range, simulated, "the simulated engine computes nothing"),
    ROW(cpu_strict, simulated, "the simulated engine computes nothing"),
    ROW(cpu_strict, no_cpus, "there is neither --cpu-mask nor --cpu-range"),
    ROW(prio, simulated, "the simulated engine computes nothing"),
    ROW(threads, simulated, "the simulated engine computes nothing"),
    ROW(threads_batch, simulated, "the simulated engine computes nothing"),
    ROW(flash_attn, simulated, "the simulated engine computes nothing"),
    ROW(cache_type_k, simulated, "the simulated engine computes nothing"),
    ROW(cache_type_v, simulated, "the simulated engine computes nothing"),
    ROW(rope_scaling, simulated, "the simulated engine computes nothing"),
    ROW(rope_scale, simulated, "the simulated engine computes nothing"),
    ROW(rope_scale, no_rope_scaling, "--rope-scaling is none"),
    ROW(rope_freq_base, simulated, "the simulated engine computes nothing"),
    ROW(rope_freq_scale, simulated, "the simulated engine computes nothing"),
    ROW(rope_freq_scale, rope_scale, "--rope-scale is given"),
    ROW(rope_freq_scale, no_rope_scaling, "--rope-scaling is none"),
    ROW(yarn_orig_ctx, simulated, "the simulated engine computes nothing"),
    ROW(yarn_orig_ctx, no_yarn, "--rope-scaling is not yarn"),
    ROW(yarn_ext_factor, simulated, "the simulated engine computes nothing"),
    ROW(yarn_ext_factor, no_yarn, "--rope-scaling is not yarn"),
    ROW(yarn_attn_factor, simulated, "the simulated engine computes nothing"),
    ROW(yarn_attn_factor, no_yarn, "--rope-scaling is not yarn"),
    ROW(yarn_beta_slow, simulated, "the simulated engine computes nothing"),
    ROW(yarn_beta_slow, no_yarn, "--rope-scaling is not yarn"),
    ROW(yarn_beta_fast, simulated, "the simulated engine computes nothing"),
    ROW(yarn_beta_fast, no_yarn, "--rope-scaling is not yarn"),
    ROW(draft_tokens, no_guesses, "--speculate is off"),
    ROW(cache_ram_snapshots, no_snapshots, "this model's state needs no snapshots"),
    ROW(cache_ram_snapshots, no_cache, "--cache-ram is 0"),
    ROW(page_tokens, no_pages, "this model's state has no pages"),
    ROW(page_tokens, no_cache, "--cache-ram is 0"),
    ROW(snapshot_interval, no_snapshots, "this model's state needs no snapshots"),
    ROW(snapshot_interval, no_cache, "--cache-ram is 0"),
    ROW(kv_dir, no_room, "--kv-disk or --cache-ram is 0"),
    ROW(kv_disk, no_cache, "--cache-ram is 0"),
    ROW(kv_disk, no_disk, "nothing is kept on disk"),
    ROW(kv_min_tokens, no_disk, "nothing is kept on disk"),
    ROW(kv_interval_tokens, no_disk, "nothing is kept on disk"),
    ROW(kv_compress, no_disk, "nothing is kept on disk"),
    ROW(kv_key, nothing_written, "nothing is kept on disk"),
    ROW(kv_io, no_disk, "nothing is kept on disk"),
    ROW(chat_template, template_file, "--chat-template-file is given"),
    ROW(reasoning_budget_message, no_reasoning_budget, "there is no --reasoning-budget"),
    ROW(session_ttl, no_sessions, "sessions are kept in memory"),
    ROW(port, no_port, "--host is a socket in a file"),
    ROW(insecure, any_key, "there is a key"),
    ROW(insecure, local, "--host is of this machine alone"),
    ROW(allow_host, any_key, "there is a key, and requests with one may call the server what they like"),
    ROW(host_mode, no_socket, "--host is no unix:PATH"),
};

/* What is there to turn something off has that effect. */
static bool turns_off(const struct hearth_options *options, size_t offset) {
    return (offset == offsetof(struct hearth_options, kv_dir) && is(options->kv_dir, "none")) ||
           (offset == offsetof(struct hearth_options, kv_disk) && options->kv_disk == 0) ||
           (offset == offsetof(struct hearth_options, cpu_strict) && options->cpu_strict == 0);
}

bool hearth_options_moot(const struct hearth_options *options, const struct hearth_option_facts *facts,
                         struct hearth_buf *out) {
    bool ok = true;
    size_t told = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && ok; i++) {
        const struct hearth_option_row *row = hearth_option_at(rows[i].offset);
        const bool given = options->sources[row - hearth_option_rows] != HEARTH_OPTION_DEFAULT;
        if (given && !turns_off(options, row->offset) && told != row->offset && rows[i].when(options, facts)) {
            told = row->offset; /* one reason is enough */
            ok = hearth_buf_printf(out, "%s has no effect: %s\n", row->long_name, rows[i].reason);
        }
    }
    return ok;
}
