/* Options without effect, in two tables: those that the simulated engine ignores, and those that other options, the
 * model or the machine make pointless, with the reason. Defaults of requests are in neither: a request may set what
 * they depend on. */
#include "cli/options_internal.h"

#include "http/server.h"

#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(struct hearth_options, field)

static const char of_computing[] =
    "--lora --lora-scale --mmap --mlock --load-mode --lazy-mode --check-tensors --override-kv "
    "--gpu-layers --device --split-mode --tensor-split --main-gpu --kv-offload --op-offload "
    "--override-tensor --cpu-moe --n-cpu-moe --n-cpu-ffn --repack --numa --cpu-mask --cpu-range "
    "--cpu-strict --prio --threads --threads-batch --flash-attn --cache-type-k --cache-type-v "
    "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor "
    "--yarn-attn-factor --yarn-beta-slow --yarn-beta-fast";

static bool is(const char *text, const char *word) {
    return text && strcmp(text, word) == 0;
}

/* An option that has no effect when `holds`, and why. */
struct moot_row {
    size_t offset;
    bool holds;
    const char *reason;
};

static const char *first_reason(const struct moot_row *rows, size_t n, size_t offset) {
    for (size_t i = 0; i < n; i++) {
        if (rows[i].offset == offset && rows[i].holds) {
            return rows[i].reason;
        }
    }
    return NULL;
}

/* Options of the cache, and of where state is kept. */
static const char *moot_of_state(size_t offset, const struct hearth_options *o, const struct hearth_option_facts *f) {
    const bool no_cache = o->cache_ram == 0, stores = f->disk || o->kv_remote;
    const struct moot_row rows[] = {
        {AT(cache_ram_snapshots), !f->snapshots, "this model's state needs no snapshots"},
        {AT(cache_ram_snapshots), no_cache, "--cache-ram is 0"},
        {AT(cache_policy), no_cache, "--cache-ram is 0"},
        {AT(page_tokens), !f->pages, "this model's state has no pages"},
        {AT(page_tokens), no_cache, "--cache-ram is 0"},
        {AT(snapshot_interval), !f->snapshots, "this model's state needs no snapshots"},
        {AT(snapshot_interval), no_cache, "--cache-ram is 0"},
        {AT(kv_dir), no_cache || o->kv_disk == 0, "--kv-disk or --cache-ram is 0"},
        {AT(kv_disk), no_cache, "--cache-ram is 0"},
        {AT(kv_remote), no_cache, "--cache-ram is 0"},
        {AT(kv_events), no_cache, "--cache-ram is 0"},
        {AT(kv_events_replay), !o->kv_events, "there is no --kv-events"},
        {AT(kv_events_topic), !o->kv_events, "there is no --kv-events"},
        {AT(kv_remote_ttl), !o->kv_remote, "there is no --kv-remote"},
        {AT(kv_remote_timeout), !o->kv_remote, "there is no --kv-remote"},
        {AT(kv_remote_ca), !o->kv_remote, "there is no --kv-remote"},
        {AT(kv_disk), !f->disk, "nothing is kept on disk"},
        {AT(kv_min_tokens), !stores, "nothing is kept on disk"},
        {AT(kv_interval_tokens), !stores, "nothing is kept on disk"},
        {AT(kv_compress), !stores, "nothing is kept on disk"},
        {AT(kv_key), !stores && !f->sessions, "nothing is kept on disk"},
        {AT(kv_io), !f->disk, "nothing is kept on disk"},
    };
    return first_reason(rows, sizeof rows / sizeof *rows, offset);
}

/* The first reason; NULL: the option has an effect. */
static const char *moot(size_t offset, const struct hearth_options *o, const struct hearth_option_facts *f) {
    const bool no_gpu = f->computes && f->gpus == 0, load_mode = !is(o->load_mode, "auto");
    const bool no_scaling = is(o->rope_scaling, "none"), no_yarn = no_scaling || is(o->rope_scaling, "linear");
    const bool is_path = hearth_http_host_is_unix(o->host), keyed = o->api_key || o->api_key_file;
    const struct moot_row rows[] = {
        {AT(lora_scale), !o->lora, "there is no --lora"},
        {AT(mmap), load_mode, "--load-mode says how the model is read"},
        {AT(mlock), load_mode, "--load-mode says how the model is read"},
        {AT(gpu_layers), no_gpu && o->gpu_layers > 0,
         "there is no GPU that this build can use, all layers are on the CPU"},
        {AT(split_mode), f->computes && f->gpus < 2, "there are not several GPUs"},
        {AT(tensor_split), f->computes && f->gpus < 2, "there are not several GPUs"},
        {AT(main_gpu), f->computes && f->gpus < 2, "there are not several GPUs"},
        {AT(kv_offload), no_gpu, "there is no GPU that this build can use"},
        {AT(op_offload), no_gpu, "there is no GPU that this build can use"},
        {AT(cpu_moe), no_gpu, "there is no GPU that this build can use, all layers are on the CPU"},
        {AT(n_cpu_moe), no_gpu, "there is no GPU that this build can use, all layers are on the CPU"},
        {AT(n_cpu_ffn), no_gpu, "there is no GPU that this build can use, all layers are on the CPU"},
        {AT(deterministic), !f->computes, "the simulated engine always is"},
        {AT(cpu_strict), !o->cpu_mask && !o->cpu_range, "there is neither --cpu-mask nor --cpu-range"},
        {AT(rope_scale), no_scaling, "--rope-scaling is none"},
        {AT(rope_freq_scale), o->rope_scale > 0, "--rope-scale is given"},
        {AT(rope_freq_scale), no_scaling, "--rope-scaling is none"},
        {AT(yarn_orig_ctx), no_yarn, "--rope-scaling is not yarn"},
        {AT(yarn_ext_factor), no_yarn, "--rope-scaling is not yarn"},
        {AT(yarn_attn_factor), no_yarn, "--rope-scaling is not yarn"},
        {AT(yarn_beta_slow), no_yarn, "--rope-scaling is not yarn"},
        {AT(yarn_beta_fast), no_yarn, "--rope-scaling is not yarn"},
        {AT(draft_tokens), is(o->speculate, "off"), "--speculate is off"},
        {AT(chat_template), o->chat_template_file != NULL, "--chat-template-file is given"},
        {AT(reasoning_budget_message), o->reasoning_budget < 0, "there is no --reasoning-budget"},
        {AT(session_ttl), !f->sessions, "sessions are kept in memory"},
        {AT(port), is_path, "--host is a socket in a file"},
        {AT(insecure), keyed, "there is a key"},
        {AT(insecure), f->local, "--host is of this machine alone"},
        {AT(allow_host), keyed, "there is a key, and requests with one may call the server what they like"},
        {AT(host_mode), !is_path, "--host is no unix:PATH"},
    };
    const char *reason = first_reason(rows, sizeof rows / sizeof *rows, offset);
    return reason ? reason : moot_of_state(offset, o, f);
}

/* What is there to turn something off has that effect. */
static bool turns_off(const struct hearth_options *options, size_t offset) {
    return (offset == AT(kv_dir) && is(options->kv_dir, "none")) || (offset == AT(kv_disk) && options->kv_disk == 0) ||
           (offset == AT(cpu_strict) && options->cpu_strict == 0);
}

bool hearth_options_moot(const struct hearth_options *options, const struct hearth_option_facts *facts,
                         struct hearth_buf *out) {
    bool ok = true;
    for (size_t i = 0; i < hearth_option_row_count && ok; i++) {
        const struct hearth_option_row *row = &hearth_option_rows[i];
        if (row->title || options->sources[i] == HEARTH_OPTION_DEFAULT || turns_off(options, row->offset)) {
            continue;
        }
        const bool ignored =
            !facts->computes && hearth_option_has_name(of_computing, row->long_name, strlen(row->long_name));
        const char *reason = ignored ? "the simulated engine computes nothing" : moot(row->offset, options, facts);
        ok = !reason || hearth_buf_printf(out, "%s has no effect: %s\n", row->long_name, reason);
    }
    return ok;
}
