/* Two tables: the options that the simulated engine ignores, and those that other options, the model or the machine
 * make pointless, with the reason. Defaults of requests are in neither: a request that sets what they depend on makes
 * them count. */
#include "cli/options_internal.h"

#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(struct hearth_options, field)

static bool is(const char *text, const char *word) {
    return text && strcmp(text, word) == 0;
}

static bool is_path(const char *host) {
    return strncmp(host, "unix:", 5) == 0;
}

enum condition {
    SIMULATED,
    NO_GPU,
    NO_GPUS,
    FEW_GPUS,
    LOAD_MODE,
    NO_LORA,
    NO_GUESSES,
    NO_SNAPSHOTS,
    NO_PAGES,
    NO_CACHE,
    NO_ROOM,
    NO_DISK,
    NOTHING_WRITTEN,
    NO_SESSIONS,
    TEMPLATE_FILE,
    NO_REASONING_BUDGET,
    ROPE_SCALE,
    NO_ROPE_SCALING,
    NO_CPUS,
    LOCAL,
    NO_YARN,
    NO_SOCKET,
    NO_PORT,
    ANY_KEY
};

static bool holds(enum condition condition, const struct hearth_options *o, const struct hearth_option_facts *f) {
    switch (condition) {
    case SIMULATED: return !f->computes;
    case NO_GPU: return f->computes && f->gpus == 0 && o->gpu_layers > 0;
    case NO_GPUS: return f->computes && f->gpus == 0;
    case FEW_GPUS: return f->computes && f->gpus < 2;
    case LOAD_MODE: return !is(o->load_mode, "auto");
    case NO_LORA: return !o->lora;
    case NO_GUESSES: return is(o->speculate, "off");
    case NO_SNAPSHOTS: return !f->snapshots;
    case NO_PAGES: return !f->pages;
    case NO_CACHE: return o->cache_ram == 0;
    case NO_ROOM: return o->kv_disk == 0 || o->cache_ram == 0;
    case NO_DISK: return !f->disk;
    case NOTHING_WRITTEN: return !f->disk && !f->sessions;
    case NO_SESSIONS: return !f->sessions;
    case TEMPLATE_FILE: return o->chat_template_file != NULL;
    case NO_REASONING_BUDGET: return o->reasoning_budget < 0;
    case ROPE_SCALE: return o->rope_scale > 0;
    case NO_ROPE_SCALING: return is(o->rope_scaling, "none");
    case NO_CPUS: return !o->cpu_mask && !o->cpu_range;
    case LOCAL: return f->local;
    case NO_YARN: return is(o->rope_scaling, "none") || is(o->rope_scaling, "linear");
    case NO_SOCKET: return !is_path(o->host);
    case NO_PORT: return is_path(o->host);
    case ANY_KEY: return o->api_key != NULL || o->api_key_file != NULL;
    }
    return false;
}

/* The simulated engine computes nothing. */
static const size_t of_computing[] = {AT(lora),
                                      AT(lora_scale),
                                      AT(mmap),
                                      AT(mlock),
                                      AT(load_mode),
                                      AT(lazy_mode),
                                      AT(check_tensors),
                                      AT(override_kv),
                                      AT(gpu_layers),
                                      AT(device),
                                      AT(split_mode),
                                      AT(tensor_split),
                                      AT(main_gpu),
                                      AT(kv_offload),
                                      AT(op_offload),
                                      AT(override_tensor),
                                      AT(cpu_moe),
                                      AT(n_cpu_moe),
                                      AT(n_cpu_ffn),
                                      AT(repack),
                                      AT(numa),
                                      AT(cpu_mask),
                                      AT(cpu_range),
                                      AT(cpu_strict),
                                      AT(prio),
                                      AT(threads),
                                      AT(threads_batch),
                                      AT(flash_attn),
                                      AT(cache_type_k),
                                      AT(cache_type_v),
                                      AT(rope_scaling),
                                      AT(rope_scale),
                                      AT(rope_freq_base),
                                      AT(rope_freq_scale),
                                      AT(yarn_orig_ctx),
                                      AT(yarn_ext_factor),
                                      AT(yarn_attn_factor),
                                      AT(yarn_beta_slow),
                                      AT(yarn_beta_fast)};

static const struct {
    size_t offset;
    enum condition when;
    const char *reason;
} rows[] = {
    {AT(lora_scale), NO_LORA, "there is no --lora"},
    {AT(mmap), LOAD_MODE, "--load-mode says how the model is read"},
    {AT(mlock), LOAD_MODE, "--load-mode says how the model is read"},
    {AT(gpu_layers), NO_GPU, "there is no GPU that this build can use, all layers are on the CPU"},
    {AT(split_mode), FEW_GPUS, "there are not several GPUs"},
    {AT(tensor_split), FEW_GPUS, "there are not several GPUs"},
    {AT(main_gpu), FEW_GPUS, "there are not several GPUs"},
    {AT(kv_offload), NO_GPUS, "there is no GPU that this build can use"},
    {AT(op_offload), NO_GPUS, "there is no GPU that this build can use"},
    {AT(cpu_moe), NO_GPUS, "there is no GPU that this build can use, all layers are on the CPU"},
    {AT(n_cpu_moe), NO_GPUS, "there is no GPU that this build can use, all layers are on the CPU"},
    {AT(n_cpu_ffn), NO_GPUS, "there is no GPU that this build can use, all layers are on the CPU"},
    {AT(deterministic), SIMULATED, "the simulated engine always is"},
    {AT(cpu_strict), NO_CPUS, "there is neither --cpu-mask nor --cpu-range"},
    {AT(rope_scale), NO_ROPE_SCALING, "--rope-scaling is none"},
    {AT(rope_freq_scale), ROPE_SCALE, "--rope-scale is given"},
    {AT(rope_freq_scale), NO_ROPE_SCALING, "--rope-scaling is none"},
    {AT(yarn_orig_ctx), NO_YARN, "--rope-scaling is not yarn"},
    {AT(yarn_ext_factor), NO_YARN, "--rope-scaling is not yarn"},
    {AT(yarn_attn_factor), NO_YARN, "--rope-scaling is not yarn"},
    {AT(yarn_beta_slow), NO_YARN, "--rope-scaling is not yarn"},
    {AT(yarn_beta_fast), NO_YARN, "--rope-scaling is not yarn"},
    {AT(draft_tokens), NO_GUESSES, "--speculate is off"},
    {AT(cache_ram_snapshots), NO_SNAPSHOTS, "this model's state needs no snapshots"},
    {AT(cache_ram_snapshots), NO_CACHE, "--cache-ram is 0"},
    {AT(page_tokens), NO_PAGES, "this model's state has no pages"},
    {AT(page_tokens), NO_CACHE, "--cache-ram is 0"},
    {AT(snapshot_interval), NO_SNAPSHOTS, "this model's state needs no snapshots"},
    {AT(snapshot_interval), NO_CACHE, "--cache-ram is 0"},
    {AT(kv_dir), NO_ROOM, "--kv-disk or --cache-ram is 0"},
    {AT(kv_disk), NO_CACHE, "--cache-ram is 0"},
    {AT(kv_disk), NO_DISK, "nothing is kept on disk"},
    {AT(kv_min_tokens), NO_DISK, "nothing is kept on disk"},
    {AT(kv_interval_tokens), NO_DISK, "nothing is kept on disk"},
    {AT(kv_compress), NO_DISK, "nothing is kept on disk"},
    {AT(kv_key), NOTHING_WRITTEN, "nothing is kept on disk"},
    {AT(kv_io), NO_DISK, "nothing is kept on disk"},
    {AT(chat_template), TEMPLATE_FILE, "--chat-template-file is given"},
    {AT(reasoning_budget_message), NO_REASONING_BUDGET, "there is no --reasoning-budget"},
    {AT(session_ttl), NO_SESSIONS, "sessions are kept in memory"},
    {AT(port), NO_PORT, "--host is a socket in a file"},
    {AT(insecure), ANY_KEY, "there is a key"},
    {AT(insecure), LOCAL, "--host is of this machine alone"},
    {AT(allow_host), ANY_KEY, "there is a key, and requests with one may call the server what they like"},
    {AT(host_mode), NO_SOCKET, "--host is no unix:PATH"},
};

/* What is there to turn something off has that effect. */
static bool turns_off(const struct hearth_options *options, size_t offset) {
    return (offset == AT(kv_dir) && is(options->kv_dir, "none")) || (offset == AT(kv_disk) && options->kv_disk == 0) ||
           (offset == AT(cpu_strict) && options->cpu_strict == 0);
}

/* The first reason; NULL: the option has an effect. */
static const char *moot(size_t offset, const struct hearth_options *options, const struct hearth_option_facts *facts) {
    for (size_t i = 0; !facts->computes && i < sizeof of_computing / sizeof *of_computing; i++) {
        if (of_computing[i] == offset) {
            return "the simulated engine computes nothing";
        }
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].offset == offset && holds(rows[i].when, options, facts)) {
            return rows[i].reason;
        }
    }
    return NULL;
}

bool hearth_options_moot(const struct hearth_options *options, const struct hearth_option_facts *facts,
                         struct hearth_buf *out) {
    bool ok = true;
    for (size_t i = 0; i < hearth_option_row_count && ok; i++) {
        const struct hearth_option_row *row = &hearth_option_rows[i];
        const bool given = !row->title && options->sources[i] != HEARTH_OPTION_DEFAULT;
        const char *reason = given && !turns_off(options, row->offset) ? moot(row->offset, options, facts) : NULL;
        ok = !reason || hearth_buf_printf(out, "%s has no effect: %s\n", row->long_name, reason);
    }
    return ok;
}
